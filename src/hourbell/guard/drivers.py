"""How a statement is run on the connections of different drivers. None of them is imported here.

A statement has named parameters, `:name`. Every statement returns one row.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_PARAMETER = re.compile(r"(?<!:):(\w+)")
_IDLE = 0  # libpq: not in a transaction
# Of PostgreSQL: lock timeout, deadlock, and a row that a later transaction has changed.
_BLOCKED = ("55P03", "40P01", "40001")


async def run(
    connection: Any, refuse: type[Exception], statement: str, **values: Any
) -> Sequence[Any]:
    """The row of a statement. `refuse`: the error for a connection without a transaction."""
    driver = _driver(connection)
    if driver == "asyncpg":
        if not connection.is_in_transaction():
            raise refuse(_NO_TRANSACTION)
        numbered, names = _numbered(statement)
        return _row(await connection.fetchrow(numbered, *(values[name] for name in names)))
    if driver == "sqlalchemy":
        _check_isolation(connection, refuse)
        return _row((await connection.execute(_text(statement), values)).first())
    _check_status(connection, refuse)
    cursor = await connection.execute(_formatted(statement), values)
    return _row(await cursor.fetchone())


def run_sync(
    connection: Any, refuse: type[Exception], statement: str, **values: Any
) -> Sequence[Any]:
    """The same for a blocking connection."""
    driver = _driver(connection)
    if driver == "sqlalchemy":
        _check_isolation(connection, refuse)
        return _row(connection.execute(_text(statement), values).first())
    if driver == "django":
        if not connection.in_atomic_block:
            raise refuse(_NO_TRANSACTION)
    else:
        _check_status(connection, refuse)
    with connection.cursor() as cursor:
        cursor.execute(_formatted(statement), values)
        return _row(cursor.fetchone())


@contextmanager
def blocked(error: Exception) -> Iterator[None]:
    """Raise `error` in place of the error of a driver that says: another transaction was first."""
    try:
        yield
    except Exception as raised:
        if _sqlstate(raised) not in _BLOCKED:
            raise
        raise error from raised


def _driver(connection: Any) -> str:
    return type(connection).__module__.partition(".")[0]


def _numbered(statement: str) -> tuple[str, list[str]]:
    """With $1, $2, …, and the names that these stand for."""
    names = list(dict.fromkeys(_PARAMETER.findall(statement)))
    return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


def _formatted(statement: str) -> str:
    return _PARAMETER.sub(r"%(\1)s", statement)


def _text(statement: str) -> Any:
    return importlib.import_module("sqlalchemy").text(statement)


def _row(row: Any) -> Sequence[Any]:
    assert row is not None  # each statement returns one
    return tuple(row)


def _check_status(connection: Any, refuse: type[Exception]) -> None:
    """Of psycopg. Without autocommit it begins a transaction by itself."""
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        raise refuse(_NO_TRANSACTION)


def _check_isolation(connection: Any, refuse: type[Exception]) -> None:
    """Of SQLAlchemy. A session and a connection begin a transaction by themselves."""
    inner = getattr(connection, "sync_connection", connection)
    options = inner.get_execution_options() if hasattr(inner, "get_execution_options") else {}
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise refuse(_NO_TRANSACTION)


def _sqlstate(error: BaseException | None) -> str | None:
    """The code of PostgreSQL in an error of any driver, or in what caused it."""
    for _ in range(5):
        if error is None:
            return None
        for source in (error, getattr(error, "orig", None)):
            for name in ("sqlstate", "pgcode"):
                code = getattr(source, name, None)
                if isinstance(code, str):
                    return code
        error = error.__cause__
    return None


_NO_TRANSACTION = (
    "The connection is not in a transaction, so the record could be committed without the work. "
    "Begin a transaction, and do the work in it."
)
