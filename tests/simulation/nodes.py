"""The simulated processes: schedulers and workers that call the product's own verbs, one at a time.

A node is an object with timers. A crash is the loss of the object; a stop (SIGSTOP) is a time in which it does nothing and
learns nothing, and after which it goes on with what it believed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from random import Random
from typing import TypeVar

from hourbell.dispatch import RELEASED, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Leadership, Term
from hourbell.engine.life.admit import admit
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan, update_tz_version
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.life.settlement import settlement
from hourbell.model.errors import NotLeader, SessionLost
from hourbell.model.executions import (
    Cancelled,
    Claimed,
    Failed,
    Interrupted,
    Outcome,
    Snoozed,
    Succeeded,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import SentSpec, TaskAction, decode_spec
from hourbell.store.database import Database
from simulation.faults import Fault, Faults, Trouble
from simulation.workload import Pace
from verify.history import (
    Claim,
    Gated,
    LeaderVerb,
    Planned,
    Reaped,
    SessionClosed,
    SessionOpened,
    SessionRenewed,
    Settle,
    Silenced,
    Step,
    TermBegun,
)

T = TypeVar("T")

QUEUES = ("default", "mail")
SOON = timedelta(milliseconds=250)  # how long a node waits after a step that failed

_KILLED = Fault("run", "kill", dies=True)  # by what the worker ran


@dataclass(frozen=True)
class World:
    """What the nodes share."""

    database: Database
    new_engine: Callable[[], Engine]
    random: Random
    faults: Faults
    pace: Pace
    led: bool
    record: Callable[[Step], None]


@dataclass(frozen=True)
class Agenda:
    """What there is to do now, read from the database by the driver."""

    joining: bool
    plan: bool
    due: bool
    deadlines: bool
    ended: bool  # memberships
    expired: bool  # sessions
    ready: bool


class Node:
    """Something that may be stopped or dead until some time."""

    def __init__(self) -> None:
        self.away_until: datetime | None = None
        self.dead = False
        self.timers: dict[str, datetime] = {}

    def due(self, timer: str, now: datetime, early: float = 0.0) -> bool:
        """Whether it is time, or, for a timer that may come a little early, nearly so: that saves the driver a stop."""
        return self.timers.get(timer, now) <= now + timedelta(seconds=early)

    def next_moment(self) -> datetime | None:
        if self.away_until is not None:
            return self.away_until
        return min(self.timers.values(), default=None)


class Scheduler(Node):
    """A candidate for leadership, or a planner that does not care who leads."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._engine = world.new_engine()
        self.leadership = Leadership(self._engine)

    @property
    def acts(self) -> bool:
        return self.away_until is None and (not self._world.led or self.leadership.term is not None)

    def crash(self) -> None:
        self._engine = self._world.new_engine()
        self.leadership = Leadership(self._engine)
        self.timers.clear()

    async def turn(self, now: datetime, agenda: Agenda) -> None:
        """What its loops would do at this moment, in some order."""
        try:
            early = self.leadership.step_seconds / 4
            if self._world.led and self.due("lead", now, early):
                await self._lead(now)
            if not self.acts:
                return
            steps = [self._plan, self._admit, self._reap]
            self._world.random.shuffle(steps)
            for step in steps:
                await step(now, agenda)
            if self.due("house", now):
                self.timers["house"] = now + timedelta(hours=1)
                await self._verb(
                    "house", lambda term: run_housekeeping(self._engine, term, now), now
                )
            self.timers.pop("soon", None)
        except NotLeader:
            self.timers["soon"] = now + SOON
        except Trouble as trouble:
            self.timers["soon"] = now + SOON
            self.dead = trouble.fault.dies

    async def _lead(self, now: datetime) -> None:
        self.timers["lead"] = now + timedelta(seconds=self.leadership.step_seconds)
        had = self.leadership.term
        fault = self._world.faults.draw("renew")
        try:
            term = await self._world.faults.run(fault, self.leadership.step)
        except Trouble:
            self.timers["lead"] = now + SOON
            raise
        if term is not None and term != had:
            self._world.record(TermBegun(now.timestamp(), term.epoch))

    async def _plan(self, now: datetime, agenda: Agenda) -> None:
        engine = self._engine
        by_chance = self._world.random.random() < 0.02
        if agenda.joining or by_chance:
            self._world.record(Planned(now.timestamp()))
            await self._run("join", lambda: complete_joins(engine, now))
        if agenda.plan or by_chance:
            self._world.record(Planned(now.timestamp()))
            while await self._verb("plan", lambda term: plan(engine, term, now), now):
                pass
        if agenda.ended or by_chance:
            await self._verb("end", lambda term: end_memberships(engine, term, now), now)
        if by_chance:
            await self._verb("retime", lambda term: update_tz_version(engine, term, now), now)

    async def _admit(self, now: datetime, agenda: Agenda) -> None:
        if agenda.due or self._world.random.random() < 0.02:
            batch = self._world.random.choice([1, 8, 5000])
            self._world.record(Gated(now.timestamp()))
            while (await self._run("admit", lambda: admit(self._engine, now, batch))).more:
                pass

    async def _reap(self, now: datetime, agenda: Agenda) -> None:
        engine = self._engine
        if agenda.deadlines or self._world.random.random() < 0.02:
            await self._verb("expire", lambda term: expire(engine, term, now), now)
        if agenda.expired and (not self._world.led or self.leadership.may_reap(now)):
            before = await self._sessions()
            try:
                await self._verb("reap", lambda term: reap(engine, term, now), now)
            finally:
                gone = before - await self._sessions()
                if gone:
                    self._world.record(Reaped(now.timestamp(), frozenset(gone)))

    async def _sessions(self) -> set[int]:
        rows = await self._world.database.fetch("select id from hourbell.sessions where id > 0")
        return {row["id"] for row in rows}

    async def _run(self, verb: str, call: Callable[[], Awaitable[T]]) -> T:
        return await self._world.faults.run(self._world.faults.draw(verb), call)

    async def _verb(
        self, verb: str, call: Callable[[Term | None], Awaitable[T]], now: datetime
    ) -> T:
        term = self.leadership.term if self._world.led else None
        try:
            answer = await self._run(verb, lambda: call(term))
        except NotLeader:
            assert term is not None
            self._world.record(LeaderVerb(now.timestamp(), verb, term.epoch, accepted=False))
            raise
        if term is not None:
            self._world.record(LeaderVerb(now.timestamp(), verb, term.epoch, accepted=True))
        return answer


