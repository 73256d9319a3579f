"""The recipes of docs/frameworks.md, run as they are printed; Django's Tasks in more detail."""

import asyncio
import importlib
import re
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import django
import fastapi  # noqa: F401 - tests that run the command in this process hide pydantic from then on
import httpx
import pytest
import sqlalchemy
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import override_settings
from litestar.testing import AsyncTestClient

from hourbell import App
from hourbell.contrib.django import backend as backend_module
from hourbell.contrib.django.management.commands.hourbell import Command
from hourbell.model.ids import parse_job_id
from hourbell.model.jobs import decode_job
from integration.library.test_connections import (
    dialect,
    django_connection,
    forget_django_connection,
)

# Built into Django 6, which needs Python 3.12; else the backport, with the same names.
TASKS = "django.tasks" if django.VERSION >= (6,) else "django_tasks"
TaskResultStatus = importlib.import_module(TASKS).TaskResultStatus
TaskResultDoesNotExist = importlib.import_module(f"{TASKS}.exceptions").TaskResultDoesNotExist
_EXCEPTIONS = importlib.import_module(f"{TASKS}.exceptions")
InvalidTask = getattr(_EXCEPTIONS, "InvalidTask", None) or _EXCEPTIONS.InvalidTaskError
TaskResultMismatch = importlib.import_module(f"{TASKS}.exceptions").TaskResultMismatch
task_backends = importlib.import_module(TASKS).task_backends
signals = importlib.import_module(f"{TASKS}.signals")

PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"


def recipe(title: str) -> str:
    """The block of the page that begins with this comment."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    (found,) = (block for block in blocks if block.startswith(f"# {title}\n"))
    return str(found)


def module_of(source: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(source, name, "exec"), vars(module))
    return module


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The module of a recipe, with an app on the database of the test."""
    monkeypatch.setenv("HOURBELL_DATABASE_URL", database)
    module = module_of(recipe(request.param), "shop", monkeypatch)
    yield module
    module.app.close_sync()


async def ran(app: App, job_id: str) -> object:
    """What a worker makes of a job."""
    async with app.worker():
        return await app.job(job_id).result(timeout=20)


@pytest.mark.parametrize("shop", ["FastAPI"], indirect=True)
async def test_fastapi_opens_the_app_and_enqueues(shop: Any) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(shop.web.router.lifespan_context(shop.web))
        transport = httpx.ASGITransport(app=shop.web)
        client = await stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://shop")
        )
        job = (await client.post("/orders/7")).json()["job"]
    assert await ran(shop.app, job) == "mail about order 7"


@pytest.mark.parametrize("shop", ["Litestar"], indirect=True)
async def test_litestar_opens_the_app_and_enqueues(shop: Any) -> None:
    async with AsyncTestClient(shop.web) as client:
        job = (await client.post("/orders/7")).json()["job"]
    assert await ran(shop.app, job) == "mail about order 7"


@pytest.mark.parametrize("shop", ["Flask"], indirect=True)
async def test_flask_enqueues_without_opening_anything(shop: Any) -> None:
    job = await asyncio.to_thread(lambda: shop.web.test_client().post("/orders/7").json["job"])
    assert await ran(shop.app, job) == "mail about order 7"


@pytest.mark.parametrize("shop", ["SQLAlchemy"], indirect=True)
async def test_a_session_of_sqlalchemy_enqueues_in_its_transaction(
    shop: Any, database: str
) -> None:
    engine = sqlalchemy.create_engine(dialect(database, "psycopg"))
    shop.Base.metadata.create_all(engine)
    job = await asyncio.to_thread(shop.place_order, engine)
    assert await ran(shop.app, job.id) == "mail about order 1"
    shop.Base.metadata.drop_all(engine)
    engine.dispose()


# Django's Tasks.

MORE_TASKS = """
import asyncio
from hourbell import Dead, Snooze
seen = []

@task(takes_context=True)
def attempts(context, needed):
    seen.append(context.attempt)
    if context.attempt < needed:
        raise ValueError("not yet")
    return context.attempt

@task(retry=Retry.never())
async def fails(text):
    raise RuntimeError(text)

@task
def bad_result():
    return object()

class Declined(Exception): ...

@task(retry=Retry.never())
def declines():
    raise Declined("no money")

@task(retry=Retry.never(), timeout=1)
async def hangs():
    await asyncio.sleep(60)

@task(retry=Retry.never())
def exits():
    raise SystemExit("enough")

enqueued_as = []

@task(takes_context=True)
def options(context):
    enqueued_as.append(context.task_result.task)
"""


