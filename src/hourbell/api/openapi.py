"""The OpenAPI document, generated from the routes, so that it matches what is served."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from hourbell import __version__
from hourbell.api.examples import BODIES, PATHS
from hourbell.api.problems import PROBLEM_JSON, STATUSES
from hourbell.api.requests import IF_MATCH, KEY_HEADER, MAX_KEY
from hourbell.api.routes import Route
from hourbell.api.schemas import schemas

_ABOUT = (
    "One-time and recurring jobs. Every write needs an Idempotency-Key; repeating the same request "
    "with the same key returns the first response. Worker calls, below /internal, need none: "
    "session, fence and claim number make them safe to repeat. Lists are paginated: request the "
    "next page with page_token. Errors are RFC 9457 problem documents with a stable `code`."
)

_IN_PATH = re.compile(r"\{(\w+)\}")

_KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": (
        "An API key. A server that listens only on loopback requires none until the first key "
        "exists. A browser that has signed in (create_session) sends a cookie instead."
    ),
}

_CALLER_ERRORS = ("unauthenticated", "forbidden", "misdirected", "too_many_failures")
_COOKIE_ERRORS = ("cross_site_request",)
_COMMON_ERRORS = ("invalid_input", "internal_error", "store_unavailable")
_SECRET_ERRORS = ("no_secret_keys",)
_IDEMPOTENCY_ERRORS = (
    "overloaded",
    "busy",
    "conflict",
    "quota_exceeded",
    "idempotency_key_missing",
    "idempotency_key_reused",
)
_BODY_ERRORS = (
    "malformed_json",
    "body_too_large",
    "unsupported_media_type",
)
_ID_ERRORS = ("not_found", "unknown_id")
_CONFLICT_ERRORS = ("job_not_active",)
_VERSIONED = ("Job", "Tenant", "Queue", "Target")  # schemas of answers with an ETag
_CONDITION_ERRORS = ("precondition_failed",)


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hourbell", "version": __version__, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas(), "securitySchemes": {"key": _KEY_SCHEME}},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "parameters": [*_parameters(route)],
        "responses": _answers(route) | _error_responses(route),
    }
    if route.access is not None:
        operation["security"] = [{"key": []}]
        operation["x-roles"] = sorted(route.access)
    if route.description:
        operation["description"] = route.description
    if route.body is not None:
        content = {media_type: _schema(route.body) for media_type in route.media_types}
        content[route.media_types[0]]["example"] = BODIES[route.body]
        operation["requestBody"] = {"required": route.body_required, "content": content}
    return operation


def _parameters(route: Route) -> Iterable[dict[str, Any]]:
    for name in _IN_PATH.findall(route.path):
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        yield parameter | {"example": PATHS[name]}
    for name, field in route.query.FIELDS.items():
        required = {"required": True} if field.required else {}
        yield {"name": name, "in": "query", "schema": field.schema} | required
    if route.needs_key:
        yield {
            "name": KEY_HEADER,
            "in": "header",
            "required": True,
            "description": "Any string chosen by the client; send the same one when repeating the request.",
            "schema": {"type": "string", "pattern": f"^[ -~]{{1,{MAX_KEY}}}$"},
        }
    if route.conditional:
        yield {
            "name": IF_MATCH,
            "in": "header",
            "description": 'ETags; the write is applied only to one of these versions. "0": to none.',
            "schema": {"type": "string"},
        }


def _answers(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, name in route.answers.items():
        answers[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {route.answer_type: _schema(name)},
        }
        if status == 201:
            answers["201"]["headers"] = {
                "Location": _header("string", "The path of the created resource.")
            }
        if name in _VERSIONED:
            headers = answers[str(status)].setdefault("headers", {})
            headers["ETag"] = _header("string", "The version, for If-Match.")
    return answers


def _error_responses(route: Route) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in _codes(route):
        by_status.setdefault(STATUSES[code], []).append(code)
    return {
        str(status): _error_response(status, codes) for status, codes in sorted(by_status.items())
    }


def _codes(route: Route) -> Iterable[str]:
    yield "malformed_request"
    if route.access is not None:
        yield from _CALLER_ERRORS
        if route.writes:
            yield from _COOKIE_ERRORS
    elif not route.writes:
        return
    yield from _COMMON_ERRORS
    if route.needs_key:
        yield from _IDEMPOTENCY_ERRORS
    if route.writes:
        yield from _BODY_ERRORS
    if _IN_PATH.search(route.path) or route.refers_to_others:
        yield from _ID_ERRORS
    if route.conflicts:
        yield from _CONFLICT_ERRORS
    if route.needs_secret_keys:
        yield from _SECRET_ERRORS
    if route.creates_jobs:
        yield "duplicate_job"
    if route.conditional:
        yield from _CONDITION_ERRORS
    yield from route.error_codes


def _error_response(status: int, codes: list[str]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(codes)}",
        "content": {PROBLEM_JSON: _schema("Problem")},
    }
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        response["headers"] = {"Retry-After": _header("integer", "Seconds.")}
    return response


def _schema(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _header(kind: str, description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}
