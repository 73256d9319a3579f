"""Completions: end accepted executions when their target reports the outcome, or at the timeout.

A webhook that is answered with `202` and `Hourbell-Async: 1` leaves its worker: its lease moves to
a session that never ends. Its fence, deadline and limits stay as they are, and the death of a
worker no longer matters. The caller that presents the token sent with the request completes the
execution. A repeated completion gets the same answer, whatever has happened to the execution since.

The reported text is searched for the secrets that the target was sent, as the worker searches an
answer. If that is impossible, because the job or the secrets were changed since or cannot be
decrypted here, the outcome counts and the text is withheld.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from uuid import UUID

import asyncpg
import msgspec
import structlog

from hourbell.engine.codes import AWAITING_SESSION
from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate, note_failing, run_each
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.life.settle import SETTLE, columns, count_settled
from hourbell.engine.life.settlement import (
    Settlement,
    settlement,
)
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    ConcurrentChange,
    Idempotent,
    Write,
)
from hourbell.engine.operations.secrets import redactor_of_sent
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.pages import walk
from hourbell.model.errors import Conflict, NotFound, StoreUnavailable
from hourbell.model.executions import (
    FATES,
    TIMEOUT,
    Claimed,
    Execution,
    ExecutionStatus,
    Failed,
    Succeeded,
)
from hourbell.model.ids import execution_text
from hourbell.model.jobs import UNREADABLE_ERRORS, TaskAction, decode_policies, decode_spec
from hourbell.security.sealing import KeyRing
from hourbell.store.database import committing
from hourbell.store.queries import queries

log = structlog.get_logger(component="api")

_Q = queries("awaiting")
_TOKEN_OF_SESSION = UUID(int=0)
_COMPLETE = CommitFailpoints("complete.before_commit", "complete.after_commit")
_NO_TENANT = 0  # a completion has no idempotency key: its token repeats it
_MAX_OVERDUE = 500
_END_OVERDUE = (
    "select * from hourbell.end_overdue($1, $2, $3, $4, $5, $6::text::bigint[], $7::text::bigint[],"
    " $8::text::int[], $9::text::int[], $10, $11, $12, $13, $14, $15, $16)"
)
_RECORDING_SECONDS = 2  # how long a worker may take to record that a target has accepted
_MAX_MS = 2_000_000_000

WITHHELD = "[withheld: could not be searched for the secrets that the target was sent]"

_TOO_LATE = Failed(
    "The target accepted the request, but did not report an outcome within the timeout.", TIMEOUT
)


class Completed(msgspec.Struct, frozen=True):
    """The outcome that a target reported."""

    execution_id: int
    status: ExecutionStatus  # SUCCEEDED or FAILED; a failure may be retried


async def complete(
    engine: Engine, ring: KeyRing, execution_id: int, token: str, outcome: Succeeded | Failed
) -> Completed:
    """End an attempt that awaits its target, authorized by the token that the target was sent.

    A token of a handler that waits (`ctx.wait_for_completion`) does not end the attempt: its
    handler runs again, and is given the outcome.
    """
    seen = await get_execution(engine, execution_id)
    wait = await engine.database.row_or_none(_Q["wait_by_token"], execution_id, token)
    if wait is not None:
        return await _report_wait(engine, seen, wait["name"], outcome)
    succeeded = isinstance(outcome, Succeeded)
    status = ExecutionStatus.SUCCEEDED if succeeded else ExecutionStatus.FAILED
    answer = Completed(execution_id, status)
    digest = hashlib.sha256(token.encode()).digest()
    now = await engine.clock.now()

    writing = Idempotent(engine, Write(), _COMPLETE, seen.tenant_id, now, Completed)
    async for attempt in writing:
        row = await _by_token(engine, execution_id, digest)
        if row is None:
            raise NotFound("execution", execution_text(execution_id))
        if row["outcome"] == status:
            await engine.database.confirm()
            return answer
        if row["outcome"] is not None or row["claimed_at"] is None:
            raise _ended(execution_id, row["outcome"])
        redacted = await _without_secrets(engine, ring, seen, row, outcome)
        try:
            settled = _settlement(row, redacted, now)
        except UNREADABLE_ERRORS as error:  # a process of a newer version can
            raise StoreUnavailable(f"This version cannot read the job: {error}") from error

        async with attempt.transaction(_NO_TENANT) as connection:
            fence = settled.fence
            if not await connection.fetchval(_Q["note_outcome"], execution_id, fence, status):
                raise ConcurrentChange
            found = await connection.fetchrow(
                SETTLE, AWAITING_SESSION, _TOKEN_OF_SESSION, now, *columns([settled])
            )
            assert found is not None
            done = found
            if done["refused"]:
                raise _ended(execution_id, None)
            attempt.answer = answer
    if writing.executed:
        assert row is not None
        engine.failures.note(settled, _claimed(row, seen.tenant_id))
        engine.announce()
        count_settled(engine, [settled], columns([settled]), done)
    return answer


async def _report_wait(
    engine: Engine, seen: Execution, name: str, outcome: Succeeded | Failed
) -> Completed:
    """Give a handler what it waits for; it may not wait yet."""
    succeeded = isinstance(outcome, Succeeded)
    status = ExecutionStatus.SUCCEEDED if succeeded else ExecutionStatus.FAILED
    number = seen.execution_id
    value = msgspec.json.encode(outcome.result if isinstance(outcome, Succeeded) else outcome.error)
    if seen.status in FATES:
        raise _ended(number, None)
    now = await engine.clock.now()
    async with committing(_COMPLETE.before, _COMPLETE.after):
        counts = await engine.database.value(
            _Q["report_wait"], number, name, status.value, value.decode(), now
        )
    if counts != status:
        raise _ended(number, counts)
    engine.announce()
    return Completed(number, status)


async def _by_token(engine: Engine, execution_id: int, digest: bytes) -> asyncpg.Record | None:
    """Find an execution by its token; if it still runs, wait until its acceptance is recorded.

    A target may complete before the worker has recorded the acceptance.
    """
    row = await engine.database.row_or_none(_Q["by_token"], execution_id, digest)
    if row is not None or not await _is_running(engine, execution_id):
        return row or await engine.database.row_or_none(_Q["by_token"], execution_id, digest)
    # Few at a time: unauthenticated callers get here with any token.
    async with engine.early_completions:
        for _ in range(_RECORDING_SECONDS * 10):
            await asyncio.sleep(0.1)
            still_running = await _is_running(engine, execution_id)
            row = await engine.database.row_or_none(_Q["by_token"], execution_id, digest)
            if row is not None or not still_running:
                return row
    return None


async def _is_running(engine: Engine, execution_id: int) -> bool:
    return (await get_execution(engine, execution_id)).status is ExecutionStatus.RUNNING


async def _without_secrets(
    engine: Engine, ring: KeyRing, seen: Execution, row: asyncpg.Record, outcome: Succeeded | Failed
) -> Succeeded | Failed:
    if isinstance(outcome, Succeeded) and outcome.result is None:
        return outcome
    action = None
    if row["is_as_sent"]:
        with suppress(*UNREADABLE_ERRORS):
            action = decode_spec(row["spec"]).action
    if isinstance(action, TaskAction):
        return outcome  # the target was sent no secrets
    redactor = None  # if the job was changed since: any secret may have been sent
    if action is not None:
        redactor = await redactor_of_sent(engine, ring, seen.tenant_id, action, row["claimed_at"])
    if redactor is None:
        log.warning("completion text withheld", execution_id=execution_text(seen.execution_id))
    if isinstance(outcome, Succeeded):
        return Succeeded(redactor.redacted_document(outcome.result) if redactor else WITHHELD)
    return Failed(redactor.redacted(outcome.error) if redactor else WITHHELD, outcome.kind)


async def end_overdue(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Fail executions not completed in time, and cancel those with a cancellation requested.

    True if there may be more.
    """

    async def cancel() -> bool:
        ended = await engine.database.value(_Q["cancel_requested"], *epoch_args(term), now)
        engine.counts.count_ended(ended)
        return False

    async def end_waits() -> bool:
        waits = await engine.database.value(_Q["end_waits"], *epoch_args(term), now, _MAX_OVERDUE)
        if waits:
            engine.announce()
        return bool(waits == _MAX_OVERDUE)

    with translate_epoch_errors():
        return await run_each(cancel, end_waits, partial(_time_out, engine, term, now))


