"""A whole world in one thread: users, schedulers, workers and trouble, on a virtual clock and a real database.

The driver goes from event to event. It asks the database and the nodes when something will be next, sets the clock to
that moment, and lets every node that has a reason take its turn. Nothing runs beside anything else, so the seed decides
every order of events; what happens at the same time in production happens here one after the other, in an order that
differs from seed to seed. Users may be stopped in the middle of a call, with their transaction open.

All chance comes from one `Random(seed)`, and nothing that the database hands out depends on anything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

from conftest import plan_once
from hourbell import failpoints
from hourbell.engine.core import Engine
from hourbell.engine.groups import GroupExecutor
from hourbell.engine.life.create import create_job
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write, fingerprint
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Conflict, InvalidInput, JobNotActive, NotFound
from hourbell.model.executions import ExecutionStatus
from hourbell.model.jobs import JobStatus
from hourbell.store.database import Database
from hourbell.testing.clock import VirtualClock
from simulation.faults import Faults, Trouble
from simulation.nodes import Agenda, Node, Scheduler, Worker, World
from simulation.recorder import Recorder
from simulation.workload import Pace, Workload
from uncommitted import CHANGES, POINTS, UNCOMMITTED, UncommittedDatabase
from verify.history import History, Planned
from verify.promise import Document

_REFUSED = (Conflict, InvalidInput, JobNotActive, NotFound)

_QUICK = """
do $$ begin
  execute format('alter database %I set synchronous_commit = off', current_database());
end $$
"""

# Plans must not change in the middle of a run, and ids must not depend on which connection asked for them.
_STILL = """
do $$
declare name text;
begin
  for name in select c.oid::regclass::text from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
              where n.nspname = 'hourbell' and c.relkind = 'r' loop
    execute format('alter table %s set (autovacuum_enabled = off)', name);
  end loop;
end $$;
alter sequence hourbell.ids cache 1;
"""

_AGENDA = """
select
  exists (select from hourbell.memberships where joined_through is null) as joining,
  exists (select from hourbell.fires) or exists (select from hourbell.gaps)
    or exists (select from hourbell.timetables where plan_from <= $1::timestamptz + $2::interval) as plan,
  exists (select from hourbell.due where run_at <= $1::timestamptz)
    or exists (select from hourbell.due_slabs where run_at <= $1::timestamptz)
    or exists (select from hourbell.gate_wakeups where at <= $1::timestamptz) as due,
  exists (select from hourbell.deadlines where at < $1::timestamptz) as deadlines,
  exists (select from hourbell.memberships where until <= $1::timestamptz) as ended,
  exists (select from hourbell.sessions where expires_at <= $1::timestamptz) as expired,
  exists (select from hourbell.ready) or exists (select from hourbell.suspects) as ready,
  least(
    (select min(run_at) from hourbell.due where run_at > $1::timestamptz),
    (select min(run_at) from hourbell.due_slabs where run_at > $1::timestamptz),
    (select min(at) from hourbell.gate_wakeups where at > $1::timestamptz),
    (select min(plan_from) - $2::interval from hourbell.timetables where plan_from > $1::timestamptz + $2::interval),
    (select min(at) + interval '1 millisecond' from hourbell.deadlines where at >= $1::timestamptz),
    (select min(until) from hourbell.memberships where until > $1::timestamptz),
    (select min(expires_at) from hourbell.sessions where expires_at > $1::timestamptz)) as next
"""

_LIVE = "select id, coalesce(job, id) as job from hourbell.live order by id"


@dataclass
class Person:
    """A user's view of one job: what was requested and answered."""

    job: int
    document: Document
    paused: bool = False
    gone: bool = False
    busy: bool = False  # an operation on it has not been answered


@dataclass
class Wish:
    """A request of a user, repeated until it is answered."""

    operation: str
    key: str
    asked_at: datetime
    call: Callable[[Write], Awaitable[Any]]
    answered: Callable[[Any, datetime], None]
    person: Person | None = None
    tries: int = 0


