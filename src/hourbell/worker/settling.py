"""Settling in batches: whatever has gathered while the last batch was on its way, and a moment after it, is the next one.

An answer that was lost is asked for again: the same batch, as often as it takes; what was settled the first time is then
refused, which is as good.
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

GATHER_SECONDS = (
    0.005  # one settle right after another waits so long for more: many cost little more than few
)
_FEW = 100


class Settler:
    """Takes outcomes and sees that each is recorded, or refused."""

    def __init__(self, dispatch: Dispatch, settled: Callable[[Sequence[Settlement]], None]) -> None:
        self._dispatch = dispatch
        self._settled = settled  # told what need not be reported as running any more
        self._waiting: list[Settlement] = []
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.session: Session | None = None

    def put(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        self._idle.clear()
        self._more.set()

    def forget(self) -> None:
        """The session is lost: nothing that waits would be accepted."""
        self._waiting.clear()

    async def drained(self) -> None:
        """Wait until everything that was put is settled."""
        await self._idle.wait()

    async def run(self) -> None:
        """Settle for ever."""
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
                        "outcomes were refused: settled before, or no longer ours",
                        refused=len(refused),
                    )
                self._settled(batch)
                settled_at = time.monotonic()
            if not self._waiting:
                self._idle.set()

    async def _settle(self, batch: Sequence[Settlement]) -> Sequence[int]:
        """Try until the batch is settled, or the session lost, or the content rejected."""
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
    """A worker that ends over an error is worse than one that complains and tries again."""
    if isinstance(error, StoreUnavailable):
        log.warning("the database is away", doing=doing, error=str(error))
    else:
        log.error("a step failed", doing=doing, exc_info=error)
