"""Bulk operations when something goes wrong: each job and each dead letter is changed once, none is left out, and the
counts say so."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from hourbell.dispatch import DEAD, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.leader import bulk_operations
from hourbell.engine.leader.bulk_operations import run_operations
from hourbell.engine.operations.bulk_operations import (
    Operation,
    create_operation,
    get_operation,
    preview_operation,
    stop_operation,
)
from hourbell.engine.operations.change import pause_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.failpoints import configure
from hourbell.model.errors import Forbidden, StoreUnavailable
from hourbell.model.ids import operation_text
from hourbell.model.jobs import Job
from integration.life.children import child
from integration.life.support import (
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    fill,
    in_transaction,
    one_time,
    recurring,
    somebody_waits,
    standing,
)

LATER = {"delay_seconds": 3600}
YEARLY = "0 0 1 1 *"


async def start(engine: Engine, act: str, chosen: dict[str, Any], **rest: Any) -> Operation:
    return await create_operation(engine, {"act": act, "filter": chosen} | rest, Write())


async def carry_out(engine: Engine) -> None:
    while await run_operations(engine, None, await engine.clock.now()):
        pass


async def progress(engine: Engine, operation: Operation) -> tuple[str, int, dict[str, int]]:
    seen = await get_operation(engine, operation.operation_id)
    return seen.state, seen.done, dict(seen.left_over)


async def paused_by_name(engine: Engine) -> dict[str, bool]:
    rows = await engine.database.fetch("select name, status from hourbell.jobs")
    return {row["name"]: row["status"] == 1 for row in rows}


async def dead_letters(engine: Engine, number: int, **fields: object) -> None:
    await fill(engine, number, one_time(**fields))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = await hand.claim_all()
    settlements = [
        Settlement(one.execution_id, one.fence, DEAD, 0, 1, None, "retries_exhausted", error="bad")
        for one in claimed
    ]
    assert not await hand.dispatch.settle(hand.session, settlements)
    assert len(claimed) == number


# Processes that die, answers that are lost.


async def test_a_leader_that_is_killed_in_the_middle_of_a_batch_changes_everything_once(
    database: str, engine: Engine
) -> None:
    """150 jobs are two batches, and so are 600 dead letters; the leader dies twice on the way."""
    await dead_letters(engine, 600)
    await fill(engine, 150, one_time(schedule=LATER, name="later"))
    pausing = await start(engine, "pause", {"name_prefix": "later"}, reason="partner down")
    replaying = await start(engine, "replay", {})
    for point in ("operate.before_commit=kill@2", "operate.after_commit=kill@2"):
        # With a long lease, so that each leads until it is killed, whatever the machine does meanwhile.
        async with child("scheduler", database, "60", "60", failpoints=point) as leader:
            assert await leader.ends() == -9
        await engine.database.value("update hourbell.leadership set expires_at = hourbell.clock()")
        assert await counts_of_changes(engine) == await counts_of_progress(engine)
    batches = await engine.database.value("select sum(batches) from hourbell.operations")
    assert batches == 3  # one by the first leader, two by the second

    async def both_are_done() -> bool:
        states = {(await progress(engine, each))[0] for each in (pausing, replaying)}
        return states == {"DONE"}

    async with child("scheduler", database, "1", "60"):
        await eventually(both_are_done)
    assert await progress(engine, pausing) == ("DONE", 150, {})
    assert await progress(engine, replaying) == ("DONE", 600, {})
    assert await counts_of_changes(engine) == {"pause": 150, "replay": 600}
    rows = await engine.database.fetch(
        "select job, count(*) as n from hourbell.audit where operation = 'pause' group by job"
    )
    assert Counter(row["n"] for row in rows) == {1: 150}
    ends = await engine.database.value(
        "select count(*) from hourbell.audit where operation = 'end_operation'"
    )
    assert ends == 2
    await check_sound(engine)


async def counts_of_changes(engine: Engine) -> dict[str, int]:
    row = await engine.database.row(
        "select (select count(*) from hourbell.paused) as pause,"
        " (select count(distinct id) from hourbell.replays) as replay"
    )
    return dict(row)


async def counts_of_progress(engine: Engine) -> dict[str, int]:
    rows = await engine.database.fetch("select act, done from hourbell.operations")
    return {row["act"]: row["done"] for row in rows}


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_batch_whose_answer_was_lost_is_neither_repeated_nor_a_failure(
    engine: Engine, moment: str
) -> None:
    await fill(engine, 3, one_time(schedule=LATER))
    pausing = await start(engine, "pause", {})
    configure(f"operate.{moment}_commit=drop*1")
    with pytest.raises(StoreUnavailable):
        await carry_out(engine)
    done = 3 if moment == "after" else 0
    assert (await progress(engine, pausing))[1:] == (done, {})
    await carry_out(engine)
    assert await progress(engine, pausing) == ("DONE", 3, {})
    assert await engine.database.value("select max(version) from hourbell.live") == 2


async def test_a_stop_waits_for_the_batch_that_is_being_committed_and_counts_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "_JOBS", 2)
    await fill(engine, 5, one_time(schedule=LATER))
    pausing = await start(engine, "pause", {})
    now = await engine.clock.now()
    async with standing("operate.before_commit", run_operations(engine, None, now)):
        stopping = asyncio.create_task(stop_operation(engine, pausing.operation_id, Write()))
        await somebody_waits(engine, "hourbell.operations")
    stopped = await stopping
    assert (stopped.state, stopped.done) == ("STOPPED", 2)
    await carry_out(engine)
    assert await engine.database.value("select count(*) from hourbell.paused") == 2


# Other changes at the same time.


async def test_a_job_that_is_changed_between_the_read_and_the_lock_is_paused_nevertheless(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await create(engine, recurring(YEARLY, name=name)) for name in ("a", "b", "c")]
    pausing = await start(engine, "pause", {})
    await updated_after_the_read(engine, monkeypatch, jobs[1], times=1)
    assert await progress(engine, pausing) == ("DONE", 3, {})
    assert await paused_by_name(engine) == {"a": True, "new 1": True, "c": True}


async def test_a_job_that_is_changed_each_time_is_left_and_delays_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await create(engine, recurring(YEARLY, name=name)) for name in ("a", "b", "c")]
    pausing = await start(engine, "pause", {})
    await updated_after_the_read(engine, monkeypatch, jobs[1], times=100)
    assert await progress(engine, pausing) == ("DONE", 2, {"changed_meanwhile": 1})
    assert await paused_by_name(engine) == {"a": True, "new 2": False, "c": True}


async def updated_after_the_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, job: Job, times: int
) -> None:
    """Carry operations out; the job gets another name after each of the first reads of it."""
    read, reads = bulk_operations.list_jobs, 0

    async def read_and_update(*args: Any) -> Any:
        nonlocal reads
        page = await read(*args)
        if reads < times and job.job_id in {each.job_id for each in page.items}:
            reads += 1
            await update_job(engine, job.job_id, {"name": f"new {reads}"}, Write())
        return page

    monkeypatch.setattr(bulk_operations, "list_jobs", read_and_update)
    await carry_out(engine)


async def test_an_operation_that_meets_a_lock_is_postponed_and_others_continue(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bulk_operations._J, "set_timeouts", "set local lock_timeout = '100ms'")  # type: ignore[index]
    await dead_letters(engine, 2)
    purging = await start(engine, "purge", {})
    await fill(engine, 3, one_time(schedule=LATER))
    pausing = await start(engine, "pause", {})
    async with in_transaction(engine) as own:
        await own.database.fetch("select id from hourbell.dead_letters for update")
        await carry_out(engine)
        assert await progress(engine, purging) == ("RUNNING", 0, {})
        assert await progress(engine, pausing) == ("DONE", 3, {})
    now = await engine.clock.now()
    assert await run_operations(engine, None, now + timedelta(seconds=2))
    assert await progress(engine, purging) == ("DONE", 2, {})


async def test_a_dead_letter_that_another_request_is_moving_is_left_in_use(engine: Engine) -> None:
    await dead_letters(engine, 2)
    replaying = await start(engine, "replay", {})
    async with in_transaction(engine) as own:
        await own.database.fetch("select id from hourbell.dead_letters limit 1 for update")
        await carry_out(engine)
    assert await progress(engine, replaying) == ("DONE", 1, {"in_use": 1})


async def test_a_timetable_that_is_deleted_before_a_resume_does_not_end_the_operation(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await create(engine, recurring(YEARLY))
    await pause_job(engine, job.job_id, Write())
    resuming = await start(engine, "resume", {})
    decide = bulk_operations.decide_all
    await engine.database.fetch("delete from hourbell.memberships")

    async def decide_and_delete(*args: Any) -> Any:
        decided = await decide(*args)
        await engine.database.fetch("delete from hourbell.timetables")
        return decided

    with monkeypatch.context() as patched:
        patched.setattr(bulk_operations, "decide_all", decide_and_delete)
        await carry_out(engine)
    assert (await progress(engine, resuming))[0] == "RUNNING"
    assert await run_operations(engine, None, await engine.clock.now() + timedelta(seconds=2))
    assert await progress(engine, resuming) == ("DONE", 1, {})


# Tenants.


async def test_an_operation_of_a_key_of_one_tenant_concerns_nothing_of_another(
    engine: Engine,
) -> None:
    acme = engine.scoped_to("acme")
    for tenant in ("acme", "globex"):
        await dead_letters(engine, 2, tenant_id=tenant)
        await create(engine, recurring(YEARLY, name=f"of {tenant}", tenant_id=tenant))
    assert (await preview_operation(acme, {"act": "purge", "filter": {}})).total == 2
    for act in ("pause", "replay"):
        operation = await start(acme, act, {})
        assert operation.tenant_id == "acme"
        await carry_out(engine)
        assert (await progress(acme, operation))[0] == "DONE"
    assert await paused_by_name(engine) == {"of acme": True, "of globex": False}
    rows = await engine.database.fetch(
        "select t.name, count(*) as n from hourbell.dead_letters as d"
        " join hourbell.tenants as t on t.id = d.tenant group by t.name"
    )
    assert {row["name"]: row["n"] for row in rows} == {"globex": 2}
    # Of the jobs that an operation of the whole cell has paused: the two that were replayed, not that of globex.
    whole = await start(engine, "pause", {})
    await carry_out(engine)
    assert (await progress(engine, whole))[1] == 3
    by_operation = {"operation_id": operation_text(whole.operation_id)}
    assert (await preview_operation(acme, {"act": "resume", "filter": by_operation})).total == 2
    for call in (start, preview):
        with pytest.raises(Forbidden):
            await call(acme, "pause", {"tenant_id": "globex"})


async def preview(engine: Engine, act: str, chosen: dict[str, Any]) -> object:
    return await preview_operation(engine, {"act": act, "filter": chosen})
