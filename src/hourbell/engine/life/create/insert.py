"""Insert checked jobs with `hourbell.create_jobs`, and do what follows the commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import msgspec

from hourbell.engine.codes import MISFIRES, OVERLAPS
from hourbell.engine.core import Engine
from hourbell.engine.life.create.names import Blocked, ResolvedNames
from hourbell.engine.life.create.request import CreateContext
from hourbell.engine.life.create.rows import JobRow, RequestRow, RunSettings, active_since
from hourbell.engine.life.join import join_after_commit
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    is_lock_conflict,
    is_quota_lock_timeout,
)
from hourbell.model.errors import StoreUnavailable
from hourbell.model.jobs import NewJob, OnDuplicate
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Timetable
from hourbell.store.arrays import array_text
from hourbell.store.database import Connection, committing, transaction, translate_errors
from hourbell.store.queries import queries

FAILPOINTS = CommitFailpoints("create.before_commit", "create.after_commit")

_Q = queries("jobs")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_CONCURRENT_JOINS = 4


class LockTimeouts(msgspec.Struct, frozen=True):
    """How long a statement waits for locks of other transactions."""

    keys_ms: int  # for a unique key or an idempotency key
    quotas_ms: int  # for the quota of a tenant


class KeyTaken(msgspec.Struct, frozen=True):
    """Another job has the unique key of the one that was requested."""

    job_id: int
    on_duplicate: OnDuplicate


class Repeated(msgspec.Struct, frozen=True):
    """Another request was first under the idempotency key; its answer is stored now."""


# Why a row was not stored. An exception: its tenant has no room, or the row failed alone.
Problem = KeyTaken | Repeated | Blocked | Exception
Problems = dict[int, Problem]  # by job id; rows without one are stored


class JobInserter:
    """Inserts rows: each statement in its own transaction, or all in that of `connection`."""

    def __init__(
        self,
        engine: Engine,
        context: CreateContext,
        names: ResolvedNames,
        timeouts: LockTimeouts,
        connection: Connection | None = None,
    ) -> None:
        self._engine = engine
        self._context = context
        self._names = names
        self._timeouts = timeouts
        self._connection = connection

    async def insert(self, rows: Sequence[JobRow]) -> Problems:
        """Insert rows with one statement; the problems of those that were left out."""
        requests = {row.request: 0 for row in rows}
        for number, request in enumerate(requests, start=1):
            requests[request] = number
        clock, counts = self._engine.clock, self._engine.counts
        began = clock.monotonic()
        result = await self._execute(self._arguments(rows, requests))
        repeated, refused, excessive = result["repeated"], result["refused"], result["excessive"]
        left_out = len(repeated) + len(refused) + len(excessive)
        counts.created.add(max(len(rows) - left_out, 0), clock.monotonic() - began)
        counts.taken_keys.add(len(refused))
        counts.count_ended(result["ended"])
        if not (repeated or refused or excessive):
            return {}
        by_id = {row.job_id: row for row in rows}
        problems: Problems = {
            row.job_id: Repeated() for row in rows if requests[row.request] in repeated
        }
        for job_id, holder in zip(refused, result["holders"], strict=True):
            problems[job_id] = KeyTaken(holder, by_id[job_id].on_duplicate)
        for job_id in excessive:
            problems[job_id] = self._context.over_quota(by_id[job_id])
        return problems

    async def insert_each(
        self, rows: Sequence[JobRow]
    ) -> AsyncIterator[tuple[Sequence[JobRow], Problems]]:
        """Insert rows; if a statement fails, bisect them until the failing row is alone.

        Yields the rows of each statement, and the problems of those that were left out.
        """
        if not rows:
            return
        try:
            async with self._savepoint():
                problems = await self.insert(rows)
        except (StoreUnavailable, asyncpg.PostgresError) as error:
            if isinstance(error, StoreUnavailable) and not is_lock_conflict(error):
                raise
            problem: Problem = Blocked() if is_lock_conflict(error) else error
            by_quota = is_quota_lock_timeout(error.__cause__)
        else:
            yield rows, problems
            return
        if by_quota:
            limited = [row for row in rows if row.tenant in self._context.quota_left]
            yield limited, dict.fromkeys((row.job_id for row in limited), Blocked(by_quota=True))
            parts: list[Sequence[JobRow]] = [
                [row for row in rows if row.tenant not in self._context.quota_left]
            ]
        elif len(rows) == 1:
            yield rows, {rows[0].job_id: problem}
            return
        else:
            middle = len(rows) // 2
            parts = [rows[:middle], rows[middle:]]
        for part in parts:
            async for inserted in self.insert_each(part):
                yield inserted

    async def _execute(self, args: Sequence[object]) -> asyncpg.Record:
        if self._connection is None:
            async with committing(FAILPOINTS.before, FAILPOINTS.after):
                return await self._engine.database.row(_Q["create_jobs"], *args)
        with translate_errors():
            row = await self._connection.fetchrow(_Q["create_jobs"], *args)
        assert row is not None
        return row

    @asynccontextmanager
    async def _savepoint(self) -> AsyncIterator[None]:
        """In a transaction, a failed statement is rolled back alone."""
        if self._connection is None:
            yield
        else:
            with translate_errors():
                async with transaction(self._connection):
                    yield

    def _limited(self, rows: Sequence[JobRow]) -> list[int]:
        """The tenants whose quotas the statement locks.

        A transaction of several statements locks those of all its rows at once, in one order: it
        must not wait for a quota after it has locked others.
        """
        limited, known = set(self._context.quota_left), self._names.tenants
        if limited and self._connection is None:
            limited &= {row.tenant for row in rows}
        return [known[tenant] for tenant in limited if tenant in known]

    def _arguments(
        self, rows: Sequence[JobRow], requests: Mapping[RequestRow, int]
    ) -> list[object]:
        """The arguments of `hourbell.create_jobs`, in the order of its parameters."""
        names, level_of = self._names, self._engine.due_counts.level
        # Columns, not rows: a batch has thousands of jobs.
        one_time = [row for row in rows if row.at is not None]
        at, instants = _instants(one_time)
        tenants = [names.tenants[row.tenant] for row in one_time]
        settings: dict[tuple[RunSettings, int], int] = {}  # with the level; counted from 1
        of_settings = [
            settings.setdefault(
                (row.settings, level_of(tenant, instant // 1_000_000)), len(settings) + 1
            )
            for row, tenant, instant in zip(one_time, tenants, instants, strict=True)
        ]
        recurring = [
            _recurring(requests[row.request], row, row.recurring, names, self._context.now)
            for row in rows
            if row.recurring is not None
        ]
        unique = [
            _unique(requests[row.request], names.tenants[row.tenant], row)
            for row in rows
            if row.unique is not None
        ]
        return [
            self._context.now,
            self._timeouts.keys_ms,
            self._timeouts.quotas_ms,
            self._limited(rows),
            [names.tenants[request.tenant] for request in requests],
            [request.actor for request in requests],
            [request.key for request in requests],
            [request.fingerprint for request in requests],
            [request.answer for request in requests],
            array_text([row.job_id for row in one_time]),
            array_text([requests[row.request] for row in one_time]) if len(requests) > 1 else None,
            at,
            array_text(instants) if at is None else None,
            array_text(tenants),
            array_text(of_settings),
            b"\n".join([row.spec for row in one_time]),
            _json(
                [
                    {"k": number, "level": level} | _run_settings(each, names)
                    for (each, level), number in settings.items()
                ]
            ),
            _json(recurring),
            _json(unique),
        ]


async def after_commit(
    engine: Engine, rows: Sequence[JobRow], names: ResolvedNames, now: datetime
) -> None:
    """Announce due jobs, and join each timetable once for all its new jobs."""
    if any(row.at is not None and row.at <= now for row in rows):
        engine.announce()
    joined = {names.timetable_of[row.job_id] for row in rows if row.recurring is not None}
    if not joined:
        return
    present = await engine.clock.now()
    slots = asyncio.Semaphore(_MAX_CONCURRENT_JOINS)

    async def join(timetable: Timetable) -> None:
        async with slots:
            await join_after_commit(engine, names.timetables[timetable], timetable, now, present)

    await asyncio.gather(*map(join, joined))


def _instants(rows: Sequence[JobRow]) -> tuple[datetime | None, list[int]]:
    """When one-time jobs run, as one time if it is the same for all, and in microseconds."""
    instants = []
    last_at, instant = None, 0
    for row in rows:
        if row.at is not last_at:  # jobs of a batch often share one time
            assert row.at is not None
            last_at, instant = row.at, (row.at - _EPOCH) // _MICROSECOND
        instants.append(instant)
    is_same = instants.count(instant) == len(instants)
    return last_at if is_same else None, instants


def _json(rows: Sequence[object]) -> str | None:
    return msgspec.json.encode(rows).decode() if rows else None


# What `hourbell.create_jobs` takes as JSON; the fields are columns.


def _run_settings(settings: RunSettings, names: ResolvedNames) -> dict[str, object]:
    return {
        "queue": names.queues[settings.queue],
        "target": names.targets[settings.target],
        "priority": settings.priority.value,
        "at_most_once": settings.delivery is Delivery.AT_MOST_ONCE,
        "start_seconds": settings.start_seconds,
        "finish_seconds": settings.finish_seconds,
        "key": settings.key,
        "key_limit": settings.key_limit,
        "notifies": settings.notifies,
    }


def _unique(request: int, tenant: int, row: JobRow) -> dict[str, object]:
    assert row.unique is not None
    return {
        "job": row.job_id,
        "request": request,
        "tenant": tenant,
        "space": row.unique[0],
        "key": row.unique[1],
        "replaces": row.on_duplicate is OnDuplicate.REPLACE,
    }


def _recurring(
    request: int, row: JobRow, job: NewJob, names: ResolvedNames, now: datetime
) -> dict[str, object]:
    """A recurring job with its first membership."""
    return _run_settings(row.settings, names) | {
        "id": row.job_id,
        "request": request,
        "tenant": names.tenants[job.tenant_id],
        "timetable": names.timetables[names.timetable_of[row.job_id]],
        "max_runs": job.window.max_runs,
        "starts_at": job.window.starts_at,
        "ends_at": job.window.ends_at,
        "name": job.name,
        "spec": row.spec.decode(),
        "since": active_since(job, now),
        "misfire": MISFIRES[job.misfire_policy],
        "catch_up_seconds": job.catch_up_window_seconds,
        "catch_up_limit": job.catch_up_limit,
        "overlap": OVERLAPS[job.overlap_policy],
    }
