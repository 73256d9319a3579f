"""Settle a batch even if it contains a bad outcome, which does not affect the others.

A batch that the database rejects for its content is bisected until the bad outcome is alone. That
one is recorded without the parts that could not be stored; if even that is rejected, as dead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import asyncpg
import structlog

from hourbell.dispatch import RELEASED, Settlement
from hourbell.engine.failing import isolate
from hourbell.engine.life.settlement import unstorable, without_result
from hourbell.model.ids import execution_text

MAX_SETTLE_BATCH = 2_000

# The batch was rejected for its content, so a retry would fail as well.
REJECTED = (asyncpg.PostgresError, UnicodeError, ValueError, TypeError, OverflowError)

Settle = Callable[[Sequence[Settlement]], Awaitable[Sequence[int]]]

log = structlog.get_logger(component="worker")


async def settle_bisecting(settle: Settle, batch: Sequence[Settlement]) -> list[int]:
    """Settle every outcome as far as possible; returns the executions whose outcome was refused."""
    refused: list[int] = []

    async def act(some: Sequence[Settlement]) -> None:
        refused.extend(await settle(some))

    async def fails(bad: Settlement, error: Exception) -> None:
        refused.extend(await _settle_reduced(settle, bad, error))

    await isolate(batch, act, fails, REJECTED)
    return refused


async def _settle_reduced(settle: Settle, bad: Settlement, rejected: Exception) -> list[int]:
    """Record as much of an outcome as can be stored."""
    # An execution that was not started is released anyway, and must not become dead.
    ways = () if bad.kind == RELEASED else (without_result, unstorable)
    for reduced in ways:
        log.error(
            "outcome not stored",
            execution_id=execution_text(bad.execution_id),
            error=str(rejected),
        )
        try:
            return list(await settle([reduced(bad, f"{type(rejected).__name__}: {rejected}")]))
        except REJECTED as again:
            rejected = again
    log.error(
        "outcome rejected, execution will run again",
        execution_id=execution_text(bad.execution_id),
        error=str(rejected),
    )
    return []
