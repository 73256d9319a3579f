"""Judgements of attempts: who held an execution, under which fence, how often, and after which
delay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from chaos.checks_case import Case, Row
from chaos.checks_faults import RECEIVER, Strike
from chaos.checks_promise import LOST, Document, Lists, Violation, succeeded
from chaos.checks_stories import Story
from chaos.history import Attempt, Delivery, Ended


def _ended(case: Case) -> Iterator[tuple[Row, Ended]]:
    for row in case.rows:
        if row.ended is not None:
            yield row, row.ended


def _in_order(ended: Ended) -> list[Attempt]:
    return sorted(ended.attempts, key=lambda attempt: attempt.attempt)


# I5


def leases_exclude_each_other(case: Case) -> Iterator[Violation]:
    """One attempt has ended before the next one begins, and no two go under one fence."""
    for row, ended in _ended(case):
        attempts = _in_order(ended)
        fences = [attempt.fence for attempt in attempts]
        if len(set(fences)) < len(fences):
            yield Violation("I5", f"{case.what(row)}: two attempts under one fence: {fences}")
        for one, other in pairwise(attempts):
            over = one.finished_at - other.started_at
            if over > case.promise.stamp_seconds:
                yield Violation(
                    "I5",
                    f"{case.what(row)}: attempt {other.attempt} began at"
                    f" {case.when(other.started_at)}, while"
                    f" attempt {one.attempt} went on until {case.when(one.finished_at)}",
                )
        yield from _leases_run_out(case, row, ended)


def _leases_run_out(case: Case, row: Row, ended: Ended) -> Iterator[Violation]:
    """What a worker holds is taken from it when its lease is over, and not when it falls silent."""
    least = case.promise.least_lease_seconds
    for attempt in ended.attempts:
        if attempt.reason not in LOST:
            continue
        causes = [
            struck.fault.began_at
            for struck in case.strikes
            if _explains(case, struck, _loss(attempt, ""))
        ]
        if causes and attempt.finished_at < min(causes) + least - case.promise.stamp_seconds:
            yield Violation(
                "I5",
                f"{case.what(row)}: attempt {attempt.attempt} lost its lease at"
                f" {case.when(attempt.finished_at)}; its worker was hit at"
                f" {case.when(min(causes))}, and had {least:.3f} s left",
            )


class _Loss(NamedTuple):
    """Something that a worker held and did not bring to its end."""

    since: float
    until: float
    worker: str | None  # if that is known
    sentence: str


def _loss(attempt: Attempt, sentence: str) -> _Loss:
    return _Loss(attempt.started_at, attempt.finished_at, attempt.worker, sentence)


def _explains(case: Case, struck: Strike, loss: _Loss) -> bool:
    """Whether a worker can have lost to a fault what it held.

    It held it at the fault, or while it came to again; and it is taken from it some time later.
    """
    fault = struck.fault
    return (
        struck.hits(loss.worker)
        and fault.began_at <= loss.until
        and loss.since <= fault.ended_at + case.promise.late_seconds
        and loss.until <= case.reaped_by(fault.ended_at)
    )


# I6


def fences_only_rise(case: Case) -> Iterator[Violation]:
    """From attempt to attempt, at the receiver too; and what the highest one did counts."""
    for row, ended in _ended(case):
        fences = [attempt.fence for attempt in _in_order(ended)]
        for one, other in pairwise(fences):
            if other < one:
                yield Violation("I6", f"{case.what(row)}: fence {other} was given after {one}")
        yield from _the_highest_counts(case, row, ended)
    for execution_id, deliveries in case.delivered.items():
        highest = deliveries[0]
        for delivery in deliveries[1:]:
            if delivery.fence >= highest.fence:
                highest = delivery
            elif not _was_held_up(case, delivery):
                yield Violation(
                    "I6",
                    f"{execution_id} ({delivery.job}) was delivered under fence {delivery.fence} at"
                    f" {case.when(delivery.at)}, after {highest.fence} at {case.when(highest.at)},"
                    " and"
                    " no worker was broken",
                )


def _was_held_up(case: Case, delivery: Delivery) -> bool:
    """Whether a worker can have come to again just now, with what it had before."""
    return any(
        struck.holds_up(delivery.worker is not None)
        and struck.fault.began_at <= delivery.at
        and delivery.at <= struck.fault.ended_at + case.promise.late_seconds
        for struck in case.strikes
    )


def _the_highest_counts(case: Case, row: Row, ended: Ended) -> Iterator[Violation]:
    deliveries = case.delivered[row.execution_id]
    if not deliveries or not ended.attempts:
        return
    last = max(ended.attempts, key=lambda attempt: attempt.fence)
    highest = max(deliveries, key=lambda delivery: delivery.fence)
    if highest.fence > last.fence:
        yield Violation(
            "I6",
            f"{case.what(row)} ended under fence {last.fence}, and was delivered under"
            f" {highest.fence} at"
            f" {case.when(highest.at)}",
        )
    if ended.status != "SUCCEEDED" or not any(map(case.may_have_succeeded, deliveries)):
        return
    of_last = [delivery for delivery in deliveries if delivery.fence == last.fence]
    if not any(map(case.may_have_succeeded, of_last)):
        others = sorted({delivery.fence for delivery in deliveries if succeeded(delivery)})
        yield Violation(
            "I6",
            f"{case.what(row)} is SUCCEEDED under fence {last.fence}, which the receiver did not"
            " answer with a"
            f" 2xx; it did so under {others}",
        )


# I7


class Duplicate(NamedTuple):
    """A delivery of what had been delivered well, or under the same number."""

    first: Delivery
    again: Delivery


def duplicates(case: Case) -> list[Duplicate]:
    """All of them, in order.

    A delivery that the ledger holds to have failed (the target broke off in its answer, or took too
    long) is tried again by right, whatever the receiver thinks that it answered.
    """
    found = []
    for execution_id, deliveries in case.delivered.items():
        if len(deliveries) == 1:
            continue
        row = case.row(execution_id)
        ended = row.ended if row else None
        for place, again in enumerate(deliveries[1:], 1):
            before = [
                delivery
                for delivery in deliveries[:place]
                if delivery.attempt == again.attempt or _was_done(delivery, ended)
            ]
            same = [delivery for delivery in before if delivery.fence == again.fence]
            if before:
                found.append(Duplicate((same or before)[-1], again))
    return sorted(found, key=lambda duplicate: duplicate.again.at)


def _was_done(delivery: Delivery, ended: Ended | None) -> bool:
    """Whether a delivery was answered well, as far as the sender could know."""
    if not succeeded(delivery):
        return False
    for attempt in ended.attempts if ended else ():
        if attempt.fence == delivery.fence:
            return attempt.reason is None or attempt.reason in LOST
    return delivery.answered_at is not None


def duplicates_come_from_faults(case: Case) -> Iterator[Violation]:
    """Work is done twice only around a fault, by no more rows than were in flight at it."""
    behind = []
    for one in duplicates(case):
        if one.first.fence == one.again.fence:
            # Who loses its lease gets another fence with the next one, so no fault explains this.
            yield Violation("I7", f"{_says_twice(case, one)}: twice under one fence")
        else:
            behind.append(_loss_behind(case, one))
    yield from _are_explained(case, "duplicates", behind)
    # A worker that is well keeps what it has claimed.
    lost = [
        _loss(
            attempt,
            f"{case.what(row)}: attempt {attempt.attempt}, begun at"
            f" {case.when(attempt.started_at)}, lost its lease at"
            f" {case.when(attempt.finished_at)}",
        )
        for row, ended in _ended(case)
        for attempt in ended.attempts
        if attempt.reason in LOST
    ]
    yield from _are_explained(case, "leases lost", lost)
    yield from _once_is_once(case)


def _loss_behind(case: Case, one: Duplicate) -> _Loss:
    """The first was in flight until it was lost; of a stale one, it is itself what was lost."""
    held = one.again if one.again.fence < one.first.fence else one.first
    row = case.row(held.execution_id)
    for attempt in row.ended.attempts if row and row.ended else ():
        if attempt.fence == held.fence:
            return _loss(attempt, _says_twice(case, one))
    return _Loss(held.at, one.again.at, None, _says_twice(case, one))


def met_others(case: Case) -> list[Delivery]:
    """Counted runs that were handed to a worker over HTTP while it ran something else."""
    by_worker = Lists[str, Delivery]()
    for delivery in case.deliveries:
        if delivery.worker is not None:
            by_worker.add(delivery.worker, delivery)
    return [
        counted
        for handed in by_worker.values()
        for counted in handed
        if _is_counted(case, counted)
        and any(o.at < counted.at < (o.answered_at or o.at) for o in handed)
    ]


def _is_counted(case: Case, delivery: Delivery) -> bool:
    row = case.row(delivery.execution_id)
    story = case.stories.get(row.job_id) if row else None
    return story is not None and story.recurring and story.max_runs is not None


def _says_twice(case: Case, one: Duplicate) -> str:
    return (
        f"{one.again.execution_id} ({one.again.job}) was delivered at {case.when(one.first.at)}"
        f" (attempt {one.first.attempt}, fence {one.first.fence}, answered {one.first.status}) and"
        f" again at {case.when(one.again.at)} (attempt {one.again.attempt}, fence"
        f" {one.again.fence})"
    )


def _are_explained(case: Case, what: str, losses: list[_Loss]) -> Iterator[Violation]:
    """Each by one fault that hit its worker, which explains no more than it found in flight."""
    used: Counter[int] = Counter()
    for loss in sorted(losses, key=lambda loss: loss.until):
        blamed = [
            number for number, struck in enumerate(case.strikes) if _explains(case, struck, loss)
        ]
        if not blamed:
            yield Violation("I7", f"{loss.sentence}, and nothing was broken that explains it")
            continue
        # The one that is over first can explain the fewest of those that follow.
        blamed.sort(key=lambda number: case.strikes[number].fault.ended_at)
        room = [number for number in blamed if used[number] < _in_flight(case, number)]
        used[(room or blamed)[0]] += 1
    for number, count in used.items():
        fault, most = case.strikes[number].fault, _in_flight(case, number)
        if count > most:
            yield Violation(
                "I7",
                f"{count} {what} around {fault.kind} of {fault.victim} from"
                f" {case.when(fault.began_at)}; at most {most} were in flight with who was hit",
            )


def _in_flight(case: Case, number: int) -> int:
    """Rows that can have been with the workers that a fault hit, each time that it did."""
    struck, promise = case.strikes[number], case.promise
    held = struck.workers(promise.workers) * promise.slots
    held += struck.http_workers(promise.http_workers) * promise.http_slots
    return min(struck.blows * held, case.in_flight(number))


def _once_is_once(case: Case) -> Iterator[Violation]:
    for execution_id, deliveries in case.delivered.items():
        row = case.row(execution_id)
        story = case.stories.get(row.job_id) if row else None
        if story is not None and story.at_most_once and len(deliveries) > 1:
            times = " and ".join(case.when(delivery.at) for delivery in deliveries)
            yield Violation(
                "I7", f"{execution_id} ({story.name}) is at_most_once, and came at {times}"
            )


# I8


def attempts_are_as_promised(case: Case) -> Iterator[Violation]:
    """Without holes, no more than the policy says, each after its delay, and all recorded."""
    for row, ended in _ended(case):
        attempts = _in_order(ended)
        numbers = [attempt.attempt for attempt in attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            yield Violation("I8", f"{case.what(row)} has the attempts {numbers}")
        if ended.counted is not None and ended.counted != len(numbers):
            yield Violation(
                "I8",
                f"{case.what(row)} has had {ended.counted} attempts by the ledger's count, which"
                f" tells of {numbers}",
            )
        yield from _deliveries_are_recorded(case, row, ended)
        story = case.stories.get(row.job_id)
        if story is not None:
            yield from _are_as_many_as_promised(case, story, row, ended)
            yield from _come_after_their_delays(case, story, row, attempts)


def _deliveries_are_recorded(case: Case, row: Row, ended: Ended) -> Iterator[Violation]:
    known = {attempt.fence: attempt for attempt in ended.attempts}
    for delivery in case.delivered[row.execution_id]:
        attempt = known.get(delivery.fence)
        if attempt is None or attempt.attempt != delivery.attempt:
            yield Violation(
                "I8",
                f"{case.what(row)} was delivered at {case.when(delivery.at)} as attempt"
                f" {delivery.attempt} under"
                f" fence {delivery.fence}; the ledger has no such attempt",
            )
            continue
        failed = attempt.reason is not None and attempt.reason not in (*LOST, "cancelled")
        whole = succeeded(delivery) and delivery.answered_at is not None
        honest = whole and delivery.mood in case.promise.honest_moods
        if failed and honest and not _was_not_heard(case, delivery, attempt):
            yield Violation(
                "I8",
                f"{case.what(row)}: attempt {attempt.attempt} was answered {delivery.status} at"
                f" {case.when(delivery.answered_at or delivery.at)}, and recorded as"
                f" {attempt.reason}",
            )


def _was_not_heard(case: Case, delivery: Delivery, attempt: Attempt) -> bool:
    """Whether an answer can have missed who waited for it: a worker that stood, a broken way.

    A worker over HTTP answers to itself.
    """
    return delivery.worker is None and any(
        (struck.hits_worker_processes or RECEIVER in struck.hit)
        and struck.fault.began_at <= attempt.finished_at
        and delivery.at <= struck.fault.ended_at + case.promise.late_seconds
        for struck in case.strikes
    )


def _are_as_many_as_promised(
    case: Case, story: Story, row: Row, ended: Ended
) -> Iterator[Violation]:
    """What lost its worker is not the target's failure, and is tried again beyond the policy."""
    most = max(_max_retries(document) for document in story.documents) + 1
    least = min(_max_retries(document) for document in story.documents) + 1
    own = sum(attempt.reason not in LOST for attempt in ended.attempts)
    if own > most:
        yield Violation("I8", f"{case.what(row)} was tried {own} times; its policy allows {most}")
    if ended.reason == "retries_exhausted" and len(ended.attempts) < least:
        yield Violation(
            "I8", f"{case.what(row)} was given up after {len(ended.attempts)} of {least} attempts"
        )


