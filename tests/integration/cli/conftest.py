"""The command `hourbell` against a real `hourbell up`."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import services
from answers import opened
from hourbell.cli.main import main
from ports import free_port

PATIENCE_SECONDS = 60.0
HOURBELL = Path(sys.executable).with_name("hourbell")


class Done(msgspec.Struct):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """Runs `hourbell` with an environment of its own, in this process: a new one takes longer than what it is asked."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = {name: value for name, value in os.environ.items() if "HOURBELL" not in name}
        self.env |= env

    def __call__(self, *args: str, stdin: str = "", **env: str) -> Done:
        known: dict[str, str | None] = {**self.env, **env}
        unset = {name: None for name in os.environ if name not in known}
        done = CliRunner(env=known | unset).invoke(
            main, args, input=stdin, prog_name="hourbell", catch_exceptions=False
        )
        return Done(done.exit_code, done.stdout, done.stderr)

    def good(self, *args: str, stdin: str = "", **env: str) -> Done:
        done = self(*args, stdin=stdin, **env)
        assert done.code == 0, done.err
        return done

    def on_terminal(self, *args: str, columns: int = 80, **env: str) -> str:
        """What the user of a terminal sees."""
        main, side = pty.openpty()
        process = subprocess.Popen(
            [HOURBELL, *args],
            env={**self.env, "COLUMNS": str(columns), "TERM": "xterm", **env},
            stdin=side,
            stdout=side,
            stderr=side,
        )
        os.close(side)
        seen = b""
        while True:
            try:
                part = os.read(main, 65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            seen += part
        os.close(main)
        assert process.wait(PATIENCE_SECONDS) == 0, seen
        return seen.decode().replace("\r\n", "\n")

    def started(
        self, *args: str, program: Sequence[str | Path] = (HOURBELL,)
    ) -> subprocess.Popen[str]:
        """A command that runs until it is interrupted."""
        return subprocess.Popen(
            [*program, *args],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Started in the background of a script, the tests ignore Ctrl-C, and so would their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )


class ProcessCommand(Command):
    """Runs `hourbell` as a user does, in a process of its own."""

    def __call__(self, *args: str, stdin: str = "", **env: str) -> Done:
        done = subprocess.run(
            [HOURBELL, *args],
            env=self.env | env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def up() -> Iterator[dict[str, str]]:
    """The environment of a running `hourbell up`."""
    with services.private_folder() as folder:
        port = free_port()
        env = {
            "HOURBELL_DATA_DIR": str(folder / "data"),
            "HOURBELL_PORT": str(port),
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        process = subprocess.Popen(
            [HOURBELL, "up"],
            env=os.environ | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(lambda: is_ready(port))
        yield env
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.fixture
def hourbell(up: dict[str, str]) -> Command:
    return Command(up)


@pytest.fixture
def hourbell_process(up: dict[str, str]) -> Command:
    return ProcessCommand(up)


@pytest.fixture
def url(up: dict[str, str]) -> str:
    return f"http://127.0.0.1:{up['HOURBELL_PORT']}"


@pytest.fixture
def config(up: dict[str, str]) -> Iterator[Path]:
    """The file with profiles; it does not exist yet."""
    path = Path(up["XDG_CONFIG_HOME"]) / "hourbell" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def is_ready(port: int) -> bool:
    try:
        with opened(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def eventually(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < give_up_at, "it never came true"
        time.sleep(0.02)
