"""The README, as a newcomer follows it: every shell block, in order."""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ports import free_port

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 120
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


class Newcomer:
    """Types the blocks into a shell, in a folder of their own. What serves stays until the next `hourbell up`."""

    def __init__(
        self,
        folder: Path,
        env: Mapping[str, str],
        shell: Callable[[str, Mapping[str, str]], list[str]],
    ) -> None:
        """`shell` gives the command line that runs a script in this environment; its process becomes the script's last one."""
        self.folder = folder
        self.port = free_port()
        self.log = folder / "up.log"
        self.server: subprocess.Popen[bytes] | None = None
        self._env = {"HOURBELL_PORT": str(self.port), "PYTHONUNBUFFERED": "1"} | dict(env)
        self._shell = shell

    def types(self, block: str) -> str:
        """Run a block to its end; what it printed."""
        shell = self._started(block)
        output, log = shell.communicate(timeout=PATIENCE_SECONDS)
        assert shell.returncode == 0, f"{block}\n{output.decode()}{log.decode()}"
        return output.decode()

    def starts(self, block: str) -> None:
        """Run `hourbell up …` in the background, until it serves."""
        self.stops()
        with self.log.open("w") as log:
            self.server = self._started(f"exec {block}", log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while "Press Ctrl-C to drain and stop everything." not in self.log.read_text():
            assert self.server.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)

    def stops(self) -> None:
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(PATIENCE_SECONDS) == 0, self.log.read_text()

    def asks(self, path: str, accepted: str = "application/json") -> bytes:
        address = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(address, headers={"Accept": accepted})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
        return found

    def kill(self) -> None:
        """End what a failed test has left."""
        if self.server is not None and self.server.poll() is None:
            self.server.kill()
            self.server.wait()

    def _started(self, block: str, log: Any = subprocess.PIPE) -> "subprocess.Popen[bytes]":
        activated = "set -eu\nif [ -e .venv/bin/hourbell ]; then . .venv/bin/activate; fi\n"
        script = activated + block.replace(":8080", f":{self.port}")
        return subprocess.Popen(
            self._shell(script, self._env),
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def until_succeeded(newcomer: Newcomer, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        (run,) = json.loads(newcomer.asks(f"/api/v1/jobs/{job}/executions"))["items"]
        if run["status"] == "SUCCEEDED":
            return
        assert time.monotonic() < deadline, run
        time.sleep(0.05)


def follow(newcomer: Newcomer) -> None:
    """Run all blocks, and check what they show."""
    install, up, create, curl, preview, up_shop, script, curls = blocks("sh")
    (source,) = blocks("python")
    (newcomer.folder / "shop.py").write_text(source)

    newcomer.types(install)
    newcomer.starts(up)
    assert "<title>" in newcomer.asks("/", "text/html").decode()
    told = newcomer.types(create)
    assert re.search(r"^job_\w{13}$", told, re.MULTILINE)
    assert "02:00:00+05:30" in told
    made = json.loads(newcomer.types(curl))
    assert (made["status"], made["next_run_at"][10:]) == ("SCHEDULED", "T02:00:00+05:30")
    assert "2027-03-14" in newcomer.types(preview)

    newcomer.starts(up_shop)
    assert re.fullmatch(r"job_\w{13} reminded of cart 7\n", newcomer.types(script))
    answers = [json.loads(newcomer.types(each)) for each in re.split(r"\n\n", curls.strip())]
    assert [answer.get("status") for answer in answers[:2]] == ["SCHEDULED", "SCHEDULED"]
    names = {item["name"] for item in answers[2]["items"]}
    assert names >= {"hello", "reminder", "nightly-report", "nightly-seller-report"}
    for job in answers[:2]:
        until_succeeded(newcomer, job["job_id"])
    newcomer.stops()
    assert '"cart": 8' in newcomer.log.read_text()
    assert (newcomer.folder / ".local/share/hourbell").is_dir()
