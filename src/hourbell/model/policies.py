"""What happens when a run fails, is missed, overlaps an earlier one, or loses its worker.

All decisions are pure functions: the same policy and events give the same result in a test, in the
simulation and in production.
"""

from enum import IntEnum, StrEnum
from hashlib import blake2b

import msgspec

from hourbell.model.executions import Failed, Reason

MAX_RETRIES = 100
MAX_CRASHES = 100
MAX_RETRY_DELAY_SECONDS = 7 * 86_400
MAX_NON_RETRYABLE = 50  # the same limit applies to `retryable`

DEFAULT_CATCH_UP_WINDOW_SECONDS = 86_400
MAX_CATCH_UP_WINDOW_SECONDS = 30 * 86_400
DEFAULT_CATCH_UP_LIMIT = 100
MAX_CATCH_UP_LIMIT = 1_000


class Priority(IntEnum):
    """Claim order: smaller numbers go first."""

    CRITICAL = 0
    HIGH = 1
    MEDIUM = 2
    LOW = 3


class Misfire(StrEnum):
    """What to do with occurrences that were missed while no scheduler was running."""

    SKIP = "skip"  # missed occurrences are not made up
    LATEST = "latest"  # one run, for the latest missed occurrence
    ALL = "all"  # each within catch_up_window_seconds, at most catch_up_limit of them


class Overlap(StrEnum):
    """What to do when an occurrence is due while an earlier one is live, retries included."""

    ALLOW = "allow"  # both run
    FORBID = "forbid"  # the new one is skipped
    REPLACE = "replace"  # the old one is cancelled
    QUEUE_ONE = "queue_one"  # the new one waits; further ones are skipped


class Delivery(StrEnum):
    """The guarantee for a run whose worker is lost."""

    AT_LEAST_ONCE = "at_least_once"  # it runs again
    AT_MOST_ONCE = "at_most_once"  # it does not run again; there are no retries of any kind


class Backoff(StrEnum):
    """How the delay before a retry grows; see `retry_delay_seconds` for the formulas."""

    FIXED = "FIXED"
    LINEAR = "LINEAR"
    EXPONENTIAL = "EXPONENTIAL"
    EXPONENTIAL_WITH_JITTER = "EXPONENTIAL_WITH_JITTER"
    LIST = "LIST"


class RetryPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often, and after which delays, a failed attempt is retried."""

    max_retries: int = 3  # after the first attempt; 3 retries make 4 attempts
    backoff: Backoff = Backoff.EXPONENTIAL_WITH_JITTER
    initial_delay_seconds: int = 30
    max_delay_seconds: int = 3600
    delays_seconds: tuple[int, ...] | None = None  # LIST only: one delay for each retry
    non_retryable: tuple[str, ...] = ()  # kinds of failure, as in Failed.kind
    retryable: tuple[str, ...] = ()  # final kinds that are retried anyway
    max_crashes: int | None = None  # worker crashes while it ran alone; None: the system's setting


class Retry(msgspec.Struct, frozen=True):
    """Retry, this long after the failure."""

    delay_seconds: float


class Dead(msgspec.Struct, frozen=True):
    """Do not retry."""

    reason: Reason


def decide(
    policy: RetryPolicy,
    attempt: int,
    failure: Failed,
    seed: int,
    remaining_seconds: float | None = None,
) -> Retry | Dead:
    """Decide what happens after this attempt (the first is 1) has failed.

    `remaining_seconds` is the time left until the total deadline, if there is one. If a retry could
    start only after the deadline, the execution is DEAD now. `seed` is the execution's id.
    """
    if is_final(policy, failure):
        return Dead(Reason.NON_RETRYABLE)
    if attempt > policy.max_retries:
        return Dead(Reason.RETRIES_EXHAUSTED)
    if failure.retry_in_seconds is not None:
        delay = min(max(failure.retry_in_seconds, 0.0), MAX_RETRY_DELAY_SECONDS)
    else:
        delay = retry_delay_seconds(policy, attempt, seed, failure.retry_after_seconds)
    if remaining_seconds is not None and delay >= remaining_seconds:
        return Dead(Reason.DEADLINE)
    return Retry(delay)


def is_final(policy: RetryPolicy, failure: Failed) -> bool:
    """Whether this kind of failure is never retried, however many retries are left."""
    if failure.kind in policy.non_retryable:
        return True
    return failure.final and failure.kind not in policy.retryable


def retry_delay_seconds(
    policy: RetryPolicy,
    attempt: int,
    seed: int,
    retry_after_seconds: float | None = None,
) -> float:
    """How long to wait after this attempt (the first is 1) has failed.

    With i = initial_delay_seconds and n = attempt, never above max_delay_seconds:

        FIXED                      i
        LINEAR                     i × n
        EXPONENTIAL                i × 2ⁿ⁻¹
        EXPONENTIAL_WITH_JITTER    from 50% up to 100% of EXPONENTIAL, after the maximum is applied
        LIST                       the n-th delay of the list

    The jitter is a hash of seed and attempt: executions that failed together retry at different
    times, yet the same execution gets the same delay wherever it is computed. As half of a doubled
    delay equals the previous full delay, delays with jitter never shrink before the maximum.

    The delay is at least the target's Retry-After, but never longer than max_delay_seconds or the
    policy's own delay, whichever is longer: a target may slow its callers down, but not block them
    indefinitely.
    """
    own = _own_delay_seconds(policy, attempt, seed)
    # The comparison also ignores NaN.
    if retry_after_seconds is not None and retry_after_seconds > own:
        return min(retry_after_seconds, max(policy.max_delay_seconds, own))
    return own


def _own_delay_seconds(policy: RetryPolicy, attempt: int, seed: int) -> float:
    first, longest = policy.initial_delay_seconds, policy.max_delay_seconds
    match policy.backoff:
        case Backoff.FIXED:
            return float(min(first, longest))
        case Backoff.LINEAR:
            return float(min(first * attempt, longest))
        case Backoff.EXPONENTIAL:
            return float(min(first << attempt - 1, longest))
        case Backoff.EXPONENTIAL_WITH_JITTER:
            full = min(first << attempt - 1, longest)
            return full * (0.5 + 0.5 * _fraction(seed, attempt))
        case Backoff.LIST:
            delays = policy.delays_seconds or (0,)
            return float(delays[min(attempt, len(delays)) - 1])


def _fraction(seed: int, attempt: int) -> float:
    """A deterministic number from 0 up to but not including 1."""
    digest = blake2b(b"%d:%d" % (seed, attempt), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
