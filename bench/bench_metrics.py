"""What metrics cost: a scrape of the leader with many jobs, and counting on the hot path.

The scrape is measured with a backlog of every kind at its bounds: executions that wait for their time, that are ready,
parked and leased, and a ledger. Counting is measured as the time for batches of a thousand executions, and by drains in
turns, with and without it; a turn without it replaces what is called per execution and per batch by nothing. The
processor time of the worker is told beside its speed: it depends less on what else the machine does.

    python bench/bench_metrics.py [JOBS]    how many executions wait for their time: a million unless told
"""

from __future__ import annotations

import asyncio
import collections
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from unittest import mock

import uvloop
from support import PAYLOAD, Counter, engine, no_ops, per_second, report, server, until_empty

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.counts import EngineCounts
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.cell_metrics import CellMetrics, read_cell
from hourbell.model.executions import Claimed
from hourbell.model.jobs import SentSpec, TaskAction
from hourbell.observe.metrics import LargestValues, Metrics
from hourbell.store.clock import DatabaseClock
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.counts import RunCounts
from hourbell.worker.runtime import Worker, WorkerSettings

JOBS = 1_000_000
BACKLOG = {"ready": 200_000, "parked": 20_000, "leased": 20_000, "ended": 200_000}
SCRAPES = 20
BATCH = 1_000
TURNS = 5
COUNT = 100_000

# Rows as the engine would have made them, straight into the tables: creating and running so many would take an hour.
# $1 to $2 are the ids, of which the lowest bits count from 1.
EXECUTIONS = """
insert into hourbell.executions (id, occurrence, run_at, tenant, version, queue, priority, origin, spec)
select id, at, at, 1 + id % 97, 1, 1 + id % 4, id % 4, 0, '{}'
from generate_series($1::bigint, $2::bigint) as id
cross join lateral (select hourbell.clock() + id % 4000000 * interval '10 ms' as at) as t
"""
PLACES = {
    "waiting": """
      insert into hourbell.due (run_at, id, tenant, queue, priority, flags)
      select run_at, id, tenant, queue, priority, id % 4 * 4 from hourbell.executions where id between $1 and $2""",
    "ready": """
      insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
      select 1000 + min(n), 1000 + max(n), 0, 0, queue, priority, false, array_agg(id) from (
        select *, row_number() over (partition by queue, priority order by id) as n from hourbell.executions
        where id between $1 and $2) as e
      group by queue, priority, n / 100""",
    "parked": """
      insert into hourbell.parked (kind, key, priority, rank, id)
      select 2, tenant, priority, 1, id from hourbell.executions where id between $1 and $2""",
    "leased": """
      insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids)
      select 1 + n % 50, n, hourbell.clock(), 1, false, false, false, array_agg(id) from (
        select id, (id - $1) / 100 as n from hourbell.executions where id between $1 and $2) as e
      group by n""",
    "ended": """
      insert into hourbell.outcomes (id, fence, started_at, finished_at, recorded_at, session, fate)
      select id, 1, run_at, run_at + interval '50 ms', run_at, 1, 0 from hourbell.executions
      where id between $1 and $2""",
}
OTHERS = """
insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
select n, gen_random_uuid(), 'worker-' || n, '{1,2,3,4}', 500, hourbell.clock(), hourbell.clock(),
  hourbell.clock() + interval '1 day'
from generate_series(1, 50) as n;
insert into hourbell.virtual_time (queue, priority, v, highest, pass)
select queue, priority, min(tag), max(last_tag), 1 from hourbell.ready group by 1, 2;
"""
CHUNK = 100_000


async def fill(made: Engine, jobs: int) -> None:
    now = await made.clock.now()
    await made.queues([f"queue-{number}" for number in range(4)], now)
    await made.tenants([f"tenant-{number}" for number in range(97)], now)
    first = await made.database.value("select hourbell.id_base($1) + 1", now)
    for place, count in ((("waiting", jobs)), *BACKLOG.items()):
        for begin in range(first, first + count, CHUNK):
            last = min(begin + CHUNK, first + count) - 1
            await made.database.fetch(EXECUTIONS, begin, last)
            await made.database.fetch(PLACES[place], begin, last)
        first += count
    async with made.database.connection() as connection:
        await connection.execute(OTHERS)
        await connection.execute("vacuum analyze")


