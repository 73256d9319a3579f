"""The clock: only the database says what time it is (R63).

Wall time comes from `hourbell.clock()` and is stored; monotonic time comes from the machine and only measures.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Protocol

from hourbell.store.database import Database

_MOST_UNSURE_SECONDS = 0.5


class Clock(Protocol):
    async def now(self) -> datetime:
        """The time by which everything is decided."""

    def monotonic(self) -> float:
        """Seconds that never step, for measuring."""

    async def sleep(self, seconds: float) -> None: ...


class DatabaseClock:
    """The database's wall clock, this machine's monotonic one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ahead = 0.0  # of our monotonic clock, when the database last said what time it is

    async def now(self) -> datetime:
        now: datetime = await self._database.value("select hourbell.clock()")
        self._ahead = now.timestamp() - time.monotonic()
        return now

    def lately(self) -> float:
        """The database's time as it was last heard and has passed here since, in seconds since 1970: to tell others, not to decide by."""
        return self._ahead + time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def drift_seconds(self) -> float | None:
        """How far this machine's wall clock is ahead of the database's; None if the answer took too long to tell."""
        before = time.time()
        now = await self.now()
        took = time.time() - before
        if took > _MOST_UNSURE_SECONDS:
            return None
        return before + took / 2 - now.timestamp()
