"""change: update, pause, resume and delete a job.

Each creates a new version of the job, in one transaction with its audit row and its idempotency
answer. The current membership ends now, so that due occurrences stay with it and later ones belong
to the next one. Executions planned ahead are withdrawn, and planned again by the join of the next
membership. So an update never loses the next run and never creates one for the past.

Queued executions carry the version under which they were planned. They are superseded, when
claimed, if the job was paused, deleted or rescheduled since; after any other update they run, with
the new action and policies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

import msgspec

from hourbell.documents.changes import parse_changes
from hourbell.documents.schedules import timetable_of
from hourbell.engine.codes import (
    FATE_CANCELLED,
    JOB_STATUSES,
    MISFIRES,
    OVERLAPS,
    TARGET_GONE,
    notifies,
)
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import CHECK_EPOCH, Term, authority, leading
from hourbell.engine.life.broken import unusable
from hourbell.engine.life.create.names import ensure_timetables
from hourbell.engine.life.create.rows import active_since, key_number
from hourbell.engine.life.join import join_timetable
from hourbell.engine.life.named_secrets import require_secrets_of
from hourbell.engine.operations.audit import with_status
from hourbell.engine.operations.idempotency import (
    ChangedMeanwhile,
    Points,
    Prepared,
    Write,
    note,
    once,
)
from hourbell.engine.views.jobs import get_job, recurring_job
from hourbell.model.errors import Conflict, JobNotActive, NotFound, PreconditionFailed
from hourbell.model.executions import Reason
from hourbell.model.ids import job_text
from hourbell.model.jobs import Job, JobChanges, JobStatus, NewJob, encode_job
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Once, Timetable
from hourbell.store.database import Connection
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError

_Q = queries("jobs")
_E = queries("executions")
_N = queries("notices")

_MOST_ABANDONED = 100  # in one step


class Target(msgspec.Struct, frozen=True):
    """The state of a job after a change."""

    job: NewJob
    status: JobStatus
    outdates: Reason | None  # why queued executions are superseded; None: they are not
    cancels: bool = False  # running executions get a cancellation request


Decision = Callable[[Job, datetime], Target | None]  # None: nothing to change


class Operation(msgspec.Struct, frozen=True):
    """A change, as named to users."""

    name: str
    points: Points


UPDATE = Operation("update", Points("update.before_commit", "update.after_commit"))
_PAUSE = Operation("pause", Points("pause.before_commit", "pause.after_commit"))
_RESUME = Operation("resume", Points("resume.before_commit", "resume.after_commit"))
_DELETE = Operation("delete", Points("delete.before_commit", "delete.after_commit"))


async def update_job(engine: Engine, job_id: int, document: object, write: Write) -> Job:
    """Change the fields that the document names (a merge patch); all others stay."""

    def decide(job: Job, now: datetime) -> Target | None:
        require_active(job)
        return target_of(parse_changes(document, job, now), job)

    return await _change(engine, job_id, write, UPDATE, decide)


def target_of(changes: JobChanges, job: Job) -> Target | None:
    """The state of a job after changes of its definition."""
    if not changes.changed:
        return None
    return Target(changes.job, job.status, Reason.UPDATED if changes.reschedules else None)


async def pause_job(engine: Engine, job_id: int, write: Write) -> Job:
    """No further run starts until the job is resumed."""

    def decide(job: Job, now: datetime) -> Target | None:
        require_active(job)
        return (
            None
            if job.status is JobStatus.PAUSED
            else Target(said_of(job), JobStatus.PAUSED, Reason.PAUSED)
        )

    return await _change(engine, job_id, write, _PAUSE, decide)


async def pause_abandoned(engine: Engine, term: Term | None) -> bool:
    """Pause jobs whose target answered 410 (gone), unless changed since; True if there are more."""
    rows = await engine.database.fetch(_Q["abandoned"], _MOST_ABANDONED)
    with leading():
        for row in rows:
            try:
                await _pause_abandoned(engine, term, row["job"], row["version"])
            except Conflict:
                continue  # another transaction is changing it: retry in the next step
    return len(rows) == _MOST_ABANDONED


async def _pause_abandoned(engine: Engine, term: Term | None, job_id: int, version: int) -> None:
    """Pause one of them, if it still exists at this version, and delete the request to pause."""
    write = Write(actor=TARGET_GONE)
    now = await engine.clock.now()

    def decide(job: Job, now: datetime) -> Target | None:
        if job.status is not JobStatus.SCHEDULED or job.version != version:
            return None
        return Target(said_of(job), JobStatus.PAUSED, Reason.PAUSED)

    async def forget(connection: Connection) -> None:
        await connection.execute(CHECK_EPOCH, *authority(term))
        await connection.execute(_Q["forget_abandoned"], job_id, version)

    async def prepare() -> Prepared[Job]:
        prepared = await prepare_change(engine, job_id, now, write, _PAUSE, decide)

        async def effect(connection: Connection) -> Job:
            await forget(connection)
            return await prepared.effect(connection)

        return msgspec.structs.replace(prepared, effect=effect)

    try:
        tenant = (await get_job(engine, job_id)).tenant_id
        await once(engine, write, _PAUSE.points, tenant, now, Job, prepare)
    except NotFound:
        async with engine.database.transaction() as connection:
            await forget(connection)


async def resume_job(engine: Engine, job_id: int, write: Write) -> Job:
    """Resume from now on; occurrences during the pause are not made up."""

    def decide(job: Job, now: datetime) -> Target | None:
        require_active(job)
        # Nothing of the schedule is queued; runs requested meanwhile continue.
        scheduled = JobStatus.SCHEDULED
        return None if job.status is scheduled else Target(said_of(job), scheduled, None)

    return await _change(engine, job_id, write, _RESUME, decide)


async def delete_job(
    engine: Engine, job_id: int, write: Write, cancel_running: bool = False
) -> Job:
    """End a job and keep its history. Running executions finish, or are asked to stop."""

    def decide(job: Job, now: datetime) -> Target | None:
        if job.status in (JobStatus.CANCELLED, JobStatus.COMPLETED) and isinstance(
            job.schedule, Once
        ):
            return None
        cancelled = JobStatus.CANCELLED
        if job.status is cancelled and not cancel_running:
            return None
        return Target(said_of(job), cancelled, Reason.DELETED, cancel_running)

    return await _change(engine, job_id, write, _DELETE, decide)


async def _change(
    engine: Engine, job_id: int, write: Write, operation: Operation, decide: Decision
) -> Job:
    seen = await get_job(engine, job_id)
    now = await engine.clock.now()
    prepare = partial(prepare_change, engine, job_id, now, write, operation, decide)
    return await once(engine, write, operation.points, seen.tenant_id, now, Job, prepare)


async def prepare_change(
    engine: Engine,
    job_id: int,
    now: datetime,
    write: Write,
    operation: Operation,
    decide: Decision,
) -> Prepared[Job]:
    """Prepare a change of the job in its current state."""
    seen = await get_job(engine, job_id)
    tenant = await engine.tenant(seen.tenant_id, now)
    if write.if_versions is not None and seen.version not in write.if_versions:
        raise PreconditionFailed(job_text(job_id), seen.version)
    target = decide(seen, now)
    if target is None:
        return Prepared(tenant, partial(_as_it_is, seen))
    if target.job.action != seen.action or target.job.notifications != seen.notifications:
        await require_secrets_of(engine, target.job)
    if isinstance(target.job.schedule, Once):
        return await _change_one_time(engine, seen, target, tenant, now, write, operation)
    return await _change_recurring(engine, seen, target, tenant, now, write, operation)


async def _as_it_is(job: Job, connection: Connection) -> Job:
    return job


async def _change_recurring(
    engine: Engine,
    seen: Job,
    target: Target,
    tenant: int,
    now: datetime,
    write: Write,
    operation: Operation,
) -> Prepared[Job]:
    place = await _place_of(engine, target.job, now)
    ride = None  # a paused or deleted job needs no timetable, and its zone may be unknown here
    if target.status is JobStatus.SCHEDULED:
        ride = await _ride(engine, seen.job_id, target.job, now)

    async def effect(connection: Connection) -> Job:
        row = await connection.fetchrow(_Q["lock_recurring"], seen.job_id)
        if (
            row is None
            or row["version"] != seen.version
            or JOB_STATUSES[row["status"]] is not seen.status  # its last run may have ended it
        ):
            raise ChangedMeanwhile
        if target.cancels:
            await connection.execute(_E["wish_to_cancel_all"], seen.job_id, now)
        before = with_status(row["spec"], seen.status)
        if seen.status is JobStatus.CANCELLED:  # deleted before; only cancellation was requested
            await note(connection, write, now, tenant, seen.job_id, operation.name, before, before)
            return seen
        await connection.execute(_Q["end_member"], seen.job_id, now)
        await connection.execute(_Q["take_back"], seen.job_id, now)
        spec = encode_job(target.job).decode()
        version = await connection.fetchval(
            _Q["update_recurring"],
            seen.job_id,
            now,
            target.outdates,
            JOB_STATUSES.index(target.status),
            place.queue,
            target.job.priority,
            None if ride is None else ride.timetable_id,
            target.job.window.max_runs,
            target.job.window.starts_at,
            target.job.window.ends_at,
            target.job.name,
            spec,
            place.target,
            place.key,
            target.job.concurrency_limit,
        )
        if target.outdates is not None:
            await connection.execute(_Q["supersede"], seen.job_id, now)
        if target.outdates is not None or target.status is not seen.status:
            await connection.execute(_N["watch_anew"], seen.job_id, now)
        if ride is not None:
            await _begin_membership(
                connection, target.job, ride.timetable_id, seen.job_id, version, place, now
            )
        after = with_status(spec, target.status)
        await note(connection, write, now, tenant, seen.job_id, operation.name, before, after)
        changed = await connection.fetchrow(_Q["recurring"], seen.job_id)
        assert changed is not None
        return recurring_job(changed, now)

    async def then() -> None:
        if ride is not None:
            joining = await engine.clock.now()
            with suppress(TimingError):  # its zone is unknown here: the leader completes the join
                await join_timetable(engine, ride.timetable_id, ride.timetable, now, joining)

    return Prepared(tenant, effect, then)


class _Ride(msgspec.Struct, frozen=True):
    """The timetable of a job."""

    timetable: Timetable
    timetable_id: int


async def _ride(engine: Engine, job_id: int, job: NewJob, now: datetime) -> _Ride:
    assert not isinstance(job.schedule, Once)
    try:
        timetable = timetable_of(job.schedule, job_id)
        numbers = await ensure_timetables(engine, [timetable], now)
    except TimingError as error:
        raise unusable(job_id, error) from error
    return _Ride(timetable, numbers[timetable])


async def _change_one_time(
    engine: Engine,
    seen: Job,
    target: Target,
    tenant: int,
    now: datetime,
    write: Write,
    operation: Operation,
) -> Prepared[Job]:
    place = await _place_of(engine, target.job, now)
    schedule = target.job.schedule
    assert isinstance(schedule, Once)
    start_by, finish_by = (
        None if seconds is None else schedule.at + timedelta(seconds=seconds)
        for seconds in (target.job.start_deadline_seconds, target.job.deadline_seconds)
    )

    async def effect(connection: Connection) -> Job:
        taken = await connection.fetchrow(_Q["take_one_time"], seen.job_id)
        if taken is None:
            if await connection.fetchval(_E["waits"], seen.job_id):
                raise ChangedMeanwhile
            job = await _on_its_way(connection, seen, target, now)
            # Its status changes when it ends.
            before = with_status(encode_job(said_of(seen)).decode(), seen.status)
            await note(connection, write, now, tenant, seen.job_id, operation.name, before, before)
            return job
        if taken["version"] != seen.version:
            raise ChangedMeanwhile
        spec = encode_job(target.job).decode()
        before = with_status(taken["spec"], seen.status)
        after = with_status(spec, target.status)
        await note(connection, write, now, tenant, seen.job_id, operation.name, before, after)
        if target.status is JobStatus.CANCELLED:
            await connection.execute(
                _Q["discard"], seen.job_id, FATE_CANCELLED, Reason.CANCELLED, now
            )
            return _as(seen, target, seen.version, now)
        version = await connection.fetchval(
            _Q["update_one_time"],
            seen.job_id,
            schedule.at,
            taken["run_at"] if schedule == seen.schedule else schedule.at,
            place.queue,
            target.job.priority,
            start_by,
            finish_by,
            target.job.delivery is Delivery.AT_MOST_ONCE,
            spec,
            now,
            place.target,
            place.key,
            target.job.concurrency_limit,
            notifies(target.job),
        )
        await connection.execute(_Q["let_go"], seen.job_id, now)
        await connection.execute(_Q["insert_deadlines"], seen.job_id, start_by, finish_by)
        paused = target.status is JobStatus.PAUSED
        await connection.execute(_Q["insert_paused" if paused else "insert_due"], seen.job_id)
        return _as(seen, target, version, now)

    return Prepared(tenant, effect)


async def _on_its_way(connection: Connection, seen: Job, target: Target, now: datetime) -> Job:
    """A queued or running one-time job: deleting requests cancellation, other changes conflict."""
    if target.status is JobStatus.CANCELLED:
        runs = await connection.fetchval(_E["runs"], seen.job_id)
        if runs and not target.cancels:
            return seen  # it may finish
        if await connection.fetchval(_E["wish_to_cancel"], seen.job_id, now):
            return seen
    raise Conflict(
        f"{job_text(seen.job_id)} is already queued or running, so it cannot be changed."
        " Cancel its execution, or create another job."
    )


def _as(seen: Job, target: Target, version: int, now: datetime) -> Job:
    fields = {field: getattr(target.job, field) for field in NewJob.__struct_fields__}
    scheduled = target.status is JobStatus.SCHEDULED
    assert isinstance(target.job.schedule, Once)
    return Job(
        **fields,
        job_id=seen.job_id,
        status=target.status,
        version=version,
        next_run_at=target.job.schedule.at if scheduled else None,
        created_at=seen.created_at,
        updated_at=now,
    )


def said_of(job: Job) -> NewJob:
    """The part of a job that its owner wrote."""
    return NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})


def require_active(job: Job) -> None:
    """Raise JobNotActive if the job has ended."""
    if job.status not in (JobStatus.SCHEDULED, JobStatus.PAUSED):
        raise JobNotActive(job_text(job.job_id), job.status)


class _Place(msgspec.Struct, frozen=True):
    """The ids of what a job belongs to, and what may limit it."""

    tenant: int
    queue: int
    target: int
    key: int | None


async def _place_of(engine: Engine, job: NewJob, now: datetime) -> _Place:
    return _Place(
        await engine.tenant(job.tenant_id, now),
        await engine.queue(job.queue, now, job.tenant_id),
        await engine.target(job.target, now, job.tenant_id),
        key_number(job),
    )


async def _begin_membership(
    connection: Connection,
    job: NewJob,
    timetable_id: int,
    job_id: int,
    version: int,
    place: _Place,
    now: datetime,
) -> None:
    """From now on (and from starts_at on) the timetable's occurrences are this job's."""
    await connection.execute(
        _Q["insert_member"],
        timetable_id,
        job.priority,
        job_id,
        version,
        active_since(job, now),
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
        notifies(job),
    )
