"""What follows from an outcome: decided here, by pure functions, and carried out by settle."""

from __future__ import annotations

import msgspec

from hourbell.model.executions import (
    MAX_ERROR_CHARACTERS,
    MAX_INTERRUPTIONS,
    MAX_RESULT_BYTES,
    MAX_SNOOZE_SECONDS,
    MAX_SNOOZES,
    Accepted,
    Cancelled,
    Claimed,
    Crashed,
    Failed,
    Interrupted,
    Outcome,
    Reason,
    Released,
    Snoozed,
    Succeeded,
    Unsendable,
)
from hourbell.model.jobs import Policies, SentSpec
from hourbell.model.json_values import to_json
from hourbell.model.policies import Delivery, Retry, decide, is_final, retry_delay_seconds

# Kinds of Settlement, as in store/functions/codes.sql.
SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED, ACCEPTED, GONE, INTERRUPTED, SNOOZED = range(9)


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """A decided outcome: the next state of a claimed execution."""

    execution_id: int
    fence: int
    kind: int
    # From the claim to the start of the action; None: unknown, the action ended just now.
    begun_ms: int | None = 0
    took_ms: int = 0  # from its start to its end
    delay_seconds: float | None = None  # RETRY, RELEASED, SNOOZED: delay; ACCEPTED: maximum wait
    # DEAD, GONE: why; RETRY: the kind of failure; RELEASED, SNOOZED: what it waits for
    reason: str | None = None
    error: str | None = None
    result: str | None = None  # JSON; ACCEPTED: the digest of the token, in hexadecimal
    failure: str | None = None  # DEAD, GONE: the kind of failure of the last attempt

    @property
    def is_plain(self) -> bool:
        """A success without result or error: the common case, and the cheapest."""
        return self.kind == SUCCEEDED and self.result is None and self.error is None


