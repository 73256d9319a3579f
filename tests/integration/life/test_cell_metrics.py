"""What the engine counts, and the gauges of the cell that the leader reads from the database."""

import asyncio
import hashlib
from datetime import timedelta

import pytest

from exposition import Metric, parsed
from hourbell.dispatch import DEAD, SUCCEEDED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import count_minutes
from hourbell.engine.life.create import create_batch
from hourbell.engine.life.plan import plan
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.settlement import ACCEPTED
from hourbell.engine.operations.change import delete_job, pause_job, update_job
from hourbell.engine.operations.completions import complete, end_overdue
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views import cell_metrics
from hourbell.engine.views.cell_metrics import CellMetrics
from hourbell.model.executions import Succeeded
from hourbell.security.sealing import KeyRing
from hourbell.store.clock import DatabaseClock
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Hand,
    admit_all,
    create,
    create_many,
    every,
    expire_session,
    fates,
    in_transaction,
    one_round,
    one_time,
    plan_all,
    recurring,
    travel,
)


@pytest.fixture(autouse=True)
def _reads_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_metrics, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(cell_metrics, "MAX_READ_SHARE", 1e9)
    for name in ("ANSWER_SECONDS", "READ_SECONDS"):
        monkeypatch.setattr(cell_metrics, name, PATIENCE_SECONDS)


def gauges_of(engine: Engine) -> CellMetrics:
    return CellMetrics(engine, DatabaseClock(engine.database))


async def shown(engine: Engine, gauges: CellMetrics, leads: bool = True) -> dict[str, Metric]:
    await gauges.refresh(leads)
    return parsed(engine.metrics.render().decode())


# Counters.


async def test_whatever_ends_executions_is_counted_as_the_ledger_has_it(still: Engine) -> None:
    hand = await Hand.opened(still)
    await create(still, one_time())
    await create(still, one_time(start_deadline_seconds=5, schedule={"delay_seconds": 1}))
    await create(still, one_time(deadline_seconds=30, schedule={"delay_seconds": 20}))
    await create(still, one_time(delivery="at_most_once"))
    await create(still, recurring(overlap_policy="forbid"))
    await create_many(still, [every(300, misfire_policy="skip") for _ in range(3)])
    await create(still, recurring("31 10 * * *", misfire_policy="skip"))
    await one_round(still, START)
    held = await hand.claim_all()
    assert len(held) == 2  # one succeeds, the other is lost with its session
    [lost] = [one for one in held if "at_most_once" in str(one.spec)]
    assert not await hand.succeed([one for one in held if one is not lost])
    await one_round(still, START + timedelta(seconds=30))  # 10:01, the first run of the minute
    [first] = [one for one in await hand.claim_all() if one.job_id != one.execution_id]
    await one_round(still, START + timedelta(seconds=90))  # still runs: the second is skipped
    await expire(still, None, START + timedelta(seconds=90))
    await expire_session(still, hand.session)
    await reap(still, None, START + timedelta(seconds=91))
    await travel(still, START + timedelta(hours=1))
    await plan_all(still)
    await admit_all(still)
    ended = await fates(still)
    assert {"SUCCEEDED", "SKIPPED(misfire)", "SKIPPED(overlap)", "SKIPPED(start_deadline)"} <= set(
        ended
    )
    assert {"DEAD(lost)", "DEAD(deadline)"} <= set(ended)
    assert counted(still) == ended
    assert first.fence > 0


def counted(engine: Engine) -> dict[str, float]:
    """The outcomes that were counted, in the form of `fates`."""
    outcomes = parsed(engine.metrics.render().decode())["hourbell_outcomes_total"]
    return {
        status if reason == "none" else f"{status}({reason})": value
        for (_, own), value in outcomes.samples.items()
        for status, reason in [(dict(own)["status"], dict(own)["reason"])]
        if value
    }


