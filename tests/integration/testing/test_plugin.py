"""The plugin in a project of a user: what docs/testing.md prints, run as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# Each starts pytest and has a template of its own: minutes on a machine that runs many tests at once.
pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "testing.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(folder: Path, *arguments: str, server: str = "") -> subprocess.CompletedProcess[str]:
    """pytest with the plugins that are installed, as a user has them; without a server, an embedded one."""
    environment = os.environ | {"HOURBELL_TEST_DATABASE_URL": server}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_tests_of_the_page_pass_as_printed(tmp_path: Path) -> None:
    (settings,) = blocks("toml")
    shop, *tests = blocks("python")
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "test_shop.py").write_text("\n\n".join(tests))
    ran = run(tmp_path, "-W", "error")
    assert re.search(r"^10 passed", ran.stdout, re.MULTILINE), ran.stdout + ran.stderr


PROJECT = """
import pytest

import shop
from hourbell.testing import Bell


@pytest.fixture(scope="session")
def hourbell_prepare():
    def add_tables(url: str) -> None:
        import psycopg

        with psycopg.connect(url) as connection:
            connection.execute("create table orders (id int primary key)")

    return add_tables


@pytest.fixture
def hourbell_app():
    return shop.app


@pytest.mark.asyncio
async def test_strict_mode(bell: Bell) -> None:
    await shop.send_reminder.enqueue(cart_id=1)
    await bell.drain()
    assert shop.sent[-1] == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_anyio(bell: Bell, anyio_backend: str) -> None:
    await shop.send_reminder.enqueue(cart_id=2)
    await bell.drain()
    assert shop.sent[-1] == 2


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_the_tables_of_the_template_and_none_of_the_rows_of_others(bell, number):
    import psycopg

    with psycopg.connect(bell.url) as connection:
        connection.execute("insert into orders values (7)")
        shop.send_reminder.configure(connection=connection).enqueue_sync(cart_id=7)
    bell.assert_enqueued_sync(shop.send_reminder, count=1)
"""


def test_a_project_in_strict_mode_with_anyio_and_tables_of_its_own(
    tmp_path: Path, postgres: str
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    )
    (tmp_path / "shop.py").write_text(blocks("python")[0])
    (tmp_path / "test_shop.py").write_text(PROJECT)
    ran = run(tmp_path, "-W", "error", server=postgres)
    assert re.search(r"^4 passed", ran.stdout, re.MULTILINE), ran.stdout + ran.stderr


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


FAILING = """
import pytest
from hourbell import App, Retry

app = App("shop")


def price(cart_id: int) -> int:
    raise ValueError(f"cart {cart_id} has no price")


@app.task(retry=Retry.never())
def sync(cart_id: int) -> int:
    return price(cart_id)


@app.task(retry=Retry.never())
async def on_loop(cart_id: int) -> int:
    return price(cart_id)


@pytest.fixture
def hourbell_app():
    return app


@pytest.mark.hourbell(raises=False)
@pytest.mark.parametrize("task", [sync, on_loop])
async def test_a_task_fails(bell, task):
    await task.enqueue(7)
    await bell.drain()
"""


def test_the_log_of_a_failed_task_shows_the_frames_of_the_user_alone(
    tmp_path: Path, postgres: str
) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    ran = run(tmp_path, "-s", "-o", "asyncio_mode=auto", server=postgres)
    assert re.search(r"2 passed in", ran.stdout), ran.stdout + ran.stderr
    said = ran.stdout + ran.stderr
    # Of each task once in its traceback, once in the line about the attempt.
    assert said.count("ValueError: cart 7 has no price") == 4
    assert said.count("in price") == 2
    assert f"{os.sep}hourbell{os.sep}sdk{os.sep}" not in said
    assert len(said.splitlines()) < 40
