"""bulk operations: an act on everything that a filter selects, in batches, by the leader.

A request stores the operation and answers at once; the leader carries it out. A batch and its
progress are committed together, after the row of the operation was locked and seen to be at that
batch. So nothing is done twice when the leader dies or changes, and the counts are exact.

What is selected is what exists when the operation is created: jobs with a lower id, and dead
letters that died before. A batch is a page of the list that a user would see, so a rare filter
takes many short batches. Jobs are changed as a change of one job alone would (`bulk.py`), dead
letters are replayed and purged as a call by filter does (`dead_letters.py`).

A job that was changed between the read and the lock is read once more, by the next batch. A batch
that meets a lock for too long is postponed, so that one locked row delays no other operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import structlog

from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.documents.operations import (
    Act,
    JobSelector,
    OperationRequest,
    parse_operation,
    parse_operation_preview,
)
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.operations.bulk import decide_all, paused_with
from hourbell.engine.operations.change import (
    PAUSE,
    RESUME,
    Decision,
    decide_pause,
    decide_resume,
    require_future,
)
from hourbell.engine.operations.dead_letters import due_times, read_page
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
    is_lock_conflict,
    write_row,
)
from hourbell.engine.views.jobs import (
    NO_TENANT,
    JobFilter,
    list_jobs,
    recorded_under,
    selected_ids,
    tenant_wanted,
)
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    NEWEST,
    Id,
    Page,
    page_token,
    read_token,
    walk,
)
from hourbell.failpoints import failpoint
from hourbell.model.errors import InvalidInput, NotFound, NotLeader, StoreUnavailable
from hourbell.model.ids import operation_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import DEFAULT_TENANT, Job, JobStatus, Pause
from hourbell.store.database import Connection, translate_errors
from hourbell.store.queries import queries

log = structlog.get_logger(component="scheduler")

_Q = queries("operations")
_D = queries("dead_letters")
_P = queries("pauses")
_J = queries("jobs")

MAX_COUNTED = 10_000
_JOBS = 100  # changed in one batch
_LETTERS = 500  # replayed or purged in one batch
_MAX_FORGOTTEN = 1_000
_FAILPOINTS = CommitFailpoints("operate.before_commit", "operate.after_commit")
# Why a job was left as it is, by the outcome of its change.
_LEFT = {"underway": "underway", "locked": "in_use", "moved": "changed_meanwhile"}
_POSTPONED = timedelta(seconds=1)  # until a batch that met a lock is tried again
_AHEAD = timedelta(seconds=1)  # a batch at a rate begins so long before the last one has fallen due
_NOUNS: dict[Act, str] = {
    "pause": "scheduled job",
    "resume": "paused job",
    "replay": "dead letter",
    "purge": "dead letter",
}

RUNNING, STOPPED, DONE, FAILED = "RUNNING", "STOPPED", "DONE", "FAILED"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation, and how far it is."""

    operation_id: int
    act: Act
    filter: Mapping[str, Any]  # as the request gave it
    reason: str | None
    until: datetime | None  # of a pause
    rate_per_second: int | None  # of a replay
    tenant_id: str | None  # the only tenant that it concerns; None: all tenants
    created_by: str
    created_at: datetime
    state: str
    total: int  # selected when it was created
    total_at_least: bool
    done: int = 0
    left_over: Mapping[str, int] = msgspec.field(default_factory=dict)  # how many, by reason
    error: str | None = None
    updated_at: datetime
    ended_at: datetime | None = None


class OperationPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation would concern."""

    act: Act
    filter: Mapping[str, Any]
    total: int
    at_least: bool  # there may be more
    words: str


# Requests.


async def preview_operation(engine: Engine, document: object) -> OperationPreview:
    """Count what an operation would concern; nothing is changed."""
    request = parse_operation_preview(document)
    total, more = await _count(engine, request, None)
    return OperationPreview(
        act=request.act,
        filter=request.filter,
        total=total,
        at_least=more,
        words=_words(request, total, more),
    )


async def create_operation(engine: Engine, document: object, write: Write) -> Operation:
    """Store an operation, which the leader carries out."""
    request = parse_operation(document)
    now = await engine.clock.now()
    owner = await recorded_under(engine, request.tenant_id)
    only = owner if owner in (request.tenant_id, engine.scope) else None
    operation_id = await engine.new_id(now)
    writing = Idempotent(engine, write, _FAILPOINTS, owner, now, Operation)
    async for attempt in writing:
        require_future(Pause(request.reason, request.until), now)
        request = _up_to_now(request, now)
        # Jobs that are created later have higher ids.
        position = page_token(operation_id) if _is_of_jobs(request) else None
        total, more = await _count(engine, request, position)
        tenant = await engine.tenant(owner, now)
        operation = Operation(
            operation_id=operation_id,
            act=request.act,
            filter=request.filter,
            reason=request.reason,
            until=request.until,
            rate_per_second=request.rate_per_second,
            tenant_id=only,
            created_by=write.actor,
            created_at=now,
            state=RUNNING,
            total=total,
            total_at_least=more,
            updated_at=now,
        )
        async with attempt.transaction(tenant) as connection:
            await connection.execute(
                _Q["insert"],
                operation_id,
                tenant,
                None if only is None else tenant,
                request.act,
                msgspec.json.encode(request.filter).decode(),
                request.reason,
                request.until,
                request.rate_per_second,
                write.actor,
                now,
                position,
                operation.total,
                operation.total_at_least,
            )
            await _note(connection, write, now, tenant, "start_operation", operation)
            attempt.answer = operation
    return writing.answer


async def stop_operation(engine: Engine, operation_id: int, write: Write) -> Operation:
    """Stop a running operation after its current batch; what was done stays."""
    seen = await get_operation(engine, operation_id)
    now = await engine.clock.now()
    owner = seen.tenant_id or DEFAULT_TENANT
    tenant = await engine.tenant(owner, now)
    writing = Idempotent(engine, write, _FAILPOINTS, owner, now, Operation)
    async for attempt in writing:
        async with attempt.transaction(tenant) as connection:
            ended = await connection.fetchval(_Q["end"], operation_id, now, STOPPED, None)
            row = await connection.fetchrow(_Q["operation"], operation_id)
            assert row is not None
            attempt.answer = _operation(row)
            if ended is not None:
                await _note(connection, write, now, tenant, "stop_operation", attempt.answer)
    return writing.answer


async def get_operation(engine: Engine, operation_id: int) -> Operation:
    """An operation, and how far it is."""
    row = await engine.database.row_or_none(_Q["operation"], operation_id)
    if row is None or (engine.scope is not None and row["tenant_name"] != engine.scope):
        raise NotFound("operation", operation_text(operation_id))
    return _operation(row)


async def list_operations(
    engine: Engine, tenant_id: str | None, page_size: int = 50, token: str | None = None
) -> Page:
    """Operations, newest first; `tenant_id`: those that concern this tenant alone."""
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, tenant_id)
    if tenant == NO_TENANT:
        return Page([], None)
    size = min(page_size, MAX_PAGE_SIZE)
    if tenant is None:
        rows = await walk(engine, _Q["list_operations"], before, size + 1)
    else:
        rows = await walk(engine, _Q["list_operations_of_tenant"], before, size + 1, tenant)
    more = len(rows) > size
    items = [_operation(row) for row in rows[:size]]
    return Page(items, page_token(rows[size - 1]["id"]) if more else None)


def _up_to_now(request: OperationRequest, now: datetime) -> OperationRequest:
    """The same; dead letters of later deaths are not concerned."""
    selected = request.selected
    if isinstance(selected, JobSelector) or (selected.died_to and selected.died_to <= now):
        return request
    given = dict(request.filter) | {"to": format_instant(now)}
    selected = msgspec.structs.replace(selected, died_to=now)
    return msgspec.structs.replace(request, filter=given, selected=selected)


async def _count(
    engine: Engine, request: OperationRequest, position: str | None
) -> tuple[int, bool]:
    """How many are selected, up to MAX_COUNTED, and whether there may be more."""
    selected = request.selected
    if isinstance(selected, DeadLetterFilter):
        page = await read_page(engine, selected, MAX_COUNTED, position)
        return len(page.items), page.next_token is not None
    wanted = _jobs_wanted(request.act, selected)
    ids, more = await selected_ids(engine, wanted, MAX_COUNTED, position)
    return len(await paused_with(engine, ids, selected.paused_reason, selected.operation_id)), more


def _jobs_wanted(act: Act, selected: JobSelector) -> JobFilter:
    return JobFilter(
        tenant_id=selected.tenant_id,
        status=JobStatus.SCHEDULED if act == "pause" else JobStatus.PAUSED,
        queue=selected.queue,
        label=selected.label,
        name_prefix=selected.name_prefix,
    )


def _is_of_jobs(request: OperationRequest) -> bool:
    return isinstance(request.selected, JobSelector)


def _words(request: OperationRequest, total: int, more: bool) -> str:
    noun = _NOUNS[request.act] + ("" if total == 1 and not more else "s")
    parts = [
        f"{name.replace('_', ' ').removesuffix(' id')} {value}"
        for name, value in request.filter.items()
    ]
    which = f" with {', '.join(parts)}" if parts else ""
    number = f"at least {total:,}" if more else f"{total:,}"
    return f"{request.act.capitalize()} {number} {noun}{which}."


async def _note(
    connection: Connection,
    write: Write,
    now: datetime,
    tenant: int,
    what: str,
    operation: Operation,
) -> None:
    """The audit entry of the start or the end of an operation."""
    details = {
        "operation_id": operation_text(operation.operation_id),
        "act": operation.act,
        "filter": operation.filter,
        "reason": operation.reason,
        "total": operation.total,
        "done": operation.done,
        "left": sum(operation.left_over.values()),
    }
    text = msgspec.json.encode(details).decode()
    await insert_audit_row(connection, write, now, tenant, None, what, None, text)


def _operation(row: asyncpg.Record) -> Operation:
    return Operation(
        operation_id=row["id"],
        act=row["act"],
        filter=msgspec.json.decode(row["filter"]),
        reason=row["reason"],
        until=row["until"],
        rate_per_second=row["rate"],
        tenant_id=row["tenant_name"],
        created_by=row["actor"],
        created_at=row["created_at"],
        state=row["state"],
        total=row["total"],
        total_at_least=row["total_at_least"],
        done=row["done"],
        left_over=msgspec.json.decode(row["left_over"]),
        error=row["error"],
        updated_at=row["updated_at"],
        ended_at=row["ended_at"],
    )


# The leader.


class _Running(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that is to be continued."""

    operation: Operation
    tenant: int  # of its audit entries
    batch: int  # the number of batches that were committed
    position: str | None
    paced_until: datetime | None


