"""A worker that is killed leaves nothing behind: no process of a task, and no child of one."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.life.support import eventually

TESTS = Path(__file__).parents[2]

# What a worker does for a task with process=True, without a database.
WORKER = """
import asyncio, os, signal, sys
import msgspec
from hourbell.model.executions import Claimed
from hourbell.sdk.processes.messages import Call, Start
from hourbell.sdk.processes.pool import Process

folder, how = sys.argv[1:]

async def main():
    start = Start(sys.path, None, [], "unit.library.lonely_tasks", "app", "postgresql://", False, False, "w")
    process = await Process.start(start)
    if how == "forked" and os.fork() == 0:  # has copies of all that the worker has opened
        with open(folder + "/forked", "w") as file:
            file.write(str(os.getpid()))
        signal.pause()
    claimed = msgspec.structs.astuple(Claimed(1, 1, "default", 1, 1, 0.0, None, "{}"))
    payload = msgspec.json.encode({"folder": folder, "in_c": how == "in_c"})
    await process.call(Call("lonely.wait", payload, claimed, 600.0, b""), None)

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not kill a process group")
@pytest.mark.parametrize("how", ["sleeping", "stopped", "in_c", "forked"])
async def test_a_killed_worker_leaves_no_process_and_no_child_of_one(
    tmp_path: Path, how: str
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path), how],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    pids: list[int] = []
    try:

        async def written() -> bool:
            assert worker.poll() is None
            return (tmp_path / "pids").exists()

        await eventually(written, 60)
        pids += map(int, (tmp_path / "pids").read_text().split())
        if how == "stopped":
            os.kill(pids[0], signal.SIGSTOP)
        worker.kill()
        await asyncio.to_thread(worker.wait)

        async def gone() -> bool:
            return not any(map(is_alive, pids))

        await eventually(gone)
    finally:
        worker.kill()
        if (tmp_path / "forked").exists():
            pids.append(int((tmp_path / "forked").read_text()))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
