"""Dead man's switch: sends an alert when a job has not succeeded within its grace period.

A monitor watches a recurring job. After each success the next occurrence of the job is *expected*:
a success must be recorded at or after it, within the grace period. The same applies after the
monitor was created, and after the job was resumed or rescheduled. If no success is recorded, the
monitor goes down and sends one alert. The next success, of any run, brings it up again and sends
one recovery notification. Nothing is expected while a job is paused or after it has ended.
"""

from datetime import datetime

import msgspec

from hourbell.model.jobs import SecretsCheck

MAX_GRACE_SECONDS = 30 * 86_400
MAX_MONITORS = 5  # per job


class NewMonitor(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a monitor, as given by its owner."""

    job_id: int
    grace_seconds: int
    url: str  # where the alert is sent
    headers: dict[str, str] = {}
    secrets: SecretsCheck = SecretsCheck.REQUIRED  # checked at creation; not stored


class Monitor(NewMonitor, frozen=True, kw_only=True):
    """A monitor as read."""

    monitor_id: int
    tenant_id: str  # the tenant of the job
    expected_at: datetime | None  # the occurrence at or after which the job must succeed
    last_success_at: datetime | None  # the latest success that the monitor has seen
    down_since: datetime | None  # None: up
    created_at: datetime
    job_name: str | None = None  # None: the job was removed
