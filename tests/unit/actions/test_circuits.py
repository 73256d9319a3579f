"""A target that fails and fails is left alone for a while; nobody else is."""

import pytest

from hourbell.actions.circuits import (
    FAILURES,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    OVER_SECONDS,
    Circuits,
)

BAD, GOOD = ("acme", "bad.test", 443), ("acme", "good.test", 443)


@pytest.fixture
def circuits() -> Circuits:
    return Circuits()


def fail(circuits: Circuits, times: int, now: float = 0.0) -> None:
    """So many failures in a row, over long enough, the last of them at this moment."""
    for left in reversed(range(times)):
        circuits.failed(BAD, now - OVER_SECONDS * left)


def test_a_target_is_called_until_it_has_failed_so_often_in_a_row(circuits: Circuits) -> None:
    fail(circuits, FAILURES - 1)
    assert circuits.delay_seconds(BAD, 0.0) is None
    circuits.lives(BAD)
    fail(circuits, FAILURES - 1)
    assert circuits.delay_seconds(BAD, 0.0) is None
    fail(circuits, 1)
    assert circuits.delay_seconds(BAD, 0.0) is not None


def test_what_is_put_off_comes_back_after_the_pause_and_apart(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    delays = [circuits.delay_seconds(BAD, 0.25) for _ in range(100)]
    assert all(
        delay is not None and FIRST_PAUSE_SECONDS - 0.25 <= delay <= FIRST_PAUSE_SECONDS * 1.5
        for delay in delays
    )
    assert len(set(delays)) > 50


def test_others_are_untouched(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert circuits.delay_seconds(GOOD, 0.0) is None
    assert circuits.delay_seconds((*BAD[:2], 80), 0.0) is None
    assert circuits.delay_seconds(("globex", *BAD[1:]), 0.0) is None


def test_a_burst_of_failures_opens_nothing(circuits: Circuits) -> None:
    for _ in range(100):
        circuits.failed(BAD, 0.0)
    assert circuits.delay_seconds(BAD, 0.0) is None
    circuits.failed(BAD, OVER_SECONDS)
    assert circuits.delay_seconds(BAD, OVER_SECONDS) is not None


def test_after_the_pause_one_is_let_through_and_no_more(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is not None


def test_a_probe_that_succeeds_closes_the_circuit(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS)
    circuits.lives(BAD)
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None


def test_a_probe_that_fails_doubles_the_pause_up_to_a_bound(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    now, pause = 0.0, FIRST_PAUSE_SECONDS
    for _ in range(8):
        assert circuits.delay_seconds(BAD, now + pause - 0.01) is not None
        now += pause
        assert circuits.delay_seconds(BAD, now) is None
        circuits.failed(BAD, now)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    assert pause == LONGEST_PAUSE_SECONDS


def test_a_probe_that_was_stopped_leaves_its_place_to_the_next(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None
    circuits.unknown(BAD)
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None


def test_failures_of_what_was_sent_before_it_opened_do_not_prolong_the_pause(
    circuits: Circuits,
) -> None:
    fail(circuits, FAILURES)
    for _ in range(50):
        circuits.failed(BAD, FIRST_PAUSE_SECONDS - 0.1)
    assert circuits.delay_seconds(BAD, FIRST_PAUSE_SECONDS) is None


def test_it_remembers_no_more_targets_than_it_can_hold(circuits: Circuits) -> None:
    for number in range(10_050):
        circuits.failed(("acme", f"host-{number}", 1), 0.0)
    assert len(circuits._circuits) == 10_000