async def test_what_users_end_is_counted_as_the_ledger_has_it(still: Engine) -> None:
    hand = await Hand.opened(still)
    later = {"delay_seconds": 60}
    deleted, cancelled = await create_many(still, [one_time(schedule=later) for _ in range(2)])
    await delete_job(still, deleted.job_id, Write())
    for _ in range(2):  # a repetition is answered, and not counted
        await cancel_execution(still, cancelled.job_id, Write(key="cancel"))
    for _ in range(2):  # the second replaces the first
        await create(still, one_time(schedule=later, unique_key="k", on_duplicate="replace"))
    batch = [one_time(schedule=later, unique_key=key, on_duplicate="replace") for key in "abk"]
    for _ in range(2):
        await create_batch(still, batch, lambda document: document, Write())
    assert counted(still) == await fates(still) == {"CANCELLED(cancelled)": 2 + 1 + 1 + 3}

    # What is asked to stop ends with its next report, or its next claim.
    await create_many(still, [one_time() for _ in range(3)])
    await create(still, one_time(start_deadline_seconds=5))
    await admit_all(still)
    stopped, retried = await hand.claim(2)
    await cancel_execution(still, stopped.execution_id, Write())
    assert not await hand.fail([stopped, retried], delay_seconds=3600)
    ready = await still.database.value(
        "select e.id from hourbell.ready cross join unnest(ids) as e(id)"
        " where (select start_by from hourbell.executions as x where x.id = e.id) is null"
    )
    await cancel_execution(still, ready, Write())
    await travel(still, START + timedelta(seconds=6))
    assert await hand.claim() == []
    seen = parsed(still.metrics.render().decode())
    assert seen["hourbell_retries_total"].values("kind") == {"Bad": 1}
    assert counted(still) == await fates(still)
    assert (await fates(still))["SKIPPED(start_deadline)"] == 1

    # Jobs whose executions wait at the gate.
    jobs = await create_many(still, [recurring() for _ in range(3)])
    await plan_all(still)
    await travel(still, START + timedelta(seconds=40))
    await pause_job(still, jobs[0].job_id, Write())
    await delete_job(still, jobs[1].job_id, Write())
    await admit_all(still)
    await update_job(still, jobs[2].job_id, {"schedule": {"cron": "0 4 * * *"}}, Write())
    await hand.claim_all()
    ended = await fates(still)
    assert {f"SUPERSEDED({why})" for why in ("paused", "deleted", "updated")} <= set(ended)
    assert counted(still) == ended


