"""explain: the one thing that an execution or a job currently waits for, since when and until when.

`since` is when the waiting began: for an execution whose time has come, the time at which it was
due, whatever it has waited for meanwhile. `until` is when that changes by itself: its time comes, a
token arrives, a lease expires, or a deadline ends the waiting. Sentences contain no instants: these
fields have them, and the reader's clock shows them.

When a running execution ends is not known. `expected_at` is an estimate: its start and the median
of the latest successes of its job. There is none if these are few, if the run already takes longer,
or if others are before the explained execution in the line.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg
import msgspec

from hourbell.engine.codes import AWAITING_SESSION
from hourbell.engine.core import Engine
from hourbell.engine.life.broken import UNKNOWN_TIMEZONE
from hourbell.engine.operations.limits import (
    BLOCKER_CONCURRENCY_KEY,
    BLOCKER_FAILURE,
    BLOCKER_JOB,
    BLOCKER_QUEUE,
    BLOCKER_TARGET,
    BLOCKER_TASK,
    BLOCKER_TENANT,
)
from hourbell.engine.views.executions import execution_of, get_execution, list_executions
from hourbell.engine.views.fleet import CIRCUITS_SECONDS
from hourbell.engine.views.job_details import PauseDetails, pauses_of
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import NotFound
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    FATES,
    NO_SECRET_KEYS,
    PAYLOAD_MISMATCH,
    UNREADABLE,
    Execution,
    ExecutionStatus,
    Reason,
)
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.jobs import Job, JobStatus, TaskAction, decode_spec
from hourbell.model.schedules import Once
from hourbell.store.queries import queries

_E = queries("executions")
_L = queries("limits")
_A = queries("awaiting")
_D = queries("dead_letters")
_P = queries("planning")
_F = queries("fleet")

_BEFORE_A_WORKER = frozenset({"not_due", "no_worker", "no_worker_for_task"})
_RUNS_LOOKED_AT = 20  # of a job, for the usual time of a run
_FEWEST_RUNS = 3  # that say something about it

_POSTPONED = {
    CIRCUIT_OPEN: "Requests to its target keep failing and are delayed for a while; this uses no attempt.",
    NO_SECRET_KEYS: "A worker had no key to decrypt its secrets and released it; this uses no"
    " attempt. Set HOURBELL_SECRET_KEYS on every API and worker process, with the same keys.",
    PAYLOAD_MISMATCH: "A worker released it, because its arguments do not fit the worker's version of the"
    " task; this uses no attempt. The worker's log says why. Start a worker with the version that fits.",
    UNREADABLE: "A worker released it, because the worker's version of Hourbell cannot read its job; this"
    " uses no attempt. Start workers of the version that stored the job, or update or delete the job.",
    Reason.SNOOZED: "Its handler asked to run again later; this uses no attempt.",
}


_NO_SUCCESS = FATES - {ExecutionStatus.SUCCEEDED}
_MAX_SUPERSEDED = 20  # that are passed over
# Why an occurrence did not run, or not to its end.
_NOT_RUN = {
    Reason.OVERLAP: "an earlier run of the job had not ended",
    Reason.REPLACED: "a later run of the job became due before it had started",
    Reason.START_DEADLINE: "it could not start within start_deadline_seconds",
    Reason.CALENDAR: "its date is in a calendar that the schedule excludes",
    Reason.MISFIRE: "nothing was running at its time, and the misfire policy does not make it up",
    Reason.MAX_RUNS: "the job had already started max_runs runs",
    Reason.CANCELLED: "a user cancelled it, or a later run of the job replaced it",
    Reason.UPDATED: "the job was rescheduled before it had started",
    Reason.PAUSED: "the job was paused before it had started",
    Reason.DELETED: "the job was deleted before it had started",
}


class BlockedBy(msgspec.Struct, frozen=True):
    """An execution that holds what another execution waits for."""

    execution_id: str
    job_id: str


class Holder(msgspec.Struct, frozen=True):
    """What holds the thing that an execution waits for; None: unknown, or not for this caller."""

    execution_id: str | None = None
    job_id: str | None = None
    worker: str | None = None  # that runs this execution
    limit: int | None = None  # of executions at once,
    in_use: int | None = None  # and how many there are


class LastError(msgspec.Struct, frozen=True):
    """How the latest attempt that has ended failed."""

    kind: str | None
    error: str | None
    at: datetime | None


class LastDue(msgspec.Struct, frozen=True):
    """The last due occurrence of a job, if it has ended and did not succeed."""

    execution_id: str
    scheduled_for: datetime
    status: ExecutionStatus
    reason: Reason | None
    code: str
    message: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an execution or a job has not run, or not ended. Ids are texts: users of the library see it."""

    code: str  # stable, for programs
    message: str
    since: datetime | None = None
    until: datetime | None = None  # when that changes by itself
    expected_at: datetime | None = None  # when its holder ends, if it runs as long as usual
    execution_id: str | None = None  # the explained execution
    blocked_by: BlockedBy | None = None  # the holder, if the caller may see it
    holder: Holder | None = None
    attempt: int | None = None  # that runs, or the last one; 0: none yet; None: no execution
    max_attempts: int | None = None  # None: no execution, or its job is unknown
    last_error: LastError | None = None
    paused: PauseDetails | None = None  # of a paused job
    last_due: LastDue | None = None  # of a recurring job


