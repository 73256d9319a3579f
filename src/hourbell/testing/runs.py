"""What was enqueued and what has run, for queries of a test, and the text of failed assertions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hourbell.engine.codes import FATES as FATE_CODES
from hourbell.errors import InvalidArguments
from hourbell.model.executions import FATES, ExecutionStatus
from hourbell.model.ids import execution_text, job_text
from hourbell.model.instants import format_instant
from hourbell.model.policies import Priority
from hourbell.sdk.tasks import Task
from hourbell.sdk.values import Seconds, seconds_of
from hourbell.testing.errors import Misuse

_SHOWN = 10  # runs listed in a failed assertion
_MISSING = object()


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is waiting, running or ended; for a schedule, one run of it."""

    number: int  # of the execution
    job_id: str
    execution_id: str
    task: str
    args: dict[str, Any]  # as JSON, by parameter
    status: str  # SCHEDULED, QUEUED, RUNNING, RETRYING, SUCCEEDED, DEAD, …
    at: datetime  # when it is due, or was last due
    scheduled_for: datetime  # its nominal time
    is_scheduled: bool  # a run of a schedule, not enqueued
    attempt: int  # 0 until it first runs
    tenant: str
    queue: str
    priority: Priority
    labels: dict[str, str]
    unique_key: str | None
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None  # why it ended
    error: str | None
    result: Any

    @property
    def has_ended(self) -> bool:
        return ExecutionStatus(self.status) in FATES


class _Action(msgspec.Struct):
    payload: dict[str, Any] | None = None


class _Spec(msgspec.Struct):
    action: _Action
    labels: dict[str, str] = {}


def read_runs(rows: Iterable[Sequence[Any]]) -> list[Run]:
    """The rows of the statement `runs`."""
    return [_read(*row) for row in rows]


def _read(
    number: int,
    job: int,
    task: str,
    is_scheduled: bool,
    occurrence: datetime,
    run_at: datetime,
    failed_attempts: int,
    tenant: str,
    queue: str,
    priority: int,
    spec: str,
    unique_key: str | None,
    live_status: str | None,
    fate: int | None,
    started_at: datetime | None,
    finished_at: datetime | None,
    reason: str | None,
    error: str | None,
    result: str | None,
    has_run: bool,
) -> Run:
    status = live_status if fate is None else FATE_CODES[fate].value
    assert status is not None
    document = msgspec.json.decode(spec, type=_Spec)
    return Run(
        number=number,
        job_id=job_text(job),
        execution_id=execution_text(number),
        task=task,
        args=document.action.payload or {},
        status=status,
        at=run_at,
        scheduled_for=occurrence,
        is_scheduled=is_scheduled,
        attempt=failed_attempts + (has_run or status in ("RUNNING", "AWAITING")),
        tenant=tenant,
        queue=queue,
        priority=Priority(priority),
        labels=document.labels,
        unique_key=None if unique_key is None else unique_key.removeprefix(f"{task}:"),
        started_at=started_at,
        finished_at=finished_at,
        reason=reason,
        error=error,
        result=None if result is None else msgspec.json.decode(result),
    )


class Wanted(msgspec.Struct, frozen=True):
    """What an assertion is looking for."""

    task: Task[..., Any]
    args: dict[str, Any]  # as JSON
    at: datetime | None
    within: timedelta

    def differences(self, run: Run) -> list[str]:
        """The names of what differs in a run; empty if it matches."""
        found = [
            name
            for name, value in self.args.items()
            if _argument(self.task, run.args, name) != value
        ]
        if self.at is not None and abs(run.at - self.at) > self.within:
            found.append("at")
        return found

    def shown(self) -> str:
        text = self.task.name
        if self.args:
            text += f" with {_shown_args(self.args)}"
        if self.at is not None:
            text += f" at {format_instant(self.at)} ± {self.within.total_seconds():g} s"
        return text


