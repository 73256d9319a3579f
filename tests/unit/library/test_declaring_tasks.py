"""What may be a task, what it is called, and which options it has."""

import asyncio
import inspect
import json
import math
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

import hourbell
from hourbell import (
    NONE,
    App,
    Context,
    Item,
    Options,
    Priority,
    Retry,
    SyncContext,
    Task,
    TaskSet,
    Unique,
    cron,
    every,
)
from hourbell.errors import ConfigurationError, InvalidArguments, InvalidTask, UnknownTask
from hourbell.model.policies import retry_delay_seconds
from hourbell.sdk.schedules import manifest_of


def options_of(configured: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(configured._encoded_options)
    return found


def options_of_call(call: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call._planned.options)
    return found


def two(a: int, b: str) -> None: ...


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
    with pytest.raises(UnknownTask, match=r"has no task 'x'. Its tasks: shop\.old, shop\.reminder"):
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
def a_function() -> None: ...
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
        (blocking_context, "is a coroutine function and must take a Context, not a SyncContext"),
        (async_context, "must take a SyncContext, not a Context"),
        (untyped_star, "*ids needs a type"),
        (generator, "a generator cannot be a task"),
        (lambda: None, "Give it one: @app.task(name=…)"),
    ],
)
def test_what_cannot_be_a_task_is_refused_where_it_is_declared(fn: Any, text: str) -> None:
    with pytest.raises(InvalidTask, match=re.escape(text)):
        App("shop").task(fn)


def test_a_process_can_run_only_what_it_can_import() -> None:
    app = App("shop")

    def inside() -> None: ...

    with pytest.raises(
        InvalidTask, match="is a nested function, which another process cannot import"
    ):
        app.task(name="inside", process=True)(inside)
    with pytest.raises(InvalidTask, match="process=True is only for plain functions"):
        app.task(process=True)(top_level)
    assert app.task(process=True)(a_function).options.process


def test_only_a_process_has_a_number_of_calls() -> None:
    with pytest.raises(InvalidTask, match="plain: max_calls= is for tasks with process=True"):
        App("shop").task(max_calls=5)(plain)


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
    assert options_of(first) == {
        "task": "shop.top_level",
        "tenant": "acme",
        "queue": "slow",
        "timeout_seconds": 60,
        "retry_policy": {"max_retries": 0},
    }
    configured = second.configure(
        delay=timedelta(hours=24), timeout=10, priority=Priority.LOW, labels={"c": "d"}
    )
    assert options_of(second)["queue"] == "mail"
    assert options_of(configured) == {
        "task": "shop.plain",
        "tenant": "acme",
        "queue": "mail",
        "priority": "LOW",
        "delay_seconds": 86400.0,
        "timeout_seconds": 10,
        "retry_policy": {"max_retries": 0},
        "labels": {"a": "b", "c": "d"},
    }


DECLARED: dict[str, Any] = {
    "queue": "mail",
    "priority": "HIGH",
    "retry": Retry.fixed(5, every=60),
    "timeout": 30,
    "deadline": 3600,
    "expires_in": 600,
    "unique": Unique(),
    "concurrency_key": "one",
    "concurrency_limit": 2,
    "labels": {"team": "shop"},
}


@pytest.mark.parametrize("name", Options.__annotations__)
@pytest.mark.parametrize("declared", [{}, DECLARED])
def test_none_is_as_declared(name: str, declared: dict[str, Any]) -> None:
    task = App("shop", tenant="acme", queue="slow", timeout=60).task(**declared)(plain)
    call, with_none = task.bind(7), task.configure(**cast(Any, {name: None})).bind(7)
    assert with_none._planned == call._planned
    assert options_of_call(with_none)["tenant"] == "acme"


def test_a_hook_that_sets_none_leaves_it_as_declared() -> None:
    app = App("shop", tenant="acme")
    task = app.task(**DECLARED)(plain)

    @app.on_enqueue
    def forget(task: Task[..., Any], options: Options) -> None:
        options.update({name: None for name in Options.__annotations__})  # type: ignore[misc]

    assert options_of_call(task.configure(delay=7).bind(7))["tenant"] == "acme"
    assert options_of_call(task.bind(7))["queue"] == "mail"


