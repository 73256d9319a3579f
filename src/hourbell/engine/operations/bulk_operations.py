"""bulk operations: an act on everything that a filter selects.

A request stores the operation and answers at once; the leader carries it out, in batches
(`leader/bulk_operations.py`). What is selected is what exists when the operation is created: jobs
with a lower id, and dead letters that died before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.documents.operations import (
    Act,
    JobSelector,
    OperationRequest,
    parse_operation,
    parse_operation_preview,
)
from hourbell.engine.core import Engine
from hourbell.engine.operations.bulk_changes import paused_with
from hourbell.engine.operations.change import require_future
from hourbell.engine.operations.dead_letters import read_page
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.jobs import (
    NO_TENANT,
    JobFilter,
    recorded_under,
    selected_ids,
    tenant_wanted,
)
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    NEWEST,
    Id,
    Page,
    first_rows,
    page_token,
    read_token,
    walk,
)
from hourbell.model.errors import NotFound
from hourbell.model.ids import operation_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import ACTIVE_STATUSES, DEFAULT_TENANT, JobStatus, Pause
from hourbell.store.database import Connection
from hourbell.store.queries import queries

_Q = queries("operations")

MAX_COUNTED = 10_000
FAILPOINTS = CommitFailpoints("operate.before_commit", "operate.after_commit")
_NOUNS: dict[Act, str] = {
    "pause": "scheduled job",
    "resume": "paused job",
    "replay": "dead letter",
    "purge": "dead letter",
}

RUNNING, STOPPED, DONE, FAILED = "RUNNING", "STOPPED", "DONE", "FAILED"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation, and how far it is."""

    operation_id: int
    act: Act
    filter: Mapping[str, Any]  # as the request gave it
    reason: str | None
    until: datetime | None  # of a pause
    rate_per_second: int | None  # of a replay
    tenant_id: str | None  # the only tenant that it concerns; None: all tenants
    created_by: str
    created_at: datetime
    state: str
    total: int  # selected when it was created
    total_at_least: bool
    done: int = 0
    left_over: Mapping[str, int] = msgspec.field(default_factory=dict)  # how many, by reason
    error: str | None = None
    updated_at: datetime
    ended_at: datetime | None = None


class OperationPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What an operation would concern."""

    act: Act
    filter: Mapping[str, Any]
    total: int
    at_least: bool  # there may be more
    words: str


# Requests.


async def preview_operation(engine: Engine, document: object) -> OperationPreview:
    """Count what an operation would concern; nothing is changed."""
    request = parse_operation_preview(document)
    total, more = await _count(engine, request, None)
    return OperationPreview(
        act=request.act,
        filter=request.filter,
        total=total,
        at_least=more,
        words=_words(request, total, more),
    )


async def create_operation(engine: Engine, document: object, write: Write) -> Operation:
    """Store an operation, which the leader carries out."""
    request = parse_operation(document)
    now = await engine.clock.now()
    owner = await recorded_under(engine, request.tenant_id)
    only = owner if owner in (request.tenant_id, engine.scope) else None
    operation_id = await engine.new_id(now)
    writing = Idempotent(engine, write, FAILPOINTS, owner, now, Operation)
    async for attempt in writing:
        require_future(Pause(request.reason, request.until), now)
        request = _up_to_now(request, now)
        # Jobs that are created later have higher ids.
        position = page_token(operation_id) if _is_of_jobs(request) else None
        total, more = await _count(engine, request, position)
        tenant = await engine.tenant(owner, now)
        operation = Operation(
            operation_id=operation_id,
            act=request.act,
            filter=request.filter,
            reason=request.reason,
            until=request.until,
            rate_per_second=request.rate_per_second,
            tenant_id=only,
            created_by=write.actor,
            created_at=now,
            state=RUNNING,
            total=total,
            total_at_least=more,
            updated_at=now,
        )
        async with attempt.transaction(tenant) as connection:
            await connection.execute(
                _Q["insert"],
                operation_id,
                tenant,
                None if only is None else tenant,
                request.act,
                msgspec.json.encode(request.filter).decode(),
                request.reason,
                request.until,
                request.rate_per_second,
                write.actor,
                now,
                position,
                operation.total,
                operation.total_at_least,
            )
            await insert_audit_of(connection, write, now, tenant, "start_operation", operation)
            attempt.answer = operation
    return writing.answer


async def stop_operation(engine: Engine, operation_id: int, write: Write) -> Operation:
    """Stop a running operation after its current batch; what was done stays."""
    seen = await get_operation(engine, operation_id)
    now = await engine.clock.now()
    owner = seen.tenant_id or DEFAULT_TENANT
    tenant = await engine.tenant(owner, now)
    writing = Idempotent(engine, write, FAILPOINTS, owner, now, Operation)
    async for attempt in writing:
        async with attempt.transaction(tenant) as connection:
            ended = await connection.fetchval(_Q["end"], operation_id, now, STOPPED, None)
            row = await connection.fetchrow(_Q["operation"], operation_id)
            assert row is not None
            attempt.answer = operation_of(row)
            if ended is not None:
                await insert_audit_of(
                    connection, write, now, tenant, "stop_operation", attempt.answer
                )
    return writing.answer


async def get_operation(engine: Engine, operation_id: int) -> Operation:
    """An operation, and how far it is."""
    row = await engine.database.row_or_none(_Q["operation"], operation_id)
    if row is None or (engine.scope is not None and row["tenant_name"] != engine.scope):
        raise NotFound("operation", operation_text(operation_id))
    return operation_of(row)


async def list_operations(
    engine: Engine, tenant_id: str | None, page_size: int = 50, token: str | None = None
) -> Page:
    """Operations, newest first; `tenant_id`: those that concern this tenant alone."""
    before = NEWEST if token is None else read_token(token, Id)
    tenant = await tenant_wanted(engine, tenant_id)
    if tenant == NO_TENANT:
        return Page([], None)
    size = min(page_size, MAX_PAGE_SIZE)
    if tenant is None:
        rows = await walk(engine, _Q["list_operations"], before, size + 1)
    else:
        rows = await walk(engine, _Q["list_operations_of_tenant"], before, size + 1, tenant)
    return first_rows(rows, size, operation_of)


def _up_to_now(request: OperationRequest, now: datetime) -> OperationRequest:
    """The same; dead letters of later deaths are not concerned."""
    selected = request.selected
    if isinstance(selected, JobSelector) or (selected.died_to and selected.died_to <= now):
        return request
    given = dict(request.filter) | {"to": format_instant(now)}
    selected = msgspec.structs.replace(selected, died_to=now)
    return msgspec.structs.replace(request, filter=given, selected=selected)


async def _count(
    engine: Engine, request: OperationRequest, position: str | None
) -> tuple[int, bool]:
    """How many are selected, up to MAX_COUNTED, and whether there may be more."""
    selected = request.selected
    if isinstance(selected, DeadLetterFilter):
        page = await read_page(engine, selected, MAX_COUNTED, position)
        return len(page.items), page.next_token is not None
    wanted = jobs_wanted(request.act, selected)
    ids, more = await selected_ids(engine, wanted, MAX_COUNTED, position)
    return len(await paused_with(engine, ids, selected.paused_reason, selected.operation_id)), more


def jobs_wanted(act: Act, selected: JobSelector) -> JobFilter:
    """The jobs that an operation can change."""
    return JobFilter(
        tenant_id=selected.tenant_id,
        statuses=ACTIVE_STATUSES if act == "pause" else frozenset({JobStatus.PAUSED}),
        queue=selected.queue,
        label=selected.label,
        name_prefix=selected.name_prefix,
    )


def _is_of_jobs(request: OperationRequest) -> bool:
    return isinstance(request.selected, JobSelector)


def _words(request: OperationRequest, total: int, more: bool) -> str:
    noun = _NOUNS[request.act] + ("" if total == 1 and not more else "s")
    parts = [
        f"{name.replace('_', ' ').removesuffix(' id')} {value}"
        for name, value in request.filter.items()
    ]
    which = f" with {', '.join(parts)}" if parts else ""
    number = f"at least {total:,}" if more else f"{total:,}"
    return f"{request.act.capitalize()} {number} {noun}{which}."


async def insert_audit_of(
    connection: Connection,
    write: Write,
    now: datetime,
    tenant: int,
    what: str,
    operation: Operation,
) -> None:
    """The audit entry of the start or the end of an operation."""
    details = {
        "operation_id": operation_text(operation.operation_id),
        "act": operation.act,
        "filter": operation.filter,
        "reason": operation.reason,
        "total": operation.total,
        "done": operation.done,
        "left": sum(operation.left_over.values()),
    }
    text = msgspec.json.encode(details).decode()
    await insert_audit_row(connection, write, now, tenant, None, what, None, text)


def operation_of(row: asyncpg.Record) -> Operation:
    """An operation, as it is stored."""
    return Operation(
        operation_id=row["id"],
        act=row["act"],
        filter=msgspec.json.decode(row["filter"]),
        reason=row["reason"],
        until=row["until"],
        rate_per_second=row["rate"],
        tenant_id=row["tenant_name"],
        created_by=row["actor"],
        created_at=row["created_at"],
        state=row["state"],
        total=row["total"],
        total_at_least=row["total_at_least"],
        done=row["done"],
        left_over=msgspec.json.decode(row["left_over"]),
        error=row["error"],
        updated_at=row["updated_at"],
        ended_at=row["ended_at"],
    )
