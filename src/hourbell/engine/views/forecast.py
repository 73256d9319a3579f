"""forecast: what will fall due, by minute, so that a herd is visible before it arrives.

Two disjoint parts: executions that already wait with a time of their own (planned executions,
one-time jobs, retries), and future fires of timetables, from the point that planning has reached.
Memberships say which jobs are attached to a timetable, from when and until when; so pauses,
`starts_at` and `ends_at` are honoured, and so are dates that schedules exclude. `max_runs`, skipped
overlaps and future runs on request are not, because they cannot be known in advance.

The work of a forecast is bounded. Everything is read in the order of time, and the answer says up
to which moment it is complete; beyond that it contains what was read. A timetable with too many
members to count is assumed to be as big as its last fire, or as what was counted.

Whether runs start on time depends on limits and on how long runs take. `delays` says where they
wait longest: in each queue and tenant with limits, and in all, for the slots of the live workers.
How long runs will take is what the last runs of the same rule, or else of their queue, took.

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
from hourbell.engine.operations.limits import BLOCKER_QUEUE
from hourbell.engine.views.jobs import NO_TENANT, tenant_wanted
from hourbell.engine.views.pages import walk
from hourbell.store.queries import queries
from hourbell.timing.delays import Arrival, Limit, longest_delay
from hourbell.timing.errors import TimingError
from hourbell.timing.forecast import Firing, Herd, Load, Members, load
from hourbell.timing.rules import Rule
from hourbell.timing.words import rule_words

_Q = queries("forecast")

MAX_HOURS = 168
DEFAULT_HOURS = 24

_MAX_WAITING = 200_000  # rows of `due` that are read
_MAX_TIMETABLES = 10_000
_MAX_MEMBERS = 150_000  # memberships that are counted, in all
_MAX_MEMBERS_OF_ONE = 10_000  # and of one timetable; larger ones are counted by an index only:
_MAX_SIZED = 10  # so many of them,
_MAX_SIZE = 200_000  # up to here
_MAX_OCCURRENCES = 100_000  # about a second of computation
_MAX_JOBS = 20_000  # of a tenant
MAX_HERDS = 50
_MAX_TENANTS = 10  # that are named in a herd,
_MAX_COUNTED = 1_000  # among this many of its members
_MEASURED = timedelta(hours=24)  # the minutes by which the capacity is measured
_MIN_RUNS = 100  # in a minute that says something about it
_MINUTE = timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)
_MAX_LIMITS = 200  # of queues, and of tenants
_MAX_TIMED = 100  # timetables, the largest, of which the last runs are looked up:
_TIMED_JOBS, _TIMED_RUNS = 5, 2  # the last two of five jobs
_TIMED = 5_000  # executions by which the runs of queues are timed
_SHOWN_DELAY = timedelta(seconds=10)  # a shorter one is usual
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


class ForecastDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs will wait for a limit, and how long."""

    kind: str  # queue, tenant or workers
    name: str | None  # of the queue or tenant
    max_concurrency: int | None  # of workers: their slots
    per_second: float | None
    begins_at: datetime  # the first of these runs is due
    executions: int
    seconds: float  # that each takes, on average
    due_at: datetime  # those that wait longest
    last_start_at: datetime | None  # of these; None: they do not start


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
    delays: list[ForecastDelay] = []  # the longest first
    untimed: int = 0  # executions of which it is not known how long they take
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


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """A limit for which runs may have to wait."""

    kind: str
    number: int  # of the queue or tenant
    name: str | None
    limit: Limit


