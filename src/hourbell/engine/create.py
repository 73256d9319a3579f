"""create: a job enters. One transaction with its audit row and the answer kept for its idempotency key.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a membership that has still
to join; the join follows the commit, and if this process dies in between, the leader completes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from hourbell.engine.codes import MISFIRES, OVERLAPS
from hourbell.engine.core import Engine
from hourbell.engine.documents import first_run, parse_new_job, timetable_of
from hourbell.engine.join import join_timetable
from hourbell.engine.limits import queue_settings
from hourbell.engine.writes import Points, Prepared, Write, note, once
from hourbell.model.errors import QuotaExceeded
from hourbell.model.ids import created_at
from hourbell.model.jobs import DEFAULT_QUEUE, DEFAULT_TENANT, Job, JobStatus, NewJob, encode_job
from hourbell.model.limits import Limits
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Cron, Every, Once, Timetable
from hourbell.store.database import Connection
from hourbell.store.queries import queries
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

_Q = queries("jobs")
_L = queries("limits")
_POINTS = Points("create.before_commit", "create.after_commit")


async def create_job(engine: Engine, document: object, write: Write) -> Job:
    """The job that a document describes, created. InvalidInput names every wrong field."""
    moment = await engine.database.row(_Q["moment"], _label_in(document, "queue", DEFAULT_QUEUE))
    now, job_id = moment["now"], moment["id"]
    queue = queue_settings(Limits(), moment["timeout_seconds"], moment["retry_policy"])

    async def prepare() -> Prepared[Job]:
        new = parse_new_job(document, now, job_id, queue)
        if isinstance(new.schedule, Once):
            return await _one_time(engine, new, job_id, now, write)
        return await _recurring(engine, new, new.schedule, job_id, now, write)

    tenant = _label_in(document, "tenant_id", DEFAULT_TENANT)
    return await once(engine, write, _POINTS, tenant, now, Job, prepare)


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
    targets: list[int | None]
    priorities: list[int]
    at_most_once: list[bool]
    start_seconds: list[int | None]
    finish_seconds: list[int | None]
    keys: list[int | None]
    key_limits: list[int]


async def _one_time_rows(
    engine: Engine, ids: Sequence[int], jobs: Sequence[NewJob], now: datetime
) -> _Rows:
    tenants = {name: await engine.tenant(name, now) for name in {job.tenant_id for job in jobs}}
    numbers: dict[tuple[Any, ...], int] = {}
    terms = [
        numbers.setdefault(
            (
                job.queue,
                job.target,
                job.priority.value,
                job.delivery is Delivery.AT_MOST_ONCE,
                job.start_deadline_seconds,
                job.deadline_seconds,
                key_number(job),
                job.concurrency_limit,
            ),
            len(numbers) + 1,
        )
        for job in jobs
    ]
    queues, targets, *rest = (list(column) for column in zip(*numbers, strict=True))
    return _Rows(
        ids,
        [_once(job).at for job in jobs],
        [tenants[job.tenant_id] for job in jobs],
        terms,
        [encode_job(job).decode() for job in jobs],
        [await engine.queue(name, now) for name in queues],
        [await engine.target(host, now) for host in targets],
        *rest,
    )


async def _insert_one_time(
    connection: Connection, rows: _Rows, now: datetime, write: Write
) -> None:
    await _check_quota(connection, Counter(rows.tenants))
    await connection.execute(_Q["insert_one_time"], *msgspec.structs.astuple(rows))
    # The job itself is the record of what was asked; the audit row says who did, once for all of them.
    await note(connection, write, now, rows.tenants[0], rows.ids[0], "create", None, None)


async def _check_quota(connection: Connection, new: Counter[int]) -> None:
    over = await connection.fetchrow(_L["quota"], list(new), list(new.values()))
    if over is not None:
        raise QuotaExceeded(over["name"], over["max_jobs"])


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
    place = await place_of(engine, new, now)
    timetable = timetable_of(schedule, job_id)
    timetable_id = await ensure_timetable(engine, timetable, now)

    async def effect(connection: Connection) -> Job:
        spec = encode_job(new).decode()
        await _check_quota(connection, Counter([place.tenant]))
        await connection.execute(
            _Q["insert_recurring"],
            job_id,
            place.tenant,
            place.queue,
            new.priority,
            timetable_id,
            new.window.max_runs,
            new.window.starts_at,
            new.window.ends_at,
            now,
            new.name,
            spec,
            place.target,
            place.key,
            new.concurrency_limit,
        )
        await begin_membership(connection, new, timetable_id, job_id, 1, place, now)
        await note(connection, write, now, place.tenant, job_id, "create", None, spec)
        return as_created(new, job_id, first_run(schedule, new.window, job_id, now), now)

    async def then() -> None:
        await join_timetable(engine, timetable_id, timetable, now, await engine.clock.now())

    return Prepared(place.tenant, effect, then)


class Place(msgspec.Struct, frozen=True):
    """Where a job belongs, in numbers: what may limit it."""

    tenant: int
    queue: int
    target: int | None
    key: int | None


async def place_of(engine: Engine, job: NewJob, now: datetime) -> Place:
    return Place(
        await engine.tenant(job.tenant_id, now),
        await engine.queue(job.queue, now),
        await engine.target(job.target, now),
        key_number(job),
    )


def key_number(job: NewJob) -> int | None:
    """The number of its concurrency key: a hash, so that nobody has to hand them out."""
    if job.concurrency_key is None:
        return None
    named = f"{job.tenant_id}\0{job.concurrency_key}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1


def _label_in(document: object, field: str, default: str) -> str:
    """What a document names, before it is checked: whose kept answers and which queue's defaults to look at."""
    named = document.get(field) if isinstance(document, dict) else None
    return named if isinstance(named, str) and named.isprintable() else default


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
    place: Place,
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
        place.tenant,
        place.queue,
        MISFIRES[job.misfire_policy],
        job.catch_up_window_seconds,
        job.catch_up_limit,
        OVERLAPS[job.overlap_policy],
        job.delivery is Delivery.AT_MOST_ONCE,
        job.start_deadline_seconds,
        job.deadline_seconds,
        place.target,
        place.key,
        job.concurrency_limit,
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
