"""Jobs that run a little later than their rule says, each by a time of its own."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hourbell.documents.schedules import timetable_of
from hourbell.model.schedules import Cron, Every
from hourbell.timing.cron import canonical, jitter_of
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import compile_rule, delayed

START = datetime(2027, 1, 1, tzinfo=UTC)
RULES = ("0 2 * * *", "*/5 * * * *", "30 2 * * SUN", "0 0 L * *", "@every 90+7")


def runs(schedule: Cron | Every, job_id: int, count: int = 5) -> list[datetime]:
    timetable = timetable_of(schedule, job_id)
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    found = [START]
    for _ in range(count):
        following = rule.next(found[-1])
        assert following is not None
        found.append(following)
    return found[1:]


def test_a_job_is_always_late_by_the_same_time_and_jobs_by_different_ones() -> None:
    for schedule in (Cron("0 2 * * *"), Every(3600, 0)):
        spread = replace(schedule, jitter_seconds=600)
        seen = Counter[timedelta]()
        for job_id in range(1, 500):
            pairs = zip(runs(schedule, job_id), runs(spread, job_id), strict=True)
            (late,) = {(later - nominal) % timedelta(hours=1) for nominal, later in pairs}
            assert timedelta(0) <= late <= timedelta(seconds=600)
            seen[late] += 1
        assert len(seen) > 300  # of 601
        assert seen.most_common(1)[0][1] < 10


def test_jobs_without_a_jitter_share_a_timetable() -> None:
    assert {timetable_of(Cron("0 2 * * *"), n) for n in range(100)} == {
        timetable_of(Cron("0 2 * * *"), 0)
    }
    assert jitter_of(7, 0) == 0


def test_the_jitter_of_a_job_never_changes() -> None:
    # Recorded: another version that computes another number moves every job.
    assert [jitter_of(n, 600) for n in (1, 2, 1 << 40)] == [276, 491, 58]


@given(
    st.sampled_from(RULES),
    st.integers(0, 86_400),
    st.datetimes(datetime(2026, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(("America/New_York", "Australia/Lord_Howe", "UTC")),
)
def test_a_delayed_rule_has_the_same_occurrences_later(
    text: str, seconds: int, after: datetime, zone: str
) -> None:
    plain, later = compile_rule(text, zone), compile_rule(delayed(text, seconds), zone)
    delay = timedelta(seconds=seconds)
    nominal = plain.next(after - delay)
    found = later.next(after)
    assert nominal is not None
    assert found == nominal + delay
    assert found > after
    # From one to the next none is lost.
    assert later.next(found) == (plain.next(nominal) or after) + delay


def test_the_ends_of_the_calendar_do_no_harm() -> None:
    rule = compile_rule("+60s 0 0 1 1 *", "UTC")
    assert rule.next(datetime.max.replace(tzinfo=UTC) - timedelta(seconds=30)) is None
    assert rule.next(datetime.min.replace(tzinfo=UTC)) is not None


def test_users_cannot_write_delayed_rules() -> None:
    with pytest.raises(InvalidRule):
        canonical("+60s 0 0 1 1 *")
