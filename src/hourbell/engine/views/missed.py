"""missed: stretches of missed occurrences, expanded to one entry per occurrence.

The ledger keeps a stretch as one row: its first occurrence, its last and their number. The
occurrences between are recomputed from the schedule of the job. A stretch stays one entry if the
schedule gives a different number of occurrences, because it was changed since or because some
occurrences have ledger entries of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from hourbell.documents.schedules import timetable_of
from hourbell.engine.views.pages import NEWEST
from hourbell.model.executions import Execution
from hourbell.model.jobs import Job
from hourbell.model.schedules import Once
from hourbell.timing.errors import TimingError
from hourbell.timing.rules import Rule, between, compile_rule

MAX_COMPUTED = 20_000  # occurrences for one page, and of one stretch: about 0.2 s

Position = tuple[datetime, int]  # the time and id of an entry: lists go down from the highest


def expand_stretches(
    job: Job, entries: Sequence[Execution], before: Position, limit: int
) -> tuple[list[Execution], Position | None]:
    """Entries, newest first, one per missed occurrence: at most `limit`, all before a position.

    The second value is set if there may be more: everything from there up is among the entries.
    """
    rule = _rule(job)
    computed = 0
    found: list[Execution] = []
    for entry in entries:
        if computed and computed + (entry.missed or 0) > MAX_COMPUTED:
            return found, (entry.missed_through or entry.scheduled_for, NEWEST)
        computed += entry.missed or 0
        occurrences = _occurrences(rule, entry)
        if not occurrences:
            found.append(entry)
        for at in reversed(occurrences):
            if (at, entry.execution_id) >= before:
                continue
            found.append(replace(entry, scheduled_for=at, missed=1, missed_through=at))
            if len(found) == limit:
                return found, (at, entry.execution_id)
    return found, None


def _rule(job: Job) -> Rule | None:
    assert not isinstance(job.schedule, Once)
    try:
        timetable = timetable_of(job.schedule, job.job_id)
        return compile_rule(
            timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap
        )
    except TimingError:  # its zone is unknown on this node
        return None


def _occurrences(rule: Rule | None, entry: Execution) -> list[datetime]:
    """The occurrences of a missed stretch; empty if it is no stretch or cannot be computed."""
    if rule is None or entry.missed is None or entry.missed > MAX_COMPUTED:
        return []
    assert entry.missed_through is not None
    just_before = entry.scheduled_for - timedelta(microseconds=1)
    found = between(rule, just_before, entry.missed_through, entry.missed + 1)
    return found if len(found) == entry.missed else []