def _come_after_their_delays(
    case: Case, story: Story, row: Row, attempts: list[Attempt]
) -> Iterator[Violation]:
    lost = 0
    for one, other in pairwise(attempts):
        lost += one.reason in LOST
        waited = other.started_at - one.finished_at
        shortest = longest = 0.0
        if one.reason not in LOST:
            delays = [_delay(document, one.attempt) for document in story.documents]
            shortest, longest = min(d[0] for d in delays), max(d[1] for d in delays)
        if _asked_for_patience(case, row, one):
            longest = max(longest, *map(_most_patience, story.documents))
        if waited < shortest - case.promise.stamp_seconds and one.reason not in LOST:
            yield Violation(
                "I8",
                f"{case.what(row)}: attempt {other.attempt} began {waited:.3f} s after attempt"
                f" {one.attempt} had"
                f" failed at {case.when(one.finished_at)}; at least {shortest:.3f} s were promised",
            )
        due_at = one.finished_at + longest
        if story.restricted or story.is_herd or case.herd_delay(due_at, other.started_at):
            continue
        if lost > 1:
            continue  # it is suspected of killing its workers, and waits for one of its own
        allowed = case.allowed(story, due_at, other.started_at)
        if waited > longest + allowed:
            yield Violation(
                "I8",
                f"{case.what(row)}: attempt {other.attempt} began {waited:.3f} s after attempt"
                f" {one.attempt} had"
                f" ended at {case.when(one.finished_at)}; {longest:.3f} s were promised,"
                f" {allowed:.3f} s more"
                " are allowed",
            )


