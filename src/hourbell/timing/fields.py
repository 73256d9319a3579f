"""The grammar of one field of a cron rule.

A field is a list of items between commas. Most items are a span of values, `first-last/step`, of
which `*`, `5`, `5-9` and `5/10` are short forms. The day fields have a few more, whose days depend
on the month: `L`, `L-3`, `LW`, `15W` in day-of-month, `1#2` and `5L` in day-of-week.

Three decisions that a reader of other crons may not expect:

- *A leading `*` has its own meaning.* It decides how the two day fields combine and whether a
  rule follows wall time or elapsed time, so `*/1` is not the same field as `0-59`.
- *A step larger than its range is rejected*, because `*/90` in the minutes does not mean every 90
    minutes, but once an hour. The day fields accept it: there `*` joins the fields by AND,
    and `*/100,1-7 * MON`, "the first Monday", is an old idiom in which the step is deliberately
    too large.
- *A range never runs backwards*: `22-2` is rejected, and the error names the two ranges to write
  instead. Only `FRI-SUN` is read as `5-7`, because Sunday is both 0 and 7.
"""

import re

import msgspec

from hourbell.timing.errors import InvalidRule


class Field(msgspec.Struct, frozen=True):
    """One of the six fields of a rule, and its possible values."""

    name: str
    low: int
    high: int
    expects: str  # completes "… is not …" in an error
    names: tuple[str, ...] = ()  # names[i] means low + i


SECOND = Field("second", 0, 59, "a number from 0 to 59")
MINUTE = Field("minute", 0, 59, "a number from 0 to 59")
HOUR = Field("hour", 0, 23, "a number from 0 to 23")
DAY_OF_MONTH = Field(
    "day-of-month",
    1,
    31,
    "a number from 1 to 31, L (the last day), L-1 to L-30, LW (the last weekday) or 1W to 31W",
)
MONTH = Field(
    "month",
    1,
    12,
    "a number from 1 to 12 or one of JAN to DEC",
    ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
)
DAY_OF_WEEK = Field(
    "day-of-week",
    0,
    6,
    "a number from 0 (Sunday) to 7 (Sunday again), one of SUN to SAT, or a form like 1#2 or 5L",
    ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
)
FIELDS = (SECOND, MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)

_SUNDAY_AGAIN = 7  # Sunday again, so that a range can end with it


class Span(msgspec.Struct, frozen=True):
    """Every `step`-th value from `first` to `last`; `last` is one of the values."""

    first: int
    last: int
    step: int
    star: bool  # written as `*`

    def values(self) -> range:
        return range(self.first, self.last + 1, self.step)


class LastDay(msgspec.Struct, frozen=True):
    """`L` and `L-n`: this many days before the last day of the month."""

    days_before: int


class NearestWeekday(msgspec.Struct, frozen=True):
    """`nW` and `LW`: the weekday nearest to a day, never in another month. Day 0 is the last."""

    day: int


class DayOfWeekInMonth(msgspec.Struct, frozen=True):
    """`d#n` and `dL`: the n-th such day of the month. 0 is the last."""

    day_of_week: int
    nth: int


Item = Span | LastDay | NearestWeekday | DayOfWeekInMonth


class FieldRule(msgspec.Struct, frozen=True):
    """A parsed field. `?` is read as `*`, which means the same where it is allowed."""

    field: Field
    items: tuple[Item, ...]

    @property
    def begins_with_star(self) -> bool:
        first = self.items[0]
        return isinstance(first, Span) and first.star

    def values(self) -> frozenset[int]:
        """The values of a field that has spans only."""
        return frozenset(v for item in self.items if isinstance(item, Span) for v in item.values())


def parse_field(field: Field, text: str) -> FieldRule:
    """Read a field in upper case; InvalidRule names the field and says what to write."""
    if text == "?":
        if field not in (DAY_OF_MONTH, DAY_OF_WEEK):
            raise InvalidRule(field.name, "? is only for the two day fields; write * here")
        text = "*"
    return FieldRule(field, tuple(_item(field, item) for item in text.split(",")))


def canonical_field(rule: FieldRule) -> str:
    """One spelling for the fields that differ in spelling only.

    Numbers and plain ranges are merged and sorted; steps and special days follow. The result begins
    with `*` if and only if the field did.
    """
    head: list[str] = []
    items = rule.items
    if rule.begins_with_star:
        head = [_text(rule.field, items[0])]
        if head == ["*"]:
            return "*"
        items = items[1:]
    spans = [item for item in items if isinstance(item, Span)]
    plain = {v for span in spans if span.step == 1 and not span.star for v in span.values()}
    if rule.field is DAY_OF_WEEK and 0 in plain:
        plain.discard(_SUNDAY_AGAIN)
    steps = {_text(rule.field, span) for span in spans if span.step > 1 and not span.star}
    specials = {_text(rule.field, item) for item in items if not isinstance(item, Span)}
    stars = {_text(rule.field, span) for span in spans if span.star}
    return ",".join([*head, *_runs(plain), *sorted(steps), *sorted(specials), *sorted(stars)])


def _item(field: Field, text: str) -> Item:
    if not text:
        raise InvalidRule(field.name, "has an empty item in its list; remove the extra comma")
    if field is DAY_OF_MONTH:
        special = _day_of_month_item(text)
    elif field is DAY_OF_WEEK:
        special = _day_of_week_item(text)
    else:
        special = None
    return special or _span(field, text)