async def explain_execution(engine: Engine, execution_id: int) -> Explanation:
    """What an execution waits for."""
    now = await engine.clock.now()
    row = await engine.database.row_or_none(_E["execution"], execution_id, now)
    if row is None or not engine.may_see(row["tenant_name"]):
        raise NotFound("execution", execution_text(execution_id))
    execution = execution_of(row, with_attempts=True)
    max_attempts = _max_attempts(await engine.database.value(_E["job_spec"], execution_id))
    attempt = execution.attempt - (row["replayed_attempt"] or 0)
    if row["recorded_at"] is not None:
        explained = await _ended(engine, execution, row["recorded_at"])
    else:
        explained = await _live(engine, row, now, attempt, max_attempts)
        if row["claimed_at"] is None:
            explained = _within_deadline(explained, row)
    explained = await _with_unknown_task(engine, explained, execution_id, now)
    return msgspec.structs.replace(
        explained,
        execution_id=execution_text(execution_id),
        attempt=attempt,
        max_attempts=max_attempts,
        last_error=_last_error(execution),
    )


def _last_error(execution: Execution) -> LastError | None:
    for attempt in reversed(execution.attempts):
        if attempt.status is ExecutionStatus.FAILED:
            return LastError(attempt.kind, attempt.error, attempt.finished_at)
    if execution.error is not None:  # it ended between two attempts
        return LastError(None, execution.error, execution.finished_at)
    return None


async def _ended(engine: Engine, execution: Execution, ended_at: datetime) -> Explanation:
    if execution.status is not ExecutionStatus.DEAD:
        message = f"It has ended: {_fate(execution)}."
        return Explanation(code="ended", message=message, since=ended_at)
    last = execution.attempts[-1] if execution.attempts else None
    error = execution.error or (None if last is None else last.error)
    kind = None if last is None or last.kind == execution.reason else last.kind
    kept = await engine.database.row_or_none(_D["letter"], execution.execution_id)
    replay = f"`hourbell dlq replay {execution_text(execution.execution_id)}`"
    dead = f"{_fate(execution)}, after {_count(execution.attempt, 'attempt')}"
    is_whole_job = execution.execution_id == execution.job_id
    sentences = [
        f"It has no further run: {dead}" if is_whole_job else f"It is {dead}, and is not retried",
        f"Last error{f' ({kind})' if kind else ''}: {error}" if error else "",
        f"Replay it with {replay}."
        if kept
        else "Its dead letter is no longer kept, so it cannot be replayed.",
    ]
    return Explanation(code="dead", message=_joined(sentences), since=ended_at)


def _fate(execution: Execution) -> str:
    """How an execution ended, with the reason in words if it did not run to its end."""
    if execution.reason is None:
        return execution.status.value
    said = _NOT_RUN.get(execution.reason)
    return f"{execution.status} ({execution.reason})" + (f", because {said}" if said else "")


async def _live(
    engine: Engine,
    row: asyncpg.Record,
    now: datetime,
    attempt: int,
    max_attempts: int | None,
) -> Explanation:
    if row["session"] == AWAITING_SESSION:
        return Explanation(
            code="awaiting_completion",
            message="Its target has accepted it and will report the outcome.",
            since=row["claimed_at"],
            until=await engine.database.value(_A["until"], row["id"]),
        )
    if row["claimed_at"] is not None:
        worker = Holder(worker=row["worker"])
        if row["cancel_requested_at"] is not None:
            return Explanation(
                code="cancelling",
                message=f"Worker {row['worker']} was asked to stop it.",
                since=row["cancel_requested_at"],
                holder=worker,
            )
        return Explanation(
            code="running",
            message=f"It runs on worker {row['worker']}, which must renew its lease.",
            since=row["claimed_at"],
            until=row["expires_at"],
            holder=worker,
        )
    if row["in_paused"]:
        return await _paused(engine, row["id"])
    if row["in_due"] and row["run_at"] > now:
        if row["waits_for"] == CIRCUIT_OPEN:
            return await _circuit(engine, row, now)
        explained = _not_due(row, attempt, max_attempts)
        if explained.code == PAYLOAD_MISMATCH:
            misfit = await _misfit(engine, row["id"])
            return msgspec.structs.replace(explained, message=explained.message + misfit)
        return explained
    waiting = await _waiting(engine, row, now)
    return msgspec.structs.replace(waiting, since=row["run_at"])


