"""Progress: of reports that come faster than once a second, the newest is shown."""

import asyncio
import threading
from typing import Any

import pytest

from hourbell import App, Context, Job, SyncContext, WorkerOptions, current
from hourbell.engine.core import Engine
from hourbell.model.errors import StoreUnavailable
from hourbell.sdk.running import AppRunner
from integration.library import process_tasks
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database)


async def shown(engine: Engine, progress: str, n: int) -> None:
    """Wait until this is the progress of n executions."""

    async def are_shown() -> bool:
        rows = await engine.database.fetch("select progress::text from hourbell.progress")
        return [row[0] for row in rows] == [f'"{progress}"'] * n

    await eventually(are_shown)


async def test_the_newest_report_is_stored_when_the_time_between_two_is_over(
    app: App, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hundred reports take less, also while the first of them is stored on a busy machine.
    monkeypatch.setattr("hourbell.sdk.context.PROGRESS_SECONDS", 4.0)
    may_end, thread_may_end = asyncio.Event(), threading.Event()
    stored: list[str] = []
    note_progress = AppRunner.note_progress

    async def counted(self: AppRunner, claimed: Any, value: str) -> bool:
        stored.append(value)
        return await note_progress(self, claimed, value)

    monkeypatch.setattr(AppRunner, "note_progress", counted)

    @app.task(name="async")
    async def in_loop(ctx: Context) -> None:
        for n in range(100):
            await ctx.progress(n)
        await ctx.progress("newest")
        await may_end.wait()

    @app.task(name="thread")
    def in_thread() -> None:
        context = current()  # another way to get one, and a thread's own
        assert isinstance(context, SyncContext)
        for n in range(100):
            context.progress(n)
        context.progress("newest")
        thread_may_end.wait(20)

    async with app, app.worker(FAST):
        jobs = [await in_loop.enqueue(), await in_thread.enqueue()]
        await shown(engine, "newest", 2)
        assert sorted(stored) == sorted(["0", '"newest"'] * 2)
        may_end.set()
        thread_may_end.set()
        assert [await job.wait(20) for job in jobs] == ["SUCCEEDED"] * 2


async def test_the_last_report_before_a_wait_is_shown_while_it_waits(
    app: App, engine: Engine
) -> None:
    @app.task(name="pay")
    async def pay(ctx: Context) -> None:
        await ctx.progress("asked")
        await ctx.progress("waiting for the bank")
        await ctx.wait_for_completion(timeout=60)

    async with app, app.worker(FAST):
        job: Job[None] = await pay.enqueue()

        async def awaiting() -> bool:
            return (await job.get()).status == "AWAITING"

        await eventually(awaiting)
        await shown(engine, "waiting for the bank", 1)


async def test_a_report_that_comes_with_the_end_is_not_stored_later(app: App) -> None:
    waits: list[asyncio.Task[None] | None] = []

    @app.task(name="quick")
    async def quick(ctx: Context) -> None:
        await ctx.progress("first")
        await ctx.progress("last")
        waits.append(ctx._late)

    async with app, app.worker(FAST):
        await (await quick.enqueue()).wait(20)
        (late,) = waits
        assert late is not None
        await asyncio.wait([late], timeout=0.5)
        assert late.cancelled()


async def test_a_report_that_cannot_be_stored_is_stored_later(
    app: App, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourbell.sdk.context.PROGRESS_SECONDS", 0.05)
    may_end, failing = asyncio.Event(), True
    note_progress = AppRunner.note_progress

    async def sometimes(self: AppRunner, claimed: Any, value: str) -> bool:
        nonlocal failing
        if value == '"newest"' and failing:
            failing = False
            raise StoreUnavailable("for this test")
        return await note_progress(self, claimed, value)

    monkeypatch.setattr(AppRunner, "note_progress", sometimes)

    @app.task(name="slow")
    async def slow(ctx: Context) -> None:
        await ctx.progress("first")
        await ctx.progress("newest")
        await may_end.wait()

    async with app, app.worker(FAST):
        job = await slow.enqueue()
        await shown(engine, "newest", 1)
        may_end.set()
        assert (await job.wait(20), failing) == ("SUCCEEDED", False)


async def test_a_process_reports_its_newest_too(
    database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tasks.app, "url", database)
    one = WorkerOptions(lease_seconds=3, drain_seconds=5, pool_size=1)
    async with process_tasks.app, process_tasks.app.worker(one):
        await process_tasks.report_twice.enqueue()
        await shown(engine, "newest", 1)
