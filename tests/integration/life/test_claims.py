"""Leases: one holder at a time, whatever races with what."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

import msgspec
import pytest

from hourbell.dispatch import CANCELLED, DEAD, RELEASED, RETRY, SUCCEEDED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.failpoints import barrier
from hourbell.model.errors import SessionLost
from hourbell.model.executions import Claimed
from hourbell.model.jobs import decode_spec
from integration.life.children import child
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Hand,
    admit_all,
    at,
    blocked,
    check_sound,
    create,
    eventually,
    expire_session,
    fates,
    fill,
    in_transaction,
    one_time,
    open_engine,
    place_of,
    places,
    plan_all,
    recurring,
    somebody_waits,
    travel,
)


def id_of(claimed: Claimed) -> int:
    return claimed.execution_id


async def one_claimed(engine: Engine) -> tuple[Hand, Claimed]:
    await create(engine, one_time())
    await admit_all(engine)
    hand = await Hand.opened(engine)
    (claimed,) = await hand.claim()
    return hand, claimed


async def test_concurrent_claimers_never_share_an_execution(database: str, engine: Engine) -> None:
    await fill(engine, 4000)
    taken: list[Claimed] = []

    async def claimer(limit: int) -> None:
        async with open_engine(database, connections=1) as own:
            hand = await Hand.opened(own)
            while await places(own) - Counter(leased=4000):  # due or ready
                await admit_all(own)
                batch = await hand.claim(limit)
                taken.extend(batch)
                await hand.succeed(batch[::2])

    await asyncio.gather(*(claimer(limit) for limit in (7, 50, 50, 100, 331, 1000)))
    counted = Counter(one.execution_id for one in taken)
    assert len(counted) == 4000
    assert set(counted.values()) == {1}
    await check_sound(engine)


async def two_wait(engine: Engine) -> None:
    async def waiting() -> bool:
        return (
            await engine.database.value(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and query like '%hourbell.claim%'"
            )
            == 2
        )

    await eventually(waiting)


async def test_claimers_in_several_processes_never_share_an_execution(
    database: str, engine: Engine
) -> None:
    await fill(engine, 2000)
    await admit_all(engine)
    taken: Counter[str] = Counter()

    async def process() -> None:
        async with child("greedy", database, "60") as claimer:
            taken.update(
                number
                for line in await claimer.last_words()
                if line.startswith("got ")
                for number in line.split()[1:]
            )

    await asyncio.gather(*(process() for _ in range(3)))
    assert len(taken) == 2000
    assert set(taken.values()) == {1}
    await check_sound(engine)


async def test_claimers_take_different_rows_while_another_claim_has_not_committed(
    engine: Engine,
) -> None:
    await fill(engine, 150)
    await admit_all(engine)
    first, second = await Hand.opened(engine), await Hand.opened(engine)
    async with blocked(engine, "leased"):
        slow = asyncio.create_task(first.claim(100))
        await somebody_waits(engine, "hourbell.claim")  # with 100 rows in its hands
        fast = asyncio.create_task(second.claim(100))
        await two_wait(engine)
    taken = [{one.execution_id for one in await claim} for claim in (slow, fast)]
    assert len(taken[0]) == 100
    assert (
        0 < len(taken[1]) <= 50
    )  # the rest of the last slab comes back with the first claim's commit
    taken.append({one.execution_id for one in await second.claim(100)})
    assert len(set.union(*taken)) == sum(map(len, taken)) == 150


async def test_nobody_waits_for_a_claim_that_has_not_committed(engine: Engine) -> None:
    await fill(engine, 150)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    async with in_transaction(engine) as other:
        # As a claim does it, which cannot be held open: it commits by itself.
        rows = await other.database.fetch(
            "delete from hourbell.ready where ctid = any (array("
            "select ctid from hourbell.ready order by tag limit 2 for update skip locked)) returning ids"
        )
        left = 150 - sum(len(row["ids"]) for row in rows)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert 0 < len(await hand.claim(150)) == left


async def test_an_unnumbered_claim_with_a_counted_run_gives_nothing_that_is_still_held(
    still: Engine,
) -> None:
    await create(still, recurring(window={"max_runs": 5}))
    await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    held = await hand.dispatch.claim(hand.session, 0, 10)
    assert len(held) == 1
    for minute in ("10:01:01", "10:02:01"):
        await travel(still, at(minute))
        await plan_all(still)
        await admit_all(still)
        (counted,) = await hand.dispatch.claim(hand.session, 0, 10)
        assert counted.execution_id not in {one.execution_id for one in held}
        held.append(counted)
    assert (await places(still))["leased"] == 3


async def test_a_claim_of_counted_and_plain_runs_gives_each_once_and_a_repetition_the_same(
    still: Engine,
) -> None:
    for _ in range(3):
        await create(still, recurring(window={"max_runs": 5}))
        await create(still, one_time())
    await travel(still, at("10:01:01"))
    await plan_all(still)
    await admit_all(still)
    hand = await Hand.opened(still)
    claimed = await hand.claim()
    assert len({one.execution_id for one in claimed}) == len(claimed) == 6
    assert sorted(await hand.claim_again(), key=id_of) == sorted(claimed, key=id_of)
    assert await hand.claim() == []


async def test_one_execution_that_cannot_be_judged_does_not_keep_others_from_being_claimed(
    still: Engine,
) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 0)
    await admit_all(still)
    await cancel_execution(still, job.job_id, Write())
    await still.database.value(
        f"alter table hourbell.outcomes add constraint refused check (id <> {job.job_id})"
    )
    await fill(still, 10)
    await admit_all(still)
    assert len(await hand.claim()) == 10
    assert await place_of(still, job.job_id) == ["due"]


async def test_a_ready_run_whose_job_is_gone_ends_and_the_others_of_its_claim_start(
    still: Engine,
) -> None:
    """No function deletes a job; a restored or repaired database may lack the row."""
    gone, kept = [await create(still, recurring()) for _ in range(2)]
    await create(still, one_time())
    await travel(still, at("10:01:01"))
    await plan_all(still)
    await admit_all(still)
    assert (await places(still))["ready"] == 3
    await still.database.value(
        "insert into hourbell.quota_changes select tenant, -1 from hourbell.jobs where id = $1",
        gone.job_id,
    )
    await still.database.value("delete from hourbell.jobs where id = $1", gone.job_id)
    hand = await Hand.opened(still)
    claimed = await hand.claim()
    assert {one.job_id for one in claimed if one.job_id != one.execution_id} == {kept.job_id}
    assert len(claimed) == 2
    assert await fates(still) == {"SUPERSEDED": 1}
    assert await places(still) == {"leased": 2, "due": 2}  # due: those of the next minute
    await check_sound(still)


async def test_a_claim_by_an_old_time_is_recorded_by_the_clock(still: Engine) -> None:
    """As the rig found it with seed 53: the claim stood while a job was created, fell due and became ready."""
    hand = await Hand.opened(still)
    with barrier("claim.before_commit") as claiming:
        claim = asyncio.create_task(hand.claim())  # by the time of now
        await claiming.reached()
        await travel(still, START + timedelta(minutes=1))
        job = await create(still, one_time(schedule={"delay_seconds": 0}))
        await admit_all(still)
        claiming.release()
    await hand.succeed(await claim)
    ran = await get_execution(still, job.job_id)
    assert ran.started_at == ran.scheduled_for


async def test_every_claim_of_an_execution_has_a_higher_fence(engine: Engine) -> None:
    await create(engine, one_time())
    fences = []
    for _ in range(4):
        hand = await Hand.opened(engine)
        await admit_all(engine)
        claimed = await hand.claim()
        fences.append(claimed[0].fence)
        await hand.fail(claimed, 0)
    for _ in range(3):  # given back, not failed
        await admit_all(engine)
        hand = await Hand.opened(engine)
        fences.append((await hand.claim())[0].fence)
        await hand.dispatch.close(hand.session)
    assert fences == sorted(set(fences))


async def test_a_fence_rises_even_if_the_clock_was_set_back(engine: Engine) -> None:
    await create(engine, one_time())
    await admit_all(engine)
    high = 2**62
    await engine.database.value("update hourbell.executions set fence = $1", high)
    hand = await Hand.opened(engine)
    assert [one.fence for one in await hand.claim()] == [high + 1]


async def rows_of(engine: Engine, *tables: str) -> dict[str, Sequence[object]]:
    return {
        table: [
            tuple(row.values())
            for row in await engine.database.fetch(f"select ctid, xmin, * from hourbell.{table}")  # noqa: S608
        ]
        for table in tables
    }


async def test_a_claim_gives_what_it_takes_in_the_order_of_the_tags(engine: Engine) -> None:
    """Also if some of it needs more than a look: the first have no deadline, the last have one."""
    await fill(engine, 150)
    await fill(engine, 50, one_time(deadline_seconds=3600))
    await admit_all(engine)
    ready = await engine.database.value(
        "select array_agg(i.id order by r.tag, i.pos) from hourbell.ready as r"
        " cross join lateral unnest(r.ids) with ordinality as i(id, pos)"
    )
    hand = await Hand.opened(engine)
    claimed = [*await hand.claim(100), *await hand.claim(100)]
    assert [one.execution_id for one in claimed] == ready
    assert sum(one.deadline_in_seconds is not None for one in claimed) == 50
    assert {one.attempt for one in claimed} == {1}
    assert all(decode_spec(one.spec).name == "once" for one in claimed)


async def test_what_is_cancelled_while_it_is_ready_is_not_claimed(engine: Engine) -> None:
    """A claim for it may not find it, if it becomes ready at the same moment."""
    await fill(engine, 3)
    await admit_all(engine)
    ids = await engine.database.value("select array_agg(id order by id) from hourbell.executions")
    await engine.database.value(
        "insert into hourbell.cancellations (id, requested_at) values ($1, $2)",
        ids[1],
        await engine.clock.now(),
    )
    hand = await Hand.opened(engine)
    assert {one.execution_id for one in await hand.claim()} == {ids[0], ids[2]}
    assert await fates(engine) == {"CANCELLED(cancelled)": 1}


ALL_KINDS = [SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED]
TOUCHED = ("executions", "leased", "due", "outcomes", "dead_letters", "parked", "cancellations")


@pytest.mark.parametrize("off_by", [-1, 1])
@pytest.mark.parametrize("kind", ALL_KINDS)
async def test_a_stale_fence_changes_no_row(engine: Engine, kind: int, off_by: int) -> None:
    hand, claimed = await one_claimed(engine)
    before = await rows_of(engine, *TOUCHED)
    stale = Settlement(claimed.execution_id, claimed.fence + off_by, kind, 1, 1, 0.0, "why", "no")
    assert await hand.dispatch.settle(hand.session, [stale]) == [claimed.execution_id]
    assert await rows_of(engine, *TOUCHED) == before
    assert await hand.succeed([claimed]) == []  # the right one still counts


@pytest.mark.parametrize("kind", [SUCCEEDED, RETRY])
async def test_one_stale_fence_in_a_batch_spoils_nothing_else(engine: Engine, kind: int) -> None:
    await fill(engine, 5)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = await hand.claim()
    batch = [Settlement(one.execution_id, one.fence, kind, 0, 0, 60.0) for one in claimed]
    batch[2] = msgspec.structs.replace(batch[2], fence=claimed[2].fence - 1)
    assert await hand.dispatch.settle(hand.session, batch) == [claimed[2].execution_id]
    assert await fates(engine) == ({"SUCCEEDED": 4} if kind == SUCCEEDED else {})
    assert await places(engine) == {"leased": 1} | ({"due": 4} if kind == RETRY else {})


async def test_another_session_cannot_settle_what_it_does_not_hold(engine: Engine) -> None:
    _, claimed = await one_claimed(engine)
    stranger = await Hand.opened(engine)
    before = await rows_of(engine, *TOUCHED)
    assert await stranger.succeed([claimed]) == [claimed.execution_id]
    assert await rows_of(engine, *TOUCHED) == before


async def test_an_expired_sessions_work_returns_with_its_attempt_counted(engine: Engine) -> None:
    dead, claimed = await one_claimed(engine)
    await expire_session(engine, dead.session)
    reaped = await reap(engine, None, await engine.clock.now())
    assert (reaped.sessions, reaped.returned, reaped.ended) == (1, 1, 0)
    assert await place_of(engine, claimed.execution_id) == ["due"]
    await admit_all(engine)
    heir = await Hand.opened(engine)
    (again,) = await heir.claim()
    assert again.execution_id == claimed.execution_id
    assert again.attempt == 2
    assert again.fence > claimed.fence
    history = await engine.database.value("select history from hourbell.live")
    assert '"reason": "lost"' in history


async def test_one_session_that_cannot_be_judged_does_not_keep_others_from_being_reaped(
    still: Engine,
) -> None:
    bad, good = await Hand.opened(still), await Hand.opened(still)
    await fill(still, 2)
    await admit_all(still)
    [poisoned] = await bad.claim(1)
    await good.claim(1)
    # A row that no statement of ours writes: its record would violate a column of the ledger.
    await still.database.value(
        "update hourbell.executions set attempt = 2147483647 where id = $1", poisoned.execution_id
    )
    for hand in (bad, good):
        await expire_session(still, hand.session)
    assert (await reap(still, None, await still.clock.now())).sessions == 1


async def test_a_worker_that_dies_after_the_clock_was_set_back_is_reaped_by_the_new_time(
    still: Engine,
) -> None:
    await Hand.opened(still)
    now = await travel(still, START - timedelta(hours=1))
    assert (await reap(still, None, now)).sessions == 0
    now = await travel(still, now + 2 * still.times.lease)
    assert (await reap(still, None, now)).sessions == 1


async def test_completion_after_the_lease_was_lost_is_refused(engine: Engine) -> None:
    late, claimed = await one_claimed(engine)
    await expire_session(engine, late.session)
    await reap(engine, None, await engine.clock.now())

    async def refused_everything() -> None:
        before = await rows_of(engine, *TOUCHED)
        assert await late.succeed([claimed]) == [claimed.execution_id]
        assert await late.fail([claimed], 0) == [claimed.execution_id]
        with pytest.raises(SessionLost):
            await late.beat([claimed])
        with pytest.raises(SessionLost):
            await late.claim()
        assert await rows_of(engine, *TOUCHED) == before

    await refused_everything()  # while nobody holds it
    heir = await Hand.opened(engine)
    await admit_all(engine)
    (again,) = await heir.claim()
    await refused_everything()  # while another transaction does
    assert not await heir.succeed([again])
    await refused_everything()  # when it has ended
    assert await fates(engine) == {"SUCCEEDED": 1}


async def test_a_session_with_the_wrong_token_is_no_session(engine: Engine) -> None:
    mine, claimed = await one_claimed(engine)
    other = await Hand.opened(engine)
    forged = Hand(engine, type(mine.session)(mine.session.id, other.session.token))
    with pytest.raises(SessionLost):
        await forged.claim()
    with pytest.raises(SessionLost):
        await forged.beat([])
    assert await forged.succeed([claimed]) == [claimed.execution_id]
    await forged.dispatch.close(forged.session)
    assert await places(engine) == {"leased": 1}


async def test_a_claim_under_way_keeps_the_reaper_off_its_session(engine: Engine) -> None:
    await create(engine, one_time())
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await expire_session(engine, hand.session)
    async with blocked(engine, "leased"):
        claiming = asyncio.create_task(hand.claim())
        await somebody_waits(engine, "hourbell.claim")
        assert (await reap(engine, None, await engine.clock.now())).sessions == 0  # nor waits
    assert len(await claiming) == 1
    assert await places(engine) == {"leased": 1}
    reaped = await reap(engine, None, await engine.clock.now())
    assert (reaped.sessions, reaped.returned) == (1, 1)  # what was claimed comes back whole
    await check_sound(engine)


async def test_a_claim_that_meets_the_reaper_at_work_finds_its_session_gone(engine: Engine) -> None:
    await fill(engine, 2)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await hand.claim(1)
    await expire_session(engine, hand.session)
    async with in_transaction(engine) as reaping:
        assert (await reap(reaping, None, await engine.clock.now())).returned == 1
        claiming = asyncio.create_task(hand.claim())
        await somebody_waits(engine, "hourbell.claim")
    with pytest.raises(SessionLost):
        await claiming
    assert await places(engine) == {"due": 1, "ready": 1}
    await check_sound(engine)


async def test_a_settle_under_way_keeps_the_reaper_off_its_session(engine: Engine) -> None:
    hand, claimed = await one_claimed(engine)
    await expire_session(engine, hand.session)
    async with in_transaction(engine) as settling:
        assert await Hand(settling, hand.session).succeed([claimed]) == []
        assert (await reap(engine, None, await engine.clock.now())).sessions == 0
    assert (await reap(engine, None, await engine.clock.now())).returned == 0
    assert await fates(engine) == {"SUCCEEDED": 1}
    await check_sound(engine)


async def test_a_settle_that_meets_the_reaper_at_work_is_refused(engine: Engine) -> None:
    hand, claimed = await one_claimed(engine)
    await expire_session(engine, hand.session)
    async with in_transaction(engine) as reaping:
        assert (await reap(reaping, None, await engine.clock.now())).returned == 1
        settling = asyncio.create_task(hand.succeed([claimed]))
        await somebody_waits(engine, "hourbell.settle")
    assert await settling == [claimed.execution_id]
    assert await fates(engine) == {}
    await check_sound(engine)


async def test_a_heartbeat_that_was_first_saves_its_session_from_the_reaper(still: Engine) -> None:
    hand, claimed = await one_claimed(still)
    await expire_session(still, hand.session)
    async with in_transaction(still) as beating:
        await Hand(beating, hand.session).beat([claimed])
        assert (await reap(still, None, await still.clock.now())).sessions == 0
    assert (await reap(still, None, await still.clock.now())).sessions == 0
    assert await hand.succeed([claimed]) == []


async def test_claims_and_settles_racing_the_reaper_lose_and_double_nothing(
    database: str, engine: Engine
) -> None:
    await fill(engine, 120)
    settled: list[int] = []

    async def short_lived(own: Engine) -> None:
        """Claims and settles, while its sessions expire under it all the time."""
        hand = await Hand.opened(own)
        while await places(own):
            await admit_all(own)
            try:
                claimed = await hand.claim(20)
                await expire_session(own, hand.session)
                await asyncio.sleep(0)
                refused = set(await hand.succeed(claimed))
                settled.extend(c.execution_id for c in claimed if c.execution_id not in refused)
            except SessionLost:
                hand = await Hand.opened(own)

    async def reaper(own: Engine) -> None:
        while await places(own):
            # As one that takes nobody for a killer: all expire here, and all are innocent.
            await own.database.row(
                "select * from hourbell.reap(null, null, $1, 30000)",
                await own.clock.now() + timedelta(microseconds=1),
            )

    async with AsyncExitStack() as stack:
        own = [await stack.enter_async_context(open_engine(database)) for _ in range(5)]
        await asyncio.gather(*map(short_lived, own[:4]), reaper(own[4]))
    assert Counter(settled).most_common(1)[0][1] == 1
    assert len(settled) == 120
    assert await fates(engine) == {"SUCCEEDED": 120}
    await check_sound(engine)
