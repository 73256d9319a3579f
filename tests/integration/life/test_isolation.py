"""One bad row does not stop the others at the gate: it is found, shown, and admitted once its cause is gone."""

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from hourbell.engine.core import Engine
from hourbell.engine.life.admit import Pass, admit
from hourbell.engine.life.reap import expire
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.attention import attention
from hourbell.engine.views.diagnosis import Level, examine, findings
from hourbell.engine.views.executions import ExecutionFilter, search_executions
from hourbell.engine.views.explain import explain_execution
from hourbell.model.ids import execution_text
from hourbell.model.limits import RateLimit
from integration.life.limits import limit_queue, limit_tenant, queued
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    blocked,
    check_sound,
    create,
    create_many,
    fill,
    history,
    in_transaction,
    one_time,
    place_of,
    places,
    plan_all,
    recurring,
    travel,
)

MINUTE = timedelta(minutes=1)
PRIORITIES = ("CRITICAL", "HIGH", "MEDIUM", "LOW")


@asynccontextmanager
async def failing(engine: Engine, *ids: int) -> AsyncIterator[None]:
    """Within it, a pass that makes one of these executions ready fails."""
    numbers = ", ".join(map(str, ids))
    await engine.database.value(
        "alter table hourbell.ready add constraint bad_rows"
        f" check (not ids && array[{numbers}]::bigint[]) not valid"
    )
    try:
        yield
    finally:
        await engine.database.value("alter table hourbell.ready drop constraint bad_rows")


async def hundred_good(engine: Engine, **fields: Any) -> None:
    """100 executions that are due, of several tenants and all priorities."""
    await create_many(
        engine,
        [
            one_time(tenant_id=f"tenant-{number % 5}", priority=PRIORITIES[number % 4], **fields)
            for number in range(100)
        ],
    )


async def check_shown(engine: Engine, bad: int) -> None:
    """The execution on which the gate fails is visible wherever a user would look."""
    now = await engine.clock.now()
    explained = await explain_execution(engine, bad)
    assert explained.code == "admission_failed"
    assert explained.until is not None
    assert now < explained.until <= now + MINUTE
    found = {finding.check: finding for finding in findings(await examine(engine, 0.0))}
    assert found["gate"].level is Level.FAILURE
    assert execution_text(bad) in found["gate"].what
    items = {item.code: item for item in await attention(engine, now, None, None)}
    assert items["admission_failed"].refers_to.id == execution_text(bad)
    listed = (await search_executions(engine, ExecutionFilter())).items
    waits = {one.execution_id: one.waiting_for for one in listed}
    assert waits.get(bad, "admission_failed") == "admission_failed"


async def check_admitted_later(engine: Engine, bad: int) -> None:
    """The cause is gone: it becomes ready by itself."""
    now = await engine.clock.now()
    await travel(engine, now + MINUTE)
    assert (await admit(engine)).examined == 1
    assert await place_of(engine, bad) == ["ready"]
    assert (await examine(engine, 0.0)).not_admitted == 0
    assert await engine.database.value("select count(*) from hourbell.gate_wakeups") == 0
    await check_sound(engine)


async def test_a_due_row_that_fails_does_not_stop_the_others(still: Engine) -> None:
    # The time of the bad one is the earliest, so it is in every pass.
    bad = (await create(still, one_time(tenant_id="bad"))).job_id
    await travel(still, at("10:00:31"))
    await hundred_good(still)
    async with failing(still, bad):
        with capture_logs() as logs:
            passed = await admit(still)
        assert passed == Pass(101, more=False, busy=False)
        assert await places(still) == {"ready": 100, "parked": 1}
        assert [line["event"] for line in logs] == [
            "gate pass failed",
            "execution cannot be admitted",
        ]
        assert logs[0]["sqlstate"] == "23514"
        assert logs[1]["execution_id"] == execution_text(bad)
        assert "bad_rows" in logs[1]["error"]
        await check_shown(still, bad)
        await check_sound(still)
        # It is tried once a minute; between that, passes do not fail.
        await fill(still, 10)
        with capture_logs() as logs:
            await travel(still, at("10:01:30"))
            assert (await admit(still)).examined == 10
            assert logs == []
            await travel(still, at("10:01:31"))
            await admit(still)
        assert "execution cannot be admitted" in [line["event"] for line in logs]
        await check_shown(still, bad)
    await check_admitted_later(still, bad)


async def test_an_execution_of_a_slab_that_fails_does_not_stop_the_others(still: Engine) -> None:
    for priority in PRIORITIES:
        await fill(still, 25, one_time(priority=priority, tenant_id=priority.lower()))
    bad = (await still.database.fetch("select ids[7] as id from hourbell.due_slabs"))[1]["id"]
    async with failing(still, bad):
        assert (await admit(still)).examined == 100
        assert await places(still) == {"ready": 99, "parked": 1}
        await check_shown(still, bad)
        await check_sound(still)
    await check_admitted_later(still, bad)


