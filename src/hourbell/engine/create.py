"""create: a job enters. One transaction with its audit row and the answer kept for its idempotency key.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a membership that has still
to join; the join follows the commit, and if this process dies in between, the leader completes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from hourbell.engine.codes import MISFIRES, OVERLAPS
from hourbell.engine.core import Engine
from hourbell.engine.documents import first_run, parse_new_job, timetable_of
from hourbell.engine.join import join_timetable
from hourbell.engine.writes import Points, Write, note, once
from hourbell.failpoints import failpoint_async
from hourbell.model.ids import created_at
from hourbell.model.jobs import Job, JobStatus, NewJob, encode_job
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Cron, Every, Once, Timetable
from hourbell.store.database import Connection
from hourbell.store.queries import queries
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

_Q = queries("jobs")
_TRIES = 3
_POINTS = Points("create.before_commit", "create.after_commit")


async def create_job(engine: Engine, document: object, write: Write) -> Job:
    """The job that a document describes, created. InvalidInput names every wrong field."""
    moment = await engine.database.row(_Q["moment"])
    now, job_id = moment["now"], moment["id"]
    new = parse_new_job(document, now, job_id)
    tenant = await engine.tenant(new.tenant_id, now)
    if isinstance(new.schedule, Once):
        return await _create_one_time(engine, new, job_id, tenant, now, write)
    return await _create_recurring(engine, new, new.schedule, job_id, tenant, now, write)


async def create_one_time_jobs(engine: Engine, jobs: Sequence[NewJob], write: Write) -> list[int]:
    """Many checked one-time jobs at once: one statement, one commit; their ids, in order."""
    now = await engine.clock.now()
    ids: list[int] = await engine.database.value(_Q["new_ids"], now, len(jobs))
    async with engine.database.transaction() as connection:
        await _insert_one_time(engine, connection, ids, jobs, now, write)
        await failpoint_async(_POINTS.before)
    if any(_once(job).at <= now for job in jobs):
        engine.announce()
    return ids


async def _create_one_time(
    engine: Engine, new: NewJob, job_id: int, tenant: int, now: datetime, write: Write
) -> Job:
    async def effect(connection: Connection) -> Job:
        await _insert_one_time(engine, connection, [job_id], [new], now, write)
        return as_created(new, job_id, _once(new).at, created_at(job_id))

    job = await once(engine, write, _POINTS, tenant, now, Job, effect)
    if _once(new).at <= now:
        engine.announce()
    return job


async def _insert_one_time(
    engine: Engine,
    connection: Connection,
    ids: Sequence[int],
    jobs: Sequence[NewJob],
    now: datetime,
    write: Write,
) -> None:
    tenants = {name: await engine.tenant(name, now) for name in {job.tenant_id for job in jobs}}
    queues = {name: await engine.queue(name, now) for name in {job.queue for job in jobs}}
    instants = [_once(job).at for job in jobs]
    timed = list(zip(instants, jobs, strict=True))
    await connection.execute(
        _Q["insert_one_time"],
        ids,
        instants,
        [tenants[job.tenant_id] for job in jobs],
        [queues[job.queue] for job in jobs],
        [job.priority.value for job in jobs],
        [after(at, job.start_deadline_seconds) for at, job in timed],
        [after(at, job.deadline_seconds) for at, job in timed],
        [job.delivery is Delivery.AT_MOST_ONCE for job in jobs],
        [encode_job(job).decode() for job in jobs],
    )
    # The job itself is the record of what was asked; the audit row says who did, once for all of them.
    tenant = tenants[jobs[0].tenant_id]
    await note(connection, write, now, tenant, ids[0], "create", None, None)


def _once(job: NewJob) -> Once:
    assert isinstance(job.schedule, Once)
    return job.schedule


async def _create_recurring(
    engine: Engine,
    new: NewJob,
    schedule: Cron | Every,
    job_id: int,
    tenant: int,
    now: datetime,
    write: Write,
) -> Job:
    timetable = timetable_of(schedule, job_id)
    queue = await engine.queue(new.queue, now)

    for attempt in range(_TRIES):
        timetable_id = await ensure_timetable(engine, timetable, now)

        async def effect(connection: Connection, timetable_id: int = timetable_id) -> Job:
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

        try:
            job = await once(engine, write, _POINTS, tenant, now, Job, effect)
        except asyncpg.ForeignKeyViolationError:
            # The timetable had no riders and was just forgotten; the next round makes it anew.
            if attempt == _TRIES - 1:
                raise
            continue
        await join_timetable(engine, timetable_id, timetable, now, now)
        return job
    raise AssertionError("unreachable")


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


def after(at: datetime, seconds: int | None) -> datetime | None:
    try:
        return None if seconds is None else at + timedelta(seconds=seconds)
    except OverflowError:
        return None  # beyond the end of the calendar is never
