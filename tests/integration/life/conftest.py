"""An engine on an empty database, for each test of the life of an execution.

There are many such tests and a database takes longer to make than most of them take to run. So a
module has one database, which is emptied before each test, and connections that stay open (`kept.py`).
"""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec.structs import replace

from conftest import DatabaseMaker, empty, number_in_order, plan_once
from hourbell.engine.core import Engine
from hourbell.store.clock import DatabaseClock
from integration.life.support import START, TIMES, install_clock, travel
from kept import close_all, kept_open, pids_of
from uncommitted import UncommittedDatabase

_LEAVE = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
  and pid <> all ($1::int[])
"""


@pytest.fixture(scope="module")
async def cleaner(
    postgres: str, new_database: DatabaseMaker
) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """The database of a module, and the connection that empties it."""
    async with new_database(postgres) as dsn:
        await plan_once(dsn)
        await number_in_order(dsn)
        connection = await asyncpg.connect(dsn)
        await install_clock(connection)
        yield dsn, connection
        await connection.close()
        await close_all(dsn)


@pytest.fixture
async def database(cleaner: tuple[str, asyncpg.Connection]) -> str:
    """An empty, migrated database without other connections, on the real clock."""
    dsn, connection = cleaner
    await connection.execute(_LEAVE, pids_of(dsn))
    await empty(connection)
    return dsn


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """On the real clock."""
    async with kept_open(UncommittedDatabase, database) as opened:
        yield Engine(opened, DatabaseClock(opened), TIMES)


@pytest.fixture
async def still(engine: Engine) -> Engine:
    """The same, with a clock that stays at START until the test moves it; no session expires by it."""
    engine.times = replace(engine.times, lease_seconds=86_400)
    await travel(engine, START)
    return engine
