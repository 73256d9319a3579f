"""Settle outcomes in batches: those that arrive during a settle, or just after it, form the next.

While a settle is in progress, a second one starts only with a large batch: a worker with many short
executions does not wait for one statement at a time, and small batches are not split further.

After a lost answer the same batch is sent again, as often as necessary. Outcomes that were settled
the first time are then refused, which is equally good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from hourbell.dispatch import Dispatch, Session, Settlement
from hourbell.dispatch.bisect import MAX_SETTLE_BATCH, REJECTED, settle_bisecting
from hourbell.engine.loop import BackoffTimer
from hourbell.model.errors import StoreUnavailable
from hourbell.store.database import why_unusable

log = structlog.get_logger(component="worker")

_SMALL_BATCH = 100
_LARGE_BATCH = 500  # a second settle starts with at least this many outcomes


Settled = Callable[[Sequence[Settlement], Sequence[int]], None]


class Settler:
    """Ensures that each outcome is recorded, or refused."""

    def __init__(self, dispatch: Dispatch, gather_seconds: float) -> None:
        self._dispatch = dispatch
        self._gather_seconds = gather_seconds
        self._waiting: list[Settlement] = []
        self._more = asyncio.Event()  # something waits
        self._large_batch = asyncio.Event()  # at least _LARGE_BATCH wait
        self._idle = asyncio.Event()
        self._idle.set()
        self._batches = 0  # being settled
        self.session: Session | None = None

    def put(self, settlement: Settlement) -> None:
        if not self._waiting:
            self._idle.clear()
            self._more.set()
        self._waiting.append(settlement)
        if len(self._waiting) == _LARGE_BATCH:
            self._large_batch.set()

    def forget(self) -> None:
        """Drop pending outcomes: the session is lost, so none would be accepted."""
        self._waiting.clear()
        self._mark()
        if not self._batches:
            self._idle.set()

    async def drained(self) -> None:
        """Wait until everything is settled."""
        await self._idle.wait()

    async def run(self, settled: Settled) -> None:
        """Settle until cancelled; `settled` gets each batch, and which of it was refused."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(self._more, settled))
            group.create_task(self._run(self._large_batch, settled))

    async def _run(self, enough: asyncio.Event, settled: Settled) -> None:
        """Settle pending outcomes, batch by batch, whenever there are enough."""
        settled_at = 0.0
        while True:
            await enough.wait()
            is_soon = time.monotonic() - settled_at < self._gather_seconds
            if is_soon and len(self._waiting) < _SMALL_BATCH:
                await asyncio.sleep(self._gather_seconds)
            batch = self._take()
            if batch:
                self._batches += 1
                try:
                    refused = await settle_bisecting(self._settle, batch)
                finally:
                    self._batches -= 1
                if refused:
                    log.warning(
                        "outcomes refused",  # settled before, or the claim was lost
                        refused=len(refused),
                    )
                settled(batch, refused)
                settled_at = time.monotonic()
            if not self._waiting and not self._batches:
                self._idle.set()

    def _take(self) -> list[Settlement]:
        """The next batch.

        A large one ends where the executions of a claim's slab end, because slabs that are reported
        whole are recorded faster. More of the last slab are probably about to end.
        """
        waiting = self._waiting
        size = min(len(waiting), MAX_SETTLE_BATCH)
        if size >= _LARGE_BATCH:
            last = waiting[size - 1].fence
            whole = size - 1
            while whole and waiting[whole - 1].fence == last:
                whole -= 1
            size = whole or size
        batch, self._waiting = waiting[:size], waiting[size:]
        self._mark()
        return batch

    def _mark(self) -> None:
        """Update the events after outcomes were taken: the rest may not be enough."""
        if not self._waiting:
            self._more.clear()
        if len(self._waiting) < _LARGE_BATCH:
            self._large_batch.clear()

    async def _settle(self, batch: Sequence[Settlement]) -> Sequence[int]:
        """Retry until the batch is settled, the session lost, or the content rejected."""
        backoff = BackoffTimer()
        while (session := self.session) is not None:
            try:
                return await self._dispatch.settle(session, batch)
            except REJECTED:
                raise
            except Exception as error:
                log_error("settling", error)
                await backoff.wait()
        return []


def log_error(doing: str, error: Exception) -> None:
    """Log an error and continue: a worker must not end because of it."""
    if isinstance(error, StoreUnavailable):
        log.warning("database unavailable", doing=doing, error=why_unusable(error))
    else:
        log.error("step failed", doing=doing, exc_info=error)
