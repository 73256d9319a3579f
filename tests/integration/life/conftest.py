"""An engine on an empty database, for each test of the life of an execution.

There are many such tests and a database takes longer to make than most of them take to run. So a
module has one database, and it is emptied before each test.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager

import asyncpg
import pytest
from msgspec.structs import replace

from conftest import empty
from hourbell.engine.core import Engine
from integration.life.support import START, open_engine, travel

_LEAVE = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
"""
_REAL_CLOCK = """
create or replace function hourbell.clock() returns timestamptz language sql volatile
return clock_timestamp()
"""


@pytest.fixture(scope="module")
def database_of_module(
    postgres: str, new_database: Callable[[str], AbstractAsyncContextManager[str]]
) -> Iterator[str]:
    making = new_database(postgres)
    with asyncio.Runner() as runner:
        yield runner.run(making.__aenter__())
        runner.run(making.__aexit__(None, None, None))


@pytest.fixture
async def database(database_of_module: str) -> str:
    """A migrated database with nothing in it, on which nobody else is."""
    connection = await asyncpg.connect(database_of_module)
    try:
        await connection.execute(_LEAVE)
        await empty(connection)
        await connection.execute(_REAL_CLOCK)
    finally:
        await connection.close()
    return database_of_module


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """On the real clock."""
    async with open_engine(database) as engine:
        yield engine


@pytest.fixture
async def still(engine: Engine) -> Engine:
    """The same, with a clock that stands at START until somebody travels; no session expires by it."""
    engine.times = replace(engine.times, lease_seconds=86_400)
    await travel(engine, START)
    return engine
