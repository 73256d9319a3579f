"""Settling a batch whatever is in it: one bad outcome harms no other.

A batch that the database rejects for its content is halved until the bad outcome stands alone, and that one is recorded
without what could not be stored; if not even that is accepted, as dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import structlog

from hourbell.dispatch import RELEASED, Settlement
from hourbell.engine.life.outcomes import unstorable, without_result

MOST_PER_BATCH = 2_000

# The batch was rejected for what it says, and would be each time.
REJECTED = (asyncpg.PostgresError, UnicodeError, ValueError, TypeError, OverflowError)

Settle = Callable[[Sequence[Settlement]], Awaitable[Sequence[int]]]

log = structlog.get_logger()


async def settle_whole(settle: Settle, batch: Sequence[Settlement]) -> list[int]:
    """Settle each of the batch, as well as it can be; returns the executions whose outcome was refused."""
    try:
        return list(await settle(batch))
    except REJECTED as error:
        if len(batch) == 1:
            return await _settle_less(settle, batch[0], error)
    middle = len(batch) // 2
    return [
        *await settle_whole(settle, batch[:middle]),
        *await settle_whole(settle, batch[middle:]),
    ]


async def _settle_less(settle: Settle, bad: Settlement, rejected: Exception) -> list[int]:
    """Record of an outcome what can be recorded."""
    # What was not started goes back anyway, and must not die of it.
    ways = () if bad.kind == RELEASED else (without_result, unstorable)
    for less in ways:
        log.error("an outcome could not be stored", execution=bad.execution_id, error=str(rejected))
        try:
            return list(await settle([less(bad, f"{type(rejected).__name__}: {rejected}")]))
        except REJECTED as again:
            rejected = again
    log.error(
        "nothing of an outcome could be stored: the execution goes back, to be run again",
        execution=bad.execution_id,
        error=str(rejected),
    )
    return []