def settlement(
    claimed: Claimed,
    spec: Policies | SentSpec | None,
    outcome: Outcome,
    begun_ms: int | None,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    """The settlement of an outcome. `spec` is None when it could not be read."""
    if isinstance(outcome, Succeeded) and outcome.result is None:  # the common case
        return Settlement(claimed.execution_id, claimed.fence, SUCCEEDED, begun_ms, took_ms)
    if isinstance(outcome, Failed):
        return _failure(claimed, spec, outcome, begun_ms, took_ms, remaining_seconds)
    if isinstance(outcome, Interrupted):
        return _interruption(claimed, spec, begun_ms, took_ms, remaining_seconds)
    if isinstance(outcome, Crashed):
        return _crash(claimed, spec, outcome, begun_ms, took_ms, remaining_seconds)
    if isinstance(outcome, Snoozed):
        return _snooze(claimed, spec, outcome, begun_ms, took_ms, remaining_seconds)
    return settlement_without_policy(
        claimed.execution_id, claimed.fence, outcome, begun_ms, took_ms
    )


def settlement_without_policy(
    number: int,
    fence: int,
    outcome: Succeeded | Cancelled | Accepted | Released,
    begun_ms: int | None,
    took_ms: int,
) -> Settlement:
    """The settlement of an outcome that does not depend on the job's policies."""
    if isinstance(outcome, Succeeded):
        result, error = _result(outcome.result)
        return Settlement(number, fence, SUCCEEDED, begun_ms, took_ms, None, None, error, result)
    if isinstance(outcome, Cancelled):
        reason, why = Reason.CANCELLED.value, clean(outcome.why) if outcome.why else None
        return Settlement(number, fence, CANCELLED, begun_ms, took_ms, None, reason, why)
    if isinstance(outcome, Accepted):
        digest = f'"{outcome.token_digest.hex()}"'
        within = max(outcome.within_seconds, 0.0)
        return Settlement(number, fence, ACCEPTED, begun_ms, took_ms, within, result=digest)
    return Settlement(
        number, fence, RELEASED, delay_seconds=outcome.delay_seconds, reason=outcome.waits_for
    )


def without_result(bad: Settlement, why: str) -> Settlement:
    """The same outcome without the parts that the database may have refused to store."""
    return msgspec.structs.replace(
        bad, result=None, error=clean(f"The outcome could not be stored completely: {why}")
    )


def unstorable(bad: Settlement, why: str) -> Settlement:
    """The last resort: an execution whose outcome cannot be stored must not run again forever."""
    return Settlement(
        bad.execution_id,
        bad.fence,
        DEAD,
        reason=Reason.NON_RETRYABLE.value,
        error=clean(f"The execution ended, but its outcome could not be stored: {why}"),
    )


def clean(text: str) -> str:
    """A text of bounded length that PostgreSQL can store: no NUL, no lone surrogates."""
    text = text[:MAX_ERROR_CHARACTERS].replace("\x00", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _result(value: object) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    try:
        encoded = to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        why = value.why if isinstance(value, Unsendable) else error
        return None, clean(f"The result is not JSON and was not stored: {why}")
    if len(encoded) > MAX_RESULT_BYTES:
        return (
            None,
            f"The result was not stored: it has {len(encoded)} bytes, the maximum is "
            f"{MAX_RESULT_BYTES}.",
        )
    return encoded.decode(), None


def _interruption(
    claimed: Claimed,
    spec: Policies | SentSpec | None,
    begun_ms: int | None,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    if spec is None or spec.delivery is Delivery.AT_MOST_ONCE:
        # It has started, and must not start again.
        why = "The worker was stopped before the execution ended."
    elif spec.interruptions < MAX_INTERRUPTIONS:
        return Settlement(claimed.execution_id, claimed.fence, INTERRUPTED, begun_ms, took_ms)
    else:
        why = (
            f"Its worker was stopped before it ended, {MAX_INTERRUPTIONS + 1} times in a row: it"
            " takes longer than workers run. Drain for longer, or divide the work by checkpoints."
        )
    failure = Failed(why, "interrupted")
    return _failure(claimed, spec, failure, begun_ms, took_ms, remaining_seconds)


def _crash(
    claimed: Claimed,
    spec: Policies | SentSpec | None,
    outcome: Crashed,
    begun_ms: int | None,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    """Like the death of a worker whose only execution it was; retries are not counted."""
    number, fence, error = claimed.execution_id, claimed.fence, clean(outcome.error)
    crashed = Reason.CRASHED.value
    why = None
    delay = 0.0
    if spec is None or spec.delivery is Delivery.AT_MOST_ONCE:
        why = Reason.LOST
    elif outcome.left <= 0:
        why = Reason.CRASHED
    else:
        attempt = claimed.attempt - spec.attempts_before
        delay = retry_delay_seconds(spec.retry_policy, attempt, number)
        if remaining_seconds is not None and delay >= remaining_seconds:
            why = Reason.DEADLINE
    if why is None:
        return Settlement(number, fence, RETRY, begun_ms, took_ms, delay, crashed, error)
    return Settlement(
        number, fence, DEAD, begun_ms, took_ms, None, why.value, error, failure=crashed
    )


def _snooze(
    claimed: Claimed,
    spec: Policies | SentSpec | None,
    outcome: Snoozed,
    begun_ms: int | None,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    number, fence, snoozed = claimed.execution_id, claimed.fence, Reason.SNOOZED.value
    delay = min(max(outcome.delay_seconds, 0.0), MAX_SNOOZE_SECONDS)
    if spec is None or spec.snoozes >= MAX_SNOOZES:
        why = f"It was snoozed {MAX_SNOOZES} times, and asked for more."
    elif remaining_seconds is not None and delay >= remaining_seconds:
        why = f"It asked to run again in {delay:g} s, which is after its deadline."
    else:
        return Settlement(number, fence, SNOOZED, begun_ms, took_ms, delay, snoozed)
    return Settlement(number, fence, DEAD, begun_ms, took_ms, None, snoozed, why, failure=snoozed)


def _failure(
    claimed: Claimed,
    spec: Policies | SentSpec | None,
    failure: Failed,
    begun_ms: int | None,
    took_ms: int,
    remaining_seconds: float | None,
) -> Settlement:
    number, fence = claimed.execution_id, claimed.fence
    error, kind = clean(failure.error), clean(failure.kind)
    dead = DEAD
    if failure.gone and spec is not None and is_final(spec.retry_policy, failure):
        dead = GONE
    if spec is None or spec.delivery is Delivery.AT_MOST_ONCE:
        reason = Reason.NON_RETRYABLE if spec is None else Reason.RETRIES_EXHAUSTED
        return Settlement(
            number, fence, dead, begun_ms, took_ms, None, reason.value, error, failure=kind
        )
    verdict = decide(
        spec.retry_policy,
        claimed.attempt - spec.attempts_before,
        failure,
        number,
        remaining_seconds,
    )
    if isinstance(verdict, Retry):
        delay = verdict.delay_seconds
        return Settlement(number, fence, RETRY, begun_ms, took_ms, delay, kind, error)
    why = verdict.reason.value
    return Settlement(number, fence, dead, begun_ms, took_ms, None, why, error, failure=kind)
