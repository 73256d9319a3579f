"""What `explain` says, and that lists, reads and explanations agree about the status."""

from datetime import timedelta

import pytest

from hourbell.dispatch import RETRY, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader.pauses import pause_abandoned
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations.change import pause_job
from hourbell.engine.operations.dead_letters import purge_dead_letter, replay_dead_letter
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import run_now
from hourbell.engine.views.executions import (
    ExecutionFilter,
    get_execution,
    list_executions,
    search_executions,
)
from hourbell.engine.views.explain import explain_execution, explain_job
from hourbell.model.executions import Claimed, ExecutionStatus, Failed
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import decode_spec
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    create,
    expire_session,
    one_time,
    plan_all,
    recurring,
    travel,
)

NO_RETRIES = {"max_retries": 0}


async def fail_one(engine: Engine, hand: Hand, failure: Failed) -> Claimed:
    """Whatever is due fails once, and its policy decides what follows."""
    await admit_all(engine)
    [claimed] = await hand.claim()
    decided = settlement(claimed, decode_spec(claimed.spec), failure, 0, 250, None)
    assert not await hand.dispatch.settle(hand.session, [decided])
    return claimed


# What has ended.


async def test_a_dead_one_time_job_is_explained_as_dead_with_its_error_and_a_way_out(
    still: Engine,
) -> None:
    job = await create(still, one_time(retry_policy=NO_RETRIES))
    await fail_one(still, await Hand.opened(still), Failed("The target answered 503.", "http_503"))
    explained = await explain_job(still, job.job_id)
    number = execution_text(job.job_id)
    assert (explained.code, explained.execution_id) == ("dead", number)
    assert explained.message == (
        "It has no further run: DEAD (retries_exhausted), after 1 attempt."
        " Last error (http_503): The target answered 503."
        f" Replay it with `hourbell dlq replay {number}`."
    )
    assert explained == await explain_execution(still, job.job_id)


async def test_what_is_dead_and_was_purged_cannot_be_replayed(still: Engine) -> None:
    job = await create(still, one_time(retry_policy=NO_RETRIES))
    await fail_one(still, await Hand.opened(still), Failed("no", "Bad"))
    await purge_dead_letter(still, job.job_id, Write())
    explained = await explain_job(still, job.job_id)
    assert "no longer kept" in explained.message
    assert "Replay it" not in explained.message


async def test_a_one_time_job_that_succeeded_has_ended(still: Engine) -> None:
    job = await create(still, one_time())
    await (await Hand.opened(still)).run_all()
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.message) == ("ended", "It has ended: SUCCEEDED.")


# Pauses.


@pytest.mark.parametrize("document", [one_time(), recurring()])
async def test_a_paused_job_says_who_paused_it_and_when(
    still: Engine, document: dict[str, object]
) -> None:
    job = await create(still, document)
    await pause_job(still, job.job_id, Write(actor="olga"))
    explained = await explain_job(still, job.job_id)
    assert explained.code == "paused"
    resume = f"`hourbell jobs resume {job_text(job.job_id)}`"
    assert explained.message == f"The job was paused by olga. Resume it with {resume}."


async def test_a_pause_by_410_says_that_the_target_answered_it(still: Engine) -> None:
    job = await create(still, recurring())
    await run_now(still, job.job_id, Write())
    gone = Failed("The target answered 410.", "http_410", final=True, gone=True)
    await fail_one(still, await Hand.opened(still), gone)
    await pause_abandoned(still, None)
    explained = await explain_job(still, job.job_id)
    assert explained.code == "paused"
    assert explained.message.startswith(
        "The job was paused because its target answered 410 (gone)."
    )


# Retries and deadlines.


async def test_what_is_retried_tells_its_last_error_and_attempt_n_of_m(still: Engine) -> None:
    policy = {"max_retries": 2, "backoff": "FIXED", "initial_delay_seconds": 60}
    job = await create(still, one_time(retry_policy=policy))
    hand = await Hand.opened(still)
    await fail_one(still, hand, Failed("first", "Bad"))
    await travel(still, at("10:01:30"))
    await fail_one(still, hand, Failed("The target answered 500.", "http_500"))
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == ("retrying", at("10:02:30"))
    assert explained.message == (
        "Attempt 2 of 3 failed (http_500): The target answered 500. Attempt 3 waits for its time."
    )


async def test_an_old_run_that_waits_is_explained_behind_many_that_have_ended(
    still: Engine,
) -> None:
    policy = {"max_retries": 1, "backoff": "FIXED", "initial_delay_seconds": 3600}
    job = await create(still, recurring("* * * * * *", retry_policy=policy))
    hand = await Hand.opened(still)
    await travel(still, at("10:00:31"))
    await plan_all(still)
    await fail_one(still, hand, Failed("no", "Bad"))
    for moment in ("10:01:00", "10:01:30"):
        await travel(still, at(moment))
        await plan_all(still)
        await hand.run_all()
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == ("retrying", at("11:00:31"))


