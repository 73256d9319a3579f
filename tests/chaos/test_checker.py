"""The judge is judged: for every promise, a history that breaks it must be found out, and one that
nearly does must not.

`good` is a run of eight minutes, put together by hand: jobs of every kind, retries, a pause, an
update, a herd, a worker killed, a leader stopped, the database restarted; and everything as it
should be. Each test changes one thing in it.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from chaos import checker, checks_clockless
from chaos.checker import Promise, check, figures
from chaos.checks_faults import strike
from chaos.http_worker import OTHER_TASK, TASK
from chaos.zones import YOUNG
from verify import judge
from verify.history import (
    Alive,
    Attempt,
    Backends,
    Call,
    Delivery,
    Dump,
    Ended,
    Fault,
    History,
    JobRow,
    Phase,
    Sample,
    Stray,
    Term,
    Written,
)
from verify.promise import Spans, micros, percentile
from verify.stories import patched

BASE = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC; all times here are seconds after it
PROMISE = Promise(
    lease_seconds=3,
    leader_lease_seconds=3,
    workers=4,
    slots=10,
    http_workers=2,
    http_slots=10,
    least_calm_starts=10,
)
COUNTS = {
    "acme": {"SCHEDULED": 3, "CANCELLED": 2, "COMPLETED": 10},
    "globex": {"SCHEDULED": 2, "COMPLETED": 22},
}
T = TypeVar("T")


def iso(at: float) -> str:
    return datetime.fromtimestamp(BASE + at, UTC).isoformat()


@dataclass(frozen=True)
class Try:
    """One attempt: when it reached the receiver, and what came of it."""

    at: float
    status: int | None = 200
    reason: str | None = None  # as the ledger has it
    took: float = 0.05
    until: float | None = None  # that it ended, for the ledger; usually when it was answered
    mood: str = "well"
    whole: bool = True  # the answer; otherwise it breaks off after its head
    arrived: bool = True
    worker: str | None = None  # over HTTP


class World:
    """Writes a history down as it happens."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.deliveries: list[Delivery] = []
        self.ended: list[Ended] = []
        self.alive: list[Alive] = []
        self.jobs: dict[str, JobRow] = {}
        self.dead: list[str] = []
        self.documents: dict[str, dict[str, Any]] = {}
        self.tenants: dict[str, str] = {}
        self.versions: dict[str, int] = {}
        self._executions = 0

    # The client.

    def call(
        self, operation: str, asked: float, answered: float | None, status: int | None, **rest: Any
    ) -> None:
        rest = {
            "key": f"{operation}-{rest.get('job_id')}-{asked}",
            "tenant": "acme",
            "job_id": None,
            "execution_id": None,
            "document": None,
            "answer": None,
        } | rest
        self.calls.append(
            Call(
                operation=operation,
                asked_at=BASE + asked,
                answered_at=None if answered is None else BASE + answered,
                status=status,
                **rest,
            )
        )

    def create(
        self,
        name: str,
        asked: float,
        schedule: dict[str, Any],
        tenant: str = "acme",
        told: float | None = None,
        **policies: Any,
    ) -> None:
        """A job is called by its name here; its id is `job_` and the name."""
        told = asked + 0.01 if told is None else told
        once = "at" in schedule or "delay_seconds" in schedule
        kind = "ONE_TIME" if once else "RECURRING"
        document = {
            "name": name,
            "type": kind,
            "tenant_id": tenant,
            "schedule": schedule,
            **policies,
        }
        self.documents[name], self.tenants[name], self.versions[name] = document, tenant, 1
        shown = dict(schedule)
        if "delay_seconds" in shown:
            shown = {"at": iso(told + shown.pop("delay_seconds"))}
        answer = document | {"job_id": f"job_{name}", "status": "SCHEDULED", "version": 1}
        answer |= {"schedule": shown, "created_at": iso(told), "updated_at": iso(told)}
        key = f"create-{name}"
        self.call(
            "create",
            asked,
            max(asked, told) + 0.02,
            201,
            key=key,
            tenant=tenant,
            document=document,
            answer=answer,
        )
        if not once:
            self.jobs[name] = JobRow(
                job_id=f"job_{name}", name=name, tenant=tenant, status="SCHEDULED", type=kind
            )

    def change(self, name: str, operation: str, asked: float, **patch: Any) -> None:
        """Holds from 0.1 s after it was asked, and is answered 0.1 s later."""
        self.versions[name] += 1
        status = {"pause": "PAUSED", "delete": "CANCELLED"}.get(operation, "SCHEDULED")
        self.jobs[name] = msgspec.structs.replace(self.jobs[name], status=status)
        answer = {"job_id": f"job_{name}", "status": status, "version": self.versions[name]}
        answer["updated_at"] = iso(asked + 0.1)
        self.call(
            operation,
            asked,
            asked + 0.2,
            200,
            tenant=self.tenants[name],
            job_id=f"job_{name}",
            document=patch or None,
            answer=answer,
        )

    # The system.

    def runs(self, name: str, due: float, *tries: Try, **rest: Any) -> str:
        """An execution with its attempts; without any given, it succeeds at once."""
        tries = tries or (Try(due + 0.02),)
        once = self.documents[name]["type"] == "ONE_TIME"
        self._executions += 1
        execution_id = f"exe_{name}" if once else f"exe_{name}_{self._executions}"
        attempts = []
        for number, one in enumerate(tries, 1):
            until = one.at + one.took if one.until is None else one.until
            fence = micros(BASE + one.at)
            attempts.append(
                Attempt(
                    attempt=number,
                    fence=fence,
                    started_at=BASE + one.at - 0.005,
                    finished_at=BASE + until,
                    reason=one.reason,
                    worker=one.worker,
                )
            )
            if not one.arrived:
                continue
            arrival = Delivery(
                at=BASE + one.at,
                execution_id=execution_id,
                job=name,
                fence=fence,
                attempt=number,
                scheduled_for=BASE + due,
                mood=one.mood,
                answered_at=None,
                status=None,
                worker=one.worker,
                task=None if one.worker is None else TASK,
            )
            self.deliveries.append(arrival)
            if one.status is not None:
                answered_at = BASE + one.at + one.took if one.whole else None
                self.deliveries.append(
                    msgspec.structs.replace(arrival, answered_at=answered_at, status=one.status)
                )
        status = rest.pop("status", "SUCCEEDED")
        self.end(
            name,
            due,
            status,
            rest.pop("recorded", attempts[-1].finished_at - BASE + 0.01),
            execution_id=execution_id,
            attempts=attempts,
            started_at=attempts[0].started_at,
            **rest,
        )
        return execution_id

    def end(self, name: str, due: float, status: str, recorded: float, **rest: Any) -> None:
        """A row of the ledger."""
        self._executions += 1
        rest = {
            "execution_id": f"exe_{name}_{self._executions}",
            "origin": 0,
            "reason": None,
            "started_at": None,
            "attempts": [],
            "missed": None,
            "missed_through": None,
        } | rest
        priorities = ["CRITICAL", "HIGH", "MEDIUM", "LOW"]
        ended = Ended(
            job_id=f"job_{name}",
            tenant=self.tenants[name],
            priority=priorities.index(self.documents[name].get("priority", "MEDIUM")),
            scheduled_for=BASE + due,
            status=status,
            recorded_at=BASE + recorded,
            **rest,
        )
        self.ended.append(ended)
        if status == "DEAD":
            self.dead.append(ended.execution_id)

    def waits(self, name: str, due: float, place: str = "due", **rest: Any) -> None:
        self._executions += 1
        rest = {
            "execution_id": f"exe_{name}_{self._executions}",
            "origin": 0,
            "planned_ahead": due > 500,
            "run_at": BASE + due,
        } | rest
        self.alive.append(
            Alive(
                job_id=f"job_{name}",
                scheduled_for=BASE + due,
                place=place,
                **rest,
            )
        )


def good() -> History:
    """Everything as it should be."""
    world = World()
    recurring_jobs(world)
    one_time_jobs(world)
    over_http(world)
    herd(world)
    count_jobs(world)
    return History(
        seed=7,
        calls=world.calls,
        deliveries=world.deliveries,
        faults=[
            Fault(kind="kill_worker", victim="worker-2", began_at=BASE + 100, ended_at=BASE + 101),
            Fault(
                kind="stop_leader", victim="scheduler-1", began_at=BASE + 200, ended_at=BASE + 209
            ),
            Fault(kind="restart_fast", victim="postgres", began_at=BASE + 300, ended_at=BASE + 303),
            Fault(kind="herd", victim="globex", began_at=BASE + 150, ended_at=BASE + 156),
            Fault(kind="refuse", victim="http-2→api-1", began_at=BASE + 140.1, ended_at=BASE + 141),
        ],
        samples=list(samples()),
        backends=[
            Backends(
                at=BASE + at,
                connections={"api": 5, "worker-1": 4},
                idle_in_transaction_seconds=8.0 if at == 210 else 0.1,
            )
            for at in range(0, 500, 10)
        ],
        phases=[
            Phase(at=BASE + at, name=name)
            for at, name in ((0, "loaded"), (310, "healed"), (420, "quiet"), (500, "ended"))
        ],
        dump=Dump(
            at=BASE + 500.5,
            jobs=list(world.jobs.values()),
            ended=world.ended,
            alive=world.alive,
            dead_letters=world.dead,
            terms=[
                Term(epoch=1, node="scheduler-1", began_at=BASE - 5, ended_at=BASE + 202.9),
                Term(epoch=2, node="scheduler-2", began_at=BASE + 203.5, ended_at=BASE + 302.5),
                Term(epoch=3, node="scheduler-3", began_at=BASE + 304.2, ended_at=BASE + 503.1),
            ],
            written=[
                Written(epoch=epoch, at=BASE + at)
                for epoch, times in (
                    (1, (*range(10, 200, 20), 199.9)),
                    (2, (204.0, *range(220, 290, 20), 299.0)),
                    (3, (304.3, *range(320, 500, 20))),
                )
                for at in times
            ],
        ),
    )


def recurring_jobs(world: World) -> None:
    # The answer to the first try was lost. An interval counts from the whole second of its
    # creation, 5.
    world.create("tick", 5.2, {"every_seconds": 60}, told=5.25)
    lost = msgspec.structs.replace(
        world.calls[-1], asked_at=BASE + 5.1, answered_at=None, status=None, answer=None
    )
    world.calls.insert(0, lost)
    for due in (65, 125, 185, 245, 365, 425, 485):
        world.runs("tick", due)
    world.runs("tick", 305, Try(305.8))  # the database is just back
    world.waits("tick", 545)
    now = world.runs("tick", 170.05, Try(170.3), origin=1)
    world.call("run", 170.0, 170.2, 202, job_id="job_tick", answer={"execution_ids": [now]})

    world.create("even", 6.0, {"cron": "*/2 * * * *"}, tenant="globex", priority="HIGH")
    for due in (120, 240, 360, 480):
        world.runs("even", due)

    # Paused at 130.15, just after it fell due; resumed; deleted.
    world.create("nap", 10.0, {"every_seconds": 30})
    for due in (40, 70, 100, 280, 310, 340, 370):
        world.runs("nap", due)
    world.change("nap", "pause", 130.05)
    world.end("nap", 130, "SUPERSEDED", 130.16, reason="paused")
    world.change("nap", "resume", 260.0)
    world.change("nap", "delete", 399.0)

    # The run of 75 takes until 140.
    world.create("alone", 15.0, {"every_seconds": 60}, overlap_policy="forbid", timeout_seconds=90)
    world.runs("alone", 75, Try(75.02, took=65.0))
    world.end("alone", 135, "SKIPPED", 135.02, reason="overlap")
    for due in (195, 255, 315, 375, 435, 495):
        world.runs("alone", due)
    world.waits("alone", 555)

    # From every 40 s to every 50 s, which count from 222.
    world.create("shift", 12.0, {"every_seconds": 40}, tenant="globex")
    for due in (52, 92, 132, 172, 212):
        world.runs("shift", due)
    world.change("shift", "update", 222.0, schedule={"every_seconds": 50})
    for due in (272, 322, 372, 422, 472):
        world.runs("shift", due)
    world.waits("shift", 522)

    world.create("thrice", 20.0, {"every_seconds": 20, "max_runs": 3})
    for due in (40, 60, 80):
        world.runs("thrice", due)
    world.jobs["thrice"] = msgspec.structs.replace(world.jobs["thrice"], status="COMPLETED")


def one_time_jobs(world: World) -> None:
    world.create("once", 8.0, {"at": iso(50)}, priority="CRITICAL")
    world.runs("once", 50)

    fixed = {"backoff": "FIXED", "initial_delay_seconds": 5, "max_retries": 2}
    world.create("later", 7.49, {"delay_seconds": 30}, told=7.5, retry_policy=fixed)
    world.runs(
        "later",
        37.5,
        Try(37.55, 500, "http_500", mood="fails"),
        Try(42.7, 500, "http_500", mood="fails"),
        Try(47.9),
    )
    world.create("listed", 9.0, {"at": iso(20)}, retry_policy={"delays_seconds": [2, 4]})
    world.runs(
        "listed",
        20,
        Try(20.02, 500, "http_500", mood="fails"),
        Try(22.2, 200, "connection", mood="resets", whole=False),
        Try(26.4, 500, "retries_exhausted", mood="fails"),
        status="DEAD",
        reason="retries_exhausted",
    )

    # Two were with worker-2 when it was killed. One of them may be tried once only.
    world.create("doubled", 30.0, {"at": iso(99)}, tenant="globex")
    world.runs("doubled", 99, Try(99.02, 200, "lost", took=1.5, until=103.5), Try(104.0))
    world.create("careful", 31.0, {"at": iso(99.5)}, delivery="at_most_once")
    lost = Try(99.52, None, "lost", until=103.5)
    world.runs("careful", 99.5, lost, status="DEAD", reason="lost")

    world.create("regretted", 32.0, {"at": iso(450)})
    world.end("regretted", 450, "CANCELLED", 60.1, reason="cancelled", execution_id="exe_regretted")
    cancelled = {"status": "CANCELLED"}
    world.call("cancel", 60.0, 60.2, 200, execution_id="exe_regretted", answer=cancelled)

    # Brought forward by a day.
    world.create("hurried", 33.0, {"at": iso(86_400)})
    hurried = world.runs("hurried", 86_400, Try(160.3))
    world.call("run", 160.0, 160.2, 202, job_id="job_hurried", answer={"execution_ids": [hurried]})

    # Nobody ever answered, and it was created all the same.
    world.create("unsure", 34.0, {"at": iso(80)})
    world.calls[-1] = msgspec.structs.replace(
        world.calls[-1], answered_at=None, status=None, answer=None
    )
    world.runs("unsure", 80)


def over_http(world: World) -> None:
    """Tasks of two workers over HTTP; the second was cut off from the API at 140.1, while it had a run of `steady`."""
    world.create("steady", 22.0, {"every_seconds": 59}, queue="over-http")
    for due in (81, 199, 258, 317, 376, 435, 494):
        world.runs("steady", due, Try(due + 0.02, took=2.5, worker="http-1"))
    again = Try(142.6, took=2.5, worker="http-1")
    lost = Try(140.02, None, "lost", until=142.5, worker="http-2")
    world.runs("steady", 140, lost, again)
    world.waits("steady", 553)
    world.create("counted", 22.5, {"every_seconds": 60, "max_runs": 3}, "globex", queue="over-http")
    for due in (82, 142, 202):
        world.runs("counted", due, Try(due + 0.02, took=1.0, worker="http-1"))
    world.jobs["counted"] = msgspec.structs.replace(world.jobs["counted"], status="COMPLETED")


