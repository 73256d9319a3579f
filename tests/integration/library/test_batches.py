"""`@app.batch_task`: what is called together, and what becomes of each item."""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from hourbell import App, Context, Dead, Item, Job, Retry, WorkerOptions, current
from hourbell.engine.core import Engine
from hourbell.errors import InvalidArguments, InvalidTask
from hourbell.model.ids import parse_job_id
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)
LONG = 30.0  # nobody waits that long: the batch is full before


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database, retry=Retry.delays(0))


@dataclass
class Doc:
    text: str
    number: int = 0


async def fates(jobs: list[Job[Any]]) -> list[tuple[str, str | None]]:
    for job in jobs:
        await job.wait(20)
    views = [await job.get() for job in jobs]
    return [(view.status, view.error) for view in views]


def refuses_a_context() -> bool:
    """Whether there is no context here, neither of an item nor of an earlier batch."""
    with pytest.raises(LookupError, match="A batch runs many executions at once"):
        current()
    return True


async def test_a_full_batch_is_one_call_and_each_item_has_its_own_outcome(app: App) -> None:
    calls: list[list[tuple[str, int]]] = []

    @app.batch_task(name="index", size=5, max_wait=LONG)
    async def index(items: list[Item[Doc]]) -> list[str]:
        assert refuses_a_context()
        calls.append([(item.value.text, item.attempt) for item in items])
        for item in items:
            if item.value.text == "bad":
                item.fail(Dead("unreadable"))
            elif item.value.text == "later" and len(calls) == 1:
                item.snooze(0)
        return [f"indexed {item.value.text}" for item in items]

    async with app, app.worker(FAST):
        texts = ["a", "bad", "b", "later", "c"]
        jobs = await app.enqueue_many(index.bind(Doc(text)) for text in texts)
        assert await fates(jobs[:3]) == [
            ("SUCCEEDED", None),
            ("DEAD", "unreadable"),
            ("SUCCEEDED", None),
        ]
        assert await jobs[4].result(20) == "indexed c"
        # The snoozed one comes again, with others.
        await app.enqueue_many(index.bind(Doc("d")) for _ in range(4))
        assert await jobs[3].result(20) == "indexed later"
    assert sorted(calls[0]) == [(text, 1) for text in sorted(texts)]
    assert ("later", 1) in calls[1]


async def test_an_exception_fails_the_items_that_are_not_marked(app: App) -> None:
    sizes: list[int] = []

    @app.batch_task(name="index", size=3, max_wait=0.2)
    def index(items: list[Item[int]]) -> None:
        sizes.append(len(items))
        if len(sizes) == 1:
            items[0].fail(Dead("this one"))
            raise ValueError("the index is away")
        assert threading.current_thread().name == "handler"
        assert refuses_a_context()

    async with app, app.worker(FAST):
        jobs = await app.enqueue_many(index.bind(n) for n in range(3))
        found = await fates(jobs)
    assert sorted(found) == [("DEAD", "this one"), ("SUCCEEDED", None), ("SUCCEEDED", None)]
    assert sizes[0] == 3


async def test_a_batch_begins_when_its_time_is_over_and_has_one_tenant(app: App) -> None:
    batches: list[set[str]] = []

    @app.batch_task(name="index", size=100, max_wait=0.2)
    async def index(items: list[Item[int]]) -> None:
        batches.append({item.tenant for item in items})

    @app.batch_task(name="mixed", size=4, max_wait=LONG, by="task")
    async def mixed(items: list[Item[int]]) -> None:
        batches.append({item.tenant for item in items})

    async with app, app.worker(FAST):
        for task in (index, mixed):
            jobs = [await task.configure(tenant=each).enqueue(1) for each in ("a", "b", "a", "b")]
            assert {status for status, _ in await fates(jobs)} == {"SUCCEEDED"}
    assert batches[-1] == {"a", "b"}
    assert [tenants for tenants in batches[:-1] if len(tenants) > 1] == []


async def test_a_list_of_another_length_fails_the_batch(app: App) -> None:
    @app.batch_task(name="index", size=2, max_wait=LONG, retry=Retry.never())
    async def index(items: list[Item[int]]) -> list[int]:
        return [1]

    async with app, app.worker(FAST):
        found = await fates(await app.enqueue_many(index.bind(n) for n in range(2)))
    text = "a list with one result per item: 2, not 1."
    assert [(status, text in str(error)) for status, error in found] == [("DEAD", True)] * 2