def wanted(
    task: Task[..., Any],
    args: Mapping[str, Any],
    now: datetime,
    at: datetime | timedelta | None = None,
    within: Seconds | None = None,
) -> Wanted:
    """What an assertion is looking for. Raises Misuse for arguments that no job of the task can have."""
    if isinstance(at, timedelta):
        at = now + at
    if at is not None and at.tzinfo is None:
        raise Misuse("at= has no time zone. Use a datetime with tzinfo, or a timedelta from now.")
    checked = {name: _stored(task, name, value) for name, value in args.items()}
    return Wanted(
        task, checked, at, timedelta(seconds=1.0 if within is None else seconds_of(within))
    )


def _stored(task: Task[..., Any], name: str, value: Any) -> Any:
    """An argument as stored: with a misspelt one, an assertion would always hold, or never."""
    signature = task._signature
    known = signature._parameters
    if name not in known and signature._keywords is None:
        raise Misuse(
            f"{task.name} has no parameter {name}. Its parameters: {', '.join(known) or 'none'}."
        )
    kind = signature._types[name if name in known else str(signature._keywords)]
    if name == signature._star:
        kind = list[kind]  # type: ignore[valid-type]
    try:
        encoded = signature._encoder.encode(value)
        msgspec.json.decode(encoded, type=kind, dec_hook=signature._dec_hook)
    except (msgspec.ValidationError, TypeError, ValueError, InvalidArguments) as error:
        raise Misuse(
            f"{task.name}: no job can have {name}={value!r}, so this would never match: {error}."
        ) from None
    return msgspec.json.decode(encoded)


def _argument(task: Task[..., Any], args: Mapping[str, Any], name: str) -> Any:
    """An argument of a job; one that was not given has its default."""
    if name in args:
        return args[name]
    parameter = task._signature._parameters.get(name)
    if parameter is None or parameter.default is parameter.empty:
        return _MISSING
    return msgspec.json.decode(task._signature._encoder.encode(parameter.default))


def failed_assertion(
    looked_for: Wanted, count: int | None, found: Sequence[Run], seen: Sequence[Run], now: datetime
) -> str:
    """Why an assertion failed: what was expected, and what there is instead."""
    number = {None: "at least 1", 0: "none"}.get(count, str(count))
    lines = [
        f"Expected {number} enqueued: {looked_for.shown()}. Found {len(found)}.",
        f"The clock shows {format_instant(now)}.",
    ]
    of_task = [run for run in seen if run.task in (looked_for.task.name, *looked_for.task.aliases)]
    waiting = [run for run in of_task if not run.has_ended]
    ended = [run for run in of_task if run.has_ended]
    for title, runs in (("Enqueued", waiting), ("Ended (not counted)", ended)):
        if runs:
            lines.append(f"{title} for this task ({len(runs)}):")
            lines += [_line(run, looked_for) for run in runs[:_SHOWN]]
            if len(runs) > _SHOWN:
                lines.append(f"  … and {len(runs) - _SHOWN} more")
    others = sorted({run.task for run in seen if not run.has_ended} - {looked_for.task.name})
    if others:
        lines.append(f"Enqueued for other tasks: {', '.join(others)}.")
    elif not of_task:
        lines.append(
            "Nothing is enqueued. A job in a transaction that is still open is visible only with "
            "connection=."
        )
    return "\n".join(lines)


def _line(run: Run, looked_for: Wanted) -> str:
    when = run.finished_at if run.has_ended else run.at
    text = f"  {run.job_id}  {_shown_args(run.args) or 'no arguments'}  {run.status}"
    text += "" if when is None else f" at {format_instant(when)}"
    differences = looked_for.differences(run)
    return f"{text}  (different: {', '.join(differences)})" if differences else text


def _shown_args(args: Mapping[str, Any]) -> str:
    text = ", ".join(f"{name}={value!r}" for name, value in args.items())
    return text if len(text) <= 200 else text[:197] + "..."
