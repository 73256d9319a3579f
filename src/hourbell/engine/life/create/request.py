"""Requests to create jobs, and what has to be read before their documents can be parsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.common_case import SimpleJob
from hourbell.documents.jobs import parse_new_job
from hourbell.engine.core import Engine
from hourbell.engine.declarations import Declarations, DeclaredTask, task_of
from hourbell.engine.life.create.rows import JobRow
from hourbell.engine.life.references import Required
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import queue_settings
from hourbell.model.errors import IdempotencyKeyReused, QuotaExceeded
from hourbell.model.jobs import DEFAULT_QUEUE, DEFAULT_TENANT, NewJob, traced
from hourbell.model.limits import Limits, QueueSettings
from hourbell.security.secrets import may_name_secrets, required_secrets
from hourbell.store.queries import queries

_Q = queries("jobs")


class CreateRequest(msgspec.Struct, frozen=True):
    """A request to create a job."""

    document: object  # a JSON value, or a SimpleJob
    default_tenant: str  # the tenant of a document that names none
    tenant: str  # as named by the document, not yet validated
    queue: str  # as named by the document
    write: Write
    name: str | None = None  # PUT by name: it must be the only job with this name
    is_one_of_many: bool = False  # in a batch
    is_whole: bool = False  # what the task declares is in the document
    declared: DeclaredTask | None = None  # what the task declares

    def traced(self, job: NewJob) -> NewJob:
        """The requested job, with the span of the request if it has one."""
        span = self.write.traceparent
        return job if span is None else traced(job, span, self.is_one_of_many)

    def required_secrets(self, job: NewJob, spec: bytes) -> Required:
        """The secrets that must exist for the requested job, which is stored as `spec`."""
        if isinstance(self.document, SimpleJob) or not may_name_secrets(spec):
            return {}  # a simple document names none
        return required_secrets(job)


def create_request(
    engine: Engine,
    document: object,
    write: Write,
    name: str | None = None,
    is_one_of_many: bool = False,
    is_whole: bool = False,
) -> CreateRequest:
    """A request to create a job, for a tenant that the caller may act for."""
    default_tenant = engine.scope or DEFAULT_TENANT
    tenant, queue = _tenant_and_queue(document, default_tenant)
    engine.require_access(tenant)
    return CreateRequest(
        document, default_tenant, tenant, queue, write, name, is_one_of_many, is_whole
    )


def with_declarations(
    declarations: Declarations, requests: Sequence[CreateRequest]
) -> list[CreateRequest]:
    """The requests with what their tasks declare, and with the queues that follow from it."""
    return [_with_declaration(declarations, request) for request in requests]


def _with_declaration(declarations: Declarations, request: CreateRequest) -> CreateRequest:
    document = request.document
    declared = None if request.is_whole else declarations.of(document)
    if declared is request.declared:
        return request
    _, queue = _tenant_and_queue(document, request.default_tenant)
    named = document.queue if isinstance(document, SimpleJob) else _fields(document).get("queue")
    if declared is not None and named is None:
        queue = declared.job.get("queue", queue)
    return msgspec.structs.replace(request, declared=declared, queue=queue)


class CreateContext:
    """What was read before parsing: time, ids, defaults of queues, quotas, stored answers."""

    def __init__(self, row: asyncpg.Record) -> None:
        self.now: datetime = row["now"]
        self.ids: list[int] = row["ids"]
        self.newest_manifest: int | None = row["manifest"]
        # By tenant with a quota: how many more jobs it may have.
        self.quota_left: dict[str, int] = {}
        self._reserved: Counter[str] = Counter()  # how many of those are reserved
        self._quotas: dict[str, int] = {}
        self._queues: dict[str, QueueSettings] = {}
        self._known: set[tuple[str, str]] = set()  # (tenant, queue)
        for name, timeout, retries in _zipped(row, "queues", "timeouts", "retry_policies"):
            self._queues[name] = queue_settings(Limits(), timeout, retries)
        for name, quota, quota_left in _zipped(row, "limited", "quotas", "rooms"):
            self._quotas[name], self.quota_left[name] = quota, quota_left
        answers = _zipped(row, "answered", "fingerprints", "answers")
        self._answers: dict[int, tuple[bytes, str]] = {
            position - 1: (fingerprint, answer) for position, fingerprint, answer in answers
        }

    async def declare(
        self, engine: Engine, requests: Sequence[CreateRequest]
    ) -> Sequence[CreateRequest]:
        """The requests with what their tasks declare now, and what these name read."""
        tasks = any(task_of(request.document) is not None for request in requests)
        newest, now = self.newest_manifest, engine.clock.monotonic()
        declarations = engine.declarations
        if tasks and await declarations.refresh(engine.database, newest, now):
            requests = with_declarations(declarations, requests)
            await self.extend(engine, requests)
        return requests

    async def extend(self, engine: Engine, requests: Sequence[CreateRequest]) -> None:
        """Read what more requests name, unless it is known already."""
        named = {(each.tenant, each.queue) for each in requests} - self._known
        if named:
            tenants, queues = map(set, zip(*named, strict=True))
            more = await read_context(engine, 0, queues, tenants - self.quota_left.keys())
            self._known |= named
            self._queues |= more._queues
            self._quotas |= more._quotas
            self.quota_left |= more.quota_left

    def parse(self, request: CreateRequest, job_id: int) -> NewJob:
        """The requested job; InvalidInput names every wrong field."""
        document, queue = request.document, self._queues.get(request.queue)
        if request.declared is not None:
            document = request.declared.complete(document, has_name=request.name is not None)
        if isinstance(document, SimpleJob):
            simple = document.new_job(self.now, queue, request.default_tenant)
            if simple is not None:
                return request.traced(simple)
            document = document.document()
        return request.traced(
            parse_new_job(document, self.now, job_id, queue, request.default_tenant)
        )

    def reserve_quota(self, row: JobRow) -> None:
        """Reserve one job of the tenant's quota; raises QuotaExceeded if the quota is used up.

        Done before any name is created for the job. Whether a job with a unique key needs one is
        only known when keys are assigned, and is decided there.
        """
        if row.tenant not in self.quota_left or row.unique is not None:
            return
        if self.quota_left[row.tenant] <= self._reserved[row.tenant]:
            raise self.over_quota(row)
        self._reserved[row.tenant] += 1

    def over_quota(self, row: JobRow) -> QuotaExceeded:
        return QuotaExceeded(row.tenant, self._quotas[row.tenant])

    def stored_answer(self, position: int, write: Write) -> str | None:
        """The answer to an earlier request with the key of the request at a position."""
        if position not in self._answers:
            return None
        fingerprint, answer = self._answers[position]
        if not write.has_fingerprint(fingerprint):
            assert write.key is not None
            raise IdempotencyKeyReused(write.key)
        return answer


async def read_context(
    engine: Engine,
    count: int,
    queues: Collection[str] = (),
    tenants: Collection[str] = (),
    keys: Sequence[tuple[str, str | None]] = (),
) -> CreateContext:
    """The context of `count` new jobs. `keys`: tenants and idempotency keys of the requests."""
    columns = [tenant for tenant, _ in keys], [key for _, key in keys]
    statement = _Q["before_create"]
    row = await engine.database.row(statement, count, [*queues], [*tenants], *columns)
    return CreateContext(row)


def _zipped(row: asyncpg.Record, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Zip array columns; an empty one is null."""
    return zip(*(row[column] or () for column in columns), strict=True)


def _tenant_and_queue(document: object, default_tenant: str) -> tuple[str, str]:
    """What a document names, before validation: selects stored answers and queue defaults."""
    if isinstance(document, SimpleJob):
        return document.tenant or default_tenant, document.queue or DEFAULT_QUEUE
    fields = _fields(document)
    return (
        _label(fields.get("tenant_id"), default_tenant),
        _label(fields.get("queue"), DEFAULT_QUEUE),
    )


def _fields(document: object) -> Mapping[str, Any]:
    return document if isinstance(document, dict) else {}


def _label(named: object, default: str) -> str:
    return named if isinstance(named, str) and named.isprintable() else default
