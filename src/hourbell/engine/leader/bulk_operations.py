"""bulk operations: carry out what was requested, one batch at a time.

A batch and its progress are committed together, after the row of the operation was locked and seen
to be at that batch. So nothing is done twice when the leader dies or changes, and the counts are
exact.

A batch is a page of the list that a user would see, so a rare filter takes many short batches. Jobs
are changed as a change of one job alone would (`operations/bulk_changes.py`), dead letters are replayed and
purged as a call by filter does (`operations/dead_letters.py`).

A job that was changed between the read and the lock is read again by the next batch. A batch that
meets a lock for too long is postponed, so that one locked row delays no other operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import asyncpg
import msgspec
import structlog

from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.documents.operations import Act, JobSelector, parse_operation_preview
from hourbell.engine.core import Engine
from hourbell.engine.failing import note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.operations.bulk_changes import decide_all, paused_with
from hourbell.engine.operations.bulk_operations import (
    FAILED,
    FAILPOINTS,
    Operation,
    insert_audit_of,
    jobs_wanted,
    operation_of,
)
from hourbell.engine.operations.change import PAUSE, RESUME, Decision, decide_pause, decide_resume
from hourbell.engine.operations.dead_letters import due_times, read_page, why_left
from hourbell.engine.operations.idempotency import Write, is_lock_conflict, write_row
from hourbell.engine.views.jobs import list_jobs
from hourbell.engine.views.pages import Id, page_token, read_token
from hourbell.failpoints import failpoint
from hourbell.model.errors import InvalidInput, NotLeader, StoreUnavailable
from hourbell.model.ids import operation_text
from hourbell.model.jobs import Job, Pause
from hourbell.store.database import Connection, translate_errors
from hourbell.store.queries import queries

log = structlog.get_logger(component="scheduler")

_Q = queries("operations")
_D = queries("dead_letters")
_P = queries("pauses")
_J = queries("jobs")

_JOBS = 100  # changed in one batch
_LETTERS = 500  # replayed or purged in one batch
_MAX_FORGOTTEN = 1_000
# Why a job was not changed, by the outcome of its change.
_LEFT = {
    "underway": "underway",
    "locked": "in_use",
    "moved": "changed_meanwhile",
    "failed": "failed",
}
_POSTPONED = timedelta(seconds=1)  # until a batch that met a lock is retried
_UNREADABLE = timedelta(minutes=1)  # until an operation that cannot be read is tried again
_MAX_PACED = timedelta(minutes=1)  # no batch at a rate falls due so far ahead
_AHEAD = timedelta(seconds=1)  # a batch at a rate begins so long before the last one has fallen due


class _Running(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that has not ended."""

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
    try:
        running = _Running(
            operation=operation_of(row),
            tenant=row["tenant"],
            batch=row["batches"],
            position=row["position"],
            paced_until=row["paced_until"],
        )
    except Exception as error:  # another version, which can read it, may lead by then
        await note_failing(engine, now, "operation", row["id"], error)
        await engine.database.fetch(_Q["postpone"], row["id"], row["batches"], now + _UNREADABLE)
        return True
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
        # It would fail again, and other operations must not wait for it.
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
            await failpoint(FAILPOINTS.before)
    with translate_errors():
        await failpoint(FAILPOINTS.after)


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
        await insert_audit_of(
            connection, write, now, running.tenant, "end_operation", operation_of(row)
        )


async def _change_jobs(
    engine: Engine, term: Term | None, running: _Running, selected: JobSelector, now: datetime
) -> None:
    operation = running.operation
    pause = Pause(operation.reason, operation.until)
    change = PAUSE if operation.act == "pause" else RESUME
    decide: Decision = decide_resume
    if operation.act == "pause":
        decide = decide_pause(pause, operation.operation_id)
    wanted = jobs_wanted(operation.act, selected)
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
    begin = _beginning(running.paced_until, now)
    times = due_times(len(ids), begin, rate)
    paced = None if rate is None else begin + timedelta(seconds=len(ids) / rate)
    await engine.database.value(_D["leave_slabs"], ids)
    async with _batch(engine, term, running) as connection:
        if connection is None:
            return
        done = set(await connection.fetchval(_D["replay"], ids, times, now))
        left = Counter(await why_left(connection, [each for each in ids if each not in done]))
        result = _BatchResult(
            done=len(done), left=left, position=page.next_token, paced_until=paced
        )
        await _record(connection, running, result, now)


def _beginning(paced_until: datetime | None, now: datetime) -> datetime:
    """From when on a batch falls due: after the last one, unless the clock was set back since."""
    if paced_until is None or paced_until > now + _MAX_PACED:
        return now
    return max(now, paced_until)


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
        await insert_audit_of(
            connection, write, now, running.tenant, "end_operation", operation_of(row)
        )


async def forget_operations(engine: Engine, term: Term | None, before: datetime) -> bool:
    """Delete operations that have ended before a time; True if there may be more."""
    with translate_epoch_errors():
        gone: int = await engine.database.value(
            _Q["forget"], before, _MAX_FORGOTTEN, *epoch_args(term)
        )
    return gone == _MAX_FORGOTTEN
