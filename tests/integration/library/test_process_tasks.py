"""`@app.task(process=True)`: functions in processes, what kills them, and what their deaths mean."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hourbell import Job, TaskSet, WorkerOptions
from hourbell.engine.core import Engine
from hourbell.errors import ResultNotStored
from hourbell.model.ids import parse_job_id
from hourbell.sdk.processes import pool
from integration.library import late_app, process_tasks
from integration.library.process_tasks import (
    app,
    beside_in_a_coroutine,
    beside_in_a_process,
    beside_in_a_thread,
    clean_up,
    deployed,
    die,
    fail,
    hang,
    in_the_worker,
    look,
    outlast,
    pid_of_call,
    pid_of_one_of_two_calls,
    return_an_object,
)
from integration.life.support import eventually

TWO = WorkerOptions(lease_seconds=3, drain_seconds=5, pool_size=2)
ONE = WorkerOptions(lease_seconds=3, drain_seconds=5, pool_size=1)


@pytest.fixture(autouse=True)
def url_of_app(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "url", database)


@pytest.fixture
async def one() -> AsyncIterator[None]:
    """A worker with one process for tasks."""
    async with app, app.worker(ONE):
        yield


async def ended(job: Job[Any]) -> tuple[str, str | None, str | None]:
    await job.wait(20)
    view = await job.get()
    return view.status, view.reason, view.error


async def pids_in(folder: Path) -> list[int]:
    async def written() -> list[int]:
        found = folder / "pids"
        return list(map(int, found.read_text().split())) if found.exists() else []

    return await eventually(written)


def number_of(job: Job[Any]) -> int:
    """The number of its execution."""
    return parse_job_id(job.id)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def are_gone(pids: list[int]) -> None:
    async def gone() -> bool:
        return not any(map(is_alive, pids))

    await eventually(gone)


async def test_a_process_is_kept_and_has_a_context_and_its_outcomes_are_those_of_a_thread(
    one: None, engine: Engine
) -> None:
    pids = [await (await pid_of_call.enqueue()).result(20) for _ in range(2)]
    assert pids[0] == pids[1] != os.getpid()
    assert await (await look.enqueue([1, 2])).result(20) == [
        *(3, "half", "state", 1),
        *("shop.look", False),
    ]
    assert await engine.database.value("select progress from hourbell.progress") == '{"done":1}'
    assert await ended(await fail.enqueue("key")) == ("DEAD", "non_retryable", "KeyError: 'gone'")
    status, reason, error = await ended(await fail.enqueue("exit"))
    assert (status, reason, error) == ("DEAD", "retries_exhausted", "SystemExit: leaving")
    status, reason, error = await ended(await fail.enqueue("interrupt"))
    assert (status, reason, error) == ("DEAD", "retries_exhausted", "KeyboardInterrupt: mine")
    assert await (await pid_of_call.enqueue()).result(20) == pids[0]


async def test_a_result_that_a_process_cannot_send_does_not_repeat_the_run(one: None) -> None:
    job = await return_an_object.enqueue()
    why = "is not JSON and was not stored: TypeError: Encoding objects of type object"
    with pytest.raises(ResultNotStored, match=why):
        await job.result(20)
    view = await job.get()
    assert (view.status, view.attempt) == ("SUCCEEDED", 1)


async def test_a_process_is_replaced_after_max_calls(one: None) -> None:
    pids = [await (await pid_of_one_of_two_calls.enqueue()).result(20) for _ in range(5)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert not any(map(is_alive, pids[:4]))
    # It counts the calls of all tasks, and is the limit of this one.
    assert await (await pid_of_call.enqueue()).result(20) == pids[4]
    assert await (await pid_of_call.enqueue()).result(20) == pids[4]
    last = await (await pid_of_one_of_two_calls.enqueue()).result(20)
    assert last != pids[4]
    assert await (await pid_of_call.enqueue()).result(20) == last
    assert not is_alive(pids[4])


async def test_a_process_that_dies_takes_only_its_own_execution_with_it(
    one: None, engine: Engine
) -> None:
    worker = await (await in_the_worker.enqueue()).result(20)
    for how in ("SIGSEGV", "exit"):
        # It has no retries; these are about failures, and a crash is another matter.
        assert await (await die.enqueue(how, times=1)).result(20) == 2
    rows = await engine.database.fetch(
        "select h ->> 'reason' as reason, h ->> 'error' as error, crashes from hourbell.executions,"
        " jsonb_array_elements(history) as h order by id"
    )
    assert {row["reason"] for row in rows} == {"crashed"}
    assert {row["crashes"] for row in rows} == {0}  # it is not claimed alone: nothing else suffers
    assert [row["error"] for row in rows] == [
        "The process of the task died: killed by SIGSEGV.",
        "The process of the task died: it exited with status 0.",
    ]
    assert await (await in_the_worker.enqueue()).result(20) == worker


@pytest.fixture
def neighbours_may_end(tmp_path: Path) -> Iterator[Callable[[], Awaitable[None]]]:
    """Tells those that run beside a process to end."""
    process_tasks.began.clear()
    process_tasks.may_end.clear()
    process_tasks.thread_may_end.clear()
    os.mkfifo(tmp_path / "may_end")

    async def tell() -> None:
        process_tasks.may_end.set()
        process_tasks.thread_may_end.set()
        await asyncio.to_thread((tmp_path / "may_end").write_text, "")

    yield tell
    process_tasks.thread_may_end.set()


async def test_what_runs_beside_a_process_that_dies_continues(
    engine: Engine, tmp_path: Path, neighbours_may_end: Callable[[], Awaitable[None]]
) -> None:
    async with app, app.worker(TWO):
        neighbours = [
            await beside_in_a_coroutine.enqueue(),
            await beside_in_a_thread.enqueue(),
            await beside_in_a_process.enqueue(str(tmp_path)),
        ]
        (process,) = await pids_in(tmp_path)

        async def all_begun() -> bool:
            return process_tasks.began == {"coroutine", "thread"}

        await eventually(all_begun)
        for how in ("SIGSEGV", "exit"):
            assert await (await die.enqueue(how, times=1)).result(20) == 2
        assert [(await job.get()).status for job in neighbours] == ["RUNNING"] * 3
        await neighbours_may_end()
        here = os.getpid()
        assert [await job.result(20) for job in neighbours] == [[1, here], [1, here], [1, process]]
    failed = await engine.database.fetch(
        "select id from hourbell.executions where history is not null"
    )
    assert {row["id"] for row in failed}.isdisjoint(map(number_of, neighbours))


async def test_an_execution_whose_process_always_dies_is_dead_after_max_crashes(
    one: None, engine: Engine
) -> None:
    job = await die.enqueue("SIGKILL", times=100)
    assert await ended(job) == (
        "DEAD",
        "crashed",
        "The process of the task died: killed by SIGKILL.",
    )
    assert (await job.get()).attempt == 3


async def test_an_idle_process_that_was_killed_is_no_crash_of_the_next_execution(
    one: None, engine: Engine
) -> None:
    first = await (await pid_of_call.enqueue()).result(20)
    os.kill(first, signal.SIGKILL)
    assert await (await pid_of_call.enqueue()).result(20) != first
    assert not await engine.database.value(
        "select exists (select from hourbell.executions where history is not null)"
    )


@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "sigstop"])
async def test_a_process_is_killed_with_its_children_at_its_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool, one: None
) -> None:
    monkeypatch.setattr(pool, "STOP_SECONDS", 0.2)
    job = await hang.enqueue(str(tmp_path))
    pids = await pids_in(tmp_path)
    if is_stopped:
        os.kill(pids[0], signal.SIGSTOP)
    assert await ended(job) == (
        "DEAD",
        "retries_exhausted",
        "The attempt exceeded its timeout.",
    )
    await are_gone(pids)
    # The place of the dead process is free.
    assert await (await pid_of_call.enqueue()).result(20) not in pids


async def test_a_cancelled_function_is_interrupted_and_can_clean_up(
    tmp_path: Path, one: None
) -> None:
    job = await clean_up.enqueue(str(tmp_path))
    pids = await pids_in(tmp_path)
    os.kill(pids[0], signal.SIGTERM)  # of a process manager: the worker decides, so it is ignored
    await job.cancel()
    assert (await ended(job))[:2] == ("CANCELLED", "cancelled")
    assert (tmp_path / "cleaned").read_text() == "True"
    await are_gone(pids)


async def test_tasks_wait_for_a_process_without_losing_time_and_a_drain_releases_them(
    tmp_path: Path, engine: Engine
) -> None:
    short = WorkerOptions(lease_seconds=3, drain_seconds=0.1, pool_size=1)
    async with app:
        async with app.worker(short):
            first = await clean_up.enqueue(str(tmp_path))
            pids = await pids_in(tmp_path)
            second = await pid_of_call.configure(timeout=1).enqueue()

            async def claimed() -> bool:
                return (await second.get()).status == "RUNNING"

            await eventually(claimed)
            assert await (await outlast.enqueue()).wait(20) == "DEAD"
            assert (await second.get()).status == "RUNNING"  # it waits for longer than its timeout
        await are_gone(pids)
        assert (await first.get()).attempt == 0  # interrupted, and uses no attempt
        async with app.worker(TWO):
            assert await second.wait(20) == "SUCCEEDED"
            await first.cancel()
            assert await first.wait(20) == "CANCELLED"
        assert (await second.get()).attempt == 1
    failed = "select array_agg(id) from hourbell.executions where history is not null"
    assert number_of(second) not in (await engine.database.value(failed) or [])


async def test_a_process_imports_what_the_app_imports_and_names_a_task_that_it_does_not_have(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = late_app.app  # not a variable of this module, which a process would import then
    monkeypatch.setattr(late, "url", database)
    assert late.tasks == {}  # a client imports nothing
    async with late, late.worker(ONE):
        pid = await (await late.get_task("pid_of_set").enqueue()).result(20)
        assert pid != os.getpid()
        # Included by code that a process does not run.
        from integration.library.late_tasks import in_no_set

        here = TaskSet()
        task = here.task(process=True)(in_no_set)
        late.include(here)
    async with late, late.worker(ONE):
        status, reason, error = await ended(await task.enqueue())
        assert (status, reason) == ("DEAD", "retries_exhausted")
        assert "but not its task 'late.in_no_set'" in str(error)


async def test_arguments_that_do_not_fit_the_newer_code_of_a_process_use_no_attempt(
    one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEWER_CODE", "1")  # processes that start from now on import it
    job = await deployed.enqueue(7)

    async def waits() -> bool:
        return (await job.explain()).code == "payload_mismatch"

    await eventually(waits)
    view = await job.get()
    assert (view.status, view.attempt) == ("QUEUED", 0)
