"""What the pair confirms survives what is done to it, and what it starts it also ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest

import services
from chaos.postgres import Pair, StopMode, dsn_at
from integration.life.support import eventually

# What a client may see of a server that ends under it.
ENDED = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as folder:
        yield folder


@contextlib.asynccontextmanager
async def running(folder: Path, *, synchronous: bool) -> AsyncIterator[Pair]:
    """A pair with a table; afterwards nothing of it runs."""
    pair = await Pair.start(folder, synchronous=synchronous)
    try:
        await run(pair.primary_port, "create table written (what text)")
        await eventually(lambda: run(pair.standby_port, "select to_regclass('written')::text"))
        yield pair
    finally:
        everything = processes(folder)
        await pair.stop()
        assert len(everything) > 2
        assert not [process for process in everything if is_alive(process)]


@contextlib.asynccontextmanager
async def connected(port: int, name: str = "test") -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(
        dsn_at(port), timeout=20, command_timeout=20, server_settings={"application_name": name}
    )
    try:
        yield connection
    finally:
        connection.terminate()


async def run(port: int, statement: str, *arguments: object) -> Any:
    async with connected(port) as connection:
        return await connection.fetchval(statement, *arguments)


async def write(port: int, what: str) -> None:
    await run(port, "insert into written values ($1)", what)


async def written(port: int) -> list[str]:
    rows: list[str] = await run(
        port, "select coalesce(array_agg(what order by what), '{}') from written"
    )
    return rows


async def reaches(port: int, what: str) -> None:
    """Wait until a server has this row."""

    async def there() -> bool:
        return what in await written(port)

    await eventually(there)


async def is_primary(port: int) -> bool:
    return not await run(port, "select pg_is_in_recovery()")


async def timeline(port: int) -> int:
    await run(port, "checkpoint")
    return int(await run(port, "select timeline_id from pg_control_checkpoint()"))


def processes(folder: Path) -> list[psutil.Process]:
    """All of the servers whose files are in this folder."""
    first = [
        process
        for process in psutil.process_iter()
        if any(str(folder) in word for word in words_of(process))
    ]
    return first + [child for process in first for child in children_of(process)]


def words_of(process: psutil.Process) -> list[str]:
    """The command of a server; of what is none, or has just ended, nothing."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline() if process.name() == "postgres" else []
    return []


def children_of(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def test_a_committed_row_survives_a_kill_of_the_primary_and_the_old_primary_rejoins(
    folder: Path,
) -> None:
    async with running(folder, synchronous=True) as pair:
        one, two = pair.primary_port, pair.standby_port
        await write(one, "before")
        await pair.failover(kill=True)
        assert (pair.primary_port, pair.standby_port) == (two, one)
        assert await written(two) == ["before"]
        with pytest.raises(ConnectionRefusedError):
            await run(one, "select 1")
        # Nobody has to wait for a standby that is not there.
        await write(two, "between")
        assert await pair.rejoin() == "rewound"
        await write(two, "after")
        await reaches(one, "after")
        assert await written(one) == ["after", "before", "between"]
        assert not await is_primary(one)
        # And back again, this time in good order.
        await pair.failover(kill=False)
        assert await written(one) == ["after", "before", "between"]
        assert await pair.rejoin() == "rewound"
        await write(one, "at last")
        await reaches(two, "at last")


async def test_a_commit_of_a_synchronous_pair_waits_for_the_standby(folder: Path) -> None:
    async with running(folder, synchronous=True) as pair:
        assert await run(pair.primary_port, "show synchronous_commit") == "on"
        assert await run(pair.primary_port, "select sync_state from pg_stat_replication") == "sync"
        await pair.failover(kill=False, leave_old_alive=True)
        # The old primary lives, and has lost the standby that would have to confirm.
        async with connected(pair.standby_port, "nobody confirms this") as old:
            waiting = asyncio.create_task(old.execute("insert into written values ('lost')"))

            async def waits() -> bool:
                event = await run(
                    pair.standby_port,
                    "select wait_event from pg_stat_activity where application_name = $1",
                    "nobody confirms this",
                )
                return bool(event == "SyncRep")

            await eventually(waits)
            assert await pair.rejoin() == "rewound"
            with pytest.raises(ENDED):
                await waiting
        assert await written(pair.standby_port) == []


async def test_what_an_old_primary_writes_on_its_own_is_wound_back_when_it_rejoins(
    folder: Path,
) -> None:
    async with running(folder, synchronous=False) as pair:
        old, new = pair.primary_port, pair.standby_port
        await write(old, "before")
        await reaches(new, "before")
        await pair.failover(kill=True)
        await pair.resurrect_old_primary()
        assert await is_primary(old)
        assert await is_primary(new)
        await write(old, "astray")
        await write(new, "after")
        assert await timeline(old) < await timeline(new)
        assert await pair.rejoin() == "rewound"
        await reaches(old, "after")
        assert await written(old) == ["after", "before"]


async def test_an_old_primary_whose_files_are_ruined_is_copied_anew(folder: Path) -> None:
    async with running(folder, synchronous=True) as pair:
        await write(pair.primary_port, "before")
        await pair.failover(kill=True)
        (folder / "one" / "global" / "pg_control").unlink()
        assert await pair.rejoin() == "copied"
        await write(pair.primary_port, "after")
        await reaches(pair.standby_port, "after")


async def test_the_primary_comes_back_from_every_kind_of_end_with_all_that_it_confirmed(
    folder: Path,
) -> None:
    async with running(folder, synchronous=True) as pair:
        port = pair.primary_port
        modes: list[StopMode] = ["fast", "immediate"]
        for mode in modes:
            await write(port, f"before {mode}")
            async with connected(port) as client:
                await pair.restart(mode)
                with pytest.raises(ENDED):
                    await client.execute("select 1")
        await write(port, "before kill")
        before = processes(folder)
        await pair.kill()
        assert len(processes(folder)) < len(before)
        with pytest.raises(ConnectionRefusedError):
            await run(port, "select 1")
        await pair.start_again()
        everything = ["before fast", "before immediate", "before kill"]
        assert await written(port) == everything
        await write(port, "finally")  # so the standby is back as well
        await reaches(pair.standby_port, "finally")


async def test_connections_are_ended_by_the_name_of_their_application(folder: Path) -> None:
    async with running(folder, synchronous=False) as pair:
        port = pair.primary_port
        async with (
            connected(port, "worker-1") as first,
            connected(port, "worker-2") as second,
            connected(port, "scheduler-1") as other,
        ):
            assert await pair.terminate_backends("worker-%") == 2
            for ended in (first, second):
                with pytest.raises(ENDED):
                    await ended.execute("select 1")
            await other.execute("select 1")
