"""The gate: one pass at a time, everything once; and overlap, which it decides."""

import asyncio
from datetime import datetime, timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.admit import Pass, admit
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.change import update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution, run_now
from hourbell.engine.views.executions import list_executions
from hourbell.model.executions import ExecutionStatus
from hourbell.model.jobs import Job
from integration.life.limits import limit_tenant, queued
from integration.life.support import (
    Fate,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    fill,
    history,
    in_transaction,
    one_round,
    one_time,
    place_of,
    places,
    plan_all,
    recurring,
    standing,
    travel,
)


async def test_the_gate_run_twice_at_once_is_busy_the_second_time_and_doubles_nothing(
    engine: Engine,
) -> None:
    await fill(engine, 100)
    now = await engine.clock.now()
    async with in_transaction(engine) as first:
        assert (await admit(first, now)).examined == 100
        assert await admit(engine, now) == Pass(0, more=True, busy=True)
    assert await admit(engine, now) == Pass(0, more=False, busy=False)
    assert await places(engine) == {"ready": 100}
    await check_sound(engine)


async def test_a_claim_while_the_gate_has_not_committed_does_not_leave_its_rows_behind(
    engine: Engine,
) -> None:
    # Only the gate moves virtual time: another caller would skip what is about to appear below.
    await fill(engine, 10, one_time(tenant_id="early"))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await fill(engine, 1, one_time(tenant_id="late"))
    now = await engine.clock.now()
    async with in_transaction(engine) as gate:
        assert (await admit(gate, now)).examined == 1
        assert len(await hand.claim(5)) == 5
    (first, *rest) = await hand.claim()
    assert first.tenant_id == "late"
    assert len(rest) == 5
    await check_sound(engine)


async def test_a_pass_whose_caller_stands_before_its_commit_holds_up_nobody(
    engine: Engine,
) -> None:
    # It is one statement: before it is sent nothing is locked, after it is answered nothing is.
    await fill(engine, 10)
    now = await engine.clock.now()
    for point in ("admit.before_commit", "admit.after_commit"):
        async with standing(point, admit(engine, now)):
            assert not (await admit(engine, now)).busy
    assert await places(engine) == {"ready": 10}


async def test_many_gates_at_once_make_everything_ready_once(engine: Engine) -> None:
    await fill(engine, 2000)
    now = await engine.clock.now()

    async def pass_on() -> int:
        admitted = 0
        while (passed := await admit(engine, now, 150)).more:
            admitted += passed.examined
        return admitted + passed.examined

    assert sum(await asyncio.gather(*(pass_on() for _ in range(6)))) == 2000
    assert await places(engine) == {"ready": 2000}
    await check_sound(engine)


async def test_what_is_not_due_is_not_admitted(still: Engine) -> None:
    due = await create(still, one_time())
    job = await create(still, one_time(schedule={"delay_seconds": 10}))
    await travel(still, at("10:00:39"))
    await admit_all(still)
    assert await place_of(still, due.job_id) == ["ready"]
    assert await place_of(still, job.job_id) == ["due"]
    await travel(still, at("10:00:40"))
    await admit_all(still)
    assert await place_of(still, job.job_id) == ["ready"]


async def test_what_is_committed_with_a_time_long_past_is_found(still: Engine) -> None:
    await admit_all(still)  # the gate knows that nothing is due up to here
    await travel(still, at("10:00:32"))
    job = await create(still, one_time(schedule={"at": at("10:00:01").isoformat()}))
    await travel(still, at("10:00:33"))
    await admit_all(still)
    assert await place_of(still, job.job_id) == ["ready"]


async def test_what_is_committed_within_a_second_of_its_time_is_found_without_a_sweep(
    still: Engine,
) -> None:
    swept, tenth = at("10:00:10"), timedelta(seconds=0.1)
    await travel(still, swept)
    await create(still, one_time())
    await admit_all(still)  # a sweep, which also moves the mark
    late, later = [
        await create(still, one_time(schedule={"at": (swept - tenths * tenth).isoformat()}))
        for tenths in (9, 11)
    ]
    await travel(still, swept + tenth)
    await admit_all(still)
    assert await place_of(still, late.job_id) == ["ready"]
    assert await place_of(still, later.job_id) == ["due"]
    await travel(still, swept + timedelta(seconds=10))  # the longest time between two sweeps
    await admit_all(still)
    assert await place_of(still, later.job_id) == ["ready"]


