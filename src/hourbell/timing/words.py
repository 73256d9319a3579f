"""A cron rule in plain English: exact, or not at all.

The words come from the values that a rule matches, not from its spelling, so `0/15` and
`0,15,30,45` read the same. A rule whose lists would be too long to read is shown as text
(`Cron: …`). `tests/property/timing/test_words.py` reads the words back and compares them
with the meaning of the rule.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from hourbell.timing.cron import parse_fields
from hourbell.timing.fields import (
    DayOfWeekInMonth,
    FieldRule,
    Item,
    LastDay,
    NearestWeekday,
    Span,
)
from hourbell.timing.intervals import is_interval, parse_interval
from hourbell.timing.rules import without_delay

_MAX_TIMES = 4  # times of a day that are listed one by one
_MAX_PIECES = 12  # of a list of numbers
_SHORTEST_RANGE = 3  # consecutive numbers that are written as a range
_SIXTY = frozenset(range(60))
_HOURS = frozenset(range(24))
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_UNITS = ((3600, "hour"), (60, "minute"), (1, "second"))
_NTH = ("last", "first", "second", "third", "fourth", "fifth")


class _TooLong(Exception):
    """The words would be a list that is too long to read."""


class _Times(NamedTuple):
    """When a rule runs on the days that it matches."""

    text: str
    listed: bool  # as times of the day, which follow the days: "every day at 02:30"
    needs_zone: bool = True


@lru_cache(maxsize=4096)
def cron_words(expression: str, zone: str) -> str:
    """A rule without H as a sentence, such as `Every Monday at 09:00 in Europe/Berlin.`"""
    second, minute, hour, day_of_month, month, day_of_week = parse_fields(expression)
    try:
        times = _times(second.values(), minute.values(), hour.values())
        days = _days(day_of_month, day_of_week, month.values())
    except _TooLong:
        return f"Cron: {' '.join(expression.split())} in {zone}."
    if times.listed:
        said = f"{days or 'every day'} {times.text}"
    else:
        said = f"{times.text}, {days}" if days else times.text
    place = f" in {zone}" if times.needs_zone or days else ""
    return f"{said[0].upper()}{said[1:]}{place}."


def rule_words(rule: str, zone: str) -> str:
    """The rule of a timetable as a sentence."""
    base, delay_seconds = without_delay(rule)
    if is_interval(base):
        words = f"{interval_words(parse_interval(base).every_seconds)}."
    else:
        words = cron_words(base, zone)
    return f"{words[:-1]}, {delay_seconds} s later." if delay_seconds else words


def interval_words(seconds: int) -> str:
    """An interval in its largest unit, such as `Every 5 minutes`."""
    size, unit = next(each for each in _UNITS if seconds % each[0] == 0)
    number = seconds // size
    return f"Every {unit}" if number == 1 else f"Every {number} {unit}s"


# Times of the day.


def _times(seconds: frozenset[int], minutes: frozenset[int], hours: frozenset[int]) -> _Times:
    if len(seconds) == 1:
        return _minutes(minutes, hours, min(seconds))
    if minutes == _SIXTY and hours == _HOURS:
        step, first = _even_step(seconds)
        if step and not first:
            return _Times("every second" if step == 1 else f"every {step} seconds", False, False)
    times = _minutes(minutes, hours, 0)
    within = "every second" if seconds == _SIXTY else f"seconds {listed(seconds)}"
    return times._replace(text=f"{times.text}, at {within} of the minute")


def _minutes(minutes: frozenset[int], hours: frozenset[int], second: int) -> _Times:
    def clock(hour: int, minute: int) -> str:
        return f"{hour:02}:{minute:02}" + (f":{second:02}" if second else "")

    if len(minutes) * len(hours) <= _MAX_TIMES:
        times = [clock(hour, minute) for hour in sorted(hours) for minute in sorted(minutes)]
        return _Times(f"at {_joined(times)}", True)
    step, first = _even_step(minutes)
    if hours == _HOURS:
        return _every_hour(minutes, step if not first else 0, second)
    low, high = min(hours), max(hours)
    if step and len(hours) == high - low + 1:
        every = "every minute" if step == 1 else f"every {step} minutes"
        return _Times(f"{every} from {clock(low, first)} to {clock(high, max(minutes))}", False)
    stride = _stride(hours)
    if len(minutes) == 1 and stride:
        every = "every hour" if stride == 1 else f"every {stride} hours"
        (minute,) = minutes
        return _Times(f"{every} from {clock(low, minute)} to {clock(high, minute)}", False)
    which = "every minute" if minutes == _SIXTY else f"at {_counted('minute', minutes)}"
    said = f"{which} of the {_counted('hour', hours)}"
    return _Times(_at_second(said, second), False)


def _every_hour(minutes: frozenset[int], step: int, second: int) -> _Times:
    """Minutes of every hour; `step`: they are evenly spaced, from the full hour on."""
    if step:
        said = "every minute" if step == 1 else f"every {step} minutes"
        return _Times(_at_second(said, second), False, needs_zone=False)
    return _Times(_at_second(f"every hour at {_counted('minute', minutes)}", second), False)


def _at_second(said: str, second: int) -> str:
    return f"{said}, at second {second} of the minute" if second else said


def _even_step(values: frozenset[int]) -> tuple[int, int]:
    """The step and the first of minutes or seconds that are spaced evenly over the hour; else 0."""
    stride = _stride(values) if len(values) > 1 else 0
    if not stride and len(values) == 2:
        stride = max(values) - min(values)
    first = min(values)
    even = stride and 60 % stride == 0 and first < stride and len(values) == 60 // stride
    return (stride, first) if even else (0, 0)


def _stride(values: frozenset[int]) -> int:
    """The distance of three or more values that are spaced evenly; else 0."""
    if len(values) < _SHORTEST_RANGE:
        return 0
    ordered = sorted(values)
    strides = {later - earlier for earlier, later in pairwise(ordered)}
    return strides.pop() if len(strides) == 1 else 0


# Days.


def _days(day_of_month: FieldRule, day_of_week: FieldRule, months: frozenset[int]) -> str:
    """The days that a rule matches; empty: every day."""
    every_date = day_of_month.values() >= frozenset(range(1, 32))
    every_weekday = {value % 7 for value in day_of_week.values()} == set(range(7))
    both = day_of_month.begins_with_star or day_of_week.begins_with_star
    if not both and (every_date or every_weekday):
        every_date = every_weekday = True  # a day has to match one of the two
    if every_date and every_weekday:
        return f"every day{_in_months(months)}" if len(months) < len(_MONTHS) else ""
    if every_weekday:
        return _dates(day_of_month, months)
    if every_date:
        said = _weekdays(day_of_week)
    else:
        joint = "both {} and {}" if both else "{} or {}"
        # "both a Monday or the last Friday and …" would be ambiguous.
        if both and any(map(_is_mixed, (day_of_month, day_of_week))):
            raise _TooLong
        said = "on days that are " + joint.format(_a_weekday(day_of_week), _a_date(day_of_month))
    return said + _in_months(months)


def _dates(rule: FieldRule, months: frozenset[int]) -> str:
    plain, special = rule.values(), _special_dates(rule.items)
    if plain and not special and len(months) == 1:
        return f"every year on {listed(plain)} {_MONTHS[min(months) - 1]}"
    nouns = [f"{_counted('day', plain)} of the month"] if plain else []
    return f"on {_joined([*nouns, *special])}{_in_months(months)}"


def _weekdays(rule: FieldRule) -> str:
    plain, special = _names_of_weekdays(rule.values()), _special_weekdays(rule.items)
    if plain and special:
        return f"on days that are {_a_weekday(rule)}"
    return f"on {_joined(special)}" if special else f"every {_joined(plain)}"


def _a_weekday(rule: FieldRule) -> str:
    """As the complement of "on days that are"."""
    plain = _names_of_weekdays(rule.values())
    nouns = [f"a {_joined(plain, 'or')}"] if plain else []
    return _joined([*nouns, *_special_weekdays(rule.items)], "or")


def _a_date(rule: FieldRule) -> str:
    plain = rule.values()
    nouns = [f"day {listed(plain, 'or')} of the month"] if plain else []
    return _joined([*nouns, *_special_dates(rule.items)], "or")


def _is_mixed(rule: FieldRule) -> bool:
    special = sum(not isinstance(item, Span) for item in rule.items)
    return special + bool(rule.values()) > 1


def _special_dates(items: Iterable[Item]) -> list[str]:
    nouns = []
    for item in items:
        match item:
            case LastDay(0):
                nouns.append("the last day of the month")
            case LastDay(days_before):
                days = "1 day" if days_before == 1 else f"{days_before} days"
                nouns.append(f"the day {days} before the last day of the month")
            case NearestWeekday(0):
                nouns.append("the last weekday (Monday to Friday) of the month")
            case NearestWeekday(day):
                nouns.append(f"the weekday (Monday to Friday) nearest to day {day} of the month")
            case _:
                pass
    return [*dict.fromkeys(nouns)]


def _special_weekdays(items: Iterable[Item]) -> list[str]:
    nouns = [
        f"the {_NTH[item.nth]} {_WEEKDAYS[(item.day_of_week - 1) % 7]} of the month"
        for item in items
        if isinstance(item, DayOfWeekInMonth)
    ]
    return [*dict.fromkeys(nouns)]


def _names_of_weekdays(values: Collection[int]) -> list[str]:
    """From Monday on; 0 and 7 are Sunday."""
    return _with_ranges({(value - 1) % 7 for value in values}, _WEEKDAYS)


def _in_months(months: frozenset[int]) -> str:
    if len(months) == len(_MONTHS):
        return ""
    names = [_MONTHS[month - 1] for month in sorted(months)]
    if _stride(months) == 1:
        return f" from {names[0]} to {names[-1]}"
    return f" in {_joined(names)}"


# Lists.


def _counted(noun: str, values: Collection[int]) -> str:
    """`minute 5`, `minutes 5 and 35`."""
    return f"{noun} {min(values)}" if len(values) == 1 else f"{noun}s {listed(values)}"


def listed(values: Collection[int], word: str = "and") -> str:
    """Numbers in order, three or more consecutive ones as a range."""
    return _joined(_with_ranges(values, [str(number) for number in range(60)]), word)


def _with_ranges(values: Collection[int], names: Sequence[str]) -> list[str]:
    pieces = []
    for first in sorted(value for value in values if value - 1 not in values):
        last = first
        while last + 1 in values:
            last += 1
        if last - first + 1 >= _SHORTEST_RANGE:
            pieces.append(f"{names[first]} to {names[last]}")
        else:
            pieces += [names[number] for number in range(first, last + 1)]
    if len(pieces) > _MAX_PIECES:
        raise _TooLong
    return pieces


def _joined(pieces: Sequence[str], word: str = "and") -> str:
    return f" {word} ".join([", ".join(pieces[:-1]), pieces[-1]] if len(pieces) > 1 else pieces)
