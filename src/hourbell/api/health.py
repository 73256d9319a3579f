"""Liveness, readiness, and an index: of the API for programs, the dashboard for browsers."""

from __future__ import annotations

import asyncio
from typing import Protocol

from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from hourbell import __version__
from hourbell.api.answers import JSON, answer
from hourbell.api.dashboard import Dashboard
from hourbell.api.problems import RETRY_AFTER_SECONDS
from hourbell.api.requests import AnyRequest
from hourbell.api.routes import Route

OPENAPI = "/schema/openapi.json"
CHECK_SECONDS = 5.0


class Health(Protocol):
    """The health of the parts of the process, as known to the composition root."""

    async def ready(self) -> dict[str, bool]:
        """Each part by name, and whether it is working."""

    async def metrics(self) -> bytes:
        """The metrics of the process, in the text format of Prometheus."""


async def livez() -> Response[bytes]:
    return answer({"status": "alive"})


async def readyz(health: NamedDependency[SkipValidation[Health]]) -> Response[bytes]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            checks = await health.ready()
    except TimeoutError:
        checks = {"checks_in_time": False}
    if all(checks.values()):
        return answer({"status": "ready", "checks": checks})
    return answer(
        {"status": "not_ready", "checks": checks}, 503, {"Retry-After": str(RETRY_AFTER_SECONDS)}
    )


async def index(
    request: AnyRequest, dashboard: NamedDependency[SkipValidation[Dashboard]]
) -> Response[bytes]:
    if dashboard.wants_page(request):
        return dashboard.page(request)
    return answer(
        {
            "name": "hourbell",
            "version": __version__,
            "jobs": "/api/v1/jobs",
            "openapi": OPENAPI,
            "docs": "docs/ in the source tree, starting with concepts.md",
        }
    )


async def openapi_document(openapi: NamedDependency[SkipValidation[bytes]]) -> Response[bytes]:
    return Response(openapi, headers={"Cache-Control": "no-store"}, media_type=JSON)


ROUTES = (
    Route(
        method="GET",
        path="/",
        handler=index,
        access=None,
        summary="Index of the API",
        description="A browser, which accepts text/html, gets the dashboard.",
        answers={200: "Index"},
    ),
    Route(
        method="GET",
        path="/livez",
        handler=livez,
        access=None,
        summary="Whether the process is alive",
        answers={200: "Liveness"},
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=readyz,
        access=None,
        summary="Whether every part of the process is working",
        answers={200: "Readiness", 503: "Readiness"},
    ),
    Route(
        method="GET",
        path=OPENAPI,
        handler=openapi_document,
        access=None,
        summary="This document",
        answers={200: "OpenApi"},
    ),
)