async def test_a_slab_that_lacks_tenants_does_not_stop_the_others(still: Engine) -> None:
    await fill(still, 64)
    await still.database.value("update hourbell.due_slabs set tenants = tenants[2:]")
    await hundred_good(still)
    await admit_all(still)
    assert await places(still) == {"ready": 164}
    await check_sound(still)
    assert len(await (await Hand.opened(still)).claim_all()) == 164


async def test_a_parked_row_that_fails_does_not_stop_the_others(still: Engine) -> None:
    await limit_tenant(still, "limited", max_concurrency=0)
    parked = await queued(still, 10, tenant_id="limited")
    await admit_all(still)
    bad = parked[0]
    async with failing(still, bad):
        await limit_tenant(still, "limited", max_concurrency=5)
        await hundred_good(still)
        await admit_all(still)
        assert await places(still) == {"ready": 105, "parked": 5}
        assert await place_of(still, bad) == ["parked"]
        await check_shown(still, bad)
        await check_sound(still)
    # It waits for the limit like the others, behind them.
    await limit_tenant(still, "limited", max_concurrency=None)
    await travel(still, at("10:01:30"))
    await admit_all(still)
    await travel(still, at("10:01:31"))
    await admit_all(still)
    assert await places(still) == {"ready": 110}
    await check_sound(still)


async def test_a_parked_row_that_cannot_be_taken_out_does_not_stop_the_others(
    still: Engine,
) -> None:
    await limit_tenant(still, "limited", max_concurrency=0)
    bad, *_ = await queued(still, 5, tenant_id="limited")
    await admit_all(still)
    # A blocker that there is not, and whose number does not fit into the flags of a row.
    await still.database.value("update hourbell.parked set kind = 3000, key = 1 where id = $1", bad)
    await still.database.value(
        "insert into hourbell.gate_wakeups (at, kind, key) values ($1, 3000, 1)", START
    )
    await limit_tenant(still, "limited", max_concurrency=100)
    await hundred_good(still)
    await admit_all(still)
    assert await places(still) == {"ready": 104, "parked": 1}
    await check_shown(still, bad)
    await check_admitted_later(still, bad)


async def test_an_occurrence_whose_job_cannot_be_read_does_not_stop_the_others(
    still: Engine,
) -> None:
    job = await create(still, recurring("1 * * * *", misfire_policy="all"))
    await plan_all(still)
    spec = await still.database.value("select spec from hourbell.jobs where id = $1", job.job_id)
    await still.database.value("update hourbell.jobs set spec = '{' where id = $1", job.job_id)
    await travel(still, at("10:03"))  # late: the misfire policy is asked
    await hundred_good(still)
    assert (await admit(still)).examined == 101
    assert await places(still) == {"ready": 100, "parked": 1}
    (bad,) = [row["id"] for row in await still.database.fetch("select id from hourbell.parked")]
    await check_shown(still, bad)
    await still.database.value("update hourbell.jobs set spec = $2 where id = $1", job.job_id, spec)
    await check_admitted_later(still, bad)


async def test_one_that_fails_can_be_cancelled(still: Engine) -> None:
    bad = (await create(still, one_time())).job_id
    async with failing(still, bad):
        await admit_all(still)
        await cancel_execution(still, bad, Write())
        assert await places(still) == {}
        await travel(still, at("10:02"))
        with capture_logs() as logs:
            await admit_all(still)
        assert logs == []
    assert await still.database.value("select count(*) from hourbell.gate_wakeups") == 0


async def test_one_that_fails_holds_no_key_that_others_need(still: Engine) -> None:
    bad, good = await queued(still, 2, concurrency_key="k", concurrency_limit=1)
    async with failing(still, bad):
        await admit_all(still)
        await admit_all(still)
        assert await place_of(still, good) == ["ready"]
        assert await place_of(still, bad) == ["parked"]
    await travel(still, at("10:01:30"))
    await admit_all(still)
    assert (await explain_execution(still, bad)).code == "concurrency_key"


@asynccontextmanager
async def failing_until_the_next(
    still: Engine, overlap_policy: str, since: str
) -> AsyncIterator[tuple[int, int]]:
    """A job, and its occurrence of 10:01, on which the gate fails until it has admitted that of 10:02.

    It is retried a minute after `since`.
    """
    job = await create(still, recurring("1,2 * * * *", overlap_policy=overlap_policy))
    await plan_all(still)
    await travel(still, at(since))
    (bad,) = [row["id"] for row in await still.database.fetch("select id from hourbell.due")]
    async with failing(still, bad):
        await admit_all(still)
        await travel(still, at("10:01:30"))
        await plan_all(still)
        await travel(still, at("10:02"))
        await admit_all(still)
        yield job.job_id, bad


