"""An app on its own connections: enqueue one and many, wait, cancel, from async and sync code."""

import asyncio
import os
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from hourbell import App, Cancelled, Context, Job, Unique
from hourbell.engine.core import Engine
from hourbell.errors import (
    ConfigurationError,
    DuplicateJob,
    InvalidArguments,
    JobFailed,
    NoDatabase,
    NotFound,
    NotMigrated,
    NotOpen,
    QuotaExceeded,
    StoreUnavailable,
    WaitTimeout,
)
from hourbell.model.ids import job_text
from hourbell.model.jobs import decode_job
from hourbell.sdk import portal
from ports import free_port


def shop(database: str | None, **options: Any) -> App:
    app = App("shop", url=database, **options)

    @app.task(name="remind", queue="mail")
    async def remind(ctx: Context, cart_id: int) -> str:
        return f"cart {cart_id}"

    @app.task(name="fail", no_retry=[ZeroDivisionError])
    def fail() -> None:
        raise ZeroDivisionError("no")

    return app


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    made = shop(database)
    async with made:
        yield made
    made.close_sync()


async def stored(engine: Engine) -> list[Any]:
    rows = await engine.database.fetch("select spec from hourbell.live order by id")
    return [decode_job(row["spec"]) for row in rows]


async def test_a_job_is_stored_with_its_options(app: App, engine: Engine) -> None:
    at = datetime(2031, 5, 6, 10, tzinfo=UTC)
    configured = app.get_task("remind").configure(
        at=at,
        priority="HIGH",
        tenant="acme",
        unique_key="cart:7",
        labels={"a": "b"},
        expires_at=at + timedelta(minutes=5),
    )
    job = await configured.enqueue(cart_id=7)
    (spec,) = await stored(engine)
    assert (spec.name, spec.queue, spec.tenant_id, spec.priority.name) == (
        "shop.remind",
        "mail",
        "acme",
        "HIGH",
    )
    assert (spec.schedule.at, spec.start_deadline_seconds, spec.labels) == (at, 300, {"a": "b"})
    view = await job.get()
    assert (view.status, view.task, view.attempt) == ("SCHEDULED", "shop.remind", 0)
    explained = await job.explain()
    assert (explained.code, explained.execution_id) == ("not_due", job.execution_id)
    with pytest.raises(DuplicateJob, match="SCHEDULED, runs 2031-05-06 10:00:00Z"):
        await configured.enqueue(cart_id=7)
    kept = (
        await app.get_task("remind")
        .configure(unique_key="cart:7", tenant="acme", on_duplicate="keep")
        .enqueue(cart_id=8)
    )
    assert (kept.id, kept.existed) == (job.id, True)


async def test_many_jobs_are_created_together_or_not_at_all(app: App, engine: Engine) -> None:
    remind = app.get_task("remind")
    calls = [remind.bind(i) for i in range(30)] + [remind.configure(priority="LOW").bind(30)]
    jobs = await app.enqueue_many(calls)
    assert [spec.action.payload["cart_id"] for spec in await stored(engine)] == list(range(31))
    assert len({job.id for job in jobs}) == 31
    assert (await remind.enqueue_many([{"cart_id": 1}, remind.bind(2)]))[1].id is not None
    with pytest.raises(InvalidArguments, match="cart_id must be int"):
        await remind.enqueue_many([{"cart_id": 1}, {"cart_id": "2"}])
    wrong = remind.configure(concurrency_key="k" * 201)
    with pytest.raises(InvalidArguments, match="concurrency_key must be 1 to 200"):
        await app.enqueue_many([remind.bind(1), wrong.bind(2)])
    assert len(await stored(engine)) == 33


async def test_ten_thousand_jobs_are_created_by_one_call_in_the_order_of_its_calls(
    app: App, engine: Engine
) -> None:
    jobs = await app.enqueue_many(app.get_task("remind").bind(i) for i in range(10_000))
    rows = await engine.database.fetch(
        "select id, (spec::json #>> '{action,payload,cart_id}')::int as cart from hourbell.live"
    )
    carts = {job_text(row["id"]): row["cart"] for row in rows}
    assert [carts[job.id] for job in jobs] == list(range(10_000))


async def test_calls_that_wait_for_a_connection_are_sent_together_and_judged_alone(
    app: App, engine: Engine
) -> None:
    remind = app.get_task("remind")
    wrong = remind.configure(concurrency_key="k" * 201)
    asked = [(wrong if i % 10 == 9 else remind).enqueue(i) for i in range(100)]
    made = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in made].count(Job) == 90
    assert [type(each) for each in made].count(InvalidArguments) == 10
    assert len(await stored(engine)) == 90


