"""The overview, and the fleet: workers, nodes and open circuits."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from hourbell.api.answers import answer, render_backlog, render_page
from hourbell.api.queries import OverviewQuery, WorkersQuery
from hourbell.api.requests import AnyRequest, read_window, read_workers_query, refuse_query
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.engine.views import fleet as fleets
from hourbell.engine.views import overview as overviews
from hourbell.engine.views.activity import Activity, Figures, Lateness
from hourbell.engine.views.attention import Item
from hourbell.engine.views.fleet import Depth, Fleet, Held, Leader, Worker
from hourbell.engine.views.overview import Overview, Peak, Peaks
from hourbell.engine.views.resources import MAX_COUNTED
from hourbell.model.executions import REASONS, ExecutionStatus
from hourbell.model.ids import execution_text, job_text, parse_session_id, session_text
from hourbell.model.instants import format_instant
from hourbell.security.access import READ

PeaksDep = NamedDependency[SkipValidation[Peaks]]

_FAILURES = {*REASONS[ExecutionStatus.DEAD], *REASONS[ExecutionStatus.SKIPPED]}


async def get_overview(engine: EngineDep, peaks: PeaksDep, request: AnyRequest) -> Response[bytes]:
    window = read_window(request)
    return answer(_render_overview(await overviews.overview(engine, window, peaks)))


async def list_workers(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    state, part = read_workers_query(request)
    page = await fleets.list_workers(engine, state, part.page_size, part.page_token)
    return answer(render_page(request, page, _render_worker))


async def get_worker(
    engine: EngineDep, request: AnyRequest, session_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    worker, held = await fleets.get_worker(engine, parse_session_id(session_id))
    return answer({**_render_worker(worker), "executions": [_render_held(each) for each in held]})


async def list_nodes(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    refuse_query(request)
    nodes = await fleets.list_nodes(engine)
    return answer(
        {
            "items": [
                node | {name: format_instant(node[name]) for name in ("started_at", "seen_at")}
                for node in nodes
            ]
        }
    )


async def list_circuits(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    refuse_query(request)
    rows = await fleets.open_circuits(engine, await engine.clock.now())
    return answer(
        {
            "items": [
                {
                    "host": row["host"],
                    "endpoint": row["endpoint"],
                    "tenant_id": row["tenant"],
                    "node_id": str(row["id"]) if engine.scope is None else None,
                    "node": row["name"] if engine.scope is None else None,
                    "failures": row["failures"],
                    "since": format_instant(row["since"]),
                    "open_until": format_instant(row["until"]),
                    "last_error": row["error"],
                }
                for row in rows
            ]
        }
    )


def render_live(live: overviews.Live) -> dict[str, Any]:
    """The live part of the overview, for the event stream."""
    minutes = live.activity.series
    return {
        "at": format_instant(live.at),
        "started_per_minute": live.activity.started_per_minute,
        "totals": _render_figures(live.activity.totals),
        "last": None if not minutes else _render_figures(minutes[-1].figures),
        "lateness_ms": _render_lateness(live.activity.lateness),
        "depth": [_render_depth(each, live.at) for each in live.depth],
        "waiting_for": render_backlog(live.backlog),
        "workers": _render_fleet(live.workers),
        "leader": _render_leader(live.leader),
    }


def _render_overview(overview: Overview) -> dict[str, Any]:
    activity = overview.activity
    return {
        "at": format_instant(overview.at),
        "window": overview.window,
        "tenant_id": overview.tenant_id,
        "bucket_seconds": int(activity.bucket.total_seconds()),
        "complete_until": _instant_or_none(activity.complete_until),
        "series": [
            {
                "at": format_instant(bucket.at),
                **_render_figures(bucket.figures),
                "lateness_ms": _render_lateness(bucket.lateness),
            }
            for bucket in activity.series
        ],
        "totals": _render_figures(activity.totals),
        "started_per_minute": activity.started_per_minute,
        "lateness_ms": _render_lateness(activity.lateness),
        "sampled": activity.sampled,
        "depth": [_render_depth(each, overview.at) for each in overview.depth],
        "waiting_for": render_backlog(overview.backlog),
        "dead_today": {
            "count": overview.dead_today,
            "at_least": overview.dead_today >= MAX_COUNTED,
        },
        "leader": _render_leader(overview.leader),
        "workers": _render_fleet(overview.workers),
        "failures": _render_failures(activity),
        "attention": [_render_item(item) for item in overview.attention],
        "peak": _render_peak(overview.peak),
        "peak_known": overview.peak_known,
    }


def _render_figures(figures: Figures) -> dict[str, Any]:
    return msgspec.structs.asdict(figures)


def _render_lateness(lateness: Lateness | None) -> dict[str, Any] | None:
    return None if lateness is None else msgspec.structs.asdict(lateness)


def _render_failures(activity: Activity) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "count": count}
        for reason, count in activity.reasons.items()
        if reason in _FAILURES
    ]


def _render_depth(depth: Depth, now: datetime) -> dict[str, Any]:
    oldest = depth.oldest
    return {
        "priority": depth.priority.name,
        "ready": depth.ready,
        "parked": depth.parked,
        "running": depth.running,
        "oldest_seconds": None
        if oldest is None
        else round(max((now - oldest).total_seconds(), 0.0), 3),
        "at_least": depth.at_least,
    }


def _render_leader(leader: Leader | None) -> dict[str, Any] | None:
    if leader is None:
        return None
    return {
        "node_id": str(leader.node_id),
        "name": leader.name,
        "epoch": leader.epoch,
        "since": _instant_or_none(leader.since),
        "renewed_at": format_instant(leader.renewed_at),
        "expires_at": format_instant(leader.expires_at),
        "present": leader.present,
        "clock_drift_ms": leader.clock_drift_ms,
        "planned_until": format_instant(leader.planned_until),
        "planner_lag_seconds": leader.planner_lag_seconds,
        "changes_in_1h": leader.changes_in_1h,
        "changes_in_24h": leader.changes_in_24h,
    }


def _render_fleet(fleet: Fleet | None) -> dict[str, Any] | None:
    if fleet is None:
        return None
    return {
        "alive": fleet.alive,
        "lost_in_1h": fleet.lost_in_1h,
        "slots": fleet.slots,
        "running": fleet.running,
    }


def _render_item(item: Item) -> dict[str, Any]:
    return {
        "code": item.code,
        "severity": item.severity,
        "since": _instant_or_none(item.since),
        "count": item.count,
        "at_least": item.at_least,
        "message": item.message,
        "refers_to": msgspec.structs.asdict(item.refers_to),
    }


def _render_peak(peak: Peak | None) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {
        "at": format_instant(peak.at),
        "executions": peak.executions,
        "hours": peak.hours,
        "complete_until": format_instant(peak.complete_until),
        "estimated": peak.estimated,
        "capacity_per_minute": peak.capacity,
    }


def _render_worker(worker: Worker) -> dict[str, Any]:
    return {
        "session_id": session_text(worker.session_id),
        "worker_id": worker.worker_id,
        "state": worker.state,
        "queues": worker.queues,
        "tasks": worker.tasks,
        "slots": worker.slots,
        "running": worker.running,
        "at_least": ["running"] if (worker.running or 0) >= MAX_COUNTED else [],
        "quarantine": worker.quarantine,
        "started_at": _instant_or_none(worker.started_at),
        "renewed_at": _instant_or_none(worker.renewed_at),
        "expires_at": _instant_or_none(worker.expires_at),
        "ended_at": _instant_or_none(worker.ended_at),
        "returned": worker.returned,
    }


def _render_held(held: Held) -> dict[str, Any]:
    return {
        "execution_id": execution_text(held.execution_id),
        "job_id": job_text(held.job_id),
        "job_name": held.job_name,
        "tenant_id": held.tenant_id,
        "claimed_at": format_instant(held.claimed_at),
        "attempt": held.attempt,
        "timeout_seconds": held.timeout_seconds,
        "progress": held.progress,
    }


def _instant_or_none(moment: datetime | None) -> str | None:
    return None if moment is None else format_instant(moment)


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/overview",
        handler=get_overview,
        access=READ,
        summary="The state of the cell at a glance",
        description=(
            "What started and ended in a recent window, how late, what is waiting, the leader and "
            "the workers, what needs attention, and the busiest minute of the next 24 hours. "
            "A key of one tenant sees only that tenant's part; the rest is null or empty."
        ),
        query=OverviewQuery,
        answers={200: "Overview"},
    ),
    Route(
        method="GET",
        path="/api/v1/workers",
        handler=list_workers,
        access=READ,
        summary="List workers, newest first",
        description=(
            "Workers that are alive, that were lost within the last day, or all. Workers belong to the "
            "cell: a key of one tenant gets an empty list."
        ),
        query=WorkersQuery,
        answers={200: "WorkerPage"},
    ),
    Route(
        method="GET",
        path="/api/v1/workers/{session_id}",
        handler=get_worker,
        access=READ,
        summary="Read a worker and what it is running",
        answers={200: "WorkerWithExecutions"},
    ),
    Route(
        method="GET",
        path="/api/v1/nodes",
        handler=list_nodes,
        access=READ,
        summary="List the processes of the cell by name",
        description="A key of one tenant gets an empty list.",
        answers={200: "Nodes"},
    ),
    Route(
        method="GET",
        path="/api/v1/circuits",
        handler=list_circuits,
        access=READ,
        summary="List the open circuits of webhook targets",
        description="As last reported by the worker processes, which report every 5 seconds.",
        answers={200: "Circuits"},
    ),
)
