"""Tasks: functions decorated with `@app.task`.

`task.enqueue(x=1)` is checked against the function's signature, at run time and by a type checker.
`task.configure(delay=60).enqueue(x=1)` adds options, which are separate from the arguments and cannot
collide with them. Calling the task itself runs the function directly, without a job.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from hourbell.errors import InvalidArguments, InvalidTask
from hourbell.model.arguments import digest_of_payload
from hourbell.model.executions import Claimed
from hourbell.model.policies import Priority
from hourbell.sdk.awaitables import must_be_awaited
from hourbell.sdk.context import Context, RunInfo, SyncContext
from hourbell.sdk.jobs import Cancelled, Job
from hourbell.sdk.plans import PlannedCall, job_document
from hourbell.sdk.portal import blocking
from hourbell.sdk.signature import Signature, parameters_of
from hourbell.sdk.values import (
    MAY_BE_NONE,
    NONE,
    Absent,
    Options,
    PriorityLike,
    Retry,
    Schedule,
    Seconds,
    Unique,
    Without,
    check_options,
    instant_of,
    seconds_of,
    whole_seconds,
)

if TYPE_CHECKING:
    from hourbell.sdk.app import App
    from hourbell.sdk.batches import BatchOptions
    from hourbell.sdk.tasksets import TaskSet

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Middleware = Callable[[RunInfo, Callable[[], Awaitable[Any]]], Awaitable[Any]]
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
EnqueueHook = Callable[["Task[..., Any]", Options], None]
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,150}")


# What tasks of other libraries have, and what to write here.
_ELSEWHERE = {
    "delay": "await task.enqueue(…), or task.enqueue_sync(…)",
    "delay_on_commit": "await task.configure(connection=…).enqueue(…)",
    "apply_async": "await task.configure(delay=60).enqueue(…)",
    "s": "task.bind(…)",
    "si": "task.bind(…)",
    "signature": "task.bind(…)",
    "apply": "task(…), which runs the function directly",
    "retry": "raise RetryAfter(60)",
    "send": "await task.enqueue(…), or task.enqueue_sync(…)",
    "send_with_options": "await task.configure(delay=60).enqueue(…)",
    "defer": "task.enqueue_sync(…)",
    "defer_async": "await task.enqueue(…)",
    "kiq": "await task.enqueue(…)",
}
# Options of a call, and how a decorator says the same.
_OF_DECORATORS = {
    "unique_key": "unique=Unique(key=lambda cart_id: f'cart:{cart_id}')",
    "unique_scope": "unique=Unique(scope='tenant')",
    "on_duplicate": "unique=Unique(on_duplicate='replace')",
    "expires_at": "expires_in=3600",
    "at": "schedule=cron('0 2 * * *')",
    "delay": "task.configure(delay=60)",
}


class _Unknown:
    """Accepted only by a parameter without a type."""


class TaskKeywords(TypedDict, total=False):
    """The options of the decorators."""

    name: str | None
    aliases: Sequence[str]
    queue: str | None
    priority: PriorityLike | None
    retry: Retry | None
    timeout: Seconds | None
    deadline: Seconds | None
    delivery: Literal["at_least_once", "at_most_once"] | None
    expires_in: Seconds | None
    unique: Unique | None
    concurrency_key: str | Callable[..., str] | None
    concurrency_limit: int | None
    upgrade: Upgrade | None
    schedule: Schedule | Sequence[Schedule]
    no_retry: Sequence[type[BaseException]]
    process: bool
    max_calls: int | None
    labels: Mapping[str, str] | None
    middleware: Sequence[Middleware]


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options given to the decorator."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    queue: str | None = None
    priority: PriorityLike | None = None
    retry: Retry | None = None
    timeout: Seconds | None = None
    deadline: Seconds | None = None
    delivery: Literal["at_least_once", "at_most_once"] | None = None
    expires_in: Seconds | None = None
    unique: Unique | None = None
    concurrency_key: str | Callable[..., str] | None = None
    concurrency_limit: int | None = None
    upgrade: Upgrade | None = None
    schedule: tuple[Schedule, ...] = ()
    no_retry: tuple[type[BaseException], ...] = ()
    process: bool = False
    max_calls: int | None = None  # of a process, which is then replaced; None: as many as there are
    labels: Mapping[str, str] = {}
    middleware: tuple[Middleware, ...] = ()
    batch: BatchOptions | None = None


class Call(Generic[R_co]):
    """A task with its arguments and options, not yet enqueued. Created by `bind`."""

    __slots__ = ("_configured", "_planned")

    def __init__(
        self,
        configured: Configured[..., R_co],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._configured = configured
        self._planned = configured._plan(args, kwargs)

    def as_job(self) -> Mapping[str, Any]:
        """The document that creates this job through the API: `client.jobs.create(task.bind(7))`."""
        if self._configured._connection is not None:
            raise InvalidArguments(
                "A job created through the API is not part of your transaction: leave out connection=."
            )
        return job_document(self._planned)

    def __repr__(self) -> str:
        return f"<Call of {self._planned.task} with {self._planned.payload}>"


class Configured(Generic[P, R_co]):
    """A task with options. It can be stored and reused."""

    def __init__(self, task: Task[P, R_co], options: Options) -> None:
        self._task = task
        self._options = options
        self._connection = options.get("connection")

    @must_be_awaited
    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Create a job that calls the task with these arguments."""
        task = self._task
        call = self._plan(args, kwargs)
        (created,) = await task._app._create([call], self._connection)
        return Job(task._app, created.job_id, created.existed, task.name)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """A call to be enqueued later, with `enqueue_many`."""
        return Call(self, args, kwargs)

    @must_be_awaited
    async def enqueue_many(
        self, calls: Iterable[Call[R_co] | Mapping[str, Any]]
    ) -> list[Job[R_co]]:
        """Create many jobs of this task, all or none. Each mapping holds the arguments of one job."""
        bound = [each if isinstance(each, Call) else Call(self, (), each) for each in calls]
        return await self._task._app._enqueue_many(bound, self._connection, None)

    enqueue_sync = blocking(enqueue)
    enqueue_many_sync = blocking(enqueue_many)

    def _plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlannedCall:
        task = self._task
        payload = task._signature.payload(args, kwargs)
        with_options = self
        if task.has_own_options or task._app._hooks:
            with_options = Configured(task, self._options_of(args, kwargs, payload))
        return PlannedCall(
            task.name,
            with_options._encoded_options,
            payload,
            with_options._at,
            with_options._key,
            with_options._shown_key,
        )

    def _options_of(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], payload: str
    ) -> Options:
        """The options of one call: some depend on its arguments, and hooks may change them."""
        declared = self._task.options
        options: Options = {**self._options}
        if declared.unique is not None and "unique_key" not in options:
            key = declared.unique.key
            options["unique_key"] = (
                digest_of_payload(msgspec.json.decode(payload))
                if key is None
                else self._task._signature.key(key, args, kwargs)
            )
            options["unique_scope"] = declared.unique.scope
            options.setdefault("on_duplicate", declared.unique.on_duplicate)
        if callable(declared.concurrency_key) and "concurrency_key" not in options:
            options["concurrency_key"] = self._task._signature.key(
                declared.concurrency_key, args, kwargs
            )
        for hook in self._task._app._hooks:
            hook(self._task, options)
        _check_options(options)
        return _given(options)

    # Derived from the options, computed once.

    @cached_property
    def _encoded_options(self) -> str:
        return encode_options(self._task, self._options)

    @cached_property
    def _at(self) -> datetime | None:
        return instant_of(self._options)

    @property
    def _shown_key(self) -> str | None:
        return _unless_without(self._options.get("unique_key"))

    @cached_property
    def _key(self) -> str | None:
        key = self._shown_key
        if key is None or self._options.get("unique_scope") == "tenant":
            return key
        return f"{self._task.name}:{key}"


