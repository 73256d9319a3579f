"""Runners: handlers share a few long-lived tasks, and none of them can tell."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextvars import ContextVar

import pytest
from msgspec.structs import replace

from hourbell.engine.core import Engine
from hourbell.engine.views.executions import get_execution
from hourbell.failpoints import barrier
from hourbell.model.executions import Claimed, Execution, ExecutionStatus
from hourbell.model.jobs import Job
from hourbell.worker.runners import YIELD_SECONDS
from integration.life.support import (
    TIMES,
    admit_all,
    check_sound,
    create,
    eventually,
    fates,
    fill,
    one_time,
    open_engine,
    places,
    working,
)

NEVER = {"max_retries": 0}
TENANT: ContextVar[str] = ContextVar("tenant", default="none")


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """With a lease that expires soon, so that heartbeats come often."""
    async with open_engine(database, replace(TIMES, lease_seconds=1.5)) as engine:
        yield engine


async def ready(engine: Engine, task: str, **fields: object) -> Job:
    """A job that a worker may claim; it is tried once."""
    job = await create(engine, one_time(task, **{"retry_policy": NEVER} | fields))
    await admit_all(engine)
    return job


async def ended(engine: Engine, job: Job) -> Execution:
    async def recorded() -> bool:
        return bool(
            await engine.database.value(
                "select exists (select from hourbell.ledger where id = $1)", job.job_id
            )
        )

    await eventually(recorded)
    return await get_execution(engine, job.job_id)


def my_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task


# What a handler may use.


async def time_out_inside(payload: object, claimed: Claimed) -> str:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        assert not my_task().cancelling()
        return "timed out"
    return "not reached"


async def wait_for_something(payload: object, claimed: Claimed) -> str:
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
    except TimeoutError:
        return "timed out"
    return "not reached"


async def run_a_group(payload: object, claimed: Claimed) -> str:
    async def part(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(part(number)) for number in range(3)]
    return str([part.result() for part in parts])


async def run_a_group_that_fails(payload: object, claimed: Claimed) -> str:
    async def fail() -> None:
        raise LookupError("a part")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            await asyncio.Event().wait()
    except* LookupError:
        assert not my_task().cancelling()
    return "failed"


async def keep_my_task(payload: object, claimed: Claimed) -> str:
    before = my_task()
    await asyncio.sleep(0)
    return str(before is my_task() and before in asyncio.all_tasks())


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (time_out_inside, "timed out"),
        (wait_for_something, "timed out"),
        (run_a_group, "[0, 1, 2]"),
        (run_a_group_that_fails, "failed"),
        (keep_my_task, "True"),
    ],
)
async def test_a_handler_has_a_task_like_any_other(engine: Engine, handler, result: str) -> None:
    async with working(engine, {"work": handler}, slots=1):
        for _ in range(2):  # in the same slot: the first leaves nothing behind
            execution = await ended(engine, await ready(engine, "work"))
            assert (execution.status, execution.result) == (ExecutionStatus.SUCCEEDED, result)


async def test_handlers_that_do_not_wait_share_a_task(engine: Engine) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def note(payload: object, claimed: Claimed) -> None:
        tasks.append(my_task())

    await fill(engine, 100, one_time("note"))
    await admit_all(engine)
    async with working(engine, {"note": note}):
        await eventually(lambda: fates_are(engine, SUCCEEDED=100))
    assert len(set(tasks)) < 20
    assert all(task.get_name().startswith("hourbell-runner-") for task in tasks)


async def fates_are(engine: Engine, **expected: int) -> bool:
    return await fates(engine) == expected


# Context variables.


async def set_and_forget(payload: object, claimed: Claimed) -> str:
    """The variable is set across a suspension, and in tasks that the handler starts."""
    seen = TENANT.get()
    TENANT.set("mine")
    await asyncio.sleep(0)
    inside = await asyncio.create_task(read(payload, claimed))
    return f"{seen} {TENANT.get()} {inside}"


async def set_without_waiting(payload: object, claimed: Claimed) -> str:
    seen = TENANT.get()
    TENANT.set("mine")
    return seen


async def read(payload: object, claimed: Claimed) -> str:
    return TENANT.get()


def read_in_a_thread(payload: object, claimed: Claimed) -> str:
    return TENANT.get()


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise TypeError("cannot be compared")

    __hash__ = None  # type: ignore[assignment]


async def set_what_cannot_be_compared(payload: object, claimed: Claimed) -> str:
    seen = TENANT.get()
    TENANT.set(Incomparable())  # type: ignore[arg-type]
    return seen


async def test_context_variables_of_a_handler_do_not_reach_the_next(engine: Engine) -> None:
    handlers = {
        "set": set_and_forget,
        "set_without_waiting": set_without_waiting,
        "incomparable": set_what_cannot_be_compared,
        "read": read,
        "read_in_a_thread": read_in_a_thread,
    }
    TENANT.set("of the worker")
    expected = {
        "set": "of the worker mine mine",
        "set_without_waiting": "of the worker",
        "incomparable": "of the worker",
        "read": "of the worker",
        "read_in_a_thread": "of the worker",
    }
    jobs = [
        (await ready(engine, name), name)
        for first in ("set", "set_without_waiting", "incomparable")
        for name in (first, "read", first, "read_in_a_thread")
    ]
    async with working(engine, handlers, slots=1):
        for job, name in jobs:
            assert (await ended(engine, job)).result == expected[name]


async def test_a_handler_that_restores_its_context_variables_keeps_its_runner(
    engine: Engine,
) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def restore(payload: object, claimed: Claimed) -> None:
        tasks.append(my_task())
        token = TENANT.set("mine")
        await asyncio.sleep(0)
        TENANT.reset(token)

    async with working(engine, {"restore": restore}, slots=1):
        for _ in range(3):
            await ended(engine, await ready(engine, "restore"))
    assert len(set(tasks)) == 1


# Timeouts.


async def wait_forever(payload: object, claimed: Claimed) -> None:
    await asyncio.Event().wait()


async def test_a_short_timeout_counts_although_longer_ones_began_before(engine: Engine) -> None:
    """The watchdog looks when the earliest can be over, and that changes with every start."""
    async with working(engine, {"wait": wait_forever}, drain_seconds=0.0):
        for seconds in (60, 3, 1, 2):
            await ready(engine, "wait", timeout_seconds=seconds, delivery="at_most_once")
        await eventually(lambda: fates_are(engine, **{"DEAD(retries_exhausted)": 3}))
        # The first one still runs, so each of the others was stopped at its own time.
        assert await places(engine) == {"leased": 1}
    took = await engine.database.fetch(
        "select (finished_at - started_at) as took from hourbell.ledger"
        " where started_at is not null order by took"
    )
    seconds = [row["took"].total_seconds() for row in took]
    assert all(one >= timeout for one, timeout in zip(seconds, (1, 2, 3), strict=False))


async def test_many_timeouts_at_once_stop_all_of_them_and_nothing_else(engine: Engine) -> None:
    async def quick(payload: object, claimed: Claimed) -> None:
        await asyncio.sleep(0)

    await fill(engine, 500, one_time("wait", timeout_seconds=1, retry_policy=NEVER))
    await fill(engine, 500, one_time("quick", timeout_seconds=60))
    await admit_all(engine)
    expected = {"DEAD(retries_exhausted)": 500, "SUCCEEDED": 500}
    async with working(engine, {"wait": wait_forever, "quick": quick}, slots=1000):
        await eventually(lambda: fates_are(engine, **expected))
    await check_sound(engine)


async def test_a_handler_that_blocks_is_stopped_when_it_waits_and_not_before(
    engine: Engine,
) -> None:
    async def block(payload: object, claimed: Claimed) -> str:
        time.sleep(1.2)  # noqa: ASYNC251
        return "too late, but done"

    async def block_and_wait(payload: object, claimed: Claimed) -> None:
        time.sleep(1.2)  # noqa: ASYNC251
        await asyncio.Event().wait()

    async with working(engine, {"block": block, "block_and_wait": block_and_wait}):
        blocked = await ready(engine, "block", timeout_seconds=1)
        waited = await ready(engine, "block_and_wait", timeout_seconds=1)
        assert (await ended(engine, blocked)).result == "too late, but done"
        assert (await ended(engine, waited)).error == "The attempt exceeded its timeout."


async def test_handlers_that_never_wait_let_other_tasks_run_between_them(engine: Engine) -> None:
    """Such as heartbeats, claims and settles."""
    turns = 0
    seen: list[int] = []

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def compute(payload: object, claimed: Claimed) -> None:
        seen.append(turns)
        time.sleep(2 * YIELD_SECONDS)  # noqa: ASYNC251

    await fill(engine, 50, one_time("compute"))
    await admit_all(engine)
    async with working(engine, {"compute": compute}):
        counting = asyncio.create_task(count_turns())
        await eventually(lambda: fates_are(engine, SUCCEEDED=50))
        counting.cancel()
    assert len(set(seen)) > 40


# Claims, handlers and settles overlap.


async def test_executions_are_claimed_and_run_while_outcomes_are_being_settled(
    engine: Engine,
) -> None:
    started = asyncio.Semaphore(0)

    async def note(payload: object, claimed: Claimed) -> None:
        started.release()

    async with working(engine, {"note": note}):
        with barrier("settle.before_commit") as settle:
            await ready(engine, "note")
            await started.acquire()
            await settle.reached()
            await ready(engine, "note")
            await started.acquire()
            settle.release()
        await eventually(lambda: fates_are(engine, SUCCEEDED=2))


async def test_executions_run_and_are_settled_while_a_claim_is_under_way(engine: Engine) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(payload: object, claimed: Claimed) -> None:
        began.set()
        await release.wait()

    async with working(engine, {"wait": wait}):
        first = await ready(engine, "wait")
        await began.wait()
        with barrier("claim.after_commit") as claim:
            await claim.reached()
            release.set()
            await ended(engine, first)
            claim.release()
