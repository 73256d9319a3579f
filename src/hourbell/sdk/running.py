"""The tasks of an app inside a worker: arguments, contexts, middleware, and what exceptions mean."""

from __future__ import annotations

import asyncio
import contextvars
import fnmatch
import importlib
import os
import pkgutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import structlog

from hourbell.actions import Run, StillRunning, failed
from hourbell.actions.task import Threads
from hourbell.dispatch import Dispatch
from hourbell.errors import Cancel, ConfigurationError, Dead, RetryAfter, Snooze
from hourbell.model.executions import Cancelled, Claimed, Failed, Outcome, Snoozed, Succeeded
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import TaskAction
from hourbell.sdk.app import App
from hourbell.sdk.context import Context, RunInfo, SyncContext, _current
from hourbell.sdk.signature import Mismatch
from hourbell.sdk.tasks import Middleware, Task, term_of
from hourbell.worker.runtime import Worker

log = structlog.get_logger()

_MISMATCH_SECONDS = 60.0  # another version of the code may be on its way
_DONE = Succeeded()


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker of an app runs."""

    queues: Sequence[str] | None = None  # None: those of the app's tasks
    concurrency: int = 50
    drain_seconds: float = 25.0  # below the 30 s that Kubernetes grants
    lease_seconds: int | None = None  # None: HOURBELL_LEASE_SECONDS, 15 by default
    name: str | None = None  # None: host and process
    scheduler: bool = True  # also plan and reap, as leader or standby

    def queues_of(self, app: App) -> tuple[str, ...]:
        return tuple(self.queues) if self.queues else queues_of(app)


def queues_of(app: App) -> tuple[str, ...]:
    """The queues that the tasks of an app use."""
    used = {task.options.queue or app.queue or "default" for task in app.tasks.values()}
    return tuple(sorted(used))


class AppRunner:
    """Runs the tasks of an app: the action TASK of a worker."""

    def __init__(self, app: App, state: Sequence[object] = ()) -> None:
        self.app = self._app = app
        self._state = (*app.state, *state)
        self._threads = Threads()
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None
        self._dispatch: Dispatch | None = None
        # Here and not at decoration: a program that only enqueues has not asked for logs.
        for task in set(app.tasks.values()):
            if task.options.timeout is not None and not task.is_async:
                log.debug(
                    "a thread cannot be stopped: after its timeout the run fails, the function continues",
                    task=task.name,
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks that it can run."""
        return tuple(self._app.tasks)

    def attach(self, worker: Worker, dispatch: Dispatch) -> None:
        """Say which worker runs it, before the first run."""
        self._worker, self._dispatch = worker, dispatch

    def close(self) -> None:
        self._threads.close()

    @property
    def is_stopping(self) -> bool:
        return self._worker is not None and self._worker.is_stopping

    async def note_progress(self, claimed: Claimed, value: str) -> bool:
        session = None if self._worker is None else self._worker.session
        if session is None or self._dispatch is None:
            return False
        return await self._dispatch.note_progress(
            session, claimed.execution_id, claimed.fence, value
        )

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        session = None if self._worker is None else self._worker.session
        if session is None or self._dispatch is None:
            return False
        return await self._dispatch.set_checkpoint(
            session, claimed.execution_id, claimed.fence, value
        )

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        task = self._app.tasks.get(action.name)
        if task is None:
            known = ", ".join(sorted(self._app.tasks))
            return Failed(
                f"No task {action.name!r} in this worker; it has {known}.", "unknown_task"
            )
        try:
            found = task._signature.arguments({} if action.payload is None else action.payload)
        except Mismatch as error:
            return Failed(str(error), "payload_mismatch", retry_after_seconds=_MISMATCH_SECONDS)
        if found.dropped:
            log.warning("unknown arguments dropped", task=task.name, names=found.dropped)
        context: Context | SyncContext | None = None
        if task.takes_context:
            context = self._context(task, run)
            args = (context, *found.args)
        else:
            args = found.args
        token = _current.set(context or partial(self._context, task, run))
        try:
            if task.is_async and not (self._app.middleware or task.options.middleware):
                result = await task.fn(*args, **found.kwargs)  # the common case
            else:
                result = await self._call(task, run, action.payload, args, found.kwargs)
            return _DONE if result is None else Succeeded(task._signature.storable(result))
        except asyncio.CancelledError:
            if context is not None:
                context._cancelled = True
            raise
        except Exception as error:
            return self._outcome_of(error, task, context or self._context(task, run))
        finally:
            _current.reset(token)

    def _context(self, task: Task[..., Any], run: Run) -> Context | SyncContext:
        kind = Context if task.is_async else SyncContext
        claimed, timeout = run.claimed, run.timeout_seconds
        return kind(claimed, task.name, timeout, self._state, self, self._loop, run.spec.checkpoint)

    async def _call(
        self,
        task: Task[..., Any],
        run: Run,
        payload: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a task in a thread if it blocks, inside its middleware."""
        call: Callable[[], Awaitable[Any]] = partial(task.fn, *args, **kwargs)
        if not task.is_async:
            call = partial(self._in_thread, call)
        middleware = (*self._app.middleware, *task.options.middleware)
        if middleware:
            call = _wrapped(call, middleware, _info(task, run, payload))
        return await call()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        variables = contextvars.copy_context()
        ended = self._threads.call(partial(variables.run, _kept, function))
        try:
            outcome = await asyncio.shield(ended)
        except asyncio.CancelledError:
            if not ended.done():
                raise StillRunning(ended) from None
            outcome = ended.result()
        assert isinstance(outcome, Succeeded)
        value, error = outcome.result
        if error is not None:
            raise error
        return value

    def _outcome_of(
        self, error: Exception, task: Task[..., Any], context: Context | SyncContext
    ) -> Outcome:
        decision = _decision(error)
        match decision:
            case Snooze():
                return Snoozed(decision.seconds)
            case RetryAfter():
                return Failed(str(decision), "RetryAfter", retry_after_seconds=decision.seconds)
            case Cancel():
                context.log.info("task cancelled itself", why=str(decision))
                return Cancelled()
            case Dead():
                return Failed(str(decision) or "The task raised Dead.", "Dead", final=True)
        context.log.warning("task failed", exc_info=error)
        failure = failed(error)
        if task.options.no_retry and isinstance(error, task.options.no_retry):
            return msgspec.structs.replace(failure, final=True)
        return failure


def _kept(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a function returns or raises: its exception is needed, not only its name."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _decision(error: BaseException) -> BaseException:
    """The decision of a handler, also if a TaskGroup has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = _decision(inner)
            if isinstance(found, Snooze | RetryAfter | Cancel | Dead):
                return found
    return error


def _wrapped(
    call: Callable[[], Awaitable[Any]], middleware: Sequence[Middleware], info: RunInfo
) -> Callable[[], Awaitable[Any]]:
    """The call inside its middleware; the first is the outermost."""
    for each in reversed(middleware):
        call = partial(each, info, call)
    return call


def _info(task: Task[..., Any], run: Run, payload: Any) -> RunInfo:
    claimed = run.claimed
    return RunInfo(
        task.name,
        execution_text(claimed.execution_id),
        job_text(claimed.job_id),
        claimed.tenant_id,
        claimed.attempt,
        payload,
    )


def declared_terms(app: App) -> dict[str, str]:
    """What `hourbell.enqueue` uses for each task if its caller says nothing, as JSON."""
    terms: dict[str, str] = {}
    for name, task in app.tasks.items():
        term = msgspec.json.decode(term_of(task, {}))
        term.pop("task")
        terms[name] = msgspec.json.encode(term, order="sorted").decode()
    return terms


# Finding an app.


def load_app(target: str) -> App:
    """The app that `module:name` names, or the only one of `module`; raises ConfigurationError.

    An error inside the module is the user's, and is raised as it is.
    """
    module_name, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # a module that the user's module imports
        raise ConfigurationError(
            f"There is no module {error.name!r} in {os.getcwd()} or on the Python path. Name the app "
            f"as module:variable, such as shop.tasks:app."
        ) from None
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, App):
            raise ConfigurationError(
                f"{target} is not an App: {module_name} has {_apps_text(module)}."
            )
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigurationError(
            f"{module_name} has {_apps_text(module)}. Name one: {module_name}:NAME."
        )
    return next(iter(apps.values()))


