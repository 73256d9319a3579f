"""Judgements of the end: nothing is stuck, and what has ended has ended once."""

from __future__ import annotations

from collections.abc import Iterator

from verify.case import Case, Row
from verify.history import Alive
from verify.promise import Violation

# I10


def nothing_is_stuck(case: Case) -> Iterator[Violation]:
    """A while after the last fault, all that was due has ended; and ends are final."""
    for row in case.rows:
        if row.alive is None:
            continue
        if row.alive.place == "nowhere":
            yield Violation("I10", f"{case.what(row)} is in no place, so nobody will find it")
        elif row.alive.place == "held" and not _may_be_paused(case, row):
            yield Violation("I10", f"{case.what(row)} is held, and its job is not paused")
        elif is_stuck(case, row):
            yield Violation(
                "I10",
                f"{case.what(row)} is still {row.alive.place} at {case.when(case.dump.at)}; it"
                " could run from"
                f" {case.when(row.alive.run_at)}",
            )
    yield from _ends_are_final(case)


def _may_be_paused(case: Case, row: Row) -> bool:
    story = case.stories.get(row.job_id)
    return story is None or story.status == "PAUSED" or story.certain_until < case.dump.at


def _ends_are_final(case: Case) -> Iterator[Violation]:
    for rows in case.rows_of_execution.values():
        if len(rows) > 1:
            states = " and ".join(row.state for row in rows)
            yield Violation("I10", f"{case.what(rows[0])} is {states}")
    for row in case.rows:
        if row.ended is None:
            continue
        over_at = row.ended.recorded_at
        for delivery in case.delivered[row.execution_id]:
            if delivery.at > case.obeys_by(over_at, delivery):
                yield Violation(
                    "I10",
                    f"{case.what(row)} is {row.state} since {case.when(over_at)}, and was delivered"
                    " at"
                    f" {case.when(delivery.at)}",
                )


def is_stuck(case: Case, row: Row) -> bool:
    """Whether what could have gone on has not, with all whole again for long enough."""
    alive = row.alive
    if alive is None or alive.place in ("held", "nowhere"):
        return False
    if alive.place == "parked" and _waits_for_another(case, row):
        return False
    if alive.place == "leased":
        return _outlives_its_lease(case, row, alive)
    return case.dump.at - max(alive.run_at, case.phases["healed"]) > case.promise.stuck_seconds


def _outlives_its_lease(case: Case, row: Row, alive: Alive) -> bool:
    """Whether it runs for longer than any run may, and than a dead worker keeps what it has."""
    promise, story = case.promise, case.stories.get(row.job_id)
    arrived, healed_at = case.delivered[row.execution_id], case.phases["healed"]
    began_at = arrived[-1].at if arrived else max(alive.run_at, healed_at)
    timeout = story.document.get("timeout_seconds", 300) if story else 300
    over_at = began_at + timeout + promise.lease_seconds
    if alive.lease_until is not None:
        over_at = min(over_at, alive.lease_until + promise.failover_seconds)
    healed_by = healed_at + promise.reaped_seconds
    return case.dump.at > max(over_at, healed_by) + promise.late_seconds


def _waits_for_another(case: Case, row: Row) -> bool:
    """Whether there is an execution that a parked one waits for: of its job, or of its key."""
    story = case.stories.get(row.job_id)
    jobs = [row.job_id]
    if story is not None and (key := story.document.get("concurrency_key")) is not None:
        jobs += [
            other.job_id
            for other in case.stories.values()
            if (other.tenant, other.document.get("concurrency_key")) == (story.tenant, key)
        ]
    return any(
        _is_under_way(case, other.alive) for job_id in jobs for other in case.rows_of_job[job_id]
    )


def _is_under_way(case: Case, alive: Alive | None) -> bool:
    """On its way to a worker or with one, or between two of its attempts."""
    if alive is None or alive.place in ("parked", "held", "nowhere"):
        return False
    return alive.place != "due" or bool(case.delivered[alive.execution_id])
