"""The backend for Django's Tasks.

`enqueue` uses Django's own connection. Inside `atomic()` the job is part of that transaction,
without `on_commit`: both commit, or neither. Outside of it, the job exists immediately.

A Django task becomes a task of a Hourbell app when it is declared: its name is the app's name and
the path of the function, and its payload has `args` and `kwargs`. So a worker that has imported the
modules of the tasks knows them, and everything else (retries, limits, explain, the API) works the same
as for other tasks.
"""

from __future__ import annotations

import builtins
import os
import platform
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.util import find_spec
from inspect import Signature, iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django import get_version
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, transaction
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules, import_string

try:
    from django.tasks import task_backends as task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        DEFAULT_TASK_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ModuleNotFoundError:  # Django 5
    if find_spec("django_tasks") is None:
        raise ImproperlyConfigured(
            f"Django {get_version()} has no Tasks of its own. Install their backport: pip install "
            f"django-tasks."
        ) from None
    from django_tasks import task_backends as task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import (
        DEFAULT_TASK_PRIORITY,
        Task,
        TaskContext,
        TaskError,
        TaskResult,
        TaskResultStatus,
    )
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

from hourbell.contrib.django.databases import database_url
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.jobs import get_job
from hourbell.errors import Cancel, RetryAfter, Snooze
from hourbell.model.errors import NotFound
from hourbell.model.executions import FATES, TIMEOUT, Attempt, Execution, ExecutionStatus
from hourbell.model.ids import created_at, parse_job_id
from hourbell.model.jobs import Job, TaskAction
from hourbell.sdk.app import App
from hourbell.sdk.context import Context, SyncContext
from hourbell.sdk.portal import blocking
from hourbell.sdk.running import load_app
from hourbell.sdk.signature import parameters_of
from hourbell.sdk.tasks import Task as AppTask
from hourbell.sdk.values import Options, PriorityLike, Retry, Seconds

DEFAULT_APP = "django"
_PRIORITY = "django.priority"  # the label with Django's number, unless that is its default
_LATER = timedelta(
    seconds=1
)  # a job that is due later than this after its creation has a `run_after`
_HIGH_ABOVE, _LOW_BELOW = 33, -33  # Django priorities, which range from -100 to 100
_STATUSES = {
    ExecutionStatus.RUNNING: TaskResultStatus.RUNNING,
    ExecutionStatus.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
}
# What fails an attempt. A cancelled one is ended by its worker.
_FAILURES = (Exception, SystemExit, KeyboardInterrupt)
_WORKER = f"{platform.node()}-{os.getpid()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HourbellTask(Task):
    """A Django task; `@task(retry=…, timeout=…)` sets Hourbell's additional options."""

    retry: Retry | None = None
    timeout: Seconds | None = None


