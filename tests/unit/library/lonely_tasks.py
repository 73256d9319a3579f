"""A task that never ends, with a child of its own, for workers that are killed."""

import ctypes
import os
import subprocess
import time
from pathlib import Path

from hourbell import App

app = App("lonely")


@app.task(process=True)
def wait(folder: str, in_c: bool) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    new = Path(folder) / "new"
    new.write_text(f"{os.getpid()} {child.pid}")
    new.rename(Path(folder) / "pids")  # never seen half written
    if in_c:
        ctypes.PyDLL(None).sleep(1000)  # no other thread of Python can run
    time.sleep(1000)