class _BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has done."""

    done: int
    left: Counter[str]
    position: str | None  # None: that was all
    paced_until: datetime | None = None


async def run_operations(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Carry out one batch of an operation; True if there was one."""
    row = await engine.database.row_or_none(_Q["next"], now)
    if row is None:
        return False
    running = _Running(
        operation=_operation(row),
        tenant=row["tenant"],
        batch=row["batches"],
        position=row["position"],
        paced_until=row["paced_until"],
    )
    try:
        await _run_batch(engine, term, running, now)
    except NotLeader:
        raise
    except StoreUnavailable as error:
        if not is_lock_conflict(error):
            raise
        await _postpone(engine, running, now)
    except asyncpg.ForeignKeyViolationError:
        # A timetable that no job used was deleted after it was looked up.
        await _postpone(engine, running, now)
    except Exception as error:
        # It would fail again: other operations are not to wait for it.
        log.exception("operation failed", operation=operation_text(row["id"]))
        await _fail(engine, term, running, now, f"{type(error).__name__}: {error}")
    return True


async def _run_batch(engine: Engine, term: Term | None, running: _Running, now: datetime) -> None:
    operation = running.operation
    stored = {"act": operation.act, "filter": operation.filter}
    request = parse_operation_preview(stored)
    scoped = engine.scoped_to(operation.tenant_id)
    if isinstance(request.selected, JobSelector):
        await _change_jobs(scoped, term, running, request.selected, now)
    elif operation.act == "purge":
        await _purge(scoped, term, running, request.selected, now)
    else:
        await _replay(scoped, term, running, request.selected, now)
        engine.announce()


