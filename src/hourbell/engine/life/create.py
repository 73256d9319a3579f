"""create: insert jobs, their audit rows and their idempotency answers in one statement.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a
membership that has still to join its timetable; the join follows the commit, and if this process
dies in between, the leader completes it.

Concurrent creates are executed together (`groups`): one query for the settings they need, parsing
in this process, then `hourbell.create_jobs` as one autocommit statement for all of them. Each
request gets its own answer: an invalid document, an exhausted quota or a taken key affects no other
request. The lock timeout of the statement is short. On a lock timeout the group is bisected until
the blocked request is alone; it is then retried separately with a longer timeout, so one stuck row
never delays unrelated requests. Jobs of tenants with a quota are counted under a lock; if another
transaction holds that lock, they are created apart from the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.common_case import PlainJob
from hourbell.documents.jobs import parse_new_job
from hourbell.documents.schedules import first_run
from hourbell.engine.core import Engine
from hourbell.engine.life.groups import Ask
from hourbell.engine.life.join import join_timetable
from hourbell.engine.life.named_secrets import NamedSecrets, Required
from hourbell.engine.life.rows import (
    Entries,
    Entry,
    Numbers,
    arguments,
    entry_of,
    names_of,
    numbers_of,
    unnameable,
)
from hourbell.engine.operations.idempotency import (
    IN_USE,
    Idempotent,
    Points,
    Write,
    is_held,
    waits_for_quota,
)
from hourbell.engine.operations.limits import queue_settings
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import (
    Conflict,
    DuplicateJob,
    IdempotencyKeyReused,
    InvalidInput,
    QuotaExceeded,
    StoreUnavailable,
)
from hourbell.model.ids import created_at, job_text
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    Job,
    JobStatus,
    NewJob,
    OnDuplicate,
)
from hourbell.model.limits import Limits, QueueSettings
from hourbell.model.schedules import Once
from hourbell.security.secrets import may_name_secrets, required_secrets
from hourbell.store.database import committing
from hourbell.store.queries import queries

_Q = queries("jobs")
_POINTS = Points("create.before_commit", "create.after_commit")
_TRIES = 64  # each retry means that a competitor succeeded: bounds how many may compete for a key
_MOST_JOINS = 4  # at once


class _Patience(msgspec.Struct, frozen=True):
    """Lock timeouts."""

    keys_ms: int  # for a key or a name that a request of a group needs
    quotas_ms: int  # for the quota of a tenant


_BRIEF = _Patience(50, 50)
_FOR_QUOTAS = _Patience(50, 1_500)  # for jobs of tenants with a quota, apart from the others
_ALONE = _Patience(1_500, 1_500)


class Created(msgspec.Struct, frozen=True):
    """The result of a create."""

    job: Job
    existed: bool = False  # the job existed before and is returned as the answer


class Asked(msgspec.Struct, frozen=True):
    """A request to create a job."""

    document: object  # a JSON value, or a PlainJob
    home: str  # the tenant of a document that names none
    tenant: str  # as named by the document, not yet validated
    queue: str  # as named by the document
    write: Write
    name: str | None = None  # PUT by name: it must be the only job with this name


class Held(msgspec.Struct, frozen=True):
    """Another job has the unique key of the one that was asked for."""

    job_id: int
    on_duplicate: OnDuplicate


Outcome = Created | Held | None  # None: retry from the lookup


async def create_job(engine: Engine, document: object, write: Write) -> Created:
    """Create the job that a document describes. InvalidInput names every wrong field."""
    asked = asked_by(engine, document, write)
    for _ in range(_TRIES):
        outcome = await ask_for(engine, asked)
        created = await _instead(engine, outcome, asked) if isinstance(outcome, Held) else outcome
        if created is not None:
            return created
    raise Conflict(IN_USE)


def asked_by(engine: Engine, document: object, write: Write, name: str | None = None) -> Asked:
    """A request to create a job, for a tenant that the caller may act for."""
    home = engine.scope or DEFAULT_TENANT
    tenant = _label_in(document, "tenant_id", home)
    engine.require(tenant)
    return Asked(document, home, tenant, _label_in(document, "queue", DEFAULT_QUEUE), write, name)


async def ask_for(engine: Engine, asked: Asked) -> Outcome:
    """Create a job together with concurrent requests."""
    outcome: Outcome = await engine.creates.ask(asked, partial(_create_together, engine, _BRIEF))
    return outcome


# Group creation.


async def _create_together(
    engine: Engine, patience: _Patience, asks: list[Ask[Asked, Outcome]]
) -> None:
    wanted = [ask.wanted for ask in asks]
    seen = await look(engine, wanted, for_answers=True)
    group: list[_Ready] = []
    first: dict[object, _Ready] = {}  # by keys that may occur only once in a statement
    followers: list[tuple[_Ready, _Ready]] = []  # requests whose key an earlier one also needs
    for ready in await _with_secrets(engine, _read(asks, seen)):
        ask = ready.ask
        if ready.key in first:
            followers.append((first[ready.key], ready))
        elif ready.unique in first:
            followers.append((first[ready.unique], ready))
        else:
            try:
                seen.require_room(ready.entry)
            except QuotaExceeded as error:
                ask.refuse(error)
                continue
            first |= {key: ready for key in (ready.key, ready.unique) if key is not None}
            group.append(ready)
    try:
        numbers = await _numbered(engine, group, seen.now, patience)
        if numbers is not None:
            await _store(engine, group, numbers, seen, patience)
    finally:
        for before, ready in followers:
            _follow(before, ready)


def _read(asks: list[Ask[Asked, Outcome]], seen: Seen) -> list[_Ready]:
    """Parse the documents of a group. Repeated and invalid requests are answered here."""
    group = []
    for number, ask in enumerate(asks, start=1):
        try:
            known = seen.first_answer(number, ask.wanted.write)
            ready = known or _ready(ask, seen, seen.ids[number - 1])
        except Exception as error:  # any failure affects this request only
            ask.refuse(error)
            continue
        if isinstance(ready, Created):
            ask.answer(ready)
        else:
            group.append(ready)
    return group


async def _with_secrets(engine: Engine, group: list[_Ready]) -> list[_Ready]:
    """The requests of a group whose secrets exist; the others are refused."""
    if not any(ready.secrets for ready in group):
        return group
    named = NamedSecrets()
    await named.look_up(engine, [(ready.entry.tenant, ready.secrets) for ready in group])
    whole = []
    for ready in group:
        try:
            named.require(ready.entry.tenant, ready.secrets)
        except InvalidInput as error:
            ready.ask.refuse(error)
        else:
            whole.append(ready)
    return whole


async def _numbered(
    engine: Engine, group: list[_Ready], now: datetime, patience: _Patience
) -> Numbers | None:
    """The ids of what a group names; None if the group is empty afterwards.

    Requests that name something unavailable leave the group.
    """
    brief = engine.with_lock_timeout(patience.keys_ms)
    for _ in range(_TRIES):
        if not group:
            return None
        try:
            return await numbers_of(brief, [ready.request for ready in group], now)
        except (InvalidInput, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not is_held(error):
                raise
        problems = await unnameable(brief, [ready.entry for ready in group], now)
        for ready in group:
            problem = problems.get(names_of(ready.entry))
            if isinstance(problem, Conflict):
                _put_off(engine, ready.ask, patience)
            elif problem is not None:
                ready.ask.refuse(problem)
        group[:] = [ready for ready in group if names_of(ready.entry) not in problems]
    raise Conflict(IN_USE)


def _put_off(engine: Engine, ask: Ask[Asked, Outcome], patience: _Patience) -> None:
    """Retry a blocked request alone with a longer lock timeout, once."""
    if patience.keys_ms < _ALONE.keys_ms:
        engine.creates.set_aside([ask], partial(_create_together, engine, _ALONE))
    else:
        ask.refuse(Conflict(IN_USE))


def _put_off_limited(engine: Engine, group: list[_Ready], patience: _Patience) -> None:
    """Retry jobs whose quota is locked by another transaction: together, later, once."""
    asks = [ready.ask for ready in group]
    if patience.quotas_ms < _FOR_QUOTAS.quotas_ms:
        engine.creates.set_aside(asks, partial(_create_together, engine, _FOR_QUOTAS))
    else:
        for ask in asks:
            ask.refuse(Conflict(IN_USE))


def _follow(first: _Ready, follower: _Ready) -> None:
    """Resolve a request that lost its key to an earlier request in the same group."""
    future, ask = first.ask.future, follower.ask
    if not future.done() or future.cancelled():
        ask.answer(None)
        return
    error = future.exception()
    outcome = future.result() if error is None else None
    if first.key == follower.key is not None and not follower.repeats(first):
        ask.answer(None)  # a different request under the same key
    elif isinstance(error, QuotaExceeded):
        ask.refuse(error)  # the unique key is still free, so this job would need room as well
    elif outcome is None or follower.repeats(first):
        ask.answer(outcome)
    elif follower.entry.on_duplicate is OnDuplicate.REPLACE:
        ask.answer(None)
    else:
        holder = outcome.job_id if isinstance(outcome, Held) else outcome.job.job_id
        ask.answer(Held(holder, follower.entry.on_duplicate))


class _Ready(msgspec.Struct, frozen=True):
    """A checked request, with the answer it gets if it is stored."""

    ask: Ask[Asked, Outcome]
    entry: Entry
    request: Entries
    created: Created
    secrets: Required  # must exist

    @property
    def key(self) -> object:
        key = self.ask.wanted.write.key
        return None if key is None else (self.entry.tenant, key)

    def repeats(self, other: _Ready) -> bool:
        """Whether this is a repetition of the same request."""
        same = self.ask.wanted.write.fingerprint == other.ask.wanted.write.fingerprint
        return same and self.key == other.key is not None

    @property
    def unique(self) -> object:
        unique = self.entry.unique
        return None if unique is None else (self.entry.tenant, *unique)


def _ready(ask: Ask[Asked, Outcome], seen: Seen, job_id: int) -> _Ready:
    asked = ask.wanted
    new = seen.parse(asked, job_id)
    created = Created(_as_created(new, job_id, seen.now))
    write = asked.write
    answer = None if write.key is None else msgspec.json.encode(created).decode()
    entry = entry_of(job_id, new, asked.name)
    request = Entries(new.tenant_id, [entry], write.actor, write.key, write.fingerprint, answer)
    secrets = required_secrets(new) if may_name_secrets(entry.spec) else {}
    return _Ready(ask, entry, request, created, secrets)


async def _store(
    engine: Engine, group: list[_Ready], numbers: Numbers, seen: Seen, patience: _Patience
) -> None:
    """Store a group; on failure bisect it until the failing request is alone."""
    requests = [ready.request for ready in group]
    limited = {ready.entry.tenant for ready in group} & seen.rooms.keys()
    args = arguments(
        requests,
        numbers,
        limited,
        engine.crowds,
        seen.now,
        patience.keys_ms,
        patience.quotas_ms,
    )
    try:
        async with committing(_POINTS.before, _POINTS.after):
            row = await engine.database.row(_Q["create_jobs"], *args)
    except (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if isinstance(error, StoreUnavailable) and not is_held(error):
            raise
        if waits_for_quota(error.__cause__):
            _put_off_limited(
                engine, [each for each in group if each.entry.tenant in limited], patience
            )
            if others := [each for each in group if each.entry.tenant not in limited]:
                await _store(engine, others, numbers, seen, patience)
        elif len(group) > 1:
            middle = len(group) // 2
            await _store(engine, group[:middle], numbers, seen, patience)
            await _store(engine, group[middle:], numbers, seen, patience)
        elif isinstance(error, asyncpg.ForeignKeyViolationError):
            group[0].ask.answer(None)  # an unused timetable was deleted since it was looked up
        elif is_held(error):
            _put_off(engine, group[0].ask, patience)
        else:
            group[0].ask.refuse(error)
        return
    stored = []
    refused = dict(zip(row["refused"], row["holders"], strict=True))
    for number, ready in enumerate(group, start=1):
        if number in row["repeated"]:
            ready.ask.answer(None)  # another request under this key won; its answer is stored now
        elif ready.entry.job_id in refused:
            held = Held(refused[ready.entry.job_id], ready.entry.on_duplicate)
            ready.ask.answer(held)
        elif ready.entry.job_id in row["excessive"]:
            ready.ask.refuse(seen.over_quota(ready.entry))
        else:
            stored.append(ready)
            if ready.entry.recurring is None:
                ready.ask.answer(ready.created)
    await follow(engine, [ready.entry for ready in stored], numbers, seen.now)
    for ready in stored:
        ready.ask.answer(ready.created)


async def follow(engine: Engine, entries: Sequence[Entry], numbers: Numbers, now: datetime) -> None:
    """After the commit: announce due jobs, and join each timetable once for all its new jobs."""
    if any(entry.at is not None and entry.at <= now for entry in entries):
        engine.announce()
    ridden = {numbers.rides[each.job_id] for each in entries if each.job_id in numbers.rides}
    if not ridden:
        return
    present = await engine.clock.now()
    few = asyncio.Semaphore(_MOST_JOINS)

    async def join(number: int, timetable: Any) -> None:
        async with few:
            await join_timetable(engine, number, timetable, now, present)

    await asyncio.gather(*(join(numbers.timetables[each], each) for each in ridden))


async def _instead(engine: Engine, held: Held, asked: Asked) -> Created | None:
    """The answer when another job has the unique key; None: that job has just ended."""
    if held.on_duplicate is not OnDuplicate.KEEP:
        replacing = held.on_duplicate is OnDuplicate.REPLACE
        raise DuplicateJob(job_text(held.job_id), replacing)
    now = await engine.clock.now()
    tenant = await engine.tenant(asked.tenant, now)
    job = await get_job(engine, held.job_id)
    if job.status not in (JobStatus.SCHEDULED, JobStatus.PAUSED):
        return None
    writing = Idempotent(engine, asked.write, _POINTS, asked.tenant, now, Created)
    async for attempt in writing:
        async with attempt.transaction(tenant):
            attempt.answer = Created(job, existed=True)
    return writing.answer


# Lookups before parsing.


class Seen:
    """What was looked up in the database before parsing."""

    def __init__(self, row: asyncpg.Record) -> None:
        self.now: datetime = row["now"]
        self.ids: list[int] = row["ids"]
        self.rooms: dict[str, int] = {}  # by tenant with a quota: how many more jobs it may have
        self._wanted: Counter[str] = Counter()  # how much of that is already taken
        self._quotas: dict[str, int] = {}
        self._queues: dict[str, QueueSettings] = {}
        self._looked_for: set[tuple[str, str]] = set()  # (tenant, queue)
        self._add(row)
        self._answers = {
            number: (fingerprint, answer)
            for number, fingerprint, answer in _together(row, "answered", "fingerprints", "answers")
        }

    async def look_for(self, engine: Engine, asked: Sequence[Asked]) -> None:
        """Look up what more jobs name, unless it is known already."""
        named = {(each.tenant, each.queue) for each in asked} - self._looked_for
        if named:
            self._looked_for |= named
            tenants = {tenant for tenant, _ in named} - self.rooms.keys()
            self._add(await _look(engine, 0, {queue for _, queue in named}, tenants))

    def _add(self, row: asyncpg.Record) -> None:
        for name, timeout, retries in _together(row, "queues", "timeouts", "retry_policies"):
            self._queues[name] = queue_settings(Limits(), timeout, retries)
        for name, quota, room in _together(row, "limited", "quotas", "rooms"):
            self._quotas[name], self.rooms[name] = quota, room

    def parse(self, asked: Asked, job_id: int) -> NewJob:
        """The requested job; InvalidInput names every wrong field."""
        document, queue = asked.document, self._queues.get(asked.queue)
        if isinstance(document, PlainJob):
            plain = document.new_job(self.now, queue, asked.home)
            if plain is not None:
                return plain
            document = document.document()
        return parse_new_job(document, self.now, job_id, queue, asked.home)

    def require_room(self, entry: Entry) -> None:
        """Raise QuotaExceeded if there is no room, whatever the outcome of the other requests.

        Done before any name is created for the job. Whether a job with a unique key needs room is
        only known when keys are assigned, and is decided there.
        """
        if entry.tenant not in self.rooms or entry.unique is not None:
            return
        if self.rooms[entry.tenant] <= self._wanted[entry.tenant]:
            raise self.over_quota(entry)
        self._wanted[entry.tenant] += 1

    def over_quota(self, entry: Entry) -> QuotaExceeded:
        return QuotaExceeded(entry.tenant, self._quotas[entry.tenant])

    def first_answer(self, number: int, write: Write) -> Created | None:
        """The stored answer of an earlier request with the same key. `number` counts from 1."""
        if number not in self._answers:
            return None
        fingerprint, answer = self._answers[number]
        if not write.is_kept_under(fingerprint):
            assert write.key is not None
            raise IdempotencyKeyReused(write.key)
        return msgspec.json.decode(answer, type=Created)


async def look(engine: Engine, asked: Sequence[Asked], for_answers: bool = False) -> Seen:
    """What has to be known before documents can be parsed, with an id for each."""
    queues, tenants = {each.queue for each in asked}, {each.tenant for each in asked}
    keys = [(each.tenant, each.write.key) for each in asked] if for_answers else []
    return Seen(await _look(engine, len(asked), queues, tenants, keys))


async def begin(engine: Engine, count: int) -> Seen:
    """The current time and `count` ids; everything else has still to be looked up."""
    return Seen(await _look(engine, count, (), ()))


async def _look(
    engine: Engine,
    count: int,
    queues: Collection[str],
    tenants: Collection[str],
    keys: Sequence[tuple[str, str | None]] = (),
) -> asyncpg.Record:
    key_tenants, keys_of_those = [tenant for tenant, _ in keys], [key for _, key in keys]
    return await engine.database.row(
        _Q["before_create"], count, [*queues], [*tenants], key_tenants, keys_of_those
    )


def _together(row: asyncpg.Record, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Zip array columns; an empty one is null."""
    return zip(*(row[column] or () for column in columns), strict=True)


def _label_in(document: object, field: str, default: str) -> str:
    """What a document names, before validation: selects stored answers and queue defaults."""
    if isinstance(document, PlainJob):
        return (document.tenant if field == "tenant_id" else document.queue) or default
    named = document.get(field) if isinstance(document, dict) else None
    return named if isinstance(named, str) and named.isprintable() else default


def _as_created(new: NewJob, job_id: int, now: datetime) -> Job:
    once = isinstance(new.schedule, Once)
    created = created_at(job_id) if once else now
    next_run_at = (
        new.schedule.at
        if isinstance(new.schedule, Once)
        else first_run(new.schedule, new.window, job_id, now)
    )
    return Job(
        **{field: getattr(new, field) for field in NewJob.__struct_fields__},
        job_id=job_id,
        status=JobStatus.SCHEDULED,
        version=1,
        next_run_at=next_run_at,
        created_at=created,
        updated_at=created,
    )
