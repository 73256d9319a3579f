"""Options of tasks that need a database or a worker: unique, expires_in, upgrade, task sets."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from hourbell import App, Context, Item, RetryAfter, TaskSet, Unique, WorkerOptions
from hourbell.engine.core import Engine
from hourbell.errors import DuplicateJob, InvalidArguments
from hourbell.sdk.schedules import manifest_of
from hourbell.sdk.values import every
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database)


async def test_a_unique_task_has_one_job_for_the_same_arguments(app: App) -> None:
    @app.task(name="remind", unique=Unique())
    async def remind(cart_id: int) -> None: ...

    async with app:
        first, again, other = [await remind.enqueue(cart_id=n) for n in (7, 7, 8)]
    assert (again.id, again.existed) == (first.id, True)
    assert other.id != first.id


async def test_a_job_with_the_same_key_is_replaced_until_it_runs(app: App) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @app.task(name="remind")
    async def remind(cart_id: int) -> int:
        began.set()
        await may_end.wait()
        return cart_id

    replacing = remind.configure(unique_key="cart", on_duplicate="replace")
    async with app:
        first = await remind.configure(unique_key="cart", delay=60).enqueue(1)
        second = await replacing.enqueue(2)
        assert (second.existed, await first.wait(1)) == (False, "CANCELLED")
        async with app.worker(FAST):
            await began.wait()
            with pytest.raises(DuplicateJob, match=rf"belongs to {second.id} \(queued or run"):
                await replacing.enqueue(3)
            may_end.set()
            assert await second.result(20) == 2
            assert await (await replacing.enqueue(4)).result(20) == 4  # the key is free


async def test_jobs_that_share_a_key_run_one_at_a_time_and_in_order(app: App) -> None:
    seen: list[str] = []

    @app.task(name="book", concurrency_key=lambda account, number: f"account:{account}")
    async def book(ctx: Context, account: int, number: int) -> None:
        seen.append(f"{account} begins {number}")
        await ctx.checkpoint(number)  # others would begin meanwhile
        seen.append(f"{account} ends {number}")

    async with app:
        jobs = await app.enqueue_many(book.bind(n % 2, n) for n in range(20))
        async with app.worker(FAST):
            assert {await job.wait(20) for job in jobs} == {"SUCCEEDED"}
    for account in (0, 1):
        numbers = range(account, 20, 2)
        expected = [f"{account} {what} {n}" for n in numbers for what in ("begins", "ends")]
        assert [line for line in seen if line.startswith(str(account))] == expected


async def test_a_repeated_call_with_an_idempotency_key_returns_the_first_job(app: App) -> None:
    @app.task(name="remind")
    async def remind(cart_id: int) -> None: ...

    async with app:
        once = remind.configure(idempotency_key="order:7", delay=60)
        first, again = await asyncio.gather(once.enqueue(7), once.enqueue(7))
        assert first.id == again.id
        assert {first.existed, again.existed} == {False, True}
        await first.cancel()
        assert (await once.enqueue(7)).id == first.id  # also when it has ended
        other = await remind.configure(idempotency_key="order:7", tenant="acme").enqueue(7)
        assert other.id != first.id
        with pytest.raises(InvalidArguments, match="used for another call"):
            await once.enqueue(8)
        with pytest.raises(InvalidArguments, match="exclude each other"):
            await remind.configure(idempotency_key="a", unique_key="b").enqueue(7)
        with pytest.raises(InvalidArguments, match="is for one job"):
            await app.enqueue_many([once.bind(7), once.bind(7)])


async def test_the_time_to_start_is_counted_from_the_time_of_the_job(
    app: App, engine: Engine
) -> None:
    @app.task(name="news", expires_in=60, schedule=every(3600))
    async def news() -> None: ...

    async with app:
        await news.configure(delay=10).enqueue()
        await news.configure(delay=10, expires_in=5).enqueue()
    seconds = await engine.database.fetch(
        "select extract(epoch from start_by - run_at)::int as seconds from hourbell.executions order by id"
    )
    assert [row["seconds"] for row in seconds] == [60, 5]
    (document,) = manifest_of(app, None).schedules.values()
    assert document["start_deadline_seconds"] == 60


async def test_an_old_payload_is_upgraded(app: App, engine: Engine) -> None:
    seen: list[Any] = []

    def upgrade(old: dict[str, Any]) -> dict[str, Any]:
        if "broken" in old:
            raise KeyError("nothing to be done")
        return {"cart_id": int(old["cart"]), "lang": old.get("language", "en")}

    @app.task(name="remind", upgrade=upgrade)
    async def remind(cart_id: int, lang: str = "de") -> None:
        seen.append((cart_id, lang))

    payloads = (
        '{"cart": "1"}',  # does not fit
        '{"cart_id": 2, "cart": "2", "language": "fr"}',  # fits, with names that are unknown now
        '{"cart_id": 3}',  # fits
        '{"broken": true}',
    )
    with capture_logs() as logged:
        async with app, app.worker(FAST):
            for payload in payloads:
                await engine.database.value("select hourbell.enqueue('shop.remind', $1)", payload)

            def refused() -> list[str]:
                return [line["error"] for line in logged if line["event"] == "arguments do not fit"]

            async def all_seen() -> bool:
                return len(seen) == 3 and refused() != []

            await eventually(all_seen)
    assert "upgrade= failed: KeyError" in refused()[0]
    assert sorted(seen) == [(1, "en"), (2, "fr"), (3, "de")]


async def test_a_handler_may_choose_a_longer_delay_than_its_policy_has(
    app: App, engine: Engine
) -> None:
    @app.task(name="later")
    async def later() -> None:
        raise RetryAfter(86_400)

    async with app, app.worker(FAST):
        job = await later.enqueue()

        async def retrying() -> bool:
            return (await job.get()).status == "RETRYING"

        await eventually(retrying)
    assert await engine.database.value(
        "select run_at > hourbell.clock() + interval '23 hours' from hourbell.executions"
    )


async def test_tasks_of_a_set_run_in_the_worker_of_their_app(app: App) -> None:
    tasks = TaskSet()

    @tasks.task(name="double")
    async def double(n: int) -> int:
        return 2 * n

    @tasks.batch_task(name="triple", size=1)
    async def triple(items: list[Item[int]]) -> list[int]:
        return [3 * item.value for item in items]

    app.include(tasks)
    async with app, app.worker(FAST):
        assert await (await double.enqueue(7)).result(20) == 14
        assert await (await triple.enqueue(7)).result(20) == 21