async def older_is_skipped(engine: Engine, job_id: int) -> bool:
    return [(one.occurrence, one.status) for one in await history(engine, job_id)] == [
        (at("10:01"), "SKIPPED"),
        (at("10:02"), "live"),
    ]


async def test_overlap_is_decided_once_the_cause_is_gone(still: Engine) -> None:
    async with failing_until_the_next(still, "forbid", "10:01") as (job_id, bad):
        # It was retried together with the next occurrence, which it does not block.
        assert await place_of(still, bad) == ["parked"]
        assert await places(still) == {"ready": 1, "parked": 1}
        await check_sound(still)
    await travel(still, at("10:03"))
    await admit_all(still)
    assert await older_is_skipped(still, job_id)
    await check_sound(still)


async def test_an_older_occurrence_does_not_replace_a_newer_run(still: Engine) -> None:
    async with failing_until_the_next(still, "replace", "10:01:10") as (job_id, bad):
        pass
    (running,) = await (await Hand.opened(still)).claim()
    assert running.execution_id != bad
    await travel(still, at("10:02:10"))  # the older one is retried
    await admit_all(still)
    assert await still.database.value("select count(*) from hourbell.cancellations") == 0
    assert await older_is_skipped(still, job_id)
    await check_sound(still)


async def test_an_older_occurrence_does_not_replace_a_newer_one_that_waits(still: Engine) -> None:
    job = await create(still, recurring("0,1,2 * * * *", overlap_policy="replace"))
    hand = await Hand.opened(still)
    await travel(still, at("11:00"))
    await plan_all(still)
    await admit_all(still)
    assert await hand.claim()
    now = await travel(still, at("11:01:10"))
    await plan_all(still)
    bad = await still.database.value("select id from hourbell.due where run_at <= $1", now)
    await still.database.value(
        "alter table hourbell.parked add constraint bad_rows"
        f" check (kind = hourbell.blocker_failure() or id <> {bad}) not valid"
    )
    await admit_all(still)
    await travel(still, at("11:02"))
    await plan_all(still)
    await admit_all(still)  # the newest waits for the end of the one that runs
    assert await places(still) == {"leased": 1, "parked": 2}
    await still.database.value("alter table hourbell.parked drop constraint bad_rows")
    await travel(still, at("11:02:10"))
    await admit_all(still)
    assert [(one.occurrence, one.status) for one in await history(still, job.job_id)][-2:] == [
        (at("11:01"), "SKIPPED"),
        (at("11:02"), "live"),
    ]
    await check_sound(still)


async def test_rows_on_which_it_failed_are_all_retried_however_many(still: Engine) -> None:
    bad = await queued(still, 6)
    async with failing(still, *bad):
        await admit_all(still)
        assert await places(still) == {"parked": 6}
    await travel(still, at("10:01:30"))
    while (passed := await admit(still, batch=8)).more:  # each retries two of them
        assert passed.examined == 2
    assert await places(still) == {"ready": 6}


async def test_rows_that_are_locked_are_retried_later(still: Engine) -> None:
    bad = await queued(still, 2)
    async with failing(still, *bad):
        await admit_all(still)
    await travel(still, at("10:01:30"))
    async with in_transaction(still) as own:
        await own.database.fetch("select from hourbell.parked for update")
        assert await admit(still) == Pass(0, more=False, busy=False)
    await travel(still, at("10:02:30"))
    await admit_all(still)
    assert await places(still) == {"ready": 2}


async def test_urgent_rows_come_first_in_an_isolating_pass_too(still: Engine) -> None:
    for name in ("a", "b"):
        await limit_tenant(still, name, max_concurrency=0)
    (urgent,) = await queued(still, 1, tenant_id="a", priority="CRITICAL")
    (low,) = await queued(still, 1, tenant_id="b", priority="LOW")
    await admit_all(still)
    await limit_queue(still, max_concurrency=1)
    for name in ("a", "b"):
        await limit_tenant(still, name, max_concurrency=1)
    await still.database.value("select setval('hourbell.passes', 1)")  # not one of sixteen
    await still.database.value(
        "insert into hourbell.tag_refunds (queue, priority, tenant) values (1, 2, 1)"
    )
    await still.database.value("alter table hourbell.tag_refunds rename column tenant to gone")
    try:
        await admit_all(still)
        assert await place_of(still, urgent) == ["ready"]
        assert await place_of(still, low) == ["parked"]
    finally:
        await still.database.value("alter table hourbell.tag_refunds rename column gone to tenant")


