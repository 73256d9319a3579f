"""Render engine values as HTTP responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

import msgspec
from litestar import Request, Response

from hourbell.api.page_tokens import page_token_of
from hourbell.documents.render import (
    render_attempt,
    render_job,
    render_warnings,
    shown_definition,
)
from hourbell.documents.settings import render_limits
from hourbell.engine.life.create import Created, Made, Result
from hourbell.engine.operations.audit import AuditEntry
from hourbell.engine.operations.bulk_changes import BulkChanged
from hourbell.engine.operations.bulk_operations import Operation, OperationPreview
from hourbell.engine.operations.dead_letters import DeadLetter, Purged, Replayed
from hourbell.engine.operations.runs import Requested
from hourbell.engine.views.backlog import Backlog
from hourbell.engine.views.dead_letter_groups import DeadLetterGroups
from hourbell.engine.views.explain import Explanation
from hourbell.engine.views.forecast import Forecast, ForecastMinute
from hourbell.engine.views.job_details import JobDetails, PauseDetails
from hourbell.engine.views.pages import Page
from hourbell.engine.views.preview import SchedulePreview
from hourbell.engine.views.resources import NamedResource
from hourbell.model.ids import execution_text, job_text, operation_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import Job
from hourbell.timing.forecast import NextRun
from hourbell.timing.zones import shown_in

JSON = "application/json"


def answer(
    content: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = JSON,
) -> Response[bytes]:
    """A JSON response that must not be cached: the resource may change at any time."""
    return Response(
        msgspec.json.encode(content),
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type=media_type,
    )


def render_page(
    request: Request[Any, Any, Any], page: Page, render: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """One page of a list, with the token of the next page."""
    next_token = page_token_of(request, page.next_token)
    return {"items": [render(item) for item in page.items], "next_page_token": next_token}


def render_requested(requested: Requested) -> dict[str, Any]:
    """The ids of the executions that a request created."""
    return {"execution_ids": [execution_text(number) for number in requested.execution_ids]}


def render_created_names(created: Created | Made) -> dict[str, bool]:
    """The names that the creation of a job has created; without those that existed."""
    made = {"created_tenant": created.created_tenant, "created_queue": created.created_queue}
    return {name: True for name, is_new in made.items() if is_new}


def render_result(result: Result) -> object:
    """The result of one batch item: its job id, or the error."""
    match result:
        case int():
            return {"job_id": job_text(result)}
        case Made(job_id=job_id):
            return {"job_id": job_text(job_id)} | render_created_names(result)
    return result


def render_next_runs(job: Job, runs: Sequence[NextRun]) -> dict[str, Any]:
    """Upcoming runs, in the time zone of the job."""
    zone = shown_in(job.schedule.timezone)
    return {
        "items": [
            {"scheduled_for": format_instant(run.utc, zone), "note": run.note or None}
            for run in runs
        ],
        "warnings": render_warnings(job),
    }


def render_preview(preview: SchedulePreview) -> dict[str, Any]:
    """A schedule, explained."""
    zone = shown_in(preview.timezone)
    return {
        "words": preview.words,
        "timezone": preview.timezone,
        "items": [_render_run(run, zone) for run in preview.runs],
        "clock_changes": [
            {
                "at": format_instant(effect.change.at),
                "kind": "forward" if effect.change.shift > timedelta(0) else "back",
                "shift_seconds": int(effect.change.shift.total_seconds()),
                "affected": effect.affected,
                "note": effect.note,
                "runs": [_render_run(run, zone) for run in effect.runs],
            }
            for effect in preview.changes
        ],
        "hints": [msgspec.structs.asdict(hint) for hint in preview.hints],
    }


def _render_run(run: NextRun, zone: tzinfo) -> dict[str, Any]:
    return {
        "scheduled_for": format_instant(run.utc, zone),
        "utc": format_instant(run.utc),
        "note": run.note or None,
    }


def render_audit(entry: AuditEntry) -> dict[str, Any]:
    """One entry of the audit trail."""
    return {
        "at": format_instant(entry.at),
        "tenant_id": entry.tenant_id,
        "job_id": None if entry.job_id is None else job_text(entry.job_id),
        "actor": entry.actor,
        "operation": entry.operation,
        "from": entry.before,
        "to": entry.after,
    }


def render_dead_letter(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter."""
    return {
        "execution_id": execution_text(letter.execution_id),
        "job_id": job_text(letter.job_id),
        "job_name": letter.job_name,
        "tenant_id": letter.tenant_id,
        "died_at": format_instant(letter.died_at),
        "reason": letter.reason.value,
        "kind": letter.kind,
        "error": letter.error,
        "fingerprint": letter.fingerprint,
        "scheduled_for": format_instant(letter.scheduled_for),
        "attempt": letter.attempt,
        "attempts": [render_attempt(attempt) for attempt in letter.attempts],
        "job": None if letter.job is None else shown_definition(letter.job),
    }


