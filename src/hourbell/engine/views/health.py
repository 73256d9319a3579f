"""health: whether the database can be worked with, and whether anybody leads."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg

from hourbell.engine.core import Engine
from hourbell.model.errors import IncompatibleDatabase, StoreUnavailable
from hourbell.store.function_set import function_set
from hourbell.store.migrations import is_complete
from hourbell.store.queries import queries

_Q = queries("health")
_PATIENCE_SECONDS = 2.0


async def check_database(engine: Engine) -> dict[str, bool]:
    """Each check by name; what cannot be known without the one before is left out.

    `leader`: somebody leads, or did so until a moment ago. A change of leaders takes up to a lease, and is not felt.
    """
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            state = await engine.database.row(_Q["state"], function_set().digest)
    except (StoreUnavailable, TimeoutError):
        return {"database": False}
    except asyncpg.PostgresError:  # it answers, but not to us: the schema is not there, or not ours
        return {"database": True, "migrated": False}
    try:
        migrated = is_complete(state["migrations"], state["requires"], state["has_functions"])
    except IncompatibleDatabase:
        migrated = False
    vacant_since = state["led_until"]
    patience = timedelta(seconds=engine.times.leader_lease_seconds)
    return {
        "database": True,
        "migrated": migrated,
        "leader": vacant_since is not None and vacant_since > state["now"] - patience,
    }
