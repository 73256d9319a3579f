"""When a job runs: once, by a cron rule in a time zone, or every N seconds; and from when to when.

A schedule keeps what the user wrote (`H`, macros, names and all). The concrete rule of its
timetable is derived from it and the job's id by `hourbell.documents.schedules.timetable_of`.
"""

from datetime import datetime
from typing import Literal

import msgspec

UTC_ZONE = "UTC"
MAX_DELAY_SECONDS = 3650 * 86_400
MAX_RUNS = 1_000_000_000


# What becomes of a fixed wall time that a change of the clocks leaves out: it runs once at the first
# instant after the gap, or not at all.
DstGap = Literal["run_after", "skip"]

# What becomes of one that it repeats: it runs at the first of the two, or at both.
DstOverlap = Literal["once", "twice"]


class Once(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="once"):
    """One instant. One that has passed runs at once."""

    at: datetime
    timezone: str = UTC_ZONE  # only for showing


class Cron(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="cron"):
    """Wall times of a zone."""

    cron: str  # as the user wrote it
    timezone: str = UTC_ZONE
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "once"


class Every(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="every"):
    """Elapsed time: the instants anchor + n × every_seconds, whatever the clocks on walls do."""

    every_seconds: int
    anchor: int  # seconds since 1970; kept, so that an update of something else shifts nothing
    timezone: str = UTC_ZONE  # only for showing


Schedule = Once | Cron | Every


class Window(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stretch of time and the number of runs to which a recurring job is confined."""

    starts_at: datetime | None = None  # the first instant at which it may run
    ends_at: datetime | None = None  # the last
    max_runs: int | None = None  # runs started; the job is then COMPLETED


class Timetable(msgspec.Struct, frozen=True):
    """What jobs of the same rhythm share: one row of the store, one evaluation for all of them."""

    rule: str  # concrete: macros expanded, H resolved, or `@every <N>+<offset>`
    zone: str
    dst_gap: DstGap = "run_after"
    dst_overlap: DstOverlap = "once"
