"""Random rules that come with their meaning.

Every piece of text is drawn together with a plain Python test of what it means, written without
the parser, the tables and the zones of the code under test. What the parser makes of the text can
then be compared with what the text was drawn to mean.
"""

import calendar
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from hypothesis import strategies as st

from hourbell.timing.zones import zone_names
from property.timing.tzif import known_changes

DayTest = Callable[[date], bool]
MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@dataclass(frozen=True)
class DrawnRule:
    """A text and what it means."""

    text: str
    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    months: frozenset[int]
    day_of_month: DayTest
    day_of_week: DayTest

    @property
    def fields(self) -> list[str]:
        """Six, seconds first."""
        fields = self.text.split()
        return fields if len(fields) == 6 else ["0", *fields]

    @property
    def six_fields(self) -> bool:
        return len(self.text.split()) == 6

    @property
    def fixed_time(self) -> bool:
        return not self.fields[1].startswith("*") and not self.fields[2].startswith("*")

    @property
    def either_day_field_begins_with_star(self) -> bool:
        return self.fields[3][0] in "*?" or self.fields[5][0] in "*?"

    def matches(self, wall: datetime) -> bool:
        if wall.second not in self.seconds or wall.minute not in self.minutes:
            return False
        return wall.hour in self.hours and self.matches_day(wall.date())

    def matches_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        tests = (self.day_of_month(day), self.day_of_week(day))
        return all(tests) if self.either_day_field_begins_with_star else any(tests)


def cron_day(day: date) -> int:
    return (day.weekday() + 1) % 7


def _zero_padded(number: int) -> st.SearchStrategy[str]:
    return st.sampled_from([str(number), f"{number:02}"])


@st.composite
def _span(draw: st.DrawFn, low: int, high: int) -> tuple[str, frozenset[int]]:
    """One item of a field of numbers."""
    form = draw(st.sampled_from(["value", "value", "range", "star", "step", "range step", "open"]))
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    if form == "value":
        return draw(_zero_padded(first)), frozenset([first])
    if form == "range":
        return f"{first}-{last}", frozenset(range(first, last + 1))
    if form == "star":
        return "*", frozenset(range(low, high + 1))
    if form == "step":
        step = draw(st.integers(1, high - low + 1))
        return f"*/{step}", frozenset(range(low, high + 1, step))
    if form == "range step":
        step = draw(st.integers(1, last - first + 1))
        return f"{first}-{last}/{step}", frozenset(range(first, last + 1, step))
    step = draw(st.integers(1, high - first + 1))
    return f"{first}/{step}", frozenset(range(first, high + 1, step))


@st.composite
def number_field(
    draw: st.DrawFn, low: int, high: int, likely: tuple[int, ...]
) -> tuple[str, frozenset[int]]:
    """A list of items, often one of the likely values, so that rules meet clock changes."""
    if draw(st.booleans()):
        value = draw(st.sampled_from(likely))
        return str(value), frozenset([value])
    items = draw(st.lists(_span(low, high), min_size=1, max_size=3))
    return ",".join(text for text, _ in items), frozenset().union(*(v for _, v in items))


@st.composite
def month_field(draw: st.DrawFn) -> tuple[str, frozenset[int]]:
    if draw(st.integers(0, 3)):
        return "*", frozenset(range(1, 13))
    if draw(st.booleans()):
        value = draw(st.integers(1, 12))
        name = MONTH_NAMES[value - 1]
        return draw(st.sampled_from([name, name.lower(), name.title()])), frozenset([value])
    return draw(number_field(1, 12, (2, 3, 4, 10, 11)))


@st.composite
def _day_of_month_item(draw: st.DrawFn) -> tuple[str, DayTest]:
    form = draw(st.sampled_from(["span", "span", "L", "L-n", "LW", "nW"]))
    if form == "span":
        text, values = draw(_span(1, 31))
        return text, lambda day: day.day in values
    if form == "L":
        return "L", lambda day: day.day == _length(day)
    if form == "L-n":
        before = draw(st.integers(1, 30))
        return f"L-{before}", lambda day: day.day == _length(day) - before
    if form == "LW":
        return "LW", lambda day: day == _nearest_weekday(day.replace(day=_length(day)))
    target = draw(st.integers(1, 31))
    return (
        f"{target}W",
        lambda day: target <= _length(day) and day == _nearest_weekday(day.replace(day=target)),
    )


