"""Runs on request, and runs taken back, wherever they are."""

import asyncio
from datetime import timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.executions import get_execution, list_executions
from hourbell.engine.views.explain import explain_execution
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Conflict, InvalidInput, JobNotActive
from hourbell.model.executions import ExecutionStatus, Origin, Reason
from hourbell.model.jobs import JobStatus
from integration.life.support import (
    START,
    Fate,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    expire_session,
    fates,
    history,
    one_time,
    place_of,
    plan_all,
    recurring,
    somebody_waits,
    standing,
    travel,
)
from uncommitted import UNCOMMITTED

CANCELLED = {"CANCELLED(cancelled)": 1}


# Run now.


async def test_a_run_now_runs_beside_the_schedule(still: Engine) -> None:
    job = await create(still, recurring())
    await plan_all(still)
    made = await run_now(still, job.job_id, Write())
    hand = await Hand.opened(still)
    assert [one.execution_id for one in await hand.run_all()] == made.execution_ids
    await travel(still, at("10:01:01"))
    await hand.run_all()
    assert [fate[:2] for fate in await history(still, job.job_id)] == [
        (at("10:00:30"), "SUCCEEDED"),
        (at("10:01"), "SUCCEEDED"),
    ]


async def test_a_run_of_the_schedule_and_a_run_now_say_which_they_are(still: Engine) -> None:
    job = await create(still, recurring())
    await plan_all(still)
    await run_now(still, job.job_id, Write())
    hand = await Hand.opened(still)
    await hand.run_all()
    await travel(still, at("10:01:01"))
    origins = [each.origin for each in (await list_executions(still, job.job_id)).items]
    assert origins == [Origin.SCHEDULE, Origin.RUN_NOW]
    await hand.run_all()
    ended = (await list_executions(still, job.job_id)).items
    assert [(each.origin, each.lateness_ms) for each in ended] == [
        (Origin.SCHEDULE, 1000),
        (Origin.RUN_NOW, 0),
    ]


async def test_a_paused_job_can_be_run_now_and_stays_paused(still: Engine) -> None:
    job = await create(still, recurring())
    await pause_job(still, job.job_id, Write())
    await run_now(still, job.job_id, Write())
    assert len(await (await Hand.opened(still)).run_all()) == 1
    assert (await get_job(still, job.job_id)).status is JobStatus.PAUSED


async def test_resume_leaves_what_was_asked_for_during_the_pause(still: Engine) -> None:
    job = await create(still, recurring())
    await pause_job(still, job.job_id, Write())
    [asked] = (await run_now(still, job.job_id, Write())).execution_ids
    await resume_job(still, job.job_id, Write())
    await admit_all(still)
    hand = await Hand.opened(still)
    assert [claimed.execution_id for claimed in await hand.claim()] == [asked]


async def test_a_deleted_job_cannot_be_run_now(still: Engine) -> None:
    job = await create(still, recurring())
    await delete_job(still, job.job_id, Write())
    with pytest.raises(JobNotActive):
        await run_now(still, job.job_id, Write())


async def test_a_one_time_job_that_is_run_now_runs_once(still: Engine) -> None:
    job = await create(still, one_time(schedule={"delay_seconds": 3600}))
    assert (await run_now(still, job.job_id, Write())).execution_ids == [job.job_id]
    hand = await Hand.opened(still)
    assert len(await hand.run_all()) == 1
    await travel(still, at("11:30"))
    assert await hand.run_all() == []
    assert (await get_job(still, job.job_id)).status is JobStatus.COMPLETED
    with pytest.raises(JobNotActive):
        await run_now(still, job.job_id, Write())


# Backfill.


async def test_a_backfill_runs_every_past_occurrence_of_its_range_once(still: Engine) -> None:
    job = await create(still, recurring("*/10 * * * *"))
    made = await backfill(still, job.job_id, at("09:00"), at("10:00"), Write())
    assert len(made.execution_ids) == 6  # 09:10 … 10:00
    # While they live, the same range gives nothing; the range that is wider gives the rest.
    again = await backfill(still, job.job_id, at("08:30"), at("10:00"), Write())
    assert len(again.execution_ids) == 3  # 08:40, 08:50, 09:00
    hand = await Hand.opened(still)
    assert len(await hand.run_all()) == 9
    assert [fate.occurrence for fate in await history(still, job.job_id)] == [
        at(moment)
        for moment in (
            "08:40", "08:50", "09:00", "09:10", "09:20", "09:30", "09:40", "09:50", "10:00",
        )
    ]  # fmt: skip
    await check_sound(still)


