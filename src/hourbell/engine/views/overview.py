"""overview: the state of the cell at a glance, for people and for `hourbell top`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.views.activity import Activity, activity
from hourbell.engine.views.attention import Item, attention, dead_since
from hourbell.engine.views.backlog import Backlog, backlog
from hourbell.engine.views.fleet import (
    Depth,
    Fleet,
    Leader,
    depth,
    fleet,
    leader,
    under_way,
)
from hourbell.engine.views.forecast import forecast
from hourbell.engine.views.jobs import tenant_wanted

PEAK_HOURS = 24
_PEAK_SECONDS = 60.0  # how long a forecast is used,
_OLD_PEAK_SECONDS = 300.0  # and how long while the next one is computed
_WAIT_SECONDS = 1.0  # for the first one
_HOUR = timedelta(hours=1)


class Peak(msgspec.Struct, frozen=True):
    """The busiest minute of the next day."""

    at: datetime
    executions: int
    hours: Sequence[int]  # due in each of the next hours
    complete_until: datetime
    estimated: bool
    capacity: int | None  # the most that was done in a recent minute; None: not known, or not shown


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, what waits, which workers run, what needs attention, and what comes."""

    at: datetime
    window: str
    tenant_id: str | None
    activity: Activity
    depth: Sequence[Depth]
    backlog: Sequence[Backlog]
    dead_today: int
    leader: Leader | None
    workers: Fleet | None
    attention: Sequence[Item]
    peak: Peak | None
    peak_known: bool  # False: the forecast is still being read


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an overview that changes from second to second."""

    at: datetime
    activity: Activity
    depth: Sequence[Depth]
    backlog: Sequence[Backlog]
    leader: Leader | None
    workers: Fleet | None


class Peaks:
    """The busiest minutes, by tenant, for a while: one per API process.

    A forecast may take seconds, so one that is a little old is used until the next one is there.
    """

    def __init__(self) -> None:
        self._known: dict[str | None, tuple[float, Peak | None]] = {}  # monotonic, by tenant
        self._reading: dict[str | None, asyncio.Task[Peak | None]] = {}

    async def of(self, engine: Engine) -> tuple[Peak | None, bool]:
        """The busiest minute of the tenant of the scope, or of all, and whether it is known.

        None: nothing is due, or it is not known yet.
        """
        at = engine.clock.monotonic()
        self._known = {
            scope: (read_at, peak)
            for scope, (read_at, peak) in self._known.items()
            if at < read_at + _OLD_PEAK_SECONDS
        }
        known = self._known.get(engine.scope)
        if known is not None and at < known[0] + _PEAK_SECONDS:
            return known[1], True
        reading = self._reading.get(engine.scope)
        if reading is None:  # one forecast for all that ask at the same time
            reading = asyncio.create_task(self._read(engine, at))
            reading.add_done_callback(_failure_of)
            self._reading[engine.scope] = reading
        if known is not None:
            return known[1], True
        # The rest of the overview does not wait for it, and does not fail with it.
        await asyncio.wait({reading}, timeout=_WAIT_SECONDS)
        if not reading.done() or _failure_of(reading) is not None:
            return None, False
        return reading.result(), True

    async def _read(self, engine: Engine, at: float) -> Peak | None:
        try:
            peak = await _peak(engine)
            self._known[engine.scope] = (at, peak)
            return peak
        finally:
            del self._reading[engine.scope]


def _failure_of(reading: asyncio.Task[Peak | None]) -> BaseException | None:
    """Takes note of a failure; the next call tries again."""
    return None if reading.cancelled() else reading.exception()


async def live(engine: Engine, window: str) -> Live:
    """What happened in the window, what waits now, and which workers run."""
    now = await engine.clock.now()
    running = await under_way(engine)
    of_cell = engine.scope is None
    return Live(
        at=now,
        activity=await activity(engine, window, now, running.by_minute),
        depth=await depth(engine, now, running) if of_cell else (),
        backlog=await backlog(engine, await tenant_wanted(engine, None)),
        leader=await leader(engine, now),
        workers=await fleet(engine, now, running) if of_cell else None,
    )


async def overview(engine: Engine, window: str, peaks: Peaks) -> Overview:
    """The state of the cell, or of what one tenant sees of it."""
    now = await live(engine, window)
    today = now.at.replace(hour=0, minute=0, second=0, microsecond=0)
    peak, peak_known = await peaks.of(engine)
    return Overview(
        at=now.at,
        window=window,
        tenant_id=engine.scope,
        activity=now.activity,
        depth=now.depth,
        backlog=now.backlog,
        dead_today=await dead_since(engine, today),
        leader=now.leader,
        workers=now.workers,
        attention=await attention(engine, now.at, now.leader, now.workers),
        peak=peak,
        peak_known=peak_known,
    )


async def _peak(engine: Engine) -> Peak | None:
    ahead = await forecast(engine, PEAK_HOURS)
    if not ahead.minutes:
        return None
    hours = [0] * PEAK_HOURS
    for at, count in ahead.minutes:
        hours[min(max(int((at - ahead.begins_at) / _HOUR), 0), PEAK_HOURS - 1)] += count
    at, executions = max(ahead.minutes, key=lambda minute: minute[1])
    return Peak(
        at, executions, hours, ahead.complete_until, ahead.estimated, ahead.capacity.executions
    )
