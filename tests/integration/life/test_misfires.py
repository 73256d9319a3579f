"""Misfires: what becomes of occurrences that the gate first sees too late. The table is in docs/time.md.

An occurrence that is late by no more than the grace (60 s) runs under every policy. One that is later is a misfire. It is
judged when it is planned, and again when the gate first takes it: an outage may lie before either.
"""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.change import update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue
from hourbell.engine.operations.runs import backfill, run_now
from hourbell.engine.views.executions import list_executions
from hourbell.model.jobs import Job
from hourbell.model.limits import QueueSettings
from integration.life.support import (
    START,
    Fate,
    Hand,
    admit_all,
    at,
    check_sound,
    create,
    every,
    history,
    one_time,
    places,
    plan_all,
    recurring,
    travel,
)

POLICIES = ("skip", "latest", "all")
HOURLY = "1 * * * *"  # the first at 10:01, half a minute after START

policies = pytest.mark.parametrize("policy", POLICIES)


async def gate_first(engine: Engine) -> None:
    await admit_all(engine)
    await plan_all(engine)


async def plan_first(engine: Engine) -> None:
    await plan_all(engine)


# After an outage either of the leader's loops may be the first to run.
orders = pytest.mark.parametrize("recover", [gate_first, plan_first])
Recover = Callable[[Engine], Awaitable[None]]


async def outage(
    engine: Engine, recover: Recover, *clocks: str, planned: bool, document: dict[str, object]
) -> dict[str, str]:
    """The fates of a job's occurrences after outages from START on that end at these times."""
    job = await create(engine, document)
    if planned:
        await plan_all(engine)  # the minute that comes
    for clock in clocks:
        await travel(engine, at(clock))
        await recover(engine)
        await travel(engine, at(clock) + timedelta(seconds=1))  # the gate sweeps once a second
        await (await Hand.opened(engine)).run_all()
        await check_sound(engine)
    return await fates_of(engine, job)


async def fates_of(engine: Engine, job: Job) -> dict[str, str]:
    """By the time of day: `ran` or `missed`, each occurrence of a missed stretch for itself."""
    page = await list_executions(engine, job.job_id, 200, expand_missed=True)
    assert page.next_token is None
    found = {"SUCCEEDED": "ran", "SKIPPED": "missed"}
    return {
        each.scheduled_for.strftime("%H:%M:%S").removesuffix(":00"): found[each.status]
        for each in reversed(page.items)
    }


@policies
@orders
@pytest.mark.parametrize("planned", [True, False], ids=["planned before", "planned after"])
async def test_what_is_late_by_less_than_the_grace_runs(
    still: Engine, policy: str, planned: bool, recover: Recover
) -> None:
    document = recurring(HOURLY, misfire_policy=policy)
    found = await outage(still, recover, "10:01:59", planned=planned, document=document)
    assert found == {"10:01": "ran"}


@orders
@pytest.mark.parametrize("planned", [True, False], ids=["planned before", "planned after"])
@pytest.mark.parametrize(
    ("policy", "fate"), [("skip", "missed"), ("latest", "ran"), ("all", "ran")]
)
async def test_what_is_late_by_more_than_the_grace_follows_the_policy(
    still: Engine, policy: str, fate: str, planned: bool, recover: Recover
) -> None:
    document = recurring(HOURLY, misfire_policy=policy)
    found = await outage(still, recover, "10:02:01", planned=planned, document=document)
    assert found == {"10:01": fate}


@orders
@pytest.mark.parametrize("planned", [True, False], ids=["planned before", "planned after"])
@pytest.mark.parametrize(
    ("policy", "before"), [("skip", "missed"), ("latest", "missed"), ("all", "ran")]
)
async def test_a_misfire_runs_only_under_all_when_a_newer_occurrence_is_due(
    still: Engine, policy: str, before: str, planned: bool, recover: Recover
) -> None:
    document = recurring(misfire_policy=policy)
    found = await outage(still, recover, "10:05:30", planned=planned, document=document)
    assert found == {"10:01": before, "10:02": before, "10:03": before, "10:04": before} | {
        "10:05": "ran"
    }


@orders
@pytest.mark.parametrize("planned", [True, False], ids=["planned before", "planned after"])
async def test_of_misfires_without_a_newer_occurrence_the_newest_runs_under_latest(
    still: Engine, planned: bool, recover: Recover
) -> None:
    found = await outage(
        still, recover, "10:11:20", planned=planned, document=recurring("1-10/3 * * * *")
    )
    assert found == {"10:01": "missed", "10:04": "missed", "10:07": "missed", "10:10": "ran"}


