"""admit: the gate. Nothing else makes an execution ready. One statement; any process may run it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hourbell.engine.core import Engine
from hourbell.store.database import committing

BATCH = 4_000  # a pass stays well below 100 ms, even if every execution has limits
_ADMIT = "select * from hourbell.admit($1, $2, $3)"


class Pass(msgspec.Struct, frozen=True):
    """The result of one pass of the gate."""

    examined: int  # executions that it took; some of them may have been parked or skipped
    more: bool  # there is more to do
    busy: bool  # another pass was running, and this one did nothing


async def admit(engine: Engine, now: datetime, batch: int = BATCH) -> Pass:
    """Run one pass of the gate."""
    async with committing("admit.before_commit", "admit.after_commit"):
        row = await engine.database.row(_ADMIT, now, batch, engine.times.grace)
    return Pass(row["examined"], row["more"], row["busy"])
