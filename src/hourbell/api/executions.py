"""Executions: read, explain, cancel."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import answer, render_explanation
from hourbell.api.requests import AnyRequest, read_bare_write, refuse_query
from hourbell.api.routes import InPath, Route, TheEngine
from hourbell.engine import explain, read
from hourbell.engine import request as runs
from hourbell.engine.documents import render_execution
from hourbell.model.executions import FATES
from hourbell.model.ids import parse_execution_id

EXECUTION = "/api/v1/executions/{execution_id}"


async def get_execution(
    engine: TheEngine, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    refuse_query(request)
    execution = await read.get_execution(engine, parse_execution_id(execution_id))
    return answer(render_execution(execution))


async def cancel_execution(
    engine: TheEngine, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    write = await read_bare_write(request)
    execution = await runs.cancel_execution(engine, parse_execution_id(execution_id), write)
    return answer(render_execution(execution), 200 if execution.status in FATES else 202)


async def explain_execution(
    engine: TheEngine, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    refuse_query(request)
    explanation = await explain.explain_execution(engine, parse_execution_id(execution_id))
    return answer(render_explanation(explanation))


ROUTES = (
    Route(
        method="GET",
        path=EXECUTION,
        handler=get_execution,
        summary="Read an execution with every attempt",
        answers={200: "Execution"},
    ),
    Route(
        method="POST",
        path=EXECUTION + "/cancel",
        handler=cancel_execution,
        summary="Cancel an execution",
        description=(
            "200: it has ended. 202: it is queued or runs; whoever holds it next was asked to "
            "stop it."
        ),
        answers={200: "Execution", 202: "Execution"},
        conflicts=True,
    ),
    Route(
        method="GET",
        path=EXECUTION + "/explain",
        handler=explain_execution,
        summary="What an execution waits for",
        answers={200: "Explanation"},
    ),
)
