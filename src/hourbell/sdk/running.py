"""Runs the tasks of an app inside a worker: arguments, contexts, middleware and outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import fnmatch
import importlib
import os
import pkgutil
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from hourbell.actions import Run
from hourbell.actions.threads import Threads
from hourbell.dispatch import Dispatch, Wait
from hourbell.engine.life.failures import LineLimit
from hourbell.errors import ConfigurationError, Suspend
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import (
    MAX_MISMATCHES,
    MAX_SNOOZES,
    PAYLOAD_MISMATCH,
    Accepted,
    Claimed,
    Crashed,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import TaskAction
from hourbell.sdk.app import App
from hourbell.sdk.context import Context, RunInfo, SyncContext, _current, no_context_of_batch
from hourbell.sdk.outcomes import ProcessDied, decision_of, outcome_of
from hourbell.sdk.signature import Arguments, Mismatch
from hourbell.sdk.tasks import Middleware, Task, encode_options
from hourbell.worker.runtime import Worker

if TYPE_CHECKING:
    from hourbell.sdk.batches import Batches, Item
    from hourbell.sdk.processes.messages import Question
    from hourbell.sdk.processes.pool import ProcessPool

log = structlog.get_logger(component="tasks")

_MISMATCH_SECONDS = 60.0  # until another worker may try, which may have another version of the code
_ASK_AGAIN_SECONDS = 0.5
_DONE = Succeeded()


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker of an app runs."""

    queues: Sequence[str] | None = None  # None: those of the app's tasks
    concurrency: int = 50
    drain_seconds: float = 25.0  # less than the 30 s that Kubernetes allows
    lease_seconds: int | None = None  # None: HOURBELL_LEASE_SECONDS, 15 by default
    name: str | None = None  # None: host and process
    scheduler: bool = True  # also plan and reap, as leader or standby
    pool_size: int | None = None  # processes for tasks with process=True; None: one per core
    health: tuple[str, int] | None = None  # host and port of /readyz, /metrics; None: not served

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("drain_seconds", 0), ("pool_size", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"{name} must be at least {least}, not {value}.")

    def queues_of(self, app: App) -> tuple[str, ...]:
        return tuple(self.queues) if self.queues else queues_of(app)


def queues_of(app: App) -> tuple[str, ...]:
    """The queues that the tasks of an app use."""
    used = {task.options.queue or app.queue or "default" for task in app.tasks.values()}
    return tuple(sorted(used))


class _LazyContext:
    """The context of a run, created when it is needed: most tasks never ask for it."""

    __slots__ = ("_run", "_runner", "_task", "made")

    def __init__(self, runner: AppRunner, task: Task[..., Any], run: Run) -> None:
        self._runner = runner
        self._task = task
        self._run = run
        self.made: Context | SyncContext | None = None

    def __call__(self) -> Context | SyncContext:
        if self.made is None:
            self.made = self._runner.context(self._task, self._run)
        return self.made


