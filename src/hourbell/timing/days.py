"""Which days of a month a rule means.

The matching days depend on two properties of a month only: how many days it has, and on which day
of the week it begins. That makes 28 shapes of months. The days of a rule are one number for each
shape, with bit `d` set if day `d` matches. Finding the next day is then a shift, and a
rule that can never match is one without a bit in any shape that its months can take.
"""

from calendar import isleap
from datetime import date
from functools import lru_cache

from hourbell.timing.fields import (
    DayOfWeekInMonth,
    FieldRule,
    Item,
    LastDay,
    NearestWeekday,
    Span,
)

DayTable = tuple[int, ...]  # by month_shape: the bits of the matching days

_MONTH_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SATURDAY, _SUNDAY = 5, 6  # as date.weekday() counts; cron counts from Sunday = 0


def month_shape(year: int, month: int) -> int:
    """The index into a DayTable."""
    length = 29 if month == 2 and isleap(year) else _MONTH_LENGTHS[month]
    return (length - 28) * 7 + date(year, month, 1).weekday()


@lru_cache(maxsize=1024)
def day_table(day_of_month: FieldRule, day_of_week: FieldRule) -> DayTable:
    """The days that match both fields if either begins with `*`, else those that match one."""
    both = day_of_month.begins_with_star or day_of_week.begins_with_star
    table: list[int] = []
    for length in range(28, 32):
        for first_weekday in range(7):
            by_month = by_week = 0
            for item in day_of_month.items:
                by_month |= _days_of_month(item, length, first_weekday)
            for item in day_of_week.items:
                by_week |= _days_of_week(item, length, first_weekday)
            table.append(by_month & by_week if both else by_month | by_week)
    return tuple(table)


def ever_matches(table: DayTable, months: frozenset[int]) -> bool:
    """Whether any year has such a day: over the years, a month begins on every day of the week."""
    lengths = {_MONTH_LENGTHS[month] for month in months} | ({29} if 2 in months else set())
    return any(table[(length - 28) * 7 + weekday] for length in lengths for weekday in range(7))


def _days_of_month(item: Item, length: int, first_weekday: int) -> int:
    match item:
        case Span():
            return sum(1 << day for day in item.values() if day <= length)
        case LastDay(days_before):
            return 1 << (length - days_before) if days_before < length else 0
        case NearestWeekday(day):
            return _nearest_weekday(day or length, length, first_weekday)
        case DayOfWeekInMonth():
            raise AssertionError("the grammar has no such item in day-of-month")


def _nearest_weekday(day: int, length: int, first_weekday: int) -> int:
    if day > length:
        return 0  # as a plain 31 in a month of 30 days
    weekday = (first_weekday + day - 1) % 7
    if weekday == _SATURDAY:
        day += -1 if day > 1 else 2
    elif weekday == _SUNDAY:
        day += 1 if day < length else -2
    return 1 << day


def _days_of_week(item: Item, length: int, first_weekday: int) -> int:
    match item:
        case Span():
            days = [_first_on(value, first_weekday) for value in item.values()]
            return sum(1 << d for first in set(days) for d in range(first, length + 1, 7))
        case DayOfWeekInMonth(day_of_week, nth):
            all_of_them = range(_first_on(day_of_week, first_weekday), length + 1, 7)
            return 1 << all_of_them[nth - 1] if nth <= len(all_of_them) else 0
        case LastDay() | NearestWeekday():
            raise AssertionError("the grammar has no such item in day-of-week")


def _first_on(day_of_week: int, first_weekday: int) -> int:
    """The first day of the month that is a Sunday (0 or 7), a Monday (1), …"""
    return (day_of_week - 1 - first_weekday) % 7 + 1
