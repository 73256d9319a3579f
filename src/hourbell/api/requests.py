"""Read requests in full or reject them: idempotency keys, bodies, query parameters.

The results are plain JSON values and a `Write`; the operations validate their content.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar

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
from hourbell.api.page_tokens import position_in
from hourbell.api.queries import (
    AuditQuery,
    DeadLetterGroupsQuery,
    DeadLettersQuery,
    DeletionQuery,
    EventsQuery,
    ExecutionsQuery,
    ForecastMinuteQuery,
    ForecastQuery,
    GroupsQuery,
    JobExecutionsQuery,
    JobsQuery,
    LastOutcomesQuery,
    NamedDeletionQuery,
    NextRunsQuery,
    OverviewQuery,
    PageQuery,
    Statuses,
    TasksQuery,
    TenantPageQuery,
    TenantQuery,
    TenantsQuery,
    UniqueKeyDeletionQuery,
    UniqueKeyQuery,
    WorkersQuery,
)
from hourbell.documents.common_case import read_simple_job
from hourbell.documents.dead_letters import DeadLetterFilter, read_dead_letter_filter
from hourbell.documents.fields import Document
from hourbell.documents.kinds import Integer
from hourbell.documents.problems import Problems, shown_key
from hourbell.engine.life.create import MAX_BATCH_ITEMS
from hourbell.engine.operations.audit import AuditFilter
from hourbell.engine.operations.execution_groups import GroupState
from hourbell.engine.operations.idempotency import Write, fingerprint
from hourbell.engine.views.executions import ExecutionFilter
from hourbell.engine.views.jobs import JobFilter
from hourbell.model.errors import FieldError, IdempotencyKeyMissing, InvalidInput
from hourbell.model.traces import read_traceparent

MERGE_PATCH = "application/merge-patch+json"
NDJSON = "application/x-ndjson"
KEY_HEADER = "Idempotency-Key"
IF_MATCH = "If-Match"
MAX_KEY = 255
MAX_BATCH_BYTES = 16 * 1024 * 1024
BATCH_SECONDS = 30  # in which the body of a batch must arrive

_KEY = re.compile(rf"[ -~]{{1,{MAX_KEY}}}")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_ETAGS = re.compile(r'(?:W/)?"[!#-~]*"(?: *, *(?:W/)?"[!#-~]*")*')
_VERSION = re.compile(r'(?:^|[ ,])"([0-9]{1,15})"')  # a weak ETag (`W/"3"`) never matches

_MAX_SEPARATORS = 1_000_000  # in a batch: bounds the number of items held in memory
_SLICE = 200  # batch items digested together, and encoded before yielding to other requests
_array = msgspec.json.Decoder(list[msgspec.Raw])

AnyRequest = Request[Any, Any, Any]
Q = TypeVar("Q", bound=Document)
Raw = bytes | msgspec.Raw


class PageRequest(msgspec.Struct, frozen=True):
    """Which page of a list."""

    page_size: int
    page_token: str | None


async def require_one_host(request: AnyRequest) -> None:
    """Reject two Host headers, of which a proxy may act on either, and none (RFC 9112, section 3.2)."""
    hosts = len(request.headers.getall("Host", []))
    if hosts > 1:
        raise MalformedRequest("The request has more than one Host header. Send only one.")
    if not hosts and request.scope["http_version"] == "1.1":
        raise MalformedRequest("The request has no Host header. HTTP/1.1 requires one.")


async def read_write(request: AnyRequest, *media_types: str) -> tuple[object, Write]:
    """The decoded body of a write request, and its Write."""
    key = _key(request)
    refuse_query(request)
    body = await _body(request)
    document = _document(request, body, media_types)
    return document, _write(request, key, _canonical_json(document))


async def read_new_job(request: AnyRequest) -> tuple[object, Write]:
    """The document of a new job, and its Write."""
    key = _key(request)
    refuse_query(request)
    body = await _body(request)
    _check_type(request, (JSON,))
    simple = read_simple_job(body)
    if simple is not None:
        return simple, _write(request, key, simple.canonical)
    document = _decode(body)
    return document, _write(request, key, _canonical_json(document))


async def read_batch(request: AnyRequest, reserve: Callable[[int], None]) -> tuple[Batch, Write]:
    """A batch, not yet decoded, and its Write; `reserve` is called with the size of each chunk."""
    key = _key(request)
    refuse_query(request)
    try:
        async with asyncio.timeout(BATCH_SECONDS):
            body = await _body(request, reserve)
    except TimeoutError:
        raise MalformedRequest(
            f"The body did not arrive within {BATCH_SECONDS} seconds. Send fewer jobs per batch."
        ) from None
    _check_type(request, (JSON, NDJSON))
    read = _lines if request.content_type[0].lower() == NDJSON else _items
    items = read(body)
    if not 1 <= len(items) <= MAX_BATCH_ITEMS:
        message = f"must have from 1 to {MAX_BATCH_ITEMS} jobs"
        raise InvalidInput([FieldError("", "out_of_range", message)])
    batch = Batch(items)
    write = _write(request, key, b"")

    async def find_fingerprint() -> bytes:
        return _write(request, key, await batch.digest()).fingerprint

    return batch, msgspec.structs.replace(write, find_fingerprint=find_fingerprint)


class Batch:
    """The items of a batch.

    Reading an item also yields its canonical text, because a separate pass would be expensive.
    """

    def __init__(self, items: Sequence[Raw]) -> None:
        self.items = items
        self._digest = hashlib.sha256()
        self._texts: list[bytes] = []  # of items read but not yet digested
        self._read = 0

    def read(self, item: Raw) -> object:
        """The document of an item; raises MalformedJson. Items must be read in order."""
        text = bytes(item)
        simple = read_simple_job(text)
        if simple is not None:
            self._note(simple.canonical)
            return simple
        try:
            document = _decode(text)
            self._note(_canonical_json(document))
        except MalformedJson:
            self._note(text)
            raise
        return document

    async def digest(self) -> bytes:
        """A digest of the values of the items, independent of their JSON formatting."""
        if self._read < len(self.items):  # called before all items were read
            again = Batch(self.items)
            for first in range(0, len(self.items), _SLICE):
                await asyncio.sleep(0)
                for item in self.items[first : first + _SLICE]:
                    with contextlib.suppress(MalformedJson):
                        again.read(item)
            return await again.digest()
        self._flush()
        return self._digest.digest()

    def _note(self, text: bytes) -> None:
        if self._read < len(self.items):  # otherwise this is a second read
            self._read += 1
            self._texts.append(text)
            if len(self._texts) == _SLICE:
                self._flush()

    def _flush(self) -> None:
        parts = [part for text in self._texts for part in (b"%d:" % len(text), text)]
        self._digest.update(b"".join(parts))
        self._texts.clear()


async def read_call(request: AnyRequest) -> object:
    """The body of a call whose own content makes it safe to repeat, without an idempotency key."""
    refuse_query(request)
    return _document(request, await _body(request), (JSON,))


async def read_bare_write(request: AnyRequest) -> Write:
    """A write fully described by its path; `{}` as body is accepted."""
    key = _key(request)
    refuse_query(request)
    return await _bare_write(request, key)


async def read_deletion(request: AnyRequest) -> tuple[Write, bool]:
    """A deletion, and whether to cancel running executions."""
    key = _key(request)
    query = _query(request, DeletionQuery)
    cancel = query.cancel
    _finish(query)
    return await _bare_write(request, key), cancel


async def read_named_deletion(request: AnyRequest) -> tuple[Write, bool, str | None]:
    """A deletion by job name: the write, whether to cancel, and the tenant."""
    query = _query(request, NamedDeletionQuery)
    cancel, tenant = query.cancel, query.tenant_id
    _finish(query)
    return await _bare_write(request, _key(request)), cancel, tenant


async def read_keyed_deletion(request: AnyRequest) -> tuple[Write, bool, str, str | None]:
    """A deletion by unique key: the write, whether to cancel, the key and the tenant."""
    query = _query(request, UniqueKeyDeletionQuery)
    cancel, key, tenant = query.cancel, query.unique_key, query.tenant_id
    _finish(query)
    assert key is not None  # it is required
    return await _bare_write(request, _key(request)), cancel, key, tenant


def read_unique_key(request: AnyRequest) -> tuple[str, str | None]:
    """A unique key, and the tenant that it belongs to."""
    query = _query(request, UniqueKeyQuery)
    key, tenant = query.unique_key, query.tenant_id
    _finish(query)
    assert key is not None  # it is required
    return key, tenant


def read_tenant(request: AnyRequest) -> str | None:
    """The tenant that a read is restricted to."""
    query = _query(request, TenantQuery)
    tenant = query.tenant_id
    _finish(query)
    return tenant


async def read_tenant_write(request: AnyRequest) -> tuple[Write, str | None]:
    """A write fully described by its path and the tenant."""
    query = _query(request, TenantQuery)
    tenant = query.tenant_id
    _finish(query)
    return await _bare_write(request, _key(request)), tenant


async def read_optional_write(request: AnyRequest) -> tuple[object, Write]:
    """A write whose body is optional: without one, the document is empty. `null` is a body."""
    key = _key(request)
    refuse_query(request)
    body = await _body(request)
    if not body:
        return {}, _write(request, key, b"")
    document = _document(request, body, (JSON,))
    return document, _write(request, key, _canonical_json(document))


def conditional(request: AnyRequest, write: Write) -> Write:
    """The write, made conditional on the versions in If-Match."""
    text = ",".join(request.headers.getall(IF_MATCH, [])).strip()
    if not text or text == "*":
        return write
    if not _ETAGS.fullmatch(text):
        message = 'must be * or a list of ETags, such as "3"'
        raise InvalidInput([FieldError(IF_MATCH, "bad_format", message)])
    versions = frozenset(int(number) for number in _VERSION.findall(text))
    return msgspec.structs.replace(write, if_versions=versions)


def read_last_outcomes(request: AnyRequest) -> int:
    """How many of a job's latest executions to show."""
    query = _query(request, LastOutcomesQuery)
    outcomes = query.last_outcomes
    _finish(query)
    return outcomes


