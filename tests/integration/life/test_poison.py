"""A job that kills its worker, among 499 that do not."""

import asyncio
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import explain_execution
from hourbell.model.executions import ExecutionStatus, Reason
from hourbell.model.ids import parse_execution_id
from integration.life.child import IMPATIENT
from integration.life.children import child
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    create,
    eventually,
    expire_session,
    fates,
    fill,
    one_round,
    one_time,
    place_of,
    places,
    scheduling,
    travel,
)

MINUTE = timedelta(minutes=1)


async def test_a_job_that_kills_its_worker_dies_after_three_crashes_and_499_others_succeed(
    database: str, engine: Engine, tmp_path: Path
) -> None:
    engine.times = IMPATIENT
    log = tmp_path / "started"
    await fill(engine, 250, one_time("note"))
    poison = await create(
        engine,
        one_time(
            "poison",
            retry_policy={"backoff": "FIXED", "initial_delay_seconds": 0, "max_crashes": 1},
        ),
    )
    await fill(engine, 249, one_time("note"))
    await admit_all(engine)
    deaths = 0

    async def keep_a_worker_alive() -> None:
        nonlocal deaths
        while True:
            async with child("worker", database, str(log), "500") as worker:
                assert await worker.ends(60) == -9  # it runs hundreds, each alone
                deaths += 1

    async def all_have_ended() -> bool:
        return not await places(engine)

    async with scheduling(engine):
        keeper = asyncio.create_task(keep_a_worker_alive())
        try:
            await eventually(all_have_ended, 60)
            assert not keeper.done()
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])

    assert await fates(engine) == {"SUCCEEDED": 499, "DEAD(crashed)": 1}
    assert deaths == 3
    execution = await get_execution(engine, poison.job_id)
    assert execution.status is ExecutionStatus.DEAD
    assert execution.reason is Reason.CRASHED
    assert execution.attempt == 3
    assert [attempt.kind for attempt in execution.attempts] == ["lost", "lost", "crashed"]
    letter = await engine.database.row("select id, reason from hourbell.dead_letters")
    assert tuple(letter.values()) == (poison.job_id, "crashed")
    started = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert {parse_execution_id(name) for name in started} >= {poison.job_id}
    assert len(started) == 500


async def test_two_jobs_that_kill_their_worker_both_die_and_nobody_else(
    database: str, engine: Engine, tmp_path: Path
) -> None:
    engine.times = replace(IMPATIENT, max_crashes=1)
    log = tmp_path / "started"
    await fill(engine, 2, one_time("poison"))
    await fill(engine, 20, one_time("note"))
    await admit_all(engine)

    async def keep_a_worker_alive() -> None:
        while True:
            async with child("worker", database, str(log), "50") as worker:
                await worker.ends(60)

    async def all_have_ended() -> bool:
        return not await places(engine)

    async with scheduling(engine):
        keeper = asyncio.create_task(keep_a_worker_alive())
        try:
            await eventually(all_have_ended, 60)
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
    assert await fates(engine) == {"SUCCEEDED": 20, "DEAD(crashed)": 2}


async def lose(engine: Engine, hand: Hand) -> None:
    """The worker dies, and the reaper comes."""
    await expire_session(engine, hand.session)
    await reap(engine, None, await engine.clock.now())
    await admit_all(engine)


async def test_what_was_lost_twice_runs_alone_and_what_is_lost_alone_is_dead(
    engine: Engine,
) -> None:
    engine.times = replace(engine.times, lease_seconds=60, max_crashes=1)
    await fill(engine, 3)
    await admit_all(engine)
    for _ in range(2):
        hand = await Hand.opened(engine)
        assert len(await hand.claim()) == 3
        await lose(engine, hand)
    assert await places(engine) == {"suspects": 3}
    await fill(engine, 5)
    await admit_all(engine)

    hand = await Hand.opened(engine)
    (alone,) = await hand.claim()  # only one, and nothing beside it
    assert await hand.claim() == []
    other = await Hand.opened(engine)
    assert len(await other.claim()) == 5  # the others go on
    assert await other.claim() == []  # and leave the suspects to the first
    await lose(engine, hand)
    execution = await get_execution(engine, alone.execution_id)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.CRASHED)

    hand = await Hand.opened(engine)
    (innocent,) = await hand.claim()
    await hand.succeed([innocent])
    (innocent,) = await hand.claim()
    await hand.succeed([innocent])
    assert await hand.claim() == []
    assert await fates(engine) == {"SUCCEEDED": 2, "DEAD(crashed)": 1}


@pytest.mark.parametrize(
    ("system", "job", "survived"),
    [(3, None, 4), (1, None, 2), (5, None, 6), (3, 1, 2), (1, 4, 5), (3, 20, 21)],
)
async def test_only_deaths_of_a_worker_under_an_execution_that_ran_alone_count_against_it(
    engine: Engine, system: int, job: int | None, survived: int
) -> None:
    engine.times = replace(engine.times, lease_seconds=60, max_crashes=system)
    policy = {"max_retries": 0, "max_crashes": job}
    created = await create(engine, one_time(retry_policy=policy))
    await admit_all(engine)
    for death in range(1, survived + 2):
        hand = await Hand.opened(engine)
        (claimed,) = await hand.claim()
        assert (claimed.execution_id, claimed.attempt) == (created.job_id, death)
        await lose(engine, hand)
    assert await fates(engine) == {"DEAD(crashed)": 1}


