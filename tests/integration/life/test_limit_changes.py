"""A limit that is set, changed or removed while there is work: it acts on what is ready and on what runs, and leaves nothing behind."""

import asyncio
import random

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue
from hourbell.engine.operations.runs import cancel_execution
from hourbell.model.limits import QueueSettings, RateLimit
from integration.life.limits import (
    SECOND,
    by_tenant,
    claimed,
    in_time,
    limit_queue,
    limit_tenant,
    nothing_is_held,
    queued,
)
from integration.life.support import (
    START,
    Hand,
    admit_all,
    blocked,
    eventually,
    fill,
    in_transaction,
    places,
    scheduling,
    somebody_waits,
    travel,
    working,
)


async def test_a_new_limit_binds_what_is_ready_and_holds_another(still: Engine) -> None:
    await limit_tenant(still, "default", max_concurrency=100)
    await queued(still, 10)
    await queued(still, 10, concurrency_key="k", concurrency_limit=10)
    hand = await Hand.opened(still)
    await admit_all(still)
    await limit_queue(still, max_concurrency=1)
    assert len(await in_time(still, hand)) == 1


async def test_a_lowered_limit_binds_what_is_ready(still: Engine) -> None:
    await limit_queue(still, max_concurrency=10)
    await queued(still, 10)
    hand = await Hand.opened(still)
    await admit_all(still)
    await limit_queue(still, max_concurrency=3)
    assert len(await in_time(still, hand)) == 3


async def test_a_new_limit_binds_suspects(still: Engine) -> None:
    await queued(still, 2)
    await still.database.value("update hourbell.executions set crashes = 2")
    await still.database.value("update hourbell.due set flags = 2")
    await admit_all(still)
    await limit_queue(still, max_concurrency=0)
    hand = await Hand.opened(still)
    assert await in_time(still, hand) == []


@pytest.mark.parametrize("again", [False, True])
async def test_what_ends_while_a_limit_is_set_leaves_no_hold(still: Engine, again: bool) -> None:
    await queued(still, 2)
    hand = await Hand.opened(still)
    await admit_all(still)
    runs = await hand.claim(1)
    async with in_transaction(still) as own:
        ending = Hand(own, hand.session)
        await (ending.fail(runs, 0) if again else ending.succeed(runs))
        await limit_queue(still, max_concurrency=1)
        await admit(still, await still.clock.now())
    for _ in range(3):
        [run] = (await in_time(still, hand)) or [None]
        if run is not None:
            await hand.succeed([run])
        if not await places(still):
            break
    await nothing_is_held(still)


async def test_many_limits_set_at_once_let_nobody_on_before_they_are_counted(still: Engine) -> None:
    hand = await Hand.opened(still)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        await queued(still, 1, tenant_id=name)
    assert len(await claimed(still, hand)) == 8
    for name in names:
        await queued(still, 1, tenant_id=name)
        await limit_tenant(still, name, max_concurrency=1)
    assert await claimed(still, hand) == []


async def test_an_old_hold_does_not_start_under_a_limit_that_nobody_has_counted_for(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await limit_queue(still, max_concurrency=5)
    await admit_all(still)
    await queued(still, 1, priority="LOW")
    await admit_all(still)
    await limit_queue(still)
    await queued(still, 4)
    await admit_all(still)
    assert len(await hand.claim(4)) == 4  # they are not counted
    await limit_queue(still, max_concurrency=1)
    assert await hand.claim(4) == []


async def test_a_limit_that_is_set_in_the_middle_of_a_pass_counts(still: Engine) -> None:
    hand = await Hand.opened(still)
    await queued(still, 1)
    assert len(await claimed(still, hand)) == 1
    await travel(still, START + 2 * SECOND)
    await queued(still, 1)
    async with blocked(still, "due"):  # where the pass comes after counting
        passing = asyncio.create_task(admit(still, await still.clock.now()))
        await somebody_waits(still, "hourbell.admit")
        await limit_queue(still, max_concurrency=1)
    await passing
    assert await hand.claim(10) == []


async def test_what_was_ready_before_its_tenant_was_stopped_is_in_nobodys_way(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await fill(still, 3_000)
    await queued(still, 5, tenant_id="b", priority="LOW")
    await admit_all(still)
    await limit_tenant(still, "default", max_concurrency=0)
    assert by_tenant(await hand.claim(10)) == {"b": 5}
    await admit_all(still)
    assert await places(still) == {"parked": 3_000, "leased": 5}


async def test_a_cancel_that_was_granted_does_not_wait_for_a_limit(still: Engine) -> None:
    hand = await Hand.opened(still)
    [ready] = await queued(still, 1)
    await admit_all(still)
    await cancel_execution(still, ready, Write())
    await limit_queue(still, max_concurrency=0)
    assert await in_time(still, hand) == []
    assert await places(still) == {}


async def test_what_was_claimed_before_a_limit_was_set_is_counted_when_it_shows(
    still: Engine,
) -> None:
    await queued(still, 3)
    hand = await Hand.opened(still)
    await admit_all(still)
    async with in_transaction(still) as own:
        session, now = hand.session, await still.clock.now()
        await own.database.row(
            "select * from hourbell.take_ready($1, $2, 1, false, 1, 0, false, false, $3, '15 s',"
            " null, null, null, null, null, null, null, null, null, null)",
            session.id,
            session.token,
            now,
        )
        await limit_queue(still, max_concurrency=1)
        await travel(still, START + SECOND)
        await admit_all(still)
    other = await Hand.opened(still)
    await travel(still, START + 2 * SECOND)
    await admit_all(still)  # counts what has shown
    assert await in_time(still, other) == []


async def test_limits_that_change_under_load_leave_nothing_behind(engine: Engine) -> None:
    """Set, lowered, raised and removed again and again, while two workers are at work."""
    chosen = random.Random(3)

    async def toggled() -> None:
        for _ in range(40):
            limit = chosen.choice([None, 1, 3, 50])
            await set_queue(engine, "default", QueueSettings(max_concurrency=limit), Write())
            await fill(engine, 200)
            await asyncio.sleep(0.05)
        await set_queue(engine, "default", QueueSettings(max_concurrency=50), Write())

    async def done() -> bool:
        return not await places(engine)

    async with scheduling(engine), working(engine, slots=20), working(engine, slots=20):
        await toggled()
        await eventually(done, seconds=60)
    await nothing_is_held(engine)


# Rates.


async def test_a_rate_that_is_raised_acts_at_once(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(0.001))
    hand = await Hand.opened(still)
    await queued(still, 3)
    assert len(await in_time(still, hand)) == 1
    await limit_queue(still, rate_limit=RateLimit(10.0))
    assert len(await in_time(still, hand)) == 2
    await queued(still, 1)
    assert len(await in_time(still, hand)) == 1


async def test_a_rate_that_is_set_again_as_it_was_costs_nothing(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(0.01, burst=5))
    hand = await Hand.opened(still)
    await queued(still, 5)
    await admit_all(still)
    await limit_queue(still, rate_limit=RateLimit(0.01, burst=5))
    assert len(await in_time(still, hand)) == 5
