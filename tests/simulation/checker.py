"""The judge of a run in virtual time: what `verify.judge` knows, and what only a simulation can know.

A simulation knows the order of all calls of workers and schedulers (`verify.history.Step`), exactly, also of those at the same
moment, and what the ledger said in between. So more can be asked of it than of real processes: who held what when, whether
a passed occurrence should have run by its misfire policy, which runs were live together.

Each judgement looks at one promise and yields what breaks it. `test_checker.py` breaks every promise once, to show that
the judge would have seen it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property

import msgspec

from verify.attempts import delay, ended_rows, most_retries
from verify.case import Case, Row
from verify.history import (
    Claim,
    Delivery,
    Ended,
    Gated,
    History,
    LeaderVerb,
    Planned,
    Reaped,
    Seconds,
    SessionClosed,
    SessionOpened,
    SessionRenewed,
    Settle,
    Silenced,
    TermBegun,
)
from verify.judge import judge
from verify.occurrences import covering, has_ended, through
from verify.promise import BACKFILL, FOREVER, SCHEDULE, Document, Lists, Micros, Promise, Violation
from verify.promise import micros as _micros
from verify.stories import Story, Stretch, Version

SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED = range(5)
INTERRUPTED, SNOOZED = 7, 8
_GIVEN_BACK = (RELEASED, INTERRUPTED, SNOOZED)  # without an ended attempt
_STATUS_OF_KIND = {SUCCEEDED: "SUCCEEDED", DEAD: "DEAD", CANCELLED: "CANCELLED"}


def check(history: History, promise: Promise) -> list[Violation]:
    """Everything in this run that breaks a promise."""
    handed_out = list(deliveries(history))
    return judge(
        LivedCase(msgspec.structs.replace(history, deliveries=handed_out), promise), JUDGEMENTS
    )


def deliveries(history: History) -> Iterator[Delivery]:
    """What was claimed, as if its worker had written it down."""
    names = {
        call.answer["job_id"]: call.document["name"]
        for call in history.calls
        if call.operation == "create"
    }
    outcomes = {
        (step.execution_id, step.fence): step
        for step in history.steps
        if isinstance(step, Settle) and step.accepted and step.kind not in _GIVEN_BACK
    }
    for step in history.steps:
        if isinstance(step, Claim):
            outcome = outcomes.get((step.execution_id, step.fence))
            yield Delivery(
                at=step.at,
                execution_id=step.execution_id,
                job=names.get(step.job_id, "?"),
                fence=step.fence,
                attempt=step.attempt,
                scheduled_for=step.scheduled_for,
                mood="well",
                answered_at=outcome.at if outcome else None,
                status=(200 if outcome.kind == SUCCEEDED else 500) if outcome else None,
                worker=f"session {step.session}",
            )


class LivedCase(Case):
    """A history of a simulation, indexed."""

    @cached_property
    def claims(self) -> Lists[str, Claim]:
        """By execution."""
        found = Lists[str, Claim]()
        for step in self.history.steps:
            if isinstance(step, Claim):
                found.add(step.execution_id, step)
        return found

    @cached_property
    def settles(self) -> Lists[str, Settle]:
        """By execution, those that counted."""
        found = Lists[str, Settle]()
        for step in self.history.steps:
            if isinstance(step, Settle) and step.accepted:
                found.add(step.execution_id, step)
        return found

    def name(self, execution_id: str) -> str:
        row = self.row(execution_id)
        return execution_id if row is None else self.what(row)

    def documents_at(self, job_id: str, at: Seconds) -> list[Document]:
        story = self.stories.get(job_id)
        return story.documents_at(at) if story else []

    def documents_of(self, row: Row) -> list[Document]:
        """Under which an execution was planned, or asked for: one, or more while the job is being changed."""
        story = self.stories.get(row.job_id)
        if story is None:
            return []
        if not story.recurring:
            return [story.document]
        if row.origin == SCHEDULE:
            return [stretch.document for stretch in stretches_of(story, row.at)]
        request = story.requested(row.execution_id)
        return story.documents_at(request.answered_at or 0.0) if request else []

    def at_most_once(self, claim: Claim) -> bool:
        documents = self.documents_at(claim.job_id, claim.at)
        return any(document.get("delivery") == "at_most_once" for document in documents)


def stretches_of(story: Story, at: Micros) -> list[Stretch]:
    """To which an occurrence may belong: one, or two while the job is being changed."""
    return [stretch for stretch in story.stretches if at in stretch.maybe]


# Misfires.


def misfires_follow_the_policy(case: LivedCase) -> Iterator[Violation]:
    """Of what was late by more than the grace, only what the policy does not make up is missed, and the rest is not.

    The rule, for each occurrence when it is planned, and again when the gate first looks at it:

        late by no more than the grace    runs
        later, `skip`                     missed
        later, `latest`                   missed if a newer occurrence of the job is due
        later, `all`                      missed if older than the window, or (when planned) beyond the limit
    """
    for job_id, stretches in case.missed.items():
        story = case.stories.get(job_id)
        for missed in stretches if story else ():
            assert story is not None
            owners = stretches_of(story, _micros(missed.scheduled_for))
            documents = [stretch.document for stretch in owners]
            if missed.missed == 1:  # the gate goes by the job as it is then
                documents += story.documents_at(missed.recorded_at)
            reasons = [_not_to_be_missed(case, story, document, missed) for document in documents]
            if reasons and None not in reasons:
                yield Violation(
                    "misfire",
                    f"{job_id}: the stretch missed from {case.when(missed.scheduled_for)} to"
                    f" {case.when(through(missed))} {reasons[0]}",
                )
    yield from _planned_too_late_to_run(case)
    yield from _seen_too_late_to_run(case)


def _not_to_be_missed(
    case: LivedCase, story: Story, document: Document, missed: Ended
) -> str | None:
    policy = document.get("misfire_policy", "latest")
    if policy == "skip":
        return None
    last, recorded = _micros(through(missed)), _micros(missed.recorded_at)
    due = {at for stretch in story.stretches for at in stretch.maybe}
    following = [at for at in due if last < at <= recorded]
    if policy == "latest":
        # The newer one has a fate of its own, so the newest of all runs; or a change under way has taken it back.
        return None if following else "ends with the newest occurrence that was due"
    made_up = [
        at
        for at in following
        if case.rows_of_occurrence[story.job_id, at]
        # or it was made up, and then the gate came too late for it
        or any(
            other.missed == 1 and other.recorded_at > missed.recorded_at
            for other in covering(case, story.job_id, at)
        )
    ]
    window = document.get("catch_up_window_seconds", 86_400)
    limit = document.get("catch_up_limit", 100)
    within = through(missed) > missed.recorded_at - window and len(made_up) < limit
    return "was within the window and the limit of `all`" if within else None


def _planned_too_late_to_run(case: LivedCase) -> Iterator[Violation]:
    promise = case.promise
    moments = sorted(step.at for step in case.history.steps if isinstance(step, Planned))
    for story, row in _occurrences(case):
        stretches = stretches_of(story, row.at)
        policies = {stretch.document.get("misfire_policy", "latest") for stretch in stretches}
        if policies != {"skip"}:
            continue
        # Fires are judged by when they were opened; a crash may leave the rest for later.
        since = min(row.scheduled_for - promise.horizon_seconds, stretches[0].since)
        first = moments[bisect_left(moments, since) :][:1]
        if all(at > row.scheduled_for + promise.misfire_grace_seconds for at in first):
            yield Violation("misfire", f"{case.what(row)} was made up, and the policy is skip")


def _seen_too_late_to_run(case: LivedCase) -> Iterator[Violation]:
    """What ran although the gate did not look at anything between its time and the end of its grace."""
    passes = sorted(step.at for step in case.history.steps if isinstance(step, Gated))
    for story, row in _occurrences(case):
        seen = passes[bisect_left(passes, row.scheduled_for) :][:1]  # or later
        if not seen or seen[0] <= row.scheduled_for + case.promise.misfire_grace_seconds:
            continue
        claims = case.claims[row.execution_id]
        planned_at = row.scheduled_for - case.promise.horizon_seconds
        if not claims or any(
            version.asked_at <= claims[0].at and version.answered_at >= planned_at
            for version in story.versions
        ):
            continue
        for stretch in stretches_of(story, row.at):
            reason = _not_to_run(stretch, row.at, _micros(seen[0]))
            if reason is not None:
                yield Violation(
                    "misfire",
                    f"{case.what(row)} ran, the gate saw it at {case.when(seen[0])} first, and {reason}",
                )


def _occurrences(case: LivedCase) -> Iterator[tuple[Story, Row]]:
    """The rows of the schedules of recurring jobs."""
    for row in case.rows:
        story = case.stories.get(row.job_id)
        if story is not None and story.recurring and row.origin == SCHEDULE:
            yield story, row


def _not_to_run(stretch: Stretch, at: Micros, seen_at: Micros) -> str | None:
    policy = stretch.document.get("misfire_policy", "latest")
    if policy == "skip":
        return "the policy is skip"
    if policy == "latest":
        newer = any(at < other <= seen_at for other in stretch.due)
        return "a newer occurrence was due by then" if newer else None
    window = stretch.document.get("catch_up_window_seconds", 86_400) * 1_000_000
    return "it was older than the window of `all`" if at <= seen_at - window else None


# Leases, attempts, fences.


class _Hold:
    """A claim that has not visibly ended."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.ended_by: str | None = None  # settled, given back, lost