def render_groups(found: DeadLetterGroups) -> dict[str, Any]:
    """Dead letters by error."""
    return {
        "items": [
            {
                "fingerprint": group.fingerprint,
                "count": group.count,
                "reason": group.newest.reason.value,
                "kind": group.newest.kind,
                "action": group.action,
                "error": group.newest.error,
                "execution_id": execution_text(group.newest.execution_id),
                "first_died_at": format_instant(group.first_died_at),
                "last_died_at": format_instant(group.last_died_at),
                "jobs": group.jobs,
                "tenants": group.tenants,
            }
            for group in found.groups
        ],
        "looked_at": found.looked_at,
        "looked_back_to": _instant(found.looked_back_to),
        "complete": found.complete,
    }


def _left_reasons(left_over: Mapping[str, int]) -> list[dict[str, Any]]:
    """Why items were left, and how many."""
    return [{"code": code, "count": count} for code, count in left_over.items()]


def render_replayed(request: Request[Any, Any, Any], replayed: Replayed) -> dict[str, Any]:
    """The result of a bulk replay."""
    last = replayed.last_run_at
    return {
        "replayed": replayed.replayed,
        "left": replayed.left,
        "left_reasons": _left_reasons(replayed.left_over),
        "last_run_at": None if last is None else format_instant(last),
        "next_page_token": page_token_of(request, replayed.next_token),
    }


def render_purged(request: Request[Any, Any, Any], purged: Purged) -> dict[str, Any]:
    """The result of a purge."""
    return {"purged": purged.purged, "next_page_token": page_token_of(request, purged.next_token)}


def render_bulk(request: Request[Any, Any, Any], done: str, bulk: BulkChanged) -> dict[str, Any]:
    """The result of a bulk change; `done` names the action."""
    return {
        done: bulk.changed,
        "left": bulk.left,
        "next_page_token": page_token_of(request, bulk.next_token),
    }


def render_operation_preview(preview: OperationPreview) -> dict[str, Any]:
    """What a bulk operation would apply to."""
    return msgspec.structs.asdict(preview)


def render_operation(operation: Operation) -> dict[str, Any]:
    """A bulk operation and its progress."""
    return {
        "operation_id": operation_text(operation.operation_id),
        "act": operation.act,
        "filter": operation.filter,
        "reason": operation.reason,
        "until": _instant(operation.until),
        "rate_per_second": operation.rate_per_second,
        "tenant_id": operation.tenant_id,
        "created_by": operation.created_by,
        "created_at": format_instant(operation.created_at),
        "state": operation.state,
        "total": operation.total,
        "total_at_least": operation.total_at_least,
        "done": operation.done,
        "left": sum(operation.left_over.values()),
        "left_reasons": _left_reasons(operation.left_over),
        "error": operation.error,
        "updated_at": format_instant(operation.updated_at),
        "ended_at": _instant(operation.ended_at),
    }


def render_backlog(found: Sequence[Backlog]) -> list[dict[str, Any]]:
    """What executions wait for, and how many."""
    return [
        {"code": each.code, "words": each.words, "count": each.count, "at_least": each.at_least}
        for each in found
    ]


def render_resource(field: str) -> Callable[[NamedResource], dict[str, Any]]:
    """A renderer for a tenant, queue or target that puts its name under this field."""
    return lambda named: {
        field: named.name,
        "version": named.settings.version,
        **render_limits(named.settings),
        "counts": None if named.counts is None else named.counts | {"at_least": named.at_least},
        **({} if named.backlog is None else {"waiting_for": render_backlog(named.backlog)}),
    }


