"""Idempotent writes: the first answer is kept in the same transaction as the effect, and given again.

Two requests with one key at once: the second waits for the first one's row and then finds its answer. A process that
dies before the commit leaves neither effect nor key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.failpoints import failpoint_async
from hourbell.model.errors import IdempotencyKeyReused
from hourbell.store.database import Connection, translated
from hourbell.store.queries import queries

T = TypeVar("T")
_Q = queries("jobs")
_LOOKS = 3  # at the kept answers: before the effect, and after somebody else was first


class Write(msgspec.Struct, frozen=True):
    """Who asks for a change, and under which key; without a key it is done each time."""

    key: str | None = None
    fingerprint: bytes = b""  # of the whole request: the same key must mean the same request
    actor: str = "anonymous"


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


async def once(
    engine: Engine,
    write: Write,
    points: Points,
    tenant: int,
    now: datetime,
    answer_type: type[T],
    effect: Callable[[Connection], Awaitable[T]],
) -> T:
    """Run the effect in a transaction of its own, or give the answer that it gave the first time."""
    for _ in range(_LOOKS):
        known = await _first_answer(engine, write, tenant)
        if known is not None:
            return msgspec.json.decode(known, type=answer_type)
        try:
            async with engine.database.transaction() as connection:
                answer = await effect(connection)
                if write.key is not None:
                    await connection.execute(
                        _Q["insert_answer"],
                        tenant,
                        write.key,
                        write.fingerprint,
                        msgspec.json.encode(answer).decode(),
                        now,
                    )
                await failpoint_async(points.before)
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name != "idempotency_pkey":
                raise
        else:
            with translated():
                await failpoint_async(points.after)
            return answer
    raise AssertionError("an answer that was just there is gone")


async def _first_answer(engine: Engine, write: Write, tenant: int) -> str | None:
    if write.key is None:
        return None
    known = await engine.database.row_or_none(_Q["answer"], tenant, write.key)
    if known is None:
        return None
    if known["fingerprint"] != write.fingerprint:
        raise IdempotencyKeyReused(write.key)
    answer: str = known["response"]
    return answer


async def note(
    connection: Connection,
    write: Write,
    now: datetime,
    tenant: int,
    job_id: int,
    operation: str,
    before: str | None,
    after: str | None,
) -> None:
    """The audit row of a change, in its transaction."""
    await connection.execute(
        _Q["insert_audit"], now, tenant, job_id, write.actor, operation, before, after
    )