def sessions_exclude_each_other(case: LivedCase) -> Iterator[Violation]:
    """One live lease at most; attempts have no holes; stale outcomes change nothing."""
    lease = case.promise.lease_seconds
    renewed: dict[int, Seconds] = {}
    holds: dict[str, _Hold] = {}
    lost_in_a_row: dict[str, int] = defaultdict(int)

    def held_by(session: int) -> list[_Hold]:
        return [h for h in holds.values() if h.claim.session == session and h.ended_by is None]

    for step in case.history.steps:
        match step:
            case SessionOpened():
                renewed[step.session] = step.at
            case SessionRenewed():
                renewed[step.session] = step.at
                for hold in held_by(step.session):
                    if hold.claim.execution_id in step.lost:
                        hold.ended_by = "lost"
                    elif (
                        hold.claim.number <= step.resolved
                        and hold.claim.execution_id not in step.running
                    ):
                        hold.ended_by = "given back"
            case SessionClosed():
                for hold in held_by(step.session):
                    hold.ended_by = "given back"
            case Settle(accepted=True):
                now = holds.get(step.execution_id)
                if now is None or (now.claim.session, now.claim.fence) != (
                    step.session,
                    step.fence,
                ):
                    yield Violation(
                        "stale_outcome",
                        f"{case.name(step.execution_id)}: an outcome under fence {step.fence} counted",
                    )
                else:
                    now.ended_by = "given back" if step.kind in _GIVEN_BACK else "settled"
                    if step.kind not in (RELEASED, INTERRUPTED):
                        lost_in_a_row[step.execution_id] = 0
            case Claim():
                before = holds.get(step.execution_id)
                expected = 1
                if before is not None:
                    session = before.claim.session
                    leased_until = renewed.get(session, before.claim.at) + lease
                    if before.ended_by is None and leased_until > step.at:
                        yield Violation(
                            "two_leases",
                            f"{case.name(step.execution_id)} was claimed at {case.when(step.at)} while"
                            f" session {session} held it",
                        )
                    again = before.ended_by == "given back"
                    if not again and case.at_most_once(step):
                        yield Violation(
                            "at_most_once", f"{case.name(step.execution_id)} was started twice"
                        )
                    expected = before.claim.attempt + (0 if again else 1)
                    if before.ended_by in (None, "lost"):
                        lost_in_a_row[step.execution_id] += 1
                if step.attempt != expected:
                    yield Violation(
                        "attempts",
                        f"{case.name(step.execution_id)}: attempt {step.attempt} where {expected} follows",
                    )
                lost = lost_in_a_row[step.execution_id]
                if lost >= case.promise.crash_limit:
                    yield Violation(
                        "crashes",
                        f"{case.name(step.execution_id)} lost its worker {lost} times and was tried"
                        " again",
                    )
                holds[step.execution_id] = _Hold(step)


