"""retain: create partitions of executions ahead of time, and delete what has expired.

Executions and their outcomes are partitioned by the time of creation, and partitions are dropped
whole; what has not ended is carried over. Dead letters, audit entries and other rows with an age
are deleted. Retention is a setting of the cell (`Times`), and of a tenant (`TenantSettings`). A
tenant can keep less of its executions than the cell, not more; they are then deleted in batches.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from hourbell.engine.core import Engine
from hourbell.engine.failing import run_each
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.store.queries import queries

_F = queries("failing")
_FAILING_KEPT = timedelta(hours=1)  # how long a row is kept that no longer fails
_DAYS_AHEAD = 7
_PARTITIONS = (
    10  # that the retention of the cell is divided into: each costs every statement a little
)
_MAX_ROWS = 10_000
_TENANTS = 1_000  # checked in one round
_SCANNED = 50_000  # rows that one statement reads
_REST = "rest"  # the partition of what has no other; it is never dropped
_QUOTA_CHUNKS = 100  # of jobs that were there before a quota, listed in one round


async def make_partitions(engine: Engine, now: datetime) -> None:
    """Create the partitions for today and some days ahead; any process may call it."""
    span = max(engine.times.ledger_days // _PARTITIONS, 1)
    await engine.database.value(
        "select hourbell.make_partitions($1, $2, $3)", now, _DAYS_AHEAD, span
    )


async def run_housekeeping(engine: Engine, term: Term | None, now: datetime) -> bool:
    """One round of housekeeping; True if there is more to delete."""
    times = engine.times

    async def call(statement: str, *args: object) -> Any:
        with translate_epoch_errors():
            return await engine.database.value(statement, *epoch_args(term), *args)

    async def make() -> bool:
        await make_partitions(engine, now)
        return False

    async def drop() -> bool:
        with translate_epoch_errors():
            return await _drop_partitions(engine, term, now)

    async def delete_old_records() -> bool:
        kept = timedelta(days=times.ledger_days)
        await call("select hourbell.delete_old_records($1, $2, $3, $4)", now, kept)
        await engine.database.fetch(_F["forget"], now - _FAILING_KEPT)
        return False

    async def list_quota_jobs() -> bool:
        for _ in range(_QUOTA_CHUNKS):
            if not await call("select hourbell.list_quota_jobs($1, $2, $3)", _SCANNED):
                break
        await call("select hourbell.check_quota_jobs($1, $2, $3)", _SCANNED)
        return False

    async def delete_expired() -> bool:
        kept = timedelta(seconds=times.answers_seconds)
        statement = "select hourbell.delete_expired($1, $2, $3, $4, $5)"
        return bool(await call(statement, now, kept, _MAX_ROWS) >= _MAX_ROWS)

    async def retain() -> bool:
        days = times.ledger_days, times.dead_letter_days, times.audit_days
        statement = "select hourbell.retain($1, $2, $3, $4, $5, $6, $7, $8)"
        return bool(await call(statement, now, *days, _TENANTS, _MAX_ROWS) >= _MAX_ROWS)

    async def drop_groups() -> bool:
        until = now - timedelta(days=times.ledger_days)
        return bool(await call("select hourbell.drop_groups($1, $2, $3, $4)", until, _MAX_ROWS))

    return await run_each(
        make, drop, delete_old_records, list_quota_jobs, delete_expired, retain, drop_groups
    )


async def _drop_partitions(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Drop the partitions that are older than the retention; True if there is more to delete.

    What must outlive a partition is looked for in short statements first: while it is dropped, the
    tables are locked. If that is too much to be carried over, the partition waits and is thinned:
    what has ended is deleted in batches, one partition after the other. Nothing is scanned again
    before that is finished, so each row is read a fixed number of times.
    """
    until = (now - timedelta(days=engine.times.ledger_days)).astimezone(UTC)
    until = until.replace(hour=0, minute=0, second=0, microsecond=0)
    partitions = await engine.database.fetch(
        "select p.name, t.name is not null as is_thinned from hourbell.partitions() as p"
        " left join hourbell.thinned_partitions as t on t.name = p.name"
        " where after <= $1 order by is_thinned desc, first",
        until.date(),
    )
    if await _thin(engine, term, _REST, until):
        return True
    for partition in partitions:
        name = partition["name"]
        with suppress(asyncpg.UndefinedTableError):  # another leader dropped it
            kept = None if partition["is_thinned"] else await _kept(engine, name, until)
            if kept is None:
                if await _thin(engine, term, name, until):
                    return True
                continue
            await engine.database.value(
                "select hourbell.drop_partition($1, $2, $3, $4, $5)",
                *epoch_args(term),
                name,
                kept,
                now - timedelta(hours=1),  # before the scan, by any clock
            )
    return False


async def _thin(engine: Engine, term: Term | None, name: str, until: datetime) -> bool:
    """Delete a batch of what has ended in a partition; True if there may be more of it."""
    row = await engine.database.row(
        "select * from hourbell.thin_partition($1, $2, $3, $4, $5)",
        *epoch_args(term),
        name,
        until,
        _MAX_ROWS,
    )
    # A batch of which everything stays does not call for the next one: there may be millions.
    return row["deleted"] > 0 and not row["finished"]


async def _kept(engine: Engine, name: str, until: datetime) -> list[int] | None:
    """What must outlive a partition; None: too much to be carried over."""
    kept: list[int] = []
    after: int | None = 0
    while after is not None:
        row = await engine.database.row(
            "select * from hourbell.scan_partition($1, $2, $3, $4)", name, after, until, _SCANNED
        )
        kept += row["kept"]
        if len(kept) > _MAX_ROWS:
            return None
        after = row["last"]
    return kept
