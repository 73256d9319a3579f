"""The application: every route, what their handlers need, and what becomes of errors."""

from __future__ import annotations

import re

import msgspec
from litestar import Litestar, Response
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from hourbell.api import executions, health, jobs
from hourbell.api.openapi import describe
from hourbell.api.problems import on_exception, on_framework_error, on_hourbell_error
from hourbell.api.requests import MAX_BODY_BYTES
from hourbell.api.routes import Route
from hourbell.engine.core import Engine
from hourbell.model.errors import HourbellError

ROUTES = (*health.ROUTES, *jobs.ROUTES, *executions.ROUTES)

_PARAMETER = re.compile(r"\{(\w+)\}")


def create_app(engine: Engine, health: health.Health) -> Litestar:
    """An application that serves this engine."""
    document = msgspec.json.encode(describe(ROUTES))
    return Litestar(
        # Options first: where there are none yet, the framework adds its own.
        route_handlers=[*map(_options_handler, {r.path for r in ROUTES}), *map(_handler, ROUTES)],
        dependencies={
            "engine": Provide(lambda: engine, sync_to_thread=False),
            "health": Provide(lambda: health, sync_to_thread=False),
            "openapi": Provide(lambda: document, sync_to_thread=False),
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


def _handler(route: Route) -> HTTPRouteHandler:
    status = min(route.answers)
    made = HTTPRouteHandler(_typed(route.path), http_method=[route.method], status_code=status)
    return made(route.handler)


def _options_handler(path: str) -> HTTPRouteHandler:
    """Tells all methods of a path; the framework's own tells those of the first of its handlers."""
    methods = sorted({"OPTIONS", *(route.method for route in ROUTES if route.path == path)})

    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"Allow": ", ".join(methods)})

    return HTTPRouteHandler(_typed(path), http_method=["OPTIONS"], status_code=204)(options)


def _typed(path: str) -> str:
    return _PARAMETER.sub(r"{\1:str}", path)