def herd(world: World) -> None:
    """Twenty of globex at 150, which take 5 s; others beside them."""
    for number in range(20):
        world.create(f"herd-{number}", 40.0, {"at": iso(150)}, tenant="globex")
        world.runs(f"herd-{number}", 150, Try(150.05 + number * 0.26))
    world.create("urgent", 41.0, {"at": iso(151)}, priority="CRITICAL")
    world.runs("urgent", 151, Try(151.05))
    world.create("neighbour", 42.0, {"at": iso(152)})
    world.runs("neighbour", 152, Try(152.3))
    world.create("patient", 43.0, {"at": iso(152)}, priority="LOW")
    world.runs("patient", 152, Try(155.5))


def count_jobs(world: World) -> None:
    """As the API would, at 460: `hurried` and all other one-time jobs have ended by then."""
    for tenant, jobs in COUNTS.items():
        world.call("count", 460.0, 460.3, 200, tenant=tenant, key=None, answer={"jobs": jobs})


def samples() -> Iterator[Sample]:
    names = ["api", *(f"scheduler-{n}" for n in (1, 2, 3)), *(f"worker-{n}" for n in (1, 2, 3, 4))]
    for at in range(0, 500, 5):
        for number, name in enumerate(names):
            restarted = name == "worker-2" and at >= 100
            yield Sample(
                at=BASE + at,
                process=name,
                pid=1000 + number + 100 * restarted,
                rss_kb=80_000 + at * 10,
                descriptors=30 + at % 7,
            )


def test_a_good_run_is_let_pass() -> None:
    assert check(good(), PROMISE) == []


# Changes to the good run. The name says what is the matter with the history afterwards.

Alteration = Callable[[History], Any]
BROKEN: list[tuple[str, Alteration]] = []
FINE: list[Alteration] = []


def breaks(invariant: str) -> Callable[[Alteration], Alteration]:
    def remember(change: Alteration) -> Alteration:
        BROKEN.append((invariant, change))
        return change

    return remember


def fine(change: Alteration) -> Alteration:
    FINE.append(change)
    return change


def alter(things: list[T], matches: Callable[[T], bool], **changes: Any) -> None:
    """Change some fields of all that match, of which there must be one at least."""
    places = [place for place, thing in enumerate(things) if matches(thing)]
    assert places
    for place in places:
        things[place] = msgspec.structs.replace(things[place], **changes)


def drop(things: list[T], matches: Callable[[T], bool]) -> T:
    dropped = [thing for thing in things if matches(thing)]
    assert dropped
    things[:] = [thing for thing in things if not matches(thing)]
    return dropped[0]


def of(name: str, due: float | None = None, origin: int = 0) -> Callable[[Any], bool]:
    """Whether a row, or a delivery, is of a job, and of one of its times."""

    def matches(thing: Any) -> bool:
        named = thing.job == name if isinstance(thing, Delivery) else thing.job_id == f"job_{name}"
        right = getattr(thing, "origin", origin) == origin
        return named and right and (due is None or abs(thing.scheduled_for - BASE - due) < 0.001)

    return matches


def calls(operation: str, name: str) -> Callable[[Call], bool]:
    def matches(call: Call) -> bool:
        about = call.document["name"] if operation == "create" else (call.job_id or "")[4:]
        return call.operation == operation and about == name

    return lambda call: call.operation == operation and matches(call)


def the(things: list[T], matches: Callable[[T], bool]) -> T:
    return next(thing for thing in things if matches(thing))


def deliver_again(history: History, name: str, due: float, after: float, **changes: Any) -> None:
    """The last delivery of an execution comes once more, later, and nobody records it."""
    last = [delivery for delivery in history.deliveries if of(name, due)(delivery)][-1]
    answered_at = None if last.answered_at is None else last.answered_at + after
    changes = {"at": last.at + after, "answered_at": answered_at} | changes
    history.deliveries.append(msgspec.structs.replace(last, **changes))


def alter_attempt(history: History, name: str, number: int, **changes: Any) -> None:
    ended = the(history.dump.ended, of(name))
    alter(ended.attempts, lambda attempt: attempt.attempt == number, **changes)


def move(history: History, name: str, due: float, started: float) -> None:
    """An execution with one attempt starts at another time."""
    ended = the(history.dump.ended, of(name, due))
    later = BASE + started - ended.attempts[0].started_at
    first = ended.attempts[0]
    attempt = msgspec.structs.replace(
        first,
        started_at=first.started_at + later,
        finished_at=first.finished_at + later,
    )
    alter(
        history.dump.ended,
        of(name, due),
        attempts=[attempt],
        started_at=attempt.started_at,
        recorded_at=ended.recorded_at + later,
    )
    for place, delivery in enumerate(history.deliveries):
        if of(name, due)(delivery):
            answered_at = None if delivery.answered_at is None else delivery.answered_at + later
            history.deliveries[place] = msgspec.structs.replace(
                delivery, at=delivery.at + later, answered_at=answered_at
            )


def outage(history: History) -> None:
    """The database is away for so long that an occurrence of `tick` is missed."""
    alter(
        history.faults, lambda f: f.victim == "postgres", began_at=BASE + 180, ended_at=BASE + 303
    )
    ended = drop(history.dump.ended, of("tick", 245))
    drop(history.deliveries, of("tick", 245))
    missed = msgspec.structs.replace(
        ended,
        status="SKIPPED",
        reason="misfire",
        attempts=[],
        started_at=None,
        recorded_at=BASE + 306,
        missed=1,
        missed_through=BASE + 245,
    )
    history.dump.ended.append(missed)


# I1


@breaks("I1")
def a_recurring_job_is_gone(history: History) -> None:
    drop(history.dump.jobs, lambda job: job.name == "tick")


@breaks("I1")
def a_one_time_job_is_gone(history: History) -> None:
    drop(history.dump.ended, of("once"))


@breaks("I1")
def an_occurrence_has_no_record(history: History) -> None:
    drop(history.dump.ended, of("tick", 185))
    drop(history.deliveries, of("tick", 185))


@breaks("I1")
def the_first_occurrence_after_an_update_is_gone(history: History) -> None:
    drop(history.dump.ended, of("shift", 272))
    drop(history.deliveries, of("shift", 272))


@breaks("I1")
def the_first_occurrence_after_a_resume_is_gone(history: History) -> None:
    drop(history.dump.ended, of("nap", 280))
    drop(history.deliveries, of("nap", 280))


@breaks("I1")
def what_was_due_at_a_pause_is_gone(history: History) -> None:
    drop(history.dump.ended, of("nap", 130))


@breaks("I1")
def a_success_never_arrived(history: History) -> None:
    drop(history.deliveries, of("once"))


@breaks("I1")
def a_success_was_refused_by_the_receiver(history: History) -> None:
    alter(history.deliveries, of("once"), status=500, mood="fails")


@breaks("I1")
def a_requested_run_is_gone(history: History) -> None:
    run = drop(history.dump.ended, of("tick", origin=1))
    drop(history.deliveries, lambda d: d.execution_id == run.execution_id)


@breaks("I1")
def an_acknowledged_pause_is_gone(history: History) -> None:
    drop(history.calls, calls("resume", "nap"))
    drop(history.calls, calls("delete", "nap"))
    for kind in (history.dump.ended, history.deliveries):
        drop(kind, lambda thing: of("nap")(thing) and thing.scheduled_for > BASE + 250)
    alter(history.dump.jobs, lambda job: job.name == "nap", status="SCHEDULED")


@breaks("I1")
def a_job_that_has_begun_all_its_runs_is_not_completed(history: History) -> None:
    alter(history.dump.jobs, lambda job: job.name == "thrice", status="SCHEDULED")


@breaks("I1")
def an_acknowledged_cancel_is_gone(history: History) -> None:
    drop(history.dump.ended, of("regretted"))
    world = World()
    world.documents["regretted"] = {"type": "ONE_TIME"}
    world.tenants["regretted"] = "acme"
    world.runs("regretted", 450)
    history.dump.ended.extend(world.ended)
    history.deliveries.extend(world.deliveries)


@breaks("I1")
def a_run_is_superseded_by_nothing(history: History) -> None:
    alter(history.dump.ended, of("tick", 185), status="SUPERSEDED", reason="updated")


@breaks("I1")
def a_run_is_superseded_by_a_change_before_it(history: History) -> None:
    alter(
        history.dump.ended,
        of("nap", 340),
        status="SUPERSEDED",
        reason="paused",
        recorded_at=BASE + 340,
        attempts=[],
        started_at=None,
    )
    drop(history.deliveries, of("nap", 340))


@breaks("I1")
def a_run_is_skipped_for_another_that_there_was_not(history: History) -> None:
    alter(history.dump.ended, of("alone", 435), status="SKIPPED", reason="overlap", attempts=[])
    alter(history.dump.ended, of("alone", 435), recorded_at=BASE + 500)
    alter(history.dump.ended, of("alone", 495), status="SKIPPED", reason="overlap", attempts=[])
    alter(history.dump.ended, of("alone", 495), recorded_at=BASE + 500)
    drop(history.dump.alive, of("alone"))


@breaks("I1")
def a_run_is_skipped_that_may_overlap(history: History) -> None:
    alter(history.dump.ended, of("tick", 185), status="SKIPPED", reason="overlap", attempts=[])


@breaks("I1")
def a_run_is_cancelled_that_nobody_cancelled(history: History) -> None:
    alter(history.dump.ended, of("tick", 185), status="CANCELLED", reason="cancelled")


@breaks("I1")
def a_run_is_missed_that_was_planned_in_time(history: History) -> None:
    outage(history)
    alter(history.dump.ended, of("tick", 245), recorded_at=BASE + 300)


@breaks("I1")
def a_run_is_given_up_as_lost_that_may_be_repeated(history: History) -> None:
    alter(
        history.calls, calls("create", "careful"), document=without(history, "careful", "delivery")
    )


@breaks("I1")
def a_dead_one_is_not_kept(history: History) -> None:
    history.dump.dead_letters.remove("exe_listed")


@breaks("I1")
def a_job_was_answered_as_another_one(history: History) -> None:
    answer = the(history.calls, calls("create", "even")).answer
    other = answer | {"schedule": {"cron": "*/3 * * * *"}}
    alter(history.calls, calls("create", "even"), answer=other)


def without(history: History, name: str, key: str) -> dict[str, Any]:
    document = dict(the(history.calls, calls("create", name)).document)
    del document[key]
    return document


@fine
def the_receiver_was_killed_before_it_wrote_down_its_answer(history: History) -> None:
    history.faults.append(
        Fault(kind="kill_receiver", victim="receiver", began_at=BASE + 50.1, ended_at=BASE + 50.4)
    )
    drop(history.deliveries, lambda d: of("once")(d) and d.status == 200)


@fine
def the_last_occurrence_is_not_yet_planned(history: History) -> None:
    """8 s before the dump: a failover may be under way."""
    drop(history.dump.ended, of("alone", 495))
    drop(history.deliveries, of("alone", 495))


def arrives_long_after_its_claim(history: History, claimed: float) -> None:
    """Two runs, every 5 s from 85 on; the second is due at 95 and arrives at 106. There is nothing about 100 and 105."""
    alter(history.faults, lambda f: f.kind == "kill_worker", began_at=BASE + 96)
    world = World()
    world.create("brisk", 85.0, {"every_seconds": 5, "max_runs": 2})
    world.runs("brisk", 90)
    world.runs("brisk", 95, Try(106.0), claimed_at=BASE + claimed)
    world.jobs["brisk"] = msgspec.structs.replace(world.jobs["brisk"], status="COMPLETED")
    add(history, world)
    recount(history, COMPLETED=11)


@fine
def a_job_is_at_its_end_when_its_last_run_is_claimed(history: History) -> None:
    arrives_long_after_its_claim(history, claimed=95.01)


@breaks("I1")
def a_job_is_at_its_end_before_its_last_run_is_claimed(history: History) -> None:
    arrives_long_after_its_claim(history, claimed=105.9)


@fine
def a_long_outage_makes_a_misfire(history: History) -> None:
    outage(history)


@fine
def an_occurrence_at_the_moment_of_a_pause_is_not_recorded(history: History) -> None:
    answer = the(history.calls, calls("pause", "nap")).answer | {"updated_at": iso(130.04)}
    alter(history.calls, calls("pause", "nap"), answer=answer, asked_at=BASE + 130.0)
    drop(history.dump.ended, of("nap", 130))


@fine
def after_a_change_in_doubt_nothing_is_demanded(history: History) -> None:
    alter(history.calls, calls("pause", "nap"), status=None, answered_at=None, answer=None)
    drop(history.calls, calls("resume", "nap"))
    drop(history.dump.ended, of("nap", 280))
    drop(history.deliveries, of("nap", 280))


@fine
def a_refused_change_changes_nothing(history: History) -> None:
    history.calls.append(
        msgspec.structs.replace(
            the(history.calls, calls("pause", "nap")),
            job_id="job_tick",
            key="refused",
            status=409,
            answer={},
        )
    )


# I2


@breaks("I2")
def an_occurrence_has_two_rows(history: History) -> None:
    row = the(history.dump.ended, of("tick", 185))
    history.dump.ended.append(msgspec.structs.replace(row, execution_id="exe_other"))


@breaks("I2")
def an_occurrence_has_ended_and_waits(history: History) -> None:
    alter(history.dump.alive, of("tick", 545), scheduled_for=BASE + 485)


@breaks("I2")
def a_one_time_job_has_two_executions(history: History) -> None:
    row = the(history.dump.ended, of("once"))
    other = msgspec.structs.replace(row, execution_id="exe_other", scheduled_for=BASE + 51)
    history.dump.ended.append(other)


@breaks("I2")
def an_occurrence_has_run_and_is_missed(history: History) -> None:
    outage(history)
    alter(
        history.dump.ended,
        lambda row: row.missed is not None,
        scheduled_for=BASE + 185,
        missed=2,
    )


@breaks("I2")
def missed_stretches_overlap(history: History) -> None:
    outage(history)
    row = the(history.dump.ended, of("tick", 245))
    history.dump.ended.append(msgspec.structs.replace(row, execution_id="exe_other"))


@fine
def what_was_superseded_comes_again(history: History) -> None:
    """The new version of a job has an occurrence that was queued under the old one."""
    row = the(history.dump.ended, of("shift", 272))
    superseded = msgspec.structs.replace(
        row, execution_id="exe_other", status="SUPERSEDED", reason="updated", attempts=[]
    )
    history.dump.ended.append(superseded)


# I3


@breaks("I3")
def a_run_is_later_than_a_failover(history: History) -> None:
    move(history, "tick", 425, 433.1)


@breaks("I3")
def a_run_is_later_than_what_was_broken(history: History) -> None:
    """The database was away for 3 s from 300 on."""
    move(history, "tick", 305, 316.2)


@breaks("I3")
def calm_runs_are_late(history: History) -> None:
    move(history, "tick", 425, 426.1)


@breaks("I3")
def a_misfire_without_an_outage(history: History) -> None:
    outage(history)
    alter(history.faults, lambda f: f.victim == "postgres", began_at=BASE + 300)


@fine
def a_run_is_late_by_a_failover_after_a_fault(history: History) -> None:
    move(history, "nap", 100, 107.9)