@pytest.fixture
async def tasks(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The tasks of the page and some more, with the settings of the page."""
    settings: dict[str, Any] = {}
    exec(recipe("settings.py"), settings)
    settings["TASKS"]["default"]["OPTIONS"]["database"] = "shop"

    def configure_connection() -> None:
        django_connection(database)
        forget_django_connection()

    await asyncio.to_thread(configure_connection)
    source = recipe("shop/tasks.py").replace("django.tasks", TASKS)
    with override_settings(TASKS=settings["TASKS"]):
        module = module_of(source + MORE_TASKS, "shop_tasks", monkeypatch)
        app = task_backends["default"].app
        yield module
        await sync_to_async(forget_django_connection)()  # of the thread of async views
        await asyncio.to_thread(app.close_sync)
        app.tasks.clear()


async def until_failed(task: Any, result_id: str) -> None:
    """Wait until an attempt of a task has failed."""
    async with asyncio.timeout(20):
        while not (await task.aget_result(result_id)).errors:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def in_a_view(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function as a view is called: in a thread, with a connection of its own."""

    def view() -> Any:
        forget_django_connection()  # that of an earlier test
        try:
            return function(*args, **kwargs)
        finally:
            forget_django_connection()

    return await asyncio.to_thread(view)


async def test_django_enqueues_in_its_transaction(tasks: Any) -> None:
    class Rollback(Exception): ...

    kept = []

    def place_orders() -> None:
        kept.append(tasks.send_mail.enqueue(1))  # without a transaction: at once
        with transaction.atomic(using="shop"):
            kept.append(tasks.send_mail.enqueue(2))
            with suppress(Rollback), transaction.atomic(using="shop"):
                lost.append(tasks.send_mail.enqueue(3))
                raise Rollback
        with suppress(Rollback), transaction.atomic(using="shop"):
            lost.append(tasks.send_mail.enqueue(4))
            raise Rollback

    lost: list[Any] = []
    await in_a_view(place_orders)
    for result in kept:
        assert (await result.task.aget_result(result.id)).args == result.args
    for result in lost:
        with pytest.raises(TaskResultDoesNotExist):
            await result.task.aget_result(result.id)


async def test_a_worker_runs_django_tasks_and_their_results_can_be_read(tasks: Any) -> None:
    sent: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        def receiver(sender: Any, task_result: Any, **others: Any) -> None:
            sent.append((name, task_result.status))

        getattr(signals, f"task_{name}").connect(receiver, weak=False)
        return receiver

    receivers = {name: note(name) for name in ("enqueued", "started", "finished")}
    mail = await tasks.send_mail.aenqueue(7)
    assert (mail.status, mail.args, mail.kwargs) == (TaskResultStatus.READY, [7], {})
    app = task_backends["default"].app
    async with app.worker():
        assert await app.job(mail.id).wait(20) == "SUCCEEDED"
        fails = await tasks.fails.aenqueue(text="no")
        assert await app.job(fails.id).wait(20) == "DEAD"
        bad = await tasks.bad_result.using(queue_name="mail").aenqueue()
        await until_failed(tasks.bad_result, bad.id)
    for name, receiver in receivers.items():
        getattr(signals, f"task_{name}").disconnect(receiver)
    await mail.arefresh()
    assert (mail.return_value, mail.attempts, mail.errors) == ("mail about order 7", 1, [])
    assert mail.enqueued_at < mail.started_at <= mail.finished_at  # durations are in whole ms
    await fails.arefresh()
    assert fails.status == TaskResultStatus.FAILED
    (error,) = fails.errors
    assert (error.exception_class, error.traceback) == (RuntimeError, "RuntimeError: no\n")
    await bad.arefresh()
    assert bad.status == TaskResultStatus.READY  # for the next attempt
    assert "Unsupported type" in bad.errors[0].traceback
    assert sent[:3] == [
        ("enqueued", "READY"),
        ("started", "RUNNING"),
        ("finished", "SUCCESSFUL"),
    ]
    assert sent[3:6] == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")]
    with pytest.raises(TaskResultMismatch):
        await tasks.fails.aget_result(mail.id)
    for unknown in ("job_0000000000016", "nonsense", None):
        with pytest.raises(TaskResultDoesNotExist):
            await tasks.fails.aget_result(unknown)


async def test_the_class_of_any_exception_can_be_read_from_a_result(tasks: Any) -> None:
    app = task_backends["default"].app
    async with app.worker():
        declined = await tasks.declines.aenqueue()
        hung = await tasks.hangs.aenqueue()
        for result in (declined, hung):
            assert await app.job(result.id).wait(20) == "DEAD"
            await result.arefresh()
    assert declined.errors[0].exception_class is tasks.Declined
    assert declined.errors[0].traceback == "shop_tasks.Declined: no money\n"
    assert hung.errors[0].exception_class is TimeoutError


async def test_a_result_has_the_task_as_it_was_enqueued(tasks: Any) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)  # noqa: TID251
    given = tasks.options.using(priority=7, queue_name="mail", run_after=at)
    result = await given.aget_result((await given.aenqueue()).id)
    assert (result.task.priority, result.task.queue_name) == (7, "mail")
    assert result.task.run_after == at
    assert result.task == given

    app = task_backends["default"].app
    async with app.worker():
        now = tasks.options.using(priority=-7, queue_name="mail")
        done = await now.aenqueue()
        assert await app.job(done.id).wait(20) == "SUCCEEDED"
    assert tasks.enqueued_as == [now]
    assert (await tasks.options.aget_result(done.id)).task == now
    plain = await tasks.options.aenqueue()
    assert (await tasks.options.aget_result(plain.id)).task == tasks.options


