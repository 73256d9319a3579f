"""`hourbell worker` with several processes: sessions, health, what it runs, deaths and stops."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from answers import opened
from exposition import Metric, parsed
from hourbell import App
from hourbell.compose import Role, Running, running
from hourbell.engine.core import Engine
from hourbell.settings import Settings
from hourbell.worker.watchdog import Watchdog
from integration.library.process_tasks import app, clean_up
from integration.library.test_process_tasks import are_gone, pids_in
from integration.life.support import eventually
from ports import free_ports

TESTS = Path(__file__).parents[2]


def is_ready(port: int) -> bool:
    try:
        with opened(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            checks = json.load(answer)["checks"]
            return bool(checks["worker"] and checks["database"])
    except OSError:  # also a TimeoutError, if the answer does not come in time
        return False


def metrics_of(port: int) -> dict[str, Metric]:
    with opened(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return parsed(answer.read().decode())


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_several_processes_are_restarted_report_what_they_run_and_drain_with_their_supervisor(
    database: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "url", database)
    (tmp_path / "levels").write_text("info")
    port = free_ports(2)
    ports = port, port + 1
    with (tmp_path / "log").open("w") as log:
        supervisor = subprocess.Popen(
            [
                *(sys.executable, "-m", "hourbell", "worker", "integration.library.process_tasks"),
                *("--processes", "2", "--name", "w", "--drain", "0.1", "--lease", "3"),
                *("--health", f"127.0.0.1:{ports[0]}", "--pool-size", "1"),
            ],
            env={
                **os.environ,
                "HOURBELL_DATABASE_URL": database,
                "HOURBELL_LOG_LEVEL": f"@{tmp_path / 'levels'}",
                "PYTHONPATH": str(TESTS),
            },
            stdout=log,
            stderr=log,
        )
    try:
        async with app:

            async def names() -> bool:
                rows = await engine.database.fetch(
                    "select worker from hourbell.sessions where worker like 'w-%'"
                )
                return {row["worker"] for row in rows} == {"w-1", "w-2"}

            await eventually(names, 60)
            await eventually(lambda: asyncio.to_thread(lambda: all(map(is_ready, ports))), 60)

            # A worker is killed: nothing of it is left, not even a process that cannot act.
            (tmp_path / "first").mkdir()
            killed = await clean_up.enqueue(str(tmp_path / "first"))
            pids = await pids_in(tmp_path / "first")
            first = parent_of(pids[0])
            os.kill(pids[0], signal.SIGSTOP)
            os.kill(first, signal.SIGKILL)
            await are_gone(pids)
            await killed.cancel()
            await eventually(lambda: asyncio.to_thread(lambda: all(map(is_ready, ports))), 60)

            # What runs is reported.
            job = await clean_up.enqueue(str(tmp_path))
            pids = await pids_in(tmp_path)

            async def one_leads() -> bool:
                told = [await asyncio.to_thread(metrics_of, port) for port in ports]
                assert sum(each["hourbell_worker_in_flight"].value() for each in told) == 1
                # The leader shows the cell.
                leaders = [each for each in told if each["hourbell_leading"].value()]
                assert leaders == [each for each in told if "hourbell_workers" in each]
                return len(leaders) == 1

            await eventually(one_leads, 60)
            supervisor.send_signal(signal.SIGUSR1)

            async def reported() -> bool:
                text = (tmp_path / "log").read_text()
                return job.execution_id in text and "process_tasks.py" in text

            await eventually(reported)
            # And so are log levels that have changed.
            (tmp_path / "levels").write_text("info,tasks=debug")
            supervisor.send_signal(signal.SIGUSR2)

            async def read() -> bool:
                return (tmp_path / "log").read_text().count('"info,tasks=debug"') == 2

            await eventually(read)
            # The supervisor is killed: its workers drain.
            supervisor.kill()
            supervisor.wait()
            await are_gone(pids)

            async def stopped() -> bool:
                return (tmp_path / "log").read_text().count("Stopped.") == 2

            await eventually(stopped)
            view = await job.get()
            assert (view.status, view.attempt) == ("QUEUED", 0)  # interrupted: no attempt is used
    finally:
        supervisor.kill()
        supervisor.wait()
    said = (tmp_path / "log").read_text()
    assert f'"pid": {first}, "how": "killed by SIGKILL"' in said, said


STUBBORN = """
import asyncio, pathlib, time
from hourbell import App

app = App("stubborn")


@app.task(name="sleep")
async def sleep(file: str) -> None:
    pathlib.Path(file).write_text("began")
    await asyncio.to_thread(time.sleep, 300)


@app.task(name="ignore")
async def ignore(file: str) -> None:
    pathlib.Path(file).write_text("began")
    while True:
        try:
            await asyncio.sleep(300)
        except asyncio.CancelledError:
            pass
"""


SLOW_START = """
import asyncio, contextlib, sys
from hourbell import App


