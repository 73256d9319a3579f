"""Groups of executions: create, add members, close, read. `leader/group_callbacks.py` ends them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.execution_groups import parse_members, parse_new_group
from hourbell.documents.render import shown_headers
from hourbell.engine.codes import FATES
from hourbell.engine.core import Engine
from hourbell.engine.life.references import require_secrets
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.jobs import NO_TENANT, tenant_wanted
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    MAX_SCANNED_ROWS,
    NEWEST,
    Id,
    Page,
    by_id,
    page_of,
    page_source,
    read_token,
    walk,
)
from hourbell.model.errors import Conflict, FieldError, InvalidInput, NotFound
from hourbell.model.ids import execution_text, group_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import DEFAULT_TENANT, SecretsCheck
from hourbell.security.secrets import required_by_webhook
from hourbell.store.database import Connection
from hourbell.store.queries import queries

MAX_MEMBERS = 1_000_000
_MAX_NAMED = 10  # unknown executions that an error names

_Q = queries("execution_groups")
_FAILPOINTS = CommitFailpoints("configure.before_commit", "configure.after_commit")


class GroupState(StrEnum):
    """How far a group is."""

    OPEN = "OPEN"  # members can be added
    CLOSED = "CLOSED"  # not all members have ended
    ENDED = "ENDED"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group of executions as users see it."""

    group_id: int
    tenant_id: str
    name: str
    url: str | None  # null: the callback is a task
    headers: dict[str, str]
    task: str | None
    members: int
    ended: dict[str, int]  # how many members are known to have ended, by their fate
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None
    callback: int | None  # the execution that is the callback
    problem: str | None  # why the callback cannot be created at present


async def create_group(engine: Engine, document: object, write: Write) -> Group:
    """Create an open group without members."""
    new = parse_new_group(document)
    if new.tenant_id is not None:
        engine.require_access(new.tenant_id)
    tenant_id = new.tenant_id or engine.scope or DEFAULT_TENANT
    now = await engine.clock.now()
    group_id = await engine.new_id(now)
    writing = Idempotent(engine, write, _FAILPOINTS, tenant_id, now, Group)
    async for attempt in writing:
        if new.secrets is SecretsCheck.REQUIRED:
            required = required_by_webhook("", new.url, new.headers)
            await require_secrets(engine, tenant_id, required)
        tenant = await engine.tenant(tenant_id, now)
        headers = msgspec.json.encode(new.headers).decode()
        async with attempt.transaction(tenant) as connection:
            await connection.execute(
                _Q["insert_group"], group_id, tenant, new.name, now, new.url, headers
            )
            await insert_audit_row(
                connection, write, now, tenant, None, "create_group", None, _details(group_id)
            )
            attempt.answer = Group(
                group_id=group_id,
                tenant_id=tenant_id,
                name=new.name,
                url=new.url,
                headers=new.headers,
                task=None,
                members=0,
                ended={fate.value: 0 for fate in FATES},
                created_at=now,
                closed_at=None,
                ended_at=None,
                callback=None,
                problem=None,
            )
    return writing.answer


async def add_members(engine: Engine, group_id: int, document: object, write: Write) -> Group:
    """Add executions to an open group; one that is a member already stays one."""
    added = parse_members(document)
    seen = await get_group(engine, group_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, seen.tenant_id, now, Group)
    async for attempt in writing:
        tenant = await engine.tenant(seen.tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            row = await connection.fetchrow(_Q["lock_group"], group_id)
            if row is None:
                raise NotFound("group", group_text(group_id))
            if row["closed_at"] is not None:
                raise Conflict(
                    f"{group_text(group_id)} was closed, so nothing can be added to it. Create"
                    " another group."
                )
            unknown = await connection.fetch(_Q["foreign_members"], tenant, added)
            if unknown:
                raise InvalidInput([_unknown(one["id"]) for one in unknown[:_MAX_NAMED]])
            await connection.execute(_Q["add_members"], group_id, added)
            group = await _read(connection, group_id)
            if group.members > MAX_MEMBERS:
                raise Conflict(f"A group can have {MAX_MEMBERS} members. Create another group.")
            attempt.answer = group
    return writing.answer


async def close_group(engine: Engine, group_id: int, write: Write) -> Group:
    """Close a group: its callback is sent when all members have ended."""
    seen = await get_group(engine, group_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, seen.tenant_id, now, Group)
    async for attempt in writing:
        tenant = await engine.tenant(seen.tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            await connection.execute(_Q["close_group"], group_id, now)
            attempt.answer = await _read(connection, group_id)
            await insert_audit_row(
                connection, write, now, tenant, None, "close_group", None, _details(group_id)
            )
    return writing.answer


async def list_groups(
    engine: Engine,
    tenant_id: str | None = None,
    state: GroupState | None = None,
    page_size: int = 50,
    token: str | None = None,
) -> Page:
    """Groups, newest first. A page looks at a bounded number of them."""
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, tenant_id)
    if tenant == NO_TENANT:
        return Page([], None)
    size = min(page_size, MAX_PAGE_SIZE)
    args = (before, size + 1, MAX_SCANNED_ROWS, tenant, state)
    rows = await walk(engine, _Q["list_groups"], *args)
    return page_of([page_source(rows, size + 1, by_id, _group)], size)


async def get_group(engine: Engine, group_id: int) -> Group:
    """A group, with how many of its members are known to have ended."""
    row = await engine.database.row_or_none(_Q["group"], [group_id])
    if row is None or not engine.may_see(row["tenant_name"]):
        raise NotFound("group", group_text(group_id))
    return _group(row)


async def _read(connection: Connection, group_id: int) -> Group:
    """A group, in the transaction that changes it."""
    row = await connection.fetchrow(_Q["group"], [group_id])
    if row is None:  # it was removed by retention meanwhile
        raise NotFound("group", group_text(group_id))
    return _group(row)


def render_group(group: Group) -> dict[str, Any]:
    """The document of a group."""
    return {
        "group_id": group_text(group.group_id),
        "tenant_id": group.tenant_id,
        "name": group.name,
        "url": group.url,
        "headers": shown_headers(group.headers),
        "task": group.task,
        "members": group.members,
        "ended": group.ended,
        "created_at": format_instant(group.created_at),
        "closed_at": None if group.closed_at is None else format_instant(group.closed_at),
        "ended_at": None if group.ended_at is None else format_instant(group.ended_at),
        "execution_id": None if group.callback is None else execution_text(group.callback),
        "problem": group.problem,
    }


def _group(row: asyncpg.Record) -> Group:
    return Group(
        group_id=row["id"],
        tenant_id=row["tenant_name"],
        name=row["name"],
        url=row["url"],
        headers={} if row["headers"] is None else msgspec.json.decode(row["headers"]),
        task=row["task"],
        members=row["members"],
        ended={fate.value: count for fate, count in zip(FATES, row["fates"], strict=True)},
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        ended_at=row["ended_at"],
        callback=row["callback"],
        problem=row["problem"],
    )


def _unknown(execution_id: int) -> FieldError:
    message = f"{execution_text(execution_id)} is not an execution of this tenant, or too old"
    return FieldError("execution_ids", "bad_format", message)


def _details(group_id: int) -> str:
    return msgspec.json.encode({"group_id": group_text(group_id)}).decode()
