"""Calls and their retries, without I/O.

A method of a resource returns a `Call`: a request and how to read its response. `steps_of` turns a
call into steps, `Request` and `Wait`, which the async and the sync client carry out in the same way,
sending the results back into the generator.

A write keeps one Idempotency-Key across all its retries, so it takes effect once, however often its
response is lost.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

import msgspec

from hourbell import __version__
from hourbell.client.errors import (
    ClientError,
    Problem,
    ProblemError,
    UnexpectedAnswer,
    Unreachable,
    error_of,
)

T = TypeVar("T")

JSON = "application/json"
NDJSON = "application/x-ndjson"
MERGE_PATCH = "application/merge-patch+json"

FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 10.0
LONGEST_RETRY_AFTER_SECONDS = 60.0  # if a server asks for more, the call is not retried
MAX_ERROR_TEXT = 200  # characters shown of a response that is not a problem document


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One call of the API."""

    method: str
    path: str  # with {parameters}
    answer: type[T]
    parameters: Mapping[str, str] = {}
    query: Mapping[str, object] = {}  # without those that are None
    body: bytes | None = None
    media_type: str = JSON
    version: int | None = None  # apply the write only to this version
    idempotency_key: str | None = None  # None: generate one

    @property
    def target(self) -> str:
        """The path and the query."""
        filled = {name: _segment(name, value) for name, value in self.parameters.items()}
        given = {name: _text(value) for name, value in self.query.items() if value is not None}
        for name, value in given.items():
            _check_text(name, value)
        return self.path.format(**filled) + (f"?{urlencode(given)}" if given else "")


Plan = Call[T] | Generator[Call[Any], Any, T]  # one call, or several in sequence


class Request(msgspec.Struct, frozen=True):
    """A step: send this, and report the response."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None


class Wait(msgspec.Struct, frozen=True):
    """A step: wait."""

    seconds: float


class Answer(msgspec.Struct, frozen=True):
    """A response."""

    status: int
    body: bytes
    retry_after: str | None = None


class Lost(msgspec.Struct, frozen=True):
    """No response: the connection could not be established, broke, or was too slow."""

    reason: str


Steps = Generator[Request | Wait, Answer | Lost | None, T]


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and how to call it."""

    url: str  # without a trailing slash
    api_key: str | None = None
    retries: int = 5

    def __repr__(self) -> str:
        return f"Endpoint({self.url})"  # without the key, which would end up in logs


def steps_of(endpoint: Endpoint, plan: Plan[T]) -> Steps[T]:
    """The steps of a plan; the generator returns its result, or raises ClientError."""
    if isinstance(plan, Call):
        return (yield from _call(endpoint, plan))
    result: Any = None
    while True:
        try:
            call = plan.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        result = yield from _call(endpoint, call)


def _call(endpoint: Endpoint, call: Call[T]) -> Steps[T]:
    request = _request(endpoint, call)
    uncertain = False  # an earlier attempt may have taken effect, or may still be running
    for tried in range(endpoint.retries + 1):
        answer = yield request
        assert answer is not None
        if isinstance(answer, Answer) and answer.status < 400:
            return _read(endpoint, call, answer)
        error, wait = _judge(endpoint, answer, uncertain, tried)
        if wait is None or tried == endpoint.retries:
            raise error
        uncertain = uncertain or not isinstance(error, ProblemError) or error.status >= 500
        yield Wait(wait)
    raise AssertionError("every attempt ends in a result, an error or a retry")


def _request(endpoint: Endpoint, call: Call[Any]) -> Request:
    headers = {"Accept": JSON, "User-Agent": f"hourbell/{__version__}"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    if call.body is not None:
        headers["Content-Type"] = call.media_type
    if call.method != "GET":
        key = call.idempotency_key or uuid4().hex
        if not is_header_text(key):
            what = "An idempotency key must consist of printable ASCII characters."
            raise ClientError("invalid_idempotency_key", what)
        headers["Idempotency-Key"] = key
    if call.version is not None:
        headers["If-Match"] = f'"{call.version}"'
    return Request(call.method, call.target, headers, call.body)


def is_header_text(text: str) -> bool:
    """Whether a text can be sent as a header: printable ASCII."""
    return text.isascii() and text.isprintable()


def _judge(
    endpoint: Endpoint, answer: Answer | Lost, uncertain: bool, tried: int
) -> tuple[ClientError, float | None]:
    """The error of an attempt, and how long to wait before the next; None if the error is final."""
    wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**tried)
    wait *= 0.5 + random.random() / 2  # nosec B311
    if isinstance(answer, Lost):
        return Unreachable(endpoint.url, answer.reason), wait
    problem = _problem_of(answer)
    asked = _seconds_of(answer.retry_after)
    if asked is not None:
        wait += asked
        if asked > LONGEST_RETRY_AFTER_SECONDS:
            return error_of(problem), None
    if problem.status == 429 or problem.status >= 500:
        return error_of(problem), wait
    # The earlier attempt may still hold the key.
    if uncertain and problem.code == "conflict":
        return error_of(problem), wait
    return error_of(problem), None


def _problem_of(answer: Answer) -> Problem:
    try:
        return msgspec.json.decode(answer.body, type=Problem)
    except msgspec.DecodeError:
        text = " ".join(answer.body.decode("utf-8", "replace").split())[:MAX_ERROR_TEXT]
        code = f"http_{answer.status}"
        return Problem(
            code=code,
            title="Not a response from Hourbell",
            status=answer.status,
            detail=f"The server responded with {answer.status} and no problem document: {text!a}.",
        )


def _seconds_of(retry_after: str | None) -> float | None:
    """The delay that a Retry-After header asks for. Hourbell sends seconds, never a date."""
    return float(retry_after) if retry_after and re.fullmatch("[0-9]{1,9}", retry_after) else None


def _read(endpoint: Endpoint, call: Call[T], answer: Answer) -> T:
    if answer.status >= 300:
        raise UnexpectedAnswer(endpoint.url, f"it redirects ({answer.status})")
    try:
        return msgspec.json.decode(answer.body, type=call.answer)
    except msgspec.DecodeError as error:
        what = f"{call.method} {call.target.partition('?')[0]}: {error}"
        raise UnexpectedAnswer(endpoint.url, what) from error


def _check_text(name: str, value: str) -> None:
    """Raise an error for a text that cannot be sent."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ClientError(
            f"invalid_{name}", f"{name} must not contain an unpaired surrogate."
        ) from None


def _segment(name: str, value: object) -> str:
    """An id or a name as one segment of a path: an empty one, or dots, would name another endpoint."""
    if not isinstance(value, str) or value in ("", ".", ".."):
        raise ClientError(
            f"invalid_{name}",
            f"{name} must be a non-empty string other than '.' and '..', not {value!r}.",
        )
    _check_text(name, value)
    return quote(value, safe="")


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(_text, value))
    return str(value)
