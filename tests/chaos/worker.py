"""A worker of the rig: `hourbell worker`, and beside webhooks a handler that kills the process it runs in.

python -m chaos.worker
"""

from __future__ import annotations

import os
import signal
from contextlib import AbstractAsyncContextManager

from hourbell.actions.task import Context
from hourbell.cli.process import run_process
from hourbell.compose import Role, Running, role
from hourbell.settings import Settings

POISON = "poison"


async def poison(payload: object, context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def compose(settings: Settings) -> AbstractAsyncContextManager[Running]:
    return role(settings, Role.WORKER, handlers={POISON: poison})


if __name__ == "__main__":
    run_process(compose, lambda settings, parts: "a worker of the rig is up")
