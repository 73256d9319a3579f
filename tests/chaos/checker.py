"""An independent judge of a run of the chaos rig.

It gets what was recorded outside of the system (what the client asked and heard, what the webhook
receiver saw, what the rig broke, what the operating system says) and one dump of the database at
the end, and holds the one against the other. It knows what was promised and nothing of how the
promise is kept: no line of the product is used here, and when a job should have run is worked out
by the oracle of the simulation.

    check(history, promise)     the violations: one function a promise, I1 to I18 as in the issue
    figures(history, promise)   what the run was like: faults, duplicates, failovers, lateness

Two rules run through all of it. Where people and the system act at the same moment, both orders are
right: a change counts as made from its answer on, and as not yet made until it was asked for. And a
fault excuses what it can explain, of those whom it hit (`checks_faults`), as long as it lasts and
for one failover afterwards, and nothing else. The margins have names, in `Promise`.

A run that cannot be judged is not a good run: evidence that is incomplete is the violation I0, and
the only one then. So is a long run in which there was too little calm, or nobody beside a herd.

The judgements are in `checks_occurrences` (I1, I2, I11, I12, I13), `checks_times` (I3, I4, I9, I13,
I16), `checks_attempts` (I5 to I8) and `checks_system` (I10, I14, I15, I18). They look at a `Case`,
the evidence put in order (`checks_case`), in which every job has its story (`checks_stories`). What
an asynchronous standby may cost is left out before (`amnesty`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from chaos.amnesty import without_what_may_be_lost
from chaos.checks_attempts import (
    attempts_are_as_promised,
    duplicates,
    duplicates_come_from_faults,
    fences_only_rise,
    leases_exclude_each_other,
    met_others,
)
from chaos.checks_case import Case
from chaos.checks_occurrences import (
    creates_are_idempotent,
    nothing_acknowledged_is_lost,
    nothing_is_spurious,
    occurrences_have_one_row,
    required,
    tenants_are_apart,
)
from chaos.checks_promise import LOST, Lists, Promise, Violation, percentile
from chaos.checks_system import (
    counts_agree,
    last_counts,
    nothing_is_stuck,
    resources_stay_flat,
    there_is_one_leader,
)
from chaos.checks_times import (
    calm_starts,
    neighbours,
    nothing_is_early,
    nothing_is_late,
    pauses_and_deletes_are_respected,
    priorities_are_respected,
    tenants_are_served_fairly,
    urgent,
)
from chaos.history import History

__all__ = ["Figures", "Promise", "Violation", "check", "figures"]

Judgement = Callable[[Case], Iterator[Violation]]

JUDGEMENTS: tuple[Judgement, ...] = (
    nothing_acknowledged_is_lost,  # I1
    occurrences_have_one_row,  # I2
    nothing_is_late,  # I3
    nothing_is_early,  # I4
    leases_exclude_each_other,  # I5
    fences_only_rise,  # I6
    duplicates_come_from_faults,  # I7
    attempts_are_as_promised,  # I8
    pauses_and_deletes_are_respected,  # I9
    nothing_is_stuck,  # I10
    nothing_is_spurious,  # I11
    creates_are_idempotent,  # I12
    tenants_are_apart,  # I13
    tenants_are_served_fairly,  # I13
    there_is_one_leader,  # I14
    counts_agree,  # I15
    priorities_are_respected,  # I16
    resources_stay_flat,  # I18
)


def check(history: History, promise: Promise) -> list[Violation]:
    """Everything in this run that breaks a promise."""
    case = _case(history, promise)
    missing = list(what_is_missing(case))
    if missing:
        return [Violation("I0", f"the evidence is incomplete: {what}") for what in missing]
    return [violation for judgement in JUDGEMENTS for violation in judgement(case)]


def _case(history: History, promise: Promise) -> Case:
    amnesty = without_what_may_be_lost(history, promise)
    return Case(amnesty.history, promise, amnesty.forgiven)


def what_is_missing(case: Case) -> Iterator[str]:
    """Without these, silence would pass for peace."""
    history, phases = case.history, case.phases
    absent = [name for name in ("loaded", "healed", "quiet", "ended") if name not in phases]
    if absent:
        yield f"there is no phase {' and no '.join(absent)}"
        return
    for one, other in (
        ("loaded", "healed"),
        ("loaded", "quiet"),
        ("healed", "ended"),
        ("quiet", "ended"),
    ):
        if phases[one] > phases[other]:
            yield f"the phase {one} comes after {other}"
    if case.dump.at < phases["ended"] - case.promise.clock_seconds:
        yield f"the dump of {case.when(case.dump.at)} was made before the run had ended"
    for fault in history.faults:
        named = f"the {fault.kind} of {fault.victim}"
        if fault.ended_at < fault.began_at:
            yield f"{named} ends before it begins, at {case.when(fault.began_at)}"
        if fault.ended_at > phases["healed"] + case.promise.clock_seconds:
            yield f"{named} lasts until {case.when(fault.ended_at)}, after healing"
    if not case.stories:
        yield "no creation of a job was acknowledged"
    if not case.deliveries:
        yield "nothing was delivered"
    if case.promise.http_workers and not met_others(case):
        yield "no counted run was handed to a worker over HTTP that still ran another"
    if case.stories and not any(list(required(case, s)) for s in case.stories.values()):
        yield "no recurring job was due even once"
    if not history.samples:
        yield "nobody looked at the processes"
    if not history.backends:
        yield "nobody looked at the connections of the database"
    if not case.dump.terms:
        yield "nobody is known to have led"
    for fault in history.faults:
        was_to_lead = fault.kind == "older_tzdata" and fault.victim.startswith("scheduler")
        if was_to_lead and not case.unknown_zones[fault.detail["zone"]]:
            yield f"{fault.victim} never led with its older zone data"
    yield from _what_nobody_noted(case)
    yield from _what_nobody_watched(case)
    if phases["ended"] - phases["loaded"] >= case.promise.judgeable_seconds:
        yield from _what_there_was_no_peace_for(case)
    uncounted = {story.tenant for story in case.stories.values()} - set(last_counts(case))
    if uncounted:
        tenants = ", ".join(sorted(uncounted))
        yield f"nobody counted the jobs of {tenants} after the clients had stopped"


def _what_nobody_noted(case: Case) -> Iterator[str]:
    """A leader that renews its lease and writes nothing does not lead, or nobody looks."""
    noted = Lists[int, float]()
    for written in case.dump.written:
        noted.add(written.epoch, written.at)
    for term in case.dump.terms:
        renewed_at = term.ended_at - case.promise.leader_lease_seconds
        times = [term.began_at, *sorted(noted[term.epoch]), renewed_at]
        longest = max(until - since for since, until in pairwise(times))
        most = case.promise.unwatched_seconds
        if not noted[term.epoch]:
            most = case.promise.unnoted_term_seconds
        if longest > most:
            yield f"nobody noted what epoch {term.epoch} ({term.node}) wrote in {longest:.1f} s"


def _what_nobody_watched(case: Case) -> Iterator[str]:
    looks = Lists[str, float]()
    for sample in case.history.samples:
        looks.add(sample.process, sample.at)
    for backends in case.history.backends:
        looks.add("the database", backends.at)
    first, last = case.phases["loaded"], case.phases["ended"]
    for whom, times in looks.items():
        for since, until in pairwise([first, *sorted(times), last]):
            if until - since > case.promise.unwatched_seconds:
                yield f"nobody looked at {whom} from {case.when(since)} to {case.when(until)}"


def _what_there_was_no_peace_for(case: Case) -> Iterator[str]:
    """What is judged only in calm, or only beside a herd, must have happened."""
    calm, least = len(calm_starts(case)), case.promise.least_calm_starts
    if calm < least:
        yield f"only {calm} executions started while all was well; {least} are needed"
    if not any(fault.kind == "herd" for fault in case.history.faults):
        return
    if not neighbours(case):
        yield "nobody waited beside a herd of another tenant"
    if not urgent(case):
        yield "nothing CRITICAL met a herd"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was like: how much there was to judge, and how it went."""

    seed: int
    minutes: float
    jobs: int  # acknowledged
    occurrences: int  # that had to have a record
    executions: int
    deliveries: int
    handed_over_http: int  # of these
    faults: dict[str, int]  # by kind
    duplicates: int
    leases_lost: int
    terms: int
    longest_without_leader_seconds: float
    calm_starts: int
    calm_late_p50_seconds: float
    calm_late_p99_seconds: float
    latest_seconds: float  # whatever was broken


