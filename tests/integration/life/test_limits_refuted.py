"""Ways in which limits were once shown not to hold, to leak, or to stand in somebody's way."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from hourbell.dispatch import DEAD, RELEASED, RETRY, SUCCEEDED, Settlement
from hourbell.engine.admit import admit
from hourbell.engine.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.core import Engine
from hourbell.engine.limits import set_queue, set_target, set_tenant
from hourbell.engine.reap import expire, reap
from hourbell.engine.request import cancel_execution
from hourbell.engine.writes import Write
from hourbell.model.errors import Conflict, InvalidInput, NotFound
from hourbell.model.executions import Claimed
from hourbell.model.limits import Limits, QueueSettings, RateLimit, TenantSettings
from hourbell.store.function_set import connect
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    blocked,
    check_sound,
    create,
    create_many,
    eventually,
    every,
    expire_session,
    fill,
    in_transaction,
    one_time,
    places,
    plan_all,
    recurring,
    scheduling,
    somebody_waits,
    travel,
    working,
)
from integration.life.test_limits import (
    SECOND,
    by_tenant,
    claimed,
    limit_queue,
    limit_tenant,
    nothing_is_held,
    queued,
)

HOOK = {"type": "WEBHOOK", "url": "http://h/"}


async def in_time(engine: Engine, hand: Hand, seconds: int = 5) -> list[Claimed]:
    """What starts within some seconds, looked at every second."""
    now, runs = await engine.clock.now(), []
    for number in range(seconds + 1):
        await travel(engine, now + number * SECOND)
        runs += await claimed(engine, hand)
    return runs


# Between two limits.


async def test_who_is_stopped_by_a_second_limit_does_not_keep_the_place_at_the_first(
    still: Engine,
) -> None:
    await set_target(still, "h", Limits(max_concurrency=1), Write())
    await set_queue(still, "stopped", QueueSettings(max_concurrency=0), Write())
    hand = await Hand.opened(still, ["default", "stopped"])
    await queued(still, 1, tenant_id="a", queue="stopped", action=HOOK)
    await queued(still, 1, tenant_id="b", action=HOOK)
    assert by_tenant(await in_time(still, hand)) == {"b": 1}


async def test_a_line_that_the_next_limit_would_stop_moves_on_as_a_whole(still: Engine) -> None:
    await limit_queue(still, max_concurrency=4)
    await set_target(still, "h", Limits(max_concurrency=3), Write())
    hand = await Hand.opened(still)
    await create_many(still, [one_time(tenant_id="a", action=HOOK)] * 1_500)
    await create_many(still, [one_time(tenant_id="b")] * 20)
    passes = 0
    for _ in range(6):
        while (await admit(still, await still.clock.now())).more:
            passes += 1
        await hand.succeed((await hand.claim_all())[:1])
    assert passes < 20


async def test_what_nobody_serves_does_not_use_up_its_tenants_limit(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    await limit_tenant(still, "a", max_concurrency=2)
    hand = await Hand.opened(still)
    await queued(still, 5, tenant_id="a", queue="nobodys")
    await queued(still, 1, tenant_id="a")
    assert len(await in_time(still, hand)) == 1


async def test_a_queue_that_loses_its_last_worker_lets_go_of_what_it_holds(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    await limit_tenant(still, "default", max_concurrency=2)
    leaving, staying = await Hand.opened(still, ["a"]), await Hand.opened(still, ["b"])
    await queued(still, 5, queue="a")
    await admit_all(still)
    await queued(still, 5, queue="b")
    await admit_all(still)
    await leaving.dispatch.close(leaving.session)
    assert len(await in_time(still, staying)) == 2


# A limit that is set while there is work.


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
    await still.database.value("update hourbell.due set checks = 2")
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
            "select * from hourbell.take($1, $2, 1, false, 1, 0, false, false, $3, '15 s',"
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


# Rates and clocks.


async def test_a_caller_with_an_old_time_gains_no_tokens(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(1.0, burst=5))
    hand = await Hand.opened(still)
    await queued(still, 2)
    later = START + 60 * SECOND
    await travel(still, later)
    assert len(await claimed(still, hand)) == 2
    [long_due] = await queued(still, 1, schedule={"at": START.isoformat()})
    await admit(still, later - 30 * SECOND)
    assert [run.execution_id for run in await hand.claim()] == [long_due]
    await queued(still, 10)
    assert len(await claimed(still, hand)) == 2
    for _ in range(3):
        await admit(still, later - 30 * SECOND)
        await admit(still, later)
    assert await claimed(still, hand) == []


async def test_what_was_offered_and_is_cancelled_gives_its_token_back(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(0.001))
    hand = await Hand.opened(still)
    first, second = await queued(still, 2)
    await admit_all(still)
    await cancel_execution(still, first, Write())
    assert [run.execution_id for run in await in_time(still, hand)] == [second]


async def test_a_clock_that_is_set_back_stops_no_limit(still: Engine) -> None:
    await limit_queue(still, max_concurrency=1)
    hand = await Hand.opened(still)
    await queued(still, 3)
    [run] = await claimed(still, hand)
    await hand.succeed([run])
    await travel(still, START - 600 * SECOND)
    await queued(still, 1)
    assert len(await in_time(still, hand)) == 1


# Fairness where something is limited.


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
    ready = await still.database.fetch("select id from hourbell.ready where id = $1", second)
    assert len(ready) == 1


async def test_the_smallest_passes_come_to_an_end_too(still: Engine) -> None:
    await limit_tenant(still, "default", max_concurrency=2)
    hand = await Hand.opened(still)
    waiting = await queued(still, 3, concurrency_key="k") + await queued(still, 3)
    ran: list[int] = []
    async with asyncio.timeout(10):
        while len(ran) < len(waiting):
            while (await admit(still, await still.clock.now(), batch=1)).more:
                pass
            runs = await hand.claim(10)
            await hand.succeed(runs)
            ran += [run.execution_id for run in runs]
    assert sorted(ran) == sorted(waiting)


# Keys.


async def test_the_key_goes_to_who_is_due_first_whatever_the_priority(still: Engine) -> None:
    hand = await Hand.opened(still)
    long_ago = {"schedule": {"at": (START - 60 * SECOND).isoformat()}}
    first = await create(still, one_time(concurrency_key="k", priority="LOW") | long_ago)
    await create(still, one_time(concurrency_key="k", priority="CRITICAL"))
    assert [run.execution_id for run in await in_time(still, hand)] == [first.job_id]


@pytest.mark.parametrize(
    ("first", "second"), [("LOW", "CRITICAL"), ("LOW", "MEDIUM"), ("MEDIUM", "MEDIUM")]
)
async def test_the_key_goes_to_who_is_due_first_also_if_he_comes_late(
    still: Engine, first: str, second: str
) -> None:
    hand = await Hand.opened(still)
    await admit_all(still)
    await travel(still, START + SECOND / 2)
    long_ago = {"at": (START - 60 * SECOND).isoformat()}
    [due_first] = await queued(still, 1, concurrency_key="k", priority=first, schedule=long_ago)
    await queued(still, 1, concurrency_key="k", priority=second)
    assert [run.execution_id for run in await in_time(still, hand)] == [due_first]


async def test_who_has_waited_for_a_key_is_not_overtaken_by_an_urgent_one(still: Engine) -> None:
    hand = await Hand.opened(still)
    await queued(still, 1, concurrency_key="k")
    running = await claimed(still, hand)
    await travel(still, START + SECOND)
    [low] = await queued(still, 1, concurrency_key="k", priority="LOW")
    await admit_all(still)
    await travel(still, START + 2 * SECOND)
    await queued(still, 1, concurrency_key="k", priority="CRITICAL")
    await hand.succeed(running)
    assert [run.execution_id for run in await in_time(still, hand)] == [low]


async def test_a_key_is_free_when_the_job_that_took_it_meanwhile_is_deleted(still: Engine) -> None:
    hand = await Hand.opened(still)
    await limit_queue(still, max_concurrency=0)
    job = await create(still, recurring(concurrency_key="k"))
    await plan_all(still)
    await travel(still, at("10:00:59"))
    await admit_all(still)
    async with in_transaction(still) as somebody:
        await somebody.database.fetch("select from hourbell.jobs for no key update")
        deleting = asyncio.create_task(delete_job(still, job.job_id, Write()))  # by the time of now
        await somebody_waits(still, "for no key update of j")
        await travel(still, at("10:01:00"))
        await admit_all(still)  # it is due, takes its key, and waits for the queue
    await deleting
    await limit_queue(still)
    [other] = await queued(still, 1, concurrency_key="k")
    assert [run.execution_id for run in await in_time(still, hand)] == [other]


async def test_when_the_head_of_a_key_is_cancelled_the_next_goes_on(still: Engine) -> None:
    hand = await Hand.opened(still)
    await queued(still, 1, concurrency_key="k", concurrency_limit=2)
    assert len(await claimed(still, hand)) == 1
    await travel(still, START + SECOND)
    [alone] = await queued(still, 1, concurrency_key="k", concurrency_limit=1)
    await travel(still, START + 2 * SECOND)
    [second] = await queued(still, 1, concurrency_key="k", concurrency_limit=2)
    assert await in_time(still, hand) == []
    await cancel_execution(still, alone, Write())
    assert [run.execution_id for run in await in_time(still, hand)] == [second]


async def test_a_larger_limit_of_the_same_key_does_not_overtake(still: Engine) -> None:
    hand = await Hand.opened(still)
    [holder] = await queued(still, 1, concurrency_key="k")
    assert [run.execution_id for run in await claimed(still, hand)] == [holder]
    await travel(still, START + SECOND)
    await queued(still, 1, concurrency_key="k")
    await travel(still, START + 2 * SECOND)
    await queued(still, 1, concurrency_key="k", concurrency_limit=5)
    assert await in_time(still, hand) == []


# Clients that stop.


async def test_a_client_that_stops_while_it_sets_a_tenant_does_not_stop_the_gate(
    still: Engine,
) -> None:
    await limit_tenant(still, "a", weight=3)
    connection = await connect(still.database.dsn)
    async with connection.transaction():
        await connection.execute("update hourbell.tenants set max_jobs = 5")
        async with asyncio.timeout(5):
            while (await admit(still, await still.clock.now())).more:
                pass
    await connection.close()


async def test_a_client_that_stops_over_the_head_of_a_key_does_not_stop_the_key(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await admit_all(still)
    [head] = await queued(still, 1, concurrency_key="k")
    async with in_transaction(still) as somebody:
        assert await somebody.database.value("select hourbell.take_out(array[$1::bigint])", head)
        await travel(still, START + SECOND)
        await admit_all(still)
        [second] = await queued(still, 1, concurrency_key="k")
        assert [run.execution_id for run in await in_time(still, hand)] == [second]


# Bad input.


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "nul\0", 7, None])
async def test_names_that_no_job_could_have_are_refused(still: Engine, name: str) -> None:
    with pytest.raises(InvalidInput):
        await set_tenant(still, name, TenantSettings(), Write())
    with pytest.raises(InvalidInput):
        await set_queue(still, name, QueueSettings(), Write())


@pytest.mark.parametrize(
    "host", ["", "http://h/", "h:80", "h/x", "a b", "bücher.example", "nul\0", "x" * 3000, 7]
)
async def test_hosts_that_no_url_could_have_are_refused(still: Engine, host: str) -> None:
    with pytest.raises(InvalidInput):
        await set_target(still, host, Limits(max_concurrency=1), Write())


@pytest.mark.parametrize("number", [True, "3", 10**400, -1, 2.5])
async def test_numbers_that_are_none_are_refused(still: Engine, number: int) -> None:
    with pytest.raises(InvalidInput):
        await limit_queue(still, max_concurrency=number)


# Anything, in any order.

LIMITED = "(select id, held from hourbell.ready union all select id, held from hourbell.suspects)"
INVARIANTS = {
    "a hold of nothing": "select h.* from hourbell.holds as h where not exists (select from hourbell.executions as e where e.id = h.id)",
    "an offer of what is not ready": f"select o.* from hourbell.offers as o where not exists (select from {LIMITED} as r where r.id = o.id)",  # noqa: S608
    "a hold twice": "select kind, key, id from hourbell.holds group by 1, 2, 3 having count(*) > 1",
    "a hold of what waits": f"""
        select h.* from hourbell.holds as h where kind < 4
          and not exists (select from {LIMITED} as r where r.id = h.id)
          and not exists (select from hourbell.leased as l where l.id = h.id)""",  # noqa: S608
    "a key twice": """
        select e.key from hourbell.leased as l join hourbell.executions as e on e.id = l.id
        where e.key is not null group by e.key having count(*) > max(e.key_limit)""",
}
TENANTS, QUEUES, HOSTS = ("a", "b"), ("default", "other"), ("h1", "h2")


class Walk:
    """Everything that can be done to executions and limits, at random; time stands unless it is moved."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._chosen = random.Random(seed)
        self._jobs: list[int] = []
        self._recurring: list[int] = []  # of them
        self._running: dict[tuple[int, int], tuple[Hand, Claimed]] = {}
        self._hands: list[Hand] = []
        self.now = START

    async def steps(self, number: int) -> AsyncIterator[None]:
        await self._new_hand()
        acts: dict[Callable[[], Awaitable[object]], int] = {
            self._create: 8,
            self._create_recurring: 1,
            self._advance: 4,
            self._admit: 10,
            self._claim: 6,
            self._settle: 8,
            self._cancel: 3,
            self._change: 3,
            self._limit: 3,
            self._expire: 3,
            self._crash: 1,
        }
        for _ in range(number):
            [act] = self._chosen.choices(list(acts), list(acts.values()))
            with contextlib.suppress(Conflict, NotFound, InvalidInput):  # it has ended, or is none
                await act()
            yield

    async def finish(self) -> None:
        """Whatever is limited stays so, and yet all of it ends: no limit is 0 any more."""
        for tenant in TENANTS:
            await set_tenant(self._engine, tenant, TenantSettings(max_concurrency=1), Write())
        for queue in QUEUES:
            await set_queue(self._engine, queue, QueueSettings(max_concurrency=2), Write())
        for host in HOSTS:
            await set_target(self._engine, host, Limits(rate_limit=RateLimit(2.0)), Write())
        for job in self._jobs:
            with contextlib.suppress(Conflict, NotFound):
                await resume_job(self._engine, job, Write())
        for job in self._recurring:
            with contextlib.suppress(Conflict, NotFound):
                await delete_job(self._engine, job, Write())
        for _ in range(400):
            await self._settle(all_of_them=True)
            self.now += SECOND
            await travel(self._engine, self.now)
            await self._expire()
            await self._admit()
            await self._claim()
            if not await places(self._engine):
                return
        raise AssertionError(f"still there: {await places(self._engine)}")

    async def _new_hand(self) -> None:
        self._hands.append(await Hand.opened(self._engine, QUEUES))

    async def _create(self) -> None:
        chosen = self._chosen
        fields: dict[str, object] = {
            "tenant_id": chosen.choice(TENANTS),
            "queue": chosen.choice(QUEUES),
            "priority": chosen.choice(("LOW", "MEDIUM", "HIGH")),
        }
        if chosen.random() < 0.4:
            fields |= {"concurrency_key": chosen.choice("kl")}
        if chosen.random() < 0.2:
            fields |= {"start_deadline_seconds": chosen.choice((1, 20))}
        if chosen.random() < 0.4:
            url = f"http://{chosen.choice(HOSTS)}/"
            fields |= {"action": {"type": "WEBHOOK", "url": url}}
        if chosen.random() < 0.3:
            fields |= {"schedule": {"delay_seconds": chosen.choice((1, 5))}}
        self._jobs.append((await create(self._engine, one_time() | fields)).job_id)

    async def _create_recurring(self) -> None:
        overlap = self._chosen.choice(("forbid", "replace", "queue_one", "allow"))
        tenant, seconds = self._chosen.choice(TENANTS), self._chosen.choice((3, 7))
        document = every(seconds, tenant_id=tenant, overlap_policy=overlap)
        self._recurring.append((await create(self._engine, document)).job_id)
        self._jobs.append(self._recurring[-1])

    async def _advance(self) -> None:
        self.now += timedelta(seconds=self._chosen.choice((0.3, 1, 3, 8)))
        await travel(self._engine, self.now)
        await plan_all(self._engine)

    async def _admit(self) -> None:
        await admit_all(self._engine)

    async def _claim(self) -> None:
        hand = self._chosen.choice(self._hands)
        for run in await hand.claim(self._chosen.choice((1, 3, 20))):
            self._running[run.execution_id, run.fence] = hand, run

    async def _settle(self, all_of_them: bool = False) -> None:
        count = len(self._running) if all_of_them else min(len(self._running), 3)
        kinds = (SUCCEEDED,) if all_of_them else (SUCCEEDED, SUCCEEDED, RETRY, DEAD, RELEASED)
        for number in self._chosen.sample(sorted(self._running), count):
            hand, run = self._running.pop(number)
            outcome = Settlement(
                run.execution_id, run.fence, self._chosen.choice(kinds), 0, 1, 2.0, "Bad", "bad"
            )
            await hand.dispatch.settle(hand.session, [outcome])

    async def _cancel(self) -> None:
        rows = await self._engine.database.fetch("select id from hourbell.executions order by id")
        if rows:
            await cancel_execution(self._engine, self._chosen.choice(rows)["id"], Write())

    async def _change(self) -> None:
        if not self._jobs:
            return
        job = self._chosen.choice(self._jobs)
        match self._chosen.choice(("pause", "resume", "delete", "priority", "key", "queue")):
            case "pause":
                await pause_job(self._engine, job, Write())
            case "resume":
                await resume_job(self._engine, job, Write())
            case "delete":
                await delete_job(self._engine, job, Write())
            case "priority":
                await update_job(self._engine, job, {"priority": "CRITICAL"}, Write())
            case "key":
                change = {"concurrency_key": self._chosen.choice("klm")}
                await update_job(self._engine, job, change, Write())
            case _:
                await update_job(self._engine, job, {"queue": self._chosen.choice(QUEUES)}, Write())

    async def _limit(self) -> None:
        chosen = self._chosen
        limits: dict[str, object] = {
            "max_concurrency": chosen.choice((None, 0, 1, 2, 5)),
            "rate_limit": chosen.choice((None, None, RateLimit(2.0, chosen.choice((1, 3))))),
        }
        match chosen.choice(("tenant", "queue", "target")):
            case "tenant":
                settings = TenantSettings(weight=chosen.choice((1.0, 2.0)), **limits)
                await set_tenant(self._engine, chosen.choice(TENANTS), settings, Write())
            case "queue":
                queue = chosen.choice(QUEUES)
                await set_queue(self._engine, queue, QueueSettings(**limits), Write())
            case _:
                await set_target(self._engine, chosen.choice(HOSTS), Limits(**limits), Write())

    async def _expire(self) -> None:
        await expire(self._engine, None, self.now)

    async def _crash(self) -> None:
        """A worker dies, or leaves."""
        hand = self._hands.pop(self._chosen.randrange(len(self._hands)))
        if self._chosen.random() < 0.5:
            await hand.dispatch.close(hand.session)
        else:
            await expire_session(self._engine, hand.session)
            await reap(self._engine, None, self.now)
        self._running = {
            number: held for number, held in self._running.items() if held[0] is not hand
        }
        if not self._hands or self._chosen.random() < 0.5:
            await self._new_hand()


@pytest.mark.parametrize("seed", range(24))
async def test_whatever_is_done_limits_hold_nothing_leaks_and_all_ends(
    still: Engine, seed: int
) -> None:
    walk = Walk(still, seed)
    async for _ in walk.steps(200):
        await check_sound(still)
        for problem, query in INVARIANTS.items():
            assert await still.database.fetch(query) == [], problem
    await walk.finish()
    await nothing_is_held(still)
