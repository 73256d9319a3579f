"""Whose turn it is where something is limited, and after a weight was changed."""

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.reap import expire
from hourbell.model.executions import Claimed
from integration.life.limits import (
    SECOND,
    by_tenant,
    claimed,
    in_time,
    limit_queue,
    limit_tenant,
    queued,
)
from integration.life.support import (
    START,
    Hand,
    admit_all,
    create_many,
    fill,
    one_time,
    travel,
)

# Priorities.


async def test_what_is_low_goes_on_in_a_limited_queue_too(still: Engine) -> None:
    await limit_queue(still, max_concurrency=2)
    hand = await Hand.opened(still)
    await queued(still, 10)
    await queued(still, 1, priority="LOW", tenant_id="lowly")
    done: list[Claimed] = []
    for _ in range(100):
        await queued(still, 2)
        runs = await claimed(still, hand)
        await hand.succeed(runs)
        done += runs
    assert by_tenant(done)["lowly"] == 1


async def test_what_is_low_goes_on_although_an_urgent_one_comes_for_every_place(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await limit_queue(still, max_concurrency=1)
    await queued(still, 1, priority="CRITICAL")
    running = await claimed(still, hand)
    [low] = await queued(still, 1, priority="LOW")
    await admit_all(still)
    for _ in range(300):
        await queued(still, 1, priority="CRITICAL")
        await hand.succeed(running)
        await admit_all(still)
        running = await hand.claim(1)
        if running[0].execution_id == low:
            break
    assert running[0].execution_id == low


# Weights.


@pytest.mark.parametrize("apart", ["priority", "queue"])
async def test_a_weight_that_is_raised_leaves_nothing_behind(still: Engine, apart: str) -> None:
    """One part of a tenant's work after the other gets new tags, while claims go on."""
    parts = ["CRITICAL", "HIGH"] if apart == "priority" else ["x", "y"]
    hand = await Hand.opened(still, ["default", "x", "y"])
    for part in parts:
        await queued(still, 30, tenant_id="a", **{apart: part})
    await admit_all(still)
    runs = await hand.claim(40)
    await limit_tenant(still, "a", weight=4.0)
    await admit_all(still)
    runs += await in_time(still, hand)
    assert len(runs) == 60


async def test_a_weight_acts_where_many_tenants_have_the_same_place(still: Engine) -> None:
    hand = await Hand.opened(still)
    await limit_tenant(still, "a", weight=4.0)
    await admit_all(still)
    for name in "abcdefghij":
        await create_many(still, [one_time(tenant_id=name)] * (40 if name == "a" else 10))
    await admit_all(still)
    await limit_tenant(still, "a", weight=1.0)
    while (await admit(still, await still.clock.now(), batch=8)).more:
        pass
    assert by_tenant(await hand.claim(50))["a"] == pytest.approx(5, abs=2)


@pytest.mark.parametrize(("before", "after", "share"), [(1.0, 3.0, 30), (3.0, 1.0, 20)])
async def test_a_weight_acts_on_what_is_parked(
    still: Engine, before: float, after: float, share: int
) -> None:
    await limit_tenant(still, "a", weight=before)
    await limit_queue(still, max_concurrency=1)
    hand = await Hand.opened(still)
    await admit_all(still)
    await queued(still, 80, tenant_id="a")
    await queued(still, 80, tenant_id="b")
    await admit_all(still)
    await limit_tenant(still, "a", weight=after)
    order = [run.tenant_id for run in await hand.run_all()][1:41]
    assert order.count("a") == pytest.approx(share, abs=2)


# Tenants beside one another.


async def test_a_tenant_that_was_here_before_is_not_behind_a_new_one(still: Engine) -> None:
    await limit_queue(still, max_concurrency=1)
    hand = await Hand.opened(still)
    for _ in range(5):
        await queued(still, 10, tenant_id="old")
        await hand.run_all()
    await queued(still, 60, tenant_id="new")
    await admit_all(still)
    await queued(still, 3, tenant_id="old")
    order = [run.tenant_id for run in await hand.run_all()]
    assert order.index("old") < 5


async def test_what_left_without_being_served_is_not_charged(still: Engine) -> None:
    hand = await Hand.opened(still)
    await create_many(still, [one_time(tenant_id="a", start_deadline_seconds=10)] * 100)
    await queued(still, 1, tenant_id="c")
    await admit_all(still)
    for seconds in (20, 40, 60):
        await travel(still, START + seconds * SECOND)
        while await expire(still, None, await still.clock.now()):
            pass
    await create_many(still, [one_time(tenant_id="a")] * 60)
    await create_many(still, [one_time(tenant_id="b")] * 60)
    await admit_all(still)
    await hand.claim(1)
    assert by_tenant(await hand.claim(60)) == pytest.approx({"a": 30, "b": 30}, abs=2)


async def test_who_is_let_go_in_thousands_does_not_hold_up_the_others(still: Engine) -> None:
    await limit_tenant(still, "default", max_concurrency=0)
    hand = await Hand.opened(still)
    await fill(still, 10_000)
    await admit_all(still)
    _, second = await queued(still, 2, tenant_id="b", concurrency_key="k", priority="CRITICAL")
    [run] = await claimed(still, hand)
    await limit_tenant(still, "default")
    await hand.succeed([run])
    for _ in range(3):
        await admit(still, await still.clock.now())
    ready = await still.database.fetch(
        "select ids from hourbell.ready where $1 = any (ids)", second
    )
    assert len(ready) == 1
