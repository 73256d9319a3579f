"""`hourbell doctor`, `hourbell forecast` and `hourbell top`, on a cell that works and on ones that do not."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import termios
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from conftest import in_database
from hourbell.engine.core import Engine
from hourbell.engine.views.diagnosis import examine
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.cli.conftest import HOURBELL, Command, eventually

DatabaseMaker = Callable[[str], AbstractAsyncContextManager[str]]


@pytest.fixture
def hourbell(hourbell_process: Command) -> Command:
    """In a process of its own: it has an event loop, and looks at the encoding of its output."""
    return hourbell_process


def checks(done: Any) -> dict[str, str]:
    return {one["check"]: one["level"] for one in done.json}


def test_a_running_up_is_healthy(hourbell: Command) -> None:
    done = hourbell.good("doctor", "-o", "json")
    assert set(checks(done).values()) == {"ok"}
    assert {"settings", "schema", "database", "clock", "leader", "workers"} < set(checks(done))
    shown = hourbell.good("doctor").out
    assert "ok    leader" in shown
    assert "→" not in shown


def test_work_that_no_live_worker_serves_is_noted_and_found(hourbell: Command) -> None:
    typo = hourbell.good("jobs", "create", "typo", "--task", "shop.remnid", "--delay", "0")
    assert "Note: no live worker runs the task shop.remnid in the queue default" in typo.err
    served = hourbell.good("jobs", "create", "call", "--url", "http://127.0.0.1:1/", "--delay", "9")
    assert "Note" not in served.err
    hourbell.good("jobs", "delete", served.out.strip(), "--yes")

    def found() -> list[str]:
        done = hourbell("doctor", "-o", "json")
        return [one["what"] for one in done.json if one["check"] == "tasks"]

    job = typo.out.strip()
    says = "in queue default, 1 execution waits for a live worker with the task shop.remnid"
    eventually(lambda: found() == [says])
    assert hourbell.good("jobs", "explain", job, "-o", "json").json["code"] == "no_worker_for_task"
    hourbell.good("jobs", "delete", job, "--yes")
    assert found() == ["every task has a worker"]


def test_nothing_runs(hourbell: Command, tmp_path: Path) -> None:
    done = hourbell("doctor", HOURBELL_DATA_DIR=str(tmp_path))
    assert done.code == 1
    assert "FAIL  database" in done.out
    assert "hourbell up" in done.out
    assert list(tmp_path.iterdir()) == []  # it starts nothing and creates nothing


def test_a_wrong_setting_and_a_wrong_database_are_findings(hourbell: Command) -> None:
    done = hourbell("doctor", HOURBELL_WORKER_SLOTS="many")
    assert (done.code, "FAIL  settings" in done.out) == (1, True)
    done = hourbell("doctor", HOURBELL_DATABASE_URL="postgresql://nobody@127.0.0.1:1/x")
    assert (done.code, "FAIL  database" in done.out) == (1, True)


async def test_a_database_that_is_not_migrated(
    hourbell: Command, postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("drop schema hourbell cascade")
        await connection.close()
        done = await asyncio.to_thread(hourbell, "doctor", HOURBELL_DATABASE_URL=dsn)
    assert done.code == 1
    assert "FAIL  schema" in done.out
    assert "hourbell migrate" in done.out


# What a cell looks like when nobody has looked after it for an hour.
NEGLECTED = """
do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$;
delete from hourbell.sessions;
insert into hourbell.tenants (name, created_at) values ('t', now());
insert into hourbell.queues (name, created_at) values ('mail', now());
insert into hourbell.due (run_at, id, tenant, queue, priority)
  select now() - interval '1 hour', n, 1, (select id from hourbell.queues where name = 'mail'), 1
  from generate_series(1, 3) as n;
insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
  values (7, gen_random_uuid(), 'w', '{1}', 1, now() - interval '2 hours', now() - interval '2 hours',
          now() - interval '1 hour');
insert into hourbell.suspects (tag, id, queue, priority, since) values (1, 9, 1, 1, now());
insert into hourbell.timetables (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version,
                                 broken, look_at)
  values ('0 0 * * *', 'Mars/Olympus', 'skip', 'once', now(), null, null, '1999a', 'unknown_timezone', now());
