"""Drains while another session holds a snapshot, or a transaction that has written, open for minutes.

Either keeps PostgreSQL from removing dead rows and index entries, of which a queue leaves many. Three databases on servers
of their own take turns: one is free, in the second a snapshot is held throughout, in the third a transaction that has
written. A round enqueues, admits and drains. Each held database is compared with the free one turn by turn, because the
machine is not equally fast for ten minutes; the rounds are shown in their order, so that a decline can be seen.

    python bench/bench_held.py [SECONDS]    how long they are held: 60 unless told
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack, ExitStack
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
    "free": None,
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
    # The worker knows when all are settled. Tables would answer, too, but only after a scan of their dead rows.
    while worker.held:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    took = time.monotonic() - began
    await until_empty(made)
    worker.stop()
    await running
    return per_second(COUNT, took)


async def hold(dsn: str, statement: str, held: AsyncExitStack) -> None:
    """Keep a transaction open that has executed the statement."""
    holder = await asyncpg.connect(dsn)
    held.push_async_callback(holder.close)
    await holder.execute("begin isolation level repeatable read")
    await holder.execute(statement)


async def turns(dsns: dict[str, str], seconds: float) -> dict[str, list[int]]:
    rounds: dict[str, list[int]] = {name: [] for name in dsns}
    async with AsyncExitStack() as opened:
        made = {name: await opened.enter_async_context(engine(dsn)) for name, dsn in dsns.items()}
        for one in made.values():
            await drain(one, 0)  # PostgreSQL makes the files of its log
        for name, dsn in dsns.items():
            if (statement := HELD[name]) is not None:
                await hold(dsn, statement, opened)
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += 1
            order = list(made) if number % 2 else list(reversed(made))
            for name in order:
                rounds[name].append(await drain(made[name], number * COUNT))
    return rounds


def compared(free: list[int], held: list[int]) -> dict[str, object]:
    ratios = [under / alone for under, alone in zip(held, free, strict=True)]
    late = ratios[-max(len(ratios) // 4, 1) :]
    return {
        "executions_per_second": median(held),
        "to_free": round(median(ratios), 3),
        "to_free_in_the_last_quarter": round(median(late), 3),
        "rounds": held,
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else HELD_SECONDS
    with ExitStack() as servers:
        dsns = {name: servers.enter_context(server()) for name in HELD}
        rounds = uvloop.run(turns(dsns, seconds))
    free = rounds["free"]
    report("held", seconds=seconds, **{name: compared(free, one) for name, one in rounds.items()})


if __name__ == "__main__":
    main()
