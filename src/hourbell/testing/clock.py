"""The virtual clock: it changes only when a test moves it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Self

from hourbell.store.database import Database

# Once per database: replacing the function would make the server replan every statement that calls it.
_INSTALL = """
do $$ begin
  if to_regclass('hourbell.virtual_clock') is null then
    create table hourbell.virtual_clock (
      one boolean primary key default true check (one),
      now timestamptz not null
    );
    create or replace function hourbell.clock() returns timestamptz language sql volatile
    return (select now from hourbell.virtual_clock);
  end if;
end $$
"""
_SET = """
insert into hourbell.virtual_clock (now) values ($1) on conflict (one)
do update set now = excluded.now
"""


def this_second() -> datetime:
    """The real time, in whole seconds: where virtual time begins by default."""
    return datetime.now(UTC).replace(microsecond=0)


class VirtualClock:
    """A Clock whose time is a row in the database, so that SQL and Python always agree.

    Any number of engines may share it. `sleep` returns when the clock has been moved far enough.
    """

    def __init__(self, database: Database, at: datetime) -> None:
        self._database = database
        self._at = at
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    @classmethod
    async def install(cls, database: Database, at: datetime) -> Self:
        """Replace this database's clock permanently with one stopped at this moment."""
        _require_aware(at)
        async with database.transaction() as connection:
            await connection.execute(_INSTALL)
            await connection.execute(_SET, at)
        return cls(database, at)

    async def now(self) -> datetime:
        """The wall time used for all decisions, read from the database."""
        now: datetime = await self._database.value("select hourbell.clock()")
        return now

    def monotonic(self) -> float:
        """Virtual seconds that have passed since the clock was installed."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until this much virtual time has passed; another task must move the clock."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic + seconds, woken))
        await woken

    async def set(self, at: datetime) -> None:
        """Let time pass until this moment."""
        _require_aware(at)
        if at < self._at:
            raise ValueError(f"time cannot go backwards, from {self._at} to {at}; use step")
        passed = at - self._at
        await self._write(at)
        self._monotonic += passed.total_seconds()
        self._wake()

    async def advance(self, delta: timedelta) -> None:
        """Let this much time pass."""
        await self.set(self._at + delta)

    async def step(self, at: datetime) -> None:
        """Step the wall clock forwards or backwards. No time passes, and no sleeper wakes."""
        _require_aware(at)
        await self._write(at)

    async def _write(self, at: datetime) -> None:
        await self._database.value(_SET, at)
        self._at = at

    def _wake(self) -> None:
        due = [woken for until, woken in self._sleepers if until <= self._monotonic]
        self._sleepers = [(u, w) for u, w in self._sleepers if u > self._monotonic]
        for woken in due:
            if not woken.done():
                woken.set_result(None)


def _require_aware(at: datetime) -> None:
    if at.tzinfo is None:
        raise ValueError(f"{at} has no time zone")