class HourbellBackend(BaseTaskBackend):
    """Enqueues Django tasks as Hourbell jobs."""

    task_class = HourbellTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")

    @property
    def app(self) -> App:
        """The app that Django's tasks belong to: the one in the option `app`, or our own."""
        target = self.options.get("app")
        app = _app(target)
        if target is None or app.configured_url() is None:
            app.url = database_url(self.database)  # each time, because a test has its own database
        return app

    def check(self, **kwargs: Any) -> Iterator[CheckMessage]:
        """For `manage.py check`, and everything that runs it."""
        vendor = connections[self.database].vendor
        if vendor != "postgresql":
            yield Error(
                f"The task backend {self.alias!r} needs PostgreSQL, but database {self.database!r} is {vendor}.",
                hint='Choose another database: "OPTIONS": {"database": ALIAS}.',
                id="hourbell.E001",
            )

    def validate_task(self, task: Task) -> None:
        super().validate_task(task)
        self._declare(task)

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        self.validate_task(task)
        options: Options = {
            "queue": task.queue_name,
            "priority": _priority(task.priority),
            "connection": f"django:{self.database}",
        }
        if task.priority:
            options["labels"] = {_PRIORITY: str(task.priority)}
        if task.run_after is not None:
            options["at"] = _aware(task.run_after)
        _ = self.app  # whose own connection adds names: the database of Django
        configured = self._declare(task).configure(**options)
        _check_arguments(task, args, kwargs)
        given_args, given_kwargs = normalize_json(args), normalize_json(kwargs)
        with transaction.atomic(using=self.database):
            job = configured.enqueue_sync(args=given_args, kwargs=given_kwargs)
        enqueued_at = _shown(created_at(parse_job_id(job.id)))
        result = self._result(
            task, job.id, TaskResultStatus.READY, given_args, given_kwargs, enqueued_at
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        try:
            job, execution = _Reader(self.app).read_sync(result_id)
        except NotFound as error:
            raise TaskResultDoesNotExist(result_id) from error
        action = job.action
        if not isinstance(action, TaskAction) or not isinstance(action.payload, dict):
            raise TaskResultDoesNotExist(result_id)
        task = self._as_enqueued(
            import_string(action.name.removeprefix(f"{self.app.name}.")),
            job.queue,
            job.labels,
            execution.scheduled_for,
            created_at(execution.job_id),
        )
        attempts = execution.attempts
        status = _STATUSES.get(execution.status, TaskResultStatus.READY)
        if execution.status in FATES and status is not TaskResultStatus.SUCCESSFUL:
            status = TaskResultStatus.FAILED
        result = self._result(
            task, result_id, status, action.payload["args"], action.payload["kwargs"]
        )
        return _with(
            result,
            enqueued_at=_shown(created_at(execution.job_id)),
            started_at=_shown(attempts[0].started_at if attempts else None),
            last_attempted_at=_shown(attempts[-1].started_at if attempts else None),
            finished_at=_shown(execution.finished_at),
            errors=[_error_of(attempt) for attempt in attempts if attempt.error is not None],
            worker_ids=[attempt.worker or "unknown" for attempt in attempts],
            _return_value=execution.result,
        )

    def import_tasks(self) -> None:
        """Import the `tasks` modules of INSTALLED_APPS, for a worker."""
        autodiscover_modules("tasks")

    def _as_enqueued(
        self,
        task: Task,
        queue: str,
        labels: Mapping[str, str],
        scheduled_for: datetime,
        enqueued_at: datetime,
    ) -> Task:
        """A task with the options of `using(…)` with which a job was enqueued.

        They are not checked again: what was allowed then may not be allowed now.
        """
        is_later = scheduled_for - enqueued_at >= _LATER
        enqueued = copy(task)
        for name, value in (
            ("priority", int(labels.get(_PRIORITY, DEFAULT_TASK_PRIORITY))),
            ("queue_name", queue),
            ("run_after", _shown(scheduled_for) if is_later else None),
            ("backend", self.alias),
        ):
            object.__setattr__(enqueued, name, value)
        return enqueued

    def _result(
        self,
        task: Task,
        result_id: str,
        status: TaskResultStatus,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        enqueued_at: Any = None,
    ) -> TaskResult:
        return TaskResult(
            task=task,
            id=result_id,
            status=status,
            enqueued_at=enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _declare(self, task: Task) -> AppTask[..., Any]:
        """The task of the app; created when the Django task is first seen."""
        app = _app(self.options.get("app"))
        known = app.tasks.get(f"{app.name}.{task.module_path}")
        if known is not None:
            return known
        is_async = iscoroutinefunction(task.func)
        run = _async_run(self, task) if is_async else _sync_run(self, task)
        declare = app.task(
            name=task.module_path,
            queue=task.queue_name,
            priority=_priority(task.priority),
            retry=getattr(task, "retry", None),
            timeout=getattr(task, "timeout", None),
        )
        made: AppTask[..., Any] = declare(run)
        return made


def _check_arguments(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Whether the function can be called with them; its types are left to the function, as in Django."""
    first = (None,) if task.takes_context else ()
    try:
        Signature(list(parameters_of(task.func).values())).bind(*first, *args, **kwargs)
    except TypeError as error:
        raise InvalidTask(f"{task.module_path}: {error}. Nothing was enqueued.") from None


# In a worker.


def _sync_run(backend: HourbellBackend, task: Task) -> Callable[..., Any]:
    def run(context: SyncContext, args: list[Any], kwargs: dict[str, Any]) -> Any:
        close_old_connections()
        try:
            result = _begun(backend, task, context, args, kwargs)
            task_started.send(HourbellBackend, task_result=result)
            try:
                value = normalize_json(task.func(*_first(result), *args, **kwargs))
            except _FAILURES as error:
                if _has_failed(result, error):
                    task_finished.send(HourbellBackend, task_result=result)
                raise
            task_finished.send(HourbellBackend, task_result=_succeeded(result, value))
            return value
        finally:
            close_old_connections()

    return run


async def _close_old_connections() -> None:
    """Runs in the thread in which Django runs the ORM for async code."""
    await sync_to_async(close_old_connections)()


def _async_run(backend: HourbellBackend, task: Task) -> Callable[..., Awaitable[Any]]:
    async def run(context: Context, args: list[Any], kwargs: dict[str, Any]) -> Any:
        await _close_old_connections()
        try:
            result = _begun(backend, task, context, args, kwargs)
            await task_started.asend(HourbellBackend, task_result=result)
            try:
                value = normalize_json(await task.func(*_first(result), *args, **kwargs))
            except _FAILURES as error:
                if _has_failed(result, error):
                    await task_finished.asend(HourbellBackend, task_result=result)
                raise
            await task_finished.asend(HourbellBackend, task_result=_succeeded(result, value))
            return value
        finally:
            await _close_old_connections()

    return run


def _begun(
    backend: HourbellBackend, task: Task, context: Context | SyncContext, args: Any, kwargs: Any
) -> TaskResult:
    now = timezone.now()
    enqueued_at = created_at(parse_job_id(context.job_id))
    task = backend._as_enqueued(
        task, context.queue, context.labels, context.scheduled_for, enqueued_at
    )
    return _with(
        backend._result(task, context.job_id, TaskResultStatus.RUNNING, args, kwargs),
        enqueued_at=_shown(enqueued_at),
        started_at=now,
        last_attempted_at=now,
        worker_ids=[_WORKER] * context.attempt,
    )


def _first(result: TaskResult) -> tuple[TaskContext, ...]:
    return (TaskContext(task_result=result),) if result.task.takes_context else ()


def _succeeded(result: TaskResult, value: Any) -> TaskResult:
    return _with(
        result,
        status=TaskResultStatus.SUCCESSFUL,
        finished_at=timezone.now(),
        _return_value=value,
    )


def _has_failed(result: TaskResult, error: BaseException) -> bool:
    """Record a failure in the result; false if the exception only asks to run it again, or not at all."""
    if isinstance(error, Snooze | RetryAfter | Cancel):
        return False
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    text = "".join(traceback.format_exception(error))
    result.errors.append(TaskError(exception_class_path=path, traceback=text))
    _with(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
    return True


# Reading results.


class _Reader:
    """Reads jobs on the connections of an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def read(self, job_id: str) -> tuple[Job, Execution]:
        number = parse_job_id(job_id)
        job = await self._app._own(lambda own: get_job(own.engine, number))
        return job, await self._app._own(lambda own: get_execution(own.engine, number))

    read_sync = blocking(read)


def _error_of(attempt: Attempt) -> TaskError:
    """The ledger has the exception's class and message, but not its traceback."""
    error, kind = attempt.error or "", attempt.kind or ""
    path = error.partition(":")[0]
    if path == kind and hasattr(builtins, kind):
        path = f"builtins.{kind}"
    elif kind == TIMEOUT:
        path = "builtins.TimeoutError"
    elif path.rpartition(".")[2] != kind or "." not in path:  # not ended by an exception
        path = "hourbell.errors.JobFailed"
    return TaskError(exception_class_path=path, traceback=f"{error}\n")


def _aware(instant: datetime) -> datetime:
    """Without USE_TZ, the times of Django have no zone: they are those of TIME_ZONE."""
    return instant if timezone.is_aware(instant) else timezone.make_aware(instant)


def _shown(instant: datetime | None) -> datetime | None:
    """A time as Django shows times: with a zone only with USE_TZ."""
    if instant is None or settings.USE_TZ:
        return instant
    naive: datetime = timezone.make_naive(instant)
    return naive


def _with(result: TaskResult, **values: Any) -> TaskResult:
    for name, value in values.items():
        object.__setattr__(result, name, value)  # frozen for users; backends fill it in like this
    return result


def _priority(number: int) -> PriorityLike:
    if number > _HIGH_ABOVE:
        return "HIGH"
    return "LOW" if number < _LOW_BELOW else "MEDIUM"


@cache
def _app(target: str | None) -> App:
    return App(DEFAULT_APP) if target is None else load_app(target)
