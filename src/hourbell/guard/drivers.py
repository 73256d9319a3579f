"""Users' connections: how to run a statement with each driver. No driver is imported here.

A connection is recognised by the modules of its class and base classes, so that
subclasses work and no driver has to be imported. This module does not begin, commit, retry or configure
anything on a connection: it sends one statement, with `{}` in place of each argument. The library also
uses it, for `connection=`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_KNOWN = "a connection of asyncpg, psycopg 3, SQLAlchemy or Django"
_OF_POOL = " Acquire a connection from the pool, and begin a transaction on it."
_OF_ENGINE = " Use engine.begin(), which yields a connection in a transaction."
# PostgreSQL codes: lock timeout, deadlock, and a row that a later transaction has changed.
_BLOCKED = ("55P03", "40P01", "40001")

Rows = list[tuple[Any, ...]]


class Autocommit(Exception):
    """The connection is not in a transaction and does not begin one on its own."""


class UnknownConnection(TypeError):
    """This is not a connection to PostgreSQL, or its driver is unknown."""


class Blocking(ABC):
    """A synchronous connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @abstractmethod
    def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        """The rows of a statement; raises Autocommit, UnknownConnection, or a driver error."""


class Asynchronous(ABC):
    """A connection whose calls are awaited."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @abstractmethod
    async def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        """The rows of a statement; raises Autocommit, UnknownConnection, or a driver error."""


def connection_of(connection: Any) -> Blocking | Asynchronous:
    """The adapter for a connection of any known driver; raises UnknownConnection."""
    if isinstance(connection, str) and connection.partition(":")[0] == "django":
        alias = connection.partition(":")[2] or "default"
        return _Django(importlib.import_module("django.db").connections[alias])
    if getattr(connection, "vendor", None) is not None and hasattr(connection, "in_atomic_block"):
        return _Django(connection)
    for base in type(connection).__mro__:
        package, name = base.__module__.partition(".")[0], base.__name__
        if package == "asyncpg" and name.endswith(("Connection", "ConnectionProxy")):
            return _Asyncpg(connection)
        if package == "psycopg" and name.endswith("Cursor"):
            return _psycopg(connection.connection)
        if package == "psycopg" and name.endswith("Connection"):
            return _psycopg(connection)
        if package == "sqlalchemy" and name in (
            "AsyncSession",
            "AsyncConnection",
            "async_scoped_session",
        ):
            return _AsyncSqlAlchemy(connection)
        if package == "sqlalchemy" and name in ("Session", "Connection", "scoped_session"):
            return _SqlAlchemy(connection)
    kind = kind_of(connection)
    hint = _OF_POOL if kind.endswith("Pool") else _OF_ENGINE if kind.endswith("Engine") else ""
    raise UnknownConnection(f"connection= must be {_KNOWN}, not {kind}.{hint}")


def kind_of(connection: Any) -> str:
    """What a connection is, for a message: its package and class."""
    if isinstance(connection, str):
        return f"connection {connection!r}"
    kind = type(connection)
    return f"{kind.__module__.partition('.')[0]} {kind.__name__}"


def sqlstate(error: BaseException | None) -> str | None:
    """The PostgreSQL error code in an error of any driver, or in its cause."""
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


@contextmanager
def blocked(error: Exception) -> Iterator[None]:
    """Raise `error` in place of a driver error that means another transaction was first."""
    try:
        yield
    except Exception as raised:
        if sqlstate(raised) not in _BLOCKED:
            raise
        raise error from raised


class _Asyncpg(Asynchronous):
    async def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        if not self._connection.is_in_transaction():
            raise Autocommit
        places = (f"${number}" for number in range(1, len(arguments) + 1))
        record = importlib.import_module("asyncpg").Record
        rows = await self._connection.fetch(
            statement.format(*places), *arguments, record_class=record
        )
        return [tuple(row) for row in rows]


def _psycopg(connection: Any) -> Blocking | Asynchronous:
    is_async = any(base.__name__ == "AsyncConnection" for base in type(connection).__mro__)
    return _AsyncPsycopg(connection) if is_async else _Psycopg(connection)


def _psycopg_cursor(connection: Any) -> Any:
    """A cursor. Without autocommit a connection begins a transaction on its own. Its rows may be of any kind."""
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise Autocommit
    return connection.cursor(row_factory=importlib.import_module("psycopg.rows").tuple_row)


def _percent(statement: str, arguments: Sequence[object]) -> str:
    return statement.format(*["%s"] * len(arguments))


class _Psycopg(Blocking):
    def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        with _psycopg_cursor(self._connection) as cursor:
            cursor.execute(_percent(statement, arguments), arguments)
            rows: Rows = cursor.fetchall()
        return rows


class _AsyncPsycopg(Asynchronous):
    async def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        async with _psycopg_cursor(self._connection) as cursor:
            await cursor.execute(_percent(statement, arguments), arguments)
            rows: Rows = await cursor.fetchall()
        return rows


def _check_sqlalchemy(connection: Any) -> None:
    """A SQLAlchemy connection begins a transaction on its own, unless it is in AUTOCOMMIT."""
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise UnknownConnection(f"connection= is connected to {dialect.name}, not to PostgreSQL.")
    level = connection.get_execution_options().get("isolation_level")
    if (level or getattr(dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise Autocommit


def _sqlalchemy_text(statement: str, arguments: Sequence[object]) -> tuple[Any, dict[str, object]]:
    named = {f"p{number}": value for number, value in enumerate(arguments)}
    text = importlib.import_module("sqlalchemy").text
    return text(statement.format(*(f":{name}" for name in named))), named


class _SqlAlchemy(Blocking):
    def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        own = self._connection
        _check_sqlalchemy(own.connection() if callable(getattr(own, "connection", None)) else own)
        return [tuple(row) for row in own.execute(*_sqlalchemy_text(statement, arguments))]


class _AsyncSqlAlchemy(Asynchronous):
    async def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        own = self._connection
        plain = own if hasattr(own, "sync_connection") else await own.connection()
        _check_sqlalchemy(plain.sync_connection)
        rows = await own.execute(*_sqlalchemy_text(statement, arguments))
        return [tuple(row) for row in rows]


class _Django(Blocking):
    def fetch(self, statement: str, arguments: Sequence[object]) -> Rows:
        vendor = self._connection.vendor
        if vendor != "postgresql":
            raise UnknownConnection(f"connection= is connected to {vendor}, not to PostgreSQL.")
        if not self._connection.in_atomic_block:
            raise Autocommit
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(statement, arguments), list(arguments))
            return [tuple(row) for row in cursor.fetchall()]