async def scrape(dsn: str, jobs: int) -> dict[str, object]:
    async with engine(dsn) as made:
        await fill(made, jobs)
        gauges = CellMetrics(made, DatabaseClock(made.database))
        reads, renders, text = [], [], b""
        for _ in range(SCRAPES):
            began = time.monotonic()
            await read_cell(made)
            reads.append(time.monotonic() - began)
        await gauges.refresh(True)
        for _ in range(SCRAPES):
            began = time.monotonic()
            text = made.metrics.render()
            renders.append(time.monotonic() - began)
    return {
        "jobs": jobs,
        "first_read_ms": round(reads[0] * 1000, 1),
        "read_ms": round(median(reads) * 1000, 1),
        "longest_read_ms": round(max(reads) * 1000, 1),
        "render_ms": round(median(renders) * 1000, 2),
        "bytes": len(text),
    }


def counting() -> float:
    """Microseconds of processor time to count BATCH executions, from their claim to their settle."""
    metrics = Metrics()
    counts, runs = EngineCounts(metrics), RunCounts(metrics, time.time, time.monotonic)
    spec = SentSpec(name="cart-reminder", action=TaskAction(name="no-op", payload=PAYLOAD))
    now = time.time()
    claimed = [Claimed(n, n, f"tenant-{n % 97}", 1, 1, now, None, "") for n in range(BATCH)]
    tenants = [one.tenant_id for one in claimed]
    took = []
    for _ in range(200):
        began = time.process_time_ns()
        counts.claimed.add(BATCH, 0.01)
        counts.deliveries.add(collections.Counter(tenants))
        for one in claimed:
            runs.started(one, spec, 1.0)
            runs.ended(spec, 0.003)
        runs.flush()
        counts.settled.add(BATCH, 0.01)
        counts.count_settled(BATCH, (), ())
        took.append(time.process_time_ns() - began)
    return median(took) / 1000


@contextmanager
def nothing_is_counted() -> Iterator[None]:
    def nothing(*_: object) -> None: ...

    with (
        mock.patch.object(RunCounts, "started", nothing),
        mock.patch.object(RunCounts, "ended", nothing),
        mock.patch.object(RunCounts, "flush", nothing),
        mock.patch.object(EngineCounts, "count_settled", nothing),
        mock.patch.object(LargestValues, "add", nothing),
    ):
        yield


async def drain(dsn: str) -> tuple[int, float]:
    """Executions per second from the first claim to the last settle; microseconds of the worker's processor time for each."""
    async with engine(dsn) as made:
        for first in range(0, COUNT, BATCH):
            await create_one_time_jobs(made, no_ops(BATCH, first), Write())
        counter = Counter(COUNT)
        settings = WorkerSettings(name="bench", slots=6_000, tasks=("no-op",), lease_seconds=15)
        clock = DatabaseClock(made.database)
        await clock.now()
        counts = RunCounts(made.metrics, clock.estimated_timestamp, clock.monotonic)
        actions = {TaskAction: counter}
        dispatch = PostgresDispatch(made)
        await dispatch.open("gate", ["default"], 1, ["no-op"])
        while await made.database.value("select exists (select from hourbell.due_slabs)"):
            await dispatch.admit()
        worker = Worker(dispatch, actions, settings, counts)
        running = asyncio.create_task(worker.run())
        while worker.session is None:  # noqa: ASYNC110 - the first claim follows at once
            await asyncio.sleep(0)
        began, busy = time.monotonic(), time.process_time()
        await counter.done.wait()
        busy = time.process_time() - busy
        await until_empty(made)
        took = time.monotonic() - began
        worker.stop()
        await running
        return per_second(COUNT, took), round(busy / COUNT * 1e6, 2)


def turns(dsn: str) -> dict[str, object]:
    uvloop.run(drain(dsn))  # PostgreSQL makes the files of its log
    counted, uncounted = [], []
    for _ in range(TURNS):
        counted.append(uvloop.run(drain(dsn)))
        with nothing_is_counted():
            uncounted.append(uvloop.run(drain(dsn)))
    return {
        "counted_per_second": median(speed for speed, _ in counted),
        "uncounted_per_second": median(speed for speed, _ in uncounted),
        "counted_us": median(us for _, us in counted),
        "uncounted_us": median(us for _, us in uncounted),
        "turns": [counted, uncounted],
    }


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else JOBS
    with server() as dsn:
        scraped = uvloop.run(scrape(dsn, jobs))
    with server() as dsn:
        drained = turns(dsn)
    report("metrics", scrape=scraped, counting_us_per_1000=round(counting(), 1), drain=drained)


if __name__ == "__main__":
    main()
