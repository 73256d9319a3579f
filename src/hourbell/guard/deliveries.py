"""Deliveries: verifying them, and recording them so that their work takes effect once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hourbell.guard.clock import unix_seconds
from hourbell.guard.drivers import (
    Asynchronous,
    Autocommit,
    Blocking,
    UnknownConnection,
    blocked,
    connection_of,
    kind_of,
)

_PREFIX = "whsec_"
_MIN_BYTES, _MAX_BYTES = 24, 64
_MAX_SIGNATURES = 16  # per request; two are sent while a secret is rotated
_NUMBER = re.compile(r"[0-9]{1,18}")

_DDL = """\
create table if not exists hourbell_deliveries (
  execution_id text primary key,
  fence        bigint not null,   -- the highest seen
  done_at      timestamptz,       -- null: the work has not been done
  answer       text               -- as JSON
);
create index if not exists hourbell_deliveries_done on hourbell_deliveries (done_at);
"""

# Sets the lock timeout of the transaction and returns the current one.
_SET_TIMEOUT = (
    "select current_setting('lock_timeout') as present, set_config('lock_timeout', {}, true)"
)
# One statement inserts the row, or waits for another delivery and then locks its row.
_TAKE = (
    "insert into hourbell_deliveries as d (execution_id, fence) values ({}, {})"
    " on conflict (execution_id) do update set fence = greatest(d.fence, excluded.fence)"
    " returning d.fence, d.done_at is not null, d.answer"
)
_DONE = (
    "update hourbell_deliveries set done_at = clock_timestamp(), answer = {}"
    " where execution_id = {} returning 1"
)


class GuardError(Exception):
    """A request that must not be served; `status` is the HTTP status to respond with."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "The request cannot be served"
    retry_after: ClassVar[int | None] = None  # seconds


class BadSignature(GuardError):
    """The request was not signed with one of the secrets."""

    status = 401
    title = "The signature is not valid"


class TooOld(GuardError):
    """The request was sent too long ago, or the clocks differ."""

    status = 401
    title = "The request is too old, or the clocks differ"


class StaleFence(GuardError):
    """The sender has lost the execution: a later attempt has been seen."""

    status = 409
    title = "A later attempt has been seen"


class InProgress(GuardError):
    """Another delivery of the same execution is in progress."""

    status = 503
    title = "Another delivery is in progress"
    retry_after = 5


class NoTransaction(GuardError):
    """The connection is not in a transaction."""

    title = "No transaction"


@dataclass(frozen=True)
class Delivery:
    """A verified request."""

    execution_id: str  # the same for all attempts
    fence: int  # increases with every attempt
    attempt: int  # 1 for the first
    scheduled_for: str | None  # the nominal time, as RFC 3339
    sent_at: int  # seconds since 1970
    completion_token: str | None  # for asynchronous completion
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass
class Turn:
    """The work of an execution: to be done now, or already done."""

    done: bool  # by an earlier delivery: do nothing, and send `answer` again
    answer: Any = None  # a JSON value; if the turn is not done, set it to have it recorded


