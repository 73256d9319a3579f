"""Calendars: set, read, list, delete."""

from __future__ import annotations

from typing import Any

from litestar import Response

from hourbell.api.answers import JSON, answer, render_page
from hourbell.api.queries import TenantPageQuery, TenantQuery
from hourbell.api.requests import (
    AnyRequest,
    read_tenant,
    read_tenant_page_request,
    read_tenant_write,
    read_write,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.calendars import parse_calendar
from hourbell.engine.operations import calendars
from hourbell.engine.operations.calendars import Calendar
from hourbell.model.instants import format_instant
from hourbell.security.access import OPERATE, READ

CALENDARS = "/api/v1/calendars"
CALENDAR = "/api/v1/calendars/{name}"


async def set_calendar(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    new = parse_calendar(document)
    return answer(_render(await calendars.set_calendar(engine, name, new, write)))


async def get_calendar(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    return answer(_render(await calendars.get_calendar(engine, name, read_tenant(request))))


async def list_calendars(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    tenant, part = read_tenant_page_request(request)
    page = await calendars.list_calendars(engine, tenant, part.page_size, part.page_token)
    return answer(render_page(request, page, _render))


async def delete_calendar(
    engine: EngineDep, request: AnyRequest, name: PathParam
) -> Response[bytes]:
    write, tenant = await read_tenant_write(request)
    return answer(_render(await calendars.delete_calendar(engine, name, tenant, write)))


def _render(calendar: Calendar) -> dict[str, Any]:
    return {
        "name": calendar.name,
        "tenant_id": calendar.tenant_id,
        "dates": [day.isoformat() for day in calendar.dates],
        "created_at": format_instant(calendar.created_at),
        "updated_at": format_instant(calendar.updated_at),
    }


ROUTES = (
    Route(
        method="PUT",
        path=CALENDAR,
        handler=set_calendar,
        access=OPERATE,
        summary="Set a calendar",
        description=(
            "Creates the calendar or replaces its dates. Schedules that exclude it skip runs on "
            "these dates, including executions that are planned but not yet admitted."
        ),
        body="NewCalendar",
        media_types=(JSON,),
        answers={200: "Calendar"},
    ),
    Route(
        method="GET",
        path=CALENDARS,
        handler=list_calendars,
        access=READ,
        summary="List the calendars of a tenant",
        query=TenantPageQuery,
        answers={200: "CalendarPage"},
    ),
    Route(
        method="GET",
        path=CALENDAR,
        handler=get_calendar,
        access=READ,
        summary="Read a calendar",
        query=TenantQuery,
        answers={200: "Calendar"},
    ),
    Route(
        method="DELETE",
        path=CALENDAR,
        handler=delete_calendar,
        access=OPERATE,
        summary="Delete a calendar",
        description="Schedules that exclude it no longer skip its dates.",
        query=TenantQuery,
        answers={200: "Calendar"},
    ),
)