def _policy(document: Document) -> Document:
    policy: Document = document.get("retry_policy") or {}
    return policy


def _max_retries(document: Document) -> int:
    policy = _policy(document)
    if document.get("delivery") == "at_most_once":
        return 0
    if policy.get("delays_seconds") is not None:
        return len(policy["delays_seconds"])
    return int(policy.get("max_retries", 3))


def _delay(document: Document, attempt: int) -> tuple[float, float]:
    """From and to how long the policy waits by itself after an attempt."""
    policy = _policy(document)
    listed = policy.get("delays_seconds")
    if listed is not None:
        own = float(listed[min(attempt, len(listed)) - 1]) if listed else 0.0
        return own, own
    first = policy.get("initial_delay_seconds", 30)
    most = policy.get("max_delay_seconds", max(3600, first))
    match policy.get("backoff", "EXPONENTIAL_WITH_JITTER"):
        case "FIXED":
            own = float(min(first, most))
        case "LINEAR":
            own = float(min(first * attempt, most))
        case "EXPONENTIAL":
            own = float(min(first * 2 ** (attempt - 1), most))
        case _:
            own = float(min(first * 2 ** (attempt - 1), most))
            return own / 2, own
    return own, own


def _asked_for_patience(case: Case, row: Row, attempt: Attempt) -> bool:
    """Whether the target may have said Retry-After, which is waited for within the policy."""
    return any(
        delivery.fence == attempt.fence and delivery.status in (429, 503)
        for delivery in case.delivered[row.execution_id]
    )


def _most_patience(document: Document) -> float:
    policy = _policy(document)
    return float(
        policy.get("max_delay_seconds", max(3600, policy.get("initial_delay_seconds", 30)))
    )
