"""Which commit this program was built from.

hatch_build.py loads this file by its path, where nothing else of Hourbell can be imported.
"""

import shutil
import subprocess
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
FILE = _PACKAGE / "commit.txt"  # in a wheel and a source distribution; not in a checkout
UNKNOWN = "unknown"


def commit() -> str:
    """The commit that was built in, or that of the checkout, with `-dirty` if files differ from it."""
    if FILE.exists():
        return FILE.read_text().strip() or UNKNOWN
    checkout = _PACKAGE.parents[1]
    git = shutil.which("git")
    # Without the check, git would answer for any repository above an installed package.
    if git is None or not (checkout / ".git").exists():
        return UNKNOWN
    describe = [git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(
        describe, cwd=checkout, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else UNKNOWN
