"""The library as its users call it: enqueue in bulk, one by one, at once, in a user's transaction; from enqueue to start; what
`hourbell worker --processes 2` runs in the time of one process; a drain of tasks that do nothing by one worker process,
beside the same worker with an action that does nothing in place of the library. The two take turns.

Enqueueing is measured from another process than PostgreSQL's, on the embedded server with the settings that ship. For the
user's own transaction the same transaction is measured with a plain insert of the same row (id, task, payload, time; a
primary key and an index by time) in place of the enqueue.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil
import uvloop
from support import Counter, engine, per_second, report, server, spawn, until_empty

from hourbell import App, Context, WorkerOptions
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.model.jobs import TaskAction
from hourbell.sdk.running import AppRunner
from hourbell.worker.runtime import Worker, WorkerSettings

BULK = 200_000
CHUNK = 5_000
SINGLE = 3_000
CONCURRENT = 20_000
AT_ONCE = 100
IN_TRANSACTION = 1_500
STARTS = 500
START_ROUNDS = 5  # after the first
COMPUTED = 6_000
IDLE_SECONDS = 30
DRAINED = 100_000
DRAINS = 5
PAD = "x" * 180

_PLAIN_TABLE = """
create table public.plain_jobs (id bigint generated always as identity primary key, task text, payload text, run_at timestamptz);
create index on public.plain_jobs (run_at);
create table public.orders (id bigint generated always as identity primary key, customer bigint, note text);
"""
_PLAIN = "insert into public.plain_jobs (task, payload, run_at) values ('shop.remind', $1, clock_timestamp())"
_ORDER = "insert into public.orders (customer, note) values ($1, $2)"

_SESSIONS = (
    "select count(*) from hourbell.sessions where id <> 0 and expires_at > clock_timestamp()"
)
_ENDED = "select count(*) from hourbell.outcomes"

app = App("shop")
started: dict[int, float] = {}
all_started = asyncio.Event()


@app.task
async def remind(cart_id: int, pad: str) -> None: ...


@app.task
async def note_start(ctx: Context, n: int) -> None:
    started[n] = time.monotonic()
    if len(started) == STARTS:
        all_started.set()


@app.task
async def compute(n: int) -> None:
    """About a millisecond of Python, which one process cannot do twice at the same time."""
    sum(range(60_000))


@asynccontextmanager
async def working(dsn: str, processes: int) -> AsyncIterator[tuple[int, asyncpg.Connection]]:
    """`hourbell worker` with this many processes, which are up: its process id, and a connection."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hourbell", "worker", "bench_library:app"),
        *("--processes", str(processes)),
        cwd=Path(__file__).parent,
        env={**os.environ, "HOURBELL_DATABASE_URL": dsn},
        stdout=subprocess.DEVNULL,
    )
    connection = await asyncpg.connect(dsn)
    try:
        while await connection.fetchval(_SESSIONS) < processes:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield worker.pid, connection
    finally:
        await connection.close()
        worker.terminate()
        await worker.wait()


async def computed_by(dsn: str, processes: int) -> float:
    """Seconds in which this many worker processes run COMPUTED tasks."""
    async with working(dsn, processes) as (_, connection):
        before = await connection.fetchval(_ENDED)
        await app.enqueue_many(compute.bind(n) for n in range(COMPUTED))
        began = time.monotonic()
        while await connection.fetchval(_ENDED) - before < COMPUTED:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return time.monotonic() - began


async def idle_worker_mb(dsn: str) -> float:
    """The resident memory of a worker with a scheduler that has been idle for half a minute."""
    async with working(dsn, 1) as (pid, _):
        await asyncio.sleep(IDLE_SECONDS)
        return round(psutil.Process(pid).memory_info().rss / 1e6, 1)


async def drain(dsn: str, runner: str) -> None:
    """A worker process with its scheduler, by the library or without it, until the parent says stop."""
    async with engine(dsn) as made:
        dispatch = PostgresDispatch(made)
        action = AppRunner(app) if runner == "library" else Counter(DRAINED)
        settings = WorkerSettings(name=runner, slots=6_000, tasks=tuple(app.tasks))
        worker = Worker(dispatch, {TaskAction: action}, settings)
        if isinstance(action, AppRunner):
            action.attach(worker, dispatch)
        scheduler = Scheduler(made)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.process_time()
        scheduler.start()
        running = asyncio.create_task(worker.run())
        await asyncio.to_thread(sys.stdin.readline)
        used = time.process_time() - began
        worker.stop()
        await running
        await scheduler.stop()
    print(used)  # after all lines of logs


async def drained_by(made: Engine, dsn: str, runner: str) -> tuple[float, float]:
    """Executions per second of a backlog, and microseconds of the worker process's own time for each."""
    await app.enqueue_many(remind.bind(n, PAD) for n in range(DRAINED))
    child = spawn("drain", dsn, runner)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    began = time.monotonic()
    child.stdin.write("go\n")
    child.stdin.flush()
    await until_empty(made)
    took = time.monotonic() - began
    own, _ = child.communicate("stop\n")
    return DRAINED / took, float(own.split()[-1]) / DRAINED * 1e6