class Task(Configured[P, R_co]):
    """A function that workers run. Calling it runs it directly, without a job."""

    _app: App  # these four are set by _bind
    _signature: Signature
    name: str
    aliases: tuple[str, ...]

    def __init__(self, owner: App | TaskSet, fn: Callable[..., Any], options: TaskOptions) -> None:
        super().__init__(self, {})
        self.options = options
        self.fn = fn  # the function itself
        self._short_name = _checked_name(fn, options)
        self.is_async = inspect.iscoroutinefunction(fn)
        self.takes_context = _takes_context(fn, self.is_async)
        if options.process:
            _check_process(fn, self.is_async)
        elif options.max_calls is not None:
            raise InvalidTask(f"{self._short_name}: max_calls= is for tasks with process=True.")
        # Whether the options of a call depend on its arguments.
        self.has_own_options = options.unique is not None or callable(options.concurrency_key)
        # The common case in a worker: nothing to do but await it.
        self.runs_directly = self.is_async and options.batch is None and not options.middleware
        self.__doc__ = fn.__doc__
        self.__name__ = getattr(fn, "__name__", self._short_name)
        self.__wrapped__ = fn
        owner._add(self)

    def __repr__(self) -> str:
        return f"<Task {self.__dict__.get('name', self._short_name)}>"

    def __getattr__(self, name: str) -> Any:
        if name in ("_app", "_signature", "name", "aliases"):
            raise InvalidTask(
                f"{self.__dict__.get('_short_name')} belongs to a TaskSet that no app has included yet. "
                f"Import the module that calls app.include(…) first."
            )
        instead = _ELSEWHERE.get(name)
        hint = "" if instead is None else f". Write {instead}"
        raise AttributeError(f"a task has no attribute {name!r}{hint}")

    def _bind(self, app: App) -> None:
        """Become a task of an app."""
        self._app = app
        self.name = f"{app.name}.{self._short_name}"
        self.aliases = tuple(f"{app.name}.{_valid_name(alias)}" for alias in self.options.aliases)
        kind = _signature_of(self.options)
        self._signature = kind(self.fn, self.name, self.takes_context, app.codec)
        app._register(self)

    def configure(self, **options: Unpack[Options]) -> Configured[P, R_co]:
        """This task with options, such as delay, unique_key, priority or connection."""
        _check_options(options)
        return Configured(self, _given(options))

    async def cancel(
        self, *, unique_key: str, tenant: str | None = None, connection: Any = None
    ) -> Cancelled:
        """Cancel the job of this task with this unique key."""
        return await self._app.cancel(
            unique_key=unique_key, task=self, tenant=tenant, connection=connection
        )

    cancel_sync = blocking(cancel)

    @property
    def where(self) -> str:
        """The file and line of the function."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        return "?" if code is None else f"{os.path.relpath(code.co_filename)}:{code.co_firstlineno}"

    def _local_context(self) -> tuple[Context | SyncContext, ...]:
        if not self.takes_context:
            return ()
        claimed = Claimed(0, 0, self._app.tenant, 1, 0, 0.0, None, "{}")
        kind = Context if self.is_async else SyncContext
        return (kind(claimed, self.name, float("inf"), self._app.state, None),)


class AsyncTask(Task[P, R_co]):
    """A task that is a coroutine function."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run the function directly."""
        made: Coroutine[Any, Any, R_co] = self.fn(*self._local_context(), *args, **kwargs)
        return made