@st.composite
def _day_of_week_item(draw: st.DrawFn) -> tuple[str, DayTest]:
    form = draw(st.sampled_from(["span", "span", "name", "to seven", "to SUN", "#", "L"]))
    if form == "span":
        text, values = draw(_span(0, 6))
        return text, lambda day: cron_day(day) in values
    first = draw(st.integers(0, 6))
    if form == "name":
        return DAY_NAMES[first], lambda day: cron_day(day) == first
    if form == "to seven":
        return f"{first}-7", lambda day: cron_day(day) >= first or cron_day(day) == 0
    if form == "to SUN":
        first = max(first, 1)
        return f"{DAY_NAMES[first]}-SUN", lambda day: cron_day(day) >= first or cron_day(day) == 0
    text = draw(st.sampled_from([str(first), DAY_NAMES[first], "7" if first == 0 else str(first)]))
    if form == "#":
        nth = draw(st.integers(1, 5))
        return f"{text}#{nth}", lambda day: cron_day(day) == first and (day.day + 6) // 7 == nth
    return f"{text}L", lambda day: cron_day(day) == first and day.day > _length(day) - 7


@st.composite
def day_field(draw: st.DrawFn, item: st.SearchStrategy[tuple[str, DayTest]]) -> tuple[str, DayTest]:
    if draw(st.booleans()):
        return draw(st.sampled_from(["*", "*", "?"])), lambda day: True
    items = draw(st.lists(item, min_size=1, max_size=2))
    tests = [test for _, test in items]
    return ",".join(text for text, _ in items), lambda day: any(test(day) for test in tests)


@st.composite
def rules(draw: st.DrawFn, six_fields: bool | None = None) -> DrawnRule:
    """Rules of the whole grammar but H; a few can never match."""
    second, seconds = "", frozenset([0])
    if draw(st.sampled_from([False, False, True])) if six_fields is None else six_fields:
        second, seconds = draw(number_field(0, 59, (0, 30)))
    minute, minutes = draw(number_field(0, 59, (0, 1, 15, 30, 45, 59)))
    hour, hours = draw(number_field(0, 23, (0, 1, 2, 3, 23)))
    month, months = draw(month_field())
    day_of_month, is_day_of_month = draw(day_field(_day_of_month_item()))
    day_of_week, is_day_of_week = draw(day_field(_day_of_week_item()))
    space = draw(st.sampled_from([" ", " ", "  ", "\t"]))
    fields = [minute, hour, day_of_month, month, day_of_week]
    text = space.join([second, *fields] if second else fields)
    return DrawnRule(text, seconds, minutes, hours, months, is_day_of_month, is_day_of_week)


NOTABLE_ZONES = (
    "UTC",
    "Africa/Cairo",  # a gap at midnight
    "Africa/Casablanca",  # clocks follow Ramadan
    "Africa/Monrovia",  # seconds in its offset until 1972
    "America/Havana",  # an overlap at midnight
    "America/New_York",
    "America/Santiago",  # an overlap just before midnight
    "America/St_Johns",  # changes at 00:01 for years
    "Antarctica/Casey",  # gaps of exactly three hours
    "Antarctica/Troll",  # two hours
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Australia/Lord_Howe",  # half an hour
    "Europe/Berlin",
    "Europe/Dublin",  # negative DST
    "Pacific/Apia",  # skipped a day in 2011
    "Pacific/Chatham",
    "Pacific/Kwajalein",  # went back 23 hours in 1969
)


def zones() -> st.SearchStrategy[str]:
    return st.sampled_from(NOTABLE_ZONES) | st.sampled_from(sorted(zone_names()))


@st.composite
def zones_and_instants(
    draw: st.DrawFn, first_year: int = 1850, last_year: int = 2200
) -> tuple[str, datetime]:
    """A zone and a moment, in half of the cases within two days of a clock change there."""
    earliest, latest = datetime(first_year, 1, 1), datetime(last_year, 1, 1)  # noqa: DTZ001
    zone = draw(zones())
    changes = [c for c in known_changes(zone) if first_year <= c.at.year < last_year]
    near_a_change = draw(st.booleans())
    if changes and near_a_change:
        change = draw(st.sampled_from(changes))
        return zone, change.at + draw(
            st.timedeltas(timedelta(days=-2), timedelta(days=2))
            | st.timedeltas(timedelta(hours=-3), timedelta(hours=3))
            | st.sampled_from(
                [timedelta(seconds=s) for s in (-3600, -60, -1, 0, 1, 60, 1800, 3600)]
            )
        )
    return zone, draw(st.datetimes(earliest, latest, timezones=st.just(UTC)))


@st.composite
def zones_and_changes(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone and the first instant after a clock change there."""
    zone = draw(zones().filter(known_changes))
    recent = [change.at for change in known_changes(zone) if change.at.year >= 2000]
    earlier = [change.at for change in known_changes(zone)]
    return zone, draw(st.sampled_from(recent or earlier) | st.sampled_from(earlier))


def _length(day: date) -> int:
    return calendar.monthrange(day.year, day.month)[1]


def _nearest_weekday(day: date) -> date:
    nearby = [day + timedelta(days=days) for days in (0, -1, 1, -2, 2)]
    return next(d for d in nearby if d.month == day.month and d.weekday() < 5)
