"""Slabs: what is ready and what is leased moves a hundred at a time, and each execution still has its own fate."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from datetime import timedelta

import pytest

from hourbell.dispatch import Claimed
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.settlement import ACCEPTED, SUCCEEDED, Settlement
from integration.life.limits import limit_queue
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    expire_session,
    fates,
    fill,
    in_transaction,
    one_time,
    places,
    somebody_waits,
    travel,
)

DIGEST = hashlib.sha256(b"a token").hexdigest()


async def slabs(engine: Engine, table: str) -> list[int]:
    """How many executions each slab names."""
    rows = await engine.database.fetch(f"select cardinality(ids) as n from hourbell.{table}")  # noqa: S608
    return sorted(row["n"] for row in rows)


async def claimed(engine: Engine, count: int) -> tuple[Hand, list[Claimed]]:
    """A worker that has claimed a slab."""
    await fill(engine, count)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    runs = await hand.claim()
    assert await slabs(engine, "leased") == [count]
    return hand, runs


async def test_a_thousand_are_ready_and_leased_in_a_few_rows(engine: Engine) -> None:
    hand = await Hand.opened(engine)
    await fill(engine, 1000)
    await admit_all(engine)
    assert len(await slabs(engine, "ready")) <= 20
    assert len(await hand.claim()) == 1000
    assert await slabs(engine, "leased") == [100] * 10
    await check_sound(engine)


async def test_what_few_sessions_could_take_at_once_is_cut_for_many(engine: Engine) -> None:
    hands = [await Hand.opened(engine) for _ in range(10)]
    await fill(engine, 80)
    await admit_all(engine)
    assert await slabs(engine, "ready") == [2] * 40
    assert [len(await hand.claim(8)) for hand in hands] == [8] * 10


@pytest.mark.parametrize("sizes", [(1,), (7,), (3, 50, 1), (99, 101)])
async def test_what_a_claim_does_not_take_of_a_slab_stays_ready(
    engine: Engine, sizes: tuple[int, ...]
) -> None:
    await fill(engine, 400)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    taken: list[Claimed] = []
    for n in range(400):
        runs = await hand.claim(min(sizes[n % len(sizes)], 400 - len(taken)))
        taken += runs
        assert Counter(await places(engine)) == +Counter(ready=400 - len(taken), leased=len(taken))
        lowest = await engine.database.value(
            "select min(tag) - (select v from hourbell.virtual_time order by pass desc limit 1)"
            " from hourbell.ready"
        )
        assert lowest is None or lowest >= 0
        if len(taken) == 400 or n == 30:
            break
    assert len({run.execution_id for run in taken}) == len(taken)
    await check_sound(engine)


_WAIT = "alter function hourbell.wait_for_slab(bigint) set lock_timeout = '{}'"


async def test_a_claim_waits_a_little_for_the_slab_of_another(engine: Engine) -> None:
    first, second = await Hand.opened(engine), await Hand.opened(engine)
    await fill(engine, 16)
    await admit_all(engine)
    await engine.database.value(  # one slab: what many may take is cut smaller
        "with gone as (delete from hourbell.ready returning *)"
        " insert into hourbell.ready select min(tag), max(last_tag), 0, 0, min(queue), min(priority), false, array("
        "select unnest(ids) from gone) from gone"
    )
    async with in_transaction(engine) as own:
        taken = await own.database.row(
            "select ids from hourbell.take_ready($1, $2, 1, false, 10, 0, false, false, $3, '1 second',"
            " null, null, null, null, null, null, null, null, null, null)",
            first.session.id,
            first.session.token,
            await engine.clock.now(),
        )
        assert len(taken["ids"]) == 10
        await engine.database.value(_WAIT.format("20s"))  # 20 ms may pass before the first look
        asking = asyncio.create_task(second.claim(10))
        rows: list[object] = []
        while not rows and not asking.done():
            rows = await engine.database.fetch(
                "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%claim%'"
            )
    assert rows  # it waited, and was given what the first one had put back
    assert len(await asking) == 6
    await engine.database.value(_WAIT.format("20ms"))


@pytest.mark.parametrize("first", ["success", "failure"], ids="{} first".format)
async def test_of_two_reports_of_an_execution_one_counts(engine: Engine, first: str) -> None:
    hand, runs = await claimed(engine, 5)
    one = runs[2:3]
    if first == "success":
        assert not await hand.succeed(one)
        assert await hand.fail(one, 60) == [one[0].execution_id]
        assert await fates(engine) == {"SUCCEEDED": 1}
    else:
        assert not await hand.fail(one, 60)
        assert await hand.succeed(one) == [one[0].execution_id]
        assert await places(engine) == {"leased": 4, "due": 1}
    await check_sound(engine)


@pytest.mark.parametrize("first", ["success", "failure"], ids="{} first".format)
async def test_of_two_reports_at_once_one_counts(engine: Engine, first: str) -> None:
    """The second one waits for the first, which has not committed."""
    hand, runs = await claimed(engine, 5)
    one = runs[2:3]
    async with in_transaction(engine) as own:
        early = Hand(own, hand.session)
        assert not await (early.succeed(one) if first == "success" else early.fail(one, 60))
        late = asyncio.create_task(hand.fail(one, 60) if first == "success" else hand.succeed(one))
        rows: list[object] = []
        while not rows and not late.done():
            rows = await engine.database.fetch(
                "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%settle%'"
            )
        assert rows
    assert await late == [one[0].execution_id]
    await check_sound(engine)


async def test_a_slab_is_there_as_long_as_one_of_it_runs(engine: Engine) -> None:
    hand, runs = await claimed(engine, 10)
    for part in (runs[:1], runs[8:], runs[1:4], runs[5:8]):
        assert not await hand.succeed(part)
        assert await slabs(engine, "leased") == [10]
    assert await places(engine) == {"leased": 1}
    assert not (await hand.beat(runs[4:5])).lost
    assert not await hand.succeed(runs[4:5])
    assert await slabs(engine, "leased") == []
    hand, runs = await claimed(engine, 10)  # all but one at once
    assert not await hand.succeed(runs[:9])
    assert await places(engine) == {"leased": 1}
    await check_sound(engine)


async def test_a_slab_of_which_two_reports_take_the_last_at_once_goes_with_the_second(
    engine: Engine,
) -> None:
    hand, runs = await claimed(engine, 2)
    async with in_transaction(engine) as own:
        assert not await Hand(own, hand.session).succeed(runs[:1])
        second = asyncio.create_task(hand.succeed(runs[1:]))
        await somebody_waits(engine, "settle")
    assert not await second
    assert await slabs(engine, "leased") == []
    assert await fates(engine) == {"SUCCEEDED": 2}


async def test_a_report_that_repeats_some_ends_the_others(engine: Engine) -> None:
    """As after an answer that was lost: the worker reports them again, with what has ended since."""
    hand, runs = await claimed(engine, 5)
    assert not await hand.succeed(runs[:2])
    assert set(await hand.succeed(runs[:4])) == {run.execution_id for run in runs[:2]}
    assert await fates(engine) == {"SUCCEEDED": 4}
    assert await places(engine) == {"leased": 1}
    await check_sound(engine)


@pytest.mark.parametrize("order", [1, -1], ids=["whole slabs", "in another order"])
async def test_each_of_many_that_are_reported_together_has_its_own_times(
    engine: Engine, order: int
) -> None:
    await fill(engine, 250)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    runs = await hand.claim()
    assert await slabs(engine, "leased") == [50, 100, 100]
    report = [
        Settlement(run.execution_id, run.fence, SUCCEEDED, begun_ms=n, took_ms=1000 + n)
        for n, run in enumerate(runs)
    ]
    assert not await hand.dispatch.settle(hand.session, report[::order])
    rows = await engine.database.fetch(
        "select id, fence, fate, session, started_at - to_timestamp(fence / 1000000) as begun,"
        " finished_at - started_at as took from hourbell.outcomes"
    )
    assert {row["fate"] for row in rows} == {0}
    assert {row["session"] for row in rows} == {hand.session.id}
    ended = {row["id"]: row for row in rows}
    first = ended[runs[0].execution_id]["begun"]
    for n, run in enumerate(runs):
        row = ended[run.execution_id]
        assert row["fence"] == run.fence
        assert row["begun"] - first == timedelta(milliseconds=n)
        assert row["took"] == timedelta(milliseconds=1000 + n)
    await check_sound(engine)


async def test_a_whole_slab_under_the_fence_of_another_is_refused(engine: Engine) -> None:
    await fill(engine, 200)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    runs = await hand.claim()
    fences = [runs[0].fence] * 100 + [runs[100].fence] * 100
    assert [run.fence for run in runs] == fences
    swapped = [
        Settlement(run.execution_id, fence, SUCCEEDED)
        for run, fence in zip(runs, [fences[0], *fences[-1:1:-1], fences[-1]], strict=True)
    ]
    right = {
        one.execution_id for one, fence in zip(swapped, fences, strict=True) if one.fence == fence
    }
    refused = await hand.dispatch.settle(hand.session, swapped)
    assert set(refused) == {run.execution_id for run in runs} - right
    assert await fates(engine) == {"SUCCEEDED": len(right)}
    assert not await hand.succeed([run for run in runs if run.execution_id not in right])
    await check_sound(engine)


async def test_whole_slabs_that_are_reported_again_have_ended_once(engine: Engine) -> None:
    await fill(engine, 200)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    runs = await hand.claim()
    assert not await hand.succeed(runs[3:5])
    assert set(await hand.succeed(runs)) == {run.execution_id for run in runs[3:5]}
    assert set(await hand.succeed(runs)) == {run.execution_id for run in runs}
    assert await fates(engine) == {"SUCCEEDED": 200}
    assert not await places(engine)
    await check_sound(engine)


async def test_of_a_success_and_a_retry_at_once_one_counts(engine: Engine) -> None:
    """Both ways round: the second report waits for the first, and is refused."""
    hand, runs = await claimed(engine, 3)
    ids = [run.execution_id for run in runs]
    async with in_transaction(engine) as own:
        assert not await Hand(own, hand.session).succeed(runs[:1])
        second = asyncio.create_task(hand.fail(runs[:1], 60))
        await somebody_waits(engine, "settle")
    assert await second == ids[:1]
    async with in_transaction(engine) as own:
        assert not await Hand(own, hand.session).fail(runs[1:2], 60)
        second = asyncio.create_task(hand.succeed(runs[1:2]))
        await somebody_waits(engine, "settle")
    assert await second == ids[1:2]
    assert await fates(engine) == {"SUCCEEDED": 1}
    assert await places(engine) == {"due": 1, "leased": 1}
    await check_sound(engine)


async def test_what_has_ended_is_not_returned_when_the_worker_is_lost(engine: Engine) -> None:
    hand, runs = await claimed(engine, 10)
    assert not await hand.succeed(runs[:3])
    await expire_session(engine, hand.session)
    assert (await reap(engine, None, await engine.clock.now())).returned == 7
    assert await fates(engine) == {"SUCCEEDED": 3}
    assert await places(engine) == {"due": 7}
    await check_sound(engine)


async def test_what_was_given_back_is_not_lost_with_the_worker(engine: Engine) -> None:
    hand, runs = await claimed(engine, 10)
    await hand.succeed(runs[:3])
    await hand.fail(runs[3:5], 60)
    assert not (await hand.beat(runs[7:])).lost  # two of them it does not know of: they go back
    assert await places(engine) == {"leased": 3, "due": 4}
    await expire_session(engine, hand.session)
    reaped = await reap(engine, None, await engine.clock.now())
    assert (reaped.sessions, reaped.returned) == (1, 3)
    assert await slabs(engine, "leased") == []
    assert await places(engine) == {"due": 7}
    attempts = await engine.database.fetch("select attempt from hourbell.live")
    assert sorted(row["attempt"] for row in attempts) == [0, 0, 1, 1, 1, 1, 1]
    await check_sound(engine)


async def test_what_its_target_has_accepted_leaves_its_slab(engine: Engine) -> None:
    hand, runs = await claimed(engine, 4)
    assert not await hand.dispatch.settle(hand.session, accepted(runs[1:3]))
    assert await slabs(engine, "leased") == [1, 1, 2]
    assert set((await hand.beat(runs)).lost) == {run.execution_id for run in runs[1:3]}
    await expire_session(engine, hand.session)
    assert (await reap(engine, None, await engine.clock.now())).returned == 2
    assert await places(engine) == {"due": 2, "leased": 2}
    await check_sound(engine)


def accepted(runs: list[Claimed]) -> list[Settlement]:
    return [
        Settlement(run.execution_id, run.fence, ACCEPTED, 0, 0, 60.0, result=f'"{DIGEST}"')
        for run in runs
    ]


async def test_two_reports_of_accepted_executions_of_one_slab_lose_and_double_none(
    engine: Engine,
) -> None:
    """The second report waits for the first, which rewrites the slab."""
    hand, runs = await claimed(engine, 5)
    # Once before: the first report of all creates the session that has what targets accepted.
    assert not await hand.dispatch.settle(hand.session, accepted(runs[:1]))
    async with in_transaction(engine) as first:
        assert not await PostgresDispatch(first).settle(hand.session, accepted(runs[1:2]))
        second = asyncio.create_task(hand.dispatch.settle(hand.session, accepted(runs[2:3])))
        await somebody_waits(engine, "settle")
    assert not await second
    leases = await engine.database.fetch("select id, session from hourbell.leases")
    assert sorted((row["id"], row["session"] == 0) for row in leases) == sorted(
        (run.execution_id, position < 3) for position, run in enumerate(runs)
    )
    await hand.beat(runs[3:])
    assert await places(engine) == {"leased": 5}
    await check_sound(engine)


async def test_a_deadline_takes_one_out_of_a_ready_slab(still: Engine) -> None:
    for _ in range(6):
        await create(still, one_time())
    soon = await create(still, one_time(start_deadline_seconds=5))
    for _ in range(6):
        await create(still, one_time())
    await admit_all(still)
    of_slab = "select cardinality(ids) from hourbell.ready where $1 = any (ids)"
    assert await still.database.value(of_slab, soon.job_id) == 3
    for seconds in (10, 20):  # what is ready is looked for some seconds later
        await expire(still, None, await travel(still, START + timedelta(seconds=seconds)))
    assert await fates(still) == {"SKIPPED(start_deadline)": 1}
    assert await places(still) == {"ready": 12}
    await check_sound(still)


async def test_a_deadline_takes_one_out_of_a_leased_slab(still: Engine) -> None:
    await fill(still, 3)
    await create(still, one_time(deadline_seconds=5))
    await admit_all(still)
    hand = await Hand.opened(still)
    runs = await hand.claim()
    await expire(still, None, await travel(still, START + timedelta(seconds=6)))
    assert await fates(still) == {"DEAD(deadline)": 1}
    assert len((await hand.beat(runs)).lost) == 1
    assert len(await hand.succeed(runs)) == 1
    assert await fates(still) == {"DEAD(deadline)": 1, "SUCCEEDED": 3}
    assert await slabs(still, "leased") == []


async def test_a_limit_that_comes_while_a_slab_runs_is_counted_and_let_go(engine: Engine) -> None:
    hand, runs = await claimed(engine, 5)
    await limit_queue(engine, max_concurrency=5)
    await admit_all(engine)
    counted = "select count(*) from hourbell.limit_holds"
    assert await engine.database.value(counted) == 5
    await hand.succeed(runs[:2])
    await hand.fail(runs[2:3], 60)
    assert await engine.database.value(counted) == 2
    await hand.succeed(runs[3:])
    assert await engine.database.value(counted) == 0


async def test_a_limit_is_counted_while_a_report_is_under_way(engine: Engine) -> None:
    hand, runs = await claimed(engine, 3)
    await limit_queue(engine, max_concurrency=5)
    async with in_transaction(engine) as own:
        await admit_all(own)  # has counted, and has not committed
        reporting = asyncio.create_task(hand.succeed(runs))
        rows: list[object] = []
        while not rows and not reporting.done():
            rows = await engine.database.fetch(
                "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%settle%'"
            )
        assert rows
    assert not await reporting
    assert await engine.database.value("select count(*) from hourbell.limit_holds") == 0