class Guard:
    """Verifies deliveries and makes their work take effect once.

    `secrets` are the signing secrets, more than one while a secret is rotated. `tolerance` is how old
    a request may be, in seconds.
    """

    def __init__(self, secrets: Sequence[str], tolerance: float = 300) -> None:
        if isinstance(secrets, str) or not secrets:
            raise ValueError("secrets must be a list with at least one signing secret")
        self._keys = [_key(secret) for secret in secrets]
        self._tolerance = tolerance

    def verify(
        self,
        headers: Mapping[str, str] | Iterable[tuple[str, str]],
        body: bytes,
        now: float | None = None,
    ) -> Delivery:
        """Verify a request by its headers and its body exactly as received, and return its delivery.

        `now` is in seconds since 1970, if it is not the current time. Raises BadSignature or TooOld, and
        TypeError for a body that is not bytes.
        """
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(
                f"the body must be bytes, exactly as received, not {type(body).__name__}: a body that was "
                f"decoded cannot be verified"
            )
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        found = {name.lower(): value for name, value in pairs}
        message_id = found.get("webhook-id", "")
        timestamp = found.get("webhook-timestamp", "")
        signatures = found.get("webhook-signature", "").split(" ")[:_MAX_SIGNATURES]
        if not message_id or not timestamp or not signatures[0]:
            raise BadSignature(
                "The request lacks webhook-id, webhook-timestamp or webhook-signature. Check that it was "
                "sent by a job with a signing secret."
            )
        if not _NUMBER.fullmatch(timestamp):
            raise BadSignature(
                "The header webhook-timestamp is malformed: it must be whole seconds since 1970. Check "
                "that no proxy changes it."
            )
        content = f"{message_id}.{timestamp}.".encode() + body
        if not self._is_signed(content, signatures):
            raise BadSignature(
                "The signature does not match any of the secrets. Check that the secret is the job's and that "
                "the body is exactly the bytes received: a proxy or framework that decodes and "
                "re-encodes the body breaks the signature."
            )
        age = (unix_seconds() if now is None else now) - int(timestamp)
        if abs(age) > self._tolerance:
            raise TooOld(
                f"The request was signed {abs(age):.0f} seconds {'ago' if age > 0 else 'in the future'}, "
                f"but the tolerance is {self._tolerance:g} seconds. If this is not a replayed request, "
                f"check the clocks on both sides."
            )
        return Delivery(
            execution_id=message_id,
            fence=_number(found, "hourbell-fence-token"),
            attempt=_number(found, "hourbell-attempt"),
            scheduled_for=found.get("hourbell-scheduled-for"),
            sent_at=int(timestamp),
            completion_token=found.get("hourbell-completion-token"),
            body=body,
        )

    @asynccontextmanager
    async def once(
        self, connection: Any, delivery: Delivery, wait: float = 5.0
    ) -> AsyncIterator[Turn]:
        """The turn of a delivery, within the connection's transaction.

        At the end of the block the execution is recorded as done. If the block raises, nothing is
        recorded. `connection` is one of asyncpg or psycopg, or a SQLAlchemy connection or session, in
        a transaction. `wait` is how long to wait for another delivery, in seconds. Raises StaleFence,
        InProgress or NoTransaction: roll back, and respond with its status. Raises TypeError if the
        connection cannot be used here.
        """
        own = _asynchronous(connection)
        with blocked(InProgress(_IN_PROGRESS)), _in_transaction():
            ((present, _),) = await own.fetch(_SET_TIMEOUT, [_timeout(wait)])
            (taken,) = await own.fetch(_TAKE, [delivery.execution_id, delivery.fence])
        await own.fetch(_SET_TIMEOUT, [present])
        turn = _turn(delivery, taken)
        yield turn
        if not turn.done:
            with _in_transaction():
                await own.fetch(_DONE, [_answer(turn), delivery.execution_id])

    @contextmanager
    def once_sync(self, connection: Any, delivery: Delivery, wait: float = 5.0) -> Iterator[Turn]:
        """The same for a blocking connection: psycopg, SQLAlchemy, or Django's `connection`."""
        own = _blocking(connection)
        with blocked(InProgress(_IN_PROGRESS)), _in_transaction():
            ((present, _),) = own.fetch(_SET_TIMEOUT, [_timeout(wait)])
            (taken,) = own.fetch(_TAKE, [delivery.execution_id, delivery.fence])
        own.fetch(_SET_TIMEOUT, [present])
        turn = _turn(delivery, taken)
        yield turn
        if not turn.done:
            with _in_transaction():
                own.fetch(_DONE, [_answer(turn), delivery.execution_id])

    @staticmethod
    def ddl() -> str:
        """The statements that create the table for `once`, in your own database."""
        return _DDL

    def _is_signed(self, content: bytes, signatures: Sequence[str]) -> bool:
        expected = [hmac.new(key, content, hashlib.sha256).digest() for key in self._keys]
        for signature in signatures:
            version, _, text = signature.partition(",")
            try:
                given = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                continue
            if version == "v1" and any(hmac.compare_digest(given, one) for one in expected):
                return True
        return False


_IN_PROGRESS = (
    "Another delivery of this execution is in progress and did not end in time. Respond with 503 and "
    "Retry-After, so that the attempt is retried."
)


def _key(secret: object) -> bytes:
    """Decode a secret, which often comes from an environment variable and may be missing."""
    text = secret if isinstance(secret, str) else ""
    try:
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not text.startswith(_PREFIX) or not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(
            f"a signing secret must be {_PREFIX} followed by {_MIN_BYTES} to {_MAX_BYTES} bytes as base64"
        )
    return key


def _number(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise BadSignature(f"The request has no {name}, so it was not sent by Hourbell.")
    return int(text)


def _timeout(wait: float) -> str:
    # 0 would mean no limit.
    return f"{max(1, round(wait * 1000))}ms"


def _asynchronous(connection: Any) -> Asynchronous:
    found = connection_of(connection)
    if isinstance(found, Blocking):
        raise UnknownConnection(
            f"connection= is a synchronous {kind_of(connection)}: use once_sync."
        )
    return found


def _blocking(connection: Any) -> Blocking:
    found = connection_of(connection)
    if isinstance(found, Asynchronous):
        raise UnknownConnection(
            f"connection= is an asynchronous {kind_of(connection)}: use once, with async with."
        )
    return found


@contextmanager
def _in_transaction() -> Iterator[None]:
    try:
        yield
    except Autocommit:
        raise NoTransaction(
            "The connection is not in a transaction, so the record could commit without the "
            "work. Begin a transaction, and do the work in it."
        ) from None


def _answer(turn: Turn) -> str:
    try:
        return json.dumps(turn.answer, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"the answer of a turn must be JSON: {error}") from None


def _turn(delivery: Delivery, taken: Sequence[Any]) -> Turn:
    fence, done, answer = taken
    if fence > delivery.fence:
        raise StaleFence(
            f"Attempt {delivery.attempt} of {delivery.execution_id} has fence {delivery.fence}, but "
            f"fence {fence} has been seen, so its sender has lost the execution. Do nothing."
        )
    return Turn(bool(done), None if answer is None else json.loads(answer))
