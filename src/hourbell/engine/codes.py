"""How the model's words are stored: small numbers, the same in every verb."""

from __future__ import annotations

from hourbell.model.executions import ExecutionStatus
from hourbell.model.jobs import JobStatus
from hourbell.model.policies import Misfire, Overlap

MISFIRES = {Misfire.SKIP: 0, Misfire.LATEST: 1, Misfire.ALL: 2}
OVERLAPS = {Overlap.ALLOW: 0, Overlap.FORBID: 1, Overlap.REPLACE: 2, Overlap.QUEUE_ONE: 3}
JOB_STATUSES = (JobStatus.SCHEDULED, JobStatus.PAUSED, JobStatus.COMPLETED, JobStatus.CANCELLED)
FATES = (
    ExecutionStatus.SUCCEEDED,
    ExecutionStatus.DEAD,
    ExecutionStatus.CANCELLED,
    ExecutionStatus.SUPERSEDED,
    ExecutionStatus.SKIPPED,
)

SCHEDULED, PAUSED, COMPLETED, CANCELLED = range(4)  # of jobs.status
FATE_CANCELLED = 2  # of ledger.status

ORIGIN_SCHEDULE, ORIGIN_RUN_NOW, ORIGIN_BACKFILL = range(3)
