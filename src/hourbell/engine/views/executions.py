"""Executions as users see them, live and ended. Plain reads, bounded pages, no locks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.engine.codes import FATES, ORIGINS
from hourbell.engine.core import Engine
from hourbell.engine.views.jobs import NO_TENANT, get_job, tenant_wanted
from hourbell.engine.views.missed import expand_stretches
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Instant,
    Page,
    PageSource,
    by_id,
    page_of,
    page_source,
    read_token,
    walk,
)
from hourbell.engine.views.waiting_for import with_waiting_for
from hourbell.model.errors import NotFound
from hourbell.model.executions import (
    Attempt,
    Execution,
    ExecutionStatus,
    Origin,
    Reason,
    stored_reason,
)
from hourbell.model.ids import created_at, execution_text, first_id_at
from hourbell.model.jobs import Job
from hourbell.model.schedules import Once
from hourbell.store.queries import queries

_J = queries("jobs")
_E = queries("executions")
_FAR = datetime.max.replace(tzinfo=UTC)
_MAX_RUNS_SCANNED = 1_000  # runs of one job that are read for one page
_COMPARED = 2_000  # executions of which a page has the longest
_MAX_READS = 4  # for these
_LEASED = {ExecutionStatus.RUNNING, ExecutionStatus.AWAITING}


class ExecutionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which executions to list; None: no restriction."""

    tenant_id: str | None = None
    job_id: int | None = None
    statuses: frozenset[ExecutionStatus] | None = None  # any of these; no execution is FAILED
    reason: Reason | None = None
    queue: str | None = None
    label: str | None = None  # of the job, as `team:billing`
    created_from: datetime | None = None  # by the creation time in the id
    created_to: datetime | None = None  # exclusive


async def get_execution(engine: Engine, execution_id: int) -> Execution:
    """An execution, live or ended, with every attempt."""
    execution = await _find_execution(engine, execution_id)
    if execution is None or not engine.may_see(execution.tenant_id):
        raise NotFound("execution", execution_text(execution_id))
    return (await with_waiting_for(engine, [execution]))[0]


async def _find_execution(engine: Engine, execution_id: int) -> Execution | None:
    now = await engine.clock.now()
    row = await engine.database.row_or_none(_E["execution"], execution_id, now)
    return None if row is None else execution_of(row, with_attempts=True)


async def list_executions(
    engine: Engine,
    job_id: int,
    page_size: int = 50,
    token: str | None = None,
    wanted: ExecutionFilter = ExecutionFilter(),  # noqa: B008 - frozen
    expand_missed: bool = False,
) -> Page:
    """The due and past executions of a job, newest first, live and ended together.

    A stretch of missed occurrences is one entry, or one per occurrence (`expand_missed`).
    """
    of_job = msgspec.structs.replace(wanted, job_id=job_id)
    page = await _list_of_job(engine, of_job, page_size, token, expand_missed)
    return Page(await with_waiting_for(engine, page.items), page.next_token)


async def search_executions(
    engine: Engine, wanted: ExecutionFilter, page_size: int = 50, token: str | None = None
) -> Page:
    """The due and past executions of all jobs, by creation, newest first, live and ended."""
    page = await _search(engine, wanted, page_size, token)
    return Page(await with_waiting_for(engine, page.items), page.next_token)


async def longest_executions(
    engine: Engine, wanted: ExecutionFilter, page_size: int = 50, token: str | None = None
) -> Page:
    """The longest of the newest 2,000 that match, the longest first; the next page has older ones.

    Running ones are as long as they have run. If few match, fewer are compared.
    """
    found: list[Execution] = []
    for _ in range(_MAX_READS):
        page = await _search(engine, wanted, MAX_PAGE_SIZE, token)
        found += page.items
        token = page.next_token
        if token is None or len(found) >= _COMPARED:
            break
    now = await engine.clock.now()
    lasted = [(_lasted(each, now), each) for each in found]
    ran = sorted(
        ((lasts, each) for lasts, each in lasted if lasts is not None),
        key=lambda pair: (-pair[0], pair[1].execution_id),
    )
    items = [each for _, each in ran[: min(page_size, MAX_PAGE_SIZE)]]
    return Page(await with_waiting_for(engine, items), token)


def _lasted(execution: Execution, now: datetime) -> int | None:
    if execution.status in _LEASED and execution.started_at is not None:
        return _milliseconds(now - execution.started_at)
    return execution.duration_ms


