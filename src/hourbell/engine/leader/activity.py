"""activity: count what ended in each minute, for the overview.

The leader counts the current minute every few seconds, the previous one again after its end, and
each minute a last time when nothing can be recorded in it any more: an outcome has the time at which
its transaction was sent, which ends within the timeout of a statement, and a report of a worker that
was stopped meanwhile is refused, because its lease is over. Counts are in the database, so every
node shows the same, and a new leader continues. If the database's clock is set back, the minutes
that were counted ahead of it are counted again.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.store.queries import queries

_Q = queries("activity")

MINUTE = timedelta(minutes=1)
FINAL_AFTER = timedelta(minutes=2)  # the end of a minute; a statement takes at most one
SAMPLE = 5_000  # executions of a minute whose lateness and tenant are looked up
_READ_PER_SECOND = 20_000  # outcomes, by counts that are repeated: on average
_LATE_REPORTS = timedelta(seconds=5)  # most arrive by then
_LOOK_BACK = timedelta(days=1)  # after a time without a leader
_MAX_MINUTES = 10  # counted in one step: a scheduler whose steps take long is not ready


class Counted(msgspec.Struct, frozen=True):
    """The last count of a minute that will be counted again."""

    at: datetime
    outcomes: int  # that it has read

    @property
    def paid_off(self) -> datetime:
        """From when on another count keeps to the average."""
        return self.at + timedelta(seconds=self.outcomes / _READ_PER_SECOND)


def minute_of(moment: datetime) -> datetime:
    """The minute in which a moment lies."""
    return moment.replace(second=0, microsecond=0)


async def count_minutes(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Count the minutes that have changed since they were counted; True if there are more."""
    database = engine.database
    current = minute_of(now)
    # No later one can be final; if one is, the clock was set back, and it is counted again.
    last: datetime | None = await database.value(_Q["last_final"], now - MINUTE - FINAL_AFTER)
    rows = await database.fetch(_Q["open_minutes"], current - _LOOK_BACK)
    counted = {row["minute"]: Counted(row["counted_at"], row["outcomes"]) for row in rows}
    if last is not None:
        first = max(last + MINUTE, current - _LOOK_BACK)
    else:  # the first leader, or the first of a version that counts
        first = min([*counted, current - MINUTE])
    due = due_minutes(first, now, counted)
    for minute in due[:_MAX_MINUTES]:
        final = now >= minute + MINUTE + FINAL_AFTER
        with translate_epoch_errors():
            await database.value(_Q["count_minute"], *epoch_args(term), minute, now, final, SAMPLE)
    return len(due) > _MAX_MINUTES


def due_minutes(first: datetime, now: datetime, counted: dict[datetime, Counted]) -> list[datetime]:
    """The minutes from `first` on that have to be counted; `counted`: the last count of each."""
    current = minute_of(now)
    number = int((current - first) / MINUTE) + 1

    def is_due(minute: datetime) -> bool:
        end, last = minute + MINUTE, counted.get(minute)
        if now >= end + FINAL_AFTER:
            return True
        if last is None:
            return minute == current or now >= end + _LATE_REPORTS
        in_time = minute == current or last.at < end + _LATE_REPORTS <= now
        return in_time and now >= last.paid_off

    return [minute for k in range(number) if is_due(minute := first + k * MINUTE)]
