"""backlog: how many executions wait although their time has come, by the reason.

The reasons are the codes of `explain`, except that a limit has one code, whether of concurrency or
rate. Executions that a worker has released for a moment, because a circuit is open for example,
count too: their time has come, and the moment at which they are tried again has not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.views.pages import walk
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    NO_SECRET_KEYS,
    PAYLOAD_MISMATCH,
    UNREADABLE,
)
from hourbell.store.queries import queries

_Q = queries("backlog")
_EXAMINED = 5_000  # executions of each place

REASONS = {
    "no_worker": "no worker serves their queue",
    "no_worker_for_task": "no worker serves their task",
    "queue_limit": "limit of their queue",
    "tenant_limit": "limit of their tenant",
    "target_limit": "limit of their target",
    "concurrency_key": "another run with their concurrency key",
    "overlap": "an earlier run of their job",
    "admission_failed": "the gate fails on them",
    CIRCUIT_OPEN: "their target keeps failing",
    NO_SECRET_KEYS: "workers have no keys for their secrets",
    PAYLOAD_MISMATCH: "a worker that their arguments fit",
    UNREADABLE: "a worker that can read their job",
    "paused": "paused",
}


class Backlog(msgspec.Struct, frozen=True):
    """Executions that wait for one reason."""

    code: str
    count: int
    at_least: bool  # counting stopped

    @property
    def words(self) -> str:
        """The reason in plain words."""
        return REASONS[self.code]


async def backlog(
    engine: Engine, tenant: int | None = None, queue: int | None = None
) -> Sequence[Backlog]:
    """What executions wait for, of all or of a tenant or queue; the most frequent reason first."""
    now = await engine.clock.now()
    rows = await walk(engine, _Q["backlog"], now, _EXAMINED, tenant, queue)
    found = [Backlog(row["code"], row["n"], row["cut"]) for row in rows]
    return sorted(found, key=lambda each: (-each.count, each.code))
