"""create: a job enters. One transaction with its audit row and the answer kept for its idempotency key.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a membership that has still
to join; the join follows the commit, and if this process dies in between, the leader completes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import msgspec

from hourbell.engine.codes import MISFIRES, OVERLAPS
from hourbell.engine.core import Engine
from hourbell.engine.documents import first_run, parse_new_job, timetable_of
from hourbell.engine.join import join_timetable
from hourbell.engine.writes import Points, Prepared, Write, note, once
from hourbell.model.ids import created_at
from hourbell.model.jobs import DEFAULT_TENANT, Job, JobStatus, NewJob, encode_job
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Cron, Every, Once, Timetable
from hourbell.store.database import Connection
from hourbell.store.queries import queries
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

_Q = queries("jobs")
_POINTS = Points("create.before_commit", "create.after_commit")


async def create_job(engine: Engine, document: object, write: Write) -> Job:
    """The job that a document describes, created. InvalidInput names every wrong field."""
    moment = await engine.database.row(_Q["moment"])
    now, job_id = moment["now"], moment["id"]

    async def prepare() -> Prepared[Job]:
        new = parse_new_job(document, now, job_id)
        if isinstance(new.schedule, Once):
            return await _one_time(engine, new, job_id, now, write)
        return await _recurring(engine, new, new.schedule, job_id, now, write)

    return await once(engine, write, _POINTS, _tenant_in(document), now, Job, prepare)


async def create_one_time_jobs(engine: Engine, jobs: Sequence[NewJob], write: Write) -> list[int]:
    """Many checked one-time jobs at once: one statement, one commit; their ids, in order."""
    now = await engine.clock.now()
    ids: list[int] = await engine.database.value(_Q["new_ids"], now, len(jobs))

    async def prepare() -> Prepared[list[int]]:
        rows = await _one_time_rows(engine, ids, jobs, now)

        async def effect(connection: Connection) -> list[int]:
            await _insert_one_time(connection, rows, now, write)
            return ids

        return Prepared(rows.tenants[0], effect, partial(_announce_due, engine, rows, now))

    return await once(engine, write, _POINTS, jobs[0].tenant_id, now, list[int], prepare)


async def _one_time(
    engine: Engine, new: NewJob, job_id: int, now: datetime, write: Write
) -> Prepared[Job]:
    rows = await _one_time_rows(engine, [job_id], [new], now)

    async def effect(connection: Connection) -> Job:
        await _insert_one_time(connection, rows, now, write)
        return as_created(new, job_id, _once(new).at, created_at(job_id))

    return Prepared(rows.tenants[0], effect, partial(_announce_due, engine, rows, now))


class _Rows(msgspec.Struct, frozen=True):
    """The arguments of `insert_one_time`: a list for each column of the jobs, then of their terms."""

    ids: Sequence[int]
    instants: list[datetime]
    tenants: list[int]
    terms: list[int]
    specs: list[str]
    queues: list[int]
    priorities: list[int]
    at_most_once: list[bool]
    start_seconds: list[int | None]
    finish_seconds: list[int | None]


async def _one_time_rows(
    engine: Engine, ids: Sequence[int], jobs: Sequence[NewJob], now: datetime
) -> _Rows:
    tenants = {name: await engine.tenant(name, now) for name in {job.tenant_id for job in jobs}}
    numbers: dict[tuple[str, int, bool, int | None, int | None], int] = {}
    terms = [
        numbers.setdefault(
            (
                job.queue,
                job.priority.value,
                job.delivery is Delivery.AT_MOST_ONCE,
                job.start_deadline_seconds,
                job.deadline_seconds,
            ),
            len(numbers) + 1,
        )
        for job in jobs
    ]
    queues, *rest = (list(column) for column in zip(*numbers, strict=True))
    return _Rows(
        ids,
        [_once(job).at for job in jobs],
        [tenants[job.tenant_id] for job in jobs],
        terms,
        [encode_job(job).decode() for job in jobs],
        [await engine.queue(name, now) for name in queues],
        *rest,
    )


async def _insert_one_time(
    connection: Connection, rows: _Rows, now: datetime, write: Write
) -> None:
    await connection.execute(_Q["insert_one_time"], *msgspec.structs.astuple(rows))
    # The job itself is the record of what was asked; the audit row says who did, once for all of them.
    await note(connection, write, now, rows.tenants[0], rows.ids[0], "create", None, None)


async def _announce_due(engine: Engine, rows: _Rows, now: datetime) -> None:
    if min(rows.instants) <= now:
        engine.announce()


def _once(job: NewJob) -> Once:
    assert isinstance(job.schedule, Once)
    return job.schedule


async def _recurring(
    engine: Engine,
    new: NewJob,
    schedule: Cron | Every,
    job_id: int,
    now: datetime,
    write: Write,
) -> Prepared[Job]:
    tenant = await engine.tenant(new.tenant_id, now)
    queue = await engine.queue(new.queue, now)
    timetable = timetable_of(schedule, job_id)
    timetable_id = await ensure_timetable(engine, timetable, now)

    async def effect(connection: Connection) -> Job:
        spec = encode_job(new).decode()
        await connection.execute(
            _Q["insert_recurring"],
            job_id,
            tenant,
            queue,
            new.priority,
            timetable_id,
            new.window.max_runs,
            new.window.starts_at,
            new.window.ends_at,
            now,
            new.name,
            spec,
        )
        await begin_membership(connection, new, timetable_id, job_id, 1, tenant, queue, now)
        await note(connection, write, now, tenant, job_id, "create", None, spec)
        return as_created(new, job_id, first_run(schedule, new.window, job_id, now), now)

    async def then() -> None:
        await join_timetable(engine, timetable_id, timetable, now, await engine.clock.now())

    return Prepared(tenant, effect, then)


def _tenant_in(document: object) -> str:
    """Whose kept answers to look at, before the document is checked."""
    named = document.get("tenant_id") if isinstance(document, dict) else None
    return named if isinstance(named, str) and named.isprintable() else DEFAULT_TENANT


async def ensure_timetable(engine: Engine, timetable: Timetable, now: datetime) -> int:
    """The number of a timetable, made if it is new. A transaction of its own: others may be waiting for it."""
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    number: int | None = None
    while number is None:  # twice at most: somebody else may be making it just now
        number = await engine.database.value(
            _Q["ensure_timetable"],
            timetable.rule,
            timetable.zone,
            timetable.dst_gap,
            timetable.dst_overlap,
            now,
            rule.next(now),
            tz_version(),
        )
    return number


async def begin_membership(
    connection: Connection,
    job: NewJob,
    timetable_id: int,
    job_id: int,
    version: int,
    tenant: int,
    queue: int,
    now: datetime,
) -> None:
    """From now on (and from starts_at on) the timetable's occurrences are this job's."""
    since = now
    if job.window.starts_at is not None:
        # An occurrence at starts_at itself counts, and a membership begins after `active_since`.
        since = max(now, job.window.starts_at - timedelta(microseconds=1))
    await connection.execute(
        _Q["insert_member"],
        timetable_id,
        job.priority,
        job_id,
        version,
        since,
        job.window.ends_at,
        tenant,
        queue,
        MISFIRES[job.misfire_policy],
        job.catch_up_window_seconds,
        job.catch_up_limit,
        OVERLAPS[job.overlap_policy],
        job.delivery is Delivery.AT_MOST_ONCE,
        job.start_deadline_seconds,
        job.deadline_seconds,
    )


def as_created(new: NewJob, job_id: int, next_run_at: datetime | None, now: datetime) -> Job:
    fields = {field: getattr(new, field) for field in NewJob.__struct_fields__}
    return Job(
        **fields,
        job_id=job_id,
        status=JobStatus.SCHEDULED,
        version=1,
        next_run_at=next_run_at,
        created_at=now,
        updated_at=now,
    )
