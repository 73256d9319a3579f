"""Reads the words of a rule back into what they say, without the code that wrote them."""

import calendar
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

DayTest = Callable[[date], bool]

MONTHS = list(calendar.month_name)
WEEKDAYS = list(calendar.day_name)
NTH = ("first", "second", "third", "fourth", "fifth")

_NUMBERS = r"\d+(?: to \d+)?(?:(?:, | and | or )\d+(?: to \d+)?)*"
_WEEKDAY = f"(?:{'|'.join(WEEKDAYS)})"
_WEEKDAYS = rf"{_WEEKDAY}(?: to {_WEEKDAY})?(?:(?:, | and | or ){_WEEKDAY}(?: to {_WEEKDAY})?)*"
_MONTH = f"(?:{'|'.join(MONTHS[1:])})"
_CLOCK = r"\d\d:\d\d(?::\d\d)?"
_NOUN = (
    rf"days? (?P<dates>{_NUMBERS}) of the month"
    r"|(?P<last>the last day of the month)"
    r"|the day (?P<before>\d+) days? before the last day of the month"
    r"|(?P<last_weekday>the last weekday \(Monday to Friday\) of the month)"
    r"|the weekday \(Monday to Friday\) nearest to day (?P<nearest>\d+) of the month"
    rf"|the (?P<nth>last|{'|'.join(NTH)}) (?P<nth_day>{_WEEKDAY}) of the month"
    rf"|a (?P<weekdays>{_WEEKDAYS})"
)


@dataclass(frozen=True)
class Said:
    """What words say: at which times of which days."""

    seconds: frozenset[int]
    minutes: frozenset[tuple[int, int]]  # hour and minute
    day: DayTest


def read_words(words: str, zone: str) -> Said | None:
    """What the words say; None: they only repeat the rule."""
    if words.startswith("Cron: "):
        return None
    assert words.endswith(".")
    text = words[:-1].removesuffix(f" in {zone}")
    text = text[0].lower() + text[1:]
    seconds: frozenset[int] = frozenset({0})
    within = re.search(rf", at (every second|seconds? ({_NUMBERS})) of the minute", text)
    if within is not None:
        seconds = frozenset(range(60)) if within[2] is None else numbers(within[2])
        text = text[: within.start()] + text[within.end() :]
    listed = re.fullmatch(rf"(.*) at ({_CLOCK}(?:(?:, | and ){_CLOCK})*)", text)
    if listed is not None and " from " not in listed[2]:
        times = [clock(each) for each in re.findall(_CLOCK, listed[2])]
        if times[0][2]:
            seconds = frozenset({times[0][2]})
        return Said(seconds, frozenset(each[:2] for each in times), read_days(listed[1]))
    return _repeating(text, seconds)


def _repeating(text: str, seconds: frozenset[int]) -> Said:
    every = [(hour, minute) for hour in range(24) for minute in range(60)]
    forms = (
        rf"every (?:(?P<n>\d+) )?(?P<unit>second|minute|hour)s? from (?P<a>{_CLOCK}) to (?P<b>{_CLOCK})",
        rf"every hour at minutes? (?P<minutes>{_NUMBERS})",
        rf"(?:every minute|at minutes? (?P<minutes>{_NUMBERS})) of the hours? (?P<hours>{_NUMBERS})",
        r"every (?:(?P<n>\d+) )?(?P<unit>second|minute)s?",
    )
    for form in forms:
        found = re.match(rf"{form}(?:$|, )", text)
        if found is None:
            continue
        parts = found.groupdict()
        days = read_days(text[found.end() :] or "every day")
        step = int(parts.get("n") or 1)
        if parts.get("a"):
            (h, m, s), (to_h, to_m, _) = clock(parts["a"]), clock(parts["b"])
            size = step * (60 if parts["unit"] == "hour" else 1)
            span = range(h * 60 + m, to_h * 60 + to_m + 1, size)
            return Said(
                frozenset({s}) if s else seconds, frozenset(divmod(at, 60) for at in span), days
            )
        if parts.get("unit") == "second":
            return Said(frozenset(range(0, 60, step)), frozenset(every), days)
        minutes = (
            numbers(parts["minutes"])
            if parts.get("minutes")
            else frozenset(range(0, 60, step if parts.get("unit") else 1))
        )
        hours = numbers(parts["hours"]) if parts.get("hours") else frozenset(range(24))
        at = frozenset(
            (hour, minute) for hour, minute in every if hour in hours and minute in minutes
        )
        return Said(seconds, at, days)
    raise AssertionError(f"cannot read {text!r}")


