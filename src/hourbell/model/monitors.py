"""A dead-man switch: who is told when a job has had no success within its grace.

A monitor watches a recurring job. After each success the next occurrence of the job is *expected*: a success must be
recorded at or after it, and within the grace. The same holds after the monitor was created, and after the job was resumed
or given another schedule. If none comes the monitor is down and one alert is sent; the next success, whichever run it
is of, makes it good again, and one recovery is sent. While a job is paused, and when it has ended, nothing is expected.
"""

from datetime import datetime

import msgspec

from hourbell.model.jobs import SecretsCheck

MAX_GRACE_SECONDS = 30 * 86_400
MAX_MONITORS = 5  # of a job


class NewMonitor(msgspec.Struct, frozen=True, kw_only=True):
    """All that its owner says about a monitor."""

    job_id: int
    grace_seconds: int
    url: str  # of the alert
    headers: dict[str, str] = {}
    secrets: SecretsCheck = SecretsCheck.REQUIRED  # at its creation; not stored


class Monitor(NewMonitor, frozen=True, kw_only=True):
    """A monitor as read."""

    monitor_id: int
    tenant_id: str  # that of the job
    expected_at: datetime | None  # the occurrence at or after which a success must come
    last_success_at: datetime | None  # that it has seen
    down_since: datetime | None  # None: all is well
    created_at: datetime