@policies
@orders
async def test_occurrences_within_the_grace_are_never_dropped_for_newer_ones(
    still: Engine, policy: str, recover: Recover
) -> None:
    """Every 10 s, 103 s of outage: six are late by at most a minute."""
    document = every(10, misfire_policy=policy)
    found = await outage(still, recover, "10:02:13", planned=False, document=document)
    late = ["10:00:40", "10:00:50", "10:01", "10:01:10"]
    in_time = ["10:01:20", "10:01:30", "10:01:40", "10:01:50", "10:02", "10:02:10"]
    misfired = "ran" if policy == "all" else "missed"
    assert found == dict.fromkeys(late, misfired) | dict.fromkeys(in_time, "ran")


@orders
@pytest.mark.parametrize("planned", [True, False], ids=["planned before", "planned after"])
async def test_all_makes_up_only_what_is_within_its_window(
    still: Engine, planned: bool, recover: Recover
) -> None:
    document = recurring(misfire_policy="all", catch_up_window_seconds=120)
    found = await outage(still, recover, "10:05:30", planned=planned, document=document)
    assert found == dict.fromkeys(["10:01", "10:02", "10:03"], "missed") | dict.fromkeys(
        ["10:04", "10:05"], "ran"
    )


@orders
async def test_a_window_and_a_limit_that_are_smaller_than_the_grace_drop_nothing_in_time(
    still: Engine, recover: Recover
) -> None:
    document = every(10, misfire_policy="all", catch_up_window_seconds=1, catch_up_limit=1)
    found = await outage(still, recover, "10:01:30", planned=False, document=document)
    assert set(found.values()) == {"ran"}
    assert len(found) == 6


@policies
async def test_the_latest_is_judged_again_if_the_gate_comes_late_too(
    still: Engine, policy: str
) -> None:
    """Planned 20 s late, and first seen by the gate when the next is due."""
    job = await create(still, recurring(misfire_policy=policy))
    await travel(still, at("10:01:20"))
    await plan_all(still)  # 10:01 and 10:02
    await travel(still, at("10:02:30"))
    await (await Hand.opened(still)).run_all()
    first = "ran" if policy == "all" else "missed"
    assert await fates_of(still, job) == {"10:01": first, "10:02": "ran"}


async def test_a_newer_occurrence_that_has_run_counts_as_newer(still: Engine) -> None:
    job = await create(still, recurring())
    await travel(still, at("10:01:20"))
    await plan_all(still)
    await still.database.value("delete from hourbell.due where run_at = $1", at("10:01"))
    await travel(still, at("10:02:01"))
    await (await Hand.opened(still)).run_all()  # only 10:02
    await travel(still, at("10:02:30"))
    await still.database.value(  # its transaction commits late
        "insert into hourbell.due (run_at, id, tenant, queue, priority)"
        " select run_at, id, tenant, queue, priority from hourbell.live where occurrence = $1",
        at("10:01"),
    )
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "missed", "10:02": "ran"}


async def test_a_missed_occurrence_of_the_gate_is_recorded_like_one_of_planning(
    still: Engine,
) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy="skip"))
    await plan_all(still)
    await travel(still, at("10:30"))
    await admit_all(still)
    assert await history(still, job.job_id) == [Fate(at("10:01"), "SKIPPED", "misfire", 1)]
    [row] = await still.database.fetch("select * from hourbell.ledger")
    assert (row["missed_through"], row["attempt"]) == (at("10:01"), 0)
    await check_sound(still)


# What is no misfire.