DEAD = 120_000  # enough for a sweep every three seconds


async def test_what_a_long_transaction_keeps_from_vacuum_is_scanned_seldom_and_once(
    still: Engine,
) -> None:
    await admit_all(still)
    async with in_transaction(still) as holder, still.database.connection() as connection:
        await holder.database.value("select pg_current_xact_id()::text")
        await connection.execute("vacuum hourbell.due, hourbell.due_slabs")
        await connection.execute(
            "insert into hourbell.due_slabs (run_at, slab, queue, priority, flags, target, ids, tenants)"
            " select $1, n, 1, 2, 0, -1, '{1}', '{1}' from generate_series(1, $2::int) as n",
            at("10:00:00"),
            DEAD,
        )
        await connection.execute("select pg_stat_force_next_flush()")  # or they are counted twice
        await connection.execute("delete from hourbell.due_slabs")
        await connection.execute("vacuum hourbell.due_slabs")  # which counts what it must leave

        sweep = at("10:01")
        assert DEAD <= await scanned_by_a_pass(still, sweep) < 1.5 * DEAD
        assert await scanned_by_a_pass(still, sweep + timedelta(seconds=2.9)) == 0
        assert await scanned_by_a_pass(still, sweep + timedelta(seconds=3)) >= DEAD
    async with still.database.connection() as connection:
        await connection.execute("vacuum hourbell.due_slabs")  # the next test has the same tables


async def test_what_was_just_admitted_under_a_long_transaction_is_scanned_once(
    still: Engine,
) -> None:
    swept = at("10:00:10")
    await travel(still, swept)
    await admit_all(still)
    async with in_transaction(still) as holder:
        await holder.database.value("select pg_current_xact_id()::text")
        await still.database.value(
            "insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target)"
            " select $1, n, 1, 1, 2, 0, -1 from generate_series(1, 1000) as n",
            swept,
        )
        await still.database.value("delete from hourbell.due")
        moment = swept + timedelta(seconds=0.5)
        await travel(still, moment)
        await create(still, one_time())
        assert 1_000 <= await scanned_by_a_pass(still, moment, "due_by_tier") < 1_100


async def scanned_by_a_pass(
    engine: Engine, moment: datetime, index: str = "due_slabs_by_tier"
) -> int:
    """How many entries of an index a pass at this moment visits."""
    read = f"select pg_stat_get_xact_tuples_returned('hourbell.{index}'::regclass)"
    await travel(engine, moment)
    async with in_transaction(engine) as own:
        await own.database.value("select hourbell.admit($1, 4000, '1 hour')::text", moment)
        return int(await own.database.value(read))


@pytest.mark.parametrize("level", [0, 1])
async def test_a_pass_takes_half_as_much_of_what_is_under_limits(still: Engine, level: int) -> None:
    await limit_tenant(still, "acme", max_concurrency=1_000)
    await admit_all(still)  # a sweep: the passes below make none
    await queued(still, 100, tenant_id="acme")
    await still.database.value("update hourbell.due set flags = hourbell.flags_level($1)", level)
    now = await still.clock.now()
    taken = [(await admit(still, now, batch=40)).examined for _ in range(4)]
    assert taken == [40, 20, 20, 20]


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


# Overlap: the run of 10:01 is live when that of 10:02 falls due.


async def first_run_live(engine: Engine, policy: str) -> tuple[Job, Hand, list[object]]:
    job = await create(engine, recurring(overlap_policy=policy))
    await plan_all(engine)
    await travel(engine, at("10:01:01"))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    return job, hand, list(await hand.claim())


async def minute_passes(engine: Engine, moment: str) -> None:
    await travel(engine, at(moment))
    await plan_all(engine)
    await admit_all(engine)


