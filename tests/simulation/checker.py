"""An independent judge of a recorded run.

It knows what was promised, and nothing of how the promise is kept: it takes a `History`, works out by its own oracle when
every job should have run, and says in words what does not fit. It shares no code with the product.

Each judgement looks at one promise and yields what breaks it. `test_checker.py` breaks every promise once, to show that
the judge would have seen it.

Where people and the system act at the same moment, both orders are right: a change counts as made from the moment it was
acknowledged, and as not yet made until it was asked for.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import NamedTuple, TypeVar

from hourbell.model.ids import created_at
from simulation.history import (
    Cancel,
    Change,
    Claim,
    Document,
    Event,
    Fate,
    Gated,
    History,
    LeaderVerb,
    Live,
    Planned,
    Reaped,
    Requested,
    SessionClosed,
    SessionOpened,
    SessionRenewed,
    Settle,
    Silenced,
    TermBegun,
)
from verify.oracle import occurrences

SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED = range(5)
_FOREVER = datetime.max.replace(tzinfo=UTC)
_FATE_OF_KIND = {SUCCEEDED: "SUCCEEDED", DEAD: "DEAD", CANCELLED: "CANCELLED"}


class Violation(NamedTuple):
    kind: str
    sentence: str


Judgement = Callable[["Case"], Iterator[Violation]]


def check(history: History) -> list[Violation]:
    """Everything in this run that breaks a promise."""
    case = Case(history)
    return [violation for judgement in JUDGEMENTS for violation in judgement(case)]


# The evidence, put in order.


@dataclass(frozen=True)
class Stretch:
    """A time in which the occurrences of one rule belonged to a job: after `since`, up to `until`.

    The change that ends a stretch says from when on it holds, and is acknowledged later. What is planned in between may
    still be of the old stretch, and need not be; once the change is acknowledged, it does not start any more.
    """

    job: int
    since: datetime
    until: datetime
    document: Document
    due: tuple[datetime, ...]  # up to `until`
    maybe_due: frozenset[datetime]  # and what may have been planned up to `acked_until`


@dataclass(frozen=True)
class Record:
    """Something in the database that stands for one execution."""

    id: int
    job: int
    origin: int
    occurrence: datetime
    fate: Fate | None
    live: Live | None


K = TypeVar("K")
V = TypeVar("V")


class Lists(dict[K, list[V]]):
    """Lists by key; one that is not there is empty, and asking for it does not make it."""

    def __missing__(self, key: K) -> list[V]:
        return []

    def add(self, key: K, value: V) -> None:
        self.setdefault(key, []).append(value)


class Case:
    """A history, indexed."""

    def __init__(self, history: History) -> None:
        self.history = history
        assert history.ended_at is not None
        self.ended_at = history.ended_at
        self.changes: Lists[int, Change] = Lists()
        self.claims: Lists[int, Claim] = Lists()
        self.settles: Lists[int, Settle] = Lists()
        self.requests: dict[int, Requested] = {}
        self.cancels: dict[int, Cancel] = {}
        for event in history.events:
            match event:
                case Change():
                    self.changes.add(event.job, event)
                case Claim():
                    self.claims.add(event.execution, event)
                case Settle():
                    self.settles.add(event.execution, event)
                case Requested():
                    # The first request counts: a one-time job may be hurried more than once.
                    self.requests = dict.fromkeys(event.executions, event) | self.requests
                case Cancel():
                    self.cancels.setdefault(event.execution, event)
                case _:
                    pass
        for changes in self.changes.values():
            changes.sort(key=lambda change: change.at)

    @cached_property
    def recurring(self) -> list[int]:
        return [job for job in self.changes if not self.is_one_time(job)]

    @cached_property
    def one_time(self) -> list[int]:
        return [job for job in self.changes if self.is_one_time(job)]

    def is_one_time(self, job: int) -> bool:
        return job in self.changes and self.changes[job][0].document["type"] == "ONE_TIME"

    @cached_property
    def records(self) -> Lists[int, Record]:
        """By execution: one each, if all is well. Missed stretches are apart."""
        found = Lists[int, Record]()
        for fate in self.history.fates:
            if fate.missed is None:
                record = Record(fate.id, fate.job, fate.origin, fate.scheduled_for, fate, None)
                found.add(fate.id, record)
        for live in self.history.live:
            record = Record(live.id, live.job, live.origin, live.occurrence, None, live)
            found.add(live.id, record)
        return found

    def record(self, execution: int) -> Record | None:
        return next(iter(self.records[execution]), None)

    @cached_property
    def of_occurrence(self) -> Lists[tuple[int, datetime], Record]:
        """The scheduled executions of recurring jobs, by job and occurrence."""
        found = Lists[tuple[int, datetime], Record]()
        for records in self.records.values():
            for record in records:
                if record.origin == 0 and not self.is_one_time(record.job):
                    found.add((record.job, record.occurrence), record)
        return found

    @cached_property
    def missed(self) -> Lists[int, Fate]:
        """The missed stretches of each job."""
        found = Lists[int, Fate]()
        for fate in self.history.fates:
            if fate.missed is not None:
                found.add(fate.job, fate)
        return found

    @cached_property
    def used_up_at(self) -> dict[int, datetime]:
        """When a job began the last of the runs that it may have."""
        found = {}
        for job in self.recurring:
            starts = self._first_claims(job)
            for change, following in zip(
                self.changes[job], [*self.changes[job][1:], None], strict=True
            ):
                most = change.document["schedule"].get("max_runs")
                until = following.at if following else _FOREVER
                if most is not None and len(starts) >= most and starts[most - 1] < until:
                    found[job] = starts[most - 1]
                    break
        return found

    def _first_claims(self, job: int) -> list[datetime]:
        return sorted(
            claims[0].at
            for execution, claims in self.claims.items()
            if claims[0].job == job and execution not in self.requests
        )

    @cached_property
    def stretches(self) -> dict[int, list[Stretch]]:
        return {job: self._stretches(job) for job in self.recurring}

    def _stretches(self, job: int) -> list[Stretch]:
        found: list[Stretch] = []
        anchor: datetime | None = None
        before: Document = {}
        paused = False
        changes = self.changes[job]
        for change, following in zip(changes, [*changes[1:], None], strict=True):
            schedule = change.document["schedule"]
            if "every_seconds" in schedule and any(
                schedule.get(key) != before.get(key) for key in ("every_seconds", "starts_at")
            ):
                anchor = _anchor(schedule, change.at)
            before = schedule
            paused = change.operation == "pause" or (change.operation == "update" and paused)
            if paused or change.operation == "delete":
                continue
            used_up_at = self.used_up_at.get(job, _FOREVER)
            until = min(following.at if following else _FOREVER, used_up_at)
            acked_until = min(following.acked_at if following else _FOREVER, used_up_at)
            planned = until
            if acked_until < _FOREVER:
                planned = acked_until + self.history.horizon
            maybe = occurrences(schedule, anchor, change.at, min(planned, self.ended_at))
            due = tuple(at for at in maybe if at <= until)
            found.append(Stretch(job, change.at, until, change.document, due, frozenset(maybe)))
        return found

    def stretches_of(self, job: int, at: datetime) -> list[Stretch]:
        """To which an occurrence may belong: one, or two while somebody is changing the job."""
        return [stretch for stretch in self.stretches.get(job, []) if at in stretch.maybe_due]

    def documents_at(self, job: int, at: datetime) -> list[Document]:
        """What the job may have looked like at a moment: one, or more while somebody is changing it."""
        changes = self.changes[job]
        settled = [change for change in changes if change.acked_at <= at]
        under_way = [change for change in changes if change.asked_at <= at < change.acked_at]
        last = [max(settled, key=lambda change: change.at)] if settled else []
        return [change.document for change in (*last, *under_way)]

    def documents_of(self, record: Record) -> list[Document]:
        """Under which an execution was planned, or asked for: one, or more while somebody is changing the job."""
        if self.is_one_time(record.job):
            return [self.changes[record.job][-1].document]
        if record.origin == 0:
            stretches = self.stretches_of(record.job, record.occurrence)
            return [stretch.document for stretch in stretches]
        request = self.requests.get(record.id)
        return self.documents_at(record.job, request.at) if request else []

    def superseding(self, job: int) -> list[Change]:
        """The changes that put what is queued out of date."""
        found = []
        changes = self.changes[job]
        for before, change in itertools.pairwise(changes):
            reschedules = change.document["schedule"] != before.document["schedule"]
            if change.operation in ("pause", "resume", "delete") or reschedules:
                found.append(change)
        return found

    def settled_later(self, execution: int, event: Event) -> bool:
        """Whether a worker ended an execution after this event, at the same moment or later."""
        after = self.history.events[self.history.events.index(event) :]
        return any(
            isinstance(later, Settle)
            and later.accepted
            and later.execution == execution
            and later.kind in _FATE_OF_KIND
            for later in after
        )

    def name(self, execution: int) -> str:
        record = self.record(execution)
        if record is None:
            return f"execution {execution}"
        return f"execution {execution} (job {record.job}, {record.occurrence.isoformat()})"


def _anchor(schedule: Document, changed_at: datetime) -> datetime:
    """Intervals count from the whole second of their start, or else of their creation."""
    if schedule.get("starts_at") is None:
        return changed_at.replace(microsecond=0)
    starts = datetime.fromisoformat(schedule["starts_at"])
    whole = starts.replace(microsecond=0)
    return whole if whole == starts else whole + timedelta(seconds=1)


# Occurrences.


def nothing_is_lost(case: Case) -> Iterator[Violation]:
    """Every occurrence of an active job has a fate, or is on its way to one."""
    for job, stretches in case.stretches.items():
        for stretch in stretches:
            for at in stretch.due:
                if not case.of_occurrence[job, at] and not _missed(case, job, at):
                    yield Violation(
                        "lost", f"job {job} was due at {at.isoformat()}, and nothing was recorded"
                    )
    for job in case.one_time:
        if job not in case.records:
            yield Violation("lost", f"the one-time job {job} has no execution and no fate")
    for execution, request in case.requests.items():
        if execution not in case.records:
            yield Violation(
                "lost", f"execution {execution}, asked for at {request.at}, does not exist"
            )


def nothing_is_doubled(case: Case) -> Iterator[Violation]:
    """One execution per occurrence, or one missed stretch that it is part of."""
    for (job, at), records in case.of_occurrence.items():
        stretches = _missed(case, job, at)
        # What a change put out of date may come again in the job's new version.
        kept = [r for r in records if r.fate is None or r.fate.status != "SUPERSEDED"]
        if len(kept) + len(stretches) > 1:
            found = [
                f"{record.id} {record.fate.status if record.fate else 'live'}" for record in records
            ]
            found += [f"{fate.id} missed" for fate in stretches]
            yield Violation(
                "doubled", f"job {job} at {at.isoformat()} was produced twice: {', '.join(found)}"
            )
    for job, fates in case.missed.items():
        ordered = sorted(fates, key=lambda fate: fate.scheduled_for)
        for one, other in itertools.pairwise(ordered):
            shared = {at for at in _occurrences(case, one) if _contains(other, at)}
            apart = _left_out(case, one) | _left_out(case, other)
            if other.scheduled_for <= _through(one) and not (shared and shared <= apart):
                yield Violation(
                    "doubled", f"job {job}: the missed stretches {one.id} and {other.id} overlap"
                )


def nothing_is_spurious(case: Case) -> Iterator[Violation]:
    """Nothing exists for a time at which the job was not to run."""
    for (job, at), records in case.of_occurrence.items():
        if at > case.ended_at:
            continue  # planned ahead; a change may still take it back
        if not case.stretches_of(job, at):
            name = case.name(records[0].id)
            yield Violation("spurious", f"{name}: the job was not to run then")
    for job, fates in case.missed.items():
        for fate in fates:
            stretches = case.stretches_of(job, fate.scheduled_for)
            if not any(_covers_just(case, stretch, fate) for stretch in stretches):
                yield Violation(
                    "spurious",
                    f"job {job}: the missed stretch from {fate.scheduled_for} to {_through(fate)} with"
                    f" {fate.missed} occurrences is not what was due then",
                )
    for execution, records in case.records.items():
        record = records[0]
        if record.origin > 0 and execution not in case.requests:
            yield Violation("spurious", f"{case.name(execution)}: nobody asked for it")
        elif record.job not in case.changes:
            yield Violation("spurious", f"{case.name(execution)}: its job was never created")


def _missed(case: Case, job: int, at: datetime) -> list[Fate]:
    """The missed stretches that an occurrence is part of."""
    return [
        fate for fate in case.missed[job] if _contains(fate, at) and at not in _left_out(case, fate)
    ]


def _left_out(case: Case, fate: Fate) -> set[datetime]:
    """What a missed stretch goes over and does not count, because it has a fate of its own.

    A change that joins late finds what the version before it has done since. Its count says whether a stretch leaves that out.
    """
    for stretch in case.stretches_of(fate.job, fate.scheduled_for):
        within = _within(stretch, fate)
        apart = {at for at in within if _has_its_own(case, fate, at)}
        if len(within) - len(apart) == fate.missed:
            return apart
    return set()


def _has_its_own(case: Case, fate: Fate, at: datetime) -> bool:
    records = case.of_occurrence[fate.job, at]
    if any(record.fate is None or record.fate.status != "SUPERSEDED" for record in records):
        return True
    inner = [other for other in case.missed[fate.job] if _is_inside(other, fate)]
    return any(_contains(other, at) for other in inner)


def _is_inside(fate: Fate, other: Fate) -> bool:
    inside = other.scheduled_for <= fate.scheduled_for and _through(fate) <= _through(other)
    return inside and (fate.scheduled_for, _through(fate)) != (other.scheduled_for, _through(other))


def _occurrences(case: Case, fate: Fate) -> set[datetime]:
    stretches = case.stretches_of(fate.job, fate.scheduled_for)
    return {at for stretch in stretches for at in _within(stretch, fate)}


def _within(stretch: Stretch, fate: Fate) -> list[datetime]:
    return [at for at in stretch.maybe_due if _contains(fate, at)]


def _contains(fate: Fate, at: datetime) -> bool:
    return fate.scheduled_for <= at <= _through(fate)


def _through(fate: Fate) -> datetime:
    return fate.missed_through or fate.scheduled_for


def _covers_just(case: Case, stretch: Stretch, fate: Fate) -> bool:
    counted = len(_within(stretch, fate)) - len(_left_out(case, fate))
    return _through(fate) in stretch.maybe_due and counted == fate.missed


def runs_are_counted(case: Case) -> Iterator[Violation]:
    """No more runs start than max_runs allows."""
    for job in case.recurring:
        started: list[Claim] = sorted(
            (
                claims[0]
                for execution, claims in case.claims.items()
                if claims[0].job == job and execution not in case.requests
            ),
            key=lambda claim: claim.at,
        )
        for count, claim in enumerate(started, 1):
            limits = [
                document["schedule"].get("max_runs")
                for document in case.documents_at(job, claim.at)
            ]
            if limits and None not in limits and count > max(limits):
                yield Violation(
                    "max_runs", f"{case.name(claim.execution)} is run {count} of {max(limits)}"
                )


def misfires_follow_the_policy(case: Case) -> Iterator[Violation]:
    """Missed is only what was late by more than the grace, and of that only what the policy does not make up.

    The rule, for each occurrence when it is planned, and again when the gate first looks at it:

        late by no more than the grace    runs
        later, `skip`                     missed
        later, `latest`                   missed if a newer occurrence of the job is due
        later, `all`                      missed if older than the window, or (when planned) beyond the limit
    """
    for job, fates in case.missed.items():
        for fate in fates:
            say = f"job {job}: the stretch missed from {fate.scheduled_for} to {_through(fate)}"
            if _through(fate) >= fate.recorded_at - case.history.grace:
                yield Violation("misfire", f"{say} reaches into the grace at {fate.recorded_at}")
            documents = [stretch.document for stretch in case.stretches_of(job, fate.scheduled_for)]
            if fate.missed == 1:  # the gate goes by the job as it is then
                documents += case.documents_at(job, fate.recorded_at)
            reasons = [_not_to_be_missed(case, document, fate) for document in documents]
            if reasons and None not in reasons:
                yield Violation("misfire", f"{say} {reasons[0]}")
    yield from _planned_too_late_to_run(case)
    yield from _seen_too_late_to_run(case)


def _planned_too_late_to_run(case: Case) -> Iterator[Violation]:
    grace, horizon = case.history.grace, case.history.horizon
    moments = sorted(event.at for event in case.history.events if isinstance(event, Planned))
    for (job, at), records in case.of_occurrence.items():
        stretches = case.stretches_of(job, at)
        policies = {stretch.document.get("misfire_policy", "latest") for stretch in stretches}
        if policies != {"skip"}:
            continue
        # Fires are judged by when they were opened; a crash may leave the rest for later.
        place = bisect_left(moments, min(at - horizon, stretches[0].since))
        if all(moment > at + grace for moment in moments[place : place + 1]):
            yield Violation(
                "misfire", f"{case.name(records[0].id)} was made up, and the policy is skip"
            )


def _seen_too_late_to_run(case: Case) -> Iterator[Violation]:
    """What ran although the gate did not look at anything between its time and the end of its grace."""
    passes = sorted(event.at for event in case.history.events if isinstance(event, Gated))
    for (job, at), records in case.of_occurrence.items():
        place = bisect_left(passes, at)
        if place == len(passes) or passes[place] <= at + case.history.grace:
            continue
        seen_at = passes[place]  # or later
        for record in records:
            claims = case.claims[record.id]
            if not claims or _changes_between(case, job, at - case.history.horizon, claims[0].at):
                continue
            for stretch in case.stretches_of(job, at):
                reason = _not_to_run(stretch, at, seen_at)
                if reason is not None:
                    yield Violation(
                        "misfire",
                        f"{case.name(record.id)} ran, the gate saw it at {seen_at} first, and {reason}",
                    )


def _changes_between(case: Case, job: int, first: datetime, last: datetime) -> bool:
    return any(change.asked_at <= last and change.acked_at >= first for change in case.changes[job])


def _not_to_run(stretch: Stretch, at: datetime, seen_at: datetime) -> str | None:
    document = stretch.document
    policy = document.get("misfire_policy", "latest")
    if policy == "skip":
        return "the policy is skip"
    if policy == "latest":
        newer = any(at < other <= seen_at for other in stretch.due)
        return "a newer occurrence was due by then" if newer else None
    window = timedelta(seconds=document.get("catch_up_window_seconds", 86_400))
    return "it was older than the window of `all`" if at <= seen_at - window else None


def _not_to_be_missed(case: Case, document: Document, fate: Fate) -> str | None:
    last = _through(fate)
    policy = document.get("misfire_policy", "latest")
    if policy == "skip":
        return None
    following = sorted(
        {
            at
            for stretch in case.stretches[fate.job]
            for at in stretch.maybe_due
            if last < at <= fate.recorded_at
        }
    )
    if policy == "latest":
        # The newer one has a fate of its own, so the newest of all runs; or a change under way has taken it back.
        return None if following else "ends with the newest occurrence that was due"
    made_up = [
        at
        for at in following
        if case.of_occurrence[fate.job, at]
        # or it was made up, and then the gate came too late for it
        or any(
            other.missed == 1 and other.recorded_at > fate.recorded_at
            for other in _missed(case, fate.job, at)
        )
    ]
    window = timedelta(seconds=document.get("catch_up_window_seconds", 86_400))
    limit = document.get("catch_up_limit", 100)
    within = last > fate.recorded_at - window and len(made_up) < limit
    return "was within the window and the limit of `all`" if within else None


# Leases, attempts, fences.


class _Hold:
    """A claim that has not visibly ended."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.ended_by: str | None = None  # settled, given back