def render_forecast_minute(found: ForecastMinute) -> dict[str, Any]:
    """What will be due in a minute."""
    return {
        "at": format_instant(found.at),
        "items": [
            {
                "at": format_instant(each.at),
                "job_id": job_text(each.job_id),
                "job_name": each.job_name,
                "tenant_id": each.tenant_id,
                "execution_id": None
                if each.execution_id is None
                else execution_text(each.execution_id),
            }
            for each in found.items
        ],
        "more": found.more,
    }


def render_forecast(forecast: Forecast) -> dict[str, Any]:
    """The forecast load."""
    return {
        "begins_at": format_instant(forecast.begins_at),
        "ends_at": format_instant(forecast.ends_at),
        "complete_until": format_instant(forecast.complete_until),
        "estimated": forecast.estimated,
        "minutes": [
            {"at": format_instant(at), "executions": count} for at, count in forecast.minutes
        ],
        "herds": [
            msgspec.structs.asdict(herd) | {"at": format_instant(herd.at)}
            for herd in forecast.herds
        ],
        "herd_moments": [
            {"at": format_instant(at), "executions": count} for at, count in forecast.herd_moments
        ],
        "delays": [
            msgspec.structs.asdict(delay)
            | {
                "begins_at": format_instant(delay.begins_at),
                "seconds": round(delay.seconds, 3),
                "due_at": format_instant(delay.due_at),
                "last_start_at": _instant(delay.last_start_at),
            }
            for delay in forecast.delays
        ],
        "untimed": forecast.untimed,
        "capacity_per_minute": {
            "executions": forecast.capacity.executions,
            "reason": forecast.capacity.reason,
            "measured_from": _instant(forecast.capacity.measured_from),
            "measured_to": _instant(forecast.capacity.measured_to),
        },
    }


def render_explanation(explanation: Explanation) -> dict[str, Any]:
    """The single condition that a job or execution is waiting for."""
    blocker, holder, error = explanation.blocked_by, explanation.holder, explanation.last_error
    last = explanation.last_due
    return {
        "code": explanation.code,
        "message": explanation.message,
        "since": _instant(explanation.since),
        "until": _instant(explanation.until),
        "expected_at": _instant(explanation.expected_at),
        "execution_id": explanation.execution_id,
        "blocked_by": None
        if blocker is None
        else {"execution_id": blocker.execution_id, "job_id": blocker.job_id},
        "holder": None
        if holder is None
        else {
            "execution_id": holder.execution_id,
            "job_id": holder.job_id,
            "worker": holder.worker,
            "limit": holder.limit,
            "in_use": holder.in_use,
        },
        "attempt": explanation.attempt,
        "max_attempts": explanation.max_attempts,
        "last_error": None
        if error is None
        else {"kind": error.kind, "error": error.error, "at": _instant(error.at)},
        "paused": _render_pause(explanation.paused),
        "last_due": None
        if last is None
        else {
            "execution_id": last.execution_id,
            "scheduled_for": format_instant(last.scheduled_for),
            "status": last.status.value,
            "reason": None if last.reason is None else last.reason.value,
            "code": last.code,
            "message": last.message,
        },
    }


def render_job_with(details: Mapping[int, JobDetails]) -> Callable[[Job], dict[str, Any]]:
    """A renderer of jobs with their details."""
    return lambda job: render_job(job) | _render_details(details[job.job_id])


def _render_details(details: JobDetails) -> dict[str, Any]:
    shown: dict[str, Any] = {"paused": _render_pause(details.paused)}
    if details.last_outcomes is not None:
        shown["last_outcomes"] = [
            {
                "execution_id": execution_text(each.execution_id),
                "scheduled_for": format_instant(each.scheduled_for),
                "status": each.status.value,
                "reason": None if each.reason is None else each.reason.value,
            }
            for each in details.last_outcomes
        ]
    return shown


def _render_pause(pause: PauseDetails | None) -> dict[str, Any] | None:
    if pause is None:
        return None
    return {
        "by": pause.by,
        "at": format_instant(pause.at),
        "reason": pause.reason,
        "until": _instant(pause.until),
    }


def _instant(instant: datetime | None) -> str | None:
    return None if instant is None else format_instant(instant)
