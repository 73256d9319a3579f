"""admit: the gate. Nothing else makes an execution ready. One statement; any process may run it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hourbell.engine.core import Engine
from hourbell.observe.clock import epoch_ns
from hourbell.store.database import committing

BATCH = 4_000  # a pass stays well below 100 ms, even if every execution has limits
_ADMIT = """
select *, hourbell.ended() as ended from hourbell.admit(coalesce($1, hourbell.clock()), $2, $3)
"""


class Pass(msgspec.Struct, frozen=True):
    """The result of one pass of the gate."""

    examined: int  # executions that it took; some of them may have been parked or skipped
    more: bool  # there is more to do
    busy: bool  # another pass was running, and this one did nothing


async def admit(engine: Engine, now: datetime | None = None, batch: int = BATCH) -> Pass:
    """Run one pass of the gate. `now`: None for the time at which the database begins it."""
    began, began_ns = engine.clock.monotonic(), 0 if engine.traces is None else epoch_ns()
    async with committing("admit.before_commit", "admit.after_commit"):
        row = await engine.database.row(_ADMIT, now, batch, engine.times.grace)
    engine.counts.admitted.add(row["examined"], engine.clock.monotonic() - began)
    engine.counts.count_ended(row["ended"])
    if engine.traces is not None and row["examined"]:
        engine.traces.note_pass("admit", began_ns, row["examined"])
    return Pass(row["examined"], row["more"], row["busy"])