def test_a_call_can_be_without_what_its_task_declares() -> None:
    task = App("shop").task(**DECLARED)(plain)
    call = task.configure(
        retry=NONE,
        deadline=NONE,
        expires_in=NONE,
        unique_key=NONE,
        concurrency_key=NONE,
        labels=NONE,
    ).bind(7)
    assert options_of_call(call) == {
        "task": "shop.plain",
        "tenant": "default",
        "queue": "mail",
        "priority": "HIGH",
        "timeout_seconds": 30,
    }
    assert (call._planned.unique_key, call._planned.shown_key) == (None, None)
    assert task.bind(7)._planned.unique_key is not None


def test_only_some_options_can_be_without() -> None:
    task = App("shop").task(plain)
    for name in ("queue", "tenant", "timeout", "priority", "delay", "at"):
        with pytest.raises(InvalidArguments, match=rf"configure: {name} must be .*, not NONE\."):
            task.configure(**cast(Any, {name: NONE}))
    with pytest.raises(InvalidTask, match="retry must be a Retry"):
        App("shop").task(retry=cast(Any, NONE))


def test_a_unique_key_belongs_to_the_task_unless_said_otherwise() -> None:
    task = App("shop").task(plain)
    assert task.configure(unique_key="cart:7")._key == "shop.plain:cart:7"
    assert task.configure(unique_key="cart:7", unique_scope="tenant")._key == "cart:7"


def test_a_unique_task_has_a_key_of_its_arguments() -> None:
    app = App("shop")
    same = app.task(name="same", unique=Unique())(two)
    assert same.bind(1, "x")._planned.unique_key == same.bind(b="x", a=1)._planned.unique_key
    assert same.bind(1, "x")._planned.unique_key != same.bind(2, "x")._planned.unique_key
    assert options_of_call(same.bind(1, "x"))["on_duplicate"] == "keep"
    by_a = app.task(name="by_a", unique=Unique(lambda a, b: f"a:{a}", on_duplicate="replace"))(two)
    assert by_a.bind(1, "x")._planned.unique_key == "shop.by_a:a:1"
    assert options_of_call(by_a.bind(1, "x"))["on_duplicate"] == "replace"
    own = by_a.configure(unique_key="mine", on_duplicate="reject").bind(1, "x")
    assert own._planned.unique_key == "shop.by_a:mine"
    assert options_of_call(own)["on_duplicate"] == "reject"


def test_a_concurrency_key_can_be_computed_from_the_arguments() -> None:
    task = App("shop").task(concurrency_key=lambda a, b="": f"tenant {a}", concurrency_limit=2)(two)
    assert options_of_call(task.bind(7, "x"))["concurrency_key"] == "tenant 7"
    assert options_of_call(task.bind(7, "x"))["concurrency_limit"] == 2
    assert (
        options_of_call(task.configure(concurrency_key="k").bind(7, "x"))["concurrency_key"] == "k"
    )
    assert "concurrency_key" not in options_of(task)  # of a schedule, or of SQL: there is no call


@pytest.mark.parametrize("bound", [((7,), {}), ((), {"a": 7}), ((7, "x"), {})])
def test_the_function_of_a_key_gets_every_argument_by_name_however_it_was_given(
    bound: tuple[tuple[Any, ...], dict[str, Any]],
) -> None:
    app = App("shop")

    @app.task(
        name="mail",
        unique=Unique(lambda a, b: f"{a}{b}"),
        concurrency_key=lambda a, **_: f"tenant {a}",
    )
    async def mail(a: int, b: str = "x") -> None: ...

    call = mail.bind(*bound[0], **bound[1])
    assert call._planned.unique_key == "shop.mail:7x"
    assert options_of_call(call)["concurrency_key"] == "tenant 7"


def test_the_function_of_a_key_gets_the_value_of_an_item() -> None:
    app = App("shop")

    @app.batch_task(name="index", unique=Unique(lambda number: f"n:{number}"))
    async def index(items: list[Item[int]]) -> None: ...

    assert index.bind(7)._planned.unique_key == "shop.index:n:7"


def test_a_job_expires_by_the_call_or_by_the_task() -> None:
    task = App("shop").task(expires_in=timedelta(minutes=1))(two)
    assert options_of(task)["expires_in_seconds"] == 60
    assert options_of(task.configure(expires_in=5))["expires_in_seconds"] == 5
    at = datetime(2031, 5, 6, tzinfo=UTC)
    assert "expires_in_seconds" not in options_of(task.configure(expires_at=at))