async def test_items_that_wait_are_released_by_a_drain_and_a_stopped_item_leaves_the_others(
    app: App,
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    together: list[Item[int]] = []

    @app.batch_task(name="index", size=2, max_wait=LONG)
    async def index(items: list[Item[int]]) -> None:
        together.extend(items)
        began.set()
        await may_end.wait()

    async with app:
        async with app.worker(FAST) as worker:
            jobs = {job.execution_id: job for job in [await index.enqueue(n) for n in range(3)]}
            await began.wait()
            cancelled, other = (jobs.pop(item.execution_id) for item in together)
            (waiting,) = jobs.values()
            await cancelled.cancel()
            assert await cancelled.wait(20) == "CANCELLED"
            assert [item.cancelled for item in together] == [True, False]
            worker.stop()
            may_end.set()
        assert await other.wait(1) == "SUCCEEDED"
        view = await waiting.get()
        assert (view.status, view.attempt) == ("QUEUED", 0)


async def test_a_function_that_empties_its_list_keeps_its_batch(app: App) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()
    together: list[Item[int]] = []

    @app.batch_task(name="index", size=2, max_wait=LONG, retry=Retry.never())
    async def index(items: list[Item[int]]) -> None:
        while items:
            together.append(items.pop())
        began.set()
        await may_end.wait()

    async with app, app.worker(FAST):
        jobs = {job.execution_id: job for job in [await index.enqueue(n) for n in range(2)]}
        await began.wait()
        cancelled, other = (jobs[item.execution_id] for item in together)
        await cancelled.cancel()
        assert await cancelled.wait(20) == "CANCELLED"
        may_end.set()
        assert await fates([other]) == [("SUCCEEDED", None)]


async def test_a_function_may_return_a_list_or_nothing(app: App) -> None:
    @app.batch_task(name="lengths", max_wait=0)
    async def lengths(items: list[Item[str]]) -> list[int] | None:
        return None if items[0].value == "none" else [len(item.value) for item in items]

    async with app, app.worker(FAST):
        assert await (await lengths.enqueue("three")).result(20) == 5
        assert await (await lengths.enqueue("none")).result(20) is None


async def test_a_batch_whose_items_are_all_stopped_is_stopped(app: App) -> None:
    stopped = asyncio.Event()

    @app.batch_task(name="slow", size=2, max_wait=LONG, timeout=1, retry=Retry.never())
    async def slow(items: list[Item[int]]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with app, app.worker(FAST):
        found = await fates(await app.enqueue_many(slow.bind(n) for n in range(2)))
        assert stopped.is_set()
    assert found == [("DEAD", "The attempt exceeded its timeout.")] * 2


async def test_a_batch_in_a_thread_that_cannot_be_stopped_is_recorded_and_keeps_its_slots(
    app: App,
) -> None:
    may_end = threading.Event()
    running = most = 0

    @app.batch_task(name="hang", size=2, max_wait=LONG, timeout=1, retry=Retry.never())
    def hang(items: list[Item[int]]) -> None:
        may_end.wait(60)

    @app.task(name="count")
    async def count(ctx: Context) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ctx.checkpoint(running)  # others would begin meanwhile
        running -= 1

    all_run = asyncio.Barrier(3)

    @app.task(name="together")
    async def together() -> None:
        await all_run.wait()

    three = WorkerOptions(lease_seconds=3, drain_seconds=5, concurrency=3)
    async with app, app.worker(three):
        found = await fates(await app.enqueue_many(hang.bind(n) for n in range(2)))
        assert found == [("DEAD", "The attempt exceeded its timeout.")] * 2
        others = await app.enqueue_many(count.bind() for _ in range(5))
        assert {status for status, _ in await fates(others)} == {"SUCCEEDED"}
        assert most == 1  # in the slot that the batch did not take
        may_end.set()
        others = await app.enqueue_many(together.bind() for _ in range(3))
        assert {status for status, _ in await fates(others)} == {"SUCCEEDED"}


async def test_items_wait_for_their_batch_without_losing_any_of_their_timeout(
    app: App, engine: Engine
) -> None:
    @app.batch_task(name="index", size=2, max_wait=LONG, timeout=1)
    async def index(items: list[Item[int]]) -> list[int]:
        return [len(items) for _ in items]

    @app.task(name="outlast", timeout=1, retry=Retry.never())
    async def outlast() -> None:
        await asyncio.Event().wait()

    async with app, app.worker(FAST):
        first = await index.enqueue(1)

        async def claimed() -> bool:
            return (await first.get()).status == "RUNNING"

        await eventually(claimed)
        # It began later, with the same timeout.
        assert await (await outlast.enqueue()).wait(20) == "DEAD"
        second = await index.enqueue(2)
        assert [await job.result(20) for job in (first, second)] == [2, 2]
        assert (await first.get()).attempt == 1
    failed = "select array_agg(id) from hourbell.executions where history is not null"
    assert parse_job_id(first.id) not in (await engine.database.value(failed) or [])


async def test_what_is_enqueued_is_checked_by_the_type_of_the_item(app: App) -> None:
    @app.batch_task(name="index")
    async def index(items: list[Item[Doc]]) -> None: ...

    with pytest.raises(InvalidArguments, match=r"value must be object, not int 7"):
        index.bind(7)  # type: ignore[arg-type]
    assert "value" in repr(index.bind(Doc("x")))
    await index([Item(Doc("x"))])  # called directly, as in a test


def test_what_cannot_be_a_batch_task_is_refused(app: App) -> None:
    with pytest.raises(InvalidTask, match="takes one parameter"):
        app.batch_task(name="two")(lambda a, b: None)  # type: ignore[call-overload, misc]

    def wrong(items: list[int]) -> None: ...

    task: Any = app.batch_task(name="wrong")(wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidTask, match=r"such as list\[Item\[int\]\]"):
        task.bind(1)
    for options, text in (
        ({"size": 0}, "from 1 to 10000"),
        ({"max_wait": 61}, "at most 60 s"),
        ({"by": "queue"}, '"task" or "tenant"'),
        ({"process": True}, "a batch runs in the worker"),
    ):
        with pytest.raises(InvalidTask, match=text):
            app.batch_task(**options)  # type: ignore[arg-type]
