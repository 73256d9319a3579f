"""Fill a database with jobs, for tests and benchmarks of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from hourbell.engine.core import Engine
from hourbell.engine.life.create.insert import JobInserter, KeyTaken, LockTimeouts, after_commit
from hourbell.engine.life.create.names import resolve_names
from hourbell.engine.life.create.request import read_context
from hourbell.engine.life.create.rows import RequestRow, job_row
from hourbell.engine.operations.idempotency import Write
from hourbell.model.errors import DuplicateJob, HourbellError
from hourbell.model.ids import job_text
from hourbell.model.jobs import NewJob

_TIMEOUTS = LockTimeouts(2_000, 5_000)


async def create_one_time_jobs(engine: Engine, jobs: Sequence[NewJob], write: Write) -> list[int]:
    """Create many checked one-time jobs in one statement, which commits; return their ids, in order.

    Like `create_job` for a group of requests, but without reading documents. Raises the problem of a
    rejected job; the others are still created.
    """
    assert write.key is None
    context = await read_context(engine, len(jobs), tenants={job.tenant_id for job in jobs})
    request_row = RequestRow(jobs[0].tenant_id, write.actor)
    rows = [
        job_row(job_id, job, request_row) for job_id, job in zip(context.ids, jobs, strict=True)
    ]
    names = await resolve_names(engine, rows, context.now)
    problems = await JobInserter(engine, context, names, _TIMEOUTS).insert(rows)
    for problem in problems.values():
        if isinstance(problem, KeyTaken):
            raise DuplicateJob(job_text(problem.job_id))
        assert isinstance(problem, HourbellError)
        raise problem
    await after_commit(engine, rows, names, context.now)
    return context.ids
