"""What the death of a task's own process leads to: a pure decision."""

import pytest

from hourbell.engine.life.settlement import DEAD, RETRY, Settlement, settlement
from hourbell.model.executions import Claimed, Crashed
from hourbell.model.jobs import SentSpec, TaskAction
from hourbell.model.policies import Backoff, Delivery, RetryPolicy

NO_RETRIES = RetryPolicy(max_retries=0, backoff=Backoff.FIXED, initial_delay_seconds=7)


def after(
    left: int, remaining: float | None = None, delivery: Delivery = Delivery.AT_LEAST_ONCE
) -> Settlement:
    claimed = Claimed(1, 1, "default", 1, 5, 0.0, None, "{}")
    spec = SentSpec(
        name="x", action=TaskAction(name="x"), retry_policy=NO_RETRIES, delivery=delivery
    )
    return settlement(claimed, spec, Crashed("it died", left), 0, 10, remaining)


def test_a_crash_is_retried_after_the_delay_of_the_policy_whatever_its_retries() -> None:
    decided = after(left=1)
    assert (decided.kind, decided.delay_seconds, decided.reason) == (RETRY, 7.0, "crashed")


@pytest.mark.parametrize(
    ("decided", "reason"),
    [
        (after(left=0), "crashed"),
        (after(left=5, remaining=7.0), "deadline"),
        (after(left=5, delivery=Delivery.AT_MOST_ONCE), "lost"),
    ],
)
def test_a_crash_is_the_end(decided: Settlement, reason: str) -> None:
    assert (decided.kind, decided.reason, decided.failure) == (DEAD, reason, "crashed")
    assert decided.error == "it died"
