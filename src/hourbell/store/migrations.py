"""Migrations: numbered `.sql` files, applied forward only, each in its own transaction.

Migrations change the tables, which all builds on a database share. Functions are not shared: each
build loads its own set (`function_set.py`) and keeps the sets of other builds. So two adjacent
versions can run side by side, whichever of them is started, stopped or migrated last:

- a newer program needs its migrations and its function set: `hourbell migrate` installs both;
- an older program continues with the newer tables and its own function set, which it loads again if
  it has been dropped;
- a migration that an older program cannot work with has a line `-- requires: NNNN_name.sql`: the
  newest migration that a program must know. A program that does not know it is rejected with a
  message.

Everything runs under one transaction-level advisory lock, so that any number of processes can start
at the same time, even behind a transaction pooler.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import timedelta

import asyncpg

from hourbell import __version__
from hourbell.model.errors import ConfigurationError, IncompatibleDatabase, UnreleasedDatabase
from hourbell.store.database import Database, connect_once, translate_errors
from hourbell.store.function_set import (
    SqlFile,
    for_this_build,
    function_set,
    public_functions,
    sql_files,
)
from hourbell.store.queries import queries

_Q = queries("function_sets")
_LOCK = 4_716_200_311  # any constant; the same in every version
_REQUIRES = re.compile(r"^-- requires: (\S+)$", re.MULTILINE)
UNUSED_DAYS = 7  # the next migration drops function sets that were unused for this long
MARK_SECONDS = 3600.0  # how often a process marks its set as used


async def migrate(dsn: str) -> None:
    """Upgrade the tables of this database to this version, and load this build's functions."""
    with translate_errors():
        connection = await connect_once(dsn)
    try:
        await migrate_connection(connection)
    finally:
        await connection.close()


async def is_migrated(dsn: str) -> bool:
    """Whether the database has everything this build needs; raises IncompatibleDatabase."""
    with translate_errors():
        connection = await connect_once(dsn)
    try:
        if await connection.fetchval("select to_regclass('hourbell.function_sets') is null"):
            return False
        state = await connection.fetchrow(_Q["state"], function_set().digest)
        assert state is not None
        return is_complete(state["migrations"], state["requires"], state["has_functions"])
    finally:
        await connection.close()


def is_complete(
    applied: Sequence[str], requires: Sequence[str | None], has_functions: bool
) -> bool:
    """Whether a database with these migrations has everything this build needs; it may have more.

    Raises IncompatibleDatabase or UnreleasedDatabase if this build cannot work with them. `requires[k]` is the newest
    migration that a program must know because of `applied[k]`.
    """
    _check_compatible(applied, requires)
    return has_functions and {file.name for file in sql_files("migrations")} <= set(applied)


def _check_compatible(applied: Sequence[str], requires: Sequence[str | None]) -> None:
    known = {file.name for file in sql_files("migrations")}
    newest = max(known)
    for name, required in zip(applied, requires, strict=True):
        if name not in known and name < newest:
            raise UnreleasedDatabase(name)
        if required is not None and required > newest:
            raise IncompatibleDatabase(name, required, newest)


async def mark_used(database: Database) -> None:
    """Mark the function set as used by a running process, so that no migration drops it."""
    await database.value(_Q["mark_used"], function_set().digest)


async def migrate_connection(connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        await connection.execute("create schema if not exists hourbell")
        await connection.execute(
            "create table if not exists hourbell.migrations ("
            "name text primary key, digest text not null, applied_at timestamptz not null default clock_timestamp())"
        )
        rows = await connection.fetch(
            "select name, to_jsonb(m) ->> 'requires' as requires from hourbell.migrations as m"
        )
        _check_compatible([row["name"] for row in rows], [row["requires"] for row in rows])
    for migration in sql_files("migrations"):
        await _apply(connection, migration)
    await _load_functions(connection)


async def _apply(connection: asyncpg.Connection, migration: SqlFile) -> None:
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval(
            "select exists (select from hourbell.migrations where name = $1)", migration.name
        ):
            return
        await connection.execute(migration.text)
        await connection.execute(
            "insert into hourbell.migrations (name, digest) values ($1, $2)",
            migration.name,
            hashlib.sha256(migration.text.encode()).hexdigest(),
        )
        if required := _REQUIRES.search(migration.text):
            await connection.execute(
                "update hourbell.migrations set requires = $2 where name = $1",
                migration.name,
                required[1],
            )


async def _load_functions(connection: asyncpg.Connection) -> None:
    own = function_set()
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
        if await connection.fetchval(_Q["mark_used"], own.digest) is None:
            # Functions refer to each other; bodies are checked when they are called.
            await connection.execute("set local check_function_bodies = off")
            await connection.execute(for_this_build(own.text))
            await connection.execute(_Q["insert"], own.digest, __version__)
        await _load_public_functions(connection)
        # A role that may enqueue has access to the schema, and new functions are executable by all.
        if await connection.fetchval(_Q["has_open_routines"]):
            await connection.execute(
                "revoke execute on all routines in schema hourbell from public"
            )
        unused = await connection.fetch(_Q["unused"], own.digest, timedelta(days=UNUSED_DAYS))
        for row in unused:
            # All in one statement, because they may depend on each other.
            if row["routines"]:
                await connection.execute(f"drop routine {row['routines']}")
            await connection.execute(_Q["delete"], row["digest"])


async def _load_public_functions(connection: asyncpg.Connection) -> None:
    """Make the functions with fixed names call this build's set, unless a newer build's is loaded."""
    known = [file.name for file in sql_files("migrations")]
    if await connection.fetchval(_Q["publish"], function_set().digest, known) is None:
        return
    await connection.execute(public_functions())


_GRANTS = """
    select format('grant usage on schema hourbell to %1$I', r.rolname),
      format('grant execute on function %s to %I', string_agg(p.oid::regprocedure::text, ', '), r.rolname)
    from pg_roles as r cross join pg_proc as p
    where r.rolname = $1 and p.pronamespace = 'hourbell'::regnamespace
      and p.proname = any ('{try_enqueue, try_group, enqueue, cancel, complete}')
    group by r.rolname
"""


async def grant_enqueue(dsn: str, role: str) -> None:
    """Allow a role to call the functions in store/public, and nothing else."""
    with translate_errors():
        connection = await connect_once(dsn)
    try:
        statements = await connection.fetchrow(_GRANTS, role)
        if statements is None:
            raise ConfigurationError(
                f"The database has no role {role!a}, so nothing was granted. Create "
                f"it with CREATE ROLE, then repeat the command."
            )
        async with connection.transaction():
            for statement in statements:
                await connection.execute(statement)
    finally:
        await connection.close()
