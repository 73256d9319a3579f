"""Every code of `explain`, reached on a real engine, with what it says besides; the documentation lists the same codes."""

import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hourbell.dispatch import SUCCEEDED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader.pauses import pause_abandoned
from hourbell.engine.life.reap import reap
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations.change import delete_job, pause_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_target
from hourbell.engine.operations.runs import cancel_execution, run_now
from hourbell.engine.views.executions import (
    ExecutionFilter,
    get_execution,
    list_executions,
    search_executions,
)
from hourbell.engine.views.explain import Explanation, Holder, explain_execution, explain_job
from hourbell.engine.views.job_details import PauseDetails, details_of
from hourbell.engine.views.jobs import get_job
from hourbell.model.executions import Accepted, ExecutionStatus, Failed, Reason, Released, Snoozed
from hourbell.model.ids import created_at, execution_text, job_text, parse_execution_id
from hourbell.model.jobs import Pause, decode_spec
from hourbell.model.limits import Limits, RateLimit
from integration.life.limits import claimed, limit_queue, limit_tenant, queued
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    create,
    expire_session,
    fill,
    one_time,
    plan_all,
    recurring,
    travel,
)

DOCS = Path(__file__).parents[3] / "docs" / "api.md"
SECOND = timedelta(seconds=1)
WEBHOOK = {"type": "WEBHOOK", "url": "http://h/"}

Scenario = Callable[[Engine], Awaitable[Explanation]]
SCENARIOS: dict[str, Scenario] = {}
NOT_WAITING = ("running", "cancelling", "awaiting_completion", "dead", "ended")


def reaches(scenario: Scenario) -> Scenario:
    """A scenario whose name is the code that it reaches."""
    SCENARIOS[scenario.__name__] = scenario
    return scenario


def texts(one_time: int) -> tuple[str, str]:
    """The ids of the execution and the job."""
    return execution_text(one_time), job_text(one_time)


async def settled(engine: Engine, hand: Hand, outcome: Any) -> None:
    """What is due runs once, with this outcome."""
    await admit_all(engine)
    [one] = await hand.claim()
    decided = settlement(one, decode_spec(one.spec), outcome, 0, 250, one.deadline_in_seconds)
    assert not await hand.dispatch.settle(hand.session, [decided])


# Waiting for a time.


@reaches
async def not_due(engine: Engine) -> Explanation:
    job = await create(engine, one_time(schedule={"delay_seconds": 60}))
    explained = await explain_job(engine, job.job_id)
    assert explained.since == created_at(job.job_id)
    assert explained.until == START + 60 * SECOND
    assert (explained.attempt, explained.max_attempts, explained.last_error) == (0, 4, None)
    return explained


@reaches
async def retrying(engine: Engine) -> Explanation:
    policy = {"max_retries": 2, "backoff": "FIXED", "initial_delay_seconds": 60}
    job = await create(engine, one_time(retry_policy=policy))
    await settled(engine, await Hand.opened(engine), Failed("The target answered 503.", "http_503"))
    explained = await explain_job(engine, job.job_id)
    assert (explained.attempt, explained.max_attempts) == (1, 3)
    assert explained.last_error is not None
    assert explained.last_error.kind == "http_503"
    assert explained.last_error.error == "The target answered 503."
    assert explained.since == explained.last_error.at
    assert explained.until == START + 60 * SECOND
    return explained


async def postponed(engine: Engine, outcome: Any) -> Explanation:
    job = await create(engine, one_time())
    await settled(engine, await Hand.opened(engine), outcome)
    explained = await explain_execution(engine, job.job_id)
    assert (explained.attempt, explained.until) == (0, START + 5 * SECOND)
    return explained


@reaches
async def circuit_open(engine: Engine) -> Explanation:
    return await postponed(engine, Released(5.0, "circuit_open"))


@reaches
async def no_secret_keys(engine: Engine) -> Explanation:
    return await postponed(engine, Released(5.0, "no_secret_keys"))


@reaches
async def payload_mismatch(engine: Engine) -> Explanation:
    return await postponed(engine, Released(5.0, "payload_mismatch"))