def away(history: History, since: float, until: float) -> None:
    """The database, from and to these moments instead of from 300 to 303."""
    times = {"began_at": BASE + since, "ended_at": BASE + until}
    alter(history.faults, lambda f: f.victim == "postgres", **times)


@fine
def a_run_is_late_by_an_outage(history: History) -> None:
    """The database is away for 6 s of its wait."""
    away(history, 240, 251)
    move(history, "tick", 245, 258.9)


@breaks("I3")
def a_run_is_later_than_an_outage(history: History) -> None:
    away(history, 240, 251)
    move(history, "tick", 245, 259.1)


@breaks("I3")
def a_run_is_later_than_any_outage_excuses(history: History) -> None:
    away(history, 240, 303)
    move(history, "tick", 245, 260.1)


@breaks("I3")
def a_run_waits_for_one_short_fault_after_the_other(history: History) -> None:
    """Each lasts for a second, and there are five between them."""
    for at in range(245, 275, 6):
        history.faults.append(
            Fault(kind="kill", victim="worker-1", began_at=BASE + at, ended_at=BASE + at + 1)
        )
    move(history, "tick", 245, 254.1)


def resets(history: History) -> None:
    """The client's link is reset again and again, which is no excuse for anybody behind it."""
    for number in range(48):
        at = BASE + 20 + 5.9 * number
        history.faults.append(Fault(kind="reset", victim="client→api-1", began_at=at, ended_at=at))


@breaks("I3")
def a_run_is_late_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    move(history, "even", 120, 290)


@breaks("I13")
def a_tenant_waits_beside_a_herd_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    move(history, "neighbour", 152, 255)


@breaks("I16")
def what_is_critical_waits_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    move(history, "urgent", 151, 255)


@breaks("I3")
def one_of_many_calm_runs_is_late(history: History) -> None:
    """Too few to move the 99th percentile."""
    world = World()
    for number in range(200):
        world.create(f"many-{number}", 320.0, {"at": iso(330)}, tenant="initech")
        world.runs(f"many-{number}", 330)
    world.call("count", 461.0, 461.1, 200, tenant="initech", answer={"jobs": {"COMPLETED": 200}})
    add(history, world)
    move(history, "many-7", 330, 332.1)


@breaks("I3")
def what_was_due_has_not_started(history: History) -> None:
    wait_in(history, "ready", 480.0)


@breaks("I3")
def nothing_that_was_due_after_healing_has_started(history: History) -> None:
    alter(history.phases, lambda phase: phase.name == "healed", at=BASE + 440.6)
    for name, due in (("tick", 485), ("even", 480), ("shift", 472)):
        leave(history, name, due, "ready")


def leave(history: History, name: str, due: float, place: str) -> Ended:
    """What ended is still somewhere, and never arrived."""
    ended = drop(history.dump.ended, of(name, due))
    gone = lambda d: d.execution_id == ended.execution_id  # noqa: E731
    drop(history.deliveries, gone)
    world = World()
    world.waits(name, due, place, execution_id=ended.execution_id)
    history.dump.alive.extend(world.alive)
    return ended


@fine
def what_has_just_fallen_due_has_not_started(history: History) -> None:
    world = World()
    world.create("last", 35.0, {"at": iso(500.1)})
    world.waits("last", 500.1, "ready")
    add(history, world)
    recount(history, SCHEDULED=4)


@fine
def a_calm_run_is_nearly_late(history: History) -> None:
    move(history, "tick", 425, 425.99)


@fine
def a_run_is_counted_from_when_its_job_was_known(history: History) -> None:
    """Its creation took effect at 9.01, and was answered at 23: until then nothing is owed."""
    alter(history.calls, calls("create", "once"), answered_at=BASE + 61.0)
    move(history, "once", 50, 61.5)


@fine
def a_retry_is_not_late(history: History) -> None:
    """Its delays are long; only its first attempt counts."""
    document = the(history.calls, calls("create", "later")).document
    slow = document | {"retry_policy": document["retry_policy"] | {"initial_delay_seconds": 5}}
    alter(history.calls, calls("create", "later"), document=slow)


@fine
def what_may_not_overlap_is_not_late(history: History) -> None:
    move(history, "alone", 435, 455)


def run_late(history: History, name: str, due: float, victim: str) -> None:
    """An execution is 6 s late, and something was broken just then."""
    move(history, name, due, due + 6)
    broken = Fault(
        kind="refuse", victim=victim, began_at=BASE + due - 0.5, ended_at=BASE + due + 0.5
    )
    history.faults.append(broken)
    alter(history.phases, lambda phase: phase.name == "healed", at=broken.ended_at)
    alter(history.phases, lambda phase: phase.name == "quiet", at=broken.ended_at)


@breaks("I3")
def a_task_is_late_and_only_the_receiver_is_broken(history: History) -> None:
    run_late(history, "steady", 435, "workers→receiver")


@breaks("I3")
def a_task_is_late_and_only_a_worker_is_broken(history: History) -> None:
    run_late(history, "steady", 435, "worker-1→postgres")


@breaks("I3")
def a_webhook_is_late_and_only_the_api_is_broken(history: History) -> None:
    run_late(history, "tick", 425, "api-1→postgres")


@breaks("I3")
def a_webhook_is_late_and_only_a_worker_over_http_is_broken(history: History) -> None:
    run_late(history, "tick", 425, "http-1→api-1")


@fine
def a_task_is_late_because_of_the_api(history: History) -> None:
    run_late(history, "steady", 435, "api-1→postgres")


# I4


@breaks("I4")
def a_delivery_is_early(history: History) -> None:
    move(history, "tick", 425, 424.94)


@breaks("I4")
def a_start_is_early_in_the_ledger(history: History) -> None:
    alter(history.dump.ended, of("tick", 425), started_at=BASE + 424.9)


@breaks("I4")
def a_job_is_run_before_its_time_before_somebody_asks(history: History) -> None:
    move(history, "hurried", 86_400, 159.9)


@fine
def a_delivery_is_hardly_early(history: History) -> None:
    move(history, "tick", 425, 424.96)


# I5


@breaks("I5")
def two_attempts_at_once(history: History) -> None:
    alter_attempt(history, "later", 1, finished_at=BASE + 42.9)


@breaks("I5")
def two_attempts_under_one_fence(history: History) -> None:
    fence = the(history.dump.ended, of("later")).attempts[1].fence
    alter_attempt(history, "later", 1, fence=fence)


@breaks("I5")
def two_leases_around_a_fault(history: History) -> None:
    alter_attempt(history, "doubled", 1, finished_at=BASE + 104.2)


@breaks("I5")
def a_lease_is_over_before_it_can_be(history: History) -> None:
    """Its worker was killed at 100, and had renewed it a second before, at the earliest."""
    move_attempt(history, "doubled", 2, 100.2)
    alter_attempt(history, "doubled", 1, finished_at=BASE + 100.19)


def move_attempt(history: History, name: str, number: int, at: float) -> None:
    """One attempt of several reaches the receiver at another time, and is recorded so."""
    ended = the(history.dump.ended, of(name))
    attempt = the(ended.attempts, lambda a: a.attempt == number)
    by = BASE + at - attempt.started_at
    times = {"started_at": attempt.started_at + by, "finished_at": attempt.finished_at + by}
    alter_attempt(history, name, number, **times)
    for place, delivery in enumerate(history.deliveries):
        if of(name)(delivery) and delivery.attempt == number:
            answered_at = None if delivery.answered_at is None else delivery.answered_at + by
            history.deliveries[place] = msgspec.structs.replace(
                delivery, at=delivery.at + by, answered_at=answered_at
            )


@fine
def a_lease_is_over_as_soon_as_it_can_be(history: History) -> None:
    move_attempt(history, "doubled", 2, 102.1)
    alter_attempt(history, "doubled", 1, finished_at=BASE + 102.0)


@fine
def a_claim_is_dated_a_moment_before_the_reaping(history: History) -> None:
    alter_attempt(history, "doubled", 1, finished_at=BASE + 104.09)


# I6


@breaks("I6")
def a_fence_falls(history: History) -> None:
    fences = [attempt.fence for attempt in the(history.dump.ended, of("later")).attempts]
    alter_attempt(history, "later", 2, fence=fences[0] - 1)


@breaks("I6")
def a_lower_fence_comes_later_though_nothing_is_broken(history: History) -> None:
    first = the(history.deliveries, of("later"))
    stale = msgspec.structs.replace(first, at=BASE + 44, answered_at=BASE + 44.1, status=500)
    history.deliveries.append(stale)


@breaks("I6")
def the_outcome_is_that_of_a_stale_fence(history: History) -> None:
    """The one that was delivered last failed, and is recorded as a success."""
    last = the(history.dump.ended, of("doubled")).attempts[1].fence
    alter(history.deliveries, lambda d: of("doubled")(d) and d.fence == last, status=500)


@breaks("I6")
def a_higher_fence_was_delivered_than_recorded(history: History) -> None:
    deliver_again(history, "once", 50, 0.5, fence=micros(BASE + 51), attempt=2)


@fine
def a_stale_worker_delivers_around_a_fault(history: History) -> None:
    """It stood from 100 to 104."""
    of_worker = lambda f: f.victim == "worker-2"  # noqa: E731
    alter(history.faults, of_worker, kind="stop_worker", ended_at=BASE + 104)
    deliver_stale(history, 104.2)


@breaks("I6")
def a_stale_fence_is_delivered_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    deliver_stale(history, 280)


def deliver_stale(history: History, at: float) -> None:
    """The first attempt of `doubled` arrives only now."""
    first = drop(history.deliveries, lambda d: of("doubled")(d) and d.attempt == 1)
    times = {"at": BASE + at, "answered_at": BASE + at + 0.1}
    history.deliveries.append(msgspec.structs.replace(first, status=200, **times))


# I7


@breaks("I7")
def a_running_execution_is_handed_out_again(history: History) -> None:
    """To the worker over HTTP that runs it, beside the counted run that it claims."""
    deliver_again(history, "steady", 81, 1.0)


@breaks("I7")
def an_http_worker_loses_its_lease_while_another_one_is_broken(history: History) -> None:
    alter(history.faults, lambda f: f.victim == "http-2→api-1", victim="http-1→api-1")


@breaks("I7")
def an_http_worker_loses_its_lease_while_the_others_are_broken(history: History) -> None:
    alter(
        history.faults,
        lambda f: f.victim == "http-2→api-1",
        kind="terminate_backends",
        victim="postgres",
        detail={"whose": "worker-%"},
    )


@fine
def an_http_worker_loses_its_lease_with_the_api(history: History) -> None:
    alter(history.faults, lambda f: f.victim == "http-2→api-1", kind="kill", victim="api-1")


@breaks("I7")
def a_success_is_delivered_again(history: History) -> None:
    deliver_again(history, "once", 50, 2.0, fence=micros(BASE + 52), attempt=2)


@breaks("I7")
def an_attempt_is_delivered_twice(history: History) -> None:
    deliver_again(history, "once", 50, 0.5)


@breaks("I7")
def duplicates_in_a_run_without_faults(history: History) -> None:
    history.faults.clear()


@breaks("I7")
def a_duplicate_long_after_a_fault(history: History) -> None:
    """The worker that was killed at 100 is back at 101, and well at 103."""
    move_doubled(history, 103.1)


@fine
def a_duplicate_in_the_aftermath_of_a_fault(history: History) -> None:
    move_doubled(history, 102.9)


def move_doubled(history: History, at: float) -> None:
    """First delivered at this time, and again 4 s later."""
    by = at - 99.02
    alter(history.calls, calls("create", "doubled"), **moved_create(history, "doubled", 99 + by))
    row = the(history.dump.ended, of("doubled"))
    attempts = [
        msgspec.structs.replace(
            attempt,
            started_at=attempt.started_at + by,
            finished_at=attempt.finished_at + by,
            fence=attempt.fence + micros(by),
        )
        for attempt in row.attempts
    ]
    for place, delivery in enumerate(history.deliveries):
        if of("doubled")(delivery):
            answered_at = None if delivery.answered_at is None else delivery.answered_at + by
            history.deliveries[place] = msgspec.structs.replace(
                delivery,
                at=delivery.at + by,
                answered_at=answered_at,
                fence=delivery.fence + micros(by),
                scheduled_for=delivery.scheduled_for + by,
            )
    alter(
        history.dump.ended,
        of("doubled"),
        attempts=attempts,
        started_at=attempts[0].started_at,
        scheduled_for=row.scheduled_for + by,
        recorded_at=row.recorded_at + by,
    )


def moved_create(history: History, name: str, due: float) -> dict[str, Any]:
    call = the(history.calls, calls("create", name))
    schedule = {"at": iso(due)}
    return {
        "document": call.document | {"schedule": schedule},
        "answer": call.answer | {"schedule": schedule},
    }


@breaks("I7")
def more_duplicates_than_rows_in_flight(history: History) -> None:
    """Worker-2 has 10 slots, and what it was killed with is delivered eleven times more."""
    for number in range(10):
        deliver_again(history, "doubled", 99, 0.1 * (number + 1), attempt=2)


@breaks("I7")
def every_delivery_comes_twice_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    for delivery in list(history.deliveries):
        if delivery.status == 200 and BASE + 25 < delivery.at < BASE + 300:
            times = {"at": delivery.at + 0.5, "answered_at": (delivery.answered_at or 0.0) + 0.5}
            history.deliveries.append(msgspec.structs.replace(delivery, **times))


@breaks("I7")
def an_attempt_is_delivered_twice_around_a_fault(history: History) -> None:
    """Nobody claims twice under one fence."""
    deliver_again(history, "doubled", 99, 0.5)


@breaks("I7")
def a_lease_is_lost_while_schedulers_die(history: History) -> None:
    """Of those that stopped at 200, none ran anything."""
    lose(history, "tick", 185, 204)


@breaks("I7")
def a_lease_is_lost_by_a_worker_that_was_not_hit(history: History) -> None:
    """It was worker-2 that was killed."""
    alter_attempt(history, "doubled", 1, worker="worker-1")


@fine
def a_lease_is_lost_by_the_worker_that_was_hit(history: History) -> None:
    alter_attempt(history, "doubled", 1, worker="worker-2")


@breaks("I7")
def a_lease_is_lost_by_a_worker_that_was_well_again(history: History) -> None:
    """The database was back at 303, and this was claimed at 305.8."""
    lose(history, "tick", 305, 311)


@breaks("I7")
def more_leases_are_lost_than_a_worker_has_slots(history: History) -> None:
    many_lost(history, 9)


@fine
def as_many_leases_are_lost_as_a_worker_has_slots(history: History) -> None:
    """Ten: these, and two that are there already."""
    many_lost(history, 8)


def lose(history: History, name: str, due: float, until: float) -> None:
    """The first attempt is lost at this time, and a second one is well."""
    first = the(history.dump.ended, of(name, due)).attempts[0]
    world = World()
    world.documents[name], world.tenants[name] = {"type": "ONE_TIME"}, "acme"
    began = first.started_at + 0.005 - BASE
    world.runs(name, due, Try(began, 200, "lost", until=until), Try(until + 0.1))
    drop(history.deliveries, of(name, due))
    again = world.ended[0]
    execution_id = the(history.dump.ended, of(name, due)).execution_id
    alter(history.dump.ended, of(name, due), attempts=again.attempts, recorded_at=again.recorded_at)
    for delivery in world.deliveries:
        history.deliveries.append(msgspec.structs.replace(delivery, execution_id=execution_id))


