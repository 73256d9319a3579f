"""From a rule and a zone to instants: the one place that knows what a clock change does.

A cron rule speaks of wall times; a run needs an instant. Nearly always a wall time is one instant.
Where clocks go forward, some wall times are missing (a gap); where they go back, some occur twice
(an overlap). The rules are:

- A *fixed-time* rule, one in which neither minute nor hour begins with `*`, means "once at that
  time". If the time lies in a gap of up to 3 hours, it runs once at the first instant after it
  (`run_after`) or not at all (`skip`). Several times in one gap are one run. A longer gap, as when
  a country skips a day, is skipped. In an overlap it runs at the first copy (`once`) or at both
  (`twice`).
- Every other rule follows elapsed time: it runs at every instant whose wall time matches.

`next(after)` is strictly later than `after`, even when `after` lies in the second copy of an hour.
The result depends only on `after`, so any process gets the same answer at any time.

How it is found. Offsets are compared as defined by PEP 495: for a wall time in a gap `fold=0` gives
the offset before the change and `fold=1` the one after, so the second is larger; in an overlap it
is smaller; else both are equal. `tzinfo.dst()` is never used (Ireland's summer time is its
standard). The change itself, when it is needed, is found by bisection between two instants that
are known to lie on its two sides. This requires that two changes are never closer together than
the length of an overlap, at most a day; the closest in the data are a week apart, and a test
checks that.
"""

import re
from datetime import MAXYEAR, UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, get_args
from zoneinfo import ZoneInfo

from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.cron import ParsedCron, parse_cron
from hourbell.timing.intervals import Interval, is_interval, parse_interval
from hourbell.timing.zones import load_zone, utc_offset

MAX_GAP_TO_RUN_AFTER = timedelta(hours=3)

# From here on a zone has no changes listed, only a yearly rule without end, so that dates, days of
# the week and clock changes repeat every 400 years: a rule without a match in 400 years has none.
RULES_REPEAT_FROM_YEAR = 2100
_CYCLE_YEARS = 400

_SECOND = timedelta(seconds=1)
_EARLIEST = datetime(1, 1, 2, tzinfo=UTC)  # before it some zones are in the year 0


_DELAYED = re.compile(r"\+([0-9]{1,6})s (.+)")

Kind = Literal["plain", "after_gap", "only_first_copy", "first_copy", "second_copy"]


class Occurrence(NamedTuple):
    """An instant at which a rule runs, and how it follows from the rule."""

    at: datetime  # UTC
    wall: datetime  # naive: the wall time that the rule names
    kind: Kind
    skipped: datetime | None = None  # naive: a fixed time before it that fell into a gap


class Rule(Protocol):
    """When something runs; all that planners and forecasts use of a rule."""

    def next(self, after: datetime) -> datetime | None:
        """The first instant strictly after, in UTC; None if there is none up to the year 9999."""

    def next_occurrence(self, after: datetime) -> Occurrence | None:
        """The same, with details for display."""


@lru_cache(maxsize=8192)
def compile_rule(
    rule: str, zone: str, dst_gap: DstGap = "run_after", dst_overlap: DstOverlap = "once"
) -> Rule:
    """Read a cron rule without H, or `@every N+offset`; raises InvalidRule or UnknownZone.

    A rule that the calendar can never match is rejected. One that a zone always skips, such as
    `*/15 2` on the very Sundays on which clocks go forward, is not: zones change, and an
    accepted rule must not stop a planner. Its `next` is None, and job creation checks for that.

    An interval follows elapsed time: its zone must exist, but has no effect.

    `+17s 0 2 * * *` is the rule `0 2 * * *`, 17 seconds later; only timetables have such rules.
    """
    rule, delay_seconds = without_delay(rule)
    if delay_seconds:
        return DelayedRule(compile_rule(rule, zone, dst_gap, dst_overlap), delay_seconds)
    if dst_gap not in get_args(DstGap) or dst_overlap not in get_args(DstOverlap):
        raise ValueError(f"no such DST policy: {dst_gap!r}, {dst_overlap!r}")
    zone_info = load_zone(zone)
    if is_interval(rule):
        return IntervalRule(parse_interval(rule))
    return CronRule(parse_cron(rule), zone_info, dst_gap, dst_overlap)


def delayed(rule: str, seconds: int) -> str:
    """A rule, this many seconds later."""
    return f"+{seconds}s {rule}" if seconds else rule


def without_delay(rule: str) -> tuple[str, int]:
    """The rule without its delay, and the delay in seconds; 0 if it has none."""
    found = _DELAYED.fullmatch(rule)
    return (rule, 0) if found is None else (found[2], int(found[1]))


def between(
    rule: Rule, after: datetime, through: datetime, limit: int | None = None
) -> list[datetime]:
    """The occurrences in (after, through], earliest first, at most `limit` of them."""
    found: list[datetime] = []
    at = rule.next(after)
    while at is not None and at <= through and len(found) != limit:
        found.append(at)
        at = rule.next(at)
    return found