@reaches
async def unreadable(engine: Engine) -> Explanation:
    return await postponed(engine, Released(5.0, "unreadable"))


@reaches
async def snoozed(engine: Engine) -> Explanation:
    return await postponed(engine, Snoozed(5))


# Paused.


@reaches
async def paused(engine: Engine) -> Explanation:
    for document in (recurring(), one_time()):
        job = await create(engine, document)
        pause = Pause("partner down", at("11:00"))
        await pause_job(engine, job.job_id, Write(actor="olga"), pause)
        explained = await explain_job(engine, job.job_id)
        assert explained.paused == PauseDetails("olga", START, "partner down", at("11:00"))
        assert (explained.since, explained.until) == (START, at("11:00"))
        assert "paused by olga: partner down" in explained.message
    return explained


# The leader cannot compute its schedule.


async def broken(engine: Engine, zone: str, rule: str) -> Explanation:
    job = await create(engine, recurring())
    await engine.database.value("update hourbell.timetables set zone = $1, rule = $2", zone, rule)
    await travel(engine, at("10:05"))
    await plan_all(engine)
    explained = await explain_job(engine, job.job_id)
    assert explained.until is not None
    assert explained.attempt is None
    return explained


@reaches
async def unknown_timezone(engine: Engine) -> Explanation:
    return await broken(engine, "US/Pacific-New", "* * * * *")


@reaches
async def invalid_schedule(engine: Engine) -> Explanation:
    return await broken(engine, "UTC", "61 * * * *")


# Waiting for the gate, a limit or a worker: since it was due.


@reaches
async def no_worker(engine: Engine) -> Explanation:
    await engine.database.value("delete from hourbell.sessions")
    job = await create(engine, one_time(queue="lonely"))
    await travel(engine, at("10:05"))
    explained = await explain_job(engine, job.job_id)
    assert explained.since == START
    return explained


@reaches
async def no_worker_for_task(engine: Engine) -> Explanation:
    await engine.database.value("delete from hourbell.sessions")
    await Hand.opened(engine, tasks=["other"])
    waits = {
        "runs the task mine": {"type": "TASK", "name": "mine"},
        "runs webhooks": WEBHOOK,
    }
    for said, action in waits.items():
        job = await create(engine, one_time(action=action))
        await admit_all(engine)
        explained = await explain_job(engine, job.job_id)
        assert f"No live worker of its queue default {said}." in explained.message
    return explained


