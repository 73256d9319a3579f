"""Idempotent writes: the first answer is kept in the same transaction as the effect, and given again.

Two requests with one key at once: the second waits a little for the first one's row, and then finds its answer or is told
to try again. A process that dies before the commit leaves neither effect nor key; one that stops in the middle of a
transaction loses it after half a minute, so that nobody waits for it for long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Generic, TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.failpoints import failpoint_async
from hourbell.model.errors import Conflict, IdempotencyKeyReused, StoreUnavailable
from hourbell.store.database import Connection, translated
from hourbell.store.queries import queries

T = TypeVar("T")
_Q = queries("jobs")
_TRIES = 64  # each time another request has changed the same thing
IN_USE = "Somebody else is changing the same thing. Nothing was changed; try again."


class Write(msgspec.Struct, frozen=True):
    """Who asks for a change, and under which key; without a key it is done each time."""

    key: str | None = None
    # Of the whole request, by value: the same key must mean the same request.
    fingerprint: bytes = b""
    actor: str = "anonymous"
    if_versions: frozenset[int] | None = None  # only while the job is at one of these; None: at any
    older_fingerprints: tuple[bytes, ...] = ()  # that the same request may have been kept under
    # Finds the fingerprint of a request that is read while it is prepared, as a batch is; None: it is known.
    find_fingerprint: Callable[[], Awaitable[bytes]] | None = None

    async def fingerprinted(self) -> Write:
        """The same write with its fingerprint."""
        if self.find_fingerprint is None:
            return self
        found = await self.find_fingerprint()
        return msgspec.structs.replace(self, fingerprint=found, find_fingerprint=None)

    def is_kept_under(self, fingerprint: bytes) -> bool:
        """Whether a kept answer with this fingerprint is the answer to this request."""
        return fingerprint in (self.fingerprint, *self.older_fingerprints)


def fingerprint(operation: str, target: str, body: bytes) -> bytes:
    """A digest of a request; equal digests are equal requests."""
    digest = hashlib.sha256()
    for part in (operation.encode(), target.encode(), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class Points(msgspec.Struct, frozen=True):
    """The failpoints around the commit of an operation."""

    before: str
    after: str


class Prepared(msgspec.Struct, Generic[T], frozen=True):
    """A write that is ready to be carried out.

    It is prepared outside its transaction: whoever needs a second connection while he holds one waits for somebody who
    waits for him.
    """

    tenant: int
    effect: Callable[[Connection], Awaitable[T]]
    then: Callable[[], Awaitable[None]] | None = None  # after the commit, if it was carried out


async def once(
    engine: Engine,
    write: Write,
    points: Points,
    tenant: str,
    now: datetime,
    answer_type: type[T],
    prepare: Callable[[], Awaitable[Prepared[T]]],
) -> T:
    """Give the answer that this write got the first time, or prepare it and carry it out in a transaction of its own."""
    for _ in range(_TRIES):
        known = await _first_answer(engine, write, tenant)
        if known is not None:
            return msgspec.json.decode(known, type=answer_type)
        prepared = await prepare()
        write = await write.fingerprinted()
        try:
            async with engine.database.transaction() as connection:
                await connection.execute(_Q["be_brief"])
                answer = await prepared.effect(connection)
                if write.key is not None:
                    await connection.execute(
                        _Q["insert_answer"],
                        prepared.tenant,
                        write.key,
                        write.fingerprint,
                        msgspec.json.encode(answer).decode(),
                        now,
                    )
                await failpoint_async(points.before)
        except asyncpg.UniqueViolationError as error:
            # Somebody was first under the same key: his answer is there now.
            if error.constraint_name != "idempotency_pkey":
                raise
        except StoreUnavailable as error:
            if is_held(error):
                raise Conflict(IN_USE) from error
            raise
        except (asyncpg.ForeignKeyViolationError, ChangedMeanwhile):
            # A timetable without riders was forgotten, or the job was changed, between the look and the lock.
            pass
        else:
            with translated():
                await failpoint_async(points.after)
            if prepared.then is not None:
                await prepared.then()
            return answer
    raise Conflict(IN_USE)


def is_held(error: Exception) -> bool:
    """Whether somebody else holds what was wanted, for longer than was waited."""
    return isinstance(error.__cause__, asyncpg.LockNotAvailableError)


def waits_for_quota(error: BaseException | None) -> bool:
    """Whether another transaction has held the lock of a quota for longer than was waited."""
    return isinstance(error, asyncpg.LockNotAvailableError) and error.constraint_name == "quota"


class ChangedMeanwhile(Exception):
    """What an effect finds is no longer what it was prepared for."""


async def _first_answer(engine: Engine, write: Write, tenant: str) -> str | None:
    if write.key is None:
        return None
    known = await engine.database.row_or_none(_Q["answer"], tenant, write.key)
    if known is None:
        return None
    asked = await write.fingerprinted()
    if not asked.is_kept_under(known["fingerprint"]):
        raise IdempotencyKeyReused(write.key)
    answer: str = known["response"]
    return answer


async def note(
    connection: Connection,
    write: Write,
    now: datetime,
    tenant: int,
    job_id: int | None,
    operation: str,
    before: str | None,
    after: str | None,
) -> None:
    """The audit row of a change, in its transaction."""
    await connection.execute(
        _Q["insert_audit"], now, tenant, job_id, write.actor, operation, before, after
    )
