"""forecast: what will fall due, by minute, so that a herd is visible before it arrives.

Two disjoint parts: executions that already wait with a time of their own (planned executions,
one-time jobs, retries), and future fires of timetables, from the point that planning has reached.
Memberships say which jobs are attached to a timetable, from when and until when; so pauses,
`starts_at` and `ends_at` are honoured, and so are dates that schedules exclude. `max_runs`, skipped
overlaps and future runs on request are not, because they cannot be known in advance.

The work of a forecast is bounded. Everything is read in the order of time, and the answer says up
to which moment it is complete; beyond that it contains what was read. A timetable with too many
members to count is assumed to be as big as its last fire.

The capacity is what was done in the busiest of the recent minutes, so it is a lower bound: a cell
that was never busy has not shown what it can do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.life.broken import rule_of
from hourbell.engine.views.jobs import NO_TENANT, tenant_wanted
from hourbell.engine.views.pages import walk
from hourbell.store.queries import queries
from hourbell.timing.errors import TimingError
from hourbell.timing.forecast import Firing, Herd, Members, load
from hourbell.timing.rules import Rule
from hourbell.timing.words import rule_words

_Q = queries("forecast")

MAX_HOURS = 168
DEFAULT_HOURS = 24

_MAX_WAITING = 200_000  # rows of `due` that are read
_MAX_TIMETABLES = 10_000
_MAX_MEMBERS = 150_000  # memberships that are counted, in all
_MAX_MEMBERS_OF_ONE = 10_000  # and of one timetable; from here on its size is known
_MAX_OCCURRENCES = 100_000  # about a second of computation
_MAX_JOBS = 20_000  # of a tenant
MAX_HERDS = 50
MAX_MOMENTS = 3_000  # two days of minutes
_MAX_TENANTS = 10  # that are named in a herd,
_MAX_COUNTED = 1_000  # among this many of its members
_MEASURED = timedelta(hours=24)  # the minutes by which the capacity is measured
_MIN_RUNS = 100  # in a minute that says something about it
_MINUTE = timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)
MAX_DUE_JOBS = 100  # of a minute that are listed
_MAX_MOMENTS = 2_000  # of timetables in that minute


class ForecastHerd(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with one rule, which are due at the same moments."""

    at: datetime  # the largest of these moments
    executions: int  # at that moment
    occurrences: int  # of the rule, in the whole period
    rule: str
    timezone: str
    words: str
    jobs: int
    tenants: list[str]  # the largest


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How many executions were done in the busiest of the recent minutes."""

    executions: int | None = None  # None: not known
    reason: str | None = None  # why it is not known
    measured_from: datetime | None = None
    measured_to: datetime | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that will fall due in (begins_at, ends_at], by minute; empty minutes are left out."""

    begins_at: datetime
    ends_at: datetime
    complete_until: datetime  # up to here nothing is missing
    estimated: bool = False  # a timetable has too many members to count, or cannot be computed here
    minutes: list[tuple[datetime, int]] = []
    herds: list[ForecastHerd] = []  # the largest first
    # How many executions of herds are due at one moment: the largest, in the order of time.
    herd_moments: list[tuple[datetime, int]] = []
    capacity: Capacity = Capacity()


class DueJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that will be due."""

    at: datetime
    job_id: int
    job_name: str | None
    tenant_id: str
    execution_id: int | None = None  # None: not planned yet


class ForecastMinute(msgspec.Struct, frozen=True):
    """What will be due in a minute, by time."""

    at: datetime
    items: list[DueJob]
    more: bool  # there are, or may be, others


class _PartialForecast(msgspec.Struct, frozen=True):
    firings: list[Firing]
    complete_until: datetime
    estimated: bool
    rules: dict[int, tuple[str, str]]  # rule and zone by timetable


async def forecast(engine: Engine, hours: int, tenant_id: str | None = None) -> Forecast:
    """What will fall due in the next hours, of one tenant or of all."""
    now = await engine.clock.now()
    through = now + timedelta(hours=hours)
    tenant = await tenant_wanted(engine, tenant_id)
    capacity = await _capacity(engine, now)
    if tenant == NO_TENANT:
        return Forecast(begins_at=now, ends_at=through, complete_until=through, capacity=capacity)
    rows, part = await asyncio.gather(
        walk(engine, _Q["waiting"], now, through, _MAX_WAITING, tenant),
        _all_tenants(engine, now, through)
        if tenant is None
        else _one_tenant(engine, tenant, now, through),
    )
    waiting = Counter({row["minute"]: row["n"] for row in rows if row["n"]})
    ends = [through]
    if sum(row["examined"] for row in rows) == _MAX_WAITING:
        ends.append(max(row["last"] for row in rows))
    fired = await asyncio.to_thread(load, part.firings, now, through, _MAX_OCCURRENCES)
    ends += [part.complete_until, fired.complete_until]
    return Forecast(
        begins_at=now,
        ends_at=through,
        complete_until=max(now, min(ends)),
        estimated=part.estimated,
        minutes=sorted((waiting + fired.by_minute).items()),
        herds=await _herds(engine, part, fired.herds[:MAX_HERDS], now, tenant_id or engine.scope),
        herd_moments=sorted(fired.moments.most_common(MAX_MOMENTS)),
        capacity=capacity,
    )


async def forecast_minute(
    engine: Engine, at: datetime, tenant_id: str | None = None
) -> ForecastMinute:
    """The jobs that will be due in the minute of a moment, of one tenant or of all.

    Dates that schedules exclude are not looked up: such a job is listed, although it is skipped.
    """
    now = await engine.clock.now()
    minute = at.replace(second=0, microsecond=0)
    after, through = max(now, minute - _MICROSECOND), minute + _MINUTE - _MICROSECOND
    tenant = await tenant_wanted(engine, tenant_id)
    if tenant == NO_TENANT or through <= now:
        return ForecastMinute(minute, [], False)
    most = MAX_DUE_JOBS + 1
    timetables: Sequence[asyncpg.Record]
    if tenant is None:
        timetables = await walk(engine, _Q["firing_by"], through, _MAX_TIMETABLES)
        cut = len(timetables) == _MAX_TIMETABLES
    else:
        timetables = await walk(engine, _Q["members_of_tenant"], tenant, now, _MAX_JOBS)
        cut = sum(row["n"] for row in timetables) >= _MAX_JOBS or any(
            row["size"] >= _MAX_MEMBERS_OF_ONE for row in timetables
        )
    moments = await asyncio.to_thread(_moments, timetables, after, through)
    cut = cut or len(moments) == _MAX_MOMENTS
    args = [number for number, _ in moments], [moment for _, moment in moments]
    fired = await walk(engine, _Q["members_at"], *args, tenant, most, _MAX_MEMBERS_OF_ONE)
    waiting = await walk(
        engine, _Q["waiting_in"], after, through, most, tenant, _MAX_MEMBERS_OF_ONE
    )
    cut = cut or any(row["is_last"] for row in waiting)
    found = [
        DueJob(
            at=row["run_at"],
            job_id=row["job"],
            job_name=row["job_name"],
            tenant_id=row["tenant_name"],
            execution_id=row.get("id"),
        )
        for row in (*waiting, *fired)
        if row.get("wanted", True)
    ]
    found.sort(key=lambda each: (each.at, each.job_id))
    return ForecastMinute(minute, found[:MAX_DUE_JOBS], cut or len(found) > MAX_DUE_JOBS)


def _moments(
    timetables: Iterable[asyncpg.Record], after: datetime, through: datetime
) -> list[tuple[int, datetime]]:
    """At which moments in (after, through] timetables fire that are not planned so far, at most _MAX_MOMENTS."""
    found: list[tuple[int, datetime]] = []
    for number, row in {row["id"]: row for row in timetables}.items():
        first: datetime = row["next_fire_at"]
        if first > through or len(found) == _MAX_MOMENTS:
            continue
        rule = _rule_or_none(row)
        moment = first if first > after else None if rule is None else rule.next(after)
        while moment is not None and moment <= through and len(found) < _MAX_MOMENTS:
            found.append((number, moment))
            moment = None if rule is None else rule.next(moment)
    return found


async def _herds(
    engine: Engine,
    part: _PartialForecast,
    herds: list[Herd],
    now: datetime,
    only: str | None,
) -> list[ForecastHerd]:
    """The herds with their rules and tenants; `only`: the tenant whose jobs are meant."""
    ids = [herd.timetable for herd in herds]
    names: dict[int, list[str]] = {each: [] if only is None else [only] for each in ids}
    args = (ids, now, _MAX_COUNTED, _MAX_TENANTS)
    for row in await walk(engine, _Q["tenants_of_timetables"], *args) if only is None else ():
        names[row["timetable"]].append(row["name"])
    jobs = {
        firing.timetable: sum(each.count for each in firing.members if each.on is None)
        for firing in part.firings
    }
    return [
        ForecastHerd(
            at=herd.at,
            executions=herd.runs,
            occurrences=herd.occurrences,
            rule=part.rules[herd.timetable][0],
            timezone=part.rules[herd.timetable][1],
            words=rule_words(*part.rules[herd.timetable]),
            jobs=jobs[herd.timetable],
            tenants=names[herd.timetable],
        )
        for herd in herds
    ]


async def _capacity(engine: Engine, now: datetime) -> Capacity:
    if engine.scope is not None:
        return Capacity(reason="It is shown to keys of all tenants only.")
    (row,) = await walk(engine, _Q["busiest_minute"], now - _MEASURED)
    if not row["n"]:
        return Capacity(reason="Nothing was executed recently.")
    enough = row["n"] >= _MIN_RUNS
    few = f"Fewer than {_MIN_RUNS} executions were done in each of the recent minutes."
    return Capacity(
        executions=row["n"] if enough else None,
        reason=None if enough else few,
        measured_from=row["first"],
        measured_to=row["last"] + _MINUTE,
    )


async def _all_tenants(engine: Engine, now: datetime, through: datetime) -> _PartialForecast:
    timetables = await walk(engine, _Q["firing_by"], through, _MAX_TIMETABLES)
    complete = through if len(timetables) < _MAX_TIMETABLES else timetables[-1]["plan_from"]
    ids = [row["id"] for row in timetables]
    rows = await walk(engine, _Q["members"], ids, now, _MAX_MEMBERS_OF_ONE, _MAX_MEMBERS)
    by_timetable = _by_timetable((row["timetable"], row) for row in rows)
    await _leave_out_excluded(engine, by_timetable, ids, now, through)
    if sum(row["n"] for row in rows) == _MAX_MEMBERS:
        # Timetables after the last counted one were not counted, and that one maybe only in part.
        last = max(number for number, row in enumerate(timetables) if row["id"] in by_timetable)
        complete = min(complete, *(row["next_fire_at"] for row in timetables[last:]))
    firings, estimated = [], False
    fire = [row for row in timetables if row["id"] in by_timetable]
    compiled = await _compile(fire)
    for row in fire:
        members, rule = by_timetable[row["id"]], compiled[row["id"]]
        if rule is None:
            estimated = True
            continue
        counted = sum(each.count for each in members if each.on is None)
        if counted >= _MAX_MEMBERS_OF_ONE:
            estimated = True
            members.append(Members(max(row["size"] - counted, 0)))
        firings.append(Firing(rule, row["next_fire_at"], tuple(members), row["id"]))
    rules = {row["id"]: (row["rule"], row["zone"]) for row in timetables}
    return _PartialForecast(firings, complete, estimated, rules)


async def _one_tenant(
    engine: Engine, tenant: int, now: datetime, through: datetime
) -> _PartialForecast:
    rows = await walk(engine, _Q["members_of_tenant"], tenant, now, _MAX_JOBS)
    by_timetable = _by_timetable((row["id"], row) for row in rows)
    timetables = {row["id"]: row for row in rows}
    await _leave_out_excluded(engine, by_timetable, list(by_timetable), now, through, tenant)
    compiled = await _compile(timetables.values())
    firings = [
        Firing(rule, timetables[number]["next_fire_at"], tuple(members), number)
        for number, members in by_timetable.items()
        if (rule := compiled[number]) is not None
    ]
    cut = sum(row["n"] for row in rows) >= _MAX_JOBS
    rules = {number: (row["rule"], row["zone"]) for number, row in timetables.items()}
    complete = now if cut else through
    return _PartialForecast(firings, complete, len(firings) < len(by_timetable), rules)


async def _leave_out_excluded(
    engine: Engine,
    by_timetable: dict[int, list[Members]],
    timetables: list[int],
    now: datetime,
    through: datetime,
    tenant: int | None = None,
) -> None:
    """Subtract jobs on dates that their schedules exclude."""
    days = now.date() - timedelta(days=1), through.date() + timedelta(days=1)  # in any zone
    if not await engine.database.value(_Q["has_dates"], *days):
        return
    rows = await walk(
        engine, _Q["excluding"], timetables, now, _MAX_MEMBERS_OF_ONE, _MAX_MEMBERS, *days, tenant
    )
    for row in rows:
        if row["timetable"] in by_timetable:
            by_timetable[row["timetable"]].append(
                Members(-row["n"], row["since"], row["until"], frozenset(row["dates"]), row["zone"])
            )


def _by_timetable(rows: Iterable[tuple[int, asyncpg.Record]]) -> dict[int, list[Members]]:
    found: dict[int, list[Members]] = {}
    for number, row in rows:
        found.setdefault(number, []).append(Members(row["n"], row["since"], row["until"]))
    return found


async def _compile(timetables: Iterable[asyncpg.Record]) -> dict[int, Rule | None]:
    """The rules of timetables, by id.

    In a thread: ten thousand take a second, and the leader that renews its lease may be in this
    process.
    """

    def compile_all() -> dict[int, Rule | None]:
        return {row["id"]: _rule_or_none(row) for row in timetables}

    return await asyncio.to_thread(compile_all)


def _rule_or_none(row: asyncpg.Record) -> Rule | None:
    """The rule of a timetable; None if this node cannot compute it, e.g. its zone is unknown."""
    try:
        return rule_of(row)
    except TimingError:
        return None