def test_hooks_see_every_call_and_may_change_its_options() -> None:
    app = App("shop")
    task = app.task(two)

    @app.on_enqueue
    def trace(task: Task[..., Any], options: Options) -> None:
        options["labels"] = {**options.get("labels", {}), "of": task.name}

    assert options_of_call(task.bind(1, "x"))["labels"] == {"of": "shop.two"}
    labelled = task.configure(labels={"team": "a"}).bind(1, "x")
    assert options_of_call(labelled)["labels"] == {"team": "a", "of": "shop.two"}

    @app.on_enqueue
    def wrong(task: Task[..., Any], options: Any) -> None:
        options["prio"] = 1

    with pytest.raises(InvalidArguments, match="configure has no option prio"):
        task.bind(1, "x")


def test_a_task_set_belongs_to_the_app_that_includes_it() -> None:
    tasks = TaskSet()
    early = tasks.task(aliases=["old"])(two)
    assert repr(early) == "<Task two>"
    with pytest.raises(InvalidTask, match="belongs to a TaskSet that no app has included yet"):
        early.bind(1, "x")
    app = App("shop")
    app.include(tasks)
    app.include(tasks)
    late = tasks.task(plain)
    assert set(app.tasks) == {"shop.two", "shop.old", "shop.plain"}
    assert early.bind(1, "x")._planned.task == "shop.two"
    assert app.get_task("plain") is late
    with pytest.raises(InvalidTask, match="belong to app 'shop'"):
        App("other").include(tasks)


def test_a_wall_time_needs_a_zone() -> None:
    task = App("shop").task(plain)
    wall = datetime(2031, 5, 6, 10)  # noqa: DTZ001
    at = task.configure(at=wall, timezone="Asia/Kolkata")._at
    assert at is not None
    assert at.astimezone(UTC) == datetime(2031, 5, 6, 4, 30, tzinfo=UTC)
    with pytest.raises(InvalidArguments, match="at= has no time zone"):
        _ = task.configure(at=wall)._at
    with pytest.raises(InvalidArguments, match="cannot be combined"):
        _ = task.configure(at=wall.replace(tzinfo=UTC), delay=1)._at


@pytest.mark.parametrize(
    ("wall", "utc"),
    [
        ("2027-03-14T02:30:00", "2027-03-14T07:00:00Z"),
        ("2027-11-07T01:30:00", "2027-11-07T05:30:00Z"),
        ("2027-11-07T02:30:00.25", "2027-11-07T07:30:00.25Z"),
    ],
)
def test_a_wall_time_at_a_clock_change_is_that_of_the_api(wall: str, utc: str) -> None:
    task = App("shop").task(plain).configure
    at = task(at=datetime.fromisoformat(wall), timezone="America/New_York")._at
    assert at == datetime.fromisoformat(utc)


