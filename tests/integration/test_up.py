"""`hourbell up` as a newcomer runs it: a real process, HTTP, signals."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import services

PATIENCE_SECONDS = 60.0


class Up:
    """One `hourbell up` process on a data folder."""

    def __init__(self, folder: Path, **env: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder = folder
        ours = {
            "HOURBELL_DATA_DIR": str(folder),
            "HOURBELL_PORT": str(self.port),
            "HOURBELL_LEASE_SECONDS": "2",
            "HOURBELL_LEADER_LEASE_SECONDS": "2",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hourbell", "up"],
            env=os.environ | ours | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Idempotency-Key": key} if key else {}),
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def until_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.said()
            try:
                return bool(self.ask("GET", "/readyz")["status"] == "ready")
            except (urllib.error.URLError, ConnectionError):
                return False

        eventually(ready)

    def fates(self, job_id: str) -> list[str]:
        items = self.ask("GET", f"/api/v1/jobs/{job_id}/executions")["items"]
        return [item["status"] for item in items]

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def interrupt(self) -> str:
        self.process.send_signal(signal.SIGINT)
        said = self.process.communicate(timeout=PATIENCE_SECONDS)[0]
        return said


def eventually(holds: Any) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.02)


def hello(port: int, delay_seconds: int = 0) -> dict[str, Any]:
    return {
        "name": "hello",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": delay_seconds},
        "action": {"type": "WEBHOOK", "url": f"http://127.0.0.1:{port}/livez", "method": "GET"},
    }


def servers_of(folder: Path) -> list[int]:
    """PostgreSQL processes that sit in this data folder."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "postgres" and str(folder) in " ".join(
            process.info["cmdline"] or ()
        ):
            found.append(process.pid)
    return found


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.private_folder() as made:
        yield made / "data"


@pytest.fixture
def started(folder: Path) -> Iterator[list[Up]]:
    """Processes of the test; whatever is left of them is ended."""
    processes: list[Up] = []
    yield processes
    for up in processes:
        if up.process.poll() is None:
            up.interrupt()
        assert up.process.stdout is not None
        up.process.stdout.close()


def test_a_first_job_runs_and_ctrl_c_stops_everything(folder: Path, started: list[Up]) -> None:
    up = Up(folder)
    started.append(up)
    up.until_ready()
    job = up.ask("POST", "/api/v1/jobs", hello(up.port), key="first")
    eventually(lambda: up.fates(job["job_id"]) == ["SUCCEEDED"])
    said = up.interrupt()
    assert up.process.returncode == 0
    assert "curl" in said
    assert "Stopped." in said
    assert servers_of(folder) == []


def test_a_second_start_finds_the_old_data(folder: Path, started: list[Up]) -> None:
    first = Up(folder)
    started.append(first)
    first.until_ready()
    job = first.ask("POST", "/api/v1/jobs", hello(first.port, 3600), key="later")
    first.interrupt()
    second = Up(folder)
    started.append(second)
    second.until_ready()
    assert second.ask("GET", f"/api/v1/jobs/{job['job_id']}") == job


def test_after_kill_9_the_next_start_recovers_and_loses_nothing(
    folder: Path, started: list[Up]
) -> None:
    first = Up(folder)
    started.append(first)
    first.until_ready()
    jobs = [
        first.ask("POST", "/api/v1/jobs", hello(first.port, 1), key=str(number))["job_id"]
        for number in range(5)
    ]
    first.process.kill()
    first.process.wait()
    second = Up(folder, HOURBELL_PORT=str(first.port))
    second.port = first.port
    started.append(second)
    second.until_ready()
    eventually(lambda: all(second.fates(job) == ["SUCCEEDED"] for job in jobs))


def test_a_second_process_on_the_same_folder_is_told_who_is_there(
    folder: Path, started: list[Up]
) -> None:
    first = Up(folder)
    started.append(first)
    first.until_ready()
    second = Up(folder)
    said = second.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert second.process.returncode == 2
    assert str(first.process.pid) in said


def test_a_port_that_is_taken_is_named_and_nothing_is_left_running(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = Up(folder, HOURBELL_PORT=str(port))
        said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert str(port) in said
    assert "Traceback" not in said
    assert servers_of(folder) == []


def test_a_wrong_setting_is_named(folder: Path) -> None:
    up = Up(folder, HOURBELL_WORKER_SLOTS="many")
    said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert "HOURBELL_WORKER_SLOTS" in said
