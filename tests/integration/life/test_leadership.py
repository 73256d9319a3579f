"""Leadership is for economy: without it nothing is doubled, and losing it is not felt."""

import asyncio
import random
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from hourbell.documents.schedules import timetable_of
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Leadership, Term
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.change import pause_job
from hourbell.engine.operations.idempotency import Write
from hourbell.model.errors import NotLeader
from hourbell.model.jobs import Job
from hourbell.timing.rules import between, compile_rule
from integration.life.children import child
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    TIMES,
    Fate,
    Hand,
    admit_all,
    check_sound,
    create,
    create_many,
    eventually,
    every,
    expire_session,
    fill,
    history,
    in_transaction,
    one_time,
    open_engine,
    plan_all,
    recurring,
    somebody_waits,
    travel,
    working,
)


def occurrences(job: Job, through: datetime) -> list[datetime]:
    """What the job's rule says, up to a moment."""
    timetable = timetable_of(job.schedule, job.job_id)  # type: ignore[arg-type]
    rule = compile_rule(timetable.rule, timetable.zone)
    return between(rule, job.created_at, through, 10_000)


async def housekeeping(engine: Engine, seed: int) -> None:
    """All verbs of a leader, by one that does not claim to lead, in any order."""
    now = await engine.clock.now()
    verbs = [
        lambda: plan_all(engine, now),
        lambda: complete_joins(engine, now),
        lambda: end_memberships(engine, None, now),
        lambda: admit_all(engine, now),
        lambda: expire(engine, None, now),
        lambda: reap(engine, None, now),
        lambda: run_housekeeping(engine, None, now),
    ]
    random.Random(seed).shuffle(verbs)
    for verb in verbs:
        await verb()


async def test_three_schedulers_without_leadership_make_one_execution_per_occurrence(
    database: str, still: Engine
) -> None:
    rules = [f"*/{2 + n % 9} * * * * *" for n in range(20)]
    jobs = await create_many(still, [recurring(rule) for rule in rules])
    async with AsyncExitStack() as stack:
        three = [await stack.enter_async_context(open_engine(database, still.times)) for _ in "abc"]
        moment = START
        for tick in range(40):
            moment = await travel(still, moment + timedelta(seconds=3))
            workers = [await Hand.opened(engine) for engine in three]
            await asyncio.gather(
                *(housekeeping(engine, 3 * tick + n) for n, engine in enumerate(three)),
                *(worker.run_all() for worker in workers),
            )
            for worker in workers:
                await worker.dispatch.close(worker.session)
    await (await Hand.opened(still)).run_all()
    await check_sound(still)
    for job in jobs:
        expected = [Fate(at, "SUCCEEDED") for at in occurrences(job, moment)]
        assert await history(still, job.job_id) == expected


async def test_only_one_campaigner_wins_and_every_term_has_a_higher_epoch(still: Engine) -> None:
    candidates = [Leadership(still) for _ in range(6)]
    epochs = []
    for number in range(4):
        await travel(still, START + 2 * number * candidates[0].lease)  # the last lease is over
        terms = await asyncio.gather(*(candidate.step() for candidate in candidates))
        winners = [term for term in terms if term is not None]
        assert len(winners) == 1
        epochs += [term.epoch for term in winners]
        (leader,) = [one for one in candidates if one.term is not None]
        candidates.remove(leader)  # it dies
    assert epochs == [1, 2, 3, 4]


async def test_one_who_resigns_is_followed_at_once(still: Engine) -> None:
    first, second = Leadership(still), Leadership(still)
    assert await first.step() is not None
    assert await second.step() is None
    await first.resign()
    assert (await second.step()) == Term(second.node, 2)


async def test_a_leader_trusts_no_silence_across_a_step_of_the_clock(engine: Engine) -> None:
    engine.times = replace(TIMES, lease_seconds=0.3, leader_lease_seconds=30)
    leadership = Leadership(engine)

    async def trusts_silence() -> bool:
        await leadership.step()
        return leadership.may_reap(await engine.clock.now())

    await eventually(trusts_silence)
    await leadership.step()
    now = await engine.clock.now()
    assert leadership.may_reap(now)
    assert not leadership.may_reap(now + timedelta(seconds=10))
    assert not leadership.may_reap(now - timedelta(seconds=10))


async def test_a_new_leader_trusts_no_silence_before_a_whole_lease(engine: Engine) -> None:
    engine.times = replace(TIMES, lease_seconds=60, leader_lease_seconds=60)
    leadership = Leadership(engine)
    for _ in range(3):  # the first one has nothing to compare the clocks with
        await leadership.step()
        assert not leadership.may_reap(await engine.clock.now())


async def test_a_leader_that_dies_after_the_clock_was_set_back_is_replaced(
    still: Engine,
) -> None:
    assert await Leadership(still).step() is not None
    await travel(still, START - timedelta(hours=1))
    assert await Leadership(still).step() is not None


async def test_a_renewal_does_not_wait_for_an_open_verb_of_the_same_leader(engine: Engine) -> None:
    engine.times = replace(TIMES, leader_lease_seconds=60)
    leadership = Leadership(engine)
    term = await leadership.step()
    async with in_transaction(engine) as verb:
        await expire(verb, term, await engine.clock.now())
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await leadership.step() == term