def clock(text: str) -> tuple[int, int, int]:
    hour, minute, *second = map(int, text.split(":"))
    return hour, minute, second[0] if second else 0


def numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def read_days(text: str) -> DayTest:
    months = frozenset(range(1, 13))
    tail = re.search(
        rf" (?:from ({_MONTH}) to ({_MONTH})|in ({_MONTH}(?:(?:, | and ){_MONTH})*))$", text
    )
    if tail is not None:
        text = text[: tail.start()]
        if tail[1]:
            months = frozenset(range(MONTHS.index(tail[1]), MONTHS.index(tail[2]) + 1))
        else:
            months = frozenset(MONTHS.index(name) for name in re.findall(_MONTH, tail[3]))
    test = _days(text)
    return lambda day: day.month in months and test(day)


def _days(text: str) -> DayTest:
    if text == "every day":
        return lambda day: True
    if found := re.fullmatch(rf"every year on ({_NUMBERS}) ({_MONTH})", text):
        dates, month = numbers(found[1]), MONTHS.index(found[2])
        return lambda day: day.month == month and day.day in dates
    if found := re.fullmatch(rf"every ({_WEEKDAYS})", text):
        return _noun(f"a {found[1]}")
    if text.startswith("on days that are both "):
        pieces = [*_nouns(text.removeprefix("on days that are both "))]
        assert len(pieces) == 2, text
        return lambda day: all(test(day) for test in pieces)
    pieces = [*_nouns(text.removeprefix("on days that are ").removeprefix("on "))]
    return lambda day: any(test(day) for test in pieces)


def _nouns(text: str) -> Iterator[DayTest]:
    while text:
        found = re.match(_NOUN, text)
        assert found is not None, text
        yield _noun(found[0])
        text = text[found.end() :]
        if text:
            joint = re.match(r", | and | or ", text)
            assert joint is not None, text
            text = text[joint.end() :]


def _noun(text: str) -> DayTest:
    found = re.fullmatch(_NOUN, text)
    assert found is not None, text
    if found["dates"]:
        dates = numbers(found["dates"])
        return lambda day: day.day in dates
    if found["last"]:
        return lambda day: day.day == _length(day)
    if found["before"]:
        before = int(found["before"])
        return lambda day: day.day == _length(day) - before
    if found["last_weekday"]:
        return lambda day: day == _nearest(day.replace(day=_length(day)))
    if found["nearest"]:
        target = int(found["nearest"])
        return lambda day: target <= _length(day) and day == _nearest(day.replace(day=target))
    if found["nth"]:
        weekday = WEEKDAYS.index(found["nth_day"])
        if found["nth"] == "last":
            return lambda day: day.weekday() == weekday and day.day > _length(day) - 7
        nth = NTH.index(found["nth"])
        return lambda day: day.weekday() == weekday and (day.day - 1) // 7 == nth
    chosen: set[int] = set()
    for first, last in re.findall(rf"({_WEEKDAY})(?: to ({_WEEKDAY}))?", found["weekdays"]):
        chosen |= set(range(WEEKDAYS.index(first), WEEKDAYS.index(last or first) + 1))
    return lambda day: day.weekday() in chosen


def _length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _nearest(day: date) -> date:
    nearby = [day + timedelta(days=days) for days in (0, -1, 1, -2, 2)]
    return next(d for d in nearby if d.month == day.month and d.weekday() < 5)
