"""A target that keeps failing gets fewer requests for a while; other targets are not touched."""

import heapq
import random
from collections.abc import Iterator
from itertools import count

import pytest

from hourbell.actions.circuits import (
    FAILURES,
    FIRST_PAUSE_SECONDS,
    MAX_LATE_AT_ONCE,
    MAX_PAUSE_SECONDS,
    OVER_SECONDS,
    PROBE_SECONDS,
    Circuits,
)

BAD, GOOD = ("acme", "bad.test", 443), ("acme", "good.test", 443)
CALLS = count()
MAX_WAIT_SECONDS = 30.0


@pytest.fixture
def circuits() -> Circuits:
    return Circuits()


def fail(circuits: Circuits, times: int, now: float = 0.0) -> None:
    """So many failures in a row, over long enough, the last of them at this moment."""
    for left in reversed(range(times)):
        circuits.failed(BAD, next(CALLS), now - OVER_SECONDS * left)


def delay(circuits: Circuits, now: float, target: tuple[str, str, int] = BAD) -> float | None:
    """For a request that nothing is known about yet."""
    return circuits.delay_seconds(target, next(CALLS), now)


def test_a_target_is_called_until_it_has_failed_so_often_in_a_row(circuits: Circuits) -> None:
    fail(circuits, FAILURES - 1)
    assert delay(circuits, 0.0) is None
    circuits.succeeded(BAD)
    fail(circuits, FAILURES - 1)
    assert delay(circuits, 0.0) is None
    fail(circuits, 1)
    assert delay(circuits, 0.0) is not None


