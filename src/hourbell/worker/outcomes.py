"""What an outcome leads to: purely decided, for the settle to carry out."""

from __future__ import annotations

import msgspec

from hourbell.dispatch import CANCELLED, DEAD, RELEASED, RETRY, SUCCEEDED, Settlement
from hourbell.model.executions import (
    Cancelled,
    Claimed,
    Failed,
    Outcome,
    Reason,
    Released,
    Succeeded,
)
from hourbell.model.jobs import JobSpec
from hourbell.model.policies import Delivery, Retry, decide

MOST_ERROR_CHARACTERS = 4_000
MOST_RESULT_BYTES = 16 * 1024

_encode = msgspec.json.Encoder().encode


def settlement(
    claimed: Claimed,
    spec: JobSpec | None,
    outcome: Outcome,
    begun_ms: int,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    """The settlement of an outcome. `spec` is None when it could not be read."""
    number, fence = claimed.execution_id, claimed.fence
    if isinstance(outcome, Succeeded):
        result, error = _result(outcome.result)
        return Settlement(number, fence, SUCCEEDED, begun_ms, took_ms, None, None, error, result)
    if isinstance(outcome, Failed):
        return _failure(claimed, spec, outcome, begun_ms, took_ms, remaining_seconds)
    if isinstance(outcome, Cancelled):
        return Settlement(
            number, fence, CANCELLED, begun_ms, took_ms, reason=Reason.CANCELLED.value
        )
    assert isinstance(outcome, Released)
    return Settlement(number, fence, RELEASED)


def without_result(bad: Settlement, why: str) -> Settlement:
    """The same outcome, stripped of everything that the database might have refused to store."""
    return msgspec.structs.replace(
        bad, result=None, error=clean(f"The outcome could not be stored whole: {why}")
    )


def unstorable(bad: Settlement, why: str) -> Settlement:
    """The last resort: it ran, and must not run for ever because nobody can record how it ended."""
    return Settlement(
        bad.execution_id,
        bad.fence,
        DEAD,
        reason=Reason.NON_RETRYABLE.value,
        error=clean(f"It ended, but its outcome could not be stored: {why}"),
    )


def clean(text: str) -> str:
    """A text that PostgreSQL can store, of a bounded length: no NUL, no lone surrogates."""
    text = text[:MOST_ERROR_CHARACTERS].replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _result(value: object) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return None, clean(f"The result is not JSON and was not kept: {error}")
    if len(encoded) > MOST_RESULT_BYTES:
        return (
            None,
            f"The result has {len(encoded)} bytes and was not kept; the bound is {MOST_RESULT_BYTES}.",
        )
    return encoded.decode(), None


def _failure(
    claimed: Claimed,
    spec: JobSpec | None,
    failure: Failed,
    begun_ms: int,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    number, fence, error = claimed.execution_id, claimed.fence, clean(failure.error)
    if spec is None or spec.delivery is Delivery.AT_MOST_ONCE:
        reason = Reason.NON_RETRYABLE if spec is None else Reason.RETRIES_EXHAUSTED
        return Settlement(number, fence, DEAD, begun_ms, took_ms, None, reason.value, error)
    verdict = decide(spec.retry_policy, claimed.attempt, failure, number, remaining_seconds)
    if isinstance(verdict, Retry):
        delay = verdict.delay_seconds
        kind = clean(failure.kind)
        return Settlement(number, fence, RETRY, begun_ms, took_ms, delay, kind, error)
    return Settlement(number, fence, DEAD, begun_ms, took_ms, None, verdict.reason.value, error)
