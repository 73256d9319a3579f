"""Idempotent writes: the first answer is stored in the transaction of the effect, and repeated.

The transaction that stored an answer may wait for a standby, or have lost the wait in a crash. So a
stored answer is repeated only after a commit of one's own (`Database.confirm`).

Of two concurrent requests with one key, the second waits briefly for the row of the first, and then
finds its answer or gets a conflict that asks the client to retry. A process that dies before the
commit leaves neither effect nor key. A process that stalls in a transaction loses it after half a
minute, so that other requests are not blocked for long.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Generic, Self, TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.failpoints import failpoint
from hourbell.model.errors import (
    Busy,
    IdempotencyKeyReused,
    PreconditionFailed,
    StoreUnavailable,
)
from hourbell.store.database import Connection, committing, translate_errors
from hourbell.store.queries import queries

T = TypeVar("T")
_Q = queries("jobs")
_MAX_TRIES = 64  # each retry means that another request has changed the same resource


class Write(msgspec.Struct, frozen=True):
    """The actor and the idempotency key of a change; without a key it is done each time."""

    key: str | None = None
    # Of the whole request, by value: the same key must mean the same request.
    fingerprint: bytes = b""
    actor: str = "anonymous"
    if_versions: frozenset[int] | None = None  # required version of what is changed; None: any
    older_fingerprints: tuple[bytes, ...] = ()  # under which the same request may be stored
    traceparent: str | None = None  # the span of the caller; a repeated request has another one
    # Computes the fingerprint of a request that is parsed while it is prepared, such as a batch;
    # None: it is known.
    find_fingerprint: Callable[[], Awaitable[bytes]] | None = None

    def require_version(self, what: str, version: int) -> None:
        """Raise PreconditionFailed if this is not a required version; 0: there is none yet."""
        if self.if_versions is not None and version not in self.if_versions:
            raise PreconditionFailed(what, version)

    async def fingerprinted(self) -> Write:
        """The same write with its fingerprint."""
        if self.find_fingerprint is None:
            return self
        found = await self.find_fingerprint()
        return msgspec.structs.replace(self, fingerprint=found, find_fingerprint=None)

    def has_fingerprint(self, fingerprint: bytes) -> bool:
        """Whether a stored answer with this fingerprint is the answer to this request."""
        return fingerprint in (self.fingerprint, *self.older_fingerprints)


def fingerprint(operation: str, target: str, body: bytes) -> bytes:
    """A digest of a request; equal digests mean equal requests."""
    digest = hashlib.sha256()
    for part in (operation.encode(), target.encode(), body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


class CommitFailpoints(msgspec.Struct, frozen=True):
    """The failpoints around the commit of an operation."""

    before: str
    after: str


class WriteRow(msgspec.Struct, frozen=True, kw_only=True):
    """The argument `p_write` of `hourbell.change_job` and its like, which explains the fields."""

    tenant: int
    actor: str
    operation: str
    key: str | None
    fingerprint: str
    answer: str | None
    unchanged: str | None


def write_row(
    write: Write, tenant: int, operation: str, answer: object, unchanged: object
) -> WriteRow:
    """A write for a statement that stores its answer itself."""
    stored = write.key is not None
    return WriteRow(
        tenant=tenant,
        actor=write.actor,
        operation=operation,
        key=write.key,
        fingerprint=write.fingerprint.hex(),
        answer=msgspec.json.encode(answer).decode() if stored else None,
        unchanged=msgspec.json.encode(unchanged).decode() if stored else None,
    )


async def store_answer(
    engine: Engine, write: Write, tenant: int, answer: object, now: datetime
) -> None:
    """Store the answer of a write that has nothing to do."""
    if write.key is None:
        await engine.database.confirm()  # it says what an earlier write has done
    else:
        stored = msgspec.json.encode(answer).decode()
        async with engine.database.transaction() as connection:
            await connection.execute(_Q["set_timeouts"])
            await connection.execute(
                _Q["insert_answer"], tenant, write.key, write.fingerprint, stored, now
            )


class Idempotent(Generic[T]):
    """An idempotent write: attempts until one commits, or until a stored answer is found.

        writing = Idempotent(engine, write, failpoints, tenant, now, Answer)
        async for attempt in writing:
            ...  # look up what the effect needs, outside the transaction: needing a second pooled
            ...  # connection while holding one can deadlock the pool
            async with attempt.transaction(tenant_id) as connection:
                attempt.answer = ...
        if writing.executed:
            ...  # what follows the commit
        return writing.answer

    The body runs again if the job changed meanwhile (`ConcurrentChange`), if an unused timetable
    was deleted, or if another request was first under the same key.
    """

    def __init__(
        self,
        engine: Engine,
        write: Write,
        failpoints: CommitFailpoints,
        tenant: str,
        now: datetime,
        answer_type: type[T],
    ) -> None:
        self.write = write
        self.executed = False  # by this caller: otherwise the answer is a stored one
        self._engine = engine
        self._failpoints = failpoints
        self._tenant = tenant
        self._now = now
        self._answer_type = answer_type
        self._answers: list[T] = []  # none or one
        self._tries = 0

    @property
    def answer(self) -> T:
        return self._answers[0]

    @answer.setter
    def answer(self, answer: T) -> None:
        self._answers = [answer]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Self:
        if self.executed:
            raise StopAsyncIteration
        if self._tries == _MAX_TRIES:
            raise Busy()
        self._tries += 1
        known = await _stored_answer(self._engine, self.write, self._tenant)
        if known is not None:
            await self._engine.database.confirm()
            self._engine.counts.repeated_keys.add()
            self.answer = msgspec.json.decode(known, type=self._answer_type)
            raise StopAsyncIteration
        return self

    @asynccontextmanager
    async def transaction(self, tenant: int) -> AsyncIterator[Connection]:
        """The transaction of the effect; the answer is stored in it. `tenant`: owns the key."""
        self.write = await self.write.fingerprinted()
        with self._retrying():
            async with self._engine.database.transaction() as connection:
                await connection.execute(_Q["set_timeouts"])
                yield connection
                if self.write.key is not None:
                    await connection.execute(_Q["insert_answer"], tenant, *self._stored())
                await failpoint(self._failpoints.before)
            self.executed = True
            with translate_errors():
                await failpoint(self._failpoints.after)

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[None]:
        """For an effect that is one auto-committed statement, which also stores the answer."""
        with self._retrying():
            async with committing(self._failpoints.before, self._failpoints.after):
                yield
                self.executed = True

    def _stored(self) -> tuple[str | None, bytes, str, datetime]:
        answer = msgspec.json.encode(self.answer).decode()
        return self.write.key, self.write.fingerprint, answer, self._now

    @contextmanager
    def _retrying(self) -> Iterator[None]:
        """Swallow the errors after which the next attempt may succeed."""
        try:
            yield
        except asyncpg.UniqueViolationError as error:
            # Another request was first under the same key: its answer is stored now.
            if error.constraint_name != "idempotency_pkey":
                raise
        except StoreUnavailable as error:
            if is_lock_conflict(error):
                raise Busy() from error
            raise
        except (asyncpg.ForeignKeyViolationError, ConcurrentChange):
            # An unused timetable was deleted, or the job changed, between the read and the lock.
            pass


def is_lock_conflict(error: Exception) -> bool:
    """Whether another transaction held a needed lock: beyond the lock timeout, or in a deadlock."""
    return isinstance(
        error.__cause__, asyncpg.LockNotAvailableError | asyncpg.DeadlockDetectedError
    )


def is_quota_lock_timeout(error: BaseException | None) -> bool:
    """Whether another transaction held the lock of a quota beyond the lock timeout."""
    return isinstance(error, asyncpg.LockNotAvailableError) and error.constraint_name == "quota"


class ConcurrentChange(Exception):
    """The state that a write was prepared for has changed."""


async def _stored_answer(engine: Engine, write: Write, tenant: str) -> str | None:
    if write.key is None:
        return None
    known = await engine.database.row_or_none(_Q["answer"], tenant, write.key)
    if known is None:
        return None
    fingerprinted = await write.fingerprinted()
    if not fingerprinted.has_fingerprint(known["fingerprint"]):
        raise IdempotencyKeyReused(write.key)
    answer: str = known["response"]
    return answer


async def insert_audit_row(
    connection: Connection,
    write: Write,
    now: datetime,
    tenant: int,
    job_id: int | None,
    operation: str,
    before: str | None,
    after: str | None,
) -> None:
    """Insert the audit row of a change, in its transaction."""
    await connection.execute(
        _Q["insert_audit"], now, tenant, job_id, write.actor, operation, before, after
    )
