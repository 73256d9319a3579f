"""Judgements of attempts that only the rig can make: what a worker lost, and which fault explains it; and what the receiver
saw of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from chaos.case import RigCase
from chaos.checks_faults import RECEIVER, Strike, served_by_older
from chaos.http_worker import tasks_of
from verify.attempts import ended_rows
from verify.case import Row
from verify.history import Attempt, Delivery, Ended
from verify.promise import LOST, Lists, Spans, Violation, succeeded

# I5


def leases_run_out(case: RigCase) -> Iterator[Violation]:
    """What a worker holds is taken from it when its lease is over, and not when it falls silent.

    Where it shares the machine, it may have renewed the lease later than it should.
    """
    least = max(case.promise.least_lease_seconds - case.promise.shared_seconds, 0.0)
    for row, attempt in _lost_attempts(case):
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


def _lost_attempts(case: RigCase) -> Iterator[tuple[Row, Attempt]]:
    for row, ended in ended_rows(case):
        for attempt in ended.attempts:
            if attempt.reason in LOST:
                yield row, attempt


class _Loss(NamedTuple):
    """Something that a worker held and did not bring to its end."""

    since: float
    until: float
    worker: str | None  # if that is known
    sentence: str


def _loss(attempt: Attempt, sentence: str) -> _Loss:
    return _Loss(attempt.started_at, attempt.finished_at, attempt.worker, sentence)


def _explains(case: RigCase, struck: Strike, loss: _Loss) -> bool:
    """Whether a worker can have lost to a fault what it held.

    It held it at the fault, or while it came to again, for which a shared machine takes longer; and it is taken from it some
    time later.
    """
    fault, shared = struck.fault, case.promise.shared_seconds
    return (
        struck.hits(loss.worker)
        and fault.began_at <= loss.until
        and loss.since <= fault.ended_at + case.promise.late_seconds + shared
        and loss.until <= case.reaped_by(fault.ended_at) + shared
    )


# I6


def the_highest_fence_counts(case: RigCase) -> Iterator[Violation]:
    """An execution ends under the last fence that was delivered, by what the receiver answered then."""
    for row, ended in ended_rows(case):
        yield from _the_highest_counts(case, row, ended)


def _the_highest_counts(case: RigCase, row: Row, ended: Ended) -> Iterator[Violation]:
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


def duplicates(case: RigCase) -> list[Duplicate]:
    """All of them, in order.

    A delivery that is recorded as failed (the target broke off in its answer, or took too long) is
    rightly retried, whatever the receiver thinks that it answered. What the dump is too old for is
    not judged.
    """
    found = []
    for execution_id, deliveries in case.delivered.items():
        if len(deliveries) == 1:
            continue
        row = case.row(execution_id)
        for place, again in enumerate(deliveries[1:], 1):
            before = [
                delivery
                for delivery in deliveries[:place]
                if delivery.attempt == again.attempt or _was_done(delivery, row)
            ]
            same = [delivery for delivery in before if delivery.fence == again.fence]
            if same or (before and again.at <= case.dump.at):
                found.append(Duplicate((same or before)[-1], again))
    return sorted(found, key=lambda duplicate: duplicate.again.at)


def _was_done(delivery: Delivery, row: Row | None) -> bool:
    """Whether a delivery was answered well, as far as the sender could know."""
    if not succeeded(delivery):
        return False
    for attempt in row.attempts if row else ():
        if attempt.fence == delivery.fence:
            return attempt.reason is None or attempt.reason in LOST
    return delivery.answered_at is not None


def duplicates_come_from_faults(case: RigCase) -> Iterator[Violation]:
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
        for row, attempt in _lost_attempts(case)
    ]
    yield from _are_explained(case, "leases lost", lost)
    yield from _once_is_once(case)


def _loss_behind(case: RigCase, one: Duplicate) -> _Loss:
    """The first was in flight until it was lost; of a stale one, it is itself what was lost."""
    held = one.again if one.again.fence < one.first.fence else one.first
    row = case.row(held.execution_id)
    for attempt in row.attempts if row else ():
        if attempt.fence == held.fence:
            return _loss(attempt, _says_twice(case, one))
    return _Loss(held.at, one.again.at, None, _says_twice(case, one))


def met_others(case: RigCase) -> list[Delivery]:
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


def _is_counted(case: RigCase, delivery: Delivery) -> bool:
    row = case.row(delivery.execution_id)
    story = case.stories.get(row.job_id) if row else None
    return story is not None and story.recurring and story.max_runs is not None


def _says_twice(case: RigCase, one: Duplicate) -> str:
    return (
        f"{one.again.execution_id} ({one.again.job}) was delivered at {case.when(one.first.at)}"
        f" (attempt {one.first.attempt}, fence {one.first.fence}, answered {one.first.status}) and"
        f" again at {case.when(one.again.at)} (attempt {one.again.attempt}, fence"
        f" {one.again.fence})"
    )


def _are_explained(case: RigCase, what: str, losses: list[_Loss]) -> Iterator[Violation]:
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


def _in_flight(case: RigCase, number: int) -> int:
    """Rows that can have been with the workers that a fault hit, each time that it did."""
    struck, promise = case.strikes[number], case.promise
    held = struck.workers(promise.workers) * promise.slots
    held += struck.http_workers(promise.http_workers) * promise.http_slots
    # On a shared machine a worker that comes to again may be too slow for its lease, more than once.
    times = struck.blows + int(promise.shared_seconds / promise.lease_seconds)
    return min(times * held, case.in_flight(number))


def _once_is_once(case: RigCase) -> Iterator[Violation]:
    for execution_id, deliveries in case.delivered.items():
        row = case.row(execution_id)
        story = case.stories.get(row.job_id) if row else None
        if story is not None and story.at_most_once and len(deliveries) > 1:
            times = " and ".join(case.when(delivery.at) for delivery in deliveries)
            yield Violation(
                "I7", f"{execution_id} ({story.name}) is at_most_once, and came at {times}"
            )


# I20


def tasks_go_to_workers_that_name_them(case: RigCase) -> Iterator[Violation]:
    """Whatever a job is changed to run, while some of its runs are queued. An older build does not look for that."""
    older = Spans(served_by_older(case.history))
    for delivery in case.deliveries:
        if delivery.worker is None or older.touches(delivery.at, delivery.at):
            continue
        if delivery.task not in tasks_of(delivery.worker):
            yield Violation(
                "I20",
                f"{delivery.execution_id} ({delivery.job}) was handed at {case.when(delivery.at)} to"
                f" {delivery.worker}, which does not name its task {delivery.task}",
            )


# I8


def deliveries_are_recorded(case: RigCase) -> Iterator[Violation]:
    """What arrived is an attempt of the ledger, which says what the receiver says.

    An execution that has not ended may have an attempt that has not ended either.
    """
    for row in case.rows:
        yield from _are_attempts(case, row)


def _are_attempts(case: RigCase, row: Row) -> Iterator[Violation]:
    known = {attempt.fence: attempt for attempt in row.attempts}
    for delivery in case.delivered[row.execution_id]:
        attempt = known.get(delivery.fence)
        if attempt is None and row.ended is None:
            continue
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


def _was_not_heard(case: RigCase, delivery: Delivery, attempt: Attempt) -> bool:
    """Whether an answer can have missed who waited for it: a worker that stood, a broken way.

    The end of an attempt is a stamp of the worker, which estimates the database's clock. A worker
    over HTTP answers to itself.
    """
    return delivery.worker is None and any(
        (struck.hits_worker_processes or RECEIVER in struck.hit)
        and struck.fault.began_at <= attempt.finished_at + case.promise.stamp_seconds
        and delivery.at <= struck.fault.ended_at + case.promise.late_seconds
        for struck in case.strikes
    )
