"""Schedules: preview them before a job uses them."""

from __future__ import annotations

from litestar import Response

from hourbell.api.answers import JSON, answer, render_preview
from hourbell.api.requests import AnyRequest, read_call
from hourbell.api.routes import EngineDep, Route
from hourbell.engine.views import preview
from hourbell.security.access import READ


async def preview_schedule(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    document = await read_call(request)
    return answer(render_preview(await preview.preview_schedule(engine, document)))


ROUTES = (
    Route(
        method="POST",
        path="/api/v1/schedules/preview",
        handler=preview_schedule,
        access=READ,
        summary="Explain a schedule",
        description=(
            "Returns the schedule in words, its next runs, and the effect of clock changes in its time "
            "zone within the next 13 months. Nothing is stored."
        ),
        body="SchedulePreviewRequest",
        media_types=(JSON,),
        answers={200: "SchedulePreview"},
        refers_to_others=True,
        keyed=False,
    ),
)