async def test_a_quota_is_an_error_of_the_caller(app: App, engine: Engine) -> None:
    await engine.database.value("update hourbell.tenants set max_jobs = 1 where name = 'default'")
    await app.get_task("remind").enqueue(1)
    with pytest.raises(QuotaExceeded, match="tenant default has used up its job quota"):
        await app.get_task("remind").enqueue(2)


async def test_the_result_of_a_job_is_waited_for(app: App) -> None:
    remind = app.get_task("remind")
    later = await remind.configure(delay=3600).enqueue(1)
    with pytest.raises(WaitTimeout, match=r"did not end within 0\.05 s\. It is SCHEDULED"):
        await later.result(0.05)
    async with app.worker():
        assert await (await remind.enqueue(7)).result(20) == "cart 7"
        failed = await app.get_task("fail").enqueue()
        with pytest.raises(
            JobFailed, match=r"ended as DEAD \(non_retryable\). ZeroDivisionError: no"
        ):
            await failed.result(20)
        assert await failed.wait(1) == "DEAD"
        assert await failed.cancel() is Cancelled.ENDED
    assert await later.cancel() is Cancelled.CANCELLED
    assert await app.job(later.id).wait(1) == "CANCELLED"
    with pytest.raises(NotFound):
        await app.job("job_0000000000016").get()


async def test_sync_code_enqueues_without_a_loop_of_its_own(database: str, engine: Engine) -> None:
    app = shop(database)

    def view() -> list[Any]:
        remind = app.get_task("remind")
        job = remind.configure(unique_key="a", delay=60).enqueue_sync(7)
        many = app.enqueue_many_sync([remind.bind(1), remind.bind(2)])
        seen = job.get_sync().status
        with pytest.raises(InvalidArguments):
            remind.enqueue_sync("7")
        return [seen, len(many), remind.cancel_sync(unique_key="a")]

    try:
        assert await asyncio.to_thread(view) == ["SCHEDULED", 2, "cancelled"]
        with pytest.raises(NotOpen, match="would block the event loop"):
            app.get_task("remind").enqueue_sync(7)
    finally:
        await asyncio.to_thread(app.close_sync)
    assert len(await stored(engine)) == 2


