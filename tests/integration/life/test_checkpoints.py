"""Checkpoints: what a run has stored is there for the next run, whatever ended the first."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import msgspec
import pytest

from hourbell.dispatch import DEAD, INTERRUPTED, RELEASED, RETRY, SNOOZED, Session, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.dead_letters import purge_dead_letter, retry_execution
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.executions import get_execution
from hourbell.failpoints import configure
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import MAX_CHECKPOINT_BYTES, Claimed, ExecutionStatus
from hourbell.model.jobs import decode_spec
from integration.life.child import COUNTED
from integration.life.children import child
from integration.life.support import (
    START,
    Hand,
    admit_all,
    at,
    blocked,
    check_sound,
    create,
    eventually,
    expire_session,
    one_round,
    one_time,
    recurring,
    scheduling,
    somebody_waits,
    travel,
)


async def keep(hand: Hand, claimed: Claimed, value: object) -> bool:
    return await hand.dispatch.set_checkpoint(
        hand.session, claimed.execution_id, claimed.fence, msgspec.json.encode(value).decode()
    )


def kept(claimed: Claimed) -> object:
    raw = bytes(decode_spec(claimed.spec).checkpoint)
    return msgspec.json.decode(raw) if raw else None


async def claimed_again(hand: Hand) -> Claimed:
    await admit_all(hand.engine)
    [claimed] = await hand.claim()
    return claimed


async def stored(engine: Engine) -> list[int]:
    rows = await engine.database.fetch("select id from hourbell.checkpoints order by id")
    return [row["id"] for row in rows]


async def test_a_worker_that_is_killed_is_followed_by_one_that_goes_on_from_its_checkpoint(
    database: str, engine: Engine, tmp_path: Path
) -> None:
    job = await create(engine, one_time(action={"type": "WEBHOOK", "url": COUNTED}))
    await admit_all(engine)
    async with child("counting", database, str(tmp_path / "log"), "3") as first:
        session = Session(int(await first.says("session")), None)  # type: ignore[arg-type]
        while await first.says("counted") != "3":
            pass
        await first.kill()
    await expire_session(engine, session)
    await reap(engine, None, await engine.clock.now())
    async with (
        child("counting", database, str(tmp_path / "log"), "0") as second,
        scheduling(engine),
    ):
        assert await second.says("counted") == "4"

        async def is_over() -> bool:
            return (await get_execution(engine, job.job_id)).status is ExecutionStatus.SUCCEEDED

        await eventually(is_over)
    execution = await get_execution(engine, job.job_id)
    assert (execution.result, execution.attempt) == ({"began": 3}, 2)
    await check_sound(engine)


async def test_a_checkpoint_is_kept_by_everything_that_does_not_end_the_execution(
    still: Engine,
) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    await keep(hand, await claimed_again(hand), {"done": 1})
    await expire_session(still, hand.session)
    await reap(still, None, await still.clock.now())
    hand = await Hand.opened(still)
    for kind in (RETRY, RELEASED, INTERRUPTED, SNOOZED):
        claimed = await claimed_again(hand)
        assert kept(claimed) == {"done": 1}
        settlement = Settlement(claimed.execution_id, claimed.fence, kind)
        assert list(await hand.dispatch.settle(hand.session, [settlement])) == []
    await run_housekeeping(still, None, await still.clock.now())
    await claimed_again(hand)
    await hand.dispatch.close(hand.session)
    assert kept(await claimed_again(await Hand.opened(still))) == {"done": 1}


async def test_a_checkpoint_comes_with_an_uncommon_claim_too(still: Engine) -> None:
    # A claim of a job with a limited number of runs is read again.
    await create(still, recurring(window={"max_runs": 2}))
    hand = await Hand.opened(still)
    await one_round(still, at("10:01:01"))
    [claimed] = await hand.claim()
    await keep(hand, claimed, [1, 2])
    released = Settlement(claimed.execution_id, claimed.fence, RELEASED)
    assert list(await hand.dispatch.settle(hand.session, [released])) == []
    assert kept(await claimed_again(hand)) == [1, 2]


async def test_a_replay_goes_on_from_the_checkpoint_however_late_it_comes(still: Engine) -> None:
    job = await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    await keep(hand, claimed, "half")
    dead = Settlement(claimed.execution_id, claimed.fence, DEAD, reason="non_retryable", error="x")
    assert list(await hand.dispatch.settle(hand.session, [dead])) == []
    later = await travel(still, START + timedelta(days=5))
    await run_housekeeping(still, None, later)
    await retry_execution(still, job.job_id, Write(None))
    assert kept(await claimed_again(hand)) == "half"


async def test_checkpoints_are_deleted_with_the_end_of_their_execution(still: Engine) -> None:
    for _ in range(3):
        await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    succeeding, dying, living = await hand.claim()
    for one in (succeeding, dying, living):
        assert await keep(hand, one, 7)
    assert not await hand.succeed([succeeding])
    dead = Settlement(dying.execution_id, dying.fence, DEAD, reason="non_retryable", error="x")
    assert list(await hand.dispatch.settle(hand.session, [dead])) == []
    await run_housekeeping(still, None, await still.clock.now())
    assert await stored(still) == sorted([dying.execution_id, living.execution_id])
    await purge_dead_letter(still, dying.execution_id, Write(None))
    await run_housekeeping(still, None, await still.clock.now())
    assert await stored(still) == [living.execution_id]


async def test_a_checkpoint_whose_answer_was_lost_can_be_repeated(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    configure("checkpoint.after_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await keep(hand, claimed, 1)
    assert await keep(hand, claimed, 1)


async def test_a_checkpoint_that_is_no_json_or_too_long_is_refused(still: Engine) -> None:
    await create(still, one_time())
    hand = await Hand.opened(still)
    claimed = await claimed_again(hand)
    write = hand.dispatch.set_checkpoint
    assert await keep(hand, claimed, "x" * (MAX_CHECKPOINT_BYTES - 2))
    for value in ("{", '"' + "x" * (MAX_CHECKPOINT_BYTES - 1) + '"'):
        with pytest.raises(asyncpg.PostgresError):
            await write(hand.session, claimed.execution_id, claimed.fence, value)
    assert await keep(hand, claimed, "\x00 and é")
    await hand.dispatch.close(hand.session)
    assert kept(await claimed_again(await Hand.opened(still))) == "\x00 and é"


async def succeed(hand: Hand, claimed: Claimed) -> None:
    assert not await hand.succeed([claimed])


async def fail(hand: Hand, claimed: Claimed) -> None:
    assert not await hand.fail([claimed], 0)


async def not_named(hand: Hand, claimed: Claimed) -> None:
    await hand.beat([])


async def overdue(hand: Hand, claimed: Claimed) -> None:
    now = await travel(hand.engine, await hand.engine.clock.now() + timedelta(seconds=100))
    await expire(hand.engine, None, now)


async def reaped(hand: Hand, claimed: Claimed) -> None:
    await expire_session(hand.engine, hand.session)
    await reap(hand.engine, None, await hand.engine.clock.now())


Taking = Callable[[Hand, Claimed], Awaitable[None]]


@pytest.mark.parametrize("taken", [succeed, fail, not_named, overdue, reaped])
async def test_a_checkpoint_is_stored_before_its_execution_is_taken_or_refused(
    still: Engine, taken: Taking
) -> None:
    # Whatever takes the execution waits for the checkpoint that is being written. Others may be in its slab.
    await create(still, one_time(deadline_seconds=60))
    await create(still, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    claimed, _ = await hand.claim()
    async with blocked(still, "checkpoints"):
        writing = asyncio.create_task(keep(hand, claimed, 1))
        await somebody_waits(still, "set_checkpoint")
        taking = asyncio.create_task(taken(hand, claimed))
        if taken in (overdue, reaped):
            await taking  # it does not wait: the next round is soon enough
            holds = "select exists (select from hourbell.leases where id = $1)"
            assert await still.database.value(holds, claimed.execution_id)
        else:
            await somebody_waits(still, "hourbell.heartbeat" if taken is not_named else "settle")
    assert await writing
    await taking
    if taken in (overdue, reaped):
        await taken(hand, claimed)
    assert not await keep(hand, claimed, 2)
    assert await still.database.value("select value::text from hourbell.checkpoints") == "1"
    await check_sound(still)