def many_lost(history: History, number: int) -> None:
    """With worker-2, when it was killed."""
    world = World()
    for each in range(number):
        world.create(f"held-{each}", 35.0, {"at": iso(99.5)})
        lost = Try(99.6, None, "lost", until=103.5)
        world.runs(f"held-{each}", 99.5, lost, Try(104.0))
    add(history, world)
    recount(history, COMPLETED=COUNTS["acme"]["COMPLETED"] + number)


@breaks("I7")
def a_lease_is_lost_and_nothing_was_broken(history: History) -> None:
    alter_attempt(history, "later", 1, reason="lost")


@breaks("I7")
def at_most_once_is_twice(history: History) -> None:
    deliver_again(history, "careful", 99.5, 4.0, fence=micros(BASE + 103), attempt=2)


@fine
def what_failed_by_itself_is_tried_again(history: History) -> None:
    """`listed` has an answer that broke off; here, the whole of it came too late."""
    trickled = lambda d: of("listed")(d) and d.status == 200  # noqa: E731
    alter(history.deliveries, trickled, mood="trickles", answered_at=BASE + 23.3)
    alter_attempt(history, "listed", 2, reason="timeout")


def retried_and_alive(
    history: History, again: float, *, reason: str | None, mood: str = "well"
) -> None:
    """Answered 200 at 465, delivered again at this time, and not ended by the end."""
    world = World()
    world.create("retried", 460.0, {"at": iso(465)})
    world.runs("retried", 465, Try(465.02, reason=reason, mood=mood, until=468.1), Try(again, None))
    (ended,) = world.ended
    world.ended.clear()
    attempts = ended.attempts[:1] if reason else []
    world.waits(
        "retried",
        465,
        "leased",
        execution_id=ended.execution_id,
        run_at=BASE + again,
        attempts=attempts,
    )
    add(history, world)
    recount(history, SCHEDULED=COUNTS["acme"]["SCHEDULED"] + 1)


@fine
def what_failed_is_tried_again_and_has_not_ended(history: History) -> None:
    retried_and_alive(history, 495.6, reason="timeout", mood="trickles")


@breaks("I7")
def what_did_not_fail_is_tried_again_and_has_not_ended(history: History) -> None:
    retried_and_alive(history, 495.6, reason=None)


@fine
def what_is_delivered_after_the_dump_is_not_in_it(history: History) -> None:
    """The dump is of 500.5."""
    retried_and_alive(history, 500.6, reason=None)


@breaks("I8")
def an_answered_attempt_of_what_has_not_ended_is_recorded_as_failed(history: History) -> None:
    retried_and_alive(history, 495.6, reason="timeout")


# I8


@breaks("I8")
def an_attempt_is_left_out(history: History) -> None:
    ended = the(history.dump.ended, of("later"))
    drop(ended.attempts, lambda attempt: attempt.attempt == 2)


@breaks("I8")
def a_delivered_attempt_is_not_in_the_ledger(history: History) -> None:
    ended = the(history.dump.ended, of("later"))
    drop(ended.attempts, lambda attempt: attempt.attempt == 1)
    alter(ended.attempts, lambda attempt: attempt.attempt == 2, attempt=1)
    alter(ended.attempts, lambda attempt: attempt.attempt == 3, attempt=2)


@breaks("I8")
def the_attempt_that_the_deadline_ended_is_left_out(history: History) -> None:
    say(history, "listed", deadline_seconds=8)
    alter(history.dump.ended, of("listed"), reason="deadline")
    ended = the(history.dump.ended, of("listed"))
    alter(history.dump.ended, of("listed"), counted=len(ended.attempts) + 1)


@breaks("I5")
def the_attempt_that_the_deadline_ended_began_with_the_one_before(history: History) -> None:
    say(history, "listed", deadline_seconds=8)
    alter(history.dump.ended, of("listed"), reason="deadline")
    ended = the(history.dump.ended, of("listed"))
    first, last = ended.attempts[0], ended.attempts[-1]
    alter_attempt(history, "listed", last.attempt, started_at=first.started_at)


@breaks("I8")
def one_attempt_too_many(history: History) -> None:
    document = the(history.calls, calls("create", "later")).document
    fewer = document | {"retry_policy": document["retry_policy"] | {"max_retries": 1}}
    alter(history.calls, calls("create", "later"), document=fewer)


@breaks("I8")
def given_up_too_early(history: History) -> None:
    document = the(history.calls, calls("create", "listed")).document
    more = document | {"retry_policy": {"delays_seconds": [2, 4, 8]}}
    alter(history.calls, calls("create", "listed"), document=more)


@breaks("I8")
def a_retry_comes_too_soon(history: History) -> None:
    alter_attempt(history, "later", 1, finished_at=BASE + 37.9)


@breaks("I8")
def a_retry_comes_too_late(history: History) -> None:
    alter_attempt(history, "listed", 3, started_at=BASE + 34.3, finished_at=BASE + 34.5)


@breaks("I8")
def an_answered_attempt_is_recorded_as_failed(history: History) -> None:
    second = the(history.dump.ended, of("listed")).attempts[1].fence
    whole = lambda d: of("listed")(d) and d.fence == second and d.status == 200  # noqa: E731
    alter(history.deliveries, whole, mood="well", answered_at=BASE + 22.25)


@breaks("I8")
def a_retry_comes_too_soon_beside_a_fault(history: History) -> None:
    history.faults.append(
        Fault(kind="kill", victim="worker-1", began_at=BASE + 36, ended_at=BASE + 37)
    )
    alter_attempt(history, "later", 1, finished_at=BASE + 37.9)


@breaks("I8")
def an_answered_attempt_is_recorded_as_failed_while_the_clients_link_is_reset(
    history: History,
) -> None:
    resets(history)
    an_answered_attempt_is_recorded_as_failed(history)


@fine
def an_answer_was_not_heard(history: History) -> None:
    link = "workers→receiver"
    history.faults.append(
        Fault(kind="one_way", victim=link, began_at=BASE + 22, ended_at=BASE + 23)
    )
    an_answered_attempt_is_recorded_as_failed(history)


@fine
def an_answer_was_not_heard_by_a_worker_whose_clock_is_behind(history: History) -> None:
    """Its link was reset a little after the end of the attempt by its own clock."""
    link = "workers→receiver"
    an_answered_attempt_is_recorded_as_failed(history)
    at = the(history.dump.ended, of("listed")).attempts[1].finished_at + 0.05
    history.faults.append(Fault(kind="reset", victim=link, began_at=at, ended_at=at))


@fine
def lost_attempts_use_up_retries(history: History) -> None:
    """Two were lost, the third failed, and two retries were promised: there is none left."""
    for at in (20.5, 26.5):
        history.faults.append(
            Fault(kind="kill", victim="worker-1", began_at=BASE + at, ended_at=BASE + at + 1)
        )
    drop(history.dump.ended, of("listed"))
    drop(history.deliveries, of("listed"))
    world = World()
    world.documents["listed"], world.tenants["listed"] = {"type": "ONE_TIME"}, "acme"
    world.runs(
        "listed",
        20,
        Try(20.02, None, "lost", until=24.0),
        Try(24.2, None, "lost", until=30.0),
        Try(30.1, 500, "retries_exhausted", mood="fails"),
        status="DEAD",
        reason="retries_exhausted",
    )
    add(history, world)


@fine
def a_retry_comes_just_in_time(history: History) -> None:
    """0.1 s of the 5 s may be missing."""
    alter_attempt(history, "later", 1, finished_at=BASE + 37.78)


@fine
def jitter_halves_a_delay(history: History) -> None:
    document = the(history.calls, calls("create", "later")).document
    jitter = {"backoff": "EXPONENTIAL_WITH_JITTER", "initial_delay_seconds": 10, "max_retries": 2}
    jitter["max_delay_seconds"] = 10
    alter(history.calls, calls("create", "later"), document=document | {"retry_policy": jitter})


@fine
def a_target_asks_for_patience(history: History) -> None:
    """By a Retry-After, up to what the policy allows."""
    flaky = lambda d: of("later")(d) and d.status == 500  # noqa: E731
    alter(history.deliveries, flaky, status=503, mood="flaky")
    document = the(history.calls, calls("create", "later")).document
    patient = {"backoff": "FIXED", "initial_delay_seconds": 1, "max_retries": 2}
    patient["max_delay_seconds"] = 5
    alter(history.calls, calls("create", "later"), document=document | {"retry_policy": patient})


@fine
def a_lost_attempt_is_not_counted(history: History) -> None:
    document = the(history.calls, calls("create", "doubled")).document
    never = document | {"retry_policy": {"max_retries": 0}}
    alter(history.calls, calls("create", "doubled"), document=never)


# I9


@breaks("I9")
def a_run_begins_in_a_pause(history: History) -> None:
    """Due before the pause, which was answered at 130.25."""
    ran(history, "nap", 130, 131.3)


@breaks("I9")
def a_run_begins_after_the_delete(history: History) -> None:
    move(history, "nap", 370, 400.3)


@breaks("I9")
def a_cancelled_run_begins(history: History) -> None:
    world = World()
    world.documents["regretted"] = {"type": "ONE_TIME"}
    world.tenants["regretted"] = "acme"
    world.runs("regretted", 450)
    history.deliveries.extend(world.deliveries)


def ran(history: History, name: str, due: float, at: float) -> None:
    """What the ledger has without a run did run."""
    row = the(history.dump.ended, of(name, due))
    fence = micros(BASE + at)
    attempt = Attempt(
        attempt=1, fence=fence, started_at=BASE + at, finished_at=BASE + at + 0.1, reason=None
    )
    alter(
        history.dump.ended,
        of(name, due),
        status="SUCCEEDED",
        reason=None,
        attempts=[attempt],
        started_at=BASE + at,
        recorded_at=BASE + at + 0.1,
    )
    history.deliveries.append(
        Delivery(
            at=BASE + at,
            execution_id=row.execution_id,
            job=name,
            fence=fence,
            attempt=1,
            scheduled_for=BASE + due,
            mood="well",
            answered_at=BASE + at + 0.1,
            status=200,
        )
    )


@breaks("I9")
def a_run_begins_long_after_a_pause_while_the_clients_link_is_reset(history: History) -> None:
    resets(history)
    move(history, "nap", 100, 235)


@breaks("I9")
def a_run_begins_longer_after_a_pause_than_a_worker_can_hold_it(history: History) -> None:
    history.faults.append(
        Fault(kind="stop_worker", victim="worker-1", began_at=BASE + 130, ended_at=BASE + 142)
    )
    ran(history, "nap", 130, 141)


@fine
def a_run_was_claimed_just_before_the_pause(history: History) -> None:
    ran(history, "nap", 130, 130.95)


@fine
def a_stopped_worker_goes_on_with_what_it_had_claimed_before_the_pause(history: History) -> None:
    history.faults.append(
        Fault(kind="stop_worker", victim="worker-1", began_at=BASE + 130.1, ended_at=BASE + 131.6)
    )
    ran(history, "nap", 130, 131.7)


# I10


@breaks("I10")
def an_execution_is_nowhere(history: History) -> None:
    alter(history.dump.alive, of("tick", 545), place="nowhere")


@breaks("I10")
def an_execution_is_still_ready(history: History) -> None:
    wait_in(history, "ready", 439.0)


@breaks("I10")
def an_execution_is_still_leased(history: History) -> None:
    """Its timeout is 30 s, and healing was at 310."""
    document = the(history.calls, calls("create", "even")).document | {"timeout_seconds": 30}
    alter(history.calls, calls("create", "even"), document=document)
    wait_in(history, "leased", 120.0)


@breaks("I10")
def an_execution_waits_for_nobody(history: History) -> None:
    wait_in(history, "parked", 430.0)


@breaks("I10")
def an_execution_is_held_and_nothing_is_paused(history: History) -> None:
    wait_in(history, "held", 439.0)


@breaks("I10")
def an_execution_ended_twice(history: History) -> None:
    row = the(history.dump.ended, of("once"))
    history.dump.ended.append(msgspec.structs.replace(row, status="DEAD", reason="deadline"))


@breaks("I10")
def an_execution_ended_and_is_alive(history: History) -> None:
    row = the(history.dump.ended, of("tick", 485))
    alter(history.dump.alive, of("tick", 545), execution_id=row.execution_id)


@breaks("I10")
def an_execution_goes_on_after_its_end(history: History) -> None:
    alter(history.dump.ended, of("tick", 425), recorded_at=BASE + 424)


def wait_in(history: History, place: str, run_at: float) -> None:
    """The last run of `even`, due at 480, has not ended."""
    drop(history.dump.ended, of("even", 480))
    drop(history.deliveries, of("even", 480))
    world = World()
    world.waits("even", 480, place, run_at=BASE + run_at)
    history.dump.alive.extend(world.alive)


@breaks("I10")
def a_dead_worker_keeps_what_it_had(history: History) -> None:
    """Since 100; even its timeout of 300 s is over, and its lease was over long before."""
    keep_leased(history)


@breaks("I10")
def a_dead_worker_keeps_what_it_had_though_all_is_healed(history: History) -> None:
    alter(history.phases, lambda phase: phase.name == "healed", at=BASE + 440.2)
    say(history, "doubled", timeout_seconds=5)
    keep_leased(history)


def keep_leased(history: History) -> None:
    """`doubled` was with worker-2 when it was killed, and nobody has reaped it."""
    first = [d for d in history.deliveries if of("doubled")(d) and d.attempt == 1]
    leave(history, "doubled", 99, "leased")
    alter(history.dump.alive, of("doubled"), execution_id="exe_doubled")
    history.deliveries.extend(first)
    recount(history, tenant="globex", SCHEDULED=3, COMPLETED=20)


def leased_until(history: History, until: float) -> None:
    """Its timeout is 300 s; its worker was heard of for the last time a lease before this."""
    an_execution_with_patience_may_still_be_leased(history)
    alter(history.dump.alive, of("even", 480), lease_until=BASE + until)


@breaks("I10")
def nobody_reaps_a_lease_that_has_run_out(history: History) -> None:
    leased_until(history, 492)


@fine
def a_lease_has_just_run_out(history: History) -> None:
    leased_until(history, 493)


@breaks("I10")
def an_execution_waits_for_one_whose_time_has_not_come(history: History) -> None:
    """The next one of `alone` is planned for 555."""
    leave(history, "alone", 195, "parked")


@fine
def an_execution_that_may_have_to_wait_may_still_be_ready(history: History) -> None:
    leave(history, "alone", 495, "ready")
    alter(history.dump.alive, of("alone", 495), run_at=BASE + 441)


@fine
def an_execution_with_patience_may_still_be_leased(history: History) -> None:
    """Its timeout is 300 s."""
    last = the(history.deliveries, of("even", 480))
    wait_in(history, "leased", 480.0)
    execution_id = the(history.dump.alive, of("even", 480)).execution_id
    history.deliveries.append(msgspec.structs.replace(last, execution_id=execution_id))


@breaks("I10")
def an_execution_goes_on_long_after_its_end(history: History) -> None:
    resets(history)
    deliver_again(history, "once", 50, 100.0)


# I11


@breaks("I11")
def a_run_at_a_time_that_the_rule_does_not_have(history: History) -> None:
    alter(history.dump.ended, of("tick", 185), scheduled_for=BASE + 186)
    alter(history.deliveries, of("tick", 185), scheduled_for=BASE + 186)