async def test_an_outcome_that_is_refused_counts_as_a_duplicate_and_not_as_an_outcome(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await create_many(still, [one_time() for _ in range(3)])
    await admit_all(still)
    one, *rest = await hand.claim_all()
    assert not await hand.succeed([one])
    dead = Settlement(rest[0].execution_id, rest[0].fence, DEAD, reason="non_retryable")
    again = Settlement(one.execution_id, one.fence, SUCCEEDED)
    stale = Settlement(rest[1].execution_id, rest[1].fence - 1, SUCCEEDED)
    refused = await hand.dispatch.settle(hand.session, [again, dead, stale])
    assert sorted(refused) == sorted([one.execution_id, rest[1].execution_id])
    seen = parsed(still.metrics.render().decode())
    assert seen["hourbell_duplicates_total"].value(layer="fence") == 2
    outcomes = seen["hourbell_outcomes_total"]
    assert outcomes.value(status="SUCCEEDED", reason="none") == 1
    assert outcomes.value(status="DEAD", reason="non_retryable") == 1


async def test_leases_of_a_worker_that_died_are_counted(still: Engine) -> None:
    hand = await Hand.opened(still)
    await create_many(still, [one_time() for _ in range(3)])
    await admit_all(still)
    await hand.claim_all()
    await expire_session(still, hand.session)
    await reap(still, None, START + timedelta(seconds=1))
    seen = parsed(still.metrics.render().decode())
    assert seen["hourbell_sessions_expired_total"].value() == 1
    assert seen["hourbell_leases_expired_total"].value() == 3
    assert seen["hourbell_retries_total"].values("kind") == {"lost": 3}


# Gauges of the cell.


async def test_only_the_leader_shows_the_cell(still: Engine) -> None:
    gauges = gauges_of(still)
    await create(still, one_time(schedule={"delay_seconds": 60}))
    leader = await shown(still, gauges)
    assert leader["hourbell_queue_executions"].total(state="scheduled") == 1
    standby = await shown(still, gauges, leads=False)
    assert standby["hourbell_database_up"].value() == 1
    assert "hourbell_queue_executions" not in standby
    assert "hourbell_leader_epoch" not in standby
    again = await shown(still, gauges)
    assert again.keys() == leader.keys()


async def test_a_database_that_is_away_leaves_what_the_process_counts(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_metrics, "MAX_READ_SHARE", 0.001)  # an outage is no read
    gauges = gauges_of(still)
    await create(still, one_time())
    async with in_transaction(still) as own, own.database.connection() as connection:
        await connection.execute("lock table hourbell.virtual_clock in access exclusive mode")
        with monkeypatch.context() as patch:
            patch.setattr(cell_metrics, "ANSWER_SECONDS", 0.2)
            away = await shown(still, gauges)
    assert away["hourbell_database_up"].value() == 0
    assert "hourbell_queue_executions" not in away
    assert "hourbell_dead_letters" not in away
    assert away["hourbell_batch_size"].value("_sum", verb="create") == 1
    back = await shown(still, gauges)
    assert back["hourbell_database_up"].value() == 1
    assert back["hourbell_queue_executions"].total() == 1


async def test_a_cell_that_cannot_be_read_in_time_is_left_out(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauges = gauges_of(still)
    assert "hourbell_dead_letters" in await shown(still, gauges)
    async with in_transaction(still) as own, own.database.connection() as connection:
        await connection.execute("lock table hourbell.due in access exclusive mode")
        with monkeypatch.context() as patch:
            patch.setattr(cell_metrics, "READ_SECONDS", 0.2)
            slow = await shown(still, gauges)
    assert slow["hourbell_database_up"].value() == 1
    assert "hourbell_dead_letters" not in slow
    assert "hourbell_dead_letters" in await shown(still, gauges)


async def test_many_scrapes_are_one_read(still: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    read_cell = cell_metrics.read_cell

    async def counted(engine: Engine) -> cell_metrics.CellState:
        nonlocal reads
        reads += 1
        return await read_cell(engine)

    monkeypatch.setattr(cell_metrics, "read_cell", counted)
    monkeypatch.setattr(cell_metrics, "FRESH_SECONDS", 60.0)
    gauges = gauges_of(still)
    await asyncio.gather(*(gauges.refresh(True) for _ in range(50)))
    await gauges.refresh(True)
    assert reads == 1


async def test_a_read_that_takes_long_is_kept_for_longer(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_metrics, "MAX_READ_SHARE", 1e-6)  # any read is too long
    gauges = gauges_of(still)
    await gauges.refresh(True)
    await create(still, one_time())
    assert "hourbell_queue_executions" not in await shown(still, gauges)


async def test_counts_stop_at_their_bounds(still: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_PER_TIER", "MAX_WAITING", "MAX_LEASED"):
        monkeypatch.setattr(cell_metrics, name, 2)
    gauges = gauges_of(still)
    await create_many(still, [recurring("1 10 * * *") for _ in range(5)])
    await plan_all(still)
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].total(state="scheduled") == 2
    hand = await Hand.opened(still)
    await create_many(still, [one_time() for _ in range(5)])
    await admit_all(still)
    await hand.claim_all()
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].total(state="running") == 2


async def test_queues_without_a_place_are_shown_together(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_metrics, "MAX_NAMED_QUEUES", 2)
    gauges = gauges_of(still)
    for name in ("a", "b", "c", "d"):
        await create(still, one_time(queue=name))
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].values("queue") == {"a": 1, "b": 1, "other": 2}
    assert seen["hourbell_queue_workers"].values("queue") == {"a": 0, "b": 0}


async def test_a_queue_that_was_emptied_is_shown_as_0(still: Engine) -> None:
    gauges = gauges_of(still)
    hand = await Hand.opened(still)
    await create(still, one_time())
    await admit_all(still)
    ready = {"queue": "default", "priority": "MEDIUM", "state": "ready"}
    assert (await shown(still, gauges))["hourbell_queue_executions"].value(**ready) == 1
    await hand.run_all()
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].value(**ready) == 0
    assert seen["hourbell_queue_oldest_age_seconds"].value(queue="default") == 0
    assert seen["hourbell_queue_backlog_seconds"].value(queue="default") == 0