async def _search(
    engine: Engine, wanted: ExecutionFilter, page_size: int, token: str | None
) -> Page:
    if wanted.job_id is not None:
        try:
            return await _list_of_job(engine, wanted, page_size, token)
        except NotFound:
            return Page([], None)
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, wanted.tenant_id)
    queue = None
    if wanted.queue is not None:
        queue = await engine.database.value(_J["queue_by_name"], wanted.queue)
    if tenant == NO_TENANT or (wanted.queue is not None and queue is None):
        return Page([], None)
    if wanted.created_to is not None:
        before = min(before, first_id_at(wanted.created_to))
    first = 0 if wanted.created_from is None else first_id_at(wanted.created_from)
    size = min(page_size, MAX_PAGE_SIZE)
    sources = []

    async def look(statement: str, statuses: Sequence[str] | None, *rest: object) -> None:
        args = (before, size + 1, MAX_SCANNED_ROWS, first, tenant, statuses, queue, wanted.label)
        rows = await walk(engine, _E[statement], *args, *rest)
        sources.append(page_source(rows, size + 1, by_id, execution_of))

    live, fates = _split(wanted)
    if live and live <= _LEASED:
        # Found first: one that ends between the reads is listed once, in its earlier state.
        await look("list_running", sorted(live))
        live = frozenset()
    if live is None or live or fates is None or fates:
        statuses = sorted(live) if live else None
        codes = None if fates is None else sorted(FATES.index(fate) for fate in fates)
        rest = (codes, await engine.clock.now(), wanted.reason, live is None or bool(live))
        for name in ("list_all",) if tenant is None else ("list_one_time", "list_recurring"):
            await look(name, statuses, *rest)
    return page_of(sources, size)


def _split(
    wanted: ExecutionFilter,
) -> tuple[frozenset[ExecutionStatus] | None, frozenset[ExecutionStatus] | None]:
    """The requested statuses of live and of ended executions; None: all of them."""
    none: frozenset[ExecutionStatus] = frozenset()
    if wanted.statuses is None:
        return (None if wanted.reason is None else none), None
    fates = wanted.statuses & frozenset(FATES)
    # Only ended executions have a reason.
    return (wanted.statuses - fates if wanted.reason is None else none), fates


async def _list_of_job(
    engine: Engine,
    wanted: ExecutionFilter,
    page_size: int,
    token: str | None,
    expand_missed: bool = False,
) -> Page:
    assert wanted.job_id is not None
    before, before_id = (_FAR, NEWEST) if token is None else read_token(token, tuple[Instant, Id])
    job = await get_job(engine, wanted.job_id)
    if wanted.label is not None and not _has_label(job, wanted.label):
        return Page([], None)
    now = await engine.clock.now()
    if isinstance(job.schedule, Once):
        only = await get_execution(engine, wanted.job_id)
        items = [msgspec.structs.replace(only, attempts=())]
        return Page([item for item in items if _is_wanted(item, wanted)], None)
    size = min(page_size, MAX_PAGE_SIZE)
    plain = ExecutionFilter(job_id=wanted.job_id, tenant_id=wanted.tenant_id, label=wanted.label)
    most = size + 1 if wanted == plain else _MAX_RUNS_SCANNED
    args = (wanted.job_id, before, before_id, most)
    # Without pinned plans: runs of the same time are sorted by id.
    rows = await engine.database.fetch(_E["list_of_job"], *args, now)
    runs = [execution_of(row) for row in rows]
    floor = _time(runs[-1]) if len(runs) == most else None
    runs = [each for each in runs if _is_wanted(each, wanted)]
    if expand_missed:
        position = (before, before_id)
        runs, cut = await asyncio.to_thread(expand_stretches, job, runs, position, size + 1)
        floor = max((each for each in (floor, cut) if each is not None), default=None)
    return page_of([PageSource({_time(each): each for each in runs}, floor)], size)


def _has_label(job: Job, label: str) -> bool:
    return label in (f"{name}:{value}" for name, value in job.labels.items())


def _is_wanted(execution: Execution, wanted: ExecutionFilter) -> bool:
    created = created_at(execution.execution_id)
    return (
        (wanted.tenant_id is None or wanted.tenant_id == execution.tenant_id)
        and (wanted.statuses is None or execution.status in wanted.statuses)
        and (wanted.reason is None or wanted.reason is execution.reason)
        and (wanted.queue is None or wanted.queue == execution.queue)
        and (wanted.created_from is None or created >= wanted.created_from)
        and (wanted.created_to is None or created < wanted.created_to)
    )


