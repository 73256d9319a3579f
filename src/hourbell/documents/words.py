"""Describes a schedule in plain English."""

from hourbell.model.instants import format_instant
from hourbell.model.schedules import Cron, Every, Once, Schedule, Window
from hourbell.timing.cron import resolve_hash
from hourbell.timing.errors import TimingError
from hourbell.timing.words import cron_words, interval_words
from hourbell.timing.zones import shown_in

_HOUR_SECONDS = 3600


def schedule_words(schedule: Schedule, window: Window, job_id: int) -> str:
    """When a job with this schedule and id runs."""
    if isinstance(schedule, Once):
        local = schedule.at.astimezone(shown_in(schedule.timezone))
        clock = local.strftime("%H:%M:%S" if local.second else "%H:%M")
        return f"Once, on {local.date()} at {clock} in {schedule.timezone}."
    sentences = [_rule_words(schedule, job_id)]
    if schedule.jitter_seconds:
        seconds = _counted(schedule.jitter_seconds, "second")
        sentences.append(f"Every run is delayed by the same time of up to {seconds}.")
    if schedule.exclude:
        sentences.append(f"Not on dates in {', '.join(schedule.exclude)}.")
    if window.starts_at is not None:
        sentences.append(f"From {format_instant(window.starts_at)}.")
    if window.ends_at is not None:
        sentences.append(f"Until {format_instant(window.ends_at)}.")
    if window.max_runs is not None:
        sentences.append(f"At most {_counted(window.max_runs, 'run')}.")
    return " ".join(sentences)


def _rule_words(schedule: Cron | Every, job_id: int) -> str:
    if isinstance(schedule, Cron):
        try:
            return cron_words(resolve_hash(schedule.cron, job_id), schedule.timezone)
        except TimingError:  # written by a newer version: the job can still be shown
            return f"Cron: {schedule.cron} in {schedule.timezone}."
    every = interval_words(schedule.every_seconds)
    return f"{every} of elapsed time." if schedule.every_seconds >= _HOUR_SECONDS else f"{every}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