class SyncTask(Task[P, R_co]):
    """A task that is a plain function; a worker runs it in a thread or a process."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function directly."""
        result: R_co = self.fn(*self._local_context(), *args, **kwargs)
        return result


class TaskDecorator:
    """`app.task`: used as `@app.task` or as `@app.task(queue="mail")`."""

    def __init__(self, owner: App | TaskSet, options: TaskOptions | None = None) -> None:
        self._owner = owner
        self._options = options

    # A first parameter without a type: the arguments are left unchecked rather than
    # mistaking it for the context.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, f: Callable[Concatenate[_Unknown, ...], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(self, f: Callable[Concatenate[_Unknown, ...], R], /) -> SyncTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, f: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, f: Callable[Concatenate[SyncContext, P], R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, f: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, f: Callable[P, R], /) -> SyncTask[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[TaskKeywords]) -> TaskDecorator: ...
    def __call__(self, *functions: Any, **given: Any) -> Any:
        if not functions:
            return TaskDecorator(self._owner, task_options("@app.task", given))
        (f,) = functions
        if isinstance(f, staticmethod):
            raise InvalidTask("Put @staticmethod above @app.task, not below it.")
        if not callable(f):
            raise InvalidTask(f"@app.task must decorate a function, not {f!r}.")
        kind = AsyncTask if inspect.iscoroutinefunction(f) else SyncTask
        return kind(self._owner, f, self._options or TaskOptions())


def task_options(decorator: str, given: Mapping[str, Any]) -> TaskOptions:
    """The options of a decorator; raises InvalidTask."""
    fields = TaskKeywords.__annotations__
    unknown = given.keys() - fields.keys()
    if unknown:
        hints = (
            f" Write {_OF_DECORATORS[name]}." for name in sorted(unknown & _OF_DECORATORS.keys())
        )
        raise InvalidTask(
            f"{decorator} has no option {', '.join(sorted(unknown))}.{''.join(hints)} Its options: "
            f"{', '.join(fields)}."
        )
    _check_declared(decorator, given)
    schedule = given.get("schedule", ())
    several = (schedule,) if isinstance(schedule, Schedule) else tuple(schedule)
    tuples = {name: tuple(given.get(name, ())) for name in ("aliases", "no_retry", "middleware")}
    labels = dict(given.get("labels") or {})
    return TaskOptions(**{**given, **tuples, "schedule": several, "labels": labels})


