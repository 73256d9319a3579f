"""Executions: one occurrence of a job, from planning to its final state.

    (planned) ─▶ SCHEDULED ─▶ QUEUED ─▶ RUNNING ─▶ SUCCEEDED
                                ▲          │  └─▶ AWAITING ─▶ SUCCEEDED, or FAILED as below
                                ├──────────┤
                                │ returned ▼
                                │        FAILED ─▶ DEAD
                                │          │
                             RETRYING ◀────┘

SCHEDULED and RETRYING wait for a time: that of the execution, or that of its next attempt. QUEUED
waits for anything else: the gate, a limit, a circuit, a worker. `hourbell.live_status` decides
between them.

A waiting execution may also end as CANCELLED, SKIPPED or SUPERSEDED. FAILED is the end of one
attempt, not a lasting state: the transaction that records it also moves the execution to RETRYING
or DEAD. Every occurrence ends in exactly one of the five final states (fates) and never leaves it:
a replay of a DEAD execution starts a new life under the same id, and the ledger keeps the record of
the first one.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

# Reasons for waiting:
CIRCUIT_OPEN = "circuit_open"  # the host or endpoint keeps failing
NO_SECRET_KEYS = "no_secret_keys"  # the worker cannot decrypt the secrets
PAYLOAD_MISMATCH = "payload_mismatch"  # the worker's version of the task takes other arguments
UNREADABLE = "unreadable"  # the worker's version cannot read the stored job
TIMEOUT = "timeout"  # the failure kind of an attempt stopped by its timeout

MAX_ERROR_CHARACTERS = 4_000  # in the message of a failure
MAX_RESULT_BYTES = 16 * 1024  # in the result of a success, as JSON
MAX_PROGRESS_BYTES = 16 * 1024  # in a report of progress, as JSON
MAX_INTERRUPTIONS = 20  # in a row; the next one is a failure
MAX_MISMATCHES = 10  # in a row, together with interruptions; then it is dead
MAX_SNOOZES = 1_000  # per execution; with the next one it is dead
MAX_SNOOZE_SECONDS = 366 * 86_400  # per snooze
MAX_CHECKPOINT_BYTES = 64 * 1024  # as JSON


class ExecutionStatus(StrEnum):
    """The state of an execution."""

    SCHEDULED = "SCHEDULED"  # not yet due, or its job is paused
    QUEUED = "QUEUED"  # due; waiting for admission, a limit or a worker
    RUNNING = "RUNNING"  # claimed by a worker
    AWAITING = "AWAITING"  # the target has accepted it and will report the outcome
    FAILED = "FAILED"  # an attempt failed; see the diagram above
    RETRYING = "RETRYING"  # waiting for its next attempt
    SUCCEEDED = "SUCCEEDED"
    DEAD = "DEAD"  # will not be retried; in the dead letters
    CANCELLED = "CANCELLED"  # cancelled by a user or by a later run
    SUPERSEDED = "SUPERSEDED"  # the job was updated, paused or deleted
    SKIPPED = "SKIPPED"  # a policy decided not to run it


class Origin(StrEnum):
    """Why an execution exists."""

    SCHEDULE = "schedule"
    RUN_NOW = "run_now"
    BACKFILL = "backfill"
    NOTIFICATION = "notification"  # reports an event of another execution or of a monitor
    REPLAY = "replay"  # a replayed dead letter, whatever its origin was before


class Reason(StrEnum):
    """Why an execution ended: a closed set, for programs. `REASONS` maps fates to reasons."""

    OVERLAP = "overlap"  # an earlier run was live (`forbid`) or already waiting (`queue_one`)
    REPLACED = "replaced"  # a later run became due before it had started (`replace`)
    START_DEADLINE = "start_deadline"  # it could not start within start_deadline_seconds
    CALENDAR = "calendar"  # its date is in a calendar that the schedule excludes
    MISFIRE = "misfire"  # later than the grace period, and the policy does not make it up
    MAX_RUNS = "max_runs"  # the job had already started max_runs runs
    DEADLINE = "deadline"  # deadline_seconds passed, over all attempts
    RETRIES_EXHAUSTED = "retries_exhausted"
    NON_RETRYABLE = "non_retryable"  # the policy does not retry this kind of failure
    SNOOZED = "snoozed"  # snoozed too often, or beyond its deadline
    LOST = "lost"  # at-most-once, and the lease was lost: it may or may not have run
    CRASHED = "crashed"  # it crashed its worker too often
    CANCELLED = "cancelled"  # a user cancelled it, or a later run did (`replace`)
    UPDATED = "updated"  # the job was changed,
    PAUSED = "paused"  # paused
    DELETED = "deleted"  # or deleted before it was claimed


def stored_reason(stored: str) -> Reason:
    """The reason of a stored outcome. One that only a newer version knows is shown as it is."""
    try:
        return Reason(stored)
    except ValueError:
        unknown = str.__new__(Reason, stored)
        unknown._name_ = unknown._value_ = stored
        return unknown


_S = ExecutionStatus

FATES = frozenset({_S.SUCCEEDED, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED, _S.SKIPPED})

REASONS: dict[ExecutionStatus, frozenset[Reason]] = {
    _S.SKIPPED: frozenset(
        {
            Reason.OVERLAP,
            Reason.REPLACED,
            Reason.START_DEADLINE,
            Reason.CALENDAR,
            Reason.MISFIRE,
            Reason.MAX_RUNS,
        }
    ),
    _S.DEAD: frozenset(
        {
            Reason.RETRIES_EXHAUSTED,
            Reason.NON_RETRYABLE,
            Reason.SNOOZED,
            Reason.DEADLINE,
            Reason.LOST,
            Reason.CRASHED,
        }
    ),
    _S.CANCELLED: frozenset({Reason.CANCELLED}),
    _S.SUPERSEDED: frozenset({Reason.UPDATED, Reason.PAUSED, Reason.DELETED}),
}

TRANSITIONS: dict[ExecutionStatus | None, frozenset[ExecutionStatus]] = {
    # None: does not exist yet. A missed occurrence is recorded directly as SKIPPED.
    None: frozenset({_S.SCHEDULED, _S.SKIPPED}),
    _S.SCHEDULED: frozenset({_S.QUEUED, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED, _S.SKIPPED}),
    # To SCHEDULED or RETRYING: a one-time job that is parked or waiting for the gate is paused or
    # rescheduled to a later time.
    _S.QUEUED: frozenset(
        {
            _S.RUNNING,
            _S.SCHEDULED,
            _S.RETRYING,
            _S.DEAD,
            _S.CANCELLED,
            _S.SUPERSEDED,
            _S.SKIPPED,
        }
    ),
    # To QUEUED: released before it started, or interrupted, without using up an attempt; to
    # SCHEDULED and RETRYING if it was released with a delay, or snoozed. Also to QUEUED and DEAD
    # without FAILED when the lease was lost: that attempt has no outcome of its own.
    _S.RUNNING: frozenset(
        {
            _S.SUCCEEDED,
            _S.AWAITING,
            _S.FAILED,
            _S.SCHEDULED,
            _S.QUEUED,
            _S.RETRYING,
            _S.DEAD,
            _S.CANCELLED,
        }
    ),
    _S.AWAITING: frozenset({_S.SUCCEEDED, _S.FAILED, _S.DEAD, _S.CANCELLED}),
    _S.FAILED: frozenset({_S.RETRYING, _S.DEAD}),
    _S.RETRYING: frozenset({_S.QUEUED, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED}),
    **{fate: frozenset[ExecutionStatus]() for fate in FATES},
}


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One claimed execution, as handed to a worker."""

    execution_id: int
    job_id: int
    tenant_id: str
    attempt: int  # 1 for the first
    fence: int  # passed to the handler and the target, and returned with the outcome
    scheduled_epoch: float  # seconds since 1970; many handlers never need the datetime
    deadline_in_seconds: float | None  # from the claim; no attempt may run longer than this
    spec: bytes | str  # the job as stored; the worker decodes its JobSpec
    start_in_seconds: float = 0.0  # from the claim; a rate limit does not allow an earlier start

    @property
    def scheduled_for(self) -> datetime:
        return datetime.fromtimestamp(self.scheduled_epoch, UTC)


