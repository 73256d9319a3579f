"""When a job runs: once, by a cron rule in a time zone, or every N seconds; and its time window.

A schedule keeps what the user wrote, including `H`, macros and names. The concrete rule of its
timetable is derived from that and the job's id by `hourbell.documents.schedules.timetable_of`.
"""

from datetime import datetime
from typing import Literal

import msgspec

UTC_ZONE = "UTC"
MAX_DELAY_SECONDS = 3650 * 86_400
MAX_RUNS = 1_000_000_000
MAX_JITTER_SECONDS = 86_400
MAX_EXCLUDED = 10  # calendars per schedule


# What to do with a fixed wall time that a DST change skips: run once at the first instant after the
# gap, or not at all.
DstGap = Literal["run_after", "skip"]

# What to do with a fixed wall time that a DST change repeats: run at the first of the two, or at
# both.
DstOverlap = Literal["once", "twice"]


class Once(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="once"):
    """One instant. An instant in the past runs immediately."""

    at: datetime
    timezone: str = UTC_ZONE  # only for display


class Cron(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cron"):
    """Wall-clock times in a time zone."""

    cron: str  # as the user wrote it
    timezone: str = UTC_ZONE
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "once"
    jitter_seconds: int = 0  # each job runs up to this much later, always by the same time
    exclude: tuple[str, ...] = ()  # calendars whose dates, in the time zone, are skipped


class Every(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="every"):
    """Elapsed time: the instants anchor + n × every_seconds, regardless of DST."""

    every_seconds: int
    anchor: int  # seconds since 1970; stored, so that unrelated updates do not shift the runs
    timezone: str = UTC_ZONE  # for display, and for the dates of calendars
    jitter_seconds: int = 0
    exclude: tuple[str, ...] = ()


Schedule = Once | Cron | Every


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """The time window and the maximum number of runs of a recurring job."""

    starts_at: datetime | None = None  # the first instant at which it may run
    ends_at: datetime | None = None  # the last
    max_runs: int | None = None  # runs started; the job is then ENDED


class Timetable(msgspec.Struct, frozen=True):
    """What jobs with the same schedule share: one row in the store, evaluated once for all of them."""

    rule: str  # concrete: macros expanded, H resolved, or `@every <N>+<offset>`; perhaps delayed
    zone: str
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "once"
