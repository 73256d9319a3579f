"""Tasks as plain functions by name, for tests of the worker that need no app."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from hourbell.actions import Run
from hourbell.actions.threads import Threads
from hourbell.model.executions import Claimed, Outcome, Succeeded
from hourbell.model.jobs import TaskAction

Handler = Callable[[Any, Claimed], Any] | Callable[[Any, Claimed], Awaitable[Any]]


class Handlers:
    """An ActionRunner of (payload, claimed) functions; sync ones run in threads, as those of an app do."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._threads = Threads()

    def close(self) -> None:
        self._threads.close()

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        handler = self._handlers[action.name]
        if inspect.iscoroutinefunction(handler):
            return Succeeded(await handler(action.payload, run.claimed))
        return await self._threads.run(partial(handler, action.payload, run.claimed))
