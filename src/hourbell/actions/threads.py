"""Threads for handlers that block.

A thread cannot be stopped, so the timeout of a handler is recorded while it may still be running.
Its slot stays occupied until the thread ends, so there are never more threads than slots, and a
sync function never waits for a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from hourbell.actions import StillRunning, failed
from hourbell.model.executions import Outcome, Succeeded

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

    async def run(self, function: Callable[[], Any]) -> Outcome:
        """Call a function in a thread, with the context variables of the caller.

        Raises StillRunning if this call was cancelled and the thread continues.
        """
        ended = self._start(partial(contextvars.copy_context().run, function))
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            if ended.done():
                return ended.result()
            raise StillRunning(ended) from None

    def close(self) -> None:
        """End each thread as soon as it is idle."""
        self._closed = True
        while self._spare:
            self._spare.pop().put(None)

    def _start(self, function: Callable[[], Any]) -> asyncio.Future[Outcome]:
        """Start immediately. The future returns the outcome and never raises.

        Futures reject some exceptions, such as StopIteration.
        """
        loop = asyncio.get_running_loop()
        calls = self._spare.pop() if self._spare else self._new()
        ended: asyncio.Future[Outcome] = loop.create_future()

        def run() -> None:
            outcome = _outcome(function)
            # The loop may be closed by now; then no caller is waiting anymore.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._ended, calls, ended, outcome)

        calls.put(run)
        return ended

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
