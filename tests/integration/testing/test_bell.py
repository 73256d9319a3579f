"""The fixture `bell`: tasks and schedules of an app in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from hourbell import App, Cancel, Context, Dead, Retry, RetryAfter, RunInfo, Snooze, cron, every
from hourbell.engine.core import Engine
from hourbell.engine.operations.change import pause_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue
from hourbell.engine.operations.monitors import create_monitor
from hourbell.engine.views.jobs import get_job
from hourbell.errors import JobFailed, LeaseLost, StoreUnavailable
from hourbell.model.ids import job_text, parse_job_id
from hourbell.model.jobs import JobStatus, Pause
from hourbell.model.limits import QueueSettings, RateLimit
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Connection, Database
from hourbell.testing import AttemptFailed, Bell, EndlessRuns, Misuse, start

MARCH = datetime(2027, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
at_march = pytest.mark.hourbell(at=MARCH)


@at_march
async def test_a_delayed_job_runs_at_its_time_and_not_before(hourbell_app: App, bell: Bell) -> None:
    seen: list[tuple[int, datetime]] = []

    @hourbell_app.task(name="remind")
    async def remind(ctx: Context, cart_id: int) -> str:
        seen.append((cart_id, bell.clock.now))
        return f"cart {cart_id}"

    job = await remind.configure(delay=24 * HOUR).enqueue(cart_id=7)
    await bell.drain()
    await bell.clock.advance(hours=23, minutes=59, seconds=59)
    assert seen == []
    await bell.clock.advance(days=3)
    assert seen == [(7, MARCH + 24 * HOUR)]
    assert await bell.result_of(job) == "cart 7"
    assert bell.clock.now == MARCH + timedelta(days=4, seconds=-1)


async def test_the_clock_begins_at_the_real_time_unless_the_test_says_otherwise(bell: Bell) -> None:
    began = bell.clock.now
    now = datetime.now(UTC)  # noqa: TID251 - the real time is what is tested
    assert timedelta(0) <= now - began < timedelta(minutes=2)
    with pytest.raises(Misuse, match="cannot go back"):
        await bell.clock.until(began - HOUR)
    with pytest.raises(Misuse, match="has no time zone"):
        await bell.clock.until(datetime(2030, 1, 1))  # noqa: DTZ001


async def test_only_the_schedules_that_a_test_names_fire(
    hourbell_app: App, hourbell_database: str
) -> None:
    @hourbell_app.task(name="often", schedule=cron("* * * * *"))
    def often() -> None: ...

    @hourbell_app.task(
        name="daily", schedule=[cron("0 2 * * *", key="night"), cron("0 14 * * *", key="day")]
    )
    def daily() -> None: ...

    async with start(hourbell_app, url=hourbell_database, at=MARCH, schedules=[daily]) as bell:
        await bell.clock.advance(days=1)
        assert [run.task for run in await bell.runs()] == ["shop.daily", "shop.daily"]


async def test_no_schedule_fires_if_a_test_names_none(
    hourbell_app: App, hourbell_database: str
) -> None:
    @hourbell_app.task(name="often", schedule=cron("* * * * *"))
    def often() -> None: ...

    async with start(hourbell_app, url=hourbell_database, at=MARCH, schedules=[]) as bell:
        await bell.clock.advance(hours=2)
        assert await bell.runs() == []


async def test_a_task_without_a_schedule_cannot_be_named(
    hourbell_app: App, hourbell_database: str
) -> None:
    @hourbell_app.task(name="plain")
    def plain() -> None: ...

    async with start(hourbell_app, url=hourbell_database, schedules=[plain]) as bell:
        with pytest.raises(Misuse, match="schedules= takes tasks that have a schedule, not <Task"):
            await bell.clock.advance(hours=2)


@pytest.mark.hourbell(at=datetime(2028, 1, 1, tzinfo=UTC))
async def test_a_leap_year_of_a_daily_schedule_has_366_runs_none_of_them_late(
    hourbell_app: App, bell: Bell
) -> None:
    local: list[str] = []

    @hourbell_app.task(name="report", schedule=cron("30 2 * * *", timezone="Europe/Berlin"))
    async def report(ctx: Context) -> None:
        local.append(f"{bell.clock.now:%m-%d %H:%M}")

    await bell.clock.advance(days=366)
    runs = await bell.runs(report)
    assert len(runs) == len(local) == 366
    assert {run.status for run in runs} == {"SUCCEEDED"}
    assert {run.started_at == run.scheduled_for for run in runs} == {True}
    # In winter 02:30 is 01:30 UTC. On 26 March there is no 02:30 (the rule: run after the gap), and
    # on 29 October there are two (the rule: once).
    assert local[0] == "01-01 01:30"
    assert [each for each in local if each.startswith("03-2")][5:8] == [
        "03-25 01:30",
        "03-26 01:00",
        "03-27 00:30",
    ]
    assert [each for each in local if each.startswith(("10-28", "10-29", "10-30"))] == [
        "10-28 00:30",
        "10-29 00:30",
        "10-30 01:30",
    ]


@at_march
async def test_an_event_costs_four_statements(
    hourbell_app: App, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate, a claim, a settle, and a look at what is next: a year of hours is 8,760 of these."""
    ran = 0

    @hourbell_app.task(name="hourly", schedule=cron("0 * * * *"))
    async def hourly() -> None:
        nonlocal ran
        ran += 1

    await bell.clock.advance(hours=1, minutes=1)
    statements = 0
    connection = Database.connection

    def counted(database: Database) -> AbstractAsyncContextManager[Connection]:
        nonlocal statements
        statements += 1
        return connection(database)

    monkeypatch.setattr(Database, "connection", counted)
    before = ran
    await bell.clock.advance(hours=20)
    assert ran - before == 20
    assert statements <= 4 * 20 + 8  # the plan for the next day; heartbeats of the worker