class _Lines:
    """The limits that a forecast knows; their ids are their positions."""

    def __init__(self, lines: Sequence[_Line]) -> None:
        self.all = lines
        self._ids = {(line.kind, line.number): index for index, line in enumerate(lines)}
        self.queues = [line.number for line in lines if line.kind == "queue"]
        self.tenants = [line.number for line in lines if line.kind == "tenant"]

    def of(self, queue: int | None, tenant: int | None) -> tuple[int, ...]:
        """Those that a run of this queue and tenant waits for."""
        shared = (("queue", queue), ("tenant", tenant), ("workers", 0))
        return tuple(self._ids[each] for each in shared if each in self._ids)


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
    lines = await _lines(engine, tenant, now)
    limited = lines.queues, lines.tenants
    rows, part = await asyncio.gather(
        walk(engine, _Q["waiting"], now, through, _MAX_WAITING, tenant, *limited),
        _all_tenants(engine, now, through, lines)
        if tenant is None
        else _one_tenant(engine, tenant, now, through, lines),
    )
    waiting: Counter[datetime] = Counter()
    for row in rows:
        if row["n"]:
            waiting[row["minute"]] += row["n"]
    ends = [through]
    if sum(row["examined"] for row in rows) == _MAX_WAITING:
        ends.append(max(row["last"] for row in rows))
    fired = await asyncio.to_thread(load, part.firings, now, through, _MAX_OCCURRENCES)
    ends += [part.complete_until, fired.complete_until]
    delays, untimed = await _delays(engine, lines, rows, fired)
    return Forecast(
        begins_at=now,
        ends_at=through,
        complete_until=max(now, min(ends)),
        estimated=part.estimated,
        minutes=sorted((waiting + fired.by_minute).items()),
        herds=await _herds(engine, part, fired.herds[:MAX_HERDS], now, tenant_id or engine.scope),
        herd_moments=sorted(fired.moments.items()),
        delays=delays,
        untimed=untimed,
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
        timetables = await walk(engine, _Q["members_of_tenant"], tenant, now, _MAX_JOBS, [], [])
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


async def _lines(engine: Engine, tenant: int | None, now: datetime) -> _Lines:
    """Queues and tenants with limits and, for callers that may see them, the slots of the workers."""
    lines = [
        _Line(
            kind="queue" if row["kind"] == BLOCKER_QUEUE else "tenant",
            number=row["id"],
            name=row["name"],
            limit=Limit(row["max_concurrency"], row["rate"], row["burst"] or 1),
        )
        for row in await walk(engine, _Q["limited"], _MAX_LIMITS, tenant)
    ]
    if engine.scope is None:
        slots = await engine.database.value(_Q["slots"], now)
        lines.append(_Line(kind="workers", number=0, name=None, limit=Limit(slots)))
    return _Lines(lines)


async def _delays(
    engine: Engine, lines: _Lines, waiting: Sequence[asyncpg.Record], fired: Load
) -> tuple[list[ForecastDelay], int]:
    """Where runs will wait for limits, and how many runs have an unknown duration."""
    if not lines.all:
        return [], 0
    by_size = Counter[int]()
    for due in fired.due:
        by_size[due.timetable] += due.runs
    largest = [number for number, _ in by_size.most_common(_MAX_TIMED)]
    timed = await walk(engine, _Q["seconds_of_timetables"], largest, _TIMED_JOBS, _TIMED_RUNS)
    of_timetables = {row["timetable"]: row["seconds"] for row in timed}
    timed = await walk(engine, _Q["seconds_of_queues"], _TIMED)
    of_queues = {row["queue"]: row["seconds"] for row in timed}
    runs = sum(row["n"] for row in timed)
    of_all = sum(row["seconds"] * row["n"] for row in timed) / runs if runs else None

    def seconds_of(shared: tuple[int, ...]) -> float | None:
        queues = (lines.all[each].number for each in shared if lines.all[each].kind == "queue")
        return of_queues.get(next(queues, None), of_all)

    found: list[tuple[datetime, int, float | None, tuple[int, ...]]] = [
        (due.at, due.runs, of_timetables.get(due.timetable, seconds_of(due.limits)), due.limits)
        for due in fired.due
        if due.runs > 0
    ]
    for row in waiting:
        if row["n"]:
            shared = lines.of(row["queue"], row["tenant"])
            found.append((row["minute"], row["n"], seconds_of(shared), shared))
    found.sort(key=lambda each: each[0])
    arrivals: list[list[Arrival]] = [[] for _ in lines.all]
    for at, n, seconds, shared in found:
        for number in shared:
            arrivals[number].append(Arrival(at, n, seconds or 0.0))
    worst = await asyncio.to_thread(
        lambda: [
            longest_delay(line.limit, arrivals[number]) for number, line in enumerate(lines.all)
        ]
    )
    delays = [
        ForecastDelay(
            kind=line.kind,
            name=line.name,
            max_concurrency=line.limit.at_once,
            per_second=line.limit.per_second,
            begins_at=delay.begins_at,
            executions=delay.runs,
            seconds=delay.seconds,
            due_at=delay.due_at,
            last_start_at=delay.last_start_at,
        )
        for line, delay in zip(lines.all, worst, strict=True)
        if delay is not None and _wait(delay.due_at, delay.last_start_at) >= _SHOWN_DELAY
    ]
    delays.sort(key=lambda each: _wait(each.due_at, each.last_start_at), reverse=True)
    return delays, sum(n for _, n, seconds, _ in found if seconds is None)


def _wait(due_at: datetime, start_at: datetime | None) -> timedelta:
    return timedelta.max if start_at is None else start_at - due_at


async def _all_tenants(
    engine: Engine, now: datetime, through: datetime, lines: _Lines
) -> _PartialForecast:
    timetables = await walk(engine, _Q["firing_by"], through, _MAX_TIMETABLES)
    complete = through if len(timetables) < _MAX_TIMETABLES else timetables[-1]["plan_from"]
    ids = [row["id"] for row in timetables]
    limited = lines.queues, lines.tenants
    bounds = _MAX_MEMBERS_OF_ONE, _MAX_MEMBERS
    rows = await walk(engine, _Q["members"], ids, now, *bounds, *limited)
    by_timetable = _by_timetable(((row["timetable"], row) for row in rows), lines)
    counted = _counted(by_timetable)
    large = [number for number, n in counted.items() if n >= _MAX_MEMBERS_OF_ONE][:_MAX_SIZED]
    sizes = {
        row["timetable"]: row["n"]
        for row in (await walk(engine, _Q["sizes"], large, now, _MAX_SIZE) if large else ())
    }
    await _leave_out_excluded(engine, by_timetable, ids, now, through, lines)
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
        if counted[row["id"]] >= _MAX_MEMBERS_OF_ONE:
            size = sizes.get(row["id"], 0)
            if size == 0 or size == _MAX_SIZE:  # as large as its last fire, or larger
                estimated = True
                size = max(size, row["size"])
            rest = max(size - counted[row["id"]], 0)
            members.append(Members(rest, limits=lines.of(None, None)))
        firings.append(Firing(rule, row["next_fire_at"], tuple(members), row["id"]))
    rules = {row["id"]: (row["rule"], row["zone"]) for row in timetables}
    return _PartialForecast(firings, complete, estimated, rules)


async def _one_tenant(
    engine: Engine, tenant: int, now: datetime, through: datetime, lines: _Lines
) -> _PartialForecast:
    limited = lines.queues, lines.tenants
    rows = await walk(engine, _Q["members_of_tenant"], tenant, now, _MAX_JOBS, *limited)
    by_timetable = _by_timetable(((row["id"], row) for row in rows), lines)
    timetables = {row["id"]: row for row in rows}
    ids = list(by_timetable)
    await _leave_out_excluded(engine, by_timetable, ids, now, through, lines, tenant)
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
    lines: _Lines,
    tenant: int | None = None,
) -> None:
    """Subtract jobs on dates that their schedules exclude."""
    days = now.date() - timedelta(days=1), through.date() + timedelta(days=1)  # in any zone
    if not await engine.database.value(_Q["has_dates"], *days):
        return
    bounds, limited = (_MAX_MEMBERS_OF_ONE, _MAX_MEMBERS), (lines.queues, lines.tenants)
    args = timetables, now, *bounds, *days, tenant, *limited
    rows = await walk(engine, _Q["excluding"], *args)
    for row in rows:
        if row["timetable"] in by_timetable:
            by_timetable[row["timetable"]].append(
                Members(
                    -row["n"],
                    row["since"],
                    row["until"],
                    frozenset(row["dates"]),
                    row["zone"],
                    lines.of(row["queue"], row["tenant"]),
                )
            )


def _by_timetable(
    rows: Iterable[tuple[int, asyncpg.Record]], lines: _Lines
) -> dict[int, list[Members]]:
    found: dict[int, list[Members]] = {}
    for number, row in rows:
        limits = lines.of(row["queue"], row["tenant"])
        members = Members(row["n"], row["since"], row["until"], limits=limits)
        found.setdefault(number, []).append(members)
    return found


def _counted(by_timetable: dict[int, list[Members]]) -> dict[int, int]:
    return {
        number: sum(each.count for each in members if each.on is None)
        for number, members in by_timetable.items()
    }


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
