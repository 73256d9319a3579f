"""What the workers of a task declare about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from hourbell.engine.core import Engine
from hourbell.model.jobs import TASK_PREFIX
from hourbell.store.queries import queries

_Q = queries("jobs")


async def declare_tasks(engine: Engine, defaults: Mapping[str, str]) -> None:
    """Store the options that jobs of these tasks have if `hourbell.enqueue` is given none.

    The worker that starts last decides. The tenants and queues in the options are created.
    """
    now, declaring = await engine.clock.now(), engine.declaring()
    named = [msgspec.json.decode(options, type=dict[str, Any]) for options in defaults.values()]
    await declaring.tenants({each["tenant"] for each in named if each.get("tenant")}, now)
    await declaring.queues({each["queue"] for each in named if each.get("queue")}, now)
    await engine.targets([TASK_PREFIX + name for name in defaults], now)
    await engine.database.fetch(_Q["declare_tasks"], list(defaults), list(defaults.values()))
