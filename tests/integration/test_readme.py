"""The README, as a newcomer follows it on this machine, with the wheel of this tree.

`pip install "hourbell[server,embedded]"` is run as it is printed. The index that pip asks is a folder with the wheel; what
the wheel requires is already there. tests/deployment/debian_checks.py does the same in an empty Debian root, with the
index of this machine.
"""

import sys
from collections.abc import Iterator

import pytest

import services
from readme import Newcomer, follow
from wheels import ROOT, build, link_requirements


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    with services.folder_for_databases() as folder:
        wheel = build(ROOT, "wheel", folder / "dist")
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / ".venv" / "lib" / version / "site-packages"
        packages.mkdir(parents=True)
        link_requirements(wheel, {"server", "embedded"}, packages)
        programs = folder / "bin"  # so that no `hourbell` of this environment is found
        programs.mkdir()
        (programs / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
        env = {
            "HOME": str(folder),
            "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheel.parent),
        }
        person = Newcomer(folder, env, lambda script, _: ["bash", "-c", script])
        try:
            yield person
        finally:
            person.kill()


def test_every_shell_block_runs_as_printed(newcomer: Newcomer) -> None:
    follow(newcomer)
