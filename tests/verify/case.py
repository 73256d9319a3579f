"""The evidence of a run, put in order: what is asked of it again and again, by the keys by which it
is asked.

Nothing is judged here. A `Case` is of a world in which all is exact and nothing excuses anything; what faults excuse in the
rig is in `chaos.case`, which says so for each of the questions under "Excuses".
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from verify.history import Alive, Attempt, Delivery, Ended, History, JobRow, Seconds
from verify.promise import FOREVER, SCHEDULE, Lists, Micros, Promise, Spans, micros, succeeded
from verify.stories import Intent, Story, Teller, intents

Occurrence = tuple[str, Micros]  # of a job

# What the database has in the end.


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What the dump has of one execution: that it ended, or where it is."""

    execution_id: str
    job_id: str
    origin: int
    at: Micros
    scheduled_for: Seconds
    ended: Ended | None = None
    alive: Alive | None = None

    @property
    def state(self) -> str:
        if self.ended is not None:
            why = f"({self.ended.reason})" if self.ended.reason else ""
            return f"{self.ended.status}{why}"
        assert self.alive is not None
        return f"alive ({self.alive.place})"

    @property
    def attempts(self) -> list[Attempt]:
        """Those that have ended, in order."""
        known = self.ended or self.alive
        return [] if known is None else known.attempts

    @property
    def claimed_at(self) -> Seconds | None:
        """First; None if nobody noted that."""
        known = self.ended or self.alive
        return None if known is None else known.claimed_at

    @property
    def superseded(self) -> bool:
        return self.ended is not None and self.ended.status == "SUPERSEDED"