async def _waiting(engine: Engine, row: asyncpg.Record, now: datetime) -> Explanation:
    """The explanation of an execution whose time has come."""
    # Without a worker nothing can run, whatever else the execution waits for.
    if not await engine.database.value(_E["queue_served"], row["queue"], now):
        return Explanation(
            code="no_worker",
            message=f"No live worker serves its queue {row['queue_name']}. Start one with"
            f" `hourbell worker --queues {row['queue_name']}`, and the app if it runs tasks.",
        )
    if row["in_parked"]:
        return await _blocked(engine, row, now)
    if row["in_due"]:
        return Explanation(code="admission", message="It is due and waits for the gate.")
    if row["in_suspects"]:
        return Explanation(
            code="quarantine",
            message="Its worker died twice in a row; it waits for a worker that runs nothing else.",
        )
    return Explanation(code="worker_slot", message="It is ready and waits for a free worker.")


async def _misfit(engine: Engine, execution_id: int) -> str:
    """What in the payload of an execution does not fit what its task declares now."""
    action = decode_spec(await engine.database.value(_E["job_spec"], execution_id)).action
    await engine.declarations.refresh(engine.database, 0, engine.clock.monotonic())
    declared = engine.declarations.of_task(action.name) if isinstance(action, TaskAction) else None
    if declared is None or not isinstance(action, TaskAction):
        return ""
    problems = [
        f"{each.path or 'the payload'} {each.message}" for each in declared.problems(action.payload)
    ]
    return f" Of its arguments, {'; '.join(problems)}." if problems else ""


def _not_due(row: asyncpg.Record, attempt: int, max_attempts: int | None) -> Explanation:
    """The explanation of an execution that waits for a time."""
    if row["waits_for"] in _POSTPONED:
        # When it was postponed is not stored.
        code = row["waits_for"]
        return Explanation(code=code, message=_POSTPONED[code], until=row["run_at"])
    if not attempt:
        since = None if row["replayed"] else created_at(row["id"])
        return Explanation(
            code="not_due", message="Its time has not come yet.", since=since, until=row["run_at"]
        )
    last = execution_of(row, with_attempts=True).attempts[-1]
    of_max = "" if max_attempts is None else f" of {max_attempts}"
    return Explanation(
        code="retrying",
        message=_joined(
            [
                f"Attempt {attempt}{of_max} failed ({last.kind}): {last.error}",
                f"Attempt {attempt + 1} waits for its time.",
            ]
        ),
        since=last.finished_at,
        until=row["run_at"],
    )


async def _circuit(engine: Engine, row: asyncpg.Record, now: datetime) -> Explanation:
    """The explanation of an execution whose target keeps failing, as its workers last reported."""
    found = await engine.database.fetch(
        _F["circuits"], now - timedelta(seconds=CIRCUITS_SECONDS), row["tenant_name"]
    )
    host = await engine.database.value(_E["host"], row["target"])
    circuit = next((each for each in found if each["host"] == host), None)
    message = _POSTPONED[CIRCUIT_OPEN]
    if circuit is not None:
        last = f" Last error: {circuit['error']}" if circuit["error"] else ""
        message = (
            f"Requests to {host} keep failing, {circuit['failures']} in a row, and are delayed for a"
            f" while; this uses no attempt.{last}"
        )
    elif host is not None:
        message = message.replace("its target", host)
    return Explanation(code=CIRCUIT_OPEN, message=message, until=row["run_at"])


def _within_deadline(explained: Explanation, row: asyncpg.Record) -> Explanation:
    """Add the deadline, if it ends the waiting first."""
    deadline, fate = row["finish_by"], "DEAD (deadline)"
    if row["start_by"] is not None and not row["attempt"]:
        deadline, fate = row["start_by"], "SKIPPED (start_deadline)"
    if deadline is None or (explained.until is not None and explained.until <= deadline):
        return explained
    unmet = (
        "started by its start deadline" if fate.startswith("SKIPPED") else "ended by its deadline"
    )
    return msgspec.structs.replace(
        explained,
        message=_joined([explained.message, f"If it has not {unmet}, it is {fate}."]),
        until=deadline,
    )


