"""The two builds that the processes of a run are started from: the present tree, and an older commit of it.

The older one is taken out of the repository by `git archive`, and runs in the same virtual environment. OLDER is the commit
with which the present tree has to work side by side on one database; it moves on with every release.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

OLDER = "9dd70809e1756fa11cfa4b9c2089f530acbabdfa"
TESTS = Path(__file__).parent.parent


class MissingBuild(Exception):
    """The commit of the older build is not there."""


class Build(NamedTuple):
    name: str  # older or present
    source: Path

    @property
    def path(self) -> str:
        """PYTHONPATH of a process that runs it; the rig's own modules are those of the present tree."""
        return f"{TESTS}:{self.source}"


PRESENT = Build("present", TESTS.parent / "src")


def extract(commit: str, folder: Path) -> Build:
    """Write the sources of a commit; MissingBuild if the repository does not have it."""
    archive = subprocess.run(
        ["git", "-C", str(TESTS.parent), "archive", commit, "src"], capture_output=True
    )
    if archive.returncode != 0:
        raise MissingBuild(
            f"The older build cannot be made: the commit {commit} is not in this repository"
            f" ({archive.stderr.decode().strip()}). Fetch its whole history, for example by"
            " `git fetch --unshallow`, or set OLDER in tests/chaos/builds.py."
        )
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return Build("older", folder / "src")
