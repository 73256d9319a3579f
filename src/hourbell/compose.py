"""The composition root: wires the concrete classes of one process, starts them in order, stops them in reverse.

`hourbell up` is everything in one process: the embedded PostgreSQL (or HOURBELL_DATABASE_URL), scheduler, worker, API.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import uuid4

import structlog

from hourbell import failpoints
from hourbell.actions import Actions
from hourbell.actions.task import Handler, TaskRunner
from hourbell.actions.webhook import WebhookRunner
from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import CHANNEL, Engine, Times
from hourbell.engine.loops import Loop
from hourbell.engine.retain import make_partitions
from hourbell.engine.scheduler import Scheduler
from hourbell.model.errors import StoreUnavailable
from hourbell.model.jobs import TaskAction, WebhookAction
from hourbell.observe.drift import CHECK_SECONDS, alarm_drift
from hourbell.settings import Settings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import COMMAND_TIMEOUT_SECONDS, Database
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import migrate
from hourbell.worker.runtime import Worker, WorkerSettings

log = structlog.get_logger()

_CONNECTIONS = 12
_LISTENER_SECONDS = 2.0
_REVIVE_SECONDS = 0.5  # how long a dead embedded PostgreSQL may stay dead
API_PATIENCE_SECONDS = 5.0  # a request that the database does not answer is answered by us


class Everything:
    """One process with all roles, and whether it is ready."""

    def __init__(self, engine: Engine, scheduler: Scheduler, worker: Worker) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.worker = worker

    async def ready(self) -> dict[str, bool]:
        """What has to hold for this process to be of use, each with its truth."""
        try:
            async with asyncio.timeout(2):
                await self.engine.clock.now()
            database = True
        except (StoreUnavailable, TimeoutError):
            database = False
        return {
            "database": database,
            "scheduler": self.scheduler.makes_progress(),
            "worker": self.worker.session is not None,
        }


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
async def everything(
    settings: Settings, handlers: Mapping[str, Handler]
) -> AsyncIterator[Everything]:
    """All roles in this process, running."""
    failpoints.configure(settings.failpoints)
    async with (
        database_of(settings) as dsn,
        engine_on(dsn, settings) as engine,
        # Users wait for each other's locks; the leader and the worker must not wait for users.
        engine_on(dsn, settings, API_PATIENCE_SECONDS) as for_users,
        _actions(handlers, settings) as actions,
    ):
        await migrate(dsn)
        await make_partitions(engine, await engine.clock.now())
        clock = DatabaseClock(engine.database)
        watch = asyncio.create_task(Loop("drift", lambda: alarm_drift(clock), CHECK_SECONDS).run())
        scheduler = Scheduler(engine)
        worker = Worker(PostgresDispatch(engine), actions, worker_settings(settings))
        roles = Everything(engine, scheduler, worker)
        server = ApiServer(create_app(for_users, roles), settings.host, settings.port)
        async with _woken(engine, scheduler, worker):
            await server.start()
            scheduler.start()
            working = asyncio.create_task(worker.run())
            try:
                yield roles
            finally:
                # Nothing new comes in, then what runs ends, then somebody else may lead.
                await server.stop()
                worker.stop()
                await working
                await scheduler.stop()
                watch.cancel()


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
async def _woken(engine: Engine, scheduler: Scheduler, worker: Worker) -> AsyncIterator[None]:
    """Notifications wake the scheduler and the worker; the listener comes back after an outage."""

    def heard() -> None:
        scheduler.wake()
        worker.wake()

    listener = await engine.database.listen(CHANNEL, heard)

    async def renew() -> bool:
        if not engine.database.pooled:
            await listener.renew()
        return False

    task = asyncio.create_task(Loop("listen", renew, _LISTENER_SECONDS).run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await listener.close()
