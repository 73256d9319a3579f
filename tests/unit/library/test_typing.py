"""Type checkers find wrong calls of tasks, and no right one is refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FILES = Path(__file__).parents[2] / "typing"
MYPY = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context"]
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]


def lines_with_errors(command: list[str], *files: Path) -> list[set[int]]:
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    error = r":(\d+)(?::\d+)?(?: -)?:? error"
    return [{int(line) for line in re.findall(file.name + error, done.stdout)} for file in files]


@pytest.mark.parametrize("command", [MYPY, PYRIGHT], ids=["mypy", "pyright"])
def test_every_wrong_line_is_an_error_and_no_other(command: list[str]) -> None:
    bad = FILES / "bad.py"
    expected = {n for n, line in enumerate(bad.read_text().splitlines(), 1) if line.endswith("# E")}
    assert len(expected) == 35
    assert lines_with_errors(command, bad, FILES / "good.py") == [expected, set()]
