"""Jobs as users see them. Plain reads, bounded pages, no locks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.schedules import first_run, timetable_of
from hourbell.engine.codes import COMPLETED, JOB_STATUSES, PAUSED, SCHEDULED
from hourbell.engine.core import Engine
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Page,
    by_id,
    page_of,
    page_source,
    read_token,
    walk,
)
from hourbell.model.errors import NotFound
from hourbell.model.ids import created_at, job_text
from hourbell.model.jobs import Job, JobStatus, JobType, NewJob, decode_job
from hourbell.model.schedules import Once
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError
from hourbell.timing.forecast import NextRun, next_runs
from hourbell.timing.zones import shown_in

_J = queries("jobs")
_C = queries("calendars")
_FAR = datetime.max.replace(tzinfo=UTC)
_LISTED = (SCHEDULED, PAUSED, COMPLETED)  # statuses of a list that names none
NO_TENANT = -1  # no tenant has this id


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; None: no restriction."""

    tenant_id: str | None = None
    status: JobStatus | None = None  # None: any but CANCELLED
    queue: str | None = None
    type: JobType | None = None
    name_prefix: str | None = None
    label: str | None = None  # as `team:billing`


async def get_job(engine: Engine, job_id: int) -> Job:
    """A job, whether it waits, runs or has ended."""
    jobs = await find_jobs(engine, [job_id], await engine.clock.now())
    if not jobs or not engine.may_see(jobs[0].tenant_id):
        raise NotFound("job", job_text(job_id))
    return jobs[0]


async def find_jobs(engine: Engine, job_ids: Sequence[int], now: datetime) -> list[Job]:
    """Those of these jobs that exist."""
    rows = await engine.database.fetch(_J["recurring"], job_ids)
    found = await skip_excluded(engine, [recurring_job(row, now) for row in rows], now)
    if len(found) == len(job_ids):
        return found
    return found + [_one_time(row) for row in await engine.database.fetch(_J["one_time"], job_ids)]


async def list_jobs(
    engine: Engine,
    wanted: JobFilter = JobFilter(),  # noqa: B008 - frozen
    page_size: int = 50,
    token: str | None = None,
) -> Page:
    """Jobs, newest first. A page reads a bounded number of rows: it may be empty but not last."""
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, wanted.tenant_id)
    queue = None
    if wanted.queue is not None:
        queue = await engine.database.value(_J["queue_by_name"], wanted.queue)
    if tenant == NO_TENANT or (wanted.queue is not None and queue is None):
        return Page([], None)
    now = await engine.clock.now()
    size = min(page_size, MAX_PAGE_SIZE)
    rest = (queue, wanted.name_prefix, wanted.label, *(() if tenant is None else (tenant,)))

    async def look(
        of_all: str, of_tenant: str, which: int | Sequence[int] | None
    ) -> Sequence[asyncpg.Record]:
        statement = _J[of_all if tenant is None else of_tenant]
        args = (before, size + 1, MAX_SCANNED_ROWS, which, *rest)
        return await walk(engine, statement, *args)

    status, sources = wanted.status, []
    if wanted.type is not JobType.ONE_TIME:
        code = None if status is None else JOB_STATUSES.index(status)
        # The index of a tenant's jobs is by status.
        codes = _LISTED if code is None and tenant is not None else [code]
        for each in codes:
            rows = await look("list_recurring", "list_recurring_of_tenant", each)
            sources.append(page_source(rows, size + 1, by_id, lambda row: recurring_job(row, now)))
    if wanted.type is not JobType.RECURRING:
        statuses = _LISTED if status is None else (JOB_STATUSES.index(status),)
        rows = await look("list_one_time", "list_one_time_of_tenant", statuses)
        sources.append(page_source(rows, size + 1, by_id, _one_time))
    page = page_of(sources, size)
    return msgspec.structs.replace(page, items=await skip_excluded(engine, page.items, now))


async def tenant_wanted(engine: Engine, name: str | None) -> int | None:
    """The id of the tenant that a list is restricted to; None: all, NO_TENANT: it does not exist."""
    name = engine.scope if name is None else name
    if name is None:
        return None
    engine.require_access(name)
    number = await engine.database.value(_J["tenant_by_name"], name)
    return NO_TENANT if number is None else int(number)


