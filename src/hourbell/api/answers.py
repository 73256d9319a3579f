"""Values of the engine as answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Response

from hourbell.engine.explain import Explanation
from hourbell.engine.read import Page
from hourbell.engine.request import Requested
from hourbell.model.ids import execution_text
from hourbell.model.instants import format_instant

JSON = "application/json"


def answer(
    content: object,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    media_type: str = JSON,
) -> Response[bytes]:
    """JSON that nobody may keep: the next look may find it changed."""
    return Response(
        msgspec.json.encode(content),
        status_code=status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type=media_type,
    )


def render_page(page: Page, render: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """A part of a list, and how to ask for the next."""
    return {"items": [render(item) for item in page.items], "next_page_token": page.next_token}


def render_requested(requested: Requested) -> dict[str, Any]:
    """The executions that a request made."""
    return {"execution_ids": [execution_text(number) for number in requested.execution_ids]}


def render_explanation(explanation: Explanation) -> dict[str, Any]:
    """The one thing that is waited for."""
    until, execution_id = explanation.until, explanation.execution_id
    return {
        "code": explanation.code,
        "message": explanation.message,
        "until": None if until is None else format_instant(until),
        "execution_id": None if execution_id is None else execution_text(execution_id),
    }
