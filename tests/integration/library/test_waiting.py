"""Handlers that wait for an outside system, and handlers that end in a transaction of their own."""

import asyncio
import contextlib
import threading
from typing import Any

import asyncpg
import psycopg
import pytest

from hourbell import App, Completion, Context, Job, Retry, Snooze, SyncContext, WorkerOptions
from hourbell.engine.core import Engine
from hourbell.engine.operations.completions import complete
from hourbell.engine.operations.dead_letters import replay_dead_letter, retry_execution
from hourbell.engine.operations.idempotency import Write
from hourbell.errors import InvalidArguments, LeaseLost
from hourbell.failpoints import barrier
from hourbell.model.errors import Conflict, NotFound
from hourbell.model.executions import Failed, Succeeded
from hourbell.model.ids import parse_execution_id
from hourbell.security.sealing import KeyRing
from integration.library import process_tasks
from integration.life.support import eventually

ONE = WorkerOptions(lease_seconds=3, drain_seconds=5, concurrency=1)
FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database, retry=Retry.delays(0, 0))


async def report(engine: Engine, job: Job[Any], token: str, outcome: Succeeded | Failed) -> None:
    number = parse_execution_id(job.execution_id)
    await complete(engine, KeyRing.parse(""), number, token, outcome)


async def is_awaiting(job: Job[Any]) -> None:
    async def awaits() -> bool:
        return (await job.get()).status == "AWAITING"

    await eventually(awaits)


async def heartbeat(engine: Engine) -> None:
    """Wait until the worker has sent another one, and has had its answer."""
    renewed = "select max(renewed_at) from hourbell.sessions where id <> 0"
    for _ in range(2):
        before = await engine.database.value(renewed)

        async def is_later(before: Any = before) -> bool:
            return bool(await engine.database.value(renewed) > before)

        await eventually(is_later)


# Waiting.


async def test_a_handler_runs_again_from_its_top_when_its_token_is_completed(
    app: App, engine: Engine
) -> None:
    tokens: list[str] = []

    @app.task(name="pay")
    async def pay(ctx: Context) -> list[Any]:
        tokens.append(await ctx.completion_token("payment"))
        if ctx.restore(bool) is None:
            await ctx.checkpoint(True)  # what must not be done twice is done here
        done = await ctx.wait_for_completion("payment", timeout=3600)
        again = await ctx.wait_for_completion("receipt", timeout=3600)
        return [ctx.attempt, done.succeeded, done.result, again.succeeded, again.error]

    @app.task(name="other")
    async def other() -> str:
        return "ran"

    async with app, app.worker(ONE):
        job = await pay.enqueue()
        await is_awaiting(job)
        assert await (await other.enqueue()).result(20) == "ran"  # the only slot is free
        for _ in range(2):  # a repeated report has the same answer
            await report(engine, job, tokens[0], Succeeded({"cents": 300}))
        with pytest.raises(Conflict, match="was completed as SUCCEEDED"):
            await report(engine, job, tokens[0], Failed("no", "reported"))

        async def awaits_the_next() -> str | None:
            token: str | None = await engine.database.value(
                "select token from hourbell.waits where name = 'receipt' and is_open"
            )
            return token

        receipt = await eventually(awaits_the_next)
        assert receipt is not None
        await report(engine, job, receipt, Failed("lost", "reported"))
        assert await job.result(20) == [1, True, {"cents": 300}, False, "lost"]
        with pytest.raises(Conflict, match="no longer awaits completion"):
            await report(engine, job, receipt, Succeeded())
    assert len(tokens) == 3
    assert len(set(tokens)) == 1


async def test_a_report_that_comes_before_the_wait_is_kept(app: App, engine: Engine) -> None:
    token, reported = asyncio.get_running_loop().create_future(), asyncio.Event()

    @app.task(name="pay")
    async def pay(ctx: Context) -> int:
        token.set_result(await ctx.completion_token())
        await reported.wait()
        found: int = (await ctx.wait_for_completion(timeout=60)).result
        return found

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        await report(engine, job, await token, Succeeded(7))
        reported.set()
        assert await job.result(20) == 7


