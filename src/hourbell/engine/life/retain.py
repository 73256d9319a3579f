"""retain: create the ledger's daily partitions ahead of time, and delete what has expired.

Ledger days are dropped whole; dead letters, audit entries and other rows with an age are deleted.
Retention is a setting of the cell (`Times`), and of a tenant (`TenantSettings`). A tenant can keep
less of the ledger than the cell, not more, because days are dropped whole; its rows are then
deleted in batches.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors

_DAYS_AHEAD = 7
_MOST = 10_000
_TENANTS = 1_000  # checked in one round


async def make_partitions(engine: Engine, now: datetime) -> None:
    """Create the ledger's partitions for today and some days ahead; any process may call it."""
    await engine.database.value("select hourbell.make_partitions($1, $2)", now, _DAYS_AHEAD)


async def run_housekeeping(engine: Engine, term: Term | None, now: datetime) -> bool:
    """One round of housekeeping; True if there is more to delete."""
    times = engine.times
    await make_partitions(engine, now)
    with translate_epoch_errors():
        await engine.database.value(
            "select hourbell.drop_partitions($1, $2, $3, $4)",
            *epoch_args(term),
            now,
            timedelta(days=times.ledger_days),
        )
        forgotten = await engine.database.value(
            "select hourbell.delete_expired($1, $2, $3, $4, $5)",
            *epoch_args(term),
            now,
            timedelta(seconds=times.answers_seconds),
            _MOST,
        )
        deleted = await engine.database.value(
            "select hourbell.retain($1, $2, $3, $4, $5, $6, $7, $8)",
            *epoch_args(term),
            now,
            times.ledger_days,
            times.dead_letter_days,
            times.audit_days,
            _TENANTS,
            _MOST,
        )
    return bool(forgotten >= _MOST or deleted >= _MOST)
