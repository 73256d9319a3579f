"""Planning: executions per second from one timetable, and how many small fires a second."""

from __future__ import annotations

import time
from datetime import timedelta
from statistics import median

import uvloop
from support import engine, per_second, report, server

from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from hourbell.timing.zones import tz_version

MEMBERS = 300_000
SMALL = 5_000
ROUNDS = 3

_TIMETABLES = """
insert into hourbell.timetables
  (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
select '@every 86400+' || ($3 + n), 'UTC', 'run_after', 'once', $1, $1, $1, $4 from generate_series(1, $2) as n
returning id
"""
_MEMBERS = """
insert into hourbell.memberships
  (timetable, priority, job, version, active_since, joined_through, tenant, queue, misfire, catch_up_seconds,
   catch_up_limit, overlap, at_most_once)
select ($1::bigint[])[1 + n % cardinality($1)], 2, n + $4, 1, $3, $3, 1 + n % 97, 1, 1, 86400, 100, 0, false
from generate_series(1, $2) as n
"""


async def planned_per_second(made: Engine, timetables: int, members: int, salt: int) -> int:
    """Plan one fire of so many timetables that share so many members."""
    now = await made.clock.now()
    fire_at = now + timedelta(seconds=30)
    rows = await made.database.fetch(_TIMETABLES, fire_at, timetables, salt, tz_version())
    numbers = [row["id"] for row in rows]
    before = now - timedelta(seconds=1)
    await made.database.value(_MEMBERS, numbers, members, before, salt * 10_000_000)
    await made.database.value("vacuum analyze hourbell.memberships")
    began = time.monotonic()
    while await plan(made, None, await made.clock.now()):
        pass
    took = time.monotonic() - began
    made_rows = await made.database.value("select count(*) from hourbell.due")
    assert made_rows == members, f"{made_rows} of {members} were planned"
    for table in ("due", "executions", "open_runs", "memberships", "timetables"):
        await made.database.value(f"truncate hourbell.{table} cascade")
    return per_second(members, took)


async def measure(dsn: str) -> None:
    async with engine(dsn) as made:
        one = [await planned_per_second(made, 1, MEMBERS, salt) for salt in range(ROUNDS)]
        many = [await planned_per_second(made, SMALL, SMALL, 100 + salt) for salt in range(ROUNDS)]
    report(
        "plan",
        executions_per_second=round(median(one)),
        small_fires_per_second=round(median(many)),
        rounds={"one_timetable": one, "small_fires": many},
    )


def main() -> None:
    with server() as dsn:
        uvloop.run(measure(dsn))


if __name__ == "__main__":
    main()
