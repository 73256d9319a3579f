"""The connections of users, in whose transactions jobs are enqueued.

A connection is recognised by the module of its class, so that no driver is imported to ask. The
library sends one statement on it: it never begins, commits, retries or sets anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from hourbell.errors import ConfigurationError, NotInTransaction, NotMigrated, WrongConnection

_KNOWN = "a connection of asyncpg, psycopg 3, SQLAlchemy or Django"
_MISSING = ("42883", "3F000", "42P01")  # function, schema, table
_NO_PRIVILEGE = "42501"


class UserConnection(Protocol):
    """A connection of a user."""

    is_async: bool

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        """The rows of a statement, as tuples. `{}` in the statement is the place of an argument.

        Raises NotInTransaction. A sync connection does not suspend.
        """


def user_connection(connection: Any, blocking: bool) -> UserConnection:
    """The adapter of a connection, for an async or a blocking call; raises WrongConnection."""
    adapter = _adapter(connection)
    if adapter.is_async and blocking:
        raise WrongConnection(
            f"connection= is {_name(connection)}, which is async: await the call without _sync."
        )
    if not adapter.is_async and not blocking:
        raise WrongConnection(
            f"connection= is {_name(connection)}, which blocks: call the twin with _sync, or use an "
            f"async connection."
        )
    return adapter


def _adapter(connection: Any) -> UserConnection:
    if isinstance(connection, str) and connection.partition(":")[0] == "django":
        alias = connection.partition(":")[2] or "default"
        return _Django(importlib.import_module("django.db").connections[alias])
    if getattr(connection, "vendor", None) is not None and hasattr(connection, "in_atomic_block"):
        return _Django(connection)
    for base in type(connection).__mro__:
        package, name = base.__module__.partition(".")[0], base.__name__
        if package == "asyncpg":
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
    raise WrongConnection(f"connection= must be {_KNOWN}, not {_name(connection)}.")


def _name(connection: Any) -> str:
    kind = type(connection)
    return f"a {kind.__name__} of {kind.__module__.partition('.')[0]}"


def _not_in_transaction() -> NotInTransaction:
    return NotInTransaction(
        "connection= is in autocommit: the job would stay if your writes are rolled back. Begin a "
        "transaction, or leave connection= out."
    )


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of a driver that mean that the database was not prepared."""
    try:
        yield
    except Exception as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        code = getattr(cause, "sqlstate", None) or getattr(error, "sqlstate", None)
        code = code or getattr(getattr(cause, "__cause__", None), "sqlstate", None)
        if code in _MISSING:
            raise NotMigrated(
                'The database of connection= has no schema "hourbell" of this version. Run '
                '"hourbell migrate" on it, or use a connection to the database of the app.'
            ) from error
        if code == _NO_PRIVILEGE:
            raise ConfigurationError(
                "The role of connection= may not enqueue. Allow it once: "
                '"hourbell migrate --grant-enqueue-to ROLE".'
            ) from error
        raise


class _Asyncpg:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        import asyncpg

        if not self._connection.is_in_transaction():
            raise _not_in_transaction()
        places = (f"${number}" for number in range(1, len(arguments) + 1))
        with _explained():
            rows = await self._connection.fetch(
                statement.format(*places), *arguments, record_class=asyncpg.Record
            )
        return [tuple(row) for row in rows]


def _psycopg(connection: Any) -> UserConnection:
    is_async = any(base.__name__ == "AsyncConnection" for base in type(connection).__mro__)
    return _AsyncPsycopg(connection) if is_async else _Psycopg(connection)


def _psycopg_cursor(connection: Any) -> Any:
    if connection.autocommit and connection.info.transaction_status.name not in (
        "INTRANS",
        "ACTIVE",
    ):
        raise _not_in_transaction()
    return connection.cursor(row_factory=importlib.import_module("psycopg.rows").tuple_row)


def _percent(statement: str, arguments: Sequence[object]) -> str:
    return statement.format(*["%s"] * len(arguments))


class _Psycopg:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        with _psycopg_cursor(self._connection) as cursor, _explained():
            cursor.execute(_percent(statement, arguments), arguments)
            rows: list[Any] = cursor.fetchall()
        return rows


class _AsyncPsycopg:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        async with _psycopg_cursor(self._connection) as cursor:
            with _explained():
                await cursor.execute(_percent(statement, arguments), arguments)
                rows: list[Any] = await cursor.fetchall()
        return rows


def _check_sqlalchemy(connection: Any) -> None:
    """A connection of SQLAlchemy begins a transaction by itself, unless it is in AUTOCOMMIT."""
    dialect = connection.dialect
    if dialect.name != "postgresql":
        raise WrongConnection(f"connection= is connected to {dialect.name}, not to PostgreSQL.")
    level = connection.get_execution_options().get("isolation_level")
    if (level or getattr(dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise _not_in_transaction()


def _sqlalchemy_text(statement: str, arguments: Sequence[object]) -> tuple[Any, dict[str, object]]:
    named = {f"p{number}": value for number, value in enumerate(arguments)}
    text = importlib.import_module("sqlalchemy").text
    return text(statement.format(*(f":{name}" for name in named))), named


class _SqlAlchemy:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        own = self._connection
        _check_sqlalchemy(own.connection() if callable(getattr(own, "connection", None)) else own)
        with _explained():
            return [tuple(row) for row in own.execute(*_sqlalchemy_text(statement, arguments))]


class _AsyncSqlAlchemy:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        own = self._connection
        plain = own if hasattr(own, "sync_connection") else await own.connection()
        _check_sqlalchemy(plain.sync_connection)
        with _explained():
            rows = await own.execute(*_sqlalchemy_text(statement, arguments))
        return [tuple(row) for row in rows]


class _Django:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, arguments: Sequence[object]) -> list[Any]:
        if self._connection.vendor != "postgresql":
            raise WrongConnection(
                f"connection= is connected to {self._connection.vendor}, not to PostgreSQL."
            )
        if not self._connection.in_atomic_block:
            raise _not_in_transaction()
        with self._connection.cursor() as cursor, _explained():
            cursor.execute(_percent(statement, arguments), list(arguments))
            return [tuple(row) for row in cursor.fetchall()]
