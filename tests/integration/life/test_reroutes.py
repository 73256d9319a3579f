"""Queued runs of a recurring job follow it to another queue, task or concurrency key."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.change import update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import run_now
from hourbell.model.jobs import Job
from integration.life.limits import limit_queue
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    every,
    history,
    one_round,
    one_time,
    place_of,
    travel,
)

OLD, NEW = "default", "other"
TO_QUEUE: dict[str, object] = {"queue": NEW}
TO_TASK: dict[str, object] = {"action": {"type": "TASK", "name": "newer"}}

Step = Callable[[Engine, Job, int], Awaitable[None]]


async def is_due(engine: Engine, job: Job, run: int) -> None:
    pass


async def is_ready(engine: Engine, job: Job, run: int) -> None:
    await admit_all(engine)


async def is_parked(engine: Engine, job: Job, run: int) -> None:
    """It waits for its queue, whose limit another job has reached."""
    await limit_queue(engine, max_concurrency=1)
    await create(engine, one_time(priority="CRITICAL"))
    await admit_all(engine)


async def is_retried(engine: Engine, job: Job, run: int) -> None:
    """It waits for its second attempt."""
    worker = await Hand.opened(engine, [OLD])
    await admit_all(engine)
    await worker.fail(await worker.claim(), 60)


async def queued(engine: Engine, **fields: object) -> tuple[Job, int]:
    """A job, and a run of it that was requested."""
    job = await create(engine, every(60, overlap_policy="forbid") | fields)
    (run,) = (await run_now(engine, job.job_id, Write())).execution_ids
    return job, run


PLACES = pytest.mark.parametrize(
    ("comes", "place"),
    [(is_due, "due"), (is_ready, "ready"), (is_parked, "parked"), (is_retried, "due")],
    ids=["due", "ready", "parked", "retried"],
)


@PLACES
@pytest.mark.parametrize("patch", [TO_QUEUE, TO_TASK], ids=["queue", "task"])
async def test_a_queued_run_goes_where_its_job_goes(
    still: Engine, comes: Step, place: str, patch: Any
) -> None:
    job, run = await queued(still)
    await comes(still, job, run)
    assert await place_of(still, run) == [place]
    await update_job(still, job.job_id, patch, Write())
    await travel(still, START + timedelta(seconds=70))
    await check_sound(still)
    old, new = await Hand.opened(still, [OLD], ["noop"]), await Hand.opened(still, None, ["newer"])
    if patch is TO_QUEUE:
        new = await Hand.opened(still, [NEW], ["noop"])
    if place == "parked":
        await old.run_all()  # the other job
    await admit_all(still)
    assert await old.claim() == []
    (claimed,) = await new.claim()
    assert claimed.execution_id == run
    assert not await new.succeed([claimed])
    await check_sound(still)


async def test_a_forbidding_job_goes_on_in_its_new_queue(still: Engine) -> None:
    job = await create(still, every(60, overlap_policy="forbid"))
    await one_round(still, START + timedelta(seconds=60))  # ready, where no worker is
    await update_job(still, job.job_id, TO_QUEUE, Write())
    await travel(still, START + timedelta(seconds=61))
    worker = await Hand.opened(still, [NEW])
    for minute in (2, 3):
        await worker.run_all()
        await one_round(still, START + timedelta(seconds=60 * minute))
    await worker.run_all()
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * 3


async def test_a_run_waits_for_the_new_concurrency_key_and_leaves_the_old_one(
    still: Engine,
) -> None:
    worker = await Hand.opened(still)
    holder, _ = await queued(still, concurrency_key="new")
    await admit_all(still)
    (running,) = await worker.claim()
    job, run = await queued(still, concurrency_key="old")
    await admit_all(still)  # it holds the old key
    _, behind = await queued(still, concurrency_key="old")
    await admit_all(still)
    assert await place_of(still, behind) == ["parked"]
    await update_job(still, job.job_id, {"concurrency_key": "new"}, Write())
    await admit_all(still)
    assert [one.execution_id for one in await worker.claim()] == [behind]
    assert await place_of(still, run) == ["parked"]
    await worker.succeed([running])
    await admit_all(still)
    assert [one.execution_id for one in await worker.claim()] == [run]
    await check_sound(still)
    assert holder.job_id != job.job_id


async def test_a_run_that_a_claim_finds_elsewhere_is_not_given_to_its_worker(
    still: Engine,
) -> None:
    """Its row was locked during the change, so that the change has not moved it."""
    job, run = await queued(still)
    worker = await Hand.opened(still, [OLD], ["noop"])
    await admit_all(still)
    async with still.database.transaction() as connection:
        await connection.execute("select from hourbell.ready for update")
        await update_job(still, job.job_id, TO_TASK, Write())
    assert await place_of(still, run) == ["ready"]
    assert await worker.claim() == []
    assert await place_of(still, run) == ["due"]
    newer = await Hand.opened(still, None, ["newer"])
    await admit_all(still)
    assert [one.execution_id for one in await newer.claim()] == [run]


async def test_a_run_that_fails_after_the_change_is_retried_where_the_job_is(
    still: Engine,
) -> None:
    job, run = await queued(still, concurrency_key="old")
    old, new = await Hand.opened(still, [OLD]), await Hand.opened(still, [NEW])
    await admit_all(still)
    running = await old.claim()
    await update_job(still, job.job_id, TO_QUEUE | {"concurrency_key": "new"}, Write())
    await old.fail(running, 5)
    _, behind = await queued(still, concurrency_key="old")  # nothing holds the old key
    await travel(still, START + timedelta(seconds=10))
    await admit_all(still)
    assert [one.execution_id for one in await old.claim()] == [behind]
    assert [one.execution_id for one in await new.claim()] == [run]
    await check_sound(still)


async def test_what_is_outdated_and_elsewhere_ends_too(still: Engine) -> None:
    job = await create(still, every(60, overlap_policy="forbid"))
    await one_round(still, START + timedelta(seconds=60))
    schedule = {"every_seconds": 30, "starts_at": (START + timedelta(seconds=90)).isoformat()}
    await update_job(still, job.job_id, TO_QUEUE | {"schedule": schedule}, Write())
    await travel(still, START + timedelta(seconds=61))
    worker = await Hand.opened(still, [NEW])
    for seconds in (95, 125):
        await worker.run_all()
        await one_round(still, START + timedelta(seconds=seconds))
    await worker.run_all()
    fates = [fate.status for fate in await history(still, job.job_id)]
    assert fates == ["SUPERSEDED", "SUCCEEDED", "SUCCEEDED"]


async def test_updates_and_claims_at_once_lose_and_double_nothing(engine: Engine) -> None:
    job, _ = await queued(engine, overlap_policy="allow")
    workers = [await Hand.opened(engine, [queue], ["noop"]) for queue in (OLD, NEW)]
    for _ in range(30):
        await run_now(engine, job.job_id, Write())
    done: list[int] = []

    async def work(worker: Hand) -> None:
        for _ in range(15):
            await admit_all(engine)
            claimed = await worker.claim(3)
            assert not await worker.succeed(claimed)
            done.extend(one.execution_id for one in claimed)

    async def change() -> None:
        for n in range(15):
            await update_job(engine, job.job_id, {"queue": (NEW, OLD)[n % 2]}, Write())

    await asyncio.gather(change(), *map(work, workers))
    await check_sound(engine)

    async def all_done() -> bool:
        for worker in workers:
            done.extend(one.execution_id for one in await worker.run_all())
        return len(done) >= 31

    # A run that was moved back is overdue: the gate finds it with its next sweep.
    await eventually(all_done)
    assert len(done) == len(set(done)) == 31