async def test_a_backfill_is_for_the_past(still: Engine) -> None:
    job = await create(still, recurring())
    with pytest.raises(InvalidInput):
        await backfill(still, job.job_id, at("10:00"), at("10:30"), Write())
    with pytest.raises(InvalidInput):
        await backfill(still, job.job_id, at("10:00"), at("09:30"), Write())
    with pytest.raises(InvalidInput):
        await backfill(still, job.job_id, at("00:00").replace(year=2030), at("10:00"), Write())
    once = await create(still, one_time())
    with pytest.raises(Conflict):
        await backfill(still, once.job_id, at("09:00"), at("10:00"), Write())


# Cancel, in each place.


async def test_what_is_not_due_is_cancelled_at_once(still: Engine) -> None:
    job = await create(still, one_time(schedule={"delay_seconds": 60}))
    answer = await cancel_execution(still, job.job_id, Write())
    assert (answer.status, answer.reason) == (ExecutionStatus.CANCELLED, Reason.CANCELLED)
    assert await fates(still) == CANCELLED
    await travel(still, at("10:02"))
    assert await (await Hand.opened(still)).run_all() == []
    assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED


async def test_what_is_held_is_cancelled_at_once(still: Engine) -> None:
    job = await create(still, one_time())
    await pause_job(still, job.job_id, Write())
    assert await place_of(still, job.job_id) == ["paused"]
    await cancel_execution(still, job.job_id, Write())
    assert await fates(still) == CANCELLED
    with pytest.raises(JobNotActive):
        await resume_job(still, job.job_id, Write())


async def test_what_waits_for_its_retry_is_cancelled_at_once(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 60)
    assert (await get_execution(still, job.job_id)).status is ExecutionStatus.RETRYING
    await cancel_execution(still, job.job_id, Write())
    execution = await get_execution(still, job.job_id)
    assert execution.status is ExecutionStatus.CANCELLED
    assert execution.lateness_ms == 0  # it had started


async def test_what_is_parked_is_cancelled_at_once(still: Engine) -> None:
    job = await create(still, recurring(overlap_policy="queue_one"))
    hand = await Hand.opened(still)
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    first = await hand.claim()
    await travel(still, at("10:02:01"))
    await plan_all(still)
    await admit_all(still)
    parked = await still.database.value("select id from hourbell.parked")
    assert (await explain_execution(still, parked)).code == "overlap"
    await cancel_execution(still, parked, Write())
    await hand.succeed(first)
    assert await hand.run_all() == []
    assert await history(still, job.job_id) == [
        Fate(at("10:01"), "SUCCEEDED"),
        Fate(at("10:02"), "CANCELLED", "cancelled"),
    ]


