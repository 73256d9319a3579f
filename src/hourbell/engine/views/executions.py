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
from hourbell.engine.life.missed import expand_stretches
from hourbell.engine.views.jobs import NO_TENANT, get_job, tenant_wanted
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
from hourbell.model.errors import NotFound
from hourbell.model.executions import Attempt, Execution, ExecutionStatus, Origin, Reason
from hourbell.model.ids import created_at, execution_text, first_id_at
from hourbell.model.jobs import Job
from hourbell.model.schedules import Once
from hourbell.store.queries import queries

_J = queries("jobs")
_E = queries("executions")
_FAR = datetime.max.replace(tzinfo=UTC)
_MOST_OF_A_JOB = 1_000  # runs of one job that are read for one page
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
    return execution


async def _find_execution(engine: Engine, execution_id: int) -> Execution | None:
    now = await engine.clock.now()
    row = await engine.database.row_or_none(_E["live"], execution_id, now)
    if row is not None:
        return live_execution(row, with_attempts=True)
    row = await engine.database.row_or_none(_E["recorded"], execution_id)
    return None if row is None else _recorded(row, with_attempts=True)


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
    return await _list_of_job(engine, of_job, page_size, token, expand_missed)


async def search_executions(
    engine: Engine, wanted: ExecutionFilter, page_size: int = 50, token: str | None = None
) -> Page:
    """The due and past executions of all jobs, by creation, newest first, live and ended."""
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

    async def look(statement: str, statuses: Sequence[object] | None, *rest: object) -> None:
        args = (before, size + 1, MAX_SCANNED_ROWS, first, tenant, statuses, queue, wanted.label)
        rows = await walk(engine, _E[statement], *args, *rest)
        recorded = statement.startswith("list_recorded")
        sources.append(
            page_source(rows, size + 1, by_id, _recorded if recorded else live_execution)
        )

    # Live ones first: one that ends between the reads is listed once, in its earlier state.
    live, fates = _split(wanted)
    if live is not None and live <= _LEASED:
        if live:
            await look("list_running", sorted(live))
    else:
        now = await engine.clock.now()
        statuses = None if live is None else sorted(live)
        await look("list_live", statuses, tenant is not None, now)
        if tenant is not None:
            await look("list_live_one_time", statuses, now)
    if fates is None or fates:
        codes = None if fates is None else sorted(FATES.index(fate) for fate in fates)
        name = "list_recorded" if tenant is None else "list_recorded_of_tenant"
        await look(name, codes, wanted.reason)
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
    most = size + 1 if wanted == plain else _MOST_OF_A_JOB
    args = (wanted.job_id, before, before_id, most)
    # Without pinned plans: runs of the same time are sorted by id.
    live = [
        live_execution(row) for row in await engine.database.fetch(_E["live_of_job"], *args, now)
    ]
    ended = [_recorded(row) for row in await engine.database.fetch(_E["recorded_of_job"], *args)]

    def source(executions: list[Execution]) -> PageSource[Any]:
        found = {_time(each): each for each in executions if _is_wanted(each, wanted)}
        return PageSource(found, _time(executions[-1]) if len(executions) == most else None)

    recorded = source(ended)
    if expand_missed:
        asked = [each for each in ended if _is_wanted(each, wanted)]
        position = (before, before_id)
        entries, cut = await asyncio.to_thread(expand_stretches, job, asked, position, size + 1)
        floors = [floor for floor in (recorded.floor, cut) if floor is not None]
        recorded = PageSource({_time(each): each for each in entries}, max(floors, default=None))
    return page_of([source(live), recorded], size)


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


def live_execution(row: asyncpg.Record, with_attempts: bool = False) -> Execution:
    """A row of `executions`, with its location, as an execution."""
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
        job_id=row["job"] or row["id"],
        status=status,
        scheduled_for=row["occurrence"],
        attempt=row["attempt"] + running,
        fence=(row["lease_fence"] if running else row["fence"]) or None,
        error=attempts[-1].error if attempts else None,
        progress=msgspec.json.decode(row["progress"]) if row["progress"] else None,
        attempts=attempts if with_attempts else (),
    )


def _recorded(row: asyncpg.Record, with_attempts: bool = False) -> Execution:
    status = FATES[row["status"]]
    attempts = attempts_of(row["history"], row["workers"])
    if row["session"] is not None:
        attempts += (
            Attempt(
                attempt=row["attempt"],
                status=ExecutionStatus.FAILED if status is ExecutionStatus.DEAD else status,
                started_at=row["started_at"],
                finished_at=row["finished_at"],
                error=row["error"],
                kind=row["failure_kind"] or row["reason"],
                fence=row["fence"],
                worker=_workers(row["workers"]).get(str(row["session"])),
            ),
        )
    return Execution(
        **_common(row, attempts),
        job_id=row["job"],
        status=status,
        reason=None if row["reason"] is None else Reason(row["reason"]),
        scheduled_for=row["scheduled_for"],
        finished_at=row["finished_at"],
        attempt=row["attempt"],
        fence=row["fence"] or None,
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