async def test_a_limit_that_cannot_be_read_does_not_stop_the_others(still: Engine) -> None:
    await limit_tenant(still, "limited", max_concurrency=0)
    await queued(still, 40, tenant_id="limited")
    await admit_all(still)
    await limit_tenant(still, "limited", rate_limit=RateLimit(1.0, 1))
    await still.database.value("update hourbell.limits set rate = 1e-300 where kind = 2")
    await hundred_good(still)
    with capture_logs() as logs:
        await admit_all(still)
    assert await places(still) == {"ready": 100, "parked": 40}
    # Not all of its rows are tried, and not at once.
    assert 0 < sum(line["event"] == "execution cannot be admitted" for line in logs) <= 24
    assert await admit(still) == Pass(0, more=False, busy=False)
    await check_sound(still)
    await limit_tenant(still, "limited", rate_limit=None)
    for minute in range(1, 4):
        await travel(still, START + minute * MINUTE)
        await admit_all(still)
    assert await places(still) == {"ready": 140}
    await check_sound(still)


async def test_many_bad_rows_do_not_hold_the_lock_for_long(still: Engine) -> None:
    await fill(still, 4_000)
    rows = await still.database.fetch("select unnest(ids) as id from hourbell.due_slabs order by 1")
    bad = [row["id"] for row in rows[:1_000:20]]  # all would be in the first isolating pass
    found, took = [], []
    async with failing(still, *bad):
        while True:
            with capture_logs() as logs:
                began = time.monotonic()
                passed = await admit(still)
                took.append(time.monotonic() - began)
            found.append(sum(line["event"] == "execution cannot be admitted" for line in logs))
            if not passed.more:
                break
        assert await places(still) == {"ready": 3_950, "parked": 50}
        # A pass stops after some failures, and the next one continues.
        assert sum(found) == 50
        assert max(found) < 24
        assert len(took) <= 50
        # Of most passes: a machine that stalls makes one long.
        assert statistics.median(took) < 2
        await check_sound(still)
    await travel(still, at("10:01:30"))
    await admit_all(still)
    assert await places(still) == {"ready": 4_000}


async def test_only_bad_rows_are_found_one_after_the_other(still: Engine) -> None:
    bad = await queued(still, 60)
    async with failing(still, *bad):
        await admit_all(still)
        assert await places(still) == {"parked": 60}
        await check_sound(still)
    await travel(still, at("10:01:30"))
    await admit_all(still)
    assert await places(still) == {"ready": 60}


async def test_what_is_not_about_rows_stops_nothing(still: Engine) -> None:
    # A refund that cannot be given back: every pass fails, and an isolating one does without refunds.
    await admit_all(still)
    await still.database.value(
        "insert into hourbell.tag_refunds (queue, priority, tenant) values (1, 2, 1)"
    )
    await still.database.value("alter table hourbell.tag_refunds rename column tenant to gone")
    try:
        await hundred_good(still)
        with capture_logs() as logs:
            await admit_all(still)
            await admit_all(still)
        assert await places(still) == {"ready": 100}
        assert [line["event"] for line in logs] == ["gate pass failed"]
    finally:
        await still.database.value("alter table hourbell.tag_refunds rename column gone to tenant")


async def test_a_deadline_that_cannot_be_applied_does_not_stop_the_others(still: Engine) -> None:
    ids = await queued(still, 20, start_deadline_seconds=10)
    bad = ids[7]
    await still.database.value(
        f"alter table hourbell.outcomes add constraint bad_rows check (id <> {bad}) not valid"
    )
    now = await travel(still, at("10:01"))
    with capture_logs() as logs:
        for _ in range(12):  # steps of the loop
            await expire(still, None, now)
    assert await places(still) == {"due": 1}
    assert [(line["event"], line["step"], line["execution_id"]) for line in logs] == [
        ("row fails", "deadline", execution_text(bad))
    ]
    await still.database.value("alter table hourbell.outcomes drop constraint bad_rows")
    await expire(still, None, now)
    assert await places(still) == {"due": 1}  # not retried at once
    now = await travel(still, at("10:02:01"))
    await expire(still, None, now)
    assert await places(still) == {}
    await check_sound(still)


async def test_a_lock_timeout_says_nothing_about_the_rows(still: Engine) -> None:
    isolating = "select examined from hourbell.admit(hourbell.clock(), 100, '1 minute', true)"
    await fill(still, 10)
    bad = (await create(still, one_time())).job_id
    async with failing(still, bad):
        async with in_transaction(still, lock_timeout="10") as own, blocked(still, "parked"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await own.database.value(isolating)
        async with in_transaction(still, lock_timeout="10") as own, blocked(still, "ready"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await own.database.value(isolating)
    assert await places(still) == {"due": 11}
