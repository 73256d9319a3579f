"""Health that tells the truth: what is broken here is really broken."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from msgspec.structs import replace

from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.views import health
from hourbell.engine.views.health import check_database
from hourbell.failpoints import configure
from integration.life.support import (
    PATIENCE_SECONDS,
    TIMES,
    Hand,
    blocked,
    eventually,
    expire_session,
    in_transaction,
    open_engine,
    scheduling,
    take_session,
    travel,
    working,
)

WELL = {"database": True, "migrated": True, "leader": True}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of a machine that stalls for a moment is not taken for one that does not answer."""
    monkeypatch.setattr(health, "_TIMEOUT_SECONDS", 6.0)


async def leads(scheduler: Scheduler) -> None:
    async def does() -> bool:
        return scheduler.leadership.term is not None and scheduler.makes_progress()

    await eventually(does)


async def until(scheduler: Scheduler, progress: bool) -> None:
    async def so() -> bool:
        return scheduler.makes_progress() is progress

    await eventually(so)


# The scheduler.


async def test_a_leader_and_a_standby_make_progress(engine: Engine, database: str) -> None:
    assert not Scheduler(engine).makes_progress()  # it has not begun
    engine.times = replace(TIMES, leader_lease_seconds=30)  # or a stall would let the standby lead
    async with scheduling(engine) as leader, open_engine(database) as other:
        await leads(leader)
        async with scheduling(other) as standby:
            await until(standby, True)
            assert standby.leadership.term is None


@pytest.mark.parametrize("table", ["fires", "deadlines", "leadership"])
async def test_a_leader_whose_verbs_wait_for_a_lock_makes_none(engine: Engine, table: str) -> None:
    async with scheduling(engine) as leader:
        await leads(leader)
        mode = "access exclusive"
        async with in_transaction(engine) as own, own.database.connection() as connection:
            await connection.execute(f"lock table hourbell.{table} in {mode} mode")
            await until(leader, False)
        await leads(leader)


async def test_a_leader_that_finds_the_gate_shut_makes_none(engine: Engine) -> None:
    async with scheduling(engine) as leader:
        await leads(leader)
        async with in_transaction(engine) as own:
            await own.database.value("select pg_advisory_xact_lock(hashtext('hourbell.gate'))")
            await until(leader, False)
        await until(leader, True)


@pytest.mark.parametrize("verb", ["admit", "expire", "end", "renew"])
async def test_a_leader_that_fails_each_time_makes_none(engine: Engine, verb: str) -> None:
    async with scheduling(engine) as leader:
        await leads(leader)
        configure(f"{verb}.before_commit=error")
        await until(leader, False)
        configure("")
        await leads(leader)


async def test_a_leader_that_fails_at_deadlines_reaps_all_the_same(engine: Engine) -> None:
    hand = await Hand.opened(engine)
    configure("expire.before_commit=error")
    async with scheduling(engine) as leader:
        await expire_session(engine, hand.session)

        async def reaped() -> bool:
            return not await engine.database.value(
                "select exists (select from hourbell.sessions where id = $1)", hand.session.id
            )

        await eventually(reaped)
        assert not leader.makes_progress()


# The worker.


async def test_a_worker_works_while_it_has_a_session(engine: Engine) -> None:
    async with working(engine) as worker:
        assert worker.is_working
        assert worker.session is not None
        async with blocked(engine, "sessions"):  # it can neither renew nor open another

            async def in_doubt() -> bool:
                return not worker.is_working

            await eventually(in_doubt)

        async def works() -> bool:
            return worker.is_working

        await eventually(works)
    assert not worker.is_working


async def test_a_worker_that_has_lost_its_session_does_not_work_until_it_has_another(
    engine: Engine,
) -> None:
    async with working(engine) as worker:
        first = worker.session
        assert first is not None
        configure("heartbeat.before_commit=error")
        await take_session(engine, first)

        async def idle() -> bool:
            return not worker.is_working

        await eventually(idle)
        configure("")

        async def works() -> bool:
            return worker.is_working and worker.session is not first

        await eventually(works)


# The database.


async def test_a_database_that_is_migrated_and_led_is_well(engine: Engine) -> None:
    async with scheduling(engine) as leader:
        await leads(leader)
        assert await check_database(engine) == WELL


async def test_a_system_that_nobody_leads_for_longer_than_a_change_takes_is_not_well(
    engine: Engine,
) -> None:
    assert await check_database(engine) == WELL | {"leader": False}
    async with scheduling(engine) as leader:
        await leads(leader)
    resigned_at = await engine.database.value("select expires_at from hourbell.leadership")
    lease = timedelta(seconds=TIMES.leader_lease_seconds)
    await travel(engine, resigned_at + 0.9 * lease)
    assert await check_database(engine) == WELL  # another node may be taking over
    await travel(engine, resigned_at + 1.1 * lease)
    assert await check_database(engine) == WELL | {"leader": False}


async def test_a_migration_that_is_missing_is_noticed(engine: Engine) -> None:
    connection = await asyncpg.connect(engine.database.dsn)
    gone = await connection.fetchrow(
        "delete from hourbell.migrations where name = (select max(name) from hourbell.migrations"
        " where name ~ '^[0-9]') returning name, digest"
    )
    try:
        assert (await check_database(engine))["migrated"] is False
    finally:
        await connection.execute(
            "insert into hourbell.migrations (name, digest) values ($1, $2)", *gone
        )
        await connection.execute(
            "insert into hourbell.migrations (name, digest) values ('9999_newer.sql', 'x')"
        )
    assert (await check_database(engine))["migrated"] is True  # one of a newer version does no harm
    await connection.execute("delete from hourbell.migrations where name = '9999_newer.sql'")
    await connection.execute("alter schema hourbell rename to elsewhere")
    try:
        assert await check_database(engine) == {"database": True, "migrated": False}
    finally:
        await connection.execute("alter schema elsewhere rename to hourbell")
        await connection.close()


async def test_a_database_that_does_not_answer_is_away(engine: Engine) -> None:
    async with in_transaction(engine) as own, own.database.connection() as connection:
        await connection.execute("lock table hourbell.migrations in access exclusive mode")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await check_database(engine) == {"database": False}
