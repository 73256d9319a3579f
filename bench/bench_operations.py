"""Bulk operations on many jobs, beside a worker that claims; and dead letters by error.

All recurring jobs of a cell are paused and resumed by two operations, carried out as the leader does, while a worker claims
and settles in short turns. The transaction of a batch is measured from its first lock to its commit: for so long another
change of one of its jobs would wait. After the resume the leader joins the timetables again. Then the newest of a million
dead letters are counted by error.

    python bench/bench_operations.py                   both parts: 200,000 jobs, a million dead letters
    python bench/bench_operations.py jobs 50000        one part, with another number; or letters
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from statistics import median, quantiles
from typing import Any

import psutil
import uvloop
from support import PAYLOAD, engine, no_ops, report, server

from hourbell.dispatch import SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.leader import bulk_operations
from hourbell.engine.leader.bulk_operations import run_operations
from hourbell.engine.life.join import complete_joins
from hourbell.engine.operations.bulk_operations import create_operation, get_operation
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.dead_letter_groups import list_groups
from hourbell.model.jobs import JobType, NewJob, TaskAction, encode_job
from hourbell.model.schedules import Cron
from hourbell.testing.filling import create_one_time_jobs
from hourbell.timing.zones import tz_version

JOBS, LETTERS = 200_000, 1_000_000
TIMETABLES = 1_000
CLAIMED = 20  # executions of a turn of the worker
QUIET_TURNS = 200
CHUNK = 100_000

_TIMETABLES = """
insert into hourbell.timetables (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
select n % 60 || ' ' || n / 60 || ' 1 1 *', 'UTC', 'run_after', 'once', $1::timestamptz, $1 + interval '30 days', 'infinity',
  $3
from generate_series(0, $2::int - 1) as n
"""
_INSERT_JOBS = """
with jobs as (
  insert into hourbell.jobs (id, tenant, queue, priority, timetable, created_at, updated_at, name, spec)
  select hourbell.id_base($1) + n, 1 + n % 97, 1, 2, 1 + n % $3, $1, $1, 'report',
    replace($4, '59 23 1 1 *', n % $3 % 60 || ' ' || n % $3 / 60 || ' 1 1 *')
  from generate_series(1, $2::int) as n
  returning *)
insert into hourbell.memberships
  (timetable, priority, job, version, active_since, joined_through, tenant, queue, misfire, catch_up_seconds,
   catch_up_limit, overlap, at_most_once)
select timetable, priority, id, 1, $1, $1, tenant, queue, 1, 86400, 100, 0, false from jobs
"""
_INSERT_LETTERS = """
insert into hourbell.dead_letters (id, tenant, died_at, reason, error, execution)
select n, 1 + n % 97, $1::timestamptz - n * interval '100 ms', 'retries_exhausted',
  'The target answered 503 after ' || n % 977 || ' ms: upstream ' || repeat(chr((97 + n % 20)::int), 12) || ' is not available',
  jsonb_build_object('id', n, 'occurrence', $1, 'run_at', $1, 'tenant', 1 + n % 97, 'attempt', 4, 'target', 1, 'queue', 1,
    'history', (select jsonb_agg(jsonb_build_object('attempt', k, 'reason', 'http_503', 'error', 'The target answered 503.',
      'started_at', $1, 'finished_at', $1)) from generate_series(1, 4) as k))
from generate_series($2::bigint, $3::bigint) as n
"""


async def fill(made: Engine, jobs: int) -> None:
    now = await made.clock.now()
    await made.queue("default", now)
    await made.tenants([f"tenant-{number}" for number in range(97)], now)
    example = NewJob(
        name="report",
        action=TaskAction(name="no-op", payload=PAYLOAD),
        type=JobType.RECURRING,
        schedule=Cron("59 23 1 1 *", "UTC"),
    )
    await made.database.fetch(_TIMETABLES, now, TIMETABLES, tz_version())
    await made.database.fetch(_INSERT_JOBS, now, jobs, TIMETABLES, encode_job(example).decode())
    async with made.database.connection() as connection:
        await connection.execute("vacuum analyze")


class Turns:
    """A worker that claims and settles in short turns, and the milliseconds of each claim."""

    def __init__(self, made: Engine) -> None:
        self._made = made
        self._dispatch = PostgresDispatch(made)
        self._session: Any = None
        self._claims = 0

    async def run(self, is_over: Callable[[], bool]) -> list[float]:
        if self._session is None:
            self._session = await self._dispatch.open("bench", ["default"], 1_000)
        took: list[float] = []
        while not is_over():
            await create_one_time_jobs(self._made, no_ops(CLAIMED), Write())
            await self._dispatch.admit()
            self._claims += 1
            began = time.monotonic()
            claimed = await self._dispatch.claim(self._session, self._claims, CLAIMED)
            took.append((time.monotonic() - began) * 1000)
            done = [Settlement(one.execution_id, one.fence, SUCCEEDED) for one in claimed]
            await self._dispatch.settle(self._session, done)
            await self._dispatch.heartbeat(self._session, [], self._claims)
            await asyncio.sleep(0.01)
        return took


def summary(took: list[float]) -> dict[str, float]:
    return {
        "claims": len(took),
        "median_ms": round(median(took), 1),
        "p99_ms": round(quantiles(took, n=100)[-1], 1) if len(took) > 1 else took[0],
        "longest_ms": round(max(took), 1),
    }


def processor_seconds() -> float:
    """Of this process and of its PostgreSQL, so far; without backends that have ended."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def operate(made: Engine, act: str, turns: Turns) -> dict[str, object]:
    held: list[float] = []
    batch = bulk_operations._batch

    @asynccontextmanager
    async def timed(*args: Any) -> AsyncIterator[Any]:
        began = time.monotonic()
        async with batch(*args) as connection:
            yield connection
        held.append((time.monotonic() - began) * 1000)

    bulk_operations._batch = timed  # type: ignore[assignment]
    over = False

    async def carry_out() -> float:
        nonlocal over
        began = time.monotonic()
        while await run_operations(made, None, await made.clock.now()):
            pass
        over = True
        return time.monotonic() - began

    document = {"act": act, "filter": {"name_prefix": "report"}, "reason": "measured"}
    operation = await create_operation(made, document, Write())
    cpu = processor_seconds()
    claims, seconds = await asyncio.gather(turns.run(lambda: over), carry_out())
    bulk_operations._batch = batch
    seen = await get_operation(made, operation.operation_id)
    return {
        "state": seen.state,
        "done": seen.done,
        "left": sum(seen.left_over.values()),
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds() - cpu, 1),
        "batches": len(held),
        "batch_median_ms": round(median(held), 1),
        "batch_longest_ms": round(max(held), 1),
        "meanwhile": summary(claims),
    }