class Case:
    """A history, indexed."""

    def __init__(
        self, history: History, promise: Promise, forgiven: frozenset[Occurrence] = frozenset()
    ) -> None:
        self.history = history
        self.promise = promise
        self.forgiven = forgiven
        self.dump = history.dump
        self.phases: dict[str, Seconds] = {}
        for phase in history.phases:
            self.phases.setdefault(phase.name, phase.at)

    # Excuses.

    @cached_property
    def planned_by(self) -> Seconds:
        """What is due until then has a record."""
        return self.dump.at

    @cached_property
    def unrest(self) -> Spans:
        """When something was broken, and until what has piled up is worked off."""
        return Spans()

    def allowed(self, story: Story | None, since: Seconds, until: Seconds) -> float:
        """How late something of a job may be that waited from one moment to the other."""
        return FOREVER

    def herd_delay(self, since: Seconds, until: Seconds) -> float:
        """How much longer something may wait of which nobody knows whether a herd was before it."""
        return 0.0

    def obeys_by(self, since: Seconds, delivery: Delivery) -> Seconds:
        """Until when something may arrive that was on its way when it was taken back."""
        return since + self.promise.obey_seconds

    def was_held_up(self, delivery: Delivery) -> bool:
        """Whether a worker can have come to again just now, with what it had before."""
        return False

    def may_have_succeeded(self, delivery: Delivery) -> bool:
        return succeeded(delivery)

    def refuses(self, zone: str | None, since: Seconds, until: Seconds) -> bool:
        """Whether an API that did not know a zone may have answered between two moments."""
        return False

    # What was asked.

    @cached_property
    def intents(self) -> list[Intent]:
        return intents(self.history.calls)

    @cached_property
    def creates(self) -> list[Intent]:
        return [intent for intent in self.intents if intent.operation == "create"]

    @cached_property
    def doubtful_creates(self) -> dict[str, Intent]:
        """By the name of the job, which is another one for every create."""
        return {intent.document["name"]: intent for intent in self.creates if intent.doubtful}

    @cached_property
    def stories(self) -> dict[str, Story]:
        """By job: all whose creation was acknowledged."""
        changes, runs = Lists[str, Intent](), Lists[str, Intent]()
        for intent in self.intents:
            if intent.operation in ("update", "pause", "resume", "delete"):
                changes.add(intent.job_id or "", intent)
            elif intent.operation in ("run", "backfill") and intent.possible:
                runs.add(intent.job_id or "", intent)
        found: dict[str, Story] = {}
        for create in self.creates:
            if create.granted and create.answer["job_id"] not in found:
                job = create.answer["job_id"]
                found[job] = Teller(create, changes[job], self.promise, self.dump.at).tell()
                found[job].runs = runs[job]
        return found

    @cached_property
    def cancels(self) -> Lists[str, Intent]:
        """By execution: granted or in doubt."""
        found = Lists[str, Intent]()
        for intent in self.intents:
            if intent.operation == "cancel" and intent.possible and intent.execution_id:
                found.add(intent.execution_id, intent)
        return found

    # What arrived.

    @cached_property
    def deliveries(self) -> list[Delivery]:
        """In the order of arrival. Each is written when it comes, and again when it is over."""
        merged: dict[tuple[str, int, int, float], Delivery] = {}
        for delivery in self.history.deliveries:
            key = (delivery.execution_id, delivery.fence, delivery.attempt, delivery.at)
            if key not in merged or merged[key].status is None:
                merged[key] = delivery
        return sorted(merged.values(), key=lambda delivery: delivery.at)

    @cached_property
    def delivered(self) -> Lists[str, Delivery]:
        """By execution."""
        found = Lists[str, Delivery]()
        for delivery in self.deliveries:
            found.add(delivery.execution_id, delivery)
        return found

    # What there is in the end.

    @cached_property
    def job_rows(self) -> dict[str, JobRow]:
        return {job.job_id: job for job in self.dump.jobs}

    @cached_property
    def rows(self) -> list[Row]:
        """Without the missed stretches, which stand for many."""
        found = [
            Row(
                execution_id=ended.execution_id,
                job_id=ended.job_id,
                origin=ended.origin,
                at=micros(ended.scheduled_for),
                scheduled_for=ended.scheduled_for,
                ended=ended,
            )
            for ended in self.dump.ended
            if ended.missed is None
        ]
        found += [
            Row(
                execution_id=alive.execution_id,
                job_id=alive.job_id,
                origin=alive.origin,
                at=micros(alive.scheduled_for),
                scheduled_for=alive.scheduled_for,
                alive=alive,
            )
            for alive in self.dump.alive
        ]
        return found

    @cached_property
    def rows_of_execution(self) -> Lists[str, Row]:
        found = Lists[str, Row]()
        for row in self.rows:
            found.add(row.execution_id, row)
        return found

    @cached_property
    def rows_of_job(self) -> Lists[str, Row]:
        found = Lists[str, Row]()
        for row in self.rows:
            found.add(row.job_id, row)
        return found

    @cached_property
    def rows_of_occurrence(self) -> Lists[tuple[str, Micros], Row]:
        """The scheduled ones."""
        found = Lists[tuple[str, Micros], Row]()
        for row in self.rows:
            if row.origin == SCHEDULE:
                found.add((row.job_id, row.at), row)
        return found

    @cached_property
    def missed(self) -> Lists[str, Ended]:
        """By job: stretches of occurrences that were recorded as missed."""
        found = Lists[str, Ended]()
        for ended in self.dump.ended:
            if ended.missed is not None:
                found.add(ended.job_id, ended)
        return found

    def row(self, execution_id: str) -> Row | None:
        return next(iter(self.rows_of_execution[execution_id]), None)

    def started_at(self, row: Row) -> Seconds | None:
        """The first delivery; of a first attempt that never arrived, what the ledger says."""
        first = [d.at for d in self.delivered[row.execution_id] if d.attempt == 1]
        if first:
            return first[0]
        return row.ended.started_at if row.ended else None

    # Words.

    def when(self, at: Seconds) -> str:
        """As it is in the files, and counted from the beginning of the run."""
        return f"{at:.3f} (+{at - self.phases.get('loaded', 0.0):.3f} s)"

    def what(self, row: Row) -> str:
        story = self.stories.get(row.job_id)
        name = story.name if story else self.job_name(row.job_id) or "?"
        return f"{row.execution_id} of {row.job_id} ({name}) for {self.when(row.scheduled_for)}"

    def job_name(self, job_id: str) -> str | None:
        """Of a job whose creation was never answered: what the dump or its deliveries call it."""
        if job_id in self.job_rows:
            return self.job_rows[job_id].name
        for row in self.rows_of_job[job_id]:
            for delivery in self.delivered[row.execution_id]:
                return delivery.job
        return None
