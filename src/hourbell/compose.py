"""The composition root: wires the concrete classes of one process, starts them in order, stops them in reverse.

`hourbell up` is everything in one process: the embedded PostgreSQL (or HOURBELL_DATABASE_URL), scheduler, worker, API.
`hourbell api`, `scheduler` and `worker` are one of these roles each, any number of them on one database.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from hourbell import failpoints
from hourbell.actions import Actions
from hourbell.actions.egress import GuardedResolver
from hourbell.actions.task import Handler, TaskRunner
from hourbell.actions.webhook import WebhookRunner
from hourbell.api.app import create_app, create_health_app
from hourbell.api.auth import is_local
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Engine, Times
from hourbell.engine.leader.loop import Loop
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.operations.api_keys import has_admin, is_keyless
from hourbell.engine.operations.secrets import StoredSecrets
from hourbell.engine.views.health import check_database
from hourbell.model.errors import ConfigurationError, DataFolderBusy, StoreUnavailable
from hourbell.model.jobs import WEBHOOK_TASK, TaskAction, WebhookAction
from hourbell.observe.drift import CHECK_SECONDS, alarm_drift
from hourbell.security.egress import LOOPBACK, Egress
from hourbell.security.sealing import KeyRing
from hourbell.settings import ALL_QUEUES, Settings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import COMMAND_TIMEOUT_SECONDS, Database
from hourbell.store.embedded import EmbeddedServer, embedded_dsn
from hourbell.store.migrations import MARK_SECONDS, is_migrated, mark_used, migrate
from hourbell.worker.runtime import Worker, WorkerSettings

log = structlog.get_logger()

_CONNECTIONS = 12
_LISTENER_SECONDS = 2.0
_REVIVE_SECONDS = 0.5  # how long a dead embedded PostgreSQL may stay dead
API_PATIENCE_SECONDS = 5.0  # a request that the database does not answer is answered by us


_NOT_MIGRATED = "The database lacks tables or functions of this version. Run `hourbell migrate` of this version once, and start again."
_NO_KEYS = (
    "The API would listen on {host}, where others can reach it, and there is no API key yet, so that anybody could do "
    "anything. Make an administrator's key first, with `hourbell keys create --role admin --name NAME`, or listen on "
    "127.0.0.1."
)


class Role(StrEnum):
    """What a process can be, alone or together with the others."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER = "worker"


ALL_ROLES = frozenset(Role)


class Running:
    """The roles of this process, and whether they do their work."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler | None,
        worker: Worker | None,
    ) -> None:
        self.asks_for_keys = True
        self.engine = engine
        self.scheduler = scheduler
        self.worker = worker
        self.remote: RemoteWorkers | None = None  # workers who speak through our API

    async def ready(self) -> dict[str, bool]:
        """What has to hold for this process to be of use, each with its truth."""
        checks = await check_database(self.engine)
        if self.scheduler is None:
            checks.pop("leader", None)  # jobs can be created, and what is ready run, without
        if self.scheduler is not None:
            checks["scheduler"] = self.scheduler.makes_progress()
        if self.worker is not None:
            checks["worker"] = self.worker.is_working
        return checks

    def wake(self) -> None:
        """Something may have fallen due."""
        for part in (self.scheduler, self.worker, self.remote):
            if part is not None:
                part.wake()


@asynccontextmanager
async def database_of(settings: Settings) -> AsyncIterator[str]:
    """The DSN of the database: the user's, or an embedded one that lives as long as this context."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    server = EmbeddedServer(settings.data_dir, owner=f"http://{settings.host}:{settings.port}")

    async def revive() -> bool:
        if await asyncio.to_thread(server.revive):
            log.error("PostgreSQL had died and was started again")
        return False

    watch: asyncio.Task[None] | None = None
    try:
        dsn = await asyncio.to_thread(server.start)
        watch = asyncio.create_task(Loop("postgres", revive, _REVIVE_SECONDS).run())
        yield dsn
    finally:
        if watch is not None:
            watch.cancel()
        # Also when we are being cancelled: the server must not outlive us.
        await asyncio.shield(asyncio.to_thread(server.stop))


