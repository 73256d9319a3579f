"""pages: lists in parts, with a bound on the work of each call.

A list is put together from several sources, each of them a statement that walks an index from its newest row down and looks at
no more than MOST_LOOKED_AT rows. A source gives the rows that are `wanted`, and the last one that it looked at if it stopped
there (`pos` says which row of the walk it is). So a page may have fewer items than it could, or none, and still be followed by
another one: whoever searches a haystack goes through it in many short calls, and no single call is dear.
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
from hourbell.store.queries import queries

K = TypeVar("K")
_Q = queries("pages")

MOST_PER_PAGE = 500
MOST_LOOKED_AT = 10_000  # rows of a source, for one page
NEWEST = 2**63 - 1

# What stands in a page token, which anybody may have made up.
Id = Annotated[int, msgspec.Meta(ge=0, le=NEWEST)]
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Page(msgspec.Struct, frozen=True):
    """Part of a list; `next_token` asks for the following part."""

    items: list[Any]
    next_token: str | None


class Seen(msgspec.Struct, Generic[K], frozen=True):
    """What one source has of a page."""

    found: dict[K, Any]
    floor: K | None  # it has not looked below this; None: there is nothing below


async def walk(engine: Engine, statement: str, *args: object) -> Sequence[asyncpg.Record]:
    """The rows of a statement that is to go along an index, and does."""
    async with engine.database.transaction() as connection:
        await connection.execute(_Q["pin_plans"])
        rows: list[asyncpg.Record] = await connection.fetch(statement, *args)
        return rows


def by_id(row: asyncpg.Record) -> int:
    """Where a row stands in a list that is ordered by ids."""
    number: int = row["id"]
    return number


def seen(
    rows: Sequence[asyncpg.Record],
    asked_for: int,
    key: Callable[[asyncpg.Record], Any],
    make: Callable[[asyncpg.Record], Any],
) -> Seen[Any]:
    """The rows of a source that was asked for so many."""
    stopped = bool(rows) and (len(rows) == asked_for or rows[-1]["pos"] == MOST_LOOKED_AT)
    found = {key(row): make(row) for row in rows if row["wanted"]}
    return Seen(found, key(rows[-1]) if stopped else None)


def page_of(sources: Sequence[Seen[Any]], size: int) -> Page:
    """The newest of all sources, as far down as all of them have looked. An item of two sources is that of the first."""
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


def page_token(position: object) -> str:
    """A page token for the items beyond a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def read_token(token: str, shape: Any) -> Any:
    """The position in a page token, or InvalidInput."""
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=shape)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        problem = FieldError("page_token", "bad_format", "is not one that a list has given out")
        raise InvalidInput([problem]) from None
