"""What it costs that a worker claims only the tasks that it knows: 1, 20 and 500 tasks in a queue.

Each case has a queue and sessions of its own, and all cases take turns. `any`: the session claims every task of its queue
(1 of them), which is the case that the others are compared with. `uniform`: all sessions of the queue serve the same tasks.
`mixed`: another session serves one task more, so claims look up each task of their session.

One caller admits and claims 20,000 executions in claims of 1,000. A claim by one is measured while a single execution is
ready, which is what an idle worker sees; an empty claim while none is.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from statistics import median

import msgspec
import uvloop
from bench_gate import BATCH, ROUND, Gate, compared
from support import engine, report, server

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import JobType, NewJob, TaskAction
from hourbell.model.schedules import Once
from hourbell.testing.filling import create_one_time_jobs

TURNS = 9
SINGLES = 40  # claims of one execution, and empty claims, in each turn
CASES = [("any", 1), *((fleet, n) for fleet in ("uniform", "mixed") for n in (1, 20, 500))]


class Case(msgspec.Struct):
    """A queue with the sessions that serve it."""

    name: str
    queue: str
    tasks: list[str]
    gate: Gate
    admit_us: list[float] = []
    claim_us: list[float] = []
    single_us: list[float] = []
    empty_us: list[float] = []


async def open_case(made: Engine, fleet: str, n: int) -> Case:
    dispatch, queue = PostgresDispatch(made), f"{fleet}-{n}"
    tasks = [f"{queue}.{number}" for number in range(n)]
    session = await dispatch.open("bench", [queue], ROUND, None if fleet == "any" else tasks)
    if fleet == "mixed":
        await dispatch.open("other", [queue], ROUND, [*tasks, f"{queue}.other"])
    return Case(f"{fleet}_{n}", queue, tasks, Gate(made, session))


async def queue_up(made: Engine, case: Case, count: int) -> None:
    at = Once(datetime.now(UTC))
    for first in range(0, count, BATCH):
        jobs = [
            NewJob(
                name="task",
                tenant_id=f"tenant-{number % 97}",
                queue=case.queue,
                type=JobType.ONE_TIME,
                schedule=at,
                # By the block, so that each tenant has executions of each task.
                action=TaskAction(name=case.tasks[number // 97 % len(case.tasks)]),
            )
            for number in range(first, min(first + BATCH, count))
        ]
        await create_one_time_jobs(made, jobs, Write())


async def turn(made: Engine, case: Case) -> None:
    await queue_up(made, case, ROUND)
    case.admit_us.append(await case.gate.admit_all() / ROUND * 1e6)
    claimed, took = await case.gate.claim_all()
    assert len(claimed) == ROUND
    case.claim_us.append(took / ROUND * 1e6)
    await case.gate.settle(claimed)
    single, empty = [], []
    for _ in range(SINGLES):
        await queue_up(made, case, 1)
        assert (await admit(made)).examined == 1
        began = time.monotonic()
        claimed = await case.gate.claim(1)
        single.append(time.monotonic() - began)
        await case.gate.settle(claimed)
        began = time.monotonic()
        assert not await case.gate.claim(1)
        empty.append(time.monotonic() - began)
    case.single_us.append(median(single) * 1e6)
    case.empty_us.append(median(empty) * 1e6)


async def everything(dsn: str) -> None:
    async with engine(dsn) as made:
        made.times = Times(lease_seconds=3600)  # nobody renews it
        cases = [await open_case(made, fleet, n) for fleet, n in CASES]
        for case in cases:  # connections, plans, names
            await queue_up(made, case, 1)
            await case.gate.admit_all()
            await case.gate.settle((await case.gate.claim_all())[0])
        for _ in range(TURNS):
            for case in cases:
                await turn(made, case)
    found: dict[str, object] = {}
    for case in cases:
        for field in ("admit_us", "claim_us", "single_us", "empty_us"):
            sides = [getattr(one, field) for one in (cases[0], case)]
            found[f"{case.name}_{field}"] = [round(median(sides[1]), 1), compared(*sides)]
    report("tasks", **found)


def main() -> None:
    with server() as dsn:
        uvloop.run(everything(dsn))


if __name__ == "__main__":
    main()
