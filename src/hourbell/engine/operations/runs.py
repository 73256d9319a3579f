"""Runs on request (now, or for a period in the past), and cancellations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from hourbell.documents.runs import parse_override
from hourbell.documents.schedules import timetable_of
from hourbell.engine.codes import (
    ORIGIN_BACKFILL,
    ORIGIN_RUN_NOW,
    OVERLAPS,
    notifies,
)
from hourbell.engine.core import Engine
from hourbell.engine.declarations import require_fitting_payload
from hourbell.engine.life.broken import unusable_schedule
from hourbell.engine.life.references import require_secrets_of
from hourbell.engine.operations.change import require_readable
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    ConcurrentChange,
    Idempotent,
    Write,
    insert_audit_row,
    store_answer,
    write_row,
)
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Conflict, FieldError, InvalidInput, JobNotActive
from hourbell.model.executions import FATES, Execution, ExecutionStatus, Reason
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import Job, JobStatus, encode_job
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Once
from hourbell.store.database import Connection
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError
from hourbell.timing.rules import between, compile_rule

_J = queries("jobs")
_E = queries("executions")
_A = queries("awaiting")

MAX_BACKFILL = 10_000

_EMPTY: Mapping[str, object] = {}
_RUN = CommitFailpoints("run.before_commit", "run.after_commit")
_CANCEL = CommitFailpoints("cancel.before_commit", "cancel.after_commit")


class Requested(msgspec.Struct, frozen=True):
    """The executions that a request created."""

    execution_ids: list[int]


async def run_now(
    engine: Engine, job_id: int, write: Write, document: object = _EMPTY
) -> Requested:
    """Run a job now, in addition to its schedule. A paused job can be run; a one-time job runs earlier.

    A document may replace the job's body or payload for this one run.
    """
    seen = await get_job(engine, job_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _RUN, seen.tenant_id, now, Requested)
    async for attempt in writing:
        job = await get_job(engine, job_id)
        require_readable(job, job.unreadable)
        tenant = await engine.tenant(job.tenant_id, now)
        override = parse_override(document, job)
        if override is not None:
            await require_secrets_of(engine, override)
            await require_fitting_payload(engine, override.action, "payload")
        spec = None if override is None else encode_job(override).decode()
        if isinstance(job.schedule, Once):
            async with attempt.statement():
                attempt.answer = await _run_one_time_now(engine, job, tenant, now, write, spec)
            continue
        async with attempt.transaction(tenant) as connection:
            await insert_audit_row(connection, write, now, tenant, job_id, "run", None, spec)
            attempt.answer = await _insert_runs(connection, job, ORIGIN_RUN_NOW, [now], now, spec)
    if writing.executed:
        engine.announce()
    return writing.answer


async def backfill(
    engine: Engine, job_id: int, after: datetime, through: datetime, write: Write
) -> Requested:
    """Run the job for its past occurrences in (after, through]; live ones are skipped."""
    seen = await get_job(engine, job_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _RUN, seen.tenant_id, now, Requested)
    async for attempt in writing:
        job = await get_job(engine, job_id)
        require_readable(job, job.unreadable)
        tenant = await engine.tenant(job.tenant_id, now)
        occurrences = _past_occurrences(job, after, through, now)
        async with attempt.transaction(tenant) as connection:
            await insert_audit_row(connection, write, now, tenant, job_id, "backfill", None, None)
            attempt.answer = await _insert_runs(connection, job, ORIGIN_BACKFILL, occurrences, now)
    if writing.executed:
        engine.announce()
    return writing.answer


async def cancel_execution(engine: Engine, execution_id: int, write: Write) -> Execution:
    """Cancel an execution: waiting ones end at once, queued or running ones are asked to stop."""
    first_seen = await get_execution(engine, execution_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _CANCEL, first_seen.tenant_id, now, Execution)
    async for attempt in writing:
        seen = await get_execution(engine, execution_id)
        tenant = await engine.tenant(seen.tenant_id, now)
        async with attempt.statement():
            attempt.answer = await _cancel(engine, seen, tenant, now, write)
    return writing.answer


async def _cancel(
    engine: Engine, seen: Execution, tenant: int, now: datetime, write: Write
) -> Execution:
    number = seen.execution_id
    if seen.status is ExecutionStatus.CANCELLED:
        await store_answer(engine, write, tenant, seen, now)
        return seen
    if seen.status in FATES:
        raise Conflict(f"{execution_text(number)} has already ended: {seen.status}.")
    cancelled = msgspec.structs.replace(
        seen,
        status=ExecutionStatus.CANCELLED,
        reason=Reason.CANCELLED,
        waiting_for=None,
        finished_at=now,
    )
    row = await engine.database.row(
        _E["cancel_execution"],
        now,
        number,
        seen.job_id,
        seen.status is ExecutionStatus.AWAITING,
        msgspec.json.encode(write_row(write, tenant, "cancel", cancelled, seen)).decode(),
    )
    engine.counts.count_ended(row["ended"])
    match row["outcome"]:
        case "changed":
            return cancelled
        case "unchanged":
            return seen
    raise ConcurrentChange


async def _insert_runs(
    connection: Connection,
    job: Job,
    origin: int,
    occurrences: list[datetime],
    now: datetime,
    spec: str | None = None,
) -> Requested:
    if job.status is JobStatus.CANCELLED:
        raise JobNotActive(job_text(job.job_id), job.status)
    rows = await connection.fetch(
        _E["insert_run"],
        job.job_id,
        now,
        origin,
        occurrences,
        job.start_deadline_seconds,
        job.deadline_seconds,
        OVERLAPS[job.overlap_policy],
        job.delivery is Delivery.AT_MOST_ONCE,
        spec,
        notifies(job),
    )
    return Requested([row["id"] for row in rows])


async def _run_one_time_now(
    engine: Engine, job: Job, tenant: int, now: datetime, write: Write, spec: str | None
) -> Requested:
    if not job.is_live:
        raise JobNotActive(job_text(job.job_id), job.status)
    requested = Requested([job.job_id])
    row = await engine.database.row(
        _E["run_one_time"],
        now,
        job.job_id,
        job.version,
        spec,
        msgspec.json.encode(write_row(write, tenant, "run", requested, requested)).decode(),
    )
    match row["outcome"]:
        case "changed" | "unchanged":
            return requested
        case "underway":
            raise Conflict(
                f"{job_text(job.job_id)} is already queued or running, so its input cannot be"
                " changed. Create another job."
            )
    raise ConcurrentChange


def _past_occurrences(
    job: Job, after: datetime, through: datetime, now: datetime
) -> list[datetime]:
    problems: list[FieldError] = []
    if isinstance(job.schedule, Once):
        raise Conflict("A one-time job has no occurrences to backfill. Create another job.")
    if through > now:
        problems.append(FieldError("through", "out_of_range", "must not be in the future"))
    if after >= through:
        problems.append(FieldError("after", "conflict", "must be earlier than through"))
    if problems:
        raise InvalidInput(problems)
    try:
        rule = compile_rule(*msgspec.structs.astuple(timetable_of(job.schedule, job.job_id)))
    except TimingError as error:
        raise unusable_schedule(job.job_id, error) from error
    occurrences = between(rule, after, through, MAX_BACKFILL + 1)
    if len(occurrences) > MAX_BACKFILL:
        last = occurrences[MAX_BACKFILL - 1] + timedelta(0)
        message = f"covers more than {MAX_BACKFILL} occurrences; end it at {last.isoformat()}"
        raise InvalidInput([FieldError("through", "out_of_range", message)])
    return occurrences