def test_a_wall_time_that_never_comes_is_refused() -> None:
    task = App("shop").task(plain).configure
    for wall, zone in (("2011-12-30T12:00:00", "Pacific/Apia"), ("0001-01-01T00:00:00", "UTC")):
        with pytest.raises(InvalidArguments, match=f"does not exist in {zone}"):
            _ = task(at=datetime.fromisoformat(wall), timezone=zone)._at


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("delay", "await task.enqueue(…), or task.enqueue_sync(…)"),
        ("apply_async", "await task.configure(delay=60).enqueue(…)"),
        ("s", "task.bind(…)"),
    ],
)
def test_what_tasks_of_other_libraries_have_says_what_to_write(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"{name!r}. Write {instead}")):
        getattr(App("shop").task(plain), name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = App("shop").task(plain).nonsense


def test_an_option_of_a_call_says_how_a_decorator_writes_it() -> None:
    with pytest.raises(InvalidTask, match=r"has no option unique_key\. Write unique=Unique\("):
        App("shop").task(unique_key="cart")  # type: ignore[call-overload]


async def test_an_enqueue_that_nobody_awaits_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = App("shop").task(plain)
    task.enqueue(7)  # type: ignore[unused-coroutine]
    task.configure(delay=60).enqueue_many([task.bind(7)])  # type: ignore[unused-coroutine]
    App("shop").enqueue_many([task.bind(7)])  # type: ignore[unused-coroutine]
    records = [(each.name, each.levelname) for each in caplog.records]
    assert records == [("hourbell", "ERROR")] * 3
    said = [each.getMessage() for each in caplog.records]
    assert said[0] == (
        "enqueue of <Task shop.plain> was never awaited: no job was created. Write `await` before it,"
        " or call enqueue_sync."
    )
    assert said[1].startswith("enqueue_many of <Task shop.plain>")
    assert said[2].startswith("enqueue_many of <App shop")


async def test_an_awaited_enqueue_is_a_coroutine_in_every_respect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = App("shop").task(plain)
    assert inspect.iscoroutinefunction(task.enqueue) or sys.version_info < (3, 12)
    assert asyncio.iscoroutinefunction(task.enqueue)
    refused = "plain: cart_id must be int"
    for start in (asyncio.create_task, asyncio.ensure_future, lambda each: each):
        with pytest.raises(InvalidArguments, match=refused):
            await start(task.enqueue("7"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=refused):
        await asyncio.to_thread(asyncio.run, task.enqueue("7"))  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match=refused):
        task.enqueue_sync("7")  # type: ignore[arg-type]
    cancelled = asyncio.create_task(task.enqueue(7))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    task.enqueue(7).close()
    assert caplog.records == []


def test_a_misspelt_option_is_named() -> None:
    app = App("shop")
    with pytest.raises(InvalidArguments, match="configure has no option dealy"):
        app.task(plain).configure(dealy=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidTask, match=r"@app\.task has no option queues"):
        app.task(queues="mail")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"queue": "a b"}, "queue must be 1 to 64 letters, digits or . _ : -, not 'a b'"),
        ({"priority": "URGENT"}, "priority must be CRITICAL, HIGH, MEDIUM or LOW, not 'URGENT'"),
        ({"retry": 3}, "retry must be a Retry, such as Retry.fixed(3, every=60), not 3"),
        ({"timeout": "3"}, "timeout must be a number of seconds or a timedelta, not '3'"),
        ({"deadline": "3"}, "deadline must be a number of seconds"),
        ({"expires_in": "3"}, "expires_in must be a number of seconds"),
        ({"labels": ["a"]}, "labels must be a mapping of strings, not ['a']"),
        ({"labels": {"a": 1}}, "labels must be a mapping of strings"),
        ({"concurrency_key": 7}, "concurrency_key must be a non-empty string, not 7"),
        (
            {"concurrency_key": "k", "concurrency_limit": "2"},
            "concurrency_limit must be a whole number",
        ),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_where_it_is_written(
    option: dict[str, Any], text: str
) -> None:
    app = App("shop")
    with pytest.raises(InvalidTask, match=re.escape(f"@app.task: {text}")):
        app.task(**option)
    with pytest.raises(InvalidTask, match=re.escape(f"@app.batch_task: {text}")):
        app.batch_task(**option)
    with pytest.raises(InvalidArguments, match=re.escape(f"configure: {text}")):
        app.task(plain).configure(**option)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"name": 7}, "name must be a non-empty string, not 7"),
        ({"aliases": "old"}, "aliases must be a list of names, not 'old'"),
        ({"delivery": "once"}, "delivery must be at_least_once or at_most_once"),
        ({"unique": "key"}, "unique must be a Unique, such as Unique()"),
        ({"upgrade": 3}, "upgrade must be a function"),
        ({"schedule": "0 2 * * *"}, 'schedule must be made with cron("0 2 * * *") or every(60)'),
        ({"schedule": ["@daily"]}, "schedule must be made with cron"),
        ({"no_retry": ["ValueError"]}, "no_retry must be a list of exception types"),
        ({"no_retry": ValueError}, "no_retry must be a list of exception types"),
        ({"process": True, "max_calls": 0}, "max_calls must be 1 or more, not 0"),
        ({"middleware": [1]}, "middleware must be a list of functions"),
    ],
)
def test_what_only_a_decorator_takes_is_checked_there(option: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTask, match=re.escape(f"@app.task: {text}")):
        App("shop").task(**option)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"at": "2031-05-06"}, "at must be a datetime, not '2031-05-06'"),
        ({"expires_at": 7}, "expires_at must be a datetime"),
        ({"delay": "5"}, "delay must be a number of seconds or a timedelta"),
        ({"tenant": "A B"}, "tenant must be 1 to 64 letters"),
        ({"unique_key": ""}, "unique_key must be a non-empty string, not ''"),
        ({"unique_key": 7}, "unique_key must be a non-empty string, not 7"),
        (
            {"unique_key": "k", "on_duplicate": "skip"},
            "on_duplicate must be reject, keep or replace",
        ),
        ({"unique_key": "k", "unique_scope": "app"}, "unique_scope must be task or tenant"),
        ({"idempotency_key": 7}, "idempotency_key must be a non-empty string"),
        ({"timezone": 7}, "timezone must be a non-empty string"),
    ],
)
def test_what_only_a_call_takes_is_checked_there(option: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArguments, match=re.escape(f"configure: {text}")):
        App("shop").task(plain).configure(**option)