def leases_exclude_each_other(case: Case) -> Iterator[Violation]:
    """One live lease at most; fences rise; attempts have no holes; stale outcomes change nothing."""
    lease = case.history.lease
    renewed: dict[int, datetime] = {}
    closed: set[int] = set()
    holds: dict[int, _Hold] = {}
    lost_in_a_row: dict[int, int] = defaultdict(int)

    def lives(hold: _Hold, at: datetime) -> bool:
        session = hold.claim.session
        return (
            hold.ended_by is None
            and session not in closed
            and renewed.get(session, hold.claim.at) + lease > at
        )

    for event in case.history.events:
        match event:
            case SessionOpened():
                renewed[event.session] = event.at
            case SessionRenewed():
                renewed[event.session] = event.at
                for hold in holds.values():
                    claim = hold.claim
                    if claim.session != event.session or hold.ended_by is not None:
                        continue
                    if claim.execution in event.lost:
                        hold.ended_by = "lost"
                    elif claim.number <= event.resolved and claim.execution not in event.running:
                        hold.ended_by = "given back"
            case SessionClosed():
                closed.add(event.session)
                for hold in holds.values():
                    if hold.claim.session == event.session and hold.ended_by is None:
                        hold.ended_by = "given back"
            case Settle(accepted=True):
                now = holds.get(event.execution)
                if now is None or (now.claim.session, now.claim.fence) != (
                    event.session,
                    event.fence,
                ):
                    yield Violation(
                        "stale_outcome",
                        f"{case.name(event.execution)}: an outcome under fence {event.fence} counted",
                    )
                else:
                    now.ended_by = "given back" if event.kind == RELEASED else "settled"
                    if event.kind != RELEASED:
                        lost_in_a_row[event.execution] = 0
            case Claim():
                before = holds.get(event.execution)
                expected = 1
                if before is not None:
                    if lives(before, event.at):
                        yield Violation(
                            "two_leases",
                            f"{case.name(event.execution)} was claimed at {event.at} while session"
                            f" {before.claim.session} held it",
                        )
                    if event.fence <= before.claim.fence:
                        yield Violation(
                            "fence",
                            f"{case.name(event.execution)}: fence {event.fence} after"
                            f" {before.claim.fence}",
                        )
                    again = before.ended_by == "given back"
                    if not again and _at_most_once(case, event):
                        yield Violation(
                            "at_most_once", f"{case.name(event.execution)} was started twice"
                        )
                    expected = before.claim.attempt + (0 if again else 1)
                    if before.ended_by in (None, "lost"):
                        lost_in_a_row[event.execution] += 1
                if event.attempt != expected:
                    yield Violation(
                        "attempts",
                        f"{case.name(event.execution)}: attempt {event.attempt} where {expected} follows",
                    )
                if lost_in_a_row[event.execution] >= case.history.crash_limit:
                    yield Violation(
                        "crashes",
                        f"{case.name(event.execution)} lost its worker"
                        f" {lost_in_a_row[event.execution]} times and was tried again",
                    )
                holds[event.execution] = _Hold(event)
            case _:
                pass


