"""What faults excuse: the evidence of the rig beside that of every run.

A fault excuses what it can explain, of those whom it hit (`checks_faults`), as long as it lasts and for one failover
afterwards, and nothing else.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from chaos.checks_faults import Strike, moments, strike
from verify.case import Case, Occurrence, Row
from verify.history import Delivery, Fault, History, Seconds
from verify.promise import SCHEDULE, Lists, Promise, Spans, succeeded
from verify.stories import Story


class Start(NamedTuple):
    """The first start of an execution that had to wait for nobody."""

    row: Row
    story: Story
    due_at: Seconds  # its time, or when it was answered that it should run, if that was later
    started_at: Seconds

    @property
    def late(self) -> float:
        return self.started_at - self.due_at

    @property
    def priority(self) -> int:
        return self.row.ended.priority if self.row.ended else self.story.priority


class RigCase(Case):
    """A history of the rig, indexed."""

    def __init__(
        self, history: History, promise: Promise, forgiven: frozenset[Occurrence] = frozenset()
    ) -> None:
        super().__init__(history, promise, forgiven)
        self._flights: dict[int, int] = {}

    @cached_property
    def planned_by(self) -> Seconds:
        return self.dump.at - self.promise.aftermath_seconds

    # Faults.

    @cached_property
    def faults(self) -> list[Fault]:
        """Those that break something, in order."""
        harmful = [f for f in self.history.faults if f.kind not in self.promise.no_excuse]
        broken = [moment for fault in harmful for moment in moments(fault)]
        return sorted(broken, key=lambda fault: fault.began_at)

    @cached_property
    def unknown_zones(self) -> Lists[str, tuple[Seconds, Seconds]]:
        """By time zone: from when a leader that did not know it led, until one did that knows it."""
        found = Lists[str, tuple[Seconds, Seconds]]()
        for fault in self.history.faults:
            if fault.kind != "older_tzdata":
                continue
            known_at = self.dump.at
            for term in sorted(self.dump.terms, key=lambda term: term.epoch, reverse=True):
                lived = fault.detail["since"] <= term.began_at <= fault.detail["until"]
                if term.node == fault.victim and lived:
                    found.add(fault.detail["zone"], (term.began_at, known_at))
                else:
                    known_at = term.began_at
        return found

    def refuses(self, zone: str | None, since: Seconds, until: Seconds) -> bool:
        """Whether an API that did not know a zone may have answered between two moments."""
        return any(
            fault.kind == "older_tzdata"
            and fault.victim.startswith("api")
            and fault.detail["zone"] == zone
            and fault.detail["since"] <= until
            and since <= fault.detail["until"] + self.promise.late_seconds
            for fault in self.history.faults
        )

    def _unplanned(self, story: Story | None, due_at: Seconds) -> float:
        """How late something may be because no leader knew its zone when it was to be planned."""
        promise, zone = self.promise, story.zone if story else ""
        planned_at = due_at - promise.horizon_seconds
        return max(
            (
                known_at - due_at + promise.late_seconds
                for since, known_at in self.unknown_zones[zone]
                if since - promise.late_seconds <= planned_at <= known_at
            ),
            default=0.0,
        )

    @cached_property
    def strikes(self) -> list[Strike]:
        """The same, by whom they hit."""
        return [strike(fault) for fault in self.faults]

    @cached_property
    def _broken(self) -> dict[bool, Spans]:
        """When something was broken on the way from the database to a worker over HTTP (True), or to the receiver (False)."""
        return {
            over_http: Spans(
                (s.fault.began_at, s.fault.ended_at + s.echo_seconds)
                for s in self.strikes
                if s.delays_starts(over_http)
            )
            for over_http in (True, False)
        }

    @cached_property
    def unrest(self) -> Spans:
        """When anything was, and until what has piled up is worked off: else, all is calm."""
        after = self.promise.aftermath_seconds
        return Spans(
            (s.fault.began_at, s.fault.ended_at + s.echo_seconds + after) for s in self.strikes
        )

    def allowed(self, story: Story | None, since: Seconds, until: Seconds) -> float:
        """How late something of a job may be that waited from one moment to the other.

        As long as something was broken at a stretch, and not all that was broken meanwhile: between
        two faults there is time to start it. While all is well on its way, there is no failover
        either.
        """
        unplanned = self._unplanned(story, since)
        broken = self._broken[story is not None and story.over_http]
        if not broken.touches(since - self.promise.aftermath_seconds, until):
            return max(self.promise.late_seconds + self.promise.shared_seconds, unplanned)
        most = self.promise.most_late_seconds + self.promise.shared_seconds
        return max(min(self.explained(story, since, until), most), unplanned)

    def explained(self, story: Story | None, since: Seconds, until: Seconds) -> float:
        """The same for who is not there to be started: a stretch that nobody planned."""
        broken = self._broken[story is not None and story.over_http]
        aftermath = self.promise.aftermath_seconds + self.promise.shared_seconds
        return max(broken.longest(since, until) + aftermath, self._unplanned(story, since))

    def in_flight(self, number: int) -> int:
        """How many executions were with workers at a fault, by the ledger and the receiver."""
        if number not in self._flights:
            fault = self.faults[number]
            until = fault.ended_at + self.promise.late_seconds + self.promise.shared_seconds
            held = {
                row.execution_id
                for row in self.rows
                for attempt in (row.ended.attempts if row.ended else ())
                if attempt.started_at <= until and attempt.finished_at >= fault.began_at
            }
            held |= {d.execution_id for d in self.deliveries if fault.began_at <= d.at <= until}
            self._flights[number] = len(held)
        return self._flights[number]

    def reaped_by(self, healed_at: Seconds) -> Seconds:
        """Until when what a silent worker held is taken from it, after a fault.

        A leader does that once it has led for a whole lease. Where they follow each other sooner it
        waits for the first that wrote something after so long.
        """
        lease, since = self.promise.lease_seconds, healed_at + self.promise.lease_seconds
        able = [
            at
            for term in self.dump.terms
            if (at := max(since, term.began_at + lease)) <= self._last_written[term.epoch]
        ]
        able_at = min(able, default=since) + self.promise.late_seconds
        return max(healed_at + self.promise.reaped_seconds, able_at)

    @cached_property
    def _last_written(self) -> dict[int, Seconds]:
        """By epoch: the last sign of life of its leader."""
        found = {term.epoch: term.began_at for term in self.dump.terms}
        for written in self.dump.written:
            found[written.epoch] = max(found.get(written.epoch, 0.0), written.at)
        return found

    def obeys_by(self, since: Seconds, delivery: Delivery) -> Seconds:
        """Until when something may arrive that was on its way when it was taken back.

        A worker that was stopped or cut off, or a broken way to the receiver, may hold it up.
        """
        promise = self.promise
        held_up = any(
            struck.holds_up(delivery.worker is not None)
            and struck.fault.began_at <= delivery.at
            and struck.fault.ended_at + promise.late_seconds >= since
            for struck in self.strikes
        )
        at_once = since + promise.obey_seconds + promise.shared_seconds
        return at_once + (promise.reaped_seconds if held_up else 0.0)

    @cached_property
    def _receiver_is_gone(self) -> Spans:
        gone = (fault for fault in self.faults if fault.victim.startswith("receiver"))
        return Spans((fault.began_at, fault.ended_at) for fault in gone)

    def may_have_succeeded(self, delivery: Delivery) -> bool:
        """A 2xx; or the receiver was killed, maybe between answering and writing that down."""
        if delivery.status is not None:
            return succeeded(delivery)
        return self._receiver_is_gone.touches(delivery.at, delivery.at + self.promise.late_seconds)

    def was_held_up(self, delivery: Delivery) -> bool:
        return any(
            struck.holds_up(delivery.worker is not None)
            and struck.fault.began_at <= delivery.at
            and delivery.at <= struck.fault.ended_at + self.promise.late_seconds
            for struck in self.strikes
        )

    # Starts.

    @cached_property
    def starts(self) -> list[Start]:
        """Of all that had to wait for nothing but its time."""
        found = []
        for row in self.rows:
            story = self.stories.get(row.job_id)
            if story is None or story.restricted:
                continue
            due_at, started_at = self._due_at(row, story), self.started_at(row)
            if started_at is None and self._should_have_started(row):
                started_at = self.dump.at
            if due_at is not None and started_at is not None and due_at <= self.dump.at:
                found.append(Start(row, story, due_at, started_at))
        return found

    def _should_have_started(self, row: Row) -> bool:
        """Whether it is there, and neither held by a pause nor back from a worker that was lost."""
        alive = row.alive
        if alive is None or alive.place == "held":
            return False
        return alive.run_at <= row.scheduled_for + self.promise.clock_seconds

    def _due_at(self, row: Row, story: Story) -> Seconds | None:
        if row.origin != SCHEDULE:
            request = story.requested(row.execution_id)
            return request.answered_at if request else None
        if row.scheduled_for >= story.certain_until:
            return None
        if story.recurring:
            stretch = story.stretch_of(row.at)
            return max(row.scheduled_for, stretch.known_at) if stretch else None
        answers = [story.create.answered_at, *(change.answered_at for change in story.changes)]
        return max(row.scheduled_for, *(at for at in answers if at is not None))

    @cached_property
    def herds(self) -> dict[tuple[str, int], Spans]:
        """By tenant and priority: when many of one tenant waited at once."""
        waits = Lists[tuple[str, int], tuple[Seconds, Seconds]]()
        for start in self.starts:
            if start.story.is_herd:
                waits.add((start.story.tenant, start.priority), (start.due_at, start.started_at))
        return {whose: Spans(pairs) for whose, pairs in waits.items()}

    def herds_met(self, start: Start) -> list[tuple[str, int]]:
        """Those that were waiting while this one was; its own is not one of them."""
        return [
            whose
            for whose, spans in self.herds.items()
            if spans.touches(start.due_at, max(start.started_at, start.due_at))
        ]

    def herd_delay(self, since: Seconds, until: Seconds) -> float:
        """How much longer something may wait of which nobody knows whether a herd was before it."""
        met = any(spans.touches(since, until) for spans in self.herds.values())
        return self.promise.herd_seconds if met else 0.0