@dataclass(frozen=True)
class Running:
    """An execution in a worker's hands, with what the seed has decided about it."""

    claimed: Claimed
    spec: SentSpec
    claimed_at: datetime
    ends_at: datetime
    outcome: Outcome | None  # None: it takes its worker down


class Worker(Node):
    """A worker process."""

    def __init__(self, world: World, slots: int) -> None:
        super().__init__()
        self._world = world
        self._slots = slots
        self._start()

    def _start(self) -> None:
        self._engine = self._world.new_engine()
        self._dispatch = PostgresDispatch(self._engine)
        self.session: Session | None = None
        self._lose_everything()

    def _lose_everything(self) -> None:
        self.running: dict[int, Running] = {}
        self._unsettled: list[Settlement] = []
        self._claims = 0
        self._resolved = 0
        self._outstanding: tuple[int, int] | None = None  # of a claim without an answer
        self._renewed_at: datetime | None = None
        self._unheard: set[tuple[int, int]] = set()  # what was noted without an answer: id, fence
        self.timers.clear()

    @property
    def acts(self) -> bool:
        return self.away_until is None

    @property
    def wants_work(self) -> bool:
        return self.acts and len(self.running) < self._slots

    def crash(self) -> None:
        self._start()

    def silence(self, now: datetime) -> None:
        if self.session is not None:
            self._world.record(Silenced(now.timestamp(), self.session.id))

    async def turn(self, now: datetime, agenda: Agenda) -> None:
        try:
            steps = [self._finish, self._beat]
            self._world.random.shuffle(steps)
            for step in steps:
                await step(now)
            hopes = agenda.ready or self._outstanding or self._world.random.random() < 0.05
            if hopes and self.session is not None and self.wants_work and not self._in_doubt(now):
                await self._claim(now)
        except SessionLost:
            self.session = None
            self._lose_everything()
            self.timers["beat"] = now
        except Trouble as trouble:
            self.timers["soon"] = now + SOON
            self.dead = trouble.fault.dies
        else:
            self.timers.pop("soon", None)
        if self.running:
            self.timers["run"] = min(one.ends_at for one in self.running.values())
        else:
            self.timers.pop("run", None)

    async def close(self, now: datetime) -> None:
        """Leave in order: some of it is given back one by one, the rest by closing the session."""
        if self.session is None:
            return
        random = self._world.random
        held = list(self.running.values())
        back = [one for one in held if random.random() < 0.5]
        self._unsettled += [
            Settlement(one.claimed.execution_id, one.claimed.fence, RELEASED) for one in back
        ]
        try:
            await self._settle(now)
        except Trouble:
            self._lose_everything()
            return
        session = self.session.id
        await self._dispatch.close(self.session)
        self._world.record(SessionClosed(now.timestamp(), session))
        self.session = None
        self._lose_everything()

    def _in_doubt(self, now: datetime) -> bool:
        assert self._renewed_at is not None
        return now - self._renewed_at > self._engine.times.lease

    async def _finish(self, now: datetime) -> None:
        for number, one in list(self.running.items()):
            if one.ends_at > now:
                continue
            if one.outcome is None:
                self.dead = True
                raise Trouble(_KILLED)
            took = int((one.ends_at - one.claimed_at).total_seconds() * 1000)
            left = one.claimed.deadline_in_seconds
            remaining = None if left is None else left - took / 1000
            self._unsettled.append(
                settlement(one.claimed, one.spec, one.outcome, 0, took, remaining)
            )
            del self.running[number]
        await self._settle(now)

    async def _settle(self, now: datetime) -> None:
        if not self._unsettled or self.session is None:
            return
        session, batch = self.session, list(self._unsettled)
        fault = self._world.faults.draw("settle")
        held = await self._leased(session) if fault else set()
        try:
            refused = await self._world.faults.run(
                fault, lambda: self._dispatch.settle(session, batch)
            )
        except Trouble as trouble:
            if trouble.fault.happened:
                for one in batch:
                    self._settled(now, session, one, (one.execution_id, one.fence) in held)
            raise
        for one in batch:
            self._settled(now, session, one, one.execution_id not in refused)
        self._unsettled.clear()

    def _settled(self, now: datetime, session: Session, one: Settlement, accepted: bool) -> None:
        self._world.record(
            Settle(
                now.timestamp(),
                session.id,
                execution_text(one.execution_id),
                one.fence,
                one.kind,
                accepted,
                one.delay_seconds,
                one.reason,
            )
        )

    async def _leased(self, session: Session) -> set[tuple[int, int]]:
        rows = await self._world.database.fetch(
            "select id, fence from hourbell.leases where session = $1", session.id
        )
        return {(row["id"], row["fence"]) for row in rows}

    async def _beat(self, now: datetime) -> None:
        if not self.due("beat", now, self._engine.times.lease_seconds / 12):
            return
        third = timedelta(seconds=self._engine.times.lease_seconds / 3)
        if self.session is None:
            self.session = await self._dispatch.open("simulated", QUEUES, self._slots)
            self._renewed_at = now
            self._world.record(SessionOpened(now.timestamp(), self.session.id))
            self.timers["beat"] = now + third
            return
        session = self.session
        held = [*self.running, *(one.execution_id for one in self._unsettled)]
        fault = self._world.faults.draw("heartbeat")
        alive = fault is not None and await self._alive(session)
        self.timers["beat"] = now + SOON
        try:
            heard = await self._world.faults.run(
                fault, lambda: self._dispatch.heartbeat(session, held, self._resolved)
            )
        except Trouble as trouble:
            if trouble.fault.happened and alive:
                self._renewed(now, session, held, [])
            raise
        self._renewed(now, session, held, heard.lost)
        self._renewed_at = now
        self.timers["beat"] = now + third
        for number in heard.lost:
            self.running.pop(number, None)
            self._unsettled = [one for one in self._unsettled if one.execution_id != number]
        for number in heard.cancelled:
            if number in self.running:
                one = self.running[number]
                self.running[number] = replace(one, ends_at=now, outcome=Cancelled())

    def _renewed(self, now: datetime, session: Session, held: list[int], lost: object) -> None:
        assert isinstance(lost, list)
        self._world.record(
            SessionRenewed(
                now.timestamp(),
                session.id,
                frozenset(map(execution_text, held)),
                self._resolved,
                frozenset(map(execution_text, lost)),
            )
        )

    async def _alive(self, session: Session) -> bool:
        found = await self._world.database.value(
            "select exists (select from hourbell.sessions where id = $1)", session.id
        )
        return bool(found)

    async def _claim(self, now: datetime) -> None:
        assert self.session is not None
        session = self.session
        if self._outstanding is None:
            self._claims += 1
            self._outstanding = (self._claims, self._slots - len(self.running))
        number, limit = self._outstanding
        fault = self._world.faults.draw("claim")
        try:
            claimed = await self._world.faults.run(
                fault, lambda: self._dispatch.claim(session, number, limit)
            )
        except Trouble as trouble:
            if trouble.fault.happened:
                await self._note_unheard(now, session, number)
            raise
        self._outstanding, self._resolved = None, number
        for one in claimed:
            if one.execution_id not in self.running:
                self._take(now, session, number, one)

    def _take(self, now: datetime, session: Session, number: int, one: Claimed) -> None:
        spec = decode_spec(one.spec)
        self.running[one.execution_id] = self._imagine(now, one, spec)
        if (one.execution_id, one.fence) in self._unheard:
            return
        self._world.record(
            Claim(
                now.timestamp(),
                session.id,
                number,
                execution_text(one.execution_id),
                job_text(one.job_id),
                one.scheduled_for.timestamp(),
                one.attempt,
                one.fence,
            )
        )

    def _imagine(self, now: datetime, one: Claimed, spec: SentSpec) -> Running:
        """How long it will take, and how it will end."""
        random, pace = self._world.random, self._world.pace
        seconds = random.expovariate(1 / pace.usual_run)
        if self._world.faults.over:
            return Running(one, spec, now, now + timedelta(seconds=1), Succeeded())
        if random.random() < 0.08:
            seconds = random.uniform(pace.usual_run, 1.2 * pace.longest_run)
        outcome: Outcome | None = Succeeded()
        if random.random() < 0.25:
            outcome = Failed("it did not work", random.choice(["Broken", "Broken", "Refused"]))
        elif random.random() < 0.1:
            again: tuple[Outcome, ...] = (Interrupted(), Snoozed(random.expovariate(1 / seconds)))
            outcome = random.choice(again)
        assert isinstance(spec.action, TaskAction)
        if spec.action.payload["poison"]:
            outcome = None
        limit = min(spec.timeout_seconds, one.deadline_in_seconds or spec.timeout_seconds)
        if seconds > limit and outcome is not None:
            seconds, outcome = limit, Failed("it took too long", "timeout")
        return Running(one, spec, now, now + timedelta(seconds=max(seconds, 0)), outcome)

    async def _note_unheard(self, now: datetime, session: Session, number: int) -> None:
        """The answer is lost; what was claimed is claimed."""
        rows = await self._world.database.fetch(
            "select e.id, coalesce(e.job, e.id) as job, e.occurrence, e.attempt + 1 as attempt, l.fence"
            " from hourbell.leases as l join hourbell.live as e using (id)"
            " where l.session = $1 and l.claim = $2 order by e.id",
            session.id,
            number,
        )
        for row in rows:
            if (row["id"], row["fence"]) in self._unheard:
                continue
            self._unheard.add((row["id"], row["fence"]))
            self._world.record(
                Claim(
                    now.timestamp(),
                    session.id,
                    number,
                    execution_text(row["id"]),
                    job_text(row["job"]),
                    row["occurrence"].timestamp(),
                    row["attempt"],
                    row["fence"],
                )
            )
