"""Databases for tests: one server per test run, one migrated template, and a copy for each test.

The server is an embedded PostgreSQL in a temporary folder, in memory if there is room, or that of
HOURBELL_TEST_DATABASE_URL. One connection in the portal (`sdk/portal.py`) sends all statements,
so fixtures need no event loop. The next copy is created, and old ones are dropped, while a test
runs. A killed test run leaves its server behind; the next run stops it.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from hourbell.sdk.portal import portal_loop
from hourbell.store.database import Database
from hourbell.store.migrations import migrate
from hourbell.testing.clock import VirtualClock, this_second

T = TypeVar("T")
URL_VARIABLE = "HOURBELL_TEST_DATABASE_URL"
_MEMORY = Path("/dev/shm")  # nosec B108
_MEMORY_BYTES = 2 << 30  # required free space there
_PREFIX = "hourbell-pytest-"  # of folders
# Committed data need not survive a crash of the machine, and plans for small tables need not be
# recomputed for each call, which would take half the time of a statement.
_SETTINGS = {"synchronous_commit": "off", "plan_cache_mode": "force_generic_plan"}
# Without a cache, ids are in order of creation, even across several connections.
_ORDERED_IDS = "alter sequence hourbell.ids cache 1"

Prepare = Callable[[str], None]


class DatabaseServer:
    """A server on which each test has its own database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prefix = f"hourbell_test_{os.getpid()}_{uuid4().hex[:6]}"
        self._numbers = itertools.count(1)
        self._admin: asyncpg.Connection | None = None
        self._lock = asyncio.Lock()  # one statement at a time
        self._next: asyncio.Task[str] | None = None  # the copy for the next test
        self._drops: set[asyncio.Task[None]] = set()

    @property
    def _template(self) -> str:
        return f"{self._prefix}_template"

    def open(self, prepare: Prepare | None = None) -> None:
        """Connect and create the template. `prepare` gets its URL, to add the user's tables."""
        in_portal(self._open())
        if prepare is not None:
            prepare(in_database(self.url, self._template))

    def new_database(self) -> str:
        """The URL of a copy of the template."""
        return in_portal(self._take())

    def drop(self, url: str) -> None:
        """Drop a copy, in the background."""
        in_portal(self._begin_drop(url))

    def close(self) -> None:
        """Drop everything that was created here."""
        in_portal(self._close())

    async def _open(self) -> None:
        self._admin = await asyncpg.connect(self.url)
        await self._execute(f"create database {self._template}")
        template = in_database(self.url, self._template)
        await migrate(template)
        database = await Database.open(template, connections=1)
        try:
            await VirtualClock.install(database, this_second())
            await database.value(_ORDERED_IDS)
        finally:
            await database.close()

    async def _take(self) -> str:
        ready = self._next or asyncio.create_task(self._copy())
        name = await ready
        self._next = asyncio.create_task(self._copy())
        return in_database(self.url, name)

    async def _copy(self) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        # As files, which is half the work of also writing each page to the WAL.
        await self._execute(
            f"create database {name} template {self._template} strategy file_copy",
            *(f"alter database {name} set {key} = {value}" for key, value in _SETTINGS.items()),
        )
        return name

    async def _begin_drop(self, url: str) -> None:
        task = asyncio.create_task(self._drop(urlsplit(url).path.removeprefix("/")))
        self._drops.add(task)
        task.add_done_callback(self._drops.discard)

    async def _drop(self, name: str) -> None:
        await self._execute(f"drop database if exists {name} with (force)")

    async def _close(self) -> None:
        assert self._admin is not None
        if self._next is not None:
            await self._drop(await self._next)
        await asyncio.gather(*self._drops)
        await self._drop(self._template)
        await self._admin.close()

    async def _execute(self, *statements: str) -> None:
        assert self._admin is not None
        async with self._lock:
            for statement in statements:
                await self._admin.execute(statement)


@contextmanager
def running_server(prepare: Prepare | None = None) -> Iterator[DatabaseServer]:
    """A server for tests, for the duration of this context."""
    with ExitStack() as stack:
        url = os.environ.get(URL_VARIABLE)
        if not url:
            url = stack.enter_context(_embedded_server())
        server = DatabaseServer(url)
        server.open(prepare)
        stack.callback(server.close)
        yield server


@contextmanager
def _embedded_server() -> Iterator[str]:
    """An embedded server in a folder that is deleted afterwards, in memory if there is room."""
    from hourbell.store.embedded import EmbeddedServer

    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    parent = _MEMORY if in_memory else Path(tempfile.gettempdir())
    remove_leftovers(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        # PostgreSQL may run as another user, which needs access to the folder.
        os.chmod(folder, 0o711)  # nosec B103
        with EmbeddedServer(Path(folder) / "data", owner="tests") as server:
            yield server.dsn


def remove_leftovers(parent: Path) -> None:
    """Stop the servers of test runs that were killed, and delete their folders."""
    from hourbell.store.embedded import stop_at_once

    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / "data" / "lock", os.O_RDWR)
        except OSError:
            continue  # being created, or owned by another user
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its owner would hold it
            stop_at_once(folder / "data")
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def in_database(url: str, name: str) -> str:
    """The same server, another database."""
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def in_portal(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the portal, whether or not an event loop is running in this thread."""
    return asyncio.run_coroutine_threadsafe(call, portal_loop()).result()
