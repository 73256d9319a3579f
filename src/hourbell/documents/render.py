"""Render jobs, executions and settings as documents. Clients can edit them and send them back."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hourbell.model.executions import Attempt, Execution
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import (
    Action,
    Job,
    JobType,
    NewJob,
    SecretsCheck,
    TaskAction,
    WebhookAction,
)
from hourbell.model.limits import Limits, QueueSettings, TenantSettings
from hourbell.model.policies import RetryPolicy
from hourbell.model.schedules import Cron, Every, Once, Schedule, Window
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
        "warnings": render_warnings(job),
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


def render_limits(limits: Limits) -> dict[str, Any]:
    """The settings of a tenant, a queue or a target: the document that would set them."""
    rate = limits.rate_limit
    shown: dict[str, Any] = {
        "max_concurrency": limits.max_concurrency,
        "rate_limit": None
        if rate is None
        else {"per_second": rate.per_second, "burst": rate.burst},
    }
    match limits:
        case TenantSettings():
            shown |= {
                "weight": limits.weight,
                "max_jobs": limits.max_jobs,
                "ledger_days": limits.ledger_days,
                "dead_letter_days": limits.dead_letter_days,
                "audit_days": limits.audit_days,
            }
        case QueueSettings():
            retries = limits.default_retry_policy
            shown |= {
                "default_timeout_seconds": limits.default_timeout_seconds,
                "default_retry_policy": None if retries is None else render_retry_policy(retries),
            }
    return shown


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


def definition(job: NewJob) -> dict[str, Any]:
    """The document that would create this job, with all defaults spelled out and nothing masked."""
    document: dict[str, Any] = {
        "tenant_id": job.tenant_id,
        "name": job.name,
        "type": job.type.value,
        "schedule": _render_schedule(job.schedule, job.window),
        "action": render_action(job.action),
        "retry_policy": render_retry_policy(job.retry_policy),
        "timeout_seconds": job.timeout_seconds,
        "delivery": job.delivery.value,
        "queue": job.queue,
        "priority": job.priority.name,
        "start_deadline_seconds": job.start_deadline_seconds,
        "deadline_seconds": job.deadline_seconds,
        "concurrency_key": job.concurrency_key,
        "concurrency_limit": job.concurrency_limit if job.concurrency_key is not None else None,
        **render_unique_key(job),
        "labels": job.labels,
        "notifications": [
            {
                "on": [event.value for event in one.on],
                "url": one.url,
                "headers": one.headers,
                **_render_secrets_check(one.secrets),
            }
            for one in job.notifications
        ],
    }
    if job.type is JobType.RECURRING:
        document |= {
            "misfire_policy": job.misfire_policy.value,
            "catch_up_window_seconds": job.catch_up_window_seconds,
            "catch_up_limit": job.catch_up_limit,
            "overlap_policy": job.overlap_policy.value,
        }
    return document


def render_unique_key(job: NewJob) -> dict[str, Any]:
    unique = job.unique_key is not None
    return {
        "unique_key": job.unique_key,
        "on_duplicate": job.on_duplicate.value if unique else None,
    }


def _render_schedule(schedule: Schedule, window: Window) -> dict[str, Any]:
    shown: dict[str, Any]
    match schedule:
        case Once():
            return {"at": format_instant(schedule.at), "timezone": schedule.timezone}
        case Cron():
            shown = {
                "cron": schedule.cron,
                "timezone": schedule.timezone,
                "dst_gap": schedule.dst_gap,
                "dst_overlap": schedule.dst_overlap,
            }
        case Every():
            shown = {"every_seconds": schedule.every_seconds, "timezone": schedule.timezone}
    return shown | {
        "starts_at": _instant(window.starts_at),
        "ends_at": _instant(window.ends_at),
        "max_runs": window.max_runs,
    }


def render_action(action: Action) -> dict[str, Any]:
    """An action as sent to a worker; secret placeholders are not filled in."""
    match action:
        case WebhookAction():
            shown = {
                "type": "WEBHOOK",
                "url": action.url,
                "method": action.method,
                "headers": action.headers,
                "body": action.body,
            }
            if action.signing_secret is not None:
                shown["signing_secret"] = action.signing_secret
            if action.literal:
                shown["literal"] = True
            return shown | _render_secrets_check(action.secrets)
        case TaskAction():
            return {"type": "TASK", "name": action.name, "payload": action.payload}


def _render_secrets_check(check: SecretsCheck) -> dict[str, Any]:
    return {} if check is SecretsCheck.REQUIRED else {"secrets": check.value}


def render_retry_policy(policy: RetryPolicy) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "max_retries": policy.max_retries,
        "backoff": policy.backoff.value,
        "non_retryable": list(policy.non_retryable),
        "retryable": list(policy.retryable),
        "max_crashes": policy.max_crashes,
    }
    if policy.delays_seconds is not None:
        return shown | {"delays_seconds": list(policy.delays_seconds)}
    return shown | {
        "initial_delay_seconds": policy.initial_delay_seconds,
        "max_delay_seconds": policy.max_delay_seconds,
    }


def _instant(instant: datetime | None) -> str | None:
    return format_instant(instant) if instant is not None else None
