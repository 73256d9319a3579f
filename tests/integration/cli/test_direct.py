"""Commands straight on the database: HOURBELL_DATABASE_URL, and no server anywhere."""

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from hourbell.documents.keys import NewKey
from hourbell.engine.core import Engine
from hourbell.engine.operations.api_keys import create_key
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views import forecast
from hourbell.security.access import KeyRole
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.cli.conftest import PATIENCE_SECONDS, Command
from ports import free_port

_SOME_WAIT = """
select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())
"""


@pytest.fixture
def direct(database: str, tmp_path: Path) -> Command:
    env = {"HOURBELL_DATABASE_URL": database, "HOURBELL_PORT": str(free_port())}
    return Command({**env, "HOME": str(tmp_path)})


async def on(command: Command, *args: str, good: bool = True) -> str:
    """What a command prints; it has an event loop of its own."""
    done = await asyncio.to_thread(command, *args)
    assert (done.code == 0) is good, done.err
    return done.out if good else f"{done.code} {done.err}"


async def test_a_job_is_created_explained_and_deleted_without_a_server(direct: Command) -> None:
    create = ("jobs", "create", "reminder", "--task", "shop.remind", "--payload", '{"n": 1}')
    job = (await on(direct, *create, "--delay", "3600")).strip()
    assert job in await on(direct, "jobs", "list")
    assert "remind" in await on(direct, "jobs", "get", "reminder", "--output", "json")
    assert "not_due" in await on(direct, "jobs", "explain", job)
    await on(direct, "jobs", "delete", job, "--yes")
    assert job not in await on(direct, "jobs", "list")
    assert "There is no job named nothing" in await on(direct, "jobs", "get", "nothing", good=False)


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ("_MAX_MEMBERS_OF_ONE", "This is an estimate: some schedules have too many jobs to count"),
        ("_MAX_TIMETABLES", "Complete until 20"),
    ],
)
async def test_a_forecast_says_what_it_leaves_out(
    direct: Command, monkeypatch: pytest.MonkeyPatch, bound: str, says: str
) -> None:
    for minute in ("1", "1", "2", "3"):
        create = ("jobs", "create", "hourly", "--cron", f"{minute} * * * *", "--task", "count")
        await on(direct, *create)
    whole = await asyncio.to_thread(direct.good, "forecast")
    assert (says in whole.err, "executions; the busiest minute" in whole.err) == (False, True)
    monkeypatch.setattr(forecast, bound, 2)
    assert says in (await asyncio.to_thread(direct.good, "forecast")).err


async def test_it_needs_no_key_where_servers_do_and_the_audit_trail_names_it(
    direct: Command, database: str
) -> None:
    opened = await Database.open(database, connections=1)
    try:
        engine = Engine(opened, DatabaseClock(opened))
        await create_key(engine, NewKey("ops", KeyRole.ADMIN, None), Write())
        await on(direct, "queues", "set", "mail", "--max-concurrency", "3")
        assert "mail" in await on(direct, "queues", "list")
        actors = await opened.fetch("select distinct actor from hourbell.audit")
    finally:
        await opened.close()
    assert "command line" in {row["actor"] for row in actors}


async def test_errors_have_the_exit_codes_of_a_server(direct: Command) -> None:
    wrong = ("jobs", "create", "x", "--task", "a", "--cron", "61 * * * *")
    assert (await on(direct, *wrong, good=False)).startswith("1 ")
    assert (await on(direct, "executions", "get", "exe_0000000000000", good=False)).startswith("3 ")


async def test_a_database_that_cannot_be_used_is_named(direct: Command) -> None:
    direct.env["HOURBELL_DATABASE_URL"] = f"postgresql://u@127.0.0.1:{free_port()}/x"
    said = await on(direct, "jobs", "list", good=False)
    assert said.startswith("2 hourbell: Cannot use the database of HOURBELL_DATABASE_URL")


async def test_ctrl_c_ends_a_command_whose_statement_waits(direct: Command, database: str) -> None:
    locker, watcher = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        async with locker.transaction():
            await locker.execute("lock table hourbell.jobs in access exclusive mode")
            listing = direct.started("jobs", "list")
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await watcher.fetchval(_SOME_WAIT):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            listing.send_signal(signal.SIGINT)
            _, said = await asyncio.to_thread(listing.communicate, timeout=PATIENCE_SECONDS)
    finally:
        await locker.close()
        await watcher.close()
    assert listing.returncode == 130
    assert "Traceback" not in said


async def test_a_server_that_is_named_is_called(direct: Command) -> None:
    direct.env["HOURBELL_URL"] = f"http://127.0.0.1:{free_port()}"
    said = await on(direct, "jobs", "list", good=False)
    assert said.startswith("6 hourbell: No response from")
