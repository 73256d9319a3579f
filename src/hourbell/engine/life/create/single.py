"""Create one job, together with concurrent requests (`groups`).

A group shares one read, one statement and one commit. Each request gets its own answer: an invalid
document, an exhausted quota or a taken key affects no other request. The lock timeout of the
statement is short. A request that is blocked by another transaction is retried separately with a
longer timeout, so one stuck row never delays unrelated requests. Jobs of tenants with a quota are
counted under a lock; if another transaction holds that lock, they are created apart from the
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import asyncpg
import msgspec

from hourbell.documents.schedules import first_run
from hourbell.engine.core import CreatedNames, Engine
from hourbell.engine.groups import Submission
from hourbell.engine.life.create.insert import (
    FAILPOINTS,
    JobInserter,
    KeyTaken,
    LockTimeouts,
    Problem,
    Repeated,
    after_commit,
)
from hourbell.engine.life.create.names import Blocked, resolve_available
from hourbell.engine.life.create.request import (
    CreateContext,
    CreateRequest,
    create_request,
    read_context,
    with_declarations,
)
from hourbell.engine.life.create.rows import JobRow, RequestRow, job_row
from hourbell.engine.life.references import (
    CalendarReferences,
    Required,
    SecretReferences,
    required_calendars,
)
from hourbell.engine.operations.idempotency import Idempotent, Write
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Busy, DuplicateJob, QuotaExceeded
from hourbell.model.ids import created_at, job_text
from hourbell.model.jobs import Job, JobStatus, NewJob, OnDuplicate
from hourbell.model.schedules import Once

# Each retry means that a competitor succeeded: bounds how many may compete for a key.
_MAX_TRIES = 64
_GROUP_TIMEOUTS = LockTimeouts(50, 50)
_QUOTA_TIMEOUTS = LockTimeouts(50, 1_500)  # for jobs of tenants with a quota, apart from the others
_SEPARATE_TIMEOUTS = LockTimeouts(1_500, 1_500)


class Created(msgspec.Struct, frozen=True):
    """The result of a create."""

    job: Job
    existed: bool = False  # the job existed before and is returned as the answer
    created_tenant: bool = False  # the request created the tenant of the job by naming it,
    created_queue: bool = False  # or the queue


class _Stored(msgspec.Struct, frozen=True):
    """The stored answer to an earlier request with the same key."""

    created: Created


Outcome = Created | KeyTaken | None  # None: try again
_Submission = Submission[CreateRequest, Outcome | _Stored]


async def create_job(engine: Engine, document: object, write: Write) -> Created:
    """Create the job that a document describes. InvalidInput names every wrong field."""
    request = create_request(engine, document, write)
    for _ in range(_MAX_TRIES):
        outcome = await try_create(engine, request)
        if isinstance(outcome, KeyTaken):
            outcome = await _existing(engine, outcome, request)
        if outcome is not None:
            return outcome
    raise Busy()


async def try_create(engine: Engine, request: CreateRequest) -> Outcome:
    """Create a job together with concurrent requests."""
    outcome: Outcome | _Stored = await engine.create_groups.submit(
        request, partial(_create_group, engine, _GROUP_TIMEOUTS)
    )
    if isinstance(outcome, _Stored):
        await engine.database.confirm()  # apart from the group: it does not wait for this
        engine.counts.repeated_keys.add()
        return outcome.created
    return outcome


async def _existing(engine: Engine, taken: KeyTaken, request: CreateRequest) -> Created | None:
    """The answer when another job has the unique key; None: that job has just ended."""
    if taken.on_duplicate is not OnDuplicate.KEEP:
        replacing = taken.on_duplicate is OnDuplicate.REPLACE
        raise DuplicateJob(job_text(taken.job_id), replacing)
    now = await engine.clock.now()
    tenant = await engine.tenant(request.tenant, now)
    job = await get_job(engine, taken.job_id)
    if not job.is_live:
        return None
    writing = Idempotent(engine, request.write, FAILPOINTS, request.tenant, now, Created)
    async for attempt in writing:
        async with attempt.transaction(tenant):
            attempt.answer = Created(job, existed=True)
    return writing.answer


# Groups.


class _Pending(msgspec.Struct, frozen=True):
    """A checked request, with the answer it gets if it is stored."""

    submission: _Submission
    row: JobRow
    created: Created
    secrets: Required  # must exist
    calendars: Required  # must exist

    @property
    def key(self) -> object:
        key = self.row.request.key
        return None if key is None else (self.row.tenant, key)

    def repeats(self, other: _Pending) -> bool:
        """Whether this is a repetition of the same request."""
        same = self.row.request.fingerprint == other.row.request.fingerprint
        return same and self.key is not None and self.key == other.key


async def _create_group(
    engine: Engine, timeouts: LockTimeouts, submissions: list[_Submission]
) -> None:
    asked = [submission.request for submission in submissions]
    requests: Sequence[CreateRequest] = with_declarations(engine.declarations, asked)
    context = await read_context(
        engine,
        len(requests),
        {request.queue for request in requests},
        {request.tenant for request in requests},
        [(request.tenant, request.write.key) for request in requests],
    )
    requests = await context.declare(engine, requests)
    group: dict[int, _Pending] = {}  # by job id
    first: dict[object, _Pending] = {}  # by keys that may occur only once in a statement
    later: list[tuple[_Pending, _Pending]] = []  # requests whose key an earlier one also needs
    for pending in await _with_references(engine, _parsed(engine, submissions, requests, context)):
        keys = [key for key in (pending.key, pending.row.unique_key) if key is not None]
        earlier = next((first[key] for key in keys if key in first), None)
        if earlier is not None:
            later.append((earlier, pending))
            continue
        try:
            context.reserve_quota(pending.row)
        except QuotaExceeded as error:
            pending.submission.refuse(error)
            continue
        first |= dict.fromkeys(keys, pending)
        group[pending.row.job_id] = pending
    try:
        await _store_group(engine, timeouts, context, group)
    finally:
        for earlier, pending in later:
            _resolve_later(engine, earlier, pending)


def _parsed(
    engine: Engine,
    submissions: list[_Submission],
    requests: Sequence[CreateRequest],
    context: CreateContext,
) -> list[_Pending]:
    """Parse the documents of a group. Repeated and invalid requests are answered here."""
    group = []
    for position, submission in enumerate(submissions):
        request = requests[position]
        try:
            answer = context.stored_answer(position, request.write)
            if answer is not None:
                submission.answer(_Stored(msgspec.json.decode(answer, type=Created)))
            else:
                job_id = context.ids[position]
                group.append(_pending(submission, request, context, job_id))
        except Exception as error:  # any failure affects this request only
            submission.refuse(error)
    return group


def _pending(
    submission: _Submission, request: CreateRequest, context: CreateContext, job_id: int
) -> _Pending:
    write = request.write
    new = context.parse(request, job_id)
    created = Created(_as_created(new, job_id, context.now))
    answer = None if write.key is None else msgspec.json.encode(created).decode()
    request_row = RequestRow(new.tenant_id, write.actor, write.key, write.fingerprint, answer)
    row = job_row(job_id, new, request_row, request.name)
    secrets = request.required_secrets(new, row.spec)
    return _Pending(submission, row, created, secrets, required_calendars(new.schedule))


async def _with_references(engine: Engine, group: list[_Pending]) -> list[_Pending]:
    """The requests of a group whose secrets and calendars exist; the others are refused."""
    missing = await SecretReferences().missing(
        engine, {each.row.job_id: (each.row.tenant, each.secrets) for each in group if each.secrets}
    )
    missing |= await CalendarReferences().missing(
        engine,
        {each.row.job_id: (each.row.tenant, each.calendars) for each in group if each.calendars},
    )
    for pending in group:
        if pending.row.job_id in missing:
            pending.submission.refuse(missing[pending.row.job_id])
    return [pending for pending in group if pending.row.job_id not in missing]


async def _store_group(
    engine: Engine, timeouts: LockTimeouts, context: CreateContext, group: dict[int, _Pending]
) -> None:
    if not group:
        return
    brief = engine.with_lock_timeout(timeouts.keys_ms)
    rows = [pending.row for pending in group.values()]
    names, unavailable = await resolve_available(brief, rows, context.now)
    _answer_problems(engine, timeouts, group.values(), unavailable)
    inserter = JobInserter(engine, context, names, timeouts)
    group = {job_id: each for job_id, each in group.items() if job_id not in unavailable}
    if names.created:
        group = {job_id: _noted(each, names.created) for job_id, each in group.items()}
    available = [pending.row for pending in group.values()]
    async for inserted, problems in inserter.insert_each(available):
        part = [group[row.job_id] for row in inserted]
        _answer_problems(engine, timeouts, part, problems)
        stored = [each for each in part if each.row.job_id not in problems]
        for pending in stored:
            if pending.row.recurring is None:
                pending.submission.answer(pending.created)
        await after_commit(engine, [pending.row for pending in stored], names, context.now)
        for pending in stored:
            pending.submission.answer(pending.created)


def _noted(pending: _Pending, names: CreatedNames) -> _Pending:
    """A request whose answer says which names it has created."""
    row, request = pending.row, pending.row.request
    made_tenant, made_queue = names.take(row.tenant, row.settings.queue)
    created = msgspec.structs.replace(
        pending.created, created_tenant=made_tenant, created_queue=made_queue
    )
    if request.answer is not None:
        answer = msgspec.json.encode(created).decode()
        request = msgspec.structs.replace(request, answer=answer)
    row = msgspec.structs.replace(row, request=request)
    return msgspec.structs.replace(pending, row=row, created=created)


def _answer_problems(
    engine: Engine,
    timeouts: LockTimeouts,
    group: Iterable[_Pending],
    problems: Mapping[int, Problem],
) -> None:
    """Answer the requests whose jobs were not stored, or retry them separately."""
    waiting_for_quota = []
    for pending in group:
        submission = pending.submission
        match problems.get(pending.row.job_id):
            case None:
                pass
            case KeyTaken() as taken:
                submission.answer(taken)
            case Repeated() | asyncpg.ForeignKeyViolationError():
                # The answer of the first request is stored now; or an unused timetable was deleted
                # since it was resolved.
                submission.answer(None)
            case Blocked(by_quota=True):
                waiting_for_quota.append(submission)
            case Blocked():
                _retry(engine, [submission], timeouts, _SEPARATE_TIMEOUTS)
            case error:
                submission.refuse(error)
    if waiting_for_quota:
        _retry(engine, waiting_for_quota, timeouts, _QUOTA_TIMEOUTS)


def _retry(
    engine: Engine, submissions: list[_Submission], before: LockTimeouts, timeouts: LockTimeouts
) -> None:
    """Retry blocked requests apart from the others, if the lock timeout is now longer."""
    if before.keys_ms < timeouts.keys_ms or before.quotas_ms < timeouts.quotas_ms:
        engine.create_groups.submit_separately(
            submissions, partial(_create_group, engine, timeouts)
        )
    else:
        for submission in submissions:
            submission.refuse(Busy())


def _resolve_later(engine: Engine, first: _Pending, later: _Pending) -> None:
    """Resolve a request that lost its key to an earlier request in the same group."""
    future, submission = first.submission.future, later.submission
    if not future.done() or future.cancelled():
        submission.answer(None)
        return
    error = future.exception()
    outcome = future.result() if error is None else None
    assert not isinstance(outcome, _Stored)  # the first one had no answer yet
    repeats = later.repeats(first)
    if later.key is not None and later.key == first.key and not repeats:
        submission.answer(None)  # a different request under the same key
    elif isinstance(error, QuotaExceeded):
        # The unique key is still free, so this job would need room as well.
        submission.refuse(error)
    elif outcome is None or repeats:
        if outcome is not None:
            engine.counts.repeated_keys.add()
        submission.answer(outcome)
    elif later.row.on_duplicate is OnDuplicate.REPLACE:
        submission.answer(None)
    else:
        engine.counts.taken_keys.add()
        holder = outcome.job_id if isinstance(outcome, KeyTaken) else outcome.job.job_id
        submission.answer(KeyTaken(holder, later.row.on_duplicate))


def _as_created(new: NewJob, job_id: int, now: datetime) -> Job:
    created, next_run_at = now, None
    if isinstance(new.schedule, Once):
        created, next_run_at = created_at(job_id), new.schedule.at
    else:
        next_run_at = first_run(new.schedule, new.window, job_id, now)
    return Job(
        **msgspec.structs.asdict(new),
        job_id=job_id,
        status=JobStatus.SCHEDULED,
        version=1,
        next_run_at=next_run_at,
        created_at=created,
        updated_at=created,
    )