@asynccontextmanager
async def engine_on(
    dsn: str, settings: Settings, patience_seconds: float = COMMAND_TIMEOUT_SECONDS
) -> AsyncIterator[Engine]:
    """An engine with connections of its own."""
    database = await Database.open(dsn, _CONNECTIONS, patience_seconds)
    try:
        times = Times(
            horizon_seconds=settings.horizon_seconds,
            lease_seconds=settings.lease_seconds,
            leader_lease_seconds=settings.leader_lease_seconds,
            max_crashes=settings.max_crashes,
            ledger_days=settings.ledger_days,
            dead_letter_days=settings.dead_letter_days,
            audit_days=settings.audit_days,
        )
        yield Engine(database, DatabaseClock(database), times)
    finally:
        await database.close()


@asynccontextmanager
async def prepared_engine(settings: Settings) -> AsyncIterator[Engine]:
    """An engine for a command that does one thing and ends: on the shared database, or on the embedded one.

    The embedded server may run already, in a process such as `hourbell up`: then it is used as it is.
    """
    async with AsyncExitStack() as stack:
        try:
            dsn = await stack.enter_async_context(database_of(settings))
            is_ours = settings.database_url is None
        except DataFolderBusy as busy:
            dsn, is_ours = embedded_dsn(settings.data_dir), False
            try:
                await is_migrated(dsn)
            except StoreUnavailable:
                raise busy from None  # it is just starting or stopping, or belongs to another user
        if is_ours:
            await migrate(dsn)
        elif not await is_migrated(dsn):
            raise ConfigurationError(_NOT_MIGRATED)
        yield await stack.enter_async_context(engine_on(dsn, settings))


@asynccontextmanager
async def everything(settings: Settings, handlers: Mapping[str, Handler]) -> AsyncIterator[Running]:
    """The database and all roles in this process, running. Webhooks may go to this machine, which is whose user runs it."""
    allowed = ",".join(filter(None, (settings.egress_allow, *LOOPBACK)))
    async with database_of(settings) as dsn:
        await migrate(dsn)
        keys = settings.secret_keys or await asyncio.to_thread(_own_secret_keys, settings.data_dir)
        settings = msgspec.structs.replace(settings, egress_allow=allowed, secret_keys=keys)
        async with running(dsn, settings, ALL_ROLES, handlers) as parts:
            yield parts


def key_ring_of(settings: Settings) -> KeyRing:
    """The keys of secrets: of the settings, or those that `hourbell up` keeps."""
    if settings.secret_keys or settings.database_url is not None:
        return KeyRing.parse(settings.secret_keys)
    return KeyRing.parse(_own_secret_keys(settings.data_dir))


def _own_secret_keys(folder: Path) -> str:
    """The keys of secrets of a user who has named none: made once, and kept beside the data, for him alone."""
    file = folder / "secret.keys"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            draft = file.with_suffix(f".{uuid4().hex}")
            draft.touch(mode=0o600)
            draft.write_text(KeyRing.generate())
            # Not replaced if somebody else was first: what he sealed must open.
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
            draft.unlink()
        return file.read_text().strip()
    except OSError as error:
        raise ConfigurationError(
            f"The keys of secrets cannot be kept in {file}: {error.strerror or error}. Let this user write there, "
            f"or set HOURBELL_SECRET_KEYS."
        ) from error


@asynccontextmanager
async def role(
    settings: Settings, which: Role, handlers: Mapping[str, Handler]
) -> AsyncIterator[Running]:
    """One role in this process, on a database that others share and that `hourbell migrate` has prepared."""
    dsn = shared_database(settings)
    if not await is_migrated(dsn):
        raise ConfigurationError(_NOT_MIGRATED)
    async with running(dsn, settings, {which}, handlers) as parts:
        yield parts


def shared_database(settings: Settings) -> str:
    """The user's database; a process that is a part of several cannot do with one of its own."""
    if settings.database_url is None:
        raise ConfigurationError(
            "HOURBELL_DATABASE_URL is not set. A process on its own needs the PostgreSQL that the others "
            "use; `hourbell up` runs everything in one process, with a PostgreSQL of its own."
        )
    return settings.database_url


