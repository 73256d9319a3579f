"""upsert: create or replace the job with a given name.

The name is a unique key in a namespace of its own: jobs created by other means may have the same
name and are not affected. Concurrent requests that put the same name produce one job: the first
creates it, the others change it one after the other. Within a process they wait for each other
here; between processes, a request that finds the job changed since it was read is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from hourbell.documents.changes import replacing, unmasked
from hourbell.documents.jobs import JobDocument
from hourbell.documents.problems import Problems
from hourbell.engine.core import Engine
from hourbell.engine.life.create import (
    Created,
    CreateRequest,
    KeyTaken,
    create_request,
    read_context,
    try_create,
    with_declarations,
)
from hourbell.engine.life.create.rows import NAME
from hourbell.engine.operations.change import (
    UPDATE,
    DesiredJob,
    decide_change,
    desired_after,
    require_active,
)
from hourbell.engine.operations.idempotency import Idempotent, Write
from hourbell.engine.views.job_keys import find_holder
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import Busy, JobNotActive, PreconditionFailed
from hourbell.model.jobs import Job

_MAX_TRIES = 64  # each retry means that another process has changed the job with this name
NAME_LOCK_SECONDS = 5.0  # how long a request waits for others that put the same name


async def put_job(engine: Engine, name: str, document: object, write: Write) -> Created:
    """Create or replace the job with this name; fields that the document omits get defaults."""
    request = create_request(engine, _named(name, document), write, name)
    async with _name_lock(engine, request.tenant, name):
        return await _put(engine, name, request)


async def put_seen_job(
    engine: Engine, name: str, document: object, write: Write, seen: Seen | None
) -> Created | None:
    """The same, but only if the job with this name is the one that was seen, or there is none.

    None: it is not; nothing was changed.
    """
    if seen is None:
        request = create_request(engine, _named(name, document), write, name, is_whole=True)
        outcome = await try_create(engine, request)
        return outcome if isinstance(outcome, Created) else None
    write = msgspec.structs.replace(write, if_versions=frozenset([seen.version]))
    request = create_request(engine, _named(name, document), write, name, is_whole=True)
    try:
        return await _replace(engine, seen.job_id, request)
    except (PreconditionFailed, JobNotActive):
        return None


class Seen(msgspec.Struct, frozen=True):
    """A job as it was read."""

    job_id: int
    version: int


async def seen_job(engine: Engine, tenant: str, name: str) -> Seen | None:
    """The active job with a name that was put; None: there is none."""
    holder = await find_holder(engine, tenant, NAME, name)
    if holder is None:
        return None
    job = await get_job(engine, holder)
    return Seen(job.job_id, job.version)


@asynccontextmanager
async def _name_lock(engine: Engine, tenant: str, name: str) -> AsyncIterator[None]:
    """One request at a time per name; Busy if the others take too long."""
    lock = engine.put_locks.setdefault((tenant, name), asyncio.Lock())
    try:
        async with asyncio.timeout(NAME_LOCK_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise Busy() from None
    try:
        yield
    finally:
        lock.release()


async def _put(engine: Engine, name: str, request: CreateRequest) -> Created:
    for _ in range(_MAX_TRIES):
        holder = await find_holder(engine, request.tenant, NAME, name)
        if holder is not None:
            try:
                return await _replace(engine, holder, request)
            except JobNotActive:
                continue  # the job has ended since; the name is free
        write, now = request.write, await engine.clock.now()
        if write.if_versions is not None:
            writing = Idempotent(engine, write, UPDATE.failpoints, request.tenant, now, Created)
            async for _ in writing:  # a repeated request gets its answer, whatever has ended since
                write.require_version(f"Job {name}", 0)
                break
            else:
                return writing.answer
        outcome = await try_create(engine, request)
        if isinstance(outcome, Created):
            return outcome
        # Another request was first, with the name or with the idempotency key.
        assert outcome is None or isinstance(outcome, KeyTaken)
    raise Busy()


def _named(name: str, document: object) -> dict[str, object]:
    """The document with the name added; InvalidInput if it contains a different name."""
    problems = Problems()
    JobDocument.name.kind.read(name, "name", problems)
    fields = JobDocument.open(document, problems)
    if fields.given("name") and fields.values["name"] != name:
        fields.wrong("name", "conflict", "must equal the name in the path, or be omitted")
    for key in ("unique_key", "on_duplicate"):
        fields.forbid(key, "is not allowed here: the name is unique, and its job is replaced")
    problems.raise_if_any()
    return {**fields.values, "name": name}


async def _replace(engine: Engine, job_id: int, request: CreateRequest) -> Created:
    [request] = with_declarations(engine.declarations, [request])
    context = await read_context(engine, 0, {request.queue})
    [request] = await context.declare(engine, [request])
    now, write = context.now, request.write

    def decide(job: Job, _: object) -> DesiredJob | None:
        require_active(job)
        assert isinstance(request.document, dict)
        whole = msgspec.structs.replace(request, document=unmasked(request.document, job))
        return desired_after(replacing(job, context.parse(whole, job_id)), job)

    writing = Idempotent(engine, write, UPDATE.failpoints, request.tenant, now, Created)
    async for attempt in writing:
        job = await get_job(engine, job_id)
        change = await decide_change(engine, job, now, write, UPDATE, decide)
        async with attempt.statement():
            attempt.answer = await change.commit(_existed)
    if writing.executed:
        await change.join()
    return writing.answer


def _existed(job: Job) -> Created:
    return Created(job, existed=True)
