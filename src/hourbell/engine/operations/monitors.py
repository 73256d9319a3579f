"""monitors: create, read and delete the monitors of jobs; `watch` judges them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.monitors import parse_new_monitor
from hourbell.documents.render import shown_headers
from hourbell.engine.codes import JOB_STATUSES
from hourbell.engine.core import Engine
from hourbell.engine.leader.watch import next_expected
from hourbell.engine.life.broken import unusable_schedule
from hourbell.engine.life.references import require_secrets
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    ConcurrentChange,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.jobs import get_job
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    NEWEST,
    Id,
    Page,
    first_rows,
    read_token,
    walk,
)
from hourbell.model.errors import Conflict, JobNotActive, NotFound
from hourbell.model.ids import job_text, monitor_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import JobStatus, SecretsCheck
from hourbell.model.monitors import MAX_MONITORS, Monitor
from hourbell.model.schedules import Once
from hourbell.security.secrets import required_by_webhook
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError

_Q = queries("notices")
_J = queries("jobs")
_FAILPOINTS = CommitFailpoints("monitor.before_commit", "monitor.after_commit")


async def create_monitor(engine: Engine, document: object, write: Write) -> Monitor:
    """Create the monitor that a document describes."""
    new = parse_new_monitor(document)
    watched = await get_job(engine, new.job_id)
    now = await engine.clock.now()
    monitor_id = await engine.new_id(now)
    writing = Idempotent(engine, write, _FAILPOINTS, watched.tenant_id, now, Monitor)
    async for attempt in writing:
        job = await get_job(engine, new.job_id)
        if isinstance(job.schedule, Once):
            raise Conflict(
                f"{job_text(job.job_id)} runs once. A monitor watches a RECURRING job; use"
                " notifications to learn the outcome of this one."
            )
        if not job.is_live:
            raise JobNotActive(job_text(job.job_id), job.status)
        if new.secrets is SecretsCheck.REQUIRED:
            required = required_by_webhook("", new.url, new.headers)
            await require_secrets(engine, job.tenant_id, required)
        tenant = await engine.tenant(job.tenant_id, now)
        try:
            expected = next_expected(job, job.job_id, now)
        except TimingError as error:
            raise unusable_schedule(job.job_id, error) from error
        if job.status is JobStatus.PAUSED:
            expected = None
        async with attempt.transaction(tenant) as connection:
            # Locked, so that it cannot be paused or rescheduled meanwhile.
            row = await connection.fetchrow(_J["lock_recurring"], job.job_id)
            if (
                row is None
                or row["version"] != job.version
                or JOB_STATUSES[row["status"]] is not job.status
            ):
                raise ConcurrentChange
            if await connection.fetchval(_Q["monitors_of_job"], job.job_id) >= MAX_MONITORS:
                raise Conflict(
                    f"{job_text(job.job_id)} already has the maximum of {MAX_MONITORS} monitors;"
                    " delete one."
                )
            await connection.execute(
                _Q["insert_monitor"],
                monitor_id,
                tenant,
                job.job_id,
                now,
                expected,
                expected and expected + timedelta(seconds=new.grace_seconds),
                new.grace_seconds,
                new.url,
                msgspec.json.encode(new.headers).decode(),
            )
            await insert_audit_row(
                connection, write, now, tenant, job.job_id, "create_monitor", None, None
            )
            attempt.answer = Monitor(
                **msgspec.structs.asdict(new),
                monitor_id=monitor_id,
                tenant_id=job.tenant_id,
                expected_at=expected,
                last_success_at=None,
                down_since=None,
                created_at=now,
                job_name=job.name,
            )
    return writing.answer


async def get_monitor(engine: Engine, monitor_id: int) -> Monitor:
    row = await _find(engine, monitor_id)
    if row["deleted_at"] is not None:
        raise NotFound("monitor", monitor_text(monitor_id))
    return _monitor(row)


async def _find(engine: Engine, monitor_id: int) -> asyncpg.Record:
    """A monitor, including one that was deleted recently."""
    row = await engine.database.row_or_none(_Q["monitor"], monitor_id)
    if row is None or not engine.may_see(row["tenant_name"]):
        raise NotFound("monitor", monitor_text(monitor_id))
    return row


async def list_monitors(engine: Engine, page_size: int = 50, token: str | None = None) -> Page:
    """Monitors, newest first."""
    before = NEWEST if token is None else read_token(token, Id)
    size = min(page_size, MAX_PAGE_SIZE)
    if engine.scope is None:
        rows = await walk(engine, _Q["list_monitors"], before, size + 1)
    else:
        tenant = await engine.database.value(_J["tenant_by_name"], engine.scope)
        rows = await walk(engine, _Q["list_monitors_of_tenant"], before, size + 1, tenant)
    return first_rows(rows, size, _monitor)


async def delete_monitor(engine: Engine, monitor_id: int, write: Write) -> Monitor:
    """Delete a monitor; an alert that is already queued is still sent."""
    found = await _find(engine, monitor_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, found["tenant_name"], now, Monitor)
    async for attempt in writing:
        seen = await get_monitor(engine, monitor_id)
        tenant = await engine.tenant(seen.tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            if await connection.fetchval(_Q["delete_monitor"], monitor_id, now) is None:
                raise ConcurrentChange
            await insert_audit_row(
                connection, write, now, tenant, seen.job_id, "delete_monitor", None, None
            )
            attempt.answer = seen
    return writing.answer


def render_monitor(monitor: Monitor) -> dict[str, Any]:
    """A monitor as users see it."""
    instants = ("expected_at", "last_success_at", "down_since")
    return {
        "monitor_id": monitor_text(monitor.monitor_id),
        "job_id": job_text(monitor.job_id),
        "job_name": monitor.job_name,
        "tenant_id": monitor.tenant_id,
        "grace_seconds": monitor.grace_seconds,
        "url": monitor.url,
        "headers": shown_headers(monitor.headers),
        "status": "UP" if monitor.down_since is None else "DOWN",
        **{name: at and format_instant(at) for name in instants for at in [getattr(monitor, name)]},
        "created_at": format_instant(monitor.created_at),
    }


def _monitor(row: asyncpg.Record) -> Monitor:
    return Monitor(
        monitor_id=row["id"],
        job_id=row["job"],
        tenant_id=row["tenant_name"],
        grace_seconds=row["grace_seconds"],
        url=row["url"],
        headers=msgspec.json.decode(row["headers"]),
        expected_at=None if row["check_at"] is None else row["expected_at"],
        last_success_at=row["last_success_at"],
        down_since=row["down_since"],
        created_at=row["created_at"],
        job_name=row["job_name"],
    )