@at_march
async def test_intervals_retries_and_delays_fall_due_in_their_order(
    hourbell_app: App, bell: Bell
) -> None:
    seen: list[str] = []

    @hourbell_app.task(name="tick", schedule=every(600))
    async def tick() -> None:
        seen.append(f"tick {bell.clock.now:%H:%M}")

    @hourbell_app.task(name="flaky", retry=Retry.delays(60, 900))
    async def flaky(ctx: Context) -> None:
        seen.append(f"attempt {ctx.attempt} {bell.clock.now:%H:%M}")
        raise ValueError("no")

    await flaky.configure(delay=60).enqueue()
    await bell.clock.advance(minutes=20, raises=False)
    assert seen == [
        "attempt 1 00:01",
        "attempt 2 00:02",
        "tick 00:10",
        "attempt 3 00:17",
        "tick 00:20",
    ]


@at_march
async def test_the_exception_of_a_task_is_raised_where_it_ran(
    hourbell_app: App, bell: Bell
) -> None:
    @hourbell_app.task(name="fail", retry=Retry.delays(60))
    async def fail(order: int) -> None:
        raise ValueError(f"order {order}")

    job = await fail.enqueue(order=3)
    with pytest.raises(ValueError, match="order 3") as raised:
        await bell.drain()
    (note,) = raised.value.__notes__
    assert "Raised by shop.fail" in note
    assert "attempt 1. It is retried in 60 s." in note
    assert (await job.get()).status == "RETRYING"
    with pytest.raises(ValueError, match="order 3"):
        await bell.clock.advance(days=1)
    assert bell.clock.now == MARCH + timedelta(seconds=60)
    assert (await job.get()).status == "DEAD"
    with pytest.raises(JobFailed, match="retries_exhausted"):
        await bell.result_of(job)


@at_march
async def test_an_exception_that_would_end_the_tests_is_reported_as_another(
    hourbell_app: App, bell: Bell
) -> None:
    @hourbell_app.task(name="stop", retry=Retry.never())
    def stop() -> None:
        raise KeyboardInterrupt("mine")

    job = await stop.enqueue()
    with pytest.raises(AttemptFailed, match=r"KeyboardInterrupt: mine It is DEAD\."):
        await bell.drain()
    assert (await job.get()).status == "DEAD"