def ends_are_those_of_the_last_claim(case: LivedCase) -> Iterator[Violation]:
    """The recorded end is the one that its last worker lived through, and under that one's fence."""
    for row, ended in ended_rows(case):
        claims = case.claims[row.execution_id]
        if claims and ended.fence != claims[-1].fence:
            yield Violation(
                "fence",
                f"{case.what(row)}: recorded fence {ended.fence}, claimed {claims[-1].fence}",
            )
        if not claims and ended.counted:
            yield Violation("attempts", f"{case.what(row)}: attempts were recorded, none began")
        if ended.status == "SKIPPED" and ended.counted:
            yield Violation("wrong_fate", f"{case.what(row)} is SKIPPED, and was tried")
        story = case.stories.get(row.job_id)
        outdated = story is not None and _outdating(case, story, row, ended.recorded_at)
        if ended.status == "SUPERSEDED" and not outdated:
            yield Violation(
                "wrong_fate", f"{case.what(row)} is SUPERSEDED, and was not out of date"
            )
        for settle in case.settles[row.execution_id]:
            said = _STATUS_OF_KIND.get(settle.kind, ended.status)
            if said != ended.status:
                yield Violation(
                    "wrong_fate",
                    f"{case.what(row)}: its worker said {said}, recorded {ended.status}",
                )
            if settle.at > ended.recorded_at:
                yield Violation("after_fate", f"{case.what(row)} goes on at {case.when(settle.at)}")


