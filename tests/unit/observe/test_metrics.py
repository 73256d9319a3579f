"""Metrics in the text format of Prometheus."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exposition import parsed
from hourbell.observe import metrics as module
from hourbell.observe.metrics import SECONDS, Distribution, LargestValues, Metrics, set_all


def test_counters_gauges_and_histograms_are_rendered() -> None:
    metrics = Metrics()
    outcomes = metrics.counter("hourbell_outcomes_total", "Outcomes.", ("status", "reason"))
    outcomes.series("DEAD", "lost").add()
    outcomes.series("DEAD", "lost").add(2)
    metrics.gauge("hourbell_epoch", "Epoch of the leader.").series().set(41)
    delay = metrics.histogram("hourbell_delay_seconds", "Delay.", bounds=(0.1, 1.0)).series()
    for seconds in (0.05, 0.1, 0.5, 7.0):
        delay.observe(seconds)
    assert metrics.render().decode().splitlines() == [
        "# HELP hourbell_outcomes_total Outcomes.",
        "# TYPE hourbell_outcomes_total counter",
        'hourbell_outcomes_total{status="DEAD",reason="lost"} 3',
        "# HELP hourbell_epoch Epoch of the leader.",
        "# TYPE hourbell_epoch gauge",
        "hourbell_epoch 41",
        "# HELP hourbell_delay_seconds Delay.",
        "# TYPE hourbell_delay_seconds histogram",
        'hourbell_delay_seconds_bucket{le="0.1"} 2',
        'hourbell_delay_seconds_bucket{le="1"} 3',
        'hourbell_delay_seconds_bucket{le="+Inf"} 4',
        "hourbell_delay_seconds_sum 7.65",
        "hourbell_delay_seconds_count 4",
    ]


@given(st.text())
def test_any_value_of_a_label_can_be_read_back(value: str) -> None:
    metrics = Metrics()
    metrics.gauge("hourbell_depth", "Depth.", ("queue",)).series(value).set(1)
    assert parsed(metrics.render().decode())["hourbell_depth"].value(queue=value) == 1


def test_what_finds_no_place_is_counted_together() -> None:
    metrics = Metrics()
    starts = metrics.counter("hourbell_starts_total", "Starts.", ("tenant",), max_series=2)
    for number in range(10):
        starts.series(f"tenant-{number}").add()
        starts.series("tenant-0").add()
    assert parsed(metrics.render().decode())["hourbell_starts_total"].values("tenant") == {
        "tenant-0": 11,
        "tenant-1": 1,
        "other": 8,
    }


@given(st.lists(st.integers(-100, 5_000_000)), st.sampled_from([0, 64, -64]))
def test_many_observations_at_once_are_the_same_as_one_by_one(
    numbers: list[int], offset: int
) -> None:
    values = [number / 1024 for number in numbers]  # of which sums are exact
    together, one_by_one = Distribution(SECONDS), Distribution(SECONDS)
    for value in values:
        one_by_one.observe(max(value, 0.0))
    together.observe_all([value - offset for value in values], offset)
    assert [*together.samples()][:-2] == [*one_by_one.samples()][:-2]
    assert together.count == one_by_one.count == len(values)
    assert together.sum == pytest.approx(one_by_one.sum)


def test_gauges_that_are_not_set_again_become_0_and_stay() -> None:
    metrics = Metrics()
    depth = metrics.gauge("hourbell_depth", "Depth.", ("queue",))
    set_all(depth, {("mail",): 3, ("default",): 4})
    set_all(depth, {("default",): 5})
    assert parsed(metrics.render().decode())["hourbell_depth"].values("queue") == {
        "mail": 0,
        "default": 5,
    }


def test_a_metric_that_is_declared_twice_is_one() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.counter("hourbell_starts_total", "Starts.").series().add()
    assert parsed(metrics.render().decode())["hourbell_starts_total"].value() == 2
    with pytest.raises(AssertionError):
        metrics.counter("hourbell_starts_total", "Starts.", ("tenant",))


# Tenants.


def counted(batches: list[dict[str, int]]) -> list[dict[str, float]]:
    """What is shown after each batch."""
    metrics = Metrics()
    starts = LargestValues(metrics.counter("hourbell_starts_total", "Starts.", ("tenant",)))
    seen = []
    for batch in batches:
        starts.add(batch)
        seen.append(parsed(metrics.render().decode())["hourbell_starts_total"].values("tenant"))
    return seen


def test_a_few_tenants_have_series_of_their_own() -> None:
    batch = {f"tenant-{number}": number for number in range(1, module.FIRST_TENANTS + 1)}
    assert counted([batch]) == [batch]


def test_a_large_tenant_that_comes_late_gets_a_series_and_a_small_one_does_not() -> None:
    first = {f"tenant-{number}": 100 for number in range(module.FIRST_TENANTS)}
    *_, last = counted([first, {"small": 1}, {"large": 15}, {"large": 100}, {"large": 100}])
    assert last["large"] == 200  # from the time on at which it was large
    assert last["other"] == 16
    assert "small" not in last
    assert sum(last.values()) == 2216


def test_no_more_tenants_than_the_maximum_have_series_and_no_counter_decreases() -> None:
    batches = [{f"tenant-{number}": 10 ** (number // 20)} for number in range(120)]
    seen = counted(batches)
    assert len(seen[-1]) == module.MAX_TENANTS + 1
    assert sum(seen[-1].values()) == sum(sum(batch.values()) for batch in batches)
    for before, after in pairwise(seen):
        assert all(after[tenant] >= count for tenant, count in before.items())
