"""Deploys with real processes: `hourbell worker` of one version of an app replaced by another, under load."""

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from hourbell import App
from hourbell.engine.core import Engine
from hourbell.engine.leader import scheduler
from hourbell.engine.operations.reconcile import GRACE
from integration.life.support import eventually, scheduling

WORKERS = 4
PATIENCE_SECONDS = 60.0
SHOP = """
import asyncio, os
from hourbell import App, Context, cron, every

VERSION = int(os.environ["VERSION"])
app = App("shop", revision=VERSION)

def note(*what):
    with open("ran", "a") as log:
        log.write(" ".join(map(str, what)) + "\\n")

@app.task
async def work(number: int) -> None:
    note("work", number, VERSION)

@app.task(schedule=every(1, args={"declared": VERSION}))  # changed arguments
async def tick(ctx: Context, declared: int) -> None:
    note("tick", ctx.scheduled_for.isoformat(), declared)

RULE = "* * * * * *" if VERSION == 1 else "*/2 * * * * *"  # a changed rule

@app.task(schedule=cron(RULE, args={"declared": VERSION}))
async def pulse(ctx: Context, declared: int) -> None:
    note("pulse", ctx.scheduled_for.isoformat(), declared)

@app.task(name="old" if VERSION == 1 else "new", schedule=every(1))  # removed, and added
async def come_and_go(ctx: Context) -> None:
    note("old" if VERSION == 1 else "new", ctx.scheduled_for.isoformat(), VERSION)

@app.task(timeout=600)
async def long(ctx: Context) -> str:
    began_at = ctx.restore(int) or 0
    note("restored", began_at, ctx.attempt)
    for done in range(began_at + 1, 4):
        await ctx.checkpoint(done)
    note("stored", 3, VERSION)
    if began_at == 0:
        await asyncio.Event().wait()
    return f"began at {began_at}"
"""


class Worker:
    """A process `hourbell worker` of one version."""

    def __init__(self, folder: Path, database: str, version: int, *options: str) -> None:
        self._log = folder / f"worker-{version}-{len(list(folder.glob('*.log')))}.log"
        env = {name: value for name, value in os.environ.items() if "HOURBELL" not in name}
        ours = {"VERSION": str(version), "HOURBELL_DATABASE_URL": database}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [Path(sys.executable).with_name("hourbell"), "worker", "shop:app", *options],
                cwd=folder,
                env=env | ours,
                stdout=log,
                stderr=log,
            )

    async def up(self) -> None:
        async def said() -> bool:
            assert self._process.poll() is None, self._log.read_text()
            return "is up" in self._log.read_text()

        await eventually(said, PATIENCE_SECONDS)

    async def stop(self) -> None:
        """As a deploy does it."""
        self._process.terminate()
        assert await asyncio.to_thread(self._process.wait, PATIENCE_SECONDS) == 0, (
            self._log.read_text()
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Fleet:
    """The workers of a test; those that are left are killed at its end."""

    def __init__(self, folder: Path, database: str) -> None:
        self._folder, self._database = folder, database
        self._all: list[Worker] = []

    async def start(self, version: int, *options: str, count: int = 1) -> list[Worker]:
        new = [Worker(self._folder, self._database, version, *options) for _ in range(count)]
        self._all += new
        await asyncio.gather(*(worker.up() for worker in new))
        return new

    async def replace(self, old: Iterable[Worker], version: int) -> list[Worker]:
        """One by one: the new one is up before the old one is stopped."""
        new: list[Worker] = []
        for worker in old:
            new += await self.start(version)
            await worker.stop()
        return new

    def kill_all(self) -> None:
        for worker in self._all:
            worker.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "ran").touch()
    return tmp_path


@pytest.fixture
async def fleet(folder: Path, database: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder, database)
    yield fleet
    fleet.kill_all()


def ran(folder: Path, what: str) -> list[tuple[str, int]]:
    """What the workers have noted, by the first argument."""
    lines = (line.split() for line in (folder / "ran").read_text().splitlines())
    return sorted((value, int(last)) for name, value, last in lines if name == what)