@contextlib.asynccontextmanager
async def lifespan(app):
    try:
        print("starting", flush=True)
        await asyncio.sleep(300)
        yield
    finally:
        print("cleaned up", flush=True)


app = App("slow", lifespan=lifespan)


@app.task
async def nothing() -> None: ...
"""


async def test_a_signal_while_a_worker_starts_ends_it_in_good_order(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_START)
    worker = subprocess.Popen(
        (sys.executable, "-m", "hourbell", "worker", "slow:app"),
        env={**os.environ, "HOURBELL_DATABASE_URL": database, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert await asyncio.to_thread(worker.stdout.readline) == "starting\n"
        worker.send_signal(signal.SIGTERM)
        said, _ = await asyncio.to_thread(worker.communicate, None, 20)
        assert said.splitlines() == ["cleaned up", "Stopped."]
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize("name", ["sleep", "ignore"])
async def test_a_worker_ends_beside_a_handler_that_does_not(
    database: str, engine: Engine, tmp_path: Path, name: str
) -> None:
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    file = tmp_path / "file"
    command = (sys.executable, "-m", "hourbell", "worker", "stubborn:app", "--drain", "0.1")
    worker = subprocess.Popen(
        command,
        env={**os.environ, "HOURBELL_DATABASE_URL": database, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        client = App("stubborn", url=database)

        @client.task(name=name)
        async def task(file: str) -> None: ...

        async with client:
            job = await task.enqueue(str(file))
            await eventually(lambda: asyncio.to_thread(file.exists), 60)
            worker.send_signal(signal.SIGTERM)
            said, _ = await asyncio.to_thread(worker.communicate, None, 20)
            assert said.splitlines()[-1] == "Stopped."
            assert worker.returncode == 0
            view = await job.get()
            assert (view.status, view.attempt) == ("QUEUED", 0)
    finally:
        worker.kill()
        worker.wait()


BROKEN = """
from hourbell import App
from hourbell.worker.watchdog import Watchdog

app = App("broken")


def fail(self, now):
    raise RuntimeError("a defect of the worker")


@app.task
async def break_the_worker() -> None:
    Watchdog._check = fail
"""


@pytest.mark.parametrize("command", ["worker", "up"])
async def test_a_process_whose_worker_ends_with_an_error_logs_it_and_ends(
    database: str, engine: Engine, tmp_path: Path, command: str
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    process = subprocess.Popen(
        (sys.executable, "-m", "hourbell", command, "broken:app"),
        env={
            **os.environ,
            "HOURBELL_DATABASE_URL": database,
            "HOURBELL_DATA_DIR": str(tmp_path / "data"),
            "HOURBELL_PORT": str(free_ports(1)),
            "PYTHONPATH": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        client = App("broken", url=database)

        @client.task(name="break_the_worker")
        async def break_the_worker() -> None: ...

        async with client:
            await break_the_worker.enqueue()
            told, logged = await asyncio.to_thread(process.communicate, None, 60)
        assert process.returncode == 1
        lines = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
        (ended,) = [line for line in lines if line["event"] == "worker ended with an error"]
        assert (ended["level"], ended["component"]) == ("error", "process")
        assert "a defect of the worker" in ended["exception"]
        assert logged.count("a defect of the worker") == ended["exception"].count("a defect of")
        assert told.splitlines()[-1] == "Stopped."
    finally:
        process.kill()
        process.wait()


async def ready(parts: Running) -> bool:
    return (await parts.ready())["worker"]


async def test_a_process_whose_worker_has_ended_with_an_error_is_not_ready(
    database: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(watchdog: Watchdog, now: float) -> None:
        raise RuntimeError("a defect of the worker")

    settings = Settings(data_dir=tmp_path, database_url=database, port=free_ports(1))
    async with running(database, settings, {Role.WORKER}) as parts:
        await eventually(lambda: ready(parts))
        monkeypatch.setattr(Watchdog, "_check", fail)
        with pytest.raises(ExceptionGroup, match="unhandled errors"):
            await parts.worker_ended()
        assert not await ready(parts)


async def test_the_error_that_ended_a_worker_of_a_program_is_raised(
    database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(watchdog: Watchdog, now: float) -> None:
        raise RuntimeError("a defect of the worker")

    own = App("own", url=database)

    @own.task(name="nothing")
    async def nothing() -> None: ...

    async def run() -> None:
        async with own.worker() as worker:
            monkeypatch.setattr(Watchdog, "_check", fail)
            await worker.ended()

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await run()


async def test_leaving_the_context_of_a_worker_raises_the_error_that_ended_it(
    database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = asyncio.Event()

    def fail(watchdog: Watchdog, now: float) -> None:
        ended.set()
        raise RuntimeError("a defect of the worker")

    own = App("own", url=database)

    @own.task(name="nothing")
    async def nothing() -> None: ...

    async def run() -> None:
        async with own.worker():
            monkeypatch.setattr(Watchdog, "_check", fail)
            await ended.wait()

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await run()
