"""Cron rules: five fields, or six with leading seconds, or a macro such as `@daily`.

A rule is read once into a `ParsedCron`, which answers one question about the calendar: which is the
first wall time, from a given one on, that the fields match? It knows nothing of zones; what happens
when a wall time is missing or occurs twice is decided in `rules.py`.

    resolve_hash   replaces every H with a number derived from the job id
    canonical      one text for rules that are spelled differently but mean the same
    parse_cron     parses the text; rejects a rule that can never match
"""

import hashlib
import re
from datetime import datetime
from functools import lru_cache

import msgspec

from hourbell.timing.days import DayTable, day_table, ever_matches, month_shape
from hourbell.timing.errors import InvalidRule
from hourbell.timing.fields import (
    DAY_OF_MONTH,
    FIELDS,
    SECOND,
    Field,
    FieldRule,
    canonical_field,
    parse_field,
)
from hourbell.timing.foreign import refusal_of

MAX_EXPRESSION_CHARS = 256

MACROS = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
}

_HASH_ITEM = re.compile(r"H(?:\(([0-9]{1,2})-([0-9]{1,2})\))?(?:/([0-9]{1,3}))?")
_HASH_DAY_OF_MONTH = (1, 28)  # the days that every month has

_ANY = {"*", "?"}
_EVERY_SECOND = ("*", "*/1", "0-59", "0/1")

NextTable = tuple[int, ...]  # [v] is the smallest value of the field that is >= v, or -1


class ParsedCron(msgspec.Struct, frozen=True):
    """A parsed rule: tables in which the next matching wall time is looked up."""

    text: str  # canonical
    fixed_time: bool  # neither minute nor hour begins with `*`
    seconds: NextTable
    minutes: NextTable
    hours: NextTable
    months: NextTable
    days: DayTable

    def first_match(self, wall: datetime, last_year: int) -> datetime | None:
        """The first wall time >= `wall` (naive, whole seconds) that matches, or None."""
        year, month, day = wall.year, wall.month, wall.day
        if self.months[month] == month:
            days = self.days[month_shape(year, month)] >> day
            if days & 1:
                hour, minute, second = self._first_time(wall.hour, wall.minute, wall.second)
                if hour >= 0:
                    return wall.replace(hour=hour, minute=minute, second=second)
            days >>= 1
            if days:
                return self._at_first_time(year, month, day + (days & -days).bit_length())
        while True:
            month = self.months[month + 1]
            if month < 0:
                year, month = year + 1, self.months[1]
                if year > last_year:
                    return None
            days = self.days[month_shape(year, month)]
            if days:
                return self._at_first_time(year, month, (days & -days).bit_length() - 1)

    def _first_time(self, hour: int, minute: int, second: int) -> tuple[int, int, int]:
        """The first matching time of a day from the given one on; hour -1: there is none."""
        first_hour = self.hours[hour]
        if first_hour == hour:
            first_minute = self.minutes[minute]
            if first_minute == minute:
                first_second = self.seconds[second]
                if first_second >= 0:
                    return hour, minute, first_second
                first_minute = self.minutes[minute + 1]
            if first_minute >= 0:
                return hour, first_minute, self.seconds[0]
            first_hour = self.hours[hour + 1]
        return first_hour, self.minutes[0], self.seconds[0]

    def _at_first_time(self, year: int, month: int, day: int) -> datetime:
        # A wall time belongs to no zone until rules.py has found its instant.
        return datetime(year, month, day, self.hours[0], self.minutes[0], self.seconds[0])  # noqa: DTZ001


def parse_fields(expression: str) -> list[FieldRule]:
    """The six fields of a rule without H, parsed one by one; raises InvalidRule."""
    return [
        parse_field(field, text) for field, text in zip(FIELDS, _split(expression), strict=True)
    ]


@lru_cache(maxsize=4096)
def parse_cron(expression: str) -> ParsedCron:
    """Parse a rule without H; raises InvalidRule, also if no day of any year can match."""
    rules = parse_fields(expression)
    second, minute, hour, day_of_month, month, day_of_week = rules
    days = day_table(day_of_month, day_of_week)
    if not ever_matches(days, month.values()):
        raise InvalidRule(
            "expression",
            "never matches: none of its months has such a day; change the day or the month",
        )
    texts = [canonical_field(rule) for rule in rules]
    text = " ".join(texts[1:] if texts[0] == "0" else texts)
    return ParsedCron(
        # `0/1` becomes `0-59`, which is longer: at the length limit the original text is kept.
        text=text if len(text) <= MAX_EXPRESSION_CHARS else expression,
        fixed_time=not (minute.begins_with_star or hour.begins_with_star),
        seconds=_next_table(second.values(), 60),
        minutes=_next_table(minute.values(), 60),
        hours=_next_table(hour.values(), 24),
        months=_next_table(month.values(), 13),
        days=days,
    )


