"""Reruns: what was begun and goes back without an ended attempt, interrupted by a stop or snoozed by its handler."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta

import pytest

from hourbell.actions import Run
from hourbell.dispatch import INTERRUPTED, SNOOZED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import expire
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.life.settlement import RELEASED, RETRY, settlement
from hourbell.engine.operations.dead_letters import retry_execution
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import explain_execution
from hourbell.model.executions import (
    MAX_INTERRUPTIONS,
    MAX_SNOOZES,
    Claimed,
    ExecutionStatus,
    Failed,
    Interrupted,
    Outcome,
    Reason,
    Snoozed,
    Succeeded,
)
from hourbell.model.jobs import SentSpec, TaskAction, decode_spec
from hourbell.worker.runtime import Worker, WorkerSettings
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    every,
    fates,
    one_round,
    one_time,
    place_of,
    places,
    travel,
    working,
)

S = ExecutionStatus


async def report(
    hand: Hand, claimed: Claimed, outcome: Outcome, left: float | None = None
) -> Settlement:
    """Settle as the worker would, by what came with the claim; returns what was sent."""
    decided = settlement(claimed, decode_spec(claimed.spec), outcome, 0, 1, left)
    assert list(await hand.dispatch.settle(hand.session, [decided])) == []
    return decided


async def claimed_again(hand: Hand) -> Claimed:
    await admit_all(hand.engine)
    [claimed] = await hand.claim()
    return claimed


def spec(claimed: Claimed) -> SentSpec:
    return decode_spec(claimed.spec)


# Interrupted.


async def test_a_run_that_a_stop_interrupts_is_ready_at_once_and_loses_no_attempt(
    engine: Engine,
) -> None:
    began = asyncio.Event()

    async def work(payload: object, claimed: Claimed) -> None:
        began.set()
        await asyncio.Event().wait()

    job = await create(engine, one_time("work"))
    await admit_all(engine)
    async with working(engine, {"work": work}, drain_seconds=0.05):
        await began.wait()
    assert await places(engine) == {"due": 1}
    hand = await Hand.opened(engine)
    again = await claimed_again(hand)
    assert (again.execution_id, again.attempt) == (job.job_id, 1)
    assert spec(again).interruptions == 1
    assert (await get_execution(engine, job.job_id)).attempts[0].status is S.RUNNING
    assert not await hand.succeed([again])
    execution = await get_execution(engine, job.job_id)
    assert (execution.status, execution.attempt) == (S.SUCCEEDED, 1)


async def test_a_handler_that_fails_because_it_was_stopped_is_interrupted(engine: Engine) -> None:
    began = asyncio.Event()

    async def work(payload: object, claimed: Claimed) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("the driver's word for it") from None

    await create(engine, one_time("work"))
    await admit_all(engine)
    async with working(engine, {"work": work}, drain_seconds=0.05):
        await began.wait()
    assert spec(await claimed_again(await Hand.opened(engine))).interruptions == 1


async def test_a_thread_that_a_stop_cannot_end_is_interrupted(engine: Engine) -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(payload: object, claimed: Claimed) -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)

    await create(engine, one_time("work"))
    await admit_all(engine)
    async with working(engine, {"work": work}, drain_seconds=0.05):
        await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
    assert spec(await claimed_again(await Hand.opened(engine))).interruptions == 1
    go_on.set()


async def test_one_interruption_too_many_in_a_row_is_a_failure(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    for number in range(MAX_INTERRUPTIONS):
        claimed = await claimed_again(hand)
        assert spec(claimed).interruptions == number
        assert (await report(hand, claimed, Interrupted())).kind == INTERRUPTED
    assert (await report(hand, await claimed_again(hand), Interrupted())).kind == RETRY
    execution = await get_execution(still, job.job_id)
    assert execution.status is S.RETRYING
    [attempt] = execution.attempts
    assert attempt.kind == "interrupted"
    # The failure is counted, and then it begins again.
    await travel(still, START + timedelta(hours=1))
    claimed = await claimed_again(hand)
    assert (claimed.attempt, spec(claimed).interruptions) == (2, 0)
    await report(hand, claimed, Interrupted())
    assert spec(await claimed_again(hand)).interruptions == 1
    await check_sound(still)


async def test_a_snooze_between_two_interruptions_begins_the_row_again(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    for outcome in (Interrupted(), Interrupted(), Snoozed(0)):
        await report(hand, await claimed_again(hand), outcome)
    claimed = await claimed_again(hand)
    assert (spec(claimed).interruptions, spec(claimed).snoozes) == (0, 1)


async def test_what_may_run_once_only_is_dead_when_it_is_interrupted(still: Engine) -> None:
    job = await create(still, one_time(delivery="at_most_once"))
    hand = await Hand.opened(still)
    await report(hand, await claimed_again(hand), Interrupted())
    execution = await get_execution(still, job.job_id)
    assert (execution.status, execution.reason) == (S.DEAD, Reason.RETRIES_EXHAUSTED)
    assert execution.attempts[0].kind == "interrupted"


@pytest.mark.parametrize("outcome", [Interrupted(), Snoozed(60)])
async def test_what_was_begun_has_started_in_time(still: Engine, outcome: Outcome) -> None:
    job = await create(still, one_time(start_deadline_seconds=10))
    hand = await Hand.opened(still)
    await travel(still, START + timedelta(seconds=5))
    await report(hand, await claimed_again(hand), outcome)
    later = await travel(still, START + timedelta(seconds=90))
    await expire(still, None, later)
    claimed = await claimed_again(hand)
    assert not await hand.succeed([claimed])
    execution = await get_execution(still, job.job_id)
    assert execution.status is S.SUCCEEDED
    assert execution.lateness_ms == 5000


@pytest.mark.parametrize("outcome", [Interrupted(), Snoozed(3600)])
async def test_a_cancellation_ends_what_is_interrupted_or_snoozed(
    still: Engine, outcome: Outcome
) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    await cancel_execution(still, job.job_id, Write(None))
    await report(hand, claimed, outcome)
    assert (await get_execution(still, job.job_id)).status is S.CANCELLED
    assert await still.database.value("select count(*) from hourbell.reruns") == 0


@pytest.mark.parametrize(("outcome", "kind"), [(Interrupted(), INTERRUPTED), (Snoozed(5), SNOOZED)])
async def test_a_report_that_is_repeated_counts_once(
    still: Engine, outcome: Outcome, kind: int
) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    sent = await report(hand, claimed, outcome)
    assert list(await hand.dispatch.settle(hand.session, [sent])) == [job.job_id]
    assert list(await hand.dispatch.already_settled(hand.session, [sent])) == [job.job_id]
    counted = "select interruptions + snoozes from hourbell.reruns"
    assert await still.database.value(counted) == 1
    assert await place_of(still, job.job_id) == ["due"]


async def test_the_repetition_of_one_interruption_too_many_is_recognised(still: Engine) -> None:
    # The worker does not know that it has become a failure.
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await report(hand, await claimed_again(hand), Interrupted())
    await still.database.value(
        "update hourbell.reruns set interruptions = $1 returning id", MAX_INTERRUPTIONS
    )
    claimed = await claimed_again(hand)
    assert (await report(hand, claimed, Interrupted())).kind == RETRY
    repeated = Settlement(claimed.execution_id, claimed.fence, INTERRUPTED)
    assert list(await hand.dispatch.already_settled(hand.session, [repeated])) == [job.job_id]
    released = Settlement(claimed.execution_id, claimed.fence, RELEASED)
    assert list(await hand.dispatch.already_settled(hand.session, [released])) == []


async def test_an_interruption_under_a_stale_fence_changes_nothing(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    first = await claimed_again(hand)
    await report(hand, first, Interrupted())
    second = await claimed_again(hand)
    stale = Settlement(first.execution_id, first.fence, INTERRUPTED)
    assert list(await hand.dispatch.settle(hand.session, [stale])) == [job.job_id]
    assert await place_of(still, job.job_id) == ["leased"]
    assert await still.database.value("select interruptions from hourbell.reruns") == 1
    assert not await hand.succeed([second])


# Snoozed.


class Asking:
    """Handlers that end in any outcome."""

    def __init__(self, handlers: Mapping[str, Callable[[Run], Awaitable[Outcome]]]) -> None:
        self._handlers = handlers

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        return await self._handlers[action.name](run)


async def test_a_snoozed_execution_runs_again_after_its_delay_and_loses_no_attempt(
    engine: Engine,
) -> None:
    seen: list[int] = []

    async def poll(run: Run) -> Outcome:
        seen.append(run.claimed.attempt)
        return Snoozed(0.05) if len(seen) < 3 else Succeeded()

    job = await create(engine, one_time("poll"))
    settings = WorkerSettings(name="test", lease_seconds=3.0, drain_seconds=5.0)
    worker = Worker(PostgresDispatch(engine), {TaskAction: Asking({"poll": poll})}, settings)
    running = asyncio.create_task(worker.run())

    async def is_over() -> bool:
        return (await get_execution(engine, job.job_id)).status is S.SUCCEEDED

    await eventually(is_over)
    worker.stop()
    await running
    assert seen == [1, 1, 1]
    assert (await get_execution(engine, job.job_id)).attempt == 1


async def test_a_handler_that_snoozes_when_it_is_stopped_is_snoozed(engine: Engine) -> None:
    began = asyncio.Event()

    async def poll(run: Run) -> Outcome:
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Snoozed(0)

    await create(engine, one_time("poll"))
    await admit_all(engine)
    settings = WorkerSettings(name="test", lease_seconds=3.0, drain_seconds=0.05)
    worker = Worker(PostgresDispatch(engine), {TaskAction: Asking({"poll": poll})}, settings)
    running = asyncio.create_task(worker.run())
    await began.wait()
    worker.stop()
    await running
    again = spec(await claimed_again(await Hand.opened(engine)))
    assert (again.interruptions, again.snoozes) == (0, 1)


async def test_explain_says_that_it_is_snoozed_and_until_when(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await report(hand, await claimed_again(hand), Snoozed(90))
    explained = await explain_execution(still, job.job_id)
    assert (explained.code, explained.until) == ("snoozed", START + timedelta(seconds=90))
    assert (await get_execution(still, job.job_id)).status is S.SCHEDULED
    await travel(still, START + timedelta(seconds=89))
    await admit_all(still)
    assert await hand.claim() == []
    await travel(still, START + timedelta(seconds=90))
    assert (await claimed_again(hand)).execution_id == job.job_id


async def test_an_execution_that_snoozes_without_end_is_dead(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    await report(hand, await claimed_again(hand), Snoozed(0))
    await still.database.value(
        "update hourbell.reruns set snoozes = $1 returning id", MAX_SNOOZES - 1
    )
    assert (await report(hand, await claimed_again(hand), Snoozed(0))).kind == SNOOZED
    await report(hand, await claimed_again(hand), Snoozed(0))
    execution = await get_execution(still, job.job_id)
    assert (execution.status, execution.reason) == (S.DEAD, Reason.SNOOZED)
    # A replay begins to count again.
    await retry_execution(still, job.job_id, Write(None))
    assert spec(await claimed_again(hand)).snoozes == 0
    await check_sound(still)


async def test_a_snooze_beyond_the_deadline_is_dead(still: Engine) -> None:
    job = await create(still, one_time(deadline_seconds=100))
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    left = claimed.deadline_in_seconds
    assert left == 100
    await report(hand, claimed, Snoozed(99), left)
    await travel(still, START + timedelta(seconds=99))
    claimed = await claimed_again(hand)
    await report(hand, claimed, Snoozed(2), claimed.deadline_in_seconds)
    execution = await get_execution(still, job.job_id)
    assert (execution.status, execution.reason) == (S.DEAD, Reason.SNOOZED)
    assert "deadline" in (execution.error or "")


async def test_a_snoozed_run_is_still_the_run_that_others_of_its_job_wait_for(
    still: Engine,
) -> None:
    job = await create(still, every(60, overlap_policy="forbid"))
    hand = await Hand.opened(still)
    await one_round(still, START + timedelta(seconds=60))
    [claimed] = await hand.claim()
    await report(hand, claimed, Snoozed(600))
    await one_round(still, START + timedelta(seconds=121))
    assert await fates(still) == {"SKIPPED(overlap)": 1}
    assert job.job_id == claimed.job_id
    await check_sound(still)


async def test_a_failure_says_itself_when_it_is_retried(still: Engine) -> None:
    # Shorter than the policy would wait, or longer: the handler decides.
    hand = await Hand.opened(still)
    for delay in (2.0, 5000.0):
        await create(still, one_time())
        sent = await report(
            hand, await claimed_again(hand), Failed("busy", "Busy", retry_in_seconds=delay)
        )
        assert (sent.kind, sent.delay_seconds) == (RETRY, delay)


async def test_counts_are_deleted_when_their_execution_has_ended(still: Engine) -> None:
    await create(still, one_time())
    await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    for claimed in await hand.claim():
        await report(hand, claimed, Interrupted())
    await admit_all(still)
    ended, living = await hand.claim()
    assert not await hand.succeed([ended])
    await run_housekeeping(still, None, await still.clock.now())
    assert await counted(still) == [living.execution_id]


async def counted(engine: Engine) -> Sequence[int]:
    return [row["id"] for row in await engine.database.fetch("select id from hourbell.reruns")]
