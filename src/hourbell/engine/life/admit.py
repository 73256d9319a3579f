"""admit: the gate. Nothing else makes an execution ready. One statement; any process may run it.

A pass that the database rejects, for its content or a bug, is repeated as an isolating one: it parks
the executions that cannot be admitted, and admits all others (`isolation.sql`).
"""

from __future__ import annotations

from datetime import datetime

import asyncpg
import msgspec
import structlog

from hourbell.engine.core import Engine
from hourbell.model.ids import execution_text
from hourbell.observe.clock import epoch_ns
from hourbell.store.database import committing

BATCH = 4_000  # a pass stays well below 100 ms, even if every execution has limits
ISOLATING_BATCH = 1_000  # a smaller one: rows are decided on several times until a bad one is alone
LOG_AGAIN_SECONDS = 60.0
_ADMIT = """
select *, hourbell.ended() as ended from hourbell.admit(coalesce($1, hourbell.clock()), $2, $3, $4)
"""

log = structlog.get_logger(component="scheduler")


class Pass(msgspec.Struct, frozen=True):
    """The result of one pass of the gate."""

    examined: int  # executions that it took; some of them may have been parked or skipped
    more: bool  # there is more to do
    busy: bool  # another pass was running, and this one did nothing


async def admit(engine: Engine, now: datetime | None = None, batch: int = BATCH) -> Pass:
    """Run one pass of the gate. `now`: None for the time at which the database begins it."""
    try:
        return await _run_pass(engine, now, batch, isolating=False)
    except asyncpg.PostgresError as error:  # a temporary one is StoreUnavailable
        _log_failure(engine, error)
    return await _run_pass(engine, now, min(batch, ISOLATING_BATCH), isolating=True)


def _log_failure(engine: Engine, error: asyncpg.PostgresError) -> None:
    """Log why a pass has failed; what makes every pass fail is logged once a minute."""
    message = str(error).partition("\n")[0]  # without the row
    failure, now = f"{error.sqlstate}: {message}", engine.clock.monotonic()
    if engine.gate_failure is not None:
        logged, logged_at = engine.gate_failure
        if failure == logged and now < logged_at + LOG_AGAIN_SECONDS:
            return
    engine.gate_failure = failure, now
    log.error("gate pass failed", sqlstate=error.sqlstate, error=message)


async def _run_pass(engine: Engine, now: datetime | None, batch: int, isolating: bool) -> Pass:
    began, began_ns = engine.clock.monotonic(), 0 if engine.traces is None else epoch_ns()
    async with committing("admit.before_commit", "admit.after_commit"):
        row = await engine.database.row(_ADMIT, now, batch, engine.times.grace, isolating)
    engine.counts.admitted.add(row["examined"], engine.clock.monotonic() - began)
    engine.counts.count_ended(row["ended"])
    for execution_id, error in zip(row["failed"], row["errors"], strict=True):
        log.error(
            "execution cannot be admitted",
            execution_id=execution_text(execution_id),
            error=error,
        )
    if engine.traces is not None and row["examined"]:
        engine.traces.note_pass("admit", began_ns, row["examined"])
    return Pass(row["examined"], row["more"], row["busy"])
