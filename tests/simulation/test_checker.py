"""The judge is judged: a history that breaks one promise must be found out, for every promise.

`valid` is a morning in the life of five jobs, put together by hand, in which everything is as it should be. Each test
changes one thing in it.
"""

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hourbell.engine.core import Times
from simulation import checker
from simulation.checker import DEAD, RELEASED, RETRY, SUCCEEDED, check
from simulation.recorder import promise_of
from verify.history import (
    Alive,
    Attempt,
    Call,
    Checkpoint,
    Claim,
    Dump,
    Ended,
    Gated,
    History,
    JobRow,
    LeaderVerb,
    Phase,
    Planned,
    Reaped,
    Seconds,
    SessionClosed,
    SessionOpened,
    SessionRenewed,
    Settle,
    Silenced,
    Step,
    TermBegun,
)
from verify.promise import Document, micros

HOURLY, ONCE, LIMITED, CAREFUL, PAUSED = (
    "hourly",
    "once",
    "limited",
    "careful",
    "paused",
)  # the jobs
PROMISE = promise_of(Times(grace_seconds=60, horizon_seconds=60, lease_seconds=15, max_crashes=1))


def at(text: str) -> Seconds:
    """A time of that morning."""
    return datetime.fromisoformat(iso(text)).timestamp()


def iso(text: str) -> str:
    return f"2027-03-13T{text}+00:00"


def job(kind: str, schedule: Document, **rest: Any) -> Document:
    return {"type": kind, "schedule": schedule, **rest}


