"""Rows on which a step fails, and which it leaves out (engine/failing.py), as people see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from hourbell.engine.core import Engine
from hourbell.model.ids import execution_text, job_text
from hourbell.store.queries import queries

_Q = queries("failing")
_STILL_FAILING = timedelta(minutes=2)  # since its next try was due: it fails no more
_MAX_SHOWN = 20
ADVICE = (
    "A newer version may have stored what this one cannot read: upgrade all processes. Otherwise"
    " look at the `problem` of the job, and replace or delete it. It is retried every minute."
)
_WHAT = {
    "run": "no worker can run it",
    "join": "its runs cannot be planned",
    "deadline": "its deadline cannot be applied",
    "overdue": "it awaits its target, and its time-out cannot be applied",
    "abandoned": "its target is gone, and it cannot be paused",
    "resume": "its pause cannot be ended",
    "notice": "its notifications cannot be sent",
    "monitor": "its monitor cannot be judged",
    "group": "the callback of a group cannot be created",
    "operation": "a bulk operation cannot be carried out",
    "retire": "its declaration was removed, and it cannot be retired",
}


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one job on which one step fails."""

    message: str
    count: int
    since: datetime
    job_id: str | None
    job_name: str | None
    execution_id: str | None
    tenant_id: str | None


async def failing_rows(engine: Engine, now: datetime, tenant: int | None) -> Sequence[Failing]:
    """What fails now, the oldest first; of a tenant, or of all."""
    rows = await engine.database.fetch(_Q["list"], now - _STILL_FAILING, tenant, _MAX_SHOWN)
    return [
        Failing(
            message=f"{_subject(row['job'], row['execution'])}: {_WHAT.get(row['step'], row['step'])}"
            f" ({row['problem']}).",
            count=row["n"],
            since=row["since"],
            job_id=None if row["job"] is None else job_text(row["job"]),
            job_name=row["job_name"],
            execution_id=None if row["execution"] is None else execution_text(row["execution"]),
            tenant_id=row["tenant_name"],
        )
        for row in rows
    ]


def _subject(job: int | None, execution: int | None) -> str:
    if execution is not None and execution != job:
        return (
            f"{execution_text(execution)} of {job_text(job)}" if job else execution_text(execution)
        )
    return "A row" if job is None else job_text(job)
