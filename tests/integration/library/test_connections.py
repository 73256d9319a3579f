"""Jobs in the transactions of users, with each driver: they commit and roll back together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import django
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import connections
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from conftest import through_pgbouncer
from hourbell import App, Cancelled
from hourbell.errors import (
    ConfigurationError,
    DuplicateJob,
    InvalidArguments,
    KeyBusy,
    NotInTransaction,
    NotMigrated,
    UnknownQueue,
    UnknownTask,
    UnknownTenant,
    WrongConnection,
)
from kept import close_all

Use = Callable[[Any, Any], Awaitable[Any]]  # (connection, sync or async task)


def make(app: App) -> Any:
    @app.task(name="mail")
    async def mail(cart_id: int) -> None: ...

    return mail


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    made = App("shop", url=database)
    make(made)
    async with made:
        yield made
    made.close_sync()


async def payloads(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "select (spec::json #>> '{action,payload,cart_id}')::int from hourbell.live order by 1"
        )
    finally:
        await connection.close()
    return [row[0] for row in rows]


class Rollback(Exception):
    pass


def dialect(dsn: str, driver: str) -> Any:
    name = dsn.partition("?")[0].rpartition("/")[2]
    host = sa.make_url(dsn.replace("postgresql://", "postgresql+psycopg://")).query["host"]
    query = {"host": str(host)}
    return sa.URL.create(f"postgresql+{driver}", username="postgres", database=name, query=query)


# Each driver: a transaction in which 1 is enqueued, then 2 in a savepoint that is rolled back.


async def with_asyncpg(dsn: str, task: Any, fail: bool) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await task.configure(connection=connection).enqueue(1)
            with contextlib.suppress(Rollback):
                async with connection.transaction():
                    await task.configure(connection=connection).enqueue(2)
                    raise Rollback
            if fail:
                raise Rollback
    finally:
        await connection.close()


async def with_asyncpg_pool(dsn: str, task: Any, fail: bool) -> None:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await connection.set_type_codec(
            "json", schema="pg_catalog", encoder=str, decoder=lambda text: 1 / 0
        )
        await task.configure(connection=connection).enqueue(1)
        if fail:
            raise Rollback


async def with_psycopg_async(dsn: str, task: Any, fail: bool) -> None:
    async with await psycopg.AsyncConnection.connect(
        dsn, row_factory=psycopg.rows.dict_row
    ) as connection:
        await task.configure(connection=connection).enqueue(1)
        with contextlib.suppress(Rollback):
            async with connection.transaction():
                await task.configure(connection=connection.cursor()).enqueue(2)
                raise Rollback
        if fail:
            raise Rollback


async def with_psycopg(dsn: str, task: Any, fail: bool) -> None:
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        task.configure(connection=connection).enqueue_sync(1)
        with contextlib.suppress(Rollback), connection.transaction():
            task.configure(connection=connection).enqueue_sync(2)
            raise Rollback
        if fail:
            raise Rollback


async def with_sqlalchemy(dsn: str, task: Any, fail: bool) -> None:
    engine = sa.create_engine(dialect(dsn, "psycopg"))
    try:
        with Session(engine) as session, session.begin():
            task.configure(connection=session).enqueue_sync(1)
            with contextlib.suppress(Rollback), session.begin_nested():
                task.configure(connection=session).enqueue_sync(2)
                raise Rollback
            if fail:
                raise Rollback
    finally:
        engine.dispose()


async def with_sqlalchemy_connection(dsn: str, task: Any, fail: bool) -> None:
    engine = sa.create_engine(dialect(dsn, "psycopg"))
    try:
        with engine.begin() as connection:
            task.configure(connection=connection).enqueue_sync(1)
            if fail:
                raise Rollback
    finally:
        engine.dispose()


async def with_sqlalchemy_async(dsn: str, task: Any, fail: bool, driver: str = "asyncpg") -> None:
    engine = create_async_engine(dialect(dsn, driver))
    try:
        async with AsyncSession(engine) as session, session.begin():
            await task.configure(connection=session).enqueue(1)
            with contextlib.suppress(Rollback):
                async with session.begin_nested():
                    await task.configure(connection=session).enqueue(2)
                    raise Rollback
            if fail:
                raise Rollback
    finally:
        await engine.dispose()


async def with_sqlalchemy_async_psycopg(dsn: str, task: Any, fail: bool) -> None:
    await with_sqlalchemy_async(dsn, task, fail, "psycopg_async")


def django_connection(dsn: str) -> Any:
    """The connection of this thread to this database, under the alias `shop`."""
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True)
        django.setup()
    url = dialect(dsn, "psycopg")
    engine = "django.db.backends.postgresql"
    one = {"ENGINE": engine, "NAME": url.database, "USER": "postgres", "HOST": url.query["host"]}
    configured = connections.configure_settings({"default": dict(one), "shop": one})
    connections.settings["shop"] = configured["shop"]
    with contextlib.suppress(AttributeError):
        del connections["shop"]  # that of an earlier test
    return connections["shop"]


def forget_django_connection() -> None:
    """Close it and forget where it leads: threads outlive tests, and each module has a database of its own."""
    connections["shop"].close()
    del connections["shop"]


async def with_django(dsn: str, task: Any, fail: bool, name: Any = None) -> None:
    from django.db import transaction

    def in_a_view() -> None:
        connection = django_connection(dsn)
        try:
            with transaction.atomic(using="shop"):
                task.configure(connection=name or connection).enqueue_sync(1)
                with contextlib.suppress(Rollback), transaction.atomic(using="shop"):
                    task.configure(connection=connection).enqueue_sync(2)
                    raise Rollback
                if fail:
                    raise Rollback
        finally:
            forget_django_connection()

    await asyncio.to_thread(in_a_view)


async def with_django_by_alias(dsn: str, task: Any, fail: bool) -> None:
    await with_django(dsn, task, fail, "django:shop")


DRIVERS = [
    with_asyncpg,
    with_asyncpg_pool,
    with_psycopg_async,
    with_psycopg,
    with_sqlalchemy,
    with_sqlalchemy_connection,
    with_sqlalchemy_async,
    with_sqlalchemy_async_psycopg,
    with_django,
    with_django_by_alias,
]


@pytest.mark.parametrize("use", DRIVERS, ids=lambda use: use.__name__.removeprefix("with_"))
async def test_a_job_commits_and_rolls_back_with_the_writes_of_the_user(
    use: Any, app: App, database: str
) -> None:
    task = app.get_task("mail")
    with pytest.raises(Rollback):
        await use(database, task, True)
    assert await payloads(database) == []
    await use(database, task, False)
    assert await payloads(database) == [1]


class Bulk:
    """Enqueues several jobs wherever a driver above enqueues one."""

    def __init__(self, app: App, task: Any, connection: Any = None) -> None:
        self.app = app
        self.task = task
        self.connection = connection

    def configure(self, connection: Any) -> "Bulk":
        return Bulk(self.app, self.task, connection)

    def calls(self, first: int) -> tuple[Any, Any]:
        """For the app, and for the task alone."""
        bind = self.task.bind
        return [bind(first), bind(first + 10)], [bind(first + 20), {"cart_id": first + 30}]

    async def enqueue(self, first: int) -> None:
        of_app, of_task = self.calls(first)
        jobs = await self.app.enqueue_many(of_app, connection=self.connection, chunk=1)
        jobs += await self.task.configure(connection=self.connection).enqueue_many(of_task)
        assert len({job.id for job in jobs}) == 4

    def enqueue_sync(self, first: int) -> None:
        of_app, of_task = self.calls(first)
        jobs = self.app.enqueue_many_sync(of_app, connection=self.connection, chunk=1)
        jobs += self.task.configure(connection=self.connection).enqueue_many_sync(of_task)
        assert len({job.id for job in jobs}) == 4


@pytest.mark.parametrize("use", DRIVERS, ids=lambda use: use.__name__.removeprefix("with_"))
async def test_many_jobs_commit_and_roll_back_with_the_writes_of_the_user(
    use: Any, app: App, database: str
) -> None:
    bulk = Bulk(app, app.get_task("mail"))
    with pytest.raises(Rollback):
        await use(database, bulk, True)
    assert await payloads(database) == []
    await use(database, bulk, False)
    assert await payloads(database) == [1, 11, 21, 31]


class Unstorable:
    """Tries texts that PostgreSQL cannot store wherever a driver above enqueues a job."""

    def __init__(self, app: App, task: Any, connection: Any = None) -> None:
        self.app = app
        self.task = task
        self.connection = connection

    def configure(self, connection: Any) -> "Unstorable":
        return Unstorable(self.app, self.task, connection)

    def calls(self, bad: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
        """The field of each call, and the call in the form that has this suffix."""
        task, connection = self.task, self.connection
        options: list[tuple[str, Any]] = [
            (name, bad) for name in ("unique_key", "concurrency_key", "idempotency_key")
        ]
        options += [(name, bad) for name in ("tenant", "queue")]
        options += [("labels", {"a": bad}), ("labels", {bad: "a"})]
        for name, value in options:
            given = {name: value, "connection": connection}
            yield (
                name,
                lambda form, given=given: getattr(task.configure(**given), f"enqueue{form}")(1),
            )
        yield (
            "unique_key",
            lambda form: getattr(task, f"cancel{form}")(unique_key=bad, connection=connection),
        )
        yield (
            "name",
            lambda form: getattr(self.app, f"group{form}")(
                [task.bind(1)], then=task.bind(2), name=bad, connection=connection
            ),
        )

    async def enqueue(self, cart_id: int) -> None:
        for bad in ("a\0", "a\ud800"):
            for field, call in self.calls(bad):
                with pytest.raises(InvalidArguments, match=f": {field} must "):
                    await call("")
        await self.task.configure(connection=self.connection).enqueue(cart_id)

    def enqueue_sync(self, cart_id: int) -> None:
        for bad in ("a\0", "a\ud800"):
            for field, call in self.calls(bad):
                with pytest.raises(InvalidArguments, match=f": {field} must "):
                    call("_sync")
        self.task.configure(connection=self.connection).enqueue_sync(cart_id)


@pytest.mark.parametrize("use", DRIVERS, ids=lambda use: use.__name__.removeprefix("with_"))
async def test_a_text_that_cannot_be_stored_leaves_the_transaction_of_the_user_usable(
    use: Any, app: App, database: str
) -> None:
    await use(database, Unstorable(app, app.get_task("mail")), False)
    assert await payloads(database) == [1]


async def test_a_chunk_that_is_refused_leaves_the_transaction_of_the_user_usable(
    app: App, database: str
) -> None:
    task = app.get_task("mail")
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            keyed = [task.configure(unique_key=key).bind(n) for n, key in enumerate("aab")]
            with pytest.raises(DuplicateJob, match='unique_key "a"'):
                await app.enqueue_many(keyed, connection=connection)
            await app.enqueue_many([keyed[0], keyed[2]], connection=connection)
            in_transaction = task.configure(connection=connection).bind(7)
            with pytest.raises(ConfigurationError, match="has no connection of its own"):
                await app.enqueue_many([in_transaction])
    finally:
        await connection.close()
    assert await payloads(database) == [0, 2]


async def test_autocommit_is_refused_with_every_driver(app: App, database: str) -> None:
    task = app.get_task("mail")
    plain = await asyncpg.connect(database)
    with pytest.raises(NotInTransaction, match="connection= is in autocommit"):
        await task.configure(connection=plain).enqueue(1)
    await plain.close()
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(NotInTransaction):
            task.configure(connection=connection).enqueue_sync(1)
        with connection.transaction():
            task.configure(connection=connection).enqueue_sync(7)
    engine = sa.create_engine(dialect(database, "psycopg"), isolation_level="AUTOCOMMIT")
    with Session(engine) as session, pytest.raises(NotInTransaction):
        task.configure(connection=session).enqueue_sync(1)
    engine.dispose()
    async_engine = create_async_engine(dialect(database, "asyncpg"))
    async with async_engine.connect() as autocommit:
        await autocommit.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NotInTransaction):
            await task.configure(connection=autocommit).enqueue(1)
    await async_engine.dispose()

    def in_a_view() -> None:
        connection = django_connection(database)
        with contextlib.closing(connection), pytest.raises(NotInTransaction):
            task.configure(connection=connection).enqueue_sync(1)

    await asyncio.to_thread(in_a_view)
    assert await payloads(database) == [7]


async def test_async_connections_are_awaited_and_sync_ones_are_not(app: App, database: str) -> None:
    task = app.get_task("mail")
    async_connection = await asyncpg.connect(database)
    with pytest.raises(WrongConnection, match="an asynchronous asyncpg Connection: await"):
        task.configure(connection=async_connection).enqueue_sync(1)
    await async_connection.close()
    with (
        psycopg.connect(database) as connection,
        pytest.raises(
            WrongConnection,
            match="is a synchronous psycopg Connection: call the `_sync` version of this method",
        ),
    ):
        await task.configure(connection=connection).enqueue(1)
    django_connection(database)
    with pytest.raises(WrongConnection, match="is a synchronous connection 'django:shop': call"):
        await task.configure(connection="django:shop").enqueue(1)
    del connections["shop"]
    with pytest.raises(WrongConnection, match="must be a connection of asyncpg, psycopg 3"):
        await task.configure(connection=object()).enqueue(1)
    async with asyncpg.create_pool(database, min_size=0) as pool:
        with pytest.raises(
            WrongConnection, match=r"asyncpg Pool\. Acquire a connection from the pool"
        ):
            await task.configure(connection=pool).enqueue(1)
    engine = sa.create_engine("postgresql+psycopg://")
    with pytest.raises(WrongConnection, match=r"sqlalchemy Engine\. Use engine\.begin\(\)"):
        task.configure(connection=engine).enqueue_sync(1)
    other = sa.create_engine("sqlite://")
    with Session(other) as session, pytest.raises(WrongConnection, match="connected to sqlite"):
        task.configure(connection=session).enqueue_sync(1)
    other.dispose()


async def test_a_refusal_leaves_the_transaction_of_the_user_usable(app: App, database: str) -> None:
    task = app.get_task("mail")
    keyed = task.configure(unique_key="cart:7", delay=60)
    await keyed.enqueue(7)
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            with pytest.raises(
                DuplicateJob, match='unique_key "cart:7" belongs to job_'
            ) as refused:
                await task.configure(unique_key="cart:7", connection=connection).enqueue(8)
            assert refused.value.holder is not None
            wrong = task.configure(concurrency_key="k" * 201, connection=connection)
            with pytest.raises(InvalidArguments, match="concurrency_key must be 1 to 200"):
                await wrong.enqueue(8)
            await task.configure(connection=connection).enqueue(9)
        other = await asyncpg.connect(database)
        async with connection.transaction(), other.transaction():
            await task.configure(unique_key="k", connection=other).enqueue(10)
            with pytest.raises(
                KeyBusy, match=r"is held by another open transaction \(waited 0.5 s\)"
            ):
                await task.configure(unique_key="k", connection=connection).enqueue(11)
        await other.close()
    finally:
        await connection.close()
    assert await payloads(database) == [7, 9, 10]


async def test_names_are_created_beside_the_transaction_of_the_user(
    app: App, database: str
) -> None:
    task = app.get_task("mail")
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await task.configure(queue="new", tenant="acme", connection=connection).enqueue(1)
        async with connection.transaction(isolation="repeatable_read"):
            await connection.execute("select")  # the snapshot is taken
            with pytest.raises(
                UnknownTenant, match="your transaction has an older snapshot: retry it"
            ):
                await task.configure(tenant="later", connection=connection).enqueue(2)
        closed = App("other", url=database)
        unknown = make(closed)
        async with connection.transaction():
            with pytest.raises(UnknownTask, match='Open the app "other"'):
                await unknown.configure(connection=connection).enqueue(3)
        known = App("shop", url=database)
        async with connection.transaction():
            with pytest.raises(UnknownQueue, match="queue 'mial' does not exist yet"):
                await make(known).configure(queue="mial", connection=connection).enqueue(3)
    finally:
        await connection.close()
    assert await payloads(database) == [1]


async def test_a_job_is_cancelled_in_the_transaction_of_the_user(app: App, database: str) -> None:
    task = app.get_task("mail")
    await task.configure(unique_key="cart:7", delay=60).enqueue(7)
    connection = await asyncpg.connect(database)
    try:
        with contextlib.suppress(Rollback):
            async with connection.transaction():
                cancelled = await task.cancel(unique_key="cart:7", connection=connection)
                assert cancelled is Cancelled.CANCELLED
                raise Rollback
        assert await payloads(database) == [7]
    finally:
        await connection.close()
    with psycopg.connect(database) as sync_connection:
        assert task.cancel_sync(unique_key="cart:7", connection=sync_connection) == "cancelled"
    assert await payloads(database) == []
    assert await task.cancel(unique_key="cart:7") is Cancelled.ENDED


async def test_a_database_without_hourbell_and_a_role_without_the_grant_are_explained(
    app: App, database: str, postgres: str
) -> None:
    task = app.get_task("mail")
    elsewhere = await asyncpg.connect(postgres)  # not migrated
    async with elsewhere.transaction():
        with pytest.raises(NotMigrated, match='lacks the "hourbell" schema'):
            await task.configure(connection=elsewhere).enqueue(1)
    await elsewhere.execute("create role nothing_granted login")
    try:
        with (
            psycopg.connect(database, user="nothing_granted") as connection,
            pytest.raises(ConfigurationError, match="--grant-enqueue-to ROLE"),
        ):
            task.configure(connection=connection).enqueue_sync(1)
    finally:
        await elsewhere.execute("drop role nothing_granted")
        await elsewhere.close()


async def test_a_pooler_in_transaction_mode_is_a_database_like_any_other(
    request: pytest.FixtureRequest, database: str
) -> None:
    dsn = through_pgbouncer(request, database)
    app = App("shop", url=dsn)

    @app.task(name="mail")
    async def mail(cart_id: int) -> int:
        return cart_id

    async with app:
        await mail.enqueue(1)
        await app.enqueue_many(mail.bind(n) for n in (2, 3))
        keyed = mail.configure(unique_key="cart:4", delay=60)
        await keyed.enqueue(4)
        with pytest.raises(DuplicateJob, match='unique_key "cart:4" belongs to job_'):
            await keyed.enqueue(4)
        # Prepared statements of the caller's own driver would not survive there.
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
        for fails in (True, False):
            with contextlib.suppress(Rollback):
                async with connection.transaction():
                    await mail.configure(connection=connection).enqueue(5)
                    same = mail.configure(unique_key="cart:4", connection=connection)
                    with pytest.raises(DuplicateJob):
                        await same.enqueue(4)
                    if fails:
                        raise Rollback
        assert await payloads(database) == [1, 2, 3, 4, 5]
        async with connection.transaction():
            cancelled = await mail.cancel(unique_key="cart:4", connection=connection)
        assert cancelled is Cancelled.CANCELLED
        await connection.close()
        async with app.worker():
            assert await (await mail.enqueue(7)).result(20) == 7
    await close_all(dsn)  # before the pooler ends

    def in_a_thread() -> None:
        with psycopg.connect(dsn, prepare_threshold=None) as sync_connection:
            for number in range(10, 20):
                mail.configure(connection=sync_connection).enqueue_sync(number)
                sync_connection.commit()
        mail.enqueue_sync(20)
        app.close_sync()

    await asyncio.to_thread(in_a_thread)
    assert await payloads(database) == list(range(10, 21))
