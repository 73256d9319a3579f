"""Databases for tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from hourbell.testing.servers import remove_leftovers

RUN = """
import sys, time
from pathlib import Path
from hourbell.store.embedded import EmbeddedServer

server = EmbeddedServer(Path(sys.argv[1]) / "data", owner="a test run")
server.start()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_the_server_of_a_run_that_was_killed_is_stopped_by_the_next_run(tmp_path: Path) -> None:
    folder = tmp_path / "hourbell-pytest-1"
    folder.mkdir()
    os.chmod(tmp_path, 0o711)
    (tmp_path / "hourbell-pytest-new").mkdir()  # of a run that is just beginning
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    postgres = psutil.Process(int(run.stdout.readline()))
    remove_leftovers(tmp_path)
    assert postgres.is_running()  # its owner lives
    run.send_signal(signal.SIGKILL)
    run.wait()
    remove_leftovers(tmp_path)
    postgres.wait(timeout=60)
    assert [each.name for each in tmp_path.iterdir()] == ["hourbell-pytest-new"]
    run.stdout.close()
