"""Arguments that do not fit the task of a worker: another worker may have the version that they are for."""

from datetime import timedelta
from typing import Any

from hourbell import App
from hourbell.actions import Run
from hourbell.engine.core import Engine
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations.dead_letters import retry_execution
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import explain_execution
from hourbell.model.executions import Execution, ExecutionStatus, Interrupted, Reason
from hourbell.model.jobs import TaskAction, decode_spec
from hourbell.sdk.running import AppRunner
from integration.life.support import Hand, admit_all, create, travel

S = ExecutionStatus


def old() -> App:
    app = App("shop")

    @app.task(name="mail")
    async def mail(cart_id: int) -> str:
        return f"cart {cart_id}"

    return app


def new() -> App:
    app = App("shop")

    @app.task(name="mail")
    async def mail(cart_id: int, lang: str) -> str:
        return f"cart {cart_id} in {lang}"

    return app


async def enqueued(engine: Engine, **fields: Any) -> int:
    """A job of the old version, without retries."""
    action = {"type": "TASK", "name": "shop.mail", "payload": {"cart_id": 7}}
    document = {"type": "ONE_TIME", "schedule": {"delay_seconds": 0}, "action": action}
    policy = {} if "delivery" in fields else {"retry_policy": {"max_retries": 0}}
    return (await create(engine, {"name": "mail", **document, **policy, **fields})).job_id


async def run_by(app: App, hand: Hand, is_interrupted: bool = False) -> Execution:
    """The only execution, after a worker with this version has claimed, run and settled it."""
    await admit_all(hand.engine)
    (claimed,) = await hand.claim()
    spec = decode_spec(claimed.spec)
    assert isinstance(spec.action, TaskAction)
    outcome = Interrupted()
    if not is_interrupted:
        outcome = await AppRunner(app).run(spec.action, Run(claimed, spec, 30.0, None))
    settled = settlement(claimed, spec, outcome, 0, 1, claimed.deadline_in_seconds)
    assert list(await hand.dispatch.settle(hand.session, [settled])) == []
    return await get_execution(hand.engine, claimed.execution_id)


async def pass_a_minute(engine: Engine) -> None:
    await travel(engine, await engine.clock.now() + timedelta(seconds=60))


async def test_a_job_waits_for_a_worker_that_it_fits_and_uses_no_attempt(still: Engine) -> None:
    job = await enqueued(still)
    hand = await Hand.opened(still)
    for _ in range(2):
        waiting = await run_by(new(), hand)
        assert (waiting.status, waiting.attempt, waiting.attempts) == (S.QUEUED, 0, ())
        explained = await explain_execution(still, job)
        assert explained.code == waiting.waiting_for == "payload_mismatch"
        assert explained.until == await still.clock.now() + timedelta(seconds=60)
        await pass_a_minute(still)
    ended = await run_by(old(), hand)
    assert (ended.status, ended.attempt, ended.result) == (S.SUCCEEDED, 1, "cart 7")


async def test_a_job_that_fits_no_worker_is_dead_after_ten_minutes(still: Engine) -> None:
    job = await enqueued(still)
    hand = await Hand.opened(still)
    for _ in range(10):
        assert (await run_by(new(), hand)).status is S.QUEUED
        await pass_a_minute(still)
    dead = await run_by(new(), hand)
    assert (dead.status, dead.reason, dead.attempt) == (S.DEAD, Reason.NON_RETRYABLE, 1)
    assert [each.kind for each in dead.attempts] == ["payload_mismatch"]
    assert "missing" in (dead.error or "")
    # After the fix, it is replayed, and would have its ten minutes again.
    await retry_execution(still, job, Write(None))
    assert (await run_by(new(), hand)).waiting_for == "payload_mismatch"
    await pass_a_minute(still)
    assert (await run_by(old(), hand)).status is S.SUCCEEDED


async def test_interruptions_in_between_do_not_start_the_count_again(still: Engine) -> None:
    await enqueued(still)
    hand = await Hand.opened(still)
    for n in range(10):
        assert (await run_by(new(), hand, is_interrupted=n % 2 == 0)).status is not S.DEAD
        await pass_a_minute(still)
    assert (await run_by(new(), hand)).status is S.DEAD


async def test_it_was_not_started_so_an_at_most_once_job_waits_too(still: Engine) -> None:
    await enqueued(still, delivery="at_most_once", start_deadline_seconds=90)
    hand = await Hand.opened(still)
    assert (await run_by(new(), hand)).status is S.QUEUED
    await pass_a_minute(still)
    assert (await run_by(old(), hand)).status is S.SUCCEEDED
