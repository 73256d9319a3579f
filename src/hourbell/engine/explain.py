"""explain: for an execution or a job, the one thing that it now waits for, and until when (R32)."""

from __future__ import annotations

from datetime import datetime

import asyncpg
import msgspec

from hourbell.engine.broken import UNKNOWN_TIMEZONE
from hourbell.engine.codes import AWAITING_SESSION
from hourbell.engine.core import Engine
from hourbell.engine.limits import JOB, KEY, QUEUE, TARGET, TENANT
from hourbell.engine.read import get_execution, get_job, list_executions
from hourbell.model.errors import NotFound
from hourbell.model.executions import CIRCUIT_OPEN, FATES, NO_SECRET_KEYS
from hourbell.model.ids import execution_text
from hourbell.model.jobs import JobStatus
from hourbell.store.queries import queries

_E = queries("executions")
_L = queries("limits")
_A = queries("awaiting")
_P = queries("planning")

_PUT_OFF = {
    CIRCUIT_OPEN: "Its host or endpoint keeps failing, and requests to it are put off for a while; that burns no attempt.",
    NO_SECRET_KEYS: "A worker had no key to open its secrets, and gave it back; no attempt is burnt."
    " Set HOURBELL_SECRET_KEYS on every API and worker process, with the same keys.",
}


class Explanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something has not run, or not ended."""

    code: str  # stable, for programs
    message: str
    until: datetime | None = None  # when that changes by itself
    execution_id: int | None = None  # whom it is about, or who is in the way


async def explain_execution(engine: Engine, execution_id: int) -> Explanation:
    """What an execution waits for."""
    row = await engine.database.row_or_none(_E["live"], execution_id)
    if row is None or not engine.sees(row["tenant_name"]):
        ended = await get_execution(engine, execution_id)
        if ended.status not in FATES:  # it came back between the two reads
            raise NotFound("execution", execution_text(execution_id))
        reason = f" ({ended.reason})" if ended.reason else ""
        return Explanation("ended", f"It has ended: {ended.status}{reason}.", None, execution_id)
    now = await engine.clock.now()
    if row["session"] == AWAITING_SESSION:
        return Explanation(
            "awaiting_completion",
            "Its target has accepted it, and will say how it ended.",
            await engine.database.value(_A["until"], execution_id),
            execution_id,
        )
    if row["claimed_at"] is not None:
        if row["unwanted"]:
            return Explanation(
                "cancelling", f"Worker {row['worker']} was asked to stop it.", None, execution_id
            )
        return Explanation(
            "running",
            f"It runs on worker {row['worker']}, which must renew its lease.",
            row["expires_at"],
            execution_id,
        )
    if row["in_held"]:
        return Explanation("paused", "The job is paused.", None, execution_id)
    if row["in_parked"]:
        return await _blocked(engine, execution_id, now)
    if row["in_due"] and row["run_at"] > now:
        if row["waits_for"] in _PUT_OFF:
            code = row["waits_for"]
            return Explanation(code, _PUT_OFF[code], row["run_at"], execution_id)
        if row["attempt"]:
            return Explanation(
                "retrying", "An attempt failed; the next one waits.", row["run_at"], execution_id
            )
        return Explanation("not_due", "Its time has not come.", row["run_at"], execution_id)
    if row["in_due"]:
        return Explanation("admission", "It is due and waits for the gate.", None, execution_id)
    if row["in_suspects"]:
        return Explanation(
            "quarantine",
            "Its workers died twice; it waits for one that runs nothing beside it.",
            None,
            execution_id,
        )
    served = await engine.database.value(_E["queue_served"], row["queue"], now)
    if not served:
        return Explanation(
            "no_worker", "It is ready, and no living worker serves its queue.", None, execution_id
        )
    return Explanation(
        "worker_slot", "It is ready and waits for a free worker.", None, execution_id
    )


async def _if_seen(engine: Engine, execution_id: int | None) -> int | None:
    """An execution that is shown to the caller only if it is there for him."""
    if execution_id is None or engine.scope is None:
        return execution_id
    try:
        return (await get_execution(engine, execution_id)).execution_id
    except NotFound:
        return None


async def _blocked(engine: Engine, execution_id: int, now: datetime) -> Explanation:
    """What the gate has parked it by. `execution_id` is then one that has what it waits for."""
    row = await engine.database.row_or_none(_L["blocked"], execution_id, now)
    if row is None:
        return Explanation("admission", "It is about to be let on.", None, execution_id)
    kind, holder = row["kind"], await _if_seen(engine, row["holder"])
    if kind == JOB:
        return Explanation("overlap", "An earlier run of the job has not ended yet.", None, holder)
    if kind == KEY:
        message = "Another execution with the same concurrency key has not ended yet."
        return Explanation("concurrency_key", message, None, holder)
    name = {QUEUE: "queue", TENANT: "tenant", TARGET: "target"}[kind]
    if kind == QUEUE and not row["served"]:
        return Explanation("no_worker", "No living worker serves its queue.", None, execution_id)
    if row["full"]:
        message = f"Its {name} has as many executions at once as it may."
        return Explanation(f"{name}_concurrency", message, None, holder)
    if row["next_token"] is not None:
        message = f"Its {name} may start no more for now."
        return Explanation(f"{name}_rate", message, row["next_token"], execution_id)
    return Explanation("admission", "It is about to be let on.", None, execution_id)


async def explain_job(engine: Engine, job_id: int) -> Explanation:
    """What a job waits for: its oldest run that has not ended, or its next one."""
    job = await get_job(engine, job_id)
    if job.status is JobStatus.PAUSED:
        return Explanation("paused", "The job is paused: resume it.")
    live = [
        execution
        for execution in (await list_executions(engine, job_id)).items
        if execution.status not in FATES
    ]
    if live:
        return await explain_execution(engine, live[-1].execution_id)
    if job.status is not JobStatus.SCHEDULED:
        return Explanation("ended", f"The job is {job.status}: it has no further run.")
    broken = await engine.database.row_or_none(_P["broken"], job_id)
    if broken is not None:
        return _not_planned(broken)
    return Explanation("not_due", "Its next run has not come.", job.next_run_at)


def _not_planned(row: asyncpg.Record) -> Explanation:
    """Of a job whose timetable the leader cannot compute."""
    if row["broken"] == UNKNOWN_TIMEZONE:
        message = (
            f"The time zone data of the scheduler (IANA release {row['tz_version']}) have no zone {row['zone']},"
            " so no run is planned. Set schedule.timezone to a zone that exists, or update the tzdata package"
            " of every node."
        )
    else:
        message = (
            "The scheduler cannot compute the schedule, so no run is planned. Its log says why."
            " Update the schedule, or upgrade every node."
        )
    return Explanation(row["broken"], message, row["look_at"])