def retries_come_when_promised(case: LivedCase) -> Iterator[Violation]:
    """A retry waits as long as the policy says, and there are no more of them than it says."""
    for execution_id, settles in case.settles.items():
        claims = case.claims[execution_id]
        for settle in settles:
            places = [place for place, claim in enumerate(claims) if claim.fence == settle.fence]
            if not places:
                continue
            claim, following = claims[places[0]], claims[places[0] + 1 :]
            documents = case.documents_at(claim.job_id, claim.at)
            if not documents:
                continue
            if settle.kind in (RETRY, SNOOZED):
                waits = settle.delay_seconds
                assert waits is not None
                if settle.kind == RETRY and not any(
                    _promised(document, claim.attempt, waits) for document in documents
                ):
                    yield Violation(
                        "retry",
                        f"{case.name(execution_id)}: {waits} s after attempt {claim.attempt} is not"
                        f" what {[document.get('retry_policy') for document in documents]} say",
                    )
                due_at = settle.at + waits - case.promise.stamp_seconds
                if following and following[0].at < due_at:
                    yield Violation(
                        "retry", f"{case.name(execution_id)} was tried again before {due_at}"
                    )
            elif settle.kind == DEAD and settle.reason == "retries_exhausted":
                most = [most_retries(document) for document in documents]
                if claim.attempt <= min(most):
                    yield Violation(
                        "retry",
                        f"{case.name(execution_id)} was given up at attempt {claim.attempt} of {most}",
                    )


def _promised(document: Document, attempt: int, waits: float) -> bool:
    shortest, longest = delay(document, attempt)
    return attempt <= most_retries(document) and shortest <= waits <= longest


