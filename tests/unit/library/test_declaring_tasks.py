"""What may be a task, what it is called, and which options it has."""

import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import hourbell
from hourbell import App, Context, Priority, Retry, SyncContext, cron, every
from hourbell.errors import ConfigurationError, InvalidArguments, InvalidTask, UnknownTask


def term(configured: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(configured._term)
    return found


async def top_level(ctx: Context, cart_id: int) -> str:
    return f"{ctx.attempt}:{cart_id}"


def plain(ctx: SyncContext, cart_id: int) -> int:
    return cart_id


def test_a_task_is_named_after_the_app_and_the_function() -> None:
    app = App("shop")
    assert app.task(top_level).name == "shop.top_level"
    assert app.task(name="reminder", aliases=["old"])(plain).aliases == ("shop.old",)
    assert set(app.tasks) == {"shop.top_level", "shop.reminder", "shop.old"}
    assert app.get_task("reminder") is app.get_task("shop.old")
    with pytest.raises(UnknownTask, match=r"has no task 'x'; it has shop\.old, shop\.reminder"):
        app.get_task("x")


@pytest.mark.parametrize("name", ["Shop", "", "9", "a" * 41, "my shop"])
def test_the_name_of_an_app_is_checked(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name is up to 40 lower-case letters"):
        App(name)


async def test_a_task_can_be_called_as_the_function_that_it_is() -> None:
    app = App("shop")
    assert await app.task(top_level)(cart_id=7) == "1:7"
    assert app.task(plain)(7) == 7


class Methods:
    def method(self, x: int) -> None: ...


async def keyword_only(x: int, *, ctx: Context) -> None: ...
async def second(x: int, ctx: Context) -> None: ...
async def blocking_context(ctx: SyncContext) -> None: ...
def async_context(ctx: Context) -> None: ...
def untyped_star(*ids) -> None: ...  # type: ignore[no-untyped-def]
async def generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "text"),
    [
        (Methods.method, "a method cannot be a task"),
        (
            keyword_only,
            "Context must be the first parameter: async def keyword_only(ctx: Context, …)",
        ),
        (second, "Context must be the first parameter"),
        (blocking_context, "is a coroutine function and takes a Context, not a SyncContext"),
        (async_context, "takes a SyncContext, not a Context"),
        (untyped_star, "*ids needs a type"),
        (generator, "a generator cannot be a task"),
        (lambda: None, "Give it one: @app.task(name=…)"),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_declared(fn: Any, text: str) -> None:
    with pytest.raises(InvalidTask, match=re.escape(text)):
        App("shop").task(fn)


def test_two_functions_of_one_name_are_refused() -> None:
    app = App("shop")
    app.task(name="cleanup")(plain)
    app.task(name="cleanup")(plain)  # the same module, loaded again as __main__
    with pytest.raises(InvalidTask, match=r'"shop.cleanup" is declared twice: .+:\d+ and .+:\d+'):
        app.task(name="cleanup")(top_level)


def test_options_of_the_call_come_before_those_of_the_task_and_of_the_app() -> None:
    app = App("shop", queue="slow", timeout=60, retry=Retry.never(), tenant="acme")
    first = app.task(top_level)
    second = app.task(
        queue="mail", timeout=timedelta(seconds=30), priority="HIGH", labels={"a": "b"}
    )(plain)
    assert term(first) == {
        "task": "shop.top_level",
        "tenant": "acme",
        "queue": "slow",
        "timeout_seconds": 60,
        "retry_policy": {"max_retries": 0},
    }
    configured = second.configure(
        delay=timedelta(hours=24), timeout=10, priority=Priority.LOW, labels={"c": "d"}
    )
    assert term(second)["queue"] == "mail"
    assert term(configured) == {
        "task": "shop.plain",
        "tenant": "acme",
        "queue": "mail",
        "priority": "LOW",
        "delay_seconds": 86400.0,
        "timeout_seconds": 10,
        "retry_policy": {"max_retries": 0},
        "labels": {"a": "b", "c": "d"},
    }


def test_a_unique_key_belongs_to_the_task_unless_said_otherwise() -> None:
    task = App("shop").task(plain)
    assert task.configure(unique_key="cart:7")._key == "shop.plain:cart:7"
    assert task.configure(unique_key="cart:7", unique_scope="tenant")._key == "cart:7"


def test_a_wall_time_needs_a_zone() -> None:
    task = App("shop").task(plain)
    wall = datetime(2031, 5, 6, 10)  # noqa: DTZ001
    at = task.configure(at=wall, timezone="Asia/Kolkata")._at
    assert at is not None
    assert at.astimezone(UTC) == datetime(2031, 5, 6, 4, 30, tzinfo=UTC)
    with pytest.raises(InvalidArguments, match="at= has no time zone"):
        _ = task.configure(at=wall)._at
    with pytest.raises(InvalidArguments, match="exclude each other"):
        _ = task.configure(at=wall.replace(tzinfo=UTC), delay=1)._at


def test_a_misspelt_option_is_named() -> None:
    app = App("shop")
    with pytest.raises(InvalidArguments, match="configure has no option dealy"):
        app.task(plain).configure(dealy=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidTask, match=r"@app\.task has no option queues"):
        app.task(queues="mail")  # type: ignore[call-overload]


def test_retries_are_whole_seconds() -> None:
    assert Retry.delays(60, timedelta(minutes=5)).policy.delays_seconds == (60, 300)
    assert Retry.exponential(5, initial=7200).policy.max_delay_seconds == 7200
    for wrong in (
        lambda: Retry.fixed(3, every=0.5),
        lambda: Retry.delays(),
        lambda: Retry.fixed(101),
    ):
        with pytest.raises(InvalidArguments):
            wrong()


def test_a_schedule_is_checked_where_it_is_written() -> None:
    assert cron("0 2 * * *", timezone="Asia/Kolkata").timezone == "Asia/Kolkata"
    assert every(timedelta(minutes=5)).every_seconds == 300
    for wrong in (
        lambda: cron("0 25 * * *"),
        lambda: cron("@daily", timezone="Asia/Calcuta"),
        lambda: every(0.5),
    ):
        with pytest.raises(InvalidArguments):
            wrong()


def test_every_public_name_is_there_and_none_else() -> None:
    for name in hourbell._PUBLIC:
        assert getattr(hourbell, name).__name__ == name or name == "Options"
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        _ = hourbell.Nope  # type: ignore[attr-defined]


def test_importing_the_library_loads_no_server_and_takes_little_time() -> None:
    program = (
        "import time; began = time.process_time();"
        "from hourbell import App, Context, Retry, cron; took = time.process_time() - began;"
        "import sys; print(took, *sorted({n.partition('.')[0] for n in sys.modules}"
        " & {'aiohttp', 'litestar', 'cryptography', 'asyncpg', 'uvicorn', 'uvloop', 'click', 'rich'}))"
    )
    times = []
    for _ in range(5):  # the best: others may use the machine, and the first compiles
        took, *loaded = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        assert loaded == []
        times.append(float(took))
    assert min(times) < 0.15


TYPE_BELOW = """
@app.task(name="f")
async def f(ctx: Context, item: Item) -> None: ...

class Item(msgspec.Struct):
    number: int
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs annotations of Python 3.14")
def test_a_type_may_be_defined_below_the_task() -> None:
    names: dict[str, Any] = {"app": App("shop"), "Context": Context, "msgspec": msgspec}
    exec(TYPE_BELOW, names)
    assert names["f"].takes_context
    assert "7" in repr(names["f"].bind(names["Item"](7)))
