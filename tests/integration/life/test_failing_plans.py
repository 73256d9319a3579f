"""A job whose executions cannot be planned stops the planning of no other, and continues when they can."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from hourbell.engine.core import Engine
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import plan
from hourbell.engine.operations.change import delete_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.attention import attention
from hourbell.model.ids import job_text
from integration.life.support import (
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    history,
    one_round,
    plan_all,
    recurring,
    travel,
)


@asynccontextmanager
async def unplannable(engine: Engine, job_id: int) -> AsyncIterator[None]:
    """Within it, a statement that creates an execution of this job fails."""
    await engine.database.value(
        f"alter table hourbell.executions add constraint bad check (job <> {job_id}) not valid"
    )
    try:
        yield
    finally:
        await engine.database.value("alter table hourbell.executions drop constraint bad")


async def failing(engine: Engine) -> list[str]:
    now = await engine.clock.now()
    items = await attention(engine, now, None, None)
    return [item.refers_to.id for item in items if item.code == "row_failing"]


async def times(engine: Engine, job_id: int) -> list[str]:
    return [f"{fate.occurrence:%H:%M}" for fate in await history(engine, job_id, at("10:59"))]


async def run_all(engine: Engine) -> None:
    """What is due runs."""
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await hand.succeed(await hand.claim_all())
    await hand.dispatch.close(hand.session)


async def test_a_fire_continues_without_a_member_on_which_it_fails(still: Engine) -> None:
    jobs = [(await create(still, recurring(misfire_policy="all"))).job_id for _ in range(21)]
    other = (await create(still, recurring("*/2 * * * *"))).job_id
    bad, good = jobs[10], jobs[:10] + jobs[11:]
    await plan_all(still)
    await travel(still, at("10:02:30"))
    await run_all(still)
    before = await times(still, bad)
    async with unplannable(still, bad):
        with capture_logs() as logs:
            await plan_all(still)
            await run_all(still)
        for job_id in good:
            assert await times(still, job_id) == [*before, "10:02", "10:03"]
        assert await times(still, other) == ["10:02"]
        assert await times(still, bad) == before
        assert await failing(still) == [job_text(bad)]
        (line,) = [line for line in logs if line["event"] == "row fails"]
        assert (line["step"], line["job_id"]) == ("join", job_text(bad))

        # It is retried, and logged once.
        now = await travel(still, at("10:04:30"))
        with capture_logs() as logs:
            await plan_all(still)
            await complete_joins(still, now)
        assert [line for line in logs if line["event"] == "row fails"] == []
        assert await times(still, bad) == before
        assert await failing(still) == [job_text(bad)]
    await plan_all(still, await travel(still, at("10:06:30")))
    await complete_joins(still, await still.clock.now())
    await run_all(still)
    # Nothing is lost, and nothing is there twice.
    for job_id in jobs:
        assert await times(still, job_id) == [*before, *(f"10:0{n}" for n in range(2, 8))]
    await travel(still, at("10:09"))
    assert await failing(still) == []
    await check_sound(still)


async def test_a_member_that_joins_again_gets_nothing_twice(still: Engine) -> None:
    job_id = (await create(still, recurring(misfire_policy="all"))).job_id
    for moment in ("10:01:30", "10:02:30"):
        await plan_all(still, await travel(still, at(moment)))
        await run_all(still)
    before = await times(still, job_id)
    assert len(before) == 3
    # Planning has failed on its first run, after it had got the later ones.
    await still.database.value(
        "update hourbell.memberships set joined_through = null, rejoins = true, active_since = $1",
        at("10:00:30"),
    )
    await complete_joins(still, await travel(still, at("10:03")))
    assert await times(still, job_id) == before
    await check_sound(still)


async def test_a_join_that_fails_delays_no_other(still: Engine) -> None:
    first = (await create(still, recurring())).job_id
    await plan_all(still)
    await still.database.value("update hourbell.memberships set joined_through = null")
    bad = (await create(still, recurring())).job_id
    await still.database.value(
        "update hourbell.memberships set joined_through = null, active_since = $1", at("09:59:30")
    )
    await still.database.value("delete from hourbell.executions")
    for table in ("due", "open_runs"):
        await still.database.value(f"delete from hourbell.{table}")  # noqa: S608
    async with unplannable(still, bad):
        assert not await complete_joins(still, await still.clock.now())
        assert len(await times(still, first)) > 0
        assert await times(still, bad) == []
        assert await failing(still) == [job_text(bad)]
        assert not await plan(still, None, await still.clock.now())

        # It can be removed.
        await delete_job(still, bad, Write())
        await one_round(still, at("10:05"))
    members = await still.database.fetch("select job from hourbell.memberships")
    assert [row["job"] for row in members] == [first]
    await check_sound(still)