async def test_the_retries_of_a_replay_are_counted_from_one(still: Engine) -> None:
    job = await create(still, one_time(retry_policy={"max_retries": 1, "backoff": "FIXED"}))
    hand = await Hand.opened(still)
    await fail_one(still, hand, Failed("first", "Bad"))
    await travel(still, at("10:01"))
    await fail_one(still, hand, Failed("second", "Bad"))
    await replay_dead_letter(still, job.job_id, Write())
    await fail_one(still, hand, Failed("third", "Bad"))
    explained = await explain_job(still, job.job_id)
    assert explained.message == "Attempt 1 of 2 failed (Bad): third. Attempt 2 waits for its time."


@pytest.mark.parametrize("paused", [False, True])
async def test_what_waits_with_a_start_deadline_waits_until_then(
    still: Engine, paused: bool
) -> None:
    job = await create(still, one_time(start_deadline_seconds=45))
    if paused:
        await pause_job(still, job.job_id, Write())
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == (
        "paused" if paused else "admission",
        START + timedelta(seconds=45),
    )
    assert explained.message.endswith(
        "If it has not started by its start deadline, it is SKIPPED (start_deadline)."
    )


async def test_what_is_not_due_waits_for_its_time_and_not_for_its_deadline(still: Engine) -> None:
    job = await create(still, one_time(start_deadline_seconds=45, schedule={"delay_seconds": 60}))
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == ("not_due", at("10:01:30"))


async def test_what_waits_again_with_a_total_deadline_waits_until_then(still: Engine) -> None:
    job = await create(still, one_time(deadline_seconds=45, start_deadline_seconds=20))
    hand = await Hand.opened(still)
    await admit_all(still)
    [claimed] = await hand.claim()
    retry = Settlement(claimed.execution_id, claimed.fence, RETRY, 0, 1, 0.0, "Bad", "bad")
    await hand.dispatch.settle(hand.session, [retry])
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.until) == ("admission", START + timedelta(seconds=45))
    assert "it is DEAD (deadline)" in explained.message


# Workers.


async def test_without_a_live_worker_it_waits_for_one_and_not_for_the_gate(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    job = await create(still, one_time(queue="lonely"))
    explained = await explain_job(still, job.job_id)
    assert (explained.code, explained.execution_id) == ("no_worker", execution_text(job.job_id))
    assert "lonely" in explained.message
    await Hand.opened(still, ["lonely"])
    assert (await explain_job(still, job.job_id)).code == "admission"


async def test_a_worker_whose_lease_is_over_serves_nothing(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    job = await create(still, one_time(queue="lonely"))
    hand = await Hand.opened(still, ["lonely"])
    await admit_all(still)
    assert (await explain_job(still, job.job_id)).code == "worker_slot"
    await expire_session(still, hand.session)
    assert (await explain_job(still, job.job_id)).code == "no_worker"


# Statuses.


async def statuses(engine: Engine, job_id: int) -> set[ExecutionStatus]:
    """The statuses of the only execution of a job, wherever it is shown."""
    [listed] = (await list_executions(engine, job_id)).items
    number = listed.execution_id
    [found] = (await search_executions(engine, ExecutionFilter())).items
    [of_tenant] = (await search_executions(engine, ExecutionFilter(tenant_id="default"))).items
    statuses = {listed.status, found.status, of_tenant.status}
    statuses.add((await get_execution(engine, number)).status)
    for status in ExecutionStatus:
        wanted = ExecutionFilter(statuses=frozenset({status}))
        if (await search_executions(engine, wanted)).items:
            statuses.add(status)
    return statuses


async def test_what_is_due_is_queued_wherever_it_waits(still: Engine) -> None:
    job = await create(still, one_time(schedule={"delay_seconds": 30}))
    number = job.job_id
    assert await statuses(still, number) == {ExecutionStatus.SCHEDULED}
    await travel(still, at("10:01:00"))
    assert await statuses(still, number) == {ExecutionStatus.QUEUED}  # for the gate
    await still.database.value("delete from hourbell.sessions")
    await admit_all(still)
    assert await statuses(still, number) == {ExecutionStatus.QUEUED}  # parked, without a worker
    hand = await Hand.opened(still)
    await admit_all(still)
    assert await statuses(still, number) == {ExecutionStatus.QUEUED}  # for a slot
    claimed = await hand.claim()
    assert await statuses(still, number) == {ExecutionStatus.RUNNING}
    await hand.fail(claimed, 30)
    assert await statuses(still, number) == {ExecutionStatus.RETRYING}
    await travel(still, at("10:01:30"))
    assert await statuses(still, number) == {ExecutionStatus.QUEUED}
    await pause_job(still, number, Write())
    assert await statuses(still, number) == {ExecutionStatus.RETRYING}


async def test_what_is_paused_is_scheduled_also_when_it_is_overdue(still: Engine) -> None:
    job = await create(still, one_time())
    await pause_job(still, job.job_id, Write())
    await travel(still, at("10:05"))
    assert await statuses(still, job.job_id) == {ExecutionStatus.SCHEDULED}
