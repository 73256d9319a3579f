"""Fill a database with jobs, for tests and benchmarks of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from hourbell.engine.core import Engine
from hourbell.engine.life.create.insert import (
    FAILPOINTS,
    JobInserter,
    KeyTaken,
    LockTimeouts,
    after_commit,
)
from hourbell.engine.life.create.names import resolve_names
from hourbell.engine.life.create.request import read_context
from hourbell.engine.life.create.rows import RequestRow, job_row
from hourbell.engine.operations.idempotency import Idempotent, Write
from hourbell.model.errors import DuplicateJob, HourbellError
from hourbell.model.ids import job_text
from hourbell.model.jobs import NewJob

_TIMEOUTS = LockTimeouts(2_000, 5_000)


async def create_one_time_jobs(engine: Engine, jobs: Sequence[NewJob], write: Write) -> list[int]:
    """Create many checked one-time jobs, all or none, in one statement; their ids, in order.

    `create_batch` without the reading of documents. Calls may run concurrently; each is a
    transaction of its own.
    """
    key_owner = jobs[0].tenant_id
    context = await read_context(engine, len(jobs), tenants={job.tenant_id for job in jobs})
    request_row = RequestRow(key_owner, write.actor)
    rows = [
        job_row(job_id, job, request_row) for job_id, job in zip(context.ids, jobs, strict=True)
    ]

    writing = Idempotent(engine, write, FAILPOINTS, key_owner, context.now, list[int])
    async for attempt in writing:
        names = await resolve_names(engine, rows, context.now, key_owner)
        async with attempt.transaction(names.tenants[key_owner]) as connection:
            problems = await JobInserter(engine, context, names, _TIMEOUTS, connection).insert(rows)
            for problem in problems.values():
                assert isinstance(problem, KeyTaken | HourbellError)
                raise (
                    DuplicateJob(job_text(problem.job_id))
                    if isinstance(problem, KeyTaken)
                    else problem
                )
            attempt.answer = context.ids
    if writing.executed:
        await after_commit(engine, rows, names, context.now)
    return writing.answer