def ended_attempts_are_all_recorded(case: Case) -> Iterator[Violation]:
    """The recorded history of an execution has its attempts 1, 2, 3 … with rising fences, and then its last."""
    for records in case.records.values():
        fate = records[0].fate
        if fate is None:
            continue
        numbers = [number for number, _ in fate.history]
        fences = [fence for _, fence in fate.history]
        # The last one is in the row itself if a session ended it, or ended with it.
        ended = fate.attempt - (fate.session is not None)
        if numbers != list(range(1, ended + 1)):
            yield Violation(
                "attempts", f"{case.name(fate.id)}: its history has the attempts {numbers}"
            )
        if sorted(set(fences)) != fences:
            yield Violation("fence", f"{case.name(fate.id)}: its history has the fences {fences}")
        claims = case.claims[fate.id]
        if claims and fate.fence != claims[-1].fence:
            yield Violation(
                "fence",
                f"{case.name(fate.id)}: recorded fence {fate.fence}, claimed {claims[-1].fence}",
            )
        if not claims and fate.attempt:
            yield Violation("attempts", f"{case.name(fate.id)}: attempts were recorded, none began")


def retries_come_when_promised(case: Case) -> Iterator[Violation]:
    """A retry waits as long as the policy says, and there are no more of them than it says."""
    for execution, settles in case.settles.items():
        for settle in settles:
            claim = _claim_of(case, settle)
            if not settle.accepted or claim is None or claim.job not in case.changes:
                continue
            policies = [
                document.get("retry_policy", {})
                for document in case.documents_at(claim.job, claim.at)
            ]
            if settle.kind == RETRY:
                assert settle.delay_seconds is not None
                if not any(_promised(p, claim.attempt, settle.delay_seconds) for p in policies):
                    yield Violation(
                        "retry",
                        f"{case.name(execution)}: {settle.delay_seconds} s after attempt"
                        f" {claim.attempt} is not what {policies} say",
                    )
                due = settle.at + timedelta(seconds=settle.delay_seconds)
                following = _next_claim(case, claim)
                if following is not None and following.at < due:
                    yield Violation("retry", f"{case.name(execution)} was tried again before {due}")
            elif settle.kind == DEAD and settle.reason == "retries_exhausted":
                most = [_retries(policy) for policy in policies]
                if all(claim.attempt <= retries for retries in most) and not _at_most_once(
                    case, claim
                ):
                    yield Violation(
                        "retry",
                        f"{case.name(execution)} was given up at attempt {claim.attempt} of {most}",
                    )


