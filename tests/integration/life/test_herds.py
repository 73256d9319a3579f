"""Thousands of executions of one tenant fall due at the same moment; one of another tenant passes the gate at once.

Lateness is counted in passes of the gate, so that no machine decides it. A pass admits 200; first in, first out, the other
tenant would have to wait for up to 20 of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.documents.jobs import parse_new_job
from hourbell.engine.core import Engine
from hourbell.engine.due_counts import DueCounts
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_batch
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.idempotency import Write
from hourbell.model.jobs import Job
from hourbell.testing.filling import create_one_time_jobs
from integration.life.support import (
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    create_many,
    one_time,
    places,
    plan_all,
    recurring,
    travel,
)

HERD = 4_000
PASS = 200  # admitted at once; level 0 has five eighths of it at least
MINUTE = at("10:02")
SECOND = timedelta(seconds=1)

Documents = Sequence[dict[str, object]]
Maker = Callable[[Engine, int], Awaitable[object]]


def due_once(tenant: str, when: datetime) -> dict[str, object]:
    return one_time(tenant_id=tenant, schedule={"at": when.isoformat()})


def spread(count: int) -> Documents:
    """One-time jobs of the big tenant, at all times of a second."""
    step = SECOND / count
    return [due_once("big", MINUTE + number * step) for number in range(count)]


async def at_one_instant(engine: Engine, count: int, **fields: Any) -> None:
    now = await engine.clock.now()
    new = parse_new_job(due_once("big", MINUTE) | fields, now, 1)
    await create_one_time_jobs(engine, [new] * count, Write())


async def in_batches(engine: Engine, count: int) -> None:
    documents = spread(count)
    for first in range(0, count, 500):
        await create_batch(engine, documents[first : first + 500], lambda item: item, Write())


async def one_by_one(engine: Engine, count: int) -> None:
    await create_many(engine, spread(count))


async def from_one_timetable(engine: Engine, count: int) -> None:
    documents = [recurring("2 10 * * *", tenant_id="big") for _ in range(count)]
    await create_batch(engine, documents, lambda item: item, Write())


async def from_several_timetables(engine: Engine, count: int) -> None:
    rules = [f"2,{minute} 10 * * *" for minute in range(10, 50)]
    documents = [recurring(rules[n % len(rules)], tenant_id="big") for n in range(count)]
    await create_batch(engine, documents, lambda item: item, Write())


async def passes_until(engine: Engine, now: datetime, job: Job) -> int:
    """How many passes of the gate it takes until a job is ready."""
    for passes in range(1, HERD):
        await admit(engine, now, PASS)
        waits = "select exists (select from hourbell.live as e join hourbell.ready as r on e.id = any (r.ids) where $1 in (e.id, e.job))"
        if await engine.database.value(waits, job.job_id):
            return passes
    raise AssertionError("the job is not admitted")


@pytest.mark.parametrize("herd_before", [0, HERD // 2, HERD], ids=["first", "between", "last"])
@pytest.mark.parametrize(
    "make",
    [at_one_instant, in_batches, one_by_one, from_one_timetable, from_several_timetables],
)
async def test_one_job_among_thousands_of_another_tenant_passes_at_once(
    still: Engine, make: Maker, herd_before: int
) -> None:
    if herd_before:
        await make(still, herd_before)
    same, later = await create_many(
        still, [due_once("small", MINUTE + SECOND / 2), due_once("small", MINUTE + 2 * SECOND)]
    )
    if herd_before < HERD:
        await make(still, HERD - herd_before)
    await plan_all(still, await travel(still, MINUTE - 20 * SECOND))
    assert await passes_until(still, await travel(still, MINUTE + SECOND), same) == 1
    assert await passes_until(still, await travel(still, MINUTE + 2 * SECOND), later) == 1
    # Both passes were full (slabs are taken whole), and nothing waits in the end.
    assert 2 * PASS <= (await places(still))["ready"] < HERD // 2
    await admit_all(still)
    assert await places(still) == {"ready": HERD + 2}
    await check_sound(still)


async def test_one_recurring_job_among_thousands_of_another_tenant_passes_at_once(
    still: Engine,
) -> None:
    await from_one_timetable(still, HERD)
    job = await create(still, recurring("2 10 * * *", tenant_id="small"))
    await plan_all(still, await travel(still, MINUTE - 20 * SECOND))
    assert await passes_until(still, await travel(still, MINUTE), job) == 1


async def test_a_few_dozen_jobs_wait_for_a_few_hundred_of_another_tenant_at_most(
    still: Engine,
) -> None:
    await at_one_instant(still, HERD)
    jobs = await create_many(still, [due_once("small", MINUTE)] * 100)
    await travel(still, MINUTE)
    passes = max([await passes_until(still, MINUTE, job) for job in (jobs[0], jobs[-1])])
    assert passes <= 3


async def test_retries_of_a_herd_do_not_delay_another_tenant(still: Engine) -> None:
    await at_one_instant(still, 1000)
    await travel(still, MINUTE)
    await admit_all(still)
    hand = await Hand.opened(still)
    assert await hand.fail(await hand.claim_all(), delay_seconds=10) == []
    job = await create(still, due_once("small", MINUTE + 10 * SECOND))
    assert await passes_until(still, await travel(still, MINUTE + 10 * SECOND), job) == 1


@pytest.mark.parametrize("fields", [{}, {"start_deadline_seconds": 60}], ids=["slabs", "rows"])
async def test_every_level_moves_on_in_each_pass(still: Engine, fields: dict[str, Any]) -> None:
    await at_one_instant(still, HERD, **fields)
    for tenant in range(100):
        await create_many(still, [due_once(f"small-{tenant}", MINUTE) | fields] * 2)
    await travel(still, MINUTE)
    await admit(still, MINUTE, PASS)
    levels = await still.database.fetch(
        "select level, sum(n)::int as n from (select (flags & 12) / 4 as level, 1 as n from hourbell.due"
        " union all select (flags & 12) / 4, cardinality(ids) from hourbell.due_slabs) as d group by 1"
    )
    waiting = {row["level"]: row["n"] for row in levels}
    assert 0 < waiting[1] <= 256 - 16 - PASS // 8
    assert HERD // 2 < waiting[2] <= HERD - 256 - PASS // 8
    assert 0 < waiting[0] <= 16 + 200 - (PASS - 2 * (PASS // 8))


async def test_planned_herds_are_counted_over_timetables_until_their_moment_has_passed(
    still: Engine,
) -> None:
    await from_several_timetables(still, HERD)
    await plan_all(still, await travel(still, MINUTE - 20 * SECOND))
    assert await still.database.value("select max(planned) from hourbell.planned_counts") == HERD
    await run_housekeeping(still, None, await travel(still, MINUTE + SECOND))
    assert await still.database.value("select count(*) from hourbell.planned_counts") == 0


async def test_executions_are_counted_by_tenant_and_second(still: Engine) -> None:
    counts = DueCounts()
    assert [counts.level(1, 60) for _ in range(17)] == [0] * 16 + [1]
    assert counts.level(2, 60) == 0
    assert counts.level(1, 61) == 0
    levels = [counts.level(3, 60) for _ in range(5_000)]
    same = "select array_agg(hourbell.level_of(n) order by n) from generate_series(1, 5000) as n"
    assert levels == await still.database.value(same)


def test_a_count_is_kept_while_it_is_used() -> None:
    counts = DueCounts(max_counts=2)
    for number in range(100):
        assert counts.level(1, 60) == (number >= 16)
        assert counts.level(number + 2, 60) == 0
    assert [counts.level(2, 60) for _ in range(16)] == [0] * 16  # long forgotten