@breaks("I11")
def a_run_in_a_pause(history: History) -> None:
    row = the(history.dump.ended, of("nap", 130))
    other = msgspec.structs.replace(row, execution_id="exe_other", scheduled_for=BASE + 220)
    history.dump.ended.append(other)


@breaks("I11")
def a_run_that_nobody_asked_for(history: History) -> None:
    drop(history.calls, lambda call: call.operation == "run" and call.job_id == "job_tick")


@breaks("I11")
def a_job_that_nobody_asked_for(history: History) -> None:
    drop(history.calls, calls("create", "unsure"))


@breaks("I11")
def a_delivery_of_an_execution_that_does_not_exist(history: History) -> None:
    first = the(history.deliveries, of("once"))
    history.deliveries.append(msgspec.structs.replace(first, execution_id="exe_other"))


@fine
def an_execution_that_was_planned_while_the_dump_was_read_arrives(history: History) -> None:
    last = the(history.deliveries, of("tick", 185))
    due = BASE + 545
    arrived = msgspec.structs.replace(
        last, execution_id="exe_other", at=due, answered_at=due + 0.1, scheduled_for=due
    )
    history.deliveries.append(arrived)


@breaks("I11")
def a_delivery_under_another_name(history: History) -> None:
    alter(history.deliveries, of("once"), job="even")


@breaks("I11")
def a_delivery_for_another_time(history: History) -> None:
    alter(history.deliveries, of("once"), scheduled_for=BASE + 49)


@breaks("I11")
def a_missed_stretch_counts_wrong(history: History) -> None:
    outage(history)
    alter(history.dump.ended, lambda row: row.missed is not None, missed=2)


@breaks("I11")
def one_run_more_than_the_job_may_have(history: History) -> None:
    world = World()
    world.documents["thrice"] = {"type": "RECURRING"}
    world.tenants["thrice"] = "acme"
    world.runs("thrice", 100)
    history.deliveries.extend(world.deliveries)
    history.dump.ended.extend(world.ended)


@breaks("I11")
def a_node_dates_a_job_by_its_own_clock(history: History) -> None:
    """30 s ahead."""
    answer = the(history.calls, calls("create", "once")).answer | {"created_at": iso(38)}
    alter(history.calls, calls("create", "once"), answer=answer)


@breaks("I11")
def a_delay_is_counted_by_another_clock(history: History) -> None:
    answer = the(history.calls, calls("create", "later")).answer | {"schedule": {"at": iso(67.5)}}
    alter(history.calls, calls("create", "later"), answer=answer)


@breaks("I11")
def a_dead_letter_of_what_lives_on(history: History) -> None:
    history.dump.dead_letters.append("exe_once")


@fine
def an_occurrence_that_began_while_a_pause_was_on_its_way(history: History) -> None:
    """It holds from 129.9 on, and is answered at 130.25: the one of 130 may have begun."""
    answer = the(history.calls, calls("pause", "nap")).answer | {"updated_at": iso(129.9)}
    alter(history.calls, calls("pause", "nap"), answer=answer, asked_at=BASE + 129.8)
    ran(history, "nap", 130, 130.02)


# I12


@breaks("I11")
def a_request_without_a_fence_arrives(history: History) -> None:
    history.strays.append(Stray(at=BASE + 50, what="/once/well: KeyError('Hourbell-Fence-Token')"))


@breaks("I11")
def an_execution_is_planned_long_after_the_last_of_all_runs(history: History) -> None:
    world = World()
    world.waits("thrice", 160, execution_id="exe_late")
    history.dump.alive.extend(world.alive)


@fine
def an_execution_was_planned_before_the_last_of_all_runs_began(history: History) -> None:
    world = World()
    world.documents["thrice"], world.tenants["thrice"] = {"type": "RECURRING"}, "acme"
    world.end("thrice", 140, "SKIPPED", 140.0, reason="max_runs", execution_id="exe_planned")
    history.dump.ended.extend(world.ended)


@breaks("I12")
def one_key_makes_two_jobs(history: History) -> None:
    call = the(history.calls, lambda c: calls("create", "tick")(c) and c.status == 201)
    again = msgspec.structs.replace(
        call, asked_at=BASE + 5.3, answered_at=BASE + 5.4, answer=call.answer | {"job_id": "job_x"}
    )
    history.calls.append(again)


@breaks("I12")
def a_repeated_create_makes_two_jobs_of_one_name(history: History) -> None:
    row = the(history.dump.jobs, lambda job: job.name == "tick")
    history.dump.jobs.append(msgspec.structs.replace(row, job_id="job_x"))


@breaks("I12")
def a_repeated_create_runs_twice(history: History) -> None:
    row = the(history.dump.ended, of("once"))
    other = {"job_id": "job_x", "execution_id": "exe_x"}
    history.dump.ended.append(msgspec.structs.replace(row, **other))
    first = the(history.deliveries, of("once"))
    history.deliveries.append(msgspec.structs.replace(first, execution_id="exe_x"))


@fine
def a_repeated_create_gets_the_same_answer(history: History) -> None:
    call = the(history.calls, lambda c: calls("create", "tick")(c) and c.status == 201)
    again = msgspec.structs.replace(call, asked_at=BASE + 5.3, answered_at=BASE + 5.4)
    history.calls.append(again)


# I13


@breaks("I13")
def a_run_is_recorded_for_another_tenant(history: History) -> None:
    alter(history.dump.ended, of("once"), tenant="globex")


@breaks("I13")
def a_job_belongs_to_another_tenant(history: History) -> None:
    alter(history.dump.jobs, lambda job: job.name == "tick", tenant="globex")


@breaks("I13")
def a_run_of_one_tenant_calls_for_another(history: History) -> None:
    alter(history.deliveries, of("once"), job="even")


@breaks("I13")
def a_tenant_waits_behind_the_herd_of_another(history: History) -> None:
    move(history, "neighbour", 152, 153.1)


@fine
def a_tenant_waits_a_little_beside_a_herd(history: History) -> None:
    move(history, "neighbour", 152, 152.95)


@fine
def who_is_less_urgent_waits_for_the_herd(history: History) -> None:
    move(history, "patient", 152, 170.0)


# I14


@breaks("I14")
def two_leaders_at_once(history: History) -> None:
    alter(history.dump.terms, lambda term: term.epoch == 2, began_at=BASE + 202.8)


@breaks("I14")
def an_epoch_is_given_twice(history: History) -> None:
    for things in (history.dump.terms, history.dump.written):
        alter(things, lambda thing: thing.epoch == 2, epoch=1)


@breaks("I14")
def epochs_fall(history: History) -> None:
    for things in (history.dump.terms, history.dump.written):
        alter(things, lambda thing: thing.epoch == 2, epoch=9)


@breaks("I14")
def an_old_epoch_writes(history: History) -> None:
    history.dump.written.append(Written(epoch=1, at=BASE + 203.6))


@breaks("I14")
def an_epoch_writes_that_never_began(history: History) -> None:
    history.dump.written.append(Written(epoch=4, at=BASE + 400))


@breaks("I14")
def nobody_leads_for_too_long(history: History) -> None:
    alter(history.dump.terms, lambda term: term.epoch == 2, began_at=BASE + 205.0)


@breaks("I14")
def the_last_leader_is_not_replaced(history: History) -> None:
    alter(history.dump.terms, lambda term: term.epoch == 3, ended_at=BASE + 497.0)


@breaks("I14")
def nobody_leads_at_first(history: History) -> None:
    alter(history.dump.terms, lambda term: term.epoch == 1, began_at=BASE + 5.1)


@breaks("I14")
def a_killed_leader_leads_on(history: History) -> None:
    alter(
        history.faults, lambda f: f.victim == "scheduler-1", kind="kill_leader", ended_at=BASE + 201
    )
    alter(history.dump.terms, lambda term: term.epoch == 1, ended_at=BASE + 206)
    alter(history.dump.terms, lambda term: term.epoch == 2, began_at=BASE + 206.5)
    drop(history.dump.written, lambda written: written.at == BASE + 204)


def nobody_leads_for_a_minute(history: History, kind: str, victim: str, **detail: Any) -> None:
    """From 211 on, while this is broken."""
    history.faults.append(
        Fault(kind=kind, victim=victim, began_at=BASE + 210, ended_at=BASE + 269.5, detail=detail)
    )
    alter(history.dump.terms, lambda term: term.epoch == 3, epoch=4)
    alter(history.dump.written, lambda written: written.epoch == 3, epoch=4)
    first = the(history.dump.terms, lambda term: term.epoch == 2)
    later = {"epoch": 3, "node": "scheduler-1", "began_at": BASE + 271}
    history.dump.terms.append(msgspec.structs.replace(first, **later))
    alter(history.dump.terms, lambda term: term.epoch == 2, ended_at=BASE + 211)
    drop(history.dump.written, lambda written: BASE + 211 < written.at < BASE + 271)
    alter(history.dump.written, lambda w: BASE + 271 < w.at < BASE + 302.5, epoch=3)


@breaks("I14")
def nobody_leads_and_only_the_clients_link_is_broken(history: History) -> None:
    nobody_leads_for_a_minute(history, "blackhole", "client→api-1")


@breaks("I14")
def nobody_leads_and_only_workers_die(history: History) -> None:
    nobody_leads_for_a_minute(history, "poison", "everything")


@breaks("I14")
def nobody_leads_and_one_scheduler_is_left(history: History) -> None:
    links = ["scheduler-1→postgres", "scheduler-2→postgres", "workers→receiver"]
    nobody_leads_for_a_minute(history, "clog", "everything", links=links)


@fine
def nobody_leads_and_no_scheduler_is_left(history: History) -> None:
    links = [f"scheduler-{number}→postgres" for number in (1, 2, 3)]
    nobody_leads_for_a_minute(history, "clog", "everything", links=links)


@fine
def nobody_leads_after_a_failover_of_the_database(history: History) -> None:
    nobody_leads_for_a_minute(history, "old_primary_returns", "worker-4")


@fine
def a_leader_is_replaced_just_in_time(history: History) -> None:
    alter(history.dump.terms, lambda term: term.epoch == 2, began_at=BASE + 204.85)
    alter(history.dump.written, lambda w: w.at == BASE + 204, at=BASE + 205)


@fine
def nobody_can_lead_without_a_database(history: History) -> None:
    """From 300 to 303, and 2 s to come to."""
    alter(history.dump.terms, lambda term: term.epoch == 3, began_at=BASE + 306.9)
    alter(history.dump.written, lambda w: w.at == BASE + 304.3, at=BASE + 307)


# I15


@breaks("I15")
def a_count_disagrees(history: History) -> None:
    recount(history, SCHEDULED=4, COMPLETED=9)


@breaks("I15")
def a_count_misses_a_job(history: History) -> None:
    recount(history, CANCELLED=1)


@breaks("I15")
def a_count_cannot_be_read(history: History) -> None:
    alter(history.calls, lambda c: c.operation == "count", answer={"jobs": 14})


def recount(history: History, tenant: str = "acme", **jobs: int) -> None:
    counts = lambda c: c.operation == "count" and c.tenant == tenant  # noqa: E731
    alter(history.calls, counts, answer={"jobs": COUNTS[tenant] | jobs})


@fine
def a_job_in_doubt_may_not_have_been_counted(history: History) -> None:
    recount(history, COMPLETED=9)


@fine
def a_job_ended_after_it_was_counted(history: History) -> None:
    alter(history.calls, calls("create", "regretted"), **moved_create(history, "regretted", 470))
    alter(history.dump.ended, of("regretted"), recorded_at=BASE + 461, scheduled_for=BASE + 470)
    recount(history, SCHEDULED=4, CANCELLED=1)


# I16


@breaks("I16")
def what_is_critical_waits_behind_a_herd(history: History) -> None:
    move(history, "urgent", 151, 152.1)


@breaks("I16")
def what_is_low_gets_no_turn(history: History) -> None:
    drop(history.dump.ended, of("patient"))
    drop(history.deliveries, of("patient"))
    world = World()
    world.waits("patient", 152, "ready")
    history.dump.alive.extend(world.alive)


@fine
def what_is_critical_waits_a_little(history: History) -> None:
    move(history, "urgent", 151, 151.9)


# I18


@breaks("I18")
def a_process_grows(history: History) -> None:
    late = lambda s: s.process == "api" and s.at > BASE + 320  # noqa: E731
    alter(history.samples, late, rss_kb=140_000)


@breaks("I18")
def a_process_leaks_descriptors(history: History) -> None:
    late = lambda s: s.process == "worker-2" and s.at > BASE + 320  # noqa: E731
    alter(history.samples, late, descriptors=90)


@breaks("I18")
def connections_pile_up(history: History) -> None:
    late = lambda b: b.at > BASE + 320  # noqa: E731
    alter(history.backends, late, connections={"api": 25, "worker-1": 4})


@breaks("I18")
def a_process_grows_slowly(history: History) -> None:
    """From 60 to 250 MB; no third of its life is much more than the one before."""
    rise(history, rss_kb=(60_000, 250_000))


@breaks("I18")
def a_process_leaks_descriptors_slowly(history: History) -> None:
    rise(history, descriptors=(30, 180))


def rise(history: History, **ranges: tuple[int, int]) -> None:
    """What worker-4 has, evenly over the run."""
    for place, sample in enumerate(history.samples):
        if sample.process == "worker-4":
            share = (sample.at - BASE) / 500
            values = {key: int(a + (b - a) * share) for key, (a, b) in ranges.items()}
            history.samples[place] = msgspec.structs.replace(sample, **values)


@breaks("I18")
def connections_pile_up_slowly(history: History) -> None:
    for place, backends in enumerate(history.backends):
        more = {"api": 5, "worker-1": 4 + int((backends.at - BASE) / 15)}
        history.backends[place] = msgspec.structs.replace(backends, connections=more)


@fine
def a_process_that_was_just_restarted_has_few_connections(history: History) -> None:
    alter(history.samples, lambda s: s.process == "api" and s.at >= BASE + 110, pid=999)
    few = lambda b: b.at < BASE + 110  # noqa: E731
    alter(history.backends, few, connections={"api": 1, "worker-1": 4})
    alter(history.backends, lambda b: not few(b), connections={"api": 15, "worker-1": 4})


@breaks("I18")
def a_transaction_stays_idle(history: History) -> None:
    alter(history.backends, lambda b: b.at == BASE + 400, idle_in_transaction_seconds=5.5)


@fine
def a_process_grows_a_little(history: History) -> None:
    late = lambda s: s.process == "api" and s.at > BASE + 320  # noqa: E731
    alter(history.samples, late, rss_kb=125_000)


@fine
def a_transaction_is_idle_for_a_while(history: History) -> None:
    alter(history.backends, lambda b: b.at == BASE + 400, idle_in_transaction_seconds=4.9)


# Fates, one by one: each has to be earned.


def fate(history: History, name: str, due: float, status: str, reason: str, **changes: Any) -> None:
    """What ran, did not, for a reason."""
    changes = {"attempts": [], "started_at": None, "recorded_at": BASE + due + 0.1} | changes
    alter(history.dump.ended, of(name, due), status=status, reason=reason, **changes)
    if not changes["attempts"]:
        drop(history.deliveries, of(name, due))
    if status == "DEAD":
        history.dump.dead_letters.append(the(history.dump.ended, of(name, due)).execution_id)


def say(history: History, name: str, **policies: Any) -> None:
    """The job had been created with these, too."""
    document = the(history.calls, calls("create", name)).document
    alter(history.calls, calls("create", name), document=document | policies)


