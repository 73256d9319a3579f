"""How late runs start where only so many may run at once, or start per second."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourbell.timing.delays import Arrival, Delay, Limit, longest_delay

TWO = datetime(2031, 5, 6, 2, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return TWO + timedelta(minutes=minutes)


def test_reports_of_a_queue_that_runs_two_at_once() -> None:
    reports = [Arrival(TWO, 25, 14 * 60.0)]
    found = longest_delay(Limit(at_once=2), reports)
    # Thirteen rounds, of which the last begins after twelve.
    assert found == Delay(TWO, 25, 840.0, TWO, at(12 * 14))


def test_nothing_waits_if_there_is_room() -> None:
    assert longest_delay(Limit(at_once=25), [Arrival(TWO, 25, 840.0)]) is None
    assert longest_delay(Limit(per_second=10, burst=25), [Arrival(TWO, 25, 840.0)]) is None
    spread = [Arrival(at(15 * number), 2, 840.0) for number in range(12)]
    assert longest_delay(Limit(at_once=2), spread) is None


def test_what_is_left_over_delays_what_comes_later() -> None:
    found = longest_delay(Limit(at_once=1), [Arrival(TWO, 3, 60.0), Arrival(at(1), 1, 60.0)])
    assert found == Delay(TWO, 3, 60.0, TWO, at(2))
    found = longest_delay(Limit(at_once=1), [Arrival(TWO, 3, 60.0), Arrival(at(1), 2, 60.0)])
    assert found == Delay(TWO, 5, 60.0, at(1), at(4))


def test_a_pause_between_two_herds_begins_anew() -> None:
    found = longest_delay(Limit(at_once=1), [Arrival(TWO, 2, 60.0), Arrival(at(60), 4, 60.0)])
    assert found == Delay(at(60), 4, 60.0, at(60), at(63))


def test_a_rate_lets_a_burst_start_at_once_and_then_one_after_the_other() -> None:
    found = longest_delay(Limit(per_second=0.5, burst=10), [Arrival(TWO, 70, 1.0)])
    assert found == Delay(TWO, 70, 1.0, TWO, at(2))


def test_a_limit_of_nothing_starts_nothing() -> None:
    found = longest_delay(Limit(at_once=0), [Arrival(TWO, 1, 60.0), Arrival(at(1), 2, 60.0)])
    assert found == Delay(TWO, 3, 60.0, at(1), None)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=8),
)
def test_the_last_start_is_that_of_servers_that_take_turns(
    servers: int, given: list[tuple[int, int]]
) -> None:
    """With runs of one length, the formula is exact up to one run, compared with servers one by one."""
    arrivals, moment = [], 0
    for gap, runs in given:
        moment += gap
        arrivals.append(Arrival(at(moment), runs, 60.0))
    free = [0.0] * servers
    longest = 0.0
    for arrival in arrivals:
        due = (arrival.at - TWO).total_seconds()
        for _ in range(arrival.runs):
            free.sort()
            start = max(due, free[0])
            free[0] = start + 60.0
            longest = max(longest, start - due)
    found = longest_delay(Limit(at_once=servers), arrivals)
    if found is None:
        waited = 0.0
    else:
        assert found.last_start_at is not None
        waited = (found.last_start_at - found.due_at).total_seconds()
    assert waited == pytest.approx(longest, abs=60.0)
