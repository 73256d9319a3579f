"""What the client asked for, and what by its answers became of each job.

What was asked several times under one key is one `Intent`. What became of a job over the run is its
`Story`: when which of its schedules held, by the word that the client was given and not by what the
database says in the end.

A word on doubt. A call without an answer, or with a 5xx, may have had its effect or not, then or
later. What another client may have changed is neither demanded nor counted as an error: a story
is certain until the first such call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from verify.history import Call, Seconds
from verify.oracle import occurrences
from verify.promise import (
    FOREVER,
    OVER_HTTP,
    PRIORITIES,
    Document,
    Micros,
    Promise,
    instant,
    micros,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_KINDS_OF_SCHEDULE = ("cron", "every_seconds", "at", "delay_seconds")


# What the client asked for.


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the client wanted once, however often it had to ask."""

    operation: str
    key: str | None
    tenant: str
    job_id: str | None
    execution_id: str | None
    document: Any
    asked_at: Seconds  # first
    answered_at: Seconds | None  # the first time that the answer was yes
    status: int | None
    answer: Any

    @property
    def granted(self) -> bool:
        return self.answered_at is not None

    @property
    def doubtful(self) -> bool:
        """Nobody knows whether it happened."""
        return self.answered_at is None and (self.status is None or self.status >= 500)

    @property
    def possible(self) -> bool:
        return self.granted or self.doubtful


def intents(calls: Iterable[Call]) -> list[Intent]:
    """Calls under one key for one thing are one intent."""
    grouped: dict[Any, list[Call]] = {}
    for number, call in enumerate(calls):
        alone = number if call.key is None else None
        what = (call.operation, call.tenant, call.key, call.job_id, call.execution_id, alone)
        grouped.setdefault(what, []).append(call)
    found = [_intent(sorted(group, key=lambda call: call.asked_at)) for group in grouped.values()]
    return sorted(found, key=lambda intent: intent.asked_at)


def _intent(group: list[Call]) -> Intent:
    first = group[0]
    yes = [call for call in group if call.status is not None and 200 <= call.status < 300]
    unclear = [call for call in group if call.status is None or call.status >= 500]
    says = min(yes, key=lambda call: call.answered_at or 0.0) if yes else (unclear or group)[0]
    return Intent(
        operation=first.operation,
        key=first.key,
        tenant=first.tenant,
        job_id=first.job_id,
        execution_id=first.execution_id,
        document=first.document,
        asked_at=first.asked_at,
        answered_at=says.answered_at if yes else None,
        status=says.status,
        answer=says.answer if yes else None,
    )


