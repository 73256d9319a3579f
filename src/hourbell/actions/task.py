"""TASK: a named handler of this process.

A handler is an async function of (payload, context). A plain function is run in a thread, so that it may block; a thread
cannot be stopped, so its timeout is recorded while it may still be running.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from hourbell.actions import Run
from hourbell.model.executions import Claimed, Failed, Outcome, Succeeded
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import TaskAction


class Context:
    """What a handler may know about its run."""

    __slots__ = ("_claimed",)

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed

    @property
    def execution_id(self) -> str:
        """The same over all attempts: an idempotency key."""
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


class TaskRunner:
    """Runs handlers by name."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = dict(handlers)
        self._asynchronous = {
            name: inspect.iscoroutinefunction(handler) for name, handler in handlers.items()
        }

    async def run(self, action: TaskAction, run: Run) -> Outcome:
        handler = self._handlers.get(action.name)
        if handler is None:
            known = ", ".join(sorted(self._handlers)) or "none"
            return Failed(
                f"No handler {action.name!r} here; this worker knows {known}.", "unknown_task"
            )
        context = Context(run.claimed)
        if self._asynchronous[action.name]:
            return Succeeded(await handler(action.payload, context))
        return Succeeded(await asyncio.to_thread(handler, action.payload, context))
