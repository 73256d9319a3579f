"""Groups: many jobs, and another one when all of them have ended."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from hourbell import App, Context, Retry, WorkerOptions
from hourbell.engine.core import Engine
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.errors import ConfigurationError, InvalidArguments, NotFound, WaitTimeout
from hourbell.model.jobs import decode_job

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    app = App("shop", url=database, retry=Retry.never())

    @app.task(name="send")
    async def send(number: int) -> None:
        if number < 0:
            raise ValueError("negative")

    @app.task(name="report", queue="reports", labels={"team": "a"})
    async def report(ctx: Context, campaign: int) -> str:
        group = await app.get_group(ctx.labels["hourbell.group"])
        sent, dead = group.ended["SUCCEEDED"], group.ended["DEAD"]
        return f"campaign {campaign}: {sent} sent, {dead} dead of {group.members}"

    async with app:
        yield app
    app.close_sync()


async def live(engine: Engine) -> list[str]:
    rows = await engine.database.fetch("select spec from hourbell.live order by id")
    return [decode_job(row["spec"]).name for row in rows]


async def test_the_last_job_runs_once_when_all_others_have_ended_whatever_their_fates(
    app: App, engine: Engine
) -> None:
    send, report = app.get_task("send"), app.get_task("report")
    async with app.worker(FAST):
        group = await app.group([send.bind(i) for i in (1, -1, 2)], then=report.bind(7))
        assert await group.result(30) == "campaign 7: 2 sent, 1 dead of 3"
    view = await group.get()
    assert view == await group.wait(1)
    assert (view.members, sum(view.ended.values()), view.problem) == (3, 3, None)
    assert [await job.wait(1) for job in group.jobs] == ["SUCCEEDED", "DEAD", "SUCCEEDED"]
    assert view.then is not None
    assert (await app.job(view.then).get()).task == "shop.report"
    assert await live(engine) == []


async def test_a_group_and_its_jobs_are_created_together_or_not_at_all(
    app: App, engine: Engine, database: str
) -> None:
    send, report = app.get_task("send"), app.get_task("report")
    calls = [send.bind(1), send.bind(2)]
    connection = await asyncpg.connect(database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        group = await app.group(calls, then=report.bind(1), connection=connection)
        with pytest.raises(WaitTimeout, match="its transaction is open"):
            await group.wait(0.01)
        await transaction.rollback()
        with pytest.raises(
            NotFound, match="may not have committed yet or may have been rolled back"
        ):
            await group.get()
        assert await live(engine) == []
        with pytest.raises(
            InvalidArguments, match=r"job_.* does not have the same tenant as then="
        ):
            await app.group(calls, then=report.configure(tenant="acme").bind(1))
        with pytest.raises(InvalidArguments, match="timeout must be"):
            await app.group(calls, then=report.configure(timeout=100_000).bind(1))
        labels = {f"l{i}": "x" for i in range(15)}  # one label is the task's, one the group's
        with pytest.raises(InvalidArguments, match="labels must be at most 16"):
            await app.group(calls, then=report.configure(labels=labels).bind(1))
        assert await live(engine) == []
        async with connection.transaction():
            new = report.configure(queue="new")  # created beside the transaction
            group = await app.group(calls, then=new.bind(1), connection=connection, name="both")
    finally:
        await connection.close()
    assert await live(engine) == ["shop.send", "shop.send"]
    assert (await group.get()).name == "both"


async def test_what_the_last_job_cannot_have_is_refused(app: App) -> None:
    report = app.get_task("report")
    with pytest.raises(ConfigurationError, match="must not have unique_key= or at="):
        await app.group([], then=report.configure(unique_key="a").bind(1))


async def test_sync_code_creates_groups_and_an_empty_one_ends_at_once(
    app: App, engine: Engine
) -> None:
    import threading

    made: list[str] = []

    def create() -> None:
        made.append(app.group_sync([], then=app.get_task("report").bind(1)).id)

    thread = threading.Thread(target=create)
    thread.start()
    while thread.is_alive():  # the loop of the app has to run
        await engine.clock.now()
    await follow_groups(engine, None, await engine.clock.now())
    assert (await app.get_group(made[0])).then is not None
    assert await live(engine) == ["shop.report"]


async def test_a_group_whose_last_job_has_no_room_says_so_and_tries_again(
    app: App, engine: Engine
) -> None:
    group = await app.group([], then=app.get_task("report").bind(1))
    await engine.database.value("update hourbell.tenants set max_jobs = 0 where name = 'default'")
    now = await engine.clock.now()
    await follow_groups(engine, None, now)
    view = await group.get()
    assert (view.ended_at, view.problem) == (None, "over_quota: default")
    await engine.database.value("update hourbell.tenants set max_jobs = 1 where name = 'default'")
    row = await engine.database.row("select look_at from hourbell.execution_groups")
    await follow_groups(engine, None, row["look_at"])
    view = await group.get()
    assert (view.ended_at, view.problem) == (row["look_at"], None)


async def test_a_group_that_cannot_be_ended_does_not_stop_the_others(
    app: App, engine: Engine
) -> None:
    then = app.get_task("report").bind(1)
    groups = [await app.group([], then=then) for _ in range(5)]
    rows = await engine.database.fetch("select id from hourbell.execution_groups order by id")
    await engine.database.value(
        "alter table hourbell.execution_groups add constraint bad"
        f" check (id <> {rows[2]['id']} or ended_at is null)"
    )
    now = await engine.clock.now()
    await follow_groups(engine, None, now)
    problem = "its callback cannot be created; the log of the scheduler says why"
    views = [await group.get() for group in groups]
    assert [view.problem for view in views] == [None, None, problem, None, None]
    assert [view.ended_at is not None for view in views] == [True, True, False, True, True]
    assert len(await live(engine)) == 4
    await follow_groups(engine, None, now)  # not tried again at once
    await engine.database.value("alter table hourbell.execution_groups drop constraint bad")
    row = await engine.database.row(
        "select look_at from hourbell.execution_groups where id = $1", rows[2]["id"]
    )
    await follow_groups(engine, None, row["look_at"])
    view = await groups[2].get()
    assert (view.ended_at, view.problem) == (row["look_at"], None)


async def test_a_group_that_is_refused_within_a_transaction_says_what_is_left_there(
    app: App, database: str
) -> None:
    send, report = app.get_task("send"), app.get_task("report")
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            with pytest.raises(InvalidArguments, match="not the group: roll it back"):
                await app.group(
                    [send.bind(1)],
                    then=report.configure(tenant="acme").bind(1),
                    connection=connection,
                )
    finally:
        await connection.close()


async def test_a_last_job_that_exists_already_ends_the_group(app: App) -> None:
    send = app.get_task("send")
    then = app.get_task("report").configure(idempotency_key="once").bind(7)
    async with app.worker(FAST):
        first = await app.group([send.bind(1)], then=then)
        second = await app.group([send.bind(2)], then=then)
        assert (await first.wait(30)).then == (await second.wait(30)).then
