"""pauses that begin and end without a request: after an answer 410, and at the time that was set."""

from __future__ import annotations

from datetime import datetime, timedelta

from hourbell.engine.codes import PAUSE_OVER, TARGET_GONE
from hourbell.engine.core import Engine
from hourbell.engine.failing import note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.operations.bulk_changes import change_page
from hourbell.engine.operations.change import PAUSE, RESUME, decide_resume
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.jobs import find_jobs
from hourbell.store.database import committing
from hourbell.store.queries import queries

_Q = queries("pauses")
_J = queries("jobs")

_MAX_ABANDONED = 100  # in one step
_MAX_CHECKED = 200  # pauses that one step looks at
_LOOK_AGAIN = timedelta(days=1)  # at a pause without an end: whether the job is still paused
_RETRY = timedelta(seconds=30)  # when a job could not be resumed


async def pause_abandoned(engine: Engine, term: Term | None) -> bool:
    """Pause jobs whose target answered 410 (gone), unless changed since; True if there are more."""
    now = await engine.clock.now()
    with translate_epoch_errors():
        async with committing(PAUSE.failpoints.before, PAUSE.failpoints.after):
            row = await engine.database.row(
                _J["pause_abandoned"], *epoch_args(term), now, TARGET_GONE, _MAX_ABANDONED
            )
    engine.counts.count_ended(row["ended"])
    return bool(row["seen"] == _MAX_ABANDONED)


async def end_pauses(engine: Engine, now: datetime) -> bool:
    """Resume the jobs whose pause is over; True if there may be more of them.

    It needs no epoch: a job is resumed only if it has the version that the end of its pause was
    read with, and two nodes cannot both resume it.
    """
    rows = await engine.database.fetch(_Q["pauses_to_check"], now, _MAX_CHECKED)
    if not rows:
        return False
    over = [row for row in rows if row["is_paused"] and row["until"] is not None]
    gone = [row for row in rows if not row["is_paused"]]
    kept = [row for row in rows if row["is_paused"] and row["until"] is None]
    for statement, some, at in (
        ("forget_pauses", gone, ()),
        ("look_later", kept, (now + _LOOK_AGAIN,)),
    ):
        if some:
            seen = [row["job"] for row in some], [row["look_at"] for row in some]
            await engine.database.fetch(_Q[statement], *seen, *at)
    versions = {row["job"]: row["version"] for row in over}
    jobs = await find_jobs(engine, list(versions), now)
    unchanged = [job for job in jobs if job.version == versions[job.job_id]]
    write = Write(actor=PAUSE_OVER)
    page = await change_page(engine, unchanged, now, write, RESUME, decide_resume)
    if page.failed:
        stuck = [row for row in over if row["job"] in page.failed]
        for job_id, error in page.failed.items():
            await note_failing(engine, now, "resume", job_id, error, job_id)
        seen = [row["job"] for row in stuck], [row["look_at"] for row in stuck]
        await engine.database.fetch(_Q["look_later"], *seen, now + _RETRY)
    return len(rows) == _MAX_CHECKED