async def test_allow_runs_both(still: Engine) -> None:
    job, hand, _ = await first_run_live(still, "allow")
    await minute_passes(still, "10:02:01")
    assert len(await hand.claim()) == 1
    assert len(await history(still, job.job_id)) == 2


async def test_forbid_skips_the_later_run(still: Engine) -> None:
    job, hand, first = await first_run_live(still, "forbid")
    await minute_passes(still, "10:02:01")
    assert await hand.claim() == []
    await hand.succeed(first)
    await minute_passes(still, "10:03:01")
    assert len(await hand.claim()) == 1
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("SUCCEEDED", None),
        ("SKIPPED", "overlap"),
        ("live", None),
    ]


@pytest.mark.parametrize(("policy", "waits"), [("allow", "off"), ("forbid", "on")])
async def test_a_pass_waits_for_the_disk_only_if_it_ends_executions(
    still: Engine, policy: str, waits: str
) -> None:
    await first_run_live(still, policy)
    await plan_all(still, await travel(still, at("10:02:01")))
    async with in_transaction(still, synchronous_commit="on") as gate:
        assert (await admit(gate, at("10:02:01"))).examined == 1
        assert await gate.database.value("show synchronous_commit") == waits


async def test_forbid_skips_also_while_the_earlier_run_waits_for_its_retry(still: Engine) -> None:
    job, hand, first = await first_run_live(still, "forbid")
    await hand.fail(first, 3600)
    await minute_passes(still, "10:02:01")
    assert await hand.claim() == []
    assert (await history(still, job.job_id))[1] == Fate(at("10:02"), "SKIPPED", "overlap")


@pytest.mark.parametrize("policy", ["forbid", "queue_one", "replace"])
async def test_a_retry_and_the_next_run_that_fall_due_together_do_not_both_run(
    still: Engine, policy: str
) -> None:
    _, hand, first = await first_run_live(still, policy)
    await hand.fail(first, 59)  # at 10:02:00, like the next run
    await minute_passes(still, "10:02:01")
    assert len(await hand.claim()) <= 1
    await check_sound(still)


async def test_replace_cancels_the_earlier_run_and_then_runs(still: Engine) -> None:
    job, hand, first = await first_run_live(still, "replace")
    await minute_passes(still, "10:02:01")
    assert await hand.claim() == []  # it waits until the other has gone
    heard = await hand.beat(first)
    assert list(heard.cancelled) == [first[0].execution_id]
    await hand.succeed(first)  # it was quicker than the wish
    await admit_all(still)
    assert len(await hand.claim()) == 1
    assert [fate[1] for fate in await history(still, job.job_id)] == ["SUCCEEDED", "live"]


async def test_replace_takes_the_place_of_a_run_that_is_ready_but_unclaimed(
    still: Engine,
) -> None:
    job = await create(still, recurring(overlap_policy="replace"))
    await plan_all(still)
    await minute_passes(still, "10:01:01")
    await minute_passes(still, "10:02:01")
    hand = await Hand.opened(still)
    assert await hand.claim() == []
    assert len(await hand.run_all()) == 1
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("CANCELLED", "cancelled"),
        ("SUCCEEDED", None),
    ]


async def test_replace_takes_the_place_of_a_run_that_waits_for_its_next_attempt(
    still: Engine,
) -> None:
    job = await create(still, recurring(overlap_policy="replace"))
    hand = await Hand.opened(still)
    await one_round(still, at("10:01"))
    await hand.fail(await hand.claim(), 3600)
    await one_round(still, at("10:02"))
    [newest] = await hand.claim()
    assert newest.scheduled_for == at("10:02")
    runs = (await list_executions(still, job.job_id)).items
    assert [run.status for run in runs] == [ExecutionStatus.RUNNING, ExecutionStatus.CANCELLED]


async def test_replace_lets_only_the_newest_wait(still: Engine) -> None:
    job, hand, first = await first_run_live(still, "replace")
    await minute_passes(still, "10:02:01")
    await minute_passes(still, "10:03:01")
    assert await places(still) == {"leased": 1, "parked": 1, "due": 1}
    await hand.succeed(first)
    await hand.run_all()
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("SUCCEEDED", None),
        ("SKIPPED", "replaced"),
        ("SUCCEEDED", None),
    ]