def _promised(policy: Document, attempt: int, delay: float) -> bool:
    if attempt > _retries(policy):
        return False
    if "delays_seconds" in policy:
        return delay == policy["delays_seconds"][attempt - 1]
    first = policy.get("initial_delay_seconds", 30)
    most = policy.get("max_delay_seconds", max(3600, first))
    match policy.get("backoff", "EXPONENTIAL_WITH_JITTER"):
        case "FIXED":
            return delay == min(first, most)
        case "LINEAR":
            return delay == min(first * attempt, most)
        case "EXPONENTIAL":
            return delay == min(first * 2 ** (attempt - 1), most)
    full = min(first * 2 ** (attempt - 1), most)
    return bool(full / 2 <= delay <= full)


def _retries(policy: Document) -> int:
    if "delays_seconds" in policy:
        return len(policy["delays_seconds"])
    return int(policy.get("max_retries", 3))


def _claim_of(case: Case, settle: Settle) -> Claim | None:
    for claim in case.claims[settle.execution]:
        if claim.fence == settle.fence:
            return claim
    return None


def _next_claim(case: Case, claim: Claim) -> Claim | None:
    claims = case.claims[claim.execution]
    place = claims.index(claim) + 1
    return claims[place] if place < len(claims) else None


def _at_most_once(case: Case, claim: Claim) -> bool:
    documents = case.documents_at(claim.job, claim.at)
    return any(document.get("delivery") == "at_most_once" for document in documents)


