"""change: update, pause, resume and delete a job.

A pure function decides what the job should become (`DesiredJob`), from the job as it was read. One
statement, `hourbell.change_job`, then makes a new version of the job, with its audit row and its
idempotency answer, if the job is still as it was read; otherwise it is read and decided again.

The current membership ends now, so that due occurrences stay with it and later ones belong to the
next one. Executions planned ahead are withdrawn, and planned again by the join of the next
membership. So an update never loses the next run and never creates one for the past.

Queued executions carry the version under which they were planned. If the job is paused, deleted or
rescheduled, those that wait are superseded by the change itself and those that are ready by their
claim; after any other update they run, with the new action and policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from hourbell.documents.changes import parse_changes
from hourbell.documents.schedules import timetable_of
from hourbell.engine.codes import MISFIRES, OVERLAPS, job_status_code, notifies
from hourbell.engine.core import Engine
from hourbell.engine.declarations import require_fitting_payload
from hourbell.engine.life.broken import unusable_schedule
from hourbell.engine.life.create.names import ensure_timetables
from hourbell.engine.life.create.rows import active_since, key_number
from hourbell.engine.life.join import join_after_commit
from hourbell.engine.life.references import require_calendars, require_secrets_of
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    ConcurrentChange,
    Idempotent,
    Write,
    store_answer,
    write_row,
)
from hourbell.engine.views.job_keys import JobKey, holder_of
from hourbell.engine.views.jobs import get_job, next_run
from hourbell.model.errors import (
    Conflict,
    FieldError,
    InvalidInput,
    JobNotActive,
)
from hourbell.model.executions import Reason
from hourbell.model.ids import job_text
from hourbell.model.jobs import (
    ACTIVE_STATUSES,
    Job,
    JobChanges,
    JobStatus,
    NewJob,
    Pause,
    encode_job,
)
from hourbell.model.policies import Delivery
from hourbell.model.schedules import Once, Timetable
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError

T = TypeVar("T")
_Q = queries("jobs")


# The fields that say how and when a recurring job runs; its membership has them.
RUN_FIELDS = frozenset(
    {
        "window",
        "misfire_policy",
        "catch_up_window_seconds",
        "catch_up_limit",
        "overlap_policy",
        "delivery",
        "start_deadline_seconds",
        "deadline_seconds",
        "notifications",
    }
)


class DesiredJob(msgspec.Struct, frozen=True):
    """What a job should become."""

    job: NewJob
    status: JobStatus
    outdates: Reason | None  # why queued executions are superseded; None: they are not
    cancels: bool = False  # running executions get a cancellation request
    pause: Pause | None = None  # why and until when it is paused; None: its owner does not say
    operation: int | None = None  # the bulk operation that pauses it
    redefines: bool = False  # `job` differs from the stored one; else that stays as it is stored
    checks_payload: bool = False  # a new action is to be checked against what its task declares


Decision = Callable[[Job, datetime], DesiredJob | None]  # None: nothing to change


class ChangeKind(msgspec.Struct, frozen=True):
    """A change, as named to users."""

    name: str
    failpoints: CommitFailpoints


UPDATE = ChangeKind("update", CommitFailpoints("update.before_commit", "update.after_commit"))
PAUSE = ChangeKind("pause", CommitFailpoints("pause.before_commit", "pause.after_commit"))
RESUME = ChangeKind("resume", CommitFailpoints("resume.before_commit", "resume.after_commit"))
_DELETE = ChangeKind("delete", CommitFailpoints("delete.before_commit", "delete.after_commit"))


async def update_job(engine: Engine, job_id: int, document: object, write: Write) -> Job:
    """Change the fields that the document names (a merge patch); all others stay."""

    def decide(job: Job, now: datetime) -> DesiredJob | None:
        # A wrong document is refused as such, whatever the version of the job.
        changes = parse_changes(document, job, now)
        write.require_version(f"Job {job_text(job.job_id)}", job.version)
        require_active(job)
        desired = desired_after(changes, job)
        return desired and msgspec.structs.replace(desired, checks_payload=True)

    any_version = msgspec.structs.replace(write, if_versions=None)
    return await change_job(engine, job_id, any_version, UPDATE, decide)


def desired_after(changes: JobChanges, job: Job) -> DesiredJob | None:
    """The state of a job after changes of its definition."""
    if not changes.changed:
        return None
    require_readable(job, set(job.unreadable) - changes.changed)
    outdates = Reason.UPDATED if changes.reschedules else None
    return DesiredJob(changes.job, job.status, outdates, redefines=True)


async def pause_job(
    engine: Engine,
    job_id: int,
    write: Write,
    pause: Pause = Pause(),  # noqa: B008 - frozen
) -> Job:
    """No further run starts until the job is resumed."""
    return await change_job(engine, job_id, write, PAUSE, decide_pause(pause))


def decide_pause(pause: Pause, operation: int | None = None) -> Decision:
    """Pauses a job. A job that is already paused gets the given reason and end.

    `operation`: the bulk operation that does so.
    """
    details = None if pause == Pause() and operation is None else pause

    def decide(job: Job, now: datetime) -> DesiredJob | None:
        require_active(job)
        require_future(pause, now)
        paused = job.status is JobStatus.PAUSED
        if paused and details is None:
            return None
        outdates = None if paused else Reason.PAUSED
        return DesiredJob(
            definition_of(job), JobStatus.PAUSED, outdates, pause=details, operation=operation
        )

    return decide


def require_future(pause: Pause, now: datetime) -> None:
    """Raise InvalidInput if the pause would already be over."""
    if pause.until is not None and pause.until <= now:
        raise InvalidInput([FieldError("until", "out_of_range", "must be in the future")])


async def resume_job(engine: Engine, job_id: int, write: Write) -> Job:
    """Resume from now on; occurrences during the pause are not made up."""
    return await change_job(engine, job_id, write, RESUME, decide_resume)


def decide_resume(job: Job, now: datetime) -> DesiredJob | None:
    """Resumes a job that is paused."""
    require_active(job)
    if job.status is not JobStatus.PAUSED:
        return None
    if not isinstance(job.schedule, Once):
        require_readable(job, RUN_FIELDS.intersection(job.unreadable))
    # Nothing of the schedule is queued; runs requested meanwhile continue.
    return DesiredJob(definition_of(job), JobStatus.SCHEDULED, None)


async def delete_job(
    engine: Engine, job_id: int, write: Write, cancel_running: bool = False
) -> Job:
    """End a job and keep its history. Running executions finish, or are asked to stop."""

    def decide(job: Job, now: datetime) -> DesiredJob | None:
        if isinstance(job.schedule, Once) and not job.is_live:
            return None
        cancelled = JobStatus.CANCELLED
        if job.status is cancelled and not cancel_running:
            return None
        return DesiredJob(definition_of(job), cancelled, Reason.DELETED, cancel_running)

    return await change_job(engine, job_id, write, _DELETE, decide)


async def delete_job_by_key(
    engine: Engine, key: JobKey, write: Write, cancel_running: bool = False
) -> Job:
    """End the job that holds a name or a unique key.

    A repeated request gets its stored answer, whichever job holds the key by then.
    """
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _DELETE.failpoints, key.tenant, now, Job)
    async for _ in writing:
        return await delete_job(engine, await holder_of(engine, key), write, cancel_running)
    return writing.answer


async def change_job(
    engine: Engine, job_id: int, write: Write, operation: ChangeKind, decide: Decision
) -> Job:
    """Make a decided change of a job; an idempotent write."""
    seen = await get_job(engine, job_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, operation.failpoints, seen.tenant_id, now, Job)
    async for attempt in writing:
        change = await decide_change(engine, seen, now, write, operation, decide)
        async with attempt.statement():
            attempt.answer = await change.commit(lambda job: job)
        if not attempt.executed:
            seen = await get_job(engine, job_id)
    if writing.executed:
        await change.join()
    return writing.answer


async def decide_change(
    engine: Engine,
    seen: Job,
    now: datetime,
    write: Write,
    operation: ChangeKind,
    decide: Decision,
    known: Mapping[Timetable, int] | None = None,
) -> Change:
    """The change of a job in the state that was read, with all that it names looked up.

    `known`: timetables that need not be looked up.
    """
    write.require_version(f"Job {job_text(seen.job_id)}", seen.version)
    desired = decide(seen, now)
    if desired is None:
        return Change(engine, now, seen, None, write, operation)
    new = desired.job
    if new.action != seen.action or new.notifications != seen.notifications:
        await require_secrets_of(engine, new)
    if desired.checks_payload and new.action != seen.action:
        await require_fitting_payload(engine, new.action, "action.payload")
    if new.schedule != seen.schedule:
        await require_calendars(engine, new.tenant_id, new.schedule)
    definition: _OneTimeRow | _RecurringRow | _TimetableOnly | None = None
    if isinstance(new.schedule, Once):
        if desired.redefines:
            definition = await _one_time_row(engine, seen, new, now)
        return Change(engine, now, seen, desired, write, operation, definition)
    timetable_ref = (
        None  # a paused or deleted job needs no timetable, and its zone may be unknown here
    )
    # A job that is resumed with a schedule that cannot be read keeps the timetable that it had.
    if desired.status is JobStatus.SCHEDULED and (
        desired.redefines or "schedule" not in seen.unreadable
    ):
        timetable_ref = await _timetable_ref(engine, seen.job_id, new, now, known or {})
    if desired.redefines:
        definition = await _recurring_row(engine, new, timetable_ref, now)
    elif timetable_ref is not None:
        definition = _TimetableOnly(timetable_ref.timetable_id)
    return Change(engine, now, seen, desired, write, operation, definition, timetable_ref)


class Change:
    """A decided change of a job, and the statement that makes it."""

    def __init__(
        self,
        engine: Engine,
        now: datetime,
        seen: Job,
        desired: DesiredJob | None,
        write: Write,
        operation: ChangeKind,
        definition: _RecurringRow | _OneTimeRow | _TimetableOnly | None = None,
        timetable_ref: _TimetableRef | None = None,
    ) -> None:
        self._engine = engine
        self._now = now
        self._seen = seen
        self._desired = desired
        self._write = write
        self._operation = operation
        self._definition = definition
        self._timetable_ref = timetable_ref

    async def commit(self, answer: Callable[[Job], T]) -> T:
        """Change the job and store the answer; ConcurrentChange: it is not as it was read."""
        seen, desired = self._seen, self._desired
        unchanged = answer(seen)
        tenant = await self._engine.tenant(seen.tenant_id, self._now)
        if desired is None:
            await store_answer(self._engine, self._write, tenant, unchanged, self._now)
            return unchanged
        changed = answer(_changed(seen, desired, self._now))
        write = write_row(self._write, tenant, self._operation.name, changed, unchanged)
        row = await self._engine.database.row(
            _Q["change_job"],
            self._now,
            seen.job_id,
            self._argument(desired),
            msgspec.json.encode(write).decode(),
        )
        self._engine.counts.count_ended(row["ended"])
        match row["outcome"]:
            case "changed":
                return changed
            case "unchanged":
                return unchanged
            case "underway":
                raise Conflict(
                    f"{job_text(seen.job_id)} is already queued or running, so it cannot be"
                    " changed. Cancel its execution, or create another job."
                )
        raise ConcurrentChange

    @property
    def _joins(self) -> bool:
        """Whether the job joins a timetable."""
        desired = self._desired
        return (
            desired is not None
            and desired.status is JobStatus.SCHEDULED
            and not isinstance(desired.job.schedule, Once)
        )

    @property
    def argument(self) -> str | None:
        """The change as `hourbell.change_job` takes it; None: there is nothing to change."""
        return None if self._desired is None else self._argument(self._desired)

    def _argument(self, desired: DesiredJob) -> str:
        row = _ChangeRow(
            seen_version=self._seen.version,
            seen_status=job_status_code(self._seen.status),
            status=job_status_code(desired.status),
            outdated=desired.outdates,
            cancels=desired.cancels,
            definition=self._definition,
            membership=_membership(desired.job, self._now) if self._joins else None,
            pause=desired.pause,
            operation=desired.operation,
        )
        return msgspec.json.encode(row).decode()

    async def join(self) -> None:
        """After the commit: join the timetable. If this process dies before, the leader joins."""
        if self._timetable_ref is not None:
            joining = await self._engine.clock.now()
            await join_after_commit(
                self._engine,
                self._timetable_ref.timetable_id,
                self._timetable_ref.timetable,
                self._now,
                joining,
            )


def _changed(seen: Job, desired: DesiredJob, now: datetime) -> Job:
    """The job after the change."""
    new, status, next_run_at = desired.job, desired.status, None
    once = isinstance(new.schedule, Once)
    if status in ACTIVE_STATUSES:
        next_run_at = next_run(new, seen.job_id, now)
        if once and new.schedule == seen.schedule and seen.next_run_at is not None:
            next_run_at = seen.next_run_at  # a retry keeps its time
    if once and next_run_at is not None and status is not JobStatus.RETRYING:
        status = JobStatus.SCHEDULED if next_run_at > now else JobStatus.QUEUED
    ends = once and status is JobStatus.CANCELLED
    return Job(
        **msgspec.structs.asdict(new),
        problem=None if desired.redefines else seen.problem,
        unreadable=() if desired.redefines else seen.unreadable,
        job_id=seen.job_id,
        status=status,
        version=seen.version if ends else seen.version + 1,
        next_run_at=next_run_at,
        created_at=seen.created_at,
        updated_at=now,
    )


class _TimetableRef(msgspec.Struct, frozen=True):
    """The timetable of a job."""

    timetable: Timetable
    timetable_id: int


async def _timetable_ref(
    engine: Engine, job_id: int, job: NewJob, now: datetime, known: Mapping[Timetable, int]
) -> _TimetableRef:
    assert not isinstance(job.schedule, Once)
    try:
        timetable = timetable_of(job.schedule, job_id)
        numbers = known
        if timetable not in known:
            numbers = await ensure_timetables(engine, [timetable], now)
    except TimingError as error:
        raise unusable_schedule(job_id, error) from error
    return _TimetableRef(timetable, numbers[timetable])


# The arguments of `hourbell.change_job`; the fields are explained there, or are columns.


class _RecurringRow(msgspec.Struct, frozen=True, kw_only=True):
    queue: int
    priority: int
    target: int
    key: int | None
    key_limit: int
    max_runs: int | None
    starts_at: datetime | None
    ends_at: datetime | None
    name: str
    spec: str
    timetable: int | msgspec.UnsetType


async def _recurring_row(
    engine: Engine, job: NewJob, timetable_ref: _TimetableRef | None, now: datetime
) -> _RecurringRow:
    return _RecurringRow(
        queue=await engine.queue(job.queue, now, job.tenant_id),
        priority=job.priority,
        target=await engine.target(job.target, now, job.tenant_id),
        key=key_number(job),
        key_limit=job.concurrency_limit,
        max_runs=job.window.max_runs,
        starts_at=job.window.starts_at,
        ends_at=job.window.ends_at,
        name=job.name,
        spec=encode_job(job).decode(),
        timetable=msgspec.UNSET if timetable_ref is None else timetable_ref.timetable_id,
    )


class _TimetableOnly(msgspec.Struct, frozen=True):
    timetable: int


class _OneTimeRow(msgspec.Struct, frozen=True, kw_only=True):
    queue: int
    priority: int
    target: int
    key: int | None
    key_limit: int
    at_most_once: bool
    notifies: int
    spec: str
    occurrence: datetime
    run_at: datetime | msgspec.UnsetType  # unset: a retry keeps its time
    start_by: datetime | None
    finish_by: datetime | None


async def _one_time_row(engine: Engine, seen: Job, job: NewJob, now: datetime) -> _OneTimeRow:
    assert isinstance(job.schedule, Once)
    at = job.schedule.at
    return _OneTimeRow(
        queue=await engine.queue(job.queue, now, job.tenant_id),
        priority=job.priority,
        target=await engine.target(job.target, now, job.tenant_id),
        key=key_number(job),
        key_limit=job.concurrency_limit,
        at_most_once=job.delivery is Delivery.AT_MOST_ONCE,
        notifies=notifies(job),
        spec=encode_job(job).decode(),
        occurrence=at,
        run_at=msgspec.UNSET if job.schedule == seen.schedule else at,
        start_by=_plus_seconds(at, job.start_deadline_seconds),
        finish_by=_plus_seconds(at, job.deadline_seconds),
    )


def _plus_seconds(at: datetime, seconds: int | None) -> datetime | None:
    return None if seconds is None else at + timedelta(seconds=seconds)


class _Membership(msgspec.Struct, frozen=True, kw_only=True):
    active_since: datetime
    misfire: int
    catch_up_seconds: int
    catch_up_limit: int
    overlap: int
    at_most_once: bool
    start_deadline_seconds: int | None
    deadline_seconds: int | None
    notifies: int


def _membership(job: NewJob, now: datetime) -> _Membership:
    return _Membership(
        active_since=active_since(job, now),
        misfire=MISFIRES[job.misfire_policy],
        catch_up_seconds=job.catch_up_window_seconds,
        catch_up_limit=job.catch_up_limit,
        overlap=OVERLAPS[job.overlap_policy],
        at_most_once=job.delivery is Delivery.AT_MOST_ONCE,
        start_deadline_seconds=job.start_deadline_seconds,
        deadline_seconds=job.deadline_seconds,
        notifies=notifies(job),
    )


class _ChangeRow(msgspec.Struct, frozen=True, kw_only=True):
    seen_version: int
    seen_status: int
    status: int
    outdated: Reason | None
    cancels: bool
    definition: _RecurringRow | _OneTimeRow | _TimetableOnly | None
    membership: _Membership | None
    pause: Pause | None
    operation: int | None


def definition_of(job: Job) -> NewJob:
    """The part of a job that its owner wrote."""
    return NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})


def require_readable(job: Job, needed: Collection[str]) -> None:
    """Raise Conflict if there are such fields: this version cannot read them, and needs them."""
    if needed:
        raise Conflict(
            f"This version of Hourbell cannot read {', '.join(sorted(needed))} of"
            f" {job_text(job.job_id)}. Replace that with PATCH, upgrade all processes to the version"
            " that stored the job, or delete the job."
        )


def require_active(job: Job) -> None:
    """Raise JobNotActive if the job has ended."""
    if not job.is_live:
        raise JobNotActive(job_text(job.job_id), job.status)
