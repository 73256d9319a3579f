"""The Dockerfile, the unit and the README in empty Debian roots: `make deploy-test`, as root on a machine with a network.

Takes about six minutes, and is no part of `make test`.
"""

import contextlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import pytest

import services
from deployment.debian import Image, booted, build, command_in, make_root, network
from hourbell import __version__
from ports import free_port
from readme import Newcomer, follow
from wheels import ROOT
from wheels import build as build_wheel

pytestmark = pytest.mark.timeout(900)
LARGEST_MIB = 260
READY_SECONDS = 60
DRAIN_SECONDS = 60  # until Kubernetes, Compose and systemd kill
NEWCOMER = 1000


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for program, package in (("mmdebstrap", "mmdebstrap"), ("systemd-nspawn", "systemd-container")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed. As root: apt-get install {package}")
    # Users in the roots pass through it.
    made = tmp_path_factory.mktemp("debian")
    for each in (made, *made.parents[:3]):
        each.chmod(each.stat().st_mode | 0o111)
    return made


@pytest.fixture(scope="session")
def base(folder: Path) -> Path:
    make_root("debian:13-slim", folder / "base")
    return folder / "base"


@pytest.fixture(scope="session")
def image(folder: Path, base: Path) -> Image:
    """What the Dockerfile makes of this tree."""
    (folder / "image").mkdir()
    return build(ROOT / "deploy" / "Dockerfile", base, folder / "image", {"COMMIT": "0123456789ab"})


@pytest.fixture(scope="session")
def wheel(folder: Path) -> Path:
    return build_wheel(ROOT, "wheel", folder / "dist")


class Server:
    """Debian's PostgreSQL 15; the folder of its socket can be entered by every user."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.sockets = Path(dsn.partition("?host=")[2])
        self.sockets.chmod(0o711)


@pytest.fixture
def postgres() -> Iterator[Server]:
    with services.running_postgres15() as dsn:
        yield Server(dsn)


class Target(http.server.ThreadingHTTPServer):
    """Receives a webhook, and answers when the test says so."""

    def __init__(self) -> None:
        self.received, self.may_answer = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Target

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.received.set()
        assert self.server.may_answer.wait(DRAIN_SECONDS)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_answer.set()
        server.shutdown()


def asked(port: int, path: str, key: str | None, body: object = None) -> Any:
    headers = {"Content-Type": "application/json", "Idempotency-Key": "one"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", content, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def eventually(holds: Callable[[], Any], seconds: float = READY_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
    return found


def is_ready(port: int) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError):
        asked(port, "/readyz", None)
        return True
    return False


def webhook_to(target: Target) -> dict[str, Any]:
    return {
        "name": "hello",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "WEBHOOK", "url": target.url, "method": "POST", "body": {}},
    }


def status_of(port: int, key: str | None, job: str) -> str:
    (run,) = asked(port, f"/api/v1/jobs/{job}/executions", key)["items"]
    return str(run["status"])


class Container:
    """One process of the image, as process 1 of its own; a signal goes to it."""

    def __init__(self, command: list[str]) -> None:
        self.port = 0
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM, and wait; the exit code and the log."""
        (first,) = psutil.Process(self._process.pid).children()
        first.terminate()
        log, _ = self._process.communicate(timeout=DRAIN_SECONDS)
        return self._process.returncode, log.decode()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


class Limits:
    """A control group with the limits of the chart's pods, and a quarter of a CPU, which is what they request."""

    MEMORY_BYTES = 1024**3

    def __init__(self) -> None:
        name = f"hourbell-test-{os.getpid()}"
        one = Path("/sys/fs/cgroup")
        self._unified = (one / "cgroup.controllers").exists()
        self.folders = (
            [one / name] if self._unified else [one / "memory" / name, one / "cpu" / name]
        )
        for folder in self.folders:
            folder.mkdir()
        memory, cpu = self.folders[0], self.folders[-1]
        if self._unified:
            (memory / "memory.max").write_text(str(self.MEMORY_BYTES))
            (cpu / "cpu.max").write_text("25000 100000")
        else:
            (memory / "memory.limit_in_bytes").write_text(str(self.MEMORY_BYTES))
            (cpu / "cpu.cfs_quota_us").write_text("25000")

    def around(self, command: list[str]) -> list[str]:
        enter = [f"echo $$ > {folder}/cgroup.procs" for folder in self.folders]
        return ["sh", "-c", " && ".join([*enter, 'exec "$@"']), "sh", *command]

    def peak_bytes(self) -> int:
        name = "memory.peak" if self._unified else "memory.max_usage_in_bytes"
        return int((self.folders[0] / name).read_text())

    def remove(self) -> None:
        for folder in self.folders:
            folder.rmdir()


@pytest.fixture
def limits() -> Iterator[Limits]:
    try:
        made = Limits()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    made.remove()


class Cell:
    """The containers of one database, with their secrets in files."""

    def __init__(self, image: Image, server: Server, target: Target, secrets: Path) -> None:
        self._image, self._shared = image, [server.sockets, secrets]
        self.key = "hb_" + "k" * 43
        (secrets / "admin-key").write_text(self.key)
        (secrets / "database-url").write_text(server.dsn)
        self.variables = {
            "HOURBELL_ADMIN_KEY_FILE": f"{secrets}/admin-key",
            "HOURBELL_DATABASE_URL_FILE": f"{secrets}/database-url",
            "HOURBELL_EGRESS_ALLOW": f"127.0.0.1:{target.server_port}",
        }
        self.started: list[Container] = []

    def does(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = self._image.command(*arguments, shared=self._shared, **self.variables)
        return subprocess.run(command, capture_output=True, text=True, timeout=READY_SECONDS)

    def starts(self, role: str, limits: Limits | None = None) -> Container:
        port = free_port()
        variables = self.variables | {"HOURBELL_PORT": str(port)}
        command = self._image.command(role, shared=self._shared, **variables)
        container = Container(command if limits is None else limits.around(command))
        container.port = port
        self.started.append(container)
        return container


@pytest.fixture
def cell(folder: Path, image: Image, postgres: Server, target: Target) -> Iterator[Cell]:
    secrets = folder / f"secrets-{postgres.sockets.parent.name}"
    secrets.mkdir()
    made = Cell(image, postgres, target, secrets)
    yield made
    for container in made.started:
        container.kill()


def test_the_image_has_the_program_and_what_it_requires_and_nothing_else(image: Image) -> None:
    packages = image.root / "opt/hourbell/lib/python3.13/site-packages"
    found = {one.name.lower().replace("_", "-") for one in distributions(path=[str(packages)])}
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    locked = {
        name for name, rest in re.findall(r"^(\S+)==\S+(.*)", lock, re.M) if "win32" not in rest
    }
    assert found == locked | {"hourbell"}
    assert (packages / "hourbell/ui_files/index.html").exists()
    assert list((packages / "hourbell/model").rglob("*.pyc"))  # compiled: the root is read-only
    for absent in ("usr/bin/git", "usr/bin/curl", "usr/bin/pip", "usr/bin/gcc", "build"):
        assert not (image.root / absent).exists()


def test_the_image_is_small(image: Image) -> None:
    done = subprocess.run(["du", "-xsm", str(image.root)], capture_output=True, text=True)
    assert int(done.stdout.split()[0]) < LARGEST_MIB, done.stdout


def test_the_image_says_its_version_and_cannot_write(image: Image) -> None:
    said = subprocess.run(image.command("--version"), capture_output=True, text=True)
    assert said.stdout == f"hourbell {__version__} (commit 0123456789ab)\n"
    write = image.run(["touch", "/opt/hourbell/x", "/tmp/x"], (), {})
    done = subprocess.run(write, capture_output=True, text=True)
    assert done.stderr.count("Read-only file system") == 2


def test_a_cell_of_containers_is_healthy_runs_a_webhook_and_drains(
    limits: Limits, cell: Cell, image: Image, target: Target
) -> None:
    early = cell.does("worker")
    assert (early.returncode, "hourbell migrate" in early.stderr) == (2, True)
    assert cell.does("migrate").returncode == 0
    api, scheduler = (cell.starts(role) for role in ("api", "scheduler"))
    worker, key = cell.starts("worker", limits), cell.key
    for container in (api, scheduler, worker):
        eventually(lambda at=container.port: is_ready(at))
        check = image.health_check(HOURBELL_PORT=str(container.port))
        assert subprocess.run(check).returncode == 0
    absent = image.health_check(HOURBELL_PORT=str(free_port()))
    assert subprocess.run(absent, capture_output=True).returncode != 0

    job = asked(api.port, "/api/v1/jobs", key, webhook_to(target))["job_id"]
    assert target.received.wait(READY_SECONDS)
    # The webhook is answered only after the worker was told to stop, and is recorded all the same.
    threading.Timer(1.0, target.may_answer.set).start()
    began = time.monotonic()
    code, log = worker.stop()
    assert (code, "Stopped." in log) == (0, True), log
    assert time.monotonic() - began < DRAIN_SECONDS / 2
    assert status_of(api.port, key, job) == "SUCCEEDED"
    assert limits.peak_bytes() < limits.MEMORY_BYTES / 4
    assert [container.stop()[0] for container in (api, scheduler)] == [0, 0]


def test_a_container_that_is_stopped_while_it_starts_ends_at_once(cell: Cell) -> None:
    assert cell.does("migrate").returncode == 0
    container = cell.starts("worker")
    eventually(lambda: psutil.Process(container._process.pid).children())
    first = psutil.Process(container._process.pid).children()[0]
    eventually(lambda: first.name() == "tini")
    began = time.monotonic()
    container.stop()
    assert time.monotonic() - began < 10


@pytest.fixture
def machine(folder: Path, wheel: Path) -> Path:
    """An empty Debian 12 with systemd, and Hourbell as the first lines of the unit install it."""
    root = folder / "machine"
    make_root("debian:12-slim", root, ("systemd-sysv", "dbus", "python3-venv", "ca-certificates"))
    unit = ROOT / "deploy" / "systemd" / "hourbell@.service"
    shutil.copytree(unit.parent, root / "systemd")
    shutil.copy(wheel, root / "systemd")
    lines = re.findall(r"^#   (.*)$", unit.read_text(), re.MULTILINE)
    *install, enable = [
        line.partition("    #")[0].replace(" && systemctl daemon-reload", "") for line in lines
    ]
    assert enable == "systemctl enable --now hourbell@api hourbell@scheduler hourbell@worker"
    for line in install:
        command = command_in(
            root,
            ["sh", "-c", line],
            env=network() | {"PIP_FIND_LINKS": "/systemd"},
            directory="/systemd",
        )
        subprocess.run(command, check=True)
    return root


def test_systemd_starts_restarts_and_drains_what_the_unit_describes(
    machine: Path, postgres: Server, target: Target
) -> None:
    ports = {role: free_port() for role in ("api", "scheduler", "worker")}
    settings = machine / "etc" / "hourbell"
    common = settings / "hourbell.env"
    inside = postgres.dsn.replace(str(postgres.sockets), "/srv/postgres")
    written, found = re.subn(
        r"(?m)^(HOURBELL_DATABASE_URL)=.*", rf"\1={inside}", common.read_text()
    )
    assert found == 1
    common.write_text(written + f"HOURBELL_EGRESS_ALLOW=127.0.0.1:{target.server_port}\n")
    for role, port in ports.items():
        (settings / f"{role}.env").write_text(f"HOURBELL_PORT={port}\n")

    with booted(machine, {postgres.sockets: "/srv/postgres"}) as run:
        units = [f"hourbell@{role}" for role in ports]
        run("systemctl", "enable", "--now", *units)  # each of them migrates
        for port in ports.values():
            eventually(lambda at=port: is_ready(at))
        shown = dict(
            line.split("=", 1)
            for line in run("systemctl", "show", units[2], "-p", "MemoryMax,TasksMax").splitlines()
        )
        assert shown == {"MemoryMax": str(1024**3), "TasksMax": "512"}
        first = int(run("systemctl", "show", units[2], "-p", "MainPID", "--value"))
        status = run("cat", f"/proc/{first}/status")
        assert re.search(r"^CapBnd:\t0+$", status, re.MULTILINE)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert not re.search(r"^Uid:\t0\b", status, re.MULTILINE)

        job = asked(ports["api"], "/api/v1/jobs", None, webhook_to(target))["job_id"]
        assert target.received.wait(READY_SECONDS)
        threading.Timer(1.0, target.may_answer.set).start()
        began = time.monotonic()
        run("systemctl", "stop", units[2])
        assert time.monotonic() - began < DRAIN_SECONDS / 2
        result = run("systemctl", "show", units[2], "-p", "Result,ExecMainStatus")
        assert set(result.splitlines()) == {"Result=success", "ExecMainStatus=0"}
        assert status_of(ports["api"], None, job) == "SUCCEEDED"

        run("systemctl", "kill", "--signal=KILL", units[0])
        eventually(lambda: run("systemctl", "show", units[0], "-p", "NRestarts", "--value") == "1")
        eventually(lambda: is_ready(ports["api"]))


def test_the_readme_works_in_an_empty_debian(folder: Path, base: Path, wheel: Path) -> None:
    root = folder / "readme"
    subprocess.run(["cp", "--archive", str(base), str(root)], check=True)
    # What a machine has on which Python is used.
    packages = "python3 python3-venv curl ca-certificates"
    install = f"apt-get update && apt-get install --yes --no-install-recommends {packages}"
    install += f" && useradd --uid {NEWCOMER} --create-home newcomer"
    env = {"DEBIAN_FRONTEND": "noninteractive"} | network()
    subprocess.run(command_in(root, ["sh", "-c", install], env=env), check=True)
    home = root / "home" / "newcomer"
    shutil.copy(wheel, home)

    def shell(script: str, env: Mapping[str, str]) -> list[str]:
        return command_in(
            root,
            ["bash", "-c", script],
            env=env,
            uid=NEWCOMER,
            directory="/home/newcomer",
            own_processes=False,
        )

    # The index of this machine does not have the wheel of this tree.
    env = network() | {"HOME": "/home/newcomer", "PIP_FIND_LINKS": "/home/newcomer"}
    newcomer = Newcomer(home, env, shell)
    try:
        follow(newcomer)
    finally:
        newcomer.kill()
