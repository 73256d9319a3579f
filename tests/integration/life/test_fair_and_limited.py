"""Fairness at size, and limits while workers are killed."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from hourbell.dispatch import Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue, set_tenant
from hourbell.engine.operations.runs import cancel_execution
from hourbell.model.errors import Conflict, NotFound
from hourbell.model.executions import Claimed
from hourbell.model.jobs import JobType, NewJob, TaskAction
from hourbell.model.limits import QueueSettings, RateLimit, TenantSettings
from hourbell.model.policies import Priority, RetryPolicy
from hourbell.model.schedules import Once
from hourbell.store.database import Connection
from hourbell.testing.filling import create_one_time_jobs
from integration.life.child import IMPATIENT
from integration.life.children import Child, child
from integration.life.rates import KEEP_STARTS, needed_burst
from integration.life.support import (
    Hand,
    admit_all,
    at,
    create,
    eventually,
    expire_session,
    fates,
    fill,
    one_time,
    open_engine,
    places,
    plan_all,
    recurring,
    scheduling,
    travel,
    working,
)

NOTE = TaskAction(name="note")


async def enqueue(engine: Engine, tenants: Sequence[str], **fields: Any) -> list[int]:
    """One-time jobs that are due now, one for each name; their ids."""
    return await enqueue_all(engine, [{"tenant_id": tenant} | fields for tenant in tenants])


async def enqueue_all(engine: Engine, jobs: Sequence[dict[str, Any]]) -> list[int]:
    """One-time jobs that are due now, with these fields; their ids."""
    usual = {
        "name": "job",
        "type": JobType.ONE_TIME,
        "schedule": Once(await engine.clock.now()),
        "action": TaskAction(name="noop"),
    }
    ids: list[int] = []
    for first in range(0, len(jobs), 2_000):
        some = [NewJob(**usual | fields) for fields in jobs[first : first + 2_000]]
        ids += await create_one_time_jobs(engine, some, Write())
    return ids


async def test_ten_jobs_do_not_wait_behind_a_hundred_thousand(engine: Engine) -> None:
    """S5, at a drain of 5,000/s."""
    await enqueue(engine, ["a"] * 100_000)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    began, drained = time.monotonic(), 0

    async def drain(seconds: float) -> list[str]:
        nonlocal drained
        served: list[str] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await admit_all(engine)
            allowed = int((time.monotonic() - began) * 5_000) - drained
            claimed = await hand.claim(max(min(allowed, 500), 1))
            drained += len(claimed)
            served += [one.tenant_id for one in claimed]
            await hand.succeed(claimed)
        return served

    assert set(await drain(0.5)) == {"a"}
    await enqueue(engine, ["b"] * 10)
    assert Counter(await drain(1.0))["b"] == 10


async def test_weights_of_three_to_one_give_three_to_one(engine: Engine) -> None:
    await set_tenant(engine, "heavy", TenantSettings(weight=3), Write())
    await enqueue(engine, ["heavy"] * 9_000 + ["light"] * 4_000)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    served: Counter[str] = Counter()
    while served.total() < 10_000:
        claimed = await hand.claim(500)
        served.update(one.tenant_id for one in claimed)
        await hand.succeed(claimed)
        await admit_all(engine)
    assert served["heavy"] / served["light"] == pytest.approx(3, rel=0.05)


async def test_each_of_ten_thousand_tenants_gets_its_turn_beside_a_loud_one(
    engine: Engine,
) -> None:
    await enqueue(engine, ["loud"] * 20_000)
    await admit_all(engine)
    await enqueue(engine, [f"t{number}" for number in range(10_000)])
    await admit_all(engine)
    hand = await Hand.opened(engine)
    served: Counter[str] = Counter()
    while served.total() < 10_500:
        claimed = await hand.claim(1_000)
        served.update(one.tenant_id for one in claimed)
        await hand.succeed(claimed)
    assert len(served) == 10_001
    assert served["loud"] < 1_500


async def test_queues_share_a_worker_by_their_own_virtual_times(engine: Engine) -> None:
    hand = await Hand.opened(engine, ["old", "new"])
    await fill(engine, 500, one_time(queue="old"))
    await admit_all(engine)
    await hand.succeed(await hand.claim(500))  # the tags of the one are far ahead of the other's
    for queue in ("old", "new"):
        await fill(engine, 100, one_time(queue=queue))
    await admit_all(engine)
    claimed = await hand.claim(100)
    served = Counter(json.loads(one.spec)["queue"] for one in claimed)
    assert served == {"old": pytest.approx(50, abs=2), "new": pytest.approx(50, abs=2)}


async def test_a_worker_keeps_slots_for_what_is_critical(engine: Engine) -> None:
    await enqueue(engine, ["a"] * 20)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = await hand.dispatch.claim(hand.session, 1, 10, reserved=3)
    assert len(claimed) == 7


async def test_a_claim_from_below_begins_with_the_least_urgent(engine: Engine) -> None:
    await enqueue(engine, ["a"] * 5, priority=Priority.LOW)
    await enqueue(engine, ["b"] * 5)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = await hand.dispatch.claim(hand.session, 1, 5, lowest_first=True)
    assert {one.tenant_id for one in claimed} == {"a"}


async def test_what_is_low_goes_on_while_there_is_always_something_more_urgent(
    engine: Engine,
) -> None:
    urgent = await enqueue(engine, ["a"] * 20_000, priority=Priority.HIGH)
    low = await enqueue(engine, ["a"] * 50, priority=Priority.LOW)
    left = "select count(*) from hourbell.live where id = any ($1::bigint[])"

    async def all_low_have_run() -> bool:
        return await engine.database.value(left, low) == 0

    async with scheduling(engine), working(engine, slots=20, low_share=0.05):
        await eventually(all_low_have_run)
        assert await engine.database.value(left, urgent) > 1_000


async def test_what_is_critical_does_not_wait_behind_a_hundred_thousand_that_are_low(
    engine: Engine,
) -> None:
    now = await engine.clock.now()
    tenant, queue = await engine.tenant("loud", now), await engine.queue("default", now)
    await engine.database.value(
        "insert into hourbell.due (run_at, id, tenant, queue, priority)"
        " select $1, n, $2, $3, 3 from generate_series(1, 100000) as n",
        now - timedelta(hours=1),
        tenant,
        queue,
    )
    [urgent] = await enqueue(engine, ["b"], priority=Priority.CRITICAL)
    hand = await Hand.opened(engine)
    assert (await admit(engine, await engine.clock.now())).more
    assert [one.execution_id for one in await hand.claim(1)] == [urgent]


SPELLINGS = (
    "* * * * *",
    "*/1 * * * *",
    "0-59 * * * *",
    "0-29,30-59 * * * *",
    "* */1 * * *",
    "* 0-23 * * *",
    "* * 1-31 * *",
    "* * * 1-12 *",
    "* * * * 0-6",
    "* * * * SUN,MON-SAT",
)


async def test_spelling_a_schedule_in_ten_ways_gains_nothing(still: Engine) -> None:
    for cron in SPELLINGS:
        await create(still, recurring(cron, tenant_id="many"))
        await create(still, recurring(SPELLINGS[0], tenant_id="one"))
    hand = await Hand.opened(still)
    await travel(still, at("10:01"))
    await plan_all(still)
    await admit_all(still)
    claimed = await hand.claim(10)
    assert Counter(one.tenant_id for one in claimed) == {"many": 5, "one": 5}


# Keys.

KEYS, BATCH = 20_000, 400


async def test_what_shares_a_key_keeps_its_order_over_retries_and_crashes(engine: Engine) -> None:
    """Twenty thousand keys, two executions each; of all attempts some fail, and some are lost with their worker.

    bench_gate has 100,000 keys.
    """
    chosen = random.Random(7)
    engine.times = replace(engine.times, lease_seconds=600.0)
    keyed = [{"concurrency_key": f"key-{number}"} for number in range(KEYS)]
    firsts, seconds = await enqueue_all(engine, keyed), await enqueue_all(engine, keyed)
    before = dict(zip(seconds, firsts, strict=True))
    running: set[int] = set()
    ended: set[int] = set()

    def start(claimed: Sequence[Claimed]) -> None:
        for one in claimed:
            first = before.get(one.execution_id)
            assert first is None or first in ended
            assert one.execution_id not in running
            running.add(one.execution_id)

    hand, turns = await Hand.opened(engine), 0
    while len(ended) < 2 * KEYS:
        await admit_all(engine)
        turns += 1
        if turns % 3 == 1 and turns < 10:  # a worker that dies with all that it has
            dying = await Hand.opened(engine)
            start(await dying.claim(BATCH // 2))
            await expire_session(engine, dying.session)
            await reap(engine, None, await engine.clock.now())
            running.clear()
        claimed = [one for _ in range(10) for one in await hand.claim(BATCH)]
        start(claimed)
        failing = {one.execution_id for one in claimed if chosen.random() < 0.05}
        for first in range(0, len(claimed), BATCH):
            some = claimed[first : first + BATCH]
            await hand.fail([one for one in some if one.execution_id in failing], 0)
            await hand.succeed([one for one in some if one.execution_id not in failing])
        running.clear()
        ended |= {one.execution_id for one in claimed} - failing


# Rates.


async def test_a_rate_holds_while_schedulers_and_workers_are_killed(
    database: str, tmp_path: Path
) -> None:
    chosen = random.Random(20261116)
    rate, burst = 100.0, 10
    async with open_engine(database, IMPATIENT) as engine, AsyncExitStack() as stack:
        settings = QueueSettings(rate_limit=RateLimit(rate, burst))
        await set_queue(engine, "default", settings, Write())
        async with engine.database.connection() as connection:
            await connection.execute(KEEP_STARTS)
            stack.push_async_callback(stop_keeping_starts, database)
        await enqueue(engine, ["a", "b"] * 300, action=TaskAction(name="note"))

        async def started(role: str) -> Child:
            arguments = ("0.6", "2") if role == "scheduler" else (str(tmp_path / "starts"), "10")
            return await stack.enter_async_context(child(role, database, *arguments))

        roles = ("scheduler", "scheduler", "worker", "worker")
        children = [await started(role) for role in roles]
        for _ in range(8):
            await asyncio.sleep(0.5)
            victim = chosen.randrange(len(roles))
            await children[victim].kill()
            children[victim] = await started(roles[victim])

        async def all_recorded() -> bool:
            return not await places(engine)

        await eventually(all_recorded, seconds=60)
        rows = await engine.database.fetch("select at from hourbell.kept_starts")
    starts = [row["at"].timestamp() for row in rows]
    assert len(starts) >= 600
    # By the moments that claims gave them: when a process begins with one depends on how busy the machine is.
    assert needed_burst(starts, rate) <= burst + 1e-3


async def stop_keeping_starts(database: str) -> None:
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("drop trigger keep_start on hourbell.leased")
    finally:
        await connection.close()


# What is blocked.

BLOCKED = 100_000

_BLOCKED = """
with made as (
  insert into hourbell.executions (id, occurrence, run_at, tenant, queue, priority, version, origin, spec, key, key_limit)
  select hourbell.id_base($1) | (nextval('hourbell.ids') & 4194303), $1, $1, $2, $3, 2, 1, 0, '{}', $4, 1
  from generate_series(1, $5::int) returning id)
