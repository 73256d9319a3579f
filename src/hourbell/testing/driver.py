"""The driver: moves virtual time from event to event, and does at each what the system would do.

An event is whatever the database knows to come next: an execution that falls due, an occurrence of a
schedule, a retry, the end of a lease, a deadline, a pause or a monitor's grace period. The driver
sets the clock to that moment, calls the same operations as the leader, lets the worker run what
is ready, and checks again, until nothing is left to do at that moment. So in a year of schedules,
nothing is ever late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.pauses import end_pauses
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.admit import Pass
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.completions import end_overdue
from hourbell.model.executions import Claimed
from hourbell.model.ids import job_text
from hourbell.testing.errors import EndlessRuns
from hourbell.testing.worker import SteppedWorker, Turn, task_of

MAX_RUNS_AT_ONCE = 100  # of one execution, without time passing
MAX_TURNS_AT_ONCE = 10_000  # without time passing
_FRUITLESS = 3  # turns without a claim, after which the ready work must be for another worker
_SOON = timedelta(milliseconds=100)  # after which the gate checks some parked rows again
_SWEEP = timedelta(seconds=1)  # how often the gate checks for rows that were committed late
_OF_THE_GATE = frozenset({"due", "woken", "ready"})  # work that needs only a pass of the gate


class Agenda(msgspec.Struct, frozen=True):
    """What there is to do at one moment."""

    now: datetime
    work: frozenset[str]  # kinds; see the query `agenda`
    woken_at: datetime | None = None  # when the gate next checks parked rows
    next: datetime | None = None  # the next event,
    next_work: frozenset[str] = frozenset()  # and what there will be to do then


class Driver:
    """One database, its virtual clock, and the worker of the test."""

    def __init__(
        self,
        engine: Engine,
        look: Callable[[datetime, int | None], Awaitable[Agenda]],
        pass_gate: Callable[[datetime], Awaitable[Pass]],
        worker: Callable[[], Awaitable[SteppedWorker]],
        turned: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._look = look  # sets the clock; returns the agenda of that moment
        self._pass_gate = pass_gate  # sets the clock, too
        self._worker = worker  # the one currently alive
        self._turned = turned  # called after each turn; raises what the test must see

    async def until(self, now: datetime, end: datetime) -> datetime:
        """Let time pass from event to event; return the time, which may be a little later."""
        worker = await self._worker()
        agenda = await self._agenda(now, worker)
        while True:
            agenda = await self._settle_moment(agenda, worker)
            worker = await self._worker()  # the previous one may have died
            if agenda.next is None or agenda.next > end:
                break
            agenda = Agenda(agenda.next, agenda.next_work)
        if agenda.now < end:
            await self._agenda(end, worker)
        await worker.renew()
        return max(agenda.now, end)

    async def drain(self, now: datetime) -> datetime:
        """Do everything there is to do now; return the time, which may be a little later."""
        worker = await self._worker()
        agenda = await self._settle_moment(await self._agenda(now, worker), worker)
        return agenda.now

    async def admit(self, now: datetime) -> None:
        """Admit what is due now, and run nothing."""
        worker = await self._worker()
        await self._lead(await self._agenda(now, worker), worker)

    async def _settle_moment(self, agenda: Agenda, worker: SteppedWorker) -> Agenda:
        """Do everything there is to do at a moment; return what is left, with the next event."""
        runs: Counter[int] = Counter()
        turns = fruitless = 0
        may_sweep = True
        while True:
            now = agenda.now
            if not agenda.work:
                if agenda.woken_at is None or agenda.woken_at > now + _SOON:
                    return agenda
                agenda = await self._agenda(agenda.woken_at, worker)
                continue
            is_ready = await self._lead(agenda, worker)
            turn = await worker.turn() if is_ready else Turn()
            turns += 1
            runs.update(one.execution_id for one in turn.claimed)
            _check_ends(turn, runs, turns, now)
            await self._turned(turn)
            worker = await self._worker()
            fruitless = 0 if turn.claimed else fruitless + 1
            if fruitless >= _FRUITLESS:
                if not ("due" in agenda.work and may_sweep):
                    return await self._agenda(now, worker)
                now, may_sweep, fruitless = now + _SWEEP, False, 0
            agenda = await self._agenda(now, worker)

    async def _agenda(self, now: datetime, worker: SteppedWorker) -> Agenda:
        session = worker.session
        return await self._look(now, None if session is None else session.id)

    async def _lead(self, agenda: Agenda, worker: SteppedWorker) -> bool:
        """Do what the leader does, the gate last. Return whether something may be ready."""
        engine, now, work = self._engine, agenda.now, agenda.work
        if not work <= _OF_THE_GATE:
            await self._agenda(now, worker)  # sets the clock
        if "deadlines" in work:
            while await expire(engine, None, now):
                pass
        if "expired" in work:
            await worker.renew()  # otherwise it would count as dead, too
            await reap(engine, None, now)
        if "overdue" in work:
            await end_overdue(engine, None, now)
        if "pauses" in work:
            await end_pauses(engine, now)
        if "joining" in work:
            await complete_joins(engine, now)
        if "planning" in work:
            while await plan(engine, None, now):
                pass
        if "ending" in work:
            await end_memberships(engine, None, now)
        if "monitors" in work:
            await watch(engine, None, now)
        if "notices" in work:
            await send_notices(engine, None, now)
        if "groups" in work:
            await follow_groups(engine, None, now)
        is_ready = "ready" in work
        more = True
        while more:
            passed = await self._pass_gate(now)
            is_ready, more = is_ready or passed.examined > 0, passed.more
        return is_ready


def _check_ends(turn: Turn, runs: Counter[int], turns: int, now: datetime) -> None:
    for one in turn.claimed:
        if runs[one.execution_id] > MAX_RUNS_AT_ONCE:
            raise EndlessRuns(
                f"{_named(one)} ran {MAX_RUNS_AT_ONCE} times at {now:%Y-%m-%d %H:%M:%S}Z and asks "
                f"to run again without time passing. Its Snooze or retry delay is 0 s: "
                f"use a longer one."
            )
    if turns > MAX_TURNS_AT_ONCE and turn.claimed:
        raise EndlessRuns(
            f"Jobs ran {turns} times at {now:%Y-%m-%d %H:%M:%S}Z, the last one being "
            f"{_named(turn.claimed[0])}, and there are always more. A task probably enqueues itself "
            f"without a delay."
        )


def _named(claimed: Claimed) -> str:
    return f"{task_of(claimed)} ({job_text(claimed.job_id)})"