def _apps_text(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"the apps {', '.join(names)}" if names else "no App"


def import_tasks(app: App) -> None:
    """Import the modules that `App(imports=…)` names, check all tasks; raises ConfigurationError."""
    for pattern in app.imports:
        for name in _modules(pattern):
            importlib.import_module(name)
    if not app.tasks:
        imported = ", ".join(app.imports) or "no further modules (App(imports=…) is empty)"
        raise ConfigurationError(
            f"App {app.name!r} has no tasks, so a worker would have nothing to do. It imports "
            f"{imported}. Decorate a function with @app.task, and import its module."
        )
    for task in app.tasks.values():
        task._signature.check()


def _modules(pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    package = importlib.import_module(pattern.partition("*")[0].rstrip("."))
    found = [
        module.name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if fnmatch.fnmatchcase(module.name, pattern)
    ]
    if not found:
        raise ConfigurationError(f"App(imports=…): no module matches {pattern!r}.")
    return sorted(found)


def unserved(app: App, queues: Sequence[str]) -> str | None:
    """A warning if a worker does not serve some of the queues that the tasks use."""
    used = queues_of(app)
    tasks = set(app.tasks.values())
    left = [t for t in tasks if (t.options.queue or app.queue or "default") not in queues]
    if not left:
        return None
    return (
        f'Tasks of app "{app.name}" use queues {", ".join(used)}; this worker serves '
        f"{', '.join(queues)}: {len(left)} of its {len(tasks)} tasks will never run here."
    )


# In this process.


class RunningWorker:
    """A worker that runs in this process."""

    def __init__(self, worker: Worker, ended: Callable[[], Awaitable[None]]) -> None:
        self._worker = worker
        self.ended = ended  # waits until it has stopped

    @property
    def is_working(self) -> bool:
        return self._worker.is_working

    def stop(self) -> None:
        """Drain: start nothing more, let running tasks finish."""
        self._worker.stop()


@asynccontextmanager
async def worker_of(app: App, options: WorkerOptions | None = None) -> AsyncIterator[RunningWorker]:
    """A worker of an app within this context; it drains at the end."""
    from hourbell.compose import app_worker

    import_tasks(app)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        assert app._opened is not None
        dsn = app._opened.database.dsn
        parts = await stack.enter_async_context(app_worker(dsn, app, options or WorkerOptions()))
        assert parts.worker is not None
        yield RunningWorker(parts.worker, parts.worker_ended)


@asynccontextmanager
async def entered(app: App) -> AsyncIterator[AppRunner]:
    """The runner of an app's tasks, within the app's lifespan."""
    async with AsyncExitStack() as stack:
        state: Sequence[object] | None = ()
        if app.lifespan is not None:
            state = await stack.enter_async_context(app.lifespan(app))
        runner = AppRunner(app, state or ())
        stack.callback(runner.close)
        yield runner
