"""The application: every route, what their handlers need, and what becomes of errors."""

from __future__ import annotations

import re

import msgspec
from litestar import Litestar
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
        route_handlers=[_handler(route) for route in ROUTES],
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
    made = HTTPRouteHandler(
        _PARAMETER.sub(r"{\1:str}", route.path),
        http_method=[route.method],
        status_code=min(route.answers),
    )
    return made(route.handler)
