"""A crash of PostgreSQL undoes passes of the gate, which do not wait for the disk, and nothing else (decision 0021)."""

import os
import signal
from collections.abc import Iterator

import asyncpg
import pytest

import services
from hourbell.engine.core import Engine, Times
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import migrate
from integration.life.support import Hand, admit_all, check_sound, fates, fill, places

# No commit reaches the disk by itself for a while.
_SLOW_WRITER = "alter system set wal_writer_delay = '10s'"


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with (
        services.folder_for_databases() as folder,
        EmbeddedServer(folder / "data", owner="tests") as server,
    ):
        yield server


async def crashed(server: EmbeddedServer, engine: Engine | None = None) -> Engine:
    """An engine on the server after a crash."""
    if engine is not None:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await engine.database.close()
    server.stop()
    server.start()
    database = await Database.open(server.dsn, 2)
    return Engine(database, DatabaseClock(database), Times(lease_seconds=300))


async def test_a_pass_that_a_crash_undoes_is_repeated_and_what_was_claimed_stays_claimed(
    server: EmbeddedServer,
) -> None:
    await migrate(server.dsn)
    connection = await asyncpg.connect(server.dsn)
    await connection.execute(_SLOW_WRITER)
    await connection.close()
    engine = await crashed(server)
    hand = await Hand.opened(engine)
    await fill(engine, 3)
    await admit_all(engine)
    assert await places(engine) == {"ready": 3}

    engine = await crashed(server, engine)
    assert await places(engine) == {"due": 3}, "the pass was not lost, so this shows nothing"
    hand = Hand(engine, hand.session)
    await admit_all(engine)
    claimed = await hand.claim(1)
    assert await places(engine) == {"leased": 1, "ready": 2}

    engine = await crashed(server, engine)
    # The commit of the claim has brought the pass before it to the disk.
    assert await places(engine) == {"leased": 1, "ready": 2}
    hand = Hand(engine, hand.session)
    assert not await hand.succeed(claimed)
    assert len(await hand.run_all()) == 2
    assert await fates(engine) == {"SUCCEEDED": 3}
    await check_sound(engine)
    await engine.database.close()