@asynccontextmanager
async def _batch(
    engine: Engine, term: Term | None, running: _Running
) -> AsyncIterator[Connection | None]:
    """The transaction of a batch; None: another node has done it, or the operation has ended."""
    number = running.operation.operation_id
    with translate_epoch_errors():
        async with engine.database.transaction() as connection:
            await connection.execute(_J["set_timeouts"])
            args = (number, running.batch, *epoch_args(term))
            if await connection.fetchval(_Q["lock"], *args) is None:
                yield None
                return
            yield connection
            await failpoint(_FAILPOINTS.before)
    with translate_errors():
        await failpoint(_FAILPOINTS.after)


async def _record(
    connection: Connection, running: _Running, result: _BatchResult, now: datetime
) -> None:
    """Record the progress in the transaction of the batch; the last one is in the audit trail."""
    number = running.operation.operation_id
    await connection.execute(
        _Q["record_batch"],
        number,
        now,
        result.position,
        result.done,
        msgspec.json.encode(result.left).decode(),
        max(now, result.paced_until - _AHEAD) if result.paced_until else now,
        result.paced_until,
    )
    if result.position is None:
        row = await connection.fetchrow(_Q["operation"], number)
        assert row is not None
        write = Write(actor=running.operation.created_by)
        await _note(connection, write, now, running.tenant, "end_operation", _operation(row))


async def _change_jobs(
    engine: Engine, term: Term | None, running: _Running, selected: JobSelector, now: datetime
) -> None:
    operation = running.operation
    pause = Pause(operation.reason, operation.until)
    change = PAUSE if operation.act == "pause" else RESUME
    decide: Decision = decide_resume
    if operation.act == "pause":
        decide = decide_pause(pause, operation.operation_id)
    wanted = _jobs_wanted(operation.act, selected)
    page = await list_jobs(engine, wanted, _JOBS, running.position)
    jobs: list[Job] = page.items
    reason, by = selected.paused_reason, selected.operation_id
    meant = await paused_with(engine, [job.job_id for job in jobs], reason, by)
    jobs = [job for job in jobs if job.job_id in meant]
    write = Write(actor=operation.created_by)
    changes, refused = await decide_all(engine, jobs, now, write, change, decide)
    row = msgspec.json.encode(write_row(write, 0, change.name, None, None)).decode()
    async with _batch(engine, term, running) as connection:
        if connection is None:
            return
        ids = list(changes)
        arguments = [changes[each].argument for each in ids]
        outcomes: list[str] = []
        ended = None
        if ids:
            changed = await connection.fetchrow(_P["change_jobs"], now, ids, arguments, row)
            assert changed is not None
            outcomes, ended = changed["outcomes"], changed["ended"]
        position = _next_position(running.position, page.next_token, ids, outcomes)
        # What comes after the position is seen again, and counted then; what was changed is not.
        floor = read_token(position, Id) if position is not None else 0
        left = Counter(
            _LEFT[outcome]
            for job_id, outcome in zip(ids, outcomes, strict=False)
            if outcome in _LEFT and job_id >= floor
        )
        left.update(
            _why_refused(operation.act, error)
            for job_id, error in refused.items()
            if job_id >= floor
        )
        result = _BatchResult(done=outcomes.count("changed"), left=left, position=position)
        await _record(connection, running, result, now)
    engine.counts.count_ended(ended)


