"""From the wall time of a one-time job to its instant."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hourbell.timing.rules import compile_rule, instant_of
from hourbell.timing.zones import load_zone

NEW_YORK = "America/New_York"
ZONES = (NEW_YORK, "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "Europe/Dublin", "UTC")
WALLS = st.datetimes(
    datetime.fromisoformat("1975-01-01"), datetime.fromisoformat("2150-01-01")
).map(lambda at: at.replace(fold=0))
PAGE = Path(__file__).parents[3] / "docs" / "time.md"


def shown(wall: str, zone: str) -> str | None:
    at = instant_of(datetime.fromisoformat(wall), zone)
    return None if at is None else at.isoformat().replace("+00:00", "Z")


def test_a_time_in_a_gap_is_the_first_moment_after_it() -> None:
    assert shown("2027-03-14T01:59:59", NEW_YORK) == "2027-03-14T06:59:59Z"
    for wall in ("02:00:00", "02:30:00.25", "02:59:59", "03:00:00"):
        assert shown(f"2027-03-14T{wall}", NEW_YORK) == "2027-03-14T07:00:00Z"
    assert shown("2027-10-03T02:15:00", "Australia/Lord_Howe") == "2027-10-02T15:30:00Z"


def test_a_time_in_an_overlap_is_the_first_of_the_two() -> None:
    assert shown("2027-11-07T00:59:59", NEW_YORK) == "2027-11-07T04:59:59Z"
    assert shown("2027-11-07T01:30:00.5", NEW_YORK) == "2027-11-07T05:30:00.500000Z"
    assert shown("2027-11-07T02:00:00", NEW_YORK) == "2027-11-07T07:00:00Z"


def test_a_time_on_a_day_that_a_zone_skipped_does_not_exist() -> None:
    assert shown("2011-12-30T12:00:00", "Pacific/Apia") is None
    assert shown("2011-12-31T00:00:00", "Pacific/Apia") == "2011-12-30T10:00:00Z"


def test_the_page_says_what_happens() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (\S+) \(\S+\) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 3
    assert [(wall, shown(wall, NEW_YORK)) for wall, _ in rows] == rows


@given(WALLS, st.sampled_from(ZONES))
@example(datetime.fromisoformat("2028-02-29T12:00:00"), "Europe/Berlin")
def test_any_other_time_is_what_a_clock_on_the_wall_shows(wall: datetime, zone: str) -> None:
    at = instant_of(wall, zone)
    assert at is not None
    back = at.astimezone(load_zone(zone))
    if back.replace(tzinfo=None, fold=0) == wall:
        assert back.fold == 0  # the first of two
    else:
        before = (at - timedelta(seconds=1)).astimezone(load_zone(zone)).replace(tzinfo=None)
        assert before < wall < back.replace(tzinfo=None)


@given(WALLS.map(lambda at: at.replace(microsecond=0)), st.sampled_from(ZONES))
def test_it_is_the_time_at_which_a_cron_rule_for_it_runs(wall: datetime, zone: str) -> None:
    rule = compile_rule(f"{wall.second} {wall.minute} {wall.hour} * * *", zone)
    midnight = wall.replace(hour=0, minute=0, second=0).replace(tzinfo=UTC) - timedelta(days=2)
    at = instant_of(wall, zone)
    assert at is not None
    runs = [midnight]
    while runs[-1] < at:
        following = rule.next(runs[-1])
        assert following is not None
        runs.append(following)
    assert runs[-1] == at


@pytest.mark.parametrize("wall", ["9999-12-31T23:59:59", "1970-01-01T00:00:00"])
def test_the_ends_of_the_range_do_no_harm(wall: str) -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        try:
            instant_of(datetime.fromisoformat(wall), zone)
        except OverflowError:
            assert wall.startswith("9999")