def _check_declared(decorator: str, given: Mapping[str, Any]) -> None:
    """Raise InvalidTask for an option of the wrong type, when the module is imported rather than when a job runs."""
    common = dict(given)
    if callable(common.get("concurrency_key")):
        del common["concurrency_key"]
    check_options(decorator, common, InvalidTask)
    for name, (fits, expected) in _DECLARED.items():
        value = given.get(name)
        if value is not None and not fits(value):
            raise InvalidTask(f"{decorator}: {name} must be {expected}, not {value!r}.")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_schedule(value: object) -> bool:
    return isinstance(value, Schedule)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is a sequence of such values; a string is not a sequence of its letters."""
    return lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str) and all(map(fits, value))
    )


_all_schedules = _all(_is_schedule)
# Options that only a decorator takes: the check of a value, and its description.
_DECLARED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "aliases": (_all(_is_text), "a list of names"),
    "delivery": (
        ("at_least_once", "at_most_once").__contains__,
        "at_least_once or at_most_once",
    ),
    "unique": (lambda value: isinstance(value, Unique), "a Unique, such as Unique()"),
    "upgrade": (callable, "a function"),
    "schedule": (
        lambda value: _is_schedule(value) or _all_schedules(value),
        'made with cron("0 2 * * *") or every(60), or a list of those',
    ),
    "max_calls": (lambda value: type(value) is int and value > 0, "1 or more"),
    "no_retry": (_all(_is_exception), "a list of exception types"),
    "middleware": (_all(callable), "a list of functions"),
}


def encode_options(task: Task[..., Any], options: Options) -> str:
    """What jobs with these options have in common, for `hourbell.try_enqueue`, as JSON."""
    declared, app = task.options, task._app
    retry = _unless_without(options.get("retry", declared.retry or app.retry))
    timeout = options.get("timeout", app.timeout if declared.timeout is None else declared.timeout)
    deadline = options.get("deadline", declared.deadline)
    priority = options.get("priority", declared.priority)
    given_labels = options.get("labels")
    labels = {} if given_labels is NONE else {**declared.labels, **(given_labels or {})}
    expires_at = options.get("expires_at")
    expires_in = None if expires_at else options.get("expires_in", declared.expires_in)
    key = options.get("concurrency_key", declared.concurrency_key)
    limit = options.get("concurrency_limit", declared.concurrency_limit)
    if key is NONE or callable(key):  # a function depends on the call, which is not known here
        key = limit = None
    if expires_at is not None and expires_at.tzinfo is None:
        raise InvalidArguments("expires_at= has no time zone: use a datetime with tzinfo.")
    delay = options.get("delay")
    shared: dict[str, object] = {
        "task": task.name,
        "tenant": options.get("tenant", app.tenant),
        "queue": options.get("queue", declared.queue or app.queue),
        "priority": priority.name if isinstance(priority, Priority) else priority,
        "delay_seconds": None if delay is None else seconds_of(delay, "delay"),
        "timeout_seconds": _whole_seconds("timeout", timeout),
        "retry_policy": None if retry is None else retry.policy,
        "delivery": declared.delivery,
        "expires_at": expires_at,
        "deadline_seconds": _whole_seconds("deadline", deadline),
        "expires_in_seconds": _whole_seconds("expires_in", expires_in),
        "concurrency_key": key,
        "concurrency_limit": limit,
        "on_duplicate": options.get("on_duplicate"),
        "labels": labels or None,
        "idempotency_key": options.get("idempotency_key"),
        "notify": options.get("notify", None if app.notify else False),
    }
    departs = options.get("on_duplicate", "reject") != "reject"
    if departs and _unless_without(options.get("unique_key")) is None:
        raise InvalidArguments("on_duplicate= needs a unique_key=.")
    given = {name: value for name, value in shared.items() if value is not None}
    return msgspec.json.encode(given).decode()


def _check_options(options: Options) -> None:
    unknown = options.keys() - Options.__annotations__.keys()
    if unknown:
        raise InvalidArguments(
            f"configure has no option {', '.join(sorted(unknown))}. Its options: "
            f"{', '.join(Options.__annotations__)}."
        )
    without = {name for name in MAY_BE_NONE if options.get(name) is NONE}
    check_options(
        "configure", {name: value for name, value in options.items() if name not in without}
    )


def _given(options: Options) -> Options:
    """These options without those that are None: they are as declared."""
    given = {name: value for name, value in options.items() if value is not None}
    return cast(Options, given)


def _whole_seconds(name: str, value: Seconds | Absent) -> int | None:
    return None if value is None or isinstance(value, Without) else whole_seconds(name, value)


def _unless_without(value: T | Without | None) -> T | None:
    return None if isinstance(value, Without) else value


def _valid_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidTask(f"{name!r} is not a valid task name: use letters, digits and . _ : -.")
    return name


def _checked_name(fn: Callable[..., Any], options: TaskOptions) -> str:
    """The name of a task within its app; raises InvalidTask if the function cannot be a task."""
    shown = getattr(fn, "__name__", repr(fn))
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise InvalidTask(f"{shown}: a generator cannot be a task. Return the values.")
    if options.name is not None:
        return _valid_name(options.name)
    if shown == "<lambda>" or "<locals>" in getattr(fn, "__qualname__", "<locals>"):
        raise InvalidTask(
            f"{shown} is a lambda or a nested function, which has no name of its own. "
            f"Give it one: @app.task(name=…)."
        )
    return _valid_name(shown)


def _signature_of(options: TaskOptions) -> type[Signature]:
    if options.batch is None:
        return Signature
    from hourbell.sdk.batches import BatchSignature

    return BatchSignature


def _check_process(fn: Callable[..., Any], is_async: bool) -> None:
    """Raise InvalidTask for a function that cannot run in its own process."""
    shown = getattr(fn, "__name__", repr(fn))
    if is_async:
        raise InvalidTask(
            f"{shown}: process=True is only for plain functions; a coroutine function shares the event "
            f"loop of its worker. Declare it with `def`."
        )
    if "<locals>" in getattr(fn, "__qualname__", "<locals>"):
        raise InvalidTask(
            f"{shown} is a nested function, which another process cannot import. With process=True, a "
            f"task must be a module-level function."
        )


def _takes_context(fn: Callable[..., Any], is_async: bool) -> bool:
    """Whether the first parameter is the context; raises InvalidTask. Types are not resolved."""
    shown = getattr(fn, "__name__", repr(fn))
    names = getattr(inspect.unwrap(fn), "__globals__", {})
    takes = False
    for index, (name, parameter) in enumerate(parameters_of(fn).items()):
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if index == 0 and name in ("self", "cls"):
            raise InvalidTask(
                f"{shown}: a method cannot be a task, because {name} cannot be sent to a worker. Use "
                f"a function, or put @staticmethod above @app.task."
            )
        kind = _context_kind(parameter.annotation, names)
        if kind is None:
            if several and parameter.annotation is parameter.empty:
                stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
                raise InvalidTask(
                    f"{shown}: {stars}{name} needs a type, such as {stars}{name}: int."
                )
            continue
        if index > 0 or several or parameter.kind is parameter.KEYWORD_ONLY:
            prefix = "async def" if is_async else "def"
            raise InvalidTask(
                f"{shown}: {kind} must be the first parameter: {prefix} {shown}({name}: {kind}, …)."
            )
        if (kind == "Context") != is_async:
            wanted = "Context" if is_async else "SyncContext"
            what = "a coroutine function" if is_async else "a plain, blocking function"
            raise InvalidTask(f"{shown} is {what} and must take a {wanted}, not a {kind}.")
        takes = True
    return takes


def _context_kind(annotation: Any, names: Mapping[str, Any]) -> str | None:
    """The kind of context that an annotation names. `names` are those of the function's module, for a string annotation."""
    annotation = getattr(annotation, "__forward_arg__", annotation)  # a name, from Python 3.14 on
    if isinstance(annotation, str):
        annotation = _resolved(annotation.strip("\"'"), names)
    for kind in (Context, SyncContext):
        name = kind.__name__
        if annotation is kind:
            return name
        # Not defined: it may be imported only for type checkers.
        if isinstance(annotation, str) and annotation.rpartition(".")[2] == name:
            return name
    return None


def _resolved(name: str, names: Mapping[str, Any]) -> Any:
    """The object that a dotted name refers to; the name itself if it is not defined or is loaded lazily."""
    first, *rest = name.split(".")
    found = names.get(first)
    for part in rest:
        found = inspect.getattr_static(found, part, None)
    return name if found is None else found
