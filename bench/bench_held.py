"""Drains while another session holds a snapshot, or a transaction that has written, open for minutes.

Either keeps PostgreSQL from removing dead rows and index entries, of which a queue leaves many. Rounds of enqueue, admit
and drain go on for as long as it is held; rounds without it come before, for a quarter of that time. The median round of
each side is the number; the rounds are shown in their order, so that a decline can be seen.

    python bench/bench_held.py [SECONDS]    how long each is held: 60 unless told
"""

from __future__ import annotations

import asyncio
import sys
import time
from statistics import median

import asyncpg
import uvloop
from support import Counter, engine, no_ops, per_second, report, server, until_empty

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import TaskAction
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

COUNT = 50_000
BATCH = 1_000
HELD_SECONDS = 60.0
HELD = {
    "snapshot": "select count(*) from hourbell.tenants",
    "writer": "create table public.held ()",
}


async def drain(made: Engine, first: int) -> int:
    """Enqueue, then admit and drain by one worker; executions per second of the second part."""
    for number in range(first, first + COUNT, BATCH):
        await create_one_time_jobs(made, no_ops(BATCH, number), Write())
    counter = Counter(COUNT)
    settings = WorkerSettings(name="bench", slots=6_000, tasks=("no-op",), lease_seconds=15)
    actions = {TaskAction: counter}
    worker = Worker(PostgresDispatch(made), actions, settings)
    running = asyncio.create_task(worker.run())
    while worker.session is None:  # noqa: ASYNC110 - the gate is passed at once after it
        await asyncio.sleep(0)
    began = time.monotonic()
    while not counter.done.is_set():
        await PostgresDispatch(made).admit()
        worker.wake()
        await asyncio.sleep(0)
    await until_empty(made)
    took = time.monotonic() - began
    worker.stop()
    await running
    return per_second(COUNT, took)


async def rounds_for(made: Engine, seconds: float) -> list[int]:
    until, rounds = time.monotonic() + seconds, []
    while time.monotonic() < until:
        rounds.append(await drain(made, len(rounds) * COUNT))
    return rounds


async def compare(dsn: str, held: str, seconds: float) -> dict[str, object]:
    holder = await asyncpg.connect(dsn)
    async with engine(dsn) as made:
        await drain(made, 0)  # PostgreSQL makes the files of its log
        free = await rounds_for(made, seconds / 4)
        transaction = holder.transaction(isolation="repeatable_read")
        await transaction.start()
        await holder.execute(held)
        under = await rounds_for(made, seconds)
        await transaction.rollback()
    await holder.close()
    ratio = round(median(under) / median(free), 2)
    return {"free": median(free), "held": median(under), "ratio": ratio, "rounds": [free, under]}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else HELD_SECONDS
    found = {}
    for name, statement in HELD.items():
        with server() as dsn:
            found[name] = uvloop.run(compare(dsn, statement, seconds))
    report("held", seconds=seconds, **found)


if __name__ == "__main__":
    main()