def read_job_filter(request: AnyRequest) -> tuple[JobFilter, int, bool, PageRequest]:
    """The query parameters of the job list: the filter, how many of the latest executions, and whether to count."""
    query = _query(request, JobsQuery)
    wanted = JobFilter(
        tenant_id=query.tenant_id,
        statuses=query.status,
        late=query.late,
        queue=query.queue,
        type=query.type,
        name_prefix=query.name_prefix,
        label=query.label,
        text=query.q,
    )
    return wanted, query.last_outcomes, query.total, _page_request(request, query)


def read_audit_filter(request: AnyRequest) -> tuple[AuditFilter, PageRequest]:
    """The query parameters of the audit list."""
    query = _query(request, AuditQuery)
    wanted = AuditFilter(
        tenant_id=query.tenant_id,
        actor=query.actor,
        operation=query.operation,
        since=query.at_from,
        until=query.at_to,
    )
    return wanted, _page_request(request, query)


def read_groups_query(request: AnyRequest) -> tuple[str | None, GroupState | None, PageRequest]:
    """The query parameters of the list of groups: the tenant, and the state."""
    query = _query(request, GroupsQuery)
    return query.tenant_id, query.state, _page_request(request, query)


def read_execution_filter(request: AnyRequest) -> tuple[ExecutionFilter, bool, PageRequest]:
    """The query parameters of the list of executions, and whether the longest are asked for."""
    query = _query(request, ExecutionsQuery)
    wanted = ExecutionFilter(
        tenant_id=query.tenant_id,
        job_id=query.job_id,
        statuses=query.status,
        reason=query.reason,
        queue=query.queue,
        label=query.label,
        created_from=query.created_from,
        created_to=query.created_to,
    )
    by_duration = query.order
    return wanted, by_duration, _page_request(request, query)


