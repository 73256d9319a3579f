"""The cell: its tenants, queues and targets, its audit trail, and the load forecast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from litestar import Response

from hourbell.api.answers import (
    JSON,
    answer,
    render_audit,
    render_forecast,
    render_forecast_minute,
    render_page,
    render_resource,
)
from hourbell.api.queries import (
    AuditQuery,
    ForecastMinuteQuery,
    ForecastQuery,
    PageQuery,
    TenantsQuery,
)
from hourbell.api.requests import (
    AnyRequest,
    conditional,
    read_audit_filter,
    read_hours,
    read_minute,
    read_page_request,
    read_tenants_query,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.settings import parse_limits, parse_queue_settings, parse_tenant_settings
from hourbell.engine.operations import audit, limits
from hourbell.engine.views import forecast as forecasts
from hourbell.engine.views import resources
from hourbell.engine.views.pages import Page
from hourbell.engine.views.resources import NamedResource
from hourbell.security.access import ADMINISTER, OPERATE, READ

Renderer = Callable[[NamedResource], dict[str, Any]]

_target = render_resource("host")
_resource_of_queue = render_resource("queue")
_resource_of_tenant = render_resource("tenant_id")


def _versioned(named: NamedResource, render: Renderer) -> Response[bytes]:
    """A tenant, queue or target, with the version of its settings as ETag."""
    return answer(render(named), headers={"ETag": f'"{named.settings.version}"'})


def _tenant(named: NamedResource) -> dict[str, Any]:
    share = named.share
    return {
        **_resource_of_tenant(named),
        "created_on_use": named.created_on_use,
        "starts": None if share is None else share.starts,
        "share": None if share is None else share.share,
        "fair_share": None if share is None else share.fair_share,
    }


def _queue(named: NamedResource) -> dict[str, Any]:
    return {**_resource_of_queue(named), "created_on_use": named.created_on_use}


async def list_tenants(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    by_share, counts, part = read_tenants_query(request)
    if by_share:
        page = await resources.list_tenants_by_share(engine)
    else:
        size = min(part.page_size, resources.MAX_COUNTED_TENANTS) if counts else part.page_size
        page = await resources.list_tenants(engine, size, part.page_token)
    if counts:
        page = Page(await resources.count_tenants(engine, page.items), page.next_token)
    return answer(render_page(request, page, _tenant))


async def get_tenant(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    refuse_query(request)
    return _versioned(await resources.get_tenant(engine, name), _tenant)


async def set_tenant(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    write = conditional(request, write)
    await limits.set_tenant(engine, name, parse_tenant_settings(document), write)
    return _versioned(await resources.get_tenant(engine, name), _tenant)


async def list_queues(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    part = read_page_request(request)
    page = await resources.list_queues(engine, part.page_size, part.page_token)
    return answer(render_page(request, page, _queue))


async def get_queue(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    refuse_query(request)
    return _versioned(await resources.get_queue(engine, name), _queue)


async def set_queue(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    write = conditional(request, write)
    await limits.set_queue(engine, name, parse_queue_settings(document), write)
    return _versioned(await resources.get_queue(engine, name), _queue)


async def list_targets(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    part = read_page_request(request)
    page = await resources.list_targets(engine, part.page_size, part.page_token)
    return answer(render_page(request, page, _target))


async def get_target(engine: EngineDep, request: AnyRequest, host: PathParam) -> Response[bytes]:
    refuse_query(request)
    return _versioned(await resources.get_target(engine, host), _target)


async def set_target(engine: EngineDep, request: AnyRequest, host: PathParam) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    write = conditional(request, write)
    await limits.set_target(engine, host, parse_limits(document), write)
    return _versioned(await resources.get_target(engine, host), _target)


async def list_audit(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    wanted, part = read_audit_filter(request)
    page = await audit.list_audit(engine, wanted, part.page_size, part.page_token)
    return answer(render_page(request, page, render_audit))


async def get_forecast(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    hours, tenant_id = read_hours(request)
    return answer(render_forecast(await forecasts.forecast(engine, hours, tenant_id)))


async def get_forecast_minute(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    at, tenant_id = read_minute(request)
    found = await forecasts.forecast_minute(engine, at, tenant_id)
    return answer(render_forecast_minute(found))


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/tenants",
        handler=list_tenants,
        access=READ,
        summary="List tenants by name or by their share of starts",
        query=TenantsQuery,
        answers={200: "TenantPage"},
    ),
    Route(
        method="GET",
        path="/api/v1/tenants/{name}",
        handler=get_tenant,
        access=READ,
        summary="Read the settings and current counts of a tenant",
        answers={200: "Tenant"},
    ),
    Route(
        method="PUT",
        path="/api/v1/tenants/{name}",
        handler=set_tenant,
        access=ADMINISTER,
        conditional=True,
        whole_cell=True,
        summary="Set the weight, limits, quota and retention of a tenant",
        description=(
            "Replaces all settings; omitted fields return to their defaults. "
            "Takes effect immediately."
        ),
        body="TenantSettings",
        media_types=(JSON,),
        answers={200: "Tenant"},
    ),
    Route(
        method="GET",
        path="/api/v1/queues",
        handler=list_queues,
        access=READ,
        summary="List queues by name",
        query=PageQuery,
        answers={200: "QueuePage"},
    ),
    Route(
        method="GET",
        path="/api/v1/queues/{name}",
        handler=get_queue,
        access=READ,
        summary="Read the settings and current counts of a queue",
        answers={200: "Queue"},
    ),
    Route(
        method="PUT",
        path="/api/v1/queues/{name}",
        handler=set_queue,
        access=ADMINISTER,
        conditional=True,
        whole_cell=True,
        summary="Set the limits and defaults of a queue",
        description=(
            "Replaces all settings; omitted fields return to their defaults. Limits take effect "
            "immediately; defaults apply to jobs created from now on."
        ),
        body="QueueSettings",
        media_types=(JSON,),
        answers={200: "Queue"},
    ),
    Route(
        method="GET",
        path="/api/v1/targets",
        handler=list_targets,
        access=READ,
        summary="List the target hosts of webhooks by name",
        query=PageQuery,
        answers={200: "TargetPage"},
    ),
    Route(
        method="GET",
        path="/api/v1/targets/{host}",
        handler=get_target,
        access=READ,
        summary="Read the limits of a host and how many executions wait for them",
        answers={200: "Target"},
    ),
    Route(
        method="PUT",
        path="/api/v1/targets/{host}",
        handler=set_target,
        access=ADMINISTER,
        conditional=True,
        whole_cell=True,
        summary="Set the limits of a host",
        description="Replaces all limits; omitted limits are removed. Takes effect immediately.",
        body="TargetSettings",
        media_types=(JSON,),
        answers={200: "Target"},
    ),
    Route(
        method="GET",
        path="/api/v1/audit",
        handler=list_audit,
        access=OPERATE,
        summary="List changes and their actors, latest first",
        query=AuditQuery,
        answers={200: "AuditPage"},
    ),
    Route(
        method="GET",
        path="/api/v1/forecast",
        handler=get_forecast,
        access=READ,
        summary="Forecast the number of executions due per minute",
        description=(
            "Computed from schedules and from executions that are already planned. Pauses, "
            "starts_at and ends_at are respected; max_runs, overlap policies and future manual "
            "runs are not. The forecast is complete up to complete_until."
        ),
        query=ForecastQuery,
        answers={200: "Forecast"},
    ),
    Route(
        method="GET",
        path="/api/v1/forecast/minute",
        handler=get_forecast_minute,
        access=READ,
        summary="List the jobs that will be due in a minute",
        description=(
            "At most 100, ordered by time: the jobs that the forecast counts, and those whose schedule "
            "excludes the date."
        ),
        query=ForecastMinuteQuery,
        answers={200: "ForecastMinute"},
    ),
)
