"""What outlives a run and a worker: checkpoints of an execution, and the schedules of an app."""

import asyncio
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from hourbell import App, Context, Retry, SyncContext, WorkerOptions, cron, every
from hourbell.documents.calendars import NewCalendar
from hourbell.engine.core import Engine
from hourbell.engine.operations.calendars import set_calendar
from hourbell.engine.operations.idempotency import Write
from hourbell.errors import ConfigurationError, LeaseLost
from hourbell.model.jobs import JobType, NewJob, TaskAction, decode_job
from hourbell.model.policies import Backoff, Misfire, Overlap, Priority, RetryPolicy
from hourbell.model.schedules import Cron, Every, Window
from hourbell.sdk.schedules import manifest_of
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=0.2)


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database, retry=Retry.delays(0, 0))


# Checkpoints.


async def test_the_next_attempt_restores_the_checkpoint_of_the_last(app: App) -> None:
    seen: list[tuple[str, int, list[int] | None]] = []

    @app.task(name="counts")
    async def counts(ctx: Context) -> None:
        done = ctx.restore(list[int])
        seen.append(("async", ctx.attempt, done))
        if done is None or len(done) < 2:
            await ctx.checkpoint([*(done or []), ctx.attempt])
            raise RuntimeError("half done")

    @app.task(name="counts_in_a_thread")
    def counts_in_a_thread(ctx: SyncContext) -> None:
        done = ctx.restore(list[int])
        seen.append(("sync", ctx.attempt, done))
        if done is None:
            ctx.checkpoint([ctx.attempt])
            raise RuntimeError("half done")

    async with app, app.worker(FAST):
        jobs = [await counts.enqueue(), await counts_in_a_thread.enqueue()]
        assert [await job.wait(20) for job in jobs] == ["SUCCEEDED", "SUCCEEDED"]
    assert [entry for entry in seen if entry[0] == "async"] == [
        ("async", 1, None),
        ("async", 2, [1]),
        ("async", 3, [1, 2]),
    ]
    assert [entry for entry in seen if entry[0] == "sync"] == [("sync", 1, None), ("sync", 2, [1])]


async def test_a_deploy_uses_no_attempt_and_keeps_the_checkpoint(app: App) -> None:
    began, seen = asyncio.Event(), list[tuple[int, str | None]]()

    @app.task(name="long")
    async def long(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.restore(str)))
        if ctx.restore(str) is None:
            await ctx.checkpoint("half")
            began.set()
            await asyncio.Event().wait()

    async with app:
        async with app.worker(FAST):
            job = await long.enqueue()
            await asyncio.wait_for(began.wait(), 20)
        async with app.worker(FAST):
            assert await job.wait(20) == "SUCCEEDED"
    assert seen == [(1, None), (1, "half")]


async def test_a_checkpoint_of_a_run_that_has_lost_its_lease_is_refused(
    app: App, engine: Engine
) -> None:
    lost, raised = threading.Event(), list[bool]()

    @app.task(name="stale")
    async def stale(ctx: Context) -> None:
        if ctx.attempt > 1 or raised:
            return
        await engine.database.value("update hourbell.leased set fence = fence + 1")
        try:
            await ctx.checkpoint("late")
        except LeaseLost:
            raised.append(True)
            lost.set()
            raise

    async with app, app.worker(FAST):
        await stale.enqueue()

        async def refused() -> bool:
            return lost.is_set()

        await eventually(refused)
        await engine.database.value("update hourbell.leased set fence = fence - 1")
    assert not await engine.database.value("select exists (select from hourbell.checkpoints)")


async def test_a_checkpoint_is_bounded(app: App) -> None:
    @app.task(name="big")
    async def big(ctx: Context) -> None:
        await ctx.checkpoint("x" * 70_000)

    with pytest.raises(ValueError, match="at most 65536 bytes"):
        await big()  # called directly: nothing is stored, and the same is refused


# Schedules.


def shop(database: str, rule: str, revision: int | None = None) -> App:
    """A version of the code."""
    app = App("shop", url=database, revision=revision)

    @app.task(name="report", queue="reports", schedule=cron(rule, timezone="Asia/Kolkata"))
    def report() -> None: ...

    return app


async def schedules(engine: Engine) -> dict[str, Any]:
    """The rules of the jobs of the app by their names."""
    rows = await engine.database.fetch(
        "select j.name, t.rule, j.version, q.name as queue from hourbell.jobs as j"
        " join hourbell.timetables as t on t.id = j.timetable join hourbell.queues as q on q.id = j.queue"
        " where j.status = 0"
    )
    return {row["name"]: (row["rule"], row["version"], row["queue"]) for row in rows}


async def test_a_schedule_exists_when_a_worker_has_started_and_follows_the_code(
    database: str, engine: Engine
) -> None:
    name = "app:shop/shop.report"
    for _ in range(2):  # the second one finds nothing to do
        async with shop(database, "0 2 * * *").worker(FAST):

            async def created() -> bool:
                return name in await schedules(engine)

            await eventually(created)
        assert (await schedules(engine))[name] == ("0 2 * * *", 1, "reports")
    async with shop(database, "0 3 * * *").worker(FAST):

        async def changed() -> bool:
            return (await schedules(engine))[name] == ("0 3 * * *", 2, "reports")

        await eventually(changed)


