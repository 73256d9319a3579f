"""What a field can say, and what is said about one that cannot."""

from datetime import UTC, datetime, timedelta

import pytest

from hourbell.timing.cron import canonical, caution_about, parse_cron
from hourbell.timing.errors import InvalidRule
from hourbell.timing.fields import DAY_OF_WEEK, FIELDS, Field, parse_field
from hourbell.timing.rules import between, compile_rule

START = datetime(2026, 1, 1, tzinfo=UTC)


def days(rule: str, month: int) -> list[int]:
    """The days of a month of 2026 on which a rule runs."""
    first, following = (
        datetime(2026, month, 1, tzinfo=UTC),
        datetime(2026, month + 1, 1, tzinfo=UTC),
    )
    second = timedelta(seconds=1)
    return [
        at.day for at in between(compile_rule(rule, "UTC"), first - second, following - second, 99)
    ]


def test_six_fields_have_seconds_in_front() -> None:
    rule = compile_rule("*/20 30 9 * * *", "UTC")
    assert [at.isoformat() for at in between(rule, START, START + timedelta(days=2), 4)] == [
        "2026-01-01T09:30:00+00:00",
        "2026-01-01T09:30:20+00:00",
        "2026-01-01T09:30:40+00:00",
        "2026-01-02T09:30:00+00:00",
    ]


def test_every_second_is_the_finest_rule() -> None:
    rule = compile_rule("* * * * * *", "Europe/Berlin")
    assert rule.next(START) == START + timedelta(seconds=1)
    assert rule.next(START + timedelta(microseconds=1)) == START + timedelta(seconds=1)


def test_sunday_is_0_and_7_and_the_end_of_a_range_of_names() -> None:
    assert canonical("0 0 * * 7") == canonical("0 0 * * SUN") == "0 0 * * 0"
    assert canonical("0 0 * * FRI-SUN") == "0 0 * * 5-7"
    assert canonical("0 0 * * SUN-TUE") == "0 0 * * 0-2"
    assert canonical("0 0 * * 0-7") == "0 0 * * 0-6"
    assert canonical("0 0 * * 7-7") == "0 0 * * 0"


@pytest.mark.parametrize(
    ("rule", "month", "expected"),
    [
        ("0 0 L,15 * *", 2, [15, 28]),
        ("0 0 L-27 * *", 2, [1]),
        ("0 0 L-29 * *", 3, [2]),
        ("0 0 L-30 * *", 6, []),  # June has no day that is 30 days before its last
        ("0 0 1W,15W,LW * *", 8, [3, 14, 31]),  # Saturday 1st and 15th
        ("0 0 31W * *", 5, [29]),  # a Sunday, and the month ends: back to Friday
        ("0 0 31W * *", 6, []),  # June has no 31st
        ("0 0 * * MON#1,FRIL", 6, [1, 26]),
        ("0 0 * * 1#5", 6, [29]),
        ("0 0 * * 0L", 5, [31]),
        ("0 0 10-12,30/1 * *", 6, [10, 11, 12, 30]),
        ("0 0 ? * 2#3", 6, [16]),
    ],
)
def test_days(rule: str, month: int, expected: list[int]) -> None:
    assert days(rule, month) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("0 0 13 * FRI", [2, 9, 13, 16, 23, 30]),  # both restricted: either
        ("0 0 */2 * FRI", [9, 23]),  # begins with *: both
        ("0 0 13 * */5", []),  # day-of-week begins with *: both; the 13th is a Tuesday
        ("0 0 13 * ?", [13]),
        ("0 0 13,*/16 * FRI", [1, 2, 9, 13, 16, 17, 23, 30]),  # does not begin with *: either
    ],
)
def test_how_the_day_fields_combine(rule: str, expected: list[int]) -> None:
    assert days(rule, 1) == expected


def test_a_step_may_be_as_large_as_its_range_but_not_larger() -> None:
    assert canonical("*/60 */24 * */12 *") == "*/60 */24 * */12 *"
    assert canonical("10-20/11 * * * *") == "10 * * * *"
    for rule in ("*/61 * * * *", "50/11 * * * *", "10-20/12 * * * *", "0 0 1 */13 *"):
        with pytest.raises(InvalidRule, match="larger than its range"):
            canonical(rule)


