"""Batch tasks: one call of a function for many executions.

Each item is its own execution, with its own lease, attempts and outcome. Items wait in the
worker until a batch is full or its wait is over; the timeout of an attempt starts with the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, overload

import msgspec

from hourbell.actions import Run, StillRunning
from hourbell.errors import InvalidTask, Snooze
from hourbell.model.executions import Claimed
from hourbell.sdk.context import OfExecution
from hourbell.sdk.signature import Signature
from hourbell.sdk.tasks import Task, TaskKeywords, TaskOptions, task_options
from hourbell.sdk.values import Seconds, is_whole, seconds_of, shown_value

if TYPE_CHECKING:
    from hourbell.observe.spans import RunSpan
    from hourbell.sdk.app import App
    from hourbell.sdk.tasksets import TaskSet
    from hourbell.worker.runtime import Worker

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MAX_SIZE = 10_000
MAX_WAIT_SECONDS = 60.0
_NO_RUN = Claimed(0, 0, "default", 1, 0, 0.0, None, "{}")


class BatchOptions(msgspec.Struct, frozen=True):
    """How executions are collected."""

    size: int  # maximum items per batch
    max_wait_seconds: float  # after its first item, a batch starts even if it is not full
    by_tenant: bool  # whether all items of a batch belong to one tenant


class Item(OfExecution, Generic[T]):
    """One execution in a batch."""

    __slots__ = ("_cancelled", "_ended", "_mark", "_span", "value")

    def __init__(self, value: T, claimed: Claimed = _NO_RUN, span: RunSpan | None = None) -> None:
        self.value = value  # what was enqueued
        self._claimed = claimed
        self._span = span
        self._mark: BaseException | None = None
        self._cancelled = False
        self._ended: asyncio.Future[Any] | None = None

    def __repr__(self) -> str:
        return f"<Item {self.execution_id} {self.value!r}>"

    @property
    def cancelled(self) -> bool:
        """Whether this execution was asked to stop. The rest of the batch continues."""
        return self._cancelled

    def fail(self, error: Exception) -> None:
        """Mark this item as failed, whatever happens to the others.

        The exception means the same as when a task raises it, including Dead, RetryAfter and Cancel.
        """
        self._mark = error

    def snooze(self, delay: float | timedelta) -> None:
        """Run this item again after a delay. Does not count as an attempt."""
        self._mark = Snooze(delay)


class AsyncBatchTask(Task[[T], R_co], Generic[T, R_co]):
    """A batch task that is a coroutine function."""

    def __call__(self, items: list[Item[T]]) -> Coroutine[Any, Any, Sequence[R_co] | None]:
        """Run the function directly, with items such as `Item(value)`."""
        made: Coroutine[Any, Any, Sequence[R_co] | None] = self.fn(items)
        return made


class SyncBatchTask(Task[[T], R_co], Generic[T, R_co]):
    """A batch task that is a plain function; a worker runs it in a thread."""

    def __call__(self, items: list[Item[T]]) -> Sequence[R_co] | None:
        """Run the function directly, with items such as `Item(value)`."""
        result: Sequence[R_co] | None = self.fn(items)
        return result


class BatchDecorator:
    """Returned by `app.batch_task(…)`."""

    def __init__(self, owner: App | TaskSet, options: TaskOptions) -> None:
        self._owner = owner
        self._options = options

    @overload
    def __call__(
        self, f: Callable[[list[Item[T]]], Coroutine[Any, Any, None]], /
    ) -> AsyncBatchTask[T, None]: ...
    @overload
    def __call__(
        self, f: Callable[[list[Item[T]]], Coroutine[Any, Any, Sequence[R]]], /
    ) -> AsyncBatchTask[T, R]: ...
    @overload
    def __call__(
        self, f: Callable[[list[Item[T]]], Coroutine[Any, Any, Sequence[R] | None]], /
    ) -> AsyncBatchTask[T, R | None]: ...
    @overload
    def __call__(self, f: Callable[[list[Item[T]]], None], /) -> SyncBatchTask[T, None]: ...
    @overload
    def __call__(self, f: Callable[[list[Item[T]]], Sequence[R]], /) -> SyncBatchTask[T, R]: ...
    @overload
    def __call__(
        self, f: Callable[[list[Item[T]]], Sequence[R] | None], /
    ) -> SyncBatchTask[T, R | None]: ...
    def __call__(self, f: Callable[..., Any], /) -> Any:
        shown = getattr(f, "__name__", repr(f))
        if not callable(f) or len(inspect.signature(f).parameters) != 1:
            raise InvalidTask(
                f"{shown}: a batch task takes one parameter, such as items: list[Item[int]]."
            )
        kind = AsyncBatchTask if inspect.iscoroutinefunction(f) else SyncBatchTask
        return kind(self._owner, f, self._options)


def batch_decorator(
    owner: App | TaskSet,
    size: int,
    max_wait: Seconds,
    by: Literal["task", "tenant"],
    options: TaskKeywords,
) -> BatchDecorator:
    """Create the decorator for `batch_task` of an app or a task set; raises InvalidTask."""
    if options.get("process"):
        raise InvalidTask("batch_task does not support process=True: a batch runs in the worker.")
    batch = _batch_options(size, max_wait, by)
    found = task_options("@app.batch_task", options)
    return BatchDecorator(owner, msgspec.structs.replace(found, batch=batch))


def _batch_options(size: int, max_wait: Seconds, by: Literal["task", "tenant"]) -> BatchOptions:
    seconds = seconds_of(max_wait, "max_wait")
    if not is_whole(size) or not 1 <= size <= MAX_SIZE:
        raise InvalidTask(
            f"batch_task(size={shown_value(size)}): size must be from 1 to {MAX_SIZE}."
        )
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        raise InvalidTask(
            f"batch_task(max_wait={seconds:g}): max_wait must be at most {MAX_WAIT_SECONDS:g} s."
        )
    if by not in ("task", "tenant"):
        raise InvalidTask(f'batch_task(by={by!r}): by must be "task" or "tenant".')
    return BatchOptions(size, seconds, by == "tenant")


class BatchSignature(Signature):
    """The signature of a function that takes a list of items: the value and the result of one item."""

    def key(self, of: Callable[..., str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """What a function of the user computes from the value of an item, which has no name."""
        return of(self._bind(args, kwargs)["value"])

    @cached_property
    def _parameters(self) -> dict[str, inspect.Parameter]:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {"value": inspect.Parameter("value", kind)}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        found = self._function_hints()
        (name,) = inspect.signature(self._fn).parameters
        returned = found.get("return", Any)
        return {
            "value": self._value_type(found.get(name, Any)),
            "return": _result_type(returned),
        }

    def _value_type(self, items: Any) -> Any:
        if items is Any:
            return Any
        (item,) = typing.get_args(items) or (Any,)
        if typing.get_origin(items) is not list or (typing.get_origin(item) or item) is not Item:
            raise InvalidTask(
                f"{self._task}: the parameter of a batch task must be a list of items, such as "
                f"list[Item[int]]."
            )
        return (typing.get_args(item) or (Any,))[0]


def _result_type(returned: Any) -> Any:
    """The result type of one item, from the function's return type."""
    if returned is type(None):
        return returned
    if typing.get_origin(returned) in (Union, UnionType):
        some = [each for each in typing.get_args(returned) if each is not type(None)]
        returned = some[0] if len(some) == 1 else Any
    return (typing.get_args(returned) or (Any,))[0]