async def drains(dsn: str) -> dict[str, object]:
    async with engine(dsn) as made:
        await drained_by(made, dsn, "engine")  # PostgreSQL creates the files of its log
        turns = [
            [await drained_by(made, dsn, by) for by in ("engine", "library")] for _ in range(DRAINS)
        ]
    sides = list(zip(*turns, strict=True))
    rates = [statistics.median(rate for rate, _ in side) for side in sides]
    own = [statistics.median(us for _, us in side) for side in sides]
    return {
        "drain_per_second": round(rates[1]),
        "drain_without_library_per_second": round(rates[0]),
        "drain_ratio": round(statistics.median(b[0] / a[0] for a, b in turns), 3),
        "drain_worker_us": round(own[1], 1),
        "drain_worker_without_library_us": round(own[0], 1),
    }


async def bulk() -> float:
    began = time.monotonic()

    async def some(first: int) -> None:
        for at in range(first, BULK, 2 * CHUNK):
            await app.enqueue_many(remind.bind(i, PAD) for i in range(at, at + CHUNK))

    await asyncio.gather(some(0), some(CHUNK))
    return time.monotonic() - began


async def single() -> float:
    began = time.monotonic()
    for i in range(SINGLE):
        await remind.enqueue(i, PAD)
    return time.monotonic() - began


async def concurrent() -> float:
    numbers = iter(range(CONCURRENT))

    async def client() -> None:
        for i in numbers:
            await remind.enqueue(i, PAD)

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return time.monotonic() - began


async def in_transaction(dsn: str) -> tuple[float, float]:
    """Seconds of a transaction with an order and a plain insert, and with an order and an enqueue; medians."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("drop table if exists public.plain_jobs, public.orders")
    await connection.execute(_PLAIN_TABLE)
    plain, ours = [], []
    for i in range(IN_TRANSACTION):  # in turn, so that both meet the same machine
        began = time.perf_counter()
        async with connection.transaction():
            await connection.execute(_ORDER, i, PAD)
            await connection.execute(_PLAIN, f'{{"cart_id": {i}, "pad": "{PAD}"}}')
        between = time.perf_counter()
        async with connection.transaction():
            await connection.execute(_ORDER, i, PAD)
            await remind.configure(connection=connection).enqueue(i, PAD)
        plain.append(between - began)
        ours.append(time.perf_counter() - between)
    await connection.close()
    return statistics.median(plain), statistics.median(ours)


async def starts() -> list[tuple[float, float]]:
    """Milliseconds from the call of enqueue to the start of the handler, 100 a second on an idle system.

    The median and the 99th percentile of each round. In the first one connections are opened and statements planned.
    """
    rounds = []
    async with app.worker(WorkerOptions()):
        await (await note_start.enqueue(-1)).wait(30)
        for _ in range(1 + START_ROUNDS):
            called: dict[int, float] = {}
            started.clear()
            all_started.clear()
            begin = time.monotonic()
            for n in range(STARTS):
                await asyncio.sleep(max(begin + n / 100 - time.monotonic(), 0))
                called[n] = time.monotonic()
                await note_start.enqueue(n)
            await all_started.wait()
            late = sorted((started[n] - called[n]) * 1000 for n in called)
            rounds.append((late[STARTS // 2], late[int(STARTS * 0.99)]))
    return rounds


async def measure(dsn: str) -> None:
    app.url = dsn
    idle_mb = await idle_worker_mb(dsn)
    async with app:
        (
            first,
            *late,
        ) = await starts()  # before all else: what was drained leaves work for autovacuum
        by_one, by_two = [await computed_by(dsn, processes) for processes in (1, 2)]
        one = await single()
        many = await concurrent()
        plain, ours = await in_transaction(dsn)
        whole = await bulk()
        drained = await drains(dsn)
    report(
        "library",
        bulk_per_second=per_second(BULK, whole),
        single_per_second=per_second(SINGLE, one),
        concurrent_per_second=per_second(CONCURRENT, many),
        start_ms_p50=round(statistics.median(p50 for p50, _ in late), 1),
        start_ms_p99=round(statistics.median(p99 for _, p99 in late), 1),
        start_ms_rounds=[[round(p50, 1), round(p99, 1)] for p50, p99 in (first, *late)],
        transaction_us=round(ours * 1e6),
        transaction_with_plain_insert_us=round(plain * 1e6),
        transaction_ratio=round(ours / plain, 2),
        import_ms=import_ms(),
        idle_worker_mb=idle_mb,
        **drained,
        computed_per_second_1_process=per_second(COMPUTED, by_one),
        computed_per_second_2_processes=per_second(COMPUTED, by_two),
    )


def import_ms() -> float:
    """`import hourbell` with App, without what Python itself takes to start; the best of five."""
    program = (
        "import time; began = time.perf_counter(); from hourbell import App, Context, Retry;"
        "print((time.perf_counter() - began) * 1000)"
    )
    command = [sys.executable, "-c", program]
    return round(
        min(
            float(subprocess.run(command, capture_output=True, text=True).stdout) for _ in range(5)
        ),
        1,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["drain"]:
        uvloop.run(drain(*sys.argv[2:]))
        sys.exit()
    with server() as dsn:
        uvloop.run(measure(dsn))