async def test_the_backlog_is_counted_in_seconds_of_the_workers(still: Engine) -> None:
    gauges = gauges_of(still)
    hand = await Hand.opened(still)  # with 1,000 slots
    await create(still, one_time())
    await admit_all(still)
    [one] = await hand.claim_all()
    await travel(still, START + timedelta(seconds=10))
    ran = Settlement(one.execution_id, one.fence, SUCCEEDED, 0, 10_000)
    assert not await hand.dispatch.settle(hand.session, [ran])
    await count_minutes(still, None, await still.clock.now())
    await create_many(still, [one_time() for _ in range(30)])
    await admit_all(still)
    await travel(still, START + timedelta(seconds=25))
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_backlog_seconds"].value(queue="default") == pytest.approx(0.3)
    assert seen["hourbell_queue_oldest_age_seconds"].value(queue="default") == pytest.approx(15)
    await hand.dispatch.close(hand.session)
    alone = await shown(still, gauges)  # nobody serves it: what one slot would need
    assert alone["hourbell_queue_backlog_seconds"].value(queue="default") == pytest.approx(300)
    await gauges_of(still).refresh(True)  # another leader knows as much, from the database
    another = parsed(still.metrics.render().decode())["hourbell_queue_backlog_seconds"]
    assert another.value(queue="default") == pytest.approx(300)


async def test_a_planner_that_does_not_keep_up_and_jobs_that_nobody_plans_are_shown(
    still: Engine,
) -> None:
    gauges = gauges_of(still)
    await create_many(still, [recurring("0 11 * * *"), recurring("5 11 * * *")])
    await plan_all(still)
    fine = await shown(still, gauges)
    assert fine["hourbell_planner_lag_seconds"].value() == 0
    assert fine["hourbell_jobs_without_next_run"].value() == 0
    await travel(still, START.replace(hour=10, minute=59, second=40))
    late = await shown(still, gauges)
    assert late["hourbell_planner_lag_seconds"].value() == pytest.approx(40)  # of its minute
    await plan(still, None, await still.clock.now())
    assert (await shown(still, gauges))["hourbell_planner_lag_seconds"].value() == 0
    await still.database.value(
        "update hourbell.timetables set broken = 'unknown_timezone', look_at = $1 where rule like '5 %'",
        START,
    )
    broken = await shown(still, gauges)
    assert broken["hourbell_timetables_broken"].value() == 1
    assert broken["hourbell_jobs_without_next_run"].value() == 1


async def test_workers_that_nobody_reaps_and_claims_that_are_old_are_shown(still: Engine) -> None:
    gauges = gauges_of(still)
    hand = await Hand.opened(still)
    await create(still, one_time())
    await admit_all(still)
    await hand.claim_all()
    await travel(still, START + timedelta(seconds=30))
    seen = await shown(still, gauges)
    assert seen["hourbell_workers"].value() == 1
    assert seen["hourbell_running_oldest_age_seconds"].value() == pytest.approx(30)
    assert seen["hourbell_sessions_unreaped"].value() == 0
    await expire_session(still, hand.session)
    await travel(still, START + timedelta(seconds=100))
    seen = await shown(still, gauges)
    assert seen["hourbell_sessions_unreaped"].value() == 1
    assert seen["hourbell_workers"].value() == 0


async def test_what_targets_have_accepted_is_shown_and_counted_when_it_ends(still: Engine) -> None:
    gauges = gauges_of(still)
    hand = await Hand.opened(still)
    await create_many(still, [one_time(retry_policy={"max_retries": 0}) for _ in range(4)])
    await admit_all(still)
    first, second, third, fourth = await hand.claim_all()
    digest = hashlib.sha256(b"token").hexdigest()
    accepted = [
        Settlement(one.execution_id, one.fence, ACCEPTED, 0, 1, 60.0, result=f'"{digest}"')
        for one in (first, second, third, fourth)
    ]
    assert not await hand.dispatch.settle(hand.session, accepted)
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].total(state="awaiting") == 4
    assert seen["hourbell_returned_total"].value(reason="accepted") == 4
    ring = KeyRing.parse("")
    for _ in range(2):  # a repetition is answered, and not counted
        await complete(still, ring, first.execution_id, "token", Succeeded())
    await cancel_execution(still, third.execution_id, Write())
    await still.database.value(
        "insert into hourbell.cancellations values ($1, $2) returning id",
        fourth.execution_id,
        START,
    )
    await travel(still, START + timedelta(seconds=61))
    await end_overdue(still, None, await still.clock.now())
    seen = await shown(still, gauges)
    assert seen["hourbell_queue_executions"].total() == 0
    outcomes = seen["hourbell_outcomes_total"]
    assert outcomes.value(status="SUCCEEDED", reason="none") == 1
    assert outcomes.value(status="DEAD", reason="retries_exhausted") == 1
    assert counted(still) == await fates(still)
