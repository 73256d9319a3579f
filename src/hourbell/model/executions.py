"""One occurrence of a job on its way to its fate.

    (planned) ─▶ SCHEDULED ─▶ QUEUED ─▶ RUNNING ─▶ SUCCEEDED
                                ▲          │  └─▶ AWAITING ─▶ SUCCEEDED, or FAILED as below
                                ├──────────┤
                                │ released ▼
                                │        FAILED ─▶ DEAD
                                │          │
                             RETRYING ◀────┘

SCHEDULED and RETRYING wait for a time: the execution's own, or that of its next attempt. QUEUED waits for
anything else: the gate, a limit, a circuit, a worker. `hourbell.live_status` decides which it is.

From wherever it waits it may also end as CANCELLED, SKIPPED or SUPERSEDED. FAILED is the end of
one attempt, not a place to rest: the transaction that records it also moves the execution on to
RETRYING or DEAD. Exactly one of the five fates ends every occurrence, and none is ever left: a replay
of what is DEAD begins a new life under the same id, and the ledger keeps the death of the first.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

CIRCUIT_OPEN = "circuit_open"  # what an execution waits for whose host or endpoint keeps failing
NO_SECRET_KEYS = "no_secret_keys"  # and one whose worker cannot open its secrets
TIMEOUT = "timeout"  # the kind of failure of an attempt that was stopped by its timeout


class ExecutionStatus(StrEnum):
    """Where an execution is."""

    SCHEDULED = "SCHEDULED"  # its time has not come, or its job is paused
    QUEUED = "QUEUED"  # its time has come; it waits for admission, a limit or a worker
    RUNNING = "RUNNING"  # held by a lease
    AWAITING = "AWAITING"  # its target has accepted it, and will say how it ended
    FAILED = "FAILED"  # an attempt ended badly; see the drawing above
    RETRYING = "RETRYING"  # waits for its next attempt
    SUCCEEDED = "SUCCEEDED"
    DEAD = "DEAD"  # will not be tried again; in the dead letters
    CANCELLED = "CANCELLED"  # somebody, or a later run, took it back
    SUPERSEDED = "SUPERSEDED"  # the job is not the same any more
    SKIPPED = "SKIPPED"  # decided not to run


class Origin(StrEnum):
    """Why an execution exists."""

    SCHEDULE = "schedule"
    RUN_NOW = "run_now"
    BACKFILL = "backfill"
    NOTIFICATION = "notification"  # it tells what became of another execution, or of a monitor
    REPLAY = "replay"  # a dead letter that was replayed, whatever its origin was before


class Reason(StrEnum):
    """Why a fate came about: a closed set, for programs. `REASONS` says which fate has which."""

    OVERLAP = "overlap"  # an earlier run was live (`forbid`), or waited already (`queue_one`)
    REPLACED = "replaced"  # a later run came before it had started (`replace`)
    START_DEADLINE = "start_deadline"  # it could not start within start_deadline_seconds
    MISFIRE = "misfire"  # late by more than the grace, and the policy does not make it up
    MAX_RUNS = "max_runs"  # the job had started all the runs it may
    DEADLINE = "deadline"  # deadline_seconds ran out over all attempts
    RETRIES_EXHAUSTED = "retries_exhausted"
    NON_RETRYABLE = "non_retryable"  # the kind of failure is one that the policy does not retry
    LOST = "lost"  # at-most-once, and the lease was lost: nobody knows whether it ran
    CRASHED = "crashed"  # it took its worker down too often
    CANCELLED = "cancelled"  # somebody asked for it, or a later run did (`replace`)
    UPDATED = "updated"  # the job was changed before it was claimed,
    PAUSED = "paused"  # or paused,
    DELETED = "deleted"  # or deleted


_S = ExecutionStatus

FATES = frozenset({_S.SUCCEEDED, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED, _S.SKIPPED})

REASONS: dict[ExecutionStatus, frozenset[Reason]] = {
    _S.SKIPPED: frozenset(
        {
            Reason.OVERLAP,
            Reason.REPLACED,
            Reason.START_DEADLINE,
            Reason.MISFIRE,
            Reason.MAX_RUNS,
        }
    ),
    _S.DEAD: frozenset(
        {
            Reason.RETRIES_EXHAUSTED,
            Reason.NON_RETRYABLE,
            Reason.DEADLINE,
            Reason.LOST,
            Reason.CRASHED,
        }
    ),
    _S.CANCELLED: frozenset({Reason.CANCELLED}),
    _S.SUPERSEDED: frozenset({Reason.UPDATED, Reason.PAUSED, Reason.DELETED}),
}

TRANSITIONS: dict[ExecutionStatus | None, frozenset[ExecutionStatus]] = {
    # None: it does not exist yet. A missed occurrence is recorded without ever having waited.
    None: frozenset({_S.SCHEDULED, _S.SKIPPED}),
    _S.SCHEDULED: frozenset({_S.QUEUED, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED, _S.SKIPPED}),
    _S.QUEUED: frozenset({_S.RUNNING, _S.DEAD, _S.CANCELLED, _S.SUPERSEDED, _S.SKIPPED}),
    # To QUEUED: released before it started, no attempt burnt; to SCHEDULED and RETRYING if it was released
    # for later. To QUEUED and DEAD without FAILED also when the lease was lost: the attempt has no outcome
    # of its own.
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
    """What a worker gets for one claimed execution."""

    execution_id: int
    job_id: int
    tenant_id: str
    attempt: int  # 1 for the first
    fence: int  # goes to the handler, the target and back with the outcome
    scheduled_for: datetime
    deadline_in_seconds: float | None  # from the claim; no attempt may go on after this
    spec: bytes | str  # the job as stored; the worker decodes the JobSpec in it
    start_in_seconds: float = 0.0  # from the claim; a rate limit lets it start then, and not before


class Succeeded(msgspec.Struct, frozen=True, tag_field="outcome", tag="succeeded"):
    """The action did what it was asked to."""

    result: Any = None  # small, JSON


class Failed(msgspec.Struct, frozen=True, tag_field="outcome", tag="failed"):
    """The attempt failed; the retry policy decides what follows."""

    error: str  # for people
    kind: str  # for `non_retryable`: an exception's name, `http_503`, `timeout`
    retry_after_seconds: float | None = None  # what the target asked for
    final: bool = False  # it would fail in the same way each time
    gone: bool = False  # the target wants no more of this job, which is paused if this is final


class Cancelled(msgspec.Struct, frozen=True, tag_field="outcome", tag="cancelled"):
    """The work was stopped because somebody asked for it."""


class Released(msgspec.Struct, frozen=True, tag_field="outcome", tag="released"):
    """Given back unstarted; the attempt does not count."""

    delay_seconds: float = 0.0  # to be tried again after this
    waits_for: str | None = (
        None  # what the delay is for, as `explain` says it: `circuit_open`, `no_secret_keys`
    )


class Accepted(msgspec.Struct, frozen=True, tag_field="outcome", tag="accepted"):
    """The target goes on with it by itself and will say how it ended, by a token that it was given."""

    token_digest: bytes  # what is kept of the token
    within_seconds: float  # it fails with a timeout after this


Outcome = Succeeded | Failed | Cancelled | Released | Accepted


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try, as recorded."""

    attempt: int
    status: (
        ExecutionStatus  # RUNNING, AWAITING, SUCCEEDED, FAILED, CANCELLED; a lost lease is FAILED
    )
    started_at: datetime
    finished_at: datetime | None = None
    error: str | None = None
    kind: str | None = None  # of its failure: `timeout`, `http_503`, an exception's name
    fence: int | None = None
    worker: str | None = None  # the name of the worker; None: it is no longer known


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution as read: live or recorded."""

    execution_id: int
    job_id: int
    job_name: str | None = None
    tenant_id: str
    queue: str | None = None
    origin: Origin = Origin.SCHEDULE
    status: ExecutionStatus
    reason: Reason | None = None
    scheduled_for: datetime
    started_at: datetime | None = None  # of the latest attempt
    finished_at: datetime | None = None
    duration_ms: int | None = None  # of the latest attempt, once it has ended
    attempt: int = 0  # 0 until it first runs
    fence: int | None = None  # of the latest claim
    worker: str | None = None  # of the latest attempt; None: none yet, or no longer known
    # From scheduled_for, or of a backfill from its request, to the start of the first attempt.
    lateness_ms: int | None = None
    error: str | None = None
    result: Any = None
    progress: Any = None  # what its worker last said, while it runs
    missed: int | None = None  # SKIPPED(misfire): how many occurrences this one entry stands for,
    missed_through: datetime | None = None  # from scheduled_for to here
    attempts: tuple[Attempt, ...] = ()  # oldest first; left empty in lists