async def test_keys_that_are_computed_or_cancelled_are_texts_too() -> None:
    app = App("shop")
    task = app.task(unique=Unique(lambda cart_id: cart_id))(plain)
    with pytest.raises(InvalidArguments, match="unique_key must be a non-empty string, not 7"):
        task.bind(7)
    with pytest.raises(InvalidArguments, match="cancel: unique_key must be a non-empty string"):
        await task.cancel(unique_key=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"state=\[pool\], not a str\."):
        App("shop", state="pool")
    with pytest.raises(ConfigurationError, match=r"App\('shop'\): retry must be a Retry"):
        App("shop", retry=3)  # type: ignore[arg-type]


async def test_only_calls_are_enqueued_together() -> None:
    app = App("shop")
    for wrong in (7, app.task(plain)):
        with pytest.raises(InvalidArguments, match=r"is not a call. Create one with task\.bind"):
            await app.enqueue_many([wrong])  # type: ignore[list-item]


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


def test_the_delays_of_a_retry_are_those_of_its_name() -> None:
    def delays(retry: Retry, seed: int = 0) -> list[float]:
        policy = retry.policy
        return [retry_delay_seconds(policy, n, seed) for n in range(1, policy.max_retries + 1)]

    doubled = [30, 60, 120, 200]
    assert delays(Retry.exponential(4, initial=30, maximum=200, jitter=False)) == doubled
    with_jitter = Retry.exponential(4, initial=30, maximum=200)
    for seed in range(20):
        shares = [d / whole for d, whole in zip(delays(with_jitter, seed), doubled, strict=True)]
        assert all(0.5 <= share <= 1 for share in shares)
    assert delays(with_jitter, 0) != delays(with_jitter, 1)
    assert delays(Retry.fixed(3, every=7)) == [7, 7, 7]
    assert delays(Retry.linear(4, step=10, maximum=timedelta(seconds=35))) == [10, 20, 30, 35]
    assert delays(Retry.delays(60, 300, 1800)) == [60, 300, 1800]
    assert delays(Retry.never()) == []


@pytest.mark.parametrize("value", ["1h", "60", None, [60]])
def test_a_time_is_a_number_or_a_timedelta(value: Any) -> None:
    for wrong in (
        lambda: Retry.delays(value),
        lambda: Retry.fixed(3, every=value),
        lambda: every(value),
        lambda: cron("@daily", jitter=value),
    ):
        with pytest.raises(
            InvalidArguments, match=r"is not a number\. Use a number of seconds or a"
        ):
            wrong()


def test_a_policy_of_a_schedule_is_one_of_those_that_there_are() -> None:
    for wrong in (
        lambda: cron("@daily", misfire=cast(Any, "never")),
        lambda: every(60, misfire=cast(Any, "never")),
    ):
        with pytest.raises(
            InvalidArguments, match="misfire='never' must be one of skip, latest, all"
        ):
            wrong()
    with pytest.raises(InvalidArguments, match="overlap='x' must be one of allow, forbid, replace"):
        every(60, overlap=cast(Any, "x"))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, pytest.param(10**400, id="huge")])
def test_a_time_is_a_finite_number(value: float) -> None:
    task: Any = App("shop").task(plain)
    for option in ("delay", "timeout", "deadline", "expires_in"):
        expected = rf"configure: {option} must be from .*, not (-?inf|nan|a number with hund.*)\."
        with pytest.raises(InvalidArguments, match=expected):
            task.configure(**{option: value})
    for wrong in (
        lambda: Retry.fixed(3, every=value),
        lambda: Retry.exponential(3, maximum=value),
        lambda: every(value),
        lambda: cron("@daily", jitter=value),
        lambda: App("other").batch_task(max_wait=value),
    ):
        with pytest.raises(
            InvalidArguments, match=r"is not a finite number\. Use a number of seconds"
        ):
            wrong()


