"""Error responses: the table from code to status, and RFC 9457 problem documents."""

from __future__ import annotations

from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException

from hourbell.api.answers import answer
from hourbell.api.errors import (
    MalformedRequest,
    MethodNotAllowed,
    Unexpected,
    UnknownRoute,
)
from hourbell.api.routes import Route
from hourbell.model.errors import (
    Busy,
    HourbellError,
    InvalidInput,
    NoSecretKeys,
    Overloaded,
    StoreUnavailable,
    TooManyFailures,
    Unauthenticated,
)
from hourbell.store.database import why_unusable

PROBLEM_JSON = "application/problem+json"
RETRY_AFTER_SECONDS = 1
_READING = ("GET", "HEAD", "OPTIONS")

# Every error code a request may end with. A code missing here is a bug and becomes a 500.
STATUSES = {
    "malformed_request": 400,
    "malformed_json": 400,
    "idempotency_key_missing": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "cross_site_request": 403,
    "not_found": 404,
    "unknown_id": 404,
    "unknown_route": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "job_not_active": 409,
    "quota_exceeded": 409,
    "duplicate_job": 409,
    "precondition_failed": 412,
    "session_lost": 409,
    "stale_fence": 409,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "invalid_input": 422,
    "idempotency_key_reused": 422,
    "too_many_failures": 429,
    "internal_error": 500,
    "no_secret_keys": 503,
    "overloaded": 503,
    "busy": 503,
    "store_unavailable": 503,
}

_UNAVAILABLE = "The database is currently unavailable."

_log = structlog.get_logger(component="api")


def on_hourbell_error(request: Request[Any, Any, Any], error: HourbellError) -> Response[bytes]:
    """The response to an error raised on purpose."""
    if error.code not in STATUSES:
        return on_exception(request, error)
    detail, headers = error.message, {}
    if isinstance(error, Unexpected):
        detail = f"{error.message} {_what_to_do(request)}"
    elif isinstance(error, StoreUnavailable):
        # Its message may contain internal addresses, so it goes only to the log.
        _log.warning("database unavailable", path=_path(request), error=why_unusable(error))
        detail = f"{_UNAVAILABLE} {_what_to_do(request)}"
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    elif isinstance(error, Overloaded | Busy):
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    elif isinstance(error, MethodNotAllowed):
        headers = {"Allow": error.allowed}
    elif isinstance(error, TooManyFailures):
        headers = {"Retry-After": str(error.retry_after_seconds)}
    elif isinstance(error, Unauthenticated):
        headers = {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, NoSecretKeys):
        headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    status = STATUSES[error.code]
    problem = {
        "type": f"urn:hourbell:problem:{error.code}",
        "title": error.title,
        "status": status,
        "detail": detail,
        "code": error.code,
        "instance": _path(request),
        "errors": error.errors if isinstance(error, InvalidInput) else [],
    }
    return answer(problem, status, headers, PROBLEM_JSON)


def on_framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The response to a request that the framework rejects before any handler runs."""
    if isinstance(error, MethodNotAllowedException):
        return on_hourbell_error(request, MethodNotAllowed((error.headers or {}).get("allow", "")))
    if error.status_code == 404:
        return on_hourbell_error(request, UnknownRoute())
    if 400 <= error.status_code < 500:
        return on_hourbell_error(request, MalformedRequest("The request cannot be read."))
    return on_exception(request, error)


def on_exception(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The response to an unexpected exception, whose details go only to the log."""
    _log.error("unexpected error", method=request.method, path=_path(request), exc_info=error)
    return on_hourbell_error(request, Unexpected())


def _what_to_do(request: Request[Any, Any, Any]) -> str:
    """Advice after an error that may have occurred before or after the effect."""
    if request.method in _READING:
        return "Try again."
    route: Route | None = request.scope["route_handler"].opt.get("route")
    if route is not None and not route.needs_key:
        return "This call may or may not have taken effect; repeat it unchanged."
    return "This write may or may not have taken effect; repeat it with the same Idempotency-Key."


def _path(request: Request[Any, Any, Any]) -> str:
    """The raw request path, still percent-encoded."""
    return request.scope["raw_path"].decode("latin-1")
