"""A backlog that is due: admitted by a scheduler, and claimed, run and recorded by one worker process, and by two.

The clock runs from the start of scheduler and workers until the last execution is recorded. Beside the rates: what one
execution leaves in PostgreSQL's log and how many dead rows, from its creation to its record. One worker and two take
turns; the first turn, in which PostgreSQL creates the files of its log, is not counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import uvloop
from support import Counter, engine, no_ops, per_second, report, server, spawn, until_empty

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import TaskAction
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

COUNT = 300_000
BATCH = 1_000
ROUNDS = 5


async def told_to_go() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def schedule(dsn: str) -> None:
    async with engine(dsn) as made:
        scheduler = Scheduler(made)
        await told_to_go()
        scheduler.start()
        listener = await made.database.listen("hourbell", scheduler.wake)
        await asyncio.to_thread(sys.stdin.readline)
        await listener.close()
        await scheduler.stop()


async def work(dsn: str) -> None:
    async with engine(dsn) as made:
        actions = {TaskAction: Counter(COUNT)}
        settings = WorkerSettings(name="bench", slots=6_000, tasks=("no-op",), lease_seconds=15)
        worker = Worker(PostgresDispatch(made), actions, settings)
        await told_to_go()
        running = asyncio.create_task(worker.run())
        listener = await made.database.listen("hourbell", worker.wake)
        await asyncio.to_thread(sys.stdin.readline)
        await listener.close()
        worker.stop()
        await running


async def one_round(made: Engine, dsn: str, workers: int) -> tuple[int, float, float]:
    """Executions per second of the drain; bytes of the log and dead rows of an execution, its creation included."""
    before, dead_before = await log_position(made), await dead_rows(made)
    for first in range(0, COUNT, BATCH):
        await create_one_time_jobs(made, no_ops(BATCH, first), Write())
    children = [spawn(role, dsn) for role in ("schedule", *["work"] * workers)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    began = time.monotonic()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    await until_empty(made)
    took = time.monotonic() - began
    written = await log_position(made) - before
    for child in children:
        child.communicate("stop\n")
    # A connection reports what it did at its end at the latest; those of this process are asked to.
    dead = await dead_rows(made) - dead_before
    return per_second(COUNT, took), written / COUNT, dead / COUNT


async def log_position(made: Engine) -> int:
    position: int = await made.database.value("select (pg_current_wal_lsn() - '0/0')::bigint")
    return position


async def dead_rows(made: Engine) -> int:
    """Updates and deletes since the server started: each leaves a dead row."""
    await made.database.value("select pg_stat_force_next_flush()")
    dead: int = await made.database.value(
        "select sum(n_tup_upd + n_tup_del)::bigint from pg_stat_user_tables"
    )
    return dead


async def measure(dsn: str) -> None:
    async with engine(dsn) as made:
        await one_round(made, dsn, 1)
        turns = [
            (await one_round(made, dsn, 1), await one_round(made, dsn, 2)) for _ in range(ROUNDS)
        ]
    one, two = ([turn[side][0] for turn in turns] for side in (0, 1))
    report(
        "drain",
        one_worker_per_second=round(median(one)),
        two_workers_per_second=round(median(two)),
        log_bytes_per_execution=round(median(turn[0][1] for turn in turns)),
        dead_rows_per_execution=round(median(turn[0][2] for turn in turns), 3),
        rounds={"one_worker": one, "two_workers": two},
    )


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run({"schedule": schedule, "work": work}[sys.argv[1]](sys.argv[2]))
        return
    with server() as dsn:
        uvloop.run(measure(dsn))


if __name__ == "__main__":
    main()
