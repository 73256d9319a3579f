"""The stages of the hot path, each alone: enqueue, admit, claim + run + settle by one worker process.

Three rounds on one server; the median of each stage is the number, all are shown.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import uvloop
from support import Counter, engine, no_ops, per_second, report, server, spawn, until_empty

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import TaskAction
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

COUNT = 200_000
BATCH = 1_000
CALLS = 2  # at the same time: while PostgreSQL stores one batch, the client prepares the next
ROUNDS = 3


async def enqueue(dsn: str) -> float:
    async with engine(dsn) as made:
        batches = [no_ops(BATCH, first) for first in range(0, COUNT, BATCH)]
        rest = iter(batches)

        async def call() -> None:
            for jobs in rest:
                await create_one_time_jobs(made, jobs, Write())

        began = time.monotonic()
        await asyncio.gather(*(call() for _ in range(CALLS)))
        return time.monotonic() - began


async def admit_all(dsn: str) -> tuple[float, float]:
    async with engine(dsn) as made:
        # Nothing is let on for a queue that nobody serves.
        await PostgresDispatch(made).open("bench", ["default"], 1, ["no-op"])
        began, done, longest = time.monotonic(), 0, 0.0
        while done < COUNT:
            before = time.monotonic()
            done += (await admit(made, await made.clock.now())).examined
            longest = max(longest, time.monotonic() - before)
        return time.monotonic() - began, longest


async def work(dsn: str) -> float:
    """Claim, run and settle all that is ready, from the first claim to the last settle."""
    async with engine(dsn) as made:
        counter = Counter(COUNT)
        actions = {TaskAction: counter}
        settings = WorkerSettings(name="bench", slots=6_000, tasks=("no-op",), lease_seconds=15)
        worker = Worker(PostgresDispatch(made), actions, settings)
        running = asyncio.create_task(worker.run())
        while worker.session is None:  # noqa: ASYNC110 - the first claim follows at once
            await asyncio.sleep(0)
        began = time.monotonic()
        await counter.done.wait()
        await until_empty(made)
        took = time.monotonic() - began
        worker.stop()
        await running
        return took


def main() -> None:
    if len(sys.argv) > 1:
        print(uvloop.run(work(sys.argv[1])))
        return
    enqueued, admitted, worked, longest = [], [], [], 0.0
    with server() as dsn:
        for _ in range(ROUNDS):
            enqueued.append(per_second(COUNT, uvloop.run(enqueue(dsn))))
            took, pass_seconds = uvloop.run(admit_all(dsn))
            admitted.append(per_second(COUNT, took))
            longest = max(longest, pass_seconds)
            child = spawn(dsn)
            worked.append(per_second(COUNT, float(child.communicate()[0])))
    report(
        "stages",
        enqueue_per_second=round(median(enqueued)),
        admit_per_second=round(median(admitted)),
        claim_run_settle_per_second=round(median(worked)),
        longest_admit_ms=round(longest * 1000, 1),
        rounds={"enqueue": enqueued, "admit": admitted, "work": worked},
    )


if __name__ == "__main__":
    main()
