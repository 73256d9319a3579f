"""Judgements of what there is: nothing lost, nothing twice, nothing that nobody asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from verify.case import Case, Row
from verify.history import Ended, Seconds
from verify.promise import (
    BACKFILL,
    FOREVER,
    LOST,
    PRIORITIES,
    RUN_NOW,
    SCHEDULE,
    Document,
    Lists,
    Micros,
    Violation,
    instant,
    micros,
)
from verify.stories import Intent, Story, told_at

CLAIM_SECONDS = 60.0  # no claim takes longer from reading the clock to its commit
_ECHOED = ("name", "type", "tenant_id", "priority", "overlap_policy", "delivery", "concurrency_key")


# I1


def nothing_acknowledged_is_lost(case: Case) -> Iterator[Violation]:
    """What the client was told is so: jobs, changes, requests, and all that follows from them."""
    for story in case.stories.values():
        yield from _is_what_was_asked(case, story)
        yield from _job_is_there(case, story)
        yield from _requests_are_there(case, story)
        if story.recurring:
            yield from _occurrences_are_there(case, story)
    for row in case.rows:
        if row.ended is not None:
            yield from _fate_is_earned(case, row, row.ended)
    for stretches in case.missed.values():
        for stretch in stretches:
            yield from _was_too_late_to_run(case, stretch)
    yield from _cancels_stand(case)
    yield from _the_dead_are_kept(case)
    yield from _requests_are_answered(case)


def _lost(sentence: str) -> Violation:
    return Violation("I1", sentence)


def _is_what_was_asked(case: Case, story: Story) -> Iterator[Violation]:
    """The answer to a create or update says back what was sent, and an update has an effect."""
    yield from _is_echoed(story, story.create)
    for change in story.changes:
        if change.operation == "update" and change.granted:
            yield from _is_echoed(story, change)
            if story.is_without_effect(change):
                yield _lost(
                    f"{story.job_id} ({story.name}): the update {change.document} was answered at"
                    f" {case.when(change.answered_at or 0.0)}, and says that nothing has changed"
                    f" since {case.when(told_at(change) or 0.0)}"
                )


def _is_echoed(story: Story, intent: Intent) -> Iterator[Violation]:
    sent, answer = intent.document or {}, intent.answer
    for key in _ECHOED:
        if key in sent and key in answer and answer[key] != sent[key]:
            yield _lost(
                f"{story.job_id} was asked for with {key} {sent[key]!r}, and answered with"
                f" {answer[key]!r}"
            )
    told = answer.get("schedule", {})
    for key, value in (sent.get("schedule") or {}).items():
        if key in told and not _means_the_same(key, value, told[key]):
            yield _lost(
                f"{story.job_id} was asked for with {key} {value!r}, and answered with"
                f" {told[key]!r}"
            )


def _means_the_same(key: str, one: Any, other: Any) -> bool:
    if key in ("at", "starts_at", "ends_at") and one is not None and other is not None:
        return micros(instant(one)) == micros(instant(other))
    return bool(one == other)


def _job_is_there(case: Case, story: Story) -> Iterator[Violation]:
    named = f"{story.job_id} ({story.name}), whose creation was answered at"
    named += f" {case.when(story.create.answered_at or 0.0)},"
    if not story.recurring:
        if not case.rows_of_job[story.job_id]:
            yield _lost(f"the one-time job {named} has no execution, neither ended nor alive")
        return
    row = case.job_rows.get(story.job_id)
    if row is None:
        yield _lost(f"the job {named} does not exist")
        return
    if story.certain_until < case.dump.at:
        return
    if row.status == story.status:
        if row.status in ("SCHEDULED", "PAUSED") and has_ended(case, story, case.planned_by):
            yield _lost(f"the job {named} is {row.status}, and has come to its end")
    elif not (row.status == "COMPLETED" and story.status != "CANCELLED" and _may_end(case, story)):
        yield _lost(f"the job {named} is {row.status}; by what was answered it is {story.status}")


def _may_end(case: Case, story: Story) -> bool:
    """Whether a job may have come to its end by itself."""
    schedule = story.document["schedule"]
    ends_at = schedule.get("ends_at")
    return schedule.get("max_runs") is not None or (
        ends_at is not None and instant(ends_at) <= case.dump.at
    )


def has_ended(case: Case, story: Story, at: Seconds) -> bool:
    """Whether a recurring job must have come to its end by a moment: a paused one does so by its runs only."""
    ends_at = story.document["schedule"].get("ends_at")
    over = ends_at is not None and story.status == "SCHEDULED" and instant(ends_at) <= at
    return over or used_up_at(case, story) <= at


def _requests_are_there(case: Case, story: Story) -> Iterator[Violation]:
    for run in story.runs:
        if not run.granted:
            continue
        for execution_id in run.answer["execution_ids"]:
            if execution_id not in case.rows_of_execution:
                yield _lost(
                    f"{execution_id} of {story.job_id} ({story.name}), asked for by {run.operation}"
                    " and answered"
                    f" at {case.when(run.answered_at or 0.0)}, does not exist"
                )


def _occurrences_are_there(case: Case, story: Story) -> Iterator[Violation]:
    for at in required(case, story):
        rows = case.rows_of_occurrence[story.job_id, at]
        if covering(case, story.job_id, at):
            continue
        named = f"{story.job_id} ({story.name}) was due at {case.when(at / 1_000_000)}"
        if not rows:
            yield _lost(f"{named}, and there is nothing about it")
        elif all(row.superseded for row in rows) and not any(
            _was_superseded(case, story, row) for row in rows
        ):
            yield _lost(f"{named}, and is SUPERSEDED by a change that there was not")


def required(case: Case, story: Story) -> Iterator[Micros]:
    """The occurrences of which there must be a record; stretches end a little earlier here."""
    edge = case.promise.edge_seconds
    last_run_at = used_up_at(case, story)
    for stretch in story.stretches:
        first = micros(stretch.since + edge)
        last = micros(min(stretch.until, case.planned_by, story.certain_until, last_run_at) - edge)
        yield from (
            at
            for at in stretch.due
            if first <= at <= last and (story.job_id, at) not in case.forgiven
        )


def used_up_at(case: Case, story: Story) -> float:
    """When a job began the last of the runs that it may have."""
    most = story.max_runs
    if most is None:
        return FOREVER
    started = _run_starts(case, story)
    return started[most - 1] if len(started) >= most else FOREVER


def _run_starts(case: Case, story: Story) -> list[float]:
    """When its runs were counted, which is when they were claimed.

    What was claimed arrives later, or never: it may be given back by a worker that stops, and superseded.
    """
    rows = [row for row in case.rows_of_job[story.job_id] if row.origin == SCHEDULE]
    counted = [_counted_at(case, row) for row in rows]
    return sorted(at for at in counted if at is not None)


def _counted_at(case: Case, row: Row) -> float | None:
    """By the clock that the claim has read, which its fence says; on a busy machine it is noted a moment later."""
    at = row.claimed_at or case.started_at(row)
    if at is None or row.ended is None or not row.ended.attempts:
        return at
    read_at = row.ended.attempts[0].fence / 1_000_000
    return read_at if at - CLAIM_SECONDS < read_at < at else at


def covering(case: Case, job_id: str, at: Micros) -> list[Ended]:
    """The missed stretches that stand for an occurrence."""
    return [
        ended
        for ended in case.missed[job_id]
        if _contains(ended, at) and at not in _left_out(case, ended)
    ]


def _left_out(case: Case, ended: Ended) -> set[Micros]:
    """What a missed stretch goes over and does not count, because it has a row of its own.

    A change that joins late finds what the version before it has done since. Its count says whether a stretch leaves that
    out.
    """
    story = case.stories.get(ended.job_id)
    for stretch in story.stretches if story else ():
        within = [at for at in stretch.maybe if _contains(ended, at)]
        if micros(ended.scheduled_for) not in within:
            continue
        apart = {at for at in within if _has_its_own(case, ended, at)}
        if len(within) - len(apart) == ended.missed:
            return apart
    return set()


def _has_its_own(case: Case, ended: Ended, at: Micros) -> bool:
    if any(not row.superseded for row in case.rows_of_occurrence[ended.job_id, at]):
        return True
    others = case.missed[ended.job_id]
    return any(_contains(other, at) for other in others if _is_inside(other, ended))


def _is_inside(one: Ended, other: Ended) -> bool:
    spans = [(micros(each.scheduled_for), micros(through(each))) for each in (one, other)]
    return spans[0] != spans[1] and spans[1][0] <= spans[0][0] and spans[0][1] <= spans[1][1]


def _contains(ended: Ended, at: Micros) -> bool:
    return micros(ended.scheduled_for) <= at <= micros(through(ended))


def through(ended: Ended) -> float:
    return ended.scheduled_for if ended.missed_through is None else ended.missed_through


def _was_superseded(case: Case, story: Story, row: Row) -> bool:
    """Whether a change at or after an occurrence could take it back before it ran."""
    not_before = row.scheduled_for - case.promise.edge_seconds
    return any(at is None or at >= not_before for at in _changes_in_time(case, story, row))


def _changes_in_time(case: Case, story: Story, row: Row) -> Iterator[float | None]:
    """When the changes came that found an occurrence still waiting; None if nobody knows.

    What had to wait for nothing but its time is under way soon after it.
    """
    assert row.ended is not None
    recorded_at = row.ended.recorded_at
    waits = story.restricted or bool(row.ended.attempts)
    request = story.requested(row.execution_id)
    for change in superseding(story):
        if request is not None and (change.answered_at or FOREVER) < request.asked_at:
            continue
        told = told_at(change) if change.granted else None
        at = recorded_at if told is None else told
        if change.asked_at > recorded_at + case.promise.clock_seconds:
            continue
        allowed = case.allowed(story, row.scheduled_for, at)
        allowed += case.herd_delay(row.scheduled_for, at)
        if waits or at - row.scheduled_for <= allowed:
            yield told


def superseding(story: Story) -> list[Intent]:
    """The changes that put out of date what is queued."""
    return [
        change
        for change in story.changes
        if change.operation in ("pause", "delete")
        or (change.operation == "update" and "schedule" in (change.document or {}))
    ]


def _fate_is_earned(case: Case, row: Row, ended: Ended) -> Iterator[Violation]:
    """An end other than success has a reason that shows outside, or is a loss in disguise."""
    story = case.stories.get(row.job_id)
    arrived = case.delivered[row.execution_id]
    if ended.status == "SUCCEEDED" and not any(map(case.may_have_succeeded, arrived)):
        yield _lost(f"{case.what(row)} is SUCCEEDED, and the receiver never answered it with a 2xx")
    if story is None:
        return
    urgencies = {PRIORITIES[d.get("priority", "MEDIUM")] for d in story.documents}
    if ended.priority not in urgencies and ended.recorded_at < story.certain_until:
        yield _lost(
            f"{case.what(row)} was recorded with the priority {ended.priority}; it was asked for"
            f" with {' or '.join(map(str, sorted(urgencies)))}"
        )
    why = _disproof(case, story, row, ended)
    if why is not None:
        yield _lost(f"{case.what(row)} is {row.state} since {case.when(ended.recorded_at)}: {why}")


def _disproof(case: Case, story: Story, row: Row, ended: Ended) -> str | None:
    """Why a fate cannot be what happened."""
    documents = story.documents
    match ended.status, ended.reason:
        case "SUCCEEDED", _:
            return None
        case "DEAD", "retries_exhausted":
            return None  # judged with the attempts
        case "DEAD", "non_retryable":
            named = any(_retries(document).get("non_retryable") for document in documents)
            return None if named else "its policy has no failures that are not retried"
        case "DEAD", "deadline":
            # A retry that could begin only when it has passed is not waited for.
            return _not_over(case, story, row, "deadline_seconds", early=bool(ended.attempts))
        case "DEAD", "snoozed":  # runs are too short to be snoozed a thousand times
            return _not_over(case, story, row, "deadline_seconds", early=True)
        case "DEAD", "lost":
            return (
                None
                if any(document.get("delivery") == "at_most_once" for document in documents)
                else "it was promised to run again"
            )
        case "DEAD", "crashed":
            lost = sum(attempt.reason in LOST for attempt in ended.attempts)
            enough = lost >= case.promise.crash_limit
            return None if enough else f"it lost its worker only {lost} times"
        case "CANCELLED", _:
            return None if _was_cancelled(case, story, row, ended) else "nobody asked for that"
        case "SUPERSEDED", _:
            changed = story.recurring and any(True for _ in _changes_in_time(case, story, row))
            return None if changed else "its job was not changed before that, and while it waited"
        case "SKIPPED", "overlap" | "replaced" as reason:
            return _no_overlap(case, story, row, ended, reason)
        case "SKIPPED", "start_deadline":
            return _not_over(case, story, row, "start_deadline_seconds")
        case "SKIPPED", "max_runs":
            return None if story.max_runs is not None else "its runs are not limited"
    return "there is no such fate"


def _retries(document: Document) -> Document:
    policy: Document = document.get("retry_policy") or {}
    return policy


def _not_over(case: Case, story: Story, row: Row, key: str, early: bool = False) -> str | None:
    assert row.ended is not None
    deadlines = [d[key] for d in story.documents if d.get(key) is not None]
    if not deadlines:
        return f"its job has no {key}"
    if early:
        return None
    from_when = row.scheduled_for
    if row.origin != SCHEDULE:
        request = story.requested(row.execution_id)
        from_when = request.asked_at if request else from_when
    over_at = from_when + min(deadlines) - case.promise.stamp_seconds
    return None if row.ended.recorded_at >= over_at else f"its {key} were not over"


def _was_cancelled(case: Case, story: Story, row: Row, ended: Ended) -> bool:
    by = ended.recorded_at + case.promise.clock_seconds
    asked = [intent.asked_at for intent in case.cancels[row.execution_id]]
    if not story.recurring:
        asked += [c.asked_at for c in story.changes if c.operation == "delete"]
    replaces = any(document.get("overlap_policy") == "replace" for document in story.documents)
    return replaces or any(at <= by for at in asked)


def _no_overlap(case: Case, story: Story, row: Row, ended: Ended, reason: str) -> str | None:
    skipping = {"replace"} if reason == "replaced" else {"forbid", "queue_one"}
    policies = {document.get("overlap_policy", "allow") for document in story.documents}
    if not policies & skipping:
        return f"its job has the overlap policy {' and '.join(sorted(policies))}"
    company = (
        _was_live(case, story, other, ended.recorded_at)
        for other in case.rows_of_job[row.job_id]
        if other.execution_id != row.execution_id and not _never_had_its_turn(other, ended)
    )
    return None if any(company) else "no other run of its job was live then"


def _never_had_its_turn(row: Row, before: Ended) -> bool:
    """Whether it was skipped for a run that was live; what replaced another may be replaced itself, later."""
    ended = row.ended
    if ended is None or ended.status != "SKIPPED":
        return False
    replaced_later = ended.reason == "replaced" and ended.recorded_at > before.recorded_at
    return ended.reason in ("overlap", "replaced") and not replaced_later


def _was_live(case: Case, story: Story, row: Row, at: float) -> bool:
    """Whether a run had its turn by a moment, and had not ended; who has it starts soon."""
    request = story.requested(row.execution_id)
    due_at = request.asked_at if request else row.scheduled_for
    stamp = case.promise.stamp_seconds
    if due_at > at + stamp or (row.ended is not None and row.ended.recorded_at < at - stamp):
        return False
    started_at = case.started_at(row)
    if started_at is None:
        return True
    allowed = case.allowed(story, at, started_at) + case.herd_delay(at, started_at)
    return started_at <= at + allowed


def _was_too_late_to_run(case: Case, stretch: Ended) -> Iterator[Violation]:
    """Only what is late by more than the grace may be missed, also the last of a stretch."""
    waited = stretch.recorded_at - through(stretch)
    if waited < case.promise.misfire_grace_seconds - case.promise.stamp_seconds:
        yield _lost(
            f"{stretch.execution_id} of {stretch.job_id}: {stretch.missed} occurrences from"
            f" {case.when(stretch.scheduled_for)} were recorded as missed {waited:.3f} s after the"
            " last"
        )


def _cancels_stand(case: Case) -> Iterator[Violation]:
    for execution_id, cancels in case.cancels.items():
        row = case.row(execution_id)
        for cancel in cancels:
            said = cancel.answer.get("status") if isinstance(cancel.answer, dict) else None
            if said != "CANCELLED":
                continue  # a wish, or in doubt
            if row is None or row.ended is None or row.ended.status != "CANCELLED":
                state = row.state if row else "not there"
                yield _lost(
                    f"{execution_id} was answered to be CANCELLED at"
                    f" {case.when(cancel.answered_at or 0.0)},"
                    f" and is {state}"
                )


def _requests_are_answered(case: Case) -> Iterator[Violation]:
    """A job is refused only where its zone is not known, and while nothing is broken there is an answer."""
    for call in case.history.calls:
        if call.status is None or call.answered_at is None:
            continue
        named = f"the {call.operation} that was asked for at {case.when(call.asked_at)}"
        if call.status >= 500 and not case.unrest.touches(call.asked_at, call.answered_at):
            yield _lost(f"{named} was answered {call.status}, and nothing was broken")
        if call.operation == "create" and 400 <= call.status < 500:
            zone = call.document["schedule"].get("timezone")
            if not case.refuses(zone, call.asked_at, call.answered_at):
                yield _lost(f"{named} was refused with {call.status}: {call.document}")


def _the_dead_are_kept(case: Case) -> Iterator[Violation]:
    letters = set(case.dump.dead_letters)
    for row in case.rows:
        if row.ended and row.ended.status == "DEAD" and row.execution_id not in letters:
            yield _lost(f"{case.what(row)} is {row.state}, and not among the dead letters")


# I2


def occurrences_have_one_row(case: Case) -> Iterator[Violation]:
    """One execution for an occurrence, or one missed stretch that it is part of.

    What a change has put out of date may come again in the job's new version; a backfill may be
    asked for again.
    """
    found = Lists[tuple[str, int, Micros], Row]()
    for row in case.rows:
        if row.origin != RUN_NOW and not row.superseded:
            story = case.stories.get(row.job_id)
            # A one-time job is its execution, whatever it is scheduled for.
            at = row.at if story is None or story.recurring else 0
            found.add((row.job_id, row.origin, at), row)
    for (job_id, origin, at), rows in found.items():
        stretches = covering(case, job_id, at) if origin == SCHEDULE else []
        most = 1
        if origin == BACKFILL and job_id in case.stories:
            most = sum(run.operation == "backfill" for run in case.stories[job_id].runs)
        if len(rows) + len(stretches) > max(most, 1):
            also = [f"{row.execution_id} {row.state}" for row in rows]
            also += [f"{stretch.execution_id} missed" for stretch in stretches]
            yield Violation("I2", f"{case.what(rows[0])} has {len(also)} rows: {', '.join(also)}")
    for job_id, stretches in case.missed.items():
        ordered = sorted(stretches, key=lambda stretch: stretch.scheduled_for)
        for one, other in pairwise(ordered):
            apart = _left_out(case, one) | _left_out(case, other)
            if _contains(one, micros(other.scheduled_for)) and not (
                apart and _shared(case, one, other) <= apart
            ):
                yield Violation(
                    "I2",
                    f"{job_id}: the missed stretches {one.execution_id} and {other.execution_id}"
                    " overlap at"
                    f" {case.when(other.scheduled_for)}",
                )


def _shared(case: Case, one: Ended, other: Ended) -> set[Micros]:
    """The occurrences that two missed stretches of a job both go over."""
    story = case.stories.get(one.job_id)
    due = {at for stretch in story.stretches for at in stretch.maybe} if story else set()
    return {at for at in due if _contains(one, at) and _contains(other, at)}


# I11


def nothing_is_spurious(case: Case) -> Iterator[Violation]:
    """All that arrived or was recorded is of a job that was asked for, and of one of its times."""
    for stray in case.history.strays:
        yield _spurious(f"what arrived at {case.when(stray.at)} is no webhook: {stray.what}")
    yield from _answers_are_of_their_time(case)
    for row in case.rows:
        story = case.stories.get(row.job_id)
        if story is not None:
            yield from _row_is_wanted(case, story, row)
    for job_id, stretches in case.missed.items():
        if job_id in case.stories:
            yield from _stretches_are_whole(case, case.stories[job_id], stretches)
    yield from _unknown_jobs_are_explained(case)
    yield from _deliveries_are_of_rows(case)
    for story in case.stories.values():
        yield from _no_more_runs_than_asked(case, story)
    dead = {row.execution_id for row in case.rows if row.ended and row.ended.status == "DEAD"}
    for execution_id in case.dump.dead_letters:
        if execution_id not in dead:
            yield _spurious(f"{execution_id} is among the dead letters, and is not DEAD")


def _spurious(sentence: str) -> Violation:
    return Violation("I11", sentence)


def _answers_are_of_their_time(case: Case) -> Iterator[Violation]:
    """A change holds from a moment between question and answer, whichever clock is wrong."""
    clock = case.promise.clock_seconds
    for story in case.stories.values():
        for intent in (story.create, *(c for c in story.changes if c.granted)):
            told, answered_at = told_at(intent), intent.answered_at
            if told is None or answered_at is None:
                continue
            created = intent.operation == "create"
            too_early = created and told < intent.asked_at - clock
            if too_early or told > answered_at + clock:
                yield _spurious(
                    f"{story.job_id} ({story.name}): the {intent.operation} asked for at"
                    f" {case.when(intent.asked_at)} and answered at {case.when(answered_at)} says"
                    " that it"
                    f" happened at {case.when(told)}"
                )
            delay = (intent.document or {}).get("schedule", {}).get("delay_seconds")
            if delay is not None:
                at = instant(intent.answer["schedule"]["at"]) - delay
                if not intent.asked_at - clock <= at <= answered_at + clock:
                    yield _spurious(
                        f"{story.job_id} ({story.name}): asked for {delay} s after"
                        f" {case.when(intent.asked_at)}, set for {case.when(at + delay)}"
                    )


def _row_is_wanted(case: Case, story: Story, row: Row) -> Iterator[Violation]:
    if row.origin != SCHEDULE:
        yield from _was_requested(case, story, row)
        return
    if not story.recurring:
        if row.at != story.instant and story.certain_until >= case.dump.at:
            yield _spurious(f"{case.what(row)}: the job was not set for then")
        return
    if row.scheduled_for >= story.certain_until - case.promise.edge_seconds:
        return
    stretch = story.stretch_of(row.at)
    if stretch is None:
        yield _spurious(f"{case.what(row)}: the job was not to run then")
        return
    last_planned_at = used_up_at(case, story) + (case.dump.at - case.planned_by)
    if row.scheduled_for > last_planned_at + case.promise.horizon_seconds:
        yield _spurious(f"{case.what(row)}: the job had begun the last of its runs long before")
    if (
        row.scheduled_for > stretch.gone_at + case.promise.edge_seconds
        and (case.delivered[row.execution_id])
    ):
        yield _spurious(
            f"{case.what(row)} was delivered, and the change that took it back was answered at"
            f" {case.when(stretch.gone_at)}"
        )


def _was_requested(case: Case, story: Story, row: Row) -> Iterator[Violation]:
    if story.requested(row.execution_id) is not None:
        return
    operation = "run" if row.origin == RUN_NOW else "backfill"
    doubtful = [run for run in story.runs if run.doubtful and run.operation == operation]
    if not doubtful:
        yield _spurious(f"{case.what(row)}: nobody asked for this {operation}")


def _no_more_runs_than_asked(case: Case, story: Story) -> Iterator[Violation]:
    rows = case.rows_of_job[story.job_id]
    unclaimed = [
        row for row in rows if row.origin == RUN_NOW and story.requested(row.execution_id) is None
    ]
    doubtful = sum(run.doubtful and run.operation == "run" for run in story.runs)
    if doubtful and len(unclaimed) > doubtful:
        yield _spurious(
            f"{story.job_id} ({story.name}) has {len(unclaimed)} runs for {doubtful} requests that"
            " were"
            f" never answered: {', '.join(row.execution_id for row in unclaimed)}"
        )
    if not story.recurring or story.max_runs is None:
        return
    starts = _run_starts(case, story)
    if len(starts) > story.max_runs:
        yield _spurious(
            f"{story.job_id} ({story.name}) has begun {len(starts)} runs, and may have"
            f" {story.max_runs}"
        )


def _stretches_are_whole(case: Case, story: Story, stretches: list[Ended]) -> Iterator[Violation]:
    """A missed stretch has just the occurrences that it says."""
    for ended in stretches:
        first, last = micros(ended.scheduled_for), micros(through(ended))
        if through(ended) >= story.certain_until:
            continue
        counts = [
            sum(first <= at <= last for at in stretch.maybe) - len(_left_out(case, ended))
            for stretch in story.stretches
            if {first, last} <= stretch.maybe
        ]
        if ended.missed not in counts:
            yield _spurious(
                f"{ended.execution_id} of {story.job_id} ({story.name}) says that {ended.missed}"
                " occurrences"
                f" were missed from {case.when(ended.scheduled_for)} to"
                f" {case.when(through(ended))};"
                f" there are {' or '.join(map(str, counts)) or 'none'}"
            )


def _unknown_jobs_are_explained(case: Case) -> Iterator[Violation]:
    """A job whose creation was never acknowledged must at least have been asked for."""
    unnamed: Counter[str] = Counter()
    seen = {row.job_id for row in case.rows} | set(case.missed) | set(case.job_rows)
    for job_id in sorted(seen - set(case.stories)):
        name = case.job_name(job_id)
        if name is None:
            tenants = {row.ended.tenant for row in case.rows_of_job[job_id] if row.ended}
            unnamed.update(tenants or {""})
        elif name not in case.doubtful_creates:
            yield _spurious(f"{job_id} ({name}): nobody asked for such a job")
        else:
            yield from _fits_a_doubtful_create(case, job_id, case.doubtful_creates[name])
    for tenant, count in unnamed.items():
        creates = case.doubtful_creates.values()
        most = sum(not tenant or create.tenant == tenant for create in creates)
        if count > most:
            yield _spurious(
                f"tenant {tenant or '?'} has {count} jobs without an acknowledged creation, and"
                f" asked for {most}"
            )


def _fits_a_doubtful_create(case: Case, job_id: str, create: Intent) -> Iterator[Violation]:
    """From where its interval counts is not known, as its creation is not; its rhythm is, until it is changed."""
    if any(i.operation == "update" and i.job_id == job_id for i in case.intents):
        return
    every = create.document["schedule"].get("every_seconds")
    rows = [row for row in case.rows_of_job[job_id] if row.origin == SCHEDULE]
    if every is not None and len({row.at % (every * 1_000_000) for row in rows}) > 1:
        yield _spurious(f"{job_id} ({create.document['name']}) does not run every {every} s")


def _deliveries_are_of_rows(case: Case) -> Iterator[Violation]:
    for execution_id, deliveries in case.delivered.items():
        row = case.row(execution_id)
        first = deliveries[0]
        if row is None and first.at > case.dump.at:
            continue  # planned since
        if row is None:
            yield _spurious(
                f"{execution_id} ({first.job}) was delivered at {case.when(first.at)}, and does not"
                " exist"
            )
            continue
        story = case.stories.get(row.job_id)
        for delivery in deliveries:
            if story is not None and delivery.job != story.name:
                yield _spurious(
                    f"{case.what(row)} was delivered at {case.when(delivery.at)} as {delivery.job}"
                )
            allowed = {row.at} if story is None or story.recurring else {row.at, *story.instants}
            if micros(delivery.scheduled_for) not in allowed:
                yield _spurious(
                    f"{case.what(row)} was delivered at {case.when(delivery.at)} as scheduled for"
                    f" {case.when(delivery.scheduled_for)}"
                )


# I12


def creates_are_idempotent(case: Case) -> Iterator[Violation]:
    """Who repeats a create under its key gets the job that there is; and there is one."""
    answered = Lists[tuple[str, str], str]()
    for call in case.history.calls:
        if call.operation == "create" and call.key is not None and call.status in (200, 201):
            job_id = call.answer["job_id"]
            if job_id not in answered[call.tenant, call.key]:
                answered.add((call.tenant, call.key), job_id)
    for (tenant, key), jobs in answered.items():
        if len(jobs) > 1:
            yield Violation("I12", f"the key {key} of tenant {tenant} made {' and '.join(jobs)}")
    named = Lists[str, str]()
    for job_id in {row.job_id for row in case.rows} | set(case.job_rows) | set(case.stories):
        story = case.stories.get(job_id)
        name = story.name if story else case.job_name(job_id)
        if name is not None:
            named.add(name, job_id)
    for name, jobs in named.items():
        if len(jobs) > 1:
            yield Violation("I12", f"{name} was asked for once and is {' and '.join(sorted(jobs))}")


# I13, first half


def tenants_are_apart(case: Case) -> Iterator[Violation]:
    """What a tenant asked for is recorded as that tenant's, under the name that it gave."""
    for job in case.dump.jobs:
        story = case.stories.get(job.job_id)
        if story is not None and (job.tenant, job.name) != (story.tenant, story.name):
            yield Violation(
                "I13",
                f"{job.job_id} was created by {story.tenant} as {story.name}, and is {job.tenant}'s"
                f" {job.name}",
            )
    for ended in case.dump.ended:
        story = case.stories.get(ended.job_id)
        if story is not None and ended.tenant != story.tenant:
            yield Violation(
                "I13",
                f"{ended.execution_id} of {ended.job_id} ({story.name}) was recorded for"
                f" {ended.tenant},"
                f" and the job is {story.tenant}'s",
            )
    tenants = {story.name: story.tenant for story in case.stories.values()}
    for delivery in case.deliveries:
        row = case.row(delivery.execution_id)
        story = case.stories.get(row.job_id) if row else None
        whose = tenants.get(delivery.job)
        if story is not None and whose is not None and whose != story.tenant:
            yield Violation(
                "I13",
                f"{delivery.execution_id} of {story.tenant}'s {story.name} was delivered at"
                f" {case.when(delivery.at)} as {whose}'s {delivery.job}",
            )