@breaks("I1")
def skipped_before_its_start_deadline(history: History) -> None:
    say(history, "tick", start_deadline_seconds=30)
    fate(history, "tick", 305, "SKIPPED", "start_deadline", recorded_at=BASE + 334.8)


@fine
def skipped_at_its_start_deadline(history: History) -> None:
    say(history, "tick", start_deadline_seconds=30)
    fate(history, "tick", 305, "SKIPPED", "start_deadline", recorded_at=BASE + 335.0)


@breaks("I1")
def a_request_is_skipped_before_its_start_deadline(history: History) -> None:
    """Counted from when it was asked for, at 170."""
    say(history, "tick", start_deadline_seconds=30)
    run = the(history.dump.ended, of("tick", origin=1))
    drop(history.deliveries, lambda d: d.execution_id == run.execution_id)
    changes = {"status": "SKIPPED", "reason": "start_deadline", "attempts": [], "started_at": None}
    alter(history.dump.ended, of("tick", origin=1), **changes, recorded_at=BASE + 199)


@breaks("I1")
def skipped_for_a_start_deadline_that_it_has_not(history: History) -> None:
    fate(history, "tick", 305, "SKIPPED", "start_deadline", recorded_at=BASE + 335)


@breaks("I1")
def dead_before_its_deadline(history: History) -> None:
    say(history, "tick", deadline_seconds=30)
    fate(history, "tick", 305, "DEAD", "deadline", recorded_at=BASE + 334.8)


@fine
def dead_because_its_next_attempt_would_miss_its_deadline(history: History) -> None:
    say(history, "listed", deadline_seconds=8)
    alter(history.dump.ended, of("listed"), reason="deadline")


@breaks("I1")
def skipped_for_a_limit_of_runs_that_there_is_not(history: History) -> None:
    fate(history, "tick", 185, "SKIPPED", "max_runs")


@fine
def skipped_because_it_had_all_its_runs(history: History) -> None:
    row = the(history.dump.ended, of("thrice", 80))
    skipped = {"status": "SKIPPED", "reason": "max_runs", "attempts": [], "started_at": None}
    history.dump.ended.append(
        msgspec.structs.replace(row, execution_id="x", scheduled_for=BASE + 100, **skipped)
    )


@breaks("I1")
def dead_for_a_failure_that_may_be_retried(history: History) -> None:
    alter(history.dump.ended, of("listed"), reason="non_retryable")


@fine
def dead_for_a_failure_that_is_not_retried(history: History) -> None:
    retries = {"delays_seconds": [2, 4], "non_retryable": ["http_500"]}
    say(history, "listed", retry_policy=retries)
    alter(history.dump.ended, of("listed"), reason="non_retryable")


@breaks("I1")
def given_up_after_four_crashes(history: History) -> None:
    crash(history, 4)


@fine
def given_up_after_five_crashes(history: History) -> None:
    crash(history, 5)


def crash(history: History, times: int) -> None:
    """`doubled` takes its workers down; after two times it waits to be alone."""
    drop(history.dump.ended, of("doubled"))
    drop(history.deliveries, of("doubled"))
    world = World()
    world.documents["doubled"], world.tenants["doubled"] = {"type": "ONE_TIME"}, "globex"
    tries = [
        Try(at, None, "lost" if number < times - 1 else "crashed", until=at + 4)
        for number, at in enumerate((99.02, 104.0, 120.0, 125.0, 130.0)[:times])
    ]
    world.runs("doubled", 99, *tries, status="DEAD", reason="crashed")
    history.dump.ended.extend(world.ended)
    history.deliveries.extend(world.deliveries)
    history.dump.dead_letters.extend(world.dead)
    for worker, at in (("worker-1", 105), ("worker-3", 122), ("worker-3", 127), ("worker-3", 132)):
        history.faults.append(
            Fault(kind="kill_worker", victim=worker, began_at=BASE + at, ended_at=BASE + at + 1)
        )


@breaks("I1")
def a_fate_that_there_is_not(history: History) -> None:
    fate(history, "tick", 185, "SKIPPED", "tired")


@breaks("I1")
def a_job_was_answered_with_another_priority(history: History) -> None:
    answer = the(history.calls, calls("create", "even")).answer | {"priority": "LOW"}
    alter(history.calls, calls("create", "even"), answer=answer)


@breaks("I1")
def runs_are_superseded_by_a_change_long_after_them(history: History) -> None:
    """Deleted at 399.1: all of them could have run until then."""
    for due in (310, 340, 370):
        fate(history, "nap", due, "SUPERSEDED", "deleted", recorded_at=BASE + 399.12)


@breaks("I1")
def runs_are_skipped_for_one_that_has_not_begun(history: History) -> None:
    """The only other one that there is comes at 495."""
    for due in (195, 255, 315, 375, 435):
        fate(history, "alone", due, "SKIPPED", "overlap", recorded_at=BASE + due + 0.02)


@breaks("I1")
def an_acknowledged_update_is_without_effect(history: History) -> None:
    """It says that nothing has changed since the job was created, and that is true."""
    answer = the(history.calls, calls("update", "shift")).answer
    answer = answer | {"version": 1, "updated_at": iso(12.01)}
    alter(history.calls, calls("update", "shift"), answer=answer)
    for due in (272, 322, 372, 422, 472):
        drop(history.dump.ended, of("shift", due))
        drop(history.deliveries, of("shift", due))
    drop(history.dump.alive, of("shift"))
    world = World()
    world.documents["shift"], world.tenants["shift"] = {"type": "RECURRING"}, "globex"
    for due in (252, 292, 332, 372, 412, 452, 492):
        world.runs("shift", due)
    add(history, world)


@breaks("I1")
def an_update_was_answered_as_another_one(history: History) -> None:
    answer = the(history.calls, calls("update", "shift")).answer
    answer = answer | {"schedule": {"every_seconds": 40}}
    alter(history.calls, calls("update", "shift"), answer=answer)


@fine
def an_update_to_what_was_so_already_changes_nothing(history: History) -> None:
    patches: tuple[dict[str, object], ...] = (
        {"priority": "MEDIUM"},
        {"overlap_policy": None},  # the default, which it had
        {"schedule": {"every_seconds": 50}},
    )
    for number, patch in enumerate(patches):
        update = the(history.calls, calls("update", "shift"))
        times = {"asked_at": BASE + 230 + number, "answered_at": BASE + 230.1 + number}
        again = msgspec.structs.replace(update, key=f"again-{number}", document=patch, **times)
        history.calls.append(again)


@breaks("I1")
def a_run_is_recorded_with_another_priority(history: History) -> None:
    alter(history.dump.ended, of("even", 120), priority=3)


@fine
def a_cancel_came_too_late(history: History) -> None:
    """It was answered that it will be tried."""
    wish = {"status": 202, "answer": {"status": "RUNNING"}, "asked_at": BASE + 50.03}
    cancel = the(history.calls, lambda c: c.operation == "cancel")
    cancel = msgspec.structs.replace(cancel, execution_id="exe_once", key="wish", **wish)
    history.calls.append(msgspec.structs.replace(cancel, answered_at=BASE + 50.06))


# What was never answered.


def runs_in_doubt(history: History, rows: int) -> None:
    """A client requested one run, and got no answer."""
    run = the(history.calls, lambda c: c.operation == "run" and c.job_id == "job_tick")
    doubt = {"status": None, "answered_at": None, "answer": None}
    history.calls.append(msgspec.structs.replace(run, key="doubt", asked_at=BASE + 180, **doubt))
    row = the(history.dump.ended, of("tick", origin=1))
    superseded = {"status": "CANCELLED", "attempts": [], "started_at": None}
    for number in range(rows):
        name = f"exe_doubt_{number}"
        cancel = the(history.calls, lambda c: c.operation == "cancel")
        cancelled = {"execution_id": name, "key": name}
        history.calls.append(msgspec.structs.replace(cancel, **cancelled))
        history.dump.ended.append(
            msgspec.structs.replace(
                row, execution_id=name, scheduled_for=BASE + 180.1 + number, **superseded
            )
        )


@fine
def a_run_in_doubt_was_made(history: History) -> None:
    runs_in_doubt(history, 1)


@breaks("I11")
def a_run_in_doubt_was_made_twice(history: History) -> None:
    runs_in_doubt(history, 2)


def pulse_in_doubt(history: History, *dues: float) -> None:
    """A recurring job whose creation nobody answered."""
    world = World()
    world.create("pulse", 35.0, {"every_seconds": 100})
    doubt = {"status": None, "answered_at": None, "answer": None}
    history.calls.append(msgspec.structs.replace(world.calls[0], **doubt))
    for due in dues:
        world.runs("pulse", due)
    history.deliveries.extend(world.deliveries)
    history.dump.ended.extend(world.ended)
    history.dump.jobs.extend(world.jobs.values())


@fine
def a_job_in_doubt_keeps_its_rhythm(history: History) -> None:
    pulse_in_doubt(history, 136, 236, 336, 436)


@breaks("I11")
def a_job_in_doubt_loses_its_rhythm(history: History) -> None:
    pulse_in_doubt(history, 136, 236, 337, 436)


def nameless(history: History, tenant: str) -> None:
    """A one-time job that nobody knows and that never ran."""
    row = the(history.dump.ended, of("regretted"))
    other = {"job_id": "job_x", "execution_id": "exe_x", "tenant": tenant}
    history.dump.ended.append(msgspec.structs.replace(row, **other))


@breaks("I11")
def a_nameless_job_that_nobody_asked_for(history: History) -> None:
    nameless(history, "globex")


@fine
def a_nameless_job_in_doubt(history: History) -> None:
    """`unsure`, deleted before it ran by a client that found it in a list."""
    drop(history.dump.ended, of("unsure"))
    drop(history.deliveries, of("unsure"))
    nameless(history, "acme")
    recount(history, CANCELLED=3, COMPLETED=9)


@fine
def changes_at_the_same_time_leave_a_job_in_doubt(history: History) -> None:
    """Both were asked for at 250; which of them found what is not known."""
    resume = the(history.calls, calls("resume", "nap"))
    pause = the(history.calls, calls("pause", "nap"))
    alter(history.calls, calls("delete", "nap"), answer={**resume.answer, "version": 6})
    for version, (call, told) in enumerate(((resume, 250.2), (pause, 250.1)), 4):
        answer = call.answer | {"updated_at": iso(told), "version": version}
        history.calls.append(
            msgspec.structs.replace(
                call,
                key=f"both-{told}",
                asked_at=BASE + 250,
                answered_at=BASE + 250.5,
                answer=answer,
            )
        )
    drop(history.dump.ended, of("nap", 280))
    drop(history.deliveries, of("nap", 280))


# Schedules of other kinds.


def add(history: History, world: World) -> None:
    history.calls.extend(world.calls)
    history.deliveries.extend(world.deliveries)
    history.dump.jobs.extend(world.jobs.values())
    history.dump.ended.extend(world.ended)
    history.dump.alive.extend(world.alive)


def started_later(history: History, *dues: float) -> None:
    """Every 100 s from 60.5 on, which is from 61, and until 300."""
    world = World()
    schedule = {"every_seconds": 100, "starts_at": iso(60.5), "ends_at": iso(300)}
    world.create("window", 35.0, schedule)
    for due in dues:
        world.runs("window", due)
    row = world.jobs["window"]
    world.jobs["window"] = msgspec.structs.replace(row, status="COMPLETED")
    add(history, world)
    recount(history, COMPLETED=11)


@fine
def a_schedule_with_a_window(history: History) -> None:
    started_later(history, 61, 161, 261)


@breaks("I1")
def the_first_of_a_window_is_gone(history: History) -> None:
    started_later(history, 161, 261)


@breaks("I11")
def a_run_after_the_window(history: History) -> None:
    started_later(history, 61, 161, 261, 361)


def put_off(history: History, due: float) -> None:
    """`once` is set from 50 to 70, at 45."""
    answer = the(history.calls, calls("create", "once")).answer
    answer = answer | {"version": 2, "updated_at": iso(45.1), "schedule": {"at": iso(70)}}
    call = msgspec.structs.replace(
        the(history.calls, calls("pause", "nap")),
        operation="update",
        key="put off",
        job_id="job_once",
        asked_at=BASE + 45,
        answered_at=BASE + 45.2,
        document={"schedule": {"at": iso(70)}},
        answer=answer,
    )
    history.calls.append(call)
    move(history, "once", 50, due + 0.02)
    alter(history.deliveries, of("once"), scheduled_for=BASE + due)
    alter(history.dump.ended, of("once"), scheduled_for=BASE + due)


@fine
def a_one_time_job_is_put_off(history: History) -> None:
    put_off(history, 70)


@breaks("I11")
def a_one_time_job_runs_at_the_time_from_which_it_was_put_off(history: History) -> None:
    put_off(history, 50)


@breaks("I11")
def an_old_schedule_goes_on(history: History) -> None:
    """Every 40 s, until the update that was answered at 222.2."""
    world = World()
    world.documents["shift"], world.tenants["shift"] = {"type": "RECURRING"}, "globex"
    world.runs("shift", 252)
    add(history, world)


def backfilled(history: History, times: int) -> None:
    """`tick` is run again for 65, as often as it is asked for, and one time more."""
    run = the(history.calls, lambda c: c.operation == "run" and c.job_id == "job_tick")
    world = World()
    world.documents["tick"], world.tenants["tick"] = {"type": "RECURRING"}, "acme"
    rows = [world.runs("tick", 65, Try(330.5 + 10 * n), origin=2) for n in range(2)]
    # Executions of another world: their names are not to be those of this one.
    renamed = {row: f"exe_backfill_{number}" for number, row in enumerate(rows)}
    for things in (world.ended, world.deliveries):
        for place, thing in enumerate(things):
            execution_id = renamed[thing.execution_id]
            things[place] = msgspec.structs.replace(thing, execution_id=execution_id)
    add(history, world)
    names = list(renamed.values())
    answers = [names] if times == 1 else [[name] for name in names]
    for number, execution_ids in enumerate(answers):
        asked_at = BASE + 330 + 10 * number
        history.calls.append(
            msgspec.structs.replace(
                run,
                operation="backfill",
                key=f"backfill-{number}",
                asked_at=asked_at,
                answered_at=asked_at + 0.2,
                answer={"execution_ids": execution_ids},
            )
        )


@fine
def a_backfill_is_asked_for_twice(history: History) -> None:
    backfilled(history, 2)


@breaks("I2")
def a_backfill_is_made_twice(history: History) -> None:
    backfilled(history, 1)


@breaks("I8")
def a_linear_delay_is_too_short(history: History) -> None:
    """5 s, then 10 s."""
    say(history, "later", retry_policy={"backoff": "LINEAR", "initial_delay_seconds": 5})


@breaks("I8")
def an_exponential_delay_is_too_short(history: History) -> None:
    say(history, "later", retry_policy={"backoff": "EXPONENTIAL", "initial_delay_seconds": 5})


@breaks("I13")
def a_tenant_waits_for_the_end_of_the_herd_of_another(history: History) -> None:
    move(history, "neighbour", 152, 161)


@breaks("I16")
def what_is_critical_waits_for_the_end_of_a_herd(history: History) -> None:
    move(history, "urgent", 151, 161)


@fine
def one_waits_for_another_of_its_key(history: History) -> None:
    say(history, "even", concurrency_key="k")
    wait_in(history, "parked", 430)
    world = World()
    world.create("keyed", 35, {"at": iso(490)}, tenant="globex", concurrency_key="k")
    world.waits("keyed", 490, "leased")
    add(history, world)
    recount(history, tenant="globex", SCHEDULED=3)


