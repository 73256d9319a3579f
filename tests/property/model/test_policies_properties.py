from hypothesis import given
from hypothesis import strategies as st

from hourbell.model.executions import Failed, Reason
from hourbell.model.policies import (
    MAX_RETRIES,
    MAX_RETRY_DELAY_SECONDS,
    Backoff,
    Dead,
    Retry,
    RetryPolicy,
    decide,
    retry_delay_seconds,
)

DELAYS = st.integers(0, MAX_RETRY_DELAY_SECONDS)
FORMULAS = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, MAX_RETRIES),
    backoff=st.sampled_from([backoff for backoff in Backoff if backoff is not Backoff.LIST]),
    initial_delay_seconds=DELAYS,
    max_delay_seconds=DELAYS,
)
LISTS = st.lists(DELAYS, min_size=1, max_size=MAX_RETRIES).map(
    lambda delays: RetryPolicy(len(delays), Backoff.LIST, delays_seconds=tuple(delays))
)
ATTEMPTS = st.integers(1, MAX_RETRIES + 1)
SEEDS = st.integers(0, 2**63 - 1)
RETRY_AFTER = st.none() | st.floats()


@given(FORMULAS, ATTEMPTS, SEEDS)
def test_a_delay_never_exceeds_the_maximum(policy: RetryPolicy, attempt: int, seed: int):
    assert 0 <= retry_delay_seconds(policy, attempt, seed) <= policy.max_delay_seconds


@given(FORMULAS | LISTS, ATTEMPTS, SEEDS, RETRY_AFTER)
def test_retry_after_lengthens_a_delay_within_bounds(
    policy: RetryPolicy, attempt: int, seed: int, retry_after: float | None
):
    own = retry_delay_seconds(policy, attempt, seed)
    delay = retry_delay_seconds(policy, attempt, seed, retry_after)
    longest = max(policy.max_delay_seconds, own)
    assert own <= delay <= longest
    if retry_after is not None and retry_after <= longest:
        assert delay >= retry_after


@given(
    FORMULAS.filter(lambda policy: policy.backoff is not Backoff.EXPONENTIAL_WITH_JITTER),
    st.integers(1, MAX_RETRIES),
    SEEDS,
)
def test_delays_without_jitter_never_shrink(policy: RetryPolicy, attempt: int, seed: int):
    now, later = (retry_delay_seconds(policy, n, seed) for n in (attempt, attempt + 1))
    assert now <= later


@given(DELAYS, st.integers(1, 20), SEEDS)
def test_delays_with_jitter_do_not_shrink_until_they_reach_the_maximum(
    longest: int, attempt: int, seed: int
):
    policy = RetryPolicy(
        backoff=Backoff.EXPONENTIAL_WITH_JITTER,
        initial_delay_seconds=longest >> attempt,  # so that the next delay still fits
        max_delay_seconds=longest,
    )
    now, later = (retry_delay_seconds(policy, n, seed) for n in (attempt, attempt + 1))
    assert now <= later


@given(FORMULAS, ATTEMPTS, SEEDS)
def test_jitter_takes_at_most_half(policy: RetryPolicy, attempt: int, seed: int):
    def with_backoff(backoff: Backoff) -> float:
        same = RetryPolicy(
            backoff=backoff,
            initial_delay_seconds=policy.initial_delay_seconds,
            max_delay_seconds=policy.max_delay_seconds,
        )
        return retry_delay_seconds(same, attempt, seed)

    whole = with_backoff(Backoff.EXPONENTIAL)
    assert whole / 2 <= with_backoff(Backoff.EXPONENTIAL_WITH_JITTER) <= whole


@given(FORMULAS | LISTS, SEEDS, RETRY_AFTER)
def test_an_execution_that_always_fails_has_one_attempt_more_than_retries(
    policy: RetryPolicy, seed: int, retry_after: float | None
):
    failure = Failed("again", "RuntimeError", retry_after)
    attempt = 1
    while isinstance(decide(policy, attempt, failure, seed), Retry):
        attempt += 1
    assert attempt == policy.max_retries + 1
    assert decide(policy, attempt, failure, seed) == Dead(Reason.RETRIES_EXHAUSTED)


@given(LISTS, SEEDS)
def test_a_list_is_followed_to_its_end(policy: RetryPolicy, seed: int):
    failure = Failed("again", "RuntimeError")
    decisions = [decide(policy, n, failure, seed) for n in range(1, policy.max_retries + 1)]
    assert decisions == [Retry(float(delay)) for delay in policy.delays_seconds or ()]


@given(FORMULAS | LISTS, ATTEMPTS, SEEDS, st.floats(-1e6, 1e6))
def test_no_retry_begins_after_the_total_deadline(
    policy: RetryPolicy, attempt: int, seed: int, remaining: float
):
    decision = decide(policy, attempt, Failed("x", "y"), seed, remaining)
    assert isinstance(decision, Dead) or decision.delay_seconds < remaining
