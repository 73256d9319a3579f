"""Databases that stay open from test to test.

A new connection knows nothing: PostgreSQL reads the catalogue, compiles every function of ours that is called and plans
every statement in it, which takes longer than most tests. So a test borrows a pool whose connections have worked before.
All tests of a process run in one event loop, or a pool could serve one of them only.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from hourbell.store.database import Database

D = TypeVar("D", bound=Database)

_free: dict[tuple[type[Database], str], list[Database]] = defaultdict(list)


@asynccontextmanager
async def kept_open(kind: type[D], dsn: str) -> AsyncIterator[D]:
    """A database that nobody else uses meanwhile; afterwards it waits for the next test, unless something still uses it."""
    free = _free[kind, dsn]
    database = free.pop() if free else await kind.open(dsn)
    assert isinstance(database, kind)
    try:
        yield database
    finally:
        pool = database._pool
        if pool.is_closing():
            pass  # the test has closed it
        elif pool.get_idle_size() == pool.get_size():
            free.append(database)
        else:
            await database.close()


def pids_of(dsn: str) -> list[int]:
    """The server's processes of all connections that wait for the next test."""
    return [
        holder._con.get_server_pid()
        for (_, known), databases in _free.items()
        for database in databases
        for holder in database._pool._holders
        if known == dsn and holder.is_connected()
    ]


async def close_all(dsn: str) -> None:
    """Before the database is dropped."""
    for key in [key for key in _free if key[1] == dsn]:
        for database in _free.pop(key):
            await database.close()
