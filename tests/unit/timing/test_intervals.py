"""Every N seconds."""

from datetime import UTC, datetime, timedelta

import pytest

from hourbell.timing.errors import InvalidRule
from hourbell.timing.intervals import MAX_EVERY_SECONDS, interval_rule
from hourbell.timing.rules import between, compile_rule

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_an_interval_runs_when_its_offset_is_left() -> None:
    rule = compile_rule("@every 300+17", "UTC")
    assert [at.isoformat() for at in between(rule, START, START + timedelta(hours=1), 2)] == [
        "2026-01-01T00:00:17+00:00",
        "2026-01-01T00:05:17+00:00",
    ]


def test_next_is_later_and_takes_parts_of_seconds() -> None:
    rule = compile_rule("@every 60+0", "UTC")
    minute = timedelta(minutes=1)
    assert rule.next(START) == START + minute
    assert rule.next(START - timedelta(microseconds=1)) == START
    assert rule.next(START + timedelta(microseconds=1)) == START + minute


def test_an_interval_is_anchored_in_the_epoch_and_keeps_its_anchor() -> None:
    anchor = datetime(2026, 4, 7, 10, 20, 30, tzinfo=UTC)
    text = interval_rule(86_400, anchor)
    assert text == "@every 86400+37230"
    assert compile_rule(text, "UTC").next(anchor) == anchor + timedelta(days=1)
    assert interval_rule(1, anchor) == "@every 1+0"
    assert interval_rule(7, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == "@every 7+6"


def test_an_interval_does_not_notice_clock_changes() -> None:
    rule = compile_rule("@every 3600+0", "Europe/Berlin")
    change = datetime(2026, 3, 29, 1, tzinfo=UTC)
    hour = timedelta(hours=1)
    assert between(rule, change - 2 * hour, change + hour, 9) == [
        change - hour,
        change,
        change + hour,
    ]


def test_intervals_end_with_the_year_9999() -> None:
    rule = compile_rule(f"@every {MAX_EVERY_SECONDS}+0", "UTC")
    assert rule.next(datetime(9999, 12, 1, tzinfo=UTC)) is None
    assert rule.next_occurrence(datetime(9999, 12, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("rule", "hint"),
    [
        ("@every 0+0", "1 to 31536000"),
        (f"@every {MAX_EVERY_SECONDS + 1}+0", "1 to 31536000"),
        ("@every 300+300", "0 to 299"),
        ("@every 0300+0", "leading zeros"),
        ("@every 300+00", "leading zeros"),
        ("@every 300", "every_seconds: 300"),
        (
            "@every 5m",
            "every_seconds: 300 instead of cron, or here an interval like @every 300+0",
        ),
        ("@every 999999999999+0", "@every 300+0"),
        ("@every -5+0", "@every 300+0"),
        ("@every 300+0 ", "@every 300+0"),
        ("@every ٣+0", "@every 300+0"),
        ("@everything", "@every 300+0"),
    ],
)
def test_what_is_no_interval_is_refused(rule: str, hint: str) -> None:
    with pytest.raises(InvalidRule) as refusal:
        compile_rule(rule, "UTC")
    assert refusal.value.field == "expression"
    assert hint in refusal.value.reason


@pytest.mark.parametrize("every_seconds", [-1, 0, MAX_EVERY_SECONDS + 1])
def test_there_is_no_rule_for_an_interval_out_of_bounds(every_seconds: int) -> None:
    with pytest.raises(InvalidRule, match="1 to 31536000"):
        interval_rule(every_seconds, START)