# In a worker.


class _Batch:
    """Items that are processed in one call."""

    def __init__(self, task: Task[..., Any]) -> None:
        self.task = task
        self.items: list[Item[Any]] = []
        self.running: asyncio.Task[None] | None = None
        self.thread: StillRunning | None = None  # continues although the batch was stopped


class Batches:
    """Collects the items of a worker and runs the batches."""

    def __init__(
        self,
        worker: Worker,
        call: Callable[[Task[..., Any], list[Item[Any]]], Awaitable[Any]],
        variables: contextvars.Context,
    ) -> None:
        self._worker = worker
        self._call = call
        self._collecting: dict[tuple[str, str], tuple[_Batch, asyncio.TimerHandle]] = {}
        self._variables = variables  # each batch gets a copy

    async def run(self, task: Task[..., Any], run: Run, value: Any) -> Any:
        """The result of one item; raises the error of its batch, or its own mark."""
        claimed = run.claimed
        options = task.options.batch
        assert options is not None
        loop = asyncio.get_running_loop()
        key = task.name, claimed.tenant_id if options.by_tenant else ""
        self._worker.hold(claimed.execution_id)
        if key not in self._collecting:
            timer = loop.call_later(options.max_wait_seconds, self._begin, key)
            self._collecting[key] = _Batch(task), timer
        batch = self._collecting[key][0]
        item = Item(value, claimed, run.span)
        item._ended = loop.create_future()
        batch.items.append(item)
        if len(batch.items) >= min(options.size, self._worker.slots):
            self._begin(key)
        try:
            return await item._ended
        except asyncio.CancelledError:
            item._cancelled = True
            if batch.running is None:
                batch.items.remove(item)
            elif all(each._ended is None or each._ended.done() for each in batch.items):
                await self._stop(batch)
            raise

    def _begin(self, key: tuple[str, str]) -> None:
        batch, timer = self._collecting.pop(key)
        timer.cancel()
        if not batch.items:
            return  # all of them were stopped while waiting
        for item in batch.items:
            self._worker.begin(item._claimed.execution_id, 0.0)
        batch.running = asyncio.get_running_loop().create_task(
            self._run(batch), name=f"hourbell-batch-{key[0]}", context=self._variables.copy()
        )

    async def _run(self, batch: _Batch) -> None:
        items = batch.items
        try:
            # A copy: the function may change its list.
            results = _results(await self._call(batch.task, list(items)), items)
        except StillRunning as thread:
            batch.thread = thread
            return
        except asyncio.CancelledError:
            for item in items:
                _end(item, None, RuntimeError("The batch function raised CancelledError."))
            raise
        except BaseException as error:
            for item in items:
                _end(item, None, error)
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        for item, result in zip(items, results, strict=True):
            _end(item, result, None)

    async def _stop(self, batch: _Batch) -> None:
        """Cancel a batch that has no items left, and wait until it ends."""
        assert batch.running is not None
        while not batch.running.done():
            batch.running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([batch.running])
        if batch.thread is not None:
            raise batch.thread


def _results(returned: Any, items: Sequence[Item[Any]]) -> Sequence[Any]:
    if returned is None:
        return [None] * len(items)
    if not isinstance(returned, list | tuple) or len(returned) != len(items):
        size = len(returned) if isinstance(returned, list | tuple) else type(returned).__name__
        raise TypeError(
            f"A batch task must return nothing, or a list with one result per item: {len(items)}, "
            f"not {size}."
        )
    return returned


def _end(item: Item[Any], result: Any, error: BaseException | None) -> None:
    """End an item by its own mark if it has one, otherwise like the batch."""
    assert item._ended is not None
    if item._ended.done():
        return  # it was stopped
    ends_by = item._mark or error
    if ends_by is None:
        item._ended.set_result(result)
    else:
        item._ended.set_exception(ends_by if isinstance(ends_by, Exception) else _plain(ends_by))


def _plain(error: BaseException) -> Exception:
    """Replace exceptions that futures refuse, such as SystemExit."""
    return RuntimeError(f"{type(error).__name__}: {error}")
