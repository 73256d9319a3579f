"""The application: all routes, the dependencies of their handlers, and error handling."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import msgspec
from litestar import Litestar, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from hourbell.api import (
    calendars,
    cell,
    dead_letters,
    execution_groups,
    executions,
    jobs,
    keys,
    monitors,
    operations,
    overview,
    schedules,
    secrets,
    sign_ins,
    tasks,
    workers,
)
from hourbell.api.auth import Authenticator
from hourbell.api.dashboard import Dashboard
from hourbell.api.events import ROUTES as EVENT_ROUTES
from hourbell.api.events import Events
from hourbell.api.health import ROUTES as HEALTH_ROUTES
from hourbell.api.health import Health
from hourbell.api.metrics import ROUTES as METRICS_ROUTES
from hourbell.api.openapi import describe
from hourbell.api.problems import on_exception, on_framework_error, on_hourbell_error
from hourbell.api.requests import AnyRequest, require_one_host
from hourbell.api.routes import Route
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.engine.views.overview import Peaks
from hourbell.model.errors import Conflict, HourbellError, NotFound
from hourbell.security.access import Caller
from hourbell.security.sealing import KeyRing

ROUTES = (
    *HEALTH_ROUTES,
    *METRICS_ROUTES,
    *jobs.ROUTES,
    *schedules.ROUTES,
    *executions.ROUTES,
    *execution_groups.ROUTES,
    *dead_letters.ROUTES,
    *operations.ROUTES,
    *monitors.ROUTES,
    *calendars.ROUTES,
    *cell.ROUTES,
    *overview.ROUTES,
    *tasks.ROUTES,
    *EVENT_ROUTES,
    *keys.ROUTES,
    *sign_ins.ROUTES,
    *secrets.ROUTES,
    *workers.ROUTES,
)

_PARAMETER = re.compile(r"\{(\w+)\}")


def create_app(
    engine: Engine,
    health: Health,
    key_ring: KeyRing,
    remote: RemoteWorkers,
    local: bool,
    events: Events | None = None,
    caller: Caller | None = None,
) -> Litestar:
    """An application that serves this engine; `local` means only this machine can reach it.

    `events` holds the event streams, for a caller that ends them. `caller` is the caller of all
    requests, which then need no key; it is for an application that is not served.
    """
    authenticator = Authenticator(engine, local, caller)
    document = msgspec.json.encode(describe(ROUTES))
    dashboard = Dashboard()
    constants = {
        "key_ring": key_ring,
        "remote": remote,
        "openapi": document,
        "authenticator": authenticator,
        "dashboard": dashboard,
        "peaks": Peaks(),
        "events": Events(engine) if events is None else events,
        "operations": sign_ins.operations_by_role(ROUTES),
    }
    per_request = {"engine": _engine_of_caller(engine, authenticator)}
    return _app(ROUTES, health, constants, per_request, dashboard)


def create_health_app(engine: Engine, health: Health, local: bool) -> Litestar:
    """The application of a process without the API role: liveness, readiness and metrics."""
    routes = [route for route in HEALTH_ROUTES if route.path in ("/livez", "/readyz")]
    authenticator = Authenticator(engine, local)
    per_request = {"engine": _engine_of_caller(engine, authenticator)}
    return _app([*routes, *METRICS_ROUTES], health, {}, per_request)


def _engine_of_caller(engine: Engine, authenticator: Authenticator) -> Provide:
    async def engine_of(request: AnyRequest) -> Engine:
        """The engine scoped to the caller. Raises, so no handler runs, if access is denied."""
        route: Route = request.route_handler.opt["route"]
        if route.access is None:
            return engine  # the route is public, or the request carries its own token
        caller = await authenticator.authorize(request, route)
        request.scope["state"]["caller"] = caller
        return engine.scoped_to(caller.tenant)

    return Provide(engine_of)


def _app(
    routes: Sequence[Route],
    health: Health,
    constants: Mapping[str, object],
    per_request: Mapping[str, Provide],
    dashboard: Dashboard | None = None,
) -> Litestar:
    provided = {"health": health, **constants}

    def on_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
        """Serve the dashboard's page for an unknown address that a browser asks for."""
        if error.status_code == 404 and dashboard is not None and dashboard.wants_page(request):
            return dashboard.page(request)
        return on_framework_error(request, error)

    return Litestar(
        # OPTIONS handlers first: the framework adds its own to every path that has none yet.
        route_handlers=[
            *(_options_handler(path, routes) for path in {route.path for route in routes}),
            *map(_handler, routes),
            *(dashboard.handlers() if dashboard is not None else ()),
        ],
        dependencies={
            name: Provide(_constant(value), sync_to_thread=False)
            for name, value in provided.items()
        }
        | dict(per_request),
        exception_handlers={
            HourbellError: on_hourbell_error,
            HTTPException: on_http_error,
            Exception: on_exception,
        },
        before_request=require_one_host,
        openapi_config=None,  # we generate our own, with more detail
        logging_config=None,
    )


def _constant(value: object) -> Callable[[], object]:
    return lambda: value


def _handler(route: Route) -> HTTPRouteHandler:
    status = min(route.answers)
    made = HTTPRouteHandler(
        _typed(route.path),
        http_method=[route.method],
        status_code=status,
        opt={"route": route},
        request_max_body_size=route.max_body_bytes,
    )
    return made(_confirming(route.handler) if route.needs_key else route.handler)


def _confirming(
    handler: Callable[..., Awaitable[Response[Any]]],
) -> Callable[..., Awaitable[Response[Any]]]:
    """A handler of a write whose refusals are as durable as its other answers.

    "There is no such job" may be the effect of an earlier request that is not confirmed.
    """

    @wraps(handler)
    async def confirming(**arguments: Any) -> Response[Any]:
        try:
            return await handler(**arguments)
        except (NotFound, Conflict):
            engine: Engine = arguments["engine"]
            await engine.database.confirm()
            raise

    return confirming


def _options_handler(path: str, routes: Sequence[Route]) -> HTTPRouteHandler:
    """Lists all methods of a path; the framework's own handler lists only those of its first handler."""
    methods = sorted({"OPTIONS", *(route.method for route in routes if route.path == path)})

    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": ", ".join(methods)})

    return HTTPRouteHandler(_typed(path), http_method=["OPTIONS"], status_code=204)(options)


def _typed(path: str) -> str:
    return _PARAMETER.sub(r"{\1:str}", path)