async def test_what_is_ready_is_cancelled_when_somebody_claims_it(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    assert (await cancel_execution(still, job.job_id, Write())).status is ExecutionStatus.QUEUED
    assert await (await Hand.opened(still)).claim() == []
    assert await fates(still) == CANCELLED
    assert await still.database.value("select count(*) from hourbell.cancellations") == 0


async def test_a_suspect_is_cancelled_when_somebody_claims_it(still: Engine) -> None:
    job = await create(still, one_time())
    for _ in range(2):
        await admit_all(still)
        hand = await Hand.opened(still)
        await hand.claim()
        await expire_session(still, hand.session)
        await reap(still, None, await still.clock.now())
    await admit_all(still)
    assert await place_of(still, job.job_id) == ["suspects"]
    await cancel_execution(still, job.job_id, Write())
    assert await (await Hand.opened(still)).claim() == []
    assert await fates(still) == CANCELLED


async def test_what_runs_is_cancelled_by_its_worker(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    claimed = await hand.claim()
    assert (await cancel_execution(still, job.job_id, Write())).status is ExecutionStatus.RUNNING
    assert (await explain_execution(still, job.job_id)).code == "cancelling"
    assert list((await hand.beat(claimed)).cancelled) == [job.job_id]
    await hand.fail(claimed, 0)  # it failed before it heard; then it is not tried again
    await admit_all(still)
    assert await hand.claim() == []
    assert await fates(still) == CANCELLED


async def test_what_was_wished_away_and_fails_is_not_tried_again(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    claimed = await hand.claim()
    await cancel_execution(still, job.job_id, Write())
    await hand.fail(claimed, 3600)
    run = await get_execution(still, job.job_id)
    assert (run.status, run.reason) == (ExecutionStatus.CANCELLED, Reason.CANCELLED)


async def test_what_has_ended_cannot_be_cancelled(still: Engine) -> None:
    job = await create(still, one_time())
    await (await Hand.opened(still)).run_all()
    with pytest.raises(Conflict):
        await cancel_execution(still, job.job_id, Write())
    assert await fates(still) == {"SUCCEEDED": 1}


async def test_cancelling_twice_is_cancelling_once(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    for _ in range(3):
        await cancel_execution(still, job.job_id, Write())
    await (await Hand.opened(still)).claim()
    assert (await cancel_execution(still, job.job_id, Write())).status is ExecutionStatus.CANCELLED
    assert await fates(still) == CANCELLED


async def test_deleting_a_one_time_job_takes_it_back_wherever_it_is(still: Engine) -> None:
    waiting = await create(still, one_time(schedule={"delay_seconds": 60}))
    ready = await create(still, one_time())
    await admit_all(still)
    for job in (waiting, ready):
        await delete_job(still, job.job_id, Write())
    await (await Hand.opened(still)).claim()
    assert await fates(still) == {"CANCELLED(cancelled)": 2}
    for job in (waiting, ready):
        assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED


async def test_deleting_a_job_that_is_on_its_way_is_noted(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    await delete_job(still, job.job_id, Write(actor="somebody"))
    row = await still.database.row(
        "select actor, operation from hourbell.audit order by id desc limit 1"
    )
    assert tuple(row.values()) == ("somebody", "delete")


@pytest.mark.parametrize(
    ("take", "statement"), [(delete_job, "change_job"), (cancel_execution, "cancel_execution")]
)
async def test_what_is_taken_back_while_it_is_being_moved_is_taken_back(
    still: Engine, take: object, statement: str
) -> None:
    at_first = {"at": (START + timedelta(days=20)).isoformat()}
    job = await create(still, one_time(schedule=at_first))
    later = {"schedule": {"at": (START + timedelta(days=21)).isoformat()}}
    async with standing(UNCOMMITTED, update_job(still, job.job_id, later, Write())):
        taking = asyncio.create_task(take(still, job.job_id, Write()))  # type: ignore[operator]
        await somebody_waits(still, statement)
    await taking
    assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED
    assert await place_of(still, job.job_id) == []


async def test_an_update_that_is_not_about_time_leaves_a_retry_its_time(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 60)
    await update_job(still, job.job_id, {"name": "new"}, Write())
    await travel(still, at("10:01:20"))
    assert await hand.run_all() == []
    await travel(still, at("10:01:31"))
    assert len(await hand.run_all()) == 1
    execution = await get_execution(still, job.job_id)
    assert execution.attempt == 2


async def test_an_update_of_the_time_moves_a_retry(still: Engine) -> None:
    job = await create(still, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 60)
    await update_job(still, job.job_id, {"schedule": {"at": at("10:05").isoformat()}}, Write())
    await travel(still, at("10:04:59"))
    assert await hand.run_all() == []
    await travel(still, at("10:05:01"))
    assert len(await hand.run_all()) == 1


async def test_the_list_of_a_jobs_executions_has_the_live_and_the_recorded(still: Engine) -> None:
    job = await create(still, recurring())
    hand = await Hand.opened(still)
    for minute in ("10:01:01", "10:02:01"):
        await travel(still, at(minute))
        await plan_all(still)
        await hand.run_all()
    await travel(still, at("10:03:01"))
    await plan_all(still)
    await admit_all(still)
    page = await list_executions(still, job.job_id, page_size=2)
    assert [(e.scheduled_for, e.status) for e in page.items] == [
        (at("10:03"), ExecutionStatus.QUEUED),
        (at("10:02"), ExecutionStatus.SUCCEEDED),
    ]
    rest = await list_executions(still, job.job_id, page_size=2, token=page.next_token)
    assert [e.scheduled_for for e in rest.items] == [at("10:01")]
    assert rest.next_token is None
