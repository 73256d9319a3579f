"""Checked jobs as arguments of `hourbell.create_jobs`: ids for names, one list per column."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourbell.documents.schedules import timetable_of
from hourbell.engine.codes import MISFIRES, OVERLAPS, notifies
from hourbell.engine.core import Engine
from hourbell.engine.life.crowds import Crowds
from hourbell.engine.operations.idempotency import IN_USE, is_held
from hourbell.model.errors import Conflict, HourbellError, InvalidInput, StoreUnavailable
from hourbell.model.jobs import NewJob, OnDuplicate, encode_job
from hourbell.model.policies import Delivery, Priority
from hourbell.model.schedules import Once, Schedule, Timetable
from hourbell.store.queries import queries
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

UNIQUE_KEY, NAME = range(2)  # namespaces of unique keys

_Q = queries("jobs")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TOO_MANY = (
    "Too many jobs of the same request name something new that is unavailable, so this one was not "
    "checked. Nothing was changed; send it again without them."
)

Names = tuple[str, str, str, Schedule | None]
Terms = tuple[str, str, Priority, Delivery, int | None, int | None, int | None, int, int]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A checked job as it will be stored. It is small: a batch has many."""

    job_id: int
    tenant: str
    at: datetime | None  # None: the job is recurring
    terms: Terms
    spec: str
    unique: tuple[int, str] | None  # its unique key, with the namespace of the key
    on_duplicate: OnDuplicate
    recurring: NewJob | None


def entry_of(job_id: int, job: NewJob, name: str | None = None) -> Entry:
    """The entry of a job. `name`: set for a PUT, where the job is unique by this name."""
    unique = None
    if name is not None:
        unique = NAME, name
    elif job.unique_key is not None:
        unique = UNIQUE_KEY, job.unique_key
    once = job.schedule.at if isinstance(job.schedule, Once) else None
    return Entry(
        job_id,
        job.tenant_id,
        once,
        _terms(job),
        encode_job(job).decode(),
        unique,
        job.on_duplicate,
        None if once else job,
    )


def _terms(job: NewJob) -> Terms:
    """The settings that a job runs with: a batch has many jobs and few distinct settings."""
    return (
        job.queue,
        job.target,
        job.priority,
        job.delivery,
        job.start_deadline_seconds,
        job.deadline_seconds,
        key_number(job),
        job.concurrency_limit,
        notifies(job),
    )


class Entries(msgspec.Struct, frozen=True):
    """The jobs of one request, and what is stored with them."""

    tenant: str  # the owner of the idempotency key
    entries: Sequence[Entry]
    actor: str
    key: str | None = None
    fingerprint: bytes = b""
    answer: str | None = None


class Numbers(msgspec.Struct, frozen=True):
    """The ids of names in the database."""

    tenants: dict[str, int]
    queues: dict[str, int]
    targets: dict[str, int]
    timetables: dict[Timetable, int]
    rides: dict[int, Timetable]  # by the ids of recurring jobs


async def numbers_of(engine: Engine, requests: Sequence[Entries], now: datetime) -> Numbers:
    """The ids of everything that some jobs name; unknown names are created."""
    entries = [entry for request in requests for entry in request.entries]
    rides = {
        entry.job_id: timetable_of(entry.recurring.schedule, entry.job_id)
        for entry in entries
        if entry.recurring is not None and not isinstance(entry.recurring.schedule, Once)
    }
    tenants = {entry.tenant for entry in entries} | {request.tenant for request in requests}
    makers = {entry.terms[0]: entry.tenant for entry in entries}
    namers = {entry.terms[1]: entry.tenant for entry in entries}
    return Numbers(
        await engine.tenants(tenants, now),
        await engine.queues(makers.keys(), now, makers),
        await engine.targets(namers.keys(), now, namers),
        await ensure_timetables(engine, set(rides.values()), now) if rides else {},
        rides,
    )