def read_job_execution_filter(request: AnyRequest) -> tuple[ExecutionFilter, bool, PageRequest]:
    """The query parameters of a job's execution list, and whether to expand missed occurrences."""
    query = _query(request, JobExecutionsQuery)
    expand_missed = query.expand is not None
    wanted = ExecutionFilter(
        statuses=query.status,
        reason=query.reason,
        queue=query.queue,
        created_from=query.created_from,
        created_to=query.created_to,
    )
    return wanted, expand_missed, _page_request(request, query)


def read_dead_letter_query(request: AnyRequest) -> tuple[DeadLetterFilter, PageRequest]:
    """The query parameters of the list of dead letters."""
    query = _query(request, DeadLettersQuery)
    return read_dead_letter_filter(query), _page_request(request, query)


def read_dead_letter_group_query(request: AnyRequest) -> DeadLetterFilter:
    """The query parameters of the groups of dead letters."""
    query = _query(request, DeadLetterGroupsQuery)
    wanted = read_dead_letter_filter(query)
    _finish(query)
    return wanted


def read_count(request: AnyRequest) -> int:
    """How many of the next runs to list."""
    query = _query(request, NextRunsQuery)
    count = query.count
    _finish(query)
    return count


def read_hours(request: AnyRequest) -> tuple[int, str | None]:
    """How many hours to look ahead, and for which tenant."""
    query = _query(request, ForecastQuery)
    hours, tenant = query.hours, query.tenant_id
    _finish(query)
    return hours, tenant


