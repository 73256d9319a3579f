"""batch: many jobs in one write, with one idempotency key and one answer, in one transaction.

Checked jobs are created all or none. Documents are created independently: an error of one is
reported at its position in the answer, and the others are created. The same holds for a unique key
that is locked by another transaction: the batch is bisected, within its transaction, until the
blocked item is alone, and that item gets an error that asks the client to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.life.create import Asked, Seen, asked_by, begin, follow, look
from hourbell.engine.life.crowds import Crowds
from hourbell.engine.life.named_secrets import NamedSecrets
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
from hourbell.model.errors import (
    Conflict,
    DuplicateJob,
    FieldError,
    HourbellError,
    InvalidInput,
    StoreUnavailable,
)
from hourbell.model.ids import job_text
from hourbell.model.jobs import DEFAULT_QUEUE, DEFAULT_TENANT, NewJob, OnDuplicate, decode_job
from hourbell.security.secrets import may_name_secrets, required_secrets
from hourbell.store.database import Connection
from hourbell.store.queries import queries

T = TypeVar("T")

MOST_ITEMS = 10_000

_Q = queries("jobs")
_POINTS = Points("create.before_commit", "create.after_commit")
_BRIEF_MS = 50  # lock timeout for a unique key that one item of many needs
_QUOTA_MS = 5_000  # lock timeout for other batches of a tenant with a quota
_TRIES = 5
_MOST_PROBLEMS = 16  # problems with names that are reported individually
_SLICE = 200  # items parsed before the loop may run others; more would not fit in the CPU caches


class Refused(msgspec.Struct, frozen=True):
    """Why an item was refused."""

    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()


Result = int | Refused  # the id of the job, or why it was not created


async def create_one_time_jobs(engine: Engine, jobs: Sequence[NewJob], write: Write) -> list[int]:
    """Create many checked one-time jobs, all or none, in one statement; their ids, in order."""
    home = jobs[0].tenant_id
    seen = await look(
        engine, [Asked(None, home, job.tenant_id, DEFAULT_QUEUE, write) for job in jobs]
    )
    entries = [entry_of(job_id, job) for job_id, job in zip(seen.ids, jobs, strict=True)]
    request = Entries(home, entries, write.actor)
    writing = Idempotent(engine, write, _POINTS, home, seen.now, list[int])
    async for attempt in writing:
        numbers = await numbers_of(engine, [request], seen.now)
        async with attempt.transaction(numbers.tenants[home]) as connection:
            row = await _insert(connection, request, numbers, seen, engine.crowds, None)
            if row["refused"]:
                raise DuplicateJob(job_text(row["holders"][0]))
            if row["excessive"]:
                raise seen.over_quota(entries[seen.ids.index(row["excessive"][0])])
            attempt.answer = seen.ids
    if writing.executed:
        await follow(engine, entries, numbers, seen.now)
    return writing.answer


async def create_batch(
    engine: Engine, items: Sequence[T], read: Callable[[T], object], write: Write
) -> list[Result]:
    """Create many jobs; for each item, in order, its id or why it was refused.

    `read` turns an item into a document, or raises what is wrong with it.
    """
    home = engine.scope or DEFAULT_TENANT  # the tenant that the idempotency key belongs to
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _POINTS, home, now, list[Result])
    async with engine.batches:
        async for attempt in writing:
            batch = await _read(engine, items, read, write)
            numbers = await batch.numbered(engine, home)
            async with attempt.transaction(numbers.tenants[home]) as connection:
                await batch.insert(connection, numbers, engine.crowds)
                attempt.answer = batch.results()
    # Joining timetables may take long, so it happens after the turn is released.
    if writing.executed:
        await follow(engine, batch.created(), numbers, batch.now)
    return writing.answer


async def _read(
    engine: Engine, items: Sequence[T], read: Callable[[T], object], write: Write
) -> _Batch:
    """Parse items in slices, from text to what is stored; other tasks run between slices."""
    seen = await begin(engine, len(items))
    batch = _Batch(seen, write)
    named = NamedSecrets()
    for first in range(0, len(items), _SLICE):
        await asyncio.sleep(0)
        found = [_ask(engine, item, read, write) for item in items[first : first + _SLICE]]
        await seen.look_for(engine, [each for each in found if isinstance(each, Asked)])
        ids = seen.ids[first : first + _SLICE]
        entries = [_entry(seen, each, job_id) for job_id, each in zip(ids, found, strict=True)]
        required = {
            entry.job_id: required_secrets(decode_job(entry.spec))
            for entry in entries
            if isinstance(entry, Entry) and may_name_secrets(entry.spec)
        }
        await named.look_up(
            engine,
            [
                (entry.tenant, required[entry.job_id])
                for entry in entries
                if isinstance(entry, Entry) and entry.job_id in required
            ],
        )
        for entry in entries:
            try:
                if isinstance(entry, HourbellError):
                    raise entry
                named.require(entry.tenant, required.get(entry.job_id, {}))
                if not batch.repeats(entry):
                    seen.require_room(entry)
                    batch.add(entry)
            except HourbellError as error:
                batch.refuse(error)
    return batch


def _ask(
    engine: Engine, item: T, read: Callable[[T], object], write: Write
) -> Asked | HourbellError:
    try:
        return asked_by(engine, read(item), write)
    except HourbellError as error:
        return error


def _entry(seen: Seen, asked: Asked | HourbellError, job_id: int) -> Entry | HourbellError:
    if isinstance(asked, HourbellError):
        return asked
    try:
        return entry_of(job_id, seen.parse(asked, job_id))
    except HourbellError as error:
        return error


class _Batch:
    """Parsed items and their results."""

    def __init__(self, seen: Seen, write: Write) -> None:
        self.now = seen.now
        self._seen = seen
        self._write = write
        self._places: list[Entry | Refused] = []  # in the order of the items
        self._entries: list[Entry] = []  # to be created
        self._holders: dict[int, int] = {}  # by entry: the job that already has its unique key
        self._refused: dict[int, Refused] = {}  # entries whose key or names were unavailable
        self._unique: dict[tuple[object, ...], Entry] = {}  # the first entry with each unique key
        self._request = Entries(DEFAULT_TENANT, [], write.actor)

    def refuse(self, error: HourbellError) -> None:
        self._places.append(_refusal(error))

    def repeats(self, entry: Entry) -> bool:
        """Note an item with the unique key of an earlier item; it gets the result of that item."""
        repeats = entry.unique is not None and _key_of(entry) in self._unique
        if repeats:
            self._places.append(entry)
        return repeats

    def add(self, entry: Entry) -> None:
        if entry.unique is not None:
            self._unique[_key_of(entry)] = entry
        self._places.append(entry)
        self._entries.append(entry)

    async def numbered(self, engine: Engine, home: str) -> Numbers:
        """The ids of what the entries name. Entries whose new names are unavailable are refused."""
        brief = engine.with_lock_timeout(_BRIEF_MS)
        for _ in range(_TRIES):
            self._request = Entries(home, self._entries, self._write.actor)
            try:
                return await numbers_of(brief, [self._request], self.now)
            except (InvalidInput, StoreUnavailable) as error:
                if isinstance(error, StoreUnavailable) and not is_held(error):
                    raise
                if not self._entries:
                    break
            problems = await unnameable(brief, self._entries, self.now, _MOST_PROBLEMS)
            possible = []
            for entry in self._entries:
                problem = problems.get(names_of(entry))
                if problem is None:
                    possible.append(entry)
                else:
                    self._refused[entry.job_id] = _refusal(problem)
            self._entries = possible
        raise Conflict(IN_USE)

    async def insert(self, connection: Connection, numbers: Numbers, crowds: Crowds) -> None:
        if self._entries:
            await self._insert(connection, numbers, crowds, self._entries)

    async def _insert(
        self, connection: Connection, numbers: Numbers, crowds: Crowds, entries: Sequence[Entry]
    ) -> None:
        request = msgspec.structs.replace(self._request, entries=entries)
        try:
            async with connection.transaction():
                row = await _insert(connection, request, numbers, self._seen, crowds, _BRIEF_MS)
        except asyncpg.LockNotAvailableError as error:
            if waits_for_quota(error):
                raise
            if len(entries) == 1:
                self._refused[entries[0].job_id] = _refusal(Conflict(IN_USE))
                return
            middle = len(entries) // 2
            await self._insert(connection, numbers, crowds, entries[:middle])
            await self._insert(connection, numbers, crowds, entries[middle:])
            return
        self._holders.update(zip(row["refused"], row["holders"], strict=True))
        excessive = set(row["excessive"])
        for entry in entries:
            if entry.job_id in excessive:
                self._refused[entry.job_id] = _refusal(self._seen.over_quota(entry))

    def created(self) -> list[Entry]:
        missing = self._holders.keys() | self._refused.keys()
        return [entry for entry in self._entries if entry.job_id not in missing]

    def results(self) -> list[Result]:
        return [
            place if isinstance(place, Refused) else self._result(place) for place in self._places
        ]

    def _result(self, entry: Entry) -> Result:
        first = entry if entry.unique is None else self._unique[_key_of(entry)]
        if first.job_id in self._refused:
            return self._refused[first.job_id]
        holder = self._holders.get(first.job_id, first.job_id)
        if holder == entry.job_id or entry.on_duplicate is OnDuplicate.KEEP:
            return holder
        replacing = first is entry and entry.on_duplicate is OnDuplicate.REPLACE
        return _refusal(DuplicateJob(job_text(holder), replacing))


async def _insert(
    connection: Connection,
    request: Entries,
    numbers: Numbers,
    seen: Seen,
    crowds: Crowds,
    patience_ms: int | None,
) -> asyncpg.Record:
    args = arguments([request], numbers, seen.rooms, crowds, seen.now, patience_ms, _QUOTA_MS)
    row = await connection.fetchrow(_Q["create_jobs"], *args)
    assert row is not None
    return row


def _key_of(entry: Entry) -> tuple[object, ...]:
    return (entry.tenant, *(entry.unique or ()))


def _refusal(error: HourbellError) -> Refused:
    errors = error.errors if isinstance(error, InvalidInput) else ()
    return Refused(error.code, error.message, errors)
