"""What is recorded of a run, and what the database says when it is over: all that the judge gets to see.

Both the chaos rig and the simulation record what the clients asked for and what they were answered (`Call`), and what was
handed out to be run (`Delivery`); both read the database once, at the end (`Dump`). None of that asks the system how it
thinks it is doing. All times are seconds since the epoch, by one clock.

The rig adds what it broke and what the operating system says of the processes. Its receiver, its workers over HTTP, its
clients and the rig itself write by the clock of the machine (`time.time()` of a process whose clock nobody bends), each
into its own file of JSON lines, only appended.

The simulation adds what only a world of one thread can know: the calls of workers and leaders in their order, by virtual
time (`Step`), and the ledger as it was in between (`Checkpoint`). A worker whose answer was lost on the way has still been
given something: such a claim is recorded as any other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

Seconds = float  # since the epoch


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """One line of a file."""


class Call(Event, frozen=True, kw_only=True, tag="call"):
    """One request of the client to the API. A call that is repeated under its key is written each time.

    `status` None: no answer came (refused, reset, timed out); it may or may not have had its effect.
    """

    operation: str  # create, update, pause, resume, delete, run, cancel, list, count
    key: str | None  # Idempotency-Key
    tenant: str
    job_id: str | None  # what it was about, if it was not a create
    execution_id: str | None  # of a cancel
    document: Any  # what was sent
    asked_at: Seconds
    answered_at: Seconds | None
    status: int | None
    answer: Any


class Delivery(Event, frozen=True, kw_only=True, tag="delivery"):
    """One webhook as it reached the receiver; or one execution as it was handed to a worker over HTTP, for which `answered_at`
    and `status` say when its work was over, and whether it went well."""

    at: Seconds
    execution_id: str
    job: str  # the name of the job, as its url says it
    fence: int
    attempt: int
    scheduled_for: Seconds
    mood: str  # what the receiver did about it: see receiver.MOODS
    answered_at: Seconds | None  # None: it was never answered
    status: int | None
    worker: str | None = None  # the worker over HTTP that was handed it; None: it is a webhook
    task: str | None = None  # which it was to run


class Stray(Event, frozen=True, kw_only=True, tag="stray"):
    """A request that reached the receiver and is no webhook as it should be."""

    at: Seconds
    what: str


class Fault(Event, frozen=True, kw_only=True, tag="fault"):
    """Something that the rig broke, from when to when. A kill ends when the process that takes its place has started."""

    kind: str  # see faults.KINDS
    victim: str  # a name of a process, "worker-2", or of a connection, "worker-2→postgres"
    began_at: Seconds
    ended_at: Seconds
    detail: dict[str, Any] = {}


class Sample(Event, frozen=True, kw_only=True, tag="sample"):
    """What the operating system says of a process of ours."""

    at: Seconds
    process: str
    pid: int
    rss_kb: int
    descriptors: int


class Backends(Event, frozen=True, kw_only=True, tag="backends"):
    """What PostgreSQL says of its connections, by the name of the process behind them."""

    at: Seconds
    connections: dict[str, int]
    idle_in_transaction_seconds: float  # the longest


class Phase(Event, frozen=True, kw_only=True, tag="phase"):
    """`loaded`: the clients begin; `healed`: the last fault is over; `quiet`: the clients have stopped; `ended`."""

    at: Seconds
    name: str


# What only a simulation sees, in order.


class Step(msgspec.Struct, frozen=True, tag=True):
    """Something that a worker or a scheduler did, by virtual time."""

    at: Seconds


class Claim(Step, frozen=True):
    session: int
    number: int
    execution_id: str
    job_id: str
    scheduled_for: Seconds
    attempt: int
    fence: int


class Settle(Step, frozen=True):
    """An outcome that a worker reported."""

    session: int
    execution_id: str
    fence: int
    kind: int  # 0 succeeded 1 retry 2 dead 3 cancelled 4 released
    accepted: bool
    delay_seconds: float | None = None
    reason: str | None = None


class SessionOpened(Step, frozen=True):
    session: int


class SessionRenewed(Step, frozen=True):
    """A heartbeat that was answered."""

    session: int
    running: frozenset[str]  # what the worker said that it holds
    resolved: int  # every claim up to this number was answered
    lost: frozenset[str]  # what it was told that it does not hold


class SessionClosed(Step, frozen=True):
    session: int


class Silenced(Step, frozen=True):
    """A worker died or was stopped; it could renew its session no more."""

    session: int


class Reaped(Step, frozen=True):
    """Sessions were ended because their workers had been silent."""

    sessions: frozenset[int]


class TermBegun(Step, frozen=True):
    epoch: int


class LeaderVerb(Step, frozen=True):
    """A verb that a leader's node called under an epoch, and whether the database let it."""

    verb: str
    epoch: int
    accepted: bool


