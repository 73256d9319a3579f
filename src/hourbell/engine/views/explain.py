"""explain: the one thing that an execution or a job currently waits for, and until when.

`until` is when that changes by itself: its time comes, a token arrives, a lease expires, or a
deadline ends the waiting.
"""

from __future__ import annotations

from datetime import datetime

import asyncpg
import msgspec

from hourbell.engine.codes import AWAITING_SESSION, TARGET_GONE
from hourbell.engine.core import Engine
from hourbell.engine.life.broken import UNKNOWN_TIMEZONE
from hourbell.engine.operations.limits import (
    BLOCKER_CONCURRENCY_KEY,
    BLOCKER_JOB,
    BLOCKER_QUEUE,
    BLOCKER_TARGET,
    BLOCKER_TASK,
    BLOCKER_TENANT,
)
from hourbell.engine.views.executions import execution_of, get_execution
from hourbell.engine.views.jobs import get_job
from hourbell.engine.views.pages import walk
from hourbell.model.errors import NotFound
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    NO_SECRET_KEYS,
    Execution,
    ExecutionStatus,
    Reason,
)
from hourbell.model.ids import execution_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import Job, JobStatus, decode_spec
from hourbell.model.schedules import Once
from hourbell.store.queries import queries

_E = queries("executions")
_L = queries("limits")
_A = queries("awaiting")
_D = queries("dead_letters")
_T = queries("audit")
_P = queries("planning")
_U = queries("pauses")

_POSTPONED = {
    CIRCUIT_OPEN: "Requests to its host or endpoint keep failing and are delayed for a while;"
    " this uses no attempt.",
    NO_SECRET_KEYS: "A worker had no key to decrypt its secrets and released it; this uses no"
    " attempt. Set HOURBELL_SECRET_KEYS on every API and worker process, with the same keys.",
    Reason.SNOOZED: "Its handler asked to run again later; this uses no attempt.",
}


