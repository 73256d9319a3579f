"""join: produce the executions of a membership that planning has already passed.

Later occurrences are left to the fires. It is one statement under the timetable's lock. The process
that begins a membership joins it right after the commit; if it died before that, the leader
completes the join.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import structlog

from hourbell.engine.core import Engine
from hourbell.engine.failing import ABOUT_NO_ROW, isolate, note_failing
from hourbell.engine.leader.term import Term
from hourbell.engine.life.broken import compute_each
from hourbell.model.schedules import Timetable
from hourbell.store.database import committing
from hourbell.store.queries import queries
from hourbell.timing.rules import between, compile_rule

log = structlog.get_logger(component="api")

_Q = queries("planning")
_MAX_TIMETABLES = 100
_JOIN = "select beyond, hourbell.ended() as ended from hourbell.join_timetable($1, $2, $3, $4, $5, $6, $7)"


async def join_timetable(
    engine: Engine,
    timetable_id: int,
    timetable: Timetable,
    since: datetime,
    now: datetime,
    planned: datetime | None = None,
    job_ids: Sequence[int] | None = None,
) -> None:
    """Join every pending membership of this timetable that is active since `since` or later.

    `planned` is how far the timetable was last seen to be planned; if planning has advanced since,
    the database returns the new limit. `job_ids`: only these join.
    """
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    beyond: datetime | None = planned or now + engine.times.horizon
    while beyond is not None:
        through = beyond
        async with committing("join.before_commit", "join.after_commit"):
            row = await engine.database.row(
                _JOIN,
                timetable_id,
                now,
                between(rule, since, through),
                since,
                through,
                engine.times.grace,
                job_ids,
            )
        beyond = row["beyond"]
        engine.counts.count_ended(row["ended"])


async def join_after_commit(
    engine: Engine, timetable_id: int, timetable: Timetable, since: datetime, now: datetime
) -> None:
    """Join the timetable of jobs that were just stored; if that fails, the leader completes it."""
    try:
        await join_timetable(engine, timetable_id, timetable, since, now)
    except ABOUT_NO_ROW:
        raise
    except Exception as error:  # for example, its zone is unknown here
        log.warning(
            "join failed",
            rule=timetable.rule,
            timezone=timetable.zone,
            error=str(error).partition("\n")[0],
        )


async def complete_joins(engine: Engine, now: datetime, term: Term | None = None) -> bool:
    """Complete the joins whose creators died; True if there may be more.

    Any process may do this. A leader passes its term, so that only the leader's zone data decides
    which timetables are broken.
    """
    rows = await engine.database.fetch(_Q["joining"], _MAX_TIMETABLES, now)
    for row, _ in await compute_each(engine, term, now, rows, lambda rule, row: rule):
        await _complete(engine, row, now)
    return len(rows) == _MAX_TIMETABLES


async def _complete(engine: Engine, row: asyncpg.Record, now: datetime) -> None:
    """Complete the joins of one timetable; those that fail are left out."""
    timetable = Timetable(row["rule"], row["zone"], row["dst_gap"], row["dst_overlap"])

    async def join(job_ids: Sequence[int] | None) -> None:
        planned = row["planned_through"]
        await join_timetable(engine, row["id"], timetable, row["since"], now, planned, job_ids)

    async def fails(job_id: int, error: Exception) -> None:
        await note_failing(engine, now, "join", job_id, error, job_id)

    try:
        await join(None)
    except ABOUT_NO_ROW:
        raise
    except Exception:
        joining = await engine.database.fetch(_Q["joining_jobs"], row["id"])
        await isolate([each["job"] for each in joining], join, fails)
