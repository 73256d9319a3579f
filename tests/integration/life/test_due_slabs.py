"""Slabs of what waits for its time: created together, admitted together, and each still changed alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from hourbell.documents.jobs import parse_new_job
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution, run_now
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import explain_execution
from hourbell.model.executions import ExecutionStatus
from hourbell.model.jobs import NewJob
from hourbell.testing.filling import create_one_time_jobs
from integration.life.limits import limit_queue, limit_tenant
from integration.life.support import (
    Hand,
    admit_all,
    at,
    check_sound,
    fates,
    in_transaction,
    one_time,
    place_of,
    places,
    somebody_waits,
    travel,
)

LATER = at("10:05")


async def together(engine: Engine, count: int, **fields: object) -> list[int]:
    """One-time jobs that fall due together, created by one call; their ids."""
    now = await engine.clock.now()
    document = one_time(**{"schedule": {"at": LATER.isoformat()}} | fields)
    jobs: Sequence[NewJob] = [parse_new_job(document, now, 1)] * count
    return list(await create_one_time_jobs(engine, jobs, Write()))


async def slabs(engine: Engine) -> list[list[int]]:
    """The executions of each slab."""
    rows = await engine.database.fetch("select ids from hourbell.due_slabs order by run_at, slab")
    return [row["ids"] for row in rows]


async def run_all(engine: Engine) -> None:
    """Admit, claim and settle everything that is due."""
    hand = await Hand.opened(engine)
    await admit_all(engine)
    while runs := await hand.claim():
        await hand.succeed(runs)


async def test_what_is_created_together_and_falls_due_together_shares_slabs(still: Engine) -> None:
    ids = await together(still, 500)
    found = await slabs(still)
    assert sorted(one for slab in found for one in slab) == sorted(ids)
    assert max(map(len, found)) <= 64
    assert len(found) <= 500 / 64 + 3  # levels and the first, partly used run of numbers cut some
    assert not await still.database.value("select exists (select from hourbell.due)")
    await check_sound(still)


@pytest.mark.parametrize(
    "fields",
    [
        {"concurrency_key": "a"},
        {"start_deadline_seconds": 60},
        {"deadline_seconds": 60},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_what_has_a_key_or_a_deadline_waits_alone(
    still: Engine, fields: dict[str, object]
) -> None:
    await together(still, 10, **fields)
    assert await slabs(still) == []
    assert await places(still) == {"due": 10}


async def test_what_has_a_unique_key_waits_alone(still: Engine) -> None:
    now = await still.clock.now()
    schedule = {"at": LATER.isoformat()}
    jobs = [
        parse_new_job(one_time(schedule=schedule, unique_key=f"cart:{n}"), now, 1) for n in range(5)
    ]
    without = replace(jobs[0], unique_key=None)
    await create_one_time_jobs(still, [*jobs, without, without], Write())
    assert [len(slab) for slab in await slabs(still)] == [2]


async def test_slabs_are_admitted_at_their_time_and_run_once(still: Engine) -> None:
    ids = await together(still, 300)
    hand = await Hand.opened(still)
    await admit_all(still)
    assert await places(still) == {"due": 300}
    await travel(still, LATER)
    await admit_all(still)
    assert await places(still) == {"ready": 300}
    runs = await hand.claim()
    assert sorted(run.execution_id for run in runs) == sorted(ids)
    await hand.succeed(runs)
    assert await fates(still) == {"SUCCEEDED": 300}
    await check_sound(still)


async def test_a_pass_takes_whole_slabs_up_to_its_bound_and_says_that_there_is_more(
    still: Engine,
) -> None:
    await Hand.opened(still)
    await together(still, 400)
    now = await travel(still, LATER)
    passed = await admit(still, now, 100)
    assert 64 <= passed.examined < 400
    assert passed.more
    await admit_all(still)
    assert await places(still) == {"ready": 400}


async def test_one_of_a_slab_is_shown_as_scheduled_until_its_time_and_as_queued_then(
    still: Engine,
) -> None:
    one = (await together(still, 10))[3]
    assert (await get_execution(still, one)).status is ExecutionStatus.SCHEDULED
    assert (await explain_execution(still, one)).code == "not_due"
    await travel(still, LATER)
    assert (await get_execution(still, one)).status is ExecutionStatus.QUEUED


Change = Callable[[Engine, int], Awaitable[object]]


async def cancel(engine: Engine, one: int) -> object:
    return await cancel_execution(engine, one, Write())


async def pause(engine: Engine, one: int) -> object:
    return await pause_job(engine, one, Write())


async def delete(engine: Engine, one: int) -> object:
    return await delete_job(engine, one, Write())


async def later(engine: Engine, one: int) -> object:
    changes = {"schedule": {"at": at("10:30").isoformat()}}
    return await update_job(engine, one, changes, Write())


async def at_once(engine: Engine, one: int) -> object:
    return await run_now(engine, one, Write())


@pytest.mark.parametrize(
    ("change", "place"),
    [(cancel, []), (delete, []), (pause, ["paused"]), (later, ["due"]), (at_once, ["due"])],
    ids=["cancel", "delete", "pause", "update", "run now"],
)
async def test_one_of_a_slab_is_changed_and_the_others_are_not(
    still: Engine, change: Change, place: list[str]
) -> None:
    ids = await together(still, 20)
    await change(still, ids[7])
    assert await place_of(still, ids[7]) == place
    assert all(ids[7] not in slab for slab in await slabs(still))
    await check_sound(still)
    await travel(still, LATER)
    await run_all(still)
    succeeded = await still.database.fetch("select id from hourbell.ledger where status = 0")
    expected = set(ids) - ({ids[7]} if change is not at_once else set())
    assert {row["id"] for row in succeeded} == expected
    await check_sound(still)


async def test_the_tenants_of_a_slab_stay_with_their_executions(still: Engine) -> None:
    now = await still.clock.now()
    schedule = {"at": LATER.isoformat()}
    names = [f"tenant-{n % 7}" for n in range(40)]
    jobs = [parse_new_job(one_time(schedule=schedule, tenant_id=name), now, 1) for name in names]
    ids = list(await create_one_time_jobs(still, jobs, Write()))
    for n in (0, 13, 39):
        await cancel(still, ids[n])
    wrong = await still.database.fetch(
        "select from hourbell.due_slabs as d cross join lateral unnest(d.ids, d.tenants) as m(id, tenant)"
        " left join hourbell.executions as e on e.id = m.id where e.tenant is distinct from m.tenant"
    )
    assert wrong == []
    assert await places(still) == {"due": 37}


async def test_a_paused_one_of_a_slab_runs_when_it_is_resumed(still: Engine) -> None:
    ids = await together(still, 3)
    await pause(still, ids[1])
    await travel(still, LATER)
    await run_all(still)
    await resume_job(still, ids[1], Write())
    await run_all(still)
    assert await fates(still) == {"SUCCEEDED": 3}


async def test_a_slab_from_which_all_were_cancelled_is_gone_after_its_time(still: Engine) -> None:
    for one in await together(still, 3):
        await cancel(still, one)
    await travel(still, LATER)
    await admit_all(still)
    assert await slabs(still) == []
    assert await fates(still) == {"CANCELLED(cancelled)": 3}


async def test_two_of_a_slab_are_cancelled_at_the_same_time(engine: Engine) -> None:
    ids = await together(engine, 2, schedule={"delay_seconds": 3600})
    async with in_transaction(engine) as own:
        taken = await own.database.row(
            "select * from hourbell.take_waiting($1, null, false)", ids[0]
        )
        assert taken["id"] == ids[0]
        other = asyncio.create_task(cancel(engine, ids[1]))
        await somebody_waits(engine, "cancel_execution")
    await other
    assert await place_of(engine, ids[1]) == []
    assert await fates(engine) == {"CANCELLED(cancelled)": 1}


async def test_a_cancel_that_waits_for_the_gate_finds_the_execution_ready(engine: Engine) -> None:
    await Hand.opened(engine)
    ids = await together(engine, 5, schedule={"delay_seconds": 0})
    now = await engine.clock.now()
    async with in_transaction(engine) as own:
        assert (await own.database.row("select * from hourbell.admit($1, 100, '1 minute')", now))[
            "examined"
        ] == 5
        other = asyncio.create_task(cancel(engine, ids[2]))
        await somebody_waits(engine, "cancel_execution")
    await other
    assert await places(engine) == {"ready": 5}
    await run_all(engine)
    assert await fates(engine) == {"SUCCEEDED": 4, "CANCELLED(cancelled)": 1}
    await check_sound(engine)


async def test_the_gate_skips_a_slab_that_a_change_has_locked(engine: Engine) -> None:
    await Hand.opened(engine)
    ids = await together(engine, 5, schedule={"delay_seconds": 0})
    async with in_transaction(engine) as own:
        await own.database.row("select * from hourbell.take_waiting($1, null, false)", ids[0])
        passed = await admit(engine, await engine.clock.now())
        assert passed.examined == 0
        await own.database.value("select hourbell.requeue($1)", [ids[0]])
    await admit_all(engine)
    assert await places(engine) == {"ready": 5}


@pytest.mark.parametrize("limited", ["queue", "tenant"])
async def test_slabs_under_a_limit_are_parked_one_by_one(still: Engine, limited: str) -> None:
    if limited == "queue":
        await limit_queue(still, max_concurrency=3)
    else:
        await limit_tenant(still, "default", max_concurrency=3)
    hand = await Hand.opened(still)
    await together(still, 10)
    await travel(still, LATER)
    await admit_all(still)
    assert await places(still) == {"ready": 3, "parked": 7}
    while runs := await hand.claim():
        assert len(runs) <= 3
        await hand.succeed(runs)
        await admit_all(still)
    assert await fates(still) == {"SUCCEEDED": 10}
    await check_sound(still)


async def test_slabs_of_a_task_that_nobody_serves_wait_under_it(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    await Hand.opened(still, tasks=["other"])
    await together(still, 10)
    await travel(still, LATER)
    await admit_all(still)
    assert await places(still) == {"parked": 10}
    await run_all(still)
    assert await fates(still) == {"SUCCEEDED": 10}