def test_what_is_put_off_comes_back_after_the_pause_and_apart(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    delays = [delay(circuits, 0.25) for _ in range(100)]
    assert all(
        delay is not None and FIRST_PAUSE_SECONDS - 0.25 <= delay <= FIRST_PAUSE_SECONDS * 1.5
        for delay in delays
    )
    assert len(set(delays)) > 50


def test_others_are_untouched(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert delay(circuits, 0.0, GOOD) is None
    assert delay(circuits, 0.0, (*BAD[:2], 80)) is None
    assert delay(circuits, 0.0, ("globex", *BAD[1:])) is None


def test_a_burst_of_failures_opens_nothing(circuits: Circuits) -> None:
    for _ in range(100):
        circuits.failed(BAD, next(CALLS), 0.0)
    assert delay(circuits, 0.0) is None
    circuits.failed(BAD, next(CALLS), OVER_SECONDS)
    assert delay(circuits, OVER_SECONDS) is not None


def test_after_the_pause_one_is_let_through_and_no_more(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None
    assert delay(circuits, FIRST_PAUSE_SECONDS) is not None


def test_a_probe_that_succeeds_closes_the_circuit(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    delay(circuits, FIRST_PAUSE_SECONDS)
    circuits.succeeded(BAD)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None


def test_a_probe_that_fails_doubles_the_pause_up_to_a_bound(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    now, pause = 0.0, FIRST_PAUSE_SECONDS
    for _ in range(8):
        assert delay(circuits, now + pause - 0.01) is not None
        now += pause
        probe = next(CALLS)
        assert circuits.delay_seconds(BAD, probe, now) is None
        circuits.failed(BAD, probe, now)
        pause = min(pause * 2, MAX_PAUSE_SECONDS)
    assert pause == MAX_PAUSE_SECONDS


def test_a_probe_that_was_stopped_leaves_its_place_to_the_next(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    probe = next(CALLS)
    assert circuits.delay_seconds(BAD, probe, FIRST_PAUSE_SECONDS) is None
    circuits.inconclusive(BAD, next(CALLS))
    assert delay(circuits, FIRST_PAUSE_SECONDS) is not None
    circuits.inconclusive(BAD, probe)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None


def test_failures_of_what_was_sent_before_it_opened_do_not_prolong_the_pause(
    circuits: Circuits,
) -> None:
    fail(circuits, FAILURES)
    for _ in range(50):
        circuits.failed(BAD, next(CALLS), FIRST_PAUSE_SECONDS - 0.1)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None


def test_it_remembers_no_more_targets_than_it_can_hold(circuits: Circuits) -> None:
    for number in range(10_050):
        circuits.failed(("acme", f"host-{number}", 1), next(CALLS), 0.0)
    assert len(circuits._circuits) == 10_000


def test_a_probe_without_an_outcome_is_not_waited_for_for_ever(circuits: Circuits) -> None:
    fail(circuits, FAILURES)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None
    assert delay(circuits, FIRST_PAUSE_SECONDS + PROBE_SECONDS - 0.1) is not None
    assert delay(circuits, FIRST_PAUSE_SECONDS + PROBE_SECONDS) is None
    assert delay(circuits, FIRST_PAUSE_SECONDS + PROBE_SECONDS) is not None


# A bound on what an open circuit can do to an attempt.


@pytest.fixture
def bounded() -> Circuits:
    """A circuit that has opened at 0, and whose probe is under way."""
    circuits = Circuits(MAX_WAIT_SECONDS)
    fail(circuits, FAILURES)
    assert delay(circuits, FIRST_PAUSE_SECONDS) is None
    return circuits


def test_an_attempt_is_put_off_for_no_longer_than_the_bound(bounded: Circuits) -> None:
    now = FIRST_PAUSE_SECONDS
    while True:
        put_off = bounded.delay_seconds(BAD, next(CALLS), now, attempt=(7, 2))
        if put_off is None:
            break
        assert put_off > 0
        now += put_off
    assert now == pytest.approx(FIRST_PAUSE_SECONDS + MAX_WAIT_SECONDS)


def test_an_attempt_that_is_late_already_has_waited_long_enough(bounded: Circuits) -> None:
    """It may have waited for the circuits of other processes."""
    now = FIRST_PAUSE_SECONDS
    waited = MAX_WAIT_SECONDS - 0.25
    put_off = bounded.delay_seconds(BAD, next(CALLS), now, (7, 1), waited)
    assert put_off is not None
    assert put_off <= 0.25
    assert bounded.delay_seconds(BAD, next(CALLS), now, (8, 1), MAX_WAIT_SECONDS) is None


def test_a_backlog_does_not_go_past_an_open_circuit(bounded: Circuits) -> None:
    late = 2 * MAX_WAIT_SECONDS  # no circuit has put it off for so long
    put_off = bounded.delay_seconds(BAD, next(CALLS), FIRST_PAUSE_SECONDS, (7, 1), late)
    assert put_off is not None
    now = FIRST_PAUSE_SECONDS + MAX_WAIT_SECONDS
    assert bounded.delay_seconds(BAD, next(CALLS), now, (7, 1), late) is None


def test_few_attempts_at_once_go_past_an_open_circuit(bounded: Circuits) -> None:
    def late(call: int) -> float | None:
        return bounded.delay_seconds(BAD, call, FIRST_PAUSE_SECONDS, (call, 1), MAX_WAIT_SECONDS)

    calls = [next(CALLS) for _ in range(MAX_LATE_AT_ONCE + 1)]
    assert [late(call) for call in calls[:-1]] == [None] * MAX_LATE_AT_ONCE
    assert late(calls[-1]) is not None
    bounded.failed(BAD, calls[0], FIRST_PAUSE_SECONDS)
    assert late(calls[-1]) is None
    bounded.inconclusive(BAD, calls[1])
    assert late(next(CALLS)) is None


def test_it_measures_the_wait_of_no_more_attempts_than_it_can_hold(bounded: Circuits) -> None:
    for number in range(10_050):
        bounded.delay_seconds(BAD, next(CALLS), FIRST_PAUSE_SECONDS, (number, 2))
    assert len(bounded._waiting) == 10_000
    # Attempts that never came back, because another process ran them, leave their places.
    much_later = FIRST_PAUSE_SECONDS + PROBE_SECONDS - 0.1 + 4 * MAX_WAIT_SECONDS
    assert delay(bounded, much_later) is None
    for number in range(10_050, 10_150):
        assert bounded.delay_seconds(BAD, next(CALLS), much_later, (number, 2)) is not None
    assert all((number, 2) in bounded._waiting for number in range(10_050, 10_150))


@pytest.mark.parametrize("broken", [1, 30, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_job_among_broken_ones_at_one_endpoint_is_late_by_no_more_than_the_bound(
    broken: int, seed: int
) -> None:
    """Broken jobs fail within 50 ms and retry after 1 to 10 s, without end; a healthy one runs each minute."""
    random.seed(seed)
    circuits = Circuits(MAX_WAIT_SECONDS)
    late: list[float] = []

    def tries(job: int) -> Iterator[float]:
        """What a job waits for between its steps."""
        nonlocal now
        for attempt in count():
            began, call = now, next(CALLS)
            healthy = job >= broken
            number = (job, 1 if healthy else attempt)
            while (
                put_off := circuits.delay_seconds(BAD, call, now, number, now - began)
            ) is not None:
                yield put_off
            yield 0.05
            if healthy:
                late.append(now - began)
                circuits.succeeded(BAD)
                return
            circuits.failed(BAD, call, now)
            yield random.uniform(1, 10)

    now = 0.0
    order = count()
    queue = [(random.random(), next(order), tries(job)) for job in range(broken)]
    queue += [(60.0 * turn, next(order), tries(broken + turn)) for turn in range(1, 10)]
    heapq.heapify(queue)
    while len(late) < 9:
        now, _, job = heapq.heappop(queue)
        wait = next(job, None)
        if wait is not None:
            heapq.heappush(queue, (now + wait, next(order), job))
    assert max(late) <= MAX_WAIT_SECONDS + 3


def test_open_circuits_are_listed_and_closed_ones_are_not(circuits: Circuits) -> None:
    circuits.failed(GOOD, next(CALLS), 0.0)
    assert list(circuits.open()) == []
    fail(circuits, FAILURES, now=100.0)
    (open_target,) = circuits.open()
    assert (open_target.target, open_target.failures) == (BAD, FAILURES)
    assert open_target.since == 100.0 - OVER_SECONDS * (FAILURES - 1)
    assert open_target.until == 100.0 + FIRST_PAUSE_SECONDS
    circuits.succeeded(BAD)
    assert list(circuits.open()) == []
