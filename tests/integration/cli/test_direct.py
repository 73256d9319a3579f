"""Commands straight on the database: HOURBELL_DATABASE_URL, and no server anywhere."""

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
from integration.cli.conftest import HOURBELL, PATIENCE_SECONDS, Command, Done
from ports import free_port

_WAITING = """
select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
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
    assert "There is no job named 'nothing'" in await on(
        direct, "jobs", "get", "nothing", good=False
    )


async def test_a_job_that_no_worker_at_all_serves_is_noted(direct: Command) -> None:
    connection = await asyncpg.connect(direct.env["HOURBELL_DATABASE_URL"])
    await connection.execute("delete from hourbell.sessions")
    await connection.close()
    create = ("jobs", "create", "waits", "--cron", "@daily", "--task", "count")
    created = await asyncio.to_thread(direct.good, *create)
    assert "Note: no live worker runs the task count in the queue default" in created.err


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        ("_MAX_SIZE", "This is an estimate: some schedules have too many jobs to count"),
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
    monkeypatch.setattr(forecast, "_MAX_MEMBERS_OF_ONE", 2)
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("migrate",), "The database is up to date.\n"),
        (("secrets", "rotate"), "Re-encrypted 0 secrets; all now use the key "),
    ],
    ids=["migrate", "rotate"],
)
async def test_what_only_says_that_it_is_done_prints_no_data(
    direct: Command, args: tuple[str, ...], said: str
) -> None:
    direct.env["HOURBELL_SECRET_KEYS"] = direct.good("secrets", "new-key").out.strip()
    done = await asyncio.to_thread(direct, *args)
    assert (done.code, done.out, done.err.startswith(said)) == (0, "", True), done.err


async def test_a_database_that_cannot_be_used_is_named(direct: Command) -> None:
    direct.env["HOURBELL_DATABASE_URL"] = f"postgresql://u@127.0.0.1:{free_port()}/x"
    said = await on(direct, "jobs", "list", good=False)
    assert said.startswith("2 hourbell: Cannot use the database of HOURBELL_DATABASE_URL")


@contextlib.asynccontextmanager
async def waiting_for(
    table: str, command: Command, *args: str
) -> AsyncIterator[tuple[subprocess.Popen[str], asyncpg.Connection, int]]:
    """A command whose statement waits for a lock on a table, another connection, and the process id of its own."""
    database = command.env["HOURBELL_DATABASE_URL"]
    locker, watcher = await asyncpg.connect(database), await asyncpg.connect(database)
    try:
        async with locker.transaction():
            await locker.execute(f"lock table hourbell.{table} in access exclusive mode")
            process = command.started(*args)
            yield process, watcher, await until_there_is(watcher, _WAITING)
    finally:
        await locker.close()
        await watcher.close()


async def until_there_is(watcher: asyncpg.Connection, query: str) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (value := await watcher.fetchval(query)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return value


async def ended(process: subprocess.Popen[str]) -> Done:
    out, err = await asyncio.to_thread(process.communicate, timeout=PATIENCE_SECONDS)
    assert "Traceback" not in err, err
    return Done(process.returncode, out, err)


@pytest.mark.parametrize(
    ("table", "args"),
    [
        ("jobs", ("jobs", "list")),
        ("leadership", ("doctor",)),
        ("migrations", ("migrate",)),
        ("api_keys", ("keys", "list")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_ctrl_c_ends_a_command_whose_statement_waits(
    direct: Command, table: str, args: tuple[str, ...]
) -> None:
    async with waiting_for(table, direct, *args) as (process, _, _):
        process.send_signal(signal.SIGINT)
        assert (await ended(process)).code == 130


@pytest.mark.parametrize(
    ("table", "args"),
    [
        ("api_keys", ("keys", "create", "--role", "admin", "--name", "ops")),
        ("migrations", ("migrate",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_database_that_is_lost_during_a_write_is_unavailable(
    direct: Command, table: str, args: tuple[str, ...]
) -> None:
    async with waiting_for(table, direct, *args) as (process, watcher, session):
        await watcher.execute("select pg_terminate_backend($1)", session)
        done = await ended(process)
    assert done.code == 6
    assert "may or may not have taken effect" in done.err


# The command, which shows the first key long after it was created: in a second the tests may not have seen it.
SHOWS_LATE = """
from hourbell.cli.main import main
from hourbell.engine.operations import api_keys
api_keys.KEYLESS_SECONDS = 600.0
main()
"""


async def test_ctrl_c_does_not_lose_a_key_that_was_created(direct: Command, database: str) -> None:
    watcher = await asyncpg.connect(database)
    try:
        create = ("keys", "create", "--role", "admin", "--name", "ops")
        creating = direct.started(*create, program=(sys.executable, "-c", SHOWS_LATE))
        await until_there_is(watcher, "select 1 from hourbell.api_keys")
        creating.send_signal(signal.SIGINT)
        done = await ended(creating)
    finally:
        await watcher.close()
    assert done.code == 130
    assert done.out.startswith("hb_")
    assert "shown only once" in done.err


async def test_ctrl_c_does_not_lose_a_key_that_is_just_being_created(direct: Command) -> None:
    create = ("keys", "create", "--role", "admin", "--name", "ops")
    async with waiting_for("audit", direct, *create) as (process, _, _):
        process.send_signal(signal.SIGINT)
    done = await ended(process)
    assert (done.code, done.out[:3]) == (130, "hb_")


@pytest.mark.parametrize("how", ["Ctrl-C", "Ctrl-D"])
def test_a_question_that_is_interrupted_is_no_refusal(direct: Command, how: str) -> None:
    terminal, side = pty.openpty()
    asking = subprocess.Popen(
        [HOURBELL, "jobs", "delete", "nightly"],
        env=direct.env,
        stdin=side,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(side)
    assert asking.stderr is not None
    said = b""
    while not said.endswith(b"[y/N]: "):
        said += os.read(asking.stderr.fileno(), 1024)
    if how == "Ctrl-D":
        os.write(terminal, b"\x04")
    while how == "Ctrl-C":
        # A signal that arrives just before the process reads does not interrupt it: press again.
        asking.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            asking.wait(10)
            break
    out, rest = asking.communicate(timeout=PATIENCE_SECONDS)
    os.close(terminal)
    assert (asking.returncode, out, rest) == (130, b"", b"\n")


async def test_a_server_that_is_named_is_called(direct: Command) -> None:
    direct.env["HOURBELL_URL"] = f"http://127.0.0.1:{free_port()}"
    said = await on(direct, "jobs", "list", good=False)
    assert said.startswith("6 hourbell: No response from")
