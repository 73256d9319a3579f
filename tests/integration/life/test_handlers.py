"""Handlers that do to the worker what no handler should: neither a slot nor an execution is lost."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from handlers import Handlers
from hourbell.actions import Run
from hourbell.dispatch import Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import Claimed, Execution, ExecutionStatus, Reason
from hourbell.model.jobs import Job, TaskAction, decode_spec
from hourbell.worker import executions, watchdog
from hourbell.worker.runtime import Worker, WorkerSettings
from integration.life.support import (
    PATIENCE_SECONDS,
    TIMES,
    Hand,
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


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """With a lease that runs out soon, so that heartbeats come often."""
    async with open_engine(database, replace(TIMES, lease_seconds=1.5)) as engine:
        yield engine


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """For plain handlers to hang at, at most until the end of the test."""
    event = threading.Event()
    yield event
    event.set()


async def ready(engine: Engine, task: str = "noop", **fields: object) -> Job:
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


# Cancelling oneself.


async def cancel_myself(payload: object, claimed: Claimed) -> None:
    _cancel_my_task()
    await asyncio.sleep(0)


async def cancel_myself_and_go_on(payload: object, claimed: Claimed) -> None:
    """As some older libraries do: the cancellation is caught, the task's count of them stays up."""
    _cancel_my_task()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return


async def cancel_myself_and_end(payload: object, claimed: Claimed) -> None:
    """Without a moment at which the cancellation could reach us."""
    _cancel_my_task()


async def await_what_is_cancelled(payload: object, claimed: Claimed) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def suspend(payload: object, claimed: Claimed) -> None:
    await asyncio.sleep(0)


def _cancel_my_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def test_a_handler_that_cancels_its_own_task_has_failed(engine: Engine) -> None:
    async with working(engine, {"bad": cancel_myself}, slots=1):
        for _ in range(3):
            execution = await ended(engine, await ready(engine, "bad"))
            assert execution.status is ExecutionStatus.DEAD
            assert execution.error == "The handler raised CancelledError."
        assert (await ended(engine, await ready(engine))).status is ExecutionStatus.SUCCEEDED


async def test_a_cancellation_that_a_handler_leaves_behind_does_not_end_the_runner(
    engine: Engine,
) -> None:
    handlers = {"first": cancel_myself_and_go_on, "second": await_what_is_cancelled}
    async with working(engine, handlers, slots=1):
        first = await ended(engine, await ready(engine, "first"))
        second = await ended(engine, await ready(engine, "second"))
    assert first.status is ExecutionStatus.SUCCEEDED
    assert second.error == "The handler raised CancelledError."


async def test_a_cancellation_that_comes_too_late_does_not_hit_the_next_execution(
    engine: Engine,
) -> None:
    handlers = {"first": cancel_myself_and_end, "second": suspend}
    jobs = [await ready(engine, name) for name in ("first", "second") * 5]
    async with working(engine, handlers):
        for job in jobs:
            assert (await ended(engine, job)).status is ExecutionStatus.SUCCEEDED


async def test_a_runner_that_somebody_cancels_between_two_executions_is_replaced(
    engine: Engine,
) -> None:
    runners: list[asyncio.Task[None]] = []

    async def give_away_my_task(payload: object, claimed: Claimed) -> None:
        runners.append(asyncio.current_task())  # type: ignore[arg-type]

    async with working(engine, {"open": give_away_my_task}, slots=1):
        for number in range(3):
            job = await ready(engine, "open")
            assert (await ended(engine, job)).status is ExecutionStatus.SUCCEEDED
            runners[number].cancel()
            await asyncio.wait([runners[number]])
    assert len(set(runners)) == 3


