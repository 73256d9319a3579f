"""GET /metrics: the metrics of the process, for Prometheus.

They tell the names of tenants, queues and tasks, so they need a key that sees all tenants wherever
other reads need one. A key that was accepted is accepted while the database is away, too: that is
when they are needed most.
"""

from __future__ import annotations

from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from hourbell.api.health import Health
from hourbell.api.requests import AnyRequest, refuse_query
from hourbell.api.routes import EngineDep, Route
from hourbell.model.errors import Forbidden
from hourbell.observe.metrics import CONTENT_TYPE
from hourbell.security.access import READ


async def metrics(
    request: AnyRequest, engine: EngineDep, health: NamedDependency[SkipValidation[Health]]
) -> Response[bytes]:
    refuse_query(request)
    if engine.scope is not None:
        raise Forbidden(
            f"The metrics are about all tenants, and the key of this request belongs to tenant "
            f"{engine.scope}. Use a key with the role viewer that belongs to no tenant."
        )
    media_type = CONTENT_TYPE.removesuffix("; charset=utf-8")  # which the framework adds
    return Response(
        await health.metrics(), headers={"Cache-Control": "no-store"}, media_type=media_type
    )


ROUTES = (
    Route(
        method="GET",
        path="/metrics",
        handler=metrics,
        access=READ,
        summary="Metrics of the process, in the text format of Prometheus",
        answers={200: "Metrics"},
        answer_type=CONTENT_TYPE,
        during_outage=True,
        whole_cell=True,
    ),
)
