"""Resolve what jobs name to ids: tenants, queues, targets and timetables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

import msgspec

from hourbell.documents.schedules import timetable_of
from hourbell.engine.core import CreatedNames, Engine
from hourbell.engine.life.create.rows import JobRow
from hourbell.engine.operations.idempotency import is_lock_conflict
from hourbell.model.errors import (
    Busy,
    Conflict,
    HourbellError,
    InvalidInput,
    StoreUnavailable,
)
from hourbell.model.schedules import Once, Schedule, Timetable
from hourbell.store.queries import queries
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

_Q = queries("jobs")
_MAX_TRIES = 16  # each retry means that a name was unavailable and is available again
_TOO_MANY = (
    "Too many jobs of the same request name something new that is unavailable, so this one was not "
    "checked. Nothing was changed; send it again without them."
)

Names = tuple[str, str, str, Schedule | None]  # tenant, queue, target and schedule of a job


class Blocked(msgspec.Struct, frozen=True):
    """Another transaction held a needed lock beyond the lock timeout."""

    by_quota: bool = False


class ResolvedNames(msgspec.Struct, frozen=True):
    """The ids of names in the database."""

    tenants: dict[str, int]
    queues: dict[str, int]
    targets: dict[str, int]
    timetables: dict[Timetable, int]
    timetable_of: dict[int, Timetable]  # by the ids of recurring jobs
    created: CreatedNames = msgspec.field(default_factory=CreatedNames)


async def resolve_names(
    engine: Engine, rows: Collection[JobRow], now: datetime, key_owner: str | None = None
) -> ResolvedNames:
    """The ids of everything that jobs name; unknown names are created.

    `key_owner`: another tenant to resolve, the owner of the idempotency key.
    """
    timetables = {
        row.job_id: timetable_of(row.recurring.schedule, row.job_id)
        for row in rows
        if row.recurring is not None and not isinstance(row.recurring.schedule, Once)
    }
    tenants = {row.tenant for row in rows}
    if key_owner is not None:
        tenants.add(key_owner)
    queue_tenants = {row.settings.queue: row.tenant for row in rows}
    target_tenants = {row.settings.target: row.tenant for row in rows}
    return ResolvedNames(
        await engine.tenants(tenants, now),
        await engine.queues(queue_tenants.keys(), now, queue_tenants),
        await engine.targets(target_tenants.keys(), now, target_tenants),
        await ensure_timetables(engine, set(timetables.values()), now) if timetables else {},
        timetables,
    )


async def resolve_available(
    engine: Engine,
    rows: Sequence[JobRow],
    now: datetime,
    key_owner: str | None = None,
    max_problems: int | None = None,
) -> tuple[ResolvedNames, dict[int, HourbellError | Blocked]]:
    """Resolve the names of rows. Rows with an unavailable name stay unresolved: why, by job id.

    A name is unavailable if it must not be created, or if another transaction is inserting it.
    `max_problems`: the number of problems reported individually; see `_unavailable`.
    """
    problems: dict[int, HourbellError | Blocked] = {}
    created = CreatedNames()
    engine = engine.noting(created)
    for _ in range(_MAX_TRIES):
        try:
            names = await resolve_names(engine, rows, now, key_owner)
            return msgspec.structs.replace(names, created=created), problems
        except (InvalidInput, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not is_lock_conflict(error):
                raise
        if not rows:
            break
        found = await _unavailable(engine, rows, now, max_problems)
        problems |= {row.job_id: found[_names(row)] for row in rows if _names(row) in found}
        rows = [row for row in rows if row.job_id not in problems]
    raise Busy()


async def _unavailable(
    engine: Engine, rows: Iterable[JobRow], now: datetime, max_problems: int | None
) -> dict[Names, HourbellError | Blocked]:
    """The names of some jobs that are unavailable, each with the reason, found by bisection.

    After `max_problems` problems every group with a problem is refused as a whole, so that the
    search ends soon.
    """
    problems: dict[Names, HourbellError | Blocked] = {}

    async def search(part: list[JobRow]) -> None:
        try:
            await resolve_names(engine, part, now)
        except (InvalidInput, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not is_lock_conflict(error):
                raise
            if len(part) == 1:
                problems[_names(part[0])] = Blocked() if is_lock_conflict(error) else error
            elif max_problems is not None and len(problems) >= max_problems:
                problems.update((_names(row), Conflict(_TOO_MANY)) for row in part)
            else:
                middle = len(part) // 2
                await search(part[:middle])
                await search(part[middle:])

    await search(list({_names(row): row for row in rows}.values()))
    return problems


def _names(row: JobRow) -> Names:
    schedule = None if row.recurring is None else row.recurring.schedule
    return row.tenant, row.settings.queue, row.settings.target, schedule


async def ensure_timetables(
    engine: Engine, timetables: Iterable[Timetable], now: datetime
) -> dict[Timetable, int]:
    """The ids of timetables, created if new: in a separate transaction, as others may wait."""
    wanted = sorted(timetables, key=msgspec.structs.astuple)
    rows = await engine.database.fetch(_Q["timetables"], *_columns(wanted))
    found = {wanted[row["k"] - 1]: row["id"] for row in rows}
    while missing := [each for each in wanted if each not in found]:
        # At most two rounds: another transaction may be inserting one of them.
        rules = (compile_rule(*msgspec.structs.astuple(each)) for each in missing)
        first = [rule.next(now) for rule in rules]
        statement = _Q["ensure_timetables"]
        rows = await engine.insert_missing(statement, *_columns(missing), now, first, tz_version())
        found |= {missing[row["k"] - 1]: row["id"] for row in rows}
    return found


def _columns(timetables: Sequence[Timetable]) -> list[list[str]]:
    return [[*column] for column in zip(*map(msgspec.structs.astuple, timetables), strict=True)]
