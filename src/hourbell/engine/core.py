"""What every verb needs: the database, the clock, the numbers of tenants and queues, and the system's own times."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self
from weakref import WeakValueDictionary

import asyncpg
import msgspec

from hourbell.engine.life.crowds import Crowds
from hourbell.engine.life.groups import Group, Room, Turns
from hourbell.model.errors import FieldError, Forbidden, InvalidInput, StoreUnavailable
from hourbell.model.jobs import TASK_MARK, WEBHOOK_TASK
from hourbell.store.clock import Clock
from hourbell.store.database import Database, committing
from hourbell.store.queries import queries

_Q = queries("jobs")
MOST_QUEUES_MADE = 1_000  # by the jobs of one tenant; a cell has room for 32,767
MOST_TASKS_MADE = 10_000  # by the jobs of one tenant
_WEBHOOKS = TASK_MARK + WEBHOOK_TASK
_MOST_NAMES = 100_000
MIB = 1024 * 1024
CHANNEL = "hourbell"  # of notifications


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """What holds system-wide: how long things take, and how often they may go wrong."""

    horizon_seconds: float = 60.0  # executions are planned this far ahead
    grace_seconds: float = 60.0  # an occurrence that is planned, or first seen by the gate, later than this is a misfire
    lease_seconds: float = 15.0  # of a worker's session
    leader_lease_seconds: float = 10.0
    answers_seconds: float = 48 * 3600.0  # how long an idempotent write is remembered
    max_crashes: int = 3  # for jobs that do not set it: deaths of the worker while it ran alone
    ledger_days: int = 30  # how long ended executions are kept,
    dead_letter_days: int = 365  # dead letters,
    audit_days: int = 365  # and entries of the audit trail, unless a tenant says otherwise

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_seconds)

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


class Engine:
    """The engine of one cell. Holds no state that matters: any number of them may run at once.

    Within a `scope` there is one tenant, and nothing that belongs to others exists.
    """

    def __init__(self, database: Database, clock: Clock, times: Times | None = None) -> None:
        self.database = database
        self.clock = clock
        self.times = times or Times()
        self.scope: str | None = None  # the name of the only tenant that there is
        self._tenants: dict[str, int] = {}
        self._queues: dict[str, int] = {}
        self._targets: dict[str, int] = {}
        self._patience_ms: int | None = None  # with who makes the same name at this moment
        self.creates: Group[Any, Any] = Group()  # jobs that are created together
        self.crowds = Crowds()  # of one-time jobs that this process has created
        self.batches = Turns(2, 32)  # each may be large
        self.batch_room = Room(128 * MIB, most_of_one=32 * MIB)  # for those that arrive or wait
        # Names whose job is being put, each with the lock of the requests that put it.
        self.puts: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self.early = Turns(32, 0)  # completions that come before their acceptance is recorded
        self._announcer = _Announcer(database)

    def within(self, tenant: str | None) -> Self:
        """The same engine for a caller who may see one tenant only; None: all of them."""
        scoped = copy.copy(self)
        scoped.scope = tenant
        return scoped

    def hurried(self, patience_ms: int) -> Self:
        """The same engine for who waits no longer than this while somebody else makes a name that he wants."""
        hurried = copy.copy(self)
        hurried._patience_ms = patience_ms
        return hurried

    def require(self, tenant: str) -> None:
        """Forbidden if a caller names another tenant than the one that there is for him."""
        if not self.sees(tenant):
            raise Forbidden(
                f"The key of this request belongs to tenant {self.scope}, so tenant_id cannot name another. "
                f"Leave it out, or use a key of that tenant."
            )

    def sees(self, tenant: str) -> bool:
        """Whether what belongs to a tenant exists here."""
        return self.scope is None or self.scope == tenant

    async def tenant(self, name: str, now: datetime) -> int:
        """The number of a tenant; a new name is a new tenant."""
        return (await self.tenants([name], now))[name]

    async def tenants(self, names: Collection[str], now: datetime) -> dict[str, int]:
        """The numbers of tenants; a new name is a new tenant."""
        return await self._ensured(self._tenants, "ensure_tenants", names, now)

    async def queue(self, name: str, now: datetime, tenant: str | None = None) -> int:
        """The number of a queue; a new name is a new queue. `tenant`: whose job names it, if one does."""
        return (await self.queues([name], now, {} if tenant is None else {name: tenant}))[name]

    async def queues(
        self, names: Collection[str], now: datetime, tenants: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """The numbers of queues; a new name is a new queue. `tenants`: whose jobs name them, of those that jobs name.

        There is room for few queues, and they are the cell's: no tenant can use it up alone.
        """
        makers = tenants or {}

        async def make(missing: list[str]) -> Sequence[_Numbered]:
            named_by = [makers.get(name) for name in missing]
            return _pairs(
                await self.make(_Q["ensure_queues"], missing, now, named_by, MOST_QUEUES_MADE)
            )

        try:
            return await self._numbers(self._queues, names, make)
        except asyncpg.CheckViolationError as error:
            problem = (
                f"is new, and the jobs of tenant {error.detail} have made as many queues as those of one tenant can, "
                f"{MOST_QUEUES_MADE}; use one that exists, or let an administrator make it by PUT /api/v1/queues/{{name}}"
            )
        except asyncpg.SequenceGeneratorLimitExceededError:
            problem = "is new, and there are as many queues as there can be; use one that exists"
        raise InvalidInput([FieldError("queue", "out_of_range", problem)])

    async def target(self, name: str, now: datetime, tenant: str | None = None) -> int:
        """The number of what a job runs on, see `targets`. `tenant`: whose job names it, if one does."""
        return (await self.targets([name], now, {} if tenant is None else {name: tenant}))[name]

    async def targets(
        self, names: Collection[str], now: datetime, tenants: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """The numbers of what jobs run on: hosts have numbers above 0, tasks, which are named `@task`, below 0.

        A new name is a new target. `tenants`: whose jobs name them; the number of tasks per tenant is bounded.
        """
        makers = tenants or {}

        async def make(missing: list[str]) -> Sequence[_Numbered]:
            made: list[_Numbered] = [(name, -1) for name in missing if name == _WEBHOOKS]
            hosts = [name for name in missing if not name.startswith(TASK_MARK)]
            tasks = [name for name in missing if name.startswith(TASK_MARK) and name != _WEBHOOKS]
            if hosts:
                made += _pairs(await self.make(_Q["ensure_targets"], hosts, now))
            if tasks:
                plain, named_by = [t.removeprefix(TASK_MARK) for t in tasks], map(makers.get, tasks)
                rows = await self.make(
                    _Q["ensure_tasks"], plain, now, list(named_by), MOST_TASKS_MADE
                )
                made += [(TASK_MARK + name, -number) for name, number in _pairs(rows)]
            return made

        try:
            return await self._numbers(self._targets, names, make)
        except asyncpg.CheckViolationError as error:
            problem = (
                f"is a new task, and the jobs of tenant {error.detail} already name as many as one tenant may, "
                f"{MOST_TASKS_MADE}; use one name for each handler, and the payload for what differs"
            )
        raise InvalidInput([FieldError("action.name", "out_of_range", problem)])

    async def tasks(self, names: Collection[str], now: datetime) -> list[int]:
        """The numbers of tasks that a worker serves; `@webhook` is one of them."""
        numbers = await self.targets([TASK_MARK + name for name in names], now)
        return [-number for number in numbers.values()]

    async def make(self, statement: str, *args: object) -> Sequence[asyncpg.Record]:
        """Make what others may be making at this moment: in a transaction of its own, so that nobody waits for us for long."""
        if self._patience_ms is None:
            return await self.database.fetch(statement, *args)
        async with self.database.transaction() as connection:
            await connection.execute(f"set local lock_timeout = {self._patience_ms}")
            return await connection.fetch(statement, *args)

    async def new_id(self, now: datetime) -> int:
        """An id that nothing else has."""
        number: int = await self.database.value(_Q["new_id"], now)
        return number

    def announce(self) -> None:
        """Tell every process that something is due or ready; after the commit, and never more than one at a time.

        It only wakes early. A lost announcement costs one poll.
        """
        self._announcer.announce()

    async def _ensured(
        self, known: dict[str, int], statement: str, names: Collection[str], now: datetime
    ) -> dict[str, int]:
        async def make(missing: list[str]) -> Sequence[_Numbered]:
            return _pairs(await self.make(_Q[statement], missing, now))

        return await self._numbers(known, names, make)

    async def _numbers(
        self,
        known: dict[str, int],
        names: Collection[str],
        make: Callable[[list[str]], Awaitable[Sequence[_Numbered]]],
    ) -> dict[str, int]:
        found = {name: known[name] for name in names if name in known}
        if len(found) == len(names):
            return found
        while missing := [name for name in names if name not in found]:
            # Twice at most: somebody else may be making one just now.
            found |= dict(await make(missing))
        if len(known) + len(found) > _MOST_NAMES:
            known.clear()
        known |= found
        return found


_Numbered = tuple[str, int]  # a name and what stands for it in the database


def _pairs(rows: Sequence[asyncpg.Record]) -> list[_Numbered]:
    return [(row["name"], row["id"]) for row in rows]


class _Announcer:
    """One notification at a time. Requests that come while one is under way are sent together after it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._asked = False  # since the last notification was sent

    def announce(self) -> None:
        self._asked = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        while self._asked:
            await asyncio.sleep(0)  # commits of the same turn of the loop are announced together
            # Cleared before it is sent: a commit that comes later is not announced by it.
            self._asked = False
            with contextlib.suppress(StoreUnavailable):
                async with committing("announce.before_commit", "announce.after_commit"):
                    await self._database.value("select pg_notify($1, '')", CHANNEL)