def test_a_fraction_of_a_second_is_rounded_up_and_less_than_one_is_refused() -> None:
    task = App("shop").task(plain)
    assert options_of(task.configure(timeout=1.2))["timeout_seconds"] == 2
    assert options_of(task.configure(timeout=timedelta(seconds=1)))["timeout_seconds"] == 1
    with pytest.raises(
        InvalidArguments, match=r"timeout must be from 1 to 86400 seconds, not 0\.5"
    ):
        task.configure(timeout=0.5)
    text = "maximum=0.5 is too short. Use 1 second or more (fractions are rounded up)."
    with pytest.raises(InvalidArguments, match=re.escape(text)):
        Retry.exponential(maximum=0.5)
    with pytest.raises(InvalidArguments, match="every=-1 is too short"):
        Retry.fixed(every=-1)


HUGE = [10**12, 10**5_000, timedelta(days=10**6)]


@pytest.mark.parametrize(
    "value", [*HUGE, -1, True, "5", [1]], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("timeout", "from 1 to 86400 seconds"),
        ("delay", "from 0 to 315360000 seconds"),
        ("expires_in", "from 1 to 2592000 seconds"),
        ("deadline", "from 1 to 31622400 seconds"),
        ("concurrency_limit", "a whole number from 1 to 10000"),
        ("priority", "CRITICAL, HIGH, MEDIUM or LOW"),
    ],
)
def test_an_option_out_of_its_range_is_refused_where_it_is_written(
    option: Any, says: str, value: Any
) -> None:
    app: Any = App("shop")
    expected = rf"{option} must be ({says}|a number of seconds)|{option}=.* is not a finite number"
    with pytest.raises(InvalidArguments, match=expected):
        app.task(plain).configure(**{option: value})
    if option != "delay":  # a decorator has none
        with pytest.raises((InvalidTask, InvalidArguments), match=expected):
            app.task(**{option: value})(plain)


@pytest.mark.parametrize(
    "value", [*HUGE, -1, 0.5, math.nan, math.inf, "5", [1]], ids=lambda value: type(value).__name__
)
def test_numbers_of_retries_schedules_and_batches_are_bounded(value: Any) -> None:
    wrong: list[Callable[[], Any]] = [
        lambda: Retry.fixed(value),
        lambda: Retry.exponential(value),
        lambda: Retry.fixed(every=value),
        lambda: Retry.linear(maximum=value),
        lambda: Retry.delays(value),
        lambda: cron("@daily", jitter=value),
        lambda: every(value),
        lambda: App("other").batch_task(size=value),
    ]
    for make in wrong:
        with pytest.raises((InvalidArguments, InvalidTask)):
            make()


def test_true_is_not_a_number() -> None:
    for make in (Retry.fixed, Retry.delays, every, lambda value: App("b").batch_task(size=value)):
        with pytest.raises((InvalidArguments, InvalidTask)):
            make(True)


async def test_what_is_no_list_of_calls_is_refused() -> None:
    app = App("shop")
    call = app.task(plain).bind(7)
    with pytest.raises(InvalidArguments, match=r"^None is not a list of calls, .* Nothing was enq"):
        await app.enqueue_many(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="is not a list of calls"):
        app.group_sync(call, then=call)  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [0, -1, True, 1.5])
async def test_a_chunk_has_at_least_one_job(chunk: int) -> None:
    app = App("shop")
    task = app.task(plain)
    with pytest.raises(
        ConfigurationError, match=rf"chunk={chunk}\): a chunk must have at least 1 job"
    ):
        await app.enqueue_many([task.bind(7)], chunk=chunk)
    with pytest.raises(ConfigurationError, match="at least 1 job"):
        app.enqueue_many_sync([task.bind(7)], chunk=chunk)


