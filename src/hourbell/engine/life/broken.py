"""broken: timetables that this scheduler cannot compute.

The zone data of this node may lack a zone: IANA has removed it, or a node with newer data has
accepted it. A rule may be readable only by another version of the program. Such a timetable must
not stop the others: it is marked with the reason, leaves the index that planning walks, and is
logged. `explain` reports it for each of its jobs. Planning resumes automatically, and the misfire
policies apply to missed occurrences: immediately under a leader with other zone data, otherwise at
the next check, ten minutes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TypeVar

import asyncpg
import structlog

from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.model.errors import Conflict
from hourbell.model.ids import job_text
from hourbell.timing.errors import TimingError, UnknownZone
from hourbell.timing.rules import Rule, compile_rule
from hourbell.timing.zones import tz_version

log = structlog.get_logger(component="scheduler")

UNKNOWN_TIMEZONE = "unknown_timezone"
INVALID_SCHEDULE = "invalid_schedule"

_WITHOUT_BREAK = 20  # timetables
_RECHECK_AFTER = timedelta(minutes=10)
_MARK = "select hourbell.mark_broken($1, $2, $3, $4, $5, $6, $7)"

T = TypeVar("T")


def rule_of(row: asyncpg.Record) -> Rule:
    """The rule of a row of `timetables`; raises if it cannot be computed here."""
    return compile_rule(row["rule"], row["zone"], row["dst_gap"], row["dst_overlap"])


async def compute_each(
    engine: Engine,
    term: Term | None,
    now: datetime,
    rows: Sequence[asyncpg.Record],
    compute: Callable[[Rule, asyncpg.Record], T],
) -> list[tuple[asyncpg.Record, T]]:
    """What `compute` returns for each timetable. Failures are marked as broken and left out."""
    found: list[tuple[asyncpg.Record, T]] = []
    broken: dict[int, str] = {}
    for number, row in enumerate(rows, start=1):
        if number % _WITHOUT_BREAK == 0:
            await asyncio.sleep(0)  # after an outage each may take some tenths of a millisecond
        try:
            found.append((row, compute(rule_of(row), row)))
        except Exception as error:
            unknown = isinstance(error, UnknownZone)
            broken[row["id"]] = UNKNOWN_TIMEZONE if unknown else INVALID_SCHEDULE
            log.error(
                "timetable cannot be planned",
                timetable=row["id"],
                rule=row["rule"],
                timezone=row["zone"],
                error=str(error),
                exc_info=not isinstance(error, TimingError),
            )
    if broken:
        with translate_epoch_errors():
            await engine.database.value(
                _MARK,
                *epoch_args(term),
                now,
                tz_version(),
                list(broken),
                list(broken.values()),
                _RECHECK_AFTER,
            )
    return found


def unusable_schedule(job_id: int, error: TimingError) -> Conflict:
    """The error for a request that needs a schedule which this node cannot compute."""
    return Conflict(
        f"The schedule of {job_text(job_id)} cannot be computed here: {error.reason.rstrip('?')}."
        " Update the schedule of the job, or the tzdata package of this node."
    )