async def job_next_runs(engine: Engine, job_id: int, count: int) -> tuple[Job, list[NextRun]]:
    """A job and its next runs as currently known: none when it is paused or has ended."""
    job = await get_job(engine, job_id)
    if job.status is not JobStatus.SCHEDULED:
        return job, []
    if isinstance(job.schedule, Once):
        assert job.next_run_at is not None
        local = job.next_run_at.astimezone(shown_in(job.schedule.timezone))
        return job, [NextRun(job.next_run_at, local, "")]
    after = await engine.clock.now()
    if job.window.starts_at is not None:
        after = max(after, job.window.starts_at - timedelta(microseconds=1))
    if job.window.max_runs is not None:
        row = await engine.database.row(_J["recurring"], [job_id])
        count = min(count, job.window.max_runs - row["runs"])
    try:
        timetable = timetable_of(job.schedule, job_id)
        runs = next_runs(
            timetable.rule,
            timetable.zone,
            after,
            max(count, 1),
            timetable.dst_gap,
            timetable.dst_overlap,
        )
    except TimingError:  # it has no further run, or this node cannot compute it
        return job, []
    last = job.window.ends_at or _FAR
    runs = [run for run in runs[: max(count, 0)] if run.utc <= last]
    zone = shown_in(job.schedule.timezone)
    excluded = await excluded_dates(engine, job, after.astimezone(zone).date())
    return job, [_with_calendar(run, excluded.get(run.utc.astimezone(zone).date())) for run in runs]


async def skip_excluded(engine: Engine, jobs: list[Job], now: datetime) -> list[Job]:
    """These jobs, whose next runs are not on dates that their schedules exclude."""
    meant = {
        number: job.schedule
        for number, job in enumerate(jobs)
        if job.next_run_at is not None
        and not isinstance(job.schedule, Once)
        and job.schedule.exclude
    }
    if not meant:
        return jobs
    named = {
        (jobs[n].tenant_id, name) for n, schedule in meant.items() for name in schedule.exclude
    }
    rows = await engine.database.fetch(
        _C["dates_of_calendars"],
        [tenant for tenant, _ in named],
        [name for _, name in named],
        now.date() - timedelta(days=1),
    )
    dates = {(row["tenant"], row["name"]): row["dates"] for row in rows}
    shown = list(jobs)
    for number, schedule in meant.items():
        job = jobs[number]
        excluded = {
            day for name in schedule.exclude for day in dates.get((job.tenant_id, name), ())
        }
        with suppress(TimingError):
            next_run_at = first_run(schedule, job.window, job.job_id, now, excluded)
            shown[number] = msgspec.structs.replace(job, next_run_at=next_run_at)
    return shown


async def excluded_dates(engine: Engine, job: NewJob, first: date) -> dict[date, str]:
    """The dates from `first` on that the schedule of a job skips, with the name of a calendar."""
    if isinstance(job.schedule, Once) or not job.schedule.exclude:
        return {}
    names = list(job.schedule.exclude)
    rows = await engine.database.fetch(_C["excluded_dates"], job.tenant_id, names, first)
    return {row["day"]: row["calendar"] for row in rows}


def _with_calendar(run: NextRun, calendar: str | None) -> NextRun:
    if calendar is None:
        return run
    note = f"{run.local.date()} is in the calendar {calendar}: that run is skipped"
    return msgspec.structs.replace(run, note=f"{run.note}; {note}" if run.note else note)


def recurring_job(row: asyncpg.Record, now: datetime) -> Job:
    """A row of `jobs` as a job."""
    status = JOB_STATUSES[row["status"]]
    new = decode_job(row["spec"])
    return _job(
        new,
        row,
        status=status,
        next_run_at=next_run(new, row["id"], now) if status is JobStatus.SCHEDULED else None,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def next_run(job: NewJob, job_id: int, now: datetime) -> datetime | None:
    """The next run of a scheduled job."""
    if isinstance(job.schedule, Once):
        return job.schedule.at
    try:
        return first_run(job.schedule, job.window, job_id, now)
    except (
        TimingError
    ):  # e.g. its zone is unknown here: the job can still be read, changed and deleted
        return None


def _one_time(row: asyncpg.Record) -> Job:
    created = created_at(row["id"])
    status = JOB_STATUSES[row["status"]]
    return _job(
        decode_job(row["spec"]),
        row,
        status=status,
        next_run_at=row["run_at"] if status is JobStatus.SCHEDULED else None,
        created_at=created,
        updated_at=row["recorded_at"] or row["updated_at"] or created,
    )


def _job(new: NewJob, row: asyncpg.Record, **rest: Any) -> Job:
    fields = {field: getattr(new, field) for field in NewJob.__struct_fields__}
    fields["tenant_id"] = row["tenant_name"]
    return Job(**fields, job_id=row["id"], version=row["version"], **rest)