insert into hourbell.timetables (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
  values ('0 1 * * *', 'UTC', 'skip', 'once', now(), now() - interval '1 hour', now() - interval '1 hour', '1999a'),
    ('0 2 * * *', 'UTC', 'skip', 'once', now(), now(), now(), '1999a');
insert into hourbell.declared (app, key, problem, problem_digest, problem_at) values
  ('shop', 'shop.nightly', 'schedule.exclude: names the calendar bank, which does not exist.', 'd', now()),
  ('shop', 'shop.gone', 'no worker has declared this for an hour', 'd', now() - interval '1 hour');
insert into hourbell.queues (name, created_at) values ('post', now());
insert into hourbell.parked (kind, key, priority, rank, id)
  select 6, (id::bigint << 32) + 1, 1, 0, 4 from hourbell.queues where name = 'post';  -- for a task
insert into hourbell.notices (at, scheduled_for, job, tenant, event) values (now() - interval '1 hour', now(), 1, 1, 1);
insert into hourbell.function_sets (digest, version, used_at) values
  ('other', '0.0.1', now() - interval '1 hour'),
  ('unused', '0.0.0', now() - interval '1 day');
insert into hourbell.dead_letters (id, tenant, died_at, reason, execution)
  values (5, 1, now(), 'retries_exhausted', '{}');
"""


@pytest.mark.parametrize("server", ["postgres", "pgbouncer"])
async def test_a_neglected_cell(
    hourbell: Command, new_database: DatabaseMaker, server: str, request: pytest.FixtureRequest
) -> None:
    postgres = request.getfixturevalue("postgres")
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute(NEGLECTED)
        await connection.close()
        if server == "pgbouncer":
            pooler = request.getfixturevalue("pgbouncer")
            dsn = dsn_in(pooler, dsn)
        done = await asyncio.to_thread(hourbell, "doctor", "-o", "json", HOURBELL_DATABASE_URL=dsn)
    found = checks(done)
    assert done.code == 1
    failed = {check for check, level in found.items() if level == "failure"}
    assert failed == {"leader", "planning", "schedules", "workers", "queues", "notifications"}
    warned = {check for check, level in found.items() if level == "warning"}
    assert warned == {"commits", "tzdata", "functions", "tasks", "suspects", "dead letters"} | (
        {"pooler"} if server == "pgbouncer" else set()
    )
    what = {one["check"]: one["what"] for one in done.json}
    assert [one["what"] for one in done.json if one["check"] == "planning"] == [
        "the leader cannot compute unknown_timezone: Mars/Olympus",
        "1 timetable is late",
    ]
    assert "in queue mail, 3 executions have been due for up to 36" in what["queues"]
    assert "shop.nightly: schedule.exclude: names the calendar bank" in what["schedules"]
    assert "shop.gone" not in what["schedules"]
    assert what["functions"] == "other builds are in use: 0.0.1"
    assert all(one["advice"] for one in done.json if one["level"] != "ok")


async def test_an_open_transaction_is_seen(database: str) -> None:
    opened = await Database.open(database, connections=1)
    user = await asyncpg.connect(database)
    try:
        async with user.transaction():
            await user.execute("select pg_sleep(0.1)")  # its age: more than a statement takes
            state = await examine(Engine(opened, DatabaseClock(opened)), 0.0)
    finally:
        await user.close()
        await opened.close()
    assert state.oldest_transaction_seconds > 0.1


async def test_a_role_that_may_not_see_other_sessions_is_told(
    hourbell: Command, database: str
) -> None:
    owner = await asyncpg.connect(database)
    await owner.execute("""
        create role watcher login;
        grant usage on schema hourbell to watcher;
        grant select on all tables in schema hourbell to watcher;
        grant execute on all functions in schema hourbell to watcher;
    """)
    dsn = database.replace("//postgres@", "//watcher@")

    async def found() -> dict[str, Any]:
        done = await asyncio.to_thread(hourbell, "doctor", "-o", "json", HOURBELL_DATABASE_URL=dsn)
        return {one["check"]: one for one in done.json}

    try:
        blind = await found()
        assert blind["transactions"]["level"] == "warning"
        assert "may not see the transactions of" in blind["transactions"]["what"]
        # Its own and ours are counted all the same.
        used = re.findall(r"(\d+) of \d+ connections", blind["database"]["what"])
        assert int(used[0]) >= 2
        (grant,) = re.findall("`(.*)`", blind["transactions"]["advice"])
        await owner.execute(grant)
        assert (await found())["transactions"]["level"] == "ok"
    finally:
        await owner.execute("drop owned by watcher; drop role watcher")
        await owner.close()


async def test_an_unsafe_database_is_found_with_what_to_do(
    up: dict[str, str], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourbell.store.database.OLDEST_VERSION", 99)
    in_process = Command(up | {"HOURBELL_DATABASE_URL": database})
    done = await asyncio.to_thread(in_process, "doctor", "-o", "json")
    found = done.json[-1]
    assert (found["check"], found["level"]) == ("database", "failure")
    assert found["what"].endswith("but Hourbell needs 99 or newer")
    assert found["advice"].startswith("Upgrade the server")


@pytest.mark.parametrize(("slow", "level"), [(1, "ok"), (100, "warning")])
async def test_one_slow_answer_is_no_finding_about_the_clock(
    up: dict[str, str], database: str, monkeypatch: pytest.MonkeyPatch, slow: int, level: str
) -> None:
    measured = iter([None] * slow + [0.0])

    async def drift_seconds(_: DatabaseClock) -> float | None:
        return next(measured)

    monkeypatch.setattr(DatabaseClock, "drift_seconds", drift_seconds)
    in_process = Command(up | {"HOURBELL_DATABASE_URL": database})
    done = await asyncio.to_thread(in_process, "doctor", "-o", "json")
    assert checks(done)["clock"] == level


# The function that the product asks for the time.
_CLOCK_AHEAD = """
create or replace function hourbell.clock() returns timestamptz language sql volatile
return clock_timestamp() + interval '25 seconds'
"""


@pytest.mark.parametrize(
    ("change", "check", "level", "what", "advice"),
    [
        (_CLOCK_AHEAD, "clock", "warning", "this machine is 2", "NTP"),
        (
            "insert into hourbell.migrations (name, digest, requires) values ('9999_x.sql', '', '9999_x.sql')",
            "schema",
            "failure",
            "A newer version of Hourbell has applied migration 9999_x.sql",
            "Run the newer version.",
        ),
        (
            "insert into hourbell.migrations (name, digest) values ('0000_x.sql', '')",
            "schema",
            "failure",
            "A development version of Hourbell has applied migration 0000_x.sql",
            "Use an empty database",
        ),
        (
            "delete from hourbell.function_sets",
            "schema",
            "failure",
            "lacks tables or functions",
            "hourbell migrate",
        ),
    ],
)
async def test_a_clock_that_differs_and_another_schema_are_found(
    hourbell: Command,
    postgres: str,
    new_database: DatabaseMaker,
    change: str,
    check: str,
    level: str,
    what: str,
    advice: str,
) -> None:
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute(change)
        await connection.close()
        done = await asyncio.to_thread(hourbell, "doctor", "-o", "json", HOURBELL_DATABASE_URL=dsn)
    (found,) = [one for one in done.json if one["check"] == check]
    assert found["level"] == level
    assert what in found["what"]
    assert advice in found["advice"]


def dsn_in(pooler: str, dsn: str) -> str:
    """The database of a DSN, through a pooler."""
    return in_database(pooler, dsn.partition("?")[0].rpartition("/")[2])


async def test_a_migrated_database_without_processes_has_no_leader_and_no_worker(
    hourbell: Command, postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("delete from hourbell.sessions")  # of the tests
        await connection.close()
        done = await asyncio.to_thread(hourbell, "doctor", "-o", "json", HOURBELL_DATABASE_URL=dsn)
    failed = {check for check, level in checks(done).items() if level == "failure"}
    assert failed == {"leader", "workers"}


def test_the_forecast_is_drawn(hourbell: Command) -> None:
    assert "Nothing is due" in hourbell.good("forecast", "--hours", "2").err
    hourbell.good("jobs", "create", "often", "--cron", "*/10 * * * *", "--task", "count")
    done = hourbell.good("forecast", "--hours", "24")
    assert done.out.startswith("Executions due in each hour")
    assert "█" in done.out
    total = re.match(
        r"(\d+) executions; the busiest minute is [-0-9]+ [:0-9]+Z with 1\.$", done.err
    )
    assert total is not None
    assert 143 <= int(total[1]) <= 145
    drawn = re.findall(r"^\d\d:\d\d +(\d+)", done.out, re.MULTILINE)
    assert sum(map(int, drawn)) == int(total[1])
    assert "#" in hourbell.good("forecast", PYTHONIOENCODING="ascii").out
    assert hourbell("forecast", "--timezone", "Mars/Olympus").code == 2
    whole = hourbell.good("forecast", "-o", "json").json
    assert whole["minutes"]
    narrow = hourbell.on_terminal("forecast", columns=50)
    assert all(len(line) <= 50 for line in narrow.splitlines()[:25])


def test_the_overview_is_shown(hourbell: Command) -> None:
    shown = hourbell.good("top", "--once").out
    assert "leader " in shown.splitlines()[0]
    assert "1 worker" in shown
    assert "PRIORITY" in shown
    whole = hourbell.good("top", "-o", "json").json
    assert whole["window"] == "1h"
    assert whole["leader"]["present"]
    assert hourbell("top", "--window", "2h").code == 2


class OverviewOnce(BaseHTTPRequestHandler):
    """Passes the first request on to a real server; the next one fails when it may."""

    url = ""
    passed = False
    may_fail: threading.Event

    def do_GET(self) -> None:
        cls = type(self)
        if cls.passed:
            cls.may_fail.wait(60)
            self.send_error(500)
            return
        cls.passed = True
        with urllib.request.urlopen(cls.url + self.path) as answer:
            body = answer.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def broken_later(up: dict[str, str]) -> Iterator[tuple[str, threading.Event]]:
    """The URL of a server that shows one overview, and what lets the next request fail."""
    may_fail = threading.Event()
    own = {"url": f"http://127.0.0.1:{up['HOURBELL_PORT']}", "may_fail": may_fail}
    handler = type("Handler", (OverviewOnce,), own)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", may_fail
    may_fail.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("how", "code"),
    [("q", 0), ("Ctrl-C", 130), ("terminated", 143), ("error", 6)],
)
def test_the_overview_leaves_the_terminal_as_it_was(
    hourbell: Command, broken_later: tuple[str, threading.Event], how: str, code: int
) -> None:
    broken, may_fail = broken_later
    ours, side = pty.openpty()
    before = termios.tcgetattr(side)
    process = subprocess.Popen(
        [HOURBELL, "top", "--every", "1" if how == "error" else "3600"],
        env=hourbell.env | ({"HOURBELL_URL": broken} if how == "error" else {}),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        # The terminal controls it: Ctrl-C is a key. Tests started in the background ignore the signal.
        preexec_fn=lambda: (
            fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            signal.signal(signal.SIGINT, signal.SIG_DFL),
        ),
    )
    seen = b""
    while b"ttention" not in seen:  # the end of the picture
        seen += os.read(ours, 65_536)
    during = termios.tcgetattr(side)
    assert during != before  # keys are read one by one
    may_fail.set()
    if how == "terminated":
        process.terminate()
    elif how != "error":
        os.write(ours, b"q" if how == "q" else b"\x03")
    drained = threading.Thread(target=drain, args=(ours,), daemon=True)
    drained.start()
    assert process.wait(60) == code, seen
    assert termios.tcgetattr(side) == before
    os.close(side)
    drained.join()
    os.close(ours)


def drain(terminal: int) -> None:
    """Read what a command still writes: it would wait for a full terminal."""
    with contextlib.suppress(OSError):  # the other end is closed
        while os.read(terminal, 65_536):
            pass
