"""Rows of executions stay when they have ended: who counts them, who takes them over, and who deletes them at last."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.dead_letters import replay_dead_letter
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.engine.operations.runs import cancel_execution
from hourbell.model.errors import QuotaExceeded
from hourbell.model.limits import TenantSettings
from hourbell.store.queries import queries
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    fates,
    fill,
    in_transaction,
    one_time,
    places,
    recurring,
    somebody_waits,
    take_session,
    travel,
)

_PRODUCE = """
select hourbell.produce(
  array(select jsonb_populate_record(m, jsonb_build_object('version', $2::int))
        from hourbell.memberships as m where m.job = $1),
  array[$3::timestamptz], $3, false, true, '1 minute', $3)
"""


async def test_what_retention_has_deleted_takes_no_room_in_a_quota(still: Engine) -> None:
    settings = TenantSettings(max_jobs=2, ledger_days=1)
    await set_tenant(still, "acme", settings, Write())
    hand = await Hand.opened(still)
    for _ in range(2):
        await create(still, one_time(tenant_id="acme"))
    await admit_all(still)
    assert not await hand.succeed(await hand.claim())
    now = await travel(still, START + timedelta(days=3))
    await run_housekeeping(still, None, now)
    assert await still.database.value("select count(*) from hourbell.executions") == 0
    for _ in range(2):
        await create(still, one_time(tenant_id="acme"))
    with pytest.raises(QuotaExceeded):
        await create(still, one_time(tenant_id="acme"))


@pytest.mark.parametrize("end", ["succeeds", "dies", "is cancelled", "is lost"])
async def test_a_job_that_has_ended_leaves_its_room_at_once(still: Engine, end: str) -> None:
    await set_tenant(still, "acme", TenantSettings(max_jobs=1), Write())
    job = await create(still, one_time(tenant_id="acme", delivery="at_most_once"))
    with pytest.raises(QuotaExceeded):
        await create(still, one_time(tenant_id="acme"))
    if end == "is cancelled":
        await cancel_execution(still, job.job_id, Write())
    else:
        hand = await Hand.opened(still)
        await admit_all(still)
        [claimed] = await hand.claim()
        if end == "is lost":
            await take_session(still, hand.session)
        elif end == "succeeds":
            assert not await hand.succeed([claimed])
        else:
            died = Settlement(claimed.execution_id, claimed.fence, DEAD, 0, 1, None, "Bad", "bad")
            assert not await hand.dispatch.settle(hand.session, [died])
    assert await still.database.value(_IN_QUOTA) == 0
    await create(still, one_time(tenant_id="acme"))
    await check_sound(still)


async def test_jobs_from_before_a_quota_are_listed_and_counted(still: Engine) -> None:
    hand = await Hand.opened(still)
    for _ in range(3):
        await create(still, one_time(tenant_id="acme", schedule={"delay_seconds": 3600}))
    await create(still, one_time(tenant_id="acme"))
    await admit_all(still)
    assert not await hand.succeed(await hand.claim())  # it takes no room

    async with in_transaction(still) as own:  # has not seen the quota
        await create(own, one_time(tenant_id="acme", schedule={"delay_seconds": 3600}))
        await set_tenant(still, "acme", TenantSettings(max_jobs=5), Write())
        for _ in range(2):
            await run_housekeeping(still, None, START)
        pending = "select quota_listed_to is not null from hourbell.tenants where name = 'acme'"
        assert await still.database.value(pending)
    for _ in range(2):
        await run_housekeeping(still, None, START)
    assert not await still.database.value(pending)
    assert await still.database.value("select count(*) from hourbell.quota_jobs") == 4
    await create(still, one_time(tenant_id="acme"))
    with pytest.raises(QuotaExceeded):
        await create(still, one_time(tenant_id="acme"))


async def test_a_job_of_a_transaction_that_began_after_the_last_one_that_ended_is_counted(
    still: Engine,
) -> None:
    """Its number is the first one that no snapshot of that moment calls ended."""
    later = one_time(tenant_id="acme", schedule={"delay_seconds": 3600})
    await create(still, later)
    await run_housekeeping(still, None, START)  # makes partitions
    tenant = await still.tenant("acme", START)
    settings = (tenant, 1, 8, None, None, None)
    async with in_transaction(still) as creator:
        async with in_transaction(still) as admin, admin.database.connection() as connection:
            await connection.execute(queries("limits")["update_tenant"], *settings)
            await create(creator, later)  # has not seen the quota
            number = await creator.database.value("select pg_current_xact_id()::text::bigint")
        next_one = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
        assert await still.database.value(next_one) == number
        for _ in range(3):
            await still.database.value("select hourbell.list_quota_jobs(null, null, 1000)")
    for _ in range(3):
        await run_housekeeping(still, None, START)
    assert await still.database.value(_IN_QUOTA) == 2
    for _ in range(6):
        await create(still, later)
    with pytest.raises(QuotaExceeded):
        await create(still, later)


_SLOW_INSERT = """
create function public.wait_here() returns trigger language plpgsql set lock_timeout = 0 as
  $$ begin perform pg_advisory_xact_lock_shared(77); return null; end $$;
