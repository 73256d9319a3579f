"""Monitors: dead man's switches for jobs."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import JSON, answer, render_page
from hourbell.api.queries import PageQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_page_request,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.engine.operations import monitors
from hourbell.engine.operations.monitors import render_monitor
from hourbell.model.ids import monitor_text, parse_monitor_id
from hourbell.security.access import OPERATE, READ

MONITORS = "/api/v1/monitors"
MONITOR = "/api/v1/monitors/{monitor_id}"


async def create_monitor(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    monitor = await monitors.create_monitor(engine, document, write)
    path = f"{MONITORS}/{monitor_text(monitor.monitor_id)}"
    return answer(render_monitor(monitor), 201, {"Location": path})


async def list_monitors(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    part = read_page_request(request)
    page = await monitors.list_monitors(engine, part.page_size, part.page_token)
    return answer(render_page(request, page, render_monitor))


async def get_monitor(
    engine: EngineDep, request: AnyRequest, monitor_id: PathParam
) -> Response[bytes]:
    refuse_query(request)
    monitor = await monitors.get_monitor(engine, parse_monitor_id(monitor_id))
    return answer(render_monitor(monitor))


async def delete_monitor(
    engine: EngineDep, request: AnyRequest, monitor_id: PathParam
) -> Response[bytes]:
    write = await read_bare_write(request)
    monitor = await monitors.delete_monitor(engine, parse_monitor_id(monitor_id), write)
    return answer(render_monitor(monitor))


ROUTES = (
    Route(
        method="POST",
        path=MONITORS,
        handler=create_monitor,
        access=OPERATE,
        summary="Monitor a recurring job",
        description=(
            "Sends an alert if the job does not succeed between an expected occurrence and the end "
            "of the grace period. Each outage sends one alert, and one recovery notification when "
            "the job succeeds again."
        ),
        body="NewMonitor",
        media_types=(JSON,),
        answers={201: "Monitor"},
        refers_to_others=True,
        conflicts=True,
    ),
    Route(
        method="GET",
        path=MONITORS,
        handler=list_monitors,
        access=READ,
        summary="List monitors, newest first",
        query=PageQuery,
        answers={200: "MonitorPage"},
    ),
    Route(
        method="GET",
        path=MONITOR,
        handler=get_monitor,
        access=READ,
        summary="Read a monitor",
        answers={200: "Monitor"},
    ),
    Route(
        method="DELETE",
        path=MONITOR,
        handler=delete_monitor,
        access=OPERATE,
        summary="Delete a monitor",
        description="The job is no longer monitored. Alerts already in flight are still delivered.",
        answers={200: "Monitor"},
    ),
)