def test_a_step_in_the_day_fields_may_be_larger() -> None:
    """There `*` is what joins the fields by AND, and the idiom wants nothing but that."""
    assert days("0 0 */100,1-7 * TUE", 6) == [2]
    assert days("0 0 1-7 * */7", 6) == [7]


@pytest.mark.parametrize(
    ("rule", "field", "hint"),
    [
        ("61 0 0 * * *", "second", "0 to 59"),
        ("60 * * * *", "minute", "0 to 59"),
        ("0 24 * * *", "hour", "0 to 23"),
        ("0 22-2 * * *", "hour", "22-23,0-2"),
        ("0 0 0 * *", "day-of-month", "1 to 31"),
        ("0 0 L-0 * *", "day-of-month", "L-1 to L-30"),
        ("0 0 1-5W * *", "day-of-month", "1W to 31W"),
        ("0 0 * NOV-FEB *", "month", "11-12,1-2"),
        ("0 0 * JANUARY *", "month", "use JAN"),
        ("0 0 * * 5-1", "day-of-week", "5-6,0-1"),
        ("0 0 * * L", "day-of-week", "5L"),
        ("0 0 * * MON-FRI#1", "day-of-week", "1#2"),
        ("0 0 * * 1#6", "day-of-week", "1 to 5"),
        ("0 0 *,? * *", "day-of-month", "1 to 31"),
        ("H * * * *", "minute", "job's id"),
        ("0 H(0-5) * * *", "hour", "job's id"),
        ("0 0 30 2 *", "expression", "never matches"),
        ("0 0 31 4,6,9,11 *", "expression", "never matches"),
        ("0 0 30W 2 *", "expression", "never matches"),
        ("0 0 L-29 2 *", "expression", "never matches"),
        ("0 0 1W * */7", "expression", "never matches"),  # a weekday that is a Sunday
        ("0 0 */16 * MON#5", "expression", "never matches"),
        ("@noon", "expression", "@daily"),
        ("0 0 * *", "expression", "five or six fields"),
        ("0\u00a00 * * *", "expression", "character"),
    ],
)
def test_a_refusal_names_the_field_and_what_to_write(rule: str, field: str, hint: str) -> None:
    with pytest.raises(InvalidRule) as refusal:
        canonical(rule)
    assert refusal.value.field == field
    assert hint in refusal.value.reason
    assert str(refusal.value) == f"{field}: {refusal.value.reason}"


def test_rare_is_not_never() -> None:
    at = compile_rule("0 0 */100,29 2 MON#5", "UTC").next(datetime(2045, 1, 1, tzinfo=UTC))
    assert at == datetime(2072, 2, 29, tzinfo=UTC)
    assert at.isoweekday() == 1


def test_a_rule_whose_times_are_always_jumped_over_is_read_and_has_no_next_run() -> None:
    """Not refused: a zone can change under a job that exists, and planning has to go on."""
    second_sundays_of_march = "*/15 2 8-14 3 */7"
    assert compile_rule(second_sundays_of_march, "UTC").next(START)
    assert compile_rule(second_sundays_of_march, "America/New_York").next(START) is None
    fixed_time = "30 2 8-14 3 */7"
    assert compile_rule(fixed_time, "America/New_York", "run_after").next(START)
    assert compile_rule(fixed_time, "America/New_York", "skip").next(START) is None


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("  00\t02  *  jan,MAR Mon-fri ", "0 2 * 1,3 1-5"),
        ("0 0 0 * * *", "0 0 * * *"),  # seconds of 0 are five fields
        ("* 0 0 * * *", "* 0 0 * * *"),
        ("0 0 ? * ?", "0 0 * * *"),
        ("*/1 * * * *", "* * * * *"),
        ("3,2,1,2 * * * *", "1-3 * * * *"),
        ("0-59/15 * * * *", "0/15 * * * *"),
        ("0/15 * * * *", "0/15 * * * *"),
        ("0-45/15 * * * *", "0/15 * * * *"),
        ("0-30/15 * * * *", "0-30/15 * * * *"),
        ("*/15 * * * *", "*/15 * * * *"),  # begins with *, so it is another rule
        ("5,*/15 * * * *", "5,*/15 * * * *"),
        ("*,5 * * * *", "* * * * *"),
        ("0 0 */100,1-7 * 1", "0 0 */31,1-7 * 1"),
        ("0 0 1-7,*/100 * 1", "0 0 1-7,*/31 * 1"),
        ("0 0 LW,15W,L,L-03,1 * *", "0 0 1,15W,L,L-3,LW * *"),
        ("0 0 * * fril,7#1", "0 0 * * 0#1,5L"),
        ("0 0 * * 1-7/2", "0 0 * * 1-7/2"),
        ("0 0 * * 1/2", "0 0 * * 1/2"),
    ],
)
def test_the_canonical_text(written: str, text: str) -> None:
    assert canonical(written) == text
    assert canonical(text) == text
    assert parse_cron(text).fixed_time == parse_cron(written).fixed_time