def instant_of(wall: datetime, zone: str) -> datetime | None:
    """The instant at which a fixed-time rule for this wall time (naive) runs; raises UnknownZone.

    None: it lies in a gap that is too long to run after it.
    """
    rule = CronRule(
        parse_cron(f"{wall:%-S %-M %-H %-d %-m} *"), load_zone(zone), "run_after", "once"
    )
    whole = wall.replace(microsecond=0, fold=0)
    # No zone is two days from UTC.
    found = rule.next_occurrence(_utc(whole) - timedelta(days=2))
    if found is None or found.wall != whole:
        return None
    if found.kind == "after_gap":
        return found.at
    return found.at + timedelta(microseconds=wall.microsecond)


class IntervalRule:
    """An interval as a Rule."""

    def __init__(self, interval: Interval) -> None:
        self._interval = interval

    def next(self, after: datetime) -> datetime | None:
        return self._interval.first_after(after)

    def next_occurrence(self, after: datetime) -> Occurrence | None:
        at = self.next(after)
        return None if at is None else Occurrence(at, at.replace(tzinfo=None), "plain")


class DelayedRule:
    """Another rule, a number of seconds later."""

    def __init__(self, rule: Rule, seconds: int) -> None:
        self._rule = rule
        self._delay = timedelta(seconds=seconds)

    def next(self, after: datetime) -> datetime | None:
        occurrence = self.next_occurrence(after)
        return None if occurrence is None else occurrence.at

    def next_occurrence(self, after: datetime) -> Occurrence | None:
        try:
            found = self._rule.next_occurrence(max(after, _EARLIEST + self._delay) - self._delay)
            return None if found is None else found._replace(at=found.at + self._delay)
        except OverflowError:
            return None  # beyond the year 9999


class CronRule:
    """A cron rule in a zone, with its DST policies."""

    def __init__(
        self, cron: ParsedCron, zone: ZoneInfo, dst_gap: DstGap, dst_overlap: DstOverlap
    ) -> None:
        self._cron = cron
        self._zone = zone
        self._runs_after_gap = cron.fixed_time and dst_gap == "run_after"
        self._runs_in_both_copies = not cron.fixed_time or dst_overlap == "twice"

    def next(self, after: datetime) -> datetime | None:
        occurrence = self.next_occurrence(after)
        return None if occurrence is None else occurrence.at

    def next_occurrence(self, after: datetime) -> Occurrence | None:
        if after.tzinfo is None:
            raise ValueError("after must be aware of its zone")
        try:
            return self._find(max(after, _EARLIEST))
        except OverflowError:
            return None  # a wall time or an instant beyond the year 9999

    def _find(self, after: datetime) -> Occurrence | None:
        local = after.astimezone(self._zone)
        wall = local.replace(tzinfo=None, microsecond=0, fold=0)
        last_year = min(max(wall.year, RULES_REPEAT_FROM_YEAR) + _CYCLE_YEARS, MAXYEAR)
        match = self._cron.first_match(wall + _SECOND, last_year)

        if local.fold or self._runs_in_both_copies:
            before, then = self._offsets(wall)
            if before > then:
                # Inside an overlap the next run need not be at the next wall time.
                change = self._change(wall - before, wall - then)
                overlap_start, overlap_end = change + then, change + before
                again = None  # in the second copy
                if not self._runs_in_both_copies:
                    match = self._cron.first_match(overlap_end, last_year)
                elif local.fold:
                    again = match
                elif match is None or match >= overlap_end:
                    again = self._cron.first_match(overlap_start, last_year)
                if again is not None and again < overlap_end:
                    return Occurrence(_utc(again - then), again, "second_copy")

        skipped = None
        while match is not None:
            before, then = self._offsets(match)
            if before == then:
                return Occurrence(_utc(match - before), match, "plain", skipped)
            if before > then:
                copy: Kind = "first_copy" if self._runs_in_both_copies else "only_first_copy"
                return Occurrence(_utc(match - before), match, copy, skipped)
            change = self._change(match - then, match - before)
            if self._runs_after_gap and then - before <= MAX_GAP_TO_RUN_AFTER:
                return Occurrence(_utc(change), match, "after_gap", skipped)
            if self._cron.fixed_time and skipped is None:
                skipped = match
            match = self._cron.first_match(change + then, last_year)
        return None

    def _offsets(self, wall: datetime) -> tuple[timedelta, timedelta]:
        zone = self._zone
        return utc_offset(zone, wall), utc_offset(zone, wall.replace(fold=1))

    def _change(self, before: datetime, after: datetime) -> datetime:
        """The first instant with the later offset (naive UTC); it lies in (before, after]."""
        offset_before = self._offset_at(before)
        while after - before > _SECOND:
            middle = before + (after - before) // _SECOND // 2 * _SECOND
            if self._offset_at(middle) == offset_before:
                before = middle
            else:
                after = middle
        return after

    def _offset_at(self, instant: datetime) -> timedelta:
        offset = instant.replace(tzinfo=UTC).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset


def _utc(instant: datetime) -> datetime:
    return instant.replace(tzinfo=UTC)
