"""cell metrics: what the database says about the whole cell, as gauges.

Only the leader exports them, so that a sum over all processes is right. Every read is bounded
(`store/queries/metrics.sql`), and its result is kept for a while: for FRESH_SECONDS, or for so long
that reading the cell takes no more than a twentieth of the time. So neither many scrapers nor a huge
backlog can burden the database. While the database is unavailable, its gauges are left out and
`hourbell_database_up` is 0; everything that the process counts itself stays readable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg
import msgspec
import structlog

from hourbell.engine.core import Engine
from hourbell.model.errors import StoreUnavailable
from hourbell.model.policies import Priority
from hourbell.observe.metrics import OTHER, set_all
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import why_unusable
from hourbell.store.queries import queries

_Q = queries("metrics")
_PIN_PLANS = queries("pages")["pin_plans"]

FRESH_SECONDS = 5.0
ANSWER_SECONDS = 2.0  # after this the database counts as unavailable
READ_SECONDS = 5.0  # after this the gauges of the cell are left out; a scrape takes up to 10 s
MAX_READ_SHARE = 0.05  # of the time
MAX_QUEUES = 1_000  # that are read; the oldest ones
MAX_NAMED_QUEUES = 100  # that have series of their own; the rest is `other`
MAX_PER_TIER = 1_000  # rows of `due` and of `due_slabs`; a priority has four tiers
MAX_READY_SLABS = 250  # of a queue and priority,
MAX_ALL_READY_SLABS = 10_000  # and of all of them, about
MAX_WAITING = 2_000  # parked by one kind of blocker, paused, suspected: with their queues
MAX_LEASED = 5_000  # that run, and that await their targets
MAX_COUNTED = 10_000  # of what is counted without queues
_RUNS_OF = timedelta(hours=1)  # for the average time of a run
_UNREAPED = timedelta(seconds=60)
_BLOCKERS = ("queue", "tenant", "target", "concurrency_key", "job", "task", "failure")  # from 1

QUEUED = ("due", "parked", "ready")  # states that count as backlog
STATES = ("scheduled", *QUEUED, "paused", "running", "awaiting")

_log = structlog.get_logger(component="process")


class Waiting(msgspec.Struct, frozen=True):
    """Executions of one queue and priority in one state."""

    queue: int
    priority: int
    state: str
    count: int
    oldest: datetime | None = None  # time at which the first one fell due


class QueueState(msgspec.Struct, frozen=True):
    """A queue and the live workers that serve it."""

    name: str
    workers: int
    slots: int


class CellState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    now: datetime
    epoch: int
    workers: int
    lag_seconds: float
    broken_timetables: int
    jobs_without_next_run: int
    failing_rows: int
    dead_letters: int
    unreaped_sessions: int
    running_since: datetime | None  # time of the oldest claim that is not settled
    queues: Mapping[int, QueueState]
    waiting: Sequence[Waiting]
    parked: Mapping[str, int]  # by blocker
    run_seconds: Mapping[int, float]  # average, by queue


async def read_cell(engine: Engine) -> CellState:
    """Read the state of the cell; bounded."""
    now = await engine.clock.now()
    horizon, kinds = now + engine.times.horizon, list(range(1, len(_BLOCKERS) + 1))
    async with engine.database.transaction() as connection:
        await connection.execute(_PIN_PLANS)
        fetch = connection.fetch
        (cell,) = await fetch(_Q["cell"], now, horizon, now - _UNREAPED, MAX_COUNTED)
        queues = await fetch(_Q["queues"], MAX_QUEUES)
        serving = await fetch(_Q["serving"], now)
        due = await fetch(_Q["waiting"], now, MAX_PER_TIER)
        ready = await fetch(_Q["ready"], MAX_QUEUES, MAX_READY_SLABS, MAX_ALL_READY_SLABS)
        elsewhere = await fetch(_Q["elsewhere"], MAX_WAITING, MAX_LEASED, kinds)
        parked = await fetch(_Q["parked"], MAX_COUNTED, kinds)
        took = await fetch(_Q["run_seconds"], now - _RUNS_OF, now)
    workers = {row["queue"]: (row["workers"], row["slots"]) for row in serving}
    return CellState(
        now=now,
        epoch=cell["epoch"] or 0,
        workers=cell["workers"],
        lag_seconds=cell["lag_seconds"],
        broken_timetables=cell["broken"],
        jobs_without_next_run=cell["without_next_run"],
        failing_rows=cell["failing"],
        dead_letters=cell["dead_letters"],
        unreaped_sessions=cell["unreaped"],
        running_since=cell["running_since"],
        queues={row["id"]: _queue(row["name"], row["id"], workers) for row in queues},
        waiting=[*map(_due, due), *map(_ready, ready), *map(_elsewhere, elsewhere)],
        parked={_BLOCKERS[row["kind"] - 1]: row["n"] for row in parked},
        run_seconds={row["queue"]: row["seconds"] for row in took},
    )


def _queue(name: str, number: int, serving: Mapping[int | None, tuple[int, int]]) -> QueueState:
    """A queue with those that serve it, and those that serve all."""
    none = 0, 0
    own, all_queues = serving.get(number, none), serving.get(None, none)
    return QueueState(name, own[0] + all_queues[0], own[1] + all_queues[1])


def _due(row: asyncpg.Record) -> Waiting:
    state = "due" if row["is_due"] else "scheduled"
    return Waiting(row["queue"], row["priority"], state, row["n"], row["oldest"])


def _ready(row: asyncpg.Record) -> Waiting:
    return Waiting(row["queue"], row["priority"], "ready", row["n"], row["oldest"])


def _elsewhere(row: asyncpg.Record) -> Waiting:
    state = "ready" if row["place"] == "suspects" else row["place"]
    return Waiting(row["queue"], row["priority"], state, row["n"], row["oldest"])


class CellMetrics:
    """The gauges of the cell and of the database, refreshed before a scrape."""

    def __init__(self, engine: Engine, clock: DatabaseClock) -> None:
        self._engine = engine
        self._clock = clock
        self._run_seconds: dict[int, float] = {}  # last known average, by queue
        self._reading: asyncio.Task[None] | None = None
        self._fresh_until = 0.0  # monotonic
        self._fresh_for: bool | None = None  # whether that read was one of a leader
        gauge, largest = engine.metrics.gauge, MAX_NAMED_QUEUES + 1
        self._up = gauge("hourbell_database_up", "Whether the database answers this process.")
        self._read_seconds = gauge(
            "hourbell_database_read_seconds", "Time of the last read for these metrics."
        )
        self._drift = gauge(
            "hourbell_clock_drift_seconds",
            "How far the clock of this machine is ahead of that of the database.",
        )
        self._executions = gauge(
            "hourbell_queue_executions",
            "Executions that have not ended.",
            ("queue", "priority", "state"),
            largest * len(Priority) * len(STATES),
        )
        self._oldest = gauge(
            "hourbell_queue_oldest_age_seconds",
            "For how long the oldest execution has been due that no worker has started.",
            ("queue",),
            largest,
        )
        self._backlog = gauge(
            "hourbell_queue_backlog_seconds",
            "How long the live workers need for what is due.",
            ("queue",),
            largest,
        )
        self._slots = gauge(
            "hourbell_queue_slots", "Slots of the live workers of a queue.", ("queue",), largest
        )
        self._queue_workers = gauge(
            "hourbell_queue_workers", "Live workers of a queue.", ("queue",), largest
        )
        self._parked = gauge(
            "hourbell_parked", "Executions that wait for a blocker, by its kind.", ("blocker",)
        )
        self._workers = gauge("hourbell_workers", "Live workers.")
        self._epoch = gauge("hourbell_leader_epoch", "Number of the present term of leadership.")
        self._lag = gauge(
            "hourbell_planner_lag_seconds", "How late the planner is, compared with its horizon."
        )
        self._broken = gauge(
            "hourbell_timetables_broken", "Timetables that the leader cannot compute."
        )
        self._failing = gauge(
            "hourbell_failing_rows", "Rows on which a step fails, and which it leaves out."
        )
        self._without_next_run = gauge(
            "hourbell_jobs_without_next_run",
            "Scheduled jobs that are not planned, because their timetable cannot be computed.",
        )
        self._dead_letters = gauge("hourbell_dead_letters", "Dead letters.")
        self._unreaped = gauge(
            "hourbell_sessions_unreaped",
            "Sessions of workers that expired more than a minute ago and were not ended.",
        )
        self._running_age = gauge(
            "hourbell_running_oldest_age_seconds", "Age of the oldest claim that is not settled."
        )
        self._of_cell = (
            self._executions,
            self._oldest,
            self._backlog,
            self._slots,
            self._queue_workers,
            self._parked,
            self._workers,
            self._epoch,
            self._lag,
            self._broken,
            self._without_next_run,
            self._failing,
            self._dead_letters,
            self._unreaped,
            self._running_age,
        )
        self._drift.clear()
        self._show_cell(None)

    async def refresh(self, leads: bool) -> None:
        """Read what is not fresh; of scrapes at the same time, one reads."""
        if self._reading is None:
            is_fresh = self._clock.monotonic() < self._fresh_until
            if is_fresh and leads == self._fresh_for:
                return
            self._reading = asyncio.create_task(self._read(leads))
        await asyncio.shield(self._reading)

    async def _read(self, leads: bool) -> None:
        began = answered = self._clock.monotonic()
        self._up.series().set(0)
        self._drift.clear()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                drift = await self._clock.drift_seconds()
            self._show_database(drift)
            answered = self._clock.monotonic()
            async with asyncio.timeout(READ_SECONDS):
                state = await read_cell(self._engine) if leads else None
            self._show_cell(state)
        except (StoreUnavailable, TimeoutError, asyncpg.PostgresError) as error:
            _log.warning("metrics not read", error=why_unusable(error))
            self._show_cell(None)
        finally:
            ended = self._clock.monotonic()
            self._read_seconds.series().set(ended - began)
            # A database that does not answer is not burdened by being asked again.
            reading = ended - answered if self._up.series().value else 0.0
            self._fresh_until = ended + max(FRESH_SECONDS, reading / MAX_READ_SHARE)
            self._fresh_for = leads
            self._reading = None

    def _show_database(self, drift: float | None) -> None:
        self._up.series().set(1)
        if drift is not None:
            self._drift.series().set(drift)

    def _show_cell(self, state: CellState | None) -> None:
        """Show what was read; None: this process does not lead, or could not read it."""
        if state is None:
            for family in self._of_cell:
                family.clear()
            return
        self._run_seconds |= state.run_seconds
        measures = Measures.of(state, self._run_seconds)
        set_all(self._executions, measures.executions)
        set_all(self._oldest, measures.oldest)
        set_all(self._backlog, measures.backlog)
        set_all(self._slots, measures.slots)
        set_all(self._queue_workers, measures.workers)
        set_all(self._parked, {(blocker,): n for blocker, n in state.parked.items()})
        self._workers.series().set(state.workers)
        self._epoch.series().set(state.epoch)
        self._lag.series().set(state.lag_seconds)
        self._broken.series().set(state.broken_timetables)
        self._without_next_run.series().set(state.jobs_without_next_run)
        self._failing.series().set(state.failing_rows)
        self._dead_letters.series().set(state.dead_letters)
        self._unreaped.series().set(state.unreaped_sessions)
        since = state.running_since or state.now
        self._running_age.series().set(max((state.now - since).total_seconds(), 0.0))


class Measures(msgspec.Struct):
    """The values of gauges by queue, computed from what was read; keys are values of labels."""

    executions: dict[tuple[str, ...], float] = {}
    oldest: dict[tuple[str, ...], float] = {}
    backlog: dict[tuple[str, ...], float] = {}
    slots: dict[tuple[str, ...], float] = {}
    workers: dict[tuple[str, ...], float] = {}

    @classmethod
    def of(cls, state: CellState, run_seconds: Mapping[int, float]) -> Measures:
        """`run_seconds`: how long a run takes on average, by queue, as far as known."""
        measures = cls()
        named = {number: state.queues[number].name for number in [*state.queues][:MAX_NAMED_QUEUES]}
        for number, name in named.items():
            queue = state.queues[number]
            measures.oldest[(name,)] = measures.backlog[(name,)] = 0.0
            measures.slots[(name,)] = queue.slots
            measures.workers[(name,)] = queue.workers
        queued: Counter[int] = Counter()
        for one in state.waiting:
            name = named.get(one.queue, OTHER)
            measures._count(one, name, state.now)
            if one.state in QUEUED:
                queued[one.queue] += one.count
        known = list(run_seconds.values())
        usual = sum(known) / len(known) if known else 1.0
        for number, count in queued.items():
            slots = state.queues[number].slots if number in state.queues else 0
            seconds = count * run_seconds.get(number, usual) / max(slots, 1)
            key = (named.get(number, OTHER),)
            measures.backlog[key] = max(measures.backlog.get(key, 0.0), seconds)
        return measures

    def _count(self, one: Waiting, name: str, now: datetime) -> None:
        key = (name, Priority(one.priority).name, one.state)
        self.executions[key] = self.executions.get(key, 0) + one.count
        if one.oldest is not None and one.state in QUEUED:
            age = max((now - one.oldest).total_seconds(), 0.0)
            self.oldest[(name,)] = max(self.oldest.get((name,), 0.0), age)
