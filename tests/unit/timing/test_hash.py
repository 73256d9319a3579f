"""H: a value of the job's own."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from hourbell.timing.cron import canonical, parse_cron, resolve_hash
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import compile_rule

JOB = 1234567890123456789


def test_the_choice_never_changes() -> None:
    """Written down, because a change would move every job that has an H."""
    assert resolve_hash("H H H H H H", JOB) == "4 2 15 9 1 5"
    assert resolve_hash("H H H H H", JOB) == "2 15 9 1 5"
    assert resolve_hash("H/15 H(9-17) * * H(1-5)", JOB) == "2-59/15 12 * * 4"


def test_what_has_no_hash_is_left_alone() -> None:
    for rule in ("0 2 * * THU", "@monthly", "@hourly", "*/5 * * MARCH *"):
        assert resolve_hash(rule, JOB).split() == rule.split()


def test_jobs_are_spread_evenly_over_every_field() -> None:
    bounds = {"second": (0, 59), "minute": (0, 59), "hour": (0, 23), "day": (1, 28)}
    bounds |= {"month": (1, 12), "day of week": (0, 6)}
    jobs = 12_000
    columns = zip(*(resolve_hash("H H H H H H", job).split() for job in range(jobs)), strict=True)
    for (low, high), column in zip(bounds.values(), columns, strict=True):
        counts = Counter(int(value) for value in column)
        assert set(counts) == set(range(low, high + 1))
        fair = jobs / len(counts)
        # Six standard deviations of a fair choice; the ids are fixed, so this cannot flicker.
        assert all(abs(count - fair) < 6 * fair**0.5 for count in counts.values())


def test_the_choice_for_one_field_says_nothing_about_another() -> None:
    jobs = 60 * 24 * 12
    pairs = Counter(resolve_hash("H H * * *", job) for job in range(jobs))
    assert len(pairs) == 60 * 24
    assert max(pairs.values()) < 12 * 4


def test_every_hash_of_a_field_starts_from_the_same_number() -> None:
    for job in range(50):
        first, second = resolve_hash("H(0-29),H(30-59) * * * *", job).split()[0].split(",")
        assert int(second) - int(first) == 30


@pytest.mark.parametrize(
    ("rule", "starts"),
    [
        ("H/15 * * * *", range(15)),
        ("H(10-50)/8 * * * *", range(10, 18)),
        ("H(3-3) * * * *", [3]),
        ("H(0-4)/1 * * * *", [0]),
    ],
)
def test_steps_begin_within_the_first_step(rule: str, starts: Iterable[int]) -> None:
    texts = {resolve_hash(rule, job) for job in range(300)}
    assert {int(text.partition("-")[0].split()[0]) for text in texts} == set(starts)
    for text in texts:
        assert canonical(text)


def test_a_step_that_is_taken_once_is_a_plain_value() -> None:
    texts = {resolve_hash("H/40 * * * *", job).split()[0] for job in range(500)}
    assert texts == {f"{start}-59/40" for start in range(20)} | {str(n) for n in range(20, 40)}


def test_a_resolved_rule_is_a_fixed_time() -> None:
    assert parse_cron(resolve_hash("H H * * *", JOB)).fixed_time
    assert not parse_cron(resolve_hash("H * * * *", JOB)).fixed_time


def test_day_of_month_stays_in_days_that_every_month_has() -> None:
    for job in range(200):
        rule = compile_rule(resolve_hash("0 0 H 2 *", job), "UTC")
        at = rule.next(datetime(2026, 1, 1, tzinfo=UTC))
        assert at is not None
        assert at.year == 2026


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("H(5-70) * * * *", "minute"),
        ("H(30-10) * * * *", "minute"),
        ("H/0 * * * *", "minute"),
        ("0 H(9-12)/5 * * *", "hour"),
        ("0 0 H(0-5) * *", "day-of-month"),
        ("0 0 * H(1-13) *", "month"),
        ("0 0 * * H(1-7)", "day-of-week"),
        ("H * * *", "expression"),
    ],
)
def test_a_hash_outside_its_field_is_refused(rule: str, field: str) -> None:
    with pytest.raises(InvalidRule) as refusal:
        resolve_hash(rule, JOB)
    assert refusal.value.field == field


@pytest.mark.parametrize("rule", ["HH * * * *", "H-5 * * * *", "H(1) * * * *", "H() * * * *"])
def test_what_only_looks_like_a_hash_is_refused_when_it_is_read(rule: str) -> None:
    with pytest.raises(InvalidRule) as refusal:
        canonical(resolve_hash(rule, JOB))
    assert refusal.value.field == "minute"
