"""Judgements of when things happened, by what was broken then: not late, and in a fair order."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.case import RigCase, Start
from verify.ends import is_stuck
from verify.promise import CRITICAL, LOW, Violation, percentile

# I3


def nothing_is_late(case: RigCase) -> Iterator[Violation]:
    """Late by what was broken and a failover at most; and hardly at all while nothing is broken.

    Counted from when the client had its answer, if that was after the time: before, there was
    nothing to be late for. What may have to wait for another run is not counted, nor are retries.
    """
    for start in case.starts:
        allowed = case.allowed(start.story, start.due_at, start.started_at)
        if _waits_behind_a_herd(case, start):
            allowed += case.promise.herd_seconds
        if start.late > allowed:
            yield Violation("I3", _says_late(case, start, allowed))
    for job_id, stretches in case.missed.items():
        story = case.stories.get(job_id)
        for ended in stretches:
            waited = ended.recorded_at - ended.scheduled_for
            if waited > case.explained(story, ended.scheduled_for, ended.recorded_at):
                yield Violation(
                    "I3",
                    f"{ended.execution_id} of {ended.job_id}: {ended.missed} occurrences from"
                    f" {case.when(ended.scheduled_for)} were recorded as missed {waited:.3f} s"
                    " later, and"
                    " nothing was broken for so long",
                )
    yield from _are_prompt(case, "I3", calm_starts(case), "while nothing was broken")


def calm_starts(case: RigCase) -> list[Start]:
    """Those that waited while all was well, and no herd was there."""
    return [start for start in case.starts if _is_calm(case, start) and not case.herds_met(start)]


def _is_calm(case: RigCase, start: Start) -> bool:
    """Whether its wait touches no fault and no aftermath of one."""
    return not case.unrest.touches(start.due_at - 1.0, start.started_at)


def _are_prompt(
    case: RigCase, invariant: str, starts: list[Start], circumstance: str
) -> Iterator[Violation]:
    if not starts:
        return
    late = percentile([start.late for start in starts], 99)
    allowed = case.promise.calm_p99_seconds + case.promise.shared_seconds
    if late > allowed:
        worst = max(starts, key=lambda start: start.late)
        yield Violation(
            invariant,
            f"the 99th percentile of the lateness of {len(starts)} executions {circumstance} is"
            f" {late:.3f} s;"
            f" the worst: {_says_late(case, worst, allowed)}",
        )


def _are_not_kept(
    case: RigCase, invariant: str, starts: list[Start], where: str
) -> Iterator[Violation]:
    """By a herd: they are as late as what was broken explains, and no later."""
    for start in starts:
        allowed = case.allowed(start.story, start.due_at, start.started_at)
        if start.late > allowed:
            yield Violation(invariant, f"{where}: {_says_late(case, start, allowed)}")


def _says_late(case: RigCase, start: Start, allowed: float) -> str:
    return (
        f"{case.what(start.row)} could run from {case.when(start.due_at)} and was started at"
        f" {case.when(start.started_at)}, {start.late:.3f} s late; {allowed:.3f} s are allowed"
    )


def _waits_behind_a_herd(case: RigCase, start: Start) -> bool:
    """In it, behind it because it is the tenant's own, or because it goes first."""
    if start.story.is_herd:
        return True
    return any(
        tenant == start.story.tenant or priority < start.priority
        for tenant, priority in case.herds_met(start)
    )


# I13, second half


def tenants_are_served_fairly(case: RigCase) -> Iterator[Violation]:
    """A herd of one tenant does not keep those of others that are as urgent."""
    waited = neighbours(case)
    yield from _are_not_kept(case, "I13", waited, "beside a herd")
    calm = [start for start in waited if _is_calm(case, start)]
    yield from _are_prompt(case, "I13", calm, "beside a herd of another tenant")


def neighbours(case: RigCase) -> list[Start]:
    """Those that a herd of another tenant, no more urgent, must not keep."""
    return [
        start for start in case.starts if not start.story.is_herd and _is_a_neighbour(case, start)
    ]


def _is_a_neighbour(case: RigCase, start: Start) -> bool:
    met = case.herds_met(start)
    return bool(met) and all(
        tenant != start.story.tenant and priority >= start.priority for tenant, priority in met
    )


# I16


def priorities_are_respected(case: RigCase) -> Iterator[Violation]:
    """CRITICAL does not wait behind what is less urgent, and LOW gets its turn too."""
    met = urgent(case)
    yield from _are_not_kept(case, "I16", met, "CRITICAL behind a herd")
    calm = [start for start in met if _is_calm(case, start)]
    yield from _are_prompt(case, "I16", calm, "that are CRITICAL, behind a herd,")
    for row in case.rows:
        story = case.stories.get(row.job_id)
        if story is not None and story.priority == LOW and is_stuck(case, row):
            yield Violation("I16", f"{case.what(row)} is LOW, and {row.state}: it got no turn")


def urgent(case: RigCase) -> list[Start]:
    """What is CRITICAL and met a herd that is not."""
    return [
        start
        for start in case.starts
        if start.priority == CRITICAL
        and not start.story.is_herd
        and any(priority > CRITICAL for _, priority in case.herds_met(start))
    ]
