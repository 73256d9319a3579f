"""A herd: a million executions of one tenant fall due in one second. How late is a job of another tenant?

Scheduler and worker are processes of their own and have two cores together with PostgreSQL. The small tenant has three jobs
in the second of the herd and three in the next one, created before the herd, in the middle of it and after it. A round ends
when these six have started. Each round has a server of its own.

    python bench/bench_herd.py                          every way to make a herd, three rounds
    python bench/bench_herd.py rounds one_timetable 5   one way, five rounds
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from statistics import median

import uvloop
from support import PAYLOAD, Noting, engine, report, server, spawn

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.create import create_job
from hourbell.engine.operations.idempotency import Write
from hourbell.model.executions import Claimed
from hourbell.model.jobs import JobType, NewJob, TaskAction, encode_job
from hourbell.model.schedules import Cron, Once
from hourbell.testing.filling import create_one_time_jobs
from hourbell.timing.zones import tz_version
from hourbell.worker.runtime import Worker, WorkerSettings

HERD = 1_000_000
ONE_BY_ONE = 100_000  # a million of them would take ten minutes to create
BATCH = 1_000
ROUNDS = 3
SECOND = timedelta(seconds=1)
PLACES = ("before", "between", "after")

_TIMETABLES = """
insert into hourbell.timetables
  (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
select '@every 86400+' || n, 'UTC', 'run_after', 'once', $1, $1, 'infinity', $3 from generate_series(1, $2::int) as n
"""
_JOBS = """
with jobs as (
  insert into hourbell.jobs (id, tenant, queue, priority, timetable, created_at, updated_at, name, spec)
  select hourbell.id_base($1) + n, $2, $3, 2, 1 + n % $5, $1, $1, 'herd', $6 from generate_series(1, $4::int) as n
  returning *)
insert into hourbell.memberships
  (timetable, priority, job, version, active_since, joined_through, tenant, queue, misfire, catch_up_seconds,
   catch_up_limit, overlap, at_most_once)
select timetable, priority, id, 1, $1, $1, tenant, queue, 1, 86400, 100, 0, false from jobs
"""


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
    """Runs what it gets, and answers with how late each job of the small tenant was, in ms, by its name."""
    late: dict[str, float] = {}
    done = asyncio.Event()

    def note(payload: object, claimed: Claimed) -> None:
        if claimed.tenant_id == "small":
            late[str(payload)] = round((time.time() - claimed.scheduled_epoch) * 1000, 1)
            if len(late) == 2 * len(PLACES):
                done.set()

    async with engine(dsn) as made:
        actions = {TaskAction: Noting(note)}
        worker = Worker(PostgresDispatch(made), actions, WorkerSettings(name="bench", slots=500))
        listener = await made.database.listen("hourbell", worker.wake)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await done.wait()
        print(json.dumps(late), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await listener.close()
        worker.stop()
        await running


def one_time(tenant: str, at: datetime, payload: object) -> NewJob:
    return NewJob(
        name="herd",
        tenant_id=tenant,
        type=JobType.ONE_TIME,
        schedule=Once(at),
        action=TaskAction(name="no-op", payload=payload),
    )


async def small(made: Engine, at: datetime, place: str) -> None:
    """A job of the small tenant in the second of the herd, and one in the next."""
    jobs = [
        one_time("small", at, f"same second, {place}"),
        one_time("small", at + SECOND, f"next second, {place}"),
    ]
    await create_one_time_jobs(made, jobs, Write())


async def batches(made: Engine) -> None:
    """Spread over the second, in batches; as long before as they take to create."""

    async def create(first: int, at: datetime) -> None:
        jobs = [one_time("big", at + SECOND * ((first + n) / HERD), PAYLOAD) for n in range(BATCH)]
        await create_one_time_jobs(made, jobs, Write())

    began = time.monotonic()
    for first in range(0, 20 * BATCH, BATCH):
        await create(first, datetime.now(UTC) + timedelta(days=300))
    await create_herd(made, HERD // BATCH, (time.monotonic() - began) / 20, create)


async def one_by_one(made: Engine) -> None:
    """As an API creates them: each by itself, sixteen at a time."""

    async def one(number: int, at: datetime) -> None:
        document = {
            "name": "herd",
            "tenant_id": "big",
            "type": "ONE_TIME",
            "schedule": {"at": (at + SECOND * (number / ONE_BY_ONE)).isoformat()},
            "action": {"type": "TASK", "name": "no-op", "payload": PAYLOAD},
        }
        await create_job(made, document, Write())

    async def create(first: int, at: datetime) -> None:
        await asyncio.gather(*(one(first + number, at) for number in range(16)))

    began = time.monotonic()
    for first in range(0, 1600, 16):
        await create(first, datetime.now(UTC) + timedelta(days=300))
    await create_herd(made, ONE_BY_ONE // 16, (time.monotonic() - began) / 100, create)


async def create_herd(
    made: Engine,
    steps: int,
    seconds_each: float,
    create: Callable[[int, datetime], Awaitable[None]],
) -> None:
    at = whole_second(datetime.now(UTC) + timedelta(seconds=20 + 2 * steps * seconds_each))
    size = HERD // steps if steps * BATCH == HERD else ONE_BY_ONE // steps
    await small(made, at, "before")
    for step in range(steps):
        if step == steps // 2:
            await small(made, at, "between")
        await create(step * size, at)
    await small(made, at, "after")
    assert datetime.now(UTC) < at, "the herd was not created in time"


async def one_timetable(made: Engine) -> None:
    await planned(made, 1)


async def hundred_timetables(made: Engine) -> None:
    await planned(made, 100)


async def planned(made: Engine, timetables: int) -> None:
    """Recurring jobs that fire at the same moment; the scheduler plans them, beginning a minute before."""
    now = datetime.now(UTC)
    spec = NewJob(
        name="herd",
        tenant_id="big",
        type=JobType.RECURRING,
        schedule=Cron("0 0 * * *"),
        action=TaskAction(name="no-op", payload=PAYLOAD),
    )
    numbers = await made.tenant("big", now), await made.queue("default", now)
    async with made.database.connection() as connection:
        await connection.execute(_TIMETABLES, now, timetables, tz_version())
        await connection.execute(
            _JOBS, now, *numbers, HERD, timetables, encode_job(spec).decode(), timeout=600
        )
        await connection.execute("vacuum analyze hourbell.memberships", timeout=600)
        at = whole_second(datetime.now(UTC) + timedelta(seconds=90))
        await connection.execute(
            "update hourbell.timetables set next_fire_at = $1, plan_from = $1", at
        )
    await small(made, at, "before")
    planned = "select count(*) from (select from hourbell.due limit $1) as due"
    while await made.database.value(planned, HERD // 2) < HERD // 2:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await small(made, at, "between")
    while await made.database.value("select exists (select from hourbell.fires)"):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await small(made, at, "after")
    assert datetime.now(UTC) < at, "the herd was not planned in time"


def whole_second(at: datetime) -> datetime:
    return at.replace(microsecond=0) + SECOND


WAYS = {way.__name__: way for way in (batches, one_by_one, one_timetable, hundred_timetables)}


async def one_round(dsn: str, way: Callable[[Engine], Awaitable[None]]) -> dict[str, float]:
    children = [spawn(role, dsn) for role in ("schedule", "work")]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        async with engine(dsn) as made:
            await way(made)
        worker_says = children[1].stdout
        assert worker_says is not None
        late: dict[str, float] = json.loads(await asyncio.to_thread(worker_says.readline))
        for child in children:
            child.communicate("stop\n")
        return late
    finally:
        for child in children:
            child.kill()


def rounds_of(way: str, rounds: int) -> dict[str, object]:
    """The lateness of each of the six jobs in ms: the median of the rounds, and the range."""
    late = []
    for _ in range(rounds):
        with server() as dsn:
            late.append(uvloop.run(one_round(dsn, WAYS[way])))
    return {
        name: {
            "median": median(each[name] for each in late),
            "range": [min(each[name] for each in late), max(each[name] for each in late)],
        }
        for name in sorted(late[0])
    }


def main() -> None:
    if len(sys.argv) == 3:
        role = {"schedule": schedule, "work": work}[sys.argv[1]]
        uvloop.run(role(sys.argv[2]))
        return
    if len(sys.argv) == 4:
        report("herd", late_ms={sys.argv[2]: rounds_of(sys.argv[2], int(sys.argv[3]))})
        return
    report("herd", late_ms={way: rounds_of(way, ROUNDS) for way in WAYS})


if __name__ == "__main__":
    main()