insert into hourbell.due (run_at, id, tenant, queue, priority, key) select $1, id, $2, $3, 2, $4 from made
"""


async def pages_of_a_round(engine: Engine, hand: Hand, connection: Connection) -> int:
    """How many pages of the database the gate and a claim look at, for a thousand executions of one tenant."""
    await enqueue(engine, ["somebody"] * 1_000)
    session, now = hand.session, await engine.clock.now()
    pages = 0
    for statement, arguments in (
        ("select * from hourbell.admit($1, 5000, '1 minute')", (now,)),
        (
            "select * from hourbell.take_ready($1, $2, 1, false, 1000, 0, false, false, $3, '1 s',"
            " null, null, null, null, null, null, null, null, null, null)",
            (session.id, session.token, now),
        ),
    ):
        plan = await connection.fetchval(
            f"explain (analyze, buffers, format json) {statement}", *arguments
        )
        seen = json.loads(plan)[0]["Plan"]
        pages += seen["Shared Hit Blocks"] + seen["Shared Read Blocks"]
    leased = await engine.database.fetch(
        "select id, fence from hourbell.leases where session = $1 and claim = 1", session.id
    )
    assert len(leased) == 1_000
    await hand.dispatch.settle(session, [Settlement(row["id"], row["fence"], 0) for row in leased])
    return pages


@pytest.mark.parametrize("blocker", ["tenant", "queue", "key"])
async def test_what_is_blocked_slows_nothing_else(engine: Engine, blocker: str) -> None:
    """bench_gate measures the same with a million of them, by time."""
    hand = await Hand.opened(engine, ["default", "stopped"])
    async with (
        engine.database.connection() as connection
    ):  # one: a new one reads the catalogs first
        alone = min([await pages_of_a_round(engine, hand, connection) for _ in range(4)])
        await block(engine, blocker)
        # The least of several: how many pages a table has at the moment, and vacuum, come and go.
        beside = min([await pages_of_a_round(engine, hand, connection) for _ in range(4)])
    assert beside < 1.35 * alone  # of which a quarter is to look for a limit of each tenant


async def block(engine: Engine, blocker: str) -> None:
    """Many executions that are due and cannot start."""
    now = await engine.clock.now()
    if blocker == "tenant":
        await set_tenant(engine, "stopped", TenantSettings(max_concurrency=0), Write())
    elif blocker == "queue":
        await set_queue(engine, "stopped", QueueSettings(max_concurrency=0), Write())
    await engine.database.value(
        _BLOCKED,
        now,
        await engine.tenant("stopped", now),
        await engine.queue("stopped" if blocker == "queue" else "default", now),
        77 if blocker == "key" else None,
        BLOCKED,
    )
    await admit_all(engine)
    assert (await places(engine))["parked"] == BLOCKED - (blocker == "key")
    await (await Hand.opened(engine)).claim()  # the one that has the key


# Concurrency.

_OVER = """
select 'tenant', e.tenant::text, count(*) from hourbell.leases as l join hourbell.live as e on e.id = l.id
join hourbell.tenants as t on t.id = e.tenant where t.name = 'limited' group by e.tenant having count(*) > 3
union all
select 'queue', e.queue::text, count(*) from hourbell.leases as l join hourbell.live as e on e.id = l.id
group by e.queue having count(*) > 8
union all
select 'key', e.key::text, count(*) from hourbell.leases as l join hourbell.live as e on e.id = l.id
where e.key is not null group by e.key having count(*) > 1
"""


async def test_a_limit_that_is_set_changed_or_removed_acts_within_a_second(engine: Engine) -> None:
    """With the scheduler and the worker that ship, while executions take a tenth of a second each."""
    running, most = 0, 0

    async def work(payload: object, claimed: Claimed) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.1)
        running -= 1

    async def limited(number: int) -> bool:
        nonlocal most
        await set_queue(engine, "default", QueueSettings(max_concurrency=number), Write())
        await asyncio.sleep(1.0)  # what a limit is given to act; then it has to hold
        most = running
        await asyncio.sleep(0.5)
        return most <= number

    async def all_act() -> bool:
        await eventually(lambda: _is(lambda: running >= 20))
        acted = [await limited(4), await limited(0)]
        await set_queue(engine, "default", QueueSettings(), Write())
        began = time.monotonic()
        await eventually(lambda: _is(lambda: running >= 20))
        return all(acted) and time.monotonic() - began < 1.0

    await fill(engine, 10_000, one_time("work"))
    async with scheduling(engine), working(engine, {"work": work}, slots=40):
        for _ in range(5):  # a machine that stalls makes some of them late, a slow product all
            if await all_act():
                break
        else:
            pytest.fail("the limits never acted within a second")


async def _is(condition: Callable[[], bool]) -> bool:
    return condition()


async def test_limits_hold_while_workers_are_killed_and_no_place_is_lost(
    database: str, tmp_path: Path
) -> None:
    chosen = random.Random(20261115)
    log = str(tmp_path / "starts")
    async with open_engine(database, IMPATIENT) as engine, AsyncExitStack() as stack:
        await set_tenant(engine, "limited", TenantSettings(max_concurrency=3), Write())
        await set_queue(engine, "default", QueueSettings(max_concurrency=8), Write())
        for number in range(10):
            await enqueue(engine, ["keyed"] * 12, concurrency_key=f"key-{number}", action=NOTE)
        live = await enqueue(engine, ["limited"] * 120, action=NOTE)
        live += await enqueue(engine, ["free"] * 120, action=NOTE)
        never = RetryPolicy(max_retries=0)
        hang = TaskAction(name="hang")
        hanging = {"action": hang, "timeout_seconds": 1, "retry_policy": never}
        await enqueue(engine, ["limited"] * 4, **hanging)
        await stack.enter_async_context(scheduling(engine))
        workers = [
            await stack.enter_async_context(child("worker", database, log, "10")) for _ in range(3)
        ]
        for worker in workers:
            await worker.says("session")

        async def watch() -> None:
            while True:
                assert await engine.database.fetch(_OVER) == []
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        for _ in range(4):
            await asyncio.sleep(1.0)
            for number in chosen.sample(live, 10):
                with contextlib.suppress(Conflict, NotFound):  # it has ended
                    await cancel_execution(engine, number, Write())
            victim = chosen.randrange(3)
            await workers[victim].kill()
            workers[victim] = await stack.enter_async_context(child("worker", database, log, "10"))
            await workers[victim].says("session")

        async def all_recorded() -> bool:
            assert not watching.done(), watching.exception()
            return not await places(engine)

        await eventually(all_recorded, seconds=60)
        watching.cancel()
        seen = await fates(engine)
        assert seen.total() == 364
        assert 0 < seen["CANCELLED(cancelled)"] <= 40
        assert seen["DEAD(retries_exhausted)"] > 0  # those that hang
        left = "select count(*) from (select from hourbell.limit_holds union all select from hourbell.rate_reservations) as l"
        assert await engine.database.value(left) == 0
