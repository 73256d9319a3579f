"""tasks: how the runs of each task, and of the webhooks of each host, went, and what waits.

Runs are attempts that have ended, as the leader has counted them by minute
(engine/leader/activity.py). What waits, and the workers, are those of now. Workers and other
tenants' runs belong to the cell: a caller restricted to one tenant sees nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import MINUTE, minute_of
from hourbell.engine.views.activity import CLASSES, WINDOWS, percentiles
from hourbell.engine.views.pages import walk
from hourbell.store.queries import queries

_Q = queries("tasks")

_BUCKETS = {  # the length of a part of the trend, by window
    "15m": MINUTE,
    "1h": timedelta(minutes=2),
    "6h": timedelta(minutes=15),
    "24h": timedelta(hours=1),
}
MAX_TASKS = 200
_EXAMINED = 5_000  # waiting executions of each place


class Durations(msgspec.Struct, frozen=True):
    """How long attempts took, in milliseconds."""

    p50: float
    p95: float
    max: float


class LastError(msgspec.Struct, frozen=True):
    """How an attempt failed, in the last minute in which one did."""

    execution_id: int
    minute: datetime
    error: str | None


class ServingWorker(msgspec.Struct, frozen=True):
    """A live worker that runs a task."""

    session_id: int
    worker_id: str


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A task, or the webhooks of a host."""

    task: str | None
    host: str | None
    runs: int
    failures: int
    durations: Durations | None  # None: nothing ran
    waiting: int
    workers: int
    first_workers: Sequence[ServingWorker]
    last_error: LastError | None
    trend: Sequence[int]  # runs of each bucket, the oldest first

    @property
    def name(self) -> str:
        """The name of the task or host."""
        return self.task or self.host or ""


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """What ran in a window until now, by task and host, and what waits."""

    at: datetime
    begin: datetime
    bucket: timedelta
    items: Sequence[TaskFigures]
    left_out: int  # tasks and hosts beyond MAX_TASKS
    other_runs: int  # attempts of those that were not counted by themselves
    sampled: bool  # some minutes were counted by a part of their executions
    waiting_at_least: bool  # the numbers of waiting executions are lower bounds


_KEYS: dict[str, Callable[[TaskFigures], float]] = {
    "runs": lambda item: item.runs,
    "failures": lambda item: item.failures,
    "p50": lambda item: item.durations.p50 if item.durations else -1,
    "p95": lambda item: item.durations.p95 if item.durations else -1,
    "max": lambda item: item.durations.max if item.durations else -1,
    "waiting": lambda item: item.waiting,
    "workers": lambda item: item.workers,
}
ORDERS = (*_KEYS, "name")


async def tasks(engine: Engine, window: str, order: str) -> Tasks:
    """The tasks and hosts with runs in the window or with waiting executions, in this order."""
    now = await engine.clock.now()
    length, _ = WINDOWS[window]
    bucket = _BUCKETS[window]
    begin = minute_of(now - length) + MINUTE
    if engine.scope is not None:
        return Tasks(
            at=now,
            begin=begin,
            bucket=bucket,
            items=(),
            left_out=0,
            other_runs=0,
            sampled=False,
            waiting_at_least=False,
        )
    rows = await engine.database.fetch(_Q["runs"], begin, bucket, now)
    others = await engine.database.row(_Q["others"], begin)
    waiting = await walk(engine, _Q["waiting"], now, _EXAMINED)
    figures = summarize(rows, begin, bucket, now, {row["target"]: row["n"] for row in waiting})
    named_rows = await engine.database.fetch(_Q["names"], list(figures))
    names = {row["target"]: row for row in named_rows}
    serving = await engine.database.fetch(_Q["workers"], list(figures), now)
    workers = {row["target"]: row for row in serving}
    named = {
        target: msgspec.structs.replace(
            each,
            task=names[target]["task"],
            host=names[target]["host"],
            **_serving(workers.get(target)),
        )
        for target, each in figures.items()
    }
    ordered = sorted(named.values(), key=lambda item: item.name)
    if order != "name":
        ordered.sort(key=_KEYS[order], reverse=True)
    return Tasks(
        at=now,
        begin=begin,
        bucket=bucket,
        items=await _with_errors(engine, ordered[:MAX_TASKS]),
        left_out=max(len(ordered) - MAX_TASKS, 0),
        other_runs=others["runs"],
        sampled=others["sampled"],
        waiting_at_least=any(row["cut"] for row in waiting),
    )


def summarize(
    rows: Sequence[asyncpg.Record],
    begin: datetime,
    bucket: timedelta,
    now: datetime,
    waiting: Mapping[int, int],
) -> dict[int, TaskFigures]:
    """The figures of each target that has run since `begin` or has waiting executions.

    `rows`: for each target, one by class of durations and one by bucket.
    """
    number = int((now - begin) / bucket) + 1
    figures = {}
    of_target: dict[int, list[asyncpg.Record]] = {target: [] for target in waiting}
    for row in rows:
        of_target.setdefault(row["target"], []).append(row)
    for target, found in of_target.items():
        classes = [0] * CLASSES
        trend = [0] * number
        longest, failures = 0.0, 0
        last: asyncpg.Record | None = None
        for row in found:
            if row["class"] is None:
                trend[int((row["at"] - begin) / bucket)] += row["runs"]
                continue
            classes[row["class"]] += row["runs"]
            failures += row["failures"]
            longest = max(longest, row["longest"] * 1000)
            if row["failed"] is not None and (last is None or row["failed_at"] > last["failed_at"]):
                last = row
        usual = percentiles(classes)
        figures[target] = TaskFigures(
            task=None,
            host=None,
            runs=sum(classes),
            failures=failures,
            durations=None
            if usual is None
            else Durations(min(usual.p50, longest), min(usual.p95, longest), round(longest, 1)),
            waiting=waiting.get(target, 0),
            workers=0,
            first_workers=(),
            last_error=None if last is None else LastError(last["failed"], last["failed_at"], None),
            trend=trend,
        )
    return figures


def _serving(row: asyncpg.Record | None) -> dict[str, Any]:
    if row is None:
        return {}
    first = [
        ServingWorker(session, name)
        for session, name in zip(row["sessions"], row["names"], strict=True)
    ]
    return {"workers": row["n"], "first_workers": first}


async def _with_errors(engine: Engine, items: Sequence[TaskFigures]) -> Sequence[TaskFigures]:
    failed = [item.last_error.execution_id for item in items if item.last_error is not None]
    rows = await walk(engine, _Q["errors"], failed)
    errors = {row["id"]: row["error"] for row in rows}
    return [
        item
        if item.last_error is None
        else msgspec.structs.replace(
            item,
            last_error=msgspec.structs.replace(
                item.last_error, error=errors.get(item.last_error.execution_id)
            ),
        )
        for item in items
    ]
