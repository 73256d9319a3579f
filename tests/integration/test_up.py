"""`hourbell up` as a newcomer runs it: a real process, HTTP, signals."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

import services
from answers import opened
from hourbell.store import embedded
from hourbell.store.migrations import migrate
from ports import free_port

PATIENCE_SECONDS = 60.0


class Up:
    """One `hourbell up` process on a data folder."""

    def __init__(self, folder: Path, closed: int | None = None, **env: str) -> None:
        """`closed`: the number of a stream that it does not get."""
        self.port = free_port()
        self.folder = folder
        self.greeting = ""
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
            start_new_session=True,  # a group of its own, as a terminal gives it one
            preexec_fn=None if closed is None else partial(os.close, closed),
        )

    def ask(self, method: str, path: str, body: object = None, key: str | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Idempotency-Key": key} if key else {}),
        )
        with opened(request, timeout=30) as answer:
            return json.load(answer)

    def answers(self, method: str, path: str) -> bool:
        assert self.process.poll() is None, self.said()
        try:
            self.ask(method, path)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def until_ready(self) -> None:
        eventually(lambda: self.answers("GET", "/readyz"))

    def fates(self, job_id: str) -> list[str]:
        items = self.ask("GET", f"/api/v1/jobs/{job_id}/executions")["items"]
        return [item["status"] for item in items]

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.read()

    def said_until(self, word: str) -> str:
        assert self.process.stdout is not None
        said = ""
        for line in self.process.stdout:
            said += line
            if word in line:
                return said
        raise AssertionError(f"it never said {word!r}, but: {said}")

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def interrupt(self) -> str:
        self.press_ctrl_c()
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


def server_of(folder: Path) -> int:
    """The PostgreSQL server that runs in this data folder. Until it has a title, a new child has the command line too."""
    return int((folder / "postgres" / "postmaster.pid").read_text().split()[0])


def servers_of(folder: Path) -> list[int]:
    """PostgreSQL processes that sit in this data folder."""
    found = []
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "postgres" and str(folder) in " ".join(
            process.info["cmdline"] or ()
        ):
            found.append(process.pid)
    return found


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def folder() -> Iterator[Path]:
    with services.folder_for_databases() as made:
        yield made / "data"


@pytest.fixture(scope="module")
def stopped() -> Iterator[Path]:
    """A data folder that was migrated and left in order; copying is faster than making another."""
    with services.folder_for_databases() as private:
        with embedded.EmbeddedServer(private / "data", owner="tests") as server:
            asyncio.run(migrate(server.dsn))
        yield private / "data"


@pytest.fixture
def data(folder: Path, stopped: Path) -> Path:
    subprocess.run(["cp", "-a", str(stopped), str(folder)], check=True)
    return folder


@pytest.fixture(scope="module")
def shared(stopped: Path) -> Iterator[Up]:
    """A process that is up, for tests that leave it so; `greeting` is what it said first."""
    with services.folder_for_databases() as private:
        subprocess.run(["cp", "-a", str(stopped), str(private / "data")], check=True)
        up = Up(private / "data", HOURBELL_LEASE_SECONDS="30")
        up.greeting = up.said_until("Ctrl-C")
        up.until_ready()
        yield up
        up.interrupt()


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


def test_a_job_with_a_queue_of_its_own_runs(shared: Up) -> None:
    document = hello(shared.port) | {"queue": "of-its-own"}
    job = shared.ask("POST", "/api/v1/jobs", document, key="queue")
    eventually(lambda: shared.fates(job["job_id"]) == ["SUCCEEDED"])


@pytest.mark.parametrize(
    ("task", "named"),
    [("greet", {}), ("thank", {"tasks": ["thank"]})],
    ids=["all tasks", "its tasks"],
)
def test_a_worker_over_http_gets_every_task_that_only_it_can_run(
    shared: Up, task: str, named: dict[str, Any]
) -> None:
    up = shared
    greet = hello(up.port) | {"action": {"type": "TASK", "name": task}}
    jobs = [up.ask("POST", "/api/v1/jobs", greet, key=f"{task} {n}")["job_id"] for n in range(20)]
    eventually(
        lambda: up.ask("GET", f"/api/v1/jobs/{jobs[-1]}/explain")["code"] == "no_worker_for_task"
    )
    seen: list[str] = []
    token = None
    while len(seen) < 20:
        wish = {"worker_id": "w", "capacity": 3, "wait_seconds": 10, "session_token": token}
        claim = up.ask("POST", "/internal/v1/executions/claim", wish | named)
        token = claim["session_token"] or token
        for execution in claim["executions"]:
            assert execution["attempt"] == 1
            seen.append(execution["job_id"])
            outcome = {"status": "SUCCEEDED", "duration_ms": 1, "session_token": token}
            outcome |= {"fence_token": execution["fence_token"]}
            path = f"/internal/v1/executions/{execution['execution_id']}/complete"
            up.ask("POST", path, outcome)
    up.ask("POST", "/internal/v1/sessions/close", {"session_token": token})
    assert sorted(seen) == sorted(jobs)


def test_every_address_of_the_greeting_answers(shared: Up) -> None:
    job_id = shared.ask("POST", "/api/v1/jobs", hello(shared.port), key="first")["job_id"]
    addresses = re.findall(r"http://[^\s'\"]+", shared.greeting)
    assert f"Dashboard http://127.0.0.1:{shared.port}\n" in shared.greeting
    assert len(addresses) == 6
    for address in addresses:
        with opened(address.replace("JOB_ID", job_id), timeout=30) as answer:
            assert answer.status == 200


def test_a_second_ctrl_c_stops_at_once_what_runs_and_postgresql_too(
    data: Path, started: list[Up]
) -> None:
    up = Up(data)
    started.append(up)
    up.until_ready()
    with socket.socket() as slow:  # takes connections and never answers
        slow.bind(("127.0.0.1", 0))
        slow.listen()
        job = up.ask("POST", "/api/v1/jobs", hello(slow.getsockname()[1]), key="slow")
        eventually(lambda: up.fates(job["job_id"]) == ["RUNNING"])
        backends = psutil.Process(server_of(data)).children()
        up.press_ctrl_c()
        up.said_until("Draining")
        up.press_ctrl_c()
        asked_at = time.monotonic()
        said = up.said()
        assert up.process.wait(PATIENCE_SECONDS) == 130
        assert time.monotonic() - asked_at < 20  # a drain waits for 30 s
    assert said == "Stopped.\n"
    assert servers_of(data) == []
    assert backends
    assert not any(alive(process) for process in backends)


def test_without_a_stdout_it_works_and_drains(data: Path, started: list[Up]) -> None:
    up = Up(data, closed=1)
    started.append(up)
    up.until_ready()
    job = up.ask("POST", "/api/v1/jobs", hello(up.port), key="silent")
    eventually(lambda: up.fates(job["job_id"]) == ["SUCCEEDED"])
    assert "Traceback" not in up.interrupt()
    assert up.process.returncode == 0
    assert servers_of(data) == []


def test_a_second_start_finds_the_old_data(data: Path, started: list[Up]) -> None:
    first = Up(data)
    started.append(first)
    first.until_ready()
    job = first.ask("POST", "/api/v1/jobs", hello(first.port, 3600), key="later")
    first.interrupt()
    second = Up(data)
    started.append(second)
    second.until_ready()
    assert second.ask("GET", f"/api/v1/jobs/{job['job_id']}") == job


def test_after_kill_9_the_next_start_recovers_and_loses_nothing(
    data: Path, started: list[Up]
) -> None:
    first = Up(data)
    started.append(first)
    first.until_ready()
    jobs = [
        first.ask("POST", "/api/v1/jobs", hello(first.port, 1), key=str(number))["job_id"]
        for number in range(5)
    ]
    first.process.kill()
    first.process.wait()
    second = Up(data, HOURBELL_PORT=str(first.port))
    second.port = first.port
    started.append(second)
    second.until_ready()
    eventually(lambda: all(second.fates(job) == ["SUCCEEDED"] for job in jobs))


def test_a_postgresql_that_dies_under_it_is_started_again(data: Path, started: list[Up]) -> None:
    up = Up(data)
    started.append(up)
    up.until_ready()
    job = up.ask("POST", "/api/v1/jobs", hello(up.port, 3600), key="1")
    os.kill(server_of(data), signal.SIGKILL)
    eventually(lambda: up.answers("GET", f"/api/v1/jobs/{job['job_id']}"))
    up.until_ready()
    assert "Traceback" not in up.interrupt()  # an outage is told in lines


def test_a_second_process_on_the_same_folder_is_told_who_is_there(shared: Up) -> None:
    second = Up(shared.folder)
    said = second.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert second.process.returncode == 2
    assert str(shared.process.pid) in said


def test_a_port_that_is_taken_is_named_and_nothing_is_left_running(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        up = Up(data, HOURBELL_PORT=str(port))
        said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert str(port) in said
    assert "Traceback" not in said
    assert servers_of(data) == []


def test_a_wrong_setting_is_named(folder: Path) -> None:
    up = Up(folder, HOURBELL_WORKER_SLOTS="many")
    said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert "HOURBELL_WORKER_SLOTS" in said


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://me:secret@127.0.0.1:9/x", "refused"),
        ("postgresql://me:secret@no.such.host.invalid/x", "not known"),
        ("postgresql:///x?host=/no/such/folder", "the socket of the server does not exist"),
    ],
)
def test_a_database_that_cannot_be_reached_is_named_with_the_reason(
    folder: Path, url: str, reason: str
) -> None:
    up = Up(folder, HOURBELL_DATABASE_URL=url)
    said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert "HOURBELL_DATABASE_URL" in said
    assert reason in said
    assert "idempotency" not in said
    assert "secret" not in said
    assert "Traceback" not in said


def test_a_database_that_does_not_exist_is_named(folder: Path, postgres: str) -> None:
    up = Up(folder, HOURBELL_DATABASE_URL=postgres.replace("/postgres?", "/nowhere?"))
    said = up.process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert up.process.returncode == 2
    assert "HOURBELL_DATABASE_URL" in said
    assert 'database "nowhere" does not exist' in said
    assert "Traceback" not in said


def command(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "hourbell", *arguments],
        env=os.environ | {"HOURBELL_DATA_DIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stdout


def test_keys_are_created_listed_and_revoked_beside_a_running_up(
    data: Path, started: list[Up]
) -> None:
    up = Up(data)
    started.append(up)
    up.until_ready()
    up.ask("GET", "/api/v1/jobs")  # it is open
    code, said = command(data, "keys", "create", "--role", "admin", "--name", "me")
    assert code == 0, said
    with pytest.raises(urllib.error.HTTPError, match="401"):  # by the time that the key is shown
        up.ask("GET", "/api/v1/jobs")
    code, listed = command(data, "keys", "list", "--output", "json")
    (key,) = json.loads(listed)
    assert (code, key["role"], key["name"], key["revoked_at"]) == (0, "admin", "me", None)
    assert said.splitlines()[-1] not in listed
    code, said = command(data, "keys", "revoke", key["key_id"])
    assert (code, "last key of an administrator" in said) == (5, True)
    assert up.process.poll() is None


def test_a_command_beside_a_server_that_does_not_answer_says_who_has_the_folder(
    folder: Path,
) -> None:
    holder = embedded._lock_folder(folder.resolve(), "http://127.0.0.1:1")
    code, said = command(folder, "keys", "list")
    os.close(holder)
    assert code == 2
    assert f"process {os.getpid()}, http://127.0.0.1:1" in said
    assert "Traceback" not in said


def test_a_data_folder_that_is_no_cluster_gets_a_sentence(folder: Path) -> None:
    (folder / "postgres").mkdir(parents=True)
    (folder / "postgres" / "notes.txt").write_text("not a cluster")
    code, said = command(folder, "up")
    assert code == 2
    assert "is not a PostgreSQL cluster" in said
    assert "Traceback" not in said
