"""App: a named group of tasks, with its connections and its worker."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack
from weakref import WeakKeyDictionary

from hourbell.environment import hourbell_variables, switch_of, value_of
from hourbell.errors import (
    ConfigurationError,
    HourbellError,
    InvalidArguments,
    InvalidTask,
    JobFailed,
    NoDatabase,
    NotOpen,
    ResultNotStored,
    UnknownTask,
)
from hourbell.model.ids import parse_group_id, parse_job_id
from hourbell.observe.traces import current_traces
from hourbell.sdk.awaitables import must_be_awaited
from hourbell.sdk.connections import user_connection
from hourbell.sdk.groups import Group, GroupView
from hourbell.sdk.jobs import Cancelled, Job, JobView
from hourbell.sdk.plans import (
    CANCEL,
    ENQUEUE,
    GROUP,
    Created,
    MissingName,
    PlannedCall,
    arguments,
    created,
    created_group,
    say_created,
    say_without_group,
    traced,
    unknown_name,
)
from hourbell.sdk.portal import blocking, is_blocking, run_in
from hourbell.sdk.signature import Codec
from hourbell.sdk.tasks import Call, EnqueueHook, Middleware, Task, TaskDecorator, TaskKeywords
from hourbell.sdk.values import Retry, Seconds, check_options, is_whole, shown_value

if TYPE_CHECKING:
    from hourbell.sdk.app_connections import AppConnections
    from hourbell.sdk.batches import BatchDecorator
    from hourbell.sdk.running import RunningWorker, WorkerOptions
    from hourbell.sdk.tasksets import TaskSet

T = TypeVar("T")
Lifespan = Callable[["App"], AbstractAsyncContextManager[Sequence[object] | None]]

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_DRIVER = re.compile(r"^(postgres(?:ql)?)\+[a-z0-9_]+://")
_CHUNK = 5_000  # jobs in one statement


class App:
    """A named group of tasks. The app's name is part of the names of its tasks."""

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        embedded: bool = False,
        revision: int | None = None,
        tenant: str = "default",
        queue: str | None = None,
        timeout: Seconds | None = None,
        retry: Retry | None = None,
        imports: Sequence[str] = (),
        state: Sequence[object] = (),
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        codec: Codec | None = None,
        pool_size: int = 4,
        notify: bool = True,
    ) -> None:
        """Create an app with this name.

        Its database is `url`, HOURBELL_DATABASE_URL, or that of a running `hourbell up`; with
        `embedded` the app starts its own PostgreSQL. Among live workers, the schedules of the highest
        `revision` (HOURBELL_REVISION) are in effect. `tenant`, `queue`, `timeout` and `retry` apply to
        tasks that do not set them. A worker imports the modules in `imports` (`shop.*.tasks`), enters
        `lifespan`, and gives handlers access to `state` and to what the lifespan yields.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"App({name!r}): a name is up to 40 lower-case letters, digits, - or _, and begins "
                f"with a letter."
            )
        if not isinstance(state, list | tuple):
            raise ConfigurationError(
                f"App({name!r}): state must be a list of what ctx.get finds, such as state=[pool], not "
                f"a {type(state).__name__}."
            )
        defaults = {"tenant": tenant, "queue": queue, "timeout": timeout, "retry": retry}
        check_options(f"App({name!r})", defaults, ConfigurationError)
        self.name = name
        self.url = url
        self.embedded = embedded
        self.revision = revision
        self.tenant = tenant
        self.queue = queue
        self.timeout = timeout
        self.retry = retry
        self.imports = tuple(imports)
        self.state = tuple(state)
        self.lifespan = lifespan
        self.middleware = tuple(middleware)
        self.codec = codec
        self.pool_size = pool_size
        self.notify = notify
        self.tasks: dict[str, Task[..., Any]] = {}  # by full name and alias
        self.task = TaskDecorator(self)
        self._hooks: list[EnqueueHook] = []  # added by on_enqueue
        self._opened: AppConnections | None = None  # in the event loop of `open`
        self._opens = 0
        self._in_portal: AppConnections | None = None  # for sync callers
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._on_created: Callable[[], Awaitable[None]] | None = None  # for tests: run them now

    def __repr__(self) -> str:
        return f"<App {self.name} with {len(set(self.tasks.values()))} tasks>"

    def batch_task(
        self,
        *,
        size: int = 100,
        max_wait: Seconds = 1.0,
        by: Literal["task", "tenant"] = "tenant",
        **options: Unpack[TaskKeywords],
    ) -> BatchDecorator:
        """Decorate a function that takes a list of items, each of which is an execution.

        A worker collects up to `size` items, of one tenant or with `by="task"` of all tenants, and waits
        for more for at most `max_wait` seconds. The other options are those of `task`.
        """
        from hourbell.sdk.batches import batch_decorator

        return batch_decorator(self, size, max_wait, by, options)

    def include(self, tasks: TaskSet) -> None:
        """Add the tasks of a set to this app, including those declared later."""
        tasks._include_in(self)

    def on_enqueue(self, hook: EnqueueHook) -> EnqueueHook:
        """Decorate a function that is called before each job is enqueued, in the same process.

        It gets the task and the options of the call and may change the options, for example add
        labels or choose a tenant. An exception rejects the call.
        """
        self._hooks.append(hook)
        return hook

    # Opening and closing.

    async def open(self) -> None:
        """Connect. May be called more than once; each call needs its own close."""
        if self._opened is not None and self._opened.pid != os.getpid():
            self._opened, self._opens = None, 0  # a forked child needs its own connections
        async with self._opening():
            if self._opened is None:
                self._opened = await self._open_own()
        assert self._opened is not None
        if self._opened.loop is not asyncio.get_running_loop():
            raise self._other_loop()
        self._opens += 1

    def _opening(self) -> asyncio.Lock:
        """Held while connections are opened; a lock belongs to one event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def close(self) -> None:
        self._opens = max(self._opens - 1, 0)
        if self._opens == 0 and self._opened is not None:
            own, self._opened = self._opened, None
            await own.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan_for_web(self, web_app: object = None) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=app.lifespan_for_web)`: open while the web app runs."""
        async with self:
            yield

    def close_sync(self) -> None:
        """Close the connections used by sync callers."""
        own, self._in_portal = self._in_portal, None
        if own is not None and own.pid == os.getpid():
            run_in(own.loop, own.close)

    async def _open_own(self) -> AppConnections:
        from hourbell.sdk.app_connections import AppConnections

        stack = AsyncExitStack()
        try:
            dsn = await self._database(stack)
            own = await AppConnections.open(
                dsn,
                self.pool_size,
                stack,
                f"hourbell app {self.name}",
                switch_of("HOURBELL_CREATE_ON_USE", hourbell_variables(os.environ), True),
            )
            queues = {task.options.queue or self.queue or "default" for task in self.tasks.values()}
            await own.declare({self.tenant}, queues | {"default"}, self.tasks)
        except BaseException:
            await stack.aclose()
            raise
        return own

    async def _database(self, stack: AsyncExitStack) -> str:
        """The DSN of the app; an embedded server that it starts stops with the stack."""
        given = self.configured_url()
        if given is not None:
            if not given.startswith(("postgresql://", "postgres://")):
                raise ConfigurationError(
                    "App(url=…) or HOURBELL_DATABASE_URL must be a URL that begins with postgresql:// "
                    "(the value is not shown here). To use the API of a server, use hourbell.client."
                )
            return given
        from hourbell.compose import join_or_open_database

        return await join_or_open_database(stack, f"app {self.name}", self.embedded, self._target())

    @property
    def database_url(self) -> str:
        """The database of the open app, for your own tables next to the jobs."""
        own = self._opened or self._in_portal
        if own is None:
            raise self._not_open()
        return own.database.dsn

    def configured_url(self) -> str | None:
        """The URL that the app was given, without what SQLAlchemy adds to the scheme."""
        url = self.url or value_of("HOURBELL_DATABASE_URL", hourbell_variables(os.environ))
        return None if not url else _DRIVER.sub(r"\1://", url)

    def _target(self) -> str:
        """The likely target for `hourbell up`, for a hint."""
        module = next((task.fn.__module__ for task in self.tasks.values()), self.name)
        if module == "__main__":
            module = Path(getattr(sys.modules["__main__"], "__file__", None) or self.name).stem
        return f"{module}:app"

    # Enqueueing.

    @must_be_awaited
    async def enqueue_many(
        self, calls: Iterable[Call[Any]], *, connection: Any = None, chunk: int = _CHUNK
    ) -> list[Job[Any]]:
        """Create many jobs. Each chunk is created as a whole or not at all.

        With `connection`, all are part of its transaction. If a chunk is rejected, the jobs of the
        chunks before it exist; the error lists them in `created`.
        """
        if not is_whole(chunk) or chunk < 1:
            raise ConfigurationError(
                f"enqueue_many(chunk={shown_value(chunk)}): a chunk must have at least 1 job. Nothing was enqueued."
            )
        return await self._enqueue_many(calls, connection, chunk)

    @must_be_awaited
    async def group(
        self,
        calls: Iterable[Call[Any]],
        *,
        then: Call[T],
        name: str | None = None,
        connection: Any = None,
    ) -> Group[T]:
        """Create many jobs, and another one when all of them have ended, whatever their fates.

        All are created in one transaction, or none; with `connection`, in its transaction.
        """
        check_options("group", {"name": name})
        if (traces := current_traces()) is None:
            return await self._group(_bound(calls), _bound([then])[0], name, connection)
        with traces.sending() as span:
            bound, last = _bound(calls), _bound([then])[0]
            *members, last = traced([*bound, last], span.traceparent)
            group = await self._group(members, last, name, connection)
            span.created_many(_one_task(bound), len(bound))
            return group

    async def _group(
        self, bound: Sequence[PlannedCall], last: PlannedCall, name: str | None, connection: Any
    ) -> Group[Any]:
        if last.unique_key is not None or last.at is not None:
            raise ConfigurationError(
                "then= must not have unique_key= or at=: it is created once, when the others "
                "have ended."
            )
        chunks = [bound[first : first + _CHUNK] for first in range(0, len(bound), _CHUNK)]
        shown = name or last.task
        if connection is None:
            number, made = await self._own(lambda own: own.create_group(chunks, last, shown))
        else:
            made = []
            try:
                for chunk in chunks:
                    made += await self._create_untraced(chunk, connection)
                number = await self._close_group(made, last, shown, connection)
            except HourbellError as error:
                if made:
                    say_without_group(error)
                raise
        jobs = [
            Job[Any](self, one.job_id, one.existed, call.task)
            for call, one in zip(bound, made, strict=True)
        ]
        return Group(self, number, jobs)

    async def get_group(self, group_id: str) -> GroupView:
        """The current state of a group, by its id; the task of `then` has it in the label `hourbell.group`."""
        number = parse_group_id(group_id)
        return await self._own(lambda own: own.group(number))

    async def cancel(
        self,
        *,
        unique_key: str,
        task: Task[..., Any] | None = None,
        tenant: str | None = None,
        connection: Any = None,
    ) -> Cancelled:
        """Cancel the job with a unique key: of a task or, without one, of the tenant.

        This also finds a job of the task whose key is one of the tenant, and one that was enqueued under an
        alias of the task, before it was renamed.
        """
        check_options("cancel", {"unique_key": unique_key, "tenant": tenant})
        where = tenant or self.tenant

        async def cancel_own(own: AppConnections, name: str | None) -> Cancelled:
            return await own.cancel_key(name, unique_key, where)

        outcome = Cancelled.NOT_FOUND
        for name in [None] if task is None else [task.name, *task.aliases]:
            if connection is None:
                found = await self._own(partial(cancel_own, name=name))
            else:
                user = user_connection(connection, is_blocking())
                ((said,),) = await user.fetch(CANCEL, [name, unique_key, where])
                found = Cancelled(said)
            if found not in (Cancelled.ENDED, Cancelled.NOT_FOUND):
                return found
            if found is Cancelled.ENDED:
                outcome = found
        return outcome

    async def complete(
        self, token: str, result: object = None, *, error: str | None = None
    ) -> None:
        """Complete what a handler is waiting for, by its token; with `error`, as a failure.

        Raises NotFound if there is no such token, and Conflict if something else was reported before or
        the job has ended.
        """
        check_options("complete", {"token": token, "error": error})
        await self._own(lambda own: own.complete(token, result, error))

    def job(self, job_id: str) -> Job[Any]:
        """A handle to a job; does not check whether it exists."""
        return Job(self, parse_job_id(job_id))

    def get_task(self, name: str) -> Task[..., Any]:
        """A task by its name, with or without the app's name."""
        found = self.tasks.get(name) or self.tasks.get(f"{self.name}.{name}")
        if found is None:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(f"App {self.name!r} has no task {name!r}. Its tasks: {known}.")
        return found

    enqueue_many_sync = blocking(enqueue_many)
    group_sync = blocking(group)
    get_group_sync = blocking(get_group)
    cancel_sync = blocking(cancel)
    complete_sync = blocking(complete)

    async def _enqueue_many(
        self, calls: Iterable[Call[Any]], connection: Any, chunk: int | None
    ) -> list[Job[Any]]:
        jobs: list[Job[Any]] = []
        bound = _bound(calls, connection)
        size = chunk or max(len(bound), 1)
        for first in range(0, len(bound), size):
            planned = bound[first : first + size]
            try:
                made = await self._create(planned, connection)
            except HourbellError as error:
                if jobs:
                    say_created(error, jobs)
                raise
            jobs += (
                Job(self, one.job_id, one.existed, call.task)
                for call, one in zip(planned, made, strict=True)
            )
        return jobs

    async def _create(self, calls: Sequence[PlannedCall], connection: Any) -> list[Created]:
        """Create jobs, all or none, on the user's connection or the app's own."""
        if not calls:
            return []
        if (traces := current_traces()) is None:
            return await self._create_untraced(calls, connection)
        with traces.sending() as span:
            made = await self._create_untraced(traced(calls, span.traceparent), connection)
            if len(calls) == 1:
                span.created(calls[0].task, made[0].job_id)
            else:
                span.created_many(_one_task(calls), len(calls))
            return made

    async def _create_untraced(
        self, calls: Sequence[PlannedCall], connection: Any
    ) -> list[Created]:
        if connection is None:
            made = await self._own(lambda own: own.create(calls))
            if (ran := self._on_created) is not None:
                await self._own(lambda _: ran())
            return made
        return await self._on_connection(
            connection, ENQUEUE, arguments(calls), lambda rows: created(calls, rows)
        )

    async def _close_group(
        self, made: Sequence[Created], then: PlannedCall, name: str, connection: Any
    ) -> int:
        given: list[object] = [name, then.options, then.payload, [one.job_id for one in made]]
        return await self._on_connection(
            connection, GROUP, given, lambda rows: created_group(then, rows[0])
        )

    async def _on_connection(
        self, connection: Any, statement: str, given: list[object], read: Callable[[list[Any]], T]
    ) -> T:
        """Run a statement on the user's connection; missing names are created first."""
        user = user_connection(connection, is_blocking())
        for _ in range(8):
            rows = await user.fetch(statement, given)
            try:
                return read(rows)
            except MissingName as missing:
                last = missing
                if not self._can_open():
                    raise unknown_name(
                        missing,
                        f'Open the app "{self.name}", which creates it, or start its worker.',
                    ) from None
                name = missing
                await self._own(lambda own, name=name: own.add(name))  # type: ignore[misc]
        raise unknown_name(
            last, "It was created just now, but your transaction has an older snapshot: retry it."
        )

    def _can_open(self) -> bool:
        """Whether the app's own connections can be used now."""
        return is_blocking() or self._opened is not None

    async def _own(self, call: Callable[[AppConnections], Awaitable[T]]) -> T:
        """Use the app's own connections: in this loop, or for a sync caller in another thread."""
        if not is_blocking():
            own = self._opened
            if own is None or own.pid != os.getpid():
                raise self._not_open()
            if own.loop is not asyncio.get_running_loop():
                raise self._other_loop()
            return await call(own)
        own = self._opened
        if own is not None and own.pid == os.getpid() and own.loop.is_running():

            async def there(own: AppConnections = own) -> T:
                return await call(own)

            return run_in(own.loop, there)

        async def in_portal() -> T:
            async with self._opening():
                if self._in_portal is None or self._in_portal.pid != os.getpid():
                    self._in_portal = await self._open_own()
            return await call(self._in_portal)

        return run_in(None, in_portal)

    def _not_open(self) -> NotOpen:
        return NotOpen(
            f'App "{self.name}" is not open. Use "async with app:", or await app.open() when the '
            f"process starts (FastAPI: lifespan=app.lifespan_for_web)."
        )

    def _other_loop(self) -> NotOpen:
        return NotOpen(
            f'App "{self.name}" was opened in another event loop. Open it in the loop that uses it '
            f"(pytest: a loop-scoped fixture), or use enqueue_sync."
        )

    def _result(self, job: str, view: JobView) -> Any:
        if view.status != "SUCCEEDED":
            raise JobFailed(job, view.status, view.reason, view.error)
        if view.error is not None:
            raise ResultNotStored(f"Job {job} succeeded. {view.error}")
        task = self.tasks.get(view.task)
        return view.result if task is None else task._signature.result(view.result)

    # Workers.

    def worker(
        self, options: WorkerOptions | None = None
    ) -> AbstractAsyncContextManager[RunningWorker]:
        """A worker in this process, for scripts and tests: `async with app.worker():`."""
        from hourbell.sdk.running import worker_of

        return worker_of(self, options)

    async def run_worker(self, options: WorkerOptions | None = None) -> None:
        """Run a worker until this task is cancelled, then drain."""
        async with self.worker(options) as worker:
            await worker.ended()

    def _add(self, task: Task[..., Any]) -> None:
        task._bind(self)

    def _register(self, task: Task[..., Any]) -> None:
        for name in (task.name, *task.aliases):
            other = self.tasks.get(name)
            if other is not None and not _is_same_function(other, task):
                raise InvalidTask(
                    f'"{name}" is declared twice: {other.where} and {task.where}. Give one of them a name=.'
                )
            self.tasks[name] = task


def _bound(calls: Iterable[Call[Any]], connection: Any = None) -> list[PlannedCall]:
    if not isinstance(calls, Iterable):
        raise InvalidArguments(
            f"{calls!r} is not a list of calls, such as [task.bind(…)]. Nothing was enqueued."
        )
    found = list(calls)
    for call in found:
        if not isinstance(call, Call):
            raise InvalidArguments(
                f"{call!r} is not a call. Create one with task.bind(…). Nothing was enqueued."
            )
        if call._configured._connection not in (None, connection):
            raise ConfigurationError(
                "A bound call has no connection of its own. Pass connection= to the call that "
                "enqueues it."
            )
    return [call._planned for call in found]


def _one_task(calls: Sequence[PlannedCall]) -> str | None:
    """The task of all these calls; None if there are several."""
    tasks = {call.task for call in calls}
    return tasks.pop() if len(tasks) == 1 else None


def _is_same_function(one: Task[..., Any], other: Task[..., Any]) -> bool:
    """Whether a module was loaded a second time, as `__main__`."""
    return one.where == other.where


def no_database(target: str, data_dir: Path) -> NoDatabase:
    return NoDatabase(
        f'No database: neither HOURBELL_DATABASE_URL nor App(url=…) is set, and no "hourbell up" uses the data '
        f'folder {data_dir}. Set one of them, or run "hourbell up {target}" in another terminal; it comes with '
        f"its own PostgreSQL."
    )