@fine
def a_run_begins_between_the_moment_of_a_delete_and_its_answer(history: History) -> None:
    """It was planned by the version before the last, and by the last: a stretch that ended long ago does not matter."""
    world = World()
    world.create("brief", 401.0, {"every_seconds": 1}, tenant="globex")
    world.change("brief", "update", 403.5, timeout_seconds=9)
    world.change("brief", "delete", 409.87)
    for due in range(402, 411):
        world.runs("brief", due)
    add(history, world)
    recount(history, tenant="globex", CANCELLED=1)


# Zones that a leader, or an API, does not know.


def lacks_a_zone(history: History, victim: str = "scheduler-2") -> None:
    """From 203.5 to 304.2 the leader has older zone data. Until 209 and from 300 on other things are broken as well."""
    detail = {
        "zone": YOUNG,
        "since": BASE + 203.2,
        "whole_at": BASE + 203.6,
        "until": BASE + 302,
    }
    history.faults.append(
        Fault(
            kind="older_tzdata",
            victim=victim,
            began_at=BASE + 203,
            ended_at=BASE + 304,
            detail=detail,
        )
    )


def runs_every_20_seconds(history: History, zone: str, **late: float) -> None:
    """A job in a zone; what is late, by its due time, starts at another time than it should."""
    world = World()
    world.create("young", 35.0, {"cron": "*/20 * * * * *", "timezone": zone})
    for due in range(40, 501, 20):
        world.runs("young", due, Try(late.get(f"at_{due}", due + 0.02)))
    add(history, world)
    recount(history, SCHEDULED=4)


@fine
def what_no_leader_could_plan_runs_when_one_can(history: History) -> None:
    lacks_a_zone(history)
    runs_every_20_seconds(history, YOUNG, at_280=305.5, at_300=305.5)


@breaks("I3")
def what_no_leader_could_plan_runs_too_late(history: History) -> None:
    lacks_a_zone(history)
    runs_every_20_seconds(history, YOUNG, at_280=306.4)


@breaks("I3")
def what_was_planned_before_waits_for_a_leader(history: History) -> None:
    lacks_a_zone(history)
    runs_every_20_seconds(history, YOUNG, at_260=305.5)


@breaks("I3")
def a_zone_that_the_leader_knows_waits_for_another(history: History) -> None:
    lacks_a_zone(history)
    runs_every_20_seconds(history, "Europe/Berlin", at_280=305.5)


@breaks("I3")
def only_the_api_does_not_know_a_zone(history: History) -> None:
    lacks_a_zone(history, "api-1")
    runs_every_20_seconds(history, YOUNG, at_280=305.5)


@breaks("I1")
def what_no_leader_could_plan_is_missed_within_the_grace(history: History) -> None:
    lacks_a_zone(history)
    runs_every_20_seconds(history, YOUNG)
    ended = drop(history.dump.ended, of("young", 280))
    drop(history.deliveries, of("young", 280))
    missed = {"status": "SKIPPED", "reason": "misfire", "attempts": [], "started_at": None}
    missed |= {"recorded_at": BASE + 304.5, "missed": 1, "missed_through": BASE + 280}
    history.dump.ended.append(msgspec.structs.replace(ended, **missed))


def refuse_a_job(history: History, zone: str, asked: float) -> None:
    world = World()
    world.create("refused", asked, {"cron": "0 * * * *", "timezone": zone})
    history.calls.append(
        msgspec.structs.replace(world.calls[0], status=422, answer={"type": "invalid"})
    )


@fine
def an_api_refuses_a_zone_that_it_does_not_know(history: History) -> None:
    lacks_a_zone(history, "api-1")
    refuse_a_job(history, YOUNG, 250.0)


@breaks("I1")
def an_api_refuses_a_zone_after_it_was_updated(history: History) -> None:
    lacks_a_zone(history, "api-1")
    refuse_a_job(history, YOUNG, 304.5)


@breaks("I1")
def an_api_refuses_a_zone_that_only_the_leader_does_not_know(history: History) -> None:
    lacks_a_zone(history)
    refuse_a_job(history, YOUNG, 250.0)


@breaks("I1")
def an_api_refuses_a_zone_that_it_knows(history: History) -> None:
    lacks_a_zone(history, "api-1")
    refuse_a_job(history, "Europe/Berlin", 250.0)


def list_jobs(history: History, asked: float, status: int) -> None:
    world = World()
    world.call("list", asked, asked + 0.1, status, key=None)
    history.calls.extend(world.calls)


@breaks("I1")
def an_api_with_older_zone_data_cannot_list_jobs(history: History) -> None:
    lacks_a_zone(history, "api-1")
    list_jobs(history, 250.0, 500)


@fine
def an_api_cannot_list_jobs_while_the_database_is_away(history: History) -> None:
    list_jobs(history, 301.0, 503)


# Upgrades, process by process.


def upgrade(history: History, *moments: tuple[str, float, float]) -> None:
    """Instead of the kill of worker-2, from 90 to 290: each process is restarted at its moments and well otherwise."""
    alter(
        history.faults,
        lambda fault: fault.kind == "kill_worker",
        kind="rolling_upgrade",
        victim="everything",
        began_at=BASE + 90,
        ended_at=BASE + 290,
        detail={"moments": [[name, BASE + since, BASE + until] for name, since, until in moments]},
    )


@fine
def a_worker_is_killed_in_an_upgrade(history: History) -> None:
    upgrade(history, ("worker-1", 90, 92), ("worker-2", 100, 101), ("worker-3", 288, 290))
    alter_attempt(history, "doubled", 1, worker="worker-2")
    alter_attempt(history, "careful", 1, worker="worker-2")


@breaks("I7")
def a_worker_loses_its_lease_after_its_turn_in_an_upgrade(history: History) -> None:
    upgrade(history, ("worker-1", 90, 92), ("worker-2", 100, 101), ("worker-3", 288, 290))
    alter_attempt(history, "doubled", 1, worker="worker-1")


@breaks("I7")
def a_worker_loses_its_lease_before_its_turn_in_an_upgrade(history: History) -> None:
    upgrade(history, ("worker-1", 90, 92), ("worker-2", 100, 101), ("worker-3", 288, 290))
    alter_attempt(history, "doubled", 1, worker="worker-3")


@breaks("I7")
def leases_are_lost_to_a_migration(history: History) -> None:
    upgrade(history, ("postgres", 99, 101))


def is_reaped_late(history: History, *terms: tuple[float, float]) -> None:
    """What a worker held that was killed at 100 is taken from it at 115 only."""
    upgrade(history, ("worker-2", 100, 101), ("worker-3", 288, 290))
    alter_attempt(history, "doubled", 1, worker="worker-2", finished_at=BASE + 115)
    alter_attempt(history, "doubled", 2, started_at=BASE + 115.1, finished_at=BASE + 115.3)
    alter(history.dump.ended, of("doubled"), recorded_at=BASE + 115.3)
    for delivery in [d for d in history.deliveries if of("doubled")(d) and d.attempt == 2]:
        history.deliveries.remove(delivery)
        answered_at = None if delivery.answered_at is None else BASE + 115.3
        history.deliveries.append(
            msgspec.structs.replace(delivery, at=BASE + 115.1, answered_at=answered_at)
        )
    first, *others = history.dump.terms
    later = [msgspec.structs.replace(term, epoch=term.epoch + 10) for term in others]
    short = [
        Term(epoch=2 + n, node="scheduler-1", began_at=BASE + since, ended_at=BASE + until)
        for n, (since, until) in enumerate(terms)
    ]
    if short:
        first = msgspec.structs.replace(first, ended_at=short[0].began_at)
    history.dump.terms[:] = [first, *short, *later]
    epochs = {term.epoch: term for term in history.dump.terms}
    kept = [written for written in history.dump.written if written.epoch == 1]
    others_wrote = [w for w in history.dump.written if w.epoch > 1]
    history.dump.written[:] = [
        *(w for w in kept if w.at < epochs[1].ended_at),
        *(Written(epoch=t.epoch, at=at) for t in short for at in (t.began_at, t.ended_at)),
        *(msgspec.structs.replace(w, epoch=w.epoch + 10) for w in others_wrote),
    ]
    for term in short:
        at = term.began_at
        while (at := at + 20) < term.ended_at:
            history.dump.written.append(Written(epoch=term.epoch, at=at))


@fine
def no_leader_leads_for_long_enough_to_reap(history: History) -> None:
    is_reaped_late(history, (102, 104.9), (105, 107.9), (108, 110.9), (111, 202.9))


@breaks("I7")
def a_leader_leads_for_long_enough_and_does_not_reap(history: History) -> None:
    is_reaped_late(history, (102, 104.9), (105, 111.9), (112, 202.9))


@breaks("I3")
def what_both_builds_could_start_is_late(history: History) -> None:
    """`tick` at 245 is late, and no process is restarted then."""
    upgrade(history, ("worker-2", 100, 101), ("worker-1", 215, 217), ("worker-3", 288, 290))
    move(history, "tick", 245, 251)


@fine
def a_restart_in_an_upgrade_holds_up_a_start(history: History) -> None:
    upgrade(history, ("worker-2", 100, 101), ("worker-1", 244, 246), ("worker-3", 288, 290))
    move(history, "tick", 245, 251)


# I20


@breaks("I20")
def a_worker_is_handed_a_task_that_it_does_not_name(history: History) -> None:
    alter(history.deliveries, of("steady", 199), task=OTHER_TASK)


@fine
def a_worker_is_handed_the_other_task_that_it_names(history: History) -> None:
    alter(history.deliveries, of("steady", 199), task=OTHER_TASK, worker="http-2")


@fine
def an_older_build_hands_a_task_to_any_worker(history: History) -> None:
    a_worker_is_killed_in_an_upgrade(history)
    alter(history.deliveries, of("steady", 199), task=OTHER_TASK)


# The clock of the database is set back.


def clock_is_off(history: History, began: float = 98.9, ended: float = 104.1) -> None:
    began_at, ended_at = BASE + began, BASE + ended
    history.faults.append(
        Fault(
            kind="clock_back",
            victim="postgres",
            began_at=began_at,
            ended_at=ended_at,
            detail={"seconds": 10},
        )
    )


@fine
def attempts_go_back_with_the_clock(history: History) -> None:
    clock_is_off(history)
    alter_attempt(history, "doubled", 2, started_at=BASE + 93.995, finished_at=BASE + 94.01)
    alter(history.dump.ended, of("doubled"), recorded_at=BASE + 94.02)


@breaks("I5")
def attempts_go_back_long_after_the_clock_did(history: History) -> None:
    clock_is_off(history, 60.0, 65.0)
    alter_attempt(history, "doubled", 2, started_at=BASE + 93.995, finished_at=BASE + 94.01)


@breaks("I1")
def an_execution_is_lost_while_the_clock_is_off(history: History) -> None:
    clock_is_off(history)
    drop(history.dump.ended, of("doubled"))
    drop(history.deliveries, of("doubled"))


@breaks("I2")
def an_execution_is_doubled_while_the_clock_is_off(history: History) -> None:
    clock_is_off(history)
    row = the(history.dump.ended, of("doubled"))
    history.dump.ended.append(msgspec.structs.replace(row, execution_id="exe_again"))


@breaks("I6")
def a_fence_goes_back_with_the_clock(history: History) -> None:
    clock_is_off(history)
    fence = the(history.dump.ended, of("doubled")).attempts[0].fence
    alter_attempt(history, "doubled", 2, fence=fence - 5_000_000)


@breaks("I10")
def an_execution_stays_queued_since_the_clock_was_off(history: History) -> None:
    clock_is_off(history)
    row = drop(history.dump.ended, of("doubled"))
    drop(history.deliveries, of("doubled"))
    history.dump.alive.append(
        Alive(
            execution_id=row.execution_id,
            job_id=row.job_id,
            origin=0,
            scheduled_for=row.scheduled_for,
            place="ready",
            run_at=row.scheduled_for,
            planned_ahead=False,
        )
    )


@fine
def a_clock_that_was_set_ends_a_term(history: History) -> None:
    clock_is_off(history, 299.0, 303.0)
    alter(history.dump.terms, lambda term: term.epoch == 2, ended_at=BASE + 304.5)


@breaks("I14")
def an_old_leader_writes_when_a_clock_has_ended_its_term(history: History) -> None:
    a_clock_that_was_set_ends_a_term(history)
    history.dump.written.append(Written(epoch=2, at=BASE + 304.4))


# The tests of all these.


@pytest.mark.parametrize(
    ("invariant", "change"), BROKEN, ids=[f"{i}-{change.__name__}" for i, change in BROKEN]
)
def test_a_broken_promise_is_found(invariant: str, change: Alteration) -> None:
    history = good()
    change(history)
    found = check(history, PROMISE)
    assert invariant in {violation.invariant for violation in found}, found


@pytest.mark.parametrize("change", FINE, ids=[change.__name__ for change in FINE])
def test_what_stays_within_the_margins_is_let_pass(change: Alteration) -> None:
    history = good()
    change(history)
    assert check(history, PROMISE) == []


def test_every_promise_is_broken_once() -> None:
    sources = [
        Path(module.__file__).read_text("utf-8") for module in (checker, checks_clockless, judge)
    ]
    judged = {found for source in sources for found in re.findall(r"# (I\d+)\b", source)}
    assert judged == {f"I{n}" for n in (*range(1, 17), 18, 20)}
    assert {invariant for invariant, _ in BROKEN} == judged


def test_a_violation_names_what_to_look_for() -> None:
    history = good()
    a_success_never_arrived(history)
    [violation] = [v for v in check(history, PROMISE) if v.invariant == "I1"]
    assert "exe_once" in violation.sentence
    assert "job_once" in violation.sentence
    assert f"{BASE + 50:.3f} (+50.000 s)" in violation.sentence


# What cannot be judged is not good.


def calm_is_rare(history: History) -> None:
    """There is a fault every few seconds, until healing and beyond what follows."""
    resets(history)
    alter(history.phases, lambda phase: phase.name == "healed", at=BASE + 500)
    for at in range(310, 500, 6):
        history.faults.append(
            Fault(kind="reset", victim="client→api-1", began_at=BASE + at, ended_at=BASE + at)
        )


def drop_jobs(history: History, *names: str) -> None:
    for name in names:
        drop(history.calls, calls("create", name))
        drop(history.dump.ended, of(name))
        drop(history.deliveries, of(name))


