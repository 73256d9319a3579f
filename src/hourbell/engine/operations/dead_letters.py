"""Dead letters: list, read, replay and purge dead letters; and retry an execution immediately.

A replay makes an execution due again under its own id. Its attempts and its fence continue
counting, so that a target sees the same execution with higher numbers; its retries are counted from
zero. It uses the current version of its job (a one-time job is unchanged), goes through the gate like any
other, and its deadlines count from the replay. Its outcome is deleted, and `replays` notes the
replay; the attempts stay in its history.

A one-time job takes its unique key back, and stays dead while another job has it.

A replay locks the dead letters that it takes and skips locked ones, so that two concurrent replays
of the same one are a single replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.dead_letters import BulkSelection, DeadLetterFilter
from hourbell.engine.codes import JOB_STATUSES
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    ConcurrentChange,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.executions import attempts_of, execution_of, get_execution
from hourbell.engine.views.jobs import NO_TENANT, recorded_under, tenant_wanted
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Instant,
    Page,
    page_of,
    page_source,
    page_token,
    read_token,
    walk,
)
from hourbell.model.errors import Busy, Conflict, DuplicateJob, NotFound
from hourbell.model.executions import Attempt, Execution, ExecutionStatus, Reason, stored_reason
from hourbell.model.fingerprints import fingerprint_of
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import UNREADABLE_ERRORS, JobStatus, NewJob, decode_job
from hourbell.store.database import Connection
from hourbell.store.queries import queries

_Q = queries("dead_letters")
_J = queries("jobs")
_E = queries("executions")

_REPLAY = CommitFailpoints("replay.before_commit", "replay.after_commit")
_PURGE = CommitFailpoints("purge.before_commit", "purge.after_commit")
_COMPARED = 1_000  # dead letters whose fingerprints are compared at a time
_FAR = datetime.max.replace(tzinfo=UTC)
_EARLY = datetime(1970, 1, 1, tzinfo=UTC)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as read."""

    execution_id: int
    job_id: int
    job_name: str | None  # at the death; None: it was not stored
    tenant_id: str
    died_at: datetime
    reason: Reason
    kind: str | None  # of the last failure; None: no attempt has failed
    error: str | None
    fingerprint: str
    target: int | None  # the host or the task, as `executions.target`
    scheduled_for: datetime
    attempt: int  # the number of attempts
    attempts: tuple[Attempt, ...]  # oldest first
    job: NewJob | None  # as it was at the death; None: it was not stored, or cannot be read


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay by filter."""

    replayed: int
    left: int  # could not be replayed
    last_run_at: datetime | None  # when the last of them falls due
    next_token: str | None  # there may be more: continue with it
    left_over: Mapping[str, int] = msgspec.field(default_factory=dict)  # how many, by reason


class Purged(msgspec.Struct, frozen=True):
    """The result of a purge."""

    purged: int
    next_token: str | None  # there may be more: continue with it


# Reads.


async def list_dead_letters(
    engine: Engine, wanted: DeadLetterFilter, page_size: int = 50, token: str | None = None
) -> Page:
    """Dead letters, newest first; in lists they come without attempts and job."""
    return await read_page(engine, wanted, min(page_size, MAX_PAGE_SIZE), token)


async def get_dead_letter(engine: Engine, execution_id: int) -> DeadLetter:
    """A dead letter with its whole history and the job as it was."""
    row = await engine.database.row_or_none(_Q["letter"], execution_id)
    if row is None or not engine.may_see(row["tenant_name"]):
        raise NotFound("dead letter", execution_text(execution_id))
    return _dead_letter(row)


async def read_page(engine: Engine, wanted: DeadLetterFilter, size: int, token: str | None) -> Page:
    """A page of any size; it looks at no more than MAX_SCANNED_ROWS dead letters."""
    if wanted.fingerprint is None:
        return await _scan(engine, wanted, size, token)
    # Fingerprints are not stored: those of the dead letters that are looked at are compared.
    found: list[DeadLetter] = []
    for _ in range(MAX_SCANNED_ROWS // _COMPARED):
        page = await _scan(engine, wanted, _COMPARED, token)
        found += [letter for letter in page.items if letter.fingerprint == wanted.fingerprint]
        if len(found) > size:
            last = found[size - 1]
            return Page(found[:size], page_token((last.died_at, last.execution_id)))
        token = page.next_token
        if token is None:
            break
    return Page(found, token)


async def _scan(engine: Engine, wanted: DeadLetterFilter, size: int, token: str | None) -> Page:
    """A page of dead letters with any fingerprint."""
    before, before_id = (_FAR, NEWEST) if token is None else read_token(token, tuple[Instant, Id])
    if wanted.died_to is not None and wanted.died_to <= before:
        before, before_id = wanted.died_to, 0
    tenant = await tenant_wanted(engine, wanted.tenant_id)
    if tenant == NO_TENANT:
        return Page([], None)
    args = (
        before,
        before_id,
        size + 1,
        MAX_SCANNED_ROWS,
        wanted.died_from or _EARLY,
        wanted.reason,
    )
    if wanted.job_id is not None:
        rows = await walk(engine, _Q["list_letters_of_job"], *args, wanted.job_id, tenant)
    elif tenant is not None:
        rows = await walk(engine, _Q["list_letters_of_tenant"], *args, tenant)
    else:
        rows = await walk(engine, _Q["list_letters"], *args)
    return page_of([page_source(rows, size + 1, _position, _dead_letter)], size)


def _position(row: asyncpg.Record) -> tuple[datetime, int]:
    return row["died_at"], row["id"]


def _dead_letter(row: asyncpg.Record) -> DeadLetter:
    """A row of a list, or of a dead letter with its whole history."""
    spec = row.get("job_spec") or row.get("spec")
    kind, target, reason = row["kind"], row["target"], stored_reason(row["reason"])
    return DeadLetter(
        execution_id=row["id"],
        job_id=row["job"] or row["id"],
        job_name=row["job_name"],
        tenant_id=row["tenant_name"],
        died_at=row["died_at"],
        reason=reason,
        kind=kind,
        error=row["error"],
        fingerprint=fingerprint_of(target, kind or reason, row["error"]),
        target=target,
        scheduled_for=row["occurrence"],
        attempt=row["attempt"],
        attempts=attempts_of(row.get("history"), row.get("workers")),
        job=_job(spec),
    )


def _job(spec: str | None) -> NewJob | None:
    with suppress(*UNREADABLE_ERRORS):
        return None if spec is None else decode_job(spec)
    return None


# Replays.


async def replay_dead_letter(engine: Engine, execution_id: int, write: Write) -> Execution:
    """Make a dead letter due again, now."""
    return await _replay_or_retry(engine, execution_id, write, dead_letters_only=True)


async def retry_execution(engine: Engine, execution_id: int, write: Write) -> Execution:
    """Retry now an execution that waits for its next attempt; replay a dead one."""
    return await _replay_or_retry(engine, execution_id, write, dead_letters_only=False)


async def _replay_or_retry(
    engine: Engine, execution_id: int, write: Write, *, dead_letters_only: bool
) -> Execution:
    owner = (await _dead_letter_or_execution(engine, execution_id)).tenant_id
    now = await engine.clock.now()
    tenant = await engine.tenant(owner, now)

    writing = Idempotent(engine, write, _REPLAY, owner, now, Execution)
    async for attempt in writing:
        found = await _dead_letter_or_execution(engine, execution_id)
        if isinstance(found, Execution) and (
            dead_letters_only or found.status is not ExecutionStatus.RETRYING
        ):
            raise Conflict(_not_retryable(found))
        if isinstance(found, DeadLetter):
            await engine.database.value(_Q["leave_slabs"], [execution_id])
        async with attempt.transaction(tenant) as connection:
            if isinstance(found, DeadLetter):
                attempt.answer = await _replay_one(found, tenant, now, write, connection)
            else:
                attempt.answer = await _retry_now(found, tenant, now, write, connection)
    if writing.executed:
        engine.announce()
    return writing.answer


async def _dead_letter_or_execution(engine: Engine, execution_id: int) -> DeadLetter | Execution:
    """Look in both: a dead letter may outlive the ledger entry of its execution."""
    try:
        return await get_dead_letter(engine, execution_id)
    except NotFound:
        return await get_execution(engine, execution_id)


def _not_retryable(execution: Execution) -> str:
    number = execution_text(execution.execution_id)
    if execution.status is ExecutionStatus.DEAD:
        return f"{number} is dead and was purged from the dead letters."
    return f"{number} is {execution.status}: only a DEAD or RETRYING execution can be retried."


async def _replay_one(
    letter: DeadLetter, tenant: int, now: datetime, write: Write, connection: Connection
) -> Execution:
    number = letter.execution_id
    if not await connection.fetchval(_Q["replay"], [number], [now], now):
        raise await _replay_error(connection, letter)
    await insert_audit_row(connection, write, now, tenant, letter.job_id, "replay", None, None)
    return await _live_execution(connection, number, now)


async def _replay_error(connection: Connection, letter: DeadLetter) -> Exception:
    number = execution_text(letter.execution_id)
    row = await connection.fetchrow(_Q["letter"], letter.execution_id)
    if row is None:
        return ConcurrentChange()  # another request was first; the next read shows its effect
    if row["job"] is not None:
        job = await connection.fetchrow(_J["recurring"], [row["job"]])
        if job is None or JOB_STATUSES[job["status"]] is JobStatus.CANCELLED:
            deleted = job_text(letter.job_id)
            return Conflict(f"{number} cannot be replayed: its job {deleted} was deleted.")
        if await connection.fetchval(_Q["occurrence_lives"], letter.execution_id):
            return Conflict(f"{number} cannot be replayed: its occurrence is being run again.")
    elif holder := await connection.fetchval(_Q["holder_of_key"], letter.execution_id):
        return DuplicateJob(job_text(holder), replayed=number)
    return Busy()


async def _retry_now(
    execution: Execution, tenant: int, now: datetime, write: Write, connection: Connection
) -> Execution:
    number = execution.execution_id
    if await connection.fetchval(_Q["try_now"], number, now) is None:
        if await connection.fetchval(_Q["is_due"], number):
            raise ConcurrentChange
        raise Conflict(
            f"{execution_text(number)} does not wait for its time: it waits for a limit, its job is"
            " paused, or it is already queued. Use explain to see which."
        )
    await connection.execute(_J["requeue"], number)
    await insert_audit_row(connection, write, now, tenant, execution.job_id, "retry", None, None)
    return await _live_execution(connection, number, now)


async def _live_execution(connection: Connection, number: int, now: datetime) -> Execution:
    live = await connection.fetchrow(_E["execution"], number, now)
    assert live is not None
    return execution_of(live, with_attempts=True)


async def replay_dead_letters(engine: Engine, bulk: BulkSelection, write: Write) -> Replayed:
    """Replay the newest dead letters, in order of their deaths; at a rate, if one is given."""
    now = await engine.clock.now()
    owner = await recorded_under(engine, bulk.wanted.tenant_id)

    writing = Idempotent(engine, write, _REPLAY, owner, now, Replayed)
    async for attempt in writing:
        page = await read_page(engine, bulk.wanted, bulk.limit, bulk.token)
        letters = sorted(page.items, key=lambda letter: (letter.died_at, letter.execution_id))
        ids = [letter.execution_id for letter in letters]
        tenant = await engine.tenant(owner, now)
        await engine.database.value(_Q["leave_slabs"], ids)
        async with attempt.transaction(tenant) as connection:
            due_at = due_times(len(ids), now, bulk.rate_per_second)
            done = set(await connection.fetchval(_Q["replay"], ids, due_at, now))
            times = [at for number, at in zip(ids, due_at, strict=True) if number in done]
            left = await why_left(connection, [each for each in ids if each not in done])
            details = _audit_details(bulk, replayed=len(done))
            job_id = bulk.wanted.job_id if ids else None  # it may be of another tenant
            await insert_audit_row(connection, write, now, tenant, job_id, "replay", None, details)
            last = max(times, default=None)
            attempt.answer = Replayed(len(done), len(ids) - len(done), last, page.next_token, left)
    if writing.executed:
        engine.announce()
    return writing.answer


async def why_left(connection: Connection, letters: Sequence[int]) -> dict[str, int]:
    """How many of these could not be replayed, by reason."""
    if not letters:
        return {}
    rows = await connection.fetch(_Q["why_not_replayed"], letters)
    return {row["reason"]: row["n"] for row in rows}


def due_times(count: int, now: datetime, per_second: int | None) -> list[datetime]:
    """`count` due times from now on, at a rate."""
    step = timedelta(0) if per_second is None else timedelta(seconds=1) / per_second
    return [now + step * number for number in range(count)]


# Purges.


async def purge_dead_letter(engine: Engine, execution_id: int, write: Write) -> Purged:
    """Delete a dead letter; the history of the execution stays."""
    owner = (await _dead_letter_or_execution(engine, execution_id)).tenant_id
    now = await engine.clock.now()
    tenant = await engine.tenant(owner, now)

    writing = Idempotent(engine, write, _PURGE, owner, now, Purged)
    async for attempt in writing:
        letter = await get_dead_letter(engine, execution_id)
        async with attempt.transaction(tenant) as connection:
            purged = await connection.fetchval(_Q["purge"], [execution_id])
            await insert_audit_row(
                connection, write, now, tenant, letter.job_id, "purge", None, None
            )
            attempt.answer = Purged(purged, None)
    return writing.answer


async def purge_dead_letters(engine: Engine, bulk: BulkSelection, write: Write) -> Purged:
    """Delete many dead letters, newest first."""
    now = await engine.clock.now()
    owner = await recorded_under(engine, bulk.wanted.tenant_id)

    writing = Idempotent(engine, write, _PURGE, owner, now, Purged)
    async for attempt in writing:
        page = await read_page(engine, bulk.wanted, bulk.limit, bulk.token)
        ids = [letter.execution_id for letter in page.items]
        tenant = await engine.tenant(owner, now)
        async with attempt.transaction(tenant) as connection:
            purged = await connection.fetchval(_Q["purge"], ids)
            details = _audit_details(bulk, purged=purged)
            job_id = bulk.wanted.job_id if ids else None
            await insert_audit_row(connection, write, now, tenant, job_id, "purge", None, details)
            attempt.answer = Purged(purged, page.next_token)
    return writing.answer


def _audit_details(bulk: BulkSelection, **done: int) -> str:
    """The text of the audit entry."""
    fields: dict[str, Any] = {
        "tenant_id": bulk.wanted.tenant_id,
        "reason": bulk.wanted.reason,
        "from": bulk.wanted.died_from,
        "to": bulk.wanted.died_to,
        "fingerprint": bulk.wanted.fingerprint,
        "rate_per_second": bulk.rate_per_second,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode(given | done).decode()