def test_a_rule_at_the_limit_has_a_canonical_text_that_can_be_read() -> None:
    rule = ("0/1,58," + "0,2," * 70)[:247] + "0 * * * *"
    assert len(rule) == 256
    assert canonical(canonical(rule)) == canonical(rule)
    with pytest.raises(InvalidRule, match="the maximum is 256"):
        canonical(" " + rule)


@pytest.mark.parametrize("field", FIELDS, ids=[field.name for field in FIELDS])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 24])
def test_what_is_offered_for_a_backward_range_is_a_field_that_means_it(
    field: Field, step: int
) -> None:
    highest = 7 if field is DAY_OF_WEEK else field.high  # Sunday again
    size = field.high - field.low + 1
    for first in range(field.low, highest + 1):
        for last in range(field.low, first):
            body = f"{first}-{last}"
            with pytest.raises(InvalidRule, match="runs backwards; write ") as refused:
                parse_field(field, body if step == 1 else f"{body}/{step}")
            offered = str(refused.value).partition("; write ")[2]
            start = first - size if first > field.high else first
            length = (last - start) % size + 1
            meant = {(start - field.low + n) % size + field.low for n in range(0, length, step)}
            assert parse_field(field, offered).values() == meant, body


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ("* * * * * 5", "put it first: 5 * * * * *"),
        ("* 0 12 * * MON", "0 0 12 * * MON"),
        ("* */5 * * * *", "0 */5 * * * *"),
        ("*/1 * 9-17 * * ?", "0 * 9-17 * * ?"),
    ],
)
def test_six_fields_that_begin_with_every_second_are_cautioned_about(
    rule: str, advice: str
) -> None:
    caution = caution_about(rule)
    assert caution is not None
    assert caution.endswith(advice)


@pytest.mark.parametrize(
    "rule",
    [
        "* * * * *",
        "5 * * * *",
        "* * * * * *",
        "0 * * * * *",
        "*/5 * * * * 1",
        "@daily",
        "0 0 12 * * 5",
    ],
)
def test_other_rules_say_what_they_seem_to(rule: str) -> None:
    assert caution_about(rule) is None


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        ("@every 5m", "every_seconds: 300 "),
        ("@every 1h30m", "every_seconds: 5400 "),
        ("@EVERY 90s", "every_seconds: 90 "),
        ("@every 1500ms", "every_seconds, a whole number"),
        ("@every 0s", "every_seconds, a whole number"),
        ("@every", "every_seconds, a whole number"),
        ("rate(1 minute)", "every_seconds: 60 "),
        ("rate( 2  days )", "every_seconds: 172800 "),
        ("Rate(5 fortnights)", "every_seconds, a whole number"),
        ("cron(0 12 * * ? *)", "; write 0 12 * * *"),
        ("cron(15 10 ? * * *)", "; write 15 10 * * *"),
        ("cron(0 12 ? * MON-FRI *)", "Sunday is 0"),
        ("cron(0 12 * * ? 2027)", "without a year"),
        ("cron(", "without cron( )"),
    ],
)
def test_rules_of_other_schedulers_are_refused_with_our_spelling(rule: str, advice: str) -> None:
    for read in (parse_cron, lambda text: compile_rule(text, "UTC")):
        with pytest.raises(InvalidRule) as refused:
            read(rule)
        assert advice in str(refused.value)
