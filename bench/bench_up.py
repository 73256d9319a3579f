"""`hourbell up`: seconds from the start of the process until /readyz says so, the first time and on data that is there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from support import report

STARTS = 4


def start(folder: str) -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"HOURBELL_DATA_DIR": folder, "HOURBELL_PORT": str(port)}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "hourbell", "up"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                    return time.monotonic() - began
            except OSError:
                if process.poll() is not None or time.monotonic() - began > 60:
                    raise
                time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hourbell-bench-") as folder:
        first, *later = [round(start(folder), 2) for _ in range(STARTS)]
    report("up", first_start_seconds=first, second_start_seconds=min(later), later_starts=later)


if __name__ == "__main__":
    main()