@policies
async def test_what_waited_for_a_limit_is_not_judged_again(still: Engine, policy: str) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy=policy))
    await plan_all(still)
    await set_queue(still, "default", QueueSettings(max_concurrency=0), Write())
    await travel(still, at("10:01:01"))
    await admit_all(still)  # it is parked
    await set_queue(still, "default", QueueSettings(), Write())
    await travel(still, at("10:40"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


@policies
async def test_what_waited_for_a_worker_is_not_judged_again(still: Engine, policy: str) -> None:
    await still.database.value("delete from hourbell.sessions")
    job = await create(still, recurring(HOURLY, misfire_policy=policy))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    await travel(still, at("10:40"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


@policies
async def test_what_was_given_back_is_not_judged_again(still: Engine, policy: str) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy=policy))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    hand = await Hand.opened(still)
    assert len(await hand.claim()) == 1
    await hand.dispatch.close(hand.session)  # nothing of it has begun
    await travel(still, at("10:40"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


@policies
async def test_what_was_put_back_among_the_due_is_not_judged_again(
    still: Engine, policy: str
) -> None:
    """It was ready, and no longer may be: a limit was set, say."""
    job = await create(still, recurring(HOURLY, misfire_policy=policy))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    assert await places(still) == {"ready": 1}
    async with still.database.transaction() as connection:
        [row] = await connection.fetch("delete from hourbell.ready returning ids")
        await connection.execute("select hourbell.requeue($1)", row["ids"])
    await travel(still, at("10:40"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


@policies
async def test_a_retry_runs_however_late_it_is(still: Engine, policy: str) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy=policy))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    hand = await Hand.opened(still)
    await hand.fail(await hand.claim(), 1.0)
    await travel(still, at("10:40"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


async def test_what_is_asked_for_is_never_a_misfire(still: Engine) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy="skip"))
    once = await create(still, one_time())
    asked = await run_now(still, job.job_id, Write())
    past = START - timedelta(hours=2)
    asked_before = await backfill(still, job.job_id, past, START, Write())
    await travel(still, at("10:40"))
    done = await (await Hand.opened(still)).run_all()
    wanted = {once.job_id, *asked.execution_ids, *asked_before.execution_ids}
    assert {one.execution_id for one in done} == wanted


async def test_what_a_change_of_the_schedule_supersedes_is_no_misfire(still: Engine) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy="skip"))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await update_job(still, job.job_id, {"schedule": {"cron": "30 * * * *"}}, Write())
    await travel(still, at("10:29"))
    await (await Hand.opened(still)).run_all()
    assert (await history(still, job.job_id))[0] == Fate(at("10:01"), "SUPERSEDED", "updated")


async def test_the_policy_is_that_of_the_job_as_it_is_now(still: Engine) -> None:
    job = await create(still, recurring(HOURLY, misfire_policy="skip"))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await update_job(still, job.job_id, {"misfire_policy": "latest"}, Write())
    await travel(still, at("10:29"))
    await (await Hand.opened(still)).run_all()
    assert await fates_of(still, job) == {"10:01": "ran"}


# What was missed can be seen.


async def listed(engine: Engine, job: Job, size: int, expand: bool) -> list[Any]:
    """All pages of this size."""
    items: list[Any] = []
    token = None
    while True:
        page = await list_executions(engine, job.job_id, size, token, expand_missed=expand)
        assert len(page.items) <= size
        items += page.items
        token = page.next_token
        if token is None:
            return items


async def after_an_hour(engine: Engine) -> Job:
    """Missed from 10:01 to 10:58; 10:59 and 11:00 have run."""
    job = await create(engine, recurring())
    await travel(engine, at("11:00"))
    await plan_all(engine)
    await (await Hand.opened(engine)).run_all()
    return job


async def test_a_missed_stretch_is_one_entry_that_says_how_many_and_how_far(still: Engine) -> None:
    job = await after_an_hour(still)
    seen = [
        (each.scheduled_for, each.missed, each.missed_through)
        for each in await listed(still, job, 50, expand=False)
    ]
    assert seen == [
        (at("11:00"), None, None),
        (at("10:59"), None, None),
        (at("10:01"), 58, at("10:58")),
    ]


@pytest.mark.parametrize("size", [1, 7, 50, 200])
async def test_a_missed_stretch_can_be_listed_occurrence_by_occurrence(
    still: Engine, size: int
) -> None:
    job = await after_an_hour(still)
    items = await listed(still, job, size, expand=True)
    minutes = [at("11:00") - timedelta(minutes=n) for n in range(60)]
    assert [each.scheduled_for for each in items] == minutes
    assert {each.missed for each in items[2:]} == {1}
    assert [each.missed_through for each in items[2:]] == minutes[2:]
    assert len({each.execution_id for each in items}) == 3


async def test_a_stretch_by_a_schedule_that_was_changed_since_stays_one_entry(
    still: Engine,
) -> None:
    job = await after_an_hour(still)
    await update_job(still, job.job_id, {"schedule": {"cron": "*/7 * * * *"}}, Write())
    found: list[datetime] = [each.scheduled_for for each in await listed(still, job, 50, True)]
    assert found == [at("11:00"), at("10:59"), at("10:01")]
