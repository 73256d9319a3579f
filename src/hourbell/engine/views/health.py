"""health: whether the database is usable, and whether a node leads."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg

from hourbell.engine.core import Engine
from hourbell.model.errors import IncompatibleDatabase, StoreUnavailable, UnreleasedDatabase
from hourbell.store.function_set import function_set
from hourbell.store.migrations import is_complete
from hourbell.store.queries import queries

_Q = queries("health")
_TIMEOUT_SECONDS = 2.0


async def check_database(engine: Engine) -> dict[str, bool]:
    """Each check by name; a check that depends on a failed one is left out.

    `leader`: a node leads, or did until a moment ago. A change of leaders takes up to one lease and
    does not fail the check.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            state = await engine.database.row(_Q["state"], function_set().digest)
    except (StoreUnavailable, TimeoutError):
        return {"database": False}
    except asyncpg.PostgresError:  # it answers, but the schema is missing or not usable by us
        return {"database": True, "migrated": False}
    try:
        migrated = is_complete(state["migrations"], state["requires"], state["has_functions"])
    except (IncompatibleDatabase, UnreleasedDatabase):
        migrated = False
    vacant_since = state["led_until"]
    grace = timedelta(seconds=engine.times.leader_lease_seconds)
    return {
        "database": True,
        "migrated": migrated,
        "leader": vacant_since is not None and vacant_since > state["now"] - grace,
    }