class Succeeded(msgspec.Struct, frozen=True, gc=False, tag_field="outcome", tag="succeeded"):
    """The attempt succeeded."""

    result: Any = None  # a small JSON value


class Unsendable:
    """In place of a result that the process of a function cannot send to the worker."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class Failed(msgspec.Struct, frozen=True, tag_field="outcome", tag="failed"):
    """The attempt failed; the retry policy decides what follows."""

    error: str  # human-readable
    kind: str  # for `non_retryable`: an exception's name, `http_503`, `timeout`
    retry_after_seconds: float | None = None  # the delay that the target asked for
    retry_in_seconds: float | None = None  # the delay that the handler chose; overrides the policy
    final: bool = False  # a retry would fail the same way
    gone: bool = False  # the target is gone; pauses the job if the failure is final


class Cancelled(msgspec.Struct, frozen=True, tag_field="outcome", tag="cancelled"):
    """The attempt was stopped because cancellation was requested, or cancelled itself."""

    why: str | None = None  # if it cancelled itself: the reason the handler gave


class Released(msgspec.Struct, frozen=True, tag_field="outcome", tag="released"):
    """Released without being started; the attempt does not count."""

    delay_seconds: float = 0.0  # it can be claimed again after this
    waits_for: str | None = None  # why, as in `explain`: `circuit_open`, `payload_mismatch`


# The outcome on a worker that cannot read the job, for example because a newer version stored it: a
# worker that can read it may try after this.
CANNOT_READ = Released(60.0, UNREADABLE)


class Interrupted(msgspec.Struct, frozen=True, tag_field="outcome", tag="interrupted"):
    """Stopped because its worker is stopping; up to MAX_INTERRUPTIONS in a row do not count as attempts."""


class Crashed(msgspec.Struct, frozen=True, tag_field="outcome", tag="crashed"):
    """The execution's own process died. Its worker is alive, and nothing else was lost."""

    error: str
    left: int  # how many more such deaths in a row are allowed; 0: this was the last


