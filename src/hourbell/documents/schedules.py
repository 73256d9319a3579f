"""Schedules in documents, and the timetable and first run of a schedule for a particular job."""

from collections.abc import Collection
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from hourbell.documents.fields import Document, Field
from hourbell.documents.kinds import Array, Choice, Instant, InstantOrWall, Integer, Label, String
from hourbell.documents.problems import Problems
from hourbell.model.instants import EARLIEST, LATEST
from hourbell.model.jobs import JobType
from hourbell.model.schedules import (
    MAX_DELAY_SECONDS,
    MAX_EXCLUDED,
    MAX_JITTER_SECONDS,
    MAX_RUNS,
    UTC_ZONE,
    Cron,
    DstGap,
    DstOverlap,
    Every,
    Once,
    Schedule,
    Timetable,
    Window,
)
from hourbell.timing.cron import canonical, jitter_of, resolve_hash
from hourbell.timing.errors import InvalidRule, UnknownZone
from hourbell.timing.intervals import MAX_EVERY_SECONDS, interval_rule
from hourbell.timing.rules import compile_rule, delayed, instant_of
from hourbell.timing.zones import load_zone, shown_in

OLDEST_AT = timedelta(days=365)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DST_GAPS: dict[str, DstGap] = {"run_after": "run_after", "skip": "skip"}
_DST_OVERLAPS: dict[str, DstOverlap] = {"once": "once", "twice": "twice"}
RUNS_ONCE = "does not apply to a ONE_TIME job, which runs once"
Timing = tuple[Schedule, Window]


class _Zone(String):
    """The name of a time zone."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        timezone = super().read(value, path, problems)
        if timezone is None:
            return None
        try:
            load_zone(timezone)
        except UnknownZone as error:
            problems.add(path, "unknown_zone", error.reason)
            return None
        # Only the default object itself is omitted when stored; an equal string would count as a
        # change.
        return UTC_ZONE if timezone == UTC_ZONE else timezone


class WindowDocument(Document):
    starts_at = Field(Instant(), description="The first instant at which the job may run.")
    ends_at = Field(Instant(), description="The last instant at which the job may run.")
    max_runs = Field(
        Integer(1, MAX_RUNS), description="After this many started runs the job is ENDED."
    )


class CronSchedule(Document):
    cron = Field(
        String(),
        required="is required, unless every_seconds is given",
        description="Five fields, six with leading seconds, or a macro such as @daily.",
    )
    timezone = Field(_Zone(), default=UTC_ZONE, description="An IANA time zone name.")
    dst_gap = Field(Choice(_DST_GAPS), default="run_after")
    dst_overlap = Field(Choice(_DST_OVERLAPS), default="once")
    jitter_seconds = Field(
        Integer(0, MAX_JITTER_SECONDS),
        default=0,
        description=(
            "Delays every run of the job by the same time of up to this many seconds, derived from "
            "the job id. Not allowed for CRITICAL jobs."
        ),
    )
    exclude = Field(
        Array(Label(), 0, MAX_EXCLUDED, distinct=True),
        default=(),
        description="Calendars of the tenant. Runs on their dates, in the time zone, are SKIPPED.",
    )
    starts_at = WindowDocument.starts_at
    ends_at = WindowDocument.ends_at
    max_runs = WindowDocument.max_runs


class IntervalSchedule(Document):
    every_seconds = Field(
        Integer(1, MAX_EVERY_SECONDS),
        required="is required, unless cron is given",
        description="Elapsed time, counted from starts_at or else from creation.",
    )
    timezone = CronSchedule.timezone
    jitter_seconds = CronSchedule.jitter_seconds
    exclude = CronSchedule.exclude
    starts_at = WindowDocument.starts_at
    ends_at = WindowDocument.ends_at
    max_runs = WindowDocument.max_runs


class InstantSchedule(Document):
    at = Field(
        InstantOrWall(),
        required="is required, unless delay_seconds is given",
        description=(
            "An instant; or, without an offset, a wall time in `timezone`, which is then required. A "
            "time in the past means now."
        ),
    )
    timezone = CronSchedule.timezone


class DelaySchedule(Document):
    delay_seconds = Field(
        Integer(0, MAX_DELAY_SECONDS), required="is required, unless `at` is given"
    )
    timezone = CronSchedule.timezone


class ScheduleDocument(CronSchedule, IntervalSchedule, InstantSchedule, DelaySchedule):
    """A schedule of any kind; the type of the job and the given fields decide which."""


def render_schedule(schedule: Schedule, window: Window) -> dict[str, Any]:
    match schedule:
        case Once():
            return InstantSchedule.render(schedule)
        case Cron():
            return CronSchedule.render(schedule, **WindowDocument.render(window))
        case Every():
            return IntervalSchedule.render(schedule, **WindowDocument.render(window))


def read_timing(
    document: ScheduleDocument, job_type: JobType | None, now: datetime, job_id: int
) -> Timing | None:
    if job_type is None:  # already recorded as missing; inferred so that the rest can be checked
        once = document.given("at") or document.given("delay_seconds")
        job_type = JobType.ONE_TIME if once else JobType.RECURRING
    timezone = document.timezone
    if job_type is JobType.ONE_TIME:
        schedule = _read_once(document, timezone, now)
        document.finish()
        return (schedule, Window()) if schedule else None
    window = _read_window(document)
    recurring = _read_recurring(document, timezone, window, now)
    document.finish()
    if recurring is None:
        return None
    problems = document.problems
    if not problems.touch(document.path("cron"), document.path("every_seconds")):
        around = [document.path(key) for key in ("timezone", "starts_at", "ends_at")]
        rest_is_sound = not problems.touch(*around)
        _check_first_run(document, recurring, window, now, job_id, rest_is_sound)
    return recurring, window


def _read_once(document: ScheduleDocument, timezone: str, now: datetime) -> Once | None:
    for key in ("cron", "every_seconds"):
        document.forbid(key, "requires type RECURRING; a ONE_TIME job has at or delay_seconds")
    for key in (*WindowDocument.FIELDS, "dst_gap", "dst_overlap", "jitter_seconds", "exclude"):
        document.forbid(key, RUNS_ONCE)
    delayed = document.given("delay_seconds")
    at = document.at if document.given("at") or not delayed else None
    delay = document.delay_seconds if delayed else None
    if at is not None and at.tzinfo is None:
        at = _read_wall(document, at, timezone)
    if delayed and document.given("at"):
        message = "cannot be combined with at; give only one of them"
        document.wrong("delay_seconds", "conflict", message)
    if at is not None and at < now - OLDEST_AT:
        document.wrong("at", "out_of_range", f"is more than {OLDEST_AT.days} days in the past")
    if delay is not None:
        at = now.astimezone(UTC) + timedelta(seconds=delay)
    return Once(at, timezone) if at is not None else None


def _read_wall(document: ScheduleDocument, wall: datetime, timezone: str) -> datetime | None:
    """The instant of a wall time in the document's zone."""
    if not document.given("timezone"):
        message = "needs an offset: end it with Z or, for example, +05:30; or set timezone"
        document.wrong("at", "bad_format", message)
        return None
    if document.problems.touch(document.path("timezone")):
        return None
    try:
        at = instant_of(wall, timezone)
    except OverflowError:
        at = None
    if at is None or not EARLIEST <= at < LATEST:
        message = f"does not exist in {timezone}: the clocks there skip more than three hours"
        document.wrong("at", "never_runs", message)
        return None
    return at