@pytest.mark.parametrize("bad", ["a\0", "a\ud800"])
async def test_a_report_that_cannot_be_stored_is_refused(app: App, bad: str) -> None:
    token: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @app.task(name="pay")
    async def pay(ctx: Context) -> str | None:
        if not token.done():  # it runs again when its token is completed
            token.set_result(await ctx.completion_token())
        return (await ctx.wait_for_completion(timeout=60)).error

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        with pytest.raises(InvalidArguments, match="complete: token must not contain"):
            await app.complete(await token + bad)
        for result in (["\ud800"], object(), [float("nan")]):
            with pytest.raises(InvalidArguments, match="result cannot be stored as JSON"):
                await app.complete(await token, result)
        with pytest.raises(InvalidArguments, match="complete: error must not contain"):
            await app.complete(await token, error=bad)
        await app.complete(await token, error="no")
        assert await job.result(20) == "no"


async def test_a_report_while_the_wait_is_being_recorded_is_not_lost(
    app: App, engine: Engine
) -> None:
    tokens: list[str] = []

    @app.task(name="pay")
    async def pay(ctx: Context) -> int:
        tokens.append(await ctx.completion_token())
        found: int = (await ctx.wait_for_completion(timeout=3600)).result
        return found

    async with app, app.worker(FAST):
        with barrier("settle.before_commit") as recording:
            job = await pay.enqueue()
            await recording.reached()
            await report(engine, job, tokens[0], Succeeded(7))
        assert await job.result(20) == 7


async def test_a_handler_that_does_not_wait_after_all_leaves_nothing_to_resume(
    app: App, engine: Engine
) -> None:
    token, reported = asyncio.get_running_loop().create_future(), asyncio.Event()

    @app.task(name="pay")
    async def pay(ctx: Context) -> str:
        with contextlib.suppress(BaseException):
            await ctx.wait_for_completion(timeout=60)
        token.set_result(await ctx.completion_token())
        with contextlib.suppress(BaseException):
            await ctx.wait_for_completion(timeout=60)
        await reported.wait()
        return "did not wait"

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        await report(engine, job, await token, Succeeded(7))
        reported.set()
        assert await job.result(20) == "did not wait"

        async def is_closed() -> bool:
            return not await engine.database.value(
                "select exists (select from hourbell.waits where is_open)"
            )

        await eventually(is_closed)


async def test_a_wait_ends_with_its_time(app: App) -> None:
    @app.task(name="pay")
    async def pay(ctx: Context) -> bool:
        done = await ctx.wait_for_completion(timeout=0.1)
        assert done == Completion(False, timed_out=True)
        return done.timed_out

    async with app, app.worker(FAST):
        assert await (await pay.enqueue()).result(20) is True


async def kind_of(job: Job[Any], engine: Engine) -> str | None:
    """What the wait of the job has ended with, as far as it is recorded."""
    kind: str | None = await engine.database.value(
        "select outcome from hourbell.waits where id = $1", parse_execution_id(job.execution_id)
    )
    return kind


@pytest.mark.parametrize("first", ["TIMED_OUT", "FAILED"])
async def test_a_new_attempt_waits_again_for_what_did_not_succeed(
    app: App, engine: Engine, first: str
) -> None:
    seen: list[tuple[int, bool, Any]] = []
    tokens: list[str] = []

    @app.task(name="pay")
    async def pay(ctx: Context) -> Any:
        tokens.append(await ctx.completion_token())
        timeout = 0.1 if first == "TIMED_OUT" and ctx.attempt == 1 else 3600
        done = await ctx.wait_for_completion(timeout=timeout)
        seen.append((ctx.attempt, done.timed_out, done.error))
        if not done.succeeded and len(seen) == 1:
            raise Snooze(0)  # the same attempt: it gets the same outcome
        if not done.succeeded:
            raise RuntimeError("not paid")
        return done.result

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        if first == "FAILED":
            await is_awaiting(job)
            await report(engine, job, tokens[0], Failed("declined", "reported"))

        async def waits_again() -> bool:
            return len(seen) == 2 and (await job.get()).status == "AWAITING"

        await eventually(waits_again)
        got = (1, first == "TIMED_OUT", None if first == "TIMED_OUT" else "declined")
        assert seen == [got, got]
        await report(engine, job, tokens[0], Succeeded(7))  # late
        assert await job.result(20) == 7
    assert len(set(tokens)) == 1
    assert seen[2:] == [(2, False, None)]