@contextlib.asynccontextmanager
async def load(database: str) -> AsyncIterator[list[int]]:
    """Jobs that are enqueued one after the other, about 80 a second, until the end of the block."""
    app, enqueued, ended = App("shop", url=database), list[int](), asyncio.Event()

    @app.task(name="work")
    async def work(number: int) -> None: ...

    async def enqueue() -> None:
        while not ended.is_set():
            await app.enqueue_many(work.bind(len(enqueued) + n) for n in range(20))
            enqueued.extend(range(len(enqueued), len(enqueued) + 20))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), 0.25)

    async with app:
        running = asyncio.create_task(enqueue())
        try:
            yield enqueued
        finally:
            ended.set()
            await running


async def is_active(engine: Engine, key: str) -> bool:
    return bool(
        await engine.database.value(
            "select exists (select from hourbell.jobs where name = $1 and status = 0)",
            f"app:shop/shop.{key}",
        )
    )


async def is_unwanted(engine: Engine, key: str) -> bool:
    return bool(
        await engine.database.value(
            "select unwanted_since is not null from hourbell.declared where key = 'shop.' || $1",
            key,
        )
    )


async def pass_the_grace(engine: Engine, key: str) -> None:
    """Wait until nobody declares a schedule, and let ten minutes pass for it."""

    await eventually(partial(is_unwanted, engine, key), PATIENCE_SECONDS)
    await engine.database.value(
        "update hourbell.declared set unwanted_since = unwanted_since - $2::interval"
        " where key = 'shop.' || $1",
        key,
        GRACE,
    )

    async def is_retired() -> bool:
        return not await is_active(engine, key)

    await eventually(is_retired, PATIENCE_SECONDS)


async def ran_as(folder: Path, what: str, version: int, times: int = 1) -> None:
    async def has() -> bool:
        return [declared for _, declared in ran(folder, what)].count(version) >= times

    await eventually(has, PATIENCE_SECONDS)


async def superseded(engine: Engine, key: str) -> list[datetime]:
    """The occurrences that a change of the rule found queued: it takes them away, and records that."""
    rows = await engine.database.fetch(
        "select l.scheduled_for from hourbell.ledger as l join hourbell.jobs as j on j.id = l.job"
        " where j.name = $1 and l.status = hourbell.fate_superseded()",
        f"app:shop/shop.{key}",
    )
    return [row["scheduled_for"] for row in rows]


async def check_occurrences(engine: Engine, key: str, *steps: timedelta) -> None:
    """Each version of its job has one row in the ledger for each of its steps, whether it ran or was superseded.

    The ledger says what was planned: lateness does not matter.
    """
    rows = await engine.database.fetch(
        "select l.job, l.version, l.scheduled_for from hourbell.ledger as l"
        " join hourbell.jobs as j on j.id = l.job where j.name = $1 order by 1, 2, 3",
        f"app:shop/shop.{key}",
    )
    versions = [
        [row["scheduled_for"] for row in group]
        for _, group in itertools.groupby(rows, lambda row: (row["job"], row["version"]))
    ]
    for step, times in zip(steps, versions, strict=True):
        assert len(times) > 1, key
        assert {after - before for before, after in itertools.pairwise(times)} == {step}, key


def check_runs(
    runs: list[tuple[str, int]],
    versions: list[int],
    most: timedelta,
    superseded: Iterable[datetime] = (),
) -> None:
    """Each occurrence ran once or was superseded, none is missing, and one version followed another."""
    times = Counter(datetime.fromisoformat(at) for at, _ in runs)
    assert max(times.values()) == 1
    recorded = sorted({*times, *superseded})
    assert max(after - before for before, after in itertools.pairwise(recorded)) <= most
    declared = [version for _, version in runs]
    changes = [declared[0], *(b for a, b in itertools.pairwise(declared) if a != b)]
    assert changes == versions