def canonical(expression: str) -> str:
    """The one text of a rule: macros spelled out, names as numbers, no seconds if they are 0.

    Rules with the same text mean the same, so they can share a timetable. Equivalent rules get the
    same text if they differ only in spelling, but not always otherwise.
    """
    return parse_cron(expression).text


@lru_cache(maxsize=4096)
def caution_about(expression: str) -> str | None:
    """A warning about a six-field rule that probably means something else; None if there is no doubt.

    Other libraries put seconds last. Read here, such a rule nearly always has `*` for its seconds,
    so it runs every second of each matching minute, which is rarely intended. The exception is
    `* * * * * *`, which means every second in both readings.
    """
    fields = expression.split()
    if len(fields) != 6 or set(fields) <= _ANY or fields[0] not in _EVERY_SECOND:
        return None
    says = (
        "The first of six fields is the seconds, so this runs every second while the others match."
    )
    if fields[5] in _ANY or not _is_of_seconds(fields[5]):
        minutely = " ".join(["0", *fields[1:]])
        return f"{says} To run once a minute, use 0 as the first field: {minutely}"
    moved = " ".join([fields[5], *fields[:5]])
    return f"{says} If the last field was meant as seconds, put it first: {moved}"


def _is_of_seconds(text: str) -> bool:
    try:
        parse_field(SECOND, text.upper())
    except InvalidRule:
        return False
    return True


def resolve_hash(expression: str, job_id: int) -> str:
    """Replace every H with a value derived from the job id; everything else keeps its meaning.

    The value for a field is BLAKE2b with an 8-byte digest over the job's id (8 bytes, big-endian)
    followed by the field's name, as a big-endian number, modulo the number of values to choose
    from. So it never changes for a job, it is chosen separately for each field, and a field of
    seconds in front does not change the others. Every H of one field starts from the same number:
    `H(0-29),H(30-59)` stays half an hour apart.

        H           one value of the field; of 1-28 in day-of-month, which every month has
        H(a-b)      one value of a-b
        H/s         every s-th value from one of the first s
        H(a-b)/s    the same within a-b
    """
    texts = _split(expression)
    if not any("H" in text for text in texts):
        return expression
    resolved = [
        ",".join(_resolve_item(field, item, job_id) for item in text.split(","))
        for field, text in zip(FIELDS, texts, strict=True)
    ]
    return " ".join(resolved[1:] if len(expression.split()) == 5 else resolved)


def _resolve_item(field: Field, item: str, job_id: int) -> str:
    match = _HASH_ITEM.fullmatch(item)
    if match is None:
        return item  # THU and MARCH contain an H too; errors are found when the rule is parsed
    first, last = _HASH_DAY_OF_MONTH if field is DAY_OF_MONTH else (field.low, field.high)
    if match[1] is not None:
        first, last = int(match[1]), int(match[2])
        if not field.low <= first <= last <= field.high:
            raise InvalidRule(
                field.name, f"{item} must have its range within {field.low}-{field.high}"
            )
    count = last - first + 1
    step = int(match[3]) if match[3] is not None else count
    if not 1 <= step <= count:
        raise InvalidRule(field.name, f"{item} needs a step from 1 to {count}")
    start = first + _hash(job_id, field.name) % step
    if start + step > last:
        return str(start)
    return f"{start}-{last}/{step}"


def jitter_of(job_id: int, max_seconds: int) -> int:
    """How many seconds later than its rule a job runs: 0 to max_seconds, always the same."""
    return _hash(job_id, "jitter") % (max_seconds + 1)


def _hash(job_id: int, name: str) -> int:
    digest = hashlib.blake2b(job_id.to_bytes(8, "big") + name.encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def _split(expression: str) -> list[str]:
    """The six fields in upper case; a rule of five fields gets `0` as seconds."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise InvalidRule(
            "expression",
            f"has {len(expression)} characters; the maximum is {MAX_EXPRESSION_CHARS}",
        )
    if not re.fullmatch(r"[!-~ \t]*", expression):
        raise InvalidRule(
            "expression",
            "has a character that is not allowed; use plain letters, digits and spaces",
        )
    foreign = refusal_of(expression.strip())
    if foreign is not None:
        raise InvalidRule("expression", foreign)
    text = expression.strip().upper()
    if text.startswith("@"):
        if text not in MACROS:
            raise InvalidRule(
                "expression",
                f"is not a macro; use one of {', '.join(MACROS).lower()}, or an interval in seconds",
            )
        text = MACROS[text]
    texts = text.split()
    if len(texts) == 5:
        return ["0", *texts]
    if len(texts) == 6:
        return texts
    raise InvalidRule(
        "expression",
        f"needs five or six fields but has {len(texts)}; write minute, hour, day-of-month, month "
        "and day-of-week, optionally with seconds in front",
    )


def _next_table(values: frozenset[int], size: int) -> NextTable:
    """For 0 … size, so that the value after the last one can be looked up too."""
    table = [-1] * (size + 1)
    for value in range(size - 1, -1, -1):
        table[value] = value if value in values else table[value + 1]
    return tuple(table)
