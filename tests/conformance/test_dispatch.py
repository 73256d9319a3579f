"""The default engine of the Dispatch seam, on every PostgreSQL that we support and through a pooler."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from hourbell.dispatch import Dispatch
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.reap import reap
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import Execution
from hourbell.model.policies import Delivery, Priority
from hourbell.store.database import Database
from hourbell.testing.clock import VirtualClock
from hourbell.testing.conformance import DispatchConformance, Stage
from kept import kept_open

START = datetime(2031, 5, 6, 10, 0, tzinfo=UTC)
LEASE_SECONDS = 15.0


class PostgresStage:
    """The engine on a virtual clock, without the loops that run it in production."""

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self._engine = engine
        self._clock = clock
        self.dispatch: Dispatch = PostgresDispatch(engine)
        self.lease_seconds = LEASE_SECONDS

    async def enqueue(
        self,
        count: int = 1,
        *,
        tenant: str = "default",
        priority: Priority = Priority.MEDIUM,
        queue: str = "default",
        at_most_once: bool = False,
    ) -> list[int]:
        document = {
            "name": "job",
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "action": {"type": "TASK", "name": "noop"},
            "tenant_id": tenant,
            "priority": priority.name,
            "queue": queue,
            "delivery": (Delivery.AT_MOST_ONCE if at_most_once else Delivery.AT_LEAST_ONCE).value,
        }
        creating = (create_job(self._engine, document, Write()) for _ in range(count))
        ids = [created.job.job_id for created in await asyncio.gather(*creating)]
        await self._admit()
        return ids

    async def weigh(self, tenant: str, weight: float) -> None:
        number = await self._engine.tenant(tenant, await self._clock.now())
        await self._engine.database.value(
            "update hourbell.tenants set weight = $2 where id = $1", number, weight
        )

    async def cancel(self, execution_id: int) -> None:
        await cancel_execution(self._engine, execution_id, Write())

    async def read(self, execution_id: int) -> Execution:
        return await get_execution(self._engine, execution_id)

    async def wait(self, seconds: float) -> None:
        await self._clock.advance(timedelta(seconds=seconds))
        await reap(self._engine, None, await self._clock.now())
        await self._admit()

    async def _admit(self) -> None:
        while (await admit(self._engine, await self._clock.now())).more:
            pass


@pytest.fixture
async def stage(emptied_dsn: str) -> AsyncIterator[Stage]:
    async with kept_open(Database, emptied_dsn) as database:
        clock = VirtualClock(database, START)
        await clock.step(START)
        engine = Engine(database, clock, Times(lease_seconds=LEASE_SECONDS))
        await make_partitions(engine, START)
        yield PostgresStage(engine, clock)


class TestPostgresDispatch(DispatchConformance):
    pass
