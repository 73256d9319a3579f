"""Judgements of when things happened: neither late nor early, not while they were not to, and in a
fair order.
"""

from __future__ import annotations

from collections.abc import Iterator

from chaos.checks_case import Case, Row, Start
from chaos.checks_promise import CRITICAL, LOW, SCHEDULE, Violation, percentile
from chaos.checks_stories import Story
from chaos.history import Alive

# I3


def nothing_is_late(case: Case) -> Iterator[Violation]:
    """Late by what was broken and a failover at most; and hardly at all while nothing is broken.

    Counted from when the client had its answer, if that was after the time: before, there was
    nothing to be late for. What may have to wait for another run is not counted, nor are retries.
    """
    for start in case.starts:
        allowed = case.allowed(start.story, start.due_at, start.started_at)
        if _waits_behind_a_herd(case, start):
            allowed += case.promise.herd_seconds
        if start.late > allowed:
            yield Violation("I3", _says_late(case, start, allowed))
    for job_id, stretches in case.missed.items():
        story = case.stories.get(job_id)
        for ended in stretches:
            waited = ended.recorded_at - ended.scheduled_for
            if waited > case.explained(story, ended.scheduled_for, ended.recorded_at):
                yield Violation(
                    "I3",
                    f"{ended.execution_id} of {ended.job_id}: {ended.missed} occurrences from"
                    f" {case.when(ended.scheduled_for)} were recorded as missed {waited:.3f} s"
                    " later, and"
                    " nothing was broken for so long",
                )
    yield from _are_prompt(case, "I3", calm_starts(case), "while nothing was broken")


def calm_starts(case: Case) -> list[Start]:
    """Those that waited while all was well, and no herd was there."""
    return [start for start in case.starts if _is_calm(case, start) and not case.herds_met(start)]


def _is_calm(case: Case, start: Start) -> bool:
    """Whether its wait touches no fault and no aftermath of one."""
    return not case.unrest.touches(start.due_at - 1.0, start.started_at)


def _are_prompt(
    case: Case, invariant: str, starts: list[Start], circumstance: str
) -> Iterator[Violation]:
    if not starts:
        return
    late = percentile([start.late for start in starts], 99)
    if late > case.promise.calm_p99_seconds:
        worst = max(starts, key=lambda start: start.late)
        yield Violation(
            invariant,
            f"the 99th percentile of the lateness of {len(starts)} executions {circumstance} is"
            f" {late:.3f} s;"
            f" the worst: {_says_late(case, worst, case.promise.calm_p99_seconds)}",
        )


def _are_not_kept(
    case: Case, invariant: str, starts: list[Start], where: str
) -> Iterator[Violation]:
    """By a herd: they are as late as what was broken explains, and no later."""
    for start in starts:
        allowed = case.allowed(start.story, start.due_at, start.started_at)
        if start.late > allowed:
            yield Violation(invariant, f"{where}: {_says_late(case, start, allowed)}")


def _says_late(case: Case, start: Start, allowed: float) -> str:
    return (
        f"{case.what(start.row)} could run from {case.when(start.due_at)} and was started at"
        f" {case.when(start.started_at)}, {start.late:.3f} s late; {allowed:.3f} s are allowed"
    )


def _waits_behind_a_herd(case: Case, start: Start) -> bool:
    """In it, behind it because it is the tenant's own, or because it goes first."""
    if start.story.is_herd:
        return True
    return any(
        tenant == start.story.tenant or priority < start.priority
        for tenant, priority in case.herds_met(start)
    )


# I4


def nothing_is_early(case: Case) -> Iterator[Violation]:
    """Nothing reaches its target before its time, whichever node's clock was bent."""
    early = case.promise.early_seconds
    for delivery in case.deliveries:
        if delivery.at >= delivery.scheduled_for - early:
            continue
        row = case.row(delivery.execution_id)
        if (
            row is None
            or _was_hurried(case, row, delivery.at)
            or _database_is_off(case, delivery.at)
        ):
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
        if put_off or _was_hurried(case, row, started_at) or _database_is_off(case, started_at):
            continue
        yield Violation(
            "I4", f"{case.what(row)} was started at {case.when(started_at)}, before its time"
        )


def _was_hurried(case: Case, row: Row, at: float) -> bool:
    """A one-time job that somebody ran before its time."""
    story = case.stories.get(row.job_id)
    if story is None or story.recurring:
        return False
    return any(run.asked_at <= at + case.promise.clock_seconds for run in story.runs)


def _database_is_off(case: Case, at: float) -> bool:
    return any(
        fault.began_at <= at <= fault.ended_at + case.promise.aftermath_seconds
        for fault in case.faults
        if "clock" in fault.kind and fault.victim.startswith("postgres")
    )


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


# I13, second half


def tenants_are_served_fairly(case: Case) -> Iterator[Violation]:
    """A herd of one tenant does not keep those of others that are as urgent."""
    waited = neighbours(case)
    yield from _are_not_kept(case, "I13", waited, "beside a herd")
    calm = [start for start in waited if _is_calm(case, start)]
    yield from _are_prompt(case, "I13", calm, "beside a herd of another tenant")


def neighbours(case: Case) -> list[Start]:
    """Those that a herd of another tenant, no more urgent, must not keep."""
    return [
        start for start in case.starts if not start.story.is_herd and _is_a_neighbour(case, start)
    ]


def _is_a_neighbour(case: Case, start: Start) -> bool:
    met = case.herds_met(start)
    return bool(met) and all(
        tenant != start.story.tenant and priority >= start.priority for tenant, priority in met
    )


# I16


def priorities_are_respected(case: Case) -> Iterator[Violation]:
    """CRITICAL does not wait behind what is less urgent, and LOW gets its turn too."""
    met = urgent(case)
    yield from _are_not_kept(case, "I16", met, "CRITICAL behind a herd")
    calm = [start for start in met if _is_calm(case, start)]
    yield from _are_prompt(case, "I16", calm, "that are CRITICAL, behind a herd,")
    for row in case.rows:
        story = case.stories.get(row.job_id)
        if story is not None and story.priority == LOW and is_stuck(case, row):
            yield Violation("I16", f"{case.what(row)} is LOW, and {row.state}: it got no turn")


def urgent(case: Case) -> list[Start]:
    """What is CRITICAL and met a herd that is not."""
    return [
        start
        for start in case.starts
        if start.priority == CRITICAL
        and not start.story.is_herd
        and any(priority > CRITICAL for _, priority in case.herds_met(start))
    ]


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
    """Whether somebody is there that a parked one waits for: of its job, or of its key."""
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
