"""Calls that type checkers accept; `reveal_type` is compared with the comment."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from hourbell import (
    NONE,
    App,
    AsyncTask,
    Call,
    Cancelled,
    Completion,
    Context,
    Item,
    Job,
    Options,
    Priority,
    Retry,
    SyncContext,
    Task,
    TaskSet,
    Unique,
    cron,
)
from hourbell.testing import Bell, Run, context

app = App("shop")


@app.task
async def plain(cart_id: int) -> str:
    return str(cart_id)


@app.task(
    queue="mail", retry=Retry.exponential(max_retries=3, initial=30), timeout=timedelta(seconds=30)
)
async def with_context(ctx: Context, cart_id: int, *, lang: str = "en") -> None: ...


@app.task(
    schedule=cron(
        "0 2 * * *",
        timezone="Asia/Kolkata",
        notifications=[{"on": ["dead_letter"], "url": "https://chat.example/ops"}],
    )
)
def nightly_report() -> None: ...


@app.task
def blocking(ctx: SyncContext, *ids: int) -> list[int]:
    return list(ids)


@app.task
def untyped(x, y):  # type: ignore[no-untyped-def]
    return x


@app.task(process=True, timeout=60)
def compute(ctx: SyncContext, n: int) -> int:
    ctx.checkpoint(n)
    assert_type(ctx.wait_for_completion(timeout=5), Completion)
    return n


@app.batch_task(size=10, max_wait=timedelta(seconds=1), by="task", queue="index")
async def index(items: list[Item[str]]) -> None:
    for item in items:
        assert_type(item.value, str)
        item.fail(ValueError())


@app.batch_task()
def lengths(items: list[Item[str]]) -> list[int]:
    return [len(item.value) for item in items]


@app.batch_task()
def some_lengths(items: list[Item[str]]) -> list[int] | None:
    return None


@app.batch_task()
async def some_lengths_later(items: list[Item[str]]) -> list[int] | None:
    return None


tasks = TaskSet()


@tasks.task(unique=Unique(lambda n: f"n:{n}", on_duplicate="replace"), expires_in=60)
async def of_a_set(n: int) -> int:
    return n


@tasks.batch_task(size=5)
async def batch_of_a_set(items: list[Item[int]]) -> None: ...


@app.task(concurrency_key=lambda n: f"n:{n}", upgrade=lambda old: {**old, "n": 1})
def upgraded(n: int) -> None: ...


app.include(tasks)


@app.on_enqueue
def hook(task: Task[..., Any], options: Options) -> None:
    options["labels"] = {"task": task.name}


class Tasks:
    @staticmethod
    @app.task(name="static")
    async def static(n: int) -> int:
        return n


async def main() -> None:
    assert_type(await plain.enqueue(7), Job[str])
    assert_type(await plain.enqueue(cart_id=7), Job[str])
    assert_type(await (await plain.enqueue(7)).result(timeout=5), str)
    assert_type(await plain(7), str)
    assert_type(plain.bind(7), Call[str])
    assert_type(plain.enqueue_sync(7), Job[str])
    assert_type(blocking(1, 2) if False else [1], list[int])
    await with_context.enqueue(7, lang="de")
    await with_context.configure(
        delay=timedelta(hours=24), unique_key="cart:7", priority="HIGH"
    ).enqueue(cart_id=7)
    await plain.configure(at=datetime(2031, 5, 6, tzinfo=UTC), priority=Priority.LOW).enqueue(7)
    await nightly_report.enqueue()
    await blocking.enqueue(1, 2, 3)
    await untyped.enqueue(x=1, y=2)
    await Tasks.static.enqueue(7)
    assert_type(await compute.enqueue(7), Job[int])
    assert_type(await index.enqueue("text"), Job[None])
    assert_type(await lengths.configure(delay=5).enqueue("text"), Job[int])
    assert_type(lengths.bind("text"), Call[int])
    assert_type(some_lengths.bind("text"), Call[int | None])
    assert_type(some_lengths_later.bind("text"), Call[int | None])
    await index([Item("text")])
    assert_type(await of_a_set.enqueue(7), Job[int])
    await batch_of_a_set.enqueue(7)
    await app.complete("exe_0-x", {"cents": 300})
    app.complete_sync("exe_0-x", error="declined")
    await app.enqueue_many([plain.bind(1), with_context.bind(2)])
    await plain.enqueue_many([plain.bind(1), {"cart_id": 2}])
    app.enqueue_many_sync(plain.bind(i) for i in range(3))
    group = await app.group([plain.bind(1), with_context.bind(2)], then=plain.bind(3))
    assert_type(await group.result(timeout=5), str)
    assert_type(await plain.cancel(unique_key="cart:7"), Cancelled)
    await plain.configure(tenant=None, queue=None, retry=NONE, unique_key=NONE).enqueue(7)
    await plain.configure(tenant=None, queue=None, retry=NONE, unique_key=NONE).enqueue(7)
    options: Options = {"delay": 5, "tenant": "acme"}
    await plain.configure(**options).enqueue(7)
    task: AsyncTask[[int], str] = plain
    await task.enqueue(7)


async def in_a_test(bell: Bell) -> None:
    job = await plain.enqueue(7)
    assert_type(await bell.result_of(job), str)
    assert_type(bell.result_of_sync(job), str)
    await bell.clock.advance(days=1, raises=False)
    bell.clock.advance_sync(hours=1)
    assert_type(await bell.assert_enqueued(plain, cart_id=7, at=timedelta(hours=1)), list[Run])
    async with bell.watching() as watch:
        await watch.refute_enqueued(with_context, lang="de")
    bell.crash_after_claim(nightly_report)
    await with_context.fn(context(attempt=3, checkpoint=7), 7)
