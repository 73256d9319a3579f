"""Dead-man switches: an alert when a job has had no success within its grace, one for each outage.

The clock stands still and is moved by hand. Jobs run every hour, at half a minute past, and are given ten minutes.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from hourbell import failpoints
from hourbell.dispatch import DEAD, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.term import Leadership
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.plan import end_memberships
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor, delete_monitor, get_monitor
from hourbell.engine.operations.runs import run_now
from hourbell.failpoints import FailpointError
from hourbell.model.errors import NotLeader
from hourbell.model.ids import job_text, monitor_text
from hourbell.model.jobs import Job
from hourbell.model.monitors import Monitor
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    create,
    every,
    plan_all,
    travel,
)

URL = "https://pager.example/alert"
GRACE = 600
HOURLY = every(3600, name="report")


async def watched(engine: Engine, document: Any = HOURLY, grace: int = GRACE) -> tuple[Job, int]:
    """A job and the monitor that watches it."""
    job = await create(engine, document)
    return job, (await watching(engine, job, grace)).monitor_id


async def watching(engine: Engine, job: Job, grace: int = GRACE) -> Monitor:
    document = {"job_id": job_text(job.job_id), "grace_seconds": grace, "url": URL}
    return await create_monitor(engine, document, Write())


async def passes(engine: Engine, clock: str | datetime, succeeds: bool = True) -> None:
    """Time passes until then, and whatever falls due runs then, to success or to death."""
    moment = clock if isinstance(clock, datetime) else at(clock)
    await travel(engine, moment)
    await plan_all(engine)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    mine = await hand.claim_all()
    if succeeds:
        assert not await hand.succeed(mine)
    else:
        dead = [
            Settlement(one.execution_id, one.fence, DEAD, reason="retries_exhausted")
            for one in mine
        ]
        await hand.dispatch.settle(hand.session, dead)
    await hand.dispatch.close(hand.session)


async def alerts(engine: Engine) -> list[str]:
    """What the leader finds now: the events that were not there before."""
    now = await engine.clock.now()
    while await watch(engine, None, now):
        pass
    rows = await engine.database.fetch("delete from hourbell.notices returning id, event")
    return [{8: "missed", 16: "recovered"}[row["event"]] for row in sorted(rows)]


async def test_a_job_that_succeeds_in_time_is_left_in_peace(still: Engine) -> None:
    _, monitor = await watched(still)
    for hour in range(11, 16):
        await passes(still, f"{hour}:00:30")
        assert await alerts(still) == []
        await travel(still, at(f"{hour}:10:30"))
        assert await alerts(still) == []
    seen = await get_monitor(still, monitor)
    assert seen.down_since is None
    assert seen.last_success_at == at("15:00:30")
    assert seen.expected_at == at("16:00:30")


async def test_an_alert_comes_when_the_grace_is_over_and_not_before(still: Engine) -> None:
    _, monitor = await watched(still)
    await travel(still, at("11:10:30") - timedelta(microseconds=1))
    assert await alerts(still) == []
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]
    assert (await get_monitor(still, monitor)).down_since == at("11:10:30")


async def test_runs_that_fail_are_no_success(still: Engine) -> None:
    await watched(still)
    await passes(still, "11:00:30", succeeds=False)
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_one_outage_is_one_alert_and_one_recovery(still: Engine) -> None:
    _, monitor = await watched(still)
    await passes(still, "11:00:30", succeeds=False)
    found = []
    for minutes in range(0, 60 * 4, 7):
        await travel(still, at("11:00:30") + timedelta(minutes=minutes))
        found += await alerts(still)
    assert found == ["missed"]
    await passes(still, "15:00:30")
    assert await alerts(still) == ["recovered"]
    seen = await get_monitor(still, monitor)
    assert (seen.down_since, seen.expected_at) == (None, at("16:00:30"))
    await travel(still, at("16:10:30"))
    assert await alerts(still) == ["missed"]


async def test_a_late_success_is_a_recovery_though_it_is_of_the_missed_run(still: Engine) -> None:
    await watched(still)
    await travel(still, at("11:00:30"))
    await plan_all(still)
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 1800)
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]
    await passes(still, "11:30:30")
    assert await alerts(still) == ["recovered"]


async def test_a_success_within_the_grace_counts_whichever_run_it_is_of(still: Engine) -> None:
    job, monitor = await watched(still)
    await passes(still, "11:00:30", succeeds=False)
    await travel(still, at("11:05:00"))
    await run_now(still, job.job_id, Write())
    await passes(still, "11:05:00")
    await travel(still, at("11:10:30"))
    assert await alerts(still) == []
    assert (await get_monitor(still, monitor)).expected_at == at("12:00:30")


async def test_a_success_before_the_occurrence_does_not_stand_for_it(still: Engine) -> None:
    job, _ = await watched(still)
    await travel(still, at("10:59:00"))
    await run_now(still, job.job_id, Write())
    await passes(still, "10:59:00")
    await passes(still, "11:00:30", succeeds=False)
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_nothing_is_expected_of_a_paused_job(still: Engine) -> None:
    job, monitor = await watched(still)
    await pause_job(still, job.job_id, Write())
    await travel(still, at("15:00:00"))
    assert await alerts(still) == []
    assert (await get_monitor(still, monitor)).expected_at is None


async def test_a_pause_and_a_resume_between_two_looks_are_not_missed(still: Engine) -> None:
    job, monitor = await watched(still)
    await travel(still, at("10:50:00"))
    await pause_job(still, job.job_id, Write())
    await travel(still, at("11:05:00"))
    await resume_job(still, job.job_id, Write())
    await travel(still, at("11:10:30"))
    assert await alerts(still) == []
    assert (await get_monitor(still, monitor)).expected_at == at("12:00:30")
    await travel(still, at("12:10:30"))
    assert await alerts(still) == ["missed"]


async def test_an_outage_goes_on_over_a_pause(still: Engine) -> None:
    job, _ = await watched(still)
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]
    await pause_job(still, job.job_id, Write())
    await travel(still, at("12:30:00"))
    assert await alerts(still) == []
    await resume_job(still, job.job_id, Write())
    await travel(still, at("13:20:00"))
    assert await alerts(still) == []
    await run_now(still, job.job_id, Write())
    await passes(still, "13:20:00")
    await travel(still, at("13:20:11"))
    assert await alerts(still) == ["recovered"]


async def test_another_schedule_is_another_expectation(still: Engine) -> None:
    job, monitor = await watched(still)
    await update_job(still, job.job_id, {"schedule": {"every_seconds": 300}}, Write())
    assert await alerts(still) == []
    assert (await get_monitor(still, monitor)).expected_at == at("10:05:30")
    await travel(still, at("10:15:30"))
    assert await alerts(still) == ["missed"]


async def test_another_name_does_not_hide_an_outage(still: Engine) -> None:
    job, _ = await watched(still)
    await travel(still, at("11:05:00"))
    await update_job(still, job.job_id, {"name": "other"}, Write())
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_nothing_is_expected_of_a_job_that_has_ended(still: Engine) -> None:
    deleted, _ = await watched(still)
    await delete_job(still, deleted.job_id, Write())
    ends_at = {"every_seconds": 3600, "ends_at": "2031-05-06T11:30:00Z"}
    _, monitor = await watched(still, HOURLY | {"schedule": ends_at})
    await passes(still, "11:00:30")
    await travel(still, at("11:45:00"))
    await end_memberships(still, None, at("11:45:00"))
    assert await alerts(still) == []
    await travel(still, at("23:00:00"))
    assert await alerts(still) == []
    assert (await get_monitor(still, monitor)).expected_at is None


async def test_the_last_run_of_a_job_is_expected_too(still: Engine) -> None:
    ends_at = {"every_seconds": 3600, "ends_at": "2031-05-06T11:05:00Z"}
    await watched(still, HOURLY | {"schedule": ends_at})
    await passes(still, "11:00:30", succeeds=False)
    await end_memberships(still, None, at("11:06:00"))
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_a_job_that_has_had_all_its_runs_owes_none(still: Engine) -> None:
    twice = {"every_seconds": 3600, "max_runs": 2}
    await watched(still, HOURLY | {"schedule": twice})
    await passes(still, "11:00:30")
    await passes(still, "12:00:30")
    for hour in range(12, 20):
        await travel(still, at(f"{hour}:10:31"))
        assert await alerts(still) == []


async def test_a_deleted_monitor_watches_no_more(still: Engine) -> None:
    job, monitor = await watched(still)
    await delete_monitor(still, monitor, Write())
    await pause_job(still, job.job_id, Write())
    await resume_job(still, job.job_id, Write())
    await travel(still, at("23:00:00"))
    assert await alerts(still) == []


async def test_a_monitor_of_a_paused_job_begins_when_it_is_resumed(still: Engine) -> None:
    job = await create(still, HOURLY)
    await pause_job(still, job.job_id, Write())
    monitor = await watching(still, job)
    assert monitor.expected_at is None
    await travel(still, at("13:00:00"))
    assert await alerts(still) == []
    await resume_job(still, job.job_id, Write())
    await travel(still, at("14:10:31"))
    assert await alerts(still) == ["missed"]


async def test_an_alert_is_a_webhook_with_all_there_is_to_know(still: Engine) -> None:
    job, monitor = await watched(still)
    await passes(still, "11:00:30")
    await travel(still, at("12:11:00"))
    while await watch(still, None, at("12:11:00")):
        pass
    await send_notices(still, None, at("12:11:00"))
    hand = await Hand.opened(still, ["notifications"])
    await admit_all(still)
    (alert,) = await hand.claim()
    spec = msgspec.json.decode(alert.spec)
    assert (spec["name"], spec["action"]["url"]) == ("alert of report", URL)
    assert spec["action"]["body"] == {
        "event": "missed",
        "monitor_id": monitor_text(monitor),
        "job_id": job_text(job.job_id),
        "job_name": "report",
        "tenant_id": "default",
        "expected_at": "2031-05-06T12:00:30Z",
        "grace_seconds": GRACE,
        "last_success_at": "2031-05-06T11:00:30Z",
        "at": "2031-05-06T12:11:00Z",
    }


# Once, whatever dies.


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_leader_that_fails_while_it_judges_sends_one_alert(
    still: Engine, moment: str
) -> None:
    await watched(still)
    await travel(still, at("11:10:30"))
    failpoints.configure(f"watch.{moment}_commit=error")
    with pytest.raises(FailpointError):
        await watch(still, None, at("11:10:30"))
    failpoints.configure("")
    assert await alerts(still) == ["missed"]


async def test_leaders_that_judge_at_once_send_one_alert(still: Engine) -> None:
    for _ in range(10):
        await watched(still)
    await travel(still, at("11:10:30"))
    await asyncio.gather(*(watch(still, None, at("11:10:30")) for _ in range(4)))
    assert await alerts(still) == ["missed"] * 10


async def test_a_leader_of_yesterday_judges_nothing(still: Engine) -> None:
    await watched(still)
    await travel(still, at("11:10:30"))
    old, new = Leadership(still), Leadership(still)
    term = await old.step()
    await old.resign()
    assert await new.step() is not None
    with pytest.raises(NotLeader):
        await watch(still, term, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_a_change_that_comes_between_look_and_judgement_wins(still: Engine) -> None:
    job, _ = await watched(still)
    await travel(still, at("11:10:30"))
    with failpoints.barrier("watch.before_commit") as hold:
        judging = asyncio.create_task(watch(still, None, at("11:10:30")))
        await hold.reached()
        await pause_job(still, job.job_id, Write())
        hold.release()
        await judging
    assert await alerts(still) == []


async def test_a_monitor_that_cannot_be_judged_does_not_keep_others_from_it(still: Engine) -> None:
    broken, _ = await watched(still)
    await watched(still)
    await still.database.value(
        """update hourbell.jobs set spec = '{"name": 7}' where id = $1""", broken.job_id
    )
    await travel(still, at("11:10:30"))
    assert await alerts(still) == ["missed"]


async def test_only_what_is_due_is_looked_at(still: Engine) -> None:
    await watched(still)
    later, _ = await watched(still, grace=86_400)
    await travel(still, at("11:10:30"))
    before = await still.database.value(
        "select version from hourbell.monitors where job = $1", later.job_id
    )
    assert await alerts(still) == ["missed"]
    after = await still.database.value(
        "select version from hourbell.monitors where job = $1", later.job_id
    )
    assert before == after


def test_start_is_half_a_minute_past() -> None:
    assert at("10:00:30") == START
