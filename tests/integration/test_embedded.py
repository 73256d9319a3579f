"""The embedded PostgreSQL comes up, whatever happened to it and to its owner before."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

import services
from hourbell import App
from hourbell.errors import NoDatabase
from hourbell.model.errors import ConfigurationError, DataFolderBusy, EmbeddedServerFailed
from hourbell.store import embedded
from hourbell.store.embedded import EmbeddedServer

# Starts a server and says so; at Ctrl-C uses the server once more, as a drain does, and stops it.
OWNER = """
import asyncio, signal, sys
from pathlib import Path
import asyncpg
from hourbell.store.embedded import EmbeddedServer

async def drain(dsn):
    connection = await asyncpg.connect(dsn)
    await connection.execute("insert into note values ('drained')")
    await connection.close()

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
server = EmbeddedServer(Path(sys.argv[1]), owner="the first owner")
dsn = server.start()
print(server.pid, flush=True)
signal.sigwait({signal.SIGINT})
asyncio.run(drain(dsn))
server.stop()
"""

# A script that does not close its app; a child that it forks ends before it does.
CARELESS = """
import asyncio, os, sys
from pathlib import Path
from hourbell import App

app = App("shop", embedded=True)


@app.task
async def nothing() -> None: ...


async def main():
    await app.open()
    return [await nothing.enqueue() for _ in range(2)]


if sys.argv[1] == "async":
    jobs = asyncio.run(main())
else:
    jobs = [nothing.enqueue_sync()]
    if os.fork() == 0:
        sys.exit()
    os.wait()
    jobs.append(nothing.enqueue_sync())