async def test_a_late_report_between_two_attempts_is_for_the_next_one(
    app: App, engine: Engine
) -> None:
    tokens: list[str] = []

    @app.task(name="pay", retry=Retry.delays(3600))
    async def pay(ctx: Context) -> Any:
        tokens.append(await ctx.completion_token())
        done = await ctx.wait_for_completion(timeout=3600)
        if not done.succeeded:
            raise RuntimeError("not paid")
        return done.result

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        await is_awaiting(job)
        await report(engine, job, tokens[0], Failed("declined", "reported"))

        async def retries() -> bool:
            return (await job.get()).status == "RETRYING"

        await eventually(retries)
        await report(engine, job, tokens[0], Failed("declined", "reported"))  # a repetition
        assert await kind_of(job, engine) == "FAILED"
        await report(engine, job, tokens[0], Succeeded(7))
        await retry_execution(engine, parse_execution_id(job.execution_id), Write())
        assert await job.result(20) == 7


async def test_a_report_that_no_attempt_has_got_is_kept(app: App, engine: Engine) -> None:
    reported = asyncio.Event()
    token: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @app.task(name="pay")
    async def pay(ctx: Context) -> str | None:
        if ctx.attempt == 1:
            token.set_result(await ctx.completion_token())
            await reported.wait()
            raise RuntimeError("something else")
        return (await ctx.wait_for_completion(timeout=3600)).error

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        await report(engine, job, await token, Failed("declined", "reported"))
        reported.set()
        assert await job.result(20) == "declined"


@pytest.mark.parametrize("reported", [False, True])
async def test_a_replay_waits_again_for_what_did_not_succeed(
    app: App, engine: Engine, reported: bool
) -> None:
    tokens: list[str] = []

    @app.task(name="pay", retry=Retry.never())
    async def pay(ctx: Context) -> Any:
        tokens.append(await ctx.completion_token())
        done = await ctx.wait_for_completion(timeout=3600 if reported or len(tokens) > 2 else 0.1)
        if not done.succeeded:
            raise RuntimeError("not paid")
        return done.result

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        if reported:
            await is_awaiting(job)
            await report(engine, job, tokens[0], Failed("declined", "reported"))
        assert await job.wait(20) == "DEAD"
        with pytest.raises(Conflict, match="no longer awaits completion"):
            await report(engine, job, tokens[0], Succeeded(7))
        await replay_dead_letter(engine, parse_execution_id(job.execution_id), Write())
        await is_awaiting(job)
        await report(engine, job, tokens[0], Succeeded(7))
        assert await job.result(20) == 7


async def test_an_execution_that_waits_can_be_cancelled(app: App) -> None:
    @app.task(name="pay")
    async def pay(ctx: Context) -> None:
        try:
            async with asyncio.TaskGroup() as group:  # which wraps what is raised in it
                group.create_task(wait(ctx))
        except Exception:
            pytest.fail("a wait is no Exception")

    async def wait(ctx: Context) -> None:
        await ctx.wait_for_completion(timeout=3600)

    async with app, app.worker(FAST):
        job = await pay.enqueue()
        await is_awaiting(job)
        await job.cancel()
        assert await job.wait(20) == "CANCELLED"


async def test_plain_functions_wait_in_threads_and_in_processes(
    database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_tasks.app, "url", database)
    async with process_tasks.app as app, app.worker(FAST):
        for task in (process_tasks.wait_in_a_thread, process_tasks.wait_in_a_process):
            job = await task.enqueue()
            await is_awaiting(job)
            token = await engine.database.value("select token from hourbell.waits where is_open")
            await report(engine, job, token, Succeeded("paid"))
            assert await job.result(20) == ["paid", True]


# Ending in a transaction of the handler.


@pytest.fixture
async def orders(engine: Engine) -> None:
    await engine.database.value("create table if not exists public.orders (id text primary key)")
    await engine.database.value("delete from public.orders")


