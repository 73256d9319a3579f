"""presence: every process writes a heartbeat every few seconds, for the list of nodes.

Nothing depends on it: workers are known by their sessions, and the leader by its lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from hourbell import __version__
from hourbell.engine.core import Engine
from hourbell.store.queries import queries
from hourbell.timing.zones import tz_version

_Q = queries("fleet")

PRESENCE_SECONDS = 5.0
MAX_CIRCUITS = 100  # of one process that are reported


class OpenCircuit(msgspec.Struct, frozen=True):
    """A target that gets no requests from a process for a while."""

    tenant: str | None
    host: str
    endpoint: str | None  # method and URL; None: the whole host
    failures: int  # in a row,
    since: datetime  # from this moment on
    until: datetime  # then one request probes
    error: str = ""  # of the last failure


class Node(msgspec.Struct, frozen=True):
    """A process."""

    id: UUID
    name: str
    roles: Sequence[str]


async def report_presence(
    engine: Engine,
    node: Node,
    now: datetime,
    drift_seconds: float | None,
    circuits: Sequence[OpenCircuit],
) -> None:
    """Record a heartbeat of a process."""
    pool = engine.database.pool_state
    await engine.database.fetch(
        _Q["report_node"],
        node.id,
        node.name,
        list(node.roles),
        __version__,
        tz_version(),
        now,
        None if drift_seconds is None else round(drift_seconds * 1000, 1),
        pool.in_use,
        pool.max_size,
        msgspec.json.encode(circuits[:MAX_CIRCUITS]).decode(),
    )


async def end_presence(engine: Engine, node: Node) -> None:
    """Remove a process that shuts down."""
    await engine.database.fetch(_Q["delete_node"], node.id)
