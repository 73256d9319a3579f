"""The composition root: wires the concrete classes of one process, starts them in order, stops them in reverse.

`hourbell up` is everything in one process: the embedded PostgreSQL (or HOURBELL_DATABASE_URL), scheduler, worker, API.
`hourbell api`, `scheduler` and `worker` are one of these roles each, any number of them on one database.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Set
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from uuid import uuid4

import structlog

from hourbell import failpoints
from hourbell.actions import Actions
from hourbell.actions.task import Handler, TaskRunner
from hourbell.actions.webhook import WebhookRunner
from hourbell.api.app import create_app, create_health_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import CHANNEL, Engine, Times
from hourbell.engine.loops import Loop
from hourbell.engine.retain import make_partitions
from hourbell.engine.scheduler import Scheduler
from hourbell.model.errors import ConfigurationError, StoreUnavailable
from hourbell.model.jobs import TaskAction, WebhookAction
from hourbell.observe.drift import CHECK_SECONDS, alarm_drift
from hourbell.settings import Settings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import COMMAND_TIMEOUT_SECONDS, Database
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import is_migrated, migrate
from hourbell.worker.runtime import Worker, WorkerSettings

log = structlog.get_logger()

_CONNECTIONS = 12
_LISTENER_SECONDS = 2.0
_REVIVE_SECONDS = 0.5  # how long a dead embedded PostgreSQL may stay dead
API_PATIENCE_SECONDS = 5.0  # a request that the database does not answer is answered by us


class Role(StrEnum):
    """What a process can be, alone or together with the others."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER = "worker"


ALL_ROLES = frozenset(Role)


class Running:
    """The roles of this process, and whether they do their work."""

    def __init__(self, engine: Engine, scheduler: Scheduler | None, worker: Worker | None) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.worker = worker

    async def ready(self) -> dict[str, bool]:
        """What has to hold for this process to be of use, each with its truth."""
        try:
            async with asyncio.timeout(2):
                await self.engine.clock.now()
            checks = {"database": True}
        except (StoreUnavailable, TimeoutError):
            checks = {"database": False}
        if self.scheduler is not None:
            checks["scheduler"] = self.scheduler.makes_progress()
        if self.worker is not None:
            checks["worker"] = self.worker.session is not None
        return checks

    def wake(self) -> None:
        """Something may have fallen due."""
        for part in (self.scheduler, self.worker):
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
        )
        yield Engine(database, DatabaseClock(database), times)
    finally:
        await database.close()


@asynccontextmanager
async def everything(settings: Settings, handlers: Mapping[str, Handler]) -> AsyncIterator[Running]:
    """The database and all roles in this process, running."""
    async with database_of(settings) as dsn:
        await migrate(dsn)
        async with running(dsn, settings, ALL_ROLES, handlers) as parts:
            yield parts


@asynccontextmanager
async def role(
    settings: Settings, which: Role, handlers: Mapping[str, Handler]
) -> AsyncIterator[Running]:
    """One role in this process, on a database that others share and that `hourbell migrate` has prepared."""
    dsn = shared_database(settings)
    if not await is_migrated(dsn):
        raise ConfigurationError(
            "The database is older than this program. Run `hourbell migrate` once, then start again."
        )
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
        scheduler = Scheduler(engine) if Role.SCHEDULER in roles else None
        worker = None
        if Role.WORKER in roles:
            actions = await stack.enter_async_context(_actions(handlers, settings))
            worker = Worker(PostgresDispatch(engine), actions, worker_settings(settings))
        parts = Running(engine, scheduler, worker)
        app = create_health_app(parts)
        if Role.API in roles:
            # Users wait for each other's locks; the leader and the worker must not wait for users.
            for_users = await stack.enter_async_context(
                engine_on(dsn, settings, API_PATIENCE_SECONDS)
            )
            app = create_app(for_users, parts)
        await make_partitions(engine, await engine.clock.now())
        clock = DatabaseClock(engine.database)
        watch = Loop("drift", lambda: alarm_drift(clock), CHECK_SECONDS)
        await stack.enter_async_context(_in_background(watch))
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
        yield parts


@asynccontextmanager
async def _working(worker: Worker) -> AsyncIterator[None]:
    """A worker that works, and drains at the end."""
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


@asynccontextmanager
async def _in_background(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def worker_settings(settings: Settings) -> WorkerSettings:
    return WorkerSettings(
        name=f"{os.getpid()}-{uuid4().hex[:12]}",
        slots=settings.worker_slots,
        critical_slots=min(settings.worker_critical_slots, settings.worker_slots - 1),
        low_share=settings.worker_low_share,
        lease_seconds=settings.lease_seconds,
    )


@asynccontextmanager
async def _actions(handlers: Mapping[str, Handler], settings: Settings) -> AsyncIterator[Actions]:
    tasks = TaskRunner(handlers)
    webhooks = WebhookRunner.open(settings.worker_slots)
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
