"""The array types of PostgreSQL, read once in a process rather than in each connection.

asyncpg reads the description of an array type from the catalogue when a connection meets it first. That statement is large:
it takes a quarter of what a new connection costs until it has been through a whole life of an execution. Built-in types have
the same numbers on every server, so one answer serves all connections.
"""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import asyncpg

_FIRST_THAT_DIFFERS = 10_000  # numbers below it are assigned by hand in PostgreSQL's sources
_NAMED = SimpleNamespace(name="known types")  # no anonymous statement was replaced

_known: dict[int, asyncpg.Record] = {}
_introspect_types = asyncpg.Connection._introspect_types


async def _known_types(
    connection: asyncpg.Connection,
    numbers: Collection[int],
    timeout: float | None,  # noqa: ASYNC109
) -> tuple[Sequence[asyncpg.Record], Any]:
    if all(number in _known for number in numbers):
        return list(_known.values()), _NAMED
    types, statement = await _introspect_types(connection, numbers, timeout)
    _known.update({row["oid"]: row for row in types if row["oid"] < _FIRST_THAT_DIFFERS})
    return types, statement


def remember_types() -> None:
    asyncpg.Connection._introspect_types = _known_types
