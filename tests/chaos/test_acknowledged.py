"""Acknowledged and lost: what is answered while the synchronous standby is cut off exists after a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import services
from chaos.postgres import Pair
from chaos.proxy import Blackhole, Pass, Proxy
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.operations.change import delete_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Busy, StoreUnavailable
from hourbell.model.jobs import JobStatus
from hourbell.store import database as database_module
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.store.migrations import migrate
from integration.life.support import Hand, eventually, one_time

PATIENCE_SECONDS = 1.0
LATER = {"delay_seconds": 3600}
_WAITING = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
_END_WAITS = (
    "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'"
)
_SLEEPING = "select exists (select from pg_stat_activity where wait_event = 'PgSleep')"
_VISIBLE = (
    "select array[(select count(*) from hourbell.executions), (select count(*) from hourbell.outcomes),"
    " (select count(*) from hourbell.idempotency)]"
)

Call = Callable[[], Awaitable[Any]]


@pytest.fixture(params=[None, services.POSTGRES15_PROGRAMS], ids=["embedded", "postgresql-15"])
def programs(request: pytest.FixtureRequest) -> Path | None:
    path: Path | None = request.param
    if path is not None and not (path / "postgres").exists():
        services.unavailable("PostgreSQL 15")
    return path


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


class Cut:
    """A synchronous pair, and an engine on its primary; the standby can be cut off."""

    def __init__(self, pair: Pair, link: Proxy, engine: Engine) -> None:
        self.pair = pair
        self.link = link
        self.engine = engine

    async def cut_off(self) -> None:
        await self.link.switch(Blackhole())

    async def value(self, statement: str) -> Any:
        """Of a connection of its own: it waits for nothing."""
        connection = await asyncpg.connect(self.pair.dsn())
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    async def answer(self, call: Call) -> Any:
        """What is answered; None: that is not known."""
        try:
            return await call()
        except (StoreUnavailable, Busy):
            return None

    async def answers(self, calls: Mapping[str, Call]) -> dict[str, Any]:
        answers = await asyncio.gather(*(self.answer(call) for call in calls.values()))
        return dict(zip(calls, answers, strict=True))

    async def end_waits(self) -> None:
        """What was committed is visible then, as it would be after a crash of the primary."""
        await self.value(_END_WAITS)

        async def ended() -> bool:
            return await self.value(_WAITING) == 0

        await eventually(ended)

    async def promoted(self) -> Engine:
        """An engine on the standby, which is the primary now."""
        await self.pair.failover(kill=True)
        return await engine_on(self.pair)


async def engine_on(pair: Pair) -> Engine:
    database = await Database.open(pair.dsn(), timeout_seconds=PATIENCE_SECONDS)
    return Engine(database, DatabaseClock(database))


@pytest.fixture
async def cut(folder: Path, programs: Path | None) -> AsyncIterator[Cut]:
    link = await Proxy.open("standby→primary", "127.0.0.1", 1)
    pair = await Pair.start(folder, synchronous=True, programs=programs, link=link)
    try:
        await migrate(pair.dsn())
        engine = await engine_on(pair)
        yield Cut(pair, link, engine)
        await engine.database.close()
    finally:
        await link.close()  # first: a server that stops waits for its standby
        await pair.stop()


async def test_what_is_answered_survives_a_failover(cut: Cut) -> None:
    engine = cut.engine
    kept: dict[str, object] = {"unique_key": "kept", "on_duplicate": "keep"}
    jobs = [(await create_job(engine, one_time(schedule=LATER), Write())).job for _ in range(3)]
    due = [(await create_job(engine, one_time(), Write())).job.job_id for _ in range(2)]
    hand = await Hand.opened(engine)
    await admit(engine)
    [running] = await hand.claim(1)

    async def claim_again() -> list[int]:
        return [one.execution_id for one in await hand.claim_again(1)] or None  # type: ignore[return-value]

    visible = await cut.value(_VISIBLE)
    await cut.cut_off()
    calls: dict[str, Call] = {
        "create": lambda: create_job(engine, one_time(), Write("create")),
        "kept key": lambda: create_job(engine, one_time(**kept), Write()),
        "delete": lambda: delete_job(engine, jobs[0].job_id, Write()),
        "delete with key": lambda: delete_job(engine, jobs[1].job_id, Write("delete")),
        "cancel": lambda: cancel_execution(engine, jobs[2].job_id, Write()),
        "settle": lambda: hand.succeed([running]),
        "claim": claim_again,
    }
    hand._claims += 1
    unknown = dict.fromkeys(calls, None)
    assert await cut.answers(calls) == unknown
    assert await cut.value(_VISIBLE) == visible  # nothing that a failover would lose
    await cut.end_waits()
    assert await cut.value(_VISIBLE) != visible
    assert await cut.answers(calls) == unknown

    there = await cut.promoted()
    assert await there.database.value("select count(*) from hourbell.idempotency") == 0
    for job in jobs:
        assert (await get_job(there, job.job_id)).status is JobStatus.SCHEDULED
    again = await Hand.opened(there)
    await admit(there)
    assert {one.execution_id for one in await again.claim(5)} <= set(due)
    await there.database.close()


async def test_calls_that_are_given_up_add_no_connections_and_end_when_the_standby_is_back(
    cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "GIVEN_UP_SECONDS", 0.2)  # looked at many times meanwhile
    few = await Database.open(cut.pair.dsn(), 2, timeout_seconds=PATIENCE_SECONDS)
    engine = Engine(few, DatabaseClock(few))
    await engine.tenant("default", await engine.clock.now())
    await create_job(engine, one_time(), Write("before"))
    await cut.cut_off()
    calls: dict[str, Call] = {
        f"{number}": lambda number=number: create_job(engine, one_time(), Write(f"{number}"))
        for number in range(6)
    }
    for _ in range(3):
        assert set((await cut.answers(calls)).values()) == {None}
    assert await cut.value(_WAITING) <= 2
    assert few.pool_state.in_use == 2

    await cut.link.switch(Pass())

    async def answered() -> bool:
        return None not in (await cut.answers(calls)).values()

    await eventually(answered)
    assert (await cut.value(_VISIBLE))[0] == 7
    await few.close()


async def test_a_commit_whose_wait_was_ended_on_the_server_is_no_answer(cut: Cut) -> None:
    patient = await Database.open(cut.pair.dsn())
    engine = Engine(patient, DatabaseClock(patient))
    await create_job(engine, one_time(), Write())
    await admit(engine)
    hand = await Hand.opened(engine)
    await cut.cut_off()

    async def waits() -> bool:
        return bool(await cut.value(_WAITING))

    # A claim is a procedure, whose commit a statement_timeout would end too.
    calls: list[Call] = [lambda: create_job(engine, one_time(), Write("one")), hand.claim]
    for call in calls:
        calling = asyncio.ensure_future(call())
        await eventually(waits)
        await cut.end_waits()
        with pytest.raises(StoreUnavailable, match="standby"):
            await calling
    await cut.link.switch(Pass())
    assert await create_job(engine, one_time(), Write("one"))  # the same connection
    await patient.close()


async def test_a_call_that_is_cancelled_leaves_what_it_began_to_the_server(
    engine_dsn: str,
) -> None:
    database = await Database.open(engine_dsn)
    number = "select count(*) from hourbell.queues where name = 'late'"
    insert = "insert into hourbell.queues (name, created_at) select 'late', hourbell.clock() from pg_sleep(0.2)"

    async def write() -> None:
        await database.value(insert)

    async def write_and_go_on() -> None:
        async with database.transaction() as connection:
            await connection.execute(insert)
            raise AssertionError("it was given up")

    async def given_up(call: Call) -> None:
        calling = asyncio.ensure_future(call())
        await eventually(lambda: database.value(_SLEEPING))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

    async def returned() -> bool:
        return database.pool_state.in_use == 0

    await given_up(write_and_go_on)
    await eventually(returned)
    assert await database.value(number) == 0
    await given_up(write)
    await eventually(returned)
    assert await database.value(number) == 1
    await database.close()