async def test_a_result_is_the_one_that_was_returned(tasks: Any) -> None:
    mail = await tasks.send_mail.aenqueue(7)
    assert await tasks.send_mail.aget_result(mail.id) == mail


async def test_a_queue_that_is_new_is_added_to_the_database_of_django(
    tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app has no database of its own when the first task is enqueued."""
    task_backends["default"].app.url = None
    mail = await tasks.send_mail.using(queue_name="never-seen").aenqueue(7)
    assert (await tasks.send_mail.aget_result(mail.id)).task.queue_name == "never-seen"


async def test_a_task_that_exits_has_failed_for_django_too(tasks: Any) -> None:
    finished: list[tuple[str, str]] = []

    def note(sender: Any, task_result: Any, **others: Any) -> None:
        finished.append((task_result.status, task_result.errors[0].exception_class_path))

    signals.task_finished.connect(note)
    app = task_backends["default"].app
    try:
        async with app.worker():
            result = await tasks.exits.aenqueue()
            assert await app.job(result.id).wait(20) == "DEAD"
    finally:
        signals.task_finished.disconnect(note)
    assert finished == [("FAILED", "builtins.SystemExit")]


async def test_without_time_zones_times_are_those_of_the_setting(tasks: Any) -> None:
    app = task_backends["default"].app
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Kolkata"):
        later = datetime(2031, 5, 6, 7, 8)  # noqa: DTZ001
        delayed = await tasks.send_mail.using(run_after=later).aenqueue(7)
        async with app.worker():
            mail = await tasks.send_mail.aenqueue(7)
            assert await app.job(mail.id).wait(20) == "SUCCEEDED"
            view = await app.job(delayed.id).get()
        assert view.scheduled_for == datetime(2031, 5, 6, 1, 38, tzinfo=UTC)
        assert (await tasks.send_mail.aget_result(delayed.id)).task.run_after == later
        read = await tasks.send_mail.aget_result(mail.id)
        times = (read.enqueued_at, read.started_at, read.last_attempted_at, read.finished_at)
        assert [each.tzinfo for each in times] == [None] * 4
        assert read.enqueued_at < read.started_at <= read.finished_at
        assert abs(read.enqueued_at - mail.enqueued_at) < timedelta(seconds=5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--concurrency", "0"], "concurrency must be at least 1, not 0"),
        (["--drain", "-1"], "drain_seconds must be at least 0, not -1"),
        (
            ["--backend", "nope"],
            "settings.TASKS has no backend 'nope'. It has: default, dummy, lost.",
        ),
        (["--backend", "dummy"], "The task backend 'dummy' is a DummyBackend."),
        (["--backend", "lost"], "There is no module 'shop_lost'"),
    ],
)
def test_a_worker_that_cannot_start_says_why(tasks: Any, options: list[str], why: str) -> None:
    ours = "hourbell.contrib.django.HourbellBackend"
    backends = {
        "default": task_backends.settings["default"],
        "dummy": {"BACKEND": f"{TASKS}.backends.dummy.DummyBackend"},
        "lost": {"BACKEND": ours, "QUEUES": [], "OPTIONS": {"app": "shop_lost:app"}},
    }
    with override_settings(TASKS=backends), pytest.raises(CommandError, match=re.escape(why)):
        call_command(Command(), "worker", *options)


async def test_the_options_of_django_become_those_of_the_job(tasks: Any, database: str) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)  # noqa: TID251
    urgent = await tasks.send_mail.using(priority=50, run_after=at).aenqueue(7)
    app = task_backends["default"].app
    async with app:
        seen = await app.job(urgent.id).get()
        assert (seen.status, seen.scheduled_for) == ("SCHEDULED", at)
        assert seen.task == "django.shop_tasks.send_mail"
    task = app.get_task("shop_tasks.send_mail")
    assert (task.options.queue, task.options.timeout) == ("mail", 30)
    assert task.options.retry.policy.delays_seconds == (60, 300, 1800)


@pytest.mark.parametrize(
    ("number", "name"),
    [(-100, "LOW"), (-34, "LOW"), (-33, "MEDIUM"), (33, "MEDIUM"), (34, "HIGH"), (100, "HIGH")],
)
async def test_a_priority_of_django_becomes_one_of_three(
    tasks: Any, database: str, number: int, name: str
) -> None:
    mail = await tasks.send_mail.using(priority=number).aenqueue(7)
    connection = await asyncpg.connect(database)
    try:
        spec = await connection.fetchval(
            "select spec from hourbell.executions where id = $1", parse_job_id(mail.id)
        )
    finally:
        await connection.close()
    assert decode_job(spec).priority.name == name


async def test_a_task_that_takes_the_context_sees_its_attempt(tasks: Any) -> None:
    result = await tasks.attempts.aenqueue(needed=1)
    app = task_backends["default"].app
    async with app.worker():
        assert await app.job(result.id).wait(20) == "SUCCEEDED"
    await result.arefresh()
    assert (result.return_value, tasks.seen) == (1, [1])


async def test_old_connections_are_closed_before_and_after_each_task(
    tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(backend_module, "close_old_connections", lambda: done.append("closed"))

    def note(sender: Any, task_result: Any, **others: Any) -> None:
        done.append(task_result.status)

    receivers = (signals.task_started, signals.task_finished)
    for signal in receivers:
        signal.connect(note)
    app = task_backends["default"].app
    try:
        async with app.worker():
            for task, arguments in ((tasks.attempts, [1]), (tasks.fails, ["no"])):
                result = await task.aenqueue(*arguments)
                await app.job(result.id).wait(20)
    finally:
        for signal in receivers:
            signal.disconnect(note)
    assert done[:4] == ["closed", "RUNNING", "SUCCESSFUL", "closed"]
    assert done[4:] == ["closed", "RUNNING", "FAILED", "closed"]


async def test_arguments_that_a_function_does_not_take_are_refused(tasks: Any) -> None:
    for task, args, kwargs, why in (
        (tasks.send_mail, (7, "y", "z"), {}, "too many positional arguments"),
        (tasks.send_mail, (), {}, "missing a required argument: 'order_id'"),
        (tasks.send_mail, (7,), {"priority": 5}, "unexpected keyword argument 'priority'"),
        (tasks.attempts, (), {}, "missing a required argument: 'needed'"),
        (tasks.attempts, (1, 2), {}, "too many positional arguments"),
    ):
        with pytest.raises(InvalidTask, match=rf"shop_tasks\.\w+: .*{why}\. Nothing was enqu"):
            await task.aenqueue(*args, **kwargs)
    assert (await tasks.send_mail.aenqueue(order_id=7)).kwargs == {"order_id": 7}


async def test_arguments_that_are_not_json_are_refused(tasks: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        await tasks.send_mail.aenqueue(object())


async def test_a_backend_can_use_an_app_of_the_project(
    tasks: Any, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = module_of('from hourbell import App\napp = App("shop")\n', "shop_app", monkeypatch)
    monkeypatch.delenv("HOURBELL_DATABASE_URL", raising=False)
    options = {"app": "shop_app:app", "database": "shop"}
    backend = type(task_backends["default"])("mine", {"QUEUES": [], "OPTIONS": options})
    assert await asyncio.to_thread(lambda: backend.app) is project.app
    assert "test_" in project.app.url  # the database of Django, as the app has none of its own
    project.app.url = "postgresql://elsewhere/shop"
    assert await asyncio.to_thread(lambda: backend.app.url) == "postgresql://elsewhere/shop"
    backend.validate_task(tasks.send_mail)
    assert list(project.app.tasks) == ["shop.shop_tasks.send_mail"]


def test_a_django_without_tasks_is_told_to_install_the_backport() -> None:
    script = (
        "import sys; sys.modules['django.tasks'] = sys.modules['django_tasks'] = None\n"
        "import hourbell.contrib.django.backend"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    (last,) = done.stderr.splitlines()[-1:]
    assert "has no Tasks of its own. Install their backport: pip install django-tasks." in last


async def test_a_database_that_is_not_postgresql_is_found_by_django_s_checks(tasks: Any) -> None:
    backend = task_backends["default"]
    assert await asyncio.to_thread(lambda: list(backend.check())) == []
    backend.database = "default"  # Django's dummy

    (problem,) = await asyncio.to_thread(lambda: list(backend.check()))
    assert problem.id == "hourbell.E001"
    assert "needs PostgreSQL" in problem.msg


def test_the_queues_of_a_worker_are_named_or_left_out(tasks: Any) -> None:
    parser = Command().create_parser("manage.py", "hourbell")
    assert parser.parse_args(["worker"]).queues is None
    assert parser.parse_args(["worker", "--queues", "mail, default,"]).queues == ("mail", "default")
    for nothing in ("", " ,,"):
        with pytest.raises(CommandError, match="--queues: name a queue, such as mail,default"):
            parser.parse_args(["worker", "--queues", nothing])
