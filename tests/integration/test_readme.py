"""The README, as a newcomer follows it: every shell block, in order, on the wheel of this tree.

`pip install "hourbell[server,embedded]"` is run as it is printed. The index that pip asks is a folder with the wheel; what
the wheel requires is already there.
"""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import services
from ports import free_port
from wheels import ROOT, build, link_requirements

PATIENCE_SECONDS = 60
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


class Newcomer:
    """Types the blocks into a shell, in a folder of their own. What serves stays until the next `hourbell up`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.log = folder / "up.log"
        self.server: subprocess.Popen[bytes] | None = None
        programs = folder / "bin"  # so that no `hourbell` of this environment is found
        programs.mkdir()
        (programs / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
        usual = {"HOME": str(folder), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin"}
        self.env = usual | {
            "HOURBELL_PORT": str(self.port),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(folder / "dist"),
            "PYTHONUNBUFFERED": "1",
        }

    def types(self, block: str) -> str:
        """Run a block to its end; what it printed."""
        shell = self._shell(block)
        output, log = shell.communicate(timeout=PATIENCE_SECONDS)
        assert shell.returncode == 0, f"{block}\n{output.decode()}{log.decode()}"
        return output.decode()

    def starts(self, block: str) -> None:
        """Run `hourbell up …` in the background, until it serves."""
        self.stops()
        with self.log.open("w") as log:
            self.server = self._shell(f"exec {block}", log)
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

    def _shell(self, block: str, log: Any = subprocess.PIPE) -> "subprocess.Popen[bytes]":
        activated = "set -eu\nif [ -e .venv/bin/hourbell ]; then . .venv/bin/activate; fi\n"
        return subprocess.Popen(
            ["bash", "-c", activated + block.replace(":8080", f":{self.port}")],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    with services.folder_for_databases() as folder:
        wheel = build(ROOT, "wheel", folder / "dist")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / ".venv" / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        link_requirements(wheel, {"server", "embedded"}, packages)
        person = Newcomer(folder)
        try:
            yield person
        finally:
            if person.server is not None and person.server.poll() is None:
                person.server.kill()
                person.server.wait()


def until_succeeded(newcomer: Newcomer, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        (run,) = json.loads(newcomer.asks(f"/api/v1/jobs/{job}/executions"))["items"]
        if run["status"] == "SUCCEEDED":
            return
        assert time.monotonic() < deadline, run
        time.sleep(0.05)


def test_every_shell_block_runs_as_printed(newcomer: Newcomer) -> None:
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
