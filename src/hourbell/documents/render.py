"""Render jobs and executions as users see them: the document of a job, masked, and its state."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hourbell.documents.jobs import definition
from hourbell.documents.words import schedule_words
from hourbell.model.executions import Attempt, Execution
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import Job, NewJob
from hourbell.model.schedules import Cron
from hourbell.security.secrets import masked
from hourbell.timing.cron import caution_about
from hourbell.timing.zones import shown_in


def render_job(job: Job) -> dict[str, Any]:
    """A job as shown to users: the document that would create it, and its state."""
    zone = shown_in(job.schedule.timezone)
    return {
        "job_id": job_text(job.job_id),
        "status": job.status.value,
        "version": job.version,
        "next_run_at": format_instant(job.next_run_at, zone) if job.next_run_at else None,
        **shown_definition(job),
        "created_at": format_instant(job.created_at),
        "updated_at": format_instant(job.updated_at),
        "schedule_words": schedule_words(job.schedule, job.window, job.job_id),
        "warnings": render_warnings(job),
        "problem": job.problem,
    }


def render_warnings(job: NewJob) -> list[dict[str, str]]:
    """Warnings about input that is valid but probably not intended."""
    caution = caution_about(job.schedule.cron) if isinstance(job.schedule, Cron) else None
    if caution is None:
        return []
    return [{"path": "schedule.cron", "code": "seconds_first", "message": caution}]


def render_execution(execution: Execution) -> dict[str, Any]:
    """An execution as shown to users."""
    return {
        "execution_id": execution_text(execution.execution_id),
        "job_id": job_text(execution.job_id),
        "job_name": execution.job_name,
        "tenant_id": execution.tenant_id,
        "queue": execution.queue,
        "origin": execution.origin.value,
        "created_at": format_instant(created_at(execution.execution_id)),
        "status": execution.status.value,
        "reason": execution.reason.value if execution.reason else None,
        "waiting_for": execution.waiting_for,
        "scheduled_for": format_instant(execution.scheduled_for),
        "started_at": _instant(execution.started_at),
        "finished_at": _instant(execution.finished_at),
        "duration_ms": execution.duration_ms,
        "attempt": execution.attempt,
        "fence_token": execution.fence,
        "worker_id": execution.worker,
        "lateness_ms": execution.lateness_ms,
        "missed": execution.missed,
        "missed_through": _instant(execution.missed_through),
        "error": execution.error,
        "result": execution.result,
        "progress": execution.progress,
        "attempts": [render_attempt(attempt) for attempt in execution.attempts],
    }


def render_attempt(attempt: Attempt) -> dict[str, Any]:
    """One attempt as shown to users."""
    return {
        "attempt": attempt.attempt,
        "status": attempt.status.value,
        "started_at": format_instant(attempt.started_at),
        "finished_at": _instant(attempt.finished_at),
        "error": attempt.error,
        "kind": attempt.kind,
        "fence_token": attempt.fence,
        "worker_id": attempt.worker,
    }


def shown_definition(job: NewJob) -> dict[str, Any]:
    """The document of a job as shown to users: literal credentials in headers are masked."""
    return without_credentials(definition(job))


def without_credentials(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a job with literal credentials masked."""
    webhooks = [document.get("action"), *(document.get("notifications") or ())]
    for webhook in webhooks:
        if isinstance(webhook, dict) and webhook.get("headers"):
            webhook["headers"] = shown_headers(webhook["headers"])
    return document


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a webhook as shown to users."""
    return {name: masked(name, value) for name, value in headers.items()}


def _instant(instant: datetime | None) -> str | None:
    return format_instant(instant) if instant is not None else None
