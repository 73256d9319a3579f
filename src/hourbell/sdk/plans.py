"""Turns a call into arguments of `hourbell.try_enqueue`, and the returned rows into results."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import Any

import msgspec

from hourbell.errors import (
    DuplicateJob,
    HourbellError,
    InvalidArguments,
    KeyBusy,
    QuotaExceeded,
    StoreUnavailable,
    UnknownQueue,
    UnknownTask,
    UnknownTenant,
)
from hourbell.model.errors import InvalidInput
from hourbell.model.ids import job_text

# Every parameter has a cast, so drivers need not know the types, and the user's codecs are not
# used. The placeholders depend on the driver.
ENQUEUE = (
    "select place, job_id, outcome, holder, detail from hourbell.try_enqueue("
    "cast({} as text), cast({} as text[]), cast({} as int[]), cast({} as timestamptz[]), "
    "cast({} as text[]))"
)
GROUP = (
    "select group_id, outcome, detail from hourbell.try_group("
    "cast({} as text), cast({} as text), cast({} as text), cast({} as bigint[]))"
)
CANCEL = "select hourbell.cancel(cast({} as text), cast({} as text), cast({} as text))"
COMPLETE = (
    "select hourbell.complete(cast({} as bigint), cast({} as bigint), cast({} as bigint), "
    "cast({} as uuid), cast({} as int), cast({} as text))"
)

_NOTHING = "Nothing was enqueued"  # in messages about one statement
_EXPIRES = '"expires_at":'
IDEMPOTENT = '"idempotency_key":'

# Options that have another name in the API, and those that the API does not have.
_OF_API = {"tenant": "tenant_id", "expires_in_seconds": "start_deadline_seconds"}
_ONLY_HERE = {
    "expires_at": "use expires_in=, which counts from the job's time",
    "idempotency_key": "pass it to the client's create",
}

Row = Any  # (place, job id, outcome, holder, detail), as returned by hourbell.try_enqueue


class PlannedCall(msgspec.Struct, frozen=True, gc=False):
    """One job to create."""

    task: str
    options: str  # a set of options for hourbell.try_enqueue, as JSON; jobs can share one
    payload: str
    at: datetime | None = None
    unique_key: str | None = None  # as stored
    shown_key: str | None = None  # as written by the caller


class Created(msgspec.Struct, frozen=True, gc=False):
    """A job that was created or kept."""

    job_id: int
    existed: bool


class MissingName(Exception):
    """A name that only the app's own connection may create."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind, self.name = kind, name


def job_document(call: PlannedCall) -> dict[str, Any]:
    """The document that creates the same job through the API; raises InvalidArguments."""
    options: dict[str, Any] = msgspec.json.decode(call.options)
    for option, instead in _ONLY_HERE.items():
        if option in options:
            raise InvalidArguments(f"{call.task}: {option}= does not apply to the API: {instead}.")
    options.pop("notify", None)  # the server does this
    delay = ceil(options.pop("delay_seconds", 0))
    document = {
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": delay} if call.at is None else {"at": call.at.isoformat()},
        "name": call.task,
        "action": {
            "type": "TASK",
            "name": options.pop("task"),
            "payload": msgspec.json.decode(call.payload),
        },
        "unique_key": call.unique_key,
    }
    for option, value in options.items():
        document[_OF_API.get(option, option)] = value
    return {name: value for name, value in document.items() if value is not None}


def traced(calls: Sequence[PlannedCall], traceparent: str | None) -> list[PlannedCall]:
    """Calls whose jobs remember the span that created them; see `JobSpec`."""
    if traceparent is None:
        return list(calls)
    field = "traceparent" if len(calls) == 1 else "trace_link"
    more = f',"{field}":"{traceparent}"}}'
    return [msgspec.structs.replace(call, options=call.options[:-1] + more) for call in calls]


def arguments(calls: Sequence[PlannedCall]) -> list[object]:
    """The arguments of ENQUEUE."""
    if len(calls) == 1:  # the common case
        (call,) = calls
        at = None if call.at is None else [call.at]
        keys = None if call.unique_key is None else [call.unique_key]
        return [f"[{call.options}]", [call.payload], None, at, keys]
    numbers: dict[tuple[str, datetime | None], int] = {}
    options_of: list[int] = []
    number, last = 0, None  # the last set, of a job without a time
    for call in calls:
        # Neighbours often have the same options.
        if call.options is not last or call.at is not None:
            # `expires_at` counts from the job's time, which jobs with such options must share.
            key = call.options, call.at if _EXPIRES in call.options else None
            number = numbers.setdefault(key, len(numbers) + 1)
            last = call.options if call.at is None else None
        options_of.append(number)
    times = [call.at for call in calls]
    unique_keys = [call.unique_key for call in calls]
    return [
        f"[{','.join(options for options, _ in numbers)}]",
        [call.payload for call in calls],
        options_of if len(numbers) > 1 else None,
        None if times.count(None) == len(times) else times,
        None if unique_keys.count(None) == len(unique_keys) else unique_keys,
    ]


