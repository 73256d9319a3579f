"""The SBOM of a release, against its standard and against what is installed and built."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from hourbell import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def printed() -> str:
    script = [sys.executable, str(ROOT / "scripts" / "sbom")]
    return subprocess.run(script, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def components(printed: str) -> dict[str, Any]:
    return {one["purl"]: one for one in json.loads(printed)["components"]}


def test_it_is_valid_cyclonedx(printed: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(printed) is None


def test_the_same_tree_gives_the_same_bytes(printed: str) -> None:
    again = subprocess.run([sys.executable, ROOT / "scripts" / "sbom"], capture_output=True)
    assert again.stdout.decode() == printed


def test_it_is_about_this_version(printed: str) -> None:
    assert json.loads(printed)["metadata"]["component"]["version"] == __version__


def test_it_has_every_package_of_the_lock_with_all_digests(components: dict[str, Any]) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    locked = {f"pkg:pypi/{name}@{v}" for name, v in re.findall(r"^(\S+)==(\S+)", lock, re.M)}
    found = {purl: one for purl, one in components.items() if purl.startswith("pkg:pypi/")}
    assert found.keys() == locked
    digests = [each["content"] for one in found.values() for each in one["hashes"]]
    assert digests == [digest for _, digest in sorted(_digests(lock), key=lambda pair: pair[0])]


def test_what_the_library_and_the_server_require_is_in_it(components: dict[str, Any]) -> None:
    names = {one["name"] for one in components.values()}
    needed = [Requirement(text) for text in requires("hourbell") or ()]
    ours = {
        one.name
        for one in needed
        if one.marker is None
        or any(one.marker.evaluate({"extra": extra}) for extra in ("server", "embedded"))
    }
    assert ours <= names


def test_it_has_what_the_dashboard_is_built_of_and_not_what_builds_it(
    components: dict[str, Any],
) -> None:
    package = json.loads((ROOT / "ui" / "package.json").read_text())
    found = {one["name"] for purl, one in components.items() if purl.startswith("pkg:npm/")}
    assert package["dependencies"].keys() <= found
    assert found.isdisjoint(package["devDependencies"])


def _digests(lock: str) -> list[tuple[str, str]]:
    """Each digest of a lock with the package it belongs to, as the SBOM orders them."""
    found = []
    purl = ""
    for line in lock.splitlines():
        if package := re.match(r"(\S+)==(\S+)", line):
            purl = f"pkg:pypi/{package[1]}@{package[2]}"
        if digest := re.search(r"sha256:(\w+)", line):
            found.append((purl, digest[1]))
    return found
