"""Judgements of attempts: under which fence, how often, and after which delay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from verify.case import Case, Row
from verify.history import Attempt, Ended
from verify.promise import LOST, Document, Violation
from verify.stories import Story


def ended_rows(case: Case) -> Iterator[tuple[Row, Ended]]:
    for row in case.rows:
        if row.ended is not None:
            yield row, row.ended


def _in_order(ended: Ended) -> list[Attempt]:
    return sorted(ended.attempts, key=lambda attempt: attempt.attempt)


# I5


def leases_exclude_each_other(case: Case) -> Iterator[Violation]:
    """One attempt has ended before the next one begins, and no two go under one fence."""
    for row, ended in ended_rows(case):
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


# I6


def fences_only_rise(case: Case) -> Iterator[Violation]:
    """From attempt to attempt, in the ledger and wherever they were handed to."""
    for row, ended in ended_rows(case):
        fences = [attempt.fence for attempt in _in_order(ended)]
        for one, other in pairwise(fences):
            if other < one:
                yield Violation("I6", f"{case.what(row)}: fence {other} was given after {one}")
    for execution_id, deliveries in case.delivered.items():
        highest = deliveries[0]
        for delivery in deliveries[1:]:
            if delivery.fence >= highest.fence:
                highest = delivery
            elif not case.was_held_up(delivery):
                yield Violation(
                    "I6",
                    f"{execution_id} ({delivery.job}) was delivered under fence {delivery.fence} at"
                    f" {case.when(delivery.at)}, after {highest.fence} at {case.when(highest.at)},"
                    " and"
                    " no worker was broken",
                )


# I8


def attempts_are_as_promised(case: Case) -> Iterator[Violation]:
    """Without holes, no more than the policy says, each after its delay, and all recorded."""
    for row, ended in ended_rows(case):
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
        story = case.stories.get(row.job_id)
        if story is not None:
            yield from _are_as_many_as_promised(case, story, row, ended)
            yield from _come_after_their_delays(case, story, row, attempts)


def _are_as_many_as_promised(
    case: Case, story: Story, row: Row, ended: Ended
) -> Iterator[Violation]:
    """What lost its worker is not the target's failure, and is tried again beyond the policy."""
    most = max(most_retries(document) for document in story.documents) + 1
    least = min(most_retries(document) for document in story.documents) + 1
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
            delays = [delay(document, one.attempt) for document in story.documents]
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


def most_retries(document: Document) -> int:
    policy = _policy(document)
    if document.get("delivery") == "at_most_once":
        return 0
    if policy.get("delays_seconds") is not None:
        return len(policy["delays_seconds"])
    return int(policy.get("max_retries", 3))


def delay(document: Document, attempt: int) -> tuple[float, float]:
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
