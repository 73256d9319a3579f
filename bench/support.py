"""What the benchmarks share: a server of their own, an engine on it, and one line of JSON at the end.

Every number is measured on the embedded server with the settings that ship, every commit durable, nothing switched off.
A role of a benchmark that must be a process of its own is started with `spawn`, which runs the same file with arguments.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hourbell.actions import Run
from hourbell.compose import tune_garbage_collector
from hourbell.engine.core import Engine
from hourbell.engine.life.retain import make_partitions
from hourbell.model.executions import Claimed, Outcome, Succeeded
from hourbell.model.jobs import JobType, NewJob, TaskAction
from hourbell.model.schedules import Once
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import migrate

TENANTS = 97
_DONE = Succeeded()
PAYLOAD = {"cart_id": 7, "pad": "x" * 180}  # about 200 bytes as JSON


@contextmanager
def server() -> Iterator[str]:
    """A fresh embedded server; its DSN."""
    with (
        tempfile.TemporaryDirectory(prefix="hourbell-bench-") as folder,
        EmbeddedServer(Path(folder) / "data", owner="bench") as embedded,
    ):
        asyncio.run(migrate(embedded.dsn))
        yield embedded.dsn


@asynccontextmanager
async def engine(dsn: str) -> AsyncIterator[Engine]:
    database = await Database.open(dsn, connections=6)
    try:
        made = Engine(database, DatabaseClock(database))
        await make_partitions(made, await made.clock.now())
        tune_garbage_collector()  # as in every process of Hourbell
        yield made
    finally:
        await database.close()


def no_ops(count: int, first: int = 0, at: datetime | None = None) -> list[NewJob]:
    """One-time jobs that do nothing, spread over tenants."""
    schedule = Once(at or datetime.now(UTC))
    action = TaskAction(name="no-op", payload=PAYLOAD)
    return [
        NewJob(
            name="cart-reminder",
            action=action,
            type=JobType.ONE_TIME,
            schedule=schedule,
            tenant_id=f"tenant-{(first + number) % TENANTS}",
        )
        for number in range(count)
    ]


class Counter:
    """Runs `no_ops`: does nothing, and tells when it has done so often enough."""

    def __init__(self, wanted: int) -> None:
        self._left = wanted
        self.done = asyncio.Event()

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        self._left -= 1
        if not self._left:
            self.done.set()
        return _DONE


class Noting:
    """Runs tasks by calling a function with the payload and the claimed execution."""

    def __init__(self, note: Callable[[Any, Claimed], None]) -> None:
        self._note = note

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        self._note(action.payload, run.claimed)
        return _DONE


async def until_empty(made: Engine) -> None:
    """Wait until no execution is left, that is, until all are recorded. To be called when nearly all are."""
    for _ in range(3_000):
        if not await made.database.value(
            "select exists (select from hourbell.due) or exists (select from hourbell.due_slabs)"
            " or exists (select from hourbell.ready)"
            " or exists (select from hourbell.leases)"
        ):
            return
        await asyncio.sleep(0.01)
    raise TimeoutError("executions are left after half a minute")


def spawn(*args: str) -> subprocess.Popen[str]:
    """The same benchmark in another process, in the role that the arguments name; one line on its stdout is its answer."""
    return subprocess.Popen(
        [sys.executable, sys.argv[0], *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return int(any_port.getsockname()[1])


def report(bench: str, **numbers: object) -> None:
    """The one line that a benchmark prints."""
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(json.dumps({"bench": bench, **numbers, "machine": machine}))


def per_second(count: int, seconds: float) -> int:
    return round(count / seconds)
