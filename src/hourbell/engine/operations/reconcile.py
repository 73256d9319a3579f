"""reconcile: make the schedules of an app what its live workers declare.

A worker opens its session with a manifest (`model/manifests.py`). The schedules of all live
manifests exist, each as the leading manifest declares it; `manifests.sql` compares that with what
was applied. A difference is applied by the ordinary operations on jobs, so a changed schedule is a
new version of its job, and no run is lost or doubled. Nothing is written where nothing differs.

Any number of processes may reconcile at the same time, with different views of what leads, and any
of them may die at any point:

- `begin_declaration` notes that what was applied is no longer certain, before the job is changed.
  The job is changed only as it was seen, and `record_declaration` counts only if the job still has
  the version that it got. So what is recorded as applied was applied, and was the last change.
- A retirement is decided under a lock that excludes sessions that open. It is final for its job: a
  schedule that is declared again later becomes another job.

What people change stays until the declaration changes: the digest that was applied is compared,
not the job. A job that people have paused stays paused, one that they have deleted stays deleted.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg
import msgspec
import structlog

from hourbell.engine.core import Engine
from hourbell.engine.failing import ABOUT_NO_ROW, note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.operations.change import delete_job
from hourbell.engine.operations.idempotency import Write, is_lock_conflict
from hourbell.engine.operations.upsert import put_seen_job, seen_job
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import HourbellError, PreconditionFailed
from hourbell.model.jobs import DEFAULT_TENANT
from hourbell.store.database import committing
from hourbell.store.queries import queries

log = structlog.get_logger(component="scheduler")

GRACE = timedelta(minutes=10)  # how long a schedule is not declared before it is retired
_MAX_ROUNDS = 20  # each further round means that another process was faster
_Q = queries("manifests")


async def reconcile(engine: Engine, app: str | None, term: Term | None = None) -> None:
    """Apply what live workers of an app declare; None: of all apps.

    Only the leader retires schedules.
    """
    retires = app is None
    stuck: set[tuple[str, str]] = set()  # schedules that failed in this call
    for _ in range(_MAX_ROUNDS):
        now = await engine.clock.now()
        rows = await engine.database.fetch(_Q["reconciliation"], app, now, GRACE)
        steps = {row["step"] for row in rows}
        if steps & {"missing", "wanted", "forget"}:
            with translate_epoch_errors():
                await engine.database.value(_Q["note_unwanted"], *epoch_args(term), app, now, GRACE)
        todo = [
            row for row in rows if row["step"] == "apply" or (row["step"] == "retire" and retires)
        ]
        if all((row["app"], row["key"]) in stuck for row in todo):
            return
        for row in todo:
            if (row["app"], row["key"]) in stuck:
                continue
            try:
                if row["step"] == "apply":
                    await _apply_document(engine, row, msgspec.json.decode(row["document"]))
                else:
                    await _retire(engine, row, term, now)
            except Exception as error:  # whatever it is, it must not stop the schedules after it
                if isinstance(error, ABOUT_NO_ROW) and not is_lock_conflict(error):
                    raise
                stuck.add((row["app"], row["key"]))
                await _note(engine, row, error, now)
    log.warning("schedules not reconciled yet", app=app)


async def _note(engine: Engine, row: asyncpg.Record, error: Exception, now: datetime) -> None:
    """Note why a schedule was not applied or retired; it is retried."""
    app, key = row["app"], row["key"]
    if is_lock_conflict(error):
        log.info("schedule postponed", app=app, key=key)
    elif row["step"] == "apply":
        is_known = isinstance(error, HourbellError)
        why = (
            error.message
            if isinstance(error, HourbellError)
            else f"{type(error).__name__}: {error}"
        )
        log.error("schedule not applied", app=app, key=key, error=why, exc_info=not is_known)
        await engine.database.value(_Q["note_problem"], app, key, row["digest"], why, now)
    elif row["job"] is not None:
        await note_failing(engine, now, "retire", row["job"], error, row["job"])


async def _apply_document(engine: Engine, row: asyncpg.Record, document: dict[str, object]) -> None:
    app, key, name = row["app"], row["key"], f"app:{row['app']}/{row['key']}"
    tenant = str(document.get("tenant_id", DEFAULT_TENANT))
    write = Write(actor=_actor(app, row["revision"]))
    if row["retired"] and row["job"] is not None:
        await delete_job(engine, row["job"], write)  # the process that retired it may have died
    old = None if row["retired"] or row["job"] is None else await get_job(engine, row["job"])
    # Read before the beginning is noted: what another process applies after that has a new version.
    seen = await seen_job(engine, tenant, name)
    async with committing("declare.before_commit", "declare.after_commit"):
        began = await engine.database.value(
            _Q["begin_declaration"], app, key, tenant, row["seen_digest"]
        )
    if not began:
        return  # another process has applied one: the next round looks again
    if old is not None and old.tenant_id != tenant:
        as_seen = msgspec.structs.replace(write, if_versions=frozenset([old.version]))
        try:
            await delete_job(engine, old.job_id, as_seen)
        except PreconditionFailed:
            return
    put = await put_seen_job(engine.declaring(), name, document, write, seen)
    if put is None:
        return
    job = put.job
    recorded = await engine.database.value(
        _Q["record_declaration"], app, key, row["digest"], job.job_id, job.version
    )
    if recorded:
        log.info("schedule applied", app=app, key=key, revision=row["revision"])


async def _retire(engine: Engine, row: asyncpg.Record, term: Term | None, now: datetime) -> None:
    app, key = row["app"], row["key"]
    with translate_epoch_errors():
        job_id = await engine.database.value(
            _Q["begin_retirement"], *epoch_args(term), app, key, now, GRACE
        )
    if job_id is None:
        return
    await delete_job(engine, job_id, Write(actor=_actor(app, None)))
    await engine.database.value(_Q["end_retirement"], app, key, job_id)
    log.info("schedule retired", app=app, key=key)


def _actor(app: str, revision: int | None) -> str:
    return f"app:{app}" if revision is None else f"app:{app}@{revision}"