class Snoozed(msgspec.Struct, frozen=True, tag_field="outcome", tag="snoozed"):
    """Asked to run again later; up to MAX_SNOOZES snoozes do not count as attempts."""

    delay_seconds: float


class Accepted(msgspec.Struct, frozen=True, tag_field="outcome", tag="accepted"):
    """The target works asynchronously and will report the outcome with its completion token."""

    token_digest: bytes  # only the digest of the token is stored
    within_seconds: float  # the attempt fails with a timeout after this


Outcome = Succeeded | Failed | Cancelled | Released | Interrupted | Crashed | Snoozed | Accepted


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, as recorded."""

    attempt: int
    # RUNNING, AWAITING, SUCCEEDED, FAILED, CANCELLED; a lost lease is FAILED
    status: ExecutionStatus
    started_at: datetime
    finished_at: datetime | None = None
    error: str | None = None
    kind: str | None = None  # failure kind: `timeout`, `http_503`, an exception's name
    fence: int | None = None
    worker: str | None = None  # the worker's name; None: no longer known


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as read from the store, live or ended."""

    execution_id: int
    job_id: int
    job_name: str | None = None
    tenant_id: str
    queue: str | None = None
    origin: Origin = Origin.SCHEDULE
    status: ExecutionStatus
    reason: Reason | None = None
    waiting_for: str | None = None  # a code as in `explain`; None: it is running, or has ended
    scheduled_for: datetime
    started_at: datetime | None = None  # of the latest attempt
    finished_at: datetime | None = None
    duration_ms: int | None = None  # of the latest attempt, once it has ended
    attempt: int = 0  # 0 until it first runs
    fence: int | None = None  # of the latest claim
    worker: str | None = None  # of the latest attempt; None: none yet, or no longer known
    # From scheduled_for (for a backfill: from its request) to the start of the first attempt.
    lateness_ms: int | None = None
    error: str | None = None
    result: Any = None
    progress: Any = None  # the latest progress report, while it runs
    missed: int | None = None  # SKIPPED(misfire): how many occurrences this entry stands for,
    missed_through: datetime | None = None  # from scheduled_for through this one
    attempts: tuple[Attempt, ...] = ()  # oldest first; empty in lists
