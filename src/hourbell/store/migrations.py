"""Migrations: numbered `.sql` files, applied forward only, each in a transaction of its own.

Tables change by migration; functions are the code of the present version and are loaded again whenever their text has
changed. Everything happens under one transaction-level advisory lock, so that any number of processes may start at
once and a transaction pooler does no harm. A database that a newer version has migrated is left as it is: the older
version runs beside it (R67).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from importlib import resources

import asyncpg
import msgspec

from hourbell.store.database import translated

_LOCK = 4_716_200_311  # any constant; the same in every version


class SqlFile(msgspec.Struct, frozen=True):
    name: str
    text: str


def sql_files(folder: str) -> Iterator[SqlFile]:
    """The `.sql` files of a folder beside this module, in the order of their names."""
    for entry in sorted(
        resources.files(__package__).joinpath(folder).iterdir(), key=lambda e: e.name
    ):
        if entry.name.endswith(".sql"):
            yield SqlFile(entry.name, entry.read_text("utf-8"))


async def migrate(dsn: str) -> None:
    """Bring the schema `hourbell` of this database to the present version."""
    with translated():
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        await migrate_connection(connection)
    finally:
        await connection.close()


async def is_migrated(dsn: str) -> bool:
    """Whether the database has every migration that this version needs; it may have more."""
    with translated():
        connection = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        if await connection.fetchval("select to_regclass('hourbell.migrations') is null"):
            return False
        applied = await connection.fetch("select name from hourbell.migrations")
        return is_complete(row["name"] for row in applied)
    finally:
        await connection.close()


def is_complete(applied: Iterable[str]) -> bool:
    """Whether these are all the migrations that this version needs; there may be more."""
    return {file.name for file in sql_files("migrations")} <= set(applied)


async def migrate_connection(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute("create schema if not exists hourbell")
        await connection.execute(
            "create table if not exists hourbell.migrations ("
            "name text primary key, digest text not null, applied_at timestamptz not null default clock_timestamp())"
        )
    for migration in sql_files("migrations"):
        await _apply(connection, migration)
    await _load_functions(connection)


async def _apply(connection: asyncpg.Connection, migration: SqlFile) -> None:
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        if await _digest(connection, migration.name) is None:
            await connection.execute(migration.text)
            await _note(connection, migration.name, _sha256(migration.text))


async def _load_functions(connection: asyncpg.Connection) -> None:
    text = "\n".join(file.text for file in sql_files("functions"))
    ours = [file.name for file in sql_files("migrations")]
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        newer = await connection.fetchval(
            "select exists (select from hourbell.migrations where name <> 'functions' and not name = any ($1))",
            ours,
        )
        if newer or await _digest(connection, "functions") == _sha256(text):
            return
        # Functions refer to each other; bodies are checked when they are called.
        await connection.execute("set local check_function_bodies = off")
        await connection.execute(text)
        await _note(connection, "functions", _sha256(text))


async def _digest(connection: asyncpg.Connection, name: str) -> str | None:
    digest: str | None = await connection.fetchval(
        "select digest from hourbell.migrations where name = $1", name
    )
    return digest


async def _note(connection: asyncpg.Connection, name: str, digest: str) -> None:
    await connection.execute(
        "insert into hourbell.migrations (name, digest) values ($1, $2) "
        "on conflict (name) do update set digest = excluded.digest, applied_at = clock_timestamp()",
        name,
        digest,
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