async def test_the_writes_of_a_handler_and_its_success_are_one_commit(
    app: App, engine: Engine, database: str, orders: None
) -> None:
    stays, may_end = asyncio.Event(), asyncio.Event()

    @app.task(name="order")
    async def order(ctx: Context) -> str:
        connection = await asyncpg.connect(database)
        try:
            async with connection.transaction():
                await connection.execute("insert into public.orders values ($1)", ctx.execution_id)
                await ctx.complete({"n": 7}, connection=connection)
        finally:
            await connection.close()
        stays.set()
        await may_end.wait()  # it has ended for all others, and a heartbeat does not stop it
        return "not this one"

    @app.task(name="order_in_a_thread")
    def order_in_a_thread(ctx: SyncContext) -> None:
        with psycopg.connect(database) as connection:
            connection.execute("insert into public.orders values (%s)", [ctx.execution_id])
            ctx.complete(connection=connection)

    async with app, app.worker(FAST):
        job = await order.enqueue()
        await stays.wait()
        view = await job.get()
        assert (view.status, view.result) == ("SUCCEEDED", {"n": 7})
        await heartbeat(engine)
        may_end.set()
        other = await order_in_a_thread.enqueue()
        assert await other.wait(20) == "SUCCEEDED"
    rows = await engine.database.fetch("select id from public.orders")
    assert {row["id"] for row in rows} == {job.execution_id, other.execution_id}


async def test_a_handler_whose_transaction_was_rolled_back_has_failed(
    app: App, engine: Engine, database: str, orders: None
) -> None:
    @app.task(name="order")
    async def order(ctx: Context) -> None:
        connection = await asyncpg.connect(database)
        try:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("insert into public.orders values ($1)", ctx.execution_id)
            await ctx.complete(connection=connection)
            await (transaction.rollback() if ctx.attempt == 1 else transaction.commit())
        finally:
            await connection.close()

    async with app, app.worker(FAST):
        job = await order.enqueue()
        assert await job.wait(20) == "SUCCEEDED"
    assert (await engine.database.value("select count(*) from public.orders")) == 1
    history = await engine.database.value("select history::text from hourbell.executions")
    assert "complete_rolled_back" in history


async def test_a_handler_that_has_lost_its_lease_cannot_commit(
    app: App, engine: Engine, database: str, orders: None
) -> None:
    refused: list[str] = []

    @app.task(name="order")
    async def order(ctx: Context) -> None:
        if refused:
            return
        connection = await asyncpg.connect(database)
        try:
            async with connection.transaction():
                await connection.execute("insert into public.orders values ($1)", ctx.execution_id)
                await engine.database.value("update hourbell.leased set fence = fence + 1")
                await ctx.complete(connection=connection)
        except asyncpg.PostgresError as error:
            refused.append(str(error.sqlstate))
            await engine.database.value("update hourbell.leased set fence = fence - 1")
            raise
        finally:
            await connection.close()

    async with app, app.worker(FAST):
        await (await order.enqueue()).wait(20)
    assert refused == ["HB008"]
    assert (await engine.database.value("select count(*) from public.orders")) == 0


async def test_a_thread_that_is_too_late_to_complete_does_not_fail_the_next_run(
    app: App, database: str
) -> None:
    timed_out, was_refused = threading.Event(), threading.Event()

    @app.task(name="order", timeout=2)
    def order(ctx: SyncContext) -> str:
        if ctx.attempt == 1:
            assert timed_out.wait(30)
            with pytest.raises(LeaseLost), psycopg.connect(database) as connection:
                ctx.complete(connection=connection)
            was_refused.set()
        else:
            timed_out.set()
            assert was_refused.wait(30)
        return f"in attempt {ctx.attempt}"

    async with app, app.worker(FAST):
        job = await order.enqueue()
        assert await job.result(30) == "in attempt 2"


async def test_a_token_that_is_none_is_refused_as_unknown(app: App) -> None:
    async with app:
        with pytest.raises(NotFound, match="'None' is not an execution id"):
            await app.complete(None)  # type: ignore[arg-type]