async def unnameable(
    engine: Engine, entries: Iterable[Entry], now: datetime, most: int | None = None
) -> dict[Names, HourbellError]:
    """The names of some jobs that are unavailable, each with the reason, found by bisection.

    `most`: the number of problems reported individually. After that, every group with a problem is
    refused as a whole, so that the search ends soon.
    """
    problems: dict[Names, HourbellError] = {}

    async def look(those: list[Entry]) -> None:
        try:
            await numbers_of(engine, [Entries(those[0].tenant, those, "")], now)
        except (InvalidInput, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not is_held(error):
                raise
            if len(those) == 1:
                problems[names_of(those[0])] = Conflict(IN_USE) if is_held(error) else error
            elif most is not None and len(problems) >= most:
                problems.update((names_of(entry), Conflict(_TOO_MANY)) for entry in those)
            else:
                middle = len(those) // 2
                await look(those[:middle])
                await look(those[middle:])

    await look(list({names_of(entry): entry for entry in entries}.values()))
    return problems


def names_of(entry: Entry) -> Names:
    """Everything that an entry names."""
    queue, target, *_ = entry.terms
    schedule = None if entry.recurring is None else entry.recurring.schedule
    return entry.tenant, queue, target, schedule


def arguments(
    requests: Sequence[Entries],
    numbers: Numbers,
    limited: Collection[str],
    crowds: Crowds,
    now: datetime,
    patience_ms: int | None,
    quota_ms: int,
) -> list[object]:
    """The arguments of `hourbell.create_jobs`, in the order of its parameters."""
    once, again, unique = [], [], []
    counts = [0] * len(requests)
    last_at, instant = None, 0
    terms: dict[tuple[Terms, int], int] = {}  # terms and level; counted from 1
    for number, request in enumerate(requests, start=1):
        for entry in request.entries:
            tenant = numbers.tenants[entry.tenant]
            if entry.at is not None:
                if entry.at is not last_at:  # jobs of a batch often share one instant
                    last_at, instant = entry.at, (entry.at - _EPOCH) // _MICROSECOND
                level = crowds.level(tenant, instant // 1_000_000)
                place = terms.setdefault((entry.terms, level), len(terms) + 1)
                counts[number - 1] += 1
                once.append((entry.job_id, instant, tenant, place, entry.spec))
            elif entry.recurring is not None:
                again.append(_recurring(number, entry, entry.recurring, numbers, now))
            if entry.unique is not None:
                replaces = entry.on_duplicate is OnDuplicate.REPLACE
                unique.append((entry.job_id, number, tenant, *entry.unique, replaces))
    return [
        now,
        patience_ms,
        quota_ms,
        [numbers.tenants[request.tenant] for request in requests],
        [request.actor for request in requests],
        [request.key for request in requests],
        [request.fingerprint for request in requests],
        [request.answer for request in requests],
        counts,
        *_columns(once, 5),
        *_columns([(*_numbered(each, numbers), level) for each, level in terms], 10),
        msgspec.json.encode(again).decode() if again else None,
        *_columns(unique, 6),
        [numbers.tenants[tenant] for tenant in limited if tenant in numbers.tenants],
    ]


def _numbered(terms: Terms, numbers: Numbers) -> tuple[Any, ...]:
    queue, name, priority, delivery, *rest = terms
    target = numbers.targets[name]
    at_most_once = delivery is Delivery.AT_MOST_ONCE
    return numbers.queues[queue], target, priority.value, at_most_once, *rest


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Iterable[list[Any]]:
    return map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(width))


class _Recurring(msgspec.Struct, frozen=True, kw_only=True):
    """A recurring job with its first membership; the fields are columns."""

    id: int
    request: int
    tenant: int
    queue: int
    priority: int
    timetable: int
    max_runs: int | None
    starts_at: datetime | None
    ends_at: datetime | None
    name: str
    spec: str
    target: int | None
    key: int | None
    key_limit: int
    since: datetime
    misfire: int
    catch_up_seconds: int
    catch_up_limit: int
    overlap: int
    at_most_once: bool
    start_deadline_seconds: int | None
    deadline_seconds: int | None
    notifies: int


def _recurring(
    request: int, entry: Entry, job: NewJob, numbers: Numbers, now: datetime
) -> _Recurring:
    return _Recurring(
        id=entry.job_id,
        request=request,
        tenant=numbers.tenants[job.tenant_id],
        queue=numbers.queues[job.queue],
        priority=job.priority.value,
        timetable=numbers.timetables[numbers.rides[entry.job_id]],
        max_runs=job.window.max_runs,
        starts_at=job.window.starts_at,
        ends_at=job.window.ends_at,
        name=job.name,
        spec=entry.spec,
        target=numbers.targets[job.target],
        key=key_number(job),
        key_limit=job.concurrency_limit,
        since=active_since(job, now),
        misfire=MISFIRES[job.misfire_policy],
        catch_up_seconds=job.catch_up_window_seconds,
        catch_up_limit=job.catch_up_limit,
        overlap=OVERLAPS[job.overlap_policy],
        at_most_once=job.delivery is Delivery.AT_MOST_ONCE,
        start_deadline_seconds=job.start_deadline_seconds,
        deadline_seconds=job.deadline_seconds,
        notifies=notifies(job),
    )


def active_since(job: NewJob, now: datetime) -> datetime:
    """The start of a job's first membership: occurrences up to here are not the job's."""
    if job.window.starts_at is None:
        return now
    # An occurrence at starts_at itself counts, but a membership excludes its `active_since`.
    return max(now, job.window.starts_at - timedelta(microseconds=1))


def key_number(job: NewJob) -> int | None:
    """The number of a job's concurrency key: a hash, so that no registry is needed."""
    if job.concurrency_key is None:
        return None
    named = f"{job.tenant_id}\0{job.concurrency_key}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest()) >> 1


async def ensure_timetables(
    engine: Engine, timetables: Iterable[Timetable], now: datetime
) -> dict[Timetable, int]:
    """The ids of timetables, created if new: in a separate transaction, as others may wait."""
    wanted = sorted(timetables, key=msgspec.structs.astuple)
    rows = await engine.database.fetch(_Q["timetables"], *_rhythms(wanted))
    found = {wanted[row["k"] - 1]: row["id"] for row in rows}
    while missing := [each for each in wanted if each not in found]:
        # At most two rounds: another transaction may be inserting one of them.
        rules = (compile_rule(*msgspec.structs.astuple(each)) for each in missing)
        first = [rule.next(now) for rule in rules]
        statement = _Q["ensure_timetables"]
        rows = await engine.make(statement, *_rhythms(missing), now, first, tz_version())
        found |= {missing[row["k"] - 1]: row["id"] for row in rows}
    return found


def _rhythms(timetables: Sequence[Timetable]) -> tuple[list[str], list[str], list[str], list[str]]:
    return (
        [each.rule for each in timetables],
        [each.zone for each in timetables],
        [each.dst_gap for each in timetables],
        [each.dst_overlap for each in timetables],
    )
