"""read: jobs and executions as people see them. Plain reads, bounded pages, no locks."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import asyncpg
import msgspec

from hourbell.engine.codes import FATES, JOB_STATUSES
from hourbell.engine.core import Engine
from hourbell.engine.documents import first_run
from hourbell.model.errors import FieldError, InvalidInput, NotFound
from hourbell.model.executions import Attempt, Execution, ExecutionStatus, Reason
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.jobs import Job, JobStatus, NewJob, decode_job
from hourbell.model.schedules import Once
from hourbell.store.queries import queries

_J = queries("jobs")
_E = queries("executions")

MOST_PER_PAGE = 500
_NEWEST = 2**63 - 1
_FAR = datetime.max.replace(tzinfo=UTC)

# What stands in a page token, which anybody may have made up.
_Id = Annotated[int, msgspec.Meta(ge=0, le=_NEWEST)]
_Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Page(msgspec.Struct, frozen=True):
    """Part of a list; `next_token` asks for the following part."""

    items: list[Any]
    next_token: str | None


async def get_job(engine: Engine, job_id: int) -> Job:
    """A job, whether it waits, runs or has ended."""
    now = await engine.clock.now()
    row = await engine.database.row_or_none(_J["recurring"], job_id)
    if row is not None:
        return recurring_job(row, now)
    row = await engine.database.row_or_none(_J["one_time_live"], job_id)
    if row is not None:
        return _one_time_live(row)
    row = await engine.database.row_or_none(_J["one_time_ended"], job_id)
    if row is not None:
        return _one_time_ended(row)
    raise NotFound("job", job_text(job_id))


async def list_jobs(
    engine: Engine,
    tenant: str | None = None,
    status: JobStatus | None = None,
    page_size: int = 50,
    token: str | None = None,
) -> Page:
    """Jobs, newest first."""
    before = _NEWEST if token is None else _read_token(token, _Id)
    now = await engine.clock.now()
    number = None
    if tenant is not None:
        number = await engine.database.value(_J["tenant_by_name"], tenant)
        if number is None:
            return Page([], None)
    size = min(page_size, MOST_PER_PAGE)
    rows = await _list_recurring(engine, before, size + 1, number, status)
    found = {row["id"]: recurring_job(row, now) for row in rows}
    if status in (None, JobStatus.SCHEDULED, JobStatus.PAUSED):
        held = None if status is None else status is JobStatus.PAUSED
        rows = await engine.database.fetch(_J["list_one_time_live"], before, size + 1, number, held)
        found |= {row["id"]: _one_time_live(row) for row in rows}
    if status in (None, JobStatus.COMPLETED, JobStatus.CANCELLED):
        completed = None if status is None else status is JobStatus.COMPLETED
        rows = await engine.database.fetch(
            _J["list_one_time_ended"], before, size + 1, number, completed
        )
        # One may have ended since the read before; it is listed once.
        found |= {row["id"]: _one_time_ended(row) for row in rows}
    jobs = [found[job_id] for job_id in sorted(found, reverse=True)]
    more = len(jobs) > size
    return Page(jobs[:size], _token(jobs[size - 1].job_id) if more else None)


async def _list_recurring(
    engine: Engine, before: int, limit: int, tenant: int | None, status: JobStatus | None
) -> Sequence[asyncpg.Record]:
    code = None if status is None else JOB_STATUSES.index(status)
    if tenant is None:
        return await engine.database.fetch(_J["list_recurring"], before, limit, code)
    codes = list(range(len(JOB_STATUSES))) if code is None else [code]
    return await engine.database.fetch(_J["list_recurring_of_tenant"], before, limit, tenant, codes)


async def get_execution(engine: Engine, execution_id: int) -> Execution:
    """An execution, live or recorded, with every attempt."""
    row = await engine.database.row_or_none(_E["live"], execution_id)
    if row is not None:
        return _live(row, with_attempts=True)
    row = await engine.database.row_or_none(_E["recorded"], execution_id)
    if row is not None:
        return _recorded(row, with_attempts=True)
    raise NotFound("execution", execution_text(execution_id))


async def list_executions(
    engine: Engine, job_id: int, page_size: int = 50, token: str | None = None
) -> Page:
    """The executions of a job whose time has come, the latest first, live and recorded together."""
    before, before_id = (
        (_FAR, _NEWEST) if token is None else _read_token(token, tuple[_Instant, _Id])
    )
    job = await get_job(engine, job_id)
    now = await engine.clock.now()
    if isinstance(job.schedule, Once):
        only = await get_execution(engine, job_id)
        return Page([msgspec.structs.replace(only, attempts=())], None)
    size = min(page_size, MOST_PER_PAGE)
    args = (job_id, before, before_id, size + 1)
    found = [_live(row) for row in await engine.database.fetch(_E["live_of_job"], *args, now)]
    seen = {execution.execution_id for execution in found}  # one may end between the two reads
    for row in await engine.database.fetch(_E["recorded_of_job"], *args):
        if row["id"] not in seen:
            found.append(_recorded(row))
    found.sort(key=lambda e: (e.scheduled_for, e.execution_id), reverse=True)
    more = len(found) > size
    last = found[size - 1] if more else None
    return Page(found[:size], _token((last.scheduled_for, last.execution_id)) if last else None)


def recurring_job(row: asyncpg.Record, now: datetime) -> Job:
    """A row of `jobs` as a job."""
    status = JOB_STATUSES[row["status"]]
    new = decode_job(row["spec"])
    return _job(
        new,
        row,
        status=status,
        next_run_at=_next_run(new, row["id"], now) if status is JobStatus.SCHEDULED else None,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _next_run(job: NewJob, job_id: int, now: datetime) -> datetime | None:
    assert not isinstance(job.schedule, Once)
    return first_run(job.schedule, job.window, job_id, now)


def _one_time_live(row: asyncpg.Record) -> Job:
    created = created_at(row["id"])
    return _job(
        decode_job(row["spec"]),
        row,
        status=JobStatus.PAUSED if row["held"] else JobStatus.SCHEDULED,
        next_run_at=None if row["held"] else row["run_at"],
        created_at=created,
        updated_at=row["updated_at"] or created,
    )


def _one_time_ended(row: asyncpg.Record) -> Job:
    cancelled = FATES[row["status"]] in (ExecutionStatus.CANCELLED, ExecutionStatus.SUPERSEDED)
    return _job(
        decode_job(row["spec"]),
        row,
        status=JobStatus.CANCELLED if cancelled else JobStatus.COMPLETED,
        next_run_at=None,
        created_at=created_at(row["id"]),
        updated_at=row["recorded_at"],
    )


def _job(new: NewJob, row: asyncpg.Record, **rest: Any) -> Job:
    fields = {field: getattr(new, field) for field in NewJob.__struct_fields__}
    fields["tenant_id"] = row["tenant_name"]
    return Job(**fields, job_id=row["id"], version=row["version"], **rest)


def _live(row: asyncpg.Record, with_attempts: bool = False) -> Execution:
    running = row["claimed_at"] is not None
    if running:
        status = ExecutionStatus.RUNNING
    elif row["in_due"] or row["in_parked"] or row["in_held"]:
        status = ExecutionStatus.RETRYING if row["attempt"] else ExecutionStatus.SCHEDULED
    else:
        status = ExecutionStatus.QUEUED
    started = row["claimed_at"] or row["first_started_at"]
    first = row["first_started_at"] or row["claimed_at"]
    attempts = _attempts(row["history"])
    if running:
        attempts += (Attempt(attempt=row["attempt"] + 1, status=status, started_at=started),)
    return Execution(
        execution_id=row["id"],
        job_id=row["job"] or row["id"],
        tenant_id=row["tenant_name"],
        status=status,
        scheduled_for=row["occurrence"],
        started_at=started,
        attempt=row["attempt"] + running,
        lateness_ms=None if first is None else _milliseconds(first - row["occurrence"]),
        error=attempts[-1].error if attempts else None,
        attempts=attempts if with_attempts else (),
    )


def _recorded(row: asyncpg.Record, with_attempts: bool = False) -> Execution:
    status = FATES[row["status"]]
    attempts = _attempts(row["history"])
    if row["session"] is not None:
        attempts += (
            Attempt(
                attempt=row["attempt"],
                status=ExecutionStatus.FAILED if status is ExecutionStatus.DEAD else status,
                started_at=row["started_at"],
                finished_at=row["finished_at"],
                error=row["error"],
                kind=row["reason"],
            ),
        )
    return Execution(
        execution_id=row["id"],
        job_id=row["job"],
        tenant_id=row["tenant_name"],
        status=status,
        reason=None if row["reason"] is None else Reason(row["reason"]),
        scheduled_for=row["scheduled_for"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        attempt=row["attempt"],
        lateness_ms=row["lateness_ms"],
        error=row["error"],
        result=None if row["result"] is None else msgspec.json.decode(row["result"]),
        missed=row["missed"],
        missed_through=row["missed_through"],
        attempts=attempts if with_attempts else (),
    )


class _Ended(msgspec.Struct):
    """One object of `history`, as hourbell.add_attempt writes it."""

    attempt: int
    started_at: datetime
    finished_at: datetime
    reason: str | None
    error: str | None


def _attempts(history: str | None) -> tuple[Attempt, ...]:
    if history is None:
        return ()
    return tuple(
        Attempt(
            attempt=ended.attempt,
            status=ExecutionStatus.FAILED,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            error=ended.error,
            kind=ended.reason,
        )
        for ended in msgspec.json.decode(history, type=list[_Ended])
    )


def _milliseconds(delta: Any) -> int:
    return int(delta.total_seconds() * 1000)


def _token(position: object) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def _read_token(token: str, shape: Any) -> Any:
    try:
        padded = token + "=" * (-len(token) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=shape)
    except (binascii.Error, msgspec.MsgspecError, ValueError):
        problem = FieldError("page_token", "bad_format", "is not one that a list has given out")
        raise InvalidInput([problem]) from None