class Holder(msgspec.Struct, frozen=True):
    """An execution that holds what another execution waits for."""

    execution_id: int
    job_id: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an execution or a job has not run, or not ended."""

    code: str  # stable, for programs
    message: str
    until: datetime | None = None  # when that changes by itself
    execution_id: int | None = None  # the explained execution
    blocked_by: Holder | None = None  # the holder of what it waits for, if the caller may see it


_NO_WORKER_FOR_TASK = Explanation(
    code="no_worker_for_task",
    message="No live worker of its queue runs its task. Start one that has a handler for it, or"
    " that names it in `tasks`.",
)


async def explain_execution(engine: Engine, execution_id: int) -> Explanation:
    """What an execution waits for."""
    now = await engine.clock.now()
    row = await engine.database.row_or_none(_E["execution"], execution_id, now)
    if row is None or not engine.may_see(row["tenant_name"]):
        raise NotFound("execution", execution_text(execution_id))
    if row["recorded_at"] is not None:
        explained = await _ended(engine, execution_of(row, with_attempts=True))
    else:
        explained = await _live(engine, row, now)
        if row["claimed_at"] is None:
            explained = _within_deadline(explained, row)
    return msgspec.structs.replace(explained, execution_id=execution_id)


async def _ended(engine: Engine, execution: Execution) -> Explanation:
    reason = f" ({execution.reason})" if execution.reason else ""
    if execution.status is not ExecutionStatus.DEAD:
        return Explanation(code="ended", message=f"It has ended: {execution.status}{reason}.")
    last = execution.attempts[-1] if execution.attempts else None
    error = execution.error or (None if last is None else last.error)
    kind = None if last is None or last.kind == execution.reason else last.kind
    kept = await engine.database.row_or_none(_D["letter"], execution.execution_id)
    replay = f"POST /api/v1/dead-letters/{execution_text(execution.execution_id)}/replay"
    sentences = [
        f"It is DEAD{reason} after {_count(execution.attempt, 'attempt')} and will not be retried.",
        f"Last error{f' ({kind})' if kind else ''}: {error}" if error else "",
        f"Replay it with {replay}."
        if kept
        else "Its dead letter is no longer kept, so it cannot be replayed.",
    ]
    return Explanation(code="dead", message=_joined(sentences))


async def _live(engine: Engine, row: asyncpg.Record, now: datetime) -> Explanation:
    if row["session"] == AWAITING_SESSION:
        return Explanation(
            code="awaiting_completion",
            message="Its target has accepted it and will report the outcome.",
            until=await engine.database.value(_A["until"], row["id"]),
        )
    if row["claimed_at"] is not None:
        if row["cancel_requested"]:
            return Explanation(
                code="cancelling", message=f"Worker {row['worker']} was asked to stop it."
            )
        return Explanation(
            code="running",
            message=f"It runs on worker {row['worker']}, which must renew its lease.",
            until=row["expires_at"],
        )
    if row["in_paused"]:
        return await _paused(engine, row["id"])
    if row["in_due"] and row["run_at"] > now:
        return await _not_due(engine, row)
    # Without a worker nothing can run, whatever else the execution waits for.
    if not await engine.database.value(_E["queue_served"], row["queue"], now):
        return Explanation(
            code="no_worker",
            message=f"No live worker serves its queue {row['queue_name']}. Start one that does.",
        )
    if row["in_parked"]:
        return await _blocked(engine, row["id"], now)
    if row["in_due"]:
        return Explanation(code="admission", message="It is due and waits for the gate.")
    if row["in_suspects"]:
        return Explanation(
            code="quarantine",
            message="Its worker died twice in a row; it waits for a worker that runs nothing else.",
        )
    return Explanation(code="worker_slot", message="It is ready and waits for a free worker.")


async def _not_due(engine: Engine, row: asyncpg.Record) -> Explanation:
    """The explanation of an execution that waits for a time."""
    if row["waits_for"] in _POSTPONED:
        code = row["waits_for"]
        return Explanation(code=code, message=_POSTPONED[code], until=row["run_at"])
    counted = row["attempt"] - (row["replayed_attempt"] or 0)
    if not counted:
        return Explanation(
            code="not_due", message="Its time has not come yet.", until=row["run_at"]
        )
    stored = await engine.database.value(_E["job_spec"], row["id"])
    max_attempts = _max_attempts(stored)
    last = execution_of(row, with_attempts=True).attempts[-1]
    of_max = "" if max_attempts is None else f" of {max_attempts}"
    return Explanation(
        code="retrying",
        message=_joined(
            [
                f"Attempt {counted}{of_max} failed ({last.kind}): {last.error}",
                f"Attempt {counted + 1} waits for its time.",
            ]
        ),
        until=row["run_at"],
    )


def _within_deadline(explained: Explanation, row: asyncpg.Record) -> Explanation:
    """Add the deadline, if it ends the waiting first."""
    deadline, fate = row["finish_by"], "DEAD (deadline)"
    if row["start_by"] is not None and not row["attempt"]:
        deadline, fate = row["start_by"], "SKIPPED (start_deadline)"
    if deadline is None or (explained.until is not None and explained.until <= deadline):
        return explained
    verb = "started" if fate.startswith("SKIPPED") else "ended"
    return msgspec.structs.replace(
        explained,
        message=_joined(
            [
                explained.message,
                f"If it has not {verb} by {format_instant(deadline)}, it is {fate}.",
            ]
        ),
        until=deadline,
    )


async def _holder(engine: Engine, execution_id: int | None) -> Holder | None:
    """A blocking execution, if the caller may see it."""
    if execution_id is None:
        return None
    try:
        found = await get_execution(engine, execution_id)
    except NotFound:
        return None
    return Holder(found.execution_id, found.job_id)


async def _blocked(engine: Engine, execution_id: int, now: datetime) -> Explanation:
    """The limit, key or run for which the gate has parked an execution."""
    row = await engine.database.row_or_none(_L["blocker_of"], execution_id, now)
    admission = Explanation(code="admission", message="It is about to be admitted.")
    if row is None:
        return admission
    kind, holder = row["kind"], await _holder(engine, row["holder"])
    if kind == BLOCKER_JOB:
        message = "An earlier run of the job has not ended yet."
        return Explanation(code="overlap", message=message, blocked_by=holder)
    if kind == BLOCKER_CONCURRENCY_KEY:
        message = "Another execution with the same concurrency key has not ended yet."
        return Explanation(code="concurrency_key", message=message, blocked_by=holder)
    if kind == BLOCKER_TASK:
        return _NO_WORKER_FOR_TASK if row["lacks_task"] else admission
    name = {BLOCKER_QUEUE: "queue", BLOCKER_TENANT: "tenant", BLOCKER_TARGET: "target"}[kind]
    if row["full"]:
        message = f"Its {name} has reached its concurrency limit."
        return Explanation(code=f"{name}_concurrency", message=message, blocked_by=holder)
    if row["next_token"] is not None:
        message = f"Its {name} has reached its rate limit."
        return Explanation(code=f"{name}_rate", message=message, until=row["next_token"])
    return admission


async def _paused(engine: Engine, job_id: int) -> Explanation:
    """Which actor paused a job, when, why and until when, and what to do."""
    row = await engine.database.row_or_none(_U["pauses"], [job_id])
    if row is not None:
        return _paused_with_details(row)
    rows = await walk(engine, _T["last_pause"], job_id)
    if not rows:  # its audit entries have expired
        return Explanation(code="paused", message="The job is paused. Resume it to let it run.")
    (row,) = rows
    since = format_instant(row["at"])
    if row["actor"] == TARGET_GONE:
        message = (
            f"The job was paused at {since} because its target answered 410 (gone). Resume it only"
            " if the target is back, or change the target; delete the job if it is not needed."
        )
    else:
        message = f"The job was paused by {row['actor']} at {since}. Resume it to let it run."
    return Explanation(code="paused", message=message)


def _paused_with_details(row: asyncpg.Record) -> Explanation:
    because = f": {row['reason']}" if row["reason"] else ""
    until = row["until"]
    ends = (
        "Resume it to let it run."
        if until is None
        else f"It is resumed at {format_instant(until)}, or by you before that."
    )
    paused = f"The job was paused by {row['actor']} at {format_instant(row['at'])}{because}"
    return Explanation(code="paused", message=_joined([paused, ends]), until=until)


def _max_attempts(spec: str | None) -> int | None:
    """By the current job; None: the job is gone, or was written by a newer, unreadable version."""
    if spec is None:
        return None
    try:
        return decode_spec(spec).retry_policy.max_retries + 1
    except msgspec.MsgspecError:
        return None


async def explain_job(engine: Engine, job_id: int) -> Explanation:
    """What a job waits for: its oldest run that has not ended, or its next one."""
    job = await get_job(engine, job_id)
    if isinstance(job.schedule, Once):
        return await explain_execution(engine, job_id)  # it is its execution
    if job.status is JobStatus.PAUSED:
        return await _paused(engine, job_id)
    return await _recurring(engine, job)


async def _recurring(engine: Engine, job: Job) -> Explanation:
    oldest = await engine.database.value(_E["oldest_live"], job.job_id, await engine.clock.now())
    if oldest is not None:
        return await explain_execution(engine, oldest)
    if job.status is not JobStatus.SCHEDULED:
        message = f"The job is {job.status}: it has no further run."
        return Explanation(code="ended", message=message)
    broken = await engine.database.row_or_none(_P["broken"], job.job_id)
    if broken is not None:
        return _not_planned(broken)
    return Explanation(
        code="not_due", message="Its next run is not due yet.", until=job.next_run_at
    )


def _not_planned(row: asyncpg.Record) -> Explanation:
    """The explanation of a job whose timetable the leader cannot compute."""
    if row["broken"] == UNKNOWN_TIMEZONE:
        message = (
            f"The time zone data of the scheduler (IANA release {row['tz_version']}) has no zone"
            f" {row['zone']}, so no run is planned. Set schedule.timezone to an existing zone, or"
            " update the tzdata package of every node."
        )
    else:
        message = (
            "The scheduler cannot compute the schedule, so no run is planned. Its log says why."
            " Update the schedule, or upgrade every node."
        )
    return Explanation(code=row["broken"], message=message, until=row["look_at"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _joined(sentences: list[str]) -> str:
    """Join sentences, each with its full stop."""
    return " ".join(
        sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."
        for sentence in sentences
        if sentence
    )
