import pytest

from hourbell.model.executions import TIMEOUT, Failed, Reason
from hourbell.model.policies import (
    Backoff,
    Dead,
    Priority,
    Retry,
    RetryPolicy,
    decide,
    retry_delay_seconds,
)

FAILURE = Failed("it broke", "RuntimeError")


def delays(policy: RetryPolicy, count: int) -> list[float]:
    return [retry_delay_seconds(policy, attempt, seed=1) for attempt in range(1, count + 1)]


def test_priorities_are_numbered_from_the_most_urgent():
    assert sorted(Priority) == [Priority.CRITICAL, Priority.HIGH, Priority.MEDIUM, Priority.LOW]
    assert [int(priority) for priority in Priority] == [0, 1, 2, 3]


def test_the_defaults_are_a_promise_to_stored_jobs():
    assert RetryPolicy() == RetryPolicy(
        max_retries=3,
        backoff=Backoff.EXPONENTIAL_WITH_JITTER,
        initial_delay_seconds=30,
        max_delay_seconds=3600,
        delays_seconds=None,
        non_retryable=(),
        retryable=(),
    )


def test_fixed_delays_stay_the_same():
    assert delays(RetryPolicy(backoff=Backoff.FIXED), 3) == [30, 30, 30]


def test_linear_delays_grow_by_the_first():
    policy = RetryPolicy(backoff=Backoff.LINEAR, max_delay_seconds=100)
    assert delays(policy, 5) == [30, 60, 90, 100, 100]


def test_exponential_delays_double_up_to_the_maximum():
    policy = RetryPolicy(backoff=Backoff.EXPONENTIAL, max_delay_seconds=200)
    assert delays(policy, 5) == [30, 60, 120, 200, 200]
    assert retry_delay_seconds(policy, 100, seed=1) == 200


def test_a_list_is_followed_as_it_stands():
    policy = RetryPolicy(
        max_retries=3, backoff=Backoff.LIST, delays_seconds=(60, 300, 1800), max_delay_seconds=10
    )
    assert delays(policy, 3) == [60, 300, 1800]


def test_executions_that_failed_together_come_back_apart():
    policy = RetryPolicy()
    spread = {retry_delay_seconds(policy, 1, seed) for seed in range(1000)}
    assert len(spread) == 1000
    assert min(spread) < 15.1
    assert max(spread) > 29.9


def test_the_jitter_is_the_same_on_every_machine():
    assert retry_delay_seconds(RetryPolicy(), 2, seed=42) == pytest.approx(54.385976)


def test_retry_after_is_waited_for_at_least():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=90.5) == 90.5
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=5) == 30
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=0) == 30


def test_retry_after_cannot_park_an_execution_beyond_the_policys_maximum():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=1e9) == 3600
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=float("inf")) == 3600
    longer = RetryPolicy(max_retries=1, backoff=Backoff.LIST, delays_seconds=(7200,))
    assert retry_delay_seconds(longer, 1, 1, retry_after_seconds=1e9) == 7200


def test_a_retry_after_that_is_no_number_changes_nothing():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=float("nan")) == 30
    assert retry_delay_seconds(policy, 1, 1, retry_after_seconds=-1) == 30


def test_three_retries_are_four_attempts():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    decisions = [decide(policy, attempt, FAILURE, seed=1) for attempt in (1, 2, 3, 4)]
    assert decisions == [Retry(30), Retry(30), Retry(30), Dead(Reason.RETRIES_EXHAUSTED)]


def test_without_retries_the_first_failure_is_the_last():
    assert decide(RetryPolicy(max_retries=0), 1, FAILURE, 1) == Dead(Reason.RETRIES_EXHAUSTED)


def test_a_kind_that_is_not_to_be_retried_is_dead_at_once():
    policy = RetryPolicy(non_retryable=(TIMEOUT, "http_404"))
    assert decide(policy, 1, Failed("gone", "http_404"), 1) == Dead(Reason.NON_RETRYABLE)
    assert decide(policy, 1, Failed("slow", TIMEOUT), 1) == Dead(Reason.NON_RETRYABLE)
    assert isinstance(decide(policy, 1, Failed("busy", "http_503"), 1), Retry)


def test_a_retry_beyond_the_total_deadline_is_not_waited_for():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    assert decide(policy, 1, FAILURE, 1, remaining_seconds=30.0) == Dead(Reason.DEADLINE)
    assert decide(policy, 1, FAILURE, 1, remaining_seconds=-5.0) == Dead(Reason.DEADLINE)
    assert decide(policy, 1, FAILURE, 1, remaining_seconds=30.1) == Retry(30)


def test_what_the_target_asked_for_counts_against_the_deadline():
    policy = RetryPolicy(backoff=Backoff.FIXED)
    slow = Failed("busy", "http_503", retry_after_seconds=120)
    assert decide(policy, 1, slow, 1, remaining_seconds=100.0) == Dead(Reason.DEADLINE)
    assert decide(policy, 1, slow, 1, remaining_seconds=None) == Retry(120)
