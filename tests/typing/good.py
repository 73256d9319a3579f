"""Calls that type checkers accept; `reveal_type` is compared with the comment."""

from datetime import UTC, datetime, timedelta
from typing import assert_type

from hourbell import (
    App,
    AsyncTask,
    Call,
    Cancelled,
    Context,
    Job,
    Options,
    Priority,
    Retry,
    SyncContext,
    cron,
)

app = App("shop")


@app.task
async def plain(cart_id: int) -> str:
    return str(cart_id)


@app.task(
    queue="mail", retry=Retry.exponential(max_retries=3, initial=30), timeout=timedelta(seconds=30)
)
async def with_context(ctx: Context, cart_id: int, *, lang: str = "en") -> None: ...


@app.task(schedule=cron("0 2 * * *", timezone="Asia/Kolkata"))
def nightly_report() -> None: ...


@app.task
def blocking(ctx: SyncContext, *ids: int) -> list[int]:
    return list(ids)


@app.task
def untyped(x, y):  # type: ignore[no-untyped-def]
    return x


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
    await app.enqueue_many([plain.bind(1), with_context.bind(2)])
    await plain.enqueue_many([plain.bind(1), {"cart_id": 2}])
    app.enqueue_many_sync(plain.bind(i) for i in range(3))
    group = await app.group([plain.bind(1), with_context.bind(2)], then=plain.bind(3))
    assert_type(await group.result(timeout=5), str)
    assert_type(await plain.cancel(unique_key="cart:7"), Cancelled)
    options: Options = {"delay": 5, "tenant": "acme"}
    await plain.configure(**options).enqueue(7)
    task: AsyncTask[[int], str] = plain
    await task.enqueue(7)