# Time.


def deadlines_are_kept(case: LivedCase) -> Iterator[Violation]:
    """Nothing starts after its start deadline, and nothing is tried after its total deadline."""
    for row in case.rows:
        documents, story = case.documents_of(row), case.stories.get(row.job_id)
        if not documents or story is None:
            continue
        request = story.requested(row.execution_id)
        counts_from = row.scheduled_for
        if request is not None and row.origin == BACKFILL:
            counts_from = request.answered_at or FOREVER
        start_by = counts_from + max(_seconds(d, "start_deadline_seconds") for d in documents)
        finish_by = counts_from + max(_seconds(d, "deadline_seconds") for d in documents)
        claims = case.claims[row.execution_id]
        if not story.recurring:
            claims = claims[-1:]  # what was promised before its last update is not known here
        begun = [  # and given back: it has started, whatever follows
            settle.fence
            for settle in case.settles[row.execution_id]
            if settle.kind in (INTERRUPTED, SNOOZED)
        ]
        for claim in claims:
            is_first = claim.attempt == 1 and not any(fence < claim.fence for fence in begun)
            if is_first and claim.at > start_by + case.promise.stamp_seconds:
                yield Violation("deadline", f"{case.what(row)} was started after {start_by}")
            if claim.at > finish_by + case.promise.stamp_seconds:
                yield Violation("deadline", f"{case.what(row)} was tried after {finish_by}")


def _seconds(document: Document, key: str) -> float:
    seconds = document.get(key)
    return FOREVER if seconds is None else float(seconds)


def changes_are_obeyed(case: LivedCase) -> Iterator[Violation]:
    """What belongs to a job as it was does not start once it is paused, deleted or rescheduled."""
    for execution_id, claims in case.claims.items():
        row = case.row(execution_id)
        story = case.stories.get(row.job_id) if row else None
        if row is None or story is None or not story.recurring:
            continue
        request = story.requested(execution_id)
        for version in _outdating(case, story, row):
            if request is not None and version.told < (request.answered_at or FOREVER):
                continue
            for claim in claims:
                if claim.at > version.answered_at:
                    yield Violation(
                        "ran_after_change",
                        f"{case.what(row)} was started at {case.when(claim.at)}, after the"
                        f" {version.operation} of {case.when(version.answered_at)}",
                    )


def _outdating(case: LivedCase, story: Story, row: Row, until: float = FOREVER) -> list[Version]:
    """The changes that make an execution out of date, among those asked for until then."""
    changes = [v for v in story.versions[1:] if v.reschedules and v.asked_at <= until]
    if row.origin != SCHEDULE:  # asked for: a pause outdates it, and the resume after that does not
        request = story.requested(row.execution_id)
        asked_at = request.asked_at if request else FOREVER
        return [v for v in changes if v.operation != "resume" and v.answered_at >= asked_at]
    if any(row.at in stretch.due for stretch in story.stretches):
        return [version for version in changes if _micros(version.told) >= row.at]
    # Planned while the job was being changed, and not to be by that change, which is the last that it may have met.
    horizon = case.promise.horizon_seconds
    met = [version for version in changes if version.answered_at + horizon >= row.scheduled_for]
    return sorted(met, key=lambda version: version.answered_at)[-1:]


