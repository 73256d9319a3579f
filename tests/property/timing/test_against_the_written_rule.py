"""The evaluator against the written rule, taken literally: walk along real time and look.

The walk knows nothing of `fold`, bisection or tables. It goes from instant to instant around a
clock change, looks at the clock on the wall, notices when the wall jumps (a gap) and when it shows
what it showed before (an overlap), and does at each step what `docs/time.md` says.
"""

from bisect import bisect_right
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import load_zone
from property.timing.drawn import DrawnRule, rules, zones_and_changes

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


class Step(NamedTuple):
    at: datetime
    wall: datetime
    seen_before: bool
    jumped_over: tuple[datetime, ...]  # wall times that are missing just before this one
    gap: timedelta


@lru_cache(maxsize=256)
def walk(zone: str, start: datetime, end: datetime, stride: timedelta) -> tuple[Step, ...]:
    info = load_zone(zone)
    steps: list[Step] = []
    seen: set[datetime] = set()
    at = start
    while at < end:
        wall = at.astimezone(info).replace(tzinfo=None, fold=0)
        missing: list[datetime] = []
        if steps:
            missing_wall = steps[-1].wall + stride
            while missing_wall < wall:
                missing.append(missing_wall)
                missing_wall += stride
        steps.append(Step(at, wall, wall in seen, tuple(missing), len(missing) * stride))
        seen.add(wall)
        at += stride
    return tuple(steps)


def expected(
    rule: DrawnRule, steps: tuple[Step, ...], dst_gap: DstGap, dst_overlap: DstOverlap
) -> list[datetime]:
    runs: list[datetime] = []
    for step in steps:
        if not rule.fixed_time:
            due = rule.matches(step.wall)
        else:
            due = rule.matches(step.wall) and (not step.seen_before or dst_overlap == "twice")
            if dst_gap == "run_after" and step.gap <= timedelta(hours=3):
                due = due or any(rule.matches(missing) for missing in step.jumped_over)
        if due:
            runs.append(step.at)
    return runs


def check(
    data: st.DataObject,
    rule: DrawnRule,
    zone: str,
    change: datetime,
    steps: tuple[Step, ...],
    dst_gap: DstGap,
    dst_overlap: DstOverlap,
) -> None:
    try:
        compiled = compile_rule(rule.text, zone, dst_gap, dst_overlap)
    except InvalidRule as error:
        assume("never matches" not in error.reason)
        raise
    runs = expected(rule, steps, dst_gap, dst_overlap)
    before_first = steps[0].at - SECOND
    end = steps[-1].at

    found: list[datetime] = []
    at = compiled.next(before_first)
    while at is not None and at <= end:
        found.append(at)
        at = compiled.next(at)
    assert found == runs

    # From any moment between, above all from around the change and inside second copies.
    near = [step.at - change for step in steps if abs(step.at - change) <= timedelta(hours=2)]
    offsets = st.sampled_from(near) | st.timedeltas(before_first - change, end - change)
    for offset in data.draw(st.lists(offsets, min_size=5, max_size=15)):
        after = change + offset
        position = bisect_right(runs, after)
        at = compiled.next(after)
        if position < len(runs):
            assert at == runs[position]
        else:
            assert at is None or at > end


gaps = st.sampled_from(["run_after", "run_after", "skip"])
overlaps = st.sampled_from(["once", "once", "twice"])


def _by_the_minute(zone: str, change: datetime) -> bool:
    info = load_zone(zone)
    around = (change - timedelta(days=3), change + timedelta(days=3))
    offsets = [instant.astimezone(info).utcoffset() for instant in around]
    return not any(offset is None or offset % MINUTE for offset in offsets)


@settings(max_examples=250, deadline=None)
@given(st.data(), rules(six_fields=False), zones_and_changes(), gaps, overlaps)
def test_minute_by_minute_over_days_around_a_change(
    data: st.DataObject,
    rule: DrawnRule,
    zone_and_change: tuple[str, datetime],
    dst_gap: DstGap,
    dst_overlap: DstOverlap,
) -> None:
    zone, change = zone_and_change
    assume(_by_the_minute(zone, change))
    start = change.replace(second=0) - timedelta(hours=26)
    steps = walk(zone, start, start + timedelta(hours=54), MINUTE)
    check(data, rule, zone, change, steps, dst_gap, dst_overlap)


@settings(max_examples=150, deadline=None)
@given(st.data(), rules(six_fields=True), zones_and_changes(), gaps, overlaps)
def test_second_by_second_over_the_hours_around_a_change(
    data: st.DataObject,
    rule: DrawnRule,
    zone_and_change: tuple[str, datetime],
    dst_gap: DstGap,
    dst_overlap: DstOverlap,
) -> None:
    zone, change = zone_and_change
    info = load_zone(zone)
    offsets = [t.astimezone(info).utcoffset() for t in (change - SECOND, change)]
    assert offsets[0] is not None
    assert offsets[1] is not None
    jump = offsets[1] - offsets[0]
    assume(abs(jump) <= timedelta(hours=3))
    start = change - max(-jump, timedelta()) - timedelta(minutes=20)
    steps = walk(zone, start, change + timedelta(hours=1), SECOND)
    check(data, rule, zone, change, steps, dst_gap, dst_overlap)
