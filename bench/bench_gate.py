"""The gate and what hangs on it: limited rows, many tenants against few, concurrency keys, a million rows that are blocked.

Each number is measured by one caller, with a session that serves the queue; in each comparison both sides take turns, and
the medians of their rounds are compared.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from statistics import median
from urllib.parse import urlsplit

import uvloop
from support import engine, per_second, report, server

from hourbell.dispatch import SUCCEEDED, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue, set_tenant
from hourbell.model.jobs import JobType, NewJob, TaskAction
from hourbell.model.limits import QueueSettings, TenantSettings
from hourbell.model.schedules import Once
from hourbell.store.migrations import migrate
from hourbell.testing.filling import create_one_time_jobs

ROUND = 20_000
BATCH = 1_000
ROUNDS = 5
TURNS = 11  # where two sides are compared
KEYS = 100_000
BLOCKED = 1_000_000


async def queue_up(made: Engine, count: int, tenants: int, keys: int = 0) -> None:
    """So many one-time jobs, due now, spread over tenants and keys."""
    at = Once(datetime.now(UTC))
    action = TaskAction(name="no-op")
    for first in range(0, count, BATCH):
        jobs = [
            NewJob(
                name="gate",
                tenant_id=f"tenant-{(number % keys if keys else number) % tenants}",
                type=JobType.ONE_TIME,
                schedule=at,
                action=action,
                concurrency_key=f"key-{number % keys}" if keys else None,
            )
            for number in range(first, min(first + BATCH, count))
        ]
        await create_one_time_jobs(made, jobs, Write())


class Gate:
    """Passes of the gate, and a worker that takes what they let on; the longest pass is remembered."""

    def __init__(self, made: Engine, session: Session) -> None:
        self._engine = made
        self._dispatch = PostgresDispatch(made)
        self._session = session
        self._claims = 0
        self.longest = 0.0

    @classmethod
    async def open(cls, made: Engine) -> Gate:
        return cls(made, await PostgresDispatch(made).open("gate", ["default", "stopped"], ROUND))

    async def admit_all(self) -> float:
        """Until there is no more to look at; the seconds."""
        began = time.monotonic()
        while True:
            before = time.monotonic()
            passed = await admit(self._engine, await self._engine.clock.now())
            self.longest = max(self.longest, time.monotonic() - before)
            if not passed.more:
                return time.monotonic() - began

    async def claim(self, limit: int) -> list[Settlement]:
        """One claim; what would settle it."""
        self._claims += 1
        batch = await self._dispatch.claim(self._session, self._claims, limit)
        return [Settlement(one.execution_id, one.fence, SUCCEEDED) for one in batch]

    async def claim_all(self) -> tuple[list[Settlement], float]:
        claimed: list[Settlement] = []
        began = time.monotonic()
        while batch := await self.claim(BATCH):
            claimed += batch
        return claimed, time.monotonic() - began

    async def settle(self, claimed: list[Settlement]) -> None:
        for first in range(0, len(claimed), BATCH):
            await self._dispatch.settle(self._session, claimed[first : first + BATCH])

    async def round(self, tenants: int) -> tuple[float, float]:
        """A round of plain work: µs to admit and to claim one of them."""
        await queue_up(self._engine, ROUND, tenants)
        admitting = await self.admit_all()
        claimed, claiming = await self.claim_all()
        assert len(claimed) == ROUND
        await self.settle(claimed)
        return admitting / ROUND * 1e6, claiming / ROUND * 1e6


async def few_against_many(made: Engine, gate: Gate) -> dict[str, object]:
    """The same work for 10 tenants and for 10,000, in turns."""
    few, many = [], []
    await gate.round(10_000)  # they exist now
    for _ in range(TURNS):
        few.append(await gate.round(10))
        many.append(await gate.round(10_000))
    found: dict[str, object] = {}
    for at, name in enumerate(("admit", "claim")):
        sides = [[one[at] for one in side] for side in (few, many)]
        found[f"{name}_us_per_row_10_and_10000_tenants"] = [
            round(median(side), 2) for side in sides
        ]
        found[f"{name}_10000_to_10"] = compared(*sides)
    return found


def compared(one: list[float], other: list[float]) -> float:
    """How much longer the other takes: the median over the turns, in each of which both had the same machine."""
    return round(median(b / a for a, b in zip(one, other, strict=True)), 3)


async def unlimited(made: Engine, gate: Gate) -> dict[str, object]:
    rates = []
    for _ in range(ROUNDS):
        await queue_up(made, ROUND, 97)
        rates.append(per_second(ROUND, await gate.admit_all()))
        await gate.settle((await gate.claim_all())[0])
    return {"unlimited_rows_per_second": round(median(rates)), "unlimited_rounds": rates}


async def limited(made: Engine, gate: Gate) -> dict[str, object]:
    """Rows that are under a tenant's and the queue's concurrency, which let all of them on."""
    for number in range(97):
        settings = TenantSettings(max_concurrency=100_000)
        await set_tenant(made, f"tenant-{number}", settings, Write())
    await set_queue(made, "default", QueueSettings(max_concurrency=100_000), Write())
    await gate.admit_all()
    rates = []
    for _ in range(ROUNDS):
        await queue_up(made, ROUND, 97)
        rates.append(per_second(ROUND, await gate.admit_all()))
        await gate.settle((await gate.claim_all())[0])
    for number in range(97):
        await set_tenant(made, f"tenant-{number}", TenantSettings(), Write())
    await set_queue(made, "default", QueueSettings(), Write())
    await gate.admit_all()
    return {"limited_rows_per_second": round(median(rates)), "limited_rounds": rates}


async def keyed(made: Engine, gate: Gate) -> dict[str, object]:
    """Two executions for each key: from due to recorded, as one worker does it."""
    await queue_up(made, 2 * KEYS, 97, KEYS)
    done, began = 0, time.monotonic()
    while done < 2 * KEYS:
        await gate.admit_all()
        claimed, _ = await gate.claim_all()
        await gate.settle(claimed)
        done += len(claimed)
    return {"keyed_per_second": per_second(done, time.monotonic() - began)}


async def beside_what_is_blocked(made: Engine, gate: Gate) -> dict[str, object]:
    """The same work in turns, where a tenant, then a queue, then a key of a million rows is blocked, and where nothing is."""
    found: dict[str, object] = {}
    async with a_second_database(made) as plain:
        without = await Gate.open(plain)
        for blocker in ("tenant", "queue", "key"):
            await block(made, blocker)
            parking = await gate.admit_all()
            if blocker == "key":
                await gate.claim_all()  # the one that has the key, and keeps it
            await vacuum(made)  # else it would come in the middle
            for one in (gate, without):
                await one.round(97)
            alone, beside = [], []
            for _ in range(TURNS):
                alone.append(sum(await without.round(97)))
                beside.append(sum(await gate.round(97)))
            found[f"beside_a_blocked_{blocker}_of_a_million"] = compared(alone, beside)
            found[f"parked_by_{blocker}_per_second"] = per_second(BLOCKED, parking)
            await unblock(made)
    return found


@asynccontextmanager
async def a_second_database(made: Engine) -> AsyncIterator[Engine]:
    async with made.database.connection() as connection:
        await connection.execute("create database plain", timeout=60)
    dsn = urlsplit(made.database.dsn)._replace(path="/plain").geturl()
    await migrate(dsn)
    async with engine(dsn) as plain:
        plain.times = made.times
        yield plain


async def block(made: Engine, blocker: str) -> None:
    if blocker == "tenant":
        await set_tenant(made, "stopped", TenantSettings(max_concurrency=0), Write())
    elif blocker == "queue":
        await set_queue(made, "stopped", QueueSettings(max_concurrency=0), Write())
    now = await made.clock.now()
    await made.database.value(
        """
        with made as (
          insert into hourbell.executions
            (id, occurrence, run_at, tenant, queue, priority, version, origin, spec, key, key_limit)
          select hourbell.id_base($1) + n, $1, $1, $2, $3, 2, 1, 0, '{}', $5, 1 from generate_series(1, $4::int) as n
          returning id)
        insert into hourbell.due (run_at, id, tenant, queue, priority, key) select $1, id, $2, $3, 2, $5 from made
        """,
        now,
        await made.tenant("stopped", now),
        await made.queue("stopped" if blocker == "queue" else "default", now),
        BLOCKED,
        77 if blocker == "key" else None,
    )


async def vacuum(made: Engine) -> None:
    async with made.database.connection() as connection:
        for table in ("executions", "due", "parked"):
            await connection.execute(f"vacuum analyze hourbell.{table}", timeout=300)
        await connection.execute("checkpoint", timeout=300)


async def unblock(made: Engine) -> None:
    """As if what was blocked had never been: only the work beside it is of interest."""
    await set_tenant(made, "stopped", TenantSettings(), Write())
    await set_queue(made, "stopped", QueueSettings(), Write())
    async with made.database.connection() as connection:
        await connection.execute(
            "truncate hourbell.executions, hourbell.parked, hourbell.limit_holds, hourbell.gate_wakeups, hourbell.leased"
        )


async def everything(dsn: str) -> None:
    async with engine(dsn) as made:
        made.times = Times(lease_seconds=3600)  # nobody renews it
        gate = await Gate.open(made)
        found: dict[str, object] = {}
        for part in (unlimited, few_against_many, limited, keyed, beside_what_is_blocked):
            gate.longest = 0.0
            found |= await part(made, gate)
            found[f"longest_pass_ms_of_{part.__name__}"] = round(gate.longest * 1000, 1)
        report("gate", **found)


def main() -> None:
    with server() as dsn:
        uvloop.run(everything(dsn))


if __name__ == "__main__":
    main()
