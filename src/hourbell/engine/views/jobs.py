"""Jobs as users see them. Plain reads, bounded pages, no locks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.schedules import first_run, timetable_of
from hourbell.engine.codes import FATES, JOB_STATUSES
from hourbell.engine.core import Engine
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Page,
    PageSource,
    by_id,
    page_of,
    page_source,
    page_token,
    read_token,
    walk,
)
from hourbell.model.errors import NotFound
from hourbell.model.executions import ExecutionStatus
from hourbell.model.ids import created_at, job_text
from hourbell.model.jobs import (
    DEFAULT_TENANT,
    LIVE_STATUSES,
    ONE_TIME_STATUSES,
    Job,
    JobStatus,
    JobType,
    NewJob,
    TaskAction,
    decode_readable,
)
from hourbell.model.schedules import Cron, Every, Once, Schedule, Window
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError
from hourbell.timing.forecast import NextRun, next_runs
from hourbell.timing.zones import shown_in

_J = queries("jobs")
_C = queries("calendars")
_U = queries("pauses")
# Stand-ins for what cannot be read. A client that sends a whole job back is refused by the rule.
_UNREADABLE_SCHEDULE = Cron("(unreadable)")
_UNREADABLE_ACTION = TaskAction(name="unreadable")
_FAR = datetime.max.replace(tzinfo=UTC)
_LISTED = frozenset(JobStatus) - {JobStatus.CANCELLED}  # statuses of a list that names none
_WAITING = frozenset({JobStatus.SCHEDULED, JobStatus.QUEUED, JobStatus.RETRYING})
_LEASED = frozenset({JobStatus.RUNNING, JobStatus.AWAITING})
_LATE_SECONDS = 60  # waiting for longer than this
NO_TENANT = -1  # no tenant has this id
_PARTS = (JobType.RECURRING, JobType.ONE_TIME)  # of a list by name, in this order
_FEW_TENANTS = 1_000  # the jobs of this many tenants can be searched tenant by tenant,
_SCANNED_BY_TENANTS = 200  # this many of each


class _Statements(msgspec.Struct, frozen=True):
    """The statements that list one kind of jobs."""

    of_all: str
    of_tenant: str
    by_tenants: str  # of all, found tenant by tenant


_RECURRING = _Statements(
    _J["list_recurring"], _J["list_recurring_of_tenant"], _J["list_recurring_by_tenants"]
)
_ONE_TIME = _Statements(
    _J["list_one_time"], _J["list_one_time_of_tenant"], _J["list_one_time_by_tenants"]
)


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to list; None: no restriction."""

    tenant_id: str | None = None
    statuses: frozenset[JobStatus] | None = None  # any of these; None: any but CANCELLED
    late: bool = False  # one-time jobs that are QUEUED for more than a minute
    queue: str | None = None
    type: JobType | None = None
    name_prefix: str | None = None
    label: str | None = None  # as `team:billing`
    text: str | None = None  # in the name, the task, the host or a label, whatever the case


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
    rows = await engine.database.fetch(_J["one_time"], job_ids, now)
    return found + [_one_time(row) for row in rows]


async def list_jobs(
    engine: Engine,
    wanted: JobFilter = JobFilter(),  # noqa: B008 - frozen
    page_size: int = 50,
    token: str | None = None,
) -> Page:
    """Jobs, newest first.

    A page reads a bounded number of rows. With a filter it may be empty but not last.
    """
    now = await engine.clock.now()
    size = min(page_size, MAX_PAGE_SIZE)
    page = page_of(
        await _sources(engine, wanted, size, token, lambda row: recurring_job(row, now), _one_time),
        size,
    )
    return msgspec.structs.replace(page, items=await skip_excluded(engine, page.items, now))


