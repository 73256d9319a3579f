"""The error for a tenant or a queue that does not exist, where a request must not create it.

Without it, a typing mistake in a job would create a tenant without limits, or a queue that no
worker serves.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from hourbell.documents.problems import shown_key
from hourbell.model.errors import FieldCode, FieldError, InvalidInput
from hourbell.model.jobs import DEFAULT_QUEUE, DEFAULT_TENANT
from hourbell.store.queries import queries

if TYPE_CHECKING:
    from hourbell.engine.core import Engine

_J = queries("jobs")
_R = queries("resources")

_MAX_COMPARED = 1_000  # names
_MAX_SUGGESTED = 3
_MAX_EXAMINED = 10_000  # jobs and executions of a tenant, for the queues that it uses


class _Kind(msgspec.Struct, frozen=True):
    """Tenants, or queues."""

    path: str  # of the field that names one
    code: FieldCode
    known: str  # statements
    like: str


_KINDS = {
    "tenant": _Kind("tenant_id", "unknown_tenant", _J["known_tenants"], _J["names_like_tenant"]),
    "queue": _Kind("queue", "unknown_queue", _J["known_queues"], _J["names_like_queue"]),
}


async def require_known(engine: Engine, kind: str, names: Collection[str], now: datetime) -> None:
    """Raise InvalidInput if one does not exist and must not be created."""
    if engine.create_on_use:
        return
    rows = await engine.database.fetch(_KINDS[kind].known, names)
    unknown = {*names} - {row["name"] for row in rows} - {DEFAULT_TENANT, DEFAULT_QUEUE}
    for name in sorted(unknown):
        raise await _unknown(engine, kind, name, now)


async def _unknown(engine: Engine, kind: str, name: str, now: datetime) -> InvalidInput:
    """The error, with similar names that the caller may see."""
    near = difflib.get_close_matches(
        name, await _names(engine, kind, name, now), n=_MAX_SUGGESTED, cutoff=0.75
    )
    meant = f" Did you mean {' or '.join(near)}?" if near else ""
    shown = shown_key(name)
    message = (
        f"names the {kind} {shown}, which does not exist.{meant} Here, jobs do not create {kind}s "
        f"(HOURBELL_CREATE_ON_USE is false). Create it with PUT /api/v1/{kind}s/{shown} or "
        f"`hourbell {kind}s set {shown}`"
    )
    return InvalidInput([FieldError(_KINDS[kind].path, _KINDS[kind].code, message)])


async def _names(engine: Engine, kind: str, name: str, now: datetime) -> list[str]:
    """The names to compare with, as far as the caller may see them."""
    database = engine.database
    if engine.scope is None:
        rows = await database.fetch(_KINDS[kind].like, name, _MAX_COMPARED)
    elif kind == "queue":  # those of other tenants are not shown
        tenant = await engine.tenant(engine.scope, now)
        rows = await database.fetch(
            _R["list_queues_of_tenant"], "", _MAX_COMPARED, tenant, _MAX_EXAMINED
        )
    else:
        return []
    return [row["name"] for row in rows]