async def test_a_rolling_deploy_and_a_rollback_lose_and_double_nothing(
    folder: Path, fleet: Fleet, database: str, engine: Engine
) -> None:
    second = timedelta(seconds=1)
    # Otherwise occurrences of a retired schedule become ready for the session that serves everything, which claims nothing.
    await engine.database.value("delete from hourbell.sessions")
    async with load(database) as enqueued:
        first = await fleet.start(1, count=WORKERS)
        for key in ("tick", "pulse", "old"):
            await ran_as(folder, key, 1, times=3)
        (new,) = await fleet.start(2)
        await first[0].stop()
        await ran_as(folder, "tick", 2)
        active = [await is_active(engine, key) for key in ("tick", "pulse", "old", "new")]
        assert active == [True] * 4
        assert not await is_unwanted(engine, "old")  # three workers still declare it
        deployed = [new, *await fleet.replace(first[1:], 2)]
        await pass_the_grace(engine, "old")
        for key in ("pulse", "new"):
            await ran_as(folder, key, 2, times=2)
        rolled_back = await fleet.replace(deployed, 1)
        await pass_the_grace(engine, "new")

        async def is_back() -> bool:
            return await is_active(engine, "old") and all(
                [version for _, version in ran(folder, key)[-2:]] == [1, 1]
                for key in ("tick", "pulse", "old")
            )

        await eventually(is_back, PATIENCE_SECONDS)

    async def is_idle() -> bool:
        return len(ran(folder, "work")) >= len(enqueued)

    await eventually(is_idle, PATIENCE_SECONDS)
    for worker in rolled_back:
        await worker.stop()

    work = ran(folder, "work")
    assert Counter(int(number) for number, _ in work) == Counter(enqueued)
    assert {version for _, version in work} == {1, 2}
    check_runs(ran(folder, "tick"), [1, 2, 1], second)
    changed = await superseded(engine, "pulse")
    check_runs(ran(folder, "pulse"), [1, 2, 1], 2 * second, changed)
    assert all(
        datetime.fromisoformat(at).second % 2 == 0 for at, v in ran(folder, "pulse") if v == 2
    )
    check_runs(ran(folder, "new"), [2], second)
    await check_occurrences(engine, "tick", second, second, second)
    await check_occurrences(engine, "pulse", second, 2 * second, second)
    await check_occurrences(engine, "old", second, second)  # a new job after the rollback
    await check_occurrences(engine, "new", second)
    old = Counter(at for at, _ in ran(folder, "old"))
    assert max(old.values()) == 1
    fates = await engine.database.fetch(
        "select l.status, l.reason, count(*) from hourbell.ledger as l where l.status <> 0"
        " and l.status <> hourbell.fate_superseded() group by 1, 2"
    )
    assert fates == []  # all others have succeeded
    assert await engine.database.value("select max(attempt) from hourbell.executions") == 0


async def result(engine: Engine) -> object:
    return await engine.database.value(
        "select result::text from hourbell.ledger where result is not null"
    )


async def test_a_crash_loop_retires_nothing_and_resumes_from_the_checkpoint(
    folder: Path, fleet: Fleet, database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "DECLARE_SECONDS", 0.1)
    options = ("--no-scheduler", "--lease", "5")  # a busy machine may stall for seconds
    async with scheduling(engine):
        (first,) = await fleet.start(1, *options)
        await eventually(partial(is_active, engine, "old"), PATIENCE_SECONDS)
        await first.stop()
        await engine.database.value("select hourbell.enqueue('shop.long')")
        for attempt in (1, 2):
            (crashing,) = await fleet.start(2, *options)

            await eventually(partial(is_unwanted, engine, "old"), PATIENCE_SECONDS)
            await engine.database.value(  # nine minutes have passed
                "update hourbell.declared set unwanted_since = unwanted_since - $1::interval",
                GRACE - timedelta(minutes=1),
            )

            async def has_stored(attempt: int = attempt) -> bool:
                return len(ran(folder, "stored")) == attempt and (
                    attempt == 1 or await result(engine) is not None
                )

            await eventually(has_stored, PATIENCE_SECONDS)
            crashing.kill()

            async def is_forgotten() -> bool:
                return not await is_unwanted(engine, "old")

            # With the next worker the grace begins again.
            await eventually(is_forgotten, PATIENCE_SECONDS)
            assert await is_active(engine, "old")
    assert ran(folder, "restored") == [("0", 1), ("3", 2)]
    assert await result(engine) == '"began at 3"'
