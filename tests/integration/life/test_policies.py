"""The policies of a job: misfires, retries, overlaps, deadlines, delivery, and the window of its runs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hourbell.dispatch import RETRY, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.plan import end_memberships
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.dead_letters import get_dead_letter
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Conflict, InvalidInput
from hourbell.model.executions import Claimed, ExecutionStatus, Failed, Reason
from hourbell.model.jobs import Job, JobStatus, decode_spec
from hourbell.store.function_set import connect
from integration.life.support import (
    START,
    TIMES,
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
    one_round,
    one_time,
    place_of,
    plan_all,
    recurring,
    scheduling,
    somebody_waits,
    travel,
    working,
)


async def passes(engine: Engine, moment: str) -> Hand:
    """At this moment everything that is due is planned, expired, admitted and run."""
    now = await travel(engine, at(moment))
    await plan_all(engine)
    await end_memberships(engine, None, now)
    await expire(engine, None, now)
    hand = await Hand.opened(engine)
    await hand.run_all()
    await check_sound(engine)
    return hand


async def minutes_pass(engine: Engine, first: int, last: int) -> None:
    for minute in range(first, last + 1):
        await passes(engine, f"10:{minute:02}:01")


async def claim_one(engine: Engine) -> tuple[Hand, Any]:
    await admit_all(engine)
    hand = await Hand.opened(engine)
    (claimed,) = await hand.claim()
    return hand, claimed


# Retries.


class Failing:
    """A handler that fails so many times, and notes when it ran."""

    def __init__(self, times: int, error: type[Exception] = ValueError) -> None:
        self._left = times
        self._error = error
        self.at: list[datetime] = []
        self.claims: list[Claimed] = []

    def of(self, engine: Engine) -> Any:
        async def run(payload: object, claimed: Claimed) -> None:
            self.at.append(await engine.clock.now())
            self.claims.append(claimed)
            if self._left > 0:
                self._left -= 1
                raise self._error("not yet")

        return run


@pytest.fixture
async def impatient(engine: Engine) -> AsyncIterator[Engine]:
    """A scheduler is running."""
    engine.times = replace(TIMES, horizon_seconds=3)
    async with scheduling(engine):
        yield engine


async def fate_of(engine: Engine, handler: Failing, **fields: Any) -> Any:
    job = await create(engine, one_time("failing", **fields))
    async with working(engine, {"failing": handler.of(engine)}):

        async def has_ended() -> bool:
            return bool(await fates(engine))

        await eventually(has_ended)
    return await get_execution(engine, job.job_id)


async def test_retries_wait_as_their_list_says_and_then_it_is_dead(impatient: Engine) -> None:
    handler = Failing(99)
    policy = {"backoff": "LIST", "delays_seconds": [0, 3]}
    execution = await fate_of(impatient, handler, retry_policy=policy)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.RETRIES_EXHAUSTED)
    assert execution.attempt == 3
    assert execution.error == "ValueError: not yet"
    assert [attempt.attempt for attempt in execution.attempts] == [1, 2, 3]
    _, second, third = handler.at
    assert timedelta(seconds=3) <= third - second
    assert len({claimed.execution_id for claimed in handler.claims}) == 1
    fences = [claimed.fence for claimed in handler.claims]
    assert fences == sorted(set(fences))
    assert await impatient.database.value("select count(*) from hourbell.dead_letters") == 1


async def test_each_retry_is_due_when_its_delay_of_the_list_is_over(still: Engine) -> None:
    await create(still, one_time(retry_policy={"backoff": "LIST", "delays_seconds": [0, 3]}))
    hand = await Hand.opened(still)
    claimed: list[int] = []  # after so many seconds
    for seconds in (0, 0, 2, 3):
        await travel(still, START + timedelta(seconds=seconds))
        await admit_all(still)
        for one in await hand.claim():
            claimed.append(seconds)
            failed = settlement(one, decode_spec(one.spec), Failed("no", "Bad"), 0, 0, None)
            assert not await hand.dispatch.settle(hand.session, [failed])
    assert claimed == [0, 0, 3]
    assert await fates(still) == {"DEAD(retries_exhausted)": 1}


async def test_an_execution_that_succeeds_at_its_second_attempt_has_succeeded(
    impatient: Engine,
) -> None:
    policy = {"backoff": "FIXED", "initial_delay_seconds": 0, "max_retries": 5}
    execution = await fate_of(impatient, Failing(1), retry_policy=policy)
    assert execution.status is ExecutionStatus.SUCCEEDED
    assert [attempt.status for attempt in execution.attempts] == ["FAILED", "SUCCEEDED"]


async def test_a_failure_that_is_not_to_be_retried_is_not(impatient: Engine) -> None:
    handler = Failing(99, KeyError)
    policy = {"initial_delay_seconds": 0, "non_retryable": ["KeyError"]}
    execution = await fate_of(impatient, handler, retry_policy=policy)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.NON_RETRYABLE)
    assert len(handler.at) == 1


async def test_a_retry_that_would_come_after_the_deadline_is_not_waited_for(
    impatient: Engine,
) -> None:
    policy = {"backoff": "FIXED", "initial_delay_seconds": 60}
    execution = await fate_of(impatient, Failing(99), retry_policy=policy, deadline_seconds=30)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.DEADLINE)


async def test_what_may_run_once_only_is_not_retried(impatient: Engine) -> None:
    handler = Failing(99)
    execution = await fate_of(impatient, handler, delivery="at_most_once")
    assert execution.status is ExecutionStatus.DEAD
    assert len(handler.at) == 1


async def test_what_may_run_once_only_is_dead_when_its_lease_is_lost(engine: Engine) -> None:
    job = await create(engine, one_time(delivery="at_most_once"))
    hand, _ = await claim_one(engine)
    await expire_session(engine, hand.session)
    await reap(engine, None, await engine.clock.now())
    execution = await get_execution(engine, job.job_id)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.LOST)
    assert execution.lateness_ms is not None
    letter = await engine.database.row("select id, reason from hourbell.dead_letters")
    assert tuple(letter.values()) == (job.job_id, "lost")


# Deadlines.


async def test_what_has_not_started_in_time_is_skipped_wherever_it_waits(still: Engine) -> None:
    ready = await create(still, one_time(start_deadline_seconds=5))
    await admit_all(still)
    held = await create(still, one_time(start_deadline_seconds=5))
    await pause_job(still, held.job_id, Write())
    due = await create(still, one_time(start_deadline_seconds=5))
    in_time = await create(still, one_time(start_deadline_seconds=60))
    await passes(still, "10:00:36")
    for job in (ready, held, due):
        assert await history(still, job.job_id) == [
            Fate(at("10:00:30"), "SKIPPED", "start_deadline")
        ]
    assert await history(still, in_time.job_id) == [Fate(at("10:00:30"), "SUCCEEDED")]


async def test_what_started_in_time_is_not_skipped_however_long_it_runs(still: Engine) -> None:
    job = await create(still, one_time(start_deadline_seconds=5))
    hand, claimed = await claim_one(still)
    await passes(still, "10:00:50")
    await hand.fail([claimed], 60)
    await passes(still, "10:01:00")
    assert [fate.status for fate in await history(still, job.job_id)] == ["live"]
    await passes(still, "10:02:00")
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"]


async def test_what_has_not_finished_in_time_is_dead_wherever_it_is(still: Engine) -> None:
    running = await create(still, one_time(deadline_seconds=10))
    hand, claimed = await claim_one(still)
    ready = await create(still, one_time(deadline_seconds=10))
    await admit_all(still)
    due = await create(still, one_time(deadline_seconds=10))
    held = await create(still, one_time(deadline_seconds=10))
    await pause_job(still, held.job_id, Write())
    await passes(still, "10:00:41")
    for job in (running, ready, due, held):
        assert await history(still, job.job_id) == [Fate(at("10:00:30"), "DEAD", "deadline")]
    # The worker is told, and its outcome comes too late.
    assert list((await hand.beat([claimed])).lost) == [running.job_id]
    assert await hand.succeed([claimed]) == [running.job_id]
    execution = await get_execution(still, running.job_id)
    assert execution.attempt == 1
    assert execution.lateness_ms == 0
    assert await still.database.value("select count(*) from hourbell.dead_letters") == 4


async def test_a_handler_is_stopped_at_the_total_deadline(impatient: Engine) -> None:
    async def endless(payload: object, claimed: Claimed) -> None:
        await asyncio.Event().wait()

    job = await create(impatient, one_time("endless", deadline_seconds=1))
    async with working(impatient, {"endless": endless}):

        async def has_ended() -> bool:
            return bool(await fates(impatient))

        await eventually(has_ended)
    execution = await get_execution(impatient, job.job_id)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.DEADLINE)


async def test_an_attempt_that_the_total_deadline_ends_is_among_the_attempts(
    still: Engine,
) -> None:
    job = await create(still, one_time(deadline_seconds=40))
    hand = await Hand.opened(still)
    await admit_all(still)
    await hand.fail(await hand.claim(), 5)
    started = await travel(still, at("10:00:40"))
    await admit_all(still)
    [claimed] = await hand.claim()
    ended = await travel(still, at("10:01:11"))
    await expire(still, None, ended)
    execution = await get_execution(still, job.job_id)
    assert execution.attempt == len(execution.attempts) == 2
    last = execution.attempts[-1]
    assert (last.attempt, last.status, last.kind) == (2, ExecutionStatus.FAILED, "deadline")
    assert (last.started_at, last.finished_at) == (started, ended)
    assert (await get_dead_letter(still, job.job_id)).attempts == execution.attempts
    recorded = await still.database.value("select history -> 1 from hourbell.ledger")
    stored = msgspec.json.decode(recorded)
    assert (stored["fence"], stored["taken_from"]) == (claimed.fence, hand.session.id)
    # The worker did not settle it: an outcome that it brings later is refused, also as a repetition.
    late = [Settlement(job.job_id, claimed.fence, RETRY, 0, 1, 5, "Bad", "bad")]
    assert list(await hand.dispatch.already_settled(hand.session, late)) == []


@pytest.mark.parametrize(
    ("field", "reason"),
    [("start_deadline_seconds", Reason.START_DEADLINE), ("deadline_seconds", Reason.DEADLINE)],
)
async def test_a_deadline_counts_also_for_what_is_ready_and_not_claimed(
    still: Engine, field: str, reason: Reason
) -> None:
    job = await create(still, one_time(**{field: 5}))
    await fill(still, 100)
    await admit_all(still)
    assert await place_of(still, job.job_id) == ["ready"]
    await travel(still, START + timedelta(minutes=1))
    await expire(still, None, await still.clock.now())
    await travel(still, START + timedelta(minutes=1) + timedelta(seconds=10))
    await expire(still, None, await still.clock.now())
    assert (await get_execution(still, job.job_id)).reason is reason
    hand = await Hand.opened(still)
    assert len(await hand.claim()) == 100


async def test_a_deadline_after_the_end_of_the_calendar_is_refused(still: Engine) -> None:
    schedule = {"at": "9999-12-30T23:00:00Z"}
    with pytest.raises(InvalidInput, match="9999"):
        await create(still, one_time(deadline_seconds=2 * 86_400) | {"schedule": schedule})


# Windows and numbers of runs.


async def test_a_job_with_three_runs_has_three_and_has_ended(still: Engine) -> None:
    job = await create(still, recurring("*/10 * * * * *", window={"max_runs": 3}))
    for moment in ("10:00:41", "10:00:51", "10:01:01", "10:01:11", "10:02:01"):
        await passes(still, moment)
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * 3
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED
    assert await still.database.value("select count(*) from hourbell.live") == 0
    assert await still.database.value("select count(*) from hourbell.memberships") == 0


async def test_runs_that_are_due_together_do_not_exceed_the_number_of_runs(still: Engine) -> None:
    job = await create(still, recurring("*/10 * * * * *", window={"max_runs": 2}))
    await plan_all(still)
    await passes(still, "10:01:15")  # four are due
    assert [fate[1:3] for fate in await history(still, job.job_id)] == [
        ("SUCCEEDED", None),
        ("SUCCEEDED", None),
        ("SKIPPED", "max_runs"),
        ("SKIPPED", "max_runs"),
    ]
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED


async def test_retries_and_runs_given_back_do_not_count_as_runs(still: Engine) -> None:
    job = await create(still, recurring(window={"max_runs": 2}))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    hand, claimed = await claim_one(still)
    await hand.dispatch.close(hand.session)  # given back
    await travel(still, at("10:01:03"))
    hand, claimed = await claim_one(still)
    await hand.fail([claimed], 0)
    await travel(still, at("10:01:05"))
    hand, claimed = await claim_one(still)
    await expire_session(still, hand.session)
    await reap(still, None, await still.clock.now())
    await minutes_pass(still, 2, 4)
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * 2


async def test_a_job_whose_limit_of_runs_is_lowered_below_what_it_has_had_completes(
    still: Engine,
) -> None:
    job = await create(still, recurring(window={"max_runs": 5}))
    hand = await Hand.opened(still)
    for minutes in (1, 2, 3):
        await one_round(still, at(f"10:0{minutes}"))
        await hand.run_all()
    await update_job(still, job.job_id, {"schedule": {"max_runs": 2}}, Write())
    await one_round(still, at("10:04"))
    assert await hand.run_all() == []
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED


async def test_an_update_does_not_revive_a_job_that_has_had_its_last_run_meanwhile(
    still: Engine,
) -> None:
    job = await create(still, recurring(window={"max_runs": 1}))
    hand = await Hand.opened(still)
    await one_round(still, at("10:01"))
    connection = await connect(still.database.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(
        "update hourbell.jobs set status = 2 where id = $1", job.job_id
    )  # as the claim of its last run does
    change = asyncio.create_task(update_job(still, job.job_id, {"name": "other"}, Write()))
    await somebody_waits(still, "change_job")
    await transaction.commit()
    await connection.close()
    with pytest.raises(Conflict):
        await change
    await hand.run_all()
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED


async def test_a_job_ends_with_its_window(still: Engine) -> None:
    job = await create(still, recurring(window={"ends_at": at("10:03").isoformat()}))
    await minutes_pass(still, 1, 5)
    assert await history(still, job.job_id) == [
        Fate(at(f"10:0{minute}"), "SUCCEEDED") for minute in (1, 2, 3)
    ]
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED
    assert await still.database.value("select count(*) from hourbell.memberships") == 0


async def test_a_job_begins_with_its_window(still: Engine) -> None:
    job = await create(still, recurring(window={"starts_at": at("10:03").isoformat()}))
    await minutes_pass(still, 1, 4)
    assert await history(still, job.job_id) == [
        Fate(at(f"10:0{minute}"), "SUCCEEDED") for minute in (3, 4)
    ]


# Changes.


async def test_what_is_queued_when_its_job_is_rescheduled_is_superseded(still: Engine) -> None:
    job = await create(still, recurring())
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)
    await update_job(still, job.job_id, {"schedule": {"cron": "30 * * * * *"}}, Write())
    await passes(still, "10:01:31")
    assert await history(still, job.job_id) == [
        Fate(at("10:01"), "SUPERSEDED", "updated"),
        Fate(at("10:01:30"), "SUCCEEDED"),
    ]


async def test_what_runs_when_its_job_is_rescheduled_is_let_finish(still: Engine) -> None:
    job = await create(still, recurring())
    await plan_all(still)
    await travel(still, at("10:01:01"))
    hand, claimed = await claim_one(still)
    await update_job(still, job.job_id, {"schedule": {"cron": "30 * * * * *"}}, Write())
    assert not await hand.succeed([claimed])
    assert await history(still, job.job_id) == [Fate(at("10:01"), "SUCCEEDED")]


async def test_an_update_never_makes_a_run_for_the_past_and_never_loses_the_next(
    still: Engine,
) -> None:
    job = await create(still, recurring("30 * * * * *"))
    await passes(still, "10:01:10")
    await update_job(still, job.job_id, {"schedule": {"cron": "5 * * * * *"}}, Write())  # passed
    await update_job(still, job.job_id, {"schedule": {"cron": "15 * * * * *"}}, Write())
    await passes(still, "10:01:16")
    assert await history(still, job.job_id) == [Fate(at("10:01:15"), "SUCCEEDED")]


async def cancelled_ahead(still: Engine) -> tuple[Job, datetime]:
    """A job of every ten seconds, planned ahead, whose run of 0:30 a user has cancelled."""
    job = await create(still, recurring("*/10 * * * * *"))
    await plan_all(still)
    ahead = START + timedelta(seconds=30)
    number = await still.database.value("select id from hourbell.live where occurrence = $1", ahead)
    await cancel_execution(still, number, Write())
    return job, ahead


async def test_what_was_cancelled_ahead_does_not_come_back_with_a_fire_of_the_new_schedule(
    still: Engine,
) -> None:
    job, ahead = await cancelled_ahead(still)
    same_times = {"schedule": {"cron": "0,10,20,30,40,50 * * * * *"}}
    await update_job(still, job.job_id, same_times, Write())
    await plan_all(still)
    await travel(still, START + timedelta(minutes=1))
    await (await Hand.opened(still)).run_all()
    fates = [(fate.occurrence, fate.status) for fate in await history(still, job.job_id)]
    tens = [START + timedelta(seconds=seconds) for seconds in range(10, 70, 10)]
    assert fates == [(ten, "CANCELLED" if ten == ahead else "SUCCEEDED") for ten in tens]


async def test_what_the_job_has_had_is_not_among_what_it_missed(still: Engine) -> None:
    job, ahead = await cancelled_ahead(still)
    await update_job(
        still, job.job_id, {"schedule": {"cron": "0,10,20,30,40,50 * * * * *"}}, Write()
    )
    await travel(still, START + timedelta(minutes=5, seconds=5))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    missed = await still.database.fetch(
        "select scheduled_for, missed from hourbell.ledger where job = $1 and reason = 'misfire' order by 1",
        job.job_id,
    )
    # It came as far as 0:30 by its old schedule, and the gate saw none of that. From 4:10 on they are late by less than
    # the grace; so 0:40 to 4:00 are missed.
    assert [tuple(row) for row in missed] == [
        (START + timedelta(seconds=10), 1),
        (START + timedelta(seconds=20), 1),
        (ahead + timedelta(seconds=10), 21),
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda engine, job: pause_job(engine, job, Write()), Reason.PAUSED),
        (lambda engine, job: delete_job(engine, job, Write()), Reason.DELETED),
        (
            lambda engine, job: update_job(
                engine, job, {"schedule": {"cron": "0 0 1 1 *"}}, Write()
            ),
            Reason.UPDATED,
        ),
    ],
    ids=["pause", "delete", "reschedule"],
)
async def test_what_waits_for_its_next_attempt_ends_with_the_change_and_says_why(
    still: Engine, change: object, reason: Reason
) -> None:
    job = await create(still, recurring())
    hand = await Hand.opened(still)
    await one_round(still, at("10:01"))
    [failed] = await hand.claim()
    await hand.fail([failed], 3600)
    await change(still, job.job_id)  # type: ignore[operator]
    run = await get_execution(still, failed.execution_id)
    assert (run.status, run.reason) == (ExecutionStatus.SUPERSEDED, reason)


async def test_a_resumed_job_makes_up_nothing(still: Engine) -> None:
    job = await create(still, recurring(misfire_policy="all"))
    await minutes_pass(still, 1, 1)
    await pause_job(still, job.job_id, Write())
    await minutes_pass(still, 2, 4)
    await travel(still, at("10:04:30"))
    await resume_job(still, job.job_id, Write())
    await minutes_pass(still, 5, 5)
    assert [fate.occurrence for fate in await history(still, job.job_id)] == [
        at("10:01"),
        at("10:05"),
    ]


# Misfires: nobody plans from 10:01 to 10:10:30.


async def after_an_outage(engine: Engine, **fields: Any) -> Job:
    job = await create(engine, recurring(**fields))
    await travel(engine, at("10:10:30"))
    await plan_all(engine)
    await (await Hand.opened(engine)).run_all()
    await check_sound(engine)
    return job


async def test_missed_runs_are_skipped_if_the_job_says_so(still: Engine) -> None:
    job = await after_an_outage(still, misfire_policy="skip")
    # What is late by less than the grace is not missed.
    assert await history(still, job.job_id) == [
        Fate(at("10:01"), "SKIPPED", "misfire", 9),
        Fate(at("10:10"), "SUCCEEDED"),
    ]


async def test_of_missed_runs_the_latest_is_made_up(still: Engine) -> None:
    job = await after_an_outage(still, cron="*/2 * * * *")
    await passes(still, "10:12:01")
    assert await history(still, job.job_id) == [
        Fate(at("10:02"), "SKIPPED", "misfire", 4),
        Fate(at("10:10"), "SUCCEEDED"),
        Fate(at("10:12"), "SUCCEEDED"),
    ]


async def test_all_missed_runs_are_made_up_within_window_and_limit(still: Engine) -> None:
    everything = await create(still, recurring(misfire_policy="all"))
    windowed = await create(still, recurring(misfire_policy="all", catch_up_window_seconds=300))
    limited = await create(still, recurring(misfire_policy="all", catch_up_limit=3))
    await travel(still, at("10:10:30"))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    assert [fate[1:] for fate in await history(still, everything.job_id)] == [
        ("SUCCEEDED", None, None)
    ] * 10
    assert [fate[1:] for fate in await history(still, windowed.job_id)] == [
        ("SKIPPED", "misfire", 5),
        *[("SUCCEEDED", None, None)] * 5,
    ]
    assert [fate[1:] for fate in await history(still, limited.job_id)] == [
        ("SKIPPED", "misfire", 7),
        *[("SUCCEEDED", None, None)] * 3,
    ]


async def test_a_stretch_of_missed_runs_that_is_longer_than_one_fire_is_accounted_for(
    still: Engine,
) -> None:
    job = await create(still, recurring("* * * * * *"))
    late = await travel(still, at("10:00:30") + timedelta(hours=4))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    found = await history(still, job.job_id)
    assert sum(fate.missed or 1 for fate in found) == 4 * 3600
    assert [fate.status for fate in found].count("SUCCEEDED") == 61  # late by 0 to 60 s
    assert found[-1] == Fate(late, "SUCCEEDED")
    assert await place_of(still, job.job_id) == []


async def test_the_latest_of_a_long_stretch_that_ended_early_in_it_is_run(still: Engine) -> None:
    schedule = {"every_seconds": 1, "ends_at": at("11:00").isoformat()}
    await create(still, every(1, misfire_policy="latest") | {"schedule": schedule})
    hand = await Hand.opened(still)
    await one_round(still, at("15:00"))
    ran = [claimed.scheduled_for for claimed in await hand.run_all()]
    assert ran[-1] == at("11:00")