MISSING: list[tuple[str, Alteration]] = [
    ("no phase loaded and no healed", lambda h: h.phases.clear()),
    ("no phase healed", lambda h: drop(h.phases, lambda phase: phase.name == "healed")),
    ("comes after", lambda h: alter(h.phases, lambda phase: phase.name == "quiet", at=BASE + 501)),
    (
        "before the run had ended",
        lambda h: alter(h.phases, lambda p: p.name == "ended", at=BASE + 600),
    ),
    (
        "due even once",
        lambda h: drop(
            h.calls, lambda c: c.operation == "create" and c.document["type"] == "RECURRING"
        ),
    ),
    ("nothing was delivered", lambda h: h.deliveries.clear()),
    ("handed to a worker over HTTP", lambda h: drop(h.deliveries, lambda d: d.worker is not None)),
    (
        "handed to a worker over HTTP",
        lambda h: alter(h.deliveries, of("steady"), worker="http-2"),
    ),
    ("never led with its older zone data", lambda h: lacks_a_zone(h, "scheduler-1")),
    ("no creation of a job", lambda h: h.calls.clear()),
    ("looked at the processes", lambda h: h.samples.clear()),
    ("the connections", lambda h: h.backends.clear()),
    ("known to have led", lambda h: h.dump.terms.clear()),
    ("what epoch 1", lambda h: h.dump.written.clear()),
    (
        "what epoch 3",
        lambda h: drop(h.dump.written, lambda written: written.at > BASE + 303),
    ),
    (
        "what epoch 3",
        lambda h: drop(h.dump.written, lambda written: written.at > BASE + 420),
    ),
    (
        "looked at worker-4 from",
        lambda h: drop(h.samples, lambda s: s.process == "worker-4" and s.at > BASE + 465),
    ),
    (
        "looked at the database from",
        lambda h: drop(h.backends, lambda b: BASE + 100 < b.at < BASE + 140),
    ),
    ("started while all was well", lambda h: calm_is_rare(h)),
    (
        "beside a herd",
        lambda h: drop_jobs(h, "neighbour", "urgent"),
    ),
    (
        "CRITICAL met",
        lambda h: drop_jobs(h, "urgent"),
    ),
    (
        "counted the jobs of acme",
        lambda h: drop(h.calls, lambda c: c.operation == "count" and c.tenant == "acme"),
    ),
    (
        "after healing",
        lambda h: alter(h.faults, lambda f: f.victim == "postgres", ended_at=BASE + 400),
    ),
    (
        "before it begins",
        lambda h: alter(h.faults, lambda f: f.victim == "postgres", ended_at=BASE),
    ),
]


@pytest.mark.parametrize(("words", "change"), MISSING, ids=[words for words, _ in MISSING])
def test_incomplete_evidence_is_refused(words: str, change: Alteration) -> None:
    history = good()
    change(history)
    found = check(history, PROMISE)
    assert {violation.invariant for violation in found} == {"I0"}
    assert all(v.sentence.startswith("the evidence is incomplete: ") for v in found)
    assert any(words in violation.sentence for violation in found)


def test_an_empty_history_is_refused() -> None:
    empty = History(
        seed=0,
        calls=[],
        deliveries=[],
        faults=[],
        samples=[],
        backends=[],
        phases=[],
        dump=Dump(at=BASE, jobs=[], ended=[], alive=[], dead_letters=[], terms=[], written=[]),
    )
    assert [violation.invariant for violation in check(empty, PROMISE)] == ["I0"]


def test_a_history_is_judged_by_its_own_lines() -> None:
    """What a run leaves in its files is all that is needed."""
    written = msgspec.json.encode(good())
    assert check(msgspec.json.decode(written, type=History), PROMISE) == []


def test_the_figures_of_a_run() -> None:
    found = figures(good(), PROMISE)
    assert (found.jobs, found.duplicates, found.leases_lost, found.terms) == (38, 1, 3, 3)
    assert found.faults == {
        "kill_worker": 1,
        "stop_leader": 1,
        "restart_fast": 1,
        "herd": 1,
        "refuse": 1,
    }
    assert found.handed_over_http == 12
    assert found.longest_without_leader_seconds == pytest.approx(1.7, abs=0.001)
    assert 0 < found.calm_late_p99_seconds < 1
    assert found.occurrences > 30


@pytest.mark.timeout(30)
def test_a_long_run_is_judged_quickly() -> None:
    history = good()
    world = World()
    for number in range(100):
        world.create(f"fast-{number}", 11.0, {"every_seconds": 1}, tenant="initech")
        for due in range(12, 500):
            world.runs(f"fast-{number}", due)
        for due in range(500, 560):
            world.waits(f"fast-{number}", due)
    world.call("count", 461.0, 461.1, 200, tenant="initech", answer={"jobs": {"SCHEDULED": 100}})
    history.calls.extend(world.calls)
    history.deliveries.extend(world.deliveries)
    history.dump.jobs.extend(world.jobs.values())
    history.dump.ended.extend(world.ended)
    history.dump.alive.extend(world.alive)
    assert len(history.deliveries) > 97_000
    assert check(history, PROMISE) == []


def test_on_a_shared_machine_a_run_may_be_later_and_no_more_than_that() -> None:
    shared = msgspec.structs.replace(PROMISE, shared_seconds=20.0)
    for late, expected in ((20.9, set()), (21.1, {"I3"})):
        history = good()
        move(history, "tick", 425, 425 + late)
        assert "I3" in {violation.invariant for violation in check(history, PROMISE)}
        assert {violation.invariant for violation in check(history, shared)} == expected


def test_on_a_shared_machine_processes_are_slow_and_lose_their_leases() -> None:
    for change, invariant in (
        (a_lease_is_over_before_it_can_be, "I5"),
        (a_leader_that_writes_nothing_for_a_while, "I0"),
        (a_worker_loses_its_lease_after_its_turn_in_an_upgrade, "I7"),
    ):
        for seconds, expected in ((0.0, {invariant}), (0.9, {invariant}), (20.0, set[str]())):
            history = good()
            change(history)
            promise = msgspec.structs.replace(PROMISE, shared_seconds=seconds)
            assert {violation.invariant for violation in check(history, promise)} == expected


def a_leader_that_writes_nothing_for_a_while(history: History) -> None:
    """Its term is renewed for 3.5 s, and over 3 s later."""
    alter(history.dump.terms, lambda term: term.epoch == 2, ended_at=BASE + 210.0)
    drop(history.dump.written, lambda written: written.epoch == 2)
    after = Term(epoch=3, node="scheduler-3", began_at=BASE + 210.2, ended_at=BASE + 302.5)
    alter(history.dump.terms, lambda term: term.epoch == 3, epoch=4)
    alter(history.dump.written, lambda written: written.epoch == 3, epoch=4)
    history.dump.terms.append(after)
    times = (210.5, *range(220, 300, 20), 299.4)
    history.dump.written.extend(Written(epoch=3, at=BASE + at) for at in times)


def test_an_upgrade_does_not_make_a_short_run_a_long_one() -> None:
    history = good()
    upgrade = Fault(
        kind="rolling_upgrade",
        victim="everything",
        began_at=BASE + 10,
        ended_at=BASE + 220,
        detail={"way": [], "moments": []},
    )
    history.faults.append(upgrade)
    drop_jobs(history, "neighbour", "urgent")
    assert "I0" not in {violation.invariant for violation in check(history, PROMISE)}
    alter(history.faults, lambda f: f.kind == "rolling_upgrade", ended_at=BASE + 200)
    assert {violation.invariant for violation in check(history, PROMISE)} == {"I0"}


# A standby that may lag behind.


ASYNCHRONOUS = msgspec.structs.replace(PROMISE, standby_lag_seconds=1.0)


def fail_over(history: History, at: float, **detail: object) -> None:
    history.faults.append(
        Fault(
            kind="failover",
            victim="postgres",
            began_at=BASE + at,
            ended_at=BASE + at + 2,
            detail=detail,
        )
    )


def lose_job(history: History, name: str) -> None:
    """A one-time job is gone, though its creation was acknowledged; it never ran."""
    drop(history.dump.ended, of(name))
    drop(history.deliveries, of(name))


@pytest.mark.parametrize(
    ("failover", "lag", "forgiven"), [(8.5, 1.0, True), (8.5, 0.0, False), (9.5, 1.0, False)]
)
def test_only_the_last_moments_before_a_failover_may_be_lost(
    failover: float, lag: float, forgiven: bool
) -> None:
    """`once` was asked for at 8.0 and answered at 8.03."""
    history = good()
    lose_job(history, "once")
    fail_over(history, failover)
    found = check(history, msgspec.structs.replace(PROMISE, standby_lag_seconds=lag))
    assert ([violation.invariant for violation in found] == []) == forgiven
    assert forgiven or any("job_once" in violation.sentence for violation in found)


@pytest.mark.parametrize(
    ("failover", "detail", "forgiven"),
    [
        (12.0, {}, False),
        (12.0, {"standby_had": BASE + 8.1}, False),
        (12.0, {"standby_had": BASE + 7.9}, True),  # it lagged behind by four seconds
        (6.5, {"old": "killed"}, False),
        (6.5, {"old": "alive"}, True),  # it answered until the failover was over
    ],
)
def test_what_the_standby_had_and_whom_the_old_primary_still_served_is_looked_at(
    failover: float, detail: dict[str, object], forgiven: bool
) -> None:
    """`once` was asked for at 8.0 and answered at 8.03. In a failover of two seconds."""
    history = good()
    lose_job(history, "once")
    fail_over(history, failover, **detail)
    found = check(history, ASYNCHRONOUS)
    assert any("job_once" in violation.sentence for violation in found) != forgiven


def test_what_was_done_in_those_moments_may_be_done_again() -> None:
    """`tick` of 365 ran just before the failover, and the standby knows nothing of it."""
    history = good()
    fail_over(history, 365.5)
    alter(history.phases, lambda phase: phase.name == "healed", at=BASE + 368)
    deliver_again(history, "tick", 365, 3.0, fence=micros(BASE + 368))
    fence = {
        "attempts": [
            Attempt(
                attempt=1,
                fence=micros(BASE + 368),
                started_at=BASE + 368.01,
                finished_at=BASE + 368.07,
                reason=None,
            )
        ]
    }
    alter(history.dump.ended, of("tick", 365), recorded_at=BASE + 368.1, **fence)
    assert check(history, ASYNCHRONOUS) == []
    assert "I8" in {violation.invariant for violation in check(history, PROMISE)}


@pytest.mark.parametrize("due", [65, 185, 425])
def test_the_other_occurrences_of_a_job_are_judged_as_always(due: int) -> None:
    history = good()
    fail_over(history, 365.5)
    alter(history.phases, lambda phase: phase.name == "healed", at=BASE + 368)
    assert check(history, ASYNCHRONOUS) == []
    drop(history.dump.ended, of("tick", due))
    drop(history.deliveries, of("tick", due))
    [violation] = check(history, ASYNCHRONOUS)
    assert violation.invariant == "I1"
    assert "job_tick" in violation.sentence


def test_a_run_with_many_failovers_can_be_judged() -> None:
    history = good()
    for at in range(20, 300, 40):
        fail_over(history, float(at))
    found = check(history, ASYNCHRONOUS)
    assert found == []
    assert figures(history, ASYNCHRONOUS).occurrences > 20


# Whom a fault can have hit.


@pytest.mark.parametrize(
    ("kind", "victim", "detail", "workers", "delays", "schedulers", "http_workers"),
    [
        ("kill", "worker-2", {}, 1, True, set(), 0),
        ("reset", "worker-2→postgres", {}, 1, True, set(), 0),
        ("kill", "scheduler-1", {}, 0, True, {"scheduler-1"}, 0),
        ("delay", "scheduler-1→postgres", {}, 0, True, {"scheduler-1"}, 0),
        ("stop_and_continue", "api-1", {}, 0, False, set(), 2),
        ("refuse", "api-1→postgres", {}, 0, False, set(), 2),
        ("blackhole", "client→api-1", {}, 0, False, set(), 2),
        ("trickle", "workers→receiver", {}, 0, True, set(), 0),
        ("kill", "http-2", {}, 0, False, set(), 1),
        ("trickle", "http-1→api-1", {}, 0, False, set(), 1),
        ("older_tzdata", "api-1", {}, 0, False, set(), 2),
        ("older_tzdata", "scheduler-1", {}, 0, False, set(), 0),
        ("kill", "receiver", {}, 0, True, set(), 0),
        ("migrate_under_load", "postgres", {}, 0, True, set(), 0),
        ("kill_postgres", "postgres", {}, 4, True, {"schedulers"}, 2),
        ("old_primary_returns", "api-1", {}, 4, True, {"schedulers"}, 2),
        ("rolling_restart", "everything", {}, 4, True, {"schedulers"}, 2),
        ("poison", "everything", {}, 4, True, set(), 0),
        ("terminate_backends", "postgres", {"whose": "api-%"}, 0, False, set(), 2),
        ("terminate_backends", "postgres", {"whose": "worker-%"}, 4, True, set(), 0),
        ("terminate_backends", "postgres", {"whose": "%-%"}, 4, True, {"schedulers"}, 2),
        ("clog", "everything", {"links": ["client→api-1", "api-1→postgres"]}, 0, False, set(), 2),
        (
            "clog",
            "everything",
            {"links": ["worker-1→postgres", "worker-3→postgres", "scheduler-2→postgres"]},
            2,
            True,
            {"scheduler-2"},
            0,
        ),
        ("clog", "everything", {}, 4, True, {"schedulers"}, 2),
    ],
)
def test_a_fault_hits_only_whom_it_can(
    kind: str,
    victim: str,
    detail: dict[str, Any],
    workers: int,
    delays: bool,
    schedulers: set[str],
    http_workers: int,
) -> None:
    fault = Fault(kind=kind, victim=victim, began_at=BASE, ended_at=BASE + 1, detail=detail)
    struck = strike(fault)
    assert struck.workers(4) == workers
    assert struck.hits_workers == (workers > 0)
    assert struck.delays_starts(over_http=False) == delays
    assert {name for name in struck.hit if name.startswith("scheduler")} == schedulers
    assert struck.http_workers(2) == http_workers
    database = "database" in struck.hit
    assert struck.delays_starts(over_http=True) == bool(http_workers or schedulers or database)


# Small tools.


def test_the_judge_knows_nothing_of_the_product() -> None:
    folder = Path(checker.__file__).parent
    own = (*folder.glob("check*.py"), folder / "amnesty.py", folder / "case.py")
    for file in (*own, *Path(judge.__file__).parent.glob("*.py")):
        assert not re.search(r"^\s*(from|import) hourbell", file.read_text("utf-8"), re.MULTILINE)


def test_spans_measure_what_they_cover() -> None:
    spans = Spans([(5.0, 7.0), (1.0, 2.0), (6.0, 8.0), (2.0, 3.0)])
    assert list(spans) == [(1.0, 3.0), (5.0, 8.0)]
    assert spans.length(0.0, 10.0) == 5.0
    assert spans.length(2.0, 6.0) == 2.0
    assert spans.touches(3.0, 4.0)
    assert not spans.touches(3.1, 4.9)
    assert list(spans.common(Spans([(2.5, 5.5)]))) == [(2.5, 3.0), (5.0, 5.5)]
    assert Spans().length(0.0, 1.0) == 0.0
    assert spans.longest(2.0, 7.0) == 2.0
    assert spans.longest(3.5, 4.5) == 0.0
    assert Spans().longest(0.0, 1.0) == 0.0


def test_a_percentile_is_one_of_its_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile([float(n) for n in range(1, 201)], 99) == 198.0
    assert percentile([1.0], 50) == 1.0


def test_a_patch_replaces_the_kind_of_a_schedule() -> None:
    document = {
        "schedule": {"cron": "* * * * *", "dst_gap": "skip", "ends_at": "x"},
        "priority": "LOW",
    }
    after = patched(document, {"schedule": {"every_seconds": 5}, "priority": None})
    assert after == {"schedule": {"every_seconds": 5, "ends_at": "x"}}
    listed = patched(
        {"retry_policy": {"max_retries": 1}}, {"retry_policy": {"delays_seconds": [1]}}
    )
    assert listed == {"retry_policy": {"delays_seconds": [1]}}
    assert patched(listed, {"retry_policy": {"backoff": "FIXED"}}) == {
        "retry_policy": {"backoff": "FIXED"}
    }
