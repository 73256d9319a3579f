"""Limits of tenants, queues, targets and keys: never exceeded, never leaking, never in anybody else's way."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from hourbell.dispatch import CANCELLED, RELEASED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.change import delete_job, pause_job, resume_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import (
    BLOCKER_QUEUE,
    set_queue,
    set_target,
    set_tenant,
)
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import BlockedBy, explain_execution
from hourbell.engine.views.jobs import get_job
from hourbell.engine.views.resources import get_queue, get_tenant
from hourbell.model.errors import InvalidInput, QuotaExceeded
from hourbell.model.executions import Claimed
from hourbell.model.ids import execution_text, job_text
from hourbell.model.limits import Limits, QueueSettings, RateLimit, TenantSettings
from hourbell.model.policies import Backoff, RetryPolicy
from hourbell.store.queries import queries
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
    at,
    create,
    create_many,
    expire_session,
    in_transaction,
    one_time,
    places,
    plan_all,
    recurring,
    somebody_waits,
    travel,
)

HOOK = {"type": "WEBHOOK", "url": "http://h/"}


async def settled(hand: Hand, run: Claimed, kind: int) -> None:
    outcome = Settlement(run.execution_id, run.fence, kind)
    assert not await hand.dispatch.settle(hand.session, [outcome])


# Concurrency.


async def test_a_tenant_has_no_more_at_once_than_it_may_and_others_pass(still: Engine) -> None:
    await limit_tenant(still, "a", max_concurrency=3)
    await queued(still, 10, tenant_id="a")
    await queued(still, 5, tenant_id="b")
    hand = await Hand.opened(still)
    runs = await claimed(still, hand)
    assert by_tenant(runs) == {"a": 3, "b": 5}
    await hand.succeed([run for run in runs if run.tenant_id == "a"][:2])
    assert by_tenant(await claimed(still, hand)) == {"a": 2}


async def test_a_parked_job_that_is_paused_is_scheduled_until_it_is_resumed(still: Engine) -> None:
    await limit_tenant(still, "a", max_concurrency=1)
    first, second = await queued(still, 2, tenant_id="a")
    hand = await Hand.opened(still)
    (run,) = await claimed(still, hand)
    assert run.execution_id == first
    assert (await get_execution(still, second)).status == "QUEUED"
    await pause_job(still, second, Write())
    assert (await get_execution(still, second)).status == "SCHEDULED"
    await resume_job(still, second, Write())
    assert (await get_execution(still, second)).status == "QUEUED"


@pytest.mark.parametrize("end", ["succeed", "retry", "crash", "cancel", "give back", "close"])
async def test_whatever_becomes_of_a_run_its_place_is_free_again(still: Engine, end: str) -> None:
    await limit_tenant(still, "default", max_concurrency=1)
    await limit_queue(still, max_concurrency=1)
    await queued(still, 3, concurrency_key="k")
    hand = await Hand.opened(still)
    for _ in range(10):
        runs = await claimed(still, hand)
        if not runs:
            break
        [run] = runs
        if end == "retry" and run.attempt == 1:
            await hand.fail(runs, 0)
        elif end == "crash" and run.attempt == 1:
            await expire_session(still, hand.session)
            await reap(still, None, await still.clock.now())
            hand = await Hand.opened(still)
        elif end == "cancel":
            await cancel_execution(still, run.execution_id, Write())
            await settled(hand, run, CANCELLED)
        elif end == "give back" and hand.session.id == 1:
            await settled(hand, run, RELEASED)
            hand = await Hand.opened(still)
        elif end == "close" and run.attempt == 1 and run.fence % 2 == 0:
            await still.database.value(
                "select hourbell.close_session($1, $2, hourbell.clock())",
                hand.session.id,
                hand.session.token,
            )
            hand = await Hand.opened(still)
        else:
            await hand.succeed(runs)
    await nothing_is_held(still)


async def test_a_limited_queue_shares_its_places_fairly(still: Engine) -> None:
    await limit_queue(still, max_concurrency=4)
    await limit_tenant(still, "heavy", weight=3)
    await queued(still, 80, tenant_id="loud")
    await admit_all(still)
    await queued(still, 10, tenant_id="late")
    await queued(still, 30, tenant_id="heavy")
    hand = await Hand.opened(still)
    order: list[str] = []
    while runs := await claimed(still, hand):
        assert len(runs) <= 4
        order += [run.tenant_id for run in runs]
        await hand.succeed(runs)
    assert len(order) == 120
    # From the moment all three wait: shares of 1 : 1 : 3.
    assert Counter(order[4:54]) == pytest.approx({"loud": 10, "late": 10, "heavy": 30}, abs=3)


async def test_a_target_has_no_more_at_once_than_it_may(still: Engine) -> None:
    await set_target(still, "Slow.example.", Limits(max_concurrency=2), Write())
    for host in ("slow.example", "slow.example:8080", "fast.example"):
        action = {"type": "WEBHOOK", "url": f"http://{host}/"}
        for _ in range(3):
            await create(still, one_time() | {"action": action})
    hand = await Hand.opened(still)
    runs = await claimed(still, hand)
    assert len(runs) == 2 + 3


async def test_zero_stops_a_queue(still: Engine) -> None:
    await limit_queue(still, max_concurrency=0)
    await queued(still, 3)
    hand = await Hand.opened(still)
    assert await claimed(still, hand) == []
    await limit_queue(still)
    assert len(await claimed(still, hand)) == 3


async def test_what_several_limits_block_goes_when_all_let_it(still: Engine) -> None:
    await limit_tenant(still, "a", max_concurrency=2)
    await limit_queue(still, max_concurrency=3)
    await queued(still, 6, tenant_id="a", concurrency_key="k")
    await queued(still, 6, tenant_id="a")
    await queued(still, 6, tenant_id="b")
    hand = await Hand.opened(still)
    total = 0
    while runs := await claimed(still, hand):
        shares = by_tenant(runs)
        assert shares["a"] <= 2
        assert shares.total() <= 3
        total += len(runs)
        await hand.succeed(runs)
    assert total == 18
    await nothing_is_held(still)


async def test_who_is_stopped_by_a_second_limit_does_not_keep_the_place_at_the_first(
    still: Engine,
) -> None:
    await set_target(still, "h", Limits(max_concurrency=1), Write())
    await set_queue(still, "stopped", QueueSettings(max_concurrency=0), Write())
    hand = await Hand.opened(still, ["default", "stopped"])
    await queued(still, 1, tenant_id="a", queue="stopped", action=HOOK)
    await queued(still, 1, tenant_id="b", action=HOOK)
    assert by_tenant(await in_time(still, hand)) == {"b": 1}


async def test_what_falls_due_does_not_overtake_what_is_parked_although_there_is_room(
    still: Engine,
) -> None:
    await limit_tenant(still, "a", max_concurrency=1)
    hand = await Hand.opened(still)
    earlier = await queued(still, 10, tenant_id="a")
    await admit_all(still)
    await limit_tenant(still, "a", max_concurrency=100)
    (late,) = await queued(still, 1, tenant_id="a")
    for _ in range(2):  # a small pass takes only a part of what is parked
        await admit(still, await still.clock.now(), 8)
    runs = [run.execution_id for run in await hand.claim_all()]
    assert set(runs) < set(earlier)
    await admit_all(still)
    runs += [run.execution_id for run in await hand.claim_all()]
    assert sorted(runs) == [*earlier, late]


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


async def test_a_clock_that_is_set_back_stops_no_limit(still: Engine) -> None:
    await limit_queue(still, max_concurrency=1)
    hand = await Hand.opened(still)
    await queued(still, 3)
    [run] = await claimed(still, hand)
    await hand.succeed([run])
    await travel(still, START - 600 * SECOND)
    await queued(still, 1)
    assert len(await in_time(still, hand)) == 1


# Keys.


async def test_what_shares_a_key_goes_one_after_the_other_in_order_of_time(still: Engine) -> None:
    late = [await create(still, one_time(concurrency_key="k")) for _ in range(3)]
    early = await create(
        still,
        one_time(concurrency_key="k") | {"schedule": {"at": (START - SECOND).isoformat()}},
    )
    await queued(still, 2, concurrency_key="other")
    await queued(still, 2, concurrency_key="k", tenant_id="somebody-else")
    hand = await Hand.opened(still)
    order: list[int] = []
    ours = {job.job_id for job in [early, *late]}
    while runs := await claimed(still, hand):
        assert len([run for run in runs if run.execution_id in ours]) <= 1
        order += [run.execution_id for run in runs]
        await hand.succeed(runs)
    # Of one instant, the lower id first.
    expected = [early.job_id, *sorted(job.job_id for job in late)]
    assert [run for run in order if run in ours] == expected


async def test_a_key_may_let_several_go(still: Engine) -> None:
    await queued(still, 5, concurrency_key="k", concurrency_limit=2)
    hand = await Hand.opened(still)
    assert len(await claimed(still, hand)) == 2


async def test_a_retrying_head_keeps_its_key(still: Engine) -> None:
    first, second = await queued(still, 2, concurrency_key="k")
    hand = await Hand.opened(still)
    [head] = await claimed(still, hand)
    assert head.execution_id == first
    await hand.fail([head], 60)
    assert await claimed(still, hand) == []
    await travel(still, START + 61 * SECOND)
    [again] = await claimed(still, hand)
    assert (again.execution_id, again.attempt) == (first, 2)
    await hand.succeed([again])
    [follower] = await claimed(still, hand)
    assert follower.execution_id == second


async def test_a_head_that_is_cancelled_while_it_waits_lets_the_next_one_go(still: Engine) -> None:
    first, second = await queued(still, 2, concurrency_key="k")
    hand = await Hand.opened(still)
    await hand.fail(await claimed(still, hand), 3600)
    await cancel_execution(still, first, Write())
    [follower] = await claimed(still, hand)
    assert follower.execution_id == second


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


async def test_a_larger_limit_of_the_same_key_does_not_overtake(still: Engine) -> None:
    hand = await Hand.opened(still)
    [holder] = await queued(still, 1, concurrency_key="k")
    assert [run.execution_id for run in await claimed(still, hand)] == [holder]
    await travel(still, START + SECOND)
    await queued(still, 1, concurrency_key="k")
    await travel(still, START + 2 * SECOND)
    await queued(still, 1, concurrency_key="k", concurrency_limit=5)
    assert await in_time(still, hand) == []


async def test_a_key_is_free_when_the_job_that_took_it_meanwhile_is_deleted(still: Engine) -> None:
    hand = await Hand.opened(still)
    await limit_queue(still, max_concurrency=0)
    job = await create(still, recurring(concurrency_key="k"))
    await plan_all(still)
    await travel(still, at("10:00:59"))
    await admit_all(still)
    async with in_transaction(still) as other:
        await other.database.fetch("select from hourbell.jobs for no key update")
        deleting = asyncio.create_task(delete_job(still, job.job_id, Write()))  # by the time of now
        await somebody_waits(still, "change_job")
        await travel(still, at("10:01:00"))
        await admit_all(still)  # it is due, takes its key, and waits for the queue
    await deleting
    await limit_queue(still)
    [other] = await queued(still, 1, concurrency_key="k")
    assert [run.execution_id for run in await in_time(still, hand)] == [other]


# Rates.


async def test_no_more_start_than_rate_and_burst_allow(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(2.0, burst=5))
    await queued(still, 60)
    hand = await Hand.opened(still)
    starts: list[float] = []
    for tick in range(0, 400):
        await travel(still, START + tick * SECOND / 20)
        await admit_all(still)
        # A worker that comes only now and then, and takes all that has gathered.
        if tick % 7 == 0 or tick % 31 < 3:
            runs = await hand.claim_all()
            starts += [tick / 20 + run.start_in_seconds for run in runs]
            await hand.succeed(runs)
    for first, began in enumerate(starts):
        for last in range(first, len(starts)):
            seconds = starts[last] - began
            assert last - first + 1 <= 2.0 * seconds + 5 + 1e-9
    assert len(starts) >= 2.0 * 19 - 1  # and nearly all that it allows


async def test_a_rate_outlives_whoever_runs_the_gate(still: Engine) -> None:
    await limit_tenant(still, "default", rate_limit=RateLimit(0.1, burst=2))
    await queued(still, 10)
    hand = await Hand.opened(still)
    assert len(await claimed(still, hand)) == 2
    other = Engine(still.database, still.clock, still.times)
    assert await claimed(other, hand) == []
    await travel(still, START + 10 * SECOND)
    assert len(await claimed(other, hand)) == 1


async def test_what_was_let_on_and_not_claimed_keeps_its_place_in_the_bucket(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(1.0, burst=5))
    await queued(still, 20)
    await admit_all(still)
    await travel(
        still, START + 60 * SECOND
    )  # nobody claims, and the bucket does not fill up beside
    await admit_all(still)
    hand = await Hand.opened(still)
    assert len(await hand.claim_all()) == 5
    assert await claimed(still, hand) == []
    await travel(still, START + 62 * SECOND)
    assert len(await claimed(still, hand)) == 2


async def test_what_was_offered_and_is_cancelled_gives_its_token_back(still: Engine) -> None:
    await limit_queue(still, rate_limit=RateLimit(0.001))
    hand = await Hand.opened(still)
    first, second = await queued(still, 2)
    await admit_all(still)
    await cancel_execution(still, first, Write())
    assert [run.execution_id for run in await in_time(still, hand)] == [second]


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


# At run time.


async def test_a_limit_acts_on_what_is_ready_and_on_what_runs(still: Engine) -> None:
    await queued(still, 20)
    hand = await Hand.opened(still)
    await admit_all(still)
    running = await hand.claim(5)
    await limit_tenant(still, "default", max_concurrency=7)
    assert len(await claimed(still, hand)) == 2
    await limit_tenant(still, "default", max_concurrency=3)
    await hand.succeed(running)
    assert len(await claimed(still, hand)) == 1
    await limit_tenant(still, "default")
    assert len(await claimed(still, hand)) == 12
    assert (await get_tenant(still, "default")).settings == TenantSettings()


async def test_a_limit_that_was_set_is_respected_by_claims_before_the_gate_has_seen_it(
    still: Engine,
) -> None:
    await queued(still, 20)
    hand = await Hand.opened(still)
    await admit_all(still)
    await limit_queue(still, max_concurrency=1)
    assert await hand.claim_all() == []
    assert len(await claimed(still, hand)) == 1
    assert (await get_queue(still, "default")).settings == QueueSettings(max_concurrency=1)


async def test_what_is_being_claimed_while_a_limit_is_set_counts(still: Engine) -> None:
    """Also if the claim began after the last transaction that has ended, and ends after many passes."""
    await queued(still, 20)
    hand = await Hand.opened(still)
    await admit_all(still)
    queue = await still.queue("default", START)
    take = (
        "select cardinality(ids) from hourbell.take_ready($1, $2, 1, false, 4, 0, false, false, $3, '1 s',"
        " null, null, null, null, null, null, null, null, null, null)"
    )
    async with in_transaction(still) as worker:
        async with in_transaction(still) as admin, admin.database.connection() as connection:
            await connection.execute(
                queries("limits")["set_limit"], BLOCKER_QUEUE, queue, 5, None, None
            )
            await connection.execute(queries("limits")["recheck"], BLOCKER_QUEUE, queue)
            arguments = hand.session.id, hand.session.token, START
            assert await worker.database.value(take, *arguments) == 4
            number = await worker.database.value("select pg_current_xact_id()::text::bigint")
        next_one = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        assert await still.database.value(next_one) == number
        for second in range(6, 24, 6):  # it is looked at again after 5 s
            await admit_all(still)
            await travel(still, START + second * SECOND)
    for second in range(24, 42, 6):
        await admit_all(still)
        await travel(still, START + second * SECOND)
    assert len(await claimed(still, hand)) == 1
    assert not await still.database.fetch("select from hourbell.limit_recounts")


async def test_a_weight_acts_on_what_is_ready(still: Engine) -> None:
    for tenant in ("a", "b"):
        await create_many(still, [one_time(tenant_id=tenant)] * 60)
    await admit_all(still)
    await limit_tenant(still, "a", weight=3)
    await admit_all(still)
    hand = await Hand.opened(still)
    # What became ready together may be claimed together: here up to 15 of each.
    assert by_tenant(await hand.claim(80)) == pytest.approx({"a": 60, "b": 20}, abs=10)


async def test_nothing_is_admitted_to_a_queue_that_nobody_serves(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    [waits] = await queued(still, 1)
    await admit_all(still)
    assert await places(still) == {"parked": 1}
    assert (await explain_execution(still, waits)).code == "no_worker"
    hand = await Hand.opened(still)
    assert len(await claimed(still, hand)) == 1


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


# Explain.


async def test_explain_names_what_blocks_and_who_has_it(still: Engine) -> None:
    await limit_tenant(still, "a", max_concurrency=1)
    await limit_tenant(still, "r", rate_limit=RateLimit(0.1))
    first, second = await queued(still, 2, tenant_id="a")
    head, follower = await queued(still, 2, concurrency_key="k")
    _, slow = await queued(still, 2, tenant_id="r")
    hand = await Hand.opened(still)
    await claimed(still, hand)
    blocked = await explain_execution(still, second)
    assert (blocked.code, blocked.execution_id) == ("tenant_concurrency", execution_text(second))
    assert blocked.blocked_by == BlockedBy(execution_text(first), job_text(first))
    blocked = await explain_execution(still, follower)
    assert (blocked.code, blocked.execution_id) == ("concurrency_key", execution_text(follower))
    assert blocked.blocked_by == BlockedBy(execution_text(head), job_text(head))
    blocked = await explain_execution(still, slow)
    assert (blocked.code, blocked.until) == ("tenant_rate", START + 10 * SECOND)


@pytest.mark.parametrize("what", ["queue", "tenant", "target"])
@pytest.mark.parametrize(
    ("limits", "code"),
    [({"max_concurrency": 1}, "concurrency"), ({"rate_limit": RateLimit(0.1)}, "rate")],
)
async def test_explain_has_a_code_for_every_limit(
    still: Engine, what: str, limits: dict[str, Any], code: str
) -> None:
    if what == "queue":
        await limit_queue(still, **limits)
    elif what == "tenant":
        await limit_tenant(still, "default", **limits)
    else:
        await set_target(still, "h", Limits(**limits), Write())
    first, second = await queued(still, 2, action={"type": "WEBHOOK", "url": "http://h/"})
    await claimed(still, await Hand.opened(still))
    blocked = await explain_execution(still, second)
    assert blocked.code == f"{what}_{code}"
    if code == "rate":
        assert blocked.until == START + 10 * SECOND
    else:
        assert blocked.blocked_by == BlockedBy(execution_text(first), job_text(first))


# Quotas and bounds.


async def test_a_tenant_has_no_more_jobs_than_its_quota(still: Engine) -> None:
    await limit_tenant(still, "a", max_jobs=2)
    await queued(still, 1, tenant_id="a")
    await create(still, one_time(tenant_id="a"))
    with pytest.raises(QuotaExceeded, match="2 jobs"):
        await create(still, one_time(tenant_id="a"))
    hand = await Hand.opened(still)
    await hand.succeed(await claimed(still, hand))
    await create(still, one_time(tenant_id="a"))


@pytest.mark.parametrize(
    "settings",
    [
        TenantSettings(weight=0.0),
        TenantSettings(weight=float("nan")),
        TenantSettings(max_concurrency=-1),
        TenantSettings(rate_limit=RateLimit(0.0)),
        TenantSettings(rate_limit=RateLimit(1.0, burst=0)),
        TenantSettings(max_jobs=-1),
    ],
)
async def test_settings_out_of_bounds_are_refused(still: Engine, settings: TenantSettings) -> None:
    with pytest.raises(InvalidInput):
        await set_tenant(still, "a", settings, Write())


@pytest.mark.parametrize("number", [True, "3", 10**400, -1, 2.5])
async def test_numbers_that_are_none_are_refused(still: Engine, number: int) -> None:
    with pytest.raises(InvalidInput):
        await limit_queue(still, max_concurrency=number)


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


async def test_a_queue_gives_its_jobs_what_they_do_not_say_themselves(still: Engine) -> None:
    patient = RetryPolicy(max_retries=7, backoff=Backoff.FIXED, initial_delay_seconds=5)
    settings = QueueSettings(default_timeout_seconds=20, default_retry_policy=patient)
    await set_queue(still, "patient", settings, Write())
    assert (await get_queue(still, "patient")).settings == settings
    silent = await create(still, one_time(queue="patient"))
    assert (silent.timeout_seconds, silent.retry_policy) == (20, patient)
    outspoken = await create(
        still, one_time(queue="patient", timeout_seconds=9, retry_policy={"max_retries": 0})
    )
    assert (outspoken.timeout_seconds, outspoken.retry_policy.max_retries) == (9, 0)
    never_twice = await create(still, one_time(queue="patient", delivery="at_most_once"))
    assert never_twice.retry_policy.max_retries == 0
    elsewhere = await create(still, one_time())
    assert (elsewhere.timeout_seconds, elsewhere.retry_policy) == (300, RetryPolicy())
    await set_queue(still, "patient", QueueSettings(), Write())
    assert (await create(still, one_time(queue="patient"))).timeout_seconds == 300
    assert (await get_job(still, silent.job_id)).timeout_seconds == 20  # it keeps what it was given


@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(default_timeout_seconds=0),
        QueueSettings(default_retry_policy=RetryPolicy(max_retries=-1)),
        QueueSettings(
            default_retry_policy=RetryPolicy(initial_delay_seconds=99, max_delay_seconds=9)
        ),
    ],
)
async def test_defaults_out_of_bounds_are_refused(still: Engine, settings: QueueSettings) -> None:
    with pytest.raises(InvalidInput):
        await set_queue(still, "default", settings, Write())
