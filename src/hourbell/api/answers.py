"""Render engine values as HTTP responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from litestar import Response

from hourbell.documents.render import (
    render_attempt,
    render_warnings,
    shown_definition,
)
from hourbell.documents.settings import render_limits
from hourbell.engine.life.create import Refused
from hourbell.engine.operations.audit import AuditEntry
from hourbell.engine.operations.bulk import BulkChanged
from hourbell.engine.operations.dead_letters import DeadLetter, Purged, Replayed
from hourbell.engine.operations.runs import Requested
from hourbell.engine.views.explain import Explanation
from hourbell.engine.views.forecast import Forecast
from hourbell.engine.views.overview import NamedResource
from hourbell.engine.views.pages import Page
from hourbell.model.ids import execution_text, job_text
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


def render_page(page: Page, render: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """One page of a list, with the token of the next page."""
    return {"items": [render(item) for item in page.items], "next_page_token": page.next_token}


def render_requested(requested: Requested) -> dict[str, Any]:
    """The ids of the executions that a request created."""
    return {"execution_ids": [execution_text(number) for number in requested.execution_ids]}


def render_result(result: int | Refused) -> object:
    """The result of one batch item: its job id, or the error."""
    return {"job_id": job_text(result)} if isinstance(result, int) else result


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
        "tenant_id": letter.tenant_id,
        "died_at": format_instant(letter.died_at),
        "reason": letter.reason.value,
        "error": letter.error,
        "scheduled_for": format_instant(letter.scheduled_for),
        "attempt": letter.attempt,
        "attempts": [render_attempt(attempt) for attempt in letter.attempts],
        "job": None if letter.job is None else shown_definition(letter.job),
    }


def render_replayed(replayed: Replayed) -> dict[str, Any]:
    """The result of a bulk replay."""
    last = replayed.last_run_at
    return {
        "replayed": replayed.replayed,
        "left": replayed.left,
        "last_run_at": None if last is None else format_instant(last),
        "next_page_token": replayed.next_token,
    }


def render_purged(purged: Purged) -> dict[str, Any]:
    """The result of a purge."""
    return {"purged": purged.purged, "next_page_token": purged.next_token}


def render_bulk(done: str, bulk: BulkChanged) -> dict[str, Any]:
    """The result of a bulk change; `done` names what was done."""
    return {done: bulk.changed, "left": bulk.left, "next_page_token": bulk.next_token}


def render_resource(field: str) -> Callable[[NamedResource], dict[str, Any]]:
    """A renderer for a tenant, queue or target that puts its name under this field."""
    return lambda named: {
        field: named.name,
        **render_limits(named.settings),
        "counts": None if named.counts is None else named.counts | {"at_least": named.at_least},
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
    }


def render_explanation(explanation: Explanation) -> dict[str, Any]:
    """The single condition that a job or execution is waiting for."""
    until, execution_id = explanation.until, explanation.execution_id
    holder = explanation.blocked_by
    return {
        "code": explanation.code,
        "message": explanation.message,
        "until": None if until is None else format_instant(until),
        "execution_id": None if execution_id is None else execution_text(execution_id),
        "blocked_by": None
        if holder is None
        else {
            "execution_id": execution_text(holder.execution_id),
            "job_id": job_text(holder.job_id),
        },
    }
