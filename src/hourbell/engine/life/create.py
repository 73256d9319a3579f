"""create: jobs enter. One statement with their audit rows and the answers kept for their idempotency keys.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a membership that has still
to join; the join follows the commit, and if this process dies in between, the leader completes it.

Whoever creates a job while others do is created together with them (`groups`): a look at what has to be known, the
documents read here, then `hourbell.create_jobs` as one autocommit statement for all of them. Each gets an answer of his
own: a wrong document, a used-up quota or a taken key concerns nobody else. The statement waits for others only briefly.
If somebody holds a key that is wanted, the group is halved until he who wants it is alone; he is set aside, and waits a
little longer. So one stuck row never delays unrelated requests. Jobs of tenants with a quota are counted under a lock; if another
transaction holds it, they are created apart from the others.
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
    Points,
    Prepared,
    Write,
    is_held,
    once,
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
from hourbell.store.database import Connection, committing
from hourbell.store.queries import queries

_Q = queries("jobs")
_POINTS = Points("create.before_commit", "create.after_commit")
_TRIES = 64  # each time somebody else is served: so many may want one thing at the same moment
_MOST_JOINS = 4  # at once


class _Patience(msgspec.Struct, frozen=True):
    """How long to wait for other transactions."""

    keys_ms: int  # for a key or a name that a request of a group needs
    quotas_ms: int  # for the quota of a tenant


_BRIEF = _Patience(50, 50)
_FOR_QUOTAS = _Patience(50, 1_500)  # of the jobs of tenants with a quota, apart from others
_ALONE = _Patience(1_500, 1_500)


class Created(msgspec.Struct, frozen=True):
    """What a create comes to."""

    job: Job
    existed: bool = False  # it was there before, and is the answer


class Asked(msgspec.Struct, frozen=True):
    """A job that somebody asks for."""

    document: object  # a JSON value, or a PlainJob
    home: str  # the tenant of who names none
    tenant: str  # that it names, before it is checked
    queue: str  # that it names
    write: Write
    name: str | None = None  # it shall be the one job that is made by this name


class Held(msgspec.Struct, frozen=True):
    """Another job has the unique key of the one that was asked for."""

    job_id: int
    on_duplicate: OnDuplicate


Outcome = Created | Held | None  # None: look again


async def create_job(engine: Engine, document: object, write: Write) -> Created:
    """The job that a document describes, created. InvalidInput names every wrong field."""
    asked = asked_by(engine, document, write)
    for _ in range(_TRIES):
        outcome = await ask_for(engine, asked)
        created = await _instead(engine, outcome, asked) if isinstance(outcome, Held) else outcome
        if created is not None:
            return created
    raise Conflict(IN_USE)


def asked_by(engine: Engine, document: object, write: Write, name: str | None = None) -> Asked:
    """A job that somebody asks for, of a tenant that is his to name."""
    home = engine.scope or DEFAULT_TENANT
    tenant = _label_in(document, "tenant_id", home)
    engine.require(tenant)
    return Asked(document, home, tenant, _label_in(document, "queue", DEFAULT_QUEUE), write, name)


async def ask_for(engine: Engine, asked: Asked) -> Outcome:
    """Create a job together with those that others ask for at this moment."""
    outcome: Outcome = await engine.creates.ask(asked, partial(_create_together, engine, _BRIEF))
    return outcome


# Together.


async def _create_together(
    engine: Engine, patience: _Patience, asks: list[Ask[Asked, Outcome]]
) -> None:
    wanted = [ask.wanted for ask in asks]
    seen = await look(engine, wanted, for_answers=True)
    group: list[_Ready] = []
    first: dict[object, _Ready] = {}  # by what no two of a statement can have
    followers: list[tuple[_Ready, _Ready]] = []  # whoever wants what another of the group wants
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
    """Read the documents of a group. What was answered before, or is wrong, is answered here."""
    group = []
    for number, ask in enumerate(asks, start=1):
        try:
            known = seen.first_answer(number, ask.wanted.write)
            ready = known or _ready(ask, seen, seen.ids[number - 1])
        except Exception as error:  # whatever it is, it concerns this request only
            ask.refuse(error)
            continue
        if isinstance(ready, Created):
            ask.answer(ready)
        else:
            group.append(ready)
    return group


async def _with_secrets(engine: Engine, group: list[_Ready]) -> list[_Ready]:
    """Those of a group whose secrets exist; the others are refused."""
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
    """The numbers of what a group names. Whoever names something that cannot be had leaves the group; None: all have left."""
    hurried = engine.hurried(patience.keys_ms)
    for _ in range(_TRIES):
        if not group:
            return None
        try:
            return await numbers_of(hurried, [ready.request for ready in group], now)
        except (InvalidInput, StoreUnavailable) as error:
            if isinstance(error, StoreUnavailable) and not is_held(error):
                raise
        problems = await unnameable(hurried, [ready.entry for ready in group], now)
        for ready in group:
            problem = problems.get(names_of(ready.entry))
            if isinstance(problem, Conflict):
                _put_off(engine, ready.ask, patience)
            elif problem is not None:
                ready.ask.refuse(problem)
        group[:] = [ready for ready in group if names_of(ready.entry) not in problems]
    raise Conflict(IN_USE)


def _put_off(engine: Engine, ask: Ask[Asked, Outcome], patience: _Patience) -> None:
    """One that wants what somebody else holds waits a little longer, alone, once."""
    if patience.keys_ms < _ALONE.keys_ms:
        engine.creates.set_aside([ask], partial(_create_together, engine, _ALONE))
    else:
        ask.refuse(Conflict(IN_USE))


def _put_off_limited(engine: Engine, group: list[_Ready], patience: _Patience) -> None:
    """Jobs of tenants with a quota that another transaction has locked wait a little longer, together, once."""
    asks = [ready.ask for ready in group]
    if patience.quotas_ms < _FOR_QUOTAS.quotas_ms:
        engine.creates.set_aside(asks, partial(_create_together, engine, _FOR_QUOTAS))
    else:
        for ask in asks:
            ask.refuse(Conflict(IN_USE))


def _follow(first: _Ready, follower: _Ready) -> None:
    """Answer one who wanted a key that another of his group wanted too, when that one has his answer."""
    future, ask = first.ask.future, follower.ask
    if not future.done() or future.cancelled():
        ask.answer(None)
        return
    error = future.exception()
    outcome = future.result() if error is None else None
    if first.key == follower.key is not None and not follower.repeats(first):
        ask.answer(None)  # another request under the same key
    elif isinstance(error, QuotaExceeded):
        ask.refuse(error)  # nobody has the unique key, so that there is no room for him either
    elif outcome is None or follower.repeats(first):
        ask.answer(outcome)
    elif follower.entry.on_duplicate is OnDuplicate.REPLACE:
        ask.answer(None)
    else:
        holder = outcome.job_id if isinstance(outcome, Held) else outcome.job.job_id
        ask.answer(Held(holder, follower.entry.on_duplicate))


class _Ready(msgspec.Struct, frozen=True):
    """One that was asked for, checked, with its answer."""

    ask: Ask[Asked, Outcome]
    entry: Entry
    request: Entries
    created: Created
    secrets: Required  # that must exist

    @property
    def key(self) -> object:
        key = self.ask.wanted.write.key
        return None if key is None else (self.entry.tenant, key)

    def repeats(self, other: _Ready) -> bool:
        """Whether it is the same request once more."""
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
    """Store a group, or halve it: what cannot be stored is alone in the end."""
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
            group[0].ask.answer(None)  # a timetable without riders was forgotten since we looked
        elif is_held(error):
            _put_off(engine, group[0].ask, patience)
        else:
            group[0].ask.refuse(error)
        return
    stored = []
    refused = dict(zip(row["refused"], row["holders"], strict=True))
    for number, ready in enumerate(group, start=1):
        if number in row["repeated"]:
            ready.ask.answer(None)  # somebody was first under the same key: his answer is there now
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
    """After the commit: wake who waits for something due, and join timetables, each once for all who ride it."""
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
    """What becomes of a job whose unique key another has; None: the other has just ended."""
    if held.on_duplicate is not OnDuplicate.KEEP:
        replacing = held.on_duplicate is OnDuplicate.REPLACE
        raise DuplicateJob(job_text(held.job_id), replacing)
    now = await engine.clock.now()
    tenant = await engine.tenant(asked.tenant, now)
    job = await get_job(engine, held.job_id)
    if job.status not in (JobStatus.SCHEDULED, JobStatus.PAUSED):
        return None

    async def prepare() -> Prepared[Created]:
        return Prepared(tenant, partial(_as_it_is, job))

    return await once(engine, asked.write, _POINTS, asked.tenant, now, Created, prepare)


async def _as_it_is(job: Job, connection: Connection) -> Created:
    return Created(job, existed=True)


# What has to be known.


class Seen:
    """What looks at the database have shown."""

    def __init__(self, row: asyncpg.Record) -> None:
        self.now: datetime = row["now"]
        self.ids: list[int] = row["ids"]
        self.rooms: dict[str, int] = {}  # of tenants with a quota: how many more they could have
        self._wanted: Counter[str] = Counter()  # of which so many are taken for certain
        self._quotas: dict[str, int] = {}
        self._queues: dict[str, QueueSettings] = {}
        self._looked_for: set[tuple[str, str]] = set()  # tenants with queues
        self._add(row)
        self._answers = {
            number: (fingerprint, answer)
            for number, fingerprint, answer in _together(row, "answered", "fingerprints", "answers")
        }

    async def look_for(self, engine: Engine, asked: Sequence[Asked]) -> None:
        """What some more jobs name, if it was not looked for yet."""
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
        """The job that was asked for; InvalidInput names every wrong field."""
        document, queue = asked.document, self._queues.get(asked.queue)
        if isinstance(document, PlainJob):
            plain = document.new_job(self.now, queue, asked.home)
            if plain is not None:
                return plain
            document = document.document()
        return parse_new_job(document, self.now, job_id, queue, asked.home)

    def require_room(self, entry: Entry) -> None:
        """QuotaExceeded: there is no room, whatever becomes of the others. It is refused before anything is named for it.

        Whether one with a unique key needs any is known when keys are given out, and decided there.
        """
        if entry.tenant not in self.rooms or entry.unique is not None:
            return
        if self.rooms[entry.tenant] <= self._wanted[entry.tenant]:
            raise self.over_quota(entry)
        self._wanted[entry.tenant] += 1

    def over_quota(self, entry: Entry) -> QuotaExceeded:
        return QuotaExceeded(entry.tenant, self._quotas[entry.tenant])

    def first_answer(self, number: int, write: Write) -> Created | None:
        """What the request of this number, counted from 1, was answered before."""
        if number not in self._answers:
            return None
        fingerprint, answer = self._answers[number]
        if not write.is_kept_under(fingerprint):
            assert write.key is not None
            raise IdempotencyKeyReused(write.key)
        return msgspec.json.decode(answer, type=Created)


async def look(engine: Engine, asked: Sequence[Asked], for_answers: bool = False) -> Seen:
    """What has to be known before documents can be read, with an id for each."""
    queues, tenants = {each.queue for each in asked}, {each.tenant for each in asked}
    keys = [(each.tenant, each.write.key) for each in asked] if for_answers else []
    return Seen(await _look(engine, len(asked), queues, tenants, keys))


async def begin(engine: Engine, count: int) -> Seen:
    """The time, and ids for so many; all else is still to be looked for."""
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
    """Several arrays, element by element; an empty one is null."""
    return zip(*(row[column] or () for column in columns), strict=True)


def _label_in(document: object, field: str, default: str) -> str:
    """What a document names, before it is checked: whose kept answers and which queue's defaults to look at."""
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
