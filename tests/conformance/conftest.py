"""A database on each server that we support, for all tests of a process, emptied before each of them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest

from conftest import DatabaseMaker, empty, number_in_order, through_pgbouncer
from hourbell.store.database import Database
from hourbell.testing.clock import VirtualClock
from kept import close_all


@pytest.fixture(scope="session", params=["embedded", "pgbouncer", "postgresql-15"])
async def shared_dsn(
    request: pytest.FixtureRequest, new_database: DatabaseMaker
) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """With a virtual clock; and a connection of its own, past the pooler, that empties it."""
    is_15 = request.param == "postgresql-15"
    server: str = request.getfixturevalue("postgres15" if is_15 else "postgres")
    async with new_database(server) as direct:
        await number_in_order(direct)
        dsn = through_pgbouncer(request, direct) if request.param == "pgbouncer" else direct
        database = await Database.open(dsn)
        await VirtualClock.install(database, datetime(2031, 1, 1, tzinfo=UTC))
        await database.close()
        connection = await asyncpg.connect(direct)
        yield dsn, connection
        await connection.close()
        await close_all(dsn)


@pytest.fixture
async def emptied_dsn(shared_dsn: tuple[str, asyncpg.Connection]) -> str:
    dsn, connection = shared_dsn
    await empty(connection)
    return dsn
