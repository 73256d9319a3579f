"""What every verb needs: the database, the clock, the numbers of tenants and queues, and the system's own times."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime, timedelta

import asyncpg
import msgspec

from hourbell.model.errors import FieldError, InvalidInput, StoreUnavailable
from hourbell.store.clock import Clock
from hourbell.store.database import Database
from hourbell.store.queries import queries

_Q = queries("jobs")
_MOST_NAMES = 100_000
CHANNEL = "hourbell"  # of notifications


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take, system-wide."""

    horizon_seconds: float = 60.0  # executions are planned this far ahead
    grace_seconds: float = (
        60.0  # planned later than this after its time, an occurrence is a misfire
    )
    lease_seconds: float = 15.0  # of a worker's session
    leader_lease_seconds: float = 10.0
    answers_seconds: float = 48 * 3600.0  # how long an idempotent write is remembered
    ledger_days: int = 30

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_seconds)

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


class Engine:
    """The engine of one cell. Holds no state that matters: any number of them may run at once."""

    def __init__(self, database: Database, clock: Clock, times: Times | None = None) -> None:
        self.database = database
        self.clock = clock
        self.times = times or Times()
        self._tenants: dict[str, int] = {}
        self._queues: dict[str, int] = {}
        self._targets: dict[str, int] = {}
        self._announcing: asyncio.Task[None] | None = None

    async def tenant(self, name: str, now: datetime) -> int:
        """The number of a tenant; a new name is a new tenant."""
        return await self._number(self._tenants, _Q["ensure_tenant"], name, now)

    async def queue(self, name: str, now: datetime) -> int:
        """The number of a queue; a new name is a new queue."""
        try:
            return await self._number(self._queues, _Q["ensure_queue"], name, now)
        except asyncpg.SequenceGeneratorLimitExceededError:
            message = "there are as many queues as there can be; use one that exists"
            raise InvalidInput([FieldError("queue", "out_of_range", message)]) from None

    async def target(self, host: str | None, now: datetime) -> int | None:
        """The number of a host that jobs call; a new name is a new target."""
        if host is None:
            return None
        return await self._number(self._targets, _Q["ensure_target"], host, now)

    def announce(self) -> None:
        """Tell every process that something is due or ready; after the commit, and never more than one at a time.

        It only wakes early. A lost announcement costs one poll.
        """
        if self._announcing is None or self._announcing.done():
            self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        await asyncio.sleep(0)  # whatever else commits in this turn of the loop is told with it
        with contextlib.suppress(StoreUnavailable):
            await self.database.value("select pg_notify($1, '')", CHANNEL)

    async def _number(self, known: dict[str, int], statement: str, name: str, now: datetime) -> int:
        number = known.get(name)
        while number is None:  # twice at most: somebody else may be making it just now
            number = await self.database.value(statement, name, now)
        if len(known) >= _MOST_NAMES:
            known.clear()
        known[name] = number
        return number