@asynccontextmanager
async def running(
    dsn: str, settings: Settings, roles: Set[Role], handlers: Mapping[str, Handler]
) -> AsyncIterator[Running]:
    """These roles in this process, on a database that is migrated."""
    failpoints.configure(settings.failpoints)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(engine_on(dsn, settings))
        clock = DatabaseClock(engine.database)
        scheduler = Scheduler(engine) if Role.SCHEDULER in roles else None
        worker = None
        if Role.WORKER in roles:
            await clock.now()  # webhooks tell the time that it has heard
            actions = await stack.enter_async_context(_actions(handlers, settings, engine, clock))
            worker = Worker(PostgresDispatch(engine), actions, worker_settings(settings, handlers))
        parts = Running(engine, scheduler, worker)
        app = create_health_app(parts)
        if Role.API in roles:
            # Users wait for each other's locks; the leader and the worker must not wait for users.
            for_users = await stack.enter_async_context(
                engine_on(dsn, settings, API_PATIENCE_SECONDS)
            )
            local = is_local(settings.host)
            if not local and not await has_admin(for_users):
                raise ConfigurationError(_NO_KEYS.format(host=settings.host))
            parts.asks_for_keys = not (local and await is_keyless(for_users))
            parts.remote = RemoteWorkers(PostgresDispatch(for_users), settings.lease_seconds)
            ring = KeyRing.parse(settings.secret_keys)
            app = create_app(for_users, parts, ring, parts.remote, local)
        await make_partitions(engine, await engine.clock.now())
        watch = Loop("drift", lambda: alarm_drift(clock), CHECK_SECONDS)
        await stack.enter_async_context(_in_background(watch))
        functions = Loop("functions", lambda: _keep_functions(engine), MARK_SECONDS)
        await stack.enter_async_context(_in_background(functions))
        await stack.enter_async_context(_woken(parts))
        # Stopped in reverse: nothing new comes in, then what runs ends, then somebody else may lead.
        if scheduler is not None:
            scheduler.start()
            stack.push_async_callback(scheduler.stop)
        if worker is not None:
            await stack.enter_async_context(_working(worker))
        server = ApiServer(app, settings.host, settings.port)
        await server.start()
        stack.push_async_callback(server.stop)
        if parts.remote is not None:
            stack.push_async_callback(
                parts.remote.stop
            )  # first: who asks for work is not waited for
        yield parts


def collect_rarely() -> None:
    """Look for cycles of objects less often, in a process that is ours: batches make many objects, and next to no cycles."""
    gc.collect()
    gc.freeze()  # what is there by now stays
    gc.set_threshold(50_000, 20, 20)


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """A worker that works, and drains at the end."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def _keep_functions(engine: Engine) -> bool:
    """Keep migrations of other versions from dropping the functions that this process calls."""
    await mark_used(engine.database)
    return False


@asynccontextmanager
async def _in_background(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def worker_settings(settings: Settings, handlers: Iterable[str]) -> WorkerSettings:
    queues = settings.worker_queues
    return WorkerSettings(
        name=f"{os.getpid()}-{uuid4().hex[:12]}",
        queues=None if queues == ALL_QUEUES else tuple(dict.fromkeys(queues.split(","))),
        tasks=(WEBHOOK_TASK, *handlers),
        slots=settings.worker_slots,
        critical_slots=min(settings.worker_critical_slots, settings.worker_slots - 1),
        low_share=settings.worker_low_share,
        lease_seconds=settings.lease_seconds,
    )


@asynccontextmanager
async def _actions(
    handlers: Mapping[str, Handler], settings: Settings, engine: Engine, clock: DatabaseClock
) -> AsyncIterator[Actions]:
    tasks = TaskRunner(handlers)
    resolver = GuardedResolver(Egress.parse(settings.egress_allow))
    secrets = StoredSecrets(engine, KeyRing.parse(settings.secret_keys))
    webhooks = WebhookRunner.open(
        settings.worker_slots, resolver, secrets, clock.lately, settings.ca_file
    )
    try:
        yield {TaskAction: tasks, WebhookAction: webhooks}
    finally:
        tasks.close()
        await webhooks.close()


@asynccontextmanager
async def _woken(parts: Running) -> AsyncIterator[None]:
    """Notifications wake the scheduler and the worker; the listener comes back after an outage."""
    database = parts.engine.database
    listener = await database.listen(CHANNEL, parts.wake)

    async def renew() -> bool:
        if not database.pooled:
            await listener.renew()
        return False

    try:
        async with _in_background(Loop("listen", renew, _LISTENER_SECONDS)):
            yield
    finally:
        await listener.close()
