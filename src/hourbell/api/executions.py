"""Executions: search, read, explain, cancel, retry, complete."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import JSON, answer, render_explanation, render_page
from hourbell.api.queries import ExecutionsQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_call,
    read_execution_filter,
    refuse_query,
)
from hourbell.api.routes import EngineDep, KeyRingDep, PathParam, Route
from hourbell.documents.completions import parse_completion
from hourbell.documents.render import render_execution
from hourbell.engine.operations import dead_letters, runs
from hourbell.engine.operations.completions import complete
from hourbell.engine.views import executions, explain
from hourbell.model.executions import FATES
from hourbell.model.ids import execution_text, parse_execution_id
from hourbell.security.access import OPERATE, PRODUCE, READ

EXECUTIONS = "/api/v1/executions"
EXECUTION = "/api/v1/executions/{execution_id}"


async def search_executions(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    wanted, by_duration, part = read_execution_filter(request)
    search = executions.longest_executions if by_duration else executions.search_executions
    page = await search(engine, wanted, part.page_size, part.page_token)
    return answer(render_page(request, page, render_execution))


async def get_execution(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    execution = await executions.get_execution(engine, parse_execution_id(execution_id))
    return answer(render_execution(execution))


async def cancel_execution(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    execution = await runs.cancel_execution(engine, parse_execution_id(execution_id), write)
    return answer(render_execution(execution), 200 if execution.status in FATES else 202)


async def retry_execution(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    execution = await dead_letters.retry_execution(engine, parse_execution_id(execution_id), write)
    return answer(render_execution(execution), 202)


async def complete_awaiting(
    engine: EngineDep, key_ring: KeyRingDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    token, outcome = parse_completion(await read_call(request))
    completed = await complete(engine, key_ring, parse_execution_id(execution_id), token, outcome)
    return answer(
        {"execution_id": execution_text(completed.execution_id), "status": completed.status.value}
    )


async def explain_execution(
    engine: EngineDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    explanation = await explain.explain_execution(engine, parse_execution_id(execution_id))
    return answer(render_explanation(explanation))


ROUTES = (
    Route(
        method="GET",
        path=EXECUTIONS,
        handler=search_executions,
        access=READ,
        summary="List executions of all jobs, latest created first",
        description=(
            "Includes live and ended executions, but not those that are only planned ahead. `from` "
            "and `to` filter by created_at. With job_id, the latest scheduled_for comes first. "
            "Each call examines a bounded number of executions, so a page may have fewer than "
            "page_size items even if more pages follow."
        ),
        query=ExecutionsQuery,
        answers={200: "ExecutionPage"},
    ),
    Route(
        method="GET",
        path=EXECUTION,
        handler=get_execution,
        access=READ,
        summary="Read an execution with all its attempts",
        answers={200: "Execution"},
    ),
    Route(
        method="POST",
        path=EXECUTION + "/cancel",
        handler=cancel_execution,
        access=PRODUCE,
        summary="Cancel an execution",
        description=(
            "200: the execution has ended. 202: it is queued or running; cancellation was "
            "requested and its worker will stop it."
        ),
        answers={200: "Execution", 202: "Execution"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=EXECUTION + "/retry",
        handler=retry_execution,
        access=OPERATE,
        summary="Retry an execution",
        description=(
            "A RETRYING execution is retried now. A DEAD execution is replayed under the same id, "
            "and its retry count starts over."
        ),
        answers={202: "Execution"},
        conflicts=True,
        error_codes=("duplicate_job",),
    ),
    Route(
        method="POST",
        path=EXECUTION + "/complete",
        handler=complete_awaiting,
        access=None,
        keyed=False,
        summary="Complete an execution that your webhook accepted asynchronously",
        description=(
            "Authenticated only by the completion token of the request that the target answered "
            "with 202 and Hourbell-Async: 1. Repeating the call returns the same response. A "
            "failure is retried according to the job's retry policy."
        ),
        body="Completion",
        media_types=(JSON,),
        answers={200: "CompletionNoted"},
        error_codes=("conflict",),
    ),
    Route(
        method="GET",
        path=EXECUTION + "/explain",
        handler=explain_execution,
        access=READ,
        summary="Explain what an execution is waiting for",
        answers={200: "Explanation"},
    ),
)
