"""watch: judge the monitors that are due, and alert when one goes down or recovers.

The judgement is pure. One statement writes it together with its notice, provided that the monitor
has not changed since it was read. So there is one alert per outage, whichever node leads or dies.
The cost is that of the monitors that are due: a healthy one is checked once per grace, one that is
down every few seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta

import asyncpg
import msgspec

from hourbell.documents.schedules import first_run
from hourbell.engine.codes import JOB_STATUSES, MISSED, RECOVERED
from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate, note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.views.jobs import excluded_dates
from hourbell.model.errors import StoreUnavailable
from hourbell.model.jobs import JobStatus, NewJob, decode_job
from hourbell.model.schedules import Once
from hourbell.store.database import committing
from hourbell.store.queries import queries
from hourbell.timing.zones import shown_in

_Q = queries("notices")
_MAX_MONITORS = 200
_RECOVERY_SECONDS = 10.0  # how often a monitor that is down is checked
_RECHECK_SECONDS = 60.0  # next check of a monitor that cannot be judged
_JUDGE = "select hourbell.judge_monitors($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A monitor and its job as read for a check."""

    grace: timedelta
    since: datetime
    expected_at: datetime | None
    down_since: datetime | None
    success_at: datetime | None  # of a success that counts
    job_id: int
    job: NewJob
    status: JobStatus
    updated_at: datetime  # of the job: when it was completed, if it is
    excluded: Collection[date] = ()  # dates that its schedule skips


class Judgement(msgspec.Struct, frozen=True):
    """The new state of a monitor."""

    since: datetime
    expected_at: datetime | None
    check_at: datetime | None
    down_since: datetime | None
    event: int = 0


def judge(seen: Watched, now: datetime) -> Judgement:
    """Whether a monitor is down, which event to send, and when to check again."""
    if seen.success_at is not None:
        since = max(seen.since, seen.success_at)
        expected = _expected(seen, next_expected(seen.job, seen.job_id, since))
        event = 0 if seen.down_since is None else RECOVERED
        return Judgement(since, expected, _check_at(seen, expected), None, event)
    if seen.down_since is not None:
        # Any success from now on counts, even before the next occurrence.
        expected = seen.expected_at or seen.since
        again = now + timedelta(seconds=_RECOVERY_SECONDS)
        check_at = again if seen.status is JobStatus.SCHEDULED else None
        return Judgement(seen.since, expected, check_at, seen.down_since)
    expected = _expected(seen, seen.expected_at or next_expected(seen.job, seen.job_id, seen.since))
    check_at = _check_at(seen, expected)
    if check_at is None or check_at > now:
        return Judgement(seen.since, expected, check_at, None)
    again = now + timedelta(seconds=_RECOVERY_SECONDS)
    return Judgement(seen.since, expected, again, now, MISSED)


def next_expected(
    job: NewJob, job_id: int, after: datetime, excluded: Collection[date] = ()
) -> datetime | None:
    """The first occurrence of a job after a moment, or None if there is none."""
    assert not isinstance(job.schedule, Once)
    return first_run(job.schedule, job.window, job_id, after, excluded)


def _expected(seen: Watched, expected: datetime | None) -> datetime | None:
    """The occurrence, or the first one after it that no calendar excludes."""
    if expected is None or not seen.excluded:
        return expected
    zone = shown_in(seen.job.schedule.timezone)
    if expected.astimezone(zone).date() not in seen.excluded:
        return expected
    return next_expected(seen.job, seen.job_id, expected, seen.excluded)


def _check_at(seen: Watched, expected: datetime | None) -> datetime | None:
    """When the grace of an occurrence ends; None if it is not expected."""
    if expected is None or seen.status in (JobStatus.PAUSED, JobStatus.CANCELLED):
        return None
    if seen.status is JobStatus.ENDED and expected > seen.updated_at:
        return None  # it has used up its runs
    return expected + seen.grace


async def watch(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Judge the monitors that are due; True if there may be more of them."""
    rows = await engine.database.fetch(_Q["watched"], now, _MAX_MONITORS)
    if not rows:
        return False
    judged = [(row, await _judged(engine, row, now)) for row in rows]
    await isolate(
        judged,
        lambda some: _store(engine, term, now, some),
        lambda one, error: _note(engine, now, one[0], error),
    )
    overdue = any(one.check_at is not None and one.check_at <= now for _, one in judged)
    return overdue or len(rows) == _MAX_MONITORS


async def _store(
    engine: Engine,
    term: Term | None,
    now: datetime,
    judged: Sequence[tuple[asyncpg.Record, Judgement]],
) -> None:
    async with committing("watch.before_commit", "watch.after_commit"):
        with translate_epoch_errors():
            await engine.database.value(
                _JUDGE,
                *epoch_args(term),
                now,
                [row["id"] for row, _ in judged],
                [row["version"] for row, _ in judged],
                [one.since for _, one in judged],
                [one.expected_at for _, one in judged],
                [one.check_at for _, one in judged],
                [row["success_at"] for row, _ in judged],
                [one.down_since for _, one in judged],
                [one.event for _, one in judged],
            )


async def _note(engine: Engine, now: datetime, row: asyncpg.Record, error: Exception) -> None:
    await note_failing(engine, now, "monitor", row["id"], error, row["job"])


async def _judged(engine: Engine, row: asyncpg.Record, now: datetime) -> Judgement:
    try:
        seen = _watched(row)
        after = seen.since - timedelta(days=1)
        excluded = await excluded_dates(engine, seen.job.tenant_id, seen.job.schedule, after)
        return judge(msgspec.structs.replace(seen, excluded=excluded.keys()), now)
    except StoreUnavailable:
        raise
    except Exception as error:
        # For example, its zone was removed. It must not block the judgement of the others.
        await _note(engine, now, row, error)
        later = now + timedelta(seconds=_RECHECK_SECONDS)
        return Judgement(row["since"], row["expected_at"], later, row["down_since"])


def _watched(row: asyncpg.Record) -> Watched:
    return Watched(
        grace=timedelta(seconds=row["grace_seconds"]),
        since=row["since"],
        expected_at=row["expected_at"],
        down_since=row["down_since"],
        success_at=row["success_at"],
        job_id=row["job"],
        job=decode_job(row["spec"]),
        status=JOB_STATUSES[row["status"]],
        updated_at=row["updated_at"],
    )
