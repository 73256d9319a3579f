"""Tasks and hosts of webhooks: how their runs went."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response

from hourbell.api.answers import answer
from hourbell.api.queries import TasksQuery
from hourbell.api.requests import AnyRequest, read_tasks_query, refuse_query
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.problems import shown_key
from hourbell.engine.views import tasks
from hourbell.engine.views.tasks import TaskFigures
from hourbell.model.errors import NotFound
from hourbell.model.ids import execution_text, session_text
from hourbell.model.instants import format_instant
from hourbell.security.access import READ


async def list_tasks(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    window, order = read_tasks_query(request)
    found = await tasks.tasks(engine, window, order)
    return answer(
        {
            "at": format_instant(found.at),
            "window": window,
            "begin": format_instant(found.begin),
            "bucket_seconds": int(found.bucket.total_seconds()),
            "items": [_render(item) for item in found.items],
            "left_out": found.left_out,
            "other_runs": found.other_runs,
            "sampled": found.sampled,
            "at_least": ["waiting"] if found.waiting_at_least else [],
        }
    )


async def get_task(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    refuse_query(request)
    await engine.declarations.refresh(engine.database, 0, engine.clock.monotonic())
    declared = engine.declarations.of_task(name)
    if declared is None:
        raise NotFound("task", shown_key(name))
    return answer({"task": name, "job": declared.job, "arguments": declared.arguments[0]})


def _render(item: TaskFigures) -> dict[str, Any]:
    last = item.last_error
    return {
        "task": item.task,
        "host": item.host,
        "runs": item.runs,
        "failures": item.failures,
        "duration_ms": None if item.durations is None else msgspec.structs.asdict(item.durations),
        "waiting": item.waiting,
        "workers": item.workers,
        "first_workers": [
            {"session_id": session_text(each.session_id), "worker_id": each.worker_id}
            for each in item.first_workers
        ],
        "last_error": None
        if last is None
        else {
            "execution_id": execution_text(last.execution_id),
            "minute": format_instant(last.minute),
            "error": last.error,
        },
        "trend": item.trend,
    }


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/tasks",
        handler=list_tasks,
        access=READ,
        summary="List tasks and hosts with their runs, durations and what waits",
        description=(
            "The tasks, and the hosts of webhooks, that ran in a recent window or have waiting "
            "executions. They belong to the cell: a key of one tenant gets an empty list."
        ),
        query=TasksQuery,
        answers={200: "Tasks"},
    ),
    Route(
        method="GET",
        path="/api/v1/tasks/{name}",
        handler=get_task,
        access=READ,
        summary="Read what a task declares for its jobs",
        description=(
            "As the leading version of its app declares it: what a job takes from the task if its "
            "document leaves it out, and the arguments that its payload may have."
        ),
        answers={200: "DeclaredTask"},
    ),
)