async def _time_out(engine: Engine, term: Term | None, now: datetime) -> bool:
    rows = await walk(engine, _Q["overdue"], now, _MAX_OVERDUE)
    decided: list[tuple[asyncpg.Record, Settlement | None]] = []

    async def fails(row: asyncpg.Record, error: Exception) -> None:
        job_id = row["job"] or row["id"]
        await note_failing(engine, now, "overdue", row["id"], error, job_id, row["id"])

    for row in rows:
        try:
            is_waiting = row["claimed_at"] is not None and row["spec"] is not None
            decided.append((row, _settlement(row, _TOO_LATE, now) if is_waiting else None))
        except Exception as error:
            await fails(row, error)
    await isolate(
        decided,
        lambda some: _end_overdue(engine, term, now, some),
        lambda one, error: fails(one[0], error),
    )
    return len(rows) == _MAX_OVERDUE


async def _end_overdue(
    engine: Engine,
    term: Term | None,
    now: datetime,
    decided: Sequence[tuple[asyncpg.Record, Settlement | None]],
) -> None:
    batch = [settled for _, settled in decided if settled is not None]
    ids, fences = [row["id"] for row, _ in decided], [row["fence"] for row, _ in decided]
    given = columns(batch)
    async with committing("settle.before_commit", "settle.after_commit"):
        with translate_epoch_errors():
            row = await engine.database.row(
                _END_OVERDUE, *epoch_args(term), now, ids, fences, *given
            )
    count_settled(engine, batch, given, row)
    for each, settled in decided:
        if settled is not None:
            engine.failures.note(settled, _claimed(each, ""))
    if row["freed"]:
        engine.announce()


def _claimed(row: asyncpg.Record, tenant: str) -> Claimed:
    return Claimed(
        row["id"],
        row["job"] or row["id"],
        tenant,
        row["attempt"] + 1,
        row["fence"],
        row["occurrence"].timestamp(),
        None,
        row["spec"],
    )


def _settlement(row: asyncpg.Record, outcome: Succeeded | Failed, now: datetime) -> Settlement:
    """The same decision as on a worker, for an attempt that began on a worker."""
    claimed = _claimed(row, "")
    passed_ms = int((now - row["claimed_at"]).total_seconds() * 1000)
    took_ms = max(min(passed_ms, _MAX_MS) - row["begun_ms"], 0)
    by = row["finish_by"]
    remaining = None if by is None else (by - now).total_seconds()
    spec = decode_policies(row["spec"])
    return settlement(claimed, spec, outcome, row["begun_ms"], took_ms, remaining)


def _ended(execution_id: int, outcome: str | None) -> Conflict:
    how = (
        f"was completed as {outcome}" if outcome in ("SUCCEEDED", "FAILED") else "ended without it"
    )
    return Conflict(f"{execution_text(execution_id)} no longer awaits completion: it {how}.")
