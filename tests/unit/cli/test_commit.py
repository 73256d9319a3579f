"""Which commit `hourbell --version` names, and that it never fails."""

import shutil
import subprocess
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from hourbell.cli import commit as module

Commit = Callable[[], str]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with nothing but this one source file of Hourbell."""
    root = tmp_path / "checkout"
    folder = root / "src" / "hourbell" / "cli"
    folder.mkdir(parents=True)
    shutil.copy(str(module.__file__), folder)
    return root


@pytest.fixture
def commit(checkout: Path) -> Commit:
    path = checkout / "src" / "hourbell" / "cli" / "commit.py"
    spec = spec_from_file_location("copied", path)
    assert spec is not None
    assert spec.loader is not None
    copied = module_from_spec(spec)
    spec.loader.exec_module(copied)
    found: Commit = copied.commit
    return found


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_commit(folder: Path) -> str:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=one")
    return git(folder, "rev-parse", "--short=12", "HEAD")


def test_a_checkout_has_the_commit_of_git(checkout: Path, commit: Commit) -> None:
    made = make_commit(checkout)
    assert commit() == made


def test_changed_files_are_dirty(checkout: Path, commit: Commit) -> None:
    made = make_commit(checkout)
    (checkout / "src" / "hourbell" / "cli" / "commit.py").write_text("changed")
    assert commit() == f"{made}-dirty"


def test_what_was_built_in_goes_before_git(checkout: Path, commit: Commit) -> None:
    make_commit(checkout)
    (checkout / "src" / "hourbell" / "commit.txt").write_text("0123456789ab\n")
    assert commit() == "0123456789ab"


@pytest.mark.parametrize("spoil", ["no repository", "no commit", "a broken repository", "no git"])
def test_otherwise_it_is_unknown(
    checkout: Path, commit: Commit, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spoil == "no commit":
        git(checkout, "init", "--quiet")
    elif spoil == "a broken repository":
        (checkout / ".git").write_text("nonsense")
    elif spoil == "no git":
        make_commit(checkout)
        monkeypatch.setenv("PATH", str(checkout))
    assert commit() == "unknown"


def test_a_repository_above_an_installed_package_is_not_its_own(
    checkout: Path, commit: Commit
) -> None:
    git(checkout.parent, "init", "--quiet")
    git(checkout.parent, "add", "--all")
    git(checkout.parent, "commit", "--quiet", "--message=of the user")
    assert commit() == "unknown"