@pytest.mark.parametrize("renewals", [0, 1, 3])
async def test_no_epoch_begins_while_a_verb_of_the_last_one_has_not_committed(
    still: Engine, renewals: int
) -> None:
    leadership = Leadership(still)
    term = await leadership.step()
    async with in_transaction(still) as verb:
        await expire(verb, term, START)
        for _ in range(renewals):  # a new version of the row, which the verb has not locked itself
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await leadership.step() == term
        await travel(still, START + 2 * leadership.lease)
        successor = asyncio.create_task(Leadership(still).step())
        await somebody_waits(still, "hourbell.campaign")
    assert (await successor) is not None


async def test_a_verb_waits_for_a_new_epoch_that_begins_and_is_then_refused(engine: Engine) -> None:
    engine.times = replace(TIMES, leader_lease_seconds=60)
    term = await Leadership(engine).step()
    async with in_transaction(engine) as successor:
        await successor.database.value(
            "update hourbell.leadership set expires_at = hourbell.clock() - interval '1 second'"
        )
        assert await Leadership(successor).step() is not None
        late = asyncio.create_task(expire(engine, term, await engine.clock.now()))
        await somebody_waits(engine, "hourbell.expire")
    with pytest.raises(NotLeader):
        await late


async def test_a_standby_that_campaigns_does_not_wait_for_the_verbs_of_the_leader(
    engine: Engine,
) -> None:
    engine.times = replace(TIMES, leader_lease_seconds=60)
    leadership = Leadership(engine)
    term = await leadership.step()
    async with in_transaction(engine) as verb:
        await expire(verb, term, await engine.clock.now())
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await Leadership(engine).step() is None


TABLES = ("executions", "due", "ready", "leased", "fires", "timetables", "outcomes", "sessions")


async def everything_written(engine: Engine) -> dict[str, Sequence[Any]]:
    """Every row with the transaction that wrote it."""
    return {
        table: [
            tuple(row.values())
            for row in await engine.database.fetch(
                f"select ctid, xmin::text, * from hourbell.{table}"  # noqa: S608
            )
        ]
        for table in TABLES
    }


@pytest.mark.parametrize(
    ("point", "statement"),
    [
        ("plan.before_open=stop@2", "open_fires"),
        ("plan.before_chunk=stop@4", "fan_out"),
        ("reap.before_commit=stop", "hourbell.reap"),
        ("expire.before_commit=stop@2", "hourbell.expire"),
    ],
    ids=["opening a fire", "fanning out", "reaping", "expiring"],
)
async def test_a_leader_stopped_for_three_leases_and_continued_commits_nothing(
    database: str, engine: Engine, point: str, statement: str
) -> None:
    await create_many(engine, [every(1) for _ in range(3)])
    await fill(engine, 3)
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await hand.claim()
    await expire_session(engine, hand.session)  # something to reap
    for seconds in (1, 2, 3):  # something to expire
        job = await create(engine, one_time(start_deadline_seconds=seconds))
        await pause_job(engine, job.job_id, Write())

    async with child("scheduler", database, "0.6", "2", failpoints=point) as zombie:
        await zombie.says("leads")
        await zombie.is_stopped()
        stopped_at = time.monotonic()
        # It may have led more than once: its lease is short for a busy machine.
        epoch = await engine.database.value("select epoch from hourbell.leadership")
        engine.times = replace(TIMES, leader_lease_seconds=60)  # of the next one
        next_leader = Leadership(engine)

        async def leads() -> bool:
            return await next_leader.step() is not None

        await eventually(leads)
        assert next_leader.term is not None
        assert next_leader.term.epoch == epoch + 1

        async def three_leases_passed() -> bool:
            return time.monotonic() - stopped_at > 3 * 0.6

        async def nothing_will_fall_due() -> bool:
            return not await engine.database.value(
                "select exists (select from hourbell.due where run_at > hourbell.clock())"
            )

        await eventually(three_leases_passed)
        # The gate is everybody's, so the zombie passes it too: nothing is left for it there.
        await eventually(nothing_will_fall_due)
        await admit_all(engine)
        before = await everything_written(engine)
        zombie.go_on()
        while statement not in await zombie.says("refused"):
            pass
        assert await everything_written(engine) == before
        row = await engine.database.row("select epoch, node from hourbell.leadership")
        assert tuple(row.values()) == (epoch + 1, next_leader.node)


async def test_a_leader_killed_delays_nothing_in_the_horizon_and_is_replaced_within_its_lease(
    database: str, engine: Engine
) -> None:
    lease = 6.0  # what its death delays is late by more than half of it, a stalled machine by less
    engine.times = replace(TIMES, lease_seconds=10)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(working(engine))
        leader = await stack.enter_async_context(child("scheduler", database, str(lease), "20"))
        epoch = int(await leader.says("leads"))
        standby = await stack.enter_async_context(child("scheduler", database, str(lease), "20"))
        job = await create(engine, every(1))

        async def ran(number: int) -> bool:
            fates = [fate.status for fate in await history(engine, job.job_id)]
            return fates.count("SUCCEEDED") >= number

        await eventually(lambda: ran(1))
        killed_at = time.monotonic()
        leader.signal(signal.SIGKILL)
        assert int(await standby.says("leads")) == epoch + 1
        assert time.monotonic() - killed_at < 2 * lease  # one lease, and room for a busy machine
        await eventually(lambda: ran(5))
    late = await engine.database.fetch(
        "select extract(epoch from started_at - scheduled_for) as seconds"
        " from hourbell.ledger where job = $1 and status = 0",
        job.job_id,
    )
    assert len(late) >= 5
    assert max(row["seconds"] for row in late) < lease / 2
    await check_sound(engine)