@dataclass
class Stalled:
    """A call in the middle of which its process was stopped."""

    wish: Wish
    task: asyncio.Task[Any]
    hold: failpoints.Barrier
    cleanup: ExitStack
    until: datetime


@dataclass
class Options:
    """The size and kind of a world."""

    pace: Pace
    begins_at: datetime
    days: float
    led: bool = True
    schedulers: int = 3
    workers: int = 3
    trouble: float = 0.02  # the probability that a verb is interrupted


async def not_waiting_for_the_disk(dsn: str) -> None:
    """Commits that survive a crash of the machine are not what is tested here, and take most of the time."""
    database = await Database.open(dsn, connections=1)
    await database.value(_QUICK)
    await database.close()


async def simulate(dsn: str, seed: int, options: Options) -> History:
    """The history of one run, on a database of its own."""
    await not_waiting_for_the_disk(dsn)
    await plan_once(dsn)
    database = await UncommittedDatabase.open(dsn, connections=8)
    try:
        clock = await VirtualClock.install(database, options.begins_at)
        await database.value("delete from hourbell.sessions")  # here all workers are real
        async with database.connection() as connection:
            await connection.execute(_STILL)
        return await Simulation(seed, options, database, clock).run()
    finally:
        await database.close()


@dataclass
class Simulation:
    """One run."""

    seed: int
    options: Options
    database: Database
    clock: VirtualClock
    random: Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now = self.options.begins_at
        self.ends_at = self.now + timedelta(days=self.options.days)
        self.recorder = Recorder(self.seed, self.now)
        self.faults = Faults(self.random, self.options.trouble)
        self._world = World(
            self.database,
            self._new_engine,
            self.random,
            self.faults,
            self.options.pace,
            self.options.led,
            self.recorder.steps.append,
        )
        self._engine = self._new_engine()
        self._workload = Workload(self.random, self.options.pace, self.ends_at)
        self._schedulers = [Scheduler(self._world) for _ in range(self.options.schedulers)]
        self._workers = [
            Worker(self._world, self.random.randint(2, 5)) for _ in range(self.options.workers)
        ]
        self._people: list[Person] = []
        self._pending: list[tuple[datetime, Wish]] = []
        self._stalled: list[Stalled] = []
        self._jobs = 0
        self._writes = 0
        self._next_action = self.now
        self._next_trouble = self.now + self._after(self.options.pace.between_troubles)
        self._next_checkpoint = self.now + timedelta(days=self.options.days / 5)
        self._patience = 0.2
        self._last_agenda: Agenda | None = None
        self.well = False  # from here on nothing more goes wrong

    def _new_engine(self) -> Engine:
        engine = Engine(self.database, self.clock, self.options.pace.times)
        # Every user is a client of another process: who is stopped in the middle of a create stops nobody else's.
        engine.create_groups = GroupExecutor(max_group_size=1, max_groups=1_000)
        return engine

    async def run(self) -> History:
        await make_partitions(self._engine, self.now)
        try:
            while self.now < self.ends_at:
                await self._step()
            await self._recover()
        finally:
            for stalled in self._stalled:
                stalled.task.cancel()
                stalled.cleanup.close()
            await asyncio.gather(*(s.task for s in self._stalled), return_exceptions=True)
        return await self.recorder.finish(self.database, self.now)

    # Time.

    async def _step(self) -> None:
        agenda = await self._look()
        await self._go_to(self._next_moment(agenda))
        await self._release_stalled()
        await self._users_turn()
        await self._trouble_turn()
        await self._nodes_turn()
        if self.now >= self._next_checkpoint:
            self._next_checkpoint += timedelta(days=self.options.days / 5)
            await self.recorder.checkpoint(self.database, self.now)

    async def _look(self) -> _Row:
        return _Row(await self.database.row(_AGENDA, self.now, self.options.pace.times.horizon))

    def _next_moment(self, agenda: _Row) -> datetime:
        moments = [agenda.next, self._next_checkpoint]
        if not self.well:
            moments += [self._next_action, self._next_trouble]
        moments += [at for at, _ in self._pending]
        moments += [stalled.until for stalled in self._stalled]
        moments += [node.next_moment() for node in self._nodes]
        led = any(scheduler.acts for scheduler in self._schedulers)
        if (led and (agenda.joining or agenda.plan or agenda.due or agenda.deadlines)) or (
            agenda.ready and any(worker.wants_work for worker in self._workers)
        ):
            # Nodes poll; they find the same again and again until something changes.
            same = agenda.agenda == self._last_agenda
            self._patience = min(self._patience * 2, 60.0) if same else 0.2
            moments.append(self.now + timedelta(seconds=self._patience))
        self._last_agenda = agenda.agenda
        ahead = [moment for moment in moments if moment is not None and moment > self.now]
        at = min(ahead, default=self.now + timedelta(seconds=1))
        if self.random.random() < 0.5:  # the rest of the time, exactly then
            at += timedelta(milliseconds=self.random.randint(1, 400))
        return at

    async def _go_to(self, at: datetime) -> None:
        self.now = at
        await self.clock.set(at)

    def _after(self, seconds: float) -> timedelta:
        return timedelta(seconds=self.random.expovariate(1 / seconds))

    # Nodes.

    @property
    def _nodes(self) -> list[Node]:
        return [*self._schedulers, *self._workers]

    async def _nodes_turn(self) -> None:
        for group in (self._schedulers, self._workers):
            agenda = await self._look()
            turns = list(group)
            self.random.shuffle(turns)
            for node in turns:
                if node.away_until is not None:
                    if node.away_until > self.now:
                        continue
                    node.away_until = None
                await node.turn(self.now, agenda.agenda)
                if node.dead:
                    self._bury(node)

    def _bury(self, node: Node) -> None:
        assert isinstance(node, Scheduler | Worker)
        if isinstance(node, Worker):
            node.silence(self.now)
        node.dead = False
        node.crash()
        lease = self.options.pace.times.lease_seconds
        node.away_until = self.now + self._after(
            lease / 2 if self.random.random() < 0.7 else lease * 3
        )

    async def _trouble_turn(self) -> None:
        if self.well or self.now < self._next_trouble:
            return
        pace = self.options.pace
        self._next_trouble = self.now + self._after(pace.between_troubles)
        kind = self.random.choice(["crash", "stop", "stop", "close", "away", "dark", "planless"])
        node = self.random.choice(self._nodes)
        lease = pace.times.lease_seconds
        if kind == "crash":
            self._bury(node)
        elif kind == "stop" and node.away_until is None:
            if isinstance(node, Worker):
                node.silence(self.now)
            node.away_until = self.now + self._after(lease)
        elif kind == "close":
            worker = self.random.choice(self._workers)
            if worker.acts:
                await worker.close(self.now)
                worker.away_until = self.now + self._after(lease / 2)
        elif kind == "away":
            # The database does not answer for a while. Everybody lives on, and comes back within a second.
            term = pace.times.leader_lease_seconds
            longest = self.random.choice([0.5 * term, 1.1 * term, 2 * lease])
            away = timedelta(seconds=self.random.uniform(0.8, 1) * longest)
            await self._go_to(self.now + away)
            for other in self._nodes:
                if other.away_until is None:
                    back = self.now + timedelta(seconds=self.random.random())
                    for timer in ("lead", "beat"):
                        if timer in other.timers:
                            other.timers[timer] = max(other.timers[timer], back)
        elif kind == "dark":
            until = self.now + timedelta(seconds=self.random.random() * pace.longest_outage)
            for other in self._nodes:
                self._bury(other)
                other.away_until = until + self._after(lease / 10)
        elif kind == "planless":
            until = self.now + timedelta(seconds=self.random.random() * pace.longest_outage)
            for scheduler in self._schedulers:
                self._bury(scheduler)
                scheduler.away_until = until + self._after(lease / 10)

    # Users.

    async def _users_turn(self) -> None:
        for entry in [entry for entry in self._pending if entry[0] <= self.now]:
            self._pending.remove(entry)
            await self._try(entry[1])
        if not self.well and self.now >= self._next_action:
            # First every user creates a job, then they change them.
            seconds = self.options.pace.between_actions
            beginning = self._jobs < self.options.pace.most_jobs
            self._next_action = self.now + self._after(seconds / 50 if beginning else seconds)
            wish = await self._new_wish()
            if wish is not None:
                if wish.person is not None:
                    wish.person.busy = True
                await self._try(wish)

    async def _new_wish(self) -> Wish | None:
        free = [person for person in self._people if not person.busy and not person.gone]
        few = len(free) < self.options.pace.most_jobs
        if (
            self._jobs < self.options.pace.most_jobs
            or not free
            or (few and self.random.random() < 0.4)
        ):
            return self._create()
        person = self.random.choice(free)
        kinds = ["update", "update", "update", "pause", "pause", "delete", "run", "cancel", "fill"]
        kind = self.random.choice(kinds)
        if person.paused and kind in ("pause", "update", "delete"):
            kind = self.random.choice(["resume", "resume", "resume", kind])
            if kind == "pause":
                kind = "resume"
        match kind:
            case "update":
                return self._update(person)
            case "pause":
                return self._change(person, "pause", pause_job)
            case "resume":
                return self._change(person, "resume", resume_job)
            case "delete":
                return self._change(person, "delete", delete_job)
            case "run":
                return self._run_now(person)
            case "fill":
                return self._backfill(person)
        return await self._cancel()

    def _wish(
        self,
        operation: str,
        call: Callable[[Write], Awaitable[Any]],
        answered: Callable[[Any, datetime], None],
        person: Person | None = None,
    ) -> Wish:
        self._writes += 1
        return Wish(operation, f"write {self._writes}", self.now, call, answered, person)

    def _create(self) -> Wish:
        self._jobs += 1
        document = self._workload.new_job(self.now, self._jobs)

        def answered(created: Any, asked_at: datetime) -> None:
            job = created.job
            self._people.append(Person(job.job_id, document))
            self.recorder.create(job, document, asked_at, self.now)
            self._join()

        return self._wish(
            "create", lambda write: create_job(self._engine, document, write), answered
        )

    def _update(self, person: Person) -> Wish:
        patch, after = self._workload.patch(person.document, self.now)

        def answered(job: Any, asked_at: datetime) -> None:
            person.document = after
            self.recorder.change("update", job, patch, asked_at, self.now)
            self._join()

        return self._wish(
            "update",
            lambda write: update_job(self._engine, person.job, patch, write),
            answered,
            person,
        )

    def _change(self, person: Person, operation: str, change: Any) -> Wish:
        def answered(job: Any, asked_at: datetime) -> None:
            person.paused = operation == "pause"
            person.gone = operation == "delete"
            told = None
            one_time = person.document["type"] == "ONE_TIME"
            if one_time and operation == "delete" and job.status is not JobStatus.CANCELLED:
                told = self.now  # only a wish: it is on its way already
                self.recorder.cancel(person.job, person.job, False, asked_at, self.now)
            self.recorder.change(operation, job, None, asked_at, self.now, told)
            self._join()

        return self._wish(
            operation, lambda write: change(self._engine, person.job, write), answered, person
        )

    def _run_now(self, person: Person) -> Wish:
        def answered(made: Any, asked_at: datetime) -> None:
            if person.document["type"] == "ONE_TIME":
                person.paused = False
            self.recorder.request("run", person.job, made.execution_ids, asked_at, self.now)

        return self._wish(
            "run", lambda write: run_now(self._engine, person.job, write), answered, person
        )

    def _backfill(self, person: Person) -> Wish:
        length = timedelta(seconds=self.options.pace.longest_outage * self.random.random())
        through = self.now - length * self.random.random()

        def answered(made: Any, asked_at: datetime) -> None:
            self.recorder.request("backfill", person.job, made.execution_ids, asked_at, self.now)

        return self._wish(
            "run",
            lambda write: backfill(self._engine, person.job, through - length, through, write),
            answered,
            person,
        )

    async def _cancel(self) -> Wish | None:
        free = {person.job: person for person in self._people if not person.busy}
        rows = [row for row in await self.database.fetch(_LIVE) if row["job"] in free]
        if not rows:
            return None
        chosen = self.random.choice(rows)
        execution = chosen["id"]

        def answered(seen: Any, asked_at: datetime) -> None:
            ended = seen.status is ExecutionStatus.CANCELLED
            self.recorder.cancel(chosen["job"], execution, ended, asked_at, self.now)

        return self._wish(
            "cancel",
            lambda write: cancel_execution(self._engine, execution, write),
            answered,
            free[chosen["job"]],
        )

    def _join(self) -> None:
        """A change joins."""
        self.recorder.steps.append(Planned(self.now.timestamp()))

    async def _try(self, wish: Wish) -> None:
        wish.tries += 1
        write = Write(wish.key, fingerprint(wish.operation, wish.key, b""), "somebody")
        if not self.well and self.random.random() < 0.1 and await self._stall(wish, write):
            return
        fault = self.faults.draw(wish.operation)
        try:
            answer = await self.faults.run(fault, lambda: wish.call(write))
        except Trouble:
            self._pending.append((self.now + self._after(20), wish))
        except _REFUSED:
            await self._refused(wish)
        else:
            self._answered(wish, answer)

    def _answered(self, wish: Wish, answer: Any) -> None:
        wish.answered(answer, wish.asked_at)
        if wish.person is not None:
            wish.person.busy = False

    async def _refused(self, wish: Wish) -> None:
        person = wish.person
        if person is None:
            return
        person.busy = False
        try:
            job = await get_job(self._engine, person.job)
        except NotFound:
            person.gone = True
            return
        person.gone = job.status in (JobStatus.COMPLETED, JobStatus.CANCELLED)

    async def _stall(self, wish: Wish, write: Write) -> bool:
        """Let the process of this call be stopped before or after its commit; False if it did not come so far."""
        moment = self.random.choice(["before_commit", "after_commit"])
        point = f"{wish.operation}.{moment}"
        if moment == "before_commit" and wish.operation in CHANGES:
            point = UNCOMMITTED
        cleanup = ExitStack()
        hold = cleanup.enter_context(failpoints.barrier(point, names=POINTS))
        task = asyncio.ensure_future(wish.call(write))
        reached = asyncio.ensure_future(hold.reached())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        seconds = self.options.pace.times.grace_seconds * self.random.choice([0.1, 1, 3])
        stalled = Stalled(wish, task, hold, cleanup, self.now + self._after(seconds))
        if task.done():
            reached.cancel()
            await self._let_go(stalled)
        else:
            self._stalled.append(stalled)
        return True

    async def _release_stalled(self) -> None:
        for stalled in [stalled for stalled in self._stalled if stalled.until <= self.now]:
            self._stalled.remove(stalled)
            await self._let_go(stalled)

    async def _let_go(self, stalled: Stalled) -> None:
        stalled.cleanup.close()
        try:
            async with asyncio.timeout(45):
                answer = await stalled.task
        except _REFUSED:
            await self._refused(stalled.wish)
        else:
            self._answered(stalled.wish, answer)

    # The end.

    async def _recover(self) -> None:
        """Everybody is well again, for as long as it takes to do what is left."""
        self.well = True
        self.faults.probability = 0
        for node in self._nodes:
            node.away_until = None
        for stalled in self._stalled:
            stalled.until = self.now
        for _ in range(20_000):
            await self._step()
            if not self._stalled and not self._pending and await self._done():
                return
        raise AssertionError("the world does not come to rest")

    async def _done(self) -> bool:
        agenda = await self._look()
        overdue = agenda.joining or agenda.plan or agenda.due or agenda.ready or agenda.expired
        busy = any(worker.running for worker in self._workers)
        doomed = await self.database.value("select exists (select from hourbell.leases)")
        return not (overdue or busy or doomed)


class _Row:
    """The agenda as read, with the moment of the next event."""

    def __init__(self, row: Any) -> None:
        columns = dict(row)
        self.next: datetime | None = columns.pop("next")
        self.agenda = Agenda(**columns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agenda, name)
