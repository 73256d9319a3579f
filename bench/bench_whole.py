"""All stages at once on the same cores: enqueue, admit, claim, run, settle, record; each role a process.

The clock runs from before the first enqueue is sent until the last execution is recorded. In the first rounds PostgreSQL
creates the files of its log; later ones find them, as in a server that has been running for a while.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import uvloop
from support import Counter, engine, no_ops, per_second, report, server, spawn, until_empty

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import TaskAction
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

COUNT = 300_000
BATCH = 1_000
CALLS = 2  # at the same time, as in bench_stages.py
ROUNDS = 6


async def produce(dsn: str) -> None:
    async with engine(dsn) as made:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        rest = iter(range(0, COUNT, BATCH))

        async def call() -> None:
            for first in rest:
                await create_one_time_jobs(made, no_ops(BATCH, first), Write())

        await asyncio.gather(*(call() for _ in range(CALLS)))


async def schedule(dsn: str) -> None:
    async with engine(dsn) as made:
        scheduler = Scheduler(made)
        scheduler.start()
        listener = await made.database.listen("hourbell", scheduler.wake)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await listener.close()
        await scheduler.stop()


async def work(dsn: str) -> None:
    async with engine(dsn) as made:
        counter = Counter(COUNT)
        actions = {TaskAction: counter}
        settings = WorkerSettings(name="bench", slots=6_000, lease_seconds=15)
        worker = Worker(PostgresDispatch(made), actions, settings)
        listener = await made.database.listen("hourbell", worker.wake)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await counter.done.wait()
        print("done", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await listener.close()
        worker.stop()
        await running


async def one_round(dsn: str, recorded_before: int) -> float:
    children = [spawn(role, dsn) for role in ("schedule", "work", "produce")]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    producer = children.pop()
    async with engine(dsn) as made:
        began = time.monotonic()
        producer.communicate("go\n")
        worker_says = children[1].stdout
        assert worker_says is not None
        await asyncio.to_thread(worker_says.readline)
        await until_empty(made)
        took = time.monotonic() - began
        recorded = await made.database.value(
            "select count(*) from hourbell.ledger where status = 0"
        )
        assert recorded - recorded_before == COUNT, f"{recorded} recorded"
    for child in children:
        child.communicate("stop\n")
    return took


def main() -> None:
    if len(sys.argv) > 1:
        role = {"produce": produce, "schedule": schedule, "work": work}[sys.argv[1]]
        uvloop.run(role(sys.argv[2]))
        return
    with server() as dsn:
        rounds = [
            per_second(COUNT, uvloop.run(one_round(dsn, number * COUNT)))
            for number in range(ROUNDS)
        ]
    report("whole", executions_per_second=round(median(rounds)), rounds=rounds)


if __name__ == "__main__":
    main()
