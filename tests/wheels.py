"""The wheel of this tree, and environments with what it requires."""

import email
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

import services

ROOT = Path(__file__).parents[1]


def build(source: Path, target: str, folder: Path) -> Path:
    """The wheel or the source distribution of a tree, in this folder."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    if done.returncode != 0 and "the dashboard was not built" in done.stderr:
        services.unavailable("What builds the dashboard")
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return file


def link_requirements(wheel: Path, extras: set[str], packages: Path) -> None:
    """Link what a wheel requires from this environment, which has the versions of the lock: no network is needed."""
    for name in required_by(wheel, extras):
        installed = distribution(name)
        for entry in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (packages / entry).exists():
                (packages / entry).symlink_to(Path(str(installed.locate_file(entry))))


def metadata_of(wheel: Path) -> list[str]:
    """What a wheel requires, with markers."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        texts: list[str] = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    return texts


def required_by(wheel: Path, extras: set[str]) -> set[str]:
    """The packages that a wheel needs with these extras, and those that these need."""
    open_ends = [(text, extras) for text in metadata_of(wheel)]
    seen = set()
    while open_ends:
        text, of = open_ends.pop()
        needed = Requirement(text)
        wanted = (needed.name, *sorted(needed.extras))
        if wanted in seen or not _applies(needed, of):
            continue
        seen.add(wanted)
        texts = distribution(needed.name).requires or ()
        open_ends += [(text, needed.extras) for text in texts]
    return {name for name, *_ in seen}


def _applies(needed: Requirement, extras: set[str]) -> bool:
    marker = needed.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
