"""audit: which actor changed what, when, from what and to what.

Each created job is an entry with its document. The one-time jobs that a request creates for a
tenant share one row, and their documents are not copied: the job itself is the record of the
request, until a change stores the document from before.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.render import shown_definition, without_credentials
from hourbell.engine.core import Engine
from hourbell.engine.views.jobs import NO_TENANT, get_job, tenant_wanted
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Page,
    first_rows,
    page_of,
    page_source,
    read_token,
    walk,
)
from hourbell.model.jobs import UNREADABLE_ERRORS, decode_job
from hourbell.store.queries import queries

_Q = queries("audit")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    at: datetime
    tenant_id: str
    job_id: int | None  # None: the entry is not about one job
    actor: str
    operation: str
    before: Any  # the job's document; None: there was none, or it did not change
    after: Any


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which changes to list; None: no restriction."""

    tenant_id: str | None = None
    actor: str | None = None
    operation: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # exclusive


async def list_audit(
    engine: Engine,
    wanted: AuditFilter = AuditFilter(),  # noqa: B008 - frozen
    page_size: int = 50,
    token: str | None = None,
) -> Page:
    """All changes, newest first. A page looks at a bounded number of entries."""
    tenant = await tenant_wanted(engine, wanted.tenant_id)
    if tenant == NO_TENANT:
        return Page([], None)
    before, place = _position(token)
    size = min(page_size, MAX_PAGE_SIZE)
    which = (wanted.actor, wanted.operation, wanted.since, wanted.until)
    args = (before, size + 1, place, MAX_SCANNED_ROWS, *which)
    if tenant is None:
        rows = await walk(engine, _Q["list_audit"], *args)
    else:
        rows = await walk(engine, _Q["list_audit_of_tenant"], *args, tenant)
    return page_of([page_source(rows, size + 1, _place, _entry)], size)


async def list_job_audit(
    engine: Engine, job_id: int, page_size: int = 50, token: str | None = None
) -> Page:
    """The changes of a job, newest first."""
    await get_job(engine, job_id)
    before, _ = _position(token)
    return await _list(engine, "list_audit_of_job", page_size, before, job_id)


def _position(token: str | None) -> tuple[int, int]:
    """The position in a page token: a row, and a place among its jobs."""
    if token is None:
        return NEWEST, NEWEST
    row, place = read_token(token, tuple[Id, Id])
    return row, place


async def _list(engine: Engine, statement: str, page_size: int, before: int, *of: int) -> Page:
    size = min(page_size, MAX_PAGE_SIZE)
    rows = await walk(engine, _Q[statement], before, size + 1, *of)
    return first_rows(rows, size, _entry, _place)


def _place(row: asyncpg.Record) -> tuple[int, int]:
    """The position of an entry in a list: its row, and the place among the jobs of that."""
    return row["id"], row["place"]


def _entry(row: asyncpg.Record) -> AuditEntry:
    after = _shown(row["shown"])
    if row["operation"] == "create" and after is not None:
        after.pop("status", None)  # it may come from the following change
    return AuditEntry(
        at=row["at"],
        tenant_id=row["tenant_name"],
        job_id=row["of_job"],
        actor=row["actor"],
        operation=row["operation"],
        before=_shown(row["before"]),
        after=after,
    )


def _shown(stored: str | None) -> Any:
    """A stored job as its owner would write it, with its status, and its pause; anything else as is."""
    if stored is None:
        return None
    try:
        details = msgspec.json.decode(stored)
    except UNREADABLE_ERRORS:
        return {"unreadable": stored}
    try:
        document = shown_definition(decode_job(stored))
    except UNREADABLE_ERRORS:
        return without_credentials(details) if isinstance(details, dict) else details
    known = {name: details[name] for name in ("status", "pause") if name in details}
    return known | document
