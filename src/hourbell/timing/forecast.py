"""The next runs of a rule, with notes on clock changes; and the combined load of many rules."""

import heapq
from collections import Counter
from collections.abc import Iterable
from datetime import date, datetime, timedelta

import msgspec

from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import Occurrence, Rule, compile_rule
from hourbell.timing.zones import load_zone, shown_in

MAX_COUNT = 1000

_MICROSECOND = timedelta(microseconds=1)


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
    zone = load_zone(timezone)
    runs: list[NextRun] = []
    occurrence = compiled.next_occurrence(from_)
    while occurrence is not None and len(runs) < count:
        local = occurrence.at.astimezone(zone)
        runs.append(NextRun(occurrence.at, local, _note(occurrence, local)))
        occurrence = compiled.next_occurrence(occurrence.at)
    if not runs:
        raise InvalidRule(
            "expression",
            f"never matches in {timezone} after {from_.isoformat()}: the calendar ends, or clocks "
            "always go forward over that time; choose another time",
        )
    return runs


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
    return f"{_time(wall)} does not exist on {wall.date()} (clocks go forward)"


def _twice(wall: datetime) -> str:
    return f"{_time(wall)} happens twice on {wall.date()} (clocks go back)"


def _time(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S" if moment.second else "%H:%M")


class Members(msgspec.Struct, frozen=True):
    """A number of jobs with one rule, and for which of its occurrences."""

    count: int  # negative: so many of the others are left out
    since: datetime | None = None  # later than this; None: from the first on
    until: datetime | None = None  # up to this; None: without end
    on: frozenset[date] | None = None  # only on these dates; None: on all
    zone: str = "UTC"  # of these dates


class Firing(msgspec.Struct, frozen=True):
    """A rule, from an occurrence on, and the jobs that use it."""

    rule: Rule
    first: datetime
    members: tuple[Members, ...]


class Load(msgspec.Struct, frozen=True):
    """The number of runs per minute."""

    by_minute: Counter[datetime]
    complete_until: datetime  # all runs up to here are included


def load(firings: Iterable[Firing], after: datetime, through: datetime, limit: int) -> Load:
    """The runs in (after, through], in time order, until `limit` occurrences were examined."""
    found = Counter[datetime]()
    coming = [(firing.first, number, firing) for number, firing in enumerate(firings)]
    heapq.heapify(coming)
    while coming and coming[0][0] <= through:
        at, number, firing = coming[0]
        if limit <= 0:
            return Load(+found, max(after, at - _MICROSECOND))
        limit -= 1
        if at > after:
            running = sum(members.count for members in firing.members if _includes(members, at))
            found[at.replace(second=0, microsecond=0)] += running
        following = firing.rule.next(at)
        if following is None:
            heapq.heappop(coming)
        else:
            heapq.heapreplace(coming, (following, number, firing))
    return Load(+found, through)


def _includes(members: Members, at: datetime) -> bool:
    return (
        (members.since is None or at > members.since)
        and (members.until is None or at <= members.until)
        and (members.on is None or at.astimezone(shown_in(members.zone)).date() in members.on)
    )