# Time.


def nothing_is_early(case: Case) -> Iterator[Violation]:
    """No run starts before its time."""
    for execution, claims in case.claims.items():
        hurried = case.requests.get(execution)
        for claim in claims:
            if hurried is not None and hurried.asked_at <= claim.at:
                continue
            if claim.at < claim.scheduled_for:
                yield Violation(
                    "early",
                    f"{case.name(execution)} was started at {claim.at}, due {claim.scheduled_for}",
                )


def deadlines_are_kept(case: Case) -> Iterator[Violation]:
    """Nothing starts after its start deadline, nothing is tried after its total deadline, and neither passes unsaid."""
    for execution, records in case.records.items():
        record = records[0]
        documents = case.documents_of(record)
        if not documents:
            continue
        request = case.requests.get(execution)
        earliest = latest = record.occurrence
        if request is not None and record.origin == 2:
            earliest, latest = request.asked_at, request.acked_at
        starts = [document.get("start_deadline_seconds") for document in documents]
        ends = [document.get("deadline_seconds") for document in documents]
        start_by = max(_after(latest, seconds) for seconds in starts)
        finish_by = max(_after(latest, seconds) for seconds in ends)
        claims = case.claims[execution]
        if case.is_one_time(record.job):
            claims = claims[-1:]  # what was promised before its last update is not known here
        for claim in claims:
            if claim.attempt == 1 and claim.at > start_by:
                yield Violation("deadline", f"{case.name(execution)} was started after {start_by}")
            if claim.at > finish_by:
                yield Violation("deadline", f"{case.name(execution)} was tried after {finish_by}")
        fate = record.fate
        if fate is None:
            continue
        first = min(_after(earliest, seconds) for seconds in starts)
        if fate.reason == "start_deadline" and fate.recorded_at <= first:
            yield Violation("deadline", f"{case.name(execution)} was skipped before {first}")
        if fate.reason == "deadline" and not any(ends):
            yield Violation("deadline", f"{case.name(execution)} had no deadline to miss")


