"""Page tokens of the API: a position, and the operation that returned it and alone accepts it.

A position is a number, a time or a name. The position of one list can be read as that of another,
which would return a wrong page without an error.
"""

from __future__ import annotations

from typing import Any

from litestar import Request

from hourbell.api.routes import Route
from hourbell.model.errors import FieldError, InvalidInput


def page_token_of(request: Request[Any, Any, Any], position: str | None) -> str | None:
    """The token of the next page of this operation; None: there is none."""
    return None if position is None else f"{_operation(request)}.{position}"


def position_in(request: Request[Any, Any, Any], token: str | None) -> str | None:
    """The position in a token that this operation has returned, or InvalidInput."""
    if token is None:
        return None
    operation, _, position = token.partition(".")
    if operation != _operation(request):
        problem = FieldError("page_token", "bad_format", "was not returned by this list")
        raise InvalidInput([problem])
    return position


def _operation(request: Request[Any, Any, Any]) -> str:
    route: Route = request.route_handler.opt["route"]
    return route.operation_id
