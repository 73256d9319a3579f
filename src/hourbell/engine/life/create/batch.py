"""Create many jobs in one transaction, with one idempotency key and one answer.

Documents are created independently: an error of one is reported at its position in the answer, and
the others are created. The same holds for a unique key that is locked by another transaction: the
rows are bisected, within the transaction, until the blocked one is alone, and that item gets an
error that asks the client to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.life.create.insert import (
    FAILPOINTS,
    JobInserter,
    KeyTaken,
    LockTimeouts,
    Problem,
    after_commit,
)
from hourbell.engine.life.create.names import Blocked, ResolvedNames, resolve_available
from hourbell.engine.life.create.request import (
    CreateContext,
    CreateRequest,
    create_request,
    read_context,
    with_declarations,
)
from hourbell.engine.life.create.rows import JobRow, RequestRow, job_row
from hourbell.engine.life.references import (
    CalendarReferences,
    Required,
    SecretReferences,
    required_calendars,
)
from hourbell.engine.operations.idempotency import Idempotent, Write
from hourbell.model.errors import Busy, DuplicateJob, FieldError, HourbellError, InvalidInput
from hourbell.model.ids import job_text
from hourbell.model.jobs import DEFAULT_TENANT, OnDuplicate
from hourbell.store.database import Connection

T = TypeVar("T")

MAX_BATCH_ITEMS = 10_000

_ITEM_TIMEOUTS = LockTimeouts(50, 5_000)  # short for locks that a single item needs
_MAX_PROBLEMS = 16  # problems with names that are reported individually
# Items parsed before other tasks may run; larger slices do not fit in the CPU caches.
_SLICE = 200


class Refused(msgspec.Struct, frozen=True):
    """Why an item was refused."""

    code: str
    detail: str
    errors: tuple[FieldError, ...] = ()


class Made(NamedTuple):
    """A job whose creation also created its tenant or its queue."""

    job_id: int
    created_tenant: bool
    created_queue: bool


Result = int | Made | Refused  # the id of the job, or why it was not created


async def create_batch(
    engine: Engine, items: Sequence[T], read: Callable[[T], object], write: Write
) -> list[Result]:
    """Create many jobs; for each item, in order, its id or why it was refused.

    `read` turns an item into a document, or raises what is wrong with it.
    """
    key_owner = engine.scope or DEFAULT_TENANT  # the tenant that the idempotency key belongs to
    now = await engine.clock.now()
    writing = Idempotent(engine, write, FAILPOINTS, key_owner, now, list[Result])
    async with engine.batch_slots:
        async for attempt in writing:
            batch = await _read(engine, items, read, write, key_owner)
            await batch.resolve_names(engine)
            async with attempt.transaction(batch.names.tenants[key_owner]) as connection:
                await batch.store(engine, connection)
                attempt.answer = batch.results()
    # Joining timetables may take long, so it happens after the slot is released.
    if writing.executed:
        await after_commit(engine, batch.created(), batch.names, batch.context.now)
    return writing.answer


async def _read(
    engine: Engine, items: Sequence[T], read: Callable[[T], object], write: Write, key_owner: str
) -> _Batch:
    """Parse items in slices, from text to what is stored; other tasks run between slices."""
    context = await read_context(engine, len(items))
    batch = _Batch(context, RequestRow(key_owner, write.actor))
    secrets, calendars = SecretReferences(), CalendarReferences()
    for first in range(0, len(items), _SLICE):
        await asyncio.sleep(0)
        requests = [_request(engine, item, read, write) for item in items[first : first + _SLICE]]
        sound = [each for each in requests if isinstance(each, CreateRequest)]
        await context.declare(engine, sound)
        declared = iter(with_declarations(engine.declarations, sound))
        requests = [next(declared) if isinstance(r, CreateRequest) else r for r in requests]
        await context.extend(engine, [r for r in requests if isinstance(r, CreateRequest)])
        ids = context.ids[first : first + _SLICE]
        rows = [batch.parse(request, i) for request, i in zip(requests, ids, strict=True)]
        missing = await secrets.missing(engine, batch.take_required_secrets())
        missing |= await calendars.missing(engine, batch.take_required_calendars())
        for row in rows:
            batch.add(missing.get(row.job_id, row) if isinstance(row, JobRow) else row)
    return batch


def _request(
    engine: Engine, item: T, read: Callable[[T], object], write: Write
) -> CreateRequest | HourbellError:
    try:
        return create_request(engine, read(item), write, is_one_of_many=True)
    except HourbellError as error:
        return error


class _Batch:
    """Parsed items and their results."""

    names: ResolvedNames  # of the rows that will be stored

    def __init__(self, context: CreateContext, request_row: RequestRow) -> None:
        self.context = context
        self._request_row = request_row
        self._items: list[JobRow | Refused] = []  # in the order of the items
        self._rows: list[JobRow] = []  # to be stored
        self._first: dict[object, JobRow] = {}  # the first row with each unique key
        self._problems: dict[int, KeyTaken | Refused] = {}  # of rows that were not stored
        self._secrets: dict[int, tuple[str, Required]] = {}  # of rows that were just parsed
        self._calendars: dict[int, tuple[str, Required]] = {}

    def parse(self, request: CreateRequest | HourbellError, job_id: int) -> JobRow | HourbellError:
        if isinstance(request, HourbellError):
            return request
        try:
            job = self.context.parse(request, job_id)
        except HourbellError as error:
            return error
        row = job_row(job_id, job, self._request_row)
        if secrets := request.required_secrets(job, row.spec):
            self._secrets[job_id] = row.tenant, secrets
        if row.recurring is not None and (named := required_calendars(job.schedule)):
            self._calendars[job_id] = row.tenant, named
        return row

    def take_required_secrets(self) -> dict[int, tuple[str, Required]]:
        required, self._secrets = self._secrets, {}
        return required

    def take_required_calendars(self) -> dict[int, tuple[str, Required]]:
        required, self._calendars = self._calendars, {}
        return required

    def add(self, row: JobRow | HourbellError) -> None:
        """Add the row of the next item, or why there is none.

        An item with the unique key of an earlier item gets the result of that item.
        """
        if isinstance(row, JobRow) and (row.unique is None or row.unique_key not in self._first):
            try:
                self.context.reserve_quota(row)
            except HourbellError as error:
                row = error
            else:
                self._rows.append(row)
                if row.unique is not None:
                    self._first[row.unique_key] = row
        self._items.append(row if isinstance(row, JobRow) else _refusal(row))

    async def resolve_names(self, engine: Engine) -> None:
        """Resolve what the rows name. Rows whose new names are unavailable are refused."""
        brief = engine.with_lock_timeout(_ITEM_TIMEOUTS.keys_ms)
        self.names, problems = await resolve_available(
            brief, self._rows, self.context.now, self._request_row.tenant, _MAX_PROBLEMS
        )
        self._add_problems(problems)

    async def store(self, engine: Engine, connection: Connection) -> None:
        inserter = JobInserter(engine, self.context, self.names, _ITEM_TIMEOUTS, connection)
        async for _, problems in inserter.insert_each(self.created()):
            self._add_problems(problems)

    def _add_problems(self, problems: Mapping[int, Problem]) -> None:
        for job_id, problem in problems.items():
            match problem:
                case KeyTaken():
                    self._problems[job_id] = problem
                case Blocked(by_quota=True):
                    raise Busy()
                case Blocked():
                    self._problems[job_id] = _refusal(Busy())
                case HourbellError():
                    self._problems[job_id] = _refusal(problem)
                case Exception():
                    raise problem

    def created(self) -> list[JobRow]:
        """The rows without a problem."""
        if not self._problems:
            return self._rows
        return [row for row in self._rows if row.job_id not in self._problems]

    def results(self) -> list[Result]:
        return [item if isinstance(item, Refused) else self._noted(item) for item in self._items]

    def _noted(self, row: JobRow) -> Result:
        """The result of an item, with the names that it has created."""
        result, created = self._result(row), self.names.created
        if result != row.job_id or not created:
            return result
        names = created.take(row.tenant, row.settings.queue)
        return Made(row.job_id, *names) if any(names) else result

    def _result(self, row: JobRow) -> Result:
        first = row if row.unique is None else self._first[row.unique_key]
        problem = self._problems.get(first.job_id)
        if problem is None and first is row:
            return row.job_id
        if isinstance(problem, Refused):
            return problem
        holder = first.job_id if problem is None else problem.job_id
        if holder == row.job_id or row.on_duplicate is OnDuplicate.KEEP:
            return holder
        replacing = first is row and row.on_duplicate is OnDuplicate.REPLACE
        return _refusal(DuplicateJob(job_text(holder), replacing))


def _refusal(error: HourbellError) -> Refused:
    errors = error.errors if isinstance(error, InvalidInput) else ()
    return Refused(error.code, error.message, errors)
