"""preview: a schedule in words, its next runs, and what clock changes do to it."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from hourbell.documents.previews import PreviewRequest, parse_preview
from hourbell.documents.schedules import timetable_of
from hourbell.documents.words import schedule_words
from hourbell.engine.core import Engine
from hourbell.engine.life.references import require_calendars
from hourbell.engine.views.jobs import excluded_dates, upcoming_runs
from hourbell.model.instants import LATEST
from hourbell.model.jobs import DEFAULT_TENANT
from hourbell.model.schedules import Cron, Once
from hourbell.timing.cron import caution_about, parse_fields, resolve_hash
from hourbell.timing.forecast import ChangeEffect, NextRun, change_effects
from hourbell.timing.zones import shown_in

CHANGES_WITHIN = timedelta(days=396)  # 13 months: each yearly change at least once
_ZERO = frozenset({0})


class Hint(msgspec.Struct, frozen=True):
    """Something to consider about a schedule that is valid."""

    path: str
    code: str
    message: str


class SchedulePreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule means."""

    words: str
    timezone: str
    runs: list[NextRun]
    changes: list[ChangeEffect]
    hints: list[Hint]


async def preview_schedule(engine: Engine, document: object) -> SchedulePreview:
    """What the schedule of a document means; raises InvalidInput."""
    now = await engine.clock.now()
    wanted = parse_preview(document, now)
    tenant = wanted.tenant_id or engine.scope or DEFAULT_TENANT
    engine.require_access(tenant)
    schedule, window = wanted.schedule, wanted.window
    words = schedule_words(schedule, window, wanted.job_id)
    if isinstance(schedule, Once):
        local = schedule.at.astimezone(shown_in(schedule.timezone))
        return SchedulePreview(
            words=words,
            timezone=schedule.timezone,
            runs=[NextRun(schedule.at, local, "")],
            changes=[],
            hints=[],
        )
    await require_calendars(engine, tenant, schedule)
    excluded = await excluded_dates(engine, tenant, schedule, now)
    runs = upcoming_runs(schedule, window, wanted.job_id, now, wanted.count, excluded)
    return SchedulePreview(
        words=words,
        timezone=schedule.timezone,
        runs=runs,
        changes=_changes(wanted, now) if wanted.clock_changes else [],
        hints=_hints(wanted),
    )


def _changes(wanted: PreviewRequest, now: datetime) -> list[ChangeEffect]:
    schedule, window = wanted.schedule, wanted.window
    assert not isinstance(schedule, Once)
    timetable = timetable_of(schedule, wanted.job_id)
    after = now if window.starts_at is None else max(now, window.starts_at)
    through = min(after + CHANGES_WITHIN, window.ends_at or LATEST, LATEST)
    return change_effects(
        timetable.rule,
        schedule.timezone,
        after,
        through,
        timetable.dst_gap,
        timetable.dst_overlap,
    )


def _hints(wanted: PreviewRequest) -> list[Hint]:
    schedule = wanted.schedule
    hints = []
    has_hash = False
    if isinstance(schedule, Cron):
        path = "schedule.cron"
        caution = caution_about(schedule.cron)
        if caution is not None:
            hints.append(Hint(path, "seconds_first", caution))
        resolved = resolve_hash(schedule.cron, wanted.job_id)
        has_hash = resolved != schedule.cron
        second, minute = parse_fields(resolved)[:2]
        full_hour = second.values() == minute.values() == _ZERO
        if full_hour and not has_hash and not schedule.jitter_seconds:
            message = (
                "Many schedules run at full hours, and then wait for each other. If the minute does "
                "not matter, write H in its place: each job then gets a minute of its own."
            )
            hints.append(Hint(path, "full_hour", message))
    assert not isinstance(schedule, Once)
    if wanted.is_example and (has_hash or schedule.jitter_seconds):
        message = (
            "The id of the job decides about H and jitter. The times shown here are an example; "
            "those of the job are known when it exists."
        )
        path = "schedule.cron" if has_hash else "schedule.jitter_seconds"
        hints.append(Hint(path, "hash_example", message))
    return hints