async def test_queue_one_lets_one_wait_and_skips_the_rest(still: Engine) -> None:
    job, hand, first = await first_run_live(still, "queue_one")
    await minute_passes(still, "10:02:01")
    await minute_passes(still, "10:03:01")
    assert await hand.claim() == []
    await hand.succeed(first)
    assert len(await hand.run_all()) == 1
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("SUCCEEDED", None),
        ("SUCCEEDED", None),
        ("SKIPPED", "overlap"),
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("forbid", ["SUCCEEDED", "SKIPPED", "SKIPPED"]),
        ("queue_one", ["SUCCEEDED", "SUCCEEDED", "SKIPPED"]),
        ("replace", ["SKIPPED", "SKIPPED", "SUCCEEDED"]),
    ],
)
async def test_runs_that_fall_due_together_overlap_one_another(
    still: Engine, policy: str, expected: list[str]
) -> None:
    job = await create(still, recurring("0,1,2 * * * * *", overlap_policy=policy))
    await plan_all(still)
    await travel(still, at("10:01:05"))
    hand = await Hand.opened(still)
    await hand.run_all()
    assert [fate.status for fate in await history(still, job.job_id)] == expected


@pytest.mark.parametrize("policy", ["queue_one", "replace"])
@pytest.mark.parametrize("ending", ["success", "cancel", "crash"])
async def test_what_waits_for_a_run_that_ends_while_the_gate_parks_it_is_not_forgotten(
    still: Engine, policy: str, ending: str
) -> None:
    job, hand, first = await first_run_live(still, policy)
    await travel(still, at("10:02:01"))
    await plan_all(still)
    async with in_transaction(still) as gate:
        await admit(gate, await still.clock.now())  # it sees the first run, and parks the second
        ends = asyncio.create_task(_end(still, hand, first[0].execution_id, first, ending))
        await asyncio.wait([ends], timeout=0.3)  # whether it must wait for the gate or not
    await ends
    await travel(still, at("10:02:05"))
    await (await Hand.opened(still)).run_all()
    assert (await history(still, job.job_id))[1] == Fate(at("10:02"), "SUCCEEDED")


async def _end(
    engine: Engine, hand: Hand, execution_id: int, claimed: list[object], ending: str
) -> None:
    if ending == "success":
        await hand.succeed(claimed)
    elif ending == "crash":
        await engine.database.value("update hourbell.executions set at_most_once = true")
        await engine.database.value(
            "update hourbell.sessions set expires_at = $1",
            await engine.clock.now() - timedelta(seconds=1),
        )
        await reap(engine, None, await engine.clock.now())
    else:
        await hand.fail(claimed, 3600)
        await cancel_execution(engine, execution_id, Write())


async def test_a_run_on_request_overlaps_like_any_other(still: Engine) -> None:
    job, hand, _ = await first_run_live(still, "forbid")
    await run_now(still, job.job_id, Write())
    await admit_all(still)
    assert await hand.claim() == []
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("live", None),
        ("SKIPPED", "overlap"),
    ]


async def test_cancelling_the_live_run_lets_the_waiting_one_go(still: Engine) -> None:
    _, hand, first = await first_run_live(still, "queue_one")
    await minute_passes(still, "10:02:01")
    await hand.fail(first, 3600)  # it waits for its retry
    assert await hand.run_all() == []
    await cancel_execution(still, first[0].execution_id, Write())
    assert len(await hand.run_all()) == 1


@pytest.mark.parametrize("policy", ["queue_one", "replace"])
async def test_what_waits_for_a_run_of_a_version_that_allowed_overlaps_runs_when_that_has_ended(
    still: Engine, policy: str
) -> None:
    job, hand, first = await first_run_live(still, "allow")
    await update_job(still, job.job_id, {"overlap_policy": policy}, Write())
    await minute_passes(still, "10:02:01")
    assert (await places(still))["parked"] == 1
    await hand.succeed(first)
    assert len(await hand.run_all()) == 1
