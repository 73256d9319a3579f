"""settle: record the outcomes of claimed executions, a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from hourbell.engine.core import Engine
from hourbell.engine.life.settlement import SUCCEEDED, Settlement
from hourbell.store.arrays import array_text
from hourbell.store.database import committing

# Without a time argument the statement uses its own: one round trip to the database, not two.
SETTLE = (
    "select * from hourbell.settle($1, $2, coalesce($3, hourbell.clock()),"
    " $4::text::bigint[], $5::text::bigint[], $6::text::int[], $7::text::int[],"
    " $8, $9, $10, $11, $12, $13, $14)"
)


_KINDS, _REASONS = 5, 7  # among `columns`


async def settle(
    engine: Engine, session: int, token: UUID, batch: Sequence[Settlement]
) -> Sequence[int]:
    """Record the outcomes of a session's executions; returns those whose outcome was refused."""
    began = engine.clock.monotonic()
    given = columns(batch)
    async with committing("settle.before_commit", "settle.after_commit"):
        row = await engine.database.row(SETTLE, session, token, None, *given)
    if row["freed"]:
        engine.announce()  # other executions may have waited for the freed limits
    refused: list[int] = row["refused"]
    engine.counts.settled.add(len(batch), engine.clock.monotonic() - began)
    count_settled(engine, batch, given, row)
    return refused


def count_settled(
    engine: Engine, batch: Sequence[Settlement], given: Sequence[Any], row: asyncpg.Record
) -> None:
    """Count the outcomes of a batch; `given`: its columns, `row`: the answer of `hourbell.settle`."""
    refused, cancelled = row["refused"], row["cancelled"] or ()
    if refused or cancelled:
        others = frozenset((*refused, *cancelled))
        batch = [one for one in batch if one.execution_id not in others]
        given = columns(batch)
    kinds, reasons = given[_KINDS], given[_REASONS]
    engine.counts.count_settled(len(batch), kinds, reasons, len(refused), len(cancelled))


def columns(batch: Sequence[Settlement]) -> list[Any]:
    """The columns of a batch: few values for plain successes, more for the others."""
    others = [
        at
        for at, s in enumerate(batch, 1)
        if s.kind != SUCCEEDED or s.result is not None or s.error is not None
    ]
    detailed = [batch[at - 1] for at in others]
    return [
        array_text([s.execution_id for s in batch]),
        array_text([s.fence for s in batch]),
        array_text([s.begun_ms for s in batch]),
        array_text([s.took_ms for s in batch]),
        others,
        [s.kind for s in detailed],
        [s.delay_seconds for s in detailed],
        [s.reason for s in detailed],
        [s.error for s in detailed],
        [s.result for s in detailed],
        [s.failure for s in detailed],
    ]
