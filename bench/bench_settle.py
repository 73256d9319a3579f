"""What the index of the ledger by tenant costs: runs of recurring jobs settled with it and without it, in turns.

The settle alone, on one connection, batches of 500. The median and the best of each are shown, and all rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid

import asyncpg
from support import TENANTS, engine, per_second, report, server

COUNT = 60_000
BATCH = 500
ROUNDS = 5

INDEX = "create index ledger_by_tenant on hourbell.ledger (tenant, id) where job <> id"
SESSION = (
    "insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)"
    " values (1, $1, 'bench', '{1}', 1, $2, $2, '9999-01-01')"
)
RUNS = (
    "insert into hourbell.executions (id, job, occurrence, run_at, tenant, version, queue, priority, origin)"
    " select n * 64, 1 + n % 1000, $2::timestamptz + n * interval '1 ms', $2, 1 + n % $3::int, 1, 1, 2, 0 from generate_series(1, $1::int) as n"
)
LEASES = (
    "insert into hourbell.leased (session, fence, claimed_at, claim, alone, held, ids, versions)"
    " select 1, 1 + (n - 1) / 100, $2::timestamptz, 1, false, false, array_agg(n * 64), array_agg(1)"
    " from generate_series(1, $1::int) as n group by (n - 1) / 100"
)
SETTLE = "select hourbell.settle(1, $1, $2, $3, $4::bigint[], $5::int[], $5::int[], '{}', '{}', '{}', '{}', '{}', '{}', '{}')"


async def settle_all(connection: asyncpg.Connection, token: uuid.UUID) -> float:
    now = await connection.fetchval("select hourbell.clock()")
    await connection.execute("truncate hourbell.ledger, hourbell.leased, hourbell.executions")
    await connection.execute(RUNS, COUNT, now, TENANTS)
    await connection.execute(LEASES, COUNT, now)
    await connection.execute("checkpoint")
    began = time.monotonic()
    for first in range(1, COUNT + 1, BATCH):
        ids = [number * 64 for number in range(first, first + BATCH)]
        fences = [1 + (number - 1) // 100 for number in range(first, first + BATCH)]
        await connection.execute(SETTLE, token, now, ids, fences, [1] * BATCH)
    return per_second(COUNT, time.monotonic() - began)


async def measure(dsn: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"with": [], "without": []}
    async with engine(dsn) as made:  # which makes the partitions
        now, token = await made.clock.now(), uuid.uuid4()
        async with made.database.connection() as connection:
            await connection.execute(SESSION, token, now)
            for _ in range(ROUNDS):
                found["with"].append(await settle_all(connection, token))
                await connection.execute("drop index hourbell.ledger_by_tenant")
                found["without"].append(await settle_all(connection, token))
                await connection.execute(INDEX)
    return found


def main() -> None:
    with server() as dsn:
        found = asyncio.run(measure(dsn))
    report(
        "settle",
        best={name: max(rounds) for name, rounds in found.items()},
        median={name: statistics.median(rounds) for name, rounds in found.items()},
        rounds=found,
    )


main()
