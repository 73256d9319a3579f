"""What a create costs for a tenant with a quota, by how many jobs the tenant has and how many clients create at once.

    python bench/bench_quotas.py [1000000]     the most jobs that the tenant has

The clients create for one tenant, each at one of four engines in this process, as at four processes of the API. A tenant
without a quota is measured beside it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from statistics import median

import uvloop
from support import engine, report, server

from hourbell.engine.core import Engine
from hourbell.engine.life.create import create_job
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.model.errors import HourbellError
from hourbell.model.limits import TenantSettings

SECONDS = 5.0
CLIENTS = (1, 8, 20, 40)
QUOTA = 10_000_000

# As `create_jobs` would, in one statement; the jobs are not due for years.
_FILL = """
with made as (
  insert into hourbell.executions (id, occurrence, run_at, tenant, version, queue, priority, origin, spec)
  select hourbell.next_id(hourbell.id_base(hourbell.clock())), at, at, t.id, 1, q.id, 2, hourbell.origin_schedule(), '{}'
  from generate_series(1, $1::int), (select timestamptz '2099-01-01' as at) as f,
    hourbell.tenants as t, hourbell.queues as q where t.name = 'limited' and q.name = 'default'
  returning id, tenant, run_at, queue, priority),
listed as (insert into hourbell.quota_jobs (tenant, id) select tenant, id from made)
insert into hourbell.due (run_at, id, tenant, queue, priority) select run_at, id, tenant, queue, priority from made
"""


def document(tenant: str) -> dict[str, object]:
    return {
        "name": "reminder",
        "type": "ONE_TIME",
        "schedule": {"at": "2099-01-01T00:00:00Z"},
        "action": {"type": "TASK", "name": "no-op"},
        "tenant_id": tenant,
    }


async def create(engines: list[Engine], tenant: str, clients: int) -> dict[str, object]:
    took: list[float] = []
    answers: Counter[str] = Counter()
    until = time.monotonic() + SECONDS

    async def client(number: int) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                await create_job(engines[number % len(engines)], document(tenant), Write())
                answers["created"] += 1
            except HourbellError as error:
                answers[error.code] += 1
            took.append(time.monotonic() - began)

    await asyncio.gather(*(client(number) for number in range(clients)))
    took.sort()
    return {
        "per_second": round(answers["created"] / SECONDS),
        "median_ms": round(median(took) * 1000, 1),
        "p99_ms": round(took[int(len(took) * 0.99)] * 1000, 1),
        "answers": dict(answers),
    }


async def measure(dsn: str, most: int) -> dict[str, object]:
    found: dict[str, object] = {}
    async with (
        engine(dsn) as first,
        engine(dsn) as second,
        engine(dsn) as third,
        engine(dsn) as last,
    ):
        engines = [first, second, third, last]
        await set_tenant(first, "limited", TenantSettings(max_jobs=QUOTA), Write())
        for tenant in ("limited", "free"):
            await create_job(first, document(tenant), Write())
        for _ in range(3):
            await run_housekeeping(first, None, await first.clock.now())
        has = 1
        for jobs in (10, 100_000, most):
            while has < jobs:
                step = min(100_000, jobs - has)
                await first.database.value(_FILL, step)
                has += step
            for clients in CLIENTS:
                for tenant in ("limited", "free") if jobs == 10 else ("limited",):
                    found[f"{tenant}, {jobs} jobs, {clients} clients"] = await create(
                        engines, tenant, clients
                    )
    return found


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with server() as dsn:
        found = uvloop.run(measure(dsn, most))
    report("quotas", **found)


if __name__ == "__main__":
    main()