class _Holding(msgspec.Struct, frozen=True):
    """What is known about the holder of a limit, a key or a turn."""

    blocked_by: BlockedBy | None = None  # None: unknown, or not for this caller
    holder: Holder = Holder()
    expected_at: datetime | None = None
    usual: str = ""  # a sentence about how long it usually runs


async def _holding(engine: Engine, row: asyncpg.Record, now: datetime) -> _Holding:
    # A target, and how busy it is, is shown to callers that see all tenants.
    hidden = row["kind"] == BLOCKER_TARGET and engine.scope is not None
    limit, in_use = (None, None) if hidden else (row["max_in_use"], row["in_use"])
    if row["holder"] is None:
        return _Holding(holder=Holder(limit=limit, in_use=in_use))
    try:
        found = await get_execution(engine, row["holder"])
    except NotFound:
        return _Holding(holder=Holder(limit=limit, in_use=in_use))
    runs = found.status is ExecutionStatus.RUNNING
    worker = found.worker if runs else None
    expected_at, usual = await _usual_end(engine, found, now) if runs else (None, "")
    ids = execution_text(found.execution_id), job_text(found.job_id)
    return _Holding(
        BlockedBy(*ids),
        Holder(*ids, worker, limit, in_use),
        expected_at if row["is_first"] else None,
        usual,
    )


async def _usual_end(
    engine: Engine, running: Execution, now: datetime
) -> tuple[datetime | None, str]:
    """When a running execution would end if it took as long as its job usually does."""
    usual = await engine.database.row(_E["usual_run"], running.job_id, _RUNS_LOOKED_AT, now)
    if running.started_at is None or usual["runs"] < _FEWEST_RUNS:
        return None, ""
    median = timedelta(seconds=usual["seconds"])
    end = running.started_at + median
    takes = f"{_seconds(median)}, by its last {usual['runs']} successes"
    if end <= now:
        return None, f"It has run for longer than usual ({takes})."
    return end, f"It usually takes {takes}."


def _seconds(length: timedelta) -> str:
    seconds = length.total_seconds()
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def _no_worker_for_task(queue: str, task: str | None) -> Explanation:
    what = "webhooks" if task is None else f"the task {task}"
    has = "runs them" if task is None else "has a handler for it"
    message = (
        f"No live worker of its queue {queue} runs {what}. Start one that {has}, with"
        f" `hourbell worker{'' if task is None else ' MODULE:APP'} --queues {queue}`."
    )
    return Explanation(code="no_worker_for_task", message=message)


async def _blocked(engine: Engine, parked: asyncpg.Record, now: datetime) -> Explanation:
    """The limit, key or run for which the gate has parked an execution."""
    queue, tenant = parked["queue_name"], parked["tenant_name"]
    row = await engine.database.row_or_none(_L["blocker_of"], parked["id"], now)
    admission = Explanation(code="admission", message="It is about to be admitted.")
    if row is None:
        return admission
    kind = row["kind"]
    if kind == BLOCKER_FAILURE:
        return Explanation(
            code="admission_failed",
            message="The gate failed on it, so it does not become ready. It is retried every minute."
            ' The log of the scheduler says why ("execution cannot be admitted"); correct'
            " that, or cancel it.",
            until=row["retried_at"],
        )
    if kind == BLOCKER_TASK:
        return _no_worker_for_task(queue, row["task"]) if row["lacks_task"] else admission
    names = {BLOCKER_QUEUE: "queue", BLOCKER_TENANT: "tenant", BLOCKER_TARGET: "target"}
    if kind in names and not row["full"]:
        if row["next_token"] is None:
            return admission
        message = f"Its {names[kind]} has reached its rate limit of {row['rate']:g} per second."
        return Explanation(code=f"{names[kind]}_rate", message=message, until=row["next_token"])
    holding = await _holding(engine, row, now)
    if kind == BLOCKER_JOB:
        code, message = "overlap", "An earlier run of the job has not ended yet."
    elif kind == BLOCKER_CONCURRENCY_KEY:
        code = "concurrency_key"
        message = "Another execution with the same concurrency key has not ended yet."
    elif holding.holder.limit == 0:
        code = f"{names[kind]}_concurrency"
        of = {BLOCKER_QUEUE: f"queues set {queue}", BLOCKER_TENANT: f"tenants set {tenant}"}.get(
            kind
        )
        raised = f" with `hourbell {of} --max-concurrency N`" if of else ""
        message = (
            f"Its {names[kind]} is stopped: its concurrency limit is 0. Raise the limit{raised}."
        )
    else:
        code = f"{names[kind]}_concurrency"
        message = f"Its {names[kind]} has reached its concurrency limit."
    return Explanation(
        code=code,
        message=_joined([message, holding.usual]),
        expected_at=holding.expected_at,
        blocked_by=holding.blocked_by,
        holder=holding.holder,
    )


