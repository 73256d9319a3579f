"""What a worker does with the tasks of an app: contexts, exceptions, middleware, state, threads."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from hourbell import (
    App,
    Cancel,
    Context,
    Dead,
    Item,
    Job,
    Retry,
    RetryAfter,
    RunInfo,
    Snooze,
    SyncContext,
    WorkerOptions,
    current,
)
from hourbell.engine.core import Engine
from hourbell.errors import ConfigurationError, LeaseLost, ResultNotStored
from integration.library import process_tasks
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database, retry=Retry.delays(0, 0))


async def fate(app: App, job: Job[Any]) -> tuple[str, str | None, str | None]:
    await job.wait(20)
    view = await job.get()
    return view.status, view.reason, view.error


async def test_a_context_knows_its_run(app: App, engine: Engine) -> None:
    seen: list[Any] = []

    @app.task(name="look", queue="mail", labels={"team": "a"})
    async def look(ctx: Context, cart_id: int) -> None:
        seen.append(
            (ctx.execution_id, ctx.job_id, ctx.task, ctx.queue, dict(ctx.labels), ctx.attempt)
        )
        seen.append(
            (ctx.tenant, ctx.fence > 0, 0 < ctx.remaining <= 300, ctx.cancelled, ctx.stopping)
        )
        seen.append(current() is ctx)
        left = (ctx.deadline - datetime.now(UTC)).total_seconds()  # noqa: TID251
        assert abs(left - ctx.remaining) < 5
        seen.append(ctx.scheduled_for)
        ctx.log.info("looked", cart=cart_id)

    with capture_logs() as logged:
        async with app, app.worker(FAST):
            job = await look.enqueue(7)
            assert await job.wait(20) == "SUCCEEDED"
            due = (await job.get()).scheduled_for
    assert seen == [
        (job.execution_id, job.id, "shop.look", "mail", {"team": "a"}, 1),
        ("default", True, True, False, False),
        True,
        due,
    ]
    (line,) = (line for line in logged if line["event"] == "looked")
    bound = {name: line[name] for name in ("task", "execution_id", "job_id", "attempt", "tenant")}
    assert bound == {
        "task": "shop.look",
        "execution_id": job.execution_id,
        "job_id": job.id,
        "attempt": 1,
        "tenant": "default",
    }
    with pytest.raises(LookupError, match="No task is running here"):
        current()


async def test_progress_is_shown_while_a_task_runs(app: App, engine: Engine) -> None:
    may_end = asyncio.Event()

    @app.task(name="slow")
    async def slow(ctx: Context) -> None:
        await ctx.progress({"done": 7})
        await may_end.wait()

    @app.task(name="slow_thread")
    def slow_thread(ctx: SyncContext) -> None:
        ctx.progress({"done": 8})
        while not may_end.is_set():
            threading.Event().wait(0.01)

    async with app, app.worker(FAST):
        await slow.enqueue()
        await slow_thread.enqueue()

        async def reported() -> bool:
            rows = await engine.database.fetch("select progress::text from hourbell.progress")
            return {row[0] for row in rows} == {'{"done":7}', '{"done":8}'}

        await eventually(reported)
        may_end.set()


async def test_exceptions_decide_what_follows(app: App) -> None:
    runs: dict[str, list[int]] = {}

    def note(ctx: Context) -> int:
        runs.setdefault(ctx.task.removeprefix("shop."), []).append(ctx.attempt)
        return len(runs[ctx.task.removeprefix("shop.")])

    @app.task(name="snooze")
    async def snooze(ctx: Context) -> None:
        if note(ctx) < 3:
            raise Snooze(timedelta(0))

    @app.task(name="later")
    async def later(ctx: Context) -> None:
        if note(ctx) < 2:
            raise RetryAfter(0, "busy")

    @app.task(name="dead")
    async def dead(ctx: Context) -> None:
        note(ctx)
        raise Dead("hopeless")

    @app.task(name="cancel")
    async def cancel(ctx: Context) -> None:
        note(ctx)
        raise Cancel("not needed")

    @app.task(name="group")
    async def group(ctx: Context) -> None:
        note(ctx)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(cancelling())

    async def cancelling() -> None:
        raise Cancel("wrapped")

    @app.task(name="final", no_retry=[OSError, LookupError])  # a KeyError is a LookupError
    async def final(ctx: Context) -> None:
        note(ctx)
        raise KeyError("x")

    @app.task(name="retried")
    async def retried(ctx: Context) -> str:
        if note(ctx) < 3:
            raise ValueError("again")
        return "done"

    async with app, app.worker(FAST):
        fates = {
            task.name.removeprefix("shop."): await fate(app, await task.enqueue())
            for task in (snooze, later, dead, cancel, group, final, retried)
        }
    assert {name: found[:2] for name, found in fates.items()} == {
        "snooze": ("SUCCEEDED", None),
        "later": ("SUCCEEDED", None),
        "dead": ("DEAD", "non_retryable"),
        "cancel": ("CANCELLED", "cancelled"),
        "group": ("CANCELLED", "cancelled"),
        "final": ("DEAD", "non_retryable"),
        "retried": ("SUCCEEDED", None),
    }
    assert fates["dead"][2] == "hopeless"
    assert (fates["cancel"][2], fates["group"][2]) == ("not needed", "wrapped")
    assert runs["snooze"] == [1, 1, 1]  # no attempt was used
    assert runs["later"] == [1, 2]
    assert runs["retried"] == [1, 2, 3]
    assert runs["final"] == [1]


class Unusual(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Unusual])
async def test_an_exception_that_would_end_a_program_fails_the_attempt_like_any_other(
    database: str, kind: type[BaseException]
) -> None:
    async def rude(run: RunInfo, call: Any) -> Any:
        raise kind("mine")

    app = App("shop", url=database, retry=Retry.delays(0, 0))

    @app.task(name="coroutine", no_retry=[kind])
    async def coroutine() -> None:
        raise kind("mine")

    @app.task(name="thread", no_retry=[kind])
    def thread() -> None:
        raise kind("mine")

    @app.task(name="wrapped", no_retry=[kind], middleware=[rude])
    async def wrapped() -> None: ...

    @app.batch_task(name="batch", size=2, max_wait=0.1, no_retry=[kind])
    async def batch(items: list[Item[int]]) -> None:
        raise kind("mine")

    @app.batch_task(name="batch_thread", size=2, max_wait=0.1, no_retry=[kind])
    def batch_thread(items: list[Item[int]]) -> None:
        raise kind("mine")

    @app.task(name="polite")
    async def polite(ctx: Context) -> str:
        await may_end.wait()
        return "done"

    may_end = asyncio.Event()
    with capture_logs() as logged:
        async with app, app.worker(FAST):
            beside = await polite.enqueue()
            jobs = [await task.enqueue() for task in (coroutine, thread, wrapped)]
            jobs += await app.enqueue_many([batch.bind(1), batch.bind(2), batch_thread.bind(3)])
            found = {await fate(app, job) for job in jobs}
            may_end.set()
            assert await beside.result(20) == "done"
    shown = f"{__name__}.Unusual" if kind is Unusual else kind.__name__
    assert found == {("DEAD", "non_retryable", f"{shown}: mine")}
    assert sum(line["event"] == "task failed" for line in logged) == len(jobs)


@dataclass
class Mailer:
    sent: list[int]


async def test_state_and_lifespan_give_values_and_middleware_is_around_every_task(
    database: str,
) -> None:
    calls: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Sequence[object]]:
        calls.append("started")
        yield [Mailer([])]
        calls.append("stopped")

    async def outer(run: RunInfo, call: Any) -> Any:
        calls.append(f"outer {run.task} {run.attempt} {run.payload}")
        try:
            return await call()
        finally:
            calls.append("outer ends")

    async def inner(run: RunInfo, call: Any) -> Any:
        calls.append("inner")
        return f"<{await call()}>"

    app = App("shop", url=database, state=["text"], lifespan=lifespan, middleware=[outer])

    @app.task(name="mail", middleware=[inner])
    def mail(ctx: SyncContext, cart_id: int) -> str:
        ctx.get(Mailer).sent.append(cart_id)
        with pytest.raises(LookupError, match="state has no dict"):
            ctx.get(dict)
        return f"{ctx.get(str)} {ctx.get(Mailer).sent} {threading.current_thread().name}"

    async with app, app.worker(FAST):
        assert await (await mail.enqueue(7)).result(20) == "<text [7] handler>"
    assert calls == [
        "started",
        "outer shop.mail 1 {'cart_id': 7}",
        "inner",
        "outer ends",
        "stopped",
    ]


async def test_a_lifespan_that_yields_no_list_is_left_again_and_refused(database: str) -> None:
    left: list[bool] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Any]:
        try:
            yield Mailer([])
        finally:
            left.append(True)

    app = App("shop", url=database, lifespan=lifespan)

    @app.task(name="mail")
    async def mail() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'shop' yields a Mailer\. .* `yield \[pool\]`"):
        async with app.worker(FAST):
            pass
    assert left == [True]


async def test_middleware_is_around_every_item_of_a_batch_and_around_functions_in_processes(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    async def noted(run: RunInfo, call: Any) -> Any:
        calls.append(f"{run.task} {run.payload}")
        return await call()

    app = App("shop", url=database, middleware=[noted])

    @app.batch_task(name="index", size=2, max_wait=30)
    async def index(items: list[Item[int]]) -> list[int]:
        return [10 * item.value for item in items]

    async with app, app.worker(FAST):
        jobs = await app.enqueue_many(index.bind(n) for n in range(2))
        assert [await job.result(20) for job in jobs] == [0, 10]
    assert sorted(calls) == ["shop.index {'value': 0}", "shop.index {'value': 1}"]

    monkeypatch.setattr(process_tasks.app, "url", database)
    monkeypatch.setattr(process_tasks.app, "middleware", (noted,))
    async with process_tasks.app, process_tasks.app.worker(FAST):
        await (await process_tasks.pid_of_call.enqueue()).result(20)
    assert calls[2:] == ["shop.pid_of_call {}"]


async def test_a_thread_enqueues_through_the_loop_of_its_worker(app: App) -> None:
    @app.task(name="child")
    async def child(n: int) -> int:
        return n

    @app.task(name="parent")
    def parent() -> int:
        return child.enqueue_sync(7).result_sync(20)

    async with app, app.worker(FAST):
        assert await (await parent.enqueue()).result(20) == 7


async def test_a_payload_that_does_not_fit_is_not_lost(app: App, engine: Engine) -> None:
    @app.task(name="mail", retry=Retry.never())
    async def mail(cart_id: int) -> None: ...

    with capture_logs() as logged:
        async with app, app.worker(FAST):
            call = "select hourbell.enqueue('shop.mail', '{\"cart_id\": \"x\"}')"
            job = app.job(await engine.database.value(call))

            async def waits() -> bool:
                return (await job.explain()).code == "payload_mismatch"

            await eventually(waits)
    (warning,) = [line for line in logged if line["event"] == "arguments do not fit"]
    assert "does not match the parameters of shop.mail" in warning["error"]


async def test_a_worker_takes_only_tasks_that_it_knows(
    app: App, engine: Engine, database: str
) -> None:
    await engine.database.value("delete from hourbell.sessions")  # one that serves everything

    @app.task(name="known")
    async def known() -> None: ...

    newer = App("shop", url=database)

    @newer.task(name="unknown")
    async def unknown() -> None: ...

    async with app, newer:
        job = await unknown.enqueue()
        async with app.worker(FAST):
            assert await (await known.enqueue()).wait(20) == "SUCCEEDED"

            async def waits() -> bool:
                return (await job.explain()).code == "no_worker_for_task"

            await eventually(waits)
        async with newer.worker(FAST):
            assert await job.wait(20) == "SUCCEEDED"


async def test_a_worker_serves_the_queues_that_it_is_given(app: App, engine: Engine) -> None:
    await engine.database.value("delete from hourbell.sessions")  # one that serves everything

    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    @app.task(name="report", queue="reports")
    async def report() -> None: ...

    async with app:
        later = await report.enqueue()
        only_mail = WorkerOptions(queues=["mail"], lease_seconds=3, drain_seconds=5)
        async with app.worker(only_mail):
            assert await (await mail.enqueue()).wait(20) == "SUCCEEDED"
            explained = await later.explain()
            assert (explained.code, (await later.get()).attempt) == ("no_worker", 0)
        async with app.worker(FAST):  # by default, those of its tasks
            assert await later.wait(20) == "SUCCEEDED"


async def test_a_worker_without_tasks_does_not_start(app: App) -> None:
    with pytest.raises(ConfigurationError, match="App 'shop' has no tasks"):
        async with app.worker():
            ...


async def test_a_worker_drains_when_its_context_ends(app: App) -> None:
    began, may_end, ended = asyncio.Event(), asyncio.Event(), []

    @app.task(name="slow")
    async def slow(ctx: Context) -> None:
        began.set()
        await may_end.wait()
        ended.append(ctx.stopping)

    async with app:
        async with app.worker(FAST) as worker:
            job = await slow.enqueue()
            await began.wait()
            worker.stop()
            may_end.set()
        assert await job.wait(1) == "SUCCEEDED"
    assert ended == [True]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (object(), "The result is not JSON and was not stored: "),
        (
            {"loss": float("nan")},
            "The result is not JSON and was not stored: JSON cannot represent",
        ),
        ("x" * 20_000, "The result was not stored: it has 20002 bytes, the maximum is 16384."),
    ],
)
async def test_a_result_that_cannot_be_stored_does_not_repeat_the_run(
    app: App, result: object, why: str
) -> None:
    ran: list[int] = []

    @app.task(name="charge")
    async def charge() -> object:
        ran.append(1)
        return result

    with capture_logs() as logged:
        async with app, app.worker(FAST):
            job = await charge.enqueue()
            status, _, error = await fate(app, job)
            with pytest.raises(ResultNotStored, match=f"Job {job.id} succeeded. {why}"):
                await job.result(20)
    assert (status, ran) == ("SUCCEEDED", [1])
    assert error is not None
    assert error.startswith(why)
    (line,) = (line for line in logged if line["event"] == "result not stored")
    assert (line["execution_id"], line["why"]) == (job.execution_id, error)


async def test_a_handler_sees_that_it_was_asked_to_stop(app: App) -> None:
    seen: list[object] = []

    @app.task(name="coroutine", timeout=1, retry=Retry.never())
    async def coroutine(ctx: Context) -> None:
        assert not ctx.cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(ctx.cancelled)
            raise

    def deep_below() -> None:
        context = current()
        assert isinstance(context, SyncContext)
        try:
            while True:
                context.raise_if_cancelled()
                threading.Event().wait(0.01)
        except asyncio.CancelledError:
            seen.append("thread")
            raise

    @app.task(name="thread", timeout=1, retry=Retry.never())
    def thread() -> None:
        deep_below()

    async with app, app.worker(FAST):
        for task in (coroutine, thread):
            status, _, error = await fate(app, await task.enqueue())
            assert (status, error) == ("DEAD", "The attempt exceeded its timeout.")

        async def both() -> bool:
            return len(seen) == 2

        await eventually(both)
    assert seen == [True, "thread"]


async def test_a_plain_function_that_has_lost_its_lease_is_told_so(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[type[BaseException]] = []

    @app.task(name="late", retry=Retry.never())
    def late(ctx: SyncContext) -> None:
        try:
            ctx.completion_token()
        except BaseException as error:
            seen.append(type(error))
            raise

    async def lost(*args: object) -> None:
        return None

    monkeypatch.setattr("hourbell.sdk.running.AppRunner.wait_of", lost)
    async with app, app.worker(FAST):
        await (await late.enqueue()).wait(20)
    assert seen == [LeaseLost]
