"""retain: create partitions of executions ahead of time, and delete what has expired.

Executions and their outcomes are partitioned by the time of creation, and partitions are dropped
whole; what has not ended is carried over. Dead letters, audit entries and other rows with an age
are deleted. Retention is a setting of the cell (`Times`), and of a tenant (`TenantSettings`). A
tenant can keep less of its executions than the cell, not more; they are then deleted in batches.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors

_DAYS_AHEAD = 7
_PARTITIONS = (
    10  # that the retention of the cell is divided into: each costs every statement a little
)
_MAX_ROWS = 10_000
_TENANTS = 1_000  # checked in one round


async def make_partitions(engine: Engine, now: datetime) -> None:
    """Create the partitions for today and some days ahead; any process may call it."""
    span = max(engine.times.ledger_days // _PARTITIONS, 1)
    await engine.database.value(
        "select hourbell.make_partitions($1, $2, $3)", now, _DAYS_AHEAD, span
    )


async def run_housekeeping(engine: Engine, term: Term | None, now: datetime) -> bool:
    """One round of housekeeping; True if there is more to delete."""
    times = engine.times
    await make_partitions(engine, now)
    with translate_epoch_errors():
        await engine.database.value(
            "select hourbell.drop_partitions($1, $2, $3, $4, $5)",
            *epoch_args(term),
            now,
            timedelta(days=times.ledger_days),
            _MAX_ROWS,
        )
        await engine.database.value("select hourbell.track_quotas($1, $2)", *epoch_args(term))
        forgotten = await engine.database.value(
            "select hourbell.delete_expired($1, $2, $3, $4, $5)",
            *epoch_args(term),
            now,
            timedelta(seconds=times.answers_seconds),
            _MAX_ROWS,
        )
        deleted = await engine.database.value(
            "select hourbell.retain($1, $2, $3, $4, $5, $6, $7, $8)",
            *epoch_args(term),
            now,
            times.ledger_days,
            times.dead_letter_days,
            times.audit_days,
            _TENANTS,
            _MAX_ROWS,
        )
    return bool(forgotten >= _MAX_ROWS or deleted >= _MAX_ROWS)