def _read_window(document: ScheduleDocument) -> Window:
    window = Window(
        starts_at=document.starts_at, ends_at=document.ends_at, max_runs=document.max_runs
    )
    if window.starts_at and window.ends_at and window.ends_at <= window.starts_at:
        document.wrong("ends_at", "conflict", "must be later than starts_at")
    return window


def _read_recurring(
    document: ScheduleDocument, timezone: str, window: Window, now: datetime
) -> Cron | Every | None:
    for key in ("at", "delay_seconds"):
        document.forbid(key, "requires type ONE_TIME; a RECURRING job has cron or every_seconds")
    by_interval = document.given("every_seconds")
    cron = document.cron if document.given("cron") or not by_interval else None
    seconds = document.every_seconds if by_interval else None
    gap, overlap = document.dst_gap, document.dst_overlap
    jitter, exclude = document.jitter_seconds, document.exclude
    if by_interval:
        document.forbid("cron", "cannot be combined with every_seconds; give only one of them")
        for key in ("dst_gap", "dst_overlap"):
            document.forbid(key, "does not apply to every_seconds, which counts elapsed time")
        anchor = _anchor(window, now)
        return Every(seconds, anchor, timezone, jitter, exclude) if seconds is not None else None
    return Cron(cron, timezone, gap, overlap, jitter, exclude) if cron is not None else None


def _anchor(window: Window, now: datetime) -> int:
    # A start is rounded up to a whole second, so that no run precedes it; now is rounded down, so
    # that the first run is never later than one interval from now.
    if window.starts_at is None:
        return (now - _EPOCH) // _SECOND
    return -((_EPOCH - window.starts_at) // _SECOND)


def _check_first_run(
    document: ScheduleDocument,
    schedule: Cron | Every,
    window: Window,
    now: datetime,
    job_id: int,
    rest_is_sound: bool,
) -> None:
    """Reject an invalid rule, and a schedule that never runs."""
    try:
        first = first_run(schedule, window, job_id, now)
    except InvalidRule as error:
        document.wrong("cron", "invalid_cron", f"{error.field}: {error.reason}")
        return
    if first is not None or not rest_is_sound:
        return
    if window.ends_at is not None:
        document.wrong("ends_at", "never_runs", "is before the first run")
    elif window.starts_at is not None:
        document.wrong("starts_at", "never_runs", "is after the last time the rule matches")
    else:
        document.wrong(
            "cron", "never_runs", "matches only times that the time zone skips in DST gaps"
        )


def timetable_of(schedule: Cron | Every, job_id: int) -> Timetable:
    """The timetable of a job with this schedule and id; raises InvalidRule."""
    jitter = jitter_of(job_id, schedule.jitter_seconds)
    if isinstance(schedule, Every):
        anchor = _EPOCH + (schedule.anchor + jitter) * _SECOND
        return Timetable(interval_rule(schedule.every_seconds, anchor), UTC_ZONE)
    rule = delayed(canonical(resolve_hash(schedule.cron, job_id)), jitter)
    return Timetable(rule, schedule.timezone, schedule.dst_gap, schedule.dst_overlap)


def first_run(
    schedule: Cron | Every,
    window: Window,
    job_id: int,
    now: datetime,
    excluded: Collection[date] = (),
) -> datetime | None:
    """The first run after now, within the window and not on an excluded date; None if there is none."""
    timetable = timetable_of(schedule, job_id)
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    after = now.astimezone(UTC)
    if window.starts_at is not None:
        # A run at exactly starts_at counts, and next() is always later than its argument.
        after = max(after, window.starts_at - timedelta(microseconds=1))
    first = rule.next(after)
    zone = shown_in(schedule.timezone)
    while first is not None and (day := first.astimezone(zone).date()) in excluded:
        midnight = datetime.combine(day + timedelta(days=1), time(), zone)
        first = rule.next(midnight.astimezone(UTC) - timedelta(microseconds=1))
    last = window.ends_at or LATEST
    return first if first is not None and first <= last else None
