"""Databases that stay open from test to test.

A new connection knows nothing: PostgreSQL reads the catalogue, compiles every function of ours that is called and plans
every statement in it, which takes longer than most tests. So a test borrows a pool whose connections have worked before.
All tests of a process run in one event loop, or a pool could serve one of them only.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import pytest

from hourbell.store.database import Database

D = TypeVar("D", bound=Database)
_Key = tuple[type[Database], str, tuple[Any, ...]]

_free: dict[_Key, list[Database]] = defaultdict(list)
_open = Database.open.__func__  # type: ignore[attr-defined]
_close = Database.close


@asynccontextmanager
async def kept_open(kind: type[D], dsn: str) -> AsyncIterator[D]:
    """A database that nobody else uses meanwhile; afterwards it waits for the next test, unless something still uses it."""
    key = kind, dsn, ()
    database = await _borrow(key)
    assert isinstance(database, kind)
    try:
        yield database
    finally:
        await _give_back(key, database)


@contextmanager
def keeping_all_open(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Within it, what the product opens in this loop is borrowed too, and given back when it is closed."""
    borrowed: dict[Database, _Key] = {}

    async def borrow(
        kind: type[Database], dsn: str, connections: int = 10, program: str = "", *options: Any
    ) -> Database:
        if asyncio.get_running_loop() is not loop:
            return await _open(kind, dsn, connections, program, *options)
        # Whatever their names: each worker has its own.
        key = kind, dsn, (connections, "hourbell", *options)
        database = await _borrow(key)
        borrowed[database] = key
        return database

    async def give_back(database: Database) -> None:
        key = borrowed.pop(database, None)
        await (_close(database) if key is None else _give_back(key, database))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "open", classmethod(borrow))
        patch.setattr(Database, "close", give_back)
        yield


async def _borrow(key: _Key) -> Database:
    kind, dsn, options = key
    database: Database = _free[key].pop() if _free[key] else await _open(kind, dsn, *options)
    return database


async def _give_back(key: _Key, database: Database) -> None:
    pool = database._pool
    if pool.is_closing():
        pass  # the test has closed it
    elif pool.get_idle_size() == pool.get_size():
        _free[key].append(database)
    else:
        await _close(database)


def pids_of(dsn: str) -> list[int]:
    """The server's processes of all connections that wait for the next test."""
    return [
        holder._con.get_server_pid()
        for (_, known, _), databases in _free.items()
        for database in databases
        for holder in database._pool._holders
        if known == dsn and holder.is_connected()
    ]


async def close_all(dsn: str) -> None:
    """Before the database is dropped."""
    for key in [key for key in _free if key[1] == dsn]:
        for database in _free.pop(key):
            await _close(database)
