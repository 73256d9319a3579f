"""calendars: set, read, list and delete named lists of dates that schedules skip.

The gate reads them when the time of an execution has come (`store/functions/calendars.sql`), so a
change takes effect for everything that has not been admitted.
"""

from __future__ import annotations

from datetime import date, datetime

import asyncpg
import msgspec

from hourbell.documents.calendars import NewCalendar, check_calendar_name
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.pages import Page, by_name, first_rows, read_name
from hourbell.model.errors import Conflict, NotFound
from hourbell.model.jobs import DEFAULT_TENANT
from hourbell.store.queries import queries

MAX_CALENDARS = 100  # of one tenant

_Q = queries("calendars")
_FAILPOINTS = CommitFailpoints("configure.before_commit", "configure.after_commit")


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """A named list of dates."""

    name: str
    tenant_id: str
    dates: list[date]  # in order
    created_at: datetime
    updated_at: datetime


async def set_calendar(engine: Engine, name: str, new: NewCalendar, write: Write) -> Calendar:
    """Set the dates of a calendar; an unknown name creates it."""
    check_calendar_name(name)
    tenant_id = _owner(engine, new.tenant_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, tenant_id, now, Calendar)
    async for attempt in writing:
        tenant = await engine.tenant(tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            if await connection.fetchval(_Q["count_calendars"], tenant, name) >= MAX_CALENDARS:
                raise Conflict(f"A tenant can have {MAX_CALENDARS} calendars. Delete one first.")
            created = await connection.fetchval(_Q["put_calendar"], tenant, name, now)
            dates = list(new.dates)
            await connection.execute(_Q["clear_dates"], tenant, name, dates)
            await connection.execute(_Q["add_dates"], tenant, name, dates)
            details = msgspec.json.encode({"name": name, "dates": dates}).decode()
            await insert_audit_row(
                connection, write, now, tenant, None, "set_calendar", None, details
            )
            attempt.answer = Calendar(
                name=name, tenant_id=tenant_id, dates=dates, created_at=created, updated_at=now
            )
    return writing.answer


async def get_calendar(engine: Engine, name: str, tenant_id: str | None) -> Calendar:
    """A calendar of a tenant."""
    check_calendar_name(name)
    tenant_id = _owner(engine, tenant_id)
    row = await engine.database.row_or_none(_Q["calendar"], tenant_id, name)
    if row is None:
        raise NotFound("calendar", name)
    return _calendar(row, tenant_id)


async def list_calendars(
    engine: Engine, tenant_id: str | None, page_size: int, token: str | None
) -> Page:
    """The calendars of a tenant, by name."""
    tenant_id = _owner(engine, tenant_id)
    after = read_name(token)
    rows = await engine.database.fetch(_Q["list_calendars"], tenant_id, after, page_size + 1)
    return first_rows(rows, page_size, lambda row: _calendar(row, tenant_id), by_name)


async def delete_calendar(
    engine: Engine, name: str, tenant_id: str | None, write: Write
) -> Calendar:
    """Delete a calendar. Schedules that exclude it skip nothing for it from now on."""
    check_calendar_name(name)
    tenant_id = _owner(engine, tenant_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, tenant_id, now, Calendar)
    async for attempt in writing:
        tenant = await engine.tenant(tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            row = await connection.fetchrow(_Q["calendar"], tenant_id, name)
            if row is None or not await connection.fetchval(_Q["delete_calendar"], tenant, name):
                raise NotFound("calendar", name)
            details = msgspec.json.encode({"name": name, "dates": row["dates"]}).decode()
            await insert_audit_row(
                connection, write, now, tenant, None, "delete_calendar", details, None
            )
            attempt.answer = _calendar(row, tenant_id)
    return writing.answer


def _owner(engine: Engine, tenant_id: str | None) -> str:
    if tenant_id is None:
        return engine.scope or DEFAULT_TENANT
    engine.require_access(tenant_id)
    return tenant_id


def _calendar(row: asyncpg.Record, tenant_id: str) -> Calendar:
    return Calendar(
        name=row["name"],
        tenant_id=tenant_id,
        dates=list(row["dates"]),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
