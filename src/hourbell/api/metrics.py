"""GET /metrics: the metrics of the process, for Prometheus.

They reveal the names of tenants, queues and tasks, so wherever other reads need a key, they need one
that sees all tenants. A key that was accepted before is also accepted while the database is down: that
is when metrics are needed most.
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
            f"Metrics cover all tenants, but the key of this request belongs to tenant "
            f"{engine.scope}. Use a key with the role viewer and no tenant."
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
        summary="Metrics of the process, in the Prometheus text format",
        answers={200: "Metrics"},
        answer_type=CONTENT_TYPE,
        during_outage=True,
        whole_cell=True,
    ),
)
