"""TASK: a named handler of this process.

A handler is an async function of (payload, context). A sync function runs in a thread, so that it
may block. A thread cannot be stopped, so its timeout is recorded while it may still be running. Its
slot stays occupied until the thread ends, so there are never more threads than slots, and a sync
function never waits for a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from queue import SimpleQueue
from typing import Any

import msgspec

from hourbell.actions import Run, StillRunning, failed
from hourbell.model.executions import Claimed, Failed, Outcome, Succeeded
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import TaskAction


class Context(msgspec.Struct, frozen=True, gc=False):
    """What a handler can learn about its run."""

    _claimed: Claimed

    @property
    def execution_id(self) -> str:
        """The same for all attempts: usable as an idempotency key."""
        return execution_text(self._claimed.execution_id)

    @property
    def job_id(self) -> str:
        return job_text(self._claimed.job_id)

    @property
    def tenant_id(self) -> str:
        return self._claimed.tenant_id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._claimed.attempt

    @property
    def fence(self) -> int:
        """Higher than that of every earlier attempt."""
        return self._claimed.fence

    @property
    def scheduled_for(self) -> datetime:
        return self._claimed.scheduled_for


Handler = Callable[[Any, Context], Any] | Callable[[Any, Context], Awaitable[Any]]


THREAD_NAME = "handler"
_Calls = SimpleQueue[Callable[[], None] | None]  # for one thread; None ends it


class Threads:
    """Threads for sync functions: created when none is idle, kept for the next call.

    They are daemon threads, so that a hanging one does not block process exit. The interpreter
    waits for the threads of a ThreadPoolExecutor at exit, whatever was passed to its `shutdown`.
    """

    def __init__(self) -> None:
        self._spare: list[_Calls] = []
        self._closed = False

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Outcome]:
        """Start immediately. The future returns the outcome and never raises.

        Futures reject some exceptions, such as StopIteration.
        """
        loop = asyncio.get_running_loop()
        calls = self._spare.pop() if self._spare else self._new()
        ended: asyncio.Future[Outcome] = loop.create_future()

        def run() -> None:
            outcome = _outcome(function)
            # The loop may be closed by now; then no caller is waiting any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended, calls, ended, outcome)

        calls.put(run)
        return ended

    def close(self) -> None:
        """End each thread as soon as it is idle."""
        self._closed = True
        while self._spare:
            self._spare.pop().put(None)

    def _ended(self, calls: _Calls, ended: asyncio.Future[Outcome], outcome: Outcome) -> None:
        if self._closed:
            calls.put(None)
        else:
            self._spare.append(calls)
        ended.set_result(outcome)

    def _new(self) -> _Calls:
        calls: _Calls = SimpleQueue()
        threading.Thread(target=_run_calls, args=[calls], name=THREAD_NAME, daemon=True).start()
        return calls


def _run_calls(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # do not keep it alive while the thread is idle


def _outcome(function: Callable[[], Any]) -> Outcome:
    try:
        return Succeeded(function())
    except BaseException as error:
        return failed(error)


class TaskRunner:
    """Runs handlers by name."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._async_handlers: dict[str, Callable[[Any, Context], Awaitable[Any]]] = {}
        self._sync_handlers: dict[str, Callable[[Any, Context], Any]] = {}
        for name, handler in handlers.items():
            is_async = inspect.iscoroutinefunction(handler)
            (self._async_handlers if is_async else self._sync_handlers)[name] = handler
        self._threads = Threads()

    def close(self) -> None:
        """Accept no more calls. Does not wait for hanging threads."""
        self._threads.close()

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        name, context = action.name, Context(run.claimed)
        if (handler := self._async_handlers.get(name)) is not None:
            return Succeeded(await handler(action.payload, context))
        if (function := self._sync_handlers.get(name)) is not None:
            return await self._run_in_thread(partial(function, action.payload, context))
        known = ", ".join(sorted((*self._async_handlers, *self._sync_handlers))) or "none"
        return Failed(f"No handler {name!r} in this worker; it has {known}.", "unknown_task")

    async def _run_in_thread(self, function: Callable[[], Any]) -> Outcome:
        variables = contextvars.copy_context()
        ended = self._threads.call(partial(variables.run, function))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done():
                return ended.result()
            raise StillRunning(ended) from None
