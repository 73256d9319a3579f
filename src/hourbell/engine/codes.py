"""How the model's enums are stored: small integers, the same as in store/functions/codes.sql."""

from __future__ import annotations

from hourbell.model.executions import ExecutionStatus, Origin
from hourbell.model.jobs import ACTIVE_STATUSES, Event, JobStatus, NewJob
from hourbell.model.policies import Misfire, Overlap

MISFIRES = {Misfire.SKIP: 0, Misfire.LATEST: 1, Misfire.ALL: 2}
OVERLAPS = {Overlap.ALLOW: 0, Overlap.FORBID: 1, Overlap.REPLACE: 2, Overlap.QUEUE_ONE: 3}
JOB_STATUSES = (
    JobStatus.SCHEDULED,
    JobStatus.PAUSED,
    JobStatus.ENDED,
    JobStatus.CANCELLED,
)  # of recurring jobs
FATES = (
    ExecutionStatus.SUCCEEDED,
    ExecutionStatus.DEAD,
    ExecutionStatus.CANCELLED,
    ExecutionStatus.SUPERSEDED,
    ExecutionStatus.SKIPPED,
)

AWAITING_SESSION = 0  # of leased.session: the target has accepted the execution

TARGET_GONE = "target answered 410"  # the actor of a pause, in the audit
PAUSE_OVER = "end of the pause"  # the actor of a resume, in the audit

ORIGINS = (Origin.SCHEDULE, Origin.RUN_NOW, Origin.BACKFILL, Origin.NOTIFICATION)
ORIGIN_SCHEDULE, ORIGIN_RUN_NOW, ORIGIN_BACKFILL = range(3)

EVENTS = {Event.SUCCESS: 1, Event.FAILURE: 2, Event.DEAD_LETTER: 4}  # bits of `notifies`

MISSED, RECOVERED = 8, 16  # of monitors


def job_status_code(status: JobStatus) -> int:
    """A status as a change of a job has it: one-time jobs that are not paused are SCHEDULED."""
    return JOB_STATUSES.index(JobStatus.SCHEDULED if status in ACTIVE_STATUSES else status)


def notifies(job: NewJob) -> int:
    """The events that a job sends notifications for, as bits."""
    if not job.notifications:
        return 0
    return sum(EVENTS[event] for event in {event for one in job.notifications for event in one.on})
