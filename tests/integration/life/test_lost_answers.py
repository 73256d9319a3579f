"""The answer is lost after the commit: a repeated call gets the same answer, and nothing is doubled."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import plan
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.jobs import get_job
from hourbell.failpoints import configure
from hourbell.model.errors import IdempotencyKeyReused, StoreUnavailable
from hourbell.model.executions import Claimed
from hourbell.model.jobs import Job, JobStatus
from integration.life.support import (
    Fate,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    eventually,
    every,
    expire_session,
    fates,
    fill,
    history,
    one_time,
    place_of,
    places,
    plan_all,
    recurring,
    scheduling,
    travel,
    working,
)


async def ready(engine: Engine, number: int) -> Hand:
    await fill(engine, number)
    await admit_all(engine)
    return await Hand.opened(engine)


async def test_a_claim_repeated_under_its_number_gives_the_same_rows(engine: Engine) -> None:
    hand = await ready(engine, 10)
    configure("claim.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.claim(4)
    first = {
        (row["id"], row["fence"])
        for row in await engine.database.fetch("select id, fence from hourbell.leases")
    }
    assert len(first) == 4
    again = await hand.claim_again(4)
    assert {(one.execution_id, one.fence) for one in again} == first
    assert {one.attempt for one in again} == {1}
    assert await places(engine) == {"leased": 4, "ready": 6}
    assert not await hand.succeed(again)


async def test_a_claim_that_never_happened_is_made_by_its_repetition(engine: Engine) -> None:
    hand = await ready(engine, 3)
    configure("claim.before_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.claim()
    assert len(await hand.claim_again()) == 3


async def test_a_heartbeat_releases_what_it_does_not_know_of_resolved_claims(
    engine: Engine,
) -> None:
    hand = await ready(engine, 6)
    known = await hand.claim(2)
    configure("claim.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.claim(2)
    # While the claim is open, nobody knows; then the worker says that it has been answered.
    assert not (await hand.beat(known, resolved=1)).lost
    assert await places(engine) == {"leased": 4, "ready": 2}
    assert not (await hand.beat(known, resolved=2)).lost
    assert await places(engine) == {"leased": 2, "due": 2, "ready": 2}
    rows = await engine.database.fetch("select attempt, crashes, history from hourbell.live")
    assert {tuple(row.values()) for row in rows} == {(0, 0, None)}  # no attempt is burnt
    await hand.run_all()
    assert not await hand.succeed(known)
    assert await fates(engine) == {"SUCCEEDED": 6}


async def test_a_heartbeat_keeps_what_a_claim_took_after_it_was_sent(engine: Engine) -> None:
    hand = await ready(engine, 4)
    known = await hand.claim(2)
    await hand.claim(2)
    await hand.beat(known, resolved=1)  # sent before the second claim was answered
    assert await places(engine) == {"leased": 4}


async def test_a_settle_whose_answer_was_lost_is_refused_the_second_time_and_recorded_once(
    engine: Engine,
) -> None:
    hand = await ready(engine, 5)
    claimed = await hand.claim()
    configure("settle.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.succeed(claimed)
    assert sorted(await hand.succeed(claimed)) == sorted(one.execution_id for one in claimed)
    assert await fates(engine) == {"SUCCEEDED": 5}


async def test_a_failure_whose_answer_was_lost_is_one_attempt(engine: Engine) -> None:
    hand = await ready(engine, 1)
    claimed = await hand.claim()
    configure("settle.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.fail(claimed, 3600)
    assert await hand.fail(claimed, 3600) == [claimed[0].execution_id]
    assert await engine.database.value("select attempt from hourbell.live") == 1
    assert await places(engine) == {"due": 1}


async def test_a_settle_repeated_after_its_execution_was_claimed_anew_changes_nothing(
    engine: Engine,
) -> None:
    hand = await ready(engine, 1)
    claimed = await hand.claim()
    configure("settle.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.fail(claimed, 0)
    await admit_all(engine)
    again = await hand.claim()  # by the same session
    assert await hand.fail(claimed, 0) == [claimed[0].execution_id]
    assert await places(engine) == {"leased": 1}
    assert not await hand.succeed(again)


async def test_a_heartbeat_whose_answer_was_lost_says_the_same_again(engine: Engine) -> None:
    hand = await ready(engine, 4)
    claimed = await hand.claim(3)
    await cancel_execution(engine, claimed[1].execution_id, Write())
    await hand.succeed(claimed[2:])
    configure("heartbeat.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await hand.beat(claimed)
    heard = await hand.beat(claimed)
    assert list(heard.lost) == [claimed[2].execution_id]
    assert list(heard.cancelled) == [claimed[1].execution_id]


@pytest.mark.parametrize("document", [one_time(), recurring()], ids=["one_time", "recurring"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_create_whose_answer_was_lost_gives_the_same_job_again(
    still: Engine, document: dict[str, object], moment: str
) -> None:
    write = Write("key", b"fingerprint", "somebody")
    configure(f"create.{moment}_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await create_job(still, document, write)
    made = await still.database.value("select count(*) from hourbell.audit")
    assert made == (1 if moment == "after" else 0)
    await travel(still, at("10:00:45"))
    first = await create_job(still, document, write)
    assert await create_job(still, document, write) == first
    job = await get_job(still, first.job.job_id)
    # Its run is due; the answer of a create says SCHEDULED.
    is_once = document["type"] == "ONE_TIME"
    status = JobStatus.QUEUED if is_once else JobStatus.SCHEDULED
    assert job == replace(first.job, status=status)
    assert await still.database.value("select count(*) from hourbell.audit") == 1
    counts = await still.database.row(
        "select (select count(*) from hourbell.jobs) as jobs,"
        " (select count(*) from hourbell.live) as executions,"
        " (select count(*) from hourbell.idempotency) as answers"
    )
    recurs = document["type"] == "RECURRING"
    assert tuple(counts.values()) == ((1, 0, 1) if recurs else (0, 1, 1))
    await complete_joins(still, await still.clock.now())
    await travel(still, at("10:01:01"))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"]


async def test_one_key_for_two_different_requests_is_refused(engine: Engine) -> None:
    await create_job(engine, one_time(), Write("key", b"one"))
    with pytest.raises(IdempotencyKeyReused):
        await create_job(engine, one_time(), Write("key", b"other"))
    assert await engine.database.value("select count(*) from hourbell.live") == 1


async def test_the_same_create_many_times_at_once_makes_one_job(engine: Engine) -> None:
    write = Write("key", b"fingerprint")
    created = await asyncio.gather(*(create_job(engine, every(5), write) for _ in range(8)))
    assert len({each.job.job_id for each in created}) == 1
    assert await engine.database.value("select count(*) from hourbell.jobs") == 1
    assert await engine.database.value("select count(*) from hourbell.memberships") == 1


Operation = Callable[[Engine, Job, Write], Awaitable[Any]]


CHANGES: dict[str, Operation] = {
    "update": lambda engine, job, write: update_job(engine, job.job_id, {"name": "new"}, write),
    "pause": lambda engine, job, write: pause_job(engine, job.job_id, write),
    "resume": lambda engine, job, write: resume_job(engine, job.job_id, write),
    "delete": lambda engine, job, write: delete_job(engine, job.job_id, write),
    "run": lambda engine, job, write: run_now(engine, job.job_id, write),
    "backfill": lambda engine, job, write: backfill(
        engine, job.job_id, at("09:55"), at("10:00"), write
    ),
}


@pytest.mark.parametrize("operation", CHANGES)
async def test_a_change_whose_answer_was_lost_is_made_once(still: Engine, operation: str) -> None:
    job = await create(still, recurring("*/10 * * * * *"))
    if operation == "resume":
        await pause_job(still, job.job_id, Write())
    await plan_all(still)
    change = CHANGES[operation]
    write = Write("key", b"fingerprint")
    point = "run" if operation == "backfill" else operation
    configure(f"{point}.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await change(still, job, write)
    noted = await still.database.value("select count(*) from hourbell.audit")
    version = (await get_job(still, job.job_id)).version
    first = await change(still, job, write)
    assert await change(still, job, write) == first
    assert await still.database.value("select count(*) from hourbell.audit") == noted
    assert (await get_job(still, job.job_id)).version == version
    await complete_joins(still, await still.clock.now())
    await check_sound(still)
    made = await still.database.value("select count(*) from hourbell.live where origin > 0")
    assert made == {"run": 1, "backfill": 30}.get(operation, 0)


async def test_a_change_that_is_repeated_under_its_key_does_not_undo_a_later_one(
    still: Engine,
) -> None:
    job, write = await create(still, recurring("*/10 * * * * *")), Write("key", b"fingerprint")
    first = await CHANGES["update"](still, job, write)
    await update_job(still, job.job_id, {"name": "newer"}, Write())
    assert await CHANGES["update"](still, job, write) == first
    assert (await get_job(still, job.job_id)).name == "newer"


async def test_a_change_that_failed_before_its_commit_is_told_so_and_can_be_repeated(
    still: Engine,
) -> None:
    job = await create(still, recurring("*/10 * * * * *"))
    configure("pause.before_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await pause_job(still, job.job_id, Write("key", b"fingerprint"))
    assert (await get_job(still, job.job_id)).status is JobStatus.SCHEDULED
    again = await pause_job(still, job.job_id, Write("key", b"fingerprint"))
    assert again.status is JobStatus.PAUSED


async def test_a_cancel_whose_answer_was_lost_is_made_once(engine: Engine) -> None:
    job = await create(engine, one_time())
    write = Write("key", b"fingerprint")
    configure("cancel.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await cancel_execution(engine, job.job_id, write)
    first = await cancel_execution(engine, job.job_id, write)
    assert first == await cancel_execution(engine, job.job_id, write)
    assert await fates(engine) == {"CANCELLED(cancelled)": 1}


async def test_a_pass_of_the_gate_whose_answer_was_lost_is_not_made_again(
    engine: Engine,
) -> None:
    await fill(engine, 10)
    configure("admit.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await admit_all(engine)
    assert (await admit(engine, await engine.clock.now())).examined == 0
    assert await places(engine) == {"ready": 10}


@pytest.mark.parametrize("point", ["plan.after_open", "plan.after_chunk", "join.after_commit"])
async def test_planning_whose_answer_was_lost_is_not_made_again(still: Engine, point: str) -> None:
    configure(f"{point}=drop*1")
    if point.startswith("join"):
        with pytest.raises(StoreUnavailable):
            await create(still, recurring())
        job = (await still.database.row("select id from hourbell.jobs"))["id"]
    else:
        job = (await create(still, recurring())).job_id
        with pytest.raises(StoreUnavailable):
            await plan(still, None, await still.clock.now())
    await complete_joins(still, await still.clock.now())
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await (await Hand.opened(still)).run_all()
    assert await history(still, job) == [Fate(at("10:01"), "SUCCEEDED")]


async def test_a_reap_whose_answer_was_lost_counts_one_crash(engine: Engine) -> None:
    hand = await ready(engine, 1)
    await hand.claim()
    await expire_session(engine, hand.session)
    configure("reap.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await reap(engine, None, await engine.clock.now())
    assert (await reap(engine, None, await engine.clock.now())).sessions == 0
    row = await engine.database.row("select attempt, crashes from hourbell.live")
    assert tuple(row.values()) == (1, 1)


async def test_an_expiry_whose_answer_was_lost_is_recorded_once(still: Engine) -> None:
    job = await create(still, one_time(deadline_seconds=5))
    await travel(still, at("10:00:40"))
    configure("expire.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await expire(still, None, await still.clock.now())
    await expire(still, None, await still.clock.now())
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [("DEAD", "deadline")]
    assert await place_of(still, job.job_id) == []


async def test_a_worker_that_loses_answers_runs_everything_once(engine: Engine) -> None:
    """Some answers of every kind are lost, and no execution is started twice."""
    started: Counter[int] = Counter()

    async def count(payload: object, claimed: Claimed) -> None:
        started[claimed.execution_id] += 1
        await asyncio.sleep(0.02)

    configure(
        "claim.after_commit=drop*3;settle.after_commit=drop*3;heartbeat.after_commit=drop*2;"
        "admit.after_commit=drop*2;claim.before_commit=drop@6;settle.before_commit=drop@5"
    )
    await fill(engine, 300, one_time("count"))

    async def all_recorded() -> bool:
        return await fates(engine) == {"SUCCEEDED": 300}

    async with scheduling(engine), working(engine, {"count": count}, slots=40):
        await eventually(all_recorded)
    assert len(started) == 300
    assert set(started.values()) == {1}
