"""Settle outcomes in batches: those that arrive during a settle, or just after it, form the next.

After a lost answer the same batch is sent again, as often as necessary. Outcomes that were settled
the first time are then refused, which is equally good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from hourbell.dispatch import Dispatch, Session, Settlement
from hourbell.dispatch.settling import MOST_PER_BATCH, REJECTED, settle_whole
from hourbell.engine.leader.loop import Backoff
from hourbell.model.errors import StoreUnavailable

log = structlog.get_logger()

GATHER_SECONDS = 0.005  # wait for more after a settle: a large batch costs little more than a small
_FEW = 100


class Settler:
    """Ensures that each outcome is recorded, or refused."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._waiting: list[Settlement] = []
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.session: Session | None = None

    def put(self, settlement: Settlement) -> None:
        if not self._waiting:
            self._idle.clear()
            self._more.set()
        self._waiting.append(settlement)

    def forget(self) -> None:
        """Drop pending outcomes: the session is lost, so none would be accepted."""
        self._waiting.clear()

    async def drained(self) -> None:
        """Wait until everything is settled."""
        await self._idle.wait()

    async def run(self, settled: Callable[[Sequence[Settlement]], None]) -> None:
        """Settle until cancelled; `settled` is called with what is recorded or refused."""
        settled_at = 0.0
        while True:
            await self._more.wait()
            if len(self._waiting) < _FEW and time.monotonic() - settled_at < GATHER_SECONDS:
                await asyncio.sleep(GATHER_SECONDS)
            batch, self._waiting = self._waiting[:MOST_PER_BATCH], self._waiting[MOST_PER_BATCH:]
            if not self._waiting:
                self._more.clear()
            if batch:
                refused = await settle_whole(self._settle, batch)
                if refused:
                    log.warning(
                        "outcomes refused",  # settled before, or the claim was lost
                        refused=len(refused),
                    )
                settled(batch)
                settled_at = time.monotonic()
            if not self._waiting:
                self._idle.set()

    async def _settle(self, batch: Sequence[Settlement]) -> Sequence[int]:
        """Retry until the batch is settled, the session lost, or the content rejected."""
        backoff = Backoff()
        while (session := self.session) is not None:
            try:
                return await self._dispatch.settle(session, batch)
            except REJECTED:
                raise
            except Exception as error:
                complain("settling", error)
                await backoff.wait()
        return []


def complain(doing: str, error: Exception) -> None:
    """Log an error and continue: a worker must not end because of it."""
    if isinstance(error, StoreUnavailable):
        log.warning("database unavailable", doing=doing, error=str(error))
    else:
        log.error("step failed", doing=doing, exc_info=error)
