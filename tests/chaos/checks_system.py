"""Judgements of the system as a whole: one leader, true counts, and processes that do not grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise, zip_longest
from statistics import median

import msgspec

from chaos.case import RigCase
from chaos.checks_faults import SCHEDULERS
from verify.case import Row
from verify.history import Sample, Term
from verify.occurrences import has_ended
from verify.promise import FOREVER, Lists, Spans, Violation
from verify.stories import Intent

_ABSENT = ""  # the status of a job that may not have been created yet
_ROUNDING_SECONDS = 0.001  # terms are by one clock; only how they were written down differs

# I14


def there_is_one_leader(case: RigCase) -> Iterator[Violation]:
    """Terms follow each other, soon, and none writes outside of its own."""
    terms = _as_clocks_let_them(case)
    for one, other in pairwise(terms):
        if other.epoch == one.epoch:
            yield _led(f"epoch {one.epoch} was led by {one.node} and by {other.node}")
        elif other.began_at < one.ended_at - _ROUNDING_SECONDS or other.began_at < one.began_at:
            yield _led(
                f"epoch {other.epoch} ({other.node}) began at {case.when(other.began_at)}, while"
                " epoch"
                f" {one.epoch} ({one.node}) held until {case.when(one.ended_at)}"
            )
    yield from _old_epochs_write_nothing(case, terms)
    yield from _leaders_are_replaced(case, terms)


def _as_clocks_let_them(case: RigCase) -> list[Term]:
    """In order. A clock that is set ends a lease sooner, or lets another node take it."""
    steps = Spans((f.began_at, f.ended_at) for f in case.faults if f.kind == "clock_back")
    terms = sorted(case.dump.terms, key=lambda term: term.epoch)
    return [
        msgspec.structs.replace(one, ended_at=min(one.ended_at, max(other.began_at, one.began_at)))
        if other is not None and steps.touches(one.began_at, one.ended_at)
        else one
        for one, other in zip_longest(terms, terms[1:])
    ]


def _led(sentence: str) -> Violation:
    return Violation("I14", sentence)


def _old_epochs_write_nothing(case: RigCase, terms: Sequence[Term]) -> Iterator[Violation]:
    clock = case.promise.clock_seconds
    by_epoch = {term.epoch: term for term in terms}
    next_began = {one.epoch: other.began_at for one, other in pairwise(terms)}
    for written in case.dump.written:
        term = by_epoch.get(written.epoch)
        if term is None:
            yield _led(f"epoch {written.epoch} wrote at {case.when(written.at)}, and never began")
            continue
        over_at = min(term.ended_at, next_began.get(term.epoch, FOREVER))
        if not term.began_at - clock <= written.at <= over_at + clock:
            yield _led(
                f"epoch {written.epoch} ({term.node}) wrote at {case.when(written.at)}; it led from"
                f" {case.when(term.began_at)} to {case.when(over_at)}"
            )


def _leaders_are_replaced(case: RigCase, terms: Sequence[Term]) -> Iterator[Violation]:
    leaderless = without_candidates(case)
    lease = case.promise.leader_lease_seconds
    late = case.promise.late_seconds + case.promise.shared_seconds
    # A lease that is not renewed runs out; within the next step of a candidate another one has it.
    gaps = [(one.ended_at, other.began_at) for one, other in pairwise(terms)]
    if terms:
        gaps.append((case.phases["loaded"], terms[0].began_at - lease))
        gaps.append((terms[-1].ended_at, min(case.phases["ended"], case.dump.at)))
    for since, until in gaps:
        allowed = late + leaderless.length(since, until)
        if until - since > allowed:
            yield _led(
                f"nobody led from {case.when(since)} to {case.when(until)}, {until - since:.3f} s;"
                f" {allowed:.3f} s are allowed"
            )
    for fault in case.faults:
        led = [
            t
            for t in terms
            if t.node == fault.victim and t.began_at <= fault.began_at <= t.ended_at
        ]
        if not led or not fault.kind.startswith(("kill", "stop")):
            continue
        if fault.kind.startswith("kill") and led[0].ended_at > fault.began_at + lease + late:
            yield _led(
                f"{fault.victim} was killed at {case.when(fault.began_at)}, and its epoch"
                f" {led[0].epoch} held"
                f" until {case.when(led[0].ended_at)}"
            )
        following = [term.began_at for term in terms if term.epoch > led[0].epoch]
        if not following or led[0].ended_at > fault.ended_at:
            continue  # it came to again before its lease ran out
        took = min(following) - fault.began_at
        allowed = lease + late + leaderless.length(fault.began_at, min(following))
        if took > allowed:
            yield _led(
                f"{fault.victim} led when it was hit by {fault.kind} at"
                f" {case.when(fault.began_at)}; the next"
                f" leader began {took:.3f} s later, {allowed:.3f} s are allowed"
            )


def without_candidates(case: RigCase) -> Spans:
    """When nobody could lead: every scheduler was broken, or what they all need."""
    recovery = case.promise.late_seconds
    names = {sample.process for sample in case.history.samples}
    broken = Lists[str, tuple[float, float]]()
    for struck in case.strikes:
        for party in struck.hit:
            broken.add(party, (struck.fault.began_at, struck.fault.ended_at + recovery))
    common = Spans(broken[SCHEDULERS])
    of_each = [Spans(broken[name]) for name in names if name.startswith("scheduler")]
    if of_each:
        common = Spans([*common, *reduce(Spans.common, of_each)])
    return common


# I15


def counts_agree(case: RigCase) -> Iterator[Violation]:
    """What the API counts, by tenant and status, is what the dump has.

    A count takes its time, and things go on until the dump: a job that may have been in either of
    two statuses is counted as either. Where jobs are left out of the history, nothing adds up.
    """
    if case.promise.standby_lag_seconds:
        return
    for tenant, count in last_counts(case).items():
        said = count.answer.get("jobs") if isinstance(count.answer, dict) else None
        if not isinstance(said, dict):
            yield Violation("I15", f"the count of tenant {tenant} cannot be read: {count.answer!r}")
            continue
        surely, maybe = Counter[str](), Counter[str]()
        jobs = _statuses(case, tenant, count.asked_at)
        for possible in jobs.values():
            maybe.update(possible)
            if len(possible) == 1:
                surely.update(possible)
        for status in sorted({*said, *maybe} - {_ABSENT}):
            number = said.get(status, 0)
            if not surely[status] <= number <= maybe[status]:
                yield Violation(
                    "I15",
                    f"tenant {tenant} was told of {number} jobs that are {status} at"
                    f" {case.when(count.asked_at)};"
                    f" the dump has {surely[status]} to {maybe[status]}",
                )
        told, unsure = sum(said.values()), sum(_ABSENT in possible for possible in jobs.values())
        if not len(jobs) - unsure <= told <= len(jobs):
            yield Violation(
                "I15",
                f"tenant {tenant} was told of {told} jobs at {case.when(count.asked_at)}; the dump"
                f" has {len(jobs)}",
            )


def last_counts(case: RigCase) -> dict[str, Intent]:
    """By tenant: the last one that was asked for after the clients had stopped, and answered."""
    since = case.phases["quiet"] - case.promise.clock_seconds
    return {
        intent.tenant: intent
        for intent in case.intents
        if intent.operation == "count" and intent.granted and intent.asked_at >= since
    }


def _statuses(case: RigCase, tenant: str, asked_at: float) -> dict[str, set[str]]:
    """What each job of a tenant may have been between a moment and the dump."""
    found: dict[str, set[str]] = {}
    for job in case.dump.jobs:
        if job.tenant == tenant and job.type != "ONE_TIME":
            found[job.job_id] = {job.status}
            if job.status == "COMPLETED" and not _had_ended(case, job.job_id, asked_at):
                found[job.job_id] |= {"SCHEDULED"}
    for row in case.rows:
        if row.job_id in found or not _is_one_time_of(case, row, tenant):
            continue
        found[row.job_id] = {_status_of(row)}
        if row.ended is not None and row.ended.recorded_at >= asked_at - case.promise.stamp_seconds:
            found[row.job_id] |= {"SCHEDULED"}
    for job_id, statuses in found.items():
        story = case.stories.get(job_id)
        changes = [*story.changes, *story.runs] if story else []
        if any((change.answered_at or FOREVER) >= asked_at for change in changes):
            statuses |= {"SCHEDULED", "PAUSED", "COMPLETED", "CANCELLED"}
        if story is None or (story.create.answered_at or FOREVER) >= asked_at:
            statuses |= {_ABSENT}
    return found


def _had_ended(case: RigCase, job_id: str, asked_at: float) -> bool:
    """Whether a recurring job must have come to its end some time before a moment."""
    story = case.stories.get(job_id)
    by = asked_at - case.promise.aftermath_seconds
    return story is not None and has_ended(case, story, by)


def _is_one_time_of(case: RigCase, row: Row, tenant: str) -> bool:
    story = case.stories.get(row.job_id)
    if story is not None:
        return not story.recurring and story.tenant == tenant
    if row.job_id in case.job_rows:
        job = case.job_rows[row.job_id]
        return job.type == "ONE_TIME" and job.tenant == tenant
    create = case.doubtful_creates.get(case.job_name(row.job_id) or "")
    if create is not None:
        return create.document["type"] == "ONE_TIME" and create.tenant == tenant
    return row.ended is not None and row.ended.tenant == tenant


def _status_of(row: Row) -> str:
    if row.alive is not None:
        return "PAUSED" if row.alive.place == "held" else "SCHEDULED"
    assert row.ended is not None
    return "CANCELLED" if row.ended.status in ("CANCELLED", "SUPERSEDED") else "COMPLETED"


# I18


def resources_stay_flat(case: RigCase) -> Iterator[Violation]:
    """No process grows over its life, nor in the last third of it; no transaction stays idle."""
    promise = case.promise
    lives = Lists[tuple[str, int], Sample]()
    for sample in case.history.samples:
        lives.add((sample.process, sample.pid), sample)
    for (process, pid), samples in lives.items():
        named = f"{process} (pid {pid})"
        rss = [(sample.at, float(sample.rss_kb)) for sample in samples]
        yield from _is_flat(case, f"{named}: resident kB", rss, promise.growth_rss_kb)
        descriptors = [(sample.at, float(sample.descriptors)) for sample in samples]
        yield from _is_flat(case, f"{named}: descriptors", descriptors, promise.growth_descriptors)
        # Those that a process has from its start: where it is restarted, it has few for a while.
        connections = [
            (backends.at, float(backends.connections[process]))
            for backends in case.history.backends
            if process in backends.connections and rss[0][0] <= backends.at <= rss[-1][0]
        ]
        if connections:
            growth = promise.growth_connections
            yield from _is_flat(case, f"{named}: connections", connections, growth)
    stops = Spans(
        (fault.began_at, fault.ended_at + promise.late_seconds)
        for fault in case.faults
        if fault.kind.startswith(promise.idle_excuses)
    )
    for backends in case.history.backends:
        idle = backends.idle_in_transaction_seconds
        if idle > promise.idle_in_transaction_seconds and not stops.touches(
            backends.at - idle, backends.at
        ):
            yield Violation(
                "I18", f"a transaction was idle for {idle:.1f} s at {case.when(backends.at)}"
            )


def _is_flat(
    case: RigCase, named: str, values: list[tuple[float, float]], more: float
) -> Iterator[Violation]:
    began_at, ended_at = min(values)[0], max(values)[0]
    if ended_at - began_at < case.promise.warm_up_seconds:
        return
    third, warm_at = (ended_at - began_at) / 3, began_at + case.promise.warm_up_seconds
    middle = [value for at, value in values if began_at + third <= at < ended_at - third]
    last = [value for at, value in values if at >= ended_at - third]
    warm = [value for at, value in values if warm_at <= at < warm_at + third]
    for before, when in ((middle, "in the middle third of its life"), (warm[:5], "once warm")):
        if before and last and median(last) > median(before) * case.promise.growth + more:
            yield Violation(
                "I18",
                f"{named} went from {median(before):.0f} {when} to {median(last):.0f} in the last"
                f" third, from {case.when(ended_at - third)} on",
            )
