"""The loop of all background work: repeat a step; when idle, pause until a poll or a wake-up.

A loop's step is `run_once() -> bool`: True means that there is more to do now. A step that finds
the database unavailable is retried with backoff. Any other exception is logged and does not end
the loop, so that one bad step cannot stop a scheduler.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from hourbell.model.errors import NotLeader, StoreUnavailable
from hourbell.store.database import why_unusable

log = structlog.get_logger(component="scheduler")


class BackoffTimer:
    """Exponential backoff with jitter, so that a fleet does not retry in step."""

    def __init__(self, first_seconds: float = 0.05, max_seconds: float = 1.0) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._next = first_seconds

    async def wait(self) -> None:
        await asyncio.sleep(self._next * (0.5 + random.random() / 2))  # nosec B311
        self._next = min(self._next * 2, self._max)

    def reset(self) -> None:
        self._next = self._first


class Loop:
    """A repeated step."""

    def __init__(self, name: str, step: Callable[[], Awaitable[bool]], idle_seconds: float) -> None:
        self.name = name
        self._step = step
        self._idle_seconds = idle_seconds
        self._woken = asyncio.Event()
        self.last_success: float | None = None  # monotonic, of the running loop

    def has_succeeded_within(self, seconds: float) -> bool:
        """Whether a step has succeeded in this time; one that hangs or always fails has not."""
        if self.last_success is None:
            return False
        silent = asyncio.get_running_loop().time() - self.last_success
        return silent < self._idle_seconds + seconds

    def wake(self) -> None:
        """End the pause early: there may be something to do."""
        self._woken.set()

    async def run(self) -> None:
        """Repeat until cancelled."""
        backoff = BackoffTimer()
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            try:
                more = await self._step()
            except StoreUnavailable as error:
                log.warning("database unavailable", loop=self.name, error=why_unusable(error))
                await backoff.wait()
                continue
            except NotLeader:
                more = False
            except Exception:
                log.exception("step failed", loop=self.name)
                await backoff.wait()
                continue
            backoff.reset()
            self.last_success = loop.time()
            if more:
                await asyncio.sleep(0)
            else:
                await self._pause()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._idle_seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
