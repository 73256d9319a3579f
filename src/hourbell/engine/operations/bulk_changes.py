"""bulk changes: pause and resume all jobs that a filter selects.

The jobs are changed page by page. A page is one statement, which changes each of its jobs exactly
as a change of that job alone would (`change.py`), and commits. So no transaction is long, and a
request that dies midway has changed whole pages: the same request, sent again, does the rest,
because jobs that are already paused, or resumed, are no longer selected.

Jobs that are resumed together have many timetables, and the leader joins them, as it does for a
process that died after a change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec
import structlog

from hourbell.documents.pauses import JobSelection
from hourbell.documents.schedules import timetable_of
from hourbell.engine.core import Engine
from hourbell.engine.failing import ABOUT_NO_ROW
from hourbell.engine.life.create.names import ensure_timetables
from hourbell.engine.operations.change import (
    PAUSE,
    RESUME,
    Change,
    ChangeKind,
    Decision,
    change_job,
    decide_change,
    decide_pause,
    decide_resume,
    require_future,
)
from hourbell.engine.operations.idempotency import Idempotent, Write, store_answer, write_row
from hourbell.engine.views.jobs import JobFilter, list_jobs, recorded_under
from hourbell.model.errors import Conflict, InvalidInput, NotFound
from hourbell.model.ids import job_text
from hourbell.model.jobs import ACTIVE_STATUSES, Job, JobStatus, Pause
from hourbell.model.schedules import Once, Timetable
from hourbell.store.database import committing
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError
from hourbell.timing.rules import compile_rule

log = structlog.get_logger(component="api")

_Q = queries("pauses")
_PAGE = 100  # jobs changed in one transaction
_MAX_SECONDS = 20.0  # after which a request answers with a token to continue


class BulkChanged(msgspec.Struct, frozen=True):
    """The result of a bulk change."""

    changed: int
    left: int  # selected, but cannot be changed now: queued, running, or in use
    next_token: str | None  # there may be more: continue with it


async def pause_jobs(
    engine: Engine, selection: JobSelection, pause: Pause, write: Write
) -> BulkChanged:
    """Pause the selected jobs that are neither paused nor ended."""
    selected = _Selected(engine, selection, ACTIVE_STATUSES)
    owner = await recorded_under(engine, selection.tenant_id)
    return await _change_selected(engine, selected, owner, write, PAUSE, decide_pause(pause), pause)


async def resume_jobs(
    engine: Engine, selection: JobSelection, reason: str | None, write: Write
) -> BulkChanged:
    """Resume the paused jobs that are selected; `reason`: only those paused with this reason."""
    selected = _Selected(engine, selection, frozenset({JobStatus.PAUSED}), reason)
    owner = await recorded_under(engine, selection.tenant_id)
    return await _change_selected(engine, selected, owner, write, RESUME, decide_resume)


async def paused_with(
    engine: Engine, job_ids: Sequence[int], reason: str | None, operation: int | None = None
) -> set[int]:
    """Those of these jobs that were paused with exactly this reason, or by this operation.

    None: with any reason, or none; by any operation, or none.
    """
    if reason is None and operation is None:
        return set(job_ids)
    rows = await engine.database.fetch(_Q["pauses"], job_ids)
    return {
        row["job"]
        for row in rows
        if (reason is None or row["reason"] == reason)
        and (operation is None or row["operation"] == operation)
    }


class _Selected:
    """The jobs that a filter selects, page by page, newest first."""

    def __init__(
        self,
        engine: Engine,
        selection: JobSelection,
        statuses: frozenset[JobStatus],
        reason: str | None = None,
    ) -> None:
        if selection.tenant_id is not None:
            engine.require_access(selection.tenant_id)
        self._engine = engine
        self._wanted = JobFilter(
            tenant_id=selection.tenant_id,
            statuses=statuses,
            queue=selection.queue,
            label=selection.label,
        )
        self._reason = reason
        self._left = selection.limit
        self.token = selection.token

    async def next_page(self) -> list[Job] | None:
        """Some jobs, or none although there are more; None: that was all, or the limit."""
        if not self._left:
            return None
        size = min(_PAGE, self._left)
        page = await list_jobs(self._engine, self._wanted, size, self.token)
        self.token = page.next_token
        jobs: list[Job] = page.items
        meant = await paused_with(self._engine, [job.job_id for job in jobs], self._reason)
        jobs = [job for job in jobs if job.job_id in meant]
        self._left = self._left - len(jobs) if self.token is not None else 0
        return jobs


async def _change_selected(
    engine: Engine,
    selected: _Selected,
    owner: str,
    write: Write,
    operation: ChangeKind,
    decide: Decision,
    pause: Pause = Pause(),  # noqa: B008 - frozen
) -> BulkChanged:
    now = await engine.clock.now()
    tenant = await engine.tenant(owner, now)
    alone = Write(actor=write.actor)  # of each job: the key belongs to the whole request
    writing = Idempotent(engine, write, operation.failpoints, owner, now, BulkChanged)
    async for attempt in writing:
        require_future(pause, now)
        changed = left = 0
        until = time.monotonic() + _MAX_SECONDS
        while time.monotonic() < until:
            jobs = await selected.next_page()
            if jobs is None:
                break
            now = await engine.clock.now()
            page = await change_page(engine, jobs, now, alone, operation, decide)
            changed += page.changed
            left += len(page.failed)
        answer = BulkChanged(changed, left, selected.token)
        async with attempt.statement():
            await store_answer(engine, write, tenant, answer, now)
            attempt.answer = answer
    return writing.answer


class _ChangedPage(msgspec.Struct, frozen=True):
    changed: int
    failed: dict[int, Exception]  # why jobs could not be changed, by their ids


async def change_page(
    engine: Engine,
    jobs: Sequence[Job],
    now: datetime,
    write: Write,
    operation: ChangeKind,
    decide: Decision,
) -> _ChangedPage:
    """Change these jobs in one transaction; those that were changed since they were read, alone."""
    changes, refused = await decide_all(engine, jobs, now, write, operation, decide)
    failed = dict(refused)
    outcomes = await _commit(engine, changes, now, write, operation)
    done = [each for each, outcome in outcomes.items() if outcome == "changed"]
    failed |= {
        each: Conflict(f"{job_text(each)} could not be changed: {outcome}.")
        for each, outcome in outcomes.items()
        if outcome in ("underway", "locked", "failed")
    }
    changed = len(done)
    for job_id in [each for each, outcome in outcomes.items() if outcome == "moved"]:
        try:  # it was changed since it was read
            await change_job(engine, job_id, write, operation, decide)
            changed += 1
        except (Conflict, InvalidInput, NotFound) as error:
            failed[job_id] = error
    return _ChangedPage(changed, failed)


async def decide_all(
    engine: Engine,
    jobs: Sequence[Job],
    now: datetime,
    write: Write,
    operation: ChangeKind,
    decide: Decision,
) -> tuple[dict[int, Change], dict[int, Exception]]:
    """The changes of these jobs, by their ids, and why others of them cannot be changed."""
    changes: dict[int, Change] = {}
    refused: dict[int, Exception] = {}
    known = await _timetables_of(engine, jobs, now) if operation is RESUME else {}
    for job in jobs:
        try:
            change = await decide_change(engine, job, now, write, operation, decide, known)
        except ABOUT_NO_ROW:
            raise
        except Exception as error:
            if not isinstance(error, Conflict | InvalidInput):
                log.exception("job cannot be changed", job_id=job_text(job.job_id))
            refused[job.job_id] = error
            continue
        if change.argument is not None:
            changes[job.job_id] = change
    return changes, refused


async def _timetables_of(
    engine: Engine, jobs: Sequence[Job], now: datetime
) -> dict[Timetable, int]:
    """The timetables of these jobs, looked up together; without those that cannot be computed."""
    found = set()
    for job in jobs:
        if not isinstance(job.schedule, Once):
            with suppress(TimingError):
                timetable = timetable_of(job.schedule, job.job_id)
                compile_rule(*msgspec.structs.astuple(timetable))
                found.add(timetable)
    return await ensure_timetables(engine, found, now) if found else {}


async def _commit(
    engine: Engine, changes: dict[int, Change], now: datetime, write: Write, operation: ChangeKind
) -> dict[int, str]:
    """Send the changes, by the ids of their jobs; returns the outcome of each."""
    row = msgspec.json.encode(write_row(write, 0, operation.name, None, None)).decode()
    waiting = list(changes)
    outcomes: dict[int, str] = {}
    while waiting:
        arguments = [changes[each].argument for each in waiting]
        async with committing(operation.failpoints.before, operation.failpoints.after):
            changed = await engine.database.row(_Q["change_jobs"], now, waiting, arguments, row)
        engine.counts.count_ended(changed["ended"])
        found: list[str] = changed["outcomes"]
        outcomes |= zip(waiting, found, strict=False)
        waiting = waiting[len(found) :]
    return outcomes
