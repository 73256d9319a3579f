"""Coroutines whose loss is logged: an `enqueue` without `await` creates no job.

Python itself only warns of a coroutine that was never awaited, and many programs hide or never see
that warning.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])
R = TypeVar("R")

log = logging.getLogger("hourbell")  # that of the program: it may have no other


def must_be_awaited(f: F) -> F:
    """A method that is a coroutine function, and logs an error if its coroutine is never awaited."""

    @functools.wraps(f)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return _Awaited(self, f, args, kwargs)

    return _marked(call)  # type: ignore[return-value]


def _marked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Frameworks ask whether a function is a coroutine function, and call it in a thread if not."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    call._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
    return call


class _Awaited(Coroutine[Any, Any, R]):
    """A call that begins when it is awaited."""

    __slots__ = ("_args", "_begun", "_f", "_kwargs", "_owner")

    def __init__(
        self,
        owner: Any,
        f: Callable[..., Coroutine[Any, Any, R]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._owner, self._f, self._args, self._kwargs = owner, f, args, kwargs
        self._begun: Coroutine[Any, Any, R] | None = None

    def _coroutine(self) -> Coroutine[Any, Any, R]:
        if self._begun is None:
            self._begun = self._f(self._owner, *self._args, **self._kwargs)
        return self._begun

    def __await__(self) -> Generator[Any, Any, R]:
        return self._coroutine().__await__()

    def send(self, value: Any, /) -> Any:
        return self._coroutine().send(value)

    def throw(
        self,
        typ: Any,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        return self._coroutine().throw(typ if val is None else val)  # type: ignore[arg-type]

    def close(self) -> None:
        self._coroutine().close()

    def __del__(self) -> None:
        if self._begun is not None:
            return
        call = self._f.__name__
        log.error(
            "%s of %r was never awaited: no job was created. Write `await` before it, or call %s_sync.",
            call,
            getattr(self._owner, "_task", self._owner),
            call,
        )
