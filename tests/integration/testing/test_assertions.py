"""What a test asks about enqueued jobs, and what it is told when it is wrong."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import asyncpg
import psycopg
import pytest

from hourbell import App, Task
from hourbell.testing import Bell, Misuse

MARCH = datetime(2027, 3, 1, tzinfo=UTC)
at_march = pytest.mark.hourbell(at=MARCH)


@dataclass
class Money:
    cents: int


@pytest.fixture
def hourbell_app() -> App:
    app = App("shop")

    @app.task(name="remind")
    async def remind(cart_id: int, lang: str = "en") -> None: ...

    @app.task(name="charge")
    async def charge(amount: Money, at: datetime | None = None) -> None: ...

    return app


@pytest.fixture
def remind(hourbell_app: App) -> Task[..., None]:
    return hourbell_app.get_task("remind")


@pytest.fixture
def charge(hourbell_app: App) -> Task[..., None]:
    return hourbell_app.get_task("charge")


@at_march
async def test_jobs_are_found_by_task_arguments_and_time(
    bell: Bell, remind: Task[..., None], charge: Task[..., None]
) -> None:
    later = remind.configure(delay=3600, unique_key="cart:7", priority="HIGH", queue="mail")
    await later.enqueue(cart_id=7)
    await remind.enqueue(cart_id=8, lang="de")
    await charge.enqueue(amount=Money(300))
    [job] = await bell.assert_enqueued(remind, cart_id=7, at=MARCH + timedelta(hours=1), count=1)
    assert (job.unique_key, job.priority.name, job.queue) == ("cart:7", "HIGH", "mail")
    assert (job.args, job.status, job.attempt) == ({"cart_id": 7}, "SCHEDULED", 0)
    await bell.assert_enqueued(remind, at=timedelta(minutes=59), within=60)
    await bell.assert_enqueued(remind, lang="en", count=1)  # by its default
    await bell.assert_enqueued(charge, amount=Money(300))
    await bell.refute_enqueued(remind, cart_id=9)
    await bell.refute_enqueued(charge, amount=Money(301))
    assert len(await bell.enqueued()) == 3
    assert [run.args["cart_id"] for run in await bell.enqueued(remind)] == [8, 7]
    assert [run.args["cart_id"] for run in await bell.enqueued(remind, lang="de")] == [8]


@at_march
async def test_a_job_that_was_cancelled_or_has_run_is_not_enqueued_any_more(
    bell: Bell, remind: Task[..., None]
) -> None:
    await remind.configure(delay=60, unique_key="cart:7").enqueue(cart_id=7)
    await remind.enqueue(cart_id=8)
    await remind.cancel(unique_key="cart:7")
    await bell.drain()
    await bell.refute_enqueued(remind)
    with pytest.raises(AssertionError) as raised:
        await bell.assert_enqueued(remind, cart_id=7)
    lines = str(raised.value).splitlines()
    assert lines[0] == "Expected at least 1 enqueued: shop.remind with cart_id=7. Found 0."
    assert lines[2] == "Ended (not counted) for this task (2):"
    assert "cart_id=7  CANCELLED" in lines[4]


@at_march
async def test_a_failed_assertion_shows_what_there_is(
    bell: Bell, remind: Task[..., None], charge: Task[..., None]
) -> None:
    with pytest.raises(AssertionError, match="Nothing is enqueued"):
        await bell.assert_enqueued(remind)
    job = await remind.configure(delay=60).enqueue(cart_id=7)
    await charge.enqueue(amount=Money(1))
    with pytest.raises(AssertionError) as raised:
        await bell.assert_enqueued(remind, cart_id=8, at=MARCH + timedelta(hours=1), count=2)
    assert str(raised.value) == (
        "Expected 2 enqueued: shop.remind with cart_id=8 at 2027-03-01T01:00:00Z ± 1 s. Found 0.\n"
        "The clock shows 2027-03-01T00:00:00Z.\n"
        "Enqueued for this task (1):\n"
        f"  {job.id}  cart_id=7  SCHEDULED at 2027-03-01T00:01:00Z  (different: cart_id, at)\n"
        "Enqueued for other tasks: shop.charge."
    )
    with pytest.raises(AssertionError, match=r"Expected none enqueued: shop\.remind\. Found 1\."):
        await bell.refute_enqueued(remind)


@at_march
async def test_an_assertion_that_could_never_fail_is_refused(
    bell: Bell, remind: Task[..., None], charge: Task[..., None]
) -> None:
    with pytest.raises(
        Misuse, match=r"shop\.remind has no parameter cart\. Its parameters: cart_id, lang"
    ):
        await bell.refute_enqueued(remind, cart=7)
    with pytest.raises(Misuse, match=r"no job can have cart_id='7'"):
        await bell.refute_enqueued(remind, cart_id="7")
    with pytest.raises(Misuse, match=r"has a parameter at, and so does this assertion"):
        await bell.refute_enqueued(charge, at=MARCH)
    await bell.refute_enqueued(charge, args={"at": MARCH})


@at_march
async def test_watching_sees_only_what_is_enqueued_inside(
    bell: Bell, remind: Task[..., None]
) -> None:
    await remind.enqueue(cart_id=1)
    async with bell.watching() as watch:
        await watch.refute_enqueued(remind)
        await remind.enqueue(cart_id=2)
        await watch.assert_enqueued(remind, count=1)
    await remind.enqueue(cart_id=3)
    assert [run.args["cart_id"] for run in await watch.enqueued()] == [2]
    await bell.assert_enqueued(remind, count=3)


@at_march
async def test_a_test_looks_into_its_own_open_transaction(
    bell: Bell, remind: Task[..., None]
) -> None:
    connection = await asyncpg.connect(bell.url)
    transaction = connection.transaction()
    await transaction.start()
    async with bell.watching() as watch:
        await remind.configure(connection=connection).enqueue(cart_id=7)
    await bell.refute_enqueued(remind, cart_id=7)
    await bell.assert_enqueued(remind, cart_id=7, connection=connection)
    await watch.assert_enqueued(remind, count=1, connection=connection)
    await transaction.rollback()
    await connection.close()


@at_march
def test_also_a_plain_test_with_a_plain_connection(bell: Bell, remind: Task[..., None]) -> None:
    with psycopg.connect(bell.url) as connection:
        remind.configure(connection=connection).enqueue_sync(cart_id=7)
        bell.assert_enqueued_sync(remind, cart_id=7, connection=connection)
        connection.rollback()
        bell.refute_enqueued_sync(remind, connection=connection)
