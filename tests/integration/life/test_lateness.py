"""Runs that are far from their time, before or after it."""

from datetime import timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations.dead_letters import replay_dead_letter
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import run_now
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import ExecutionStatus, Failed, Reason
from hourbell.model.jobs import decode_spec
from integration.life.support import (
    START,
    Hand,
    admit_all,
    create,
    expire_session,
    one_time,
    travel,
)


def on_day(days: int, **fields: object) -> dict[str, object]:
    return one_time(**fields) | {"schedule": {"at": (START + timedelta(days=days)).isoformat()}}


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


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_replay_keeps_the_lateness_of_the_first_start(still: Engine, retries: int) -> None:
    policy = {"max_retries": retries, "backoff": "FIXED", "initial_delay_seconds": 1}
    job = await create(still, one_time(retry_policy=policy))
    hand = await Hand.opened(still)
    for _ in range(1 + retries):
        await travel(still, await still.clock.now() + timedelta(seconds=2))
        await admit_all(still)
        [one] = await hand.claim()
        failed = Failed("no", "Bad")
        decided = settlement(one, decode_spec(one.spec), failed, 0, 0, one.deadline_in_seconds)
        assert not await hand.dispatch.settle(hand.session, [decided])
    died = await get_execution(still, job.job_id)
    assert (died.status, died.lateness_ms) == (ExecutionStatus.DEAD, 2_000)
    await travel(still, START + timedelta(hours=1))
    await replay_dead_letter(still, job.job_id, Write())
    await admit_all(still)
    await hand.succeed(await hand.claim())
    replayed = await get_execution(still, job.job_id)
    assert (replayed.status, replayed.lateness_ms) == (ExecutionStatus.SUCCEEDED, 2_000)