def _after(at: datetime, seconds: int | None) -> datetime:
    return _FOREVER if seconds is None else at + timedelta(seconds=seconds)


# Fates.


def there_is_one_fate(case: Case) -> Iterator[Violation]:
    """An execution ends once, and what has ended is not live."""
    for execution, records in case.records.items():
        if len(records) > 1:
            what = [record.fate.status if record.fate else "live" for record in records]
            yield Violation("one_fate", f"{case.name(execution)} is {' and '.join(what)}")


def fates_never_change(case: Case) -> Iterator[Violation]:
    """What was recorded stays as it was recorded."""
    final = {fate.id: (fate.status, fate.reason) for fate in case.history.fates}
    for checkpoint in case.history.checkpoints:
        for execution, was in checkpoint.fates.items():
            if final.get(execution) != was:
                yield Violation(
                    "fate_changed",
                    f"{case.name(execution)} was {was} at {checkpoint.at} and is"
                    f" {final.get(execution)}",
                )


def fates_fit_what_happened(case: Case) -> Iterator[Violation]:
    """The recorded fate is the one that was lived through, and nothing happens after it."""
    for execution, records in case.records.items():
        fate = records[0].fate
        if fate is None:
            continue
        name = case.name(execution)
        accepted = [settle for settle in case.settles[execution] if settle.accepted]
        final = [settle for settle in accepted if settle.kind in _FATE_OF_KIND]
        for settle in final:
            if _FATE_OF_KIND[settle.kind] != fate.status:
                yield Violation(
                    "wrong_fate",
                    f"{name}: its worker said {_FATE_OF_KIND[settle.kind]}, recorded {fate.status}",
                )
        if fate.status == "SUCCEEDED" and not final:
            yield Violation("wrong_fate", f"{name} is SUCCEEDED, and no worker said so")
        for event in (*case.claims[execution], *accepted):
            if event.at > fate.recorded_at:
                yield Violation("after_fate", f"{name} goes on at {event.at}, after its fate")
        if (fate.status == "DEAD") != (execution in case.history.dead_letters):
            yield Violation("dead_letter", f"{name} is {fate.status}; the dead letters disagree")
        yield from _fits_its_reason(case, records[0], fate, name)


