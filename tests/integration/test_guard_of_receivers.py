"""The guard in a receiver with a database of its own: every execution has one effect."""

import asyncio
import contextlib
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import uvicorn
from django.db.transaction import atomic
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as aio

from hourbell.actions.signing import signed_headers
from hourbell.guard import (
    Delivery,
    Guard,
    GuardMiddleware,
    InProgress,
    NoTransaction,
    StaleFence,
)
from hourbell.guard.clock import unix_seconds
from hourbell.security.secrets import new_signing_secret
from integration.library.test_connections import django_connection, forget_django_connection

SECRET = new_signing_secret()
GUARD = Guard([SECRET])
PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"


@pytest.fixture
async def own(database: str) -> AsyncIterator[str]:
    """The receiver's database."""
    connection = await asyncpg.connect(database)
    await connection.execute(GUARD.ddl())
    await connection.execute(GUARD.ddl())  # it may be there already
    await connection.execute("create table effects (execution_id text, fence bigint)")
    yield database
    await connection.execute("drop table effects, hourbell_deliveries")
    await connection.close()


@pytest.fixture
async def connection(own: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(own)
    yield connection
    await connection.close()


def delivery(fence: int = 1, execution_id: str = "exe_1", attempt: int = 1) -> Delivery:
    return Delivery(execution_id, fence, attempt, None, 0, None, b"{}")


async def serve(
    connection: asyncpg.Connection, one: Delivery, answer: Any = "done", wait: float = 60.0
) -> Any:
    """What a receiver does."""
    async with connection.transaction(), GUARD.once(connection, one, wait=wait) as turn:
        if not turn.done:
            await connection.execute(
                "insert into effects values ($1, $2)", one.execution_id, one.fence
            )
            turn.answer = answer
    return turn.answer


async def effects(connection: asyncpg.Connection) -> list[tuple[str, int]]:
    rows = await connection.fetch("select * from effects order by execution_id, fence")
    return [(row["execution_id"], row["fence"]) for row in rows]


async def test_a_repeated_execution_has_one_effect_and_one_answer(connection: asyncpg.Connection):
    assert await serve(connection, delivery(1), {"paid": 7}) == {"paid": 7}
    assert await serve(connection, delivery(1), "again") == {"paid": 7}
    assert await serve(connection, delivery(2), "again") == {"paid": 7}
    assert await serve(connection, delivery(1, "exe_2"), None) is None
    assert await serve(connection, delivery(1, "exe_2"), "again") is None
    assert await effects(connection) == [("exe_1", 1), ("exe_2", 1)]


async def test_a_sender_that_has_lost_the_execution_is_refused(connection: asyncpg.Connection):
    await serve(connection, delivery(5))
    with pytest.raises(StaleFence, match="fence 4, but fence 5 has been seen"):
        await serve(connection, delivery(4))
    assert await effects(connection) == [("exe_1", 5)]


async def test_work_that_fails_records_nothing_and_is_done_by_the_next_delivery(
    connection: asyncpg.Connection,
):
    async def fail() -> None:
        async with connection.transaction(), GUARD.once(connection, delivery(1)):
            await connection.execute("insert into effects values ('exe_1', 1)")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await effects(connection) == []
    assert await serve(connection, delivery(2)) == "done"
    assert await effects(connection) == [("exe_1", 2)]


@pytest.mark.parametrize("answer", [math.nan, [math.inf], object()])
async def test_an_answer_that_is_not_json_records_nothing(
    connection: asyncpg.Connection, answer: Any
):
    with pytest.raises((TypeError, ValueError), match="the answer of a turn must be JSON"):
        await serve(connection, delivery(1), answer)
    assert await effects(connection) == []
    assert await serve(connection, delivery(1)) == "done"


async def test_work_that_was_given_up_within_a_transaction_is_not_done(
    connection: asyncpg.Connection,
):
    async with connection.transaction():
        with contextlib.suppress(RuntimeError):
            async with GUARD.once(connection, delivery(3)):
                raise RuntimeError
    with pytest.raises(StaleFence):
        await serve(connection, delivery(2))
    assert await serve(connection, delivery(4)) == "done"


async def test_concurrent_deliveries_have_one_effect(own: str):
    pool = await asyncpg.create_pool(own, min_size=10, max_size=10)

    async def one(fence: int) -> str:
        async with pool.acquire() as connection:
            try:
                return str(await serve(connection, delivery(fence), f"by {fence}"))
            except StaleFence:
                return "stale"

    answers = await asyncio.gather(*(one(1 + n % 3) for n in range(30)))
    async with pool.acquire() as connection:
        ((_, fence),) = await effects(connection)
    await pool.close()
    assert set(answers) <= {f"by {fence}", "stale"}
    assert f"by {fence}" in answers


async def test_a_delivery_waits_for_another_and_then_gets_its_answer(
    own: str, connection: asyncpg.Connection
):
    other = await asyncpg.connect(own)
    async with connection.transaction():
        async with GUARD.once(connection, delivery(1)) as turn:
            turn.answer = "first"
            waiting = asyncio.create_task(serve_patiently(other, delivery(2)))
            watcher = await asyncpg.connect(own)
            while not await watcher.fetchval(  # noqa: ASYNC110 - nothing signals a wait for a lock
                "select count(*) from pg_locks where not granted and pid = $1",
                other.get_server_pid(),
            ):
                await asyncio.sleep(0)
            await watcher.close()
        assert not waiting.done()
    assert await waiting == "first"
    await other.close()


async def serve_patiently(connection: asyncpg.Connection, one: Delivery) -> Any:
    async with connection.transaction(), GUARD.once(connection, one, wait=60) as turn:
        assert turn.done
    return turn.answer


async def test_a_delivery_does_not_wait_for_ever_and_the_rest_keeps_its_own_timeout(
    own: str, connection: asyncpg.Connection
):
    other = await asyncpg.connect(own)
    await other.execute("set lock_timeout = '7s'")
    async with connection.transaction(), GUARD.once(connection, delivery(1)):
        with pytest.raises(InProgress) as raised:
            await serve(other, delivery(2), wait=0.2)
        assert (raised.value.status, raised.value.retry_after) == (503, 5)
    async with other.transaction(), GUARD.once(other, delivery(3)) as turn:
        assert turn.done
        assert await other.fetchval("show lock_timeout") == "7s"
    await other.close()


async def test_a_strict_transaction_that_was_too_late_is_retried(
    own: str, connection: asyncpg.Connection
):
    strict = await asyncpg.connect(own)

    async def come_late() -> None:
        async with strict.transaction(isolation="serializable"):
            await strict.fetchval("select count(*) from effects")
            await serve(connection, delivery(1))
            async with GUARD.once(strict, delivery(1)):
                pytest.fail("it has been done")

    with pytest.raises(InProgress):
        await come_late()
    await strict.close()


async def test_without_a_transaction_nothing_is_recorded(connection: asyncpg.Connection):
    with pytest.raises(NoTransaction):
        async with GUARD.once(connection, delivery(1)):
            pytest.fail("it could be done twice")
    assert await connection.fetchval("select count(*) from hourbell_deliveries") == 0


CRASHES = """
import asyncio, asyncpg, os, signal
from hourbell.guard import Delivery, Guard

async def main():
    guard = Guard(["{secret}"])
    connection = await asyncpg.connect("{dsn}")
    one = Delivery("exe_1", 1, 1, None, 0, None, b"")
    transaction = connection.transaction()
    await transaction.start()
    async with guard.once(connection, one) as turn:
        await connection.execute("insert into effects values ('exe_1', 1)")
        turn.answer = "by the first"
        if {within}:
            os.kill(os.getpid(), signal.SIGKILL)
    if {before}:
        os.kill(os.getpid(), signal.SIGKILL)
    await transaction.commit()
    os.kill(os.getpid(), signal.SIGKILL)  # before it has answered

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["within", "before", "after"])
async def test_a_receiver_that_is_killed_has_done_it_all_or_nothing(
    own: str, connection: asyncpg.Connection, moment: str
):
    when = {"within": moment == "within", "before": moment == "before"}
    program = CRASHES.format(secret=SECRET, dsn=own, **when)
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(await effects(connection)) == (1 if moment == "after" else 0)
    async with connection.transaction(), GUARD.once(connection, delivery(2)) as turn:
        if not turn.done:
            await connection.execute("insert into effects values ('exe_1', 2)")
            turn.answer = "by the second"
    assert turn.answer == ("by the first" if moment == "after" else "by the second")
    assert len(await effects(connection)) == 1


async def test_the_example_of_the_page_works(own: str, connection: asyncpg.Connection):
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [example] = [each for each in examples if "guard.once" in each]
    [secret] = re.findall(r"whsec_\w+", example)
    names: dict[str, Any] = {}
    exec(example, names)
    await connection.execute("create table payments (execution_id text)")
    sent = {"Hourbell-Fence-Token": "1", "Hourbell-Attempt": "1"}
    headers = sent | signed_headers("exe_1", int(unix_seconds()), b"{}", [secret])
    async with asyncpg.create_pool(own, min_size=1, max_size=1) as pool:
        for _ in range(2):
            assert await names["pay"](pool, headers, b"{}") == {"paid": True}
    assert await connection.fetchval("select count(*) from payments") == 1
    await connection.execute("drop table payments")


# Other drivers.


def check(once: Callable[[int], Any], count: Callable[[], int]) -> None:
    assert once(2) == (False, "by 2")
    assert once(3) == (True, "by 2")
    with pytest.raises(StaleFence):
        once(1)
    assert count() == 1


async def test_psycopg(own: str) -> None:
    def sync() -> None:
        with psycopg.connect(own) as connection:

            def once(fence: int) -> Any:
                with (
                    connection.transaction(),
                    GUARD.once_sync(connection, delivery(fence)) as turn,
                ):
                    done = turn.done
                    if not done:
                        connection.execute("insert into effects values ('exe_1', %s)", [fence])
                        turn.answer = f"by {fence}"
                return done, turn.answer

            check(once, lambda: connection.execute("select count(*) from effects").fetchone()[0])
        with (
            psycopg.connect(own) as first,
            psycopg.connect(own) as second,
            GUARD.once_sync(first, delivery(9, "exe_2")),
            pytest.raises(InProgress),
            GUARD.once_sync(second, delivery(9, "exe_2"), wait=0.05),
        ):
            pytest.fail("it is in progress")
        with (
            psycopg.connect(own, autocommit=True) as without,
            pytest.raises(NoTransaction),
            GUARD.once_sync(without, delivery(9, "exe_3")),
        ):
            pytest.fail("it could be done twice")

    await asyncio.to_thread(sync)
    async with await psycopg.AsyncConnection.connect(own) as connection:
        async with connection.transaction(), GUARD.once(connection, delivery(4)) as turn:
            assert (turn.done, turn.answer) == (True, "by 2")
        async with connection.transaction(), GUARD.once(connection, delivery(1, "exe_4")) as turn:
            assert not turn.done
            turn.answer = [1]
        async with connection.transaction(), GUARD.once(connection, delivery(1, "exe_4")) as turn:
            assert (turn.done, turn.answer) == (True, [1])


async def test_psycopg_with_other_kinds_of_rows(own: str) -> None:
    def sync() -> None:
        with psycopg.connect(own, row_factory=psycopg.rows.dict_row) as connection:
            for done in (False, True):
                with connection.transaction(), GUARD.once_sync(connection, delivery()) as turn:
                    assert turn.done is done

    await asyncio.to_thread(sync)
    async with (
        await psycopg.AsyncConnection.connect(own, row_factory=psycopg.rows.dict_row) as connection,
        connection.transaction(),
        GUARD.once(connection, delivery()) as turn,
    ):
        assert turn.done


async def test_classes_that_derive_from_those_of_a_driver(own: str) -> None:
    class Connection(asyncpg.Connection):
        """Of `connection_class=`."""

    class Session(orm.Session):
        """As that of SQLModel."""

    class AsyncSession(aio.AsyncSession):
        """The same with asyncio."""

    connection = await asyncpg.connect(own, connection_class=Connection)
    assert await serve(connection, delivery()) == "done"
    await connection.close()
    engine = engine_of(own)

    def sync() -> None:
        for session in (Session(engine), orm.scoped_session(orm.sessionmaker(engine))):
            with session.begin(), GUARD.once_sync(session, delivery()) as turn:
                assert turn.done
            session.close()

    await asyncio.to_thread(sync)
    engine.dispose()
    other = async_engine_of(own)
    async with (
        AsyncSession(other) as session,
        session.begin(),
        GUARD.once(session, delivery()) as turn,
    ):
        assert turn.done
    await other.dispose()


async def test_sqlalchemy_in_autocommit_is_refused_wherever_it_was_set(
    own: str, connection: asyncpg.Connection
) -> None:
    def sync() -> None:
        engine, by_option = engine_of(own, isolation_level="AUTOCOMMIT"), engine_of(own)
        for session in (
            engine.connect(),
            orm.Session(engine),
            orm.Session(by_option.execution_options(isolation_level="AUTOCOMMIT")),
        ):
            with (
                session,
                pytest.raises(NoTransaction),
                GUARD.once_sync(session, delivery()),
            ):
                pytest.fail("it could be done twice")
        engine.dispose()
        by_option.dispose()

    await asyncio.to_thread(sync)
    for engine in (
        async_engine_of(own, isolation_level="AUTOCOMMIT"),
        async_engine_of(own).execution_options(isolation_level="AUTOCOMMIT"),
    ):
        async with aio.AsyncSession(engine) as session:
            with pytest.raises(NoTransaction):
                async with GUARD.once(session, delivery()):
                    pytest.fail("it could be done twice")
        await engine.dispose()
    assert await connection.fetchval("select count(*) from hourbell_deliveries") == 0


async def test_sqlalchemy(own: str) -> None:
    engine = engine_of(own)

    def sync() -> None:
        for opened, execution_id in (
            (engine.connect, "exe_1"),
            (lambda: orm.Session(engine), "exe_2"),
        ):
            for fence, done in ((1, False), (2, True)):
                with opened() as connection:
                    with GUARD.once_sync(connection, delivery(fence, execution_id)) as turn:
                        assert turn.done is done
                        if not done:
                            turn.answer = {"by": fence}
                    connection.commit()
                assert turn.answer == {"by": 1}
        with (
            engine.connect().execution_options(isolation_level="AUTOCOMMIT") as without,
            pytest.raises(NoTransaction),
            GUARD.once_sync(without, delivery()),
        ):
            pytest.fail("it could be done twice")
        with (
            engine.begin() as first,
            engine.begin() as second,
            GUARD.once_sync(first, delivery(9, "exe_3")),
            pytest.raises(InProgress),
            GUARD.once_sync(second, delivery(9, "exe_3"), wait=0.05),
        ):
            pytest.fail("it is in progress")

    await asyncio.to_thread(sync)
    engine.dispose()


async def test_sqlalchemy_with_asyncio(own: str) -> None:
    other = async_engine_of(own)
    for fence, done in ((1, False), (2, True)):
        async with (
            other.begin() as connection,
            GUARD.once(connection, delivery(fence, "exe_4")) as turn,
        ):
            assert turn.done is done
            if not done:
                turn.answer = "by SQLAlchemy"
            assert turn.answer == "by SQLAlchemy"
    async with (
        aio.AsyncSession(other) as session,
        session.begin(),
        GUARD.once(session, delivery(3, "exe_4")) as turn,
    ):
        assert turn.done
    await other.dispose()


async def test_django(own: str) -> None:
    def view() -> None:
        connection = django_connection(own)

        def once(fence: int) -> Any:
            with atomic(using="shop"), GUARD.once_sync(connection, delivery(fence)) as turn:
                done = turn.done
                if not done:
                    with connection.cursor() as cursor:
                        cursor.execute("insert into effects values ('exe_1', %s)", [fence])
                    turn.answer = f"by {fence}"
            return done, turn.answer

        def count() -> int:
            with connection.cursor() as cursor:
                cursor.execute("select count(*) from effects")
                return int(cursor.fetchone()[0])

        try:
            check(once, count)
            with pytest.raises(NoTransaction), GUARD.once_sync(connection, delivery(9, "exe_2")):
                pytest.fail("it could be done twice")
        finally:
            forget_django_connection()

    await asyncio.to_thread(view)


# The embedded server listens on a unix socket, whose folder is in the query of the DSN.


def engine_of(dsn: str, **options: Any) -> Any:
    return sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), **options
    )


def async_engine_of(dsn: str, **options: Any) -> Any:
    async def connect() -> Any:
        return await asyncpg.connect(dsn)

    return aio.create_async_engine("postgresql+asyncpg://", async_creator=connect, **options)


# A real receiver, over HTTP.


@pytest.fixture
async def receiver(own: str) -> AsyncIterator[str]:
    pool = await asyncpg.create_pool(own, min_size=4, max_size=4)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/open":
            await answer(send, 200, {"verified": "hourbell" in scope})
            return
        one: Delivery = scope["hourbell"]
        message = await receive()
        assert message["body"] == one.body
        async with pool.acquire() as connection:
            wait = 0.2 if scope["path"] == "/hooks/impatient" else 60.0
            done = await serve(connection, one, {"body": one.json()}, wait)
        await answer(send, 200, done)

    async def answer(send: Any, status: int, body: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    config = uvicorn.Config(
        GuardMiddleware(app, GUARD, max_body=1000), port=0, lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no signal
        await asyncio.sleep(0)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving
    await pool.close()


async def post(
    url: str, body: bytes = b'{"n": 1}', fence: int = 1, execution_id: str = "exe_1", **more: str
) -> tuple[int, Any, Any]:
    headers = {
        "Hourbell-Fence-Token": str(fence),
        "Hourbell-Attempt": "1",
        **signed_headers(execution_id, int(unix_seconds()), body, [SECRET]),
        **more,
    }
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=body, headers=headers) as response,
    ):
        return response.status, await response.json(content_type=None), response.headers


async def test_a_receiver_serves_genuine_deliveries_once(
    receiver: str, connection: asyncpg.Connection
):
    hook = receiver + "/hooks/pay"
    statuses = await asyncio.gather(*(post(hook) for _ in range(10)))
    assert {(status, json.dumps(body)) for status, body, _ in statuses} == {
        (200, '{"body": {"n": 1}}')
    }
    assert await effects(connection) == [("exe_1", 1)]
    status, body, _ = await post(hook, fence=0)
    assert (status, body["title"]) == (409, "A later attempt has been seen")
    assert await effects(connection) == [("exe_1", 1)]


async def test_what_is_not_genuine_does_not_reach_the_application(
    receiver: str, connection: asyncpg.Connection
):
    hook = receiver + "/hooks/pay"
    for more in ({"webhook-id": "exe_2"}, {"webhook-timestamp": "1"}, {"webhook-signature": ""}):
        status, body, headers = await post(hook, **more)
        assert (status, body["status"]) == (401, 401)
        assert headers["Content-Type"] == "application/problem+json"
    assert (await post(hook, b"x" * 1001))[0] == 413
    assert await effects(connection) == []
    assert (await post(receiver + "/open"))[:2] == (200, {"verified": False})


async def test_a_delivery_during_another_is_asked_to_come_back(
    receiver: str, connection: asyncpg.Connection
):
    async with connection.transaction(), GUARD.once(connection, delivery(1)):
        status, _, headers = await post(receiver + "/hooks/impatient", fence=2)
    assert (status, headers["Retry-After"]) == (503, "5")
