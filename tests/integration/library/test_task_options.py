"""Options of tasks that need a database or a worker: unique, expires_in, upgrade, task sets."""

import asyncio
from typing import Any

import pytest

from hourbell import App, Item, RetryAfter, TaskSet, Unique, WorkerOptions
from hourbell.engine.core import Engine
from hourbell.errors import InvalidArguments
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


async def test_a_job_that_expires_is_skipped_if_it_starts_too_late(
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
    async with app, app.worker(FAST):
        for payload in payloads:
            await engine.database.value("select hourbell.enqueue('shop.remind', $1)", payload)

        async def mismatch() -> str | None:
            text: str | None = await engine.database.value(
                "select history::text from hourbell.executions where history is not null"
            )
            return text

        assert "upgrade= failed: KeyError" in str(await eventually(mismatch))

        async def all_seen() -> bool:
            return len(seen) == 3

        await eventually(all_seen)
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