async def _paused(engine: Engine, job_id: int) -> Explanation:
    """Which actor paused a job, when, why and until when, and what to do."""
    pause = (await pauses_of(engine, [job_id])).get(job_id)
    if pause is None:  # its audit entries have expired
        message = f"The job is paused. Resume it with `hourbell jobs resume {job_text(job_id)}`."
        return Explanation(code="paused", message=message)
    if pause.because_of_target:
        message = (
            "The job was paused because its target answered 410 (gone). Resume it only if the"
            " target is back, or change the target; delete the job if it is not needed."
        )
    else:
        because = f": {pause.reason}" if pause.reason else ""
        ends = (
            f"Resume it with `hourbell jobs resume {job_text(job_id)}`."
            if pause.until is None
            else "It is resumed at the end of the pause; to let it run before, resume it with"
            f" `hourbell jobs resume {job_text(job_id)}`."
        )
        message = _joined([f"The job was paused by {pause.by}{because}", ends])
    return Explanation(
        code="paused", message=message, since=pause.at, until=pause.until, paused=pause
    )


def _max_attempts(spec: str | None) -> int | None:
    """By the current job; None: the job is gone, or was written by a newer, unreadable version."""
    if spec is None:
        return None
    try:
        return decode_spec(spec).retry_policy.max_retries + 1
    except msgspec.MsgspecError:
        return None


async def explain_job(engine: Engine, job_id: int) -> Explanation:
    """What a job waits for: its oldest run that has not ended, or its next one.

    A recurring job whose last due occurrence has ended, and not with a success, also says why.
    """
    job = await get_job(engine, job_id)
    if isinstance(job.schedule, Once):
        return await explain_execution(engine, job_id)  # it is its execution
    explained = (
        await _paused(engine, job_id)
        if job.status is JobStatus.PAUSED
        else await _recurring(engine, job)
    )
    return msgspec.structs.replace(explained, last_due=await _last_due(engine, job_id))


async def _with_unknown_task(
    engine: Engine, explained: Explanation, of: int, now: datetime
) -> Explanation:
    """With a note about the task of an execution or a job, if it may be a typing mistake."""
    if explained.code not in _BEFORE_A_WORKER:
        return explained
    task = await engine.database.value(_E["unserved_task"], of, now)
    await engine.declarations.refresh(engine.database, 0, engine.clock.monotonic())
    if task is None or engine.declarations.of_task(task) is not None:
        return explained
    note = f"No worker has declared its task {task}, so its payload was not checked."
    return msgspec.structs.replace(explained, message=f"{explained.message} {note}")


async def _last_due(engine: Engine, job_id: int) -> LastDue | None:
    newest = (await list_executions(engine, job_id, page_size=1 + _MAX_SUPERSEDED)).items
    # What a pause or another change has superseded says nothing about how the job runs.
    runs = (one for one in newest if one.status is not ExecutionStatus.SUPERSEDED)
    last: Execution | None = next(runs, None)
    if last is None or last.status not in _NO_SUCCESS:
        return None
    explained = await explain_execution(engine, last.execution_id)
    return LastDue(
        execution_id=execution_text(last.execution_id),
        scheduled_for=last.scheduled_for,
        status=last.status,
        reason=last.reason,
        code=explained.code,
        message=explained.message,
    )


async def _recurring(engine: Engine, job: Job) -> Explanation:
    oldest = await engine.database.value(_E["oldest_live"], job.job_id, await engine.clock.now())
    if oldest is not None:
        return await explain_execution(engine, oldest)
    if job.status is not JobStatus.SCHEDULED:
        message = f"The job is {job.status}: it has no further run."
        return Explanation(code="ended", message=message, since=job.updated_at)
    broken = await engine.database.row_or_none(_P["broken"], job.job_id)
    if broken is not None:
        return _not_planned(broken)
    explained = Explanation(
        code="not_due", message="Its next run is not due yet.", until=job.next_run_at
    )
    return await _with_unknown_task(engine, explained, job.job_id, await engine.clock.now())


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
