"""A fire is fanned out in chunks, and meanwhile the world goes on: jobs come, change and go.

Six jobs ride one timetable, `* * * * *`, and a planner that takes two members a chunk stands after
its first chunk. What then happens to the first job (it has its execution) and to the last (it does
not yet) must come to the same.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life import plan as planning
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.failpoints import configure
from hourbell.model.errors import HourbellError, StoreUnavailable
from hourbell.model.jobs import Job
from integration.life.support import (
    Fate,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    create_many,
    history,
    in_transaction,
    payloads,
    plan_all,
    recurring,
    somebody_waits,
    standing,
    travel,
)
from uncommitted import UNCOMMITTED

MINUTE, NEXT_MINUTE = at("10:01"), at("10:02")
SUCCEEDED_ONCE = [Fate(MINUTE, "SUCCEEDED")]
EACH_SIDE = pytest.mark.parametrize("which", [0, -1], ids=["planned_already", "still_to_plan"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_CHUNK", 2)


@pytest.fixture
async def jobs(still: Engine) -> list[Job]:
    return [await create(still, recurring()) for _ in range(6)]


@contextlib.asynccontextmanager
async def half_fanned_out(engine: Engine) -> AsyncIterator[None]:
    """Within it, a fire is open and its first chunk is planned; afterwards the fire is done."""
    async with standing("plan.after_chunk", plan_all(engine)):
        assert await engine.database.value("select planned from hourbell.fires") in (1, 2)
        yield
    assert await engine.database.value("select count(*) from hourbell.fires") == 0
    await check_sound(engine)


async def run_through(engine: Engine, moment_text: str) -> Hand:
    """Plan and run everything that is due at a moment."""
    await travel(engine, at(moment_text))
    hand = await Hand.opened(engine)
    await plan_all(engine)
    await hand.run_all()
    await check_sound(engine)
    return hand


async def others_ran_once(engine: Engine, jobs: list[Job], but: Job) -> None:
    for job in jobs:
        if job.job_id != but.job_id:
            assert await history(engine, job.job_id) == SUCCEEDED_ONCE


async def test_a_job_created_while_a_fire_is_fanned_out_gets_it_once(
    still: Engine, jobs: list[Job]
) -> None:
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        # One goes before all others in the order of the fire, one behind them.
        first = await create(still, recurring(priority="CRITICAL"))
        last = await create(still, recurring(priority="LOW"))
    await run_through(still, "10:01:01")
    for job in (*jobs, first, last):
        assert await history(still, job.job_id) == SUCCEEDED_ONCE, job.priority
    await run_through(still, "10:02:01")
    for job in (*jobs, first, last):
        assert len(await history(still, job.job_id)) == 2


async def test_a_job_created_after_the_time_of_a_fire_that_is_fanned_out_does_not_get_it(
    still: Engine, jobs: list[Job]
) -> None:
    await travel(still, at("10:01:05"))
    async with half_fanned_out(still):
        new = await create(still, recurring())
    await run_through(still, "10:02:01")
    assert await history(still, new.job_id) == [Fate(NEXT_MINUTE, "SUCCEEDED")]
    for job in jobs:
        assert [fate.occurrence for fate in await history(still, job.job_id)] == [
            MINUTE,
            NEXT_MINUTE,
        ]


@EACH_SIDE
async def test_a_job_updated_while_a_fire_is_fanned_out_runs_once_and_as_updated(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await update_job(still, job.job_id, {"action": {"payload": "new"}}, Write())
    await travel(still, at("10:01:01"))
    hand = await Hand.opened(still)
    ran = await hand.run_all()
    assert await history(still, job.job_id) == SUCCEEDED_ONCE
    assert await payloads([one for one in ran if one.job_id == job.job_id]) == ["new"]
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_of_another_priority_since_its_fire_is_fanned_out_runs_once(
    still: Engine, jobs: list[Job], which: int
) -> None:
    # The order of the fire is by priority: the job moves across the cursor in either direction.
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        other = "LOW" if which == 0 else "CRITICAL"
        await update_job(still, job.job_id, {"priority": other}, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id) == SUCCEEDED_ONCE
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_rescheduled_while_a_fire_is_fanned_out_runs_by_its_new_schedule_only(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await update_job(still, job.job_id, {"schedule": {"cron": "15 * * * * *"}}, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id, at("10:01:30")) == [Fate(at("10:01:15"), "live")]
    await run_through(still, "10:01:16")
    assert await history(still, job.job_id) == [Fate(at("10:01:15"), "SUCCEEDED")]
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_paused_while_a_fire_is_fanned_out_does_not_run(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await pause_job(still, job.job_id, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id) == []
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_resumed_while_a_fire_is_fanned_out_gets_it_once(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    await pause_job(still, job.job_id, Write())
    await travel(still, at("10:00:35"))
    await create(still, recurring())  # so that the first chunk is full without the paused job
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await resume_job(still, job.job_id, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id) == SUCCEEDED_ONCE
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_paused_and_resumed_while_a_fire_is_fanned_out_gets_it_once(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await pause_job(still, job.job_id, Write())
        await travel(still, at("10:00:41"))
        await resume_job(still, job.job_id, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id) == SUCCEEDED_ONCE
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_a_job_deleted_while_a_fire_is_fanned_out_does_not_run(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    async with half_fanned_out(still):
        await travel(still, at("10:00:40"))
        await delete_job(still, job.job_id, Write())
    await run_through(still, "10:01:01")
    assert await history(still, job.job_id) == []
    await others_ran_once(still, jobs, job)


@EACH_SIDE
@pytest.mark.parametrize(
    ("operation", "fate"),
    [
        (pause_job, Fate(MINUTE, "SUPERSEDED", "paused")),
        (delete_job, Fate(MINUTE, "SUPERSEDED", "deleted")),
    ],
    ids=["pause", "delete"],
)
async def test_what_fell_due_before_its_job_went_is_superseded_even_if_it_is_planned_later(
    still: Engine,
    jobs: list[Job],
    which: int,
    operation: Callable[..., Coroutine[Any, Any, Job]],
    fate: Fate,
) -> None:
    job = jobs[which]
    await travel(still, at("10:01:05"))
    async with half_fanned_out(still):
        await operation(still, job.job_id, Write())
    await run_through(still, "10:01:06")
    assert await history(still, job.job_id) == [fate]
    await others_ran_once(still, jobs, job)


@EACH_SIDE
async def test_what_fell_due_before_an_update_runs_once_as_updated(
    still: Engine, jobs: list[Job], which: int
) -> None:
    job = jobs[which]
    await travel(still, at("10:01:05"))
    async with half_fanned_out(still):
        await update_job(still, job.job_id, {"action": {"payload": "new"}}, Write())
    hand = await Hand.opened(still)
    ran = await hand.run_all()
    assert await history(still, job.job_id) == SUCCEEDED_ONCE
    assert await payloads([one for one in ran if one.job_id == job.job_id]) == ["new"]
    await run_through(still, "10:02:01")
    assert len(await history(still, job.job_id)) == 2


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (lambda engine, job: update_job(engine, job, {"name": "new"}, Write()), "SUCCEEDED"),
        (lambda engine, job: pause_job(engine, job, Write()), "SUPERSEDED"),
        (lambda engine, job: delete_job(engine, job, Write()), "SUPERSEDED"),
    ],
    ids=["update", "pause", "delete"],
)
async def test_a_change_that_commits_inside_a_chunk_leaves_one_execution_at_most(
    still: Engine,
    jobs: list[Job],
    operation: Callable[[Engine, int], Coroutine[Any, Any, Job]],
    expected: str,
) -> None:
    job = jobs[3]
    async with in_transaction(still) as planner:
        await plan_all(planner)
        # The chunks have read their members and have not committed.
        change = asyncio.create_task(operation(still, job.job_id))
        if expected == "SUCCEEDED":
            await somebody_waits(still, "join_timetable")
        else:
            await change
    await change
    await run_through(still, "10:01:01")
    assert [fate.status for fate in await history(still, job.job_id)] == [expected]
    await others_ran_once(still, jobs, job)


async def test_what_ran_between_the_moment_of_an_update_and_its_commit_is_not_run_again(
    still: Engine, jobs: list[Job]
) -> None:
    job = jobs[0]
    await travel(still, at("10:01:59"))
    await plan_all(still)
    await travel(still, at("10:02:01"))
    hand = await Hand.opened(still)
    await admit_all(still)
    claimed = await hand.claim_all()  # before the update could take it back
    await travel(still, at("10:01:59"))
    update = update_job(still, job.job_id, {"name": "new"}, Write())
    async with standing(UNCOMMITTED, update):
        await travel(still, at("10:02:02"))
        await hand.succeed(claimed)
    await run_through(still, "10:02:03")
    assert [fate.occurrence for fate in await history(still, job.job_id)] == [MINUTE, NEXT_MINUTE]


async def test_two_planners_that_saw_one_fire_open_it_once(still: Engine, jobs: list[Job]) -> None:
    now = await still.clock.now()
    async with standing("plan.before_open", plan(still, None, now)):
        await plan_all(still, now)  # the other has read which timetables fire
    assert await still.database.value("select count(*) from hourbell.fires") == 0
    await run_through(still, "10:01:01")
    for job in jobs:
        assert await history(still, job.job_id) == SUCCEEDED_ONCE


async def test_two_planners_share_the_chunks_of_one_fire(still: Engine, jobs: list[Job]) -> None:
    async with half_fanned_out(still):
        # The first planner stands between two chunks; a second one ends its fire.
        await plan_all(still)
        assert await still.database.value("select count(*) from hourbell.live") == 6
    await run_through(still, "10:01:01")
    for job in jobs:
        assert await history(still, job.job_id) == SUCCEEDED_ONCE


async def test_many_planners_at_once_plan_each_occurrence_once(
    still: Engine, jobs: list[Job]
) -> None:
    more = await create_many(
        still, [recurring(f"{second} * * * * *") for second in range(0, 60, 6)]
    )
    now = await still.clock.now()
    await asyncio.gather(*(plan_all(still, now + timedelta(seconds=s)) for s in range(6)))
    await check_sound(still)
    await run_through(still, "10:01:30")
    assert [len(await history(still, job.job_id)) for job in more] == [1] * 10
    for job in jobs:
        assert await history(still, job.job_id) == SUCCEEDED_ONCE


async def test_a_fire_that_a_dead_leader_left_open_is_ended_by_the_next(
    still: Engine, jobs: list[Job]
) -> None:
    configure("plan.before_chunk=drop@2")
    with pytest.raises(StoreUnavailable):
        await plan_all(still)
    assert await still.database.value("select planned from hourbell.fires") == 2
    await run_through(still, "10:01:01")
    for job in jobs:
        assert await history(still, job.job_id) == SUCCEEDED_ONCE


async def test_a_job_that_joins_during_a_late_fire_gets_nothing_of_the_past(
    still: Engine, jobs: list[Job]
) -> None:
    await travel(still, at("10:10:30"))  # nobody has planned for ten minutes
    async with half_fanned_out(still):
        new = await create(still, recurring(misfire_policy="all"))
        assert await still.database.value("select late from hourbell.fires")
    await run_through(still, "10:10:40")
    await run_through(still, "10:11:01")
    assert await history(still, new.job_id) == [Fate(at("10:11"), "SUCCEEDED")]
    for job in jobs:
        assert await history(still, job.job_id) == [
            Fate(MINUTE, "SKIPPED", "misfire", 9),
            Fate(at("10:10"), "SUCCEEDED"),
            Fate(at("10:11"), "SUCCEEDED"),
        ]


async def test_a_join_left_over_from_before_an_outage_completes_during_the_late_fire(
    still: Engine, jobs: list[Job]
) -> None:
    configure("join.before_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await create(still, recurring(name="left over"))
    (left_over,) = [
        row["job"]
        for row in await still.database.fetch(
            "select job from hourbell.memberships where joined_through is null"
        )
    ]
    await travel(still, at("10:10:30"))
    async with half_fanned_out(still):
        await complete_joins(still, await still.clock.now())
    await run_through(still, "10:10:40")
    await run_through(still, "10:11:01")
    expected = [
        Fate(MINUTE, "SKIPPED", "misfire", 9),
        Fate(at("10:10"), "SUCCEEDED"),
        Fate(at("10:11"), "SUCCEEDED"),
    ]
    for number in (*(job.job_id for job in jobs), left_over):
        assert await history(still, number) == expected


async def test_a_storm_of_changes_beside_three_planners_doubles_nothing(still: Engine) -> None:
    """Every second of two minutes: three planners, and changes of random jobs."""
    chosen = random.Random(20260407)
    jobs = await create_many(still, [recurring(f"*/{5 + n % 3} * * * * *") for n in range(12)])

    async def change(job: Job) -> None:
        document = {"schedule": {"cron": f"*/{chosen.choice([5, 6, 7])} * * * * *"}}
        operation = chosen.choice(
            [
                lambda: pause_job(still, job.job_id, Write()),
                lambda: resume_job(still, job.job_id, Write()),
                lambda: update_job(still, job.job_id, document, Write()),
                lambda: update_job(still, job.job_id, {"name": f"n{chosen.random()}"}, Write()),
                lambda: create(still, recurring("*/5 * * * * *")),
            ]
        )
        with contextlib.suppress(StoreUnavailable):  # too many at once on one job
            await operation()

    hand = await Hand.opened(still)
    moment = await still.clock.now()
    for _ in range(40):
        moment = await travel(still, moment + timedelta(seconds=3))
        await asyncio.gather(
            *(plan_all(still) for _ in range(3)),
            *(change(chosen.choice(jobs)) for _ in range(4)),
            end_memberships(still, None, moment),
            hand.run_all(),
        )
        await check_sound(still)
    await travel(still, moment + timedelta(seconds=7))
    await plan_all(still)
    await admit_all(still)  # they are queued when their jobs are deleted
    for job in jobs:
        with contextlib.suppress(HourbellError):
            await delete_job(still, job.job_id, Write())
    await hand.run_all()
    statuses = {
        row["status"] for row in await still.database.fetch("select status from hourbell.ledger")
    }
    assert statuses == {0, 3}  # SUCCEEDED and SUPERSEDED: nothing was late
