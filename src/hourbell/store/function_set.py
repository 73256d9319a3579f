"""The function set: this build's own copies of the SQL functions.

The functions in `functions/*.sql` are part of the program that runs inside the database. Two
builds that use one database during a rolling upgrade therefore need two copies: an API that sends
eight arguments must not call a function that takes seven. Each build loads its functions under
names that end with a digest of their text (`hourbell.settle` becomes
`hourbell.settle__5f0c21ab9e`), calls only those, and never replaces another build's.

The sources are written without the suffix. It is added in two places: when the functions are
loaded, and by `Connection`, which executes every statement of the program. All sets share the
tables, and `hourbell.clock()`, `hourbell.id_base()` and `hourbell.tier()`, which belong to the
tables and are created by a migration.

Functions that other programs call (`hourbell.enqueue`) need names that do not change. They are in
`public/*.sql`, short, and call functions of one set: that of the build that was migrated last.

Files are loaded in the order of their names, but `codes.sql` comes first: functions whose body is a
`return` can only use functions that are already there, and all files use the codes.

Tables may be empty now and huge a minute later, and the planner's statistics lag behind, so most
functions forbid the plans that would be disastrous. The head of a function names a
profile, `set plan = lookups`, which stands for several PostgreSQL settings: see `PLANS`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import asyncpg
import msgspec

_DEFINED = re.compile(r"^create or replace (?:function|procedure) hourbell\.(\w+)", re.MULTILINE)
_CALLED = re.compile(r"\bhourbell\.(\w+)(?=\s*\()")
_DIGEST_LENGTH = 10
_LOADED_FIRST = "codes.sql"

_LOOKUPS = "set jit = off set enable_seqscan = off set enable_bitmapscan = off"
PLANS = {
    # Tables are read through an index, in its order; any join is allowed.
    "lookups": _LOOKUPS,
    # No join that would sort its inputs.
    "lookups_unsorted": f"{_LOOKUPS} set enable_mergejoin = off",
    # Every row is looked up on its own: for functions that get a few rows of big tables.
    "lookups_one_by_one": f"{_LOOKUPS} set enable_hashjoin = off set enable_mergejoin = off",
    # Rows that were found are joined by hash: for big batches, which would otherwise be compared row by row.
    # May be called by a function with another profile, which has disabled hash joins.
    "lookups_by_hash": (
        f"{_LOOKUPS} set enable_mergejoin = off set enable_nestloop = off set enable_hashjoin = on"
    ),
    # Rows in a time range are read through a BRIN index, which only a bitmap scan can use.
    "ranges": (
        "set jit = off set enable_seqscan = off set enable_indexscan = off "
        "set enable_indexonlyscan = off set enable_bitmapscan = on"
    ),
}
_PLAN = re.compile(r"\bset plan = (\w+)")


class SqlFile(msgspec.Struct, frozen=True):
    name: str
    text: str


def sql_files(folder: str) -> Iterator[SqlFile]:
    """The `.sql` files of a folder next to this module, ordered by name."""
    for entry in sorted(
        resources.files(__package__).joinpath(folder).iterdir(), key=lambda e: e.name
    ):
        if entry.name.endswith(".sql"):
            yield SqlFile(entry.name, entry.read_text("utf-8"))


class FunctionSet(msgspec.Struct, frozen=True):
    digest: str  # of the text below; the suffix of every name
    text: str  # as in the files, without the suffix, and with the settings of plans
    names: frozenset[str]


@cache
def function_set() -> FunctionSet:
    """The functions of this build."""
    files = sorted(sql_files("functions"), key=lambda file: file.name != _LOADED_FIRST)
    text = with_plans("\n".join(file.text for file in files))
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LENGTH]
    return FunctionSet(digest, text, frozenset(_DEFINED.findall(text)))


def public_functions() -> str:
    """The functions with fixed names, as statements that call the functions of this build."""
    return for_this_build("\n".join(file.text for file in sql_files("public")))


def with_plans(text: str) -> str:
    """The text with the settings of each profile in place of `set plan = …`."""

    def settings(named: re.Match[str]) -> str:
        if named[1] not in PLANS:
            raise ValueError(f"unknown plan {named[1]!r}; use one of {', '.join(PLANS)}")
        return PLANS[named[1]]

    return _PLAN.sub(settings, text)


@lru_cache(maxsize=4096)
def for_this_build(statement: str) -> str:
    """The statement with this build's suffix added to every function that it defines or calls."""
    own = function_set()

    def named(call: re.Match[str]) -> str:
        return f"{call[0]}__{own.digest}" if call[1] in own.names else call[0]

    return _CALLED.sub(named, statement)


class Connection(asyncpg.Connection):
    """A connection whose statements call the functions of this build."""

    def execute(self, query: str, *args: Any, **options: Any) -> Any:
        return super().execute(for_this_build(query), *args, **options)

    def executemany(self, command: str, *args: Any, **options: Any) -> Any:
        return super().executemany(for_this_build(command), *args, **options)

    def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        return super().fetch(for_this_build(query), *args, **options)

    def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        return super().fetchrow(for_this_build(query), *args, **options)

    def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        return super().fetchval(for_this_build(query), *args, **options)

    def cursor(self, query: str, *args: Any, **options: Any) -> Any:
        return super().cursor(for_this_build(query), *args, **options)

    def prepare(self, query: str, *args: Any, **options: Any) -> Any:
        return super().prepare(for_this_build(query), *args, **options)


async def connect(dsn: str, **options: Any) -> Connection:
    """One connection, outside any pool."""
    connection: Connection = await asyncpg.connect(dsn, connection_class=Connection, **options)
    return connection