# What became of a job.


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the occurrences of one rule belonged to a job: after `since`, up to `until`.

    A change says from when on it holds, and is answered later. What was planned ahead and began
    before the answer is still of the old stretch; what was planned and did not begin may be
    recorded as taken back.
    """

    since: Seconds
    known_at: Seconds  # when its beginning was answered
    until: Seconds
    gone_at: Seconds  # when its end was answered
    document: Document
    due: tuple[Micros, ...]  # up to `until`
    maybe: frozenset[Micros]  # and what may have been planned before its end was answered


class Version(NamedTuple):
    """A job from one change that was granted and had an effect, or its creation, to the next."""

    operation: str
    asked_at: Seconds
    told: Seconds  # from when on it says that it holds
    answered_at: Seconds
    document: Document  # the whole job as it was to be
    reschedules: bool  # whether what is queued is out of date


@dataclass
class Story:
    """A job as its owner knows it."""

    job_id: str
    name: str
    tenant: str
    recurring: bool
    create: Intent
    changes: list[Intent]  # update, pause, resume, delete: granted or in doubt
    versions: list[Version] = field(default_factory=list)
    certain_until: Seconds = FOREVER
    stretches: list[Stretch] = field(default_factory=list)  # of a recurring job
    # Of a one-time job: for when it was asked, now and before it was changed.
    instant: Micros = 0
    instants: set[Micros] = field(default_factory=set)
    silences: list[tuple[Seconds, Seconds]] = field(default_factory=list)  # paused or deleted
    status: str = "SCHEDULED"  # that it should have, unless it came to its end
    runs: list[Intent] = field(default_factory=list)  # run and backfill, granted or in doubt

    @property
    def document(self) -> Document:
        return self.versions[-1].document

    @property
    def documents(self) -> list[Document]:
        """As it was to be, one after the other."""
        return [v.document for v in self.versions if v.operation in ("create", "update")]

    def documents_at(self, at: Seconds) -> list[Document]:
        """What the job may have looked like at a moment: one, or more while it is being changed."""
        settled = [v.document for v in self.versions if v.answered_at <= at]
        return settled[-1:] + [
            v.document for v in self.versions if v.asked_at <= at < v.answered_at
        ]

    @property
    def is_herd(self) -> bool:
        return self.name.startswith("herd-")

    @property
    def zone(self) -> str:
        zone: str = self.document["schedule"].get("timezone", "UTC")
        return zone

    @property
    def over_http(self) -> bool:
        """Whether it is for the workers over HTTP, which have their queue to themselves."""
        return self.document.get("queue") == OVER_HTTP

    @property
    def restricted(self) -> bool:
        """Whether one of its runs may have to wait for another."""
        return any(
            document.get("overlap_policy", "allow") != "allow"
            or document.get("concurrency_key") is not None
            for document in self.documents
        )

    @property
    def priority(self) -> int:
        return PRIORITIES[self.document.get("priority", "MEDIUM")]

    @property
    def at_most_once(self) -> bool:
        return all(document.get("delivery") == "at_most_once" for document in self.documents)

    @property
    def max_runs(self) -> int | None:
        limits = [document["schedule"].get("max_runs") for document in self.documents]
        return None if None in limits else max(limits)

    def stretch_of(self, at: Micros) -> Stretch | None:
        """To which an occurrence belongs, or may belong: the latest of those, which was the last to plan it."""
        owners = [stretch for stretch in self.stretches if at in stretch.maybe]
        exact = [s for s in owners if s.since < at / 1_000_000 <= s.until]
        return (exact or owners or [None])[-1]

    def is_without_effect(self, update: Intent) -> bool:
        """Whether an update says that all was as wished, and it was not."""
        told = told_at(update)
        if told is None or told >= update.asked_at or update.asked_at >= self.certain_until:
            return False
        ends = [*(version.told for version in self.versions[1:]), FOREVER]
        defaults = {
            "priority": "MEDIUM",
            "queue": "default",
            "misfire_policy": "latest",
            "overlap_policy": "allow",
        }
        return all(
            # A null removes what was set, so that the default holds.
            defaults | patched(defaults | version.document, update.document or {})
            != defaults | version.document
            for version, until in zip(self.versions, ends, strict=True)
            if version.told <= (update.answered_at or FOREVER) and until >= update.asked_at
        )

    def requested(self, execution_id: str) -> Intent | None:
        """The request that was answered with this execution."""
        for run in self.runs:
            if run.granted and execution_id in (run.answer or {}).get("execution_ids", ()):
                return run
        return None


def told_at(intent: Intent) -> Seconds | None:
    """From when on a granted change says that it holds."""
    said = "created_at" if intent.operation == "create" else "updated_at"
    text = intent.answer.get(said) if isinstance(intent.answer, dict) else None
    return None if text is None else instant(text)


def patched(document: Document, patch: Document) -> Document:
    """A merge patch (RFC 7396); another kind of schedule or backoff replaces the old one."""
    after = _merged(document, patch)
    asked = patch.get("schedule") or {}
    kinds = {kind for kind in _KINDS_OF_SCHEDULE if asked.get(kind) is not None}
    if kinds:
        gone = {kind for kind in _KINDS_OF_SCHEDULE if kind not in kinds}
        if "cron" not in kinds:
            gone |= {"dst_gap", "dst_overlap"}
        after["schedule"] = {k: v for k, v in after["schedule"].items() if k not in gone}
    retries = patch.get("retry_policy") or {}
    was_list = "delays_seconds" in document.get("retry_policy", {})
    if retries.get("delays_seconds") is not None or (was_list and "backoff" in retries):
        after["retry_policy"] = {k: v for k, v in retries.items() if v is not None}
    return after


def _merged(document: Document, patch: Document) -> Document:
    after = dict(document)
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        elif isinstance(value, dict) and isinstance(after.get(key), dict):
            after[key] = _merged(after[key], value)
        else:
            after[key] = value
    return after


class Teller:
    """Makes the story of one job."""

    def __init__(
        self, create: Intent, changes: list[Intent], promise: Promise, ended_at: Seconds
    ) -> None:
        self._create = create
        self._promise = promise
        self._ended_at = ended_at
        self._story = Story(
            job_id=create.answer["job_id"],
            name=create.document["name"],
            tenant=create.tenant,
            recurring=create.document["type"] == "RECURRING",
            create=create,
            changes=[change for change in changes if change.possible],
        )

    def tell(self) -> Story:
        story = self._story
        effective = self._effective()
        for change in story.changes:
            if change.doubtful:
                story.certain_until = min(story.certain_until, change.asked_at)
        for one, other in pairwise(effective):
            if (told_at(other) or 0.0) < (told_at(one) or 0.0):
                # They were asked for at once, and what each of them found is not known.
                story.certain_until = min(story.certain_until, one.asked_at, other.asked_at)
        story.silences = list(self._silences())
        for intent in (self._create, *effective):
            self._add_version(intent)
        if story.recurring:
            self._walk()
        else:
            self._collect_instants(effective)
        return story

    def _effective(self) -> list[Intent]:
        """The changes that were granted and had an effect, in their order."""
        found = []
        for intent in self._story.changes:
            if not intent.granted:
                continue
            told = told_at(intent)
            if told is None:
                self._story.certain_until = min(self._story.certain_until, intent.asked_at)
            elif told >= intent.asked_at - self._promise.clock_seconds:
                # Otherwise it was as wished already, and nothing changed.
                found.append((intent.answer.get("version", 0), told, intent))
        return [intent for _, _, intent in sorted(found, key=lambda change: change[:2])]

    def _add_version(self, intent: Intent) -> None:
        story, told = self._story, told_at(intent)
        if told is None:  # a create whose answer does not say when
            told, story.certain_until = intent.asked_at, intent.asked_at
        document, reschedules = intent.document, True
        if intent.operation != "create":
            document = story.document
        if intent.operation == "update":
            document = patched(story.document, intent.document or {})
            reschedules = document["schedule"] != story.document["schedule"]
        answered_at = intent.answered_at or told
        story.versions.append(
            Version(intent.operation, intent.asked_at, told, answered_at, document, reschedules)
        )

    def _silences(self) -> Iterator[tuple[Seconds, Seconds]]:
        """When no run may begin: from the answer to a pause or delete, until a resume is asked."""
        for intent in self._story.changes:
            if intent.operation not in ("pause", "delete") or intent.answered_at is None:
                continue
            resumed = [
                other.asked_at
                for other in self._story.changes
                if other.operation == "resume"
                and (other.answered_at or FOREVER) >= intent.asked_at
                and intent.operation == "pause"
            ]
            until = min(resumed, default=FOREVER)
            if until > intent.answered_at:
                yield intent.answered_at, until

    def _collect_instants(self, effective: list[Intent]) -> None:
        story = self._story
        for intent in (self._create, *effective):
            asked = (intent.document or {}).get("schedule", {})
            if "at" in asked:
                story.instant = micros(instant(asked["at"]))
            elif "delay_seconds" in asked:
                story.instant = micros(instant(intent.answer["schedule"]["at"]))
            story.instants.add(story.instant)
            story.status = _status_after(intent.operation, story.status)
        for intent in story.changes:
            if intent.doubtful and "at" in (intent.document or {}).get("schedule", {}):
                story.instants.add(micros(instant(intent.document["schedule"]["at"])))

    def _walk(self) -> None:
        """Through the versions of a recurring job, from one stretch to the next."""
        story, before = self._story, Document()
        anchor: datetime | None = None
        for version, following in zip(story.versions, [*story.versions[1:], None], strict=True):
            schedule = version.document["schedule"]
            if any(before.get(key) != schedule.get(key) for key in ("every_seconds", "starts_at")):
                anchor = _anchor(schedule, version.told)
            if before and before.get("max_runs") != schedule.get("max_runs"):
                # Runs are counted from when the limit is set; nobody outside can count them.
                story.certain_until = min(story.certain_until, version.asked_at)
            before = schedule
            story.status = _status_after(version.operation, story.status)
            if story.status == "SCHEDULED":
                self._add_stretch(version, following, anchor)

    def _add_stretch(
        self, version: Version, following: Version | None, anchor: datetime | None
    ) -> None:
        until = following.told if following else FOREVER
        gone_at = following.answered_at if following else FOREVER
        # The dump has its time from just before it was read.
        horizon = self._promise.horizon_seconds + self._promise.late_seconds
        planned = min(gone_at, self._ended_at) + horizon
        schedule = version.document["schedule"]
        found = occurrences(schedule, anchor, _datetime(version.told), _datetime(planned))
        maybe = [(at - _EPOCH) // _MICROSECOND for at in found]
        last = micros(min(until, self._ended_at))
        self._story.stretches.append(
            Stretch(
                since=version.told,
                known_at=version.answered_at,
                until=until,
                gone_at=gone_at,
                document=version.document,
                due=tuple(at for at in maybe if at <= last),
                maybe=frozenset(maybe),
            )
        )


def _status_after(operation: str, status: str) -> str:
    after = {"pause": "PAUSED", "resume": "SCHEDULED", "delete": "CANCELLED"}
    return after.get(operation, status)


def _anchor(schedule: Document, told: Seconds) -> datetime | None:
    """Intervals count from the whole second of their start, or else of their creation."""
    if "every_seconds" not in schedule:
        return None
    if schedule.get("starts_at") is None:
        return _datetime(float(micros(told) // 1_000_000))
    return _datetime(float(-(-micros(instant(schedule["starts_at"])) // 1_000_000)))


def _datetime(at: Seconds) -> datetime:
    return _EPOCH + timedelta(microseconds=micros(at))
