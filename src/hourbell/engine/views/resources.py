"""resources: tenants, queues and targets as users see them: their settings and current counts.

Queues and targets belong to the cell. A caller restricted to one tenant sees the queues that its
jobs use, with its own share of what waits and runs there, and none of the targets: tenants cannot
see which queues other tenants use, how busy these are, or which hosts they call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import asyncpg
import msgspec

from hourbell.documents.problems import shown_key
from hourbell.engine.core import Engine
from hourbell.engine.operations.limits import (
    host_named,
    limits_of,
    queue_of,
    tenant_of,
)
from hourbell.engine.views.activity import Share, shares
from hourbell.engine.views.backlog import Backlog, backlog
from hourbell.engine.views.jobs import tenant_wanted
from hourbell.engine.views.pages import (
    MAX_PAGE_SIZE,
    Page,
    by_name,
    first_rows,
    read_name,
    read_token,
    walk,
)
from hourbell.model.errors import InvalidInput, NotFound
from hourbell.model.limits import Limits
from hourbell.model.texts import text_problem
from hourbell.store.queries import queries

_Q = queries("resources")

MAX_COUNTED = 10_000
MAX_LISTED = 500  # up to which the jobs of each tenant of a list are counted
MAX_COUNTED_TENANTS = 100  # of a list with counts
TENANT_COUNTS = ("jobs", "running", "waiting", "parked", "not_planned")
_EXAMINED = 5_000  # executions of each place of the cell, to count what waits


class NamedResource(msgspec.Struct, frozen=True):
    """A tenant, a queue or a target."""

    name: str
    settings: Limits
    counts: dict[str, int] | None = None  # None in lists
    at_least: tuple[str, ...] = ()  # counts that are lower bounds, because counting stopped
    share: Share | None = None  # of a tenant in all starts; None: not asked for
    backlog: Sequence[Backlog] | None = None  # of one tenant or queue; None in lists
    created_on_use: bool = False  # by a job that named it, and not declared since


async def list_tenants(engine: Engine, page_size: int = 50, token: str | None = None) -> Page:
    """Tenants by name."""
    if engine.scope is not None:
        if token is not None:
            read_token(token, str)
            return Page([], None)
        row = await _row_or_none(engine, "tenant", engine.scope)
        return Page([] if row is None else [_listed(row, tenant_of(row))], None)
    return await _list(engine, "list_tenants", page_size, token, tenant_of)


async def list_tenants_by_share(engine: Engine) -> Page:
    """The tenants with the most starts in the last hour, most first."""
    found = await shares(engine, await engine.clock.now())
    rows = await engine.database.fetch(_Q["tenants"], [share.tenant_id for share in found])
    tenants = {row["name"]: _listed(row, tenant_of(row)) for row in rows}
    listed = [msgspec.structs.replace(tenants[share.tenant_id], share=share) for share in found]
    return Page(listed, None)


async def count_tenants(engine: Engine, tenants: Sequence[NamedResource]) -> list[NamedResource]:
    """These tenants with their counts, which stop earlier than those of one tenant."""
    known = await engine.database.fetch(_Q["tenants"], [tenant.name for tenant in tenants])
    ids = {row["name"]: row["id"] for row in known}
    rows = await walk(engine, _Q["tenants_counts"], [*ids.values()], MAX_LISTED, MAX_COUNTED)
    by_id = {row["tenant"]: dict(row) for row in rows}
    waiting = await _waiting(engine, [*ids.values()], MAX_LISTED)
    counted = []
    for tenant in tenants:
        number = ids[tenant.name]
        row = by_id[number] | waiting[number]
        counts = {each: min(row[each], MAX_COUNTED) for each in TENANT_COUNTS}
        counted.append(msgspec.structs.replace(tenant, counts=counts, at_least=_cut(row)))
    return counted


async def _waiting(
    engine: Engine, tenants: Sequence[int], most_parked: int
) -> dict[int, dict[str, int]]:
    """What waits for the gate, a blocker or a worker, by tenant; MAX_COUNTED examined: or more."""
    now = await engine.clock.now()
    rows = await walk(engine, _Q["waiting"], tenants, now, _EXAMINED, most_parked)
    return {
        row["tenant"]: {
            "waiting": min(row["waiting"], MAX_COUNTED),
            "waiting_examined": min(row["waiting"], MAX_COUNTED)
            if row["examined_all"]
            else MAX_COUNTED,
        }
        for row in rows
    }


def _cut(row: Mapping[str, int]) -> tuple[str, ...]:
    """The counts of a tenant of a list that are lower bounds."""
    seen = {
        "jobs": (row["jobs_examined"], MAX_LISTED),
        "running": (row["running_examined"], MAX_COUNTED),
        "waiting": (row["waiting_examined"], MAX_COUNTED),
        "parked": (row["parked"], MAX_LISTED),
        "not_planned": (row["not_planned_examined"], MAX_COUNTED),
    }
    return tuple(name for name, (examined, limit) in seen.items() if examined >= limit)


async def list_queues(engine: Engine, page_size: int = 50, token: str | None = None) -> Page:
    """Queues by name; within a scope, those that its tenant uses."""
    if engine.scope is not None:
        tenant = await tenant_wanted(engine, None)
        return await _list(
            engine, "list_queues_of_tenant", page_size, token, queue_of, tenant, MAX_COUNTED
        )
    return await _list(engine, "list_queues", page_size, token, queue_of)


async def list_targets(engine: Engine, page_size: int = 50, token: str | None = None) -> Page:
    """Hosts that webhooks call, by name."""
    if engine.scope is not None:
        return Page([], None)
    return await _list(engine, "list_targets", page_size, token, limits_of)


async def get_tenant(engine: Engine, name: str) -> NamedResource:
    """A tenant with its counts.

    Jobs that are scheduled, paused or waiting; executions that run, that wait although their time
    has come, and those of them that wait for its limits; jobs that are not planned, because the
    leader cannot compute their schedule.
    """
    if not engine.may_see(name):
        raise NotFound("tenant", shown_key(name))
    row = await _row(engine, "tenant", name)
    (counts,) = await walk(engine, _Q["tenant_counts"], row["id"], MAX_COUNTED)
    waiting = await _waiting(engine, [row["id"]], MAX_COUNTED)
    found = _counted(name, tenant_of(row), counts, waiting[row["id"]])
    return msgspec.structs.replace(
        found,
        backlog=await backlog(engine, tenant=row["id"]),
        created_on_use=bool(row["created_on_use"]),
    )


async def get_queue(engine: Engine, name: str) -> NamedResource:
    """A queue with counts: executions ready, running or waiting for its limits; live workers.

    Within a scope, only the executions of its tenant count.
    """
    row = await _row(engine, "queue", name)
    now = await engine.clock.now()
    if engine.scope is not None:
        tenant = await tenant_wanted(engine, None)
        used = await walk(engine, _Q["list_queues_of_tenant"], "", None, tenant, MAX_COUNTED)
        if all(queue["id"] != row["id"] for queue in used):
            raise NotFound("queue", shown_key(name))
        (counts,) = await walk(
            engine, _Q["queue_counts_of_tenant"], row["id"], MAX_COUNTED, now, tenant
        )
    else:
        tenant = None
        (counts,) = await walk(engine, _Q["queue_counts"], row["id"], MAX_COUNTED, now)
    return msgspec.structs.replace(
        _counted(name, queue_of(row), counts),
        backlog=await backlog(engine, tenant, row["id"]),
        created_on_use=bool(row["created_on_use"]),
    )


async def get_target(engine: Engine, host: str) -> NamedResource:
    """A target with its count: executions that wait for its limits."""
    try:
        named = host_named(host)
    except InvalidInput:
        raise NotFound("target", shown_key(host)) from None
    if engine.scope is not None:
        raise NotFound("target", shown_key(host))
    row = await _row(engine, "target", named)
    (counts,) = await walk(engine, _Q["target_counts"], row["id"], MAX_COUNTED)
    return _counted(named, limits_of(row), counts)


async def _list(
    engine: Engine,
    statement: str,
    page_size: int,
    token: str | None,
    settings: Callable[[asyncpg.Record], Limits],
    *arguments: object,
) -> Page:
    size = min(page_size, MAX_PAGE_SIZE)
    rows = await walk(engine, _Q[statement], read_name(token), size + 1, *arguments)
    return first_rows(rows, size, lambda row: _listed(row, settings(row)), by_name)


def _listed(row: asyncpg.Record, settings: Limits) -> NamedResource:
    return NamedResource(
        row["name"],
        settings,
        created_on_use=bool(row.get("created_on_use")),  # targets have none
    )


async def _row(engine: Engine, kind: str, name: str) -> asyncpg.Record:
    row = await _row_or_none(engine, kind, name)
    if row is None:
        raise NotFound(kind, shown_key(name))
    return row


async def _row_or_none(engine: Engine, kind: str, name: str) -> asyncpg.Record | None:
    if text_problem(name) is not None:
        return None
    return await engine.database.row_or_none(_Q[kind], name)


def _counted(
    name: str,
    settings: Limits,
    row: asyncpg.Record,
    waiting: Mapping[str, int] = MappingProxyType({}),
) -> NamedResource:
    counts: dict[str, int] = {**row, **waiting}
    examined = {
        each: counts.pop(f"{each}_examined") for each in [*counts] if f"{each}_examined" in counts
    }
    seen = counts | examined
    at_least = tuple(each for each in counts if seen[each] >= MAX_COUNTED)
    return NamedResource(name, settings, counts, at_least)
