"""Long polls are answered by wake-ups, never by chance: here no process looks by itself within the patience of a test."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest

from hourbell.dispatch import remote as remote_module
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, DUE, READY, Engine
from hourbell.failpoints import barrier
from integration.api.client import Client
from integration.api.workers import RemoteWorker
from integration.life.support import create, eventually, one_time, scheduling, working

TAKE_GATE = "select pg_advisory_xact_lock(hashtext('hourbell.gate'))"


@pytest.fixture(autouse=True)
def nothing_comes_by_chance(monkeypatch: pytest.MonkeyPatch, remote: RemoteWorkers) -> None:
    monkeypatch.setattr(remote_module, "POLL_SECONDS", 600)
    remote.lease_seconds = 600  # at a third of it those who wait renew, and claim


async def waiting(remote: RemoteWorkers, worker: RemoteWorker) -> asyncio.Task[list[object]]:
    """A claim that waits in line."""
    asking = asyncio.create_task(worker.claim(1, wait_seconds=30))

    async def is_in_line() -> bool:
        return any(line.waiting for line in remote._lines.values())

    await eventually(is_in_line)
    return asking


async def answer_of(asking: asyncio.Task[list[object]]) -> list[object]:
    async with asyncio.timeout(20):  # unwoken it waits 30 s
        return await asking


@asynccontextmanager
async def gate_taken(engine: Engine):
    """A pass of another process, which began before and does not see what comes now."""
    connection = await asyncpg.connect(engine.database.dsn)
    try:
        async with connection.transaction():
            await connection.execute(TAKE_GATE)
            yield
    finally:
        await connection.close()


async def test_an_announcement_made_while_one_is_under_way_is_sent_too(engine: Engine):
    heard = 0

    def hear(_payload: str) -> None:
        nonlocal heard
        heard += 1

    async def heard_twice() -> bool:
        return heard == 2

    listener = await engine.database.listen(CHANNEL, hear)
    try:
        with barrier("announce.after_commit") as hold:
            engine.announce()
            await hold.reached()
            for _ in range(3):
                engine.announce()  # together, when the first is through
        await eventually(heard_twice)
    finally:
        await listener.close()


async def test_a_wake_up_that_finds_the_gate_taken_is_not_lost(
    api: Client, engine: Engine, remote: RemoteWorkers
):
    worker = RemoteWorker(api)
    asking = await waiting(remote, worker)
    with barrier("admit.after_commit") as hold:
        async with gate_taken(engine):
            await create(engine, one_time())
            await hold.reached()  # our pass was refused: the other one is under way
            hold.release()
    assert len(await answer_of(asking)) == 1


async def test_what_any_process_makes_ready_is_told_to_those_who_wait(
    api: Client, engine: Engine, remote: RemoteWorkers, monkeypatch: pytest.MonkeyPatch
):
    asking = await waiting(remote, RemoteWorker(api))
    with monkeypatch.context() as patched:
        patched.setattr(engine, "announce", lambda: None)  # it falls due: nobody creates it then
        await create(engine, one_time())
    await PostgresDispatch(engine).admit()  # a worker of another process passes the gate
    assert len(await answer_of(asking)) == 1


async def announced(
    engine: Engine, first: Callable[[], None], then: Sequence[Callable[[], None]]
) -> list[str]:
    """What is heard if the others come while the first announcement is being sent."""
    heard: list[str] = []

    async def heard_twice() -> bool:
        return len(heard) == 2

    listener = await engine.database.listen(CHANNEL, heard.append)
    try:
        with barrier("announce.after_commit") as hold:
            first()
            await hold.reached()
            for announce in then:
                announce()
        await eventually(heard_twice)
    finally:
        await listener.close()
    return heard


async def test_of_announcements_that_are_combined_the_one_that_means_more_work_is_sent(
    engine: Engine,
):
    ready, due = engine.announce_ready, engine.announce
    assert await announced(engine, ready, [ready, due]) == [READY, DUE]


async def test_what_a_session_has_made_ready_is_announced_with_its_number_unless_others_did_too(
    engine: Engine,
):
    ready, by_session = engine.announce_ready, partial(engine.announce_ready, 7)
    assert await announced(engine, by_session, [by_session, ready]) == [f"{READY} 7", READY]


async def test_no_wake_up_is_lost_beside_a_scheduler_and_a_worker_that_pass_the_gate_too(
    api: Client, engine: Engine, remote: RemoteWorkers
):
    async with scheduling(engine) as scheduler, working(engine, queues=("other",)) as worker:

        def wake(payload: str) -> None:
            scheduler.wake(payload)
            worker.wake(payload)

        listener = await engine.database.listen(CHANNEL, wake)
        try:
            ours = RemoteWorker(api)
            for _ in range(60):
                asking = await waiting(remote, ours)
                await create(engine, one_time())
                (execution,) = await answer_of(asking)
                await ours.complete(execution)
        finally:
            await listener.close()
