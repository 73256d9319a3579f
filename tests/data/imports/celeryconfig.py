from datetime import timedelta

import settings
from celery import Celery
from celery.schedules import crontab, solar

app = Celery("shop", broker="redis://localhost")
app.conf.timezone = "Europe/London"

app.conf.beat_schedule = {
    "add-every-30-seconds": {"task": "tasks.add", "schedule": 30.0, "args": (16, 16)},
    "monday-morning": {
        "task": "tasks.report",
        "schedule": crontab(hour=7, minute=30, day_of_week="mon"),
        "kwargs": {"kind": "weekly"},
        "options": {"queue": "reports", "expires": 15.0, "priority": 3},
    },
    "quarterly": {
        "task": "tasks.close",
        "schedule": crontab(0, 0, day_of_month="1", month_of_year=[1, 4, 7, 10]),
    },
    "sync": {"task": "tasks.sync", "schedule": timedelta(minutes=10)},
    "half": {"task": "tasks.poll", "schedule": timedelta(milliseconds=500)},
    "backup": {"task": "tasks.backup", "schedule": 60 * 60 * 24},
    "at-sunset": {"task": "tasks.light", "schedule": solar("sunset", -37.81, 144.96)},
    "from-settings": {"task": settings.TASK, "schedule": crontab(minute=settings.MINUTE)},
}
