"""The next runs with a word on clock changes."""

from datetime import UTC, datetime, timedelta

import pytest

from hourbell.timing.errors import InvalidRule
from hourbell.timing.forecast import MAX_COUNT, Firing, Members, load, next_runs
from hourbell.timing.rules import compile_rule

SPRING = datetime(2027, 3, 13, 12, tzinfo=UTC)  # before 02:00 becomes 03:00 in New York
AUTUMN = datetime(2027, 11, 6, 12, tzinfo=UTC)  # before 02:00 becomes 01:00
NEW_YORK = "America/New_York"


def test_a_run_after_a_gap_says_so() -> None:
    first, second = next_runs("30 2 * * *", NEW_YORK, SPRING, 2)
    assert first.utc == datetime(2027, 3, 14, 7, tzinfo=UTC)
    assert first.local.isoformat() == "2027-03-14T03:00:00-04:00"
    assert first.note == "02:30 does not exist on 2027-03-14 (clocks go forward): runs at 03:00"
    assert second.note == ""


def test_a_skipped_run_is_told_at_the_following_one() -> None:
    first, second = next_runs("30 2 * * *", NEW_YORK, SPRING, 2, dst_gap="skip")
    assert first.local.isoformat() == "2027-03-15T02:30:00-04:00"
    assert (
        first.note == "02:30 does not exist on 2027-03-14 (clocks go forward): that run is skipped"
    )
    assert second.note == ""


def test_a_repeated_time_says_which_copy_runs() -> None:
    (once,) = next_runs("15 30 1 * * *", NEW_YORK, AUTUMN, 1)
    assert once.local.isoformat() == "2027-11-07T01:30:15-04:00"
    assert once.note == "01:30:15 happens twice on 2027-11-07 (clocks go back): runs at the first"

    both = next_runs("30 1 * * *", NEW_YORK, AUTUMN, 2, dst_overlap="twice")
    assert [run.local.isoformat()[-6:] for run in both] == ["-04:00", "-05:00"]
    assert [run.note.rpartition(": ")[2] for run in both] == [
        "runs at both, this is the first",
        "runs at both, this is the second",
    ]


def test_rules_that_follow_elapsed_time_run_at_both_and_skip_nothing() -> None:
    runs = next_runs("0 * * * *", NEW_YORK, datetime(2027, 11, 7, 4, 30, tzinfo=UTC), 3)
    assert [run.note.rpartition(", ")[2] for run in runs] == [
        "this is the first",
        "this is the second",
        "",
    ]
    runs = next_runs("0 */2 * * *", NEW_YORK, datetime(2027, 3, 14, 6, tzinfo=UTC), 1)
    assert runs[0].local.isoformat() == "2027-03-14T04:00:00-04:00"
    assert runs[0].note == ""


def test_intervals_have_no_notes() -> None:
    runs = next_runs("@every 3600+0", NEW_YORK, datetime(2027, 3, 14, 6, 30, tzinfo=UTC), 2)
    assert [run.local.isoformat() for run in runs] == [
        "2027-03-14T03:00:00-04:00",
        "2027-03-14T04:00:00-04:00",
    ]
    assert {run.note for run in runs} == {""}


def test_fewer_runs_if_the_years_run_out() -> None:
    assert len(next_runs("0 0 1 1 *", "UTC", datetime(9997, 6, 1, tzinfo=UTC), 10)) == 2


def test_no_run_at_all_is_an_error_and_not_an_empty_list() -> None:
    with pytest.raises(InvalidRule, match="never matches in America/New_York after 2027-03-13"):
        next_runs("*/15 2 8-14 3 */7", NEW_YORK, SPRING, 5)
    with pytest.raises(InvalidRule, match="the calendar ends"):
        next_runs("0 0 1 1 *", "UTC", datetime(9999, 6, 1, tzinfo=UTC), 5)


@pytest.mark.parametrize("count", [0, -1, MAX_COUNT + 1])
def test_the_count_is_bounded(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        next_runs("* * * * *", "UTC", SPRING, count)


NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def every_minute(*members: Members) -> Firing:
    return Firing(compile_rule("* * * * *", "UTC"), at(1), members)


def test_the_load_of_many_rhythms_is_added_by_minute() -> None:
    half_minutes = Firing(compile_rule("@every 30+0", "UTC"), at(1), (Members(3),))
    found = load([every_minute(Members(2)), half_minutes], NOON, at(3), 100)
    assert found.by_minute == {at(1): 8, at(2): 8, at(3): 5}
    assert found.complete_until == at(3)


def test_riders_count_from_when_until_when_they_ride() -> None:
    members = (
        Members(1),
        Members(10, since=at(1)),
        Members(100, until=at(2)),
        Members(1000, at(9)),
    )
    found = load([every_minute(*members)], NOON, at(3), 100)
    assert found.by_minute == {at(1): 101, at(2): 111, at(3): 11}


def test_a_load_that_is_cut_short_is_complete_up_to_where_it_was_cut() -> None:
    found = load([every_minute(Members(1))], NOON, at(60), 5)
    assert found.by_minute == {at(minute): 1 for minute in range(1, 6)}
    assert at(5) < found.complete_until < at(6)


def test_what_should_have_fired_already_is_no_load_to_come() -> None:
    late = Firing(compile_rule("* * * * *", "UTC"), at(-2), (Members(1),))
    assert load([late], NOON, at(1), 100).by_minute == {at(1): 1}


def test_a_herd_has_all_of_its_moments_or_none() -> None:
    """A herd that is spread in a part of the period only would add to the load where that part ends."""
    often = Firing(compile_rule("@every 10+0", "UTC"), at(1), (Members(5),), 1)
    hourly = Firing(compile_rule("0 * * * *", "UTC"), at(60), (Members(3),), 2)
    found = load([often, hourly], NOON, NOON + timedelta(hours=12), 100_000)
    assert len(found.moments) == 12
    assert set(found.moments.values()) == {3}
    assert [herd.timetable for herd in found.herds] == [1, 2]
    found = load([often, hourly], NOON, at(60), 100_000)
    assert len(found.moments) == 355
    assert found.moments[at(60)] == 5 + 3


def test_what_is_due_is_told_by_the_limits_that_it_shares() -> None:
    members = (Members(2, limits=(0,)), Members(3, limits=(0, 1)), Members(-1, limits=(0, 1)))
    found = load([every_minute(*members)], NOON, at(2), 100)
    assert [(due.at, due.runs, due.limits) for due in found.due] == [
        (at(1), 2, (0,)),
        (at(1), 2, (0, 1)),
        (at(2), 2, (0,)),
        (at(2), 2, (0, 1)),
    ]