create trigger waits before insert on hourbell.due for each statement execute function public.wait_here();
"""
_ENQUEUE = "select hourbell.enqueue('mail', tenant => 'acme', delay => '1 hour')"
_IN_QUOTA = "select count(*) from hourbell.quota_jobs"


@pytest.mark.parametrize("by_sql", [True, False])
async def test_a_job_that_is_inserted_while_its_tenant_gets_a_quota_is_counted(
    still: Engine, by_sql: bool
) -> None:
    """Its statement has begun, and so has not seen the quota, but has not written anything."""
    later = one_time(tenant_id="acme", schedule={"delay_seconds": 3600})
    await create(still, later)
    await run_housekeeping(still, None, START)  # makes partitions
    async with still.database.connection() as holder, still.database.connection() as admin:
        await admin.execute(
            "insert into hourbell.tasks (name, created_at) values ('mail', hourbell.clock())"
            " on conflict do nothing"
        )
        jobs = 1
        for _ in range(3):  # every connection has ids in reserve, and writes nothing to get one
            made = [create(still, later) for _ in range(8)]
            made += [still.database.value(_ENQUEUE) for _ in range(8)]
            jobs += len(await asyncio.gather(*made))
        await admin.execute(_SLOW_INSERT)
        try:
            await holder.execute("select pg_advisory_lock(77)")
            enqueued = asyncio.create_task(
                still.database.value(_ENQUEUE) if by_sql else create(still, later)
            )
            await somebody_waits(still, "enqueue" if by_sql else "create_jobs")
            await set_tenant(still, "acme", TenantSettings(max_jobs=99), Write())
            for _ in range(3):
                await run_housekeeping(still, None, START)
            await holder.execute("select pg_advisory_unlock(77)")
            await enqueued
        finally:
            await holder.execute("select pg_advisory_unlock_all()")
            await admin.execute(
                "drop trigger waits on hourbell.due; drop function public.wait_here"
            )
    for _ in range(3):
        await run_housekeeping(still, None, START)
    assert await still.database.value(_IN_QUOTA) == jobs + 1


async def test_a_run_that_another_transaction_is_creating_is_taken_over(still: Engine) -> None:
    job = await create(still, recurring())
    occurrence = START + timedelta(days=1)
    async with in_transaction(still) as own:
        assert await own.database.value(_PRODUCE, job.job_id, 1, occurrence) == 1
        newer = asyncio.create_task(still.database.value(_PRODUCE, job.job_id, 2, occurrence))
        await somebody_waits(still, "produce")
    assert await newer == 0
    rows = await still.database.fetch(
        "select version from hourbell.live where job = $1 and occurrence = $2",
        job.job_id,
        occurrence,
    )
    assert [row["version"] for row in rows] == [2]


async def test_a_stale_report_does_not_use_up_a_cancellation(still: Engine) -> None:
    first = await Hand.opened(still)
    await fill(still, 2)
    await admit_all(still)
    kept, moved = await first.claim()
    await first.dispatch.settle(
        first.session, [Settlement(moved.execution_id, moved.fence, RETRY, 0, 0, 0.0, "x", "x")]
    )
    await admit_all(still)
    second = await Hand.opened(still)
    [again] = await second.claim()
    await cancel_execution(still, again.execution_id, Write())
    refused = await first.dispatch.settle(
        first.session,
        [
            Settlement(kept.execution_id, kept.fence, SUCCEEDED),
            Settlement(moved.execution_id, moved.fence, RETRY, 0, 0, 0.0, "x", "x"),
        ],
    )
    assert refused == [moved.execution_id]
    assert (await second.beat([again])).cancelled == [again.execution_id]


async def test_what_is_being_replayed_is_not_deleted_with_the_old(still: Engine) -> None:
    hand = await Hand.opened(still)
    job = await create(still, one_time())
    await admit_all(still)
    [run] = await hand.claim()
    outcome = Settlement(run.execution_id, run.fence, DEAD, 0, 0, None, "non_retryable", "no")
    assert not await hand.dispatch.settle(hand.session, [outcome])
    later = await travel(still, START + timedelta(days=3))
    async with in_transaction(still) as own:
        await replay_dead_letter(own, job.job_id, Write())
        deleting = asyncio.create_task(
            still.database.value(
                "select hourbell.thin_partition(null, null, 'rest', $1, 10)", later
            )
        )
        await somebody_waits(still, "thin_partition")
    await deleting
    assert await places(still) == {"due": 1}
    assert await fates(still) == {}
    await check_sound(still)
