"""What the workers of a task declare about it."""

from __future__ import annotations

from collections.abc import Mapping

from hourbell.engine.core import Engine
from hourbell.model.jobs import TASK_PREFIX
from hourbell.store.queries import queries

_Q = queries("jobs")


async def declare_tasks(engine: Engine, defaults: Mapping[str, str]) -> None:
    """Store the options that jobs of these tasks have if `hourbell.enqueue` is given none.

    The worker that starts last decides.
    """
    await engine.targets([TASK_PREFIX + name for name in defaults], await engine.clock.now())
    await engine.database.fetch(_Q["declare_tasks"], list(defaults), list(defaults.values()))
