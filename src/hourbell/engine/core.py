"""What every verb needs: the database, the clock, tenant and queue ids, system-wide durations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakValueDictionary

import asyncpg
import msgspec
import structlog

from hourbell.engine.bounds import BoundedSlots, MemoryBudget
from hourbell.engine.counts import EngineCounts
from hourbell.engine.declarations import Declarations
from hourbell.engine.due_counts import DueCounts
from hourbell.engine.groups import GroupExecutor
from hourbell.engine.life.failures import FailureLog
from hourbell.engine.unknown_names import require_known
from hourbell.model.errors import FieldError, Forbidden, InvalidInput, StoreUnavailable
from hourbell.model.jobs import DEFAULT_QUEUE, DEFAULT_TENANT, TASK_PREFIX, WEBHOOK_TASK
from hourbell.observe.metrics import Metrics
from hourbell.store.clock import Clock
from hourbell.store.database import Database, committing
from hourbell.store.queries import queries

if TYPE_CHECKING:
    from hourbell.observe.spans import Traces

_Q = queries("jobs")
MAX_QUEUES_PER_TENANT = 1_000  # created by the jobs of one tenant; a cell has room for 32,767
MAX_TASKS_PER_TENANT = 10_000  # created by the jobs of one tenant
_WEBHOOKS = TASK_PREFIX + WEBHOOK_TASK
_MAX_CACHED_NAMES = 100_000
MIB = 1024 * 1024
CHANNEL = "hourbell"  # of notifications
# The payloads of notifications:
DUE = ""  # something may be due: run a pass of the gate, then claim
READY = "ready"  # a pass has made something ready: claim. `ready 7`: the worker of session 7 ran it


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """System-wide settings: durations, retention, and how many crashes are tolerated."""

    horizon_seconds: float = 60.0  # executions are planned this far ahead
    grace_seconds: float = 60.0  # planned, or first seen by the gate, later than this: a misfire
    lease_seconds: float = 15.0  # of a worker's session
    leader_lease_seconds: float = 10.0
    answers_seconds: float = 48 * 3600.0  # how long the answer of an idempotent write is kept
    max_crashes: int = 3  # default for jobs: worker deaths while the execution ran alone
    ledger_days: int = 30  # how long ended executions are kept,
    dead_letter_days: int = 365  # dead letters,
    audit_days: int = 365  # and audit entries, unless a tenant sets its own retention

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_seconds)

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.grace_seconds)

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


class CreatedNames:
    """The tenants and queues that a request has created by naming them."""

    def __init__(self) -> None:
        self.tenants: set[str] = set()
        self.queues: set[str] = set()

    def take(self, tenant: str, queue: str) -> tuple[bool, bool]:
        """Whether these are among them, and have not been taken: the first job gets them."""
        taken = tenant in self.tenants, queue in self.queues
        self.tenants.discard(tenant)
        self.queues.discard(queue)
        return taken

    def __bool__(self) -> bool:
        return bool(self.tenants or self.queues)


class Engine:
    """The engine of one cell. Holds no durable state: any number of engines may run at once.

    Within a `scope` only one tenant is visible.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        times: Times | None = None,
        counts: EngineCounts | None = None,
    ) -> None:
        self.database = database
        self.clock = clock
        self.times = times or Times()
        self.counts = counts or EngineCounts(Metrics())  # engines of one process share them
        self.metrics = self.counts.metrics  # of the process
        self.scope: str | None = None  # the only visible tenant; None: all are
        self.traces: Traces | None = None  # of this process; None: it has none
        # Whether a request creates a tenant or a queue by naming it; the default ones always exist.
        self.create_on_use = True
        self._declares = False  # whether the names that it creates are declared
        self._created: CreatedNames | None = None  # where names are noted that are created
        self._tenants: dict[str, int] = {}
        self._queues: dict[str, int] = {}
        self._targets: dict[str, int] = {}
        # How long to wait while another transaction inserts the same name; None: the default.
        self._lock_timeout_ms: int | None = None
        # Requests whose jobs are created in one statement.
        self.create_groups: GroupExecutor[Any, Any] = GroupExecutor()
        self.due_counts = DueCounts()  # of one-time jobs that this process has created
        self.declarations = (
            Declarations()
        )  # of tasks, for jobs that are created without the library
        self.batch_slots = BoundedSlots(2, 32)  # few at once: each may be large
        # For bodies being received or queued.
        self.batch_memory = MemoryBudget(128 * MIB, max_bytes_per_tenant=32 * MIB)
        # One lock per job name, held by the request that puts the job with that name.
        self.put_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        # For completions that arrive before their acceptance is recorded.
        self.early_completions = BoundedSlots(32, 0)
        # Why a pass of the gate failed, as logged last, and when (monotonic).
        self.gate_failure: tuple[str, float] | None = None
        self.failures = FailureLog(structlog.get_logger(component="scheduler"))
        self._announcer = _Announcer(database)

    def scoped_to(self, tenant: str | None) -> Self:
        """A copy of this engine that sees one tenant only; None: all tenants."""
        scoped = self._copy()
        scoped.scope = tenant
        return scoped

    def with_lock_timeout(self, timeout_ms: int) -> Self:
        """A copy of this engine with a lock timeout for adding names.

        It gives up after `timeout_ms` when another transaction is inserting the same name.
        """
        engine = self._copy()
        engine._lock_timeout_ms = timeout_ms
        return engine

    def declaring(self) -> Self:
        """A copy of this engine for callers that declare tenants and queues: all are created."""
        engine = self._copy()
        engine.create_on_use = engine._declares = True
        return engine

    def noting(self, created: CreatedNames) -> Self:
        """A copy of this engine that notes the tenants and queues that it creates."""
        engine = self._copy()
        engine._created = created
        return engine

    def _copy(self) -> Self:
        # Each request has one, and `copy.copy` takes five times as long.
        made = self.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def require_access(self, tenant: str) -> None:
        """Raise Forbidden unless the caller may act for this tenant."""
        if not self.may_see(tenant):
            raise Forbidden(
                f"The key of this request belongs to tenant {self.scope}, so tenant_id cannot name "
                f"another tenant. Omit tenant_id, or use a key of that tenant."
            )

    def may_see(self, tenant: str) -> bool:
        """Whether the data of a tenant is visible here."""
        return self.scope is None or self.scope == tenant

    async def tenant(self, name: str, now: datetime) -> int:
        """The id of a tenant; an unknown name creates the tenant."""
        return (await self.tenants([name], now))[name]

    async def tenants(self, names: Collection[str], now: datetime) -> dict[str, int]:
        """The ids of tenants; an unknown name creates the tenant, or is refused (create_on_use)."""

        async def insert(missing: list[str]) -> Sequence[_NameAndId]:
            await require_known(self, "tenant", missing, now)
            rows = await self.insert_missing(_Q["ensure_tenants"], missing, now, not self._declares)
            return self._noted(rows, None if self._created is None else self._created.tenants)

        return await self._ids(self._tenants, names, insert)

    async def queue(self, name: str, now: datetime, tenant: str | None = None) -> int:
        """The id of a queue; an unknown name creates it. `tenant`: the owner of the naming job."""
        return (await self.queues([name], now, {} if tenant is None else {name: tenant}))[name]

    async def queues(
        self, names: Collection[str], now: datetime, tenants: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """The ids of queues; an unknown name creates the queue, or is refused (create_on_use).

        `tenants`: for queues named by jobs, the tenant of such a job. The number of queues
        of a cell is limited, so each tenant has a limit: no tenant can use them up alone.
        """
        owners = tenants or {}

        async def insert(missing: list[str]) -> Sequence[_NameAndId]:
            await require_known(self, "queue", missing, now)
            named_by = [owners.get(name) for name in missing]
            rows = await self.insert_missing(
                _Q["ensure_queues"], missing, now, named_by, MAX_QUEUES_PER_TENANT
            )
            return self._noted(rows, None if self._created is None else self._created.queues)

        try:
            return await self._ids(self._queues, names, insert)
        except asyncpg.CheckViolationError as error:
            problem = (
                f"is new, and the jobs of tenant {error.detail} have already created "
                f"{MAX_QUEUES_PER_TENANT} queues, the maximum for one tenant; use an existing queue, "
                f"or ask an administrator to create this one with PUT /api/v1/queues/{{name}}"
            )
        except asyncpg.SequenceGeneratorLimitExceededError:
            problem = "is new, and the maximum number of queues exists; use an existing queue"
        raise InvalidInput([FieldError("queue", "out_of_range", problem)])

    async def target(self, name: str, now: datetime, tenant: str | None = None) -> int:
        """The id of a target, see `targets`. `tenant`: the owner of the job that names it."""
        return (await self.targets([name], now, {} if tenant is None else {name: tenant}))[name]

    async def targets(
        self, names: Collection[str], now: datetime, tenants: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """The ids of targets: hosts have positive ids; tasks, named `@task`, negative ones.

        An unknown name creates the target. `tenants`: the tenants of the jobs that name them; the
        number of tasks per tenant is bounded.
        """
        owners = tenants or {}

        async def insert(missing: list[str]) -> Sequence[_NameAndId]:
            inserted: list[_NameAndId] = [(name, -1) for name in missing if name == _WEBHOOKS]
            hosts = [name for name in missing if not name.startswith(TASK_PREFIX)]
            tasks = [name for name in missing if name.startswith(TASK_PREFIX) and name != _WEBHOOKS]
            if hosts:
                inserted += _pairs(await self.insert_missing(_Q["ensure_targets"], hosts, now))
            if tasks:
                plain, named_by = (
                    [t.removeprefix(TASK_PREFIX) for t in tasks],
                    map(owners.get, tasks),
                )
                rows = await self.insert_missing(
                    _Q["ensure_tasks"], plain, now, list(named_by), MAX_TASKS_PER_TENANT
                )
                inserted += [(TASK_PREFIX + name, -number) for name, number in _pairs(rows)]
            return inserted

        try:
            return await self._ids(self._targets, names, insert)
        except asyncpg.CheckViolationError as error:
            problem = (
                f"is a new task, and the jobs of tenant {error.detail} already name "
                f"{MAX_TASKS_PER_TENANT} tasks, the maximum for one tenant; use one name per "
                f"handler, and put what differs into the payload"
            )
        raise InvalidInput([FieldError("action.name", "out_of_range", problem)])

    async def tasks(self, names: Collection[str], now: datetime) -> list[int]:
        """The ids of the tasks that a worker serves; `@webhook` is one of them."""
        ids = await self.targets([TASK_PREFIX + name for name in names], now)
        return [-number for number in ids.values()]

    async def insert_missing(self, statement: str, *args: object) -> Sequence[asyncpg.Record]:
        """Insert rows that other transactions may be inserting at the same time.

        Runs in a transaction of its own, so that its locks are released quickly.
        """
        if self._lock_timeout_ms is None:
            return await self.database.fetch(statement, *args)
        async with self.database.transaction() as connection:
            await connection.execute(f"set local lock_timeout = {self._lock_timeout_ms}")
            return await connection.fetch(statement, *args)

    async def new_id(self, now: datetime) -> int:
        """A unique id."""
        number: int = await self.database.value(_Q["new_id"], now)
        return number

    def announce(self) -> None:
        """Notify every process that an execution may be due; call it after the commit.

        At most one notification is sent at a time. It only wakes pollers early: a lost notification
        costs one poll interval.
        """
        self._announcer.announce(DUE)

    def announce_ready(self, by_session: int | None = None) -> None:
        """Notify workers that a pass has made executions ready: they claim without another pass.

        `by_session`: the session whose worker ran the pass. It claims anyway, and ignores this.
        """
        self._announcer.announce(READY if by_session is None else f"{READY} {by_session}")

    def _noted(
        self, rows: Sequence[asyncpg.Record], created: set[str] | None
    ) -> Sequence[_NameAndId]:
        """The names and ids in these rows; new names are noted, except those that always exist."""
        if created is not None:
            created.update(row["name"] for row in rows if row["is_new"])
            created -= {DEFAULT_TENANT, DEFAULT_QUEUE}
        return _pairs(rows)

    async def _ids(
        self,
        known: dict[str, int],
        names: Collection[str],
        insert: Callable[[list[str]], Awaitable[Sequence[_NameAndId]]],
    ) -> dict[str, int]:
        found = {name: known[name] for name in names if name in known}
        if len(found) == len(names):
            return found
        while missing := [name for name in names if name not in found]:
            # At most two rounds: another transaction may be inserting one of the names.
            found |= dict(await insert(missing))
        if len(known) + len(found) > _MAX_CACHED_NAMES:
            known.clear()
        known |= found
        return found


_NameAndId = tuple[str, int]  # a name and its id in the database


def _pairs(rows: Sequence[asyncpg.Record]) -> list[_NameAndId]:
    return [(row["name"], row["id"]) for row in rows]


class _Announcer:
    """One notification at a time. Requests during one are combined into the next."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._task: asyncio.Task[None] | None = None
        self._requested: set[str] = set()  # since the last notification was sent

    def announce(self, payload: str) -> None:
        self._requested.add(payload)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        while self._requested:
            await asyncio.sleep(0)  # commits in the same loop iteration share one notification
            # Cleared before sending: a later commit needs a notification of its own.
            payload = _combined(self._requested)
            self._requested.clear()
            with contextlib.suppress(StoreUnavailable):
                async with committing("announce.before_commit", "announce.after_commit"):
                    await self._database.value("select pg_notify($1, $2)", CHANNEL, payload)


def _combined(payloads: Collection[str]) -> str:
    """The one payload that has the effect of all of them."""
    if len(payloads) == 1:
        return next(iter(payloads))
    return DUE if DUE in payloads else READY
