"""Settling in batches: whatever has gathered while the last batch was on its way is the next one.

An answer that was lost is asked for again: the same batch, as often as it takes; what was settled the first time is then
refused, which is as good. A batch that the database rejects for its content is halved until the bad outcome stands alone,
and that one is recorded without what could not be stored; if not even that is accepted, as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import asyncpg
import structlog

from hourbell.dispatch import RELEASED, Dispatch, Session, Settlement
from hourbell.engine.loops import Backoff
from hourbell.model.errors import StoreUnavailable
from hourbell.worker.outcomes import unstorable, without_result

_MOST_PER_BATCH = 2_000

log = structlog.get_logger()


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
        while True:
            await self._more.wait()
            batch, self._waiting = self._waiting[:_MOST_PER_BATCH], self._waiting[_MOST_PER_BATCH:]
            if not self._waiting:
                self._more.clear()
            if batch:
                await self._settle(batch)
            if not self._waiting:
                self._idle.set()

    async def _settle(self, batch: list[Settlement]) -> None:
        rejected = await self._record(batch)
        if rejected is None:
            self._settled(batch)
        elif len(batch) > 1:
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
        else:
            await self._settle_less(batch[0], rejected)

    async def _settle_less(self, bad: Settlement, rejected: Exception) -> None:
        """Record of an outcome what can be recorded."""
        # What was not started goes back anyway, and must not die of it.
        ways = () if bad.kind == RELEASED else (without_result, unstorable)
        for less in ways:
            log.error(
                "an outcome could not be stored", execution=bad.execution_id, error=str(rejected)
            )
            again = await self._record([less(bad, f"{type(rejected).__name__}: {rejected}")])
            if again is None:
                break
            rejected = again
        else:
            log.error(
                "nothing of an outcome could be stored: the execution goes back, to be run again",
                execution=bad.execution_id,
                error=str(rejected),
            )
        self._settled([bad])

    async def _record(self, batch: list[Settlement]) -> Exception | None:
        """Try until the batch is recorded, or the session lost; returns why its content was rejected."""
        backoff = Backoff()
        while (session := self.session) is not None:
            try:
                refused = await self._dispatch.settle(session, batch)
            except StoreUnavailable as error:
                complain("settling", error)
                await backoff.wait()
                continue
            except (
                asyncpg.PostgresError,
                UnicodeError,
                ValueError,
                TypeError,
                OverflowError,
            ) as error:
                return error
            except Exception as error:
                complain("settling", error)
                await backoff.wait()
                continue
            if refused:
                log.warning(
                    "outcomes were refused: settled before, or no longer ours", refused=len(refused)
                )
            break
        return None


def complain(doing: str, error: Exception) -> None:
    """A worker that ends over an error is worse than one that complains and tries again."""
    if isinstance(error, StoreUnavailable):
        log.warning("the database is away", doing=doing, error=str(error))
    else:
        log.error("a step failed", doing=doing, exc_info=error)