def read_minute(request: AnyRequest) -> tuple[datetime, str | None]:
    """Which minute of the forecast to list, and for which tenant."""
    query = _query(request, ForecastMinuteQuery)
    at, tenant = query.at, query.tenant_id
    _finish(query)
    assert at is not None  # it is required
    return at, tenant


def read_window(request: AnyRequest) -> str:
    """The window of an overview."""
    query = _query(request, OverviewQuery)
    window = query.window
    _finish(query)
    return window


def read_tasks_query(request: AnyRequest) -> tuple[str, str]:
    """The window of a list of tasks, and its order."""
    query = _query(request, TasksQuery)
    window, order = query.window, query.order
    _finish(query)
    return window, order


def read_topics(request: AnyRequest) -> frozenset[str]:
    """The topics of an event stream."""
    query = _query(request, EventsQuery)
    topics = query.topics
    _finish(query)
    assert topics is not None  # they are required
    return topics


def read_workers_query(request: AnyRequest) -> tuple[str, PageRequest]:
    """Which workers to list."""
    query = _query(request, WorkersQuery)
    state = query.state
    return state, _page_request(request, query)


def read_tenants_query(request: AnyRequest) -> tuple[bool, bool, PageRequest]:
    """Whether to list tenants by share, and whether to include counts."""
    query = _query(request, TenantsQuery)
    by_share, counts = query.order, query.counts
    return by_share, counts, _page_request(request, query)


def read_page_request(request: AnyRequest) -> PageRequest:
    """The query parameters of any other list."""
    return _page_request(request, _query(request, PageQuery))


def read_tenant_page_request(request: AnyRequest) -> tuple[str | None, PageRequest]:
    """The query parameters of a list that can be filtered by tenant."""
    query = _query(request, TenantPageQuery)
    return query.tenant_id, _page_request(request, query)


def refuse_query(request: AnyRequest) -> None:
    """Reject all query parameters: silently ignoring one would mislead the caller."""
    if request.scope["query_string"]:
        _finish(_query(request, Document))


async def _bare_write(request: AnyRequest, key: str) -> Write:
    body = await _body(request)
    if body:
        _finish(Document.open(_document(request, body, (JSON,)), Problems()))
    return _write(request, key, b"")


def _key(request: AnyRequest) -> str:
    keys = request.headers.getall(KEY_HEADER, [])
    if not any(keys):
        raise IdempotencyKeyMissing
    if len(keys) > 1:
        raise InvalidInput([FieldError(KEY_HEADER, "conflict", "was sent twice")])
    key = str(keys[0])
    if not _KEY.fullmatch(key):
        message = f"must be 1 to {MAX_KEY} printable ASCII characters"
        raise InvalidInput([FieldError(KEY_HEADER, "bad_format", message)])
    return key


