"""What happened in a simulated run, as values: the only thing that the checker gets to see.

A history has two halves. What people and workers *lived through*: what users asked for and were told, what workers were
given and when they said what about it, which node led when. And what the database says *in the end*: its ledger and its
live tables, read once after the last event. The checker holds the second half against the first.

A worker whose answer was lost on the way has still been given something: such a claim is in the history with
`heard=False`, because the execution was started as far as anybody can know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change of a job that was acknowledged to its user."""

    at: datetime  # when it says that it took effect
    asked_at: datetime
    acked_at: datetime
    job: int
    operation: str  # create update pause resume delete
    document: Document  # the whole job as it was to be afterwards


@dataclass(frozen=True)
class Requested:
    """Executions that a user asked for by run now or backfill, acknowledged."""

    at: datetime
    asked_at: datetime
    acked_at: datetime
    job: int
    origin: int  # 1 run now, 2 backfill
    executions: tuple[int, ...]


@dataclass(frozen=True)
class Cancel:
    """A cancellation that was acknowledged."""

    asked_at: datetime
    acked_at: datetime
    execution: int
    ended: bool  # told that it has ended; otherwise that it will


@dataclass(frozen=True)
class SessionOpened:
    at: datetime
    session: int


@dataclass(frozen=True)
class SessionRenewed:
    """A heartbeat that was answered."""

    at: datetime
    session: int
    running: frozenset[int]  # what the worker said that it holds
    resolved: int  # every claim up to this number was answered
    lost: frozenset[int]  # what it was told that it does not hold


@dataclass(frozen=True)
class SessionClosed:
    at: datetime
    session: int


@dataclass(frozen=True)
class Claim:
    at: datetime
    session: int
    number: int
    execution: int
    job: int
    scheduled_for: datetime
    attempt: int
    fence: int
    heard: bool = True  # False: the answer was lost


@dataclass(frozen=True)
class Settle:
    """An outcome that a worker reported."""

    at: datetime
    session: int
    execution: int
    fence: int
    kind: int  # of hourbell.dispatch: 0 succeeded 1 retry 2 dead 3 cancelled 4 released
    accepted: bool
    delay_seconds: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class TermBegun:
    at: datetime
    epoch: int


@dataclass(frozen=True)
class LeaderVerb:
    """A verb that a leader's node called under an epoch, and whether the database let it."""

    at: datetime
    verb: str
    epoch: int
    accepted: bool


@dataclass(frozen=True)
class Planned:
    """Somebody planned or joined at this moment, or tried to."""

    at: datetime


@dataclass(frozen=True)
class Gated:
    """A pass of the gate was tried at this moment."""

    at: datetime


@dataclass(frozen=True)
class Silenced:
    """A worker died or was stopped; it could renew its session no more."""

    at: datetime
    session: int


@dataclass(frozen=True)
class Reaped:
    """Sessions were ended because their workers had been silent."""

    at: datetime
    sessions: frozenset[int]


@dataclass(frozen=True)
class Fate:
    """A row of the ledger."""

    id: int
    job: int
    origin: int
    scheduled_for: datetime
    status: str
    reason: str | None
    attempt: int
    fence: int
    recorded_at: datetime
    started_at: datetime | None = None
    missed: int | None = None
    missed_through: datetime | None = None
    history: tuple[tuple[int, int], ...] = ()  # of ended attempts: number, fence
    session: int | None = None  # of the last attempt, if that is not in the history


@dataclass(frozen=True)
class Live:
    """An execution that has not ended."""

    id: int
    job: int
    origin: int
    occurrence: datetime
    run_at: datetime
    attempt: int
    place: str  # due parked held ready suspects leased, or nowhere


@dataclass(frozen=True)
class Checkpoint:
    """The fates that were recorded by some moment."""

    at: datetime
    fates: dict[int, tuple[str, str | None]]


Event = (
    Change
    | Requested
    | Cancel
    | SessionOpened
    | SessionRenewed
    | SessionClosed
    | Claim
    | Settle
    | TermBegun
    | LeaderVerb
    | Planned
    | Gated
    | Silenced
    | Reaped
)


@dataclass
class History:
    """A run."""

    grace: timedelta
    horizon: timedelta
    lease: timedelta
    crash_limit: int
    led: bool  # False: every scheduler acted without leading
    events: list[Event] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    ended_at: datetime | None = None  # when the following was read
    fates: list[Fate] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    dead_letters: frozenset[int] = frozenset()
    job_statuses: dict[int, str] = field(default_factory=dict)
