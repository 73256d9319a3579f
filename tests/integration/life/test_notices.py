"""Notifications: each event is delivered once to every subscriber, whatever dies."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from hourbell import failpoints
from hourbell.dispatch import CANCELLED, DEAD, RELEASED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.term import Leadership
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.change import delete_job, pause_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.jobs import JobFilter, get_job, list_jobs
from hourbell.failpoints import FailpointError
from hourbell.model.errors import NotLeader, QuotaExceeded
from hourbell.model.executions import Claimed, ExecutionStatus
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import JobStatus, decode_spec
from hourbell.model.limits import TenantSettings
from hourbell.model.policies import retry_delay_seconds
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    every,
    expire_session,
    one_time,
    plan_all,
    travel,
)

URL = "https://hooks.example/told"
ALL = ["success", "failure", "dead_letter"]


def telling(*events: str, **rest: object) -> list[dict[str, object]]:
    return [{"on": list(events or ALL), "url": URL, **rest}]


async def claimed(engine: Engine, hand: Hand | None = None) -> tuple[Hand, list[Claimed]]:
    hand = hand or await Hand.opened(engine)
    await admit_all(engine)
    return hand, await hand.claim_all()


async def settle(hand: Hand, one: Claimed, kind: int, reason: str | None = None) -> Sequence[int]:
    outcome = Settlement(one.execution_id, one.fence, kind, 0, 250, None, reason, "it broke")
    return await hand.dispatch.settle(hand.session, [outcome])


async def outbox(engine: Engine) -> list[tuple[int, str]]:
    """What waits to be told: the execution and the event."""
    names = {1: "success", 2: "failure", 4: "dead_letter"}
    rows = await engine.database.fetch("select * from hourbell.notices order by id")
    return [(row["execution"], names[row["event"]]) for row in rows]


async def told(engine: Engine) -> list[dict[str, Any]]:
    """The webhooks that are made of the outbox, as their workers get them."""
    now = await engine.clock.now()
    while await send_notices(engine, None, now):
        pass
    hand = await Hand.opened(engine, ["notifications"])
    await admit_all(engine)
    mine = await hand.claim_all()
    assert not await hand.succeed(mine)
    return [msgspec.json.decode(one.spec)["action"] for one in mine]


async def bodies(engine: Engine) -> list[dict[str, Any]]:
    return [action["body"] for action in await told(engine)]


# What is told.


async def test_a_success_is_told_with_all_there_is_to_know(still: Engine) -> None:
    document = one_time(
        name="cart", tenant_id="shop", notifications=telling("success", headers={"X-Key": "7"})
    )
    job = await create(still, document)
    hand, (one,) = await claimed(still)
    await travel(still, START + timedelta(seconds=2))
    assert not await hand.succeed([one])
    (action,) = await told(still)
    assert (action["type"], action["url"], action["headers"]) == ("WEBHOOK", URL, {"X-Key": "7"})
    assert action["body"] == {
        "event": "success",
        "execution_id": execution_text(job.job_id),
        "job_id": job_text(job.job_id),
        "job_name": "cart",
        "tenant_id": "shop",
        "status": "SUCCEEDED",
        "reason": None,
        "attempt": 1,
        "scheduled_for": "2031-05-06T10:00:30Z",
        "finished_at": "2031-05-06T10:00:30Z",
        "error": None,
    }


async def test_every_attempt_that_will_be_retried_is_told_and_then_the_end(still: Engine) -> None:
    await create(still, one_time(notifications=telling()))
    hand, (one,) = await claimed(still)
    await hand.fail([one], 0)
    hand, (one,) = await claimed(still, hand)
    await hand.fail([one], 0)
    hand, (one,) = await claimed(still, hand)
    assert not await settle(hand, one, DEAD, "retries_exhausted")
    said = await bodies(still)
    shown = [(body["event"], body["status"], body["attempt"], body["reason"]) for body in said]
    assert shown == [
        ("failure", "RETRYING", 1, "Bad"),
        ("failure", "RETRYING", 2, "Bad"),
        ("dead_letter", "DEAD", 3, "retries_exhausted"),
    ]
    assert [body["error"] for body in said] == ["bad", "bad", "it broke"]


async def test_runs_of_a_schedule_and_those_on_request_are_told(still: Engine) -> None:
    job = await create(still, every(60, notifications=telling("success")))
    await run_now(still, job.job_id, Write())
    await travel(still, at("10:01:30"))
    await plan_all(still)
    await backfill(still, job.job_id, START - timedelta(seconds=90), START, Write())
    hand = await Hand.opened(still)
    done = await hand.run_all()
    assert len(done) == 4
    said = await bodies(still)
    assert {body["execution_id"] for body in said} == {
        execution_text(one.execution_id) for one in done
    }
    assert {body["job_id"] for body in said} == {job_text(job.job_id)}
    assert {body["job_name"] for body in said} == {"again"}


async def test_everybody_is_told_what_he_wished_to_know_and_no_more(still: Engine) -> None:
    others = {"on": ["failure", "success"], "url": "https://other.example/"}
    await create(still, one_time(notifications=[*telling("dead_letter"), others]))
    await create(still, one_time())
    await create(still, one_time(notifications=[]))
    hand, all_three = await claimed(still)
    assert not await hand.succeed(all_three)
    assert [action["url"] for action in await told(still)] == ["https://other.example/"]


async def test_what_nobody_wishes_to_know_leaves_nothing_behind(still: Engine) -> None:
    dies = await create(still, one_time(notifications=telling("success")))
    succeeds = await create(still, one_time(notifications=telling("dead_letter", "failure")))
    hand, both = await claimed(still)
    by_id = {one.execution_id: one for one in both}
    await hand.succeed([by_id[succeeds.job_id]])
    await hand.fail([by_id[dies.job_id]], 0)
    hand, (again,) = await claimed(still, hand)
    await settle(hand, again, DEAD, "non_retryable")
    assert await outbox(still) == []


# Every way to end.


async def test_a_lost_worker_is_a_failure_or_a_dead_letter(engine: Engine) -> None:
    again = await create(engine, one_time(notifications=telling()))
    never = await create(engine, one_time(notifications=telling(), delivery="at_most_once"))
    hand, both = await claimed(engine)
    assert len(both) == 2
    await expire_session(engine, hand.session)
    await reap(engine, None, await engine.clock.now())
    assert sorted(await outbox(engine)) == sorted(
        [(again.job_id, "failure"), (never.job_id, "dead_letter")]
    )
    said = {body["event"]: body for body in await bodies(engine)}
    assert (said["failure"]["reason"], said["failure"]["attempt"]) == ("lost", 1)
    assert (said["dead_letter"]["reason"], said["dead_letter"]["attempt"]) == ("lost", 1)
    assert said["dead_letter"]["error"] == "the worker was lost"


async def test_a_job_that_kills_its_workers_is_a_dead_letter(still: Engine) -> None:
    job = await create(still, one_time(notifications=telling("dead_letter")))
    for _ in range(5):
        hand, (_one,) = await claimed(still)
        await expire_session(still, hand.session)
        await reap(still, None, await still.clock.now())
    assert await outbox(still) == [(job.job_id, "dead_letter")]
    (body,) = await bodies(still)
    assert (body["reason"], body["attempt"]) == ("crashed", 5)


async def test_a_deadline_is_a_dead_letter_wherever_it_is_noticed(still: Engine) -> None:
    wish = {"notifications": telling(), "deadline_seconds": 10}
    running = await create(still, one_time(**wish))
    _, (_one,) = await claimed(still)
    held = await create(still, one_time(**wish))
    await pause_job(still, held.job_id, Write())
    due = await create(still, one_time(**wish))
    await travel(still, at("10:00:41"))
    await expire(still, None, at("10:00:41"))
    by_reaper = {(job.job_id, "dead_letter") for job in (running, held, due)}
    assert set(await outbox(still)) == by_reaper

    at_claim = await create(still, one_time(**wish))
    await admit_all(still)
    await travel(still, at("10:00:52"))
    assert await (await Hand.opened(still)).claim() == []
    assert set(await outbox(still)) == by_reaper | {(at_claim.job_id, "dead_letter")}
    assert {body["reason"] for body in await bodies(still)} == {"deadline"}


async def test_what_is_taken_back_or_does_not_run_is_told_to_nobody(still: Engine) -> None:
    wish = {"notifications": telling()}
    waiting = await create(still, one_time(**wish, schedule={"delay_seconds": 60}))
    await cancel_execution(still, waiting.job_id, Write())
    late = await create(still, one_time(**wish, start_deadline_seconds=5))
    await pause_job(still, late.job_id, Write())
    stopped = await create(still, one_time(**wish))
    given_back = await create(still, one_time(**wish))
    hand, both = await claimed(still)
    by_id = {one.execution_id: one for one in both}
    await settle(hand, by_id[stopped.job_id], CANCELLED, "cancelled")
    await settle(hand, by_id[given_back.job_id], RELEASED)
    job = await create(still, every(5, **wish, overlap_policy="forbid"))
    await travel(still, at("10:00:37"))
    await plan_all(still)
    await delete_job(still, job.job_id, Write())
    await expire(still, None, at("10:00:37"))
    recorded = await still.database.fetch("select distinct status from hourbell.ledger")
    assert {row["status"] for row in recorded} == {2, 3, 4}
    assert await outbox(still) == []


async def test_an_outcome_that_is_refused_is_told_to_nobody(still: Engine) -> None:
    await create(still, one_time(notifications=telling()))
    hand, (one,) = await claimed(still)
    stale = msgspec.structs.replace(one, fence=one.fence - 1)
    assert await hand.succeed([stale]) == [one.execution_id]
    assert await hand.fail([stale], 0) == [one.execution_id]
    assert await outbox(still) == []


# Notifications are executions of their own.


async def test_a_notification_notifies_nobody_and_is_low_in_a_queue_of_its_own(
    still: Engine,
) -> None:
    job = await create(still, one_time(tenant_id="shop", notifications=telling()))
    hand, (one,) = await claimed(still)
    await hand.succeed([one])
    await send_notices(still, None, START)
    (row,) = await still.database.fetch(
        "select e.*, q.name as queue_name from hourbell.live as e"
        " join hourbell.queues as q on q.id = e.queue"
    )
    assert (row["origin"], row["priority"], row["queue_name"]) == (3, 3, "notifications")
    assert row["target"] == await still.target("hooks.example", START)
    execution = await get_execution(still, row["id"])
    assert (execution.tenant_id, execution.status) == ("shop", ExecutionStatus.QUEUED)
    assert (await get_job(still, row["id"])).name == "notification of once"
    await check_sound(still)

    sender = await Hand.opened(still, ["notifications"])
    _, (webhook,) = await claimed(still, sender)
    await sender.fail([webhook], 0)
    _, (webhook,) = await claimed(still, sender)
    await settle(sender, webhook, DEAD, "retries_exhausted")
    assert await outbox(still) == []
    assert (await get_execution(still, row["id"])).status is ExecutionStatus.DEAD
    assert (await get_job(still, job.job_id)).status is JobStatus.COMPLETED
    assert (await get_execution(still, job.job_id)).status is ExecutionStatus.SUCCEEDED


async def test_notifications_are_tried_again_for_about_an_hour(still: Engine) -> None:
    await create(still, one_time(notifications=telling()))
    hand, (one,) = await claimed(still)
    await hand.succeed([one])
    await send_notices(still, None, START)
    _, (webhook,) = await claimed(still, await Hand.opened(still, ["notifications"]))
    policy = decode_spec(webhook.spec).retry_policy
    attempts = range(1, policy.max_retries + 1)
    patience = sum(
        retry_delay_seconds(policy, attempt, webhook.execution_id) for attempt in attempts
    )
    assert 1_800 <= patience <= 2 * 3_600


async def test_notifications_are_no_jobs_to_be_listed_or_counted(still: Engine) -> None:
    await set_tenant(still, "default", TenantSettings(max_jobs=2), Write())
    first = await create(still, one_time(notifications=telling()))
    second = await create(still, one_time(notifications=telling()))
    hand, both = await claimed(still)
    await hand.succeed(both)
    await send_notices(still, None, START)
    assert await still.database.value("select count(*) from hourbell.live") == 2
    third, fourth = await create(still, one_time()), await create(still, one_time())
    with pytest.raises(QuotaExceeded):
        await create(still, one_time())
    assert len(await told(still)) == 2
    listed = [job.job_id for job in (await list_jobs(still)).items]
    assert listed == sorted((job.job_id for job in (first, second, third, fourth)), reverse=True)
    wanted = JobFilter(tenant_id="default", statuses=frozenset({JobStatus.COMPLETED}))
    by_tenant = await list_jobs(still, wanted)
    assert {job.job_id for job in by_tenant.items} == {first.job_id, second.job_id}


async def test_a_job_that_wishes_no_more_to_tell_does_not(still: Engine) -> None:
    job = await create(still, every(60, notifications=telling()))
    await travel(still, at("10:01:30"))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    await update_job(still, job.job_id, {"notifications": None}, Write())
    assert len(await outbox(still)) == 1
    assert await told(still) == []
    assert await outbox(still) == []


async def test_a_changed_job_tells_of_the_runs_planned_since(still: Engine) -> None:
    once = await create(still, one_time(schedule={"delay_seconds": 60}))
    job = await create(still, every(60))
    await plan_all(still)
    for changing in (once, job):
        await update_job(still, changing.job_id, {"notifications": telling()}, Write())
    await travel(still, at("10:01:30"))
    done = await (await Hand.opened(still)).run_all()
    assert len(done) == 2
    assert {number for number, _ in await outbox(still)} == {one.execution_id for one in done}


# Once, whatever dies.


async def has_ended(engine: Engine, number: int = 1) -> None:
    for _ in range(number):
        await create(engine, one_time(notifications=telling()))
    hand, mine = await claimed(engine)
    assert not await hand.succeed(mine)


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_outcome_and_its_notice_are_kept_or_lost_together(
    still: Engine, moment: str
) -> None:
    job = await create(still, one_time(notifications=telling()))
    hand, (one,) = await claimed(still)
    failpoints.configure(f"settle.{moment}_commit=error")
    with pytest.raises(FailpointError):
        await hand.succeed([one])
    failpoints.configure("")
    assert await outbox(still) == ([] if moment == "before" else [(job.job_id, "success")])
    await hand.succeed([one])
    assert await outbox(still) == [(job.job_id, "success")]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_leader_that_fails_while_it_sends_loses_and_doubles_nothing(
    still: Engine, moment: str
) -> None:
    await has_ended(still, 3)
    failpoints.configure(f"notify.{moment}_commit=error")
    with pytest.raises(FailpointError):
        await send_notices(still, None, START)
    failpoints.configure("")
    assert len(await outbox(still)) == (3 if moment == "before" else 0)
    assert len(await told(still)) == 3


async def test_two_leaders_send_a_notice_once(still: Engine) -> None:
    await has_ended(still, 20)
    await asyncio.gather(*(send_notices(still, None, START) for _ in range(4)))
    assert len(await told(still)) == 20
    await check_sound(still)


async def test_a_leader_of_yesterday_sends_nothing(engine: Engine) -> None:
    await has_ended(engine)
    old, new = Leadership(engine), Leadership(engine)
    term = await old.step()
    await old.resign()
    assert await new.step() is not None
    with pytest.raises(NotLeader):
        await send_notices(engine, term, await engine.clock.now())
    assert len(await outbox(engine)) == 1


async def test_a_notice_that_cannot_be_read_does_not_keep_others_from_being_sent(
    still: Engine,
) -> None:
    await has_ended(still, 2)
    await still.database.value(
        "update hourbell.notices set spec = '{}' where id = (select min(id) from hourbell.notices)"
    )
    assert len(await told(still)) == 1