def created(calls: Sequence[PlannedCall], rows: Sequence[Row]) -> list[Created]:
    """The results in the order of the calls; raises the first rejection, or MissingName."""
    if len(rows) == len(calls) and rows[0][2] in ("created", "kept"):
        found = [Created(0, False)] * len(calls)
        for place, job_id, outcome, _, _ in rows:
            assert job_id is not None
            found[place - 1] = Created(job_id, outcome == "kept")
        return found
    place, _, outcome, holder, detail = rows[0]
    if outcome == "busy":
        raise _busy(calls, detail)
    raise _refusal(calls[place - 1], outcome, holder, detail or "")


def created_group(then: PlannedCall, row: Sequence[Any]) -> int:
    """The id of the created group; raises its rejection, or MissingName."""
    group_id, outcome, detail = row
    if outcome == "created":
        number: int = group_id
        return number
    if outcome == "unknown_member":
        raise InvalidArguments(
            f"{then.task}: {detail} does not have the same tenant as then=. All jobs of a group must have "
            f"the same tenant. Nothing was enqueued."
        )
    raise _refusal(then, outcome, None, detail or "")


def say_created(error: HourbellError, jobs: Sequence[Any]) -> None:
    """Correct an error about some of many jobs, if those before them were created."""
    error.created = tuple(jobs)
    others = "the rest were not"
    if isinstance(error, StoreUnavailable):
        others = "the next ones may have been"
    _correct(error, f"The first {len(jobs):,} jobs were enqueued, and {others}")


def say_without_group(error: HourbellError) -> None:
    """Correct an error about a group whose jobs are already part of a transaction."""
    _correct(error, "Your transaction contains jobs of the group but not the group: roll it back")


def _correct(error: HourbellError, truth: str) -> None:
    if _NOTHING in error.message:
        error.message = error.message.replace(_NOTHING, truth)
    else:
        error.message = f"{error.message} {truth}."
    error.args = (error.message, *error.args[1:])


_UNKNOWN = {"queue": UnknownQueue, "tenant": UnknownTenant, "task": UnknownTask}


def refused_name(missing: MissingName, error: InvalidInput) -> HourbellError:
    """The error for a name that calls must not create."""
    found = "; ".join(each.message for each in error.errors)
    return _UNKNOWN[missing.kind](f"The call {found}. Nothing was enqueued.")


def unknown_name(missing: MissingName, why: str) -> HourbellError:
    """The error for a name that cannot be created here."""
    return _UNKNOWN[missing.kind](
        f"The {missing.kind} {missing.name!r} does not exist yet, and creating it in your transaction "
        f"would make others wait for its end. {why} Nothing was enqueued."
    )


def _busy(calls: Sequence[PlannedCall], detail: str) -> KeyBusy:
    call = calls[0]
    match detail:
        case "quota":
            what = "another open transaction is creating jobs under the same tenant's quota (waited 2 s)"
        case "idempotency_key":
            what = "another open transaction is using the same idempotency_key (waited 0.5 s)"
        case "unique_key":
            keyed = [each for each in calls if each.unique_key is not None]
            key = f'unique_key "{keyed[0].shown_key}"'
            if len(keyed) > 1:  # PostgreSQL does not say which
                key = f"one of {len(keyed):,} unique keys in this call"
            what = f"{key} is held by another open transaction (waited 0.5 s)"
        case _:
            what = detail
    return KeyBusy(f"{call.task}: {what}. Nothing was enqueued; your transaction is intact.")


def _refusal(call: PlannedCall, outcome: str, holder: int | None, detail: str) -> Exception:
    match outcome:
        case "unknown_task" | "unknown_queue" | "unknown_tenant":
            return MissingName(outcome.removeprefix("unknown_"), detail)
        case "duplicate":
            whose = "is used twice in this call"
            if holder is not None:
                whose = f"belongs to {job_text(holder)} ({detail})"
            return DuplicateJob(
                f'{call.task}: unique_key "{call.shown_key}" {whose}. Use on_duplicate="keep" to get that '
                f'job, or "replace" to replace it while it is waiting.',
                None if holder is None else job_text(holder),
            )
        case "over_quota":
            return QuotaExceeded(
                f"{call.task}: tenant {detail} has used up its job quota. Nothing was "
                f"enqueued. Wait until some jobs have ended, or raise the quota."
            )
    return InvalidArguments(f"{call.task}: {detail}. Nothing was enqueued.")
