"""One database for all examples of a property."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from conftest import DatabaseMaker, plan_once
from hourbell.store.database import Database
from simulation.simulation import not_waiting_for_the_disk
from uncommitted import UncommittedDatabase

Runs = Callable[[Callable[[Database], Awaitable[None]]], None]

slowly = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def in_database(postgres: str, new_database: DatabaseMaker) -> Iterator[Runs]:
    """Runs something with one database, again and again, in one event loop."""
    with asyncio.Runner() as runner:
        making = new_database(postgres)
        database = runner.run(_open(runner.run(making.__aenter__())))
        yield lambda work: runner.run(_work(work, database))
        runner.run(database.close())
        runner.run(making.__aexit__(None, None, None))


async def _work(work: Callable[[Database], Awaitable[None]], database: Database) -> None:
    await work(database)


async def _open(dsn: str) -> Database:
    await not_waiting_for_the_disk(dsn)
    await plan_once(dsn)
    return await UncommittedDatabase.open(dsn, connections=6)