class Builder:
    """Writes a history down as it happens."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.steps: list[Step] = []
        self.ended: list[Ended] = []
        self.documents: dict[str, Document] = {}

    def add(self, *steps: Step) -> None:
        self.steps.extend(steps)

    def call(self, operation: str, job: str, asked: str, seconds: int = 0, **rest: Any) -> None:
        """Answered some seconds later."""
        rest = {"execution_id": None, "document": None, "answer": {}} | rest
        rest["answer"] |= {"job_id": job}
        answered_at = at(asked) + seconds
        self.calls.append(
            Call(
                operation=operation,
                key=None,
                tenant="acme",
                job_id=job,
                asked_at=at(asked),
                answered_at=answered_at,
                status=200,
                **rest,
            )
        )

    def create(self, name: str, when: str, document: Document) -> None:
        self.documents[name] = document | {"name": name}
        answer = {"created_at": iso(when)}
        self.call("create", name, when, document=self.documents[name], answer=answer)

    def change(self, name: str, when: str, operation: str) -> None:
        self.call(operation, name, when, 1, answer={"updated_at": iso(when)})

    def claim(
        self, when: str, execution: str, name: str, due: str, attempt: int, session: int = 1
    ) -> int:
        fence = micros(at(when))
        claims = sum(isinstance(step, Claim) for step in self.steps)
        self.add(SessionRenewed(at(when), session, frozenset(), 0, frozenset()))
        self.add(Gated(at(when)))
        self.add(Claim(at(when), session, claims + 1, execution, name, at(due), attempt, fence))
        return fence

    def settle(
        self, when: str, execution: str, fence: int, kind: int, session: int = 1, **rest: Any
    ) -> None:
        self.add(Settle(at(when), session, execution, fence, kind, True, **rest))

    def end(
        self,
        execution: str,
        name: str,
        due: str,
        status: str,
        when: str,
        reason: str | None = None,
        *tries: tuple[int, str | None],
        **rest: Any,
    ) -> None:
        """`tries`: the fence of each attempt, and why it ended."""
        attempts = [
            Attempt(
                attempt=number,
                fence=fence,
                started_at=fence / 1_000_000,
                finished_at=at(when) if number == len(tries) else fence / 1_000_000 + 3,
                reason=why,
            )
            for number, (fence, why) in enumerate(tries, 1)
        ]
        rest = {"origin": 0, "missed": None, "missed_through": None} | rest
        self.ended.append(
            Ended(
                execution_id=execution,
                job_id=name,
                tenant="acme",
                priority=2,
                scheduled_for=at(due),
                status=status,
                reason=reason,
                recorded_at=at(when),
                started_at=attempts[0].started_at if attempts else None,
                attempts=attempts,
                counted=len(attempts),
                fence=attempts[-1].fence if attempts else 0,
                **rest,
            )
        )

    def misses(self, execution: str, name: str, due: str, through: str, missed: int) -> None:
        self.end(
            execution,
            name,
            due,
            "SKIPPED",
            "12:10:00",
            "misfire",
            missed=missed,
            missed_through=at(through),
        )

    def runs(self, execution: str, name: str, due: str, until: str) -> None:
        """A run that goes well at once."""
        fence = self.claim(due, execution, name, due, 1)
        self.settle(until, execution, fence, SUCCEEDED)
        self.end(execution, name, due, "SUCCEEDED", until, None, (fence, None))


def valid() -> History:
    """Everything as it should be."""
    story = Builder()
    story.add(
        TermBegun(at("08:00:00"), 1), SessionOpened(at("08:00:00"), 1), Planned(at("08:00:00"))
    )
    story.add(LeaderVerb(at("08:00:00"), "plan", 1, accepted=True))

    retries = {"delays_seconds": [60], "non_retryable": ["Broken"]}
    hourly = job("RECURRING", {"cron": "0 * * * *"}, retry_policy=retries)
    hourly |= {"overlap_policy": "forbid", "deadline_seconds": 3600}
    story.create(HOURLY, "08:00:01", hourly)
    story.create(ONCE, "08:00:02", job("ONE_TIME", {"at": iso("08:30:00")}))
    limited = job("RECURRING", {"every_seconds": 1800, "max_runs": 2}, misfire_policy="skip")
    story.create(LIMITED, "08:00:03", limited | {"start_deadline_seconds": 60})
    careful = job("RECURRING", {"cron": "45 * * * *"}, delivery="at_most_once")
    story.create(CAREFUL, "08:00:04", careful)
    paused = job("RECURRING", {"cron": "50 * * * *"}, misfire_policy="all", catch_up_limit=1)
    story.create(PAUSED, "08:00:05", paused)
    story.add(Planned(at("08:00:05")))

    story.runs("20", ONCE, "08:30:00", "08:30:05")
    story.runs("31", LIMITED, "08:30:03", "08:30:09")

    lost = story.claim("08:45:00", "40", CAREFUL, "08:45:00", 1, session=2)
    story.add(Silenced(at("08:45:05"), 2), Reaped(at("08:45:20"), frozenset({2})))
    story.end("40", CAREFUL, "08:45:00", "DEAD", "08:45:20", "lost", (lost, "lost"))

    story.change(PAUSED, "08:50:00", "pause")
    story.end("50", PAUSED, "08:50:00", "SUPERSEDED", "08:50:02", "paused")
    story.change(PAUSED, "08:55:00", "resume")

    first = story.claim("09:00:00", "10", HOURLY, "09:00:00", 1)
    story.settle("09:00:03", "10", first, RETRY, delay_seconds=60.0)
    second = story.claim("09:01:03", "10", HOURLY, "09:00:00", 2)
    story.settle("09:01:05", "10", second, SUCCEEDED)
    tries = ((first, "Late"), (second, None))
    story.end("10", HOURLY, "09:00:00", "SUCCEEDED", "09:01:05", None, *tries)
    story.runs("32", LIMITED, "09:00:03", "09:00:08")

    # Nobody plans from 09:20 to 12:10. Then: the latest of the hourly ones, one of the paused ones, all that are careful.
    story.add(TermBegun(at("12:10:00"), 2), Planned(at("12:10:00")))
    story.add(LeaderVerb(at("12:10:00"), "plan", 1, accepted=False))
    story.misses("11", HOURLY, "10:00:00", "11:00:00", 2)
    late = story.claim("12:10:00", "12", HOURLY, "12:00:00", 1)
    story.settle("12:10:01", "12", late, DEAD, reason="non_retryable")
    tried = (late, "non_retryable")
    story.end("12", HOURLY, "12:00:00", "DEAD", "12:10:01", "non_retryable", tried)
    story.misses("41", CAREFUL, "09:45:00", "10:45:00", 2)
    back = story.claim("12:10:02", "42", CAREFUL, "11:45:00", 1)
    story.settle("12:10:03", "42", back, RELEASED)
    again = story.claim("12:10:04", "42", CAREFUL, "11:45:00", 1)
    story.settle("12:10:05", "42", again, SUCCEEDED)
    story.end("42", CAREFUL, "11:45:00", "SUCCEEDED", "12:10:05", None, (again, None))
    story.misses("51", PAUSED, "09:50:00", "10:50:00", 2)
    story.call("run", PAUSED, "12:10:06", answer={"execution_ids": ["60"]})
    story.call("cancel", PAUSED, "12:10:07", 1, execution_id="60", answer={"status": "CANCELLED"})
    story.end("60", PAUSED, "12:10:06", "CANCELLED", "12:10:07", "cancelled", origin=1)
    made_up = story.claim("12:10:09", "52", PAUSED, "11:50:00", 1)
    story.settle("12:10:10", "52", made_up, SUCCEEDED)
    story.end("52", PAUSED, "11:50:00", "SUCCEEDED", "12:10:10", None, (made_up, None))

    ahead = Alive(
        execution_id="43",
        job_id=CAREFUL,
        origin=0,
        scheduled_for=at("12:45:00"),
        run_at=at("12:45:00"),
        place="due",
        planned_ahead=True,
    )
    return History(
        seed=1,
        calls=story.calls,
        deliveries=[],
        dump=Dump(
            at=at("12:44:30"),
            jobs=[
                JobRow(job_id=name, name=name, tenant="acme", status=status, type="RECURRING")
                for name, status in (
                    (HOURLY, "SCHEDULED"),
                    (LIMITED, "COMPLETED"),
                    (CAREFUL, "SCHEDULED"),
                    (PAUSED, "SCHEDULED"),
                )
            ],
            ended=story.ended,
            alive=[ahead],
            dead_letters=["12", "40"],
            terms=[],
            written=[],
        ),
        phases=[Phase(at=at("08:00:00"), name="loaded"), Phase(at=at("08:00:00"), name="healed")],
        steps=story.steps,
        checkpoints=[
            Checkpoint(at("09:20:00"), {"10": ("SUCCEEDED", None), "40": ("DEAD", "lost")})
        ],
    )


def test_a_history_without_fault_is_let_pass() -> None:
    assert check(valid(), PROMISE) == []


# One change each. The name says what is wrong with the history afterwards.

GENERAL = {"I1", "I2", "I4", "I6", "I8", "I9", "I10", "I11"}  # what `verify.judge` finds of these
Fault = Callable[[History], None]
BROKEN: list[tuple[str, Fault]] = []


def breaks(kind: str) -> Callable[[Fault], Fault]:
    def remember(change: Fault) -> Fault:
        BROKEN.append((kind, change))
        return change

    return remember


def alter(history: History, execution: str, /, **fields: Any) -> None:
    ended = history.dump.ended
    n = next(n for n, row in enumerate(ended) if row.execution_id == execution)
    ended[n] = replace(ended[n], **fields)


def again(history: History, execution: str, **fields: Any) -> None:
    """A second row, made of one that is there."""
    row = next(row for row in history.dump.ended if row.execution_id == execution)
    history.dump.ended.append(replace(row, **fields))


def drop(history: History, execution: str) -> None:
    history.dump.ended[:] = [row for row in history.dump.ended if row.execution_id != execution]


def alter_steps(
    history: History, kind: type, matches: Callable[[Any], bool], **fields: Any
) -> None:
    changed = 0
    for n, step in enumerate(history.steps):
        if isinstance(step, kind) and matches(step):
            history.steps[n] = replace(step, **fields)
            changed += 1
    assert changed


def drop_steps(history: History, matches: Callable[[Any], bool]) -> None:
    left = [step for step in history.steps if not matches(step)]
    assert len(left) < len(history.steps)
    history.steps[:] = left


def alter_job(history: History, name: str, document: Document) -> None:
    """It was created as another one."""
    for n, call in enumerate(history.calls):
        if call.operation == "create" and call.job_id == name:
            history.calls[n] = replace(call, document=document | {"name": name})


def alter_alive(history: History, **fields: Any) -> None:
    history.dump.alive[0] = replace(history.dump.alive[0], **fields)


def claims_of(execution: str) -> Callable[[Any], bool]:
    return lambda step: step.execution_id == execution


@breaks("I1")
def an_occurrence_has_no_record(history: History) -> None:
    drop(history, "50")


@breaks("I1")
def a_one_time_job_is_gone(history: History) -> None:
    drop(history, "20")


@breaks("I1")
def a_requested_run_is_gone(history: History) -> None:
    drop(history, "60")


@breaks("I1")
def a_missed_stretch_leaves_one_out(history: History) -> None:
    alter(history, "11", missed=1, missed_through=at("10:00:00"))


@breaks("I2")
def an_occurrence_has_two_executions(history: History) -> None:
    again(history, "10", execution_id="99")


@breaks("I2")
def an_occurrence_ran_and_is_missed(history: History) -> None:
    alter(history, "11", missed=3, missed_through=at("12:00:00"))


@breaks("I2")
def two_missed_stretches_overlap(history: History) -> None:
    again(history, "11", execution_id="99")


@breaks("I11")
def a_run_at_a_time_that_the_rule_does_not_have(history: History) -> None:
    alter(history, "10", scheduled_for=at("09:07:00"))


@breaks("I11")
def a_run_for_the_time_before_the_job(history: History) -> None:
    again(history, "50", execution_id="99", scheduled_for=at("07:50:00"))


@breaks("I11")
def a_run_in_a_pause(history: History) -> None:
    pause = next(n for n, call in enumerate(history.calls) if call.operation == "pause")
    early = {"asked_at": at("08:40:00"), "answered_at": at("08:40:00")}
    answer = {"updated_at": iso("08:40:00"), "job_id": PAUSED}
    history.calls[pause] = replace(history.calls[pause], answer=answer, **early)


@breaks("I11")
def a_run_after_the_end(history: History) -> None:
    ended = {"cron": "45 * * * *", "ends_at": iso("11:00:00")}
    alter_job(history, CAREFUL, job("RECURRING", ended, delivery="at_most_once"))


@breaks("I11")
def a_run_before_the_start(history: History) -> None:
    begun = {"cron": "45 * * * *", "starts_at": iso("09:00:00")}
    alter_job(history, CAREFUL, job("RECURRING", begun, delivery="at_most_once"))


@breaks("I11")
def a_missed_stretch_counts_wrong(history: History) -> None:
    alter(history, "11", missed=5)


@breaks("I11")
def a_run_that_nobody_asked_for(history: History) -> None:
    again(history, "60", execution_id="99")


@breaks("I11")
def a_run_of_a_job_that_was_never_created(history: History) -> None:
    again(history, "50", execution_id="99", job_id="77")


@breaks("I11")
def one_run_too_many(history: History) -> None:
    run = next(e for e in history.steps if isinstance(e, Claim) and e.execution_id == "32")
    history.steps.append(
        replace(run, at=at("09:30:03"), execution_id="33", scheduled_for=at("09:30:03"))
    )
    due = {"scheduled_for": at("09:30:03"), "recorded_at": at("09:30:08")}
    again(history, "32", execution_id="33", **due)


@breaks("I1")
def missed_though_planned_in_time(history: History) -> None:
    alter(history, "11", recorded_at=at("10:00:30"))


@breaks("misfire")
def the_latest_was_not_made_up(history: History) -> None:
    drop(history, "12")
    alter(history, "11", missed=3, missed_through=at("12:00:00"))


@breaks("misfire")
def more_was_missed_than_all_allows(history: History) -> None:
    document = job("RECURRING", {"cron": "50 * * * *"}, misfire_policy="all", catch_up_limit=2)
    alter_job(history, PAUSED, document)


@breaks("misfire")
def a_missed_run_was_made_up_against_the_policy(history: History) -> None:
    document = job(
        "RECURRING", {"cron": "45 * * * *"}, misfire_policy="skip", delivery="at_most_once"
    )
    alter_job(history, CAREFUL, document)
    drop_steps(history, lambda step: isinstance(step, Planned) and step.at <= at("09:00:00"))


def not_gated(history: History, first: str, last: str) -> None:
    """No pass of the gate in that time."""
    drop_steps(history, lambda step: isinstance(step, Gated) and at(first) <= step.at <= at(last))


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
    alter_job(history, PAUSED, document)


@breaks("I1")
def the_end_of_a_missed_stretch_is_within_the_grace(history: History) -> None:
    alter(history, "11", recorded_at=at("11:00:30"))


@breaks("two_leases")
def two_workers_hold_one_execution(history: History) -> None:
    drop_steps(
        history,
        lambda e: isinstance(e, Settle) and e.execution_id == "10" and e.kind == RETRY,
    )
    alter_steps(history, Claim, lambda e: e.execution_id == "10" and e.attempt == 2, session=3)


@breaks("I6")
def a_fence_falls(history: History) -> None:
    alter_steps(history, Claim, lambda e: e.execution_id == "10" and e.attempt == 2, fence=7)
    alter_steps(history, Settle, lambda e: e.execution_id == "10" and e.kind == SUCCEEDED, fence=7)
    alter(history, "10", fence=7)


@breaks("fence")
def a_recorded_fence_is_not_that_of_the_claim(history: History) -> None:
    alter(history, "10", fence=1)


@breaks("attempts")
def an_attempt_is_left_out(history: History) -> None:
    alter_steps(history, Claim, lambda e: e.execution_id == "10" and e.attempt == 2, attempt=3)


@breaks("attempts")
def a_release_burns_an_attempt(history: History) -> None:
    alter_steps(
        history, Claim, lambda e: e.execution_id == "42" and e.at > at("12:10:03"), attempt=2
    )


@breaks("I8")
def an_ended_attempt_is_not_in_the_record(history: History) -> None:
    [_, last] = next(row for row in history.dump.ended if row.execution_id == "10").attempts
    alter(history, "10", attempts=[last])


@breaks("stale_outcome")
def an_outcome_under_an_old_fence_counts(history: History) -> None:
    alter_steps(history, Settle, lambda e: e.execution_id == "10" and e.kind == SUCCEEDED, fence=5)


@breaks("crashes")
def a_killer_is_tried_for_ever(history: History) -> None:
    for attempt in range(1, 5):
        when = at("12:11:00") + attempt * 60
        claim = Claim(when, 5 + attempt, 1, "60", PAUSED, at("12:10:06"), attempt, micros(when))
        history.steps.append(claim)


@breaks("at_most_once")
def what_may_run_once_runs_twice(history: History) -> None:
    alter_steps(
        history, Settle, lambda e: e.execution_id == "42" and e.kind == RELEASED, accepted=False
    )
    alter_steps(
        history,
        Claim,
        lambda e: e.execution_id == "42" and e.at > at("12:10:03"),
        attempt=2,
        session=3,
    )


@breaks("retry")
def a_retry_comes_too_soon(history: History) -> None:
    alter_steps(
        history, Claim, lambda e: e.execution_id == "10" and e.attempt == 2, at=at("09:00:30")
    )


@breaks("retry")
def a_delay_is_not_the_promised_one(history: History) -> None:
    alter_steps(history, Settle, lambda e: e.kind == RETRY, delay_seconds=30.0)


@breaks("retry")
def given_up_before_the_last_try(history: History) -> None:
    alter_steps(history, Settle, claims_of("12"), reason="retries_exhausted")
    alter(history, "12", reason="retries_exhausted")


@breaks("I4")
def a_run_starts_before_its_time(history: History) -> None:
    alter_steps(history, Claim, claims_of("20"), at=at("08:29:59"))


@breaks("deadline")
def started_after_the_start_deadline(history: History) -> None:
    alter_steps(history, Claim, claims_of("31"), at=at("08:31:30"))


@breaks("deadline")
def tried_after_the_total_deadline(history: History) -> None:
    document = job(
        "RECURRING",
        {"cron": "0 * * * *"},
        deadline_seconds=60,
        retry_policy={"delays_seconds": [60]},
        overlap_policy="forbid",
    )
    alter_job(history, HOURLY, document)


@breaks("I1")
def skipped_before_the_start_deadline(history: History) -> None:
    drop_steps(history, lambda step: getattr(step, "execution_id", "") == "32")
    skipped = {"status": "SKIPPED", "reason": "start_deadline", "recorded_at": at("09:00:30")}
    alter(history, "32", attempts=[], counted=0, fence=0, started_at=None, **skipped)


@breaks("I10")
def two_fates(history: History) -> None:
    again(history, "60", status="DEAD", reason="lost")


@breaks("I10")
def ended_and_yet_live(history: History) -> None:
    alive = {"execution_id": "10", "job_id": HOURLY, "scheduled_for": at("09:00:00")}
    history.dump.alive.append(replace(history.dump.alive[0], **alive))


@breaks("fate_changed")
def a_fate_was_another_before(history: History) -> None:
    history.checkpoints[0].fates["10"] = ("DEAD", "crashed")


@breaks("fate_changed")
def a_fate_is_gone(history: History) -> None:
    history.checkpoints[0].fates["98"] = ("SUCCEEDED", None)


@breaks("wrong_fate")
def the_record_is_not_what_the_worker_said(history: History) -> None:
    alter(history, "10", status="DEAD", reason="crashed")


@breaks("I1")
def success_that_nobody_reported(history: History) -> None:
    alter(history, "40", status="SUCCEEDED", reason=None)


@breaks("I1")
def superseded_without_a_change(history: History) -> None:
    alter(history, "40", status="SUPERSEDED", reason="updated")


@breaks("wrong_fate")
def superseded_by_a_change_before_it(history: History) -> None:
    fields = {"status": "SUPERSEDED", "reason": "paused", "recorded_at": at("12:10:00")}
    again(history, "52", execution_id="99", attempts=[], counted=0, started_at=None, **fields)


@breaks("I1")
def cancelled_without_a_wish(history: History) -> None:
    alter(history, "40", status="CANCELLED", reason="cancelled")


@breaks("I1")
def skipped_for_company_that_was_not_there(history: History) -> None:
    drop_steps(history, lambda step: getattr(step, "execution_id", "") == "12")
    skipped = {"status": "SKIPPED", "reason": "overlap", "recorded_at": at("12:10:00")}
    alter(history, "12", attempts=[], counted=0, fence=0, started_at=None, **skipped)


@breaks("I1")
def lost_though_it_may_be_tried_again(history: History) -> None:
    document = job("RECURRING", {"cron": "45 * * * *"})
    alter_job(history, CAREFUL, document)


@breaks("I1")
def given_up_as_a_killer_too_soon(history: History) -> None:
    alter(history, "40", reason="crashed")


@breaks("after_fate")
def it_goes_on_after_its_fate(history: History) -> None:
    alter(history, "10", recorded_at=at("09:00:59"))


@breaks("I1")
def a_dead_one_is_not_among_the_letters(history: History) -> None:
    history.dump.dead_letters.remove("40")


@breaks("I11")
def a_living_one_is_among_the_letters(history: History) -> None:
    history.dump.dead_letters.append("10")


@breaks("I9")
def a_cancelled_one_runs(history: History) -> None:
    history.steps.append(Claim(at("12:10:30"), 1, 99, "60", PAUSED, at("12:10:06"), 1, 10**16))


@breaks("I1")
def said_to_be_cancelled_and_is_not(history: History) -> None:
    alter(history, "60", status="SUPERSEDED", reason="paused")


@breaks("ran_after_change")
def it_runs_after_the_pause(history: History) -> None:
    history.steps.append(Claim(at("08:50:30"), 1, 99, "50", PAUSED, at("08:50:00"), 1, 10**16))


@breaks("overlap")
def two_runs_at_once_where_that_is_forbidden(history: History) -> None:
    alter(history, "10", recorded_at=at("12:15:00"))
    done = next(
        event
        for event in history.steps
        if isinstance(event, Settle) and event.execution_id == "10" and event.kind == SUCCEEDED
    )
    history.steps.remove(done)
    history.steps.append(replace(done, at=at("12:15:00")))


@breaks("I10")
def due_and_never_admitted(history: History) -> None:
    alter_alive(history, run_at=at("12:00:00"))


@breaks("I10")
def nowhere(history: History) -> None:
    alter_alive(history, place="nowhere")


@breaks("stuck")
def parked_for_ever(history: History) -> None:
    alter_alive(history, place="parked")


@breaks("I10")
def held_though_nobody_paused_it(history: History) -> None:
    alter_alive(history, place="held")


@breaks("I1")
def a_finished_job_is_not_completed(history: History) -> None:
    [limited] = [n for n, row in enumerate(history.dump.jobs) if row.name == LIMITED]
    history.dump.jobs[limited] = replace(history.dump.jobs[limited], status="SCHEDULED")


@breaks("status")
def a_job_is_completed_before_its_last_run(history: History) -> None:
    limited = job("RECURRING", {"every_seconds": 1800, "max_runs": 3}, misfire_policy="skip")
    alter_job(history, LIMITED, limited)


@breaks("epoch")
def an_old_leader_commits(history: History) -> None:
    alter_steps(history, LeaderVerb, lambda e: not e.accepted, accepted=True)


@breaks("epoch")
def an_epoch_comes_again(history: History) -> None:
    alter_steps(history, TermBegun, lambda e: e.epoch == 2, epoch=1)


@breaks("reaped_alive")
def a_living_worker_loses_its_session(history: History) -> None:
    drop_steps(history, lambda step: isinstance(step, Silenced))


@pytest.mark.parametrize(("kind", "change"), BROKEN, ids=[change.__name__ for _, change in BROKEN])
def test_the_judge_sees_that(kind: str, change: Fault) -> None:
    history = valid()
    change(history)
    assert kind in {violation.invariant for violation in check(history, PROMISE)}


def test_a_session_that_was_closed_in_order_may_be_followed_at_once() -> None:
    history = valid()
    drop_steps(
        history,
        lambda e: isinstance(e, Settle) and e.execution_id == "42" and e.kind == RELEASED,
    )
    place = next(
        n
        for n, e in enumerate(history.steps)
        if isinstance(e, Claim) and e.execution_id == "42" and e.at > at("12:10:03")
    )
    alter_steps(
        history, Claim, lambda e: e.execution_id == "42" and e.at < at("12:10:03"), session=9
    )
    history.steps.insert(place, SessionClosed(at("12:10:03"), 9))
    assert check(history, PROMISE) == []


def test_every_kind_of_violation_has_a_test() -> None:
    kinds = set(re.findall(r'Violation\(\s*"(\w+)"', Path(checker.__file__).read_text("utf-8")))
    assert kinds | GENERAL == {kind for kind, _ in BROKEN}


def test_the_judge_knows_nothing_of_the_product() -> None:
    source = Path(checker.__file__).read_text("utf-8")
    assert not re.search(r"^\s*(from|import) hourbell", source, re.MULTILINE)
