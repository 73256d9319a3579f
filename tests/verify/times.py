"""Judgements of when things happened: not early, and not while they were not to."""

from __future__ import annotations

from collections.abc import Iterator

from verify.case import Case, Row
from verify.promise import SCHEDULE, Violation
from verify.stories import Story

# I4


def nothing_is_early(case: Case) -> Iterator[Violation]:
    """Nothing reaches its target before its time, whichever node's clock was bent."""
    early = case.promise.early_seconds
    for delivery in case.deliveries:
        if delivery.at >= delivery.scheduled_for - early:
            continue
        row = case.row(delivery.execution_id)
        if row is None or _was_hurried(case, row, delivery.at):
            continue
        yield Violation(
            "I4",
            f"{case.what(row)} was delivered at {case.when(delivery.at)},"
            f" {delivery.scheduled_for - delivery.at:.3f} s early",
        )
    for row in case.rows:
        started_at = row.ended.started_at if row.ended else None
        if started_at is None or started_at >= row.scheduled_for - early:
            continue
        story = case.stories.get(row.job_id)
        # A one-time job that was put off between two attempts has been started for its earlier
        # time.
        put_off = story is not None and not story.recurring and len(story.instants) > 1
        if put_off or _was_hurried(case, row, started_at):
            continue
        yield Violation(
            "I4", f"{case.what(row)} was started at {case.when(started_at)}, before its time"
        )


def _was_hurried(case: Case, row: Row, at: float) -> bool:
    """A one-time job that a user ran before its time."""
    story = case.stories.get(row.job_id)
    if story is None or story.recurring:
        return False
    return any(run.asked_at <= at + case.promise.clock_seconds for run in story.runs)


# I9


def pauses_and_deletes_are_respected(case: Case) -> Iterator[Violation]:
    """Once a pause, a delete or a cancel was answered, nothing begins that was claimed after it."""
    for story in case.stories.values():
        for since, until in story.silences:
            yield from _is_silent(case, story, since, until)
    for execution_id, cancels in case.cancels.items():
        answers = [cancel.answered_at for cancel in cancels if cancel.answered_at is not None]
        for delivery in case.delivered[execution_id]:
            if answers and delivery.at > case.obeys_by(min(answers), delivery):
                yield Violation(
                    "I9",
                    f"{execution_id} ({delivery.job}) was delivered at {case.when(delivery.at)};"
                    " that it is"
                    f" cancelled was answered at {case.when(min(answers))}",
                )


def _is_silent(case: Case, story: Story, since: float, until: float) -> Iterator[Violation]:
    for row in case.rows_of_job[story.job_id]:
        if row.origin != SCHEDULE:
            continue
        for delivery in case.delivered[row.execution_id]:
            if delivery.attempt > 1 or not since < delivery.at < until:
                continue
            if delivery.at > case.obeys_by(since, delivery) and not _was_hurried(
                case, row, delivery.at
            ):
                yield Violation(
                    "I9",
                    f"{case.what(row)} was delivered at {case.when(delivery.at)}; the pause or"
                    " delete of the"
                    f" job was answered at {case.when(since)}",
                )
