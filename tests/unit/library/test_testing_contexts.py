"""`hourbell.testing.context` and `sync_context`: what a function sees of them, and what they keep of what it says."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from hourbell import App, Context, SyncContext
from hourbell.errors import LeaseLost
from hourbell.testing import context, sync_context

AT = datetime(2031, 5, 6, 10, tzinfo=UTC)
app = App("shop")


@app.task
async def count(ctx: Context, upto: int) -> list[int]:
    done = ctx.restore(int) or 0
    while done < upto and not ctx.stopping:
        done += 1
        await ctx.checkpoint(done)
    await ctx.progress({"done": done})
    return [ctx.attempt, done]


@app.task
def count_in_a_thread(ctx: SyncContext, upto: int) -> list[int]:
    done = ctx.restore(int) or 0
    while done < upto and not ctx.stopping:
        done += 1
        ctx.checkpoint(done)
    ctx.progress({"done": done})
    return [ctx.attempt, done]


async def called(ctx: Any, upto: int) -> list[int]:
    """What the function returns that takes this kind of context."""
    if isinstance(ctx, SyncContext):
        return count_in_a_thread.fn(ctx, upto)
    return await count.fn(ctx, upto)


both = pytest.mark.parametrize("make", [context, sync_context])


@both
async def test_what_a_function_stores_and_reports_can_be_read(make: Callable[..., Any]) -> None:
    ctx = make(attempt=2, checkpoint=40)
    assert await called(ctx, 42) == [2, 42]
    assert ctx.reports.checkpoints == [41, 42]
    assert ctx.reports.progress == [{"done": 42}]


async def told(tell: Callable[[object], Any], value: object) -> None:
    """Call a method of either kind of context."""
    done = tell(value)
    if asyncio.iscoroutine(done):
        await done


@both
async def test_a_number_that_json_cannot_represent_is_no_checkpoint_but_null_in_a_report(
    make: Callable[..., Any],
) -> None:
    ctx = make()
    with pytest.raises(ValueError, match="JSON cannot represent the number nan"):
        await told(ctx.checkpoint, {"loss": float("nan")})
    await told(ctx.progress, {"loss": float("nan")})
    assert (ctx.reports.checkpoints, ctx.reports.progress) == ([], [{"loss": None}])


@both
async def test_a_context_has_what_the_test_says(make: Callable[..., Any]) -> None:
    ctx = make(
        attempt=3,
        state=["a value", 7],
        timeout=60.0,
        task="shop.report",
        tenant="acme",
        queue="reports",
        labels={"shop": "berlin"},
        scheduled_for=AT,
    )
    assert (ctx.attempt, ctx.task, ctx.tenant, ctx.queue) == (3, "shop.report", "acme", "reports")
    assert (ctx.labels, ctx.scheduled_for) == ({"shop": "berlin"}, AT)
    assert (ctx.get(int), ctx.get(str)) == (7, "a value")
    assert 50 < ctx.remaining <= 60
    assert (ctx.restore(int), ctx.cancelled, ctx.stopping) == (None, False, False)


@both
async def test_a_function_can_be_told_that_its_worker_stops(make: Callable[..., Any]) -> None:
    ctx = make(stopping=True, checkpoint=3)
    assert await called(ctx, 10) == [1, 3]
    assert (ctx.reports.checkpoints, ctx.cancelled) == ([], False)


@both
async def test_a_lost_lease_refuses_a_checkpoint_and_stops_the_run(
    make: Callable[..., Any],
) -> None:
    ctx = make(lease_lost=True)
    with pytest.raises(LeaseLost):
        await called(ctx, 1)
    assert (ctx.reports.checkpoints, ctx.cancelled) == ([], True)


@both
async def test_a_cancelled_run_is_still_allowed_to_store(make: Callable[..., Any]) -> None:
    ctx = make(cancelled=True)
    assert ctx.cancelled
    assert await called(ctx, 2) == [1, 2]
    assert ctx.reports.checkpoints == [1, 2]


def test_a_plain_function_stops_where_it_asks() -> None:
    sync_context().raise_if_cancelled()
    with pytest.raises(asyncio.CancelledError):
        sync_context(cancelled=True).raise_if_cancelled()
    with pytest.raises(asyncio.CancelledError):
        sync_context(lease_lost=True).raise_if_cancelled()


async def test_what_needs_a_database_is_refused() -> None:
    for asked in (
        context().completion_token(),
        context().wait_for_completion(timeout=60),
        context().complete(connection=None),
    ):
        with pytest.raises(LookupError, match=r"testing\.context has no database"):
            await asked
    with pytest.raises(LookupError, match=r"testing\.context has no database"):
        sync_context().wait_for_completion(timeout=60)
