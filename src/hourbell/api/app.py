"""The application: every route, what their handlers need, and what becomes of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
from litestar import Litestar, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from hourbell.api import executions, jobs
from hourbell.api.health import ROUTES as HEALTH_ROUTES
from hourbell.api.health import Health
from hourbell.api.openapi import describe
from hourbell.api.problems import on_exception, on_framework_error, on_hourbell_error
from hourbell.api.requests import MAX_BODY_BYTES
from hourbell.api.routes import Route
from hourbell.engine.core import Engine
from hourbell.model.errors import HourbellError

ROUTES = (*HEALTH_ROUTES, *jobs.ROUTES, *executions.ROUTES)

_PARAMETER = re.compile(r"\{(\w+)\}")


def create_app(engine: Engine, health: Health) -> Litestar:
    """An application that serves this engine."""
    document = msgspec.json.encode(describe(ROUTES))
    return _app(ROUTES, health, {"engine": engine, "openapi": document})


def create_health_app(health: Health) -> Litestar:
    """An application of a process that serves no API: only whether it is alive, and ready."""
    return _app(
        [route for route in HEALTH_ROUTES if route.path in ("/livez", "/readyz")], health, {}
    )


def _app(routes: Sequence[Route], health: Health, needed: Mapping[str, object]) -> Litestar:
    provided = {"health": health, **needed}
    return Litestar(
        # Options first: where there are none yet, the framework adds its own.
        route_handlers=[
            *(_options_handler(path, routes) for path in {route.path for route in routes}),
            *map(_handler, routes),
        ],
        dependencies={
            name: Provide(_giving(value), sync_to_thread=False) for name, value in provided.items()
        },
        exception_handlers={
            HourbellError: on_hourbell_error,
            HTTPException: on_framework_error,
            Exception: on_exception,
        },
        request_max_body_size=MAX_BODY_BYTES,
        openapi_config=None,  # ours says more than the framework can know
        logging_config=None,
    )


def _giving(value: object) -> Callable[[], object]:
    return lambda: value


def _handler(route: Route) -> HTTPRouteHandler:
    status = min(route.answers)
    made = HTTPRouteHandler(_typed(route.path), http_method=[route.method], status_code=status)
    return made(route.handler)


def _options_handler(path: str, routes: Sequence[Route]) -> HTTPRouteHandler:
    """Tells all methods of a path; the framework's own tells those of the first of its handlers."""
    methods = sorted({"OPTIONS", *(route.method for route in routes if route.path == path)})

    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": ", ".join(methods)})

    return HTTPRouteHandler(_typed(path), http_method=["OPTIONS"], status_code=204)(options)


def _typed(path: str) -> str:
    return _PARAMETER.sub(r"{\1:str}", path)
