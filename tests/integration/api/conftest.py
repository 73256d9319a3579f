"""The API on a port of its own, before an engine on an empty database."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import aiohttp
import asyncpg
import pytest
import uvicorn.server
from litestar import Litestar

from conftest import DatabaseMaker, empty, number_in_order, plan_once
from hourbell.api.app import create_app
from hourbell.api.auth import Authenticator
from hourbell.api.events import Events
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Engine
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.views.overview import Peaks
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.api.client import KEY_RING, Client, made
from kept import close_all, kept_open


class KnownHealth:
    """Says what the test tells it to say."""

    def __init__(self) -> None:
        self.checks = {"database": True, "scheduler": True, "worker": True}

    async def ready(self) -> dict[str, bool]:
        return self.checks

    async def metrics(self) -> bytes:
        return b"# HELP up Up.\n# TYPE up gauge\nup 1\n"


class SharedApp:
    """One application for all tests of a process: registering its routes takes longer than most tests.

    Every test has its own engine, health, remote workers and authenticator; the objects that the application knows take
    over their state.
    """

    def __init__(self) -> None:
        self._app: Litestar | None = None
        self._known: list[object] = []

    def of(self, engine: Engine, health: KnownHealth, remote: RemoteWorkers) -> Litestar:
        """The application, serving these as if it had been created with them."""
        if self._app is None:
            first = copy.copy(engine), copy.copy(health), copy.copy(remote)
            self._app = create_app(first[0], first[1], KEY_RING, first[2], local=True)
            own_parts = ("authenticator", "peaks", "events")
            self._known = [*first, *(self._app.dependencies[n].dependency() for n in own_parts)]
        own = engine, health, remote, Authenticator(engine, local=True), Peaks(), Events(engine)
        for known, new in zip(self._known, own, strict=True):
            assert type(known) is type(new)
            known.__dict__ = new.__dict__
        return self._app


@pytest.fixture(scope="session")
async def cleaner(
    postgres: str, new_database: DatabaseMaker
) -> AsyncIterator[tuple[str, asyncpg.Connection]]:
    """The database of all tests here, and the connection that empties it."""
    async with new_database(postgres) as dsn:
        await plan_once(dsn)
        await number_in_order(dsn)
        connection = await asyncpg.connect(dsn)
        yield dsn, connection
        await connection.close()
        await close_all(dsn)


@pytest.fixture
async def database(cleaner: tuple[str, asyncpg.Connection]) -> AsyncIterator[str]:
    """An empty, migrated database; a test that changes its schema changes it back."""
    dsn, connection = cleaner
    yield dsn
    await empty(connection)


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with kept_open(Database, database) as opened:
        engine = Engine(opened, DatabaseClock(opened))
        await make_partitions(engine, await engine.clock.now())
        yield engine


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


@pytest.fixture(scope="session")
def shared_app() -> SharedApp:
    return SharedApp()


@pytest.fixture(autouse=True, scope="session")
def _looks_often_who_is_left() -> Iterator[None]:
    """A server that stops looks every tenth of a second whether its connections are closed, and not before the first
    of them has passed: as long as most tests take. Here it looks every millisecond.
    """

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            uvicorn.server, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
        )
        yield


@pytest.fixture
async def server(
    engine: Engine, health: KnownHealth, remote: RemoteWorkers, shared_app: SharedApp
) -> AsyncIterator[ApiServer]:
    server = ApiServer(shared_app.of(engine, health, remote), "127.0.0.1", 0)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        async with http.get("/schema/openapi.json") as response:
            document = parsed(await response.read())
        yield Client(http, document)


@lru_cache(maxsize=4)
def parsed(document: bytes) -> Any:
    """The OpenAPI document: 200 kB that are the same for every test."""
    return json.loads(document)


@pytest.fixture
async def admin(api: Client) -> str:
    """The first key; from then on every request needs one."""
    return await made(api, "admin")