def _write(request: AnyRequest, key: str, value: bytes) -> Write:
    """The Write of a request; `value` is the canonical text of its body."""
    operation = f"{request.method} {request.scope['path_template']}"
    target = request.scope["raw_path"] + b"?" + request.scope["query_string"]
    condition = "".join(f"\n{text}" for text in request.headers.getall(IF_MATCH, []))
    actor = request.scope["state"]["caller"].name
    where = target.decode("latin-1") + condition
    traceparent = read_traceparent(request.headers.get("traceparent"))
    return Write(key, fingerprint(operation, where, value), actor, traceparent=traceparent)


async def _body(request: AnyRequest, reserve: Callable[[int], None] | None = None) -> bytes:
    try:
        if reserve is None:
            return await request.body()
        parts = []
        async for part in request.stream():
            reserve(len(part))
            parts.append(part)
        return b"".join(parts)
    except HTTPException as error:
        if error.status_code == 413:
            limit = request.route_handler.resolve_request_max_body_size()
            assert limit is not None  # every route has one
            raise BodyTooLarge(limit) from None
        raise MalformedRequest("The request body is incomplete.") from error


def _document(request: AnyRequest, body: bytes, media_types: tuple[str, ...]) -> object:
    _check_type(request, media_types)
    return _decode(body)


def _check_type(request: AnyRequest, media_types: tuple[str, ...]) -> None:
    encoding = request.headers.get("content-encoding", "identity")
    if request.content_type[0].lower() not in media_types or encoding.lower() != "identity":
        raise UnsupportedMediaType(media_types)


def _decode(body: bytes) -> object:
    if not body:
        raise MalformedJson("The request needs a body but has none.")
    try:
        document: object = msgspec.json.decode(body)
        json.loads(body, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError:
        raise MalformedJson("The body is nested too deeply.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        # Both messages give the position of the error, and neither quotes the body.
        raise MalformedJson(f"The body cannot be read as JSON in UTF-8: {error}.") from None
    return document


def _canonical_json(document: object) -> bytes:
    """The canonical JSON text of a value, compared by idempotency: sorted keys, no whitespace."""
    try:
        return msgspec.json.encode(document, order="sorted")
    except RecursionError:
        raise MalformedJson("The body is nested too deeply.") from None


def _lines(body: bytes) -> Sequence[Raw]:
    """The lines that are not blank."""
    _check_count(body, b"\n")
    return [line for line in body.split(b"\n") if line.strip()]


def _items(body: bytes) -> Sequence[Raw]:
    """The items of an array, not yet decoded."""
    _check_count(body, b",")
    try:
        return _array.decode(body)
    except RecursionError:
        raise MalformedJson("The body is nested too deeply.") from None
    except msgspec.ValidationError:
        raise InvalidInput([FieldError("", "wrong_type", "must be an array of jobs")]) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise MalformedJson(f"The body cannot be read as JSON in UTF-8: {error}.") from None


def _check_count(body: bytes, separator: bytes) -> None:
    """Reject a body that may have far too many items before allocating memory for them."""
    if body.count(separator) > _MAX_SEPARATORS:
        raise InvalidInput([FieldError("", "too_long", "has too many values; send fewer at once")])


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    """Reject repeated keys: two parsers may read such an object differently."""
    keys = {key for key, _ in pairs}
    if len(keys) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            raise MalformedJson(f"The key {shown_key(key)} appears twice in one object.")
        keys.remove(key)


def _query(request: AnyRequest, kind: type[Q]) -> Q:
    """The query parameters of a request."""
    problems = Problems()
    values: dict[str, object] = {}
    for name, text in request.query_params.multi_items():
        field = kind.FIELDS.get(name)
        of = None if field is None else field.kind
        if name in values and isinstance(of, Statuses):
            values[name] = f"{values[name]},{text}"
            continue
        if name in values:
            problems.add(shown_key(name), "conflict", "was given twice")
        values[name] = int(text) if isinstance(of, Integer) and _WHOLE.fullmatch(text) else text
    return kind(values, "", problems)


def _page_request(request: AnyRequest, query: PageQuery) -> PageRequest:
    size, token = query.page_size, query.page_token
    _finish(query)
    return PageRequest(size, position_in(request, token))


def _finish(query: Document) -> None:
    query.finish()
    query.problems.raise_if_any()