async def test_a_sync_connection_is_used_in_the_thread_of_the_caller_alone(
    app: App, database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.get_task("remind").enqueue(1)  # its names exist
    closed = shop(database)
    remind = closed.get_task("remind")

    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    def view() -> tuple[Job[Any], Cancelled]:
        monkeypatch.setattr(portal, "_portal", None)  # none from earlier tests
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with psycopg.connect(database) as connection:
            keyed = remind.configure(unique_key="a", delay=60, connection=connection)
            job = keyed.enqueue_sync(2)
            closed.enqueue_many_sync([remind.bind(3)], connection=connection)
            closed.group_sync([remind.bind(4)], then=remind.bind(5), connection=connection)
            cancelled = remind.cancel_sync(unique_key="a", connection=connection)
        return job, cancelled

    job, cancelled = await asyncio.to_thread(view)
    monkeypatch.undo()
    assert (job.existed, cancelled) == (False, "cancelled")
    assert [spec.action.payload["cart_id"] for spec in await stored(engine)] == [1, 3, 4]


async def test_a_forked_child_connects_by_itself(database: str, engine: Engine) -> None:
    """As gunicorn does with a preloaded application."""
    app = shop(database)

    def fork() -> int:
        app.get_task("remind").enqueue_sync(1)
        child = os.fork()
        if child == 0:
            try:
                app.get_task("remind").enqueue_sync(2)
                os._exit(0)
            except BaseException:
                os._exit(1)
        return os.waitpid(child, 0)[1]

    try:
        assert await asyncio.to_thread(fork) == 0
    finally:
        await asyncio.to_thread(app.close_sync)
    assert len(await stored(engine)) == 2


async def test_a_forked_child_of_an_open_app_connects_by_itself(app: App, engine: Engine) -> None:
    """The child has neither the loop nor the connections of its parent, and leaves them alone."""
    remind = app.get_task("remind")

    async def again() -> None:
        async with app:
            await remind.enqueue(3)

    def fork() -> int:
        child = os.fork()
        if child == 0:
            try:
                remind.enqueue_sync(2)
                asyncio.run(again())
                app.close_sync()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return os.waitpid(child, 0)[1]

    await remind.enqueue(1)
    assert await asyncio.to_thread(fork) == 0
    await remind.enqueue(4)
    carts = [spec.action.payload["cart_id"] for spec in await stored(engine)]
    assert carts == [1, 2, 3, 4]


async def test_an_app_that_is_not_open_says_how_to_open_it(database: str) -> None:
    app = shop(database)
    with pytest.raises(NotOpen, match=r'App "shop" is not open\. Use "async with app:"'):
        await app.get_task("remind").enqueue(7)
    async with app:
        await app.open()
        await app.close()
        await app.get_task("remind").enqueue(7)  # closed as often as opened

        def elsewhere() -> None:
            asyncio.run(app.get_task("remind").enqueue(7))

        with pytest.raises(NotOpen, match="was opened in another event loop"):
            await asyncio.to_thread(elsewhere)
    async with app.lifespan_for_web():
        await app.get_task("remind").enqueue(7)


async def test_a_database_that_is_missing_or_not_migrated_is_explained(
    postgres: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("HOURBELL_DATABASE_URL", raising=False)
    monkeypatch.setenv("HOURBELL_DATA_DIR", str(tmp_path))
    with pytest.raises(
        NoDatabase, match=r"nor App\(url=…\) is set, and no .* uses"
    ) as missing_both:
        await shop(None).open()
    assert f"the data folder {tmp_path}" in missing_both.value.message
    with pytest.raises(
        NotMigrated,
        match=r'lacks tables or functions of this version\. Run "hourbell migrate" once',
    ):
        await shop(postgres).open()
    missing = postgres.replace("/postgres?", "/missing?")
    with pytest.raises(
        ConfigurationError,
        match=r'Cannot use the database missing on .*: .*"missing" does not exist',
    ):
        await shop(missing).open()
    with pytest.raises(ConfigurationError, match=r"x on 127\.0\.0\.1:port: invalid literal"):
        await shop("postgresql://u:secret@127.0.0.1:port/x").open()
    with pytest.raises(ConfigurationError, match=r"the database \?: Invalid IPv6 URL") as caught:
        await shop("postgresql://u:secret@[::1/x").open()
    assert "secret" not in caught.value.message
    for password in ("1/secret", "1#secret", "1@secret/2"):
        with pytest.raises((ConfigurationError, StoreUnavailable)) as caught_too:
            await shop(f"postgresql://u:{password}@127.0.0.1:{free_port()}/x").open()
        assert "secret" not in caught_too.value.message


async def test_a_database_that_cannot_be_reached_is_not_taken_for_a_failed_write() -> None:
    port = free_port()
    with pytest.raises(StoreUnavailable) as caught:
        await shop(f"postgresql://u:secret@127.0.0.1:{port}/x").open()
    assert f"database x on 127.0.0.1:{port}: the connection was refused. " in caught.value.message
    assert "Check App(url=…) or HOURBELL_DATABASE_URL" in caught.value.message
    assert "idempotency" not in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["mysql://u:secret@db/x", "http://127.0.0.1:8080", "u:secret@db/x"])
async def test_only_postgresql_can_be_the_database_of_an_app(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"must be a URL that begins with postgresql://"
    ) as it:
        await shop(url).open()
    assert "secret" not in it.value.message


async def test_the_url_of_sqlalchemy_is_taken_as_it_is(database: str) -> None:
    app = shop(database.replace("postgresql://", "postgresql+asyncpg://"))
    async with app:
        await app.get_task("remind").enqueue(7)


async def test_a_job_of_an_open_transaction_is_waited_for(app: App, database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        async with app.worker():
            transaction = connection.transaction()
            await transaction.start()
            job = await app.get_task("remind").configure(connection=connection).enqueue(7)
            waiting = asyncio.create_task(job.result(20))
            for ask in (job.get, job.explain, job.cancel):
                with pytest.raises(
                    NotFound, match="The transaction that enqueued it may not have committed"
                ):
                    await ask()
            await transaction.commit()
            assert await waiting == "cart 7"
    finally:
        await connection.close()


async def test_workers_declare_what_sql_need_not_say(app: App, engine: Engine) -> None:
    async with app.worker():
        ...
    await engine.database.value("select hourbell.enqueue('shop.remind', '{\"cart_id\": 1}')")
    (spec,) = await stored(engine)
    assert spec.queue == "mail"


async def test_an_enqueue_whose_answer_is_lost_is_not_repeated(
    app: App, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that were sent together may all exist: each of them is told so."""
    opened = app._opened
    assert opened is not None
    send = opened.database.fetch

    async def committed_and_lost(statement: str, *args: Any) -> Any:
        rows = await send(statement, *args)
        if len(rows) > 1:
            raise StoreUnavailable("the connection was closed")
        return rows

    monkeypatch.setattr(opened.database, "fetch", committed_and_lost)
    remind = app.get_task("remind")
    made = await asyncio.gather(*(remind.enqueue(i) for i in range(50)), return_exceptions=True)
    lost = [each for each in made if isinstance(each, StoreUnavailable)]
    assert len(lost) > 1
    assert len(lost) + [type(each) for each in made].count(Job) == 50
    numbers = [spec.action.payload["cart_id"] for spec in await stored(engine)]
    assert sorted(numbers) == list(range(50))


async def test_a_refused_chunk_says_which_jobs_exist(app: App, engine: Engine) -> None:
    await engine.database.value("update hourbell.tenants set max_jobs = 25 where name = 'default'")
    remind = app.get_task("remind")
    with pytest.raises(
        QuotaExceeded, match="The first 20 jobs were enqueued, and the rest were not"
    ) as refused:
        await app.enqueue_many((remind.bind(i) for i in range(40)), chunk=10)
    assert len(refused.value.created) == 20
    assert len(await stored(engine)) == 20
    assert [(await job.get()).status for job in refused.value.created] == ["QUEUED"] * 20


async def test_a_unique_key_is_found_after_a_rename_and_among_those_of_the_tenant(
    app: App, database: str
) -> None:
    job = await app.get_task("remind").configure(unique_key="cart:7", delay=60).enqueue(7)
    newer = App("shop", url=database)

    @newer.task(name="nudge", aliases=["remind"])
    async def nudge(cart_id: int) -> None: ...

    @newer.task(name="bill", unique=Unique(key=lambda cart_id: f"bill:{cart_id}", scope="tenant"))
    async def bill(cart_id: int) -> None: ...

    async with newer:
        assert await nudge.cancel(unique_key="cart:7") is Cancelled.CANCELLED
        assert await job.wait(1) == "CANCELLED"
        assert await nudge.cancel(unique_key="cart:7") is Cancelled.ENDED
        assert await nudge.cancel(unique_key="cart:8") is Cancelled.NOT_FOUND
        billed = await bill.configure(delay=60).enqueue(7)
        assert await bill.cancel(unique_key="bill:7") is Cancelled.CANCELLED
        assert await billed.wait(1) == "CANCELLED"


async def test_a_cancel_finds_the_job_whatever_the_scope_of_its_key_and_no_other(
    app: App, database: str
) -> None:
    app = App("shop", url=database)

    @app.task(name="send")
    async def send(n: int) -> None: ...

    @app.task(name="other", aliases=["older"])
    async def other(n: int) -> None: ...

    async with app:
        scoped = send.configure(unique_key="of:7", unique_scope="tenant", delay=60)
        job = await scoped.enqueue(7)
        assert await other.cancel(unique_key="of:7") is Cancelled.NOT_FOUND
        assert (await job.get()).status == "SCHEDULED"
        assert await send.cancel(unique_key="of:7") is Cancelled.CANCELLED
        assert await job.wait(1) == "CANCELLED"
        assert await send.cancel(unique_key="of:7") is Cancelled.ENDED
        assert await app.cancel(unique_key="of:7") is Cancelled.ENDED
        assert await app.cancel(unique_key="of:8") is Cancelled.NOT_FOUND
        # The key of the task, that of the tenant has ended; and the other way round.
        mine = await send.configure(unique_key="of:7", delay=60).enqueue(7)
        assert await send.cancel(unique_key="of:7") is Cancelled.CANCELLED
        again = await scoped.enqueue(7)
        assert await send.cancel(unique_key="of:7") is Cancelled.CANCELLED
        assert [(await each.get()).status for each in (mine, again)] == ["CANCELLED"] * 2


async def test_an_app_that_many_open_at_once_opens_once(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, opened = shop(database), []
    open_own = app._open_own

    async def counted() -> Any:
        opened.append(await open_own())
        return opened[-1]

    monkeypatch.setattr(app, "_open_own", counted)
    await asyncio.gather(*(app.open() for _ in range(5)))
    assert len(opened) == 1
    for _ in range(5):
        await app.close()

    def views() -> None:
        with ThreadPoolExecutor(8) as threads:
            for made in [threads.submit(app.get_task("remind").enqueue_sync, i) for i in range(8)]:
                made.result()

    await asyncio.to_thread(views)
    assert len(opened) == 2
    await asyncio.to_thread(app.close_sync)