async def test_an_innocent_execution_survives_three_deaths_of_its_worker_in_a_row(
    engine: Engine,
) -> None:
    engine.times = replace(engine.times, lease_seconds=60)
    await create(engine, one_time())
    await admit_all(engine)
    for _ in range(3):
        hand = await Hand.opened(engine)
        assert len(await hand.claim()) == 1
        await lose(engine, hand)
    hand = await Hand.opened(engine)
    await hand.succeed(await hand.claim())
    assert await fates(engine) == {"SUCCEEDED": 1}


async def test_a_job_that_cannot_be_read_has_the_crash_limit_of_the_system(engine: Engine) -> None:
    engine.times = replace(engine.times, lease_seconds=60, max_crashes=1)
    await create(engine, one_time())
    await engine.database.value("update hourbell.executions set spec = '{\"retry'")
    await admit_all(engine)
    for _ in range(3):
        hand = await Hand.opened(engine)
        assert len(await hand.claim()) == 1
        await lose(engine, hand)
    assert await fates(engine) == {"DEAD(crashed)": 1}


async def test_a_suspect_does_not_make_a_worker_with_a_long_run_stand_idle(still: Engine) -> None:
    still.times = replace(still.times, lease_seconds=15)
    busy = await Hand.opened(still)
    await fill(still, 1)
    await admit_all(still)
    long = await busy.claim()
    await travel(still, at("10:00:40"))
    suspect = await create(still, one_time())
    await admit_all(still)
    for _ in range(2):
        hand = await Hand.opened(still)
        assert len(await hand.claim()) == 1
        await lose(still, hand)
    assert await place_of(still, suspect.job_id) == ["suspects"]

    # It has the run in hand that it claimed at 10:00:30, and only for so long does it wait for that.
    for moment in ("10:00:45", "10:00:50", "10:01:00", "10:01:10", "10:02:00"):
        await travel(still, at(moment))
        await busy.beat(long)
        await fill(still, 2)
        await admit_all(still)
        assert not await busy.succeed(await busy.claim())
    assert await fates(still) == {"SUCCEEDED": 10}
    idle = await Hand.opened(still)
    assert [one.execution_id for one in await idle.claim()] == [suspect.job_id]


async def suspected(engine: Engine, **fields: object) -> int:
    """An execution with which two workers have died."""
    job = await create(engine, one_time(**fields))
    await admit_all(engine)
    for _ in range(2):
        hand = await Hand.opened(engine)
        await hand.claim()
        await lose(engine, hand)
    assert await place_of(engine, job.job_id) == ["suspects"]
    return job.job_id


async def test_a_suspect_gets_its_turn_also_when_every_worker_is_always_busy(
    still: Engine,
) -> None:
    still.times = replace(still.times, lease_seconds=15)
    hand = await Hand.opened(still)
    await fill(still, 1)
    await admit_all(still)
    [old] = await hand.claim(1)
    await travel(still, START + MINUTE)
    await hand.beat([old])
    suspect = await suspected(still)
    for minutes in range(2, 8):
        await travel(still, START + minutes * MINUTE)
        await fill(still, 1)
        await admit_all(still)
        new = await hand.claim(1)
        if not new:
            break  # it drains
        await travel(still, START + minutes * MINUTE + MINUTE / 2)
        await hand.succeed([old])
        [old] = new
        await hand.beat([old])
    await hand.succeed([old])
    [alone] = await hand.claim(1)
    assert alone.execution_id == suspect


async def test_a_suspect_is_cancelled_at_once(still: Engine) -> None:
    suspect = await suspected(still)
    assert (await explain_execution(still, suspect)).code == "quarantine"
    cancelled = await cancel_execution(still, suspect, Write())
    assert cancelled.status is ExecutionStatus.CANCELLED


async def test_a_suspect_that_misses_its_deadline_ends(still: Engine) -> None:
    suspect = await suspected(still, deadline_seconds=600)
    await one_round(still, at("11:00"))
    await one_round(still, at("11:01"))
    assert (await get_execution(still, suspect)).reason is Reason.DEADLINE


async def test_a_failure_between_two_crashes_begins_the_count_anew(engine: Engine) -> None:
    job = await create(engine, one_time())
    await admit_all(engine)
    for _ in range(3):
        hand = await Hand.opened(engine)
        await hand.claim()
        await lose(engine, hand)
        assert await place_of(engine, job.job_id) == ["ready"]  # lost once, so no suspect
        hand = await Hand.opened(engine)
        await hand.fail(await hand.claim(), 0)
        await admit_all(engine)


async def test_what_is_cancelled_while_its_worker_dies_is_cancelled(engine: Engine) -> None:
    job = await create(engine, one_time())
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await hand.claim()
    await cancel_execution(engine, job.job_id, Write())
    await lose(engine, hand)
    assert await fates(engine) == {"CANCELLED(cancelled)": 1}
