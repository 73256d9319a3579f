"""The driver: lets virtual time pass from event to event, and does at each what the system would do.

An event is whatever the database knows to be next: an execution that falls due, an occurrence of a
schedule, a retry, the end of a lease, of a deadline, of a pause or of a monitor's grace. The driver
sets the clock to that moment, calls the same verbs that the leader calls, lets the worker run what
is ready, and looks again, until there is nothing left to do at that moment. So a year of schedules
is a year in which nothing was ever late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

import asyncpg

from hourbell.engine.core import Engine
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.pauses import end_pauses
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.admit import admit
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
_FRUITLESS = 3  # turns without a claim, after which what is ready is for another worker
_SOON = timedelta(milliseconds=100)  # the gate looks again at some parked rows after this
_SWEEP = timedelta(seconds=1)  # how often the gate looks for rows that were committed late
_FLAGS = (
    "joining",
    "planning",
    "ending",
    "due",
    "woken",
    "deadlines",
    "expired",
    "overdue",
    "pauses",
    "monitors",
    "notices",
    "groups",
    "ready",
)


class Driver:
    """One database, its virtual clock, and the worker of the test."""

    def __init__(
        self,
        engine: Engine,
        move_clock: Callable[[datetime, int | None], Awaitable[asyncpg.Record]],
        worker: Callable[[], Awaitable[SteppedWorker]],
        turned: Callable[[Turn], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._move_clock = move_clock  # sets it; returns the agenda of that moment
        self._worker = worker  # the one that lives now
        self._turned = turned  # called after each turn; raises what the test must see

    async def until(self, now: datetime, end: datetime) -> datetime:
        """Let time pass from event to event; returns the time, which may be a little later."""
        worker = await self._worker()
        while True:
            now, following = await self._settle_moment(now, worker)
            worker = await self._worker()  # the other one may have died
            if following is None or following > end:
                break
            now = following
        if now < end:
            await self._move(end, worker)
        await worker.renew()
        return max(now, end)

    async def drain(self, now: datetime) -> datetime:
        """Do all that there is to do now; returns the time, which may be a little later."""
        now, _ = await self._settle_moment(now, await self._worker())
        return now

    async def admit(self, now: datetime) -> None:
        """Make ready what is due now, and run nothing."""
        worker = await self._worker()
        await self._lead(await self._move(now, worker), now, worker)

    async def _settle_moment(
        self, now: datetime, worker: SteppedWorker
    ) -> tuple[datetime, datetime | None]:
        """Do all that there is to do at a moment; returns the time, and that of the next event."""
        runs: Counter[int] = Counter()
        turns = fruitless = 0
        may_sweep = True
        while True:
            agenda = await self._move(now, worker)
            if not any(agenda[flag] for flag in _FLAGS):
                if agenda["woken_at"] is None or agenda["woken_at"] > now + _SOON:
                    return now, agenda["next"]
                now = agenda["woken_at"]
                continue
            await self._lead(agenda, now, worker)
            turn = await worker.turn()
            turns += 1
            runs.update(one.execution_id for one in turn.claimed)
            _check_ends(turn, runs, turns, now)
            await self._turned(turn)
            worker = await self._worker()
            fruitless = 0 if turn.claimed else fruitless + 1
            if fruitless >= _FRUITLESS:
                if not (agenda["due"] and may_sweep):
                    return now, agenda["next"]
                now, may_sweep, fruitless = now + _SWEEP, False, 0

    async def _move(self, now: datetime, worker: SteppedWorker) -> asyncpg.Record:
        session = worker.session
        return await self._move_clock(now, None if session is None else session.id)

    async def _lead(self, agenda: asyncpg.Record, now: datetime, worker: SteppedWorker) -> None:
        """What the leader does: the gate is the last of it."""
        engine = self._engine
        if agenda["deadlines"]:
            while await expire(engine, None, now):
                pass
        if agenda["expired"]:
            await worker.renew()  # or it would be taken for dead as well
            await reap(engine, None, now)
        if agenda["overdue"]:
            await end_overdue(engine, None, now)
        if agenda["pauses"]:
            await end_pauses(engine, now)
        if agenda["joining"]:
            await complete_joins(engine, now)
        if agenda["planning"]:
            while await plan(engine, None, now):
                pass
        if agenda["ending"]:
            await end_memberships(engine, None, now)
        if agenda["monitors"]:
            await watch(engine, None, now)
        if agenda["notices"]:
            await send_notices(engine, None, now)
        if agenda["groups"]:
            await follow_groups(engine, None, now)
        while (await admit(engine, now)).more:
            pass


def _check_ends(turn: Turn, runs: Counter[int], turns: int, now: datetime) -> None:
    for one in turn.claimed:
        if runs[one.execution_id] > MAX_RUNS_AT_ONCE:
            raise EndlessRuns(
                f"{_named(one)} ran {MAX_RUNS_AT_ONCE} times at {now:%Y-%m-%d %H:%M:%S}Z, and asks "
                f"to run again without time passing. Its Snooze or the delay of its retry is 0 s: "
                f"wait for longer than that."
            )
    if turns > MAX_TURNS_AT_ONCE and turn.claimed:
        raise EndlessRuns(
            f"Jobs have run {turns} times at {now:%Y-%m-%d %H:%M:%S}Z, the last of them "
            f"{_named(turn.claimed[0])}, and there are always more. A task probably enqueues itself "
            f"without a delay."
        )


def _named(claimed: Claimed) -> str:
    return f"{task_of(claimed)} ({job_text(claimed.job_id)})"
