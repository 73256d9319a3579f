"""The API on a port of its own, before an engine on an empty database."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import aiohttp
import asyncpg
import pytest
import pytest_asyncio

from conftest import empty
from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Engine
from hourbell.engine.life.retain import make_partitions
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.api.client import KEY_RING, Client, made


class KnownHealth:
    """Says what the test tells it to say."""

    def __init__(self) -> None:
        self.checks = {"database": True, "scheduler": True, "worker": True}

    async def ready(self) -> dict[str, bool]:
        return self.checks


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_database(
    postgres: str, new_database: Callable[[str], AbstractAsyncContextManager[str]]
) -> AsyncIterator[str]:
    async with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture
async def database(shared_database: str) -> AsyncIterator[str]:
    """An empty, migrated database; whoever changes its schema changes it back."""
    yield shared_database
    connection = await asyncpg.connect(shared_database)
    await empty(connection)
    await connection.close()


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    opened = await Database.open(database)
    engine = Engine(opened, DatabaseClock(opened))
    await make_partitions(engine, await engine.clock.now())
    yield engine
    await opened.close()


@pytest.fixture
def health() -> KnownHealth:
    return KnownHealth()


@pytest.fixture
def dispatch(engine: Engine) -> PostgresDispatch:
    return PostgresDispatch(engine)


@pytest.fixture
async def remote(engine: Engine, dispatch: PostgresDispatch) -> AsyncIterator[RemoteWorkers]:
    """Woken by notifications, as in a process of ours."""
    remote = RemoteWorkers(dispatch, engine.times.lease_seconds)
    listener = await engine.database.listen(CHANNEL, remote.wake)
    yield remote
    await remote.stop()
    await listener.close()


@pytest.fixture
async def server(
    engine: Engine, health: KnownHealth, remote: RemoteWorkers
) -> AsyncIterator[ApiServer]:
    server = ApiServer(create_app(engine, health, KEY_RING, remote, local=True), "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        async with http.get("/schema/openapi.json") as response:
            document = json.loads(await response.read())
        yield Client(http, document)


@pytest.fixture
async def admin(api: Client) -> str:
    """The first key; from then on every request needs one."""
    return await made(api, "admin")