def _fits_its_reason(case: Case, record: Record, fate: Fate, name: str) -> Iterator[Violation]:
    claims = case.claims[record.id]
    given_back = {
        settle.fence for settle in case.settles[record.id] if settle.accepted and settle.kind == 4
    }
    if fate.status == "SUPERSEDED" and not _was_superseded(case, record, fate):
        yield Violation("wrong_fate", f"{name} is SUPERSEDED, and its job was not changed")
    if fate.status == "CANCELLED" and not _somebody_cancelled(case, record, fate):
        yield Violation("wrong_fate", f"{name} is CANCELLED, and nobody asked for that")
    if fate.status == "SKIPPED" and fate.attempt > 0:
        yield Violation("wrong_fate", f"{name} is SKIPPED, and was tried {fate.attempt} times")
    if fate.reason in ("overlap", "replaced") and not _had_company(case, record, fate):
        yield Violation("wrong_fate", f"{name} was skipped for a run that there was not")
    if fate.reason == "lost" and (not claims or not _at_most_once(case, claims[-1])):
        yield Violation("wrong_fate", f"{name} is DEAD(lost), and was promised more than one try")
    if fate.reason == "crashed" and len(claims) - len(given_back) < case.history.crash_limit:
        yield Violation("wrong_fate", f"{name} is DEAD(crashed) after {len(claims)} claims")


def _was_superseded(case: Case, record: Record, fate: Fate) -> bool:
    """Whether the job was paused, deleted or rescheduled after this one was planned for it."""
    return any(change.asked_at <= fate.recorded_at for change in _outdating(case, record))


def _outdating(case: Case, record: Record) -> list[Change]:
    """The changes that make an execution out of date."""
    changes = case.superseding(record.job)
    if record.origin != 0:  # asked for: a pause outdates it, and the resume after that does not
        changes = [c for c in changes if c.operation != "resume"]
        if record.id not in case.requests:  # whoever asked never got the answer
            return [c for c in changes if c.at > created_at(record.id)]
        return [c for c in changes if c.acked_at >= case.requests[record.id].asked_at]
    if any(record.occurrence in stretch.due for stretch in case.stretches.get(record.job, [])):
        return [c for c in changes if c.at >= record.occurrence]
    # Planned while somebody was changing the job, and not to be by that change, which is the last that it may have met.
    met = [c for c in changes if c.acked_at + case.history.horizon >= record.occurrence]
    return sorted(met, key=lambda change: change.acked_at)[-1:]


def _somebody_cancelled(case: Case, record: Record, fate: Fate) -> bool:
    if record.id in case.cancels and case.cancels[record.id].asked_at <= fate.recorded_at:
        return True
    deleted = any(change.operation == "delete" for change in case.changes[record.job])
    if case.is_one_time(record.job) and deleted:
        return True
    return any(
        change.document.get("overlap_policy") == "replace" for change in case.changes[record.job]
    )


def _had_company(case: Case, record: Record, fate: Fate) -> bool:
    """Whether another execution of the job was there when this one was skipped."""
    for others in case.records.values():
        other = others[0]
        if other.job != record.job or other.id == record.id:
            continue
        if other.fate is None or other.fate.recorded_at >= fate.recorded_at:
            return True
    return False


def cancellations_are_granted(case: Case) -> Iterator[Violation]:
    """Once a cancellation is acknowledged, the execution is not started again."""
    for execution, cancel in case.cancels.items():
        record = case.record(execution)
        if cancel.ended and (
            record is None or record.fate is None or record.fate.status != "CANCELLED"
        ):
            yield Violation("cancel", f"{case.name(execution)} was said to be CANCELLED")
        for claim in case.claims[execution]:
            if claim.at > cancel.acked_at:
                yield Violation(
                    "cancel", f"{case.name(execution)} was started after it was cancelled"
                )


