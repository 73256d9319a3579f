"""What the dashboard is made of: types, pure functions, sizes, and what its lock may contain."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import services
from hourbell.api.dashboard import FILES

ROOT = Path(__file__).parents[2]
UI = ROOT / "ui"
SCRIPT_BYTES = 295 * 1024
FIRST_SCRIPT_BYTES = 215 * 1024
STYLE_BYTES = 25 * 1024


def run(*arguments: str) -> None:
    if not (UI / "node_modules").exists():
        services.unavailable("The tools that build the dashboard")
    command = [sys.executable, str(ROOT / "scripts" / "ui"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CI": "true"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def built() -> list[Path]:
    if not (FILES / "index.html").exists():
        services.unavailable("The build of the dashboard")
    return sorted(FILES.rglob("*"))


def test_the_pages_have_sound_types() -> None:
    run("run", "tsc", "--noEmit", "--incremental", "--tsBuildInfoFile", "node_modules/.tsbuildinfo")


def test_its_pure_functions_and_colours_hold() -> None:
    run("run", "vitest", "run", "--no-color")


def test_the_types_of_the_api_are_those_that_it_describes(tmp_path: Path) -> None:
    run("types", str(tmp_path / "schema.ts"))
    committed = (UI / "src" / "api" / "schema.ts").read_text()
    assert (tmp_path / "schema.ts").read_text() == committed, (
        "stale: run `python3 scripts/ui types`"
    )


def test_its_script_and_styles_keep_to_their_budget() -> None:
    sizes = {
        path.name: len(gzip.compress(path.read_bytes(), 9))
        for path in built()
        if path.suffix in (".js", ".css")
    }
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) <= SCRIPT_BYTES
    assert sum(size for name, size in sizes.items() if name.endswith(".css")) <= STYLE_BYTES
    index = (FILES / "index.html").read_text()
    assert sum(size for name, size in sizes.items() if name in index) <= FIRST_SCRIPT_BYTES


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    built()
    index = (FILES / "index.html").read_text()
    assert "<style" not in index
    assert "style=" not in index
    assert "http" not in index
    assert index.count("<script") == index.count("<script src=") + index.count(
        '<script type="module" crossorigin src='
    )


def test_every_text_file_is_compressed_in_advance_and_licences_are_listed() -> None:
    for path in built():
        if path.suffix in (".js", ".css", ".html"):
            zipped = path.with_name(path.name + ".gz")
            assert gzip.decompress(zipped.read_bytes()) == path.read_bytes()
    licences = (FILES / "licences.txt").read_text()
    assert all(
        name in licences for name in ("react-dom", "@tanstack/react-query", "uplot", "wouter")
    )


def test_the_lock_pins_every_package_by_its_hash_and_names_no_registry() -> None:
    packages = json.loads((UI / "package-lock.json").read_text())["packages"]
    for name, package in packages.items():
        if name:
            assert package["integrity"].startswith("sha512-"), name
            assert "resolved" not in package, name
    declared = json.loads((UI / "package.json").read_text())
    versions = [*declared["dependencies"].values(), *declared["devDependencies"].values()]
    assert all(version[0].isdigit() for version in versions)


@pytest.mark.parametrize("name", ["ui_files", "node_modules"])
def test_git_ignores_what_is_built(name: str) -> None:
    assert name in (ROOT / ".gitignore").read_text()
