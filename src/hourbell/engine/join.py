"""join: a membership gets what planning has already passed, and leaves the rest to the fires.

It is one statement under the timetable's lock. Whoever begins a membership joins it right after the commit; what is left
over, because that process died, the leader completes.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hourbell.engine.core import Engine
from hourbell.model.schedules import Timetable
from hourbell.store.database import committing
from hourbell.store.queries import queries
from hourbell.timing.rules import between, compile_rule

_Q = queries("planning")
_MOST_OCCURRENCES = 20_000
_MOST_TIMETABLES = 100
_JOIN = "select * from hourbell.join_timetable($1, $2, $3, $4, $5, $6)"


async def join_timetable(
    engine: Engine, timetable_id: int, timetable: Timetable, since: datetime, now: datetime
) -> int:
    """Join every membership of this timetable that waits for it and is active since then or later."""
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    through = now + engine.times.horizon + timedelta(seconds=5)
    joined: int = 0
    while True:
        occurrences = between(rule, since, through, _MOST_OCCURRENCES)
        if len(occurrences) == _MOST_OCCURRENCES:
            through = occurrences[-1]
        async with committing("join.before_commit", "join.after_commit"):
            row = await engine.database.row(
                _JOIN, timetable_id, now, occurrences, since, through, engine.times.grace
            )
        joined += row["joined"]
        if row["beyond"] is None:
            return joined
        if row["beyond"] <= through or len(occurrences) == _MOST_OCCURRENCES:
            raise AssertionError("a timetable was planned further than it has occurrences")
        through = row["beyond"]


async def join_left_over(engine: Engine, now: datetime) -> bool:
    """Complete the joins whose creators died; True if there may be more."""
    rows = await engine.database.fetch(_Q["joining"], _MOST_TIMETABLES)
    for row in rows:
        timetable = Timetable(row["rule"], row["zone"], row["dst_gap"], row["dst_overlap"])
        since = max(row["since"], now - timedelta(days=30))
        await join_timetable(engine, row["id"], timetable, min(since, now), now)
    return len(rows) == _MOST_TIMETABLES
