"""Lateness at 1,000 a second: from the time an execution is due to the start of its handler, planned ahead, steady load.

And the latency from an enqueue to the start, at 100 a second, when our own processes announce it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import uvloop
from support import Noting, engine, no_ops, report, server

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.operations.idempotency import Write
from hourbell.model.executions import Claimed
from hourbell.model.jobs import TaskAction
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

SECONDS = 20
PER_SECOND = 1_000
WARM_UP_SECONDS = 3


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1] * 1000, 1)


async def until(done: Callable[[], bool]) -> None:
    for _ in range(600):
        if done():
            return
        await asyncio.sleep(0.1)
    raise TimeoutError("not everything has started within a minute")


async def steady(made: Engine, started: list[float]) -> None:
    """Due times spread evenly over the seconds, all known ahead."""
    first = datetime.now(UTC) + timedelta(seconds=WARM_UP_SECONDS)
    for second in range(SECONDS):
        for tenth in range(10):
            at = first + timedelta(seconds=second + tenth / 10)
            jobs = [
                job
                for step in range(10)
                for job in no_ops(PER_SECOND // 100, step, at + timedelta(milliseconds=step * 10))
            ]
            await create_one_time_jobs(made, jobs, Write())
    await until(lambda: len(started) == SECONDS * PER_SECOND)


async def announced(made: Engine, started: list[float]) -> None:
    """One at a time, due at once, a hundred a second."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for number in range(1_000):
        await asyncio.sleep(max(begin + number / 100 - loop.time(), 0))
        await create_one_time_jobs(made, no_ops(1, number), Write())
    await until(lambda: len(started) == 1_000)


async def measure(dsn: str) -> None:
    started: list[float] = []

    def note(payload: object, claimed: Claimed) -> None:
        started.append(time.time() - claimed.scheduled_epoch)

    async with engine(dsn) as made:
        scheduler = Scheduler(made)
        actions = {TaskAction: Noting(note)}
        worker = Worker(PostgresDispatch(made), actions, WorkerSettings(name="bench", slots=500))

        def heard(payload: str) -> None:
            worker.wake(payload)

        listener = await made.database.listen("hourbell", heard)
        scheduler.start()
        running = asyncio.create_task(worker.run())
        await steady(made, started)
        late, started[:] = list(started), []
        await announced(made, started)
        await listener.close()
        worker.stop()
        await running
        await scheduler.stop()
    report(
        "lateness",
        at_1000_per_second_ms={"p50": percentile(late, 0.5), "p99": percentile(late, 0.99)},
        earliest_ms=round(min(late) * 1000, 1),
        enqueue_to_start_ms={"p50": percentile(started, 0.5), "p99": percentile(started, 0.99)},
    )


def main() -> None:
    with server() as dsn:
        uvloop.run(measure(dsn))


if __name__ == "__main__":
    main()
