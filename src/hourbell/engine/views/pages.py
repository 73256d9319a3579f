"""pages: lists in parts, with a bound on the work of each call.

A list is merged from several sources. Each is a statement that walks an index from its newest row
down and reads at most MAX_SCANNED_ROWS rows. A source returns the rows that are `wanted`, and the
last row that it read if it stopped there (`pos` is the position of a row in the walk). So a page
may have fewer items than requested, or none, and still be followed by another page: a search of a
large list takes many short calls, and no single call is expensive.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.texts import text_problem
from hourbell.store.queries import queries

K = TypeVar("K")
_Q = queries("pages")

MAX_PAGE_SIZE = 500
MAX_SCANNED_ROWS = 10_000  # rows of a source, for one page
NEWEST = 2**63 - 1

# The content of a page token, which a client may have forged.
Id = Annotated[int, msgspec.Meta(ge=0, le=NEWEST)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Page(msgspec.Struct, frozen=True):
    """Part of a list; `next_token` asks for the following part."""

    items: list[Any]
    next_token: str | None


class PageSource(msgspec.Struct, Generic[K], frozen=True):
    """The items that one source contributes to a page."""

    found: dict[K, Any]
    floor: K | None  # it has not read below this; None: there is nothing below


async def walk(engine: Engine, statement: str, *args: object) -> Sequence[asyncpg.Record]:
    """The rows of a statement, executed with settings that make it walk an index."""
    async with engine.database.transaction() as connection:
        await connection.execute(_Q["pin_plans"])
        rows: list[asyncpg.Record] = await connection.fetch(statement, *args)
        return rows


def by_id(row: asyncpg.Record) -> int:
    """The position of a row in a list ordered by id."""
    number: int = row["id"]
    return number


def page_source(
    rows: Sequence[asyncpg.Record],
    requested: int,
    key: Callable[[asyncpg.Record], Any],
    make: Callable[[asyncpg.Record], Any],
    scanned: int | None = None,
) -> PageSource[Any]:
    """The rows of a source that was asked for `requested` rows, among `scanned`."""
    last = MAX_SCANNED_ROWS if scanned is None else scanned
    stopped = bool(rows) and (len(rows) == requested or rows[-1]["pos"] == last)
    found = {key(row): make(row) for row in rows if row["wanted"]}
    return PageSource(found, key(rows[-1]) if stopped else None)


def page_of(sources: Sequence[PageSource[Any]], size: int) -> Page:
    """The newest items of all sources, down to where all have read; earlier sources win."""
    floors = [source.floor for source in sources if source.floor is not None]
    floor = max(floors, default=None)
    found: dict[Any, Any] = {}
    for source in sources:
        found = source.found | found
    keys = sorted((key for key in found if floor is None or key >= floor), reverse=True)
    if len(keys) > size:
        keys = keys[:size]
        floor = keys[-1]
    return Page([found[key] for key in keys], None if floor is None else page_token(floor))


def first_rows(
    rows: Sequence[asyncpg.Record],
    size: int,
    make: Callable[[asyncpg.Record], Any],
    key: Callable[[asyncpg.Record], object] = by_id,
) -> Page:
    """A page of a list with one source, whose statement was asked for one row more than `size`."""
    more = len(rows) > size
    return Page(
        [make(row) for row in rows[:size]], page_token(key(rows[size - 1])) if more else None
    )


def by_name(row: asyncpg.Record) -> str:
    """The position of a row in a list ordered by name."""
    name: str = row["name"]
    return name


def read_name(token: str | None) -> str:
    """The name in a page token, after which the list continues; empty: at its beginning."""
    name: str = "" if token is None else read_token(token, str)
    return "" if text_problem(name) is not None else name  # a forged token: no name sorts there


def page_token(position: object) -> str:
    """A page token for the items beyond a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_token(token: str, shape: Any) -> Any:
    """The position in a page token, or InvalidInput."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=shape)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        problem = FieldError("page_token", "bad_format", "was not returned by a list")
        raise InvalidInput([problem]) from None