@pytest.mark.hourbell(at=MARCH, raises=False, concurrency=5)
async def test_what_a_task_decides_is_not_raised_and_has_its_delay(
    hourbell_app: App, bell: Bell
) -> None:
    runs: list[tuple[str, int, float]] = []

    @hourbell_app.task(name="decide", retry=Retry.delays(60))
    async def decide(ctx: Context, how: str) -> None:
        is_first = how not in {earlier for earlier, *_ in runs}
        runs.append((how, ctx.attempt, (bell.clock.now - MARCH).total_seconds()))
        match how:
            case "snooze" if is_first:
                raise Snooze(30)
            case "retry" if is_first:
                raise RetryAfter(10)
            case "cancel":
                raise Cancel("not needed")
            case "dead":
                raise Dead("broken")

    jobs = {how: await decide.enqueue(how=how) for how in ("snooze", "retry", "cancel", "dead")}
    await bell.clock.advance(minutes=2, raises=True)
    assert {how: (await job.get()).status for how, job in jobs.items()} == {
        "snooze": "SUCCEEDED",
        "retry": "SUCCEEDED",
        "cancel": "CANCELLED",
        "dead": "DEAD",
    }
    assert sorted(runs) == [
        ("cancel", 1, 0.0),
        ("dead", 1, 0.0),
        ("retry", 1, 0.0),
        ("retry", 2, 10.0),  # in place of the delay of its policy
        ("snooze", 1, 0.0),
        ("snooze", 1, 30.0),
    ]


async def test_a_payload_that_does_not_fit_and_a_timeout_are_raised_too(
    hourbell_app: App, bell: Bell
) -> None:
    @hourbell_app.task(name="slow", timeout=1, retry=Retry.never())
    async def slow() -> None:
        await asyncio.sleep(60)

    @hourbell_app.task(name="mail", retry=Retry.never())
    async def mail(cart_id: int) -> None: ...

    await slow.enqueue()
    with pytest.raises(AttemptFailed, match=r"shop\.slow .* exceeded its timeout"):
        await bell.drain()
    call = await mail.enqueue(7)
    assert hourbell_app._opened is not None
    await hourbell_app._opened.database.value(
        "update hourbell.executions set spec = replace(spec, 'cart_id', 'cart') where id = $1"
        " returning id",
        parse_job_id(call.id),
    )
    with pytest.raises(AttemptFailed, match=r"arguments do not fit .* It is retried in 60 s\."):
        await bell.drain()


@at_march
async def test_a_job_that_always_asks_to_run_again_is_named(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="poll")
    async def poll() -> None:
        raise Snooze(0)

    job = await poll.enqueue()
    with pytest.raises(EndlessRuns, match=rf"shop\.poll \({job.id}\) ran 100 times"):
        await bell.drain()


async def test_what_a_task_enqueues_runs_in_the_same_drain(hourbell_app: App, bell: Bell) -> None:
    ran: list[int] = []

    @hourbell_app.task(name="chain")
    async def chain(left: int) -> None:
        ran.append(left)
        if left:
            await chain.enqueue(left=left - 1)

    @hourbell_app.task(name="threaded")
    def threaded(left: int) -> None:
        chain.enqueue_sync(left=left)

    await threaded.enqueue(left=3)
    await bell.drain()
    assert ran == [3, 2, 1, 0]
    assert await bell.enqueued() == []


@at_march
async def test_the_last_job_of_a_group_runs_when_the_others_have_ended(
    hourbell_app: App, bell: Bell
) -> None:
    ran: list[str] = []

    @hourbell_app.task(name="part")
    async def part(n: int) -> None:
        ran.append(f"part {n}")

    @hourbell_app.task(name="total")
    async def total() -> None:
        ran.append("total")

    late = part.configure(delay=24 * HOUR).bind(2)
    await hourbell_app.group([part.bind(1), late], then=total.bind())
    await bell.clock.advance(hours=23)
    assert ran == ["part 1"]
    await bell.clock.advance(hours=1)
    assert ran == ["part 1", "part 2", "total"]


