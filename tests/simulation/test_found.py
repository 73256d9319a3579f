"""What the simulation and the interleavings have found, each as small as it could be made."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourbell import failpoints
from hourbell.dispatch import RETRY, SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import plan
from hourbell.engine.operations.change import update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.failpoints import FailpointError
from hourbell.model.executions import Claimed
from hourbell.model.jobs import Job
from hourbell.testing.clock import VirtualClock
from uncommitted import POINTS, UNCOMMITTED, UncommittedDatabase

NOON = datetime(2027, 3, 13, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Life:
    """An engine in which nothing happens by itself."""

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.dispatch = PostgresDispatch(engine)

    async def create(self, cron: str = "* * * * *", **rest: Any) -> Job:
        document = {
            "name": "job",
            "type": "RECURRING",
            "schedule": {"cron": cron},
            "action": {"type": "TASK", "name": "work"},
            **rest,
        }
        return (await create_job(self.engine, document, Write())).job

    async def update(self, job: Job, **patch: Any) -> Job:
        return await update_job(self.engine, job.job_id, patch, Write())

    async def plan(self) -> None:
        await plan(self.engine, None, await self.clock.now())

    async def claim(self) -> tuple[Any, list[Claimed]]:
        await admit(self.engine, await self.clock.now())
        session = await self.dispatch.open("worker", ("default",), 10)
        return session, await self.dispatch.claim(session, 1, 10)

    async def work(self, kind: int = SUCCEEDED, delay: float | None = None) -> list[Claimed]:
        """Everything that is due, done."""
        session, claimed = await self.claim()
        batch = [
            Settlement(one.execution_id, one.fence, kind, delay_seconds=delay) for one in claimed
        ]
        if batch:
            assert not await self.dispatch.settle(session, batch)
        return claimed

    async def recorded(self) -> list[tuple[datetime, str, int | None]]:
        """Of the ledger: nominal time, fate or reason, how many it stands for."""
        rows = await self.engine.database.fetch(
            "select scheduled_for, coalesce(reason, 'succeeded') as fate, missed"
            " from hourbell.ledger order by scheduled_for, id"
        )
        return [(row["scheduled_for"], row["fate"], row["missed"]) for row in rows]

    async def live(self) -> list[datetime]:
        rows = await self.engine.database.fetch(
            "select occurrence from hourbell.live order by occurrence"
        )
        return [row["occurrence"] for row in rows]


@pytest.fixture
async def life(database: str) -> AsyncIterator[Life]:
    opened = await UncommittedDatabase.open(database, connections=6)
    clock = await VirtualClock.install(opened, NOON + MINUTE / 2)
    yield Life(Engine(opened, clock), clock)
    await opened.close()


@pytest.mark.parametrize("policy", [{"misfire_policy": "skip"}, {"misfire_policy": "all"}])
async def test_what_an_ended_stretch_has_missed_ends_with_it(
    life: Life, policy: dict[str, str]
) -> None:
    window = {"catch_up_window_seconds": 60} if policy["misfire_policy"] == "all" else {}
    job = await life.create(**policy, **window)
    await life.plan()
    await life.clock.set(NOON + 3.5 * MINUTE)
    await life.update(job, timeout_seconds=7)
    await life.clock.set(NOON + 8 * MINUTE)
    await life.plan()
    missed = [row for row in await life.recorded() if row[2]]
    # 12:01 was planned in time; the update parts what was missed between two stretches.
    assert (missed[0][0], missed[0][2]) == (NOON + 2 * MINUTE, 2)
    assert missed[1][0] == NOON + 4 * MINUTE
    counted = sum(count for _, _, count in missed if count)
    assert counted + len(await life.live()) == len(range(1, 9))


@pytest.mark.parametrize(
    "patch", [{"timeout_seconds": 7}, {"schedule": {"cron": "*/2 * * * *"}}], ids=["same", "other"]
)
async def test_a_run_that_was_cancelled_ahead_does_not_come_back_by_an_update(
    life: Life, patch: dict[str, Any]
) -> None:
    await life.clock.set(NOON + 1.5 * MINUTE)
    job = await life.create()
    await life.plan()
    row = await life.engine.database.row("select id, occurrence from hourbell.live")
    assert row["occurrence"] == NOON + 2 * MINUTE
    await cancel_execution(life.engine, row["id"], Write())
    await life.clock.advance(timedelta(seconds=5))
    await life.update(job, **patch)
    await life.clock.set(NOON + 2.5 * MINUTE)
    await life.plan()
    assert await life.work() == []
    assert await life.recorded() == [(NOON + 2 * MINUTE, "cancelled", None)]


async def test_what_is_missed_while_an_update_stands_is_not_produced_by_it(life: Life) -> None:
    job = await life.create(misfire_policy="skip")
    await life.plan()
    await life.clock.set(NOON + 2.5 * MINUTE)
    with failpoints.barrier(UNCOMMITTED, names=POINTS) as hold:
        update = asyncio.create_task(life.update(job, timeout_seconds=7))
        await hold.reached()
        await life.clock.set(NOON + 6 * MINUTE)
        await life.plan()
        hold.release()
        await update
    await complete_joins(life.engine, await life.clock.now())
    # Missed were 12:02, 12:03 and 12:04, the first before the update and the rest after the moment that it names.
    assert await life.recorded() == [(NOON + 2 * MINUTE, "misfire", 3)]
    assert await life.live() == [NOON + n * MINUTE for n in (1, 5, 6)]


@pytest.mark.parametrize("cron", ["* * * * *", "*/2 * * * *"])
async def test_what_ran_while_an_update_stood_is_not_run_again_by_the_new_schedule(
    life: Life, cron: str
) -> None:
    await life.clock.set(NOON + 1.5 * MINUTE)
    job = await life.create("* * * * *")
    await life.plan()
    with failpoints.barrier(UNCOMMITTED, names=POINTS) as hold:
        patch = {"schedule": {"cron": cron, "ends_at": (NOON + 60 * MINUTE).isoformat()}}
        update = asyncio.create_task(life.update(job, **patch))
        await hold.reached()
        # The update has locked what it takes back; 12:03 is planned after that, and runs.
        await life.clock.set(NOON + 4 * MINUTE)
        await life.plan()
        ran = [claimed.scheduled_for for claimed in await life.work()]
        hold.release()
        await update
    await life.clock.set(NOON + 8 * MINUTE)
    await life.plan()
    ran += [claimed.scheduled_for for claimed in await life.work()]
    assert NOON + 4 * MINUTE in ran
    assert len(ran) == len(set(ran))


async def test_what_is_superseded_before_the_new_version_has_joined_is_run_by_it(
    life: Life,
) -> None:
    await life.clock.set(NOON + 1.5 * MINUTE)
    job = await life.create()
    await life.plan()
    with failpoints.barrier(UNCOMMITTED, names=POINTS) as hold:
        patch = {"schedule": {"ends_at": (NOON + 60 * MINUTE).isoformat()}}
        update = asyncio.create_task(life.update(job, **patch))
        await hold.reached()
        # 12:03 is planned and made ready by the version that is about to go.
        await life.clock.set(NOON + 3 * MINUTE)
        await life.plan()
        await admit(life.engine, await life.clock.now())
        failpoints.configure("join.before_commit=error")
        hold.release()
        with pytest.raises(FailpointError):
            await update
    failpoints.configure("")
    assert [claimed.scheduled_for for claimed in await life.work()] == []
    await complete_joins(life.engine, await life.clock.now())
    ran = [claimed.scheduled_for for claimed in await life.work()]
    assert NOON + 3 * MINUTE in ran


async def test_a_cancel_that_stands_holds_up_no_join(life: Life) -> None:
    job = await life.create(retry_policy={"delays_seconds": [3600]})
    await life.plan()
    await life.clock.set(NOON + 1.5 * MINUTE)
    [failed] = await life.work(RETRY, delay=3600.0)
    with failpoints.barrier(UNCOMMITTED, names=POINTS) as hold:
        cancel = asyncio.create_task(cancel_execution(life.engine, failed.execution_id, Write()))
        await hold.reached()
        async with asyncio.timeout(10):
            await life.update(job, timeout_seconds=7)
            await life.plan()
        hold.release()
        await cancel
    assert await life.live() == [NOON + 2 * MINUTE]
