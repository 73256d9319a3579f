"""The next runs of a rule, the effect of clock changes on it, and the combined load of many rules."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec

from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.changes import ClockChange, clock_changes
from hourbell.timing.cron import ParsedCron, parse_cron
from hourbell.timing.errors import InvalidRule
from hourbell.timing.intervals import is_interval, parse_interval
from hourbell.timing.rules import (
    MAX_GAP_TO_RUN_AFTER,
    Occurrence,
    Rule,
    between,
    compile_rule,
    without_delay,
)
from hourbell.timing.zones import load_zone, shown_in

MAX_COUNT = 1000

_MICROSECOND = timedelta(microseconds=1)
_SECOND = timedelta(seconds=1)
_DAY_SECONDS = 86_400
# Runs shown with a clock change: the last ones before it, and the first ones from it on.
_RUNS_BEFORE, _RUNS_AFTER = 3, 5
# How far back to look for the last runs before a change, nearest first.
_LOOK_BACK = (timedelta(minutes=1), timedelta(hours=1), timedelta(hours=6))


class NextRun(msgspec.Struct, frozen=True):
    """One upcoming run."""

    utc: datetime
    local: datetime  # the same instant in the rule's zone
    note: str  # the effect of a clock change, or empty


def next_runs(
    rule: str,
    timezone: str,
    from_: datetime,
    count: int,
    dst_gap: DstGap = "run_after",
    dst_overlap: DstOverlap = "once",
) -> list[NextRun]:
    """The first `count` runs after `from_`, fewer near the year 9999; InvalidRule if none."""
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"count must be from 1 to {MAX_COUNT}")
    compiled = compile_rule(rule, timezone, dst_gap, dst_overlap)
    runs = list(islice(_runs(compiled, load_zone(timezone), from_), count))
    if not runs:
        raise InvalidRule(
            "expression",
            f"never matches in {timezone} after {from_.isoformat()}: the calendar ends, or clocks "
            "always go forward over that time; choose another time",
        )
    return runs


def _runs(rule: Rule, zone: ZoneInfo, after: datetime) -> Iterator[NextRun]:
    """The runs after an instant, one by one."""
    occurrence = rule.next_occurrence(after)
    while occurrence is not None:
        local = occurrence.at.astimezone(zone)
        yield NextRun(occurrence.at, local, _note(occurrence, local))
        occurrence = rule.next_occurrence(occurrence.at)


def _note(occurrence: Occurrence, local: datetime) -> str:
    if occurrence.skipped is not None:
        return f"{_missing(occurrence.skipped)}: that run is skipped"
    match occurrence.kind:
        case "after_gap":
            return f"{_missing(occurrence.wall)}: runs at {_time(local)}"
        case "only_first_copy":
            return f"{_twice(occurrence.wall)}: runs at the first"
        case "first_copy":
            return f"{_twice(occurrence.wall)}: runs at both, this is the first"
        case "second_copy":
            return f"{_twice(occurrence.wall)}: runs at both, this is the second"
        case "plain":
            return ""


def _missing(wall: datetime) -> str:
    return f"{_time(wall)} does not exist{_on(wall, forward=True)}"


def _twice(wall: datetime) -> str:
    return f"{_time(wall)} happens twice{_on(wall, forward=False)}"


def _on(wall: datetime, forward: bool) -> str:
    return f" on {wall.date()} (clocks go {'forward' if forward else 'back'})"


def _time(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S" if moment.second else "%H:%M")


class ChangeEffect(msgspec.Struct, frozen=True):
    """What a rule does when the clocks change."""

    change: ClockChange
    affected: bool  # a run is moved, skipped or repeated, or the wall times of the runs change
    note: str
    runs: list[NextRun]  # on that day, around the change


def change_effects(
    rule: str,
    timezone: str,
    after: datetime,
    through: datetime,
    dst_gap: DstGap = "run_after",
    dst_overlap: DstOverlap = "once",
) -> list[ChangeEffect]:
    """What each clock change in (after, through] does to a rule; InvalidRule, UnknownZone."""
    compiled = compile_rule(rule, timezone, dst_gap, dst_overlap)
    base, delay_seconds = without_delay(rule)
    zone = load_zone(timezone)
    effects = []
    for change in clock_changes(timezone, after, through):
        if is_interval(base):
            affected, note = _effect_on_interval(parse_interval(base).every_seconds, change)
        else:
            runs_at = (change.at + timedelta(seconds=delay_seconds)).astimezone(zone)
            affected, note = _effect_on_cron(
                parse_cron(base), change, runs_at, dst_gap == "run_after", dst_overlap == "twice"
            )
        runs = _runs_around(compiled, zone, change, after, through)
        effects.append(ChangeEffect(change, affected, note, runs))
    return effects


def _effect_on_interval(every_seconds: int, change: ClockChange) -> tuple[bool, str]:
    shift_seconds = int(abs(change.shift).total_seconds())
    every_day_alike = _DAY_SECONDS % every_seconds == 0 or every_seconds % _DAY_SECONDS == 0
    if shift_seconds % every_seconds == 0 or not every_day_alike:
        return False, "Not affected: the interval counts elapsed time"
    direction = "later" if change.shift > timedelta(0) else "earlier"
    moved = f"{shift_seconds // 60} minutes {direction} by the clock"
    return True, f"The interval counts elapsed time: from here on it runs {moved}"


def _effect_on_cron(
    cron: ParsedCron, change: ClockChange, runs_at: datetime, run_after: bool, twice: bool
) -> tuple[bool, str]:
    """Whether a rule has a time that is missing or occurs twice, and what happens to it."""
    begin, end = change.wall_times
    forward = change.shift > timedelta(0)
    first = cron.first_match(begin, end.year)
    if first is None or first >= end:
        what = "does not exist" if forward else "happens twice"
        return False, f"Not affected: no run falls into {_span_of(begin, end)}, which {what}"
    following = cron.first_match(first + _SECOND, end.year)
    one = following is None or following >= end
    if not cron.fixed_time:
        if all(cron.hours[hour] == hour for hour in range(24)) and _is_whole_hours(change):
            return False, "Not affected: it runs in every hour, and no hour is missed or doubled"
        if forward:
            return True, f"{_span_of(begin, end)} does not exist (clocks go forward): no run then"
        return True, f"{_span_of(begin, end)} happens twice (clocks go back): runs in both"
    if forward:
        subject = (
            _missing(first)
            if one
            else f"{_time(first)} and later times do not exist{_on(first, forward)}"
        )
        if not run_after or change.shift > MAX_GAP_TO_RUN_AFTER:
            return True, f"{subject}: {'that run is' if one else 'their runs are'} skipped"
        return True, f"{subject}: {'runs' if one else 'one run'} at {_time(runs_at)}"
    subject = (
        _twice(first)
        if one
        else f"{_time(first)} and later times happen twice{_on(first, forward)}"
    )
    return (
        True,
        f"{subject}: {'runs' if one else 'each runs'} at {'both' if twice else 'the first'}",
    )


def _is_whole_hours(change: ClockChange) -> bool:
    return change.shift % timedelta(hours=1) == timedelta(0)


def _span_of(begin: datetime, end: datetime) -> str:
    return f"{_time(begin)} to {_time(end)} on {begin.date()}"


def _runs_around(
    rule: Rule, zone: ZoneInfo, change: ClockChange, after: datetime, through: datetime
) -> list[NextRun]:
    """Some runs on the day of a change."""
    last_before = (change.at - _SECOND).astimezone(zone)
    midnight = datetime.combine(last_before.date(), time(), zone)
    begin = max(after, midnight - _MICROSECOND)
    next_day = change.at.astimezone(zone).date() + timedelta(days=1)
    end = min(through, datetime.combine(next_day, time(), zone) - _MICROSECOND)
    before: list[datetime] = []
    for start in (*(change.at - back for back in _LOOK_BACK), begin):
        before = between(rule, max(start, begin), change.at - _MICROSECOND)
        if len(before) >= _RUNS_BEFORE:
            break
    start = before[-_RUNS_BEFORE:][0] - _MICROSECOND if before else change.at - _MICROSECOND
    count = len(before[-_RUNS_BEFORE:]) + _RUNS_AFTER
    return [run for run in islice(_runs(rule, zone, start), count) if run.utc <= end]


class Members(msgspec.Struct, frozen=True):
    """A number of jobs with the same rule, and the occurrences they apply to."""

    count: int  # negative: this many of the others are left out
    since: datetime | None = None  # only after this; None: from the first on
    until: datetime | None = None  # up to and including this; None: no end
    on: frozenset[date] | None = None  # only on these dates; None: on all
    zone: str = "UTC"  # the zone of these dates
    limits: tuple[int, ...] = ()  # the caller's ids of the limits that they share


class Firing(msgspec.Struct, frozen=True):
    """A rule, from an occurrence on, and the jobs that use it."""

    rule: Rule
    first: datetime
    members: tuple[Members, ...]
    timetable: int = 0  # the caller's id for it


class Herd(msgspec.Struct, frozen=True):
    """The runs of one firing that are due at one moment."""

    timetable: int
    at: datetime  # the moment with the most runs; of several, the first
    runs: int
    occurrences: int  # of the firing, within the whole period


class Due(msgspec.Struct, frozen=True, gc=False):
    """The runs of one firing at one moment that share these limits."""

    at: datetime
    timetable: int
    runs: int
    limits: tuple[int, ...]


class Load(msgspec.Struct, frozen=True):
    """The number of runs per minute."""

    by_minute: Counter[datetime]
    complete_until: datetime  # all runs up to here are included
    herds: list[Herd]  # one per firing with two or more runs at one moment, largest first
    # The number of herd runs at each moment, of the largest herds: all moments of a herd, or none, so
    # that no herd ends within the period.
    moments: Counter[datetime]
    due: list[Due]  # ordered by time


MAX_MOMENTS = 3_000  # two days of minutes


def load(firings: Iterable[Firing], after: datetime, through: datetime, limit: int) -> Load:
    """The runs in (after, through], in time order, until `limit` occurrences were examined."""
    found = Counter[datetime]()
    herds: dict[int, _Largest] = {}
    due: list[Due] = []
    coming = [(firing.first, number, firing) for number, firing in enumerate(firings)]
    always = [_always(firing.members) for _, _, firing in coming]
    heapq.heapify(coming)
    while coming and coming[0][0] <= through:
        at, number, firing = coming[0]
        if limit <= 0:
            complete = max(after, at - _MICROSECOND)
            return Load(+found, complete, _by_size(herds), _moments(herds), due)
        limit -= 1
        if at > after:
            parts = always[number]
            if parts is None:
                parts = _by_limits(members for members in firing.members if _includes(members, at))
            running = sum(parts.values())
            due += [
                Due(at, firing.timetable, runs, shared) for shared, runs in parts.items() if runs
            ]
            found[at.replace(second=0, microsecond=0)] += running
            largest = herds.get(number)
            if largest is None:
                largest = herds[number] = _Largest(firing.timetable, at)
            largest.occurrences += 1
            if running > largest.runs:
                largest.at, largest.runs = at, running
            if running > 1 and len(largest.moments) <= MAX_MOMENTS:
                largest.moments.append((at, running))
        following = firing.rule.next(at)
        if following is None:
            heapq.heappop(coming)
        else:
            heapq.heapreplace(coming, (following, number, firing))
    return Load(+found, through, _by_size(herds), _moments(herds), due)


class _Largest:
    """The largest herd of a firing so far."""

    __slots__ = ("at", "moments", "occurrences", "runs", "timetable")

    def __init__(self, timetable: int, at: datetime) -> None:
        self.timetable, self.at = timetable, at
        self.runs = self.occurrences = 0
        self.moments: list[tuple[datetime, int]] = []


def _moments(found: dict[int, _Largest]) -> Counter[datetime]:
    """The moments of the largest herds, as many as are allowed in all; not of those due very often."""
    moments = Counter[datetime]()
    room = MAX_MOMENTS
    for each in sorted(found.values(), key=lambda each: -each.runs):
        if len(each.moments) <= room:
            room -= len(each.moments)
            for at, runs in each.moments:
                moments[at] += runs
    return moments


def _by_size(found: dict[int, _Largest]) -> list[Herd]:
    herds = [
        Herd(each.timetable, each.at, each.runs, each.occurrences)
        for each in found.values()
        if each.runs > 1
    ]
    return sorted(herds, key=lambda herd: (-herd.runs, herd.at))


def _always(members: tuple[Members, ...]) -> dict[tuple[int, ...], int] | None:
    """The number of jobs at every moment, by the limits that they share; None if it varies."""
    if any(each.since or each.until or each.on is not None for each in members):
        return None
    return _by_limits(members)


def _by_limits(members: Iterable[Members]) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for each in members:
        found[each.limits] = found.get(each.limits, 0) + each.count
    return found


def _includes(members: Members, at: datetime) -> bool:
    return (
        (members.since is None or at > members.since)
        and (members.until is None or at <= members.until)
        and (members.on is None or at.astimezone(shown_in(members.zone)).date() in members.on)
    )