async def test_run_one_runs_one_job_of_one_task_and_nothing_else(
    hourbell_app: App, bell: Bell
) -> None:
    ran: list[str] = []

    @hourbell_app.task(name="one")
    async def one(name: str) -> str:
        ran.append(name)
        return name.upper()

    @hourbell_app.task(name="other")
    async def other() -> None:
        ran.append("other")

    await other.enqueue()
    await one.enqueue(name="a")
    await one.configure(delay=60).enqueue(name="later")
    run = await bell.run_one(one)
    assert (ran, run.result, run.status) == (["a"], "A", "SUCCEEDED")
    with pytest.raises(AssertionError, match=r"No job of shop\.one is due at .* Waiting: job_"):
        await bell.run_one(one)
    await bell.drain()
    assert ran == ["a", "other"]


async def test_without_the_fixture_tasks_run_with_middleware_state_and_lifespan(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOURBELL_TEST_DATABASE_URL", postgres)
    entered: list[str] = []

    async def middleware(run: RunInfo, call) -> object:  # type: ignore[no-untyped-def]
        entered.append(f"around {run.task}")
        return await call()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[list[object]]:
        entered.append("begin")
        yield [{"pool": 1}]
        entered.append("end")

    app = App("shop", middleware=[middleware], lifespan=lifespan)

    @app.task(name="use")
    async def use(ctx: Context) -> int:
        return int(ctx.get(dict)["pool"])

    async with start(app, at=MARCH) as bell:
        job = await use.enqueue()
        await bell.drain()
        assert await bell.result_of(job) == 1
    assert entered == ["begin", "around shop.use", "end"]
    assert app.url is None


@at_march
async def test_a_result_that_is_not_there_yet_says_what_to_do(
    hourbell_app: App, bell: Bell
) -> None:
    @hourbell_app.task(name="later")
    async def later() -> None: ...

    job = await later.configure(delay=60).enqueue()
    with pytest.raises(AssertionError, match=r"has not ended: it is SCHEDULED.*advance\(\) first"):
        await bell.result_of(job)


async def test_a_task_cannot_move_the_clock(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="wrong", retry=Retry.never())
    async def wrong() -> None:
        await bell.clock.advance(days=1)

    await wrong.enqueue()
    with pytest.raises(Misuse, match="A task must not move the clock"):
        await bell.drain()


# Faults.


@at_march
async def test_a_worker_that_dies_after_its_claim_loses_nothing(
    hourbell_app: App, bell: Bell
) -> None:
    attempts: list[int] = []

    @hourbell_app.task(name="pay")
    async def pay(ctx: Context) -> None:
        attempts.append(ctx.attempt)

    bell.crash_after_claim(pay)
    job = await pay.enqueue()
    await bell.drain()
    assert attempts == []
    assert (await job.get()).status == "RUNNING"  # nobody knows yet
    await bell.clock.advance(seconds=14)
    assert attempts == []
    await bell.clock.advance(seconds=1)
    assert attempts == [2]
    assert (await job.get()).status == "SUCCEEDED"


@at_march
async def test_a_worker_that_dies_after_a_run_runs_it_again(hourbell_app: App, bell: Bell) -> None:
    attempts: list[int] = []

    @hourbell_app.task(name="pay")
    async def pay(ctx: Context) -> None:
        attempts.append(ctx.attempt)

    bell.crash_after_run(pay, times=2)
    job = await pay.enqueue()
    await bell.clock.advance(minutes=2)
    assert attempts == [1, 2, 3]
    assert (await job.get()).status == "SUCCEEDED"


@at_march
async def test_an_at_most_once_task_is_not_run_again(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="pay", delivery="at_most_once")
    async def pay() -> None:
        raise AssertionError("it must not run")

    bell.crash_after_claim(pay)
    job = await pay.enqueue()
    await bell.clock.advance(minutes=1)
    assert ((view := await job.get()).status, view.reason) == ("DEAD", "lost")


@at_march
async def test_a_lost_lease_stops_checkpoints_and_the_job_runs_again(
    hourbell_app: App, bell: Bell
) -> None:
    seen: list[object] = []

    @hourbell_app.task(name="copy")
    async def copy(ctx: Context) -> str:
        seen.append(ctx.restore(int))
        try:
            await ctx.checkpoint(ctx.attempt)
        except LeaseLost:
            seen.append("lost")
            raise
        return f"attempt {ctx.attempt}"

    job = await copy.enqueue()
    bell.lose_lease(job)
    await bell.drain()
    assert seen == [None, "lost", None]
    assert await bell.result_of(job) == "attempt 2"


async def test_calls_fail_while_the_database_is_away(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="note")
    async def note() -> None: ...

    async with bell.database_unavailable():
        with pytest.raises(StoreUnavailable):
            await note.enqueue()
    await note.enqueue()
    await bell.drain()
    assert [run.status for run in await bell.runs(note)] == ["SUCCEEDED"]


# Modes.


@pytest.mark.hourbell(mode="inline", at=MARCH)
async def test_inline_what_is_due_has_run_when_enqueue_returns(
    hourbell_app: App, bell: Bell
) -> None:
    ran: list[int] = []

    @hourbell_app.task(name="outer", retry=Retry.never())
    async def outer(number: int) -> int:
        ran.append(number)
        if number < 3:
            await outer.enqueue(number=number + 1)
        if number == 9:
            raise ValueError("nine")
        return number

    job = await outer.enqueue(number=1)
    assert ran == [1, 2, 3]
    assert await bell.result_of(job) == 1
    with pytest.raises(ValueError, match="nine"):
        await outer.enqueue(number=9)
    await outer.configure(delay=60).enqueue(number=5)
    assert ran[-1] == 9
    await bell.clock.advance(minutes=1)
    assert ran[-1] == 5


@pytest.mark.hourbell(mode="inline", at=MARCH)
async def test_inline_a_job_of_a_transaction_runs_after_the_commit(
    hourbell_app: App, bell: Bell
) -> None:
    ran: list[int] = []

    @hourbell_app.task(name="note")
    async def note(number: int) -> None:
        ran.append(number)

    connection = await asyncpg.connect(bell.url)
    try:
        async with connection.transaction():
            await note.configure(connection=connection).enqueue(number=1)
            await bell.drain()
            assert ran == []
        await note.enqueue(number=2)
    finally:
        await connection.close()
    assert sorted(ran) == [1, 2]


@at_march
def test_a_plain_test_uses_the_twins(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="plain")
    def plain(number: int) -> int:
        return number * 2

    job = plain.configure(delay=60).enqueue_sync(number=4)
    bell.assert_enqueued_sync(plain, number=4, at=timedelta(seconds=60))
    with bell.watching() as watch:
        plain.enqueue_sync(number=5)
    watch.assert_enqueued_sync(plain, count=1)
    bell.clock.advance_sync(minutes=1)
    assert bell.result_of_sync(job) == 8


# Policies of the engine, in virtual time.


@at_march
async def test_a_rate_limit_and_a_concurrency_key_are_kept(hourbell_app: App, bell: Bell) -> None:
    ordered: list[int] = []

    @hourbell_app.task(name="limited", queue="mail")
    async def limited() -> None: ...

    @hourbell_app.task(name="one", concurrency_key="account:1")
    async def one(number: int) -> None:
        ordered.append(number)

    engine = Engine(bell._database, DatabaseClock(bell._database))
    limit = RateLimit(per_second=1 / 60, burst=1)
    await set_queue(engine, "mail", QueueSettings(rate_limit=limit), Write())
    for number in range(3):
        await limited.enqueue()
        await one.enqueue(number=number)
    await bell.drain()
    assert ordered == [0, 1, 2]
    assert len(await bell.runs(limited)) == 1
    await bell.clock.advance(minutes=2)
    starts = [run.started_at for run in await bell.runs(limited)]
    assert starts == [MARCH + timedelta(minutes=minute) for minute in range(3)]


@at_march
async def test_a_job_that_is_too_late_to_start_is_skipped(hourbell_app: App, bell: Bell) -> None:
    ran: list[int] = []

    @hourbell_app.task(name="one", concurrency_key="account:1", retry=Retry.delays(60))
    async def one(ctx: Context, number: int) -> None:
        ran.append(number)
        if number == 0 and ctx.attempt == 1:
            raise ValueError("not now")

    first = await one.enqueue(number=0)  # the others wait for its second attempt
    late = [
        await one.configure(expires_at=MARCH + timedelta(seconds=59)).enqueue(number=1),
        await one.configure(expires_in=59).enqueue(number=2),
    ]
    in_time = await one.configure(expires_at=MARCH + timedelta(seconds=61)).enqueue(number=3)
    await bell.clock.advance(minutes=5, raises=False)
    for job in late:
        view = await job.get()
        assert (view.status, view.reason) == ("SKIPPED", "start_deadline")
    assert [(await job.get()).status for job in (first, in_time)] == ["SUCCEEDED"] * 2
    assert ran == [0, 0, 3]


@at_march
async def test_a_job_that_has_not_ended_by_its_deadline_is_dead(
    hourbell_app: App, bell: Bell
) -> None:
    @hourbell_app.task(name="paused", retry=Retry.delays(3600))
    async def paused() -> None:
        raise ValueError("not now")

    job = await paused.configure(deadline=timedelta(minutes=30)).enqueue()
    await bell.clock.advance(hours=1, raises=False)
    view = await job.get()
    assert (view.status, view.reason) == ("DEAD", "deadline")


@at_march
async def test_a_pause_ends_at_its_time(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="tick", schedule=every(3600))
    async def tick() -> None: ...

    engine = Engine(bell._database, DatabaseClock(bell._database))
    await bell.clock.advance(hours=1)
    job_id = await bell._database.value("select id from hourbell.jobs")
    await pause_job(engine, job_id, Write(), Pause(until=MARCH + 2.5 * HOUR))
    await bell.clock.advance(hours=1, minutes=40)  # it ends after 1:30, and nothing else happens
    job = await get_job(engine, job_id)
    assert (job.status, job.updated_at) == (JobStatus.SCHEDULED, MARCH + 2.5 * HOUR)
    await bell.clock.advance(hours=2)
    starts = [run.started_at for run in await bell.runs(tick)]
    assert starts == [MARCH + hour * HOUR for hour in (1, 3, 4)]


@at_march
async def test_a_monitor_is_down_when_its_grace_has_passed(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="tick", schedule=every(3600), retry=Retry.never())
    async def tick() -> None:
        raise ValueError("not now")

    engine = Engine(bell._database, DatabaseClock(bell._database))
    await bell.drain()
    job_id = await bell._database.value("select id from hourbell.jobs")
    document = {"job_id": job_text(job_id), "grace_seconds": 600, "url": "https://pager.example/"}
    await create_monitor(engine, document, Write())
    down_since = "select down_since from hourbell.monitors"
    await bell.clock.advance(hours=1, minutes=9, seconds=59, raises=False)
    assert await bell._database.value(down_since) is None
    await bell.clock.advance(minutes=30)
    assert await bell._database.value(down_since) == MARCH + timedelta(hours=1, minutes=10)


async def test_a_database_with_real_jobs_is_refused(hourbell_app: App, database: str) -> None:
    @hourbell_app.task(name="real")
    async def real() -> None: ...

    hourbell_app.url = database
    async with hourbell_app:
        await real.enqueue()
        with pytest.raises(Misuse, match="is already open"):
            await start(hourbell_app, url=database).__aenter__()
    with pytest.raises(Misuse, match="This database has jobs and a real clock"):
        await start(hourbell_app, url=database).__aenter__()
    with pytest.raises(Misuse, match=r"mode='inlin': it must be \"manual\" or \"inline\""):
        await start(hourbell_app, url=database, mode="inlin").__aenter__()  # type: ignore[arg-type]


async def test_a_sync_call_in_a_coroutine_says_what_to_write(bell: Bell) -> None:
    with pytest.raises(Misuse, match="async with"), bell.watching():
        pass


@at_march
async def test_a_worker_can_die_in_run_one_too(hourbell_app: App, bell: Bell) -> None:
    @hourbell_app.task(name="pay")
    async def pay(ctx: Context) -> int:
        return ctx.attempt

    bell.crash_after_claim(pay)
    job = await pay.enqueue()
    assert (await bell.run_one(pay)).status == "RUNNING"
    await bell.clock.advance(seconds=15)
    assert await bell.result_of(job) == 2
