"""When a job runs, worked out the slow way: look at the clock on the wall every minute.

Written from the rule in words, and sharing nothing with `hourbell.timing`: its own reading of cron fields (only what the
simulation writes: numbers, lists, ranges, steps, names of days; and seconds of rules that follow the clock), its own walk along real time. A wall time that is missing
is noticed because the wall jumps; one that comes twice, because it was seen before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any
from zoneinfo import ZoneInfo

_MINUTE = timedelta(minutes=1)
_LONGEST_GAP = timedelta(hours=3)
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def occurrences(
    schedule: dict[str, Any], anchor: datetime | None, after: datetime, through: datetime
) -> list[datetime]:
    """Of a recurring schedule's document, in (after, through] and in its window. `anchor` is that of an interval."""
    starts, ends = schedule.get("starts_at"), schedule.get("ends_at")
    if ends is not None:
        through = min(through, datetime.fromisoformat(ends))
    found = [
        at
        for at in _unbounded(schedule, anchor, after, through)
        if starts is None or at >= datetime.fromisoformat(starts)
    ]
    return found


def _unbounded(
    schedule: dict[str, Any], anchor: datetime | None, after: datetime, through: datetime
) -> list[datetime]:
    if "every_seconds" in schedule:
        assert anchor is not None
        every = timedelta(seconds=schedule["every_seconds"])
        at = anchor + ((after - anchor) // every + 1) * every
        found = []
        while at <= through:
            found.append(at)
            at += every
        return found
    rule = (
        schedule["cron"],
        schedule.get("timezone", "UTC"),
        schedule.get("dst_gap", "run_after"),
        schedule.get("dst_overlap", "once"),
    )
    found = []
    day = after.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    while day <= through:
        found += [at for at in _cron_occurrences(*rule, day) if after < at <= through]
        day += timedelta(days=1)
    return found


@dataclass(frozen=True)
class _Minute:
    """One real minute of a zone."""

    at: datetime
    wall: datetime
    seen_before: bool
    missing: tuple[datetime, ...]  # wall times that were jumped over just before


@cache
def _minutes(zone: str, day: datetime) -> tuple[_Minute, ...]:
    with (resources.files("tzdata") / "zoneinfo").joinpath(*zone.split("/")).open("rb") as file:
        info = ZoneInfo.from_file(file)
    minutes = []
    seen: set[datetime] = set()
    at = day - timedelta(hours=6)  # far enough to notice what comes twice
    previous: datetime | None = None
    while at < day + timedelta(days=1):
        wall = at.astimezone(info).replace(tzinfo=None, fold=0)
        missing = []
        if previous is not None:
            skipped = previous + _MINUTE
            while skipped < wall:
                missing.append(skipped)
                skipped += _MINUTE
        minutes.append(_Minute(at, wall, wall in seen, tuple(missing)))
        seen.add(wall)
        previous = wall
        at += _MINUTE
    return tuple(minute for minute in minutes if minute.at >= day)


@cache
def _cron_occurrences(
    cron: str, zone: str, dst_gap: str, dst_overlap: str, on: datetime
) -> tuple[datetime, ...]:
    *second, minute, hour, day, month, weekday = cron.split()
    seconds = sorted(_field(second[0], 0, 59)) if second else [0]
    minutes, hours = _field(minute, 0, 59), _field(hour, 0, 23)
    days, months, weekdays = _field(day, 1, 31), _field(month, 1, 12), _field(weekday, 0, 7)
    either_day_is_open = day[0] in "*?" or weekday[0] in "*?"
    fixed = minute[0] != "*" and hour[0] != "*"

    def matches(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        by_day = wall.day in days
        number = (wall.weekday() + 1) % 7
        by_weekday = number in weekdays or (number == 0 and 7 in weekdays)
        return (by_day and by_weekday) if either_day_is_open else (by_day or by_weekday)

    def runs(now: _Minute) -> bool:
        if not fixed:
            return matches(now.wall)
        if matches(now.wall) and (not now.seen_before or dst_overlap == "twice"):
            return True
        made_up = dst_gap == "run_after" and len(now.missing) * _MINUTE <= _LONGEST_GAP
        return made_up and any(matches(wall) for wall in now.missing)

    return tuple(
        now.at + timedelta(seconds=second)
        for now in _minutes(zone, on)
        if runs(now)
        for second in seconds
    )


def _field(text: str, low: int, high: int) -> frozenset[int]:
    return frozenset(n for item in text.split(",") for n in _item(item, low, high))


def _item(item: str, low: int, high: int) -> Iterator[int]:
    span, _, step = item.partition("/")
    if span in "*?":
        first, last = low, high
    elif "-" in span:
        first, last = (_number(end) for end in span.split("-"))
    else:
        first = last = _number(span)
    yield from range(first, last + 1, int(step or 1))


def _number(text: str) -> int:
    return _DAYS.index(text) if text in _DAYS else int(text)
