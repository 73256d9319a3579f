"""Jobs: create, read, change, run."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import JSON, answer, render_explanation, render_page, render_requested
from hourbell.api.requests import (
    MERGE_PATCH,
    AnyRequest,
    read_bare_write,
    read_job_filter,
    read_part,
    read_write,
    refuse_query,
)
from hourbell.api.routes import InPath, Route, TheEngine
from hourbell.engine import change, create, explain, read
from hourbell.engine import request as runs
from hourbell.engine.documents import render_execution, render_job
from hourbell.model.fields import Problems, read_object
from hourbell.model.ids import job_text, parse_job_id

JOBS = "/api/v1/jobs"
JOB = "/api/v1/jobs/{job_id}"


async def create_job(engine: TheEngine, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    job = await create.create_job(engine, document, write)
    return answer(render_job(job), 201, {"Location": f"{JOBS}/{job_text(job.job_id)}"})


async def list_jobs(engine: TheEngine, request: AnyRequest) -> Response[bytes]:
    wanted = read_job_filter(request)
    page = await read.list_jobs(
        engine, wanted.tenant_id, wanted.status, wanted.page_size, wanted.page_token
    )
    return answer(render_page(page, render_job))


async def get_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    refuse_query(request)
    return answer(render_job(await read.get_job(engine, parse_job_id(job_id))))


async def update_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    document, write = await read_write(request, MERGE_PATCH, JSON)
    job = await change.update_job(engine, parse_job_id(job_id), document, write)
    return answer(render_job(job))


async def delete_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    write = await read_bare_write(request)
    return answer(render_job(await change.delete_job(engine, parse_job_id(job_id), write)))


async def pause_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    write = await read_bare_write(request)
    return answer(render_job(await change.pause_job(engine, parse_job_id(job_id), write)))


async def resume_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    write = await read_bare_write(request)
    return answer(render_job(await change.resume_job(engine, parse_job_id(job_id), write)))


async def run_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    write = await read_bare_write(request)
    requested = await runs.run_now(engine, parse_job_id(job_id), write)
    return answer(render_requested(requested), 202)


async def backfill_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    problems = Problems()
    reader = read_object(document, problems)
    reader.require("after")
    reader.require("through")
    after, through = reader.instant("after"), reader.instant("through")
    reader.finish()
    problems.raise_if_any()
    assert after is not None
    assert through is not None
    requested = await runs.backfill(engine, parse_job_id(job_id), after, through, write)
    return answer(render_requested(requested), 202)


async def explain_job(engine: TheEngine, request: AnyRequest, job_id: InPath) -> Response[bytes]:
    refuse_query(request)
    return answer(render_explanation(await explain.explain_job(engine, parse_job_id(job_id))))


async def list_executions(
    engine: TheEngine, request: AnyRequest, job_id: InPath
) -> Response[bytes]:
    part = read_part(request)
    page = await read.list_executions(engine, parse_job_id(job_id), part.page_size, part.page_token)
    return answer(render_page(page, render_execution))


ROUTES = (
    Route(
        method="POST",
        path=JOBS,
        handler=create_job,
        summary="Create a job",
        description="Once at an instant or after a delay, or again and again by a cron rule or an interval.",
        body="NewJob",
        media_types=(JSON,),
        answers={201: "Job"},
    ),
    Route(
        method="GET",
        path=JOBS,
        handler=list_jobs,
        summary="List jobs, newest first",
        query=("tenant_id", "status", "page_size", "page_token"),
        answers={200: "JobPage"},
    ),
    Route(
        method="GET",
        path=JOB,
        handler=get_job,
        summary="Read a job",
        answers={200: "Job"},
    ),
    Route(
        method="PATCH",
        path=JOB,
        handler=update_job,
        summary="Change a job",
        description=(
            "A merge patch (RFC 7396): what is given changes, null sets back to the default. The "
            "next due run is never lost, and none is made for the past."
        ),
        body="JobPatch",
        media_types=(MERGE_PATCH, JSON),
        answers={200: "Job"},
        conflicts=True,
    ),
    Route(
        method="DELETE",
        path=JOB,
        handler=delete_job,
        summary="End a job",
        description="No further run begins; what runs is let finish, and the history stays.",
        answers={200: "Job"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/pause",
        handler=pause_job,
        summary="Pause a job",
        description="No further run begins until the job is resumed.",
        answers={200: "Job"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/resume",
        handler=resume_job,
        summary="Resume a paused job",
        description="From now on: what the pause swallowed is not made up.",
        answers={200: "Job"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/run",
        handler=run_job,
        summary="Run a job now",
        description="Beside its schedule; a one-time job runs earlier. A paused job can be run.",
        answers={202: "Requested"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/backfill",
        handler=backfill_job,
        summary="Run a job for a stretch of the past",
        description="For its occurrences later than `after` and up to `through`.",
        body="Backfill",
        media_types=(JSON,),
        answers={202: "Requested"},
        conflicts=True,
    ),
    Route(
        method="GET",
        path=JOB + "/explain",
        handler=explain_job,
        summary="What a job waits for",
        answers={200: "Explanation"},
    ),
    Route(
        method="GET",
        path=JOB + "/executions",
        handler=list_executions,
        summary="List the executions of a job whose time has come, the latest first",
        query=("page_size", "page_token"),
        answers={200: "ExecutionPage"},
    ),
)