def figures(history: History, promise: Promise) -> Figures:
    """For the reports; of a history that was checked."""
    case = _case(history, promise)
    calm = [start.late for start in calm_starts(case)]
    terms = sorted(case.dump.terms, key=lambda term: term.epoch)
    gaps = [other.began_at - one.ended_at for one, other in pairwise(terms)]
    attempts = [a for row in case.rows if row.ended for a in row.ended.attempts]
    return Figures(
        seed=history.seed,
        minutes=(case.phases["ended"] - case.phases["loaded"]) / 60,
        jobs=len(case.stories),
        occurrences=sum(len(list(required(case, story))) for story in case.stories.values()),
        executions=len(case.rows),
        deliveries=len(case.deliveries),
        handed_over_http=sum(delivery.worker is not None for delivery in case.deliveries),
        faults=dict(Counter(fault.kind for fault in history.faults)),
        duplicates=len(duplicates(case)),
        leases_lost=sum(attempt.reason in LOST for attempt in attempts),
        terms=len(terms),
        longest_without_leader_seconds=max(gaps, default=0.0),
        calm_starts=len(calm),
        calm_late_p50_seconds=percentile(calm or [0.0], 50),
        calm_late_p99_seconds=percentile(calm or [0.0], 99),
        latest_seconds=max((start.late for start in case.starts), default=0.0),
    )
