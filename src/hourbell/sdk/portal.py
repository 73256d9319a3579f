"""Sync callers: the same coroutines, without an event loop of the caller's.

A coroutine of the library that uses the user's sync connection never suspends: `blocking` runs
it to completion in the caller's own thread. Anything that needs the app's own connections runs in
the portal, one event loop in a daemon thread of the process, created on first use. After a fork the
child creates its own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

from hourbell.errors import NotOpen

S = TypeVar("S")
Q = ParamSpec("Q")
R = TypeVar("R")

_blocking: ContextVar[bool] = ContextVar("hourbell_blocking", default=False)


def is_blocking() -> bool:
    """Whether the current call came through a sync version."""
    return _blocking.get()


def blocking(
    f: Callable[Concatenate[S, Q], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, Q], R]:
    """The sync version of a method."""

    @functools.wraps(f)
    def call(self: S, /, *args: Q.args, **kwargs: Q.kwargs) -> R:
        token = _blocking.set(True)
        try:
            return without_loop(f(self, *args, **kwargs))
        finally:
            _blocking.reset(token)

    call.__name__ = f"{f.__name__}_sync"
    return call


def without_loop(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine that never suspends to completion, in the caller's thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine suspended in a sync call")


def run_in(loop: asyncio.AbstractEventLoop | None, call: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine in another thread's loop, or in the portal, and wait for it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise NotOpen(
            "A sync call would block the event loop that is running in this thread. Await the call "
            "without _sync, or call it from another thread."
        )

    async def unmarked() -> R:
        _blocking.set(False)  # in the context of its own task
        return await call()

    return asyncio.run_coroutine_threadsafe(unmarked(), loop or portal_loop()).result()


_lock = threading.Lock()
_portal: asyncio.AbstractEventLoop | None = None


def portal_loop() -> asyncio.AbstractEventLoop:
    """The loop of the portal."""
    global _portal
    with _lock:
        if _portal is None:
            _portal = asyncio.new_event_loop()
            threading.Thread(
                target=_portal.run_forever, name="hourbell-portal", daemon=True
            ).start()
        return _portal


def _forget() -> None:
    """In a forked child, forget the portal: its thread does not exist there."""
    global _portal, _lock
    _portal, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
