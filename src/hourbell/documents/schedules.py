"""Schedules in documents, and the timetable and first run of a schedule for a particular job."""

from datetime import UTC, datetime, timedelta

from hourbell.documents.reader import ObjectReader, Problems
from hourbell.model.instants import LATEST
from hourbell.model.jobs import JobType
from hourbell.model.schedules import (
    MAX_DELAY_SECONDS,
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
from hourbell.timing.cron import canonical, resolve_hash
from hourbell.timing.errors import InvalidRule, UnknownZone
from hourbell.timing.intervals import MAX_EVERY_SECONDS, interval_rule
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import load_zone

OLDEST_AT = timedelta(days=365)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_DST_GAPS: dict[str, DstGap] = {"run_after": "run_after", "skip": "skip"}
_DST_OVERLAPS: dict[str, DstOverlap] = {"once": "once", "twice": "twice"}
RUNS_ONCE = "does not apply to a ONE_TIME job, which runs once"
Timing = tuple[Schedule, Window]


def read_timing(
    reader: ObjectReader, job_type: JobType | None, problems: Problems, now: datetime, job_id: int
) -> Timing | None:
    if job_type is None:  # already recorded as missing; inferred, so that the rest can be checked
        once = reader.given("at") or reader.given("delay_seconds")
        job_type = JobType.ONE_TIME if once else JobType.RECURRING
    timezone = _read_timezone(reader)
    if job_type is JobType.ONE_TIME:
        schedule = _read_once(reader, timezone, now)
        reader.finish()
        return (schedule, Window()) if schedule else None
    window = _read_window(reader)
    recurring = _read_recurring(reader, timezone, window, now)
    reader.finish()
    if recurring is None:
        return None
    if not problems.touch(reader.path("cron"), reader.path("every_seconds")):
        around = [reader.path(key) for key in ("timezone", "starts_at", "ends_at")]
        rest_is_sound = not problems.touch(*around)
        _check_first_run(reader, recurring, window, now, job_id, rest_is_sound)
    return recurring, window


def _read_timezone(reader: ObjectReader) -> str:
    timezone = reader.string("timezone")
    if timezone is None:
        return UTC_ZONE
    try:
        load_zone(timezone)
    except UnknownZone as error:
        reader.wrong("timezone", "unknown_zone", error.reason)
        return UTC_ZONE
    # Only the default object itself is omitted when stored; an equal string would count as a
    # change.
    return UTC_ZONE if timezone == UTC_ZONE else timezone


def _read_once(reader: ObjectReader, timezone: str, now: datetime) -> Once | None:
    for key in ("cron", "every_seconds"):
        reader.forbid(key, "requires type RECURRING; a ONE_TIME job has at or delay_seconds")
    for key in ("starts_at", "ends_at", "max_runs", "dst_gap", "dst_overlap"):
        reader.forbid(key, RUNS_ONCE)
    at = reader.instant("at")
    delay = reader.whole("delay_seconds", 0, MAX_DELAY_SECONDS, None)
    if reader.given("at") and reader.given("delay_seconds"):
        reader.wrong("delay_seconds", "conflict", "cannot be combined with at; give one of the two")
    elif not reader.given("delay_seconds"):
        reader.require("at", "is required, or delay_seconds instead")
    if at is not None and at < now - OLDEST_AT:
        reader.wrong("at", "out_of_range", f"is more than {OLDEST_AT.days} days in the past")
    if delay is not None:
        at = now.astimezone(UTC) + timedelta(seconds=delay)
    return Once(at, timezone) if at is not None else None


def _read_window(reader: ObjectReader) -> Window:
    window = Window(
        starts_at=reader.instant("starts_at"),
        ends_at=reader.instant("ends_at"),
        max_runs=reader.whole("max_runs", 1, MAX_RUNS, None),
    )
    if window.starts_at and window.ends_at and window.ends_at <= window.starts_at:
        reader.wrong("ends_at", "conflict", "must be later than starts_at")
    return window


def _read_recurring(
    reader: ObjectReader, timezone: str, window: Window, now: datetime
) -> Cron | Every | None:
    for key in ("at", "delay_seconds"):
        reader.forbid(key, "requires type ONE_TIME; a RECURRING job has cron or every_seconds")
    cron = reader.string("cron")
    seconds = reader.whole("every_seconds", 1, MAX_EVERY_SECONDS, None)
    gap = reader.choice("dst_gap", _DST_GAPS, _DST_GAPS["run_after"])
    overlap = reader.choice("dst_overlap", _DST_OVERLAPS, _DST_OVERLAPS["once"])
    if reader.given("every_seconds"):
        reader.forbid("cron", "cannot be combined with every_seconds; give one of the two")
        for key in ("dst_gap", "dst_overlap"):
            reader.forbid(key, "does not apply to every_seconds, which counts elapsed time")
        anchor = _anchor(window, now)
        return Every(seconds, anchor, timezone) if seconds is not None else None
    reader.require("cron", "is required, or every_seconds instead")
    return Cron(cron, timezone, gap, overlap) if cron is not None else None


def _anchor(window: Window, now: datetime) -> int:
    # A start is rounded up to a whole second, so that no run precedes it; now is rounded down, so
    # that the first run is never later than one interval from now.
    if window.starts_at is None:
        return (now - _EPOCH) // _SECOND
    return -((_EPOCH - window.starts_at) // _SECOND)


def _check_first_run(
    reader: ObjectReader,
    schedule: Cron | Every,
    window: Window,
    now: datetime,
    job_id: int,
    rest_is_sound: bool,
) -> None:
    """Reject an invalid rule, and a schedule without any run."""
    try:
        first = first_run(schedule, window, job_id, now)
    except InvalidRule as error:
        reader.wrong("cron", "invalid_cron", f"{error.field}: {error.reason}")
        return
    if first is not None or not rest_is_sound:
        return
    if window.ends_at is not None:
        reader.wrong("ends_at", "never_runs", "is before the first run")
    elif window.starts_at is not None:
        reader.wrong("starts_at", "never_runs", "is after the last time that the rule matches")
    else:
        reader.wrong("cron", "never_runs", "matches only times in DST gaps of the time zone")


def timetable_of(schedule: Cron | Every, job_id: int) -> Timetable:
    """The timetable of a job with this schedule and id; raises InvalidRule."""
    if isinstance(schedule, Every):
        anchor = _EPOCH + schedule.anchor * _SECOND
        return Timetable(interval_rule(schedule.every_seconds, anchor), UTC_ZONE)
    rule = canonical(resolve_hash(schedule.cron, job_id))
    return Timetable(rule, schedule.timezone, schedule.dst_gap, schedule.dst_overlap)


def first_run(
    schedule: Cron | Every, window: Window, job_id: int, now: datetime
) -> datetime | None:
    """The first run after now and within the window, or None if there is none."""
    timetable = timetable_of(schedule, job_id)
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    after = now.astimezone(UTC)
    if window.starts_at is not None:
        # A run at exactly starts_at counts, and next() is always later than its argument.
        after = max(after, window.starts_at - timedelta(microseconds=1))
    first = rule.next(after)
    last = window.ends_at or LATEST
    return first if first is not None and first <= last else None