def overlaps_follow_the_policy(case: LivedCase) -> Iterator[Violation]:
    """Two runs of a job that does not allow it are never live together, the waits between attempts included."""
    live: dict[str, set[str]] = {}  # by job, what has started and not been settled
    last_end = {
        step.execution_id: number
        for number, step in enumerate(case.history.steps)
        if isinstance(step, Settle) and step.accepted and step.kind in _STATUS_OF_KIND
    }
    for number, step in enumerate(case.history.steps):
        if isinstance(step, Settle) and last_end.get(step.execution_id) == number:
            for started in live.values():
                started.discard(step.execution_id)
        if not isinstance(step, Claim):
            continue
        story = case.stories.get(step.job_id)
        started = live.setdefault(step.job_id, set())
        if story is None or not story.recurring or step.execution_id in started:
            continue
        if not _excludes_others(case, step.execution_id):
            continue
        for other in sorted(started):
            row = case.row(other)
            ended_at = row.ended.recorded_at if row and row.ended else FOREVER
            if ended_at > step.at or last_end.get(other, -1) > number:
                yield Violation(
                    "overlap",
                    f"{case.name(step.execution_id)} was started at {case.when(step.at)} while"
                    f" {case.name(other)} was live",
                )
        started.add(step.execution_id)


def _excludes_others(case: LivedCase, execution_id: str) -> bool:
    row = case.row(execution_id)
    documents = case.documents_of(row) if row else []
    policies = [document.get("overlap_policy", "allow") for document in documents]
    return bool(policies) and "allow" not in policies


# The system.


def ends_never_change(case: LivedCase) -> Iterator[Violation]:
    """What was recorded stays as it was recorded."""
    final = {ended.execution_id: (ended.status, ended.reason) for ended in case.dump.ended}
    for checkpoint in case.history.checkpoints:
        for execution_id, was in checkpoint.fates.items():
            if final.get(execution_id) != was:
                yield Violation(
                    "fate_changed",
                    f"{case.name(execution_id)} was {was} at {case.when(checkpoint.at)} and is"
                    f" {final.get(execution_id)}",
                )


def all_is_at_rest(case: LivedCase) -> Iterator[Violation]:
    """In the end, with everybody well for a while, nothing is on its way, and no job is over before its time."""
    for job in case.dump.jobs:
        story = case.stories.get(job.job_id)
        if story and job.status == "COMPLETED" and not has_ended(case, story, case.dump.at):
            yield Violation("status", f"{job.job_id} ({job.name}) is COMPLETED before its end")
    for row in case.rows:
        if row.alive is not None and row.alive.place in ("parked", "ready", "suspects", "leased"):
            yield Violation("stuck", f"{case.what(row)} is still {row.alive.place}")


def old_leaders_commit_nothing(case: LivedCase) -> Iterator[Violation]:
    """Once a term has begun, no verb of an earlier one is let through."""
    newest = 0
    for step in case.history.steps:
        if isinstance(step, TermBegun):
            if step.epoch <= newest:
                yield Violation("epoch", f"epoch {step.epoch} began after epoch {newest}")
            newest = max(newest, step.epoch)
        elif isinstance(step, LeaderVerb) and step.accepted and step.epoch < newest:
            yield Violation(
                "epoch", f"{step.verb} of epoch {step.epoch} was let through in epoch {newest}"
            )


def the_living_keep_their_sessions(case: LivedCase) -> Iterator[Violation]:
    """Only a worker that fell silent loses its session; an outage of the database is nobody's silence."""
    if not any(isinstance(step, TermBegun) for step in case.history.steps):
        return  # who does not lead has renewed nothing, and cannot know how long the database was away
    silent: set[int] = set()
    for step in case.history.steps:
        if isinstance(step, Silenced):
            silent.add(step.session)
        elif isinstance(step, Reaped):
            for session in sorted(step.sessions - silent):
                yield Violation(
                    "reaped_alive",
                    f"session {session} was ended at {case.when(step.at)}, its worker alive",
                )


JUDGEMENTS: tuple[Callable[[LivedCase], Iterator[Violation]], ...] = (
    misfires_follow_the_policy,
    sessions_exclude_each_other,
    ends_are_those_of_the_last_claim,
    retries_come_when_promised,
    deadlines_are_kept,
    changes_are_obeyed,
    overlaps_follow_the_policy,
    ends_never_change,
    all_is_at_rest,
    old_leaders_commit_nothing,
    the_living_keep_their_sessions,
)
