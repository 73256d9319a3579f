"""The plugin in a project of a user: what docs/testing.md prints, run as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "testing.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(folder: Path, *arguments: str, server: str) -> subprocess.CompletedProcess[str]:
    """pytest with the plugins that are installed, as a user has them."""
    environment = os.environ | {"HOURBELL_TEST_DATABASE_URL": server}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_tests_of_the_page_pass_as_printed(tmp_path: Path, postgres: str) -> None:
    (settings,) = blocks("toml")
    shop, *tests = blocks("python")
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text("\n\n".join(tests))
    ran = run(tmp_path, "-W", "error", server=postgres)
    assert re.search(r"^9 passed", ran.stdout, re.MULTILINE), ran.stdout + ran.stderr


def test_a_project_without_the_fixtures_does_not_import_the_kit(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_nothing() -> None:\n"
        "    ours = {name for name in sys.modules if name.startswith('hourbell')}\n"
        "    assert ours <= {'hourbell', 'hourbell.testing', 'hourbell.testing.plugin',\n"
        "                    'hourbell.testing.asyncio_fixtures'}\n"
        "    assert not {'asyncpg', 'msgspec', 'structlog'} & sys.modules.keys()\n"
    )
    ran = run(tmp_path, "-p", "no:schemathesis", server="postgresql://nowhere/none")
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_what_is_missing_is_said(tmp_path: Path, postgres: str) -> None:
    (tmp_path / "test_shop.py").write_text("def test_it(bell): ...\n")
    ran = run(tmp_path, server=postgres)
    assert 'Set hourbell_app = "shop.tasks:app"' in ran.stdout, ran.stdout + ran.stderr
