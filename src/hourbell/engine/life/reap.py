"""reap: recover executions whose worker died; end those that missed their deadline."""

from __future__ import annotations

from datetime import datetime

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate_first, note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.life.failures import log_deaths
from hourbell.store.database import committing

_MAX_DEADLINES = 5_000
_LOST = "lost"  # the kind of failure of an attempt whose worker died
_REAP = "select *, hourbell.ended() as ended_as from hourbell.reap($1, $2, $3, $4)"
_EXPIRE = "select n, hourbell.ended() as ended from hourbell.expire($1, $2, $3, $4) as n"
_DELAY = "select hourbell.delay_deadline($1, $2, $3)"


class Reaped(msgspec.Struct, frozen=True):
    sessions: int
    returned: int  # executions that are due again
    ended: int  # lost (at most once), crashed too often, or cancelled meanwhile


async def reap(engine: Engine, term: Term | None, now: datetime) -> Reaped:
    """End expired sessions and make their executions due again."""
    async with committing("reap.before_commit", "reap.after_commit"):
        with translate_epoch_errors():
            row = await engine.database.row(_REAP, *epoch_args(term), now, engine.times.max_crashes)
    counts = engine.counts
    counts.expired_sessions.add(row["sessions"])
    counts.expired_leases.add(row["returned"] + row["ended"])
    counts.count_retries(_LOST, row["returned"])
    counts.count_ended(row["ended_as"])
    if row["ended"]:
        await log_deaths(engine, now)
    return Reaped(row["sessions"], row["returned"], row["ended"])


async def expire(engine: Engine, term: Term | None, now: datetime) -> bool:
    """End executions that missed their deadline; True if there may be more.

    If the database rejects that, fewer deadlines are applied, until it does not. One that is
    rejected alone is retried after a minute, so that it does not stop the later ones.
    """

    async def delay(error: Exception) -> bool:
        await _delay(engine, term, now, error)
        return False  # if none can be applied, not one right after the other

    return await isolate_first(
        _MAX_DEADLINES, lambda limit: _expire(engine, term, now, limit), delay
    )


async def _delay(engine: Engine, term: Term | None, now: datetime, error: Exception) -> None:
    with translate_epoch_errors():
        execution_id = await engine.database.value(_DELAY, *epoch_args(term), now)
    if execution_id is not None:
        await note_failing(engine, now, "deadline", execution_id, error, execution_id=execution_id)


async def _expire(engine: Engine, term: Term | None, now: datetime, limit: int) -> bool:
    async with committing("expire.before_commit", "expire.after_commit"):
        with translate_epoch_errors():
            row = await engine.database.row(_EXPIRE, *epoch_args(term), now, limit)
    engine.counts.count_ended(row["ended"])
    if row["n"]:
        await log_deaths(engine, now)
    return bool(row["n"] == limit)