async def jobs_part(dsn: str, jobs: int) -> dict[str, object]:
    async with engine(dsn) as made:
        await fill(made, jobs)
        turns = Turns(made)
        left = iter(range(QUIET_TURNS))
        quiet = await turns.run(lambda: next(left, None) is None)
        paused = await operate(made, "pause", turns)
        resumed = await operate(made, "resume", turns)
        began = time.monotonic()
        while await complete_joins(made, await made.clock.now()):
            pass
        joined = time.monotonic() - began
        return {
            "before": summary(quiet),
            "pause": paused,
            "resume": resumed,
            "joined_after_seconds": round(joined, 1),
        }


async def letters_part(dsn: str, letters: int) -> dict[str, object]:
    async with engine(dsn) as made:
        now = await made.clock.now()
        await made.tenants([f"tenant-{number}" for number in range(97)], now)
        await made.target("api.example", now)
        for first in range(1, letters + 1, CHUNK):
            last = min(first + CHUNK, letters + 1) - 1
            await made.database.fetch(_INSERT_LETTERS, now, first, last)
        async with made.database.connection() as connection:
            await connection.execute("vacuum analyze hourbell.dead_letters")

        async def timed(call: Callable[[], Awaitable[object]]) -> dict[str, float]:
            await call()
            began, cpu = time.monotonic(), time.process_time()
            await call()
            return {
                "ms": round((time.monotonic() - began) * 1000),
                "processor_ms_of_the_api": round((time.process_time() - cpu) * 1000),
            }

        chosen = {
            "all": DeadLetterFilter(),
            "tenant": DeadLetterFilter(tenant_id="tenant-5"),
            "absent_fingerprint": DeadLetterFilter(fingerprint="0" * 16),
        }
        return {
            name: await timed(lambda wanted=wanted: list_groups(made, wanted))
            for name, wanted in chosen.items()
        }


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else "both"
    if part in ("jobs", "both"):
        jobs = int(sys.argv[2]) if len(sys.argv) > 2 else JOBS
        with server() as dsn:
            report("operations", jobs=jobs, **uvloop.run(jobs_part(dsn, jobs)))
    if part in ("letters", "both"):
        letters = int(sys.argv[2]) if len(sys.argv) > 2 else LETTERS
        with server() as dsn:
            grouped = uvloop.run(letters_part(dsn, letters))
        report("dead letters by error", letters=letters, **grouped)


if __name__ == "__main__":
    main()
