"""Time zone data of an older release, for a node that was not updated with the others.

It is a copy of the installed `tzdata` without YOUNG, a zone that IANA added in 2025b, and with the name of the release
before. A process finds it instead of the installed one if the folder comes first on its PYTHONPATH.
"""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import tzdata

YOUNG = "America/Coyhaique"
RELEASE = "2025a"


def write_older_tzdata(folder: Path) -> Path:
    """Write the copy; returns the folder for PYTHONPATH."""
    copy = folder / "tzdata"
    with resources.as_file(resources.files("tzdata")) as installed:
        shutil.copytree(installed, copy, ignore=shutil.ignore_patterns("__pycache__"))
    copy.joinpath("zoneinfo", *YOUNG.split("/")).unlink()
    names = copy / "zones"
    kept = [name for name in names.read_text("ascii").splitlines() if name != YOUNG]
    names.write_text("\n".join(kept) + "\n", "ascii")
    module = copy / "__init__.py"
    text = module.read_text("utf-8")
    assert text.count(f'"{tzdata.IANA_VERSION}"') == 1
    module.write_text(text.replace(tzdata.IANA_VERSION, RELEASE), "utf-8")
    return folder