def _time(execution: Execution) -> tuple[datetime, int]:
    return execution.scheduled_for, execution.execution_id


def execution_of(row: asyncpg.Record, with_attempts: bool = False) -> Execution:
    """A row of `executions`, with its outcome or its location, as an execution."""
    return (_live if row["recorded_at"] is None else _ended)(row, with_attempts)


def _live(row: asyncpg.Record, with_attempts: bool) -> Execution:
    status = ExecutionStatus(row["status"])
    running = row["claimed_at"] is not None
    attempts = attempts_of(row["history"], row["workers"])
    if running:
        attempts += (
            Attempt(
                attempt=row["attempt"] + 1,
                status=status,
                started_at=row["claimed_at"],
                fence=row["lease_fence"],
                worker=row["worker"] if row["session"] else None,
            ),
        )
    return Execution(
        **_common(row, attempts),
        status=status,
        waiting_for=row.get("waiting_for"),
        attempt=row["attempt"] + running,
        fence=(row["lease_fence"] if running else row["fence"]) or None,
        error=attempts[-1].error if attempts else None,
        progress=msgspec.json.decode(row["progress"]) if row["progress"] else None,
        attempts=attempts if with_attempts else (),
    )


def _ended(row: asyncpg.Record, with_attempts: bool) -> Execution:
    status = FATES[row["fate"]]
    attempts = attempts_of(row["history"], row["workers"])
    attempt = row["attempt"]
    if row["end_session"] is not None:
        attempt += 1
        attempts += (
            Attempt(
                attempt=attempt,
                status=ExecutionStatus.FAILED if status is ExecutionStatus.DEAD else status,
                started_at=row["started_at"],
                finished_at=row["finished_at"],
                error=row["error"],
                kind=row["failure_kind"] or row["reason"],
                fence=row["end_fence"],
                worker=_workers(row["workers"]).get(str(row["end_session"])),
            ),
        )
    return Execution(
        **_common(row, attempts),
        status=status,
        reason=None if row["reason"] is None else stored_reason(row["reason"]),
        finished_at=row["finished_at"],
        attempt=attempt,
        fence=row["end_fence"] or None,
        error=row["error"],
        result=None if row["result"] is None else msgspec.json.decode(row["result"]),
        missed=row["missed"],
        missed_through=row["missed_through"],
        attempts=attempts if with_attempts else (),
    )


def _common(row: asyncpg.Record, attempts: tuple[Attempt, ...]) -> dict[str, Any]:
    """The fields that live and ended executions have in common."""
    last = attempts[-1] if attempts else None
    duration = None
    if last is not None and last.finished_at is not None:
        duration = _milliseconds(last.finished_at - last.started_at)
    return {
        "execution_id": row["id"],
        "job_id": row["job"] or row["id"],
        "scheduled_for": row["occurrence"],
        "tenant_id": row["tenant_name"],
        "job_name": row["job_name"],
        "queue": row["queue_name"],
        "origin": Origin.REPLAY if row["replayed"] else ORIGINS[row["origin"]],
        "started_at": None if last is None else last.started_at,
        "duration_ms": duration,
        "worker": None if last is None else last.worker,
        "lateness_ms": row["lateness_ms"],
    }


class _Ended(msgspec.Struct):
    """One object of `history`, as hourbell.add_attempt writes it."""

    attempt: int
    started_at: datetime
    finished_at: datetime
    reason: str | None
    error: str | None
    fence: int
    session: int | None = None
    taken_from: int | None = None


def attempts_of(history: str | None, workers: str | None) -> tuple[Attempt, ...]:
    """The attempts in a stored history, with the workers that hourbell.workers_of returns."""
    if history is None:
        return ()
    names = _workers(workers)
    return tuple(
        Attempt(
            attempt=ended.attempt,
            status=ExecutionStatus.FAILED,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            error=ended.error,
            kind=ended.reason,
            fence=ended.fence,
            worker=names.get(str(ended.session or ended.taken_from)),
        )
        for ended in msgspec.json.decode(history, type=list[_Ended])
    )


def _workers(stored: str | None) -> dict[str, str | None]:
    """The names of workers by session id."""
    return {} if stored is None else msgspec.json.decode(stored)


def _milliseconds(delta: Any) -> int:
    return int(delta.total_seconds() * 1000)