class Planned(Step, frozen=True):
    """A process planned or joined at this moment, or tried to."""


class Gated(Step, frozen=True):
    """A pass of the gate was tried at this moment."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The fates that were recorded by some moment."""

    at: Seconds
    fates: dict[str, tuple[str, str | None]]


# What the database says in the end.


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One ended attempt, as the ledger tells it."""

    attempt: int
    fence: int
    started_at: Seconds
    finished_at: Seconds
    reason: str | None
    session: int | None = None
    worker: str | None = None  # the process that claimed it; None if nobody noted that


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the ledger."""

    execution_id: str
    job_id: str
    tenant: str
    priority: int  # 0 CRITICAL … 3 LOW
    origin: int  # 0 schedule, 1 run now, 2 backfill
    scheduled_for: Seconds
    status: str  # SUCCEEDED DEAD CANCELLED SUPERSEDED SKIPPED
    reason: str | None
    recorded_at: Seconds
    started_at: Seconds | None  # of the first attempt
    attempts: list[Attempt]  # the last one included
    counted: int | None = None  # attempts by the ledger's own count; None: it is not known
    fence: int | None = None  # of the last claim, by the ledger's own word
    missed: int | None  # of a stretch that was missed: how many occurrences …
    missed_through: Seconds | None  # … from scheduled_for up to this
    claimed_at: Seconds | None = (
        None  # first, also by a claim whose answer was lost; None: nobody noted that
    )


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has not ended."""

    execution_id: str
    job_id: str
    origin: int
    scheduled_for: Seconds
    place: str  # due, parked, held, ready, suspects, leased, nowhere
    run_at: Seconds
    planned_ahead: bool  # its time has not come
    lease_until: Seconds | None = None  # of the session that holds it; None if that is not known
    claimed_at: Seconds | None = None  # as of what has ended
    attempts: list[Attempt] = []  # those that have ended


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    name: str
    tenant: str
    status: str
    type: str


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One leadership, by the database's time."""

    epoch: int
    node: str
    began_at: Seconds
    ended_at: (
        Seconds  # the last moment up to which its lease was good, or at which it was given back
    )


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a leader wrote under its epoch."""

    epoch: int
    at: Seconds


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """The database when the run is over."""

    at: Seconds
    jobs: list[JobRow]
    ended: list[Ended]
    alive: list[Alive]
    dead_letters: list[str]  # execution ids
    terms: list[Term]
    written: list[Written]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run, as the judge gets it."""

    seed: int
    calls: list[Call]
    deliveries: list[Delivery]
    dump: Dump
    phases: list[Phase] = []
    # Of the rig.
    faults: list[Fault] = []
    samples: list[Sample] = []
    backends: list[Backends] = []
    strays: list[Stray] = []
    # Of a simulation.
    steps: list[Step] = []
    checkpoints: list[Checkpoint] = []


AnyEvent = Call | Delivery | Stray | Fault | Sample | Backends | Phase


class Log:
    """A file of events; each line is written whole, so that a process that is killed leaves at most one that is cut."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def add(self, event: AnyEvent) -> None:
        self._file.write(msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> list[AnyEvent]:
    """The events of a file; a last line that was cut short by a kill is passed over."""
    lines = path.read_bytes().split(b"\n")
    decoder = msgspec.json.Decoder(AnyEvent)
    return [decoder.decode(line) for line in lines[:-1]]
