"""audit: who changed what, when, from what and to what (R4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.documents import shown_definition, without_credentials
from hourbell.engine.pages import MOST_PER_PAGE, NEWEST, Id, Page, page_token, read_token, walk
from hourbell.engine.read import NOBODY, get_job, tenant_wanted
from hourbell.model.jobs import decode_job
from hourbell.store.queries import queries

_Q = queries("audit")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One change."""

    at: datetime
    tenant_id: str
    job_id: int | None  # None: it is not about one job
    actor: str
    operation: str
    before: Any  # the job's document; None: there was none, or it did not change
    after: Any


async def list_audit(
    engine: Engine, tenant_id: str | None = None, page_size: int = 50, token: str | None = None
) -> Page:
    """All changes, the latest first."""
    tenant = await tenant_wanted(engine, tenant_id)
    if tenant == NOBODY:
        return Page([], None)
    if tenant is None:
        return await _list(engine, "list_audit", page_size, token)
    return await _list(engine, "list_audit_of_tenant", page_size, token, tenant)


async def list_job_audit(
    engine: Engine, job_id: int, page_size: int = 50, token: str | None = None
) -> Page:
    """The changes of a job, the latest first."""
    await get_job(engine, job_id)
    return await _list(engine, "list_audit_of_job", page_size, token, job_id)


async def _list(
    engine: Engine, statement: str, page_size: int, token: str | None, *of: int
) -> Page:
    before = NEWEST if token is None else read_token(token, Id)
    size = min(page_size, MOST_PER_PAGE)
    rows = await walk(engine, _Q[statement], before, size + 1, *of)
    more = len(rows) > size
    return Page(
        [_entry(row) for row in rows[:size]], page_token(rows[size - 1]["id"]) if more else None
    )


def _entry(row: asyncpg.Record) -> Entry:
    return Entry(
        at=row["at"],
        tenant_id=row["tenant_name"],
        job_id=row["job"],
        actor=row["actor"],
        operation=row["operation"],
        before=_shown(row["before"]),
        after=_shown(row["after"]),
    )


def _shown(stored: str | None) -> Any:
    """A job as its owner would write it; whatever else was noted, as it is."""
    if stored is None:
        return None
    try:
        return shown_definition(decode_job(stored))
    except msgspec.ValidationError:
        other = msgspec.json.decode(stored)
        return without_credentials(other) if isinstance(other, dict) else other
