"""What docs/library.md prints, run as it is printed."""

import asyncio
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import asyncpg
import pytest

from hourbell import Context
from integration.life.support import eventually
from ports import free_port

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def until_said(log: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has written this to its log."""
    deadline = time.monotonic() + 60
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def environment(folder: Path, port: int) -> dict[str, str]:
    ours = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOURBELL_DATA_DIR": str(folder / "data"),
        "HOURBELL_PORT": str(port),
    }
    return {name: v for name, v in os.environ.items() if not name.startswith("HOURBELL_")} | ours


async def test_the_examples_of_the_page_run(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOURBELL_DATABASE_URL", database)
    shop = types.ModuleType("shop_of_the_page")
    monkeypatch.setitem(sys.modules, shop.__name__, shop)
    exec(
        compile("\n\n".join(blocks("docs/library.md", "python")), "library.md", "exec"), vars(shop)
    )
    async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
        await pool.execute("create table if not exists orders (id int)")
        await shop.example_enqueue()
        await shop.example_transaction(pool)
        await asyncio.to_thread(shop.example_sync)
        await shop.example_group()
        shop.app.state = ({8: "paid"},)
        shop.app.lifespan = shop.connections

        @shop.app.task(name="read")
        async def read(ctx: Context) -> int:
            return int(await ctx.get(asyncpg.Pool).fetchval("select 7"))

        async with shop.app, shop.app.worker():
            assert await (await shop.charge.enqueue(1, shop.Money(300))).result(20) == 300
            assert (await (await shop.poll_payment.enqueue(8)).result(20)).endswith(" of default")
            assert await (await shop.import_file.enqueue("x")).wait(20) == "SUCCEEDED"
            assert await (await read.enqueue()).result(20) == 7
            await shop.example_batch()
            payment = await shop.take_payment.enqueue(7)
            token = await eventually(lambda: pool.fetchval("select token from hourbell.waits"))
            await shop.app.complete(token, "300 cents")
            assert await payment.result(20) == "order 7: 300 cents for exe_"
        await pool.execute("drop table orders")


WORKER_OF_OTHERS = """
import asyncio, pathlib
from hourbell import App, Context

app = App("shop", imports=["shop.*_tasks"])


@app.task(queue="reports")
async def report() -> None: ...
"""
TASKS_OF_OTHERS = """
import asyncio, pathlib
from hourbell import Context
from shop.tasks import app

@app.task(queue="mail")
async def slow(ctx: Context) -> str:
    pathlib.Path("began").touch()
    while not ctx.stopping:
        await asyncio.sleep(0.01)
    return "drained"
"""


async def test_a_worker_of_an_app_imports_its_tasks_and_drains_on_a_signal(
    tmp_path: Path, database: str
) -> None:
    text = (ROOT / "docs" / "library.md").read_text("utf-8").partition("## Workers\n")[2]
    worker_of_page, up_of_page = (
        line.split() for line in re.findall(r"^    (hourbell .*)$", text, re.MULTILINE)
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "tasks.py").write_text(WORKER_OF_OTHERS)
    (tmp_path / "shop" / "mail_tasks.py").write_text(TASKS_OF_OTHERS)
    env = environment(tmp_path, free_port()) | {"HOURBELL_DATABASE_URL": database}
    with (tmp_path / "worker.log").open("w") as log:
        worker = subprocess.Popen(
            [*worker_of_page, "--name", "w1"],
            cwd=tmp_path,
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        until_said(tmp_path / "worker.log", "is up: queues mail, default, concurrency 50.", worker)
        until_said(tmp_path / "worker.log", "1 of its 2 tasks will never run here.", worker)
        connection = await asyncpg.connect(database)
        serving = (
            "select slots, array(select q.name from hourbell.queues as q where q.id = any(s.queues) order by 1)"
            " from hourbell.sessions as s where worker = 'w1'"
        )
        session = await eventually(lambda: connection.fetchrow(serving))
        assert tuple(session) == (50, ["default", "mail"])
        await connection.execute("select hourbell.enqueue('shop.slow')")
        deadline = time.monotonic() + 60
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline, (tmp_path / "worker.log").read_text()
            await asyncio.sleep(0.05)
        worker.terminate()
        assert worker.wait(60) == 0
        assert (
            await connection.fetchval("select result::text from hourbell.outcomes") == '"drained"'
        )
    finally:
        worker.kill()
        worker.wait()
    with (tmp_path / "up.log").open("w") as log:
        up = subprocess.Popen(up_of_page, cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        until_said(tmp_path / "up.log", "Press Ctrl-C to drain and stop everything.", up)
        await connection.execute("select hourbell.enqueue('shop.report')")
        await eventually(
            lambda: connection.fetchval("select count(*) = 2 from hourbell.outcomes"), 30
        )
        await connection.close()
        up.terminate()
        assert up.wait(60) == 0
    finally:
        up.kill()
        up.wait()


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("", "shop:app", "hourbell: shop:app is not an App. shop has no App."),
        ("from hourbell import App; app = App('shop')", "shop", "App 'shop' has no tasks"),
        ("from hourbell import App; mine = App('shop')", "shop:app", "shop has the app mine."),
        ("1 / 0", "shop:app", "ZeroDivisionError: division by zero"),
        ("import nowhere", "shop:app", "ModuleNotFoundError: No module named 'nowhere'"),
        ("", "shopping:app", "hourbell: There is no module 'shopping' in "),
        ("", ":app", "hourbell: ':app' does not name a module. Name the app as module:variable"),
        ("", "./shop.py", "hourbell: './shop.py' does not name a module."),
        ("", "shop/tasks:app", "hourbell: 'shop/tasks:app' does not name a module."),
        ("", "my-shop:app", "hourbell: my-shop:app is not an App. my-shop has no App."),
        (
            "from hourbell import App\nApp('a').task(queues='x')",
            "shop",
            "@app.task has no option queues",
        ),
    ],
)
def test_an_app_that_cannot_be_loaded_ends_the_command_with_code_2(
    tmp_path: Path, source: str, target: str, said: str
) -> None:
    for name in ("shop.py", "my-shop.py"):
        (tmp_path / name).write_text(source)
    done = subprocess.run(
        ["hourbell", "worker", target],
        cwd=tmp_path,
        env=environment(tmp_path, 1024),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
