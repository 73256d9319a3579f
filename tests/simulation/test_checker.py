"""The judge is judged: a history that breaks one promise must be found out, for every promise.

`valid` is a morning in the life of five jobs, put together by hand, in which everything is as it should be. Each test
changes one thing in it.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from simulation.checker import DEAD, RELEASED, RETRY, SUCCEEDED, check
from simulation.history import (
    Cancel,
    Change,
    Checkpoint,
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

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOURLY, ONCE, LIMITED, CAREFUL, PAUSED = 1, 2, 3, 4, 5  # the jobs


def at(text: str) -> datetime:
    """A time of that morning."""
    return datetime.fromisoformat(f"2027-03-13T{text}+00:00")


def job(kind: str, schedule: Document, **rest: Any) -> Document:
    return {"type": kind, "schedule": schedule, **rest}


class Builder:
    """Writes a history down as it happens."""

    def __init__(self) -> None:
        self.history = History(
            grace=MINUTE, horizon=MINUTE, lease=15 * SECOND, crash_limit=3, led=True
        )

    def add(self, *events: Event) -> None:
        self.history.events.extend(events)

    def create(self, number: int, when: str, document: Document) -> None:
        self.add(Change(at(when), at(when), at(when), number, "create", document))

    def change(self, number: int, when: str, operation: str, document: Document) -> None:
        self.add(Change(at(when), at(when), at(when) + SECOND, number, operation, document))

    def claim(
        self, when: str, execution: int, number: int, due: str, attempt: int, session: int = 1
    ) -> int:
        fence = int(at(when).timestamp() * 1_000_000)
        claims = sum(isinstance(event, Claim) for event in self.history.events)
        self.add(SessionRenewed(at(when), session, frozenset(), 0, frozenset()))
        self.add(Gated(at(when)))
        self.add(Claim(at(when), session, claims + 1, execution, number, at(due), attempt, fence))
        return fence

    def settle(
        self, when: str, execution: int, fence: int, kind: int, session: int = 1, **rest: Any
    ) -> None:
        self.add(Settle(at(when), session, execution, fence, kind, True, **rest))

    def fate(
        self,
        execution: int,
        number: int,
        due: str,
        status: str,
        when: str,
        reason: str | None = None,
        **rest: Any,
    ) -> None:
        rest = {"attempt": 0, "fence": 0, "origin": 0} | rest
        rest.setdefault("session", 1 if rest["attempt"] else None)
        self.history.fates.append(
            Fate(
                execution,
                number,
                rest.pop("origin"),
                at(due),
                status,
                reason,
                **rest,
                recorded_at=at(when),
            )
        )

    def runs(self, execution: int, number: int, due: str, until: str, **rest: Any) -> None:
        """A run that goes well at once."""
        fence = self.claim(due, execution, number, due, 1)
        self.settle(until, execution, fence, SUCCEEDED)
        self.fate(execution, number, due, "SUCCEEDED", until, attempt=1, fence=fence, **rest)


def valid() -> History:
    """Everything as it should be."""
    story = Builder()
    story.add(
        TermBegun(at("08:00:00"), 1), SessionOpened(at("08:00:00"), 1), Planned(at("08:00:00"))
    )
    story.add(LeaderVerb(at("08:00:00"), "plan", 1, accepted=True))

    hourly = job("RECURRING", {"cron": "0 * * * *"}, retry_policy={"delays_seconds": [60]})
    hourly |= {"overlap_policy": "forbid", "deadline_seconds": 3600}
    story.create(HOURLY, "08:00:01", hourly)
    story.create(ONCE, "08:00:02", job("ONE_TIME", {"at": at("08:30:00").isoformat()}))
    limited = job("RECURRING", {"every_seconds": 1800, "max_runs": 2}, misfire_policy="skip")
    story.create(LIMITED, "08:00:03", limited | {"start_deadline_seconds": 60})
    careful = job("RECURRING", {"cron": "45 * * * *"}, delivery="at_most_once")
    story.create(CAREFUL, "08:00:04", careful)
    paused = job("RECURRING", {"cron": "50 * * * *"}, misfire_policy="all", catch_up_limit=1)
    story.create(PAUSED, "08:00:05", paused)
    story.add(Planned(at("08:00:05")))

    story.runs(20, ONCE, "08:30:00", "08:30:05")
    story.history.fates[-1] = replace(story.history.fates[-1], id=ONCE)
    story.history.events = [
        replace(event, execution=ONCE) if getattr(event, "execution", 0) == 20 else event
        for event in story.history.events
    ]
    story.runs(31, LIMITED, "08:30:03", "08:30:09")

    lost = story.claim("08:45:00", 40, CAREFUL, "08:45:00", 1, session=2)
    story.add(Silenced(at("08:45:05"), 2), Reaped(at("08:45:20"), frozenset({2})))
    story.fate(40, CAREFUL, "08:45:00", "DEAD", "08:45:20", "lost", attempt=1, fence=lost)

    story.change(PAUSED, "08:50:00", "pause", paused)
    story.fate(50, PAUSED, "08:50:00", "SUPERSEDED", "08:50:02", "paused")
    story.change(PAUSED, "08:55:00", "resume", paused)

    first = story.claim("09:00:00", 10, HOURLY, "09:00:00", 1)
    story.settle("09:00:03", 10, first, RETRY, delay_seconds=60.0)
    second = story.claim("09:01:03", 10, HOURLY, "09:00:00", 2)
    story.settle("09:01:05", 10, second, SUCCEEDED)
    story.fate(
        10,
        HOURLY,
        "09:00:00",
        "SUCCEEDED",
        "09:01:05",
        attempt=2,
        fence=second,
        history=((1, first),),
    )
    story.runs(32, LIMITED, "09:00:03", "09:00:08")
    story.history.checkpoints.append(
        Checkpoint(at("09:20:00"), {10: ("SUCCEEDED", None), 40: ("DEAD", "lost")})
    )

    # Nobody plans from 09:20 to 12:10. Then: the latest of the hourly ones, one of the paused ones, all that are careful.
    story.add(TermBegun(at("12:10:00"), 2), Planned(at("12:10:00")))
    story.add(LeaderVerb(at("12:10:00"), "plan", 1, accepted=False))
    story.fate(
        11,
        HOURLY,
        "10:00:00",
        "SKIPPED",
        "12:10:00",
        "misfire",
        missed=2,
        missed_through=at("11:00:00"),
    )
    late = story.claim("12:10:00", 12, HOURLY, "12:00:00", 1)
    story.settle("12:10:01", 12, late, DEAD, reason="non_retryable")
    story.fate(12, HOURLY, "12:00:00", "DEAD", "12:10:01", "non_retryable", attempt=1, fence=late)
    story.fate(
        41,
        CAREFUL,
        "09:45:00",
        "SKIPPED",
        "12:10:00",
        "misfire",
        missed=2,
        missed_through=at("10:45:00"),
    )
    back = story.claim("12:10:02", 42, CAREFUL, "11:45:00", 1)
    story.settle("12:10:03", 42, back, RELEASED)
    again = story.claim("12:10:04", 42, CAREFUL, "11:45:00", 1)
    story.settle("12:10:05", 42, again, SUCCEEDED)
    story.fate(42, CAREFUL, "11:45:00", "SUCCEEDED", "12:10:05", attempt=1, fence=again)
    story.fate(
        51,
        PAUSED,
        "09:50:00",
        "SKIPPED",
        "12:10:00",
        "misfire",
        missed=2,
        missed_through=at("10:50:00"),
    )
    story.add(Requested(at("12:10:06"), at("12:10:06"), at("12:10:06"), PAUSED, 1, (60,)))
    story.add(Cancel(at("12:10:07"), at("12:10:08"), 60, ended=True))
    story.fate(60, PAUSED, "12:10:06", "CANCELLED", "12:10:07", "cancelled", origin=1)
    made_up = story.claim("12:10:09", 52, PAUSED, "11:50:00", 1)
    story.settle("12:10:10", 52, made_up, SUCCEEDED)
    story.fate(52, PAUSED, "11:50:00", "SUCCEEDED", "12:10:10", attempt=1, fence=made_up)

    history = story.history
    history.ended_at = at("12:20:00")
    history.live = [Live(13, HOURLY, 0, at("13:00:00"), at("13:00:00"), 0, "due")]
    history.dead_letters = frozenset({12, 40})
    history.job_statuses = dict.fromkeys((HOURLY, CAREFUL, PAUSED), "SCHEDULED")
    history.job_statuses[LIMITED] = "COMPLETED"
    return history


def test_a_history_without_fault_is_let_pass() -> None:
    assert check(valid()) == []


# One change each. The name says what is wrong with the history afterwards.

Fault = Callable[[History], None]
BROKEN: list[tuple[str, Fault]] = []


def breaks(kind: str) -> Callable[[Fault], Fault]:
    def remember(change: Fault) -> Fault:
        BROKEN.append((kind, change))
        return change

    return remember


def index(history: History, execution: int) -> int:
    return next(n for n, fate in enumerate(history.fates) if fate.id == execution)


def alter(history: History, execution: int, /, **fields: Any) -> None:
    n = index(history, execution)
    history.fates[n] = replace(history.fates[n], **fields)


def alter_events(
    history: History, kind: type, matches: Callable[[Any], bool], **fields: Any
) -> None:
    changed = 0
    for n, event in enumerate(history.events):
        if isinstance(event, kind) and matches(event):
            history.events[n] = replace(event, **fields)
            changed += 1
    assert changed


def claims_of(execution: int) -> Callable[[Any], bool]:
    return lambda event: event.execution == execution


def drop(history: History, execution: int) -> None:
    del history.fates[index(history, execution)]


@breaks("lost")
def an_occurrence_has_no_record(history: History) -> None:
    drop(history, 50)


@breaks("lost")
def a_one_time_job_is_gone(history: History) -> None:
    drop(history, ONCE)


@breaks("lost")
def a_requested_run_is_gone(history: History) -> None:
    drop(history, 60)


@breaks("lost")
def a_missed_stretch_leaves_one_out(history: History) -> None:
    alter(history, 11, missed=1, missed_through=at("10:00:00"))


@breaks("doubled")
def an_occurrence_has_two_executions(history: History) -> None:
    history.fates.append(replace(history.fates[index(history, 10)], id=99))


@breaks("doubled")
def an_occurrence_ran_and_is_missed(history: History) -> None:
    alter(history, 11, missed=3, missed_through=at("12:00:00"))


@breaks("doubled")
def two_missed_stretches_overlap(history: History) -> None:
    history.fates.append(replace(history.fates[index(history, 11)], id=99))


@breaks("spurious")
def a_run_at_a_time_that_the_rule_does_not_have(history: History) -> None:
    alter(history, 10, scheduled_for=at("09:07:00"))


@breaks("spurious")
def a_run_for_the_time_before_the_job(history: History) -> None:
    history.fates.append(
        replace(history.fates[index(history, 50)], id=99, scheduled_for=at("07:50:00"))
    )


@breaks("spurious")
def a_run_in_a_pause(history: History) -> None:
    paused = replace(
        next(e for e in history.events if isinstance(e, Change) and e.operation == "pause"),
        at=at("08:40:00"),
        asked_at=at("08:40:00"),
        acked_at=at("08:40:00"),
    )
    alter_events(
        history,
        Change,
        lambda e: e.operation == "pause",
        at=paused.at,
        asked_at=paused.asked_at,
        acked_at=paused.acked_at,
    )


@breaks("spurious")
def a_run_after_the_end(history: History) -> None:
    ended = {"cron": "45 * * * *", "ends_at": at("11:00:00").isoformat()}
    alter_events(
        history,
        Change,
        lambda e: e.job == CAREFUL,
        document=job("RECURRING", ended, delivery="at_most_once"),
    )


@breaks("spurious")
def a_run_before_the_start(history: History) -> None:
    begun = {"cron": "45 * * * *", "starts_at": at("09:00:00").isoformat()}
    alter_events(
        history,
        Change,
        lambda e: e.job == CAREFUL,
        document=job("RECURRING", begun, delivery="at_most_once"),
    )


@breaks("spurious")
def a_missed_stretch_counts_wrong(history: History) -> None:
    alter(history, 11, missed=5)


@breaks("spurious")
def a_run_that_nobody_asked_for(history: History) -> None:
    history.fates.append(replace(history.fates[index(history, 60)], id=99))


@breaks("spurious")
def a_run_of_a_job_that_was_never_created(history: History) -> None:
    history.fates.append(replace(history.fates[index(history, 50)], id=99, job=77))


@breaks("max_runs")
def one_run_too_many(history: History) -> None:
    run = next(e for e in history.events if isinstance(e, Claim) and e.execution == 32)
    history.events.append(
        replace(run, at=at("09:30:03"), execution=33, scheduled_for=at("09:30:03"))
    )


@breaks("misfire")
def missed_though_planned_in_time(history: History) -> None:
    alter(history, 11, recorded_at=at("10:00:30"))


@breaks("misfire")
def the_latest_was_not_made_up(history: History) -> None:
    drop(history, 12)
    alter(history, 11, missed=3, missed_through=at("12:00:00"))


@breaks("misfire")
def more_was_missed_than_all_allows(history: History) -> None:
    document = job("RECURRING", {"cron": "50 * * * *"}, misfire_policy="all", catch_up_limit=2)
    alter_events(history, Change, lambda e: e.job == PAUSED, document=document)


@breaks("misfire")
def a_missed_run_was_made_up_against_the_policy(history: History) -> None:
    document = job(
        "RECURRING", {"cron": "45 * * * *"}, misfire_policy="skip", delivery="at_most_once"
    )
    alter_events(history, Change, lambda e: e.job == CAREFUL, document=document)
    history.events = [
        event
        for event in history.events
        if not isinstance(event, Planned) or event.at > at("09:00:00")
    ]


def not_gated(history: History, first: str, last: str) -> None:
    """No pass of the gate in that time."""
    history.events = [
        event
        for event in history.events
        if not (isinstance(event, Gated) and at(first) <= event.at <= at(last))
    ]


@breaks("misfire")
def a_run_that_the_gate_saw_too_late_was_made_up_against_the_policy(history: History) -> None:
    not_gated(history, "08:30:03", "08:31:03")


@breaks("misfire")
def a_run_that_the_gate_saw_too_late_was_made_up_beside_a_newer_one(history: History) -> None:
    not_gated(history, "09:00:00", "12:09:59")  # 10:00, 11:00 and 12:00 are newer than 9:00


@breaks("misfire")
def a_run_that_the_gate_saw_too_late_was_made_up_after_its_window(history: History) -> None:
    document = job(
        "RECURRING", {"cron": "50 * * * *"}, misfire_policy="all", catch_up_window_seconds=600
    )
    alter_events(history, Change, lambda e: e.job == PAUSED, document=document)


@breaks("misfire")
def the_end_of_a_missed_stretch_is_within_the_grace(history: History) -> None:
    alter(history, 11, recorded_at=at("11:00:30"))


@breaks("two_leases")
def two_workers_hold_one_execution(history: History) -> None:
    history.events = [
        event
        for event in history.events
        if not (isinstance(event, Settle) and event.execution == 10 and event.kind == RETRY)
    ]
    alter_events(history, Claim, lambda e: e.execution == 10 and e.attempt == 2, session=3)


@breaks("fence")
def a_fence_falls(history: History) -> None:
    alter_events(history, Claim, lambda e: e.execution == 10 and e.attempt == 2, fence=7)
    alter_events(history, Settle, lambda e: e.execution == 10 and e.kind == SUCCEEDED, fence=7)
    alter(history, 10, fence=7)


@breaks("fence")
def a_recorded_fence_is_not_that_of_the_claim(history: History) -> None:
    alter(history, 10, fence=1)


@breaks("attempts")
def an_attempt_is_left_out(history: History) -> None:
    alter_events(history, Claim, lambda e: e.execution == 10 and e.attempt == 2, attempt=3)


@breaks("attempts")
def a_release_burns_an_attempt(history: History) -> None:
    alter_events(history, Claim, lambda e: e.execution == 42 and e.at > at("12:10:03"), attempt=2)


@breaks("attempts")
def an_ended_attempt_is_not_in_the_record(history: History) -> None:
    alter(history, 10, history=((2, 5),))


@breaks("stale_outcome")
def an_outcome_under_an_old_fence_counts(history: History) -> None:
    alter_events(history, Settle, lambda e: e.execution == 10 and e.kind == SUCCEEDED, fence=5)


@breaks("crashes")
def a_killer_is_tried_for_ever(history: History) -> None:
    minute = at("12:11:00")
    for attempt in range(1, 5):
        when = minute + attempt * MINUTE
        fence = int(when.timestamp() * 1_000_000)
        history.events.append(
            Claim(when, 5 + attempt, 1, 60, PAUSED, at("12:10:06"), attempt, fence)
        )


@breaks("at_most_once")
def what_may_run_once_runs_twice(history: History) -> None:
    alter_events(
        history, Settle, lambda e: e.execution == 42 and e.kind == RELEASED, accepted=False
    )
    alter_events(
        history, Claim, lambda e: e.execution == 42 and e.at > at("12:10:03"), attempt=2, session=3
    )


@breaks("retry")
def a_retry_comes_too_soon(history: History) -> None:
    alter_events(history, Claim, lambda e: e.execution == 10 and e.attempt == 2, at=at("09:00:30"))


@breaks("retry")
def a_delay_is_not_the_promised_one(history: History) -> None:
    alter_events(history, Settle, lambda e: e.kind == RETRY, delay_seconds=30.0)


@breaks("retry")
def given_up_before_the_last_try(history: History) -> None:
    alter_events(history, Settle, claims_of(12), reason="retries_exhausted")
    alter(history, 12, reason="retries_exhausted")


@breaks("early")
def a_run_starts_before_its_time(history: History) -> None:
    alter_events(history, Claim, claims_of(ONCE), at=at("08:29:59"))


@breaks("deadline")
def started_after_the_start_deadline(history: History) -> None:
    alter_events(history, Claim, claims_of(31), at=at("08:31:30"))


@breaks("deadline")
def tried_after_the_total_deadline(history: History) -> None:
    document = job(
        "RECURRING",
        {"cron": "0 * * * *"},
        deadline_seconds=60,
        retry_policy={"delays_seconds": [60]},
        overlap_policy="forbid",
    )
    alter_events(history, Change, lambda e: e.job == HOURLY, document=document)


@breaks("deadline")
def skipped_before_the_start_deadline(history: History) -> None:
    history.events = [e for e in history.events if getattr(e, "execution", 0) != 32]
    alter(
        history,
        32,
        status="SKIPPED",
        reason="start_deadline",
        attempt=0,
        fence=0,
        recorded_at=at("09:00:30"),
    )


@breaks("one_fate")
def two_fates(history: History) -> None:
    history.fates.append(replace(history.fates[index(history, 60)], status="DEAD", reason="lost"))


@breaks("one_fate")
def ended_and_yet_live(history: History) -> None:
    history.live.append(Live(10, HOURLY, 0, at("09:00:00"), at("13:00:00"), 1, "due"))


@breaks("fate_changed")
def a_fate_was_another_before(history: History) -> None:
    history.checkpoints[0].fates[10] = ("DEAD", "crashed")


@breaks("fate_changed")
def a_fate_is_gone(history: History) -> None:
    history.checkpoints[0].fates[98] = ("SUCCEEDED", None)


@breaks("wrong_fate")
def the_record_is_not_what_the_worker_said(history: History) -> None:
    alter(history, 10, status="DEAD", reason="crashed")


@breaks("wrong_fate")
def success_that_nobody_reported(history: History) -> None:
    alter(history, 40, status="SUCCEEDED", reason=None)


@breaks("wrong_fate")
def superseded_without_a_change(history: History) -> None:
    alter(history, 40, status="SUPERSEDED", reason="updated")


@breaks("wrong_fate")
def cancelled_without_a_wish(history: History) -> None:
    alter(history, 40, status="CANCELLED", reason="cancelled")


@breaks("wrong_fate")
def skipped_for_company_that_was_not_there(history: History) -> None:
    alter(history, ONCE, status="SKIPPED", reason="overlap", attempt=0, session=None)


@breaks("wrong_fate")
def lost_though_it_may_be_tried_again(history: History) -> None:
    document = job("RECURRING", {"cron": "45 * * * *"})
    alter_events(history, Change, lambda e: e.job == CAREFUL, document=document)


@breaks("wrong_fate")
def given_up_as_a_killer_too_soon(history: History) -> None:
    alter(history, 40, reason="crashed")


@breaks("after_fate")
def it_goes_on_after_its_fate(history: History) -> None:
    alter(history, 10, recorded_at=at("09:00:59"))


@breaks("dead_letter")
def a_dead_one_is_not_among_the_letters(history: History) -> None:
    history.dead_letters = frozenset({12})


@breaks("dead_letter")
def a_living_one_is_among_the_letters(history: History) -> None:
    history.dead_letters |= {10}


@breaks("cancel")
def a_cancelled_one_runs(history: History) -> None:
    history.events.append(Claim(at("12:10:30"), 1, 99, 60, PAUSED, at("12:10:06"), 1, 10**16))


@breaks("cancel")
def said_to_be_cancelled_and_is_not(history: History) -> None:
    alter(history, 60, status="SUPERSEDED", reason="paused")


@breaks("ran_after_change")
def it_runs_after_the_pause(history: History) -> None:
    history.events.append(Claim(at("08:50:30"), 1, 99, 50, PAUSED, at("08:50:00"), 1, 10**16))


@breaks("overlap")
def two_runs_at_once_where_that_is_forbidden(history: History) -> None:
    alter(history, 10, recorded_at=at("12:15:00"))
    done = next(
        event
        for event in history.events
        if isinstance(event, Settle) and event.execution == 10 and event.kind == SUCCEEDED
    )
    history.events.remove(done)
    history.events.append(replace(done, at=at("12:15:00")))


@breaks("stuck")
def due_and_never_admitted(history: History) -> None:
    history.live[0] = replace(history.live[0], run_at=at("12:00:00"))


@breaks("stuck")
def nowhere(history: History) -> None:
    history.live[0] = replace(history.live[0], place="nowhere")


@breaks("stuck")
def parked_for_ever(history: History) -> None:
    history.live[0] = replace(history.live[0], place="parked")


@breaks("stuck")
def held_though_nobody_paused_it(history: History) -> None:
    history.live[0] = replace(history.live[0], place="held")


@breaks("status")
def a_finished_job_is_not_completed(history: History) -> None:
    history.job_statuses[LIMITED] = "SCHEDULED"


@breaks("epoch")
def an_old_leader_commits(history: History) -> None:
    alter_events(history, LeaderVerb, lambda e: not e.accepted, accepted=True)


@breaks("epoch")
def an_epoch_comes_again(history: History) -> None:
    alter_events(history, TermBegun, lambda e: e.epoch == 2, epoch=1)


@breaks("reaped_alive")
def a_living_worker_loses_its_session(history: History) -> None:
    history.events = [event for event in history.events if not isinstance(event, Silenced)]


@pytest.mark.parametrize(("kind", "change"), BROKEN, ids=[change.__name__ for _, change in BROKEN])
def test_the_judge_sees_that(kind: str, change: Fault) -> None:
    history = valid()
    change(history)
    assert kind in {violation.kind for violation in check(history)}


def test_a_session_that_was_closed_in_order_may_be_followed_at_once() -> None:
    history = valid()
    history.events = [
        event
        for event in history.events
        if not (isinstance(event, Settle) and event.execution == 42 and event.kind == RELEASED)
    ]
    place = next(
        n
        for n, e in enumerate(history.events)
        if isinstance(e, Claim) and e.execution == 42 and e.at > at("12:10:03")
    )
    alter_events(history, Claim, lambda e: e.execution == 42 and e.at < at("12:10:03"), session=9)
    history.events.insert(place, SessionClosed(at("12:10:03"), 9))
    assert check(history) == []


def test_every_kind_of_violation_has_a_test() -> None:
    source = (Path(__file__).parent / "checker.py").read_text()
    kinds = set(re.findall(r'Violation\(\s*"(\w+)"', source))
    assert kinds == {kind for kind, _ in BROKEN}
