"""Judgements that need no clock: of all that happened, also while that of the database was off."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chaos.case import RigCase
from chaos.checks_attempts import the_highest_fence_counts
from chaos.checks_system import counts_agree
from verify.attempts import fences_only_rise
from verify.ends import is_stuck
from verify.occurrences import occurrences_have_one_row, tenants_are_apart
from verify.promise import Violation


def nothing_created_is_lost(case: RigCase) -> Iterator[Violation]:
    """A job whose creation was answered is there, in the end; a one-time job with its execution."""
    runs = {row.job_id for row in case.rows}
    for job, story in case.stories.items():
        if job not in (case.job_rows if story.recurring else runs):
            yield Violation("I1", f"{job} ({story.name}) was created, and there is nothing of it")


def all_is_at_rest(case: RigCase) -> Iterator[Violation]:
    """A while after the last fault, all that was due has ended, and is in one place."""
    for row in case.rows:
        if is_stuck(case, row) or (row.alive is not None and row.alive.place == "nowhere"):
            yield Violation("I10", f"{case.what(row)} is still {row.state}")


CLOCKLESS: tuple[Callable[[RigCase], Iterator[Violation]], ...] = (
    nothing_created_is_lost,  # I1
    occurrences_have_one_row,  # I2
    fences_only_rise,  # I6
    the_highest_fence_counts,  # I6
    all_is_at_rest,  # I10
    tenants_are_apart,  # I13
    counts_agree,  # I15
)
