"""What a call waits for in vain, because another open transaction has it: the error names it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from hourbell import App
from hourbell.engine.core import Engine
from hourbell.errors import KeyBusy

KEYED = {"unique_key": "cart:7"}
ONCE = {"idempotency_key": "order:7"}
SQL = """select hourbell.enqueue('shop.mail', '{"cart_id": 1}', unique_key => 'cart:7')"""


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    app = App("shop", url=database)

    @app.task(name="mail")
    async def mail(cart_id: int) -> None: ...

    async with app:
        yield app


@contextlib.asynccontextmanager
async def transactions(dsn: str, n: int) -> AsyncIterator[list[asyncpg.Connection]]:
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for _ in range(n):
            connection = await asyncpg.connect(dsn)
            stack.push_async_callback(connection.close)
            await stack.enter_async_context(connection.transaction())
            opened.append(connection)
        yield opened


@pytest.mark.parametrize(
    ("options", "expected"),
    [(KEYED, r'unique_key "cart:7" is held by'), (ONCE, "is using the same idempotency_key")],
    ids=["unique key", "idempotency key"],
)
async def test_the_error_names_the_key_of_another_open_transaction(
    app: App, database: str, options: Any, expected: str
) -> None:
    mail = app.get_task("mail")
    async with transactions(database, 2) as (first, second):
        await mail.configure(connection=first, **options).enqueue(1)
        with pytest.raises(KeyBusy, match=expected):
            await mail.configure(connection=second, **options).enqueue(1)
        await mail.configure(connection=second).enqueue(2)  # the transaction is intact


async def test_a_wait_for_a_quota_is_not_reported_as_a_busy_key(
    app: App, database: str, engine: Engine
) -> None:
    await engine.database.value(
        "update hourbell.tenants set max_jobs = 9 where name = 'default' returning 1"
    )
    mail = app.get_task("mail")
    async with transactions(database, 3) as (first, second, third):
        await mail.configure(connection=first).enqueue(1)
        by_library, by_sql = await asyncio.gather(
            mail.configure(connection=second, **KEYED).enqueue(1),
            third.execute(SQL),
            return_exceptions=True,
        )
    assert isinstance(by_library, KeyBusy)
    assert "creating jobs under the same tenant's quota (waited 2 s)" in str(by_library)
    assert isinstance(by_sql, asyncpg.PostgresError)
    assert (by_sql.sqlstate, "under the quota of the tenant" in str(by_sql)) == ("HB006", True)


async def test_sql_names_the_busy_key(app: App, database: str) -> None:
    async with transactions(database, 2) as (first, second):
        await first.execute(SQL)
        with pytest.raises(asyncpg.PostgresError, match="holds the unique key cart:7") as busy:
            await second.execute(SQL)
    assert busy.value.sqlstate == "HB006"


async def test_with_several_keys_the_error_names_none(app: App, database: str) -> None:
    mail = app.get_task("mail")
    calls = [mail.configure(unique_key=key).bind(1) for key in ("a", "b", "c")]
    async with transactions(database, 2) as (first, second):
        await mail.configure(connection=first, unique_key="b").enqueue(1)
        with pytest.raises(KeyBusy, match="one of 3 unique keys in this call is held by"):
            await app.enqueue_many(calls, connection=second)
