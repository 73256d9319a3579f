"""plan: advance timetables that fire within the horizon, and create their members' executions.

`fire_of` is pure: it says which occurrences of a timetable should be planned by now. `plan` asks
the database to open those fires and to fan them out, in bounded statements. Planning only moves
forward, by an update that is conditional on the fire that was read, so any number of planners may
run and each occurrence is still planned once.

After an outage the present comes first: a timetable advances to its newest due occurrences at once,
and what it has missed before them is a *gap*. Gaps are caught up when nothing else is left to plan,
in slices that take turns, so that neither the number of timetables nor the length of the outage
delays the present, the renewal of the term or the other loops.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate_first, note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.life.broken import compute_each
from hourbell.observe.clock import epoch_ns
from hourbell.store.database import committing
from hourbell.store.queries import queries
from hourbell.timing.rules import Rule, between
from hourbell.timing.zones import tz_version

_Q = queries("planning")
_MAX_TIMETABLES = 500
_MAX_AHEAD = 100  # occurrences of one timetable in one fire
_MAX_MISSED = 100  # occurrences of one late fire; a longer stretch is a gap
_SLICE = 10_000  # occurrences of one slice of a gap
_TAIL = 1_000  # reserved for the last slice of a gap: catch_up_limit reaches no further
_SLICE_PART = 500  # occurrences that are computed without a break: a few milliseconds
_MAX_GAPS = 20  # that are caught up by one step,
_CATCH_UP_SECONDS = 0.1  # if they take no longer than this
_MOMENT = timedelta(microseconds=1)
_QUARTER = timedelta(minutes=15)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNK = 5_000  # executions planned by one statement
_FAN_OUT_PER_SECOND = 50_000.0  # decides how early a big fire begins; half the measured rate

_OPEN = "select hourbell.open_fires($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_OPEN_SLICE = "select hourbell.open_slice($1, $2, $3, $4, $5, $6)"
_FAN_OUT = "select *, hourbell.ended() as ended from hourbell.fan_out($1, $2, $3, $4, $5)"
_LEAVE_OUT = "select hourbell.leave_out_member($1, $2)"
_UPDATE_TZ_VERSION = "select hourbell.update_tz_version($1, $2, $3, $4, $5, $6, $7)"
_END = "select hourbell.end_memberships($1, $2, $3, $4)"


class Fire(msgspec.Struct, frozen=True):
    """The occurrences of a timetable that should be planned now."""

    occurrences: list[datetime]
    following: datetime | None  # the first occurrence after these
    late: bool  # past the grace: each job's misfire policy decides
    gap: bool  # what was missed before these is caught up later


def fire_of(
    rule: Rule, first: datetime, now: datetime, horizon: timedelta, grace: timedelta
) -> Fire:
    """The fire of a timetable whose next occurrence is `first`."""
    # `first` is not recomputed: it was an occurrence by the zone data of the node that stored it.
    if first >= now - grace:
        ahead = [first, *between(rule, first, max(now + horizon, first), _MAX_AHEAD - 1)]
        return Fire(ahead, rule.next(ahead[-1]), late=False, gap=False)
    missed = [first, *between(rule, first, now, _MAX_MISSED)]
    if len(missed) <= _MAX_MISSED:
        return Fire(missed, rule.next(missed[-1]), late=True, gap=False)
    due = _newest(rule, now, grace)
    return Fire(due, rule.next(due[-1]), late=True, gap=True)


def _newest(rule: Rule, now: datetime, grace: timedelta) -> list[datetime]:
    """The occurrences up to now that are within the grace, or else the one before them."""
    due = between(rule, now - grace - _MOMENT, now)
    window = grace
    while not due:  # the caller knows that there are many
        window *= 2
        due = between(rule, now - window, now)[-1:]
    return due


async def plan(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Open the fires that are due and fan out one chunk; True if there is more to do.

    When that leaves nothing, the next slices of gaps are opened.
    """
    began_ns = 0 if engine.traces is None else epoch_ns()
    more_to_open = await _open_fires(engine, term, now)
    planned, more = await _fan_out(engine, term, now)
    if engine.traces is not None and planned:
        engine.traces.note_pass("plan", began_ns, planned)
    if more or more_to_open or planned >= _CHUNK:
        return True
    return await _open_slices(engine, term, now)