pid = Path(os.environ["HOURBELL_DATA_DIR"], "postgres", "postmaster.pid").read_text().split()[0]
print(pid, len(jobs))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as private:
        yield private


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A data folder that was used and left in order; copying is faster than making another."""
    with services.private_folder() as private:
        with EmbeddedServer(private / "data", owner="tests"):
            pass
        yield private / "data"


@pytest.fixture
def data(folder: Path, made: Path) -> Path:
    subprocess.run(["cp", "-a", str(made), str(folder / "data")], check=True)
    return folder / "data"


@pytest.fixture
def server(data: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(data, owner="tests")
    server.start()
    yield server
    server.stop()


class Owner:
    """Another process that owns a server."""

    def __init__(self, data: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(data)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.server_pid = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> int:
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()


async def test_first_start_makes_a_durable_server_without_a_port(folder: Path) -> None:
    question = (
        "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where name "
        "in ('fsync', 'full_page_writes', 'listen_addresses', 'synchronous_commit', 'TimeZone')"
    )
    with EmbeddedServer(folder / "data", owner="tests") as server:
        settings = await ask(server, question)
    assert settings == (
        "TimeZone=UTC fsync=on full_page_writes=on listen_addresses= synchronous_commit=on"
    )


async def test_an_app_brings_its_own_server_only_if_it_says_so_and_others_join_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOURBELL_DATABASE_URL", raising=False)
    monkeypatch.setenv("HOURBELL_DATA_DIR", str(data))

    def shop(embedded: bool) -> App:
        app = App("shop", embedded=embedded)

        @app.task(name="double")
        async def double(number: int) -> int:
            return 2 * number

        return app

    async def refuses_to_open() -> None:
        with pytest.raises(NoDatabase, match="neither HOURBELL_DATABASE_URL nor"):
            await shop(embedded=False).open()

    await refuses_to_open()
    async with shop(embedded=True).worker():
        for joins in (shop(embedded=True), shop(embedded=False)):
            async with joins:
                assert await (await joins.get_task("double").enqueue(21)).result(60) == 42
                job = await joins.get_task("double").configure(delay=3600).enqueue(4)
    await refuses_to_open()  # it has stopped with its app
    own = shop(embedded=True)
    try:
        view = await asyncio.to_thread(own.job(job.id).get_sync)
    finally:
        await asyncio.to_thread(own.close_sync)
    assert view.status == "SCHEDULED"  # the data is still there
    await refuses_to_open()


@pytest.mark.parametrize("how", ["async", "sync"])
async def test_the_server_of_an_app_that_is_not_closed_stops_with_its_process(
    data: Path, how: str
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOURBELL_")}
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", CARELESS, how],
        env=env | {"HOURBELL_DATA_DIR": str(data)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    pid, jobs = map(int, ran.stdout.split())
    assert jobs == 2
    assert not psutil.pid_exists(pid) or not is_alive(psutil.Process(pid))


async def test_second_start_is_fast_and_finds_the_data(server: EmbeddedServer) -> None:
    await leave_note(server, "before")
    took = []
    for _ in range(3):
        server.stop()
        began = time.monotonic()
        server.start()
        took.append(time.monotonic() - began)
    assert min(took) < 3.0  # 0.03 on an idle machine
    assert await notes(server) == ["before"]


async def test_after_kill_of_postgres_the_next_start_recovers(server: EmbeddedServer) -> None:
    await leave_note(server, "committed")
    busy = await asyncpg.connect(server.dsn)  # its backend outlives the postmaster for a moment
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    server.start()
    assert await notes(server) == ["committed"]
    busy.terminate()


async def test_after_kill_of_the_owner_the_next_start_replaces_its_server(data: Path) -> None:
    owner = Owner(data)
    orphan = psutil.Process(owner.server_pid)
    left = EmbeddedServer(data, owner="tests")
    await leave_note(left, "committed")
    owner.kill()
    assert is_alive(orphan)
    with left as server:
        assert server.pid != orphan.pid
        assert not is_alive(orphan)
        assert await notes(server) == ["committed"]


async def test_after_kill_of_both_the_next_start_recovers(data: Path) -> None:
    owner = Owner(data)
    left = EmbeddedServer(data, owner="tests")
    await leave_note(left, "committed")
    owner.kill()
    os.kill(owner.server_pid, signal.SIGKILL)
    with left as server:
        assert await notes(server) == ["committed"]


async def test_a_stranger_with_the_number_of_the_old_server_is_left_alone(
    server: EmbeddedServer, data: Path
) -> None:
    await leave_note(server, "committed")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    postmaster_pid = data / "postgres" / "postmaster.pid"
    # Of the same account, so that PostgreSQL could take it for a server of its own.
    stranger = subprocess.Popen(["sleep", "600"], user=postmaster_pid.stat().st_uid, cwd="/")
    lines = postmaster_pid.read_text().splitlines(keepends=True)
    postmaster_pid.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
    try:
        server.start()
        assert await notes(server) == ["committed"]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_second_owner_is_refused_and_told_who_the_first_is(data: Path) -> None:
    owner = Owner(data)
    try:
        with pytest.raises(DataFolderBusy) as refused:
            EmbeddedServer(data, owner="the second owner").start()
        assert f"process {owner.process.pid}, the first owner" in refused.value.message
        assert psutil.pid_exists(owner.server_pid)
    finally:
        owner.kill()
    with EmbeddedServer(data, owner="the third owner") as server:
        assert await ask(server, "select 1") == 1


async def test_ctrl_c_reaches_the_owner_and_leaves_the_server_to_its_drain(data: Path) -> None:
    owner = Owner(data)
    server = EmbeddedServer(data, owner="tests")
    await leave_note(server, "before")
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.close() == 0
    with server:
        assert await notes(server) == ["before", "drained"]


async def test_a_path_too_long_for_a_socket_works(folder: Path) -> None:
    deep = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer(deep, owner="tests") as server:
        assert await ask(server, "select 1") == 1
        sockets = Path(server.dsn.partition("?host=")[2])
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert not sockets.exists()


async def test_a_path_with_odd_letters_works(folder: Path) -> None:
    with EmbeddedServer(folder / "Größe & % = 1 ,'x", owner="tests") as server:
        assert await ask(server, "select 1") == 1


async def test_a_folder_closed_to_others_works_and_stays_closed(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedServer(closed / "data", owner="tests") as server:
        assert await ask(server, "select 1") == 1
    with EmbeddedServer(closed / "data", owner="tests") as server:
        assert await ask(server, "select 1") == 1
    assert closed.stat().st_mode & 0o777 == 0o700


def test_stop_leaves_no_process_behind(server: EmbeddedServer) -> None:
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    assert len(processes) > 1
    server.stop()
    assert not any(is_alive(process) for process in processes)


def test_a_stop_during_a_start_leaves_nothing_running(folder: Path) -> None:
    server = EmbeddedServer(folder / "data", owner="tests")
    starting = threading.Thread(target=server.start)
    starting.start()
    while not (folder / "data" / "lock").exists():
        time.sleep(0.001)
    server.stop()
    starting.join()
    assert server.pid is None
    assert not list(embedded._processes_of(folder / "data" / "postgres"))


def test_stop_ends_a_server_that_does_not_listen(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FAST_STOP_SECONDS", 0.1)
    monkeypatch.setattr(embedded, "IMMEDIATE_STOP_SECONDS", 1.0)
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    processes = [postmaster, *postmaster.children(recursive=True)]
    postmaster.suspend()
    server.stop()
    assert not any(is_alive(process) for process in processes)


async def test_a_first_start_that_was_cut_short_leaves_nothing_in_the_way(folder: Path) -> None:
    half = folder / "data" / "postgres.new-half"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedServer(folder / "data", owner="tests") as server:
        assert await ask(server, "select 1") == 1
    assert not half.exists()


def test_a_failed_start_says_why_and_gives_the_folder_back(
    server: EmbeddedServer, data: Path
) -> None:
    server.stop()
    control = data / "postgres" / "global" / "pg_control"
    control.rename(control.with_name("elsewhere"))
    with pytest.raises(EmbeddedServerFailed, match="pg_control"):
        server.start()
    assert server.pid is None
    control.with_name("elsewhere").rename(control)
    server.start()


def test_files_of_another_major_version_are_refused(server: EmbeddedServer, data: Path) -> None:
    server.stop()
    (data / "postgres" / "PG_VERSION").write_text("17\n")
    with pytest.raises(ConfigurationError, match="created by PostgreSQL 17"):
        server.start()


def test_a_data_folder_that_is_no_folder_is_refused(folder: Path) -> None:
    (folder / "data").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        EmbeddedServer(folder / "data", owner="tests").start()


def test_a_log_that_grew_is_cut_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_BYTES", 10_000)
    log = folder / "data" / "postgres.log"
    log.parent.mkdir()
    log.write_text("old\n" * 5_000)
    with EmbeddedServer(folder / "data", owner="tests"):
        assert log.stat().st_size < 10_000
        assert log.with_name("postgres.log.1").stat().st_size == 5_000


def is_alive(process: psutil.Process) -> bool:
    # An orphan that ended stays a zombie where nobody collects orphans, as in some containers.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it was collected between the two calls
        return False


async def ask(server: EmbeddedServer, question: str) -> object:
    connection = await asyncpg.connect(server.dsn)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def leave_note(server: EmbeddedServer, text: str) -> None:
    connection = await asyncpg.connect(server.dsn)
    await connection.execute("create table if not exists note (text text)")
    await connection.execute("insert into note values ($1)", text)
    await connection.close()


async def notes(server: EmbeddedServer) -> list[str]:
    connection = await asyncpg.connect(server.dsn)
    rows = await connection.fetch("select text from note")
    await connection.close()
    return [row["text"] for row in rows]


@pytest.mark.parametrize("what", ["a folder with other files", "a file"])
def test_what_is_no_cluster_is_refused_and_left_as_it_is(folder: Path, what: str) -> None:
    (folder / "data").mkdir()
    cluster = folder / "data" / "postgres"
    if what == "a file":
        cluster.write_text("not a cluster")
    else:
        cluster.mkdir()
        (cluster / "notes.txt").write_text("not a cluster")
    with pytest.raises(ConfigurationError) as refused:
        EmbeddedServer(folder / "data", owner="tests").start()
    assert f"{cluster} exists but is not a PostgreSQL cluster" in refused.value.message
    assert "HOURBELL_DATA_DIR" in refused.value.message
    kept = cluster if what == "a file" else cluster / "notes.txt"
    assert kept.read_text() == "not a cluster"
    assert not [*(folder / "data").glob("postgres.new-*")]


@pytest.mark.parametrize("content", [b"", b"eighteen\n", b"\xff\xfe"])
def test_a_cluster_of_no_known_version_is_refused(folder: Path, content: bytes) -> None:
    cluster = folder / "data" / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        EmbeddedServer(folder / "data", owner="tests").start()
    assert "HOURBELL_DATA_DIR" in refused.value.message


def test_a_cluster_without_its_files_is_told_with_the_words_of_postgresql(folder: Path) -> None:
    cluster = folder / "data" / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text(f"{embedded.POSTGRES_MAJOR}\n")
    (cluster / "postmaster.pid").write_text("nonsense\n")
    with pytest.raises(EmbeddedServerFailed) as refused:
        EmbeddedServer(folder / "data", owner="tests").start()
    assert "did not start" in refused.value.message