async def test_a_fault_of_the_worker_itself_fails_the_execution_and_frees_its_slot(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [RuntimeError("a fault")]
    decide = executions.settlement

    def faulty(*args: object) -> Settlement:
        if faults:
            raise faults.pop()
        return decide(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(executions, "settlement", faulty)
    async with working(engine, slots=1):
        execution = await ended(engine, await ready(engine))
        assert execution.status is ExecutionStatus.DEAD
        assert execution.error == "The worker's runner ended during the execution."
        assert (await ended(engine, await ready(engine))).status is ExecutionStatus.SUCCEEDED


async def test_a_worker_that_is_cancelled_leaves_no_task_behind(engine: Engine) -> None:
    began = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def wait(payload: object, claimed: Claimed) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        began.set()
        await asyncio.Event().wait()

    await ready(engine, "wait")
    actions = {TaskAction: Handlers({"wait": wait})}
    worker = Worker(PostgresDispatch(engine), actions, WorkerSettings(name="test"))
    running = asyncio.create_task(worker.run())
    await began.wait()
    # All at once, the runner first: as asyncio.run does with what is left at its end.
    for task in (*tasks, running):
        task.cancel()
    done, _ = await asyncio.wait([*tasks, running], timeout=PATIENCE_SECONDS)
    assert len(done) == 2
    assert await places(engine) == {"leased": 1}  # until its session is reaped


# Refusing to be cancelled.


class Stubborn:
    """A handler that goes on, however often it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.times_told = 0
        self.gives_in = asyncio.Event()

    async def run(self, payload: object, claimed: Claimed) -> str:
        self.began.set()
        while not self.gives_in.is_set():
            try:
                await self.gives_in.wait()
            except asyncio.CancelledError:
                self.times_told += 1
        return "at last"

    async def was_told(self, times: int) -> None:
        async def told() -> bool:
            return self.times_told >= times

        await eventually(told)


async def stop_by_timeout(engine: Engine, job: Job) -> None:
    """It comes by itself."""


async def stop_by_cancel(engine: Engine, job: Job) -> None:
    await cancel_execution(engine, job.job_id, Write())


@pytest.mark.parametrize(
    ("stop", "timeout_seconds", "fate"),
    [
        (stop_by_timeout, 1, "DEAD(retries_exhausted)"),
        (stop_by_cancel, 60, "CANCELLED(cancelled)"),
    ],
    ids=["timeout", "cancel"],
)
async def test_a_handler_that_will_not_stop_is_recorded_and_keeps_its_slot_until_it_ends(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stop, timeout_seconds: int, fate: str
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.3)
    stubborn = Stubborn()
    job = await ready(engine, "stubborn", timeout_seconds=timeout_seconds)
    with capture_logs() as said:
        async with working(engine, {"stubborn": stubborn.run}, slots=1):
            await stubborn.began.wait()
            await stop(engine, job)
            await ended(engine, job)
            other = await ready(engine)
            # It is told again and again, and the worker looks for work more often than that.
            await stubborn.was_told(stubborn.times_told + 3)
            assert await places(engine) == {"ready": 1}
            stubborn.gives_in.set()
            await ended(engine, other)
    assert await fates(engine) == {fate: 1, "SUCCEEDED": 1}
    assert not [line for line in said if "refused" in line["event"]]  # it was settled once
    await check_sound(engine)


async def test_a_lost_handler_that_will_not_stop_is_told_again_and_keeps_its_slot(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.3)
    stubborn = Stubborn()
    await ready(engine, "stubborn")
    async with working(engine, {"stubborn": stubborn.run}, slots=1):
        await stubborn.began.wait()
        await engine.database.value("delete from hourbell.leased")
        await stubborn.was_told(1)
        other = await ready(engine)
        await stubborn.was_told(4)
        assert await places(engine) == {"ready": 1}
        stubborn.gives_in.set()
        await ended(engine, other)
    assert await fates(engine) == {"SUCCEEDED": 1}  # the other; this one belongs to another session


async def test_a_drain_does_not_wait_for_a_handler_whose_outcome_is_recorded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.3)
    stubborn = Stubborn()
    job = await ready(engine, "stubborn", timeout_seconds=1)
    async with working(engine, {"stubborn": stubborn.run}, drain_seconds=PATIENCE_SECONDS):
        await ended(engine, job)
        before = time.monotonic()
    assert time.monotonic() - before < PATIENCE_SECONDS / 2
    assert await engine.database.value("select count(*) from hourbell.sessions where id > 0") == 0
    stubborn.gives_in.set()


# Threads.


async def test_a_plain_handler_starts_at_once_however_many_others_hang(
    engine: Engine, let_go: threading.Event
) -> None:
    def hang(payload: object, claimed: Claimed) -> None:
        let_go.wait()

    def quick(payload: object, claimed: Claimed) -> str:
        return "done"

    await fill(engine, 50, one_time("hang", timeout_seconds=1, retry_policy=NEVER))
    await admit_all(engine)

    async def timed_out() -> bool:
        return await fates(engine) == {"DEAD(retries_exhausted)": 50}

    async with working(engine, {"hang": hang, "quick": quick}, slots=51):
        await eventually(timed_out)
        for _ in range(3):
            execution = await ended(engine, await ready(engine, "quick", timeout_seconds=10))
            assert execution.status is ExecutionStatus.SUCCEEDED
        let_go.set()


async def test_a_thread_that_goes_on_after_its_timeout_keeps_its_slot_until_it_ends(
    engine: Engine, let_go: threading.Event
) -> None:
    hung = 0

    def hang(payload: object, claimed: Claimed) -> None:
        nonlocal hung
        hung += 1
        let_go.wait()

    async def hang_twice() -> bool:
        return hung == 2

    async def two_dead() -> bool:
        return await fates(engine) == {"DEAD(retries_exhausted)": 2}

    async with working(engine, {"hang": hang}, slots=2, drain_seconds=PATIENCE_SECONDS):
        first = await ready(engine, "hang", timeout_seconds=1)
        execution = await ended(engine, first)
        assert execution.error == "The attempt exceeded its timeout."
        # The other slot is free; it is taken for longer than the worker needs to look for work.
        await ready(engine, "hang", timeout_seconds=1)
        await eventually(hang_twice)
        other = await ready(engine)
        await eventually(two_dead)
        assert await places(engine) == {"ready": 1}
        let_go.set()
        assert (await ended(engine, other)).status is ExecutionStatus.SUCCEEDED
    await check_sound(engine)


async def test_a_drain_does_not_wait_for_a_thread_that_hangs(
    engine: Engine, let_go: threading.Event
) -> None:
    def hang(payload: object, claimed: Claimed) -> None:
        let_go.wait()

    job = await ready(engine, "hang", timeout_seconds=1)
    async with working(engine, {"hang": hang}, drain_seconds=PATIENCE_SECONDS):
        await ended(engine, job)
        before = time.monotonic()
    assert time.monotonic() - before < PATIENCE_SECONDS / 2


_HANGS = """
import asyncio, threading
from hourbell.actions.threads import Threads

hangs = threading.Event()

def hang():
    hangs.set()
    threading.Event().wait()

async def main():
    threads = Threads()
    running = asyncio.create_task(threads.run(hang))
    await asyncio.to_thread(hangs.wait)
    running.cancel()
    await asyncio.wait([running])
    threads.close()
    print("cancelled" if running.cancelled() else "not cancelled")

asyncio.run(main())
"""


def test_a_process_ends_although_a_thread_of_it_hangs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _HANGS],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "cancelled\n", "")


async def test_a_thread_is_used_again_and_ends_when_the_runner_of_tasks_is_closed(
    engine: Engine,
) -> None:
    threads: set[threading.Thread] = set()

    def note(payload: object, claimed: Claimed) -> None:
        threads.add(threading.current_thread())

    await fill(engine, 5, one_time("note"))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    tasks = Handlers({"note": note})
    for claimed in await hand.claim_all():
        spec = decode_spec(claimed.spec)
        assert isinstance(spec.action, TaskAction)
        await tasks.run(spec.action, Run(claimed, spec, 1.0, None))
    (thread,) = threads
    assert thread.is_alive()
    tasks.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


class Unwritable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "exception",
    [StopIteration, KeyboardInterrupt, SystemExit, asyncio.CancelledError, Unwritable],
)
async def test_whatever_a_plain_handler_raises_is_its_own_failure(
    engine: Engine, exception: type[BaseException]
) -> None:
    def broken(payload: object, claimed: Claimed) -> None:
        raise exception("mine")

    kind = exception.__name__
    policy = {"non_retryable": [kind]}
    async with working(engine, {"broken": broken}, slots=1):
        execution = await ended(engine, await ready(engine, "broken", retry_policy=policy))
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.NON_RETRYABLE)
    shown = {
        asyncio.CancelledError: "asyncio.exceptions.CancelledError: mine",
        Unwritable: f"{__name__}.Unwritable",
    }
    assert execution.error == shown.get(exception, f"{kind}: mine")
