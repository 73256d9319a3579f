"""Jobs: create, read, change, run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from litestar import Response

from hourbell.api.answers import (
    JSON,
    answer,
    render_audit,
    render_bulk,
    render_created_names,
    render_explanation,
    render_job_with,
    render_next_runs,
    render_page,
    render_requested,
    render_result,
)
from hourbell.api.page_tokens import position_in
from hourbell.api.queries import (
    DeletionQuery,
    JobExecutionsQuery,
    JobsQuery,
    LastOutcomesQuery,
    NamedDeletionQuery,
    NextRunsQuery,
    PageQuery,
    TenantQuery,
    UniqueKeyDeletionQuery,
    UniqueKeyQuery,
)
from hourbell.api.requests import (
    MAX_BATCH_BYTES,
    MERGE_PATCH,
    NDJSON,
    AnyRequest,
    conditional,
    read_bare_write,
    read_batch,
    read_count,
    read_deletion,
    read_job_execution_filter,
    read_job_filter,
    read_keyed_deletion,
    read_last_outcomes,
    read_named_deletion,
    read_new_job,
    read_optional_write,
    read_page_request,
    read_tenant,
    read_unique_key,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.pauses import parse_bulk_pause, parse_bulk_resume, parse_pause
from hourbell.documents.render import render_execution
from hourbell.documents.runs import parse_backfill
from hourbell.engine.core import Engine
from hourbell.engine.life import create
from hourbell.engine.operations import audit, bulk_changes, change, runs, upsert
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views import executions, explain, job_details, job_keys, jobs
from hourbell.engine.views.resources import MAX_COUNTED
from hourbell.model.ids import job_text, parse_job_id
from hourbell.model.jobs import Job
from hourbell.security.access import OPERATE, PRODUCE, READ

JOBS = "/api/v1/jobs"
JOB = "/api/v1/jobs/{job_id}"
BY_NAME = JOBS + "/by-name/{name}"
BY_UNIQUE_KEY = JOBS + "/by-unique-key"


async def create_job(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_new_job(request)
    return await _created(
        engine, await _create_in_span(engine, write, partial(create.create_job, engine, document))
    )


async def create_jobs(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    with engine.batch_memory.reserving(engine.scope) as reserve:
        batch, write = await read_batch(request, reserve)
        if engine.traces is None:
            results = await create.create_batch(engine, batch.items, batch.read, write)
        else:
            with engine.traces.sending(write.traceparent) as span:
                write = msgspec.structs.replace(write, traceparent=span.traceparent)
                results = await create.create_batch(engine, batch.items, batch.read, write)
                span.created_many(
                    None, sum(not isinstance(each, create.Refused) for each in results)
                )
    return answer({"results": [render_result(result) for result in results]})


async def put_job(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    write = conditional(request, write)
    return await _created(
        engine,
        await _create_in_span(engine, write, partial(upsert.put_job, engine, name, document)),
    )


async def get_job_by_name(
    engine: EngineDep, request: AnyRequest, name: PathParam
) -> Response[bytes]:
    tenant = read_tenant(request)
    return await _job(
        engine, await job_keys.get_job_by_key(engine, job_keys.name_key(engine, name, tenant))
    )


async def delete_job_by_name(
    engine: EngineDep, request: AnyRequest, name: PathParam
) -> Response[bytes]:
    write, cancel, tenant = await read_named_deletion(request)
    key = job_keys.name_key(engine, name, tenant)
    return await _job(
        engine, await change.delete_job_by_key(engine, key, conditional(request, write), cancel)
    )


async def get_job_by_unique_key(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    text, tenant = read_unique_key(request)
    return await _job(
        engine, await job_keys.get_job_by_key(engine, job_keys.unique_key(engine, text, tenant))
    )


async def delete_job_by_unique_key(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    write, cancel, text, tenant = await read_keyed_deletion(request)
    key = job_keys.unique_key(engine, text, tenant)
    return await _job(
        engine, await change.delete_job_by_key(engine, key, conditional(request, write), cancel)
    )


async def _create_in_span(
    engine: Engine, write: Write, create_job: Callable[[Write], Awaitable[create.Created]]
) -> create.Created:
    """Create a job; in a span, if this process has traces."""
    if engine.traces is None:
        return await create_job(write)
    with engine.traces.sending(write.traceparent) as span:
        created = await create_job(msgspec.structs.replace(write, traceparent=span.traceparent))
        span.created(created.job.action, created.job.job_id)
        return created


async def _created(engine: Engine, created: create.Created) -> Response[bytes]:
    job = await _without_excluded(engine, created.job)
    if created.existed:
        return await _job(engine, job)
    details = await job_details.details_of(engine, [job])
    content = render_job_with(details)(job) | render_created_names(created)
    location = f"{JOBS}/{job_text(job.job_id)}"
    return answer(content, 201, {"ETag": f'"{job.version}"', "Location": location})


async def list_jobs(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    wanted, outcomes, is_counted, part = read_job_filter(request)
    page = await jobs.search_jobs(engine, wanted, part.page_size, part.page_token)
    details = await job_details.details_of(engine, page.items, outcomes)
    body = render_page(request, page, render_job_with(details))
    if is_counted:
        ids, more = await jobs.selected_ids(engine, wanted, MAX_COUNTED)
        body["total"] = {"count": len(ids), "at_least": more}
    return answer(body)


async def get_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    outcomes = read_last_outcomes(request)
    return await _job(engine, await jobs.get_job(engine, parse_job_id(job_id)), outcomes=outcomes)


async def update_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    document, write = await read_write(request, MERGE_PATCH, JSON)
    write = conditional(request, write)
    job = await change.update_job(engine, parse_job_id(job_id), document, write)
    return await _job(engine, await _without_excluded(engine, job))


async def delete_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    write, cancel = await read_deletion(request)
    write = conditional(request, write)
    return await _job(engine, await change.delete_job(engine, parse_job_id(job_id), write, cancel))


async def pause_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    document, write = await read_optional_write(request)
    pause = parse_pause(document)
    write = conditional(request, write)
    return await _job(engine, await change.pause_job(engine, parse_job_id(job_id), write, pause))


async def pause_jobs(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    selection, pause = parse_bulk_pause(document)
    selection = msgspec.structs.replace(selection, token=position_in(request, selection.token))
    paused = await bulk_changes.pause_jobs(engine, selection, pause, write)
    return answer(render_bulk(request, "paused", paused))


async def resume_jobs(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    selection, reason = parse_bulk_resume(document)
    selection = msgspec.structs.replace(selection, token=position_in(request, selection.token))
    resumed = await bulk_changes.resume_jobs(engine, selection, reason, write)
    return answer(render_bulk(request, "resumed", resumed))


async def resume_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    write = conditional(request, await read_bare_write(request))
    job = await change.resume_job(engine, parse_job_id(job_id), write)
    return await _job(engine, await _without_excluded(engine, job))


async def run_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    document, write = await read_optional_write(request)
    requested = await runs.run_now(engine, parse_job_id(job_id), write, document)
    return answer(render_requested(requested), 202)


async def backfill_job(
    engine: EngineDep, request: AnyRequest, job_id: PathParam
) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    after, through = parse_backfill(document)
    requested = await runs.backfill(engine, parse_job_id(job_id), after, through, write)
    return answer(render_requested(requested), 202)


async def explain_job(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    refuse_query(request)
    return answer(render_explanation(await explain.explain_job(engine, parse_job_id(job_id))))


async def next_runs(engine: EngineDep, request: AnyRequest, job_id: PathParam) -> Response[bytes]:
    count = read_count(request)
    return answer(render_next_runs(*await jobs.job_next_runs(engine, parse_job_id(job_id), count)))


async def list_job_audit(
    engine: EngineDep, request: AnyRequest, job_id: PathParam
) -> Response[bytes]:
    part = read_page_request(request)
    number = parse_job_id(job_id)
    page = await audit.list_job_audit(engine, number, part.page_size, part.page_token)
    return answer(render_page(request, page, render_audit))


async def list_executions(
    engine: EngineDep, request: AnyRequest, job_id: PathParam
) -> Response[bytes]:
    wanted, expand_missed, part = read_job_execution_filter(request)
    number = parse_job_id(job_id)
    page = await executions.list_executions(
        engine, number, part.page_size, part.page_token, wanted, expand_missed
    )
    return answer(render_page(request, page, render_execution))


async def _without_excluded(engine: Engine, job: Job) -> Job:
    """A job that was just created or changed, with its next run on a date that is not excluded."""
    (planned,) = await jobs.skip_excluded(engine, [job], job.updated_at)
    return planned


async def _job(
    engine: Engine,
    job: Job,
    outcomes: int = 0,
) -> Response[bytes]:
    """A job response, with the version as ETag."""
    details = await job_details.details_of(engine, [job], outcomes)
    content = render_job_with(details)(job)
    return answer(content, headers={"ETag": f'"{job.version}"'})


ROUTES = (
    Route(
        method="POST",
        path=JOBS,
        handler=create_job,
        access=PRODUCE,
        summary="Create a job",
        description=(
            "Runs once, at an instant or after a delay, or repeatedly, by a cron rule or an interval."
        ),
        body="NewJob",
        media_types=(JSON,),
        answers={201: "CreatedJob", 200: "Job"},
        creates_jobs=True,
    ),
    Route(
        method="POST",
        path=JOBS + "/batch",
        handler=create_jobs,
        access=PRODUCE,
        summary="Create many jobs",
        description=(
            "Takes an array of jobs, or one job per line. The response has one result per job, in "
            "order: its id or its error. An invalid job does not affect the others. One "
            "idempotency key covers the whole batch."
        ),
        body="NewJobs",
        media_types=(JSON, NDJSON),
        max_body_bytes=MAX_BATCH_BYTES,
        answers={200: "BatchResults"},
    ),
    Route(
        method="PUT",
        path=BY_NAME,
        handler=put_job,
        access=PRODUCE,
        summary="Create or replace a job by name",
        description=(
            "Creates the job (201), or updates the job previously put under this name to match the "
            "document (200); omitted fields return to their defaults. Concurrent requests for the "
            "same name wait for each other for at most 5 seconds."
        ),
        body="NamedJob",
        media_types=(JSON,),
        answers={201: "CreatedJob", 200: "Job"},
        conflicts=True,
        conditional=True,
    ),
    Route(
        method="POST",
        path=JOBS + "/pause",
        handler=pause_jobs,
        access=OPERATE,
        summary="Pause many jobs",
        description=(
            "Pauses the scheduled jobs that match the filter, newest first, at most `limit` of "
            "them; without a filter, all jobs that the caller may see. Continue with "
            "next_page_token. Jobs created later are not paused."
        ),
        body="BulkPause",
        media_types=(JSON,),
        answers={200: "BulkPaused"},
    ),
    Route(
        method="POST",
        path=JOBS + "/resume",
        handler=resume_jobs,
        access=OPERATE,
        summary="Resume many jobs",
        description=(
            "Resumes the paused jobs that match the filter, newest first, at most `limit` of "
            "them; with `reason`, only those paused with that reason. Continue with "
            "next_page_token."
        ),
        body="BulkResume",
        media_types=(JSON,),
        answers={200: "BulkResumed"},
    ),
    Route(
        method="GET",
        path=BY_NAME,
        handler=get_job_by_name,
        access=READ,
        summary="Read a job by name",
        description=(
            "The job that was put under this name and has not ended. Jobs created by POST are not "
            "found here, even if they have the same name."
        ),
        query=TenantQuery,
        answers={200: "Job"},
    ),
    Route(
        method="DELETE",
        path=BY_NAME,
        handler=delete_job_by_name,
        access=PRODUCE,
        summary="Delete a job by name",
        description="Deletes the job that GET returns for this name, which frees the name.",
        query=NamedDeletionQuery,
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
    ),
    Route(
        method="GET",
        path=BY_UNIQUE_KEY,
        handler=get_job_by_unique_key,
        access=READ,
        summary="Read a job by its unique key",
        description="The job of the tenant that has this unique_key and has not ended.",
        query=UniqueKeyQuery,
        answers={200: "Job"},
        refers_to_others=True,
    ),
    Route(
        method="DELETE",
        path=BY_UNIQUE_KEY,
        handler=delete_job_by_unique_key,
        access=PRODUCE,
        summary="Delete a job by its unique key",
        description="Deletes the job that GET returns for this key, which frees the key.",
        query=UniqueKeyDeletionQuery,
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
        refers_to_others=True,
    ),
    Route(
        method="GET",
        path=JOBS,
        handler=list_jobs,
        access=READ,
        summary="List jobs, newest first",
        description=(
            "Deleted (CANCELLED) jobs are listed only with status=CANCELLED. With `name_prefix` "
            "recurring jobs come first. Each call examines a bounded number of jobs, so a page may "
            "have fewer than page_size items even if more "
            "pages follow; the last page has no next_page_token."
        ),
        query=JobsQuery,
        answers={200: "JobPage"},
    ),
    Route(
        method="GET",
        path=JOB,
        handler=get_job,
        access=READ,
        query=LastOutcomesQuery,
        summary="Read a job",
        answers={200: "Job"},
    ),
    Route(
        method="PATCH",
        path=JOB,
        handler=update_job,
        access=PRODUCE,
        summary="Change a job",
        description=(
            "A merge patch (RFC 7396): only the given fields change, and null resets a field to its default. "
            "The next due run is never lost, and no run is created for the past."
        ),
        body="JobPatch",
        media_types=(MERGE_PATCH, JSON),
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
    ),
    Route(
        method="DELETE",
        path=JOB,
        handler=delete_job,
        access=PRODUCE,
        summary="Delete a job",
        description=(
            "No further runs start. A running execution finishes, or is cancelled with "
            "running=cancel. GET still returns 200, with status CANCELLED and next_run_at null; "
            "executions and audit trail remain readable. Job lists omit the job unless "
            "status=CANCELLED is given. A one-time job that has ended keeps its status; one "
            "that is running is then in the status of how that run ended."
        ),
        query=DeletionQuery,
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/pause",
        handler=pause_job,
        access=PRODUCE,
        summary="Pause a job",
        description=(
            "No further runs start until the job is resumed, by a request or at `until`. A job that "
            "is already paused gets the new reason and end."
        ),
        body="Pause",
        body_required=False,
        media_types=(JSON,),
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/resume",
        handler=resume_job,
        access=PRODUCE,
        summary="Resume a paused job",
        description="Runs continue from now on; occurrences during the pause are not made up.",
        answers={200: "Job"},
        conditional=True,
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/run",
        handler=run_job,
        access=PRODUCE,
        summary="Run a job now",
        description=(
            "An extra run of a recurring job; a one-time job runs earlier than scheduled. Works on "
            "paused jobs. The body or payload can be overridden for this run."
        ),
        body="Run",
        body_required=False,
        media_types=(JSON,),
        answers={202: "Requested"},
        conflicts=True,
    ),
    Route(
        method="POST",
        path=JOB + "/backfill",
        handler=backfill_job,
        access=PRODUCE,
        summary="Run a job for past occurrences",
        description="Runs the occurrences later than `after` and up to and including `through`.",
        body="Backfill",
        media_types=(JSON,),
        answers={202: "Requested"},
        conflicts=True,
    ),
    Route(
        method="GET",
        path=JOB + "/explain",
        handler=explain_job,
        access=READ,
        summary="Explain what a job is waiting for",
        answers={200: "Explanation"},
    ),
    Route(
        method="GET",
        path=JOB + "/next-runs",
        handler=next_runs,
        access=READ,
        summary="List the next runs of a job",
        description=(
            "As currently known; empty for a job that has ended or runs once and is paused. Of a "
            "paused schedule, those after the end of the pause, or from now on if it has none."
        ),
        query=NextRunsQuery,
        answers={200: "NextRuns"},
    ),
    Route(
        method="GET",
        path=JOB + "/audit",
        handler=list_job_audit,
        access=READ,
        summary="List the changes of a job and their actors, latest first",
        query=PageQuery,
        answers={200: "AuditPage"},
    ),
    Route(
        method="GET",
        path=JOB + "/executions",
        handler=list_executions,
        access=READ,
        summary="List the due and past executions of a job, latest first",
        description=(
            "`from` and `to` filter by created_at. Each call examines a bounded number of "
            "executions, so a page may have fewer than page_size items even if more pages follow. "
            "Consecutive missed occurrences are one entry: `missed` is their number, "
            "`missed_through` the last of them. With `expand=missed` each occurrence is an entry "
            "with the same execution id, except where the schedule has changed since."
        ),
        query=JobExecutionsQuery,
        answers={200: "ExecutionPage"},
    ),
)