def _day_of_month_item(text: str) -> Item | None:
    if text == "L":
        return LastDay(0)
    if text == "LW":
        return NearestWeekday(0)
    if match := re.fullmatch(r"L-([0-9]{1,2})", text):
        days_before = int(match[1])
        if not 1 <= days_before <= 30:
            raise InvalidRule(DAY_OF_MONTH.name, f"{text} never falls in a month; use L-1 to L-30")
        return LastDay(days_before)
    if match := re.fullmatch(r"([0-9]{1,2})W", text):
        return NearestWeekday(_value(DAY_OF_MONTH, match[1]))
    return None


def _day_of_week_item(text: str) -> Item | None:
    if match := re.fullmatch(r"(.+)#(.*)", text):
        if match[2] not in ("1", "2", "3", "4", "5"):
            raise InvalidRule(
                DAY_OF_WEEK.name, f"{_shown(text)} needs a number from 1 to 5 after #, as in MON#1"
            )
        return DayOfWeekInMonth(_value(DAY_OF_WEEK, match[1]) % 7, int(match[2]))
    if match := re.fullmatch(r"(.+)L", text):
        return DayOfWeekInMonth(_value(DAY_OF_WEEK, match[1]) % 7, 0)
    return None


def _span(field: Field, text: str) -> Span:
    body, slash, step_text = text.partition("/")
    step = _step(field, text, step_text) if slash else 1
    star = body == "*"
    if not body:
        raise InvalidRule(field.name, f"{_shown(text)} needs a start before the /, as in */5")
    if star:
        first, last = field.low, field.high
    elif "-" in body:
        first, last = _range(field, text, body, step)
    else:
        first = _value(field, body)
        if first == _SUNDAY_AGAIN and field is DAY_OF_WEEK:
            first = 0
        last = field.high if slash else first
    count = last - first + 1
    if step > count:
        if field not in (DAY_OF_MONTH, DAY_OF_WEEK):
            raise InvalidRule(
                field.name,
                f"the step of {_shown(text)} is larger than its range {first}-{last}, so it "
                f"would never step; use at most {count}, or an interval in seconds",
            )
        step = count
    if step == count and not star:
        return Span(first, first, 1, star=False)
    return Span(first, first + (count - 1) // step * step, step, star)


def _range(field: Field, text: str, body: str, step: int) -> tuple[int, int]:
    first_text, _, last_text = body.partition("-")
    if not first_text or not last_text:
        raise InvalidRule(field.name, f"{_shown(text)} needs a value on both sides of the -")
    first, last = _value(field, first_text), _value(field, last_text)
    if field is DAY_OF_WEEK:
        if last_text == "SUN" and first > 0:
            last = _SUNDAY_AGAIN
        if first == _SUNDAY_AGAIN == last:
            first = last = 0
    if first > last:
        raise InvalidRule(
            field.name,
            f"the range {_shown(text)} runs backwards; write {_forwards(field, first, last, step)}",
        )
    return first, last


def _forwards(field: Field, first: int, last: int, step: int) -> str:
    """What a backward range probably means: up to the end of the field, and from its beginning."""
    values = [*range(first, field.high + 1), *range(field.low, last + 1)][::step]
    to_the_end = {value for value in values if value >= first}
    return ",".join([*_runs(to_the_end), *_runs(set(values) - to_the_end)])


def _step(field: Field, text: str, step_text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", step_text):
        raise InvalidRule(field.name, f"{_shown(text)} needs one number after the /, as in */5")
    step = int(step_text)
    if step == 0:
        raise InvalidRule(field.name, f"{_shown(text)} would never move; use a step of 1 or more")
    return step


def _value(field: Field, text: str) -> int:
    if text in field.names:
        return field.low + field.names.index(text)
    if re.fullmatch(r"[0-9]{1,2}", text):
        value = int(text)
        if field.low <= value <= field.high or (field is DAY_OF_WEEK and value == _SUNDAY_AGAIN):
            return value
    elif text[:3] in field.names and text.isalpha():
        raise InvalidRule(field.name, f"{_shown(text)} is too long; use {text[:3]}")
    elif re.match(r"H(?![A-Z])", text):
        raise InvalidRule(
            field.name,
            f"{_shown(text)} is derived from a job's id and is written H, H/s, H(a-b) or H(a-b)/s, but there is "
            "no job here; write the value itself",
        )
    raise InvalidRule(field.name, f"{_shown(text)} is not {field.expects}")


def _text(field: Field, item: Item) -> str:
    match item:
        case Span(first, last, step, star):
            if star:
                return "*" if step == 1 else f"*/{step}"
            if first == last:
                return str(first)
            if step == 1:
                return f"{first}-{last}"
            open_end = last <= field.high < last + step  # day-of-week can end with 7
            return f"{first}/{step}" if open_end else f"{first}-{last}/{step}"
        case LastDay(days_before):
            return f"L-{days_before}" if days_before else "L"
        case NearestWeekday(day):
            return f"{day}W" if day else "LW"
        case DayOfWeekInMonth(day_of_week, nth):
            return f"{day_of_week}#{nth}" if nth else f"{day_of_week}L"


def _runs(values: set[int]) -> list[str]:
    """The numbers in order, consecutive ones as ranges."""
    firsts = sorted(value for value in values if value - 1 not in values)
    lasts = sorted(value for value in values if value + 1 not in values)
    return [
        str(first) if first == last else f"{first}-{last}"
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 24 else text[:21] + "...")