def _next_position(
    position: str | None, after_page: str | None, ids: Sequence[int], outcomes: Sequence[str]
) -> str | None:
    """Where the next batch begins: jobs with lower ids than in this token.

    It begins with the first job that was changed after it was read, unless this batch has begun
    with it for that reason; or after a job that another transaction has locked, at which the
    changes stop; or after this page.
    """
    for job_id, outcome in zip(ids, outcomes, strict=False):
        if outcome == "moved" and (again := page_token(job_id + 1)) != position:
            return again
    if len(outcomes) < len(ids):
        return page_token(ids[len(outcomes) - 1])
    return after_page


def _why_refused(act: Act, error: Exception) -> str:
    if not isinstance(error, InvalidInput):
        return "ended"
    return "until_passed" if act == "pause" else "invalid_schedule"


async def _replay(
    engine: Engine, term: Term | None, running: _Running, wanted: DeadLetterFilter, now: datetime
) -> None:
    rate = running.operation.rate_per_second
    # At a rate, about a second of executions at a time: the rest can still be stopped.
    size = _LETTERS if rate is None else min(_LETTERS, rate)
    page = await read_page(engine, wanted, size, running.position)
    letters = sorted(page.items, key=lambda letter: (letter.died_at, letter.execution_id))
    ids = [letter.execution_id for letter in letters]
    begin = max(now, running.paced_until or now)
    times = due_times(len(ids), begin, rate)
    paced = None if rate is None else begin + timedelta(seconds=len(ids) / rate)
    await engine.database.value(_D["leave_slabs"], ids)
    async with _batch(engine, term, running) as connection:
        if connection is None:
            return
        done = set(await connection.fetchval(_D["replay"], ids, times, now))
        left: Counter[str] = Counter()
        if remaining := [each for each in ids if each not in done]:
            rows = await connection.fetch(_Q["why_not_replayed"], remaining)
            left.update({row["reason"]: row["n"] for row in rows})
        result = _BatchResult(
            done=len(done), left=left, position=page.next_token, paced_until=paced
        )
        await _record(connection, running, result, now)


async def _purge(
    engine: Engine, term: Term | None, running: _Running, wanted: DeadLetterFilter, now: datetime
) -> None:
    page = await read_page(engine, wanted, _LETTERS, running.position)
    ids = [letter.execution_id for letter in page.items]
    async with _batch(engine, term, running) as connection:
        if connection is None:
            return
        purged = await connection.fetchval(_D["purge"], ids)
        left = Counter({"gone": len(ids) - purged}) if purged < len(ids) else Counter()
        result = _BatchResult(done=purged, left=left, position=page.next_token)
        await _record(connection, running, result, now)


async def _postpone(engine: Engine, running: _Running, now: datetime) -> None:
    """Try the batch again later; other operations continue meanwhile."""
    number = running.operation.operation_id
    log.info("operation postponed", operation=operation_text(number))
    await engine.database.fetch(_Q["postpone"], number, running.batch, now + _POSTPONED)


async def _fail(
    engine: Engine, term: Term | None, running: _Running, now: datetime, error: str
) -> None:
    number = running.operation.operation_id
    async with _batch(engine, term, running) as connection:
        if connection is None:
            return
        await connection.execute(_Q["end"], number, now, FAILED, error[:1000])
        row = await connection.fetchrow(_Q["operation"], number)
        assert row is not None
        write = Write(actor=running.operation.created_by)
        await _note(connection, write, now, running.tenant, "end_operation", _operation(row))


async def forget_operations(engine: Engine, term: Term | None, before: datetime) -> bool:
    """Delete operations that have ended before a time; True if there may be more."""
    with translate_epoch_errors():
        gone: int = await engine.database.value(
            _Q["forget"], before, _MAX_FORGOTTEN, *epoch_args(term)
        )
    return gone == _MAX_FORGOTTEN
