"""The virtual clock: time that a test moves."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from hourbell.store.database import Database
from hourbell.testing.clock import VirtualClock

START = datetime(2027, 3, 13, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[Database]:
    opened = await Database.open(database, connections=2)
    yield opened
    await opened.close()


async def test_it_stands_still_until_it_is_moved_and_sql_sees_the_same_time(
    opened: Database,
) -> None:
    clock = await VirtualClock.install(opened, START)
    assert await clock.now() == START
    assert await opened.value("select hourbell.clock()") == START
    await clock.advance(HOUR)
    assert await clock.now() == await opened.value("select hourbell.clock()") == START + HOUR
    assert clock.monotonic() == 3600


async def test_time_passes_forwards_only(opened: Database) -> None:
    clock = await VirtualClock.install(opened, START)
    with pytest.raises(ValueError, match="cannot go backwards"):
        await clock.set(START - HOUR)
    with pytest.raises(ValueError, match="has no time zone"):
        await clock.set(START.replace(tzinfo=None))
    assert await clock.now() == START


async def test_a_step_moves_the_wall_clock_and_not_the_monotonic_one(opened: Database) -> None:
    clock = await VirtualClock.install(opened, START)
    await clock.step(START - HOUR)
    assert await clock.now() == START - HOUR
    assert clock.monotonic() == 0
    await clock.advance(HOUR)
    assert await clock.now() == START
    assert clock.monotonic() == 3600


async def test_sleepers_wake_in_their_time_and_not_by_a_step(opened: Database) -> None:
    clock = await VirtualClock.install(opened, START)
    short = asyncio.create_task(clock.sleep(10))
    long = asyncio.create_task(clock.sleep(20))
    await asyncio.sleep(0)
    await clock.step(START + HOUR)
    await asyncio.sleep(0)
    assert not short.done()
    await clock.advance(timedelta(seconds=15))
    await short
    assert not long.done()
    await clock.advance(timedelta(seconds=5))
    await long


async def test_a_second_install_sets_the_same_clock_again(opened: Database) -> None:
    await VirtualClock.install(opened, START)
    clock = await VirtualClock.install(opened, START - HOUR)
    assert await clock.now() == START - HOUR
