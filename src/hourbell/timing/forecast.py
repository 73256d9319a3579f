"""The next runs of a rule, with a word on what clock changes do to them."""

from datetime import datetime

import msgspec

from hourbell.model.schedules import DstGap, DstOverlap
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import Occurrence, compile_rule
from hourbell.timing.zones import load_zone

MAX_COUNT = 1000


class NextRun(msgspec.Struct, frozen=True):
    """One run to come."""

    utc: datetime
    local: datetime  # the same instant in the rule's zone
    note: str  # what a clock change did to it, or empty


def next_runs(
    rule: str,
    timezone: str,
    from_: datetime,
    count: int,
    dst_gap: DstGap = "run_after",
    dst_overlap: DstOverlap = "once",
) -> list[NextRun]:
    """The first `count` runs strictly after `from_`; fewer if the years run out, never none."""
    if not 1 <= count <= MAX_COUNT:
        raise ValueError(f"count must be from 1 to {MAX_COUNT}")
    compiled = compile_rule(rule, timezone, dst_gap, dst_overlap)
    zone = load_zone(timezone)
    runs: list[NextRun] = []
    occurrence = compiled.next_occurrence(from_)
    while occurrence is not None and len(runs) < count:
        local = occurrence.at.astimezone(zone)
        runs.append(NextRun(occurrence.at, local, _note(occurrence, local)))
        occurrence = compiled.next_occurrence(occurrence.at)
    if not runs:
        raise InvalidRule(
            "expression",
            f"never matches in {timezone} after {from_.isoformat()}: the calendar ends, or clocks "
            "always go forward over that time; choose another time",
        )
    return runs


def _note(occurrence: Occurrence, local: datetime) -> str:
    if occurrence.skipped is not None:
        return f"{_missing(occurrence.skipped)}: that run is skipped"
    match occurrence.kind:
        case "after_gap":
            return f"{_missing(occurrence.wall)}: runs at {_time(local)}"
        case "only_first_copy":
            return f"{_twice(occurrence.wall)}: runs at the first"
        case "first_copy":
            return f"{_twice(occurrence.wall)}: runs at both, this is the first"
        case "second_copy":
            return f"{_twice(occurrence.wall)}: runs at both, this is the second"
        case "plain":
            return ""


def _missing(wall: datetime) -> str:
    return f"{_time(wall)} does not exist on {wall.date()} (clocks go forward)"


def _twice(wall: datetime) -> str:
    return f"{_time(wall)} happens twice on {wall.date()} (clocks go back)"


def _time(moment: datetime) -> str:
    return moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
