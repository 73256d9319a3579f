"""The judge of a run of the chaos rig: what `verify.judge` knows, and what only the rig can know.

    check(history, promise)     the violations: one function a promise, I1 to I20
    figures(history, promise)   what the run was like: faults, duplicates, failovers, lateness

A fault excuses what it can explain, of those whom it hit (`checks_faults`), as long as it lasts and for one failover
afterwards, and nothing else (`case`). What an asynchronous standby may cost is left out before (`amnesty`). What happened
while the database's clock was off is judged by what needs no clock: that nothing is lost, doubled or stuck.

A run that cannot be judged is not a good run: evidence that is incomplete is the violation I0, and
the only one then. So is a long run in which there was too little calm, or nobody beside a herd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec

from chaos.amnesty import without_what_a_clock_confused, without_what_may_be_lost
from chaos.case import RigCase
from chaos.checks_attempts import (
    deliveries_are_recorded,
    duplicates,
    duplicates_come_from_faults,
    leases_run_out,
    met_others,
    tasks_go_to_workers_that_name_them,
)
from chaos.checks_clockless import CLOCKLESS
from chaos.checks_system import (
    last_counts,
    resources_stay_flat,
    there_is_one_leader,
)
from chaos.checks_times import (
    calm_starts,
    neighbours,
    nothing_is_late,
    priorities_are_respected,
    tenants_are_served_fairly,
    urgent,
)
from chaos.keys import keys_have_one_holder, without_keyed
from verify.history import History
from verify.judge import judge
from verify.occurrences import required
from verify.promise import LOST, Lists, Promise, Violation, percentile

__all__ = ["Figures", "Promise", "Violation", "check", "figures"]

JUDGEMENTS: tuple[Callable[[RigCase], Iterator[Violation]], ...] = (
    nothing_is_late,  # I3
    leases_run_out,  # I5
    duplicates_come_from_faults,  # I7
    deliveries_are_recorded,  # I8
    tenants_are_served_fairly,  # I13
    there_is_one_leader,  # I14
    priorities_are_respected,  # I16
    resources_stay_flat,  # I18
    tasks_go_to_workers_that_name_them,  # I20
)


def check(history: History, promise: Promise) -> list[Violation]:
    """Everything in this run that breaks a promise."""
    case = _case(history, promise)
    missing = list(what_is_missing(case))
    if missing:
        return [Violation("I0", f"the evidence is incomplete: {what}") for what in missing]
    found = judge(_timely(case), JUDGEMENTS)
    found += [violation for judgement in CLOCKLESS for violation in judgement(case)]
    found += keys_have_one_holder(history)
    return list(dict.fromkeys(found))  # some are of both cases


def _case(history: History, promise: Promise) -> RigCase:
    amnesty = without_what_may_be_lost(without_keyed(history), promise)
    return RigCase(amnesty.history, promise, amnesty.forgiven)


def _timely(case: RigCase) -> RigCase:
    """What happened while all clocks agreed."""
    amnesty = without_what_a_clock_confused(case.history, case.promise)
    if amnesty.history is case.history:
        return case
    return RigCase(amnesty.history, case.promise, case.forgiven | amnesty.forgiven)


def what_is_missing(case: RigCase) -> Iterator[str]:
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
    if _length(case) >= case.promise.judgeable_seconds:
        yield from _what_there_was_no_peace_for(case)
    uncounted = {story.tenant for story in case.stories.values()} - set(last_counts(case))
    if uncounted:
        tenants = ", ".join(sorted(uncounted))
        yield f"nobody counted the jobs of {tenants} after the clients had stopped"


def _length(case: RigCase) -> float:
    """The seconds of a run without its upgrades, which take as long as all processes take to start."""
    upgrades = (f for f in case.history.faults if f.kind == "rolling_upgrade")
    whole = case.phases["ended"] - case.phases["loaded"]
    return whole - sum(upgrade.ended_at - upgrade.began_at for upgrade in upgrades)


def _what_nobody_noted(case: RigCase) -> Iterator[str]:
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
            most = case.promise.unnoted_term_seconds + case.promise.shared_seconds
        if longest > most:
            yield f"nobody noted what epoch {term.epoch} ({term.node}) wrote in {longest:.1f} s"


def _what_nobody_watched(case: RigCase) -> Iterator[str]:
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


def _what_there_was_no_peace_for(case: RigCase) -> Iterator[str]:
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
    timely = _timely(case)
    calm = [start.late for start in calm_starts(timely)]
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
        latest_seconds=max((start.late for start in timely.starts), default=0.0),
    )