@reaches
async def admission(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await travel(engine, at("10:05"))
    explained = await explain_job(engine, job.job_id)
    assert (explained.since, explained.until) == (START, None)
    return explained


@reaches
async def admission_failed(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await engine.database.value(
        "alter table hourbell.ready add constraint nothing check (tag is null) not valid"
    )
    try:
        await admit_all(engine)
    finally:
        await engine.database.value("alter table hourbell.ready drop constraint nothing")
    explained = await explain_job(engine, job.job_id)
    assert (explained.since, explained.until) == (START, START + 60 * SECOND)
    assert "cannot be admitted" in explained.message
    return explained


@reaches
async def worker_slot(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await admit_all(engine)
    return await explain_job(engine, job.job_id)


@reaches
async def quarantine(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await admit_all(engine)
    for _ in range(2):
        hand = await Hand.opened(engine)
        await hand.claim()
        await expire_session(engine, hand.session)
        await reap(engine, None, await engine.clock.now())
        await admit_all(engine)
    explained = await explain_job(engine, job.job_id)
    assert explained.attempt == 2
    assert explained.last_error is not None
    return explained


@reaches
async def overlap(engine: Engine) -> Explanation:
    job = await create(engine, recurring(overlap_policy="queue_one"))
    hand = await Hand.opened(engine)
    for moment in ("10:01:01", "10:02:01"):
        await travel(engine, at(moment))
        await plan_all(engine)
        await admit_all(engine)
        await hand.claim()
    running = (await explain_job(engine, job.job_id)).execution_id
    waits = await engine.database.value("select id from hourbell.parked")
    explained = await explain_execution(engine, waits)
    assert explained.holder == Holder(running, job_text(job.job_id), "hand", None, None)
    assert explained.since == at("10:02")
    return explained


@reaches
async def concurrency_key(engine: Engine) -> Explanation:
    head, follower = await queued(engine, 2, concurrency_key="k")
    await claimed(engine, await Hand.opened(engine))
    explained = await explain_execution(engine, follower)
    assert explained.holder == Holder(*texts(head), "hand", 1, 1)
    return explained


async def limited(engine: Engine, what: str, **limits: Any) -> Explanation:
    """Two webhooks under a limit that has room for one."""
    if what == "queue":
        await limit_queue(engine, **limits)
    elif what == "tenant":
        await limit_tenant(engine, "default", **limits)
    else:
        await set_target(engine, "h", Limits(**limits), Write())
    first, second = await queued(engine, 2, action=WEBHOOK)
    await claimed(engine, await Hand.opened(engine))
    explained = await explain_execution(engine, second)
    assert explained.since == START
    if "rate_limit" in limits:
        assert explained.until == START + 10 * SECOND
        assert "0.1 per second" in explained.message
        return explained
    assert explained.holder == Holder(*texts(first), "hand", 1, 1)
    if what == "target":  # the limit of a target is not the business of one tenant
        seen = await explain_execution(engine.scoped_to("default"), second)
        assert seen.holder == Holder(*texts(first), "hand", None, None)
    return explained


@reaches
async def queue_concurrency(engine: Engine) -> Explanation:
    return await limited(engine, "queue", max_concurrency=1)


@reaches
async def tenant_concurrency(engine: Engine) -> Explanation:
    return await limited(engine, "tenant", max_concurrency=1)


@reaches
async def target_concurrency(engine: Engine) -> Explanation:
    return await limited(engine, "target", max_concurrency=1)


@reaches
async def queue_rate(engine: Engine) -> Explanation:
    return await limited(engine, "queue", rate_limit=RateLimit(0.1))


@reaches
async def tenant_rate(engine: Engine) -> Explanation:
    return await limited(engine, "tenant", rate_limit=RateLimit(0.1))


@reaches
async def target_rate(engine: Engine) -> Explanation:
    return await limited(engine, "target", rate_limit=RateLimit(0.1))


# With a worker or a target.


@reaches
async def running(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await admit_all(engine)
    await (await Hand.opened(engine)).claim()
    explained = await explain_job(engine, job.job_id)
    assert explained.holder == Holder(worker="hand")
    assert (explained.since, explained.attempt) == (START, 1)
    return explained


@reaches
async def cancelling(engine: Engine) -> Explanation:
    explained = await running(engine)
    assert explained.execution_id is not None
    number = parse_execution_id(explained.execution_id)
    for seconds in (1, 2):  # the second request changes nothing
        await travel(engine, START + seconds * SECOND)
        await cancel_execution(engine, number, Write())
    explained = await explain_execution(engine, number)
    assert explained.since == START + SECOND
    return explained


@reaches
async def awaiting_completion(engine: Engine) -> Explanation:
    job = await create(engine, one_time())
    await settled(engine, await Hand.opened(engine), Accepted(b"x" * 32, 60.0))
    explained = await explain_job(engine, job.job_id)
    assert (explained.since, explained.until) == (START, START + 60 * SECOND)
    return explained


# Ended.


@reaches
async def dead(engine: Engine) -> Explanation:
    job = await create(engine, one_time(retry_policy={"max_retries": 0}))
    await settled(engine, await Hand.opened(engine), Failed("no", "Bad"))
    explained = await explain_job(engine, job.job_id)
    assert explained.message.startswith(
        "It has no further run: DEAD (retries_exhausted), after 1 attempt."
    )
    assert (explained.since, explained.attempt, explained.max_attempts) == (START, 1, 1)
    assert explained.last_error is not None
    assert explained.last_error.kind == "Bad"
    return explained


@reaches
async def ended(engine: Engine) -> Explanation:
    job = await create(engine, recurring())
    await delete_job(engine, job.job_id, Write())
    explained = await explain_job(engine, job.job_id)
    assert (explained.since, explained.attempt) == (START, None)
    return explained


@pytest.mark.parametrize("code", SCENARIOS)
async def test_each_code_is_reached_and_says_since_when_and_who(still: Engine, code: str) -> None:
    explained = await SCENARIOS[code](still)
    assert explained.code == code
    assert explained.message.endswith((".", "!", "?"))
    if explained.execution_id is None:
        return
    # Lists and the execution itself say the same code, as long as it waits.
    waits = None if code in NOT_WAITING else code
    listed = (await search_executions(still, ExecutionFilter())).items
    number = parse_execution_id(explained.execution_id)
    alone = await get_execution(still, number)
    (found,) = (each for each in listed if each.execution_id == number)
    assert (found.waiting_for, alone.waiting_for) == (waits, waits)


def test_the_documentation_lists_exactly_these_codes() -> None:
    table = DOCS.read_text().partition("| code | waits for |")[2].partition("\n\n")[0]
    listed = [
        code for row in table.splitlines() for code in re.findall(r"`(\w+)`", row.split(" | ")[0])
    ]
    assert sorted(listed) == sorted(SCENARIOS)


# The last due occurrence.


async def skipped(engine: Engine) -> int:
    """A job whose last due occurrence was skipped, because an earlier run is still live."""
    job = await create(engine, recurring(overlap_policy="forbid"))
    hand = await Hand.opened(engine)
    for moment in ("10:01:01", "10:02:01"):
        await travel(engine, at(moment))
        await plan_all(engine)
        await admit_all(engine)
        await hand.claim()
    return job.job_id


async def test_a_job_also_says_why_its_last_occurrence_did_not_run(still: Engine) -> None:
    job_id = await skipped(still)
    explained = await explain_job(still, job_id)
    assert explained.code == "running"
    last = explained.last_due
    assert last is not None
    assert (last.scheduled_for, last.status, last.reason) == (
        at("10:02"),
        ExecutionStatus.SKIPPED,
        Reason.OVERLAP,
    )
    assert last.message == (
        "It has ended: SKIPPED (overlap), because an earlier run of the job had not ended."
    )


async def test_a_paused_job_says_it_too_and_one_that_succeeded_says_nothing(still: Engine) -> None:
    job_id = await skipped(still)
    await pause_job(still, job_id, Write())
    explained = await explain_job(still, job_id)
    assert explained.code == "paused"
    assert explained.last_due is not None
    other = await create(still, recurring())
    await run_now(still, other.job_id, Write())
    await (await Hand.opened(still)).run_all()
    assert (await explain_job(still, other.job_id)).last_due is None


async def test_what_waits_for_a_run_is_told_when_that_usually_ends(still: Engine) -> None:
    """Three runs of 20 s are needed for an estimate, and only the first in the line gets one."""
    document = recurring(overlap_policy="allow", concurrency_key="k")
    await create(still, document)
    await create(still, document)
    hand = await Hand.opened(still)
    for minute in range(1, 5):
        await travel(still, at(f"10:0{minute}"))
        await plan_all(still)
        await admit_all(still)
        running = await hand.claim()
        assert len(running) == 1  # the other job waits for the key
        waiting = await still.database.value(
            "select id from hourbell.parked order by priority, rank, id limit 1"
        )
        explained = await explain_execution(still, waiting)
        assert explained.code == "concurrency_key"
        if minute < 4:
            assert explained.expected_at is None
            assert "usual" not in explained.message
            await done(hand, running, 20_000)
            await done(hand, await admitted(hand), 20_000)
    assert explained.expected_at == at("10:04:20")
    assert explained.message.endswith("It usually takes 20 s, by its last 3 successes.")
    assert explained.until is None  # it is an estimate only

    await plan_all(still, at("10:05"))
    await travel(still, at("10:05"))
    await admit_all(still)
    last = await still.database.value(
        "select id from hourbell.parked order by priority desc, rank desc, id desc limit 1"
    )
    assert (await explain_execution(still, last)).expected_at is None
    late = await explain_execution(still, waiting)
    assert late.expected_at is None
    assert late.message.endswith(
        "It has run for longer than usual (20 s, by its last 3 successes)."
    )


async def admitted(hand: Hand) -> list[Any]:
    await admit_all(hand.engine)
    return await hand.claim()


async def done(hand: Hand, claimed: list[Any], took_ms: int) -> None:
    some = [Settlement(one.execution_id, one.fence, SUCCEEDED, 0, took_ms) for one in claimed]
    assert not await hand.dispatch.settle(hand.session, some)


async def test_a_limit_of_zero_is_explained_as_a_stop(still: Engine) -> None:
    await limit_queue(still, max_concurrency=0)
    (first,) = await queued(still, 1)
    await claimed(still, await Hand.opened(still))
    explained = await explain_execution(still, first)
    assert explained.code == "queue_concurrency"
    assert "is stopped: its concurrency limit is 0" in explained.message


async def test_a_recurring_job_whose_last_run_died_says_so_besides_its_next(still: Engine) -> None:
    job = await create(still, recurring(retry_policy={"max_retries": 0}))
    await run_now(still, job.job_id, Write())
    await settled(still, await Hand.opened(still), Failed("no", "Bad"))
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == ("not_due", at("10:01"))
    assert explained.last_due is not None
    assert explained.last_due.code == "dead"
    assert "and is not retried. Last error (Bad): no." in explained.last_due.message


async def test_a_superseded_occurrence_does_not_hide_why_the_one_before_failed(
    still: Engine,
) -> None:
    job = await create(still, recurring(retry_policy={"max_retries": 0}))
    await run_now(still, job.job_id, Write())
    hand = await Hand.opened(still)
    await settled(still, hand, Failed("no", "Bad"))
    await travel(still, at("10:01:01"))
    await plan_all(still)
    await admit_all(still)
    await pause_job(still, job.job_id, Write())
    assert await hand.claim() == []
    (newest, *_) = (await list_executions(still, job.job_id, page_size=1)).items
    assert newest.status is ExecutionStatus.SUPERSEDED
    explained = await explain_job(still, job.job_id)
    assert explained.last_due is not None
    assert explained.last_due.code == "dead"


# What is shown with a job.


async def test_a_paused_job_shows_who_paused_it_also_without_a_reason(still: Engine) -> None:
    said, silent, gone, runs = [await create(still, recurring()) for _ in range(4)]
    await pause_job(still, said.job_id, Write(actor="olga"), Pause("partner down"))
    await pause_job(still, silent.job_id, Write(actor="ops"))
    await still.database.value("insert into hourbell.abandoned_jobs values ($1, 1)", gone.job_id)
    await pause_abandoned(still, None)
    jobs = [await get_job(still, each.job_id) for each in (said, silent, gone, runs)]
    details = await details_of(still, jobs)
    assert [details[job.job_id].paused for job in jobs] == [
        PauseDetails("olga", START, "partner down", None),
        PauseDetails("ops", START, None, None),
        PauseDetails("target answered 410", START, None, None),
        None,
    ]


async def test_the_last_outcomes_are_the_latest_due_executions_newest_first(still: Engine) -> None:
    job_id = await skipped(still)
    once = await create(still, one_time())
    later = await create(still, one_time(schedule={"delay_seconds": 3600}))
    await fill(still, 3)
    jobs = [await get_job(still, each) for each in (job_id, once.job_id, later.job_id)]
    details = await details_of(still, jobs, outcomes=20)
    of_job, of_once, of_later = (details[job.job_id].last_outcomes for job in jobs)
    assert of_job is not None
    assert [(each.scheduled_for, each.status, each.reason) for each in of_job] == [
        (at("10:02"), ExecutionStatus.SKIPPED, Reason.OVERLAP),
        (at("10:01"), ExecutionStatus.RUNNING, None),
    ]
    assert of_once is not None
    assert [each.status for each in of_once] == [ExecutionStatus.QUEUED]
    assert of_later == ()
    few = (await details_of(still, jobs[:1], outcomes=1))[job_id].last_outcomes
    assert few == of_job[:1]
    assert (await details_of(still, jobs))[job_id].last_outcomes is None
