"""What targets say about executions: that they go on by themselves, that they are gone, that they are down."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web

from hourbell.actions.circuits import FAILURES
from hourbell.actions.egress import GuardedResolver
from hourbell.actions.webhook import WebhookRunner
from hourbell.dispatch import SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.pauses import pause_abandoned
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.life.settlement import ACCEPTED, GONE, RELEASED, settlement
from hourbell.engine.operations.change import resume_job, update_job
from hourbell.engine.operations.completions import complete, end_overdue
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import explain_execution
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Conflict, NotFound
from hourbell.model.executions import (
    Accepted,
    Claimed,
    ExecutionStatus,
    Failed,
    Reason,
    Released,
    Succeeded,
)
from hourbell.model.ids import job_text
from hourbell.model.jobs import JobStatus, WebhookAction, decode_spec
from hourbell.security.egress import LOOPBACK, Egress
from hourbell.security.sealing import KeyRing
from hourbell.worker.runtime import Worker, WorkerSettings
from integration.actions.test_webhook import Secrets
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    expire_session,
    fates,
    in_transaction,
    one_time,
    places,
    plan_all,
    recurring,
    scheduling,
    standing,
    travel,
)

TOKEN = "a-token-that-nobody-else-has"
NO_KEYS = KeyRing({})
DIGEST = hashlib.sha256(TOKEN.encode()).digest()


async def claim_one(engine: Engine, hand: Hand) -> Claimed:
    await admit_all(engine)
    [claimed] = await hand.claim()
    return claimed


async def settle(hand: Hand, claimed: Claimed, outcome: Any) -> None:
    spec = decode_spec(claimed.spec)
    settled = settlement(claimed, spec, outcome, 100, 20, claimed.deadline_in_seconds)
    assert not await hand.dispatch.settle(hand.session, [settled])


async def accepted(engine: Engine, seconds: float = 60.0, **fields: object) -> Claimed:
    """A job whose execution waits for its target."""
    await create(engine, one_time(**fields))
    hand = await Hand.opened(engine)
    claimed = await claim_one(engine, hand)
    await settle(hand, claimed, Accepted(DIGEST, seconds))
    await hand.dispatch.close(hand.session)
    return claimed


# Awaiting.


async def test_what_its_target_accepted_waits_without_a_worker(still: Engine) -> None:
    claimed = await accepted(still)
    seen = await get_execution(still, claimed.execution_id)
    assert seen.status is ExecutionStatus.AWAITING
    assert [attempt.status for attempt in seen.attempts] == [ExecutionStatus.AWAITING]
    explained = await explain_execution(still, claimed.execution_id)
    assert explained.code == "awaiting_completion"
    assert explained.until == START + timedelta(seconds=60)
    await check_sound(still)


async def test_no_workers_death_matters_any_more(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claim_one(still, hand)
    await settle(hand, claimed, Accepted(DIGEST, 60.0))
    await expire_session(still, hand.session)
    assert (await reap(still, None, await still.clock.now())).returned == 0
    done = await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded({"n": 1}))
    assert done.status is ExecutionStatus.SUCCEEDED


async def test_a_worker_that_dies_before_it_has_told_is_a_lost_lease(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claim_one(still, hand)
    await expire_session(still, hand.session)
    await reap(still, None, await still.clock.now())
    late = settlement(claimed, None, Accepted(DIGEST, 60.0), 0, 0, None)
    assert await hand.dispatch.settle(hand.session, [late]) == [claimed.execution_id]
    with pytest.raises(NotFound):
        await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    again = await claim_one(still, await Hand.opened(still))
    assert again.execution_id == claimed.execution_id
    assert again.fence > claimed.fence


async def test_the_target_says_that_it_succeeded(still: Engine) -> None:
    claimed = await accepted(still)
    await travel(still, START + timedelta(seconds=7))
    await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded({"rows": 3}))
    seen = await get_execution(still, claimed.execution_id)
    assert seen.status is ExecutionStatus.SUCCEEDED
    assert seen.result == {"rows": 3}
    [attempt] = seen.attempts
    assert attempt.started_at == START + timedelta(milliseconds=100)
    assert attempt.finished_at == START + timedelta(seconds=7)
    await check_sound(still)


async def test_a_failure_is_tried_again_by_the_jobs_policy(still: Engine) -> None:
    policy = {"backoff": "FIXED", "initial_delay_seconds": 30, "max_retries": 1}
    claimed = await accepted(still, retry_policy=policy)
    await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Failed("no disk", "reported"))
    seen = await get_execution(still, claimed.execution_id)
    assert (seen.status, seen.error) == (ExecutionStatus.RETRYING, "no disk")
    assert seen.attempts[0].kind == "reported"
    # The next attempt may be accepted too, and has a token of its own.
    await travel(still, START + timedelta(seconds=30))
    hand = await Hand.opened(still)
    again = await claim_one(still, hand)
    assert (again.execution_id, again.attempt) == (claimed.execution_id, 2)
    other = hashlib.sha256(b"another").digest()
    await settle(hand, again, Accepted(other, 60.0))
    await complete(still, NO_KEYS, claimed.execution_id, "another", Failed("no disk", "reported"))
    assert await fates(still) == {"DEAD(retries_exhausted)": 1}


@pytest.mark.parametrize("outcome", [Succeeded(7), Failed("bad", "reported")])
async def test_a_repetition_gets_the_same_answer(still: Engine, outcome: Any) -> None:
    claimed = await accepted(still)
    first = await complete(still, NO_KEYS, claimed.execution_id, TOKEN, outcome)
    assert await complete(still, NO_KEYS, claimed.execution_id, TOKEN, outcome) == first
    other = Failed("x", "y") if isinstance(outcome, Succeeded) else Succeeded()
    with pytest.raises(Conflict, match=f"completed as {first.status}"):
        await complete(still, NO_KEYS, claimed.execution_id, TOKEN, other)


async def test_of_many_that_complete_it_at_once_one_does(engine: Engine) -> None:
    claimed = await accepted(engine)
    await asyncio.gather(
        *(complete(engine, NO_KEYS, claimed.execution_id, TOKEN, Succeeded(n)) for n in range(8))
    )
    assert await fates(engine) == {"SUCCEEDED": 1}


async def test_a_wrong_token_is_nobodys(still: Engine) -> None:
    claimed = await accepted(still)
    with pytest.raises(NotFound) as wrong:
        await complete(still, NO_KEYS, claimed.execution_id, "guessed", Succeeded())
    with pytest.raises(NotFound) as missing:
        await get_execution(still.scoped_to("stranger"), claimed.execution_id)
    assert wrong.value.message == missing.value.message
    with pytest.raises(NotFound):
        await complete(
            still.scoped_to("stranger"), NO_KEYS, claimed.execution_id, TOKEN, Succeeded()
        )
    assert (await get_execution(still, claimed.execution_id)).status is ExecutionStatus.AWAITING


async def test_an_answer_that_was_lost_is_found_by_repeating(engine: Engine) -> None:
    claimed = await accepted(engine)
    done = complete(engine, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    async with standing("complete.after_commit", done):
        again = await complete(engine, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    assert again.status is ExecutionStatus.SUCCEEDED


async def test_one_that_nobody_completes_in_time_fails_by_its_timeout(still: Engine) -> None:
    policy = {"backoff": "FIXED", "initial_delay_seconds": 30, "max_retries": 1}
    claimed = await accepted(still, retry_policy=policy)
    await end_overdue(still, None, await travel(still, START + timedelta(seconds=59)))
    assert (await get_execution(still, claimed.execution_id)).status is ExecutionStatus.AWAITING
    await end_overdue(still, None, await travel(still, START + timedelta(seconds=60)))
    seen = await get_execution(still, claimed.execution_id)
    assert (seen.status, seen.attempts[0].kind) == (ExecutionStatus.RETRYING, "timeout")
    with pytest.raises(Conflict, match="ended without it"):
        await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    await check_sound(still)


async def test_at_most_once_is_not_tried_again_when_its_target_is_silent(still: Engine) -> None:
    await accepted(still, delivery="at_most_once")
    await end_overdue(still, None, await travel(still, START + timedelta(seconds=60)))
    assert await fates(still) == {"DEAD(retries_exhausted)": 1}


async def test_the_total_deadline_ends_it_too(still: Engine) -> None:
    claimed = await accepted(still, deadline_seconds=10)
    await expire(still, None, await travel(still, START + timedelta(seconds=11)))
    assert await fates(still) == {"DEAD(deadline)": 1}
    with pytest.raises(Conflict, match="ended without it"):
        await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    await end_overdue(still, None, await travel(still, START + timedelta(seconds=61)))
    assert await fates(still) == {"DEAD(deadline)": 1}


async def test_it_is_cancelled_at_once(still: Engine) -> None:
    claimed = await accepted(still)
    seen = await cancel_execution(still, claimed.execution_id, Write())
    assert (seen.status, seen.reason) == (ExecutionStatus.CANCELLED, Reason.CANCELLED)
    assert (await get_execution(still, claimed.execution_id)).status is ExecutionStatus.CANCELLED
    with pytest.raises(Conflict, match="ended without it"):
        await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    await check_sound(still)


async def test_a_wish_that_came_while_it_was_handed_over_is_granted(still: Engine) -> None:
    """The worker was to stop it, and has it no more."""
    claimed = await accepted(still)
    await still.database.value(
        "insert into hourbell.cancellations (id, requested_at) values ($1, $2)",
        claimed.execution_id,
        START,
    )
    await end_overdue(still, None, START)
    assert await fates(still) == {"CANCELLED(cancelled)": 1}


async def test_one_that_was_wished_away_before_its_target_accepted_it_ends(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claim_one(still, hand)
    await cancel_execution(still, claimed.execution_id, Write())
    await settle(hand, claimed, Accepted(DIGEST, 60.0))
    assert await fates(still) == {"CANCELLED(cancelled)": 1}


async def test_it_keeps_its_concurrency_key_until_it_has_ended(still: Engine) -> None:
    claimed = await accepted(still, concurrency_key="one")
    second = await create(still, one_time(concurrency_key="one"))
    await admit_all(still)
    assert (await explain_execution(still, second.job_id)).code == "concurrency_key"
    await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    await admit_all(still)
    assert await places(still) == {"ready": 1}


async def test_tokens_are_forgotten_when_nobody_will_repeat_any_more(still: Engine) -> None:
    claimed = await accepted(still)
    await complete(still, NO_KEYS, claimed.execution_id, TOKEN, Succeeded())
    for days, left in ((1, 1), (4, 0)):
        await run_housekeeping(still, None, await travel(still, START + timedelta(days=days)))
        assert await still.database.value("select count(*) from hourbell.awaiting") == left


async def test_a_session_that_is_over_is_known_as_long_as_the_ledger_names_it(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await PostgresDispatch(still).close(hand.session)
    for days, left in ((30, 1), (32, 0)):
        await run_housekeeping(still, None, await travel(still, START + timedelta(days=days)))
        assert await still.database.value("select count(*) from hourbell.past_sessions") == left


async def test_a_batch_may_have_all_kinds_of_outcomes(still: Engine) -> None:
    for _ in range(4):
        await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    first, second, third, fourth = await hand.claim()
    digest = f'"{DIGEST.hex()}"'
    batch = [
        Settlement(first.execution_id, first.fence, SUCCEEDED),
        Settlement(second.execution_id, second.fence, ACCEPTED, delay_seconds=5.0, result=digest),
        Settlement(third.execution_id, third.fence, RELEASED, delay_seconds=5.0, reason="x"),
        Settlement(fourth.execution_id, fourth.fence - 1, ACCEPTED, 0, 0, 5.0, result=digest),
    ]
    assert await hand.dispatch.settle(hand.session, batch) == [fourth.execution_id]
    assert await places(still) == {"leased": 2, "due": 1}
    await check_sound(still)


# Gone.


async def gone_job(engine: Engine) -> int:
    job = await create(engine, recurring("* * * * *"))
    now = await travel(engine, START + timedelta(seconds=30))
    await plan_all(engine, now)
    hand = await Hand.opened(engine)
    claimed = await claim_one(engine, hand)
    failure = Failed("The target answered 410.", "http_410", final=True, gone=True)
    await settle(hand, claimed, failure)
    return job.job_id


async def test_a_job_whose_target_is_gone_is_paused_and_the_audit_says_why(still: Engine) -> None:
    job_id = await gone_job(still)
    assert await fates(still) == {"DEAD(non_retryable)": 1}
    await pause_abandoned(still, None)
    assert (await get_job(still, job_id)).status is JobStatus.PAUSED
    row = await still.database.row(
        "select actor, operation from hourbell.audit where job = $1 order by id desc limit 1",
        job_id,
    )
    assert (row["actor"], row["operation"]) == ("target answered 410", "pause")
    # Once: who resumes it is not overruled.
    await resume_job(still, job_id, Write())
    await pause_abandoned(still, None)
    assert (await get_job(still, job_id)).status is JobStatus.SCHEDULED


async def test_a_locked_monitor_delays_the_pause_of_its_own_job_only(still: Engine) -> None:
    locked, other = await create(still, recurring()), await create(still, recurring())
    document = {"job_id": job_text(locked.job_id), "grace_seconds": 60, "url": "https://x.example"}
    await create_monitor(still, document, Write())
    await still.database.fetch(
        "insert into hourbell.abandoned_jobs values ($1, 1), ($2, 1)", locked.job_id, other.job_id
    )
    async with in_transaction(still) as stopped:
        await stopped.database.fetch("select from hourbell.monitors for update")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await pause_abandoned(still, None)
        assert (await get_job(still, locked.job_id)).status is JobStatus.SCHEDULED
        assert (await get_job(still, other.job_id)).status is JobStatus.PAUSED
    await pause_abandoned(still, None)
    assert (await get_job(still, locked.job_id)).status is JobStatus.PAUSED


async def test_a_job_that_was_mended_meanwhile_goes_on(still: Engine) -> None:
    job_id = await gone_job(still)
    await update_job(still, job_id, {"timeout_seconds": 7}, Write())
    await pause_abandoned(still, None)
    assert (await get_job(still, job_id)).status is JobStatus.SCHEDULED
    assert await still.database.value("select count(*) from hourbell.abandoned_jobs") == 0


async def test_a_job_that_wants_to_try_again_is_not_paused(still: Engine) -> None:
    spec = decode_spec(
        msgspec.json.encode(one_time(retry_policy={"retryable": ["http_410"]}) | {"schedule": None})
    )
    claimed = Claimed(1, 1, "t", 1, 1, START.timestamp(), None, b"")
    failure = Failed("gone", "http_410", final=True, gone=True)
    assert settlement(claimed, spec, failure, 0, 0, None).kind != GONE


async def test_a_one_time_job_that_is_gone_is_just_dead(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claim_one(still, hand)
    await settle(hand, claimed, Failed("gone", "http_410", final=True, gone=True))
    assert await fates(still) == {"DEAD(non_retryable)": 1}
    assert await still.database.value("select count(*) from hourbell.dead_letters") == 1
    assert await still.database.value("select count(*) from hourbell.abandoned_jobs") == 0


# Put off.


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize(
    ("waits_for", "message"),
    [("circuit_open", "are delayed for a while"), ("no_secret_keys", "Set HOURBELL_SECRET_KEYS")],
)
async def test_what_is_put_off_burns_no_attempt_and_says_what_it_waits_for(
    still: Engine, delivery: str, waits_for: str, message: str
) -> None:
    job = await create(still, one_time(delivery=delivery))
    hand = await Hand.opened(still)
    claimed = await claim_one(still, hand)
    await settle(hand, claimed, Released(5.0, waits_for))
    explained = await explain_execution(still, job.job_id)
    assert explained.code == waits_for
    assert message in explained.message
    assert explained.until == START + timedelta(seconds=5)
    await admit_all(still)
    assert await hand.claim() == []
    await travel(still, START + timedelta(seconds=5))
    again = await claim_one(still, hand)
    assert (again.attempt, again.fence > claimed.fence) == (1, True)
    assert (await get_execution(still, job.job_id)).status is ExecutionStatus.RUNNING


async def test_a_retry_after_that_waits_for_its_attempt_again(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await settle(hand, await claim_one(still, hand), Released(5.0, "circuit_open"))
    await travel(still, START + timedelta(seconds=5))
    await settle(hand, await claim_one(still, hand), Failed("bad", "http_500"))
    assert (await explain_execution(still, job.job_id)).code == "retrying"


# All of it with a real worker, scheduler and target.


@contextlib.asynccontextmanager
async def calling(engine: Engine) -> AsyncIterator[Worker]:
    """A worker that sends webhooks to this machine."""
    resolver = GuardedResolver(Egress.parse(",".join(LOOPBACK)))
    webhooks = WebhookRunner.open(20, resolver, Secrets(), lambda: 0.0)
    settings = WorkerSettings(name="test", lease_seconds=3.0, drain_seconds=5.0)
    worker = Worker(PostgresDispatch(engine), {WebhookAction: webhooks}, settings)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await running
        await webhooks.close()


class Target:
    def __init__(self) -> None:
        self.status, self.headers = 200, {}
        self.requests: list[web.Request] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        return web.Response(status=self.status, headers=self.headers)


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    made = Target()
    app = web.Application()
    app.router.add_route("*", "/", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield made
    await runner.cleanup()


def webhook(target: Target, **fields: object) -> dict[str, object]:
    return one_time(**fields) | {"action": {"type": "WEBHOOK", "url": target.url}}


async def test_a_target_completes_what_it_accepted_after_its_worker_has_left(
    engine: Engine, target: Target
) -> None:
    target.status, target.headers = 202, {"Hourbell-Async": "1"}
    job = await create(engine, webhook(target))

    async def awaits() -> bool:
        seen = await get_execution(engine, job.job_id)
        return seen.status is ExecutionStatus.AWAITING

    async with scheduling(engine):
        async with calling(engine):
            await eventually(awaits)
        assert await awaits()
        token = target.requests[0].headers["Hourbell-Completion-Token"]
        await complete(engine, NO_KEYS, job.job_id, token, Succeeded())
    assert await fates(engine) == {"SUCCEEDED": 1}


async def test_a_silent_target_is_a_timeout_of_the_job(engine: Engine, target: Target) -> None:
    target.status, target.headers = 202, {"Hourbell-Async": "1"}
    await create(engine, webhook(target, timeout_seconds=1, retry_policy={"max_retries": 0}))

    async def dead() -> bool:
        return await fates(engine) == {"DEAD(retries_exhausted)": 1}

    async with scheduling(engine), calling(engine):
        await eventually(dead)


async def test_a_410_pauses_the_job(engine: Engine, target: Target) -> None:
    target.status = 410
    action = {"type": "WEBHOOK", "url": target.url}
    job = await create(engine, recurring() | {"action": action, "schedule": {"every_seconds": 1}})

    async def paused() -> bool:
        return (await get_job(engine, job.job_id)).status is JobStatus.PAUSED

    async with scheduling(engine), calling(engine):
        await eventually(paused)


async def test_an_open_circuit_puts_executions_off(
    engine: Engine, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourbell.actions.circuits.OVER_SECONDS", 0.0)
    monkeypatch.setattr(
        "hourbell.actions.circuits.FIRST_PAUSE_SECONDS", 5.0
    )  # until `later` is seen
    target.status = 500
    jobs = [
        await create(engine, webhook(target, retry_policy={"max_retries": 0}))
        for _ in range(FAILURES)
    ]

    async def all_dead() -> bool:
        return (await fates(engine))["DEAD(retries_exhausted)"] == len(jobs)

    async with scheduling(engine), calling(engine):
        await eventually(all_dead)
        later = await create(engine, webhook(target, delivery="at_most_once"))

        async def put_off() -> bool:
            return (await explain_execution(engine, later.job_id)).code == "circuit_open"

        await eventually(put_off)
        assert len(target.requests) == FAILURES
        target.status = 200

        async def succeeded() -> bool:
            return (await fates(engine))["SUCCEEDED"] == 1

        await eventually(succeeded)
    assert (await get_execution(engine, later.job_id)).attempt == 1
