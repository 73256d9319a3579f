"""What a reviewer found against the guarantees, each as he showed it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest
from msgspec.structs import replace

from hourbell.engine.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.core import Engine
from hourbell.engine.create import create_job
from hourbell.engine.explain import explain_execution
from hourbell.engine.leader import Leadership
from hourbell.engine.plan import end_memberships
from hourbell.engine.read import get_execution, get_job, list_executions
from hourbell.engine.reap import expire, reap
from hourbell.engine.request import cancel_execution, run_now
from hourbell.engine.writes import Write
from hourbell.failpoints import held
from hourbell.model.errors import Conflict, IdempotencyKeyReused, InvalidInput, Overloaded
from hourbell.model.executions import ExecutionStatus, Reason
from hourbell.model.jobs import Job, JobStatus
from hourbell.store.function_set import connect
from hourbell.store.queries import queries
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    create,
    every,
    expire_session,
    fill,
    history,
    one_time,
    open_engine,
    place_of,
    plan_all,
    recurring,
    somebody_waits,
    standing,
    travel,
)

MINUTE = timedelta(minutes=1)
_J = queries("jobs")


async def go(engine: Engine, moment: datetime) -> None:
    """Time comes, and one round of the scheduler."""
    await travel(engine, moment)
    now = await engine.clock.now()
    await plan_all(engine, now)
    await end_memberships(engine, None, now)
    await expire(engine, None, now)
    await admit_all(engine, now)


def on_day(days: int, **fields: object) -> dict[str, object]:
    return one_time(**fields) | {"schedule": {"at": (START + timedelta(days=days)).isoformat()}}


# A run that is far from its time.


async def run_early(engine: Engine, **fields: object) -> int:
    job = await create(engine, on_day(400, **fields))
    await run_now(engine, job.job_id, Write())
    await admit_all(engine)
    return job.job_id


async def test_a_run_a_year_before_its_time_is_recorded_with_its_lateness(still: Engine) -> None:
    job = await run_early(still)
    hand = await Hand.opened(still)
    await hand.succeed(await hand.claim())
    run = await get_execution(still, job)
    assert run.status is ExecutionStatus.SUCCEEDED
    assert run.lateness_ms == -400 * 86_400_000


async def test_a_run_a_year_after_its_time_is_recorded_with_its_lateness(still: Engine) -> None:
    job = await create(still, on_day(-300))
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.succeed(await hand.claim())
    assert (await get_execution(still, job.job_id)).lateness_ms == 300 * 86_400_000


async def test_an_early_run_that_dies_with_its_worker_is_reaped(still: Engine) -> None:
    job = await run_early(still, delivery="at_most_once")
    hand = await Hand.opened(still)
    await hand.claim()
    await expire_session(still, hand.session)
    assert (await reap(still, None, await still.clock.now())).ended == 1
    assert (await get_execution(still, job)).reason is Reason.LOST


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
        "update hourbell.executions set first_started_at = '-infinity' where id = $1", job.job_id
    )
    await fill(still, 10)
    await admit_all(still)
    assert len(await hand.claim()) == 10
    assert await place_of(still, job.job_id) == ["due"]


# Clients that stop between two statements.


@pytest.fixture
async def half_changed(engine: Engine) -> AsyncIterator[tuple[int, asyncpg.Connection]]:
    """A job whose window has closed, and a client that has begun to change it and goes no further."""
    ends = await engine.clock.now() + timedelta(seconds=1)
    schedule = {"every_seconds": 1, "ends_at": ends.isoformat()}
    job = await create(engine, every(1) | {"schedule": schedule})
    while (now := await engine.clock.now()) <= ends:
        await plan_all(engine)
        await asyncio.sleep((ends - now).total_seconds() + 0.05)
    await plan_all(engine)
    connection = await connect(engine.database.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetchrow(_J["lock_recurring"], job.job_id)
    yield job.job_id, connection
    await transaction.rollback()
    await connection.close()


async def test_a_client_that_stops_in_a_change_stops_neither_planning_nor_elections(
    engine: Engine, half_changed: tuple[int, asyncpg.Connection]
) -> None:
    leader = Leadership(engine)
    term = await leader.step()
    assert term is not None
    async with asyncio.timeout(5):
        await end_memberships(engine, term, await engine.clock.now())
        assert await leader.step() == term
    assert (await get_job(engine, half_changed[0])).status is JobStatus.SCHEDULED


async def test_a_change_and_the_end_of_a_membership_do_not_deadlock(
    engine: Engine, half_changed: tuple[int, asyncpg.Connection]
) -> None:
    job, connection = half_changed
    now = await engine.clock.now()
    await end_memberships(engine, None, now)
    async with asyncio.timeout(5):
        await connection.execute(_J["end_member"], job, now)


async def test_waiting_for_a_stopped_client_leaves_connections_for_others(database: str) -> None:
    async with open_engine(database, connections=4) as one, open_engine(database, 8) as other:
        writes = [Write(f"key {number}", b"print") for number in range(8)]
        tenant = await one.tenant("default", await one.clock.now())
        stopped = await connect(database)
        async with stopped.transaction():
            for write in writes:
                await stopped.execute(_J["insert_answer"], tenant, write.key, b"", "{}", START)
            repeats = [asyncio.create_task(create_job(other, one_time(), each)) for each in writes]
            await somebody_waits(one, "create_jobs")
            async with asyncio.timeout(5):
                await other.clock.now()
            answers = await asyncio.gather(*repeats, return_exceptions=True)
            assert {type(answer) for answer in answers} == {Conflict, Overloaded}
        await stopped.close()
        with pytest.raises(IdempotencyKeyReused):
            await create_job(other, one_time(), writes[0])


async def test_a_cancel_that_stands_does_not_hold_up_the_claim_of_the_last_run(
    still: Engine,
) -> None:
    still.times = replace(still.times, horizon_seconds=300)
    await create(still, recurring(window={"max_runs": 1}))
    await go(still, at("10:01"))
    ahead = await still.database.value(
        "select id from hourbell.executions where occurrence > $1 order by occurrence limit 1",
        at("10:01"),
    )
    hand = await Hand.opened(still)
    async with standing("cancel.before_commit", cancel_execution(still, ahead, Write())):
        async with asyncio.timeout(5):
            assert len(await hand.claim()) == 1


# Suspects.


async def suspected(engine: Engine, **fields: object) -> int:
    """An execution with which two workers have died."""
    job = await create(engine, one_time(**fields))
    await admit_all(engine)
    for _ in range(2):
        hand = await Hand.opened(engine)
        await hand.claim()
        await expire_session(engine, hand.session)
        await reap(engine, None, await engine.clock.now())
        await admit_all(engine)
    assert await place_of(engine, job.job_id) == ["suspects"]
    return job.job_id


async def test_a_suspect_gets_its_turn_also_when_every_worker_is_always_busy(
    still: Engine,
) -> None:
    still.times = replace(still.times, lease_seconds=15)
    hand = await Hand.opened(still)
    await fill(still, 1)
    await admit_all(still)
    [old] = await hand.claim(1)
    await travel(still, START + MINUTE)
    await hand.beat([old])
    suspect = await suspected(still)
    for minutes in range(2, 8):
        await travel(still, START + minutes * MINUTE)
        await fill(still, 1)
        await admit_all(still)
        new = await hand.claim(1)
        if not new:
            break  # it drains
        await travel(still, START + minutes * MINUTE + MINUTE / 2)
        await hand.succeed([old])
        [old] = new
        await hand.beat([old])
    await hand.succeed([old])
    [alone] = await hand.claim(1)
    assert alone.execution_id == suspect


async def test_a_suspect_is_cancelled_at_once(still: Engine) -> None:
    suspect = await suspected(still)
    assert (await explain_execution(still, suspect)).code == "quarantine"
    cancelled = await cancel_execution(still, suspect, Write())
    assert cancelled.status is ExecutionStatus.CANCELLED


async def test_a_suspect_that_misses_its_deadline_ends(still: Engine) -> None:
    suspect = await suspected(still, deadline_seconds=600)
    await go(still, at("11:00"))
    await go(still, at("11:01"))
    assert (await get_execution(still, suspect)).reason is Reason.DEADLINE


# Deadlines, overlaps, counted runs.


@pytest.mark.parametrize(
    ("field", "reason"),
    [("start_deadline_seconds", Reason.START_DEADLINE), ("deadline_seconds", Reason.DEADLINE)],
)
async def test_a_deadline_counts_also_for_what_is_ready_and_not_claimed(
    still: Engine, field: str, reason: Reason
) -> None:
    job = await create(still, one_time(**{field: 5}))
    await fill(still, 100)
    await admit_all(still)
    assert await place_of(still, job.job_id) == ["ready"]
    await travel(still, START + MINUTE)
    await expire(still, None, await still.clock.now())
    await travel(still, START + MINUTE + timedelta(seconds=10))
    await expire(still, None, await still.clock.now())
    assert (await get_execution(still, job.job_id)).reason is reason
    hand = await Hand.opened(still)
    assert len(await hand.claim()) == 100


async def test_replace_takes_the_place_of_a_run_that_waits_for_its_next_attempt(
    still: Engine,
) -> None:
    job = await create(still, recurring(overlap_policy="replace"))
    hand = await Hand.opened(still)
    await go(still, at("10:01"))
    await hand.fail(await hand.claim(), 3600)
    await go(still, at("10:02"))
    [newest] = await hand.claim()
    assert newest.scheduled_for == at("10:02")
    runs = (await list_executions(still, job.job_id)).items
    assert [run.status for run in runs] == [ExecutionStatus.RUNNING, ExecutionStatus.CANCELLED]


async def test_a_job_whose_limit_of_runs_is_lowered_below_what_it_has_had_completes(
    still: Engine,
) -> None:
    job = await create(still, recurring(window={"max_runs": 5}))
    hand = await Hand.opened(still)
    for minutes in (1, 2, 3):
        await go(still, at(f"10:0{minutes}"))
        await hand.run_all()
    await update_job(still, job.job_id, {"schedule": {"max_runs": 2}}, Write())
    await go(still, at("10:04"))
    assert await hand.run_all() == []
    assert (await get_job(still, job.job_id)).status is JobStatus.COMPLETED


async def test_an_update_does_not_revive_a_job_that_has_had_its_last_run_meanwhile(
    still: Engine,
) -> None:
    job = await create(still, recurring(window={"max_runs": 1}))
    hand = await Hand.opened(still)
    await go(still, at("10:01"))
    connection = await connect(still.database.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "update hourbell.jobs set status = 2 where id = $1", job.job_id
    )  # as the claim of its last run does
    change = asyncio.create_task(update_job(still, job.job_id, {"name": "other"}, Write()))
    await somebody_waits(still, "jobs")
    await transaction.commit()
    await connection.close()
    with pytest.raises(Conflict):
        await change
    await hand.run_all()
    assert (await get_job(still, job.job_id)).status is JobStatus.COMPLETED


# Wishes that must arrive.


async def test_what_was_wished_away_and_fails_is_not_tried_again(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    claimed = await hand.claim()
    await cancel_execution(still, job.job_id, Write())
    await hand.fail(claimed, 3600)
    run = await get_execution(still, job.job_id)
    assert (run.status, run.reason) == (ExecutionStatus.CANCELLED, Reason.CANCELLED)


@pytest.mark.parametrize("take", [delete_job, cancel_execution])
async def test_what_is_taken_back_while_it_is_being_moved_is_taken_back(
    still: Engine, take: object
) -> None:
    job = await create(still, on_day(20))
    later = {"schedule": {"at": (START + timedelta(days=21)).isoformat()}}
    async with standing("update.before_commit", update_job(still, job.job_id, later, Write())):
        taking = asyncio.create_task(take(still, job.job_id, Write()))  # type: ignore[operator]
        await somebody_waits(still, "due")
    await taking
    assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED
    assert await place_of(still, job.job_id) == []


async def test_a_claim_by_an_old_time_is_recorded_by_the_clock(still: Engine) -> None:
    """As the rig found it with seed 53: the claim stood while a job was created, fell due and became ready."""
    hand = await Hand.opened(still)
    with held("claim.before_commit") as claiming:
        claim = asyncio.create_task(hand.claim())  # by the time of now
        await claiming.reached()
        await travel(still, START + MINUTE)
        job = await create(still, one_time(schedule={"delay_seconds": 0}))
        await admit_all(still)
        claiming.release()
    await hand.succeed(await claim)
    ran = await get_execution(still, job.job_id)
    assert ran.started_at == ran.scheduled_for


async def cancelled_ahead(still: Engine) -> tuple[Job, datetime]:
    """A job of every ten seconds, planned ahead, whose run of 0:30 somebody has cancelled."""
    job = await create(still, recurring("*/10 * * * * *"))
    await plan_all(still)
    ahead = START + timedelta(seconds=30)
    number = await still.database.value(
        "select id from hourbell.executions where occurrence = $1", ahead
    )
    await cancel_execution(still, number, Write())
    return job, ahead


async def test_what_was_cancelled_ahead_does_not_come_back_with_a_fire_of_the_new_schedule(
    still: Engine,
) -> None:
    job, ahead = await cancelled_ahead(still)
    same_times = {"schedule": {"cron": "0,10,20,30,40,50 * * * * *"}}
    await update_job(still, job.job_id, same_times, Write())
    await plan_all(still)
    await travel(still, START + timedelta(minutes=1))
    await (await Hand.opened(still)).run_all()
    fates = [(fate.occurrence, fate.status) for fate in await history(still, job.job_id)]
    tens = [START + timedelta(seconds=seconds) for seconds in range(10, 70, 10)]
    assert fates == [(ten, "CANCELLED" if ten == ahead else "SUCCEEDED") for ten in tens]


async def test_what_the_job_has_had_is_not_among_what_it_missed(still: Engine) -> None:
    job, ahead = await cancelled_ahead(still)
    await update_job(
        still, job.job_id, {"schedule": {"cron": "0,10,20,30,40,50 * * * * *"}}, Write()
    )
    await travel(still, START + timedelta(minutes=5, seconds=5))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    missed = await still.database.fetch(
        "select scheduled_for, missed from hourbell.ledger where job = $1 and reason = 'misfire' order by 1",
        job.job_id,
    )
    # It came as far as 0:30 by its old schedule, and the gate saw none of that. From 4:10 on they are late by less than
    # the grace; so 0:40 to 4:00 are missed.
    assert [tuple(row) for row in missed] == [
        (START + timedelta(seconds=10), 1),
        (START + timedelta(seconds=20), 1),
        (ahead + timedelta(seconds=10), 21),
    ]


async def test_resume_leaves_what_was_asked_for_during_the_pause(still: Engine) -> None:
    job = await create(still, recurring())
    await pause_job(still, job.job_id, Write())
    [asked] = (await run_now(still, job.job_id, Write())).execution_ids
    await resume_job(still, job.job_id, Write())
    await admit_all(still)
    hand = await Hand.opened(still)
    assert [claimed.execution_id for claimed in await hand.claim()] == [asked]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda engine, job: pause_job(engine, job, Write()), Reason.PAUSED),
        (lambda engine, job: delete_job(engine, job, Write()), Reason.DELETED),
        (
            lambda engine, job: update_job(
                engine, job, {"schedule": {"cron": "0 0 1 1 *"}}, Write()
            ),
            Reason.UPDATED,
        ),
    ],
    ids=["pause", "delete", "reschedule"],
)
async def test_what_waits_for_its_next_attempt_ends_with_the_change_and_says_why(
    still: Engine, change: object, reason: Reason
) -> None:
    job = await create(still, recurring())
    hand = await Hand.opened(still)
    await go(still, at("10:01"))
    [failed] = await hand.claim()
    await hand.fail([failed], 3600)
    await change(still, job.job_id)  # type: ignore[operator]
    run = await get_execution(still, failed.execution_id)
    assert (run.status, run.reason) == (ExecutionStatus.SUPERSEDED, reason)


# Time that goes astray.


async def test_a_worker_that_dies_after_the_clock_was_set_back_is_reaped_by_the_new_time(
    still: Engine,
) -> None:
    await Hand.opened(still)
    now = await travel(still, START - timedelta(hours=1))
    assert (await reap(still, None, now)).sessions == 0
    now = await travel(still, now + 2 * still.times.lease)
    assert (await reap(still, None, now)).sessions == 1


async def test_a_leader_that_dies_after_the_clock_was_set_back_is_replaced(
    still: Engine,
) -> None:
    assert await Leadership(still).step() is not None
    await travel(still, START - timedelta(hours=1))
    assert await Leadership(still).step() is not None


async def test_the_latest_of_a_long_stretch_that_ended_early_in_it_is_run(still: Engine) -> None:
    schedule = {"every_seconds": 1, "ends_at": at("11:00").isoformat()}
    await create(still, every(1, misfire_policy="latest") | {"schedule": schedule})
    hand = await Hand.opened(still)
    await go(still, at("15:00"))
    ran = [claimed.scheduled_for for claimed in await hand.run_all()]
    assert ran[-1] == at("11:00")


async def test_a_deadline_after_the_end_of_the_calendar_is_refused(still: Engine) -> None:
    schedule = {"at": "9999-12-30T23:00:00Z"}
    with pytest.raises(InvalidInput, match="9999"):
        await create(still, one_time(deadline_seconds=2 * 86_400) | {"schedule": schedule})
