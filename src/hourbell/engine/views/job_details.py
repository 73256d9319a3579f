"""What is shown with a job: its pause, and how its latest executions ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from hourbell.engine.codes import FATES, TARGET_GONE
from hourbell.engine.core import Engine
from hourbell.engine.views.pages import walk
from hourbell.model.executions import ExecutionStatus, Reason, stored_reason
from hourbell.model.jobs import Job, JobStatus
from hourbell.store.queries import queries

_U = queries("pauses")
_E = queries("executions")

MAX_LAST_OUTCOMES = 20


class PauseDetails(msgspec.Struct, frozen=True):
    """Which actor paused a job, why, and until when."""

    by: str
    at: datetime
    reason: str | None
    until: datetime | None  # None: until it is resumed

    @property
    def because_of_target(self) -> bool:
        """Whether Hourbell paused it, because its target answered 410."""
        return self.by == TARGET_GONE


class LastOutcome(msgspec.Struct, frozen=True):
    """One of the latest executions of a job."""

    execution_id: int
    scheduled_for: datetime
    status: ExecutionStatus
    reason: Reason | None


class JobDetails(msgspec.Struct, frozen=True):
    """What is shown with a job."""

    paused: PauseDetails | None = None
    last_outcomes: Sequence[LastOutcome] | None = None  # newest first; None: not asked for


async def details_of(
    engine: Engine, jobs: Sequence[Job], outcomes: int = 0
) -> dict[int, JobDetails]:
    """The details of jobs by their ids; `outcomes`: how many of the latest executions of each."""
    paused = [job.job_id for job in jobs if job.status is JobStatus.PAUSED]
    pauses = await pauses_of(engine, paused) if paused else {}
    ended = await _last_outcomes(engine, jobs, outcomes) if outcomes and jobs else {}
    return {
        job.job_id: JobDetails(
            pauses.get(job.job_id), ended.get(job.job_id, ()) if outcomes else None
        )
        for job in jobs
    }


async def pauses_of(engine: Engine, job_ids: Sequence[int]) -> dict[int, PauseDetails]:
    """The pauses of paused jobs; one whose audit entry has expired may be missing."""
    rows = await walk(engine, _U["pauses_of"], job_ids)
    return {
        row["job"]: PauseDetails(row["actor"], row["at"], row["reason"], row["until"])
        for row in rows
    }


async def _last_outcomes(
    engine: Engine, jobs: Sequence[Job], count: int
) -> dict[int, list[LastOutcome]]:
    now = await engine.clock.now()
    found: dict[int, list[LastOutcome]] = {}
    ids = [job.job_id for job in jobs]
    for row in await walk(engine, _E["last_outcomes"], ids, count, now):
        found.setdefault(row["of_job"], []).append(_outcome(row))
    for outcomes in found.values():
        outcomes.sort(key=lambda each: (each.scheduled_for, each.execution_id), reverse=True)
    return found


def _outcome(row: asyncpg.Record) -> LastOutcome:
    fate, reason = row["fate"], row["reason"]
    return LastOutcome(
        execution_id=row["id"],
        scheduled_for=row["occurrence"],
        status=ExecutionStatus(row["status"]) if fate is None else FATES[fate],
        reason=None if reason is None else stored_reason(reason),
    )