class AppRunner:
    """Runs the tasks of an app: a worker's TASK action."""

    def __init__(
        self, app: App, state: Sequence[object] = (), pool_size: int | None = None
    ) -> None:
        self.app = self._app = app
        self._pool_size = pool_size
        self._pool: ProcessPool | None = None  # created for the first task that needs it,
        self._batches: Batches | None = None  # as is this
        self._completing: set[int] = set()  # executions whose handlers have called complete
        self._state = (*app.state, *state)
        self._threads = Threads()
        self._failures = LineLimit(log, "task failed")
        self._variables = contextvars.copy_context()  # without those of an execution
        self._loop = asyncio.get_running_loop()
        self._worker: Worker | None = None
        self._dispatch: Dispatch | None = None
        # Here and not at decoration, because a program that only enqueues does not expect logs.
        for task in set(app.tasks.values()):
            options = task.options
            if options.timeout is not None and not task.is_async and not options.process:
                log.info(
                    "a thread cannot be stopped: after its timeout the run fails, but the function "
                    "continues. process=True runs it in a process, which can be killed",
                    task=task.name,
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks it can run."""
        return tuple(self._app.tasks)

    def report(self) -> None:
        """Log the stacks of functions in processes, each from its own process."""
        if self._pool is not None:
            self._pool.report()

    def attach(self, worker: Worker, dispatch: Dispatch) -> None:
        """Set the worker that runs this, before the first run."""
        self._worker, self._dispatch = worker, dispatch

    def close(self) -> None:
        self._threads.close()
        if self._pool is not None:
            self._pool.close()

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

    def is_stopped(self, claimed: Claimed) -> bool:
        worker = self._worker
        return worker is not None and worker.is_stopped(claimed.execution_id, claimed.fence)

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        session = None if self._worker is None else self._worker.session
        if session is None or self._dispatch is None:
            return False
        return await self._dispatch.set_checkpoint(
            session, claimed.execution_id, claimed.fence, value
        )

    async def wait_of(self, claimed: Claimed, name: str, waits: bool) -> Wait | None:
        session = None if self._worker is None else self._worker.session
        if session is None or self._dispatch is None:
            return None
        token = f"{execution_text(claimed.execution_id)}-{secrets.token_urlsafe(24)}"
        return await self._dispatch.wait_of(
            session, claimed.execution_id, claimed.fence, name, token, waits
        )

    async def session_to_complete(self, claimed: Claimed) -> tuple[int, str] | None:
        session = None if self._worker is None else self._worker.session
        # A thread may ask after its run has timed out, even after the next run has started.
        if session is None or self._worker is None or self.is_stopped(claimed):
            return None
        self._completing.add(claimed.execution_id)
        self._worker.expect_completion(claimed.execution_id)
        return session.id, str(session.token)

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        task = self._app.tasks.get(action.name)
        if task is None:
            known = ", ".join(sorted(self._app.tasks))
            return Failed(
                f"This worker has no task {action.name!r}. Its tasks: {known}.", "unknown_task"
            )
        payload = {} if action.payload is None else action.payload
        try:
            try:
                found = task._signature.arguments(payload)
            except Mismatch:
                if task.options.upgrade is None:
                    raise
                payload, found = _upgraded(task, payload)
            else:
                if found.dropped and task.options.upgrade is not None:
                    payload, found = _upgraded(task, payload)
        except Mismatch as error:
            return _mismatched(str(error), task, run)
        if found.dropped:
            log.warning("unknown arguments dropped", task=task.name, names=found.dropped)
        context = _LazyContext(self, task, run)
        args = (context(), *found.args) if task.takes_context else found.args
        token = _current.set(context.made or context)
        try:
            if task.runs_directly and not self._app.middleware:
                result = await task.fn(*args, **found.kwargs)  # the common case
            else:
                result = await self._call(task, run, payload, args, found.kwargs)
            if self._completing and run.claimed.execution_id in self._completing:
                return await self._completed(run, None)
            return _DONE if result is None else Succeeded(task._signature.storable(result))
        except ProcessDied as death:
            return await self._crashed(task, run, death)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        # Also KeyboardInterrupt: `hourbell worker` and `up` handle Ctrl-C themselves, so it is the task's own.
        except BaseException as error:
            if isinstance(waits := decision_of(error), Suspend):
                return _suspended(waits, run)
            outcome = outcome_of(error, task, context().log, self._failures)
            if isinstance(outcome, Failed) and outcome.kind == PAYLOAD_MISMATCH:
                return _mismatched(outcome.error, task, run)  # in a process with newer code
            if run.span is not None and isinstance(outcome, Failed):
                run.span.record_exception(error)
            if run.claimed.execution_id in self._completing:
                return await self._completed(run, outcome)
            return outcome
        finally:
            if self._completing:
                self._completing.discard(run.claimed.execution_id)
            if context.made is not None:
                context.made._end_reports()
            _current.reset(token)

    def context(self, task: Task[..., Any], run: Run) -> Context | SyncContext:
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
        """Run a task inside its middleware; in a thread or a process if it blocks."""
        call: Callable[[], Awaitable[Any]] = partial(task.fn, *args, **kwargs)
        if task.options.batch is not None:
            call = partial(self._in_batch, task, run, kwargs["value"])
        elif task.options.process:
            call = partial(self._in_process, task, run, payload)
        elif not task.is_async:
            call = partial(self._in_thread, call)
        middleware = (*self._app.middleware, *task.options.middleware)
        if middleware:
            call = _wrapped(call, middleware, _info(task, run, payload))
        return await call()

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        outcome = await self._threads.run(partial(_kept, function))
        assert isinstance(outcome, Succeeded)
        value, error = outcome.result
        if error is not None:
            raise error
        return value

    async def _completed(self, run: Run, outcome: Outcome | None) -> Outcome:
        """The outcome of a run that was meant to end in its handler's transaction.

        `outcome` is that of a handler that raised an exception.
        """
        assert self._dispatch is not None
        assert self._worker is not None
        number = run.claimed.execution_id
        while True:
            try:
                done = await self._dispatch.is_completed(number, run.claimed.fence)
                break
            except StoreUnavailable:
                await asyncio.sleep(_ASK_AGAIN_SECONDS)
        if done:
            self._worker.drop(number)
            return _DONE
        return outcome or Failed(
            "The transaction in which ctx.complete was called did not commit.",
            "complete_rolled_back",
        )

    # Batches.

    async def _in_batch(self, task: Task[..., Any], run: Run, value: Any) -> Any:
        if self._batches is None:
            from hourbell.sdk.batches import Batches

            assert self._worker is not None
            self._batches = Batches(self._worker, self._call_batch, self._variables)
        return await self._batches.run(task, run, value)

    async def _call_batch(self, task: Task[..., Any], items: Sequence[Item[Any]]) -> Any:
        call = partial(task.fn, items)
        _current.set(no_context_of_batch)
        spans = [item._span for item in items if item._span is not None]
        with spans[0].batch(spans) if spans else contextlib.nullcontext():
            return await (call() if task.is_async else self._in_thread(call))

    # Processes.

    async def _in_process(self, task: Task[..., Any], run: Run, payload: Any) -> Any:
        from hourbell.sdk.processes.pool import ProcessPool, call_of

        worker, number = self._worker, run.claimed.execution_id
        assert worker is not None
        if self._pool is None:
            size = self._pool_size or os.cpu_count() or 1
            self._pool = ProcessPool(self._app, size, worker.name)
        worker.hold(number)
        return await self._pool.run(
            lambda: call_of(task.name, payload, run, worker.begin(number, run.timeout_seconds)),
            partial(self._answer, run.claimed),
            lambda: self.is_stopping,
            task.options.max_calls,
        )

    async def _answer(self, claimed: Claimed, question: Question) -> Any:
        """Answer a question from the context of a task in a process."""
        match question.what:
            case "progress":
                return await self.note_progress(claimed, question.value)
            case "checkpoint":
                return await self.set_checkpoint(claimed, question.value)
            case "token":
                return await self.wait_of(claimed, question.value, False)
            case "wait":
                return await self.wait_of(claimed, question.value, True)
            case "session":
                return await self.session_to_complete(claimed)
        return self.is_stopping

    async def _crashed(self, task: Task[..., Any], run: Run, death: ProcessDied) -> Outcome:
        number, spec = run.claimed.execution_id, run.spec
        log.error(
            "task process died",
            task=task.name,
            execution_id=execution_text(number),
            how=str(death),
        )
        left = 1  # if the database cannot be reached, allow one more
        if self._dispatch is not None:
            with contextlib.suppress(StoreUnavailable):
                left = await self._dispatch.crashes_left(
                    number, spec.attempts_before, spec.retry_policy.max_crashes
                )
        return Crashed(f"The process of the task died: {death}.", left)


def _mismatched(error: str, task: Task[..., Any], run: Run) -> Outcome:
    """The outcome of a run whose arguments do not fit: it waits for a worker of another version."""
    log.warning(
        "arguments do not fit",
        task=task.name,
        execution_id=execution_text(run.claimed.execution_id),
        error=error,
    )
    if run.spec.interruptions < MAX_MISMATCHES:
        return Released(_MISMATCH_SECONDS, PAYLOAD_MISMATCH)
    return Failed(error, PAYLOAD_MISMATCH, final=True)


def _upgraded(task: Task[..., Any], payload: Any) -> tuple[dict[str, Any], Arguments]:
    """An old payload, upgraded to what the function takes now; raises Mismatch."""
    assert task.options.upgrade is not None
    if not isinstance(payload, dict):
        raise Mismatch(f"The payload of {task.name} must be an object.")
    try:
        upgraded = task.options.upgrade(dict(payload))
    except Exception as error:
        raise Mismatch(f"{task.name}: upgrade= failed: {type(error).__name__}: {error}") from error
    return upgraded, task._signature.arguments(upgraded)


def _suspended(waits: Suspend, run: Run) -> Outcome:
    """The outcome of a handler that waits for an outside system."""
    if run.spec.snoozes >= MAX_SNOOZES:
        return Failed(f"It waited or snoozed {MAX_SNOOZES} times.", "waits", final=True)
    return Accepted(waits.token_digest, waits.seconds)


def _kept(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a function returns or raises; the exception itself is needed, not only its name."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


def _wrapped(
    call: Callable[[], Awaitable[Any]], middleware: Sequence[Middleware], info: RunInfo
) -> Callable[[], Awaitable[Any]]:
    """The call wrapped in its middleware; the first is the outermost."""
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


def declared_options(app: App) -> dict[str, str]:
    """The defaults that `hourbell.enqueue` uses for each task, as JSON."""
    declared: dict[str, str] = {}
    for name, task in app.tasks.items():
        options = msgspec.json.decode(encode_options(task, {}))
        options.pop("task")
        declared[name] = msgspec.json.encode(options, order="sorted").decode()
    return declared


# Finding an app.


def load_app(target: str) -> App:
    """The app that `module:name` names, or the only one in `module`; raises ConfigurationError.

    An error inside the module is the user's own, and is raised unchanged.
    """
    module_name, _, name = target.partition(":")
    # A part need not be an identifier: my-app.tasks can be imported under that name.
    if not all(module_name.split(".")) or "/" in module_name or "\\" in module_name:
        raise ConfigurationError(
            f"{target!r} does not name a module. Name the app as module:variable, such as "
            f"shop.tasks:app for the file shop/tasks.py."
        )
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
                f"{target} is not an App. {module_name} has {_apps_text(module)}."
            )
        return found
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) != 1:
        raise ConfigurationError(
            f"{module_name} has {_apps_text(module)}. Choose one: {module_name}:NAME."
        )
    return next(iter(apps.values()))


def _apps_text(module: Any) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, App)]
    if not names:
        return "no App"
    return f"the app{'' if len(names) == 1 else 's'} {', '.join(names)}"


def import_tasks(app: App) -> None:
    """Import the modules in `App(imports=…)` and check all tasks; raises ConfigurationError."""
    for pattern in app.imports:
        for name in _modules(pattern):
            importlib.import_module(name)
    if not app.tasks:
        imported = ", ".join(app.imports) or "no other modules (App(imports=…) is empty)"
        raise ConfigurationError(
            f"App {app.name!r} has no tasks, so a worker would have nothing to do. It imports "
            f"{imported}. Decorate a function with @app.task and import its module."
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
    """A warning if a worker does not serve all queues that the tasks use."""
    used = queues_of(app)
    tasks = set(app.tasks.values())
    left = [t for t in tasks if (t.options.queue or app.queue or "default") not in queues]
    if not left:
        return None
    return (
        f'Tasks of app "{app.name}" use the queues {", ".join(used)}, but this worker serves '
        f"{', '.join(queues)}: {len(left)} of its {len(tasks)} tasks will never run here."
    )


# In this process.


class RunningWorker:
    """A worker running in this process."""

    def __init__(self, worker: Worker, ended: Callable[[], Awaitable[None]]) -> None:
        self._worker = worker
        self.ended = ended  # waits until it has stopped; raises the error that ended it

    @property
    def is_working(self) -> bool:
        return self._worker.is_working

    def stop(self) -> None:
        """Drain: start nothing more and let running tasks finish."""
        self._worker.stop()


@asynccontextmanager
async def worker_of(app: App, options: WorkerOptions | None = None) -> AsyncIterator[RunningWorker]:
    """A worker of an app for the duration of the context; drains at the end."""
    from hourbell.compose import app_worker

    import_tasks(app)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(app)
        assert app._opened is not None
        dsn = app._opened.database.dsn
        parts = await stack.enter_async_context(app_worker(dsn, app, options or WorkerOptions()))
        assert parts.worker is not None
        yield RunningWorker(parts.worker, parts.worker_ended)
    await parts.worker_ended()


@asynccontextmanager
async def entered(app: App, pool_size: int | None = None) -> AsyncIterator[AppRunner]:
    """The runner of an app's tasks, within the app's lifespan."""
    async with AsyncExitStack() as stack:
        state: Sequence[object] | None = None
        if app.lifespan is not None:
            state = await stack.enter_async_context(app.lifespan(app))
            if not isinstance(state, list | tuple | None):
                raise ConfigurationError(
                    f"The lifespan of app {app.name!r} yields a {type(state).__name__}. It must yield "
                    f"a list of what ctx.get finds, such as `yield [pool]`, or nothing."
                )
        runner = AppRunner(app, state or (), pool_size)
        stack.callback(runner.close)
        yield runner