@pytest.mark.parametrize("returned", [list[int], list[int] | None, Sequence[int] | None])
def test_the_result_of_an_item_has_the_type_of_one_in_the_list(returned: Any) -> None:
    def lengths(items: list[Item[str]]) -> Any: ...

    lengths.__annotations__["return"] = returned
    task: Any = App("shop").batch_task(name="lengths")(lengths)
    assert task._signature.result(5) == 5
    assert task._signature.result(None) is None
    with pytest.raises(InvalidTask, match="does not fit the return type"):
        task._signature.result("five")


def test_a_schedule_is_checked_where_it_is_written() -> None:
    assert cron("0 2 * * *", timezone="Asia/Kolkata").timezone == "Asia/Kolkata"
    assert every(timedelta(minutes=5)).every_seconds == 300
    for wrong in (
        lambda: cron("0 25 * * *"),
        lambda: cron("@daily", timezone="Asia/Calcuta"),
        lambda: every(0.5),
        lambda: every(60, exclude="holidays"),
        lambda: cron("@daily", exclude="holidays"),
        lambda: cron("@daily", jitter=0.5),
        lambda: cron("@daily", starts_at="2031-05-06"),  # type: ignore[arg-type]
        lambda: cron("@daily", ends_at=datetime(2031, 5, 6)),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidArguments):
            wrong()


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (cron("@daily"), "do not fit its task. shop.two: a, b are missing."),
        (cron("@daily", args={"a": "1", "b": ""}), "shop.two: a must be int, not str '1'"),
        (cron("@daily", args={"c": 1}), "do not fit its task. shop.two has no parameter c."),
    ],
)
def test_a_schedule_that_does_not_fit_its_task_is_refused_when_a_worker_starts(
    schedule: Any, text: str
) -> None:
    app = App("shop")
    app.task(schedule=schedule)(two)
    with pytest.raises(ConfigurationError) as refused:
        manifest_of(app, None)
    assert text in str(refused.value)
    assert "enqueued" not in str(refused.value)


def test_every_public_name_is_there_and_none_else() -> None:
    for name in hourbell._PUBLIC:
        if name not in ("NONE", "Options"):
            assert getattr(hourbell, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        _ = hourbell.Nope  # type: ignore[attr-defined]


def test_importing_the_library_loads_no_server_and_takes_little_time() -> None:
    """Little beside what it stands on, which is a yardstick that is as fast or slow as the machine."""
    program = (
        "import time; times = [time.process_time()];"
        "import asyncio, msgspec; times.append(time.process_time());"
        "from hourbell import App, Context, Retry, cron; times.append(time.process_time());"
        "import sys; print(times[1] - times[0], times[2] - times[1],"
        " *sorted({n.partition('.')[0] for n in sys.modules}"
        " & {'aiohttp', 'litestar', 'cryptography', 'asyncpg', 'uvicorn', 'uvloop', 'click', 'rich'}))"
    )
    ratios = []
    for _ in range(5):  # the best: others may use the machine, and the first compiles
        base, own, *loaded = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        assert loaded == []
        ratios.append(float(own) / float(base))
    assert min(ratios) < 1.0


OWN_CONTEXT = """
from __future__ import annotations
import hourbell
import msgspec
import types
from hourbell import App
from hourbell import Context as Ours
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from hourbell import SyncContext

class Context(msgspec.Struct):
    page: int

pages = types.SimpleNamespace(Context=Context)
app = App("shop")

@app.task
async def own(page: Context) -> None: ...
@app.task
async def own_elsewhere(page: pages.Context) -> None: ...
@app.task
async def second(number: int, page: Context) -> None: ...
@app.task
async def ours(ctx: Ours, page: Context) -> None: ...
@app.task
async def ours_in_a_module(ctx: hourbell.Context) -> None: ...
@app.task
async def quoted(ctx: "Ours") -> None: ...
@app.task
def for_type_checkers(ctx: SyncContext) -> None: ...
"""


def test_a_class_of_the_user_may_be_called_context() -> None:
    names: dict[str, Any] = {"__name__": "pages"}
    exec(OWN_CONTEXT, names)
    takes = {task.__name__: task.takes_context for task in names["app"].tasks.values()}
    assert takes == {
        "own": False,
        "own_elsewhere": False,
        "second": False,
        "ours": True,
        "ours_in_a_module": True,
        "quoted": True,
        "for_type_checkers": True,
    }
    assert '"page":7' in repr(names["own"].bind(names["Context"](7)))


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