async def search_jobs(
    engine: Engine, wanted: JobFilter, page_size: int = 50, token: str | None = None
) -> Page:
    """Jobs, newest first; if they are looked for by name or text, recurring jobs come first.

    An index has the names of recurring jobs, so a few pages show all of them. One-time jobs are
    looked for among the newest, which may take many pages.
    """
    if wanted.type is not None or (wanted.name_prefix is None and wanted.text is None):
        return await list_jobs(engine, wanted, page_size, token)
    part, before = (0, NEWEST) if token is None else read_token(token, tuple[Id, Id])
    size = min(page_size, MAX_PAGE_SIZE)
    found: list[Job] = []
    for number in range(part, len(_PARTS)):
        of_part = msgspec.structs.replace(wanted, type=_PARTS[number])
        page = await list_jobs(engine, of_part, size - len(found), page_token(before))
        found += page.items
        if page.next_token is not None:
            return Page(found, page_token((number, read_token(page.next_token, Id))))
        before = NEWEST
        if len(found) == size and number + 1 < len(_PARTS):
            return Page(found, page_token((number + 1, NEWEST)))
    return Page(found, None)


def after_prefix(prefix: str) -> str | None:
    """The first text, by code points, after all that begin with the prefix; None: there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)  # no surrogates


async def selected_ids(
    engine: Engine, wanted: JobFilter, most: int, token: str | None = None
) -> tuple[list[int], bool]:
    """The ids of jobs that a list would show, newest first, and whether there may be more.

    Recurring and one-time jobs are looked for separately: a cell with many executions has few
    one-time jobs among the newest, and they do not hide recurring jobs here.
    """
    sources = await _sources(engine, wanted, most, token, by_id, by_id)
    found = sorted({number for source in sources for number in source.found}, reverse=True)
    stopped = any(source.floor is not None for source in sources)
    return found[:most], stopped or len(found) > most


async def _sources(
    engine: Engine,
    wanted: JobFilter,
    size: int,
    token: str | None,
    recurring: Callable[[asyncpg.Record], Any],
    one_time: Callable[[asyncpg.Record], Any],
) -> list[PageSource[int]]:
    """What recurring and one-time jobs contribute to a page; the functions make items of rows."""
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, wanted.tenant_id)
    queue = None
    if wanted.queue is not None:
        queue = await engine.database.value(_J["queue_by_name"], wanted.queue)
    if tenant == NO_TENANT or (wanted.queue is not None and queue is None):
        return []
    rest = (queue, wanted.name_prefix, wanted.label)
    of_tenant = () if tenant is None else (tenant,)
    text = None if wanted.text is None else wanted.text.lower()

    async def look(
        statements: _Statements,
        which: int | Sequence[int] | None,
        make: Callable[[asyncpg.Record], Any],
        by_tenants: bool,
        *states: object,
    ) -> PageSource[int]:
        """What a list contributes; `by_tenants`: there is another way if it meets few that are wanted."""
        statement = statements.of_all if tenant is None else statements.of_tenant
        args = (size + 1, MAX_SCANNED_ROWS, which, *rest, *states, *of_tenant, text)
        found = page_source(await walk(engine, statement, before, *args), size + 1, by_id, make)
        floor = found.floor
        if tenant is not None or not by_tenants or floor is None or len(found.found) > size:
            return found
        if not await engine.database.value(_J["few_tenants"], _FEW_TENANTS):
            return found
        most = max(size + 1, _SCANNED_BY_TENANTS)
        args = (size + 1, most, which, *rest, *states, text)
        rows = await walk(engine, statements.by_tenants, floor, *args)
        more = page_source(rows, size + 1, by_id, make, most)
        return PageSource(found.found | more.found, more.floor)

    statuses, sources = _LISTED if wanted.statuses is None else wanted.statuses, []
    if wanted.late:
        statuses &= {JobStatus.QUEUED}
    end = None if wanted.name_prefix is None else after_prefix(wanted.name_prefix)
    codes: list[int | None] = [
        number for number, status in enumerate(JOB_STATUSES) if status in statuses
    ]
    if wanted.statuses is None and not wanted.late and (tenant is None or end is not None):
        codes = [None]  # any but cancelled; only the index of a tenant's jobs is by status
    if wanted.type is JobType.ONE_TIME:
        pass
    elif end and await _are_few(engine, wanted.name_prefix, end):
        for code in codes:
            by_name = (before, size + 1, MAX_SCANNED_ROWS, code, *rest, tenant, end, text)
            rows = await walk(engine, _J["list_recurring_named"], *by_name)
            sources.append(page_source(rows, size + 1, by_id, recurring))
    else:
        for code in codes:
            sources.append(await look(_RECURRING, code, recurring, code is not None))
    if wanted.type is not JobType.RECURRING:
        now = await engine.clock.now()
        live = statuses & LIVE_STATUSES
        fates = [number for number, fate in enumerate(FATES) if ONE_TIME_STATUSES[fate] in statuses]
        # Those of which there is a table are few among many others.
        few = (before, size + 1, MAX_SCANNED_ROWS, sorted(live), *rest, tenant, text)
        if live and live <= _LEASED:
            rows = await walk(engine, _J["list_one_time_running"], *few)
            sources.append(page_source(rows, size + 1, by_id, one_time))
            live = frozenset()
        elif live == {JobStatus.PAUSED}:
            rows = await walk(engine, _J["list_one_time_paused"], *few)
            sources.append(page_source(rows, size + 1, by_id, one_time))
            live = frozenset()
        if live or fates:
            exact = None if live == LIVE_STATUSES else sorted(live)
            late = now - timedelta(seconds=_LATE_SECONDS) if wanted.late else None
            sources.append(await look(_ONE_TIME, fates, one_time, True, exact, now, late))
    return sources


async def _are_few(engine: Engine, prefix: str | None, end: str) -> bool:
    """Whether all recurring jobs with names from `prefix` on and before `end` can be read."""
    (row,) = await walk(engine, _J["count_named"], prefix, end, MAX_SCANNED_ROWS)
    return bool(row["n"] < MAX_SCANNED_ROWS)


async def tenant_wanted(engine: Engine, name: str | None) -> int | None:
    """The id of the tenant that a list is restricted to; None: all, NO_TENANT: it does not exist."""
    name = engine.scope if name is None else name
    if name is None:
        return None
    engine.require_access(name)
    number = await engine.database.value(_J["tenant_by_name"], name)
    return NO_TENANT if number is None else int(number)


async def recorded_under(engine: Engine, name: str | None) -> str:
    """The tenant under which an act by filter is recorded: that of the filter, if it exists."""
    if name is not None and await tenant_wanted(engine, name) != NO_TENANT:
        return name
    return engine.scope or DEFAULT_TENANT


async def job_next_runs(engine: Engine, job_id: int, count: int) -> tuple[Job, list[NextRun]]:
    """A job and its next runs as currently known: of a paused schedule, those after its pause.

    A pause without an end counts as if it ended now.
    """
    job = await get_job(engine, job_id)
    is_paused = job.status is JobStatus.PAUSED and not isinstance(job.schedule, Once)
    if job.next_run_at is None and not is_paused:
        return job, []
    if isinstance(job.schedule, Once):
        assert job.next_run_at is not None
        local = job.next_run_at.astimezone(shown_in(job.schedule.timezone))
        return job, [NextRun(job.next_run_at, local, "")]
    after = await engine.clock.now()
    if is_paused:
        until = await engine.database.value(_U["pause_end"], job_id)
        after = max(after, until or after)
    if job.window.max_runs is not None:
        row = await engine.database.row(_J["recurring"], [job_id])
        count = min(count, job.window.max_runs - row["runs"])
    excluded = await excluded_dates(engine, job.tenant_id, job.schedule, after)
    return job, upcoming_runs(job.schedule, job.window, job_id, after, count, excluded)


def upcoming_runs(
    schedule: Cron | Every,
    window: Window,
    job_id: int,
    after: datetime,
    count: int,
    excluded: Mapping[date, str],
) -> list[NextRun]:
    """The next runs of a job with this schedule; `excluded`: dates that it skips, with a reason."""
    if window.starts_at is not None:
        after = max(after, window.starts_at - timedelta(microseconds=1))
    count = min(count, window.max_runs or count)
    try:
        timetable = timetable_of(schedule, job_id)
        runs = next_runs(
            timetable.rule,
            timetable.zone,
            after,
            max(count, 1),
            timetable.dst_gap,
            timetable.dst_overlap,
        )
    except TimingError:  # it has no further run, or this node cannot compute it
        return []
    last = window.ends_at or _FAR
    zone = shown_in(schedule.timezone)
    return [
        _with_calendar(run, excluded.get(run.utc.astimezone(zone).date()))
        for run in runs[: max(count, 0)]
        if run.utc <= last
    ]


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


async def excluded_dates(
    engine: Engine, tenant: str, schedule: Schedule, after: datetime
) -> dict[date, str]:
    """The dates from `after` on that a schedule skips, with the name of a calendar."""
    if isinstance(schedule, Once) or not schedule.exclude:
        return {}
    first = after.astimezone(shown_in(schedule.timezone)).date()
    names = list(schedule.exclude)
    rows = await engine.database.fetch(_C["excluded_dates"], tenant, names, first)
    return {row["day"]: row["calendar"] for row in rows}


def _with_calendar(run: NextRun, calendar: str | None) -> NextRun:
    if calendar is None:
        return run
    note = f"{run.local.date()} is in the calendar {calendar}: that run is skipped"
    return msgspec.structs.replace(run, note=f"{run.note}; {note}" if run.note else note)


def recurring_job(row: asyncpg.Record, now: datetime) -> Job:
    """A row of `jobs` as a job."""
    status = JOB_STATUSES[row["status"]]
    job = _job(
        row,
        name=row["name"],
        type=JobType.RECURRING,
        schedule=_UNREADABLE_SCHEDULE,
        status=status,
        next_run_at=None,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
    if status is not JobStatus.SCHEDULED:
        return job
    return msgspec.structs.replace(job, next_run_at=next_run(job, row["id"], now))


def next_run(job: NewJob, job_id: int, now: datetime) -> datetime | None:
    """The next run of a scheduled job."""
    if isinstance(job.schedule, Once):
        return job.schedule.at
    try:
        return first_run(job.schedule, job.window, job_id, now)
    except TimingError:
        # For example, its zone is unknown here. The job can still be read, changed and deleted.
        return None


def _one_time(row: asyncpg.Record) -> Job:
    created = created_at(row["id"])
    if row["fate"] is not None:
        status = ONE_TIME_STATUSES[FATES[row["fate"]]]
    elif row["in_paused"]:
        status = JobStatus.PAUSED
    else:
        status = ONE_TIME_STATUSES[ExecutionStatus(row["status"])]
    return _job(
        row,
        name="unreadable",
        type=JobType.ONE_TIME,
        schedule=Once(row["run_at"]),
        status=status,
        next_run_at=row["run_at"] if status in _WAITING else None,
        created_at=created,
        updated_at=row["recorded_at"] or row["updated_at"] or created,
    )


def _job(row: asyncpg.Record, name: str, type: JobType, schedule: Schedule, **rest: Any) -> Job:
    """A row as a job; what of its document cannot be read is replaced by these values."""
    new, unreadable, why = decode_readable(
        row["spec"], name=name, type=type, schedule=schedule, action=_UNREADABLE_ACTION
    )
    fields = {field: getattr(new, field) for field in NewJob.__struct_fields__}
    fields["tenant_id"] = row["tenant_name"]
    if why is not None:
        fields |= {"type": type, "problem": _problem(unreadable, why), "unreadable": unreadable}
    return Job(**fields, job_id=row["id"], version=row["version"], **rest)


def _problem(unreadable: Sequence[str], why: str) -> str:
    what = "it" if len(unreadable) == len(NewJob.__struct_fields__) else ", ".join(unreadable)
    return (
        f"This version of Hourbell cannot read {what}: {why}. A newer version may have stored it:"
        " upgrade all processes, or replace what cannot be read, or delete the job."
    )