def changes_are_obeyed(case: Case) -> Iterator[Violation]:
    """What belongs to a job as it was does not start once it is paused, deleted or rescheduled."""
    for execution, claims in case.claims.items():
        record = case.record(execution)
        if record is None or record.job not in case.changes or case.is_one_time(record.job):
            continue
        for change in _outdating(case, record):
            if record.id in case.requests and change.at < case.requests[record.id].acked_at:
                continue
            for claim in claims:
                if claim.at > change.acked_at:
                    yield Violation(
                        "ran_after_change",
                        f"{case.name(execution)} was started at {claim.at}, after the"
                        f" {change.operation} of {change.acked_at}",
                    )


def overlaps_follow_the_policy(case: Case) -> Iterator[Violation]:
    """Two runs of a job that does not allow it are never live together, the waits between attempts included."""
    live: dict[int, set[int]] = {}  # by job, what has started and not been settled
    for event in case.history.events:
        if isinstance(event, Settle) and event.accepted and event.kind in _FATE_OF_KIND:
            for started in live.values():
                started.discard(event.execution)
        if not isinstance(event, Claim) or case.is_one_time(event.job):
            continue
        started = live.setdefault(event.job, set())
        if event.execution in started or not _excludes_others(case, event.execution):
            continue
        for other in sorted(started):
            record = case.record(other)
            ended = record.fate.recorded_at if record and record.fate else _FOREVER
            if ended > event.at or case.settled_later(other, event):
                yield Violation(
                    "overlap",
                    f"{case.name(event.execution)} was started at {event.at} while"
                    f" {case.name(other)} was live",
                )
        started.add(event.execution)


def _excludes_others(case: Case, execution: int) -> bool:
    record = case.record(execution)
    documents = case.documents_of(record) if record else []
    policies = [document.get("overlap_policy", "allow") for document in documents]
    return bool(policies) and "allow" not in policies


def nothing_is_stuck(case: Case) -> Iterator[Violation]:
    """In the end, with everybody well for a while, all that is due has been done."""
    for live in case.history.live:
        name = case.name(live.id)
        paused = case.history.job_statuses.get(live.job) == "PAUSED"
        if live.place == "nowhere":
            yield Violation("stuck", f"{name} is in no table, so nobody will find it")
        elif live.place == "due" and live.run_at <= case.ended_at:
            yield Violation("stuck", f"{name} was due at {live.run_at} and was not admitted")
        elif live.place == "held" and not paused:
            yield Violation("stuck", f"{name} is held, and its job is not paused")
        elif live.place in ("parked", "ready", "suspects", "leased"):
            yield Violation("stuck", f"{name} is still {live.place}")
    for job in case.recurring:
        expected = _expected_status(case, job)
        status = case.history.job_statuses.get(job)
        if status != expected:
            yield Violation("status", f"job {job} is {status}, and should be {expected}")


def _expected_status(case: Case, job: int) -> str:
    last = case.changes[job][-1]
    if last.operation == "delete":
        return "CANCELLED"
    if job in case.used_up_at:
        return "COMPLETED"
    states = {"create": "SCHEDULED", "resume": "SCHEDULED", "pause": "PAUSED"}
    state = [states[c.operation] for c in case.changes[job] if c.operation in states][-1]
    ends = last.document["schedule"].get("ends_at")
    if state == "SCHEDULED" and ends is not None and datetime.fromisoformat(ends) <= case.ended_at:
        return "COMPLETED"
    return state


# The system.


def old_leaders_commit_nothing(case: Case) -> Iterator[Violation]:
    """Once a term has begun, no verb of an earlier one is let through."""
    newest = 0
    for event in case.history.events:
        if isinstance(event, TermBegun):
            if event.epoch <= newest:
                yield Violation("epoch", f"epoch {event.epoch} began after epoch {newest}")
            newest = max(newest, event.epoch)
        elif isinstance(event, LeaderVerb) and event.accepted and event.epoch < newest:
            yield Violation(
                "epoch", f"{event.verb} of epoch {event.epoch} was let through in epoch {newest}"
            )


def the_living_keep_their_sessions(case: Case) -> Iterator[Violation]:
    """Only a worker that fell silent loses its session; an outage of the database is nobody's silence."""
    if not case.history.led:
        return  # who does not lead has renewed nothing, and cannot know how long the database was away
    silent: set[int] = set()
    for event in case.history.events:
        if isinstance(event, Silenced):
            silent.add(event.session)
        elif isinstance(event, Reaped):
            for session in sorted(event.sessions - silent):
                yield Violation(
                    "reaped_alive", f"session {session} was ended at {event.at}, its worker alive"
                )


JUDGEMENTS: tuple[Judgement, ...] = (
    nothing_is_lost,
    nothing_is_doubled,
    nothing_is_spurious,
    runs_are_counted,
    misfires_follow_the_policy,
    leases_exclude_each_other,
    ended_attempts_are_all_recorded,
    retries_come_when_promised,
    nothing_is_early,
    deadlines_are_kept,
    there_is_one_fate,
    fates_never_change,
    fates_fit_what_happened,
    cancellations_are_granted,
    changes_are_obeyed,
    overlaps_follow_the_policy,
    nothing_is_stuck,
    old_leaders_commit_nothing,
    the_living_keep_their_sessions,
)
