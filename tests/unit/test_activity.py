"""How the counts of minutes become an overview."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourbell.engine.leader.activity import FINAL_AFTER, MINUTE, Counted, due_minutes
from hourbell.engine.views.activity import Lateness, percentiles, summarize

NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("per_second", "expected"),
    [
        (100, [0, 10, 20, 30, 40, 50, 70]),
        # Counts that are repeated read no more than 20,000 outcomes per second.
        (30_000, [0, 10, 30, 80]),
        (60_000, [0, 10, 40, 160]),
    ],
)
def test_a_minute_is_counted_while_it_lasts_once_after_its_end_and_once_for_good(
    per_second: int, expected: list[int]
):
    counted: dict[datetime, Counted] = {}
    counts = []
    for second in range(0, 300, 10):  # as often as the leader counts
        now = NOON + timedelta(seconds=second)
        for minute in due_minutes(NOON, now, counted):
            lasted = min(now - minute, MINUTE).total_seconds()
            counted[minute] = Counted(now, int(lasted * per_second))
            if minute == NOON and not (now >= NOON + MINUTE + FINAL_AFTER):
                counts.append(second)
        if now >= NOON + MINUTE + FINAL_AFTER:
            break
    assert counts == expected
    assert now == NOON + timedelta(minutes=3)


def test_after_a_time_without_a_leader_every_minute_is_counted():
    now = NOON + timedelta(minutes=90, seconds=2)
    assert due_minutes(NOON, now, {}) == [
        NOON + k * MINUTE for k in range(91) if k != 89
    ]  # reports of the minute before may still arrive


def test_percentiles_are_those_of_the_classes():
    assert percentiles([0] * 24) is None
    assert percentiles([]) is None
    only = [0] * 24
    only[3] = 100  # from 4 to 8 ms
    assert percentiles(only) == Lateness(6.0, 7.8, 8.0)
    mixed = [90, *[0] * 22, 10]
    lateness = percentiles(mixed)
    assert lateness is not None
    assert lateness.p50 < 1
    assert lateness.p95 > 2**22


@given(st.lists(st.integers(0, 1000), min_size=24, max_size=24).filter(any))
def test_percentiles_rise_and_lie_within_the_classes_that_have_any(classes: list[int]):
    lateness = percentiles(classes)
    assert lateness is not None
    low = min(k for k in range(24) if classes[k])
    high = max(k for k in range(24) if classes[k])
    assert lateness.p50 <= lateness.p95 <= lateness.p99
    assert (0 if low == 0 else 2 ** (low - 1)) <= lateness.p50
    assert lateness.p99 <= 2**high


def test_starts_go_by_their_minute_and_ends_by_theirs():
    rows = [
        row(NOON, succeeded=2, started_in=[NOON - MINUTE, NOON], starts=[1, 1]),
        row(NOON + MINUTE, dead=1, failed=1, started_in=[NOON], starts=[1]),
    ]
    now = NOON + MINUTE + timedelta(seconds=30)
    found = summarize(rows, NOON, MINUTE, now, {NOON + MINUTE: 4}, NOON, None)
    assert [bucket.at for bucket in found.series] == [NOON, NOON + MINUTE]
    assert [bucket.figures.started for bucket in found.series] == [2, 4]
    assert [bucket.figures.succeeded for bucket in found.series] == [2, 0]
    assert [bucket.figures.dead for bucket in found.series] == [0, 1]
    assert found.totals.started == 6
    assert found.complete_until == NOON + MINUTE


def test_a_long_window_has_buckets_of_five_minutes():
    rows = [row(NOON + k * MINUTE, succeeded=1) for k in range(10)]
    now = NOON + timedelta(minutes=9, seconds=30)
    found = summarize(rows, NOON, timedelta(minutes=5), now, {}, None, None)
    assert [bucket.figures.succeeded for bucket in found.series] == [5, 5]


def test_a_tenant_sees_its_own_starts_and_nothing_else():
    rows = [row(NOON, succeeded=9, tenants=[7, 8], tenant_starts=[3, 6], reasons={"lost": 2})]
    found = summarize(rows, NOON, MINUTE, NOON, {}, None, 7)
    assert found.totals.started == 3
    assert found.totals.succeeded is None
    assert found.lateness is None
    assert found.reasons == {}
    assert summarize(rows, NOON, MINUTE, NOON, {}, None, 99).totals.started == 0


@pytest.mark.parametrize(("sampled", "expected"), [([1, 1], False), ([1, 3], True)])
def test_it_is_said_when_a_minute_was_sampled(sampled: list[int], expected: bool):
    rows = [row(NOON + k * MINUTE, sampled=every) for k, every in enumerate(sampled)]
    assert summarize(rows, NOON, MINUTE, NOON + MINUTE, {}, None, None).sampled == expected


def row(minute: datetime, **fields: Any) -> Any:
    numbers = ("succeeded", "failed", "dead", "skipped", "cancelled", "superseded")
    given = {"reasons": json.dumps(fields.pop("reasons", {})), "skips": "[]"}
    empty = {"started_in": [], "starts": [], "tenants": [], "tenant_starts": [], "sampled": 1}
    return (
        {"minute": minute, "lateness": [0] * 24}
        | dict.fromkeys(numbers, 0)
        | empty
        | given
        | fields
    )
