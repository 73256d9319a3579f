"""Retention: how long it takes to delete what has ended in a partition that cannot be dropped, and how many
rows that reads.

A tenth of its executions wait for their time, in two blocks at both ends: more than is carried over when it is dropped.
"""

from __future__ import annotations

import time
from datetime import timedelta
from itertools import pairwise

import uvloop
from support import report, server

from hourbell.engine.core import Engine
from hourbell.engine.life.retain import make_partitions, run_housekeeping
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database

SIZES = (150_000, 600_000)

_ROWS = """
with stored as (
  insert into hourbell.executions
    (id, occurrence, run_at, tenant, version, queue, priority, origin, overlap, at_most_once, spec)
  select hourbell.id_base($1) + n, $1, $1, 1 + n % 97, 1, 1, 2, 0, 0, false, '{}' from generate_series(1, $2::int) as n),
ended as (
  insert into hourbell.outcomes (id, fence, recorded_at, fate)
  select hourbell.id_base($1) + n, 0, $1, 1 from generate_series($2::int / 20, $2::int - $2::int / 20 - 1) as n
  returning id)
select count(*) from ended
"""
_READ = """
select sum(seq_tup_read) + (select sum(idx_tup_read) from pg_stat_user_indexes where relname ~ $1)
from pg_stat_user_tables where relname ~ $1
"""


async def thinned(made: Engine, size: int, days_ago: int) -> tuple[int, float, int]:
    """How many were deleted, in how many seconds, and how many rows and index entries were read for it."""
    now = await made.clock.now()
    then = now - timedelta(days=days_ago)
    await made.database.value("select hourbell.make_partitions($1, 1, 1)", then)
    ended = await made.database.value(_ROWS, then, size)
    await made.database.value("vacuum analyze")
    partitions = f"^(executions|outcomes)_{then:%Y%m%d}_"
    before = await made.database.value(_READ, partitions)
    began = time.monotonic()
    while await run_housekeeping(made, None, now):
        pass
    took = time.monotonic() - began
    await made.database.value("select pg_stat_force_next_flush()")
    assert not await made.database.value("select count(*) from hourbell.outcomes")
    return ended, took, int(await made.database.value(_READ, partitions) - before)


async def measure(dsn: str) -> None:
    found = {}
    database = await Database.open(dsn, connections=1)  # whose statistics can be flushed
    try:
        made = Engine(database, DatabaseClock(database))
        await make_partitions(made, await made.clock.now())
        for number, size in enumerate(SIZES):
            ended, took, read = await thinned(made, size, 400 - 10 * number)
            found[size] = {
                "deleted": ended,
                "seconds": round(took, 2),
                "read": read,
                "read_per_row": round(read / size, 1),
            }
            await made.database.value("truncate hourbell.executions, hourbell.outcomes")
    finally:
        await database.close()
    small, large = next(pairwise(found.values()))
    report("retention", rows=found, times_as_long=round(large["seconds"] / small["seconds"], 1))


def main() -> None:
    with server() as dsn:
        uvloop.run(measure(dsn))


if __name__ == "__main__":
    main()
