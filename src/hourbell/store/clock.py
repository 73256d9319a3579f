"""The clock: the database is the only source of wall time.

Wall time comes from `hourbell.clock()` and is stored; monotonic time comes from this machine and is
used only for measuring.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Protocol

from hourbell.store.database import Database

_MAX_ROUND_TRIP_SECONDS = 0.5


class Clock(Protocol):
    async def now(self) -> datetime:
        """The wall time used for all decisions."""

    def monotonic(self) -> float:
        """Monotonic seconds, for measuring."""

    async def sleep(self, seconds: float) -> None: ...


class DatabaseClock:
    """The database's wall clock, this machine's monotonic one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ahead = 0.0  # database time minus monotonic time, at the last reading

    async def now(self) -> datetime:
        now: datetime = await self._database.value("select hourbell.clock()")
        self._ahead = now.timestamp() - time.monotonic()
        return now

    def estimated_timestamp(self) -> float:
        """The database time extrapolated from the last reading, in seconds since 1970.

        For information sent to others, never for decisions.
        """
        return self._ahead + time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def drift_seconds(self) -> float | None:
        """How far the local wall clock is ahead; None if the round trip was too slow to tell."""
        before = time.time()
        now = await self.now()
        took = time.time() - before
        if took > _MAX_ROUND_TRIP_SECONDS:
            return None
        return before + took / 2 - now.timestamp()
