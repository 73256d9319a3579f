"""A worker of the rig: `hourbell worker`, and beside webhooks a task that kills the process it runs in.

python -m chaos.worker
"""

from __future__ import annotations

import inspect
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from hourbell.cli.process import run_process
from hourbell.compose import Role, Running, role, running, shared_database
from hourbell.settings import Settings

POISON = "rig.poison"


async def poison(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def compose(settings: Settings) -> AbstractAsyncContextManager[Running]:
    parameters = inspect.signature(role).parameters
    if "handlers" in parameters:  # the older build has no apps: remove this when OLDER has them
        of_older_build: Any = role
        return of_older_build(settings, Role.WORKER, handlers={POISON: poison})
    return _with_poison(settings)


@asynccontextmanager
async def _with_poison(settings: Settings) -> AsyncIterator[Running]:
    from hourbell import App
    from hourbell.sdk.running import entered

    app = App("rig")

    @app.task(name="poison")
    async def kill() -> None:
        await poison()

    dsn = shared_database(settings)
    async with entered(app) as tasks, running(dsn, settings, {Role.WORKER}, tasks) as parts:
        yield parts


if __name__ == "__main__":
    run_process(compose, lambda settings, parts: "a worker of the rig is up")
