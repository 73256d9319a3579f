"""waiting_for: what the executions of a list wait for, as the code that `explain` would give.

The place of an execution says most of it (`hourbell.location_of`). The rest is looked up for a
whole list by one statement: whether a worker serves the queue, and why the blocker blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.operations.limits import (
    BLOCKER_CONCURRENCY_KEY,
    BLOCKER_FAILURE,
    BLOCKER_JOB,
    BLOCKER_QUEUE,
    BLOCKER_TARGET,
    BLOCKER_TASK,
    BLOCKER_TENANT,
)
from hourbell.engine.views.pages import walk
from hourbell.model.executions import Execution
from hourbell.store.queries import queries

_L = queries("limits")
_ADMISSION, _PARKED, _WORKER_SLOT = "admission", "parked", "worker_slot"
_LIMITED = {BLOCKER_QUEUE: "queue", BLOCKER_TENANT: "tenant", BLOCKER_TARGET: "target"}


async def with_waiting_for(engine: Engine, executions: Sequence[Execution]) -> list[Execution]:
    """These executions, each with the code of what it waits for."""
    due = {
        each.execution_id: each.queue
        for each in executions
        if each.waiting_for in (_ADMISSION, _PARKED, _WORKER_SLOT)
    }
    if not due:
        return [*executions]
    now = await engine.clock.now()
    rows = await walk(engine, _L["waiting_for"], [*due], now, [*due.values()])
    by_id = {row["id"]: row for row in rows}
    return [
        msgspec.structs.replace(each, waiting_for=_code(each, by_id[each.execution_id]))
        if each.execution_id in due
        else each
        for each in executions
    ]


def _code(execution: Execution, row: asyncpg.Record) -> str | None:
    if not row["served"]:
        return "no_worker"
    if execution.waiting_for == _PARKED:
        return _blocker_code(row)
    if execution.waiting_for == _WORKER_SLOT and row["in_suspects"]:
        return "quarantine"
    return execution.waiting_for


def _blocker_code(row: asyncpg.Record) -> str:
    kind = row["kind"]
    if kind == BLOCKER_JOB:
        return "overlap"
    if kind == BLOCKER_CONCURRENCY_KEY:
        return "concurrency_key"
    if kind == BLOCKER_FAILURE:
        return "admission_failed"
    if kind == BLOCKER_TASK and row["lacks_task"]:
        return "no_worker_for_task"
    if kind in _LIMITED and row["is_full"]:
        return f"{_LIMITED[kind]}_concurrency"
    if kind in _LIMITED and row["has_rate"]:
        return f"{_LIMITED[kind]}_rate"
    return _ADMISSION  # the gate is about to look at it, or has already
