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
from functools import partial

import msgspec

from hourbell.documents.changes import replacing, unmasked
from hourbell.documents.fields import Document
from hourbell.documents.jobs import JobDocument
from hourbell.documents.problems import Problems
from hourbell.engine.core import Engine
from hourbell.engine.life.create import Asked, Created, Held, ask_for, asked_by, look
from hourbell.engine.life.rows import NAME
from hourbell.engine.operations.change import (
    UPDATE,
    Target,
    prepare_change,
    require_active,
    target_of,
)
from hourbell.engine.operations.idempotency import IN_USE, Prepared, Write, once
from hourbell.model.errors import Conflict, JobNotActive
from hourbell.model.jobs import Job
from hourbell.store.database import Connection
from hourbell.store.queries import queries

_Q = queries("jobs")
_TRIES = 64  # each retry means that another process has changed the job with this name
TURN_SECONDS = 5.0  # how long a request waits for others that put the same name


async def put_job(engine: Engine, name: str, document: object, write: Write) -> Created:
    """Create or replace the job with this name; fields that the document omits get defaults."""
    asked = asked_by(engine, _named(name, document), write, name)
    async with _turn(engine, asked.tenant, name):
        return await _put(engine, name, asked)


@asynccontextmanager
async def _turn(engine: Engine, tenant: str, name: str) -> AsyncIterator[None]:
    """One request at a time per name; Conflict if the others take too long."""
    lock = engine.puts.setdefault((tenant, name), asyncio.Lock())
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await lock.acquire()
    except TimeoutError:
        raise Conflict(IN_USE) from None
    try:
        yield
    finally:
        lock.release()


async def _put(engine: Engine, name: str, asked: Asked) -> Created:
    for _ in range(_TRIES):
        holder = await engine.database.value(_Q["holder"], asked.tenant, NAME, name)
        if holder is not None:
            try:
                return await _replace(engine, holder, asked)
            except JobNotActive:
                continue  # the job has ended since; the name is free
        outcome = await ask_for(engine, asked)
        if isinstance(outcome, Created):
            return outcome
        # Another request was first, with the name or with the idempotency key.
        assert outcome is None or isinstance(outcome, Held)
    raise Conflict(IN_USE)


def _named(name: str, document: object) -> dict[str, object]:
    """The document with the name added; InvalidInput if it contains a different name."""
    problems = Problems()
    JobDocument.name.kind.read(name, "name", problems)
    said = Document.open(document, problems)
    if said.given("name") and said.values["name"] != name:
        said.wrong("name", "conflict", "must equal the name in the path, or be omitted")
    for key in ("unique_key", "on_duplicate"):
        said.forbid(key, "is not allowed here: the name is unique, and its job is replaced")
    problems.raise_if_any()
    return {**said.values, "name": name}


async def _replace(engine: Engine, job_id: int, asked: Asked) -> Created:
    seen = await look(engine, [asked])
    now, write = seen.now, asked.write

    def decide(job: Job, _: object) -> Target | None:
        require_active(job)
        assert isinstance(asked.document, dict)
        whole = msgspec.structs.replace(asked, document=unmasked(asked.document, job))
        return target_of(replacing(job, seen.parse(whole, job_id)), job)

    async def prepare() -> Prepared[Created]:
        change = await prepare_change(engine, job_id, now, write, UPDATE, decide)
        return Prepared(change.tenant, partial(_changed, change), change.then)

    return await once(engine, write, UPDATE.points, asked.tenant, now, Created, prepare)


async def _changed(change: Prepared[Job], connection: Connection) -> Created:
    return Created(await change.effect(connection), existed=True)
