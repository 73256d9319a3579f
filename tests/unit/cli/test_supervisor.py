"""The supervisor of `hourbell worker --processes` and `--reload`: deaths, restarts, stops, changes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hourbell.cli.supervisor import changes, modified, restart_delay

# A worker as the supervisor sees it: it notes that it started, and ends when the pipe says so.
WORKER = """
import os, sys, pathlib
folder, control = pathlib.Path(sys.argv[1]), int(sys.argv[sys.argv.index("--control") + 1])
(folder / f"started-{os.getpid()}").touch()
said = os.read(control, 1)
(folder / f"{'drained' if said else 'orphaned'}-{os.getpid()}").touch()
"""
SUPERVISOR = """
import sys
from pathlib import Path
from hourbell.cli import supervisor
supervisor.STOP_SECONDS = 5.0
"""


def start(code: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR + code, str(folder)], stdout=log, stderr=log
        )


def pids(folder: Path, what: str) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in folder.glob(f"{what}-*")}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "worker.py").write_text(WORKER)
    return tmp_path


SUPERVISE = (
    "sys.exit(supervisor.Supervisor([[sys.executable, sys.argv[1] + '/worker.py', sys.argv[1]]] * 2,"
    " 0.0).run())"
)


def test_a_killed_worker_is_restarted_and_a_signal_drains_all_of_them(folder: Path) -> None:
    supervisor = start(SUPERVISE, folder)
    until(lambda: len(pids(folder, "started")) == 2)
    killed, stopped = pids(folder, "started")
    os.kill(killed, signal.SIGKILL)
    until(lambda: len(pids(folder, "started")) == 3)
    os.kill(stopped, signal.SIGSTOP)  # it will not hear that it has to drain
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    (third,) = pids(folder, "started") - {killed, stopped}
    assert pids(folder, "drained") == {third}
    assert not any(map(is_alive, (killed, stopped, third)))
    said = (folder / "log").read_text()
    assert "worker process died" in said
    assert "killed by SIGKILL" in said
    assert "worker process did not stop, killed" in said


def test_workers_learn_that_their_supervisor_was_killed(folder: Path) -> None:
    supervisor = start(SUPERVISE, folder)
    until(lambda: len(pids(folder, "started")) == 2)
    supervisor.kill()
    supervisor.wait()
    until(lambda: pids(folder, "orphaned") == pids(folder, "started"))


def test_five_deaths_in_a_minute_end_the_supervisor(folder: Path) -> None:
    command = "[sys.executable, '-c', 'import sys; sys.exit(7)']"
    supervisor = start(f"sys.exit(supervisor.Supervisor([{command}] * 5, 0.0).run())", folder)
    assert supervisor.wait(30) == 1
    said = (folder / "log").read_text()
    assert said.count("worker process died") == 4
    assert "worker processes die too often" in said
    assert "exit status 7" in said


def test_restarts_wait_longer_the_more_workers_have_died() -> None:
    assert [restart_delay(deaths) for deaths in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]


def test_a_changed_file_restarts_the_worker(folder: Path) -> None:
    supervisor = start(
        "sys.exit(supervisor.Reloader([sys.executable, sys.argv[1] + '/worker.py', sys.argv[1]],"
        " Path(sys.argv[1]), 5.0).run())",
        folder,
    )
    until(lambda: len(pids(folder, "started")) == 1)
    (first,) = pids(folder, "started")
    (folder / "tasks.py").write_text("# new")
    until(lambda: len(pids(folder, "started")) == 2)
    assert not is_alive(first)
    supervisor.send_signal(signal.SIGINT)
    assert supervisor.wait(30) == 0
    assert pids(folder, "drained") == pids(folder, "started")


def test_only_files_that_users_write_are_watched(tmp_path: Path) -> None:
    for name in (
        "shop/tasks.py",
        "shop/notes.txt",
        ".git/x.py",
        "env/lib/y.py",
        "__pycache__/z.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert list(modified(tmp_path)) == [str(tmp_path / "shop/tasks.py")]
    assert changes({"a": 1, "b": 1, "c": 1}, {"b": 2, "c": 1, "d": 1}) == ["a", "b", "d"]