async def _open_fires(engine: Engine, term: Term | None, now: datetime) -> bool:
    times = engine.times
    rows = await engine.database.fetch(_Q["firing"], now + times.horizon, _MAX_TIMETABLES)
    if not rows:
        return False
    found = await compute_each(
        engine,
        term,
        now,
        rows,
        lambda rule, row: fire_of(rule, row["next_fire_at"], now, times.horizon, times.grace),
    )
    fires = [(row["id"], row["next_fire_at"], fire) for row, fire in found]
    async with committing("plan.before_open", "plan.after_open"):
        with translate_epoch_errors():
            await engine.database.value(
                _OPEN,
                *epoch_args(term),
                now,
                [number for number, _, _ in fires],
                [first for _, first, _ in fires],
                [fire.occurrences[-1] for _, _, fire in fires],
                [fire.following for _, _, fire in fires],
                [fire.late for _, _, fire in fires],
                [fire.gap for _, _, fire in fires],
                [number for number, _, fire in fires for _ in fire.occurrences],
                [at for _, _, fire in fires for at in fire.occurrences],
                _FAN_OUT_PER_SECOND,
            )
    following = [fire.following for _, _, fire in fires if fire.following is not None]
    return len(rows) == _MAX_TIMETABLES or any(at <= now + times.horizon for at in following)


async def _open_slices(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Open slices of gaps, each of another gap, for a bounded time; True if there are any."""
    rows = await engine.database.fetch(_Q["gaps"], _MAX_GAPS)
    began = engine.clock.monotonic()
    for row, rule in await compute_each(engine, term, now, rows, lambda rule, row: rule):
        occurrences, following = await _slice_of(rule, row["next_at"], row["before"])
        if following and row["has_dates"]:
            following += await _samples(rule, following[0], row["before"])
        async with committing("plan.before_open", "plan.after_open"):
            with translate_epoch_errors():
                await engine.database.value(
                    _OPEN_SLICE,
                    *epoch_args(term),
                    row["id"],
                    row["opened_at"],
                    occurrences,
                    following,
                )
        if engine.clock.monotonic() - began > _CATCH_UP_SECONDS:
            break
    return bool(rows)


async def _slice_of(
    rule: Rule, first: datetime, before: datetime
) -> tuple[list[datetime], list[datetime]]:
    """The next occurrences of a gap from `first` on, and the one that follows, if there is one."""
    found = [first]
    while len(found) < _SLICE + _TAIL:
        part = between(rule, found[-1], before - _MOMENT, _SLICE_PART)
        found += part
        if len(part) < _SLICE_PART:
            return found, []
        await asyncio.sleep(0)
    return found[:_SLICE], found[_SLICE : _SLICE + 1]


async def _samples(rule: Rule, after: datetime, before: datetime) -> list[datetime]:
    """The first occurrence of each quarter of an hour: in any zone a date begins with one."""
    found: list[datetime] = []
    at = rule.next(after)
    while at is not None and at < before:
        found.append(at)
        at = rule.next(at + (_QUARTER - (at - _EPOCH) % _QUARTER) - _MOMENT)
        if len(found) % _SLICE_PART == 0:
            await asyncio.sleep(0)
    return found


async def _fan_out(engine: Engine, term: Term | None, now: datetime) -> tuple[int, bool]:
    """Fan out one chunk, a smaller one if it fails; a member on which it fails alone is left out."""

    async def leave_out(error: Exception) -> tuple[int, bool]:
        with translate_epoch_errors():
            job_id = await engine.database.value(_LEAVE_OUT, *epoch_args(term))
        if job_id is None:
            raise error
        await note_failing(engine, now, "join", job_id, error, job_id)
        return 0, True

    return await isolate_first(
        _CHUNK, lambda limit: _fan_out_chunk(engine, term, now, limit), leave_out
    )


async def _fan_out_chunk(
    engine: Engine, term: Term | None, now: datetime, limit: int
) -> tuple[int, bool]:
    began = engine.clock.monotonic()
    async with committing("plan.before_chunk", "plan.after_chunk"):
        with translate_epoch_errors():
            row = await engine.database.row(
                _FAN_OUT, *epoch_args(term), now, limit, engine.times.grace
            )
    engine.counts.planned.add(row["planned"], engine.clock.monotonic() - began)
    engine.counts.count_ended(row["ended"])
    return row["planned"], row["more"]


async def end_memberships(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Delete fully planned memberships; jobs without further occurrences become ENDED."""
    async with committing("end.before_commit", "end.after_commit"):
        with translate_epoch_errors():
            ended = await engine.database.value(_END, *epoch_args(term), now, _MAX_TIMETABLES)
    return bool(ended == _MAX_TIMETABLES)


async def update_tz_version(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Recompute unplanned fires with this node's zone data; True if there is more."""
    rows = await engine.database.fetch(_Q["outdated"], tz_version(), _MAX_TIMETABLES, now)
    found = await compute_each(
        engine, term, now, rows, lambda rule, row: rule.next(row["planned_through"])
    )
    if found:
        with translate_epoch_errors():
            await engine.database.value(
                _UPDATE_TZ_VERSION,
                *epoch_args(term),
                tz_version(),
                [row["id"] for row, _ in found],
                [row["planned_through"] for row, _ in found],
                [following for _, following in found],
                _FAN_OUT_PER_SECOND,
            )
    return len(rows) == _MAX_TIMETABLES
