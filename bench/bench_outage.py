"""After an outage: how soon the present starts, and how long the catch-up takes.

`python bench/bench_outage.py [RULES] [DAYS]`: so many rules of every minute, each with a timetable of its own, were not planned
for so many days.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

import uvloop
from support import Noting, engine, report, server

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.create import create_job
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import TaskAction
from hourbell.worker.runtime import Worker, WorkerSettings

_ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Asia/Tokyo", "Africa/Cairo")
_ZONES += (
    "Europe/Paris",
    "Australia/Sydney",
    "America/Lima",
    "Asia/Dubai",
    "Europe/Rome",
    "Europe/Oslo",
)

_BACK = """
with t as (
  update hourbell.timetables set planned_through = planned_through - $1::interval,
    next_fire_at = next_fire_at - $1::interval, plan_from = plan_from - $1::interval returning 1),
m as (
  update hourbell.memberships
  set active_since = active_since - $1::interval, joined_through = joined_through - $1::interval returning 1),
d as (delete from hourbell.due returning 1), e as (delete from hourbell.executions returning 1),
o as (delete from hourbell.open_runs returning 1)
select 1
"""
_LEFT = (
    "select exists (select from hourbell.gaps) or exists (select from hourbell.fires where past)"
)
_MISSED = "select coalesce(sum(missed), 0)::int as n, count(missed)::int as stretches from hourbell.outcomes"


async def create_rules(made: Engine, rules: int) -> None:
    few = asyncio.Semaphore(4)

    async def one(number: int) -> None:
        schedule = {"cron": f"{number % 60} * * * * *", "timezone": _ZONES[number // 60]}
        document = {
            "name": f"rule {number}",
            "tenant_id": f"tenant-{number % 7}",
            "type": "RECURRING",
            "schedule": schedule,
            "action": {"type": "TASK", "name": "no-op"},
        }
        async with few:
            await create_job(made, document, Write())

    await asyncio.gather(*(one(number) for number in range(rules)))


async def longest_block(seconds: list[float]) -> None:
    """Note how long the event loop of the scheduler was blocked, in seconds[0]."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        seconds[0] = max(seconds[0], time.monotonic() - began - 0.01)


async def measure(dsn: str, rules: int, days: float) -> None:
    async with engine(dsn) as made:
        await create_rules(made, rules)
        await made.database.value(_BACK, timedelta(days=days))
    ran: dict[int, float] = {}
    began = time.monotonic()
    run = Noting(lambda payload, claimed: ran.setdefault(claimed.job_id, time.monotonic() - began))
    async with engine(dsn) as made, engine(dsn) as other:
        scheduler = Scheduler(made)
        worker = Worker(
            PostgresDispatch(other), {TaskAction: run}, WorkerSettings(name="bench", slots=100)
        )
        working = asyncio.create_task(worker.run())
        scheduler.start()
        blocked = [0.0]
        watching = asyncio.create_task(longest_block(blocked))
        while len(ran) < rules or await other.database.value(_LEFT):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        took = time.monotonic() - began
        watching.cancel()
        missed = await other.database.row(_MISSED)
        terms = await other.database.value("select count(*)::int from hourbell.terms")
        await scheduler.stop()
        worker.stop()
        await working
    report(
        "outage",
        rules=rules,
        days=days,
        last_rule_ran_after_seconds=round(max(ran.values()), 2),
        caught_up_after_seconds=round(took, 1),
        missed=missed["n"],
        stretches=missed["stretches"],
        terms=terms,
        longest_block_seconds=round(blocked[0], 3),
    )


def main() -> None:
    rules = int(sys.argv[1]) if len(sys.argv) > 1 else 700
    days = float(sys.argv[2]) if len(sys.argv) > 2 else 7.0
    with server() as dsn:
        uvloop.run(measure(dsn, rules, days))


if __name__ == "__main__":
    main()