async def test_every_option_of_a_schedule_reaches_its_job(database: str, engine: Engine) -> None:
    app = App("shop", url=database, tenant="acme")
    holidays = NewCalendar((date(2031, 5, 6),), "acme")
    await set_calendar(engine, "holidays", holidays, Write())
    starts_at = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
    ends_at = datetime(2032, 1, 2, 3, 4, 5, tzinfo=UTC)

    @app.task(
        name="report",
        queue="reports",
        priority="LOW",
        retry=Retry.delays(1, 2),
        timeout=60,
        deadline=7200,
        expires_in=timedelta(hours=1),
        concurrency_key="reports",
        concurrency_limit=2,
        labels={"shop": "berlin"},
        schedule=[
            cron(
                "30 2 * * *",
                timezone="Europe/Berlin",
                key="daily",
                args={"deep": True},
                jitter=timedelta(minutes=5),
                misfire="all",
                overlap="queue_one",
                gap="skip",
                repeated="twice",
                starts_at=starts_at,
                ends_at=ends_at,
                exclude=["holidays"],
            ),
            every(
                timedelta(minutes=10),
                key="often",
                args={"deep": False},
                jitter=20,
                misfire="skip",
                overlap="forbid",
                starts_at=starts_at,
                ends_at=ends_at,
                exclude=["holidays"],
            ),
        ],
    )
    def report(deep: bool) -> None: ...

    async with app, app.worker(FAST):

        async def created() -> list[NewJob]:
            rows = await engine.database.fetch("select spec from hourbell.jobs order by name")
            return [decode_job(row["spec"]) for row in rows] if len(rows) == 2 else []

        daily, often = await eventually(created)
    assert isinstance(often.schedule, Every)
    common = NewJob(
        name="app:shop/shop.report#daily",
        action=TaskAction(name="shop.report", payload={"deep": True}),
        type=JobType.RECURRING,
        tenant_id="acme",
        schedule=Cron(
            "30 2 * * *",
            timezone="Europe/Berlin",
            dst_gap="skip",
            dst_overlap="twice",
            jitter_seconds=300,
            exclude=("holidays",),
        ),
        window=Window(starts_at, ends_at),
        misfire_policy=Misfire.ALL,
        overlap_policy=Overlap.QUEUE_ONE,
        queue="reports",
        priority=Priority.LOW,
        retry_policy=RetryPolicy(max_retries=2, backoff=Backoff.LIST, delays_seconds=(1, 2)),
        timeout_seconds=60,
        deadline_seconds=7200,
        start_deadline_seconds=3600,
        concurrency_key="reports",
        concurrency_limit=2,
        labels={"shop": "berlin"},
    )
    assert daily == common
    assert often == replace(
        common,
        name="app:shop/shop.report#often",
        action=TaskAction(name="shop.report", payload={"deep": False}),
        schedule=Every(600, anchor=often.schedule.anchor, jitter_seconds=20, exclude=("holidays",)),
        misfire_policy=Misfire.SKIP,
        overlap_policy=Overlap.FORBID,
    )


async def test_a_schedule_runs_its_task_with_its_arguments(app: App) -> None:
    seen, ran = list[int](), asyncio.Event()

    @app.task(name="beat", schedule=every(1, args={"number": 7}))
    async def beat(number: int) -> None:
        seen.append(number)
        ran.set()

    async with app, app.worker(FAST):
        await asyncio.wait_for(ran.wait(), 20)
    assert set(seen) == {7}


def test_schedules_that_cannot_be_told_apart_are_refused(database: str) -> None:
    app = App("shop", url=database)

    @app.task(name="report", schedule=[cron("0 2 * * *"), cron("0 3 * * *")])
    def report() -> None: ...

    with pytest.raises(ConfigurationError, match="Give each a key="):
        manifest_of(app, None)


def test_arguments_of_a_schedule_are_checked_before_the_worker_starts(database: str) -> None:
    app = App("shop", url=database)

    @app.task(name="report", schedule=cron("0 2 * * *", args={"number": "seven"}))
    def report(number: int) -> None: ...

    with pytest.raises(ConfigurationError, match="number must be int"):
        manifest_of(app, None)


def test_a_revision_is_that_of_the_app_or_of_the_settings(database: str) -> None:
    assert manifest_of(App("shop", url=database), None).revision is None
    assert manifest_of(App("shop", url=database), 41).revision == 41
    assert manifest_of(App("shop", url=database, revision=42), 41).revision == 42


async def test_the_revision_of_the_environment_reaches_the_manifest(
    database: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOURBELL_REVISION", "41")
    async with shop(database, "0 2 * * *").worker(FAST):

        async def declared() -> bool:
            rows = await engine.database.fetch("select revision from hourbell.manifests")
            return [row["revision"] for row in rows] == [41]

        await eventually(declared)
    monkeypatch.setenv("HOURBELL_REVISION", "v41")
    with pytest.raises(ConfigurationError, match="grows with each deploy"):
        async with shop(database, "0 2 * * *").worker(FAST):
            pass
