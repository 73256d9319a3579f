"""What clock changes do to rules: vectors of our own beside the shared ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourbell.timing.rules import between, compile_rule

NEW_YORK, BERLIN, TROLL = "America/New_York", "Europe/Berlin", "Antarctica/Troll"
LORD_HOWE = "Australia/Lord_Howe"
SPRING = "2026-03-28T12:00:00Z"  # before 02:00 becomes 03:00 in Berlin
AUTUMN = "2026-10-24T12:00:00Z"  # before 03:00 becomes 02:00 in Berlin


def runs(rule: str, zone: str, after: str, count: int, **policies: Any) -> list[str]:
    compiled = compile_rule(rule, zone, **policies)
    start = datetime.fromisoformat(after)
    found = between(compiled, start, start + timedelta(days=400), count)
    return [at.isoformat().replace("+00:00", "Z") for at in found]


def test_every_quarter_of_the_second_hour_has_no_run_in_a_gap() -> None:
    assert runs("*/15 2 * * *", BERLIN, SPRING, 2) == [
        "2026-03-30T00:00:00Z",
        "2026-03-30T00:15:00Z",
    ]
    assert runs("*/15 2 * * *", NEW_YORK, "2026-03-07T12:00:00Z", 1) == ["2026-03-09T06:00:00Z"]


def test_every_quarter_of_the_second_hour_runs_in_both_copies() -> None:
    assert runs("*/15 2 * * *", BERLIN, AUTUMN, 9) == [
        "2026-10-25T00:00:00Z",
        "2026-10-25T00:15:00Z",
        "2026-10-25T00:30:00Z",
        "2026-10-25T00:45:00Z",
        "2026-10-25T01:00:00Z",
        "2026-10-25T01:15:00Z",
        "2026-10-25T01:30:00Z",
        "2026-10-25T01:45:00Z",
        "2026-10-26T01:00:00Z",
    ]


def test_the_same_times_as_a_list_are_fixed_times() -> None:
    assert runs("0,15,30,45 2 * * *", BERLIN, SPRING, 2) == [
        "2026-03-29T01:00:00Z",  # once for all four
        "2026-03-30T00:00:00Z",
    ]
    assert runs("0,15,30,45 2 * * *", BERLIN, AUTUMN, 5) == [
        "2026-10-25T00:00:00Z",
        "2026-10-25T00:15:00Z",
        "2026-10-25T00:30:00Z",
        "2026-10-25T00:45:00Z",
        "2026-10-26T01:00:00Z",
    ]


@pytest.mark.parametrize(
    ("rule", "zone", "after", "expected"),
    [
        pytest.param(
            "30 30 2 * * *",
            BERLIN,
            SPRING,
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:30Z"],
            id="six fields run after a gap at its very end",
        ),
        pytest.param(
            "*/20 30 2 * * *",
            BERLIN,
            SPRING,
            ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z", "2026-03-30T00:30:20Z"],
            id="a * in the seconds does not make a rule follow elapsed time",
        ),
        pytest.param(
            "*/20 30 2 * * *",
            BERLIN,
            AUTUMN,
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T00:30:20Z",
                "2026-10-25T00:30:40Z",
                "2026-10-26T01:30:00Z",
            ],
            id="six fields run in the first copy only",
        ),
        pytest.param(
            "30 * 2 * * *",
            BERLIN,
            "2026-10-25T00:58:45Z",
            ["2026-10-25T00:59:30Z", "2026-10-25T01:00:30Z", "2026-10-25T01:01:30Z"],
            id="six fields run through both copies",
        ),
        pytest.param(
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-03T00:00:00Z",
            ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"],
            id="a gap of half an hour",
        ),
        pytest.param(
            "45 1 * * *",
            LORD_HOWE,
            "2026-04-04T00:00:00Z",
            ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"],
            id="an overlap of half an hour",
        ),
        pytest.param(
            "30 3 * * *",
            "Antarctica/Casey",
            "2009-10-17T00:00:00Z",
            ["2009-10-17T18:00:00Z", "2009-10-18T16:30:00Z"],
            id="a gap of exactly three hours is not too long",
        ),
        pytest.param(
            "30 1,2 * * *",
            TROLL,
            "2026-10-24T12:00:00Z",
            ["2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
            id="an overlap of two hours",
        ),
        pytest.param(
            "30 23 * * SAT",
            "America/Scoresbysund",
            "2025-03-29T00:00:00Z",
            ["2025-03-30T01:00:00Z", "2025-04-06T00:30:00Z"],
            id="a gap up to midnight: the day of the missing time counts, not the next",
        ),
        pytest.param(
            "0 * * * *",
            "Pacific/Apia",
            "2011-12-30T08:30:00Z",
            ["2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z"],
            id="elapsed time does not notice a skipped day",
        ),
        pytest.param(
            "0 0 * * *",
            "Africa/Monrovia",
            "1960-01-01T12:00:00Z",
            ["1960-01-02T00:44:30Z", "1960-01-03T00:44:30Z"],
            id="an offset with seconds",
        ),
    ],
)
def test_default_policies(rule: str, zone: str, after: str, expected: list[str]) -> None:
    assert runs(rule, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("30 2 * * *", ["2026-03-30T00:30:00Z"]),
        ("0 2,3 * * *", ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),  # 03:00 exists
        ("0 */2 * * *", ["2026-03-28T13:00:00Z"]),  # follows elapsed time anyway
    ],
)
def test_skip(rule: str, expected: list[str]) -> None:
    assert runs(rule, BERLIN, SPRING, len(expected), dst_gap="skip") == expected


@pytest.mark.parametrize(
    ("rule", "after", "expected"),
    [
        (
            "30 2 * * *",
            AUTUMN,
            ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "0,45 1-3 * * *",
            AUTUMN,
            [
                "2026-10-24T23:00:00Z",
                "2026-10-24T23:45:00Z",
                "2026-10-25T00:00:00Z",
                "2026-10-25T00:45:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:45:00Z",
                "2026-10-25T02:00:00Z",
            ],
        ),
        ("30 2 * * *", "2026-10-25T01:10:00Z", ["2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"]),
        ("30 2 * * *", "2026-10-25T01:30:00Z", ["2026-10-26T01:30:00Z"]),
    ],
)
def test_twice(rule: str, after: str, expected: list[str]) -> None:
    assert runs(rule, BERLIN, after, len(expected), dst_overlap="twice") == expected


def test_the_policies_are_independent() -> None:
    """`twice` still runs after a gap, and `skip` still runs once in an overlap."""
    assert runs("30 2 * * *", BERLIN, SPRING, 1, dst_overlap="twice") == ["2026-03-29T01:00:00Z"]
    assert runs("30 2 * * *", BERLIN, AUTUMN, 2, dst_gap="skip") == [
        "2026-10-25T00:30:00Z",
        "2026-10-26T01:30:00Z",
    ]


def test_the_calendar_ends_with_the_year_9999() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    rule = compile_rule("59 59 23 31 12 *", "UTC")
    assert rule.next(last - timedelta(seconds=1)) == last
    assert rule.next(last) is None
    evening = compile_rule("0 20 31 12 *", NEW_YORK)  # in UTC that is in the year 10000
    assert evening.next(datetime(9999, 6, 1, tzinfo=UTC)) is None


def test_a_moment_needs_a_zone() -> None:
    with pytest.raises(ValueError, match="aware"):
        compile_rule("* * * * *", "UTC").next(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_moment_may_be_in_any_zone() -> None:
    tokyo = datetime.fromisoformat("2026-01-01T09:00:00+09:00")
    assert compile_rule("0 9 * * *", "UTC").next(tokyo) == datetime(2026, 1, 1, 9, tzinfo=UTC)


def test_there_are_no_other_policies() -> None:
    with pytest.raises(ValueError, match="no such DST policy"):
        compile_rule("* * * * *", "UTC", dst_gap="run_before")


def test_a_rule_is_read_once() -> None:
    assert compile_rule("1 2 3 4 *", BERLIN) is compile_rule("1 2 3 4 *", BERLIN)
