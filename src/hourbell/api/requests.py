"""Requests, read in full or refused: idempotency keys, bodies, query parameters.

What comes from here is plain JSON values and a `Write`. Whether they make sense is for the operations to say.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException

from hourbell.api.answers import JSON
from hourbell.api.errors import (
    BodyTooLarge,
    MalformedJson,
    MalformedRequest,
    UnsupportedMediaType,
)
from hourbell.engine.read import MOST_PER_PAGE
from hourbell.engine.writes import Write, fingerprint
from hourbell.model.errors import FieldError, IdempotencyKeyMissing, InvalidInput
from hourbell.model.fields import ObjectReader, Problems, read_object, shown_key, text_problem
from hourbell.model.jobs import JobStatus

MERGE_PATCH = "application/merge-patch+json"
KEY_HEADER = "Idempotency-Key"
MAX_KEY = 255
MAX_BODY_BYTES = 1024 * 1024
DEFAULT_PAGE_SIZE = 50

_KEY = re.compile(rf"[ -~]{{1,{MAX_KEY}}}")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_STATUSES = {status.value: status for status in JobStatus}

AnyRequest = Request[Any, Any, Any]


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list, and which part of the list."""

    tenant_id: str | None
    status: JobStatus | None
    page_size: int
    page_token: str | None


class Part(msgspec.Struct, frozen=True):
    """Which part of a list."""

    page_size: int
    page_token: str | None


async def read_write(request: AnyRequest, *media_types: str) -> tuple[object, Write]:
    """The document of a write, and the write itself."""
    key = _key(request)
    refuse_query(request)
    body = await _body(request)
    return _document(request, body, media_types), _write(request, key, body)


async def read_bare_write(request: AnyRequest) -> Write:
    """A write that says all by its path; an empty object beside it does no harm."""
    key = _key(request)
    refuse_query(request)
    body = await _body(request)
    if body:
        problems = Problems()
        read_object(_document(request, body, (JSON,)), problems).finish()
        problems.raise_if_any()
    return _write(request, key, body)


def read_job_filter(request: AnyRequest) -> JobFilter:
    """The query parameters of the list of jobs."""
    reader, problems = _query(request)
    tenant_id = reader.string("tenant_id")
    reason = text_problem(tenant_id) if tenant_id is not None else None
    if reason:
        reader.wrong("tenant_id", "bad_format", reason)
    status = reader.choice("status", _STATUSES, None)
    part = _part(reader, problems)
    return JobFilter(tenant_id, status, part.page_size, part.page_token)


def read_part(request: AnyRequest) -> Part:
    """The query parameters of any other list."""
    return _part(*_query(request))


def refuse_query(request: AnyRequest) -> None:
    """Refuse query parameters where there are none: one that is ignored would mislead."""
    reader, problems = _query(request)
    reader.finish()
    problems.raise_if_any()


def _key(request: AnyRequest) -> str:
    keys = request.headers.getall(KEY_HEADER, [])
    if not any(keys):
        raise IdempotencyKeyMissing
    if len(keys) > 1:
        raise InvalidInput([FieldError(KEY_HEADER, "conflict", "is given twice")])
    key = str(keys[0])
    if not _KEY.fullmatch(key):
        message = f"must be 1 to {MAX_KEY} printable ASCII characters"
        raise InvalidInput([FieldError(KEY_HEADER, "bad_format", message)])
    return key


def _write(request: AnyRequest, key: str, body: bytes) -> Write:
    operation = f"{request.method} {request.scope['path_template']}"
    return Write(key, fingerprint(operation, request.scope["raw_path"].decode("latin-1"), body))


async def _body(request: AnyRequest) -> bytes:
    try:
        return await request.body()
    except HTTPException as error:
        if error.status_code == 413:
            raise BodyTooLarge(MAX_BODY_BYTES) from None
        raise MalformedRequest("The body of the request broke off.") from error


def _document(request: AnyRequest, body: bytes, media_types: tuple[str, ...]) -> object:
    encoding = request.headers.get("content-encoding", "identity")
    if request.content_type[0].lower() not in media_types or encoding.lower() != "identity":
        raise UnsupportedMediaType(media_types)
    if not body:
        raise MalformedJson("The request needs a body, and it came without one.")
    try:
        document: object = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError:
        raise MalformedJson("The body is nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        # Both say where it broke, and neither repeats what it read.
        raise MalformedJson(f"The body cannot be read as JSON in UTF-8: {error}.") from None
    return document


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    """Two readers of an object with a repeated key may see different things; so nobody gets to."""
    keys = {key for key, _ in pairs}
    if len(keys) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            raise MalformedJson(f"The key {shown_key(key)} is there twice in one object.")
        keys.remove(key)


def _query(request: AnyRequest) -> tuple[ObjectReader, Problems]:
    problems = Problems()
    fields: dict[str, object] = {}
    for name, text in request.query_params.multi_items():
        if name in fields:
            problems.add(shown_key(name), "conflict", "is given twice")
        fields[name] = int(text) if name == "page_size" and _WHOLE.fullmatch(text) else text
    return ObjectReader(fields, "", problems), problems


def _part(reader: ObjectReader, problems: Problems) -> Part:
    size = reader.whole("page_size", 1, MOST_PER_PAGE, DEFAULT_PAGE_SIZE)
    token = reader.string("page_token")
    reader.finish()
    problems.raise_if_any()
    return Part(size, token)
