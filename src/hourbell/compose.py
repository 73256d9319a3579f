"""The composition root: wires the parts of a process, starts them in order, stops them in reverse.

`hourbell up` runs everything in one process: the embedded PostgreSQL (or HOURBELL_DATABASE_URL),
scheduler, worker and API. `hourbell api`, `scheduler` and `worker` run one role each; any number of
them can share a database.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import platform
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Set
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import structlog

from hourbell import __version__, failpoints
from hourbell.actions import ActionRunners
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Engine, Times
from hourbell.engine.counts import EngineCounts
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.loop import Loop
from hourbell.engine.operations.api_keys import (
    FIRST_KEY,
    create_first_key,
    has_admin,
    is_keyless,
)
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.presence import (
    PRESENCE_SECONDS,
    Node,
    OpenCircuit,
    end_presence,
    report_presence,
)
from hourbell.engine.operations.secrets import StoredSecrets
from hourbell.engine.operations.tasks import declare_tasks
from hourbell.engine.views.cell_metrics import CellMetrics
from hourbell.engine.views.health import check_database
from hourbell.model.errors import (
    ConfigurationError,
    Conflict,
    DataFolderBusy,
    MissingExtra,
    StoreUnavailable,
)
from hourbell.model.extras import require_extras
from hourbell.model.ids import key_text
from hourbell.model.jobs import WEBHOOK_TASK, TaskAction, WebhookAction
from hourbell.observe.drift import CHECK_SECONDS, check_drift
from hourbell.observe.logs import configure_logs_of_library
from hourbell.observe.traces import current_traces
from hourbell.sdk.app import App, no_database
from hourbell.sdk.running import AppRunner, WorkerOptions, declared_options, entered
from hourbell.sdk.schedules import manifest_of
from hourbell.security.access import COMMAND_LINE
from hourbell.security.egress import LOOPBACK, Egress
from hourbell.security.sealing import KeyRing
from hourbell.settings import ALL_QUEUES, Settings, from_environment
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import COMMAND_TIMEOUT_SECONDS, Database
from hourbell.store.embedded import EmbeddedServer, embedded_dsn
from hourbell.store.migrations import MARK_SECONDS, is_migrated, mark_used, migrate
from hourbell.worker.counts import RunCounts
from hourbell.worker.runtime import Worker, WorkerSettings

if TYPE_CHECKING:
    from litestar import Litestar

log = structlog.get_logger(component="process")

_LISTENER_SECONDS = 2.0
_REVIVE_SECONDS = 0.5  # how often a crashed embedded PostgreSQL is detected and restarted
_BY_SETTING = "HOURBELL_ADMIN_KEY"
API_TIMEOUT_SECONDS = 5.0  # database timeout of API requests


_NOT_MIGRATED = (
    "The database lacks tables or functions of this version. Run `hourbell migrate` with this "
    "version once, then try again."
)
_NO_KEYS = (
    "The API would listen on {host}, where other machines can reach it, but no API key exists, so "
    "every caller would have full access. Create an admin key first, with `hourbell keys create "
    "--first` or HOURBELL_ADMIN_KEY_FILE, or listen on 127.0.0.1."
)


class Role(StrEnum):
    """A role of a process; a process can have one or several."""

    API = "api"
    SCHEDULER = "scheduler"
    WORKER = "worker"


ALL_ROLES = frozenset(Role)


class Running:
    """The running parts of this process, their health and their metrics."""

    def __init__(
        self,
        engine: Engine,
        clock: DatabaseClock,
        roles: Set[Role],
        scheduler: Scheduler | None,
        worker: Worker | None,
    ) -> None:
        engine.metrics.gauge(
            "hourbell_info", "Version and roles of this process.", ("version", "roles")
        ).series(__version__, ",".join(sorted(roles))).set(1)
        _show_pool(engine, "engine")
        self._cell = CellMetrics(engine, clock)
        self.requires_keys = True
        self.engine = engine
        self.scheduler = scheduler
        self.worker = worker
        self.remote: RemoteWorkers | None = None  # workers that use our HTTP API
        self.working: asyncio.Task[None] | None = None  # the worker's run
        self.app_tasks: AppRunner | None = None

    async def worker_ended(self) -> None:
        """Wait until the worker has stopped; raises the error that ended it."""
        if self.working is not None:
            await asyncio.wait([self.working])
            self.working.result()

    async def ready(self) -> dict[str, bool]:
        """The readiness checks of this process, by name."""
        checks = await check_database(self.engine)
        if self.scheduler is None:
            checks.pop("leader", None)  # creating jobs and running ready ones needs no leader
        if self.scheduler is not None:
            checks["scheduler"] = self.scheduler.makes_progress()
        if self.worker is not None:
            checks["worker"] = self.worker.is_working
        return checks

    async def metrics(self) -> bytes:
        """The metrics of this process, and those of the cell if it leads."""
        leads = self.scheduler is not None and self.scheduler.leadership.term is not None
        await self._cell.refresh(leads)
        return self.engine.metrics.render()

    def report(self) -> None:
        """Log what the worker is running."""
        if self.worker is not None:
            self.worker.report()
        if self.app_tasks is not None:
            self.app_tasks.report()

    def wake(self, payload: str) -> None:
        """Wake the parts that a notification concerns.

        When an execution may be due, a worker passes the gate itself; a scheduler in the same process
        would only get in its way.
        """
        if self.worker is not None:
            self.worker.wake(payload)
        elif self.scheduler is not None:
            self.scheduler.wake(payload)
        if self.remote is not None:
            self.remote.wake(payload)


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncIterator[str]:
    """The DSN of the configured database, or of an embedded one that runs within this context."""
    if settings.database_url is not None:
        yield settings.database_url
        return
    server = EmbeddedServer(settings.data_dir, owner=f"http://{settings.host}:{settings.port}")

    async def revive() -> bool:
        if await asyncio.to_thread(server.revive):
            log.error("embedded PostgreSQL restarted after a crash")
        return False

    watch: asyncio.Task[None] | None = None
    try:
        dsn = await asyncio.to_thread(server.start)
        watch = asyncio.create_task(Loop("postgres", revive, _REVIVE_SECONDS).run())
        yield dsn
    finally:
        if watch is not None:
            watch.cancel()
        # Even if this task is cancelled: the server must not outlive the process.
        await asyncio.shield(asyncio.to_thread(server.stop))


@asynccontextmanager
async def open_engine(
    dsn: str,
    settings: Settings,
    program: str,
    timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
    counts: EngineCounts | None = None,
) -> AsyncIterator[Engine]:
    """An engine with its own connection pool, whose connections have the name `program`.

    `counts` is shared with another engine of the process.
    """
    database = await Database.open(dsn, settings.pool_size, program, timeout_seconds)
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
        engine = Engine(database, DatabaseClock(database), times, counts)
        engine.traces = current_traces()
        engine.create_on_use = settings.create_on_use
        yield engine
    finally:
        await database.close()


@asynccontextmanager
async def command_engine(settings: Settings) -> AsyncIterator[Engine]:
    """An engine for a one-off command, on the shared or the embedded database.

    If the embedded server is already running, in a process such as `hourbell up`, it is used.
    """
    async with AsyncExitStack() as stack:
        try:
            dsn = await stack.enter_async_context(open_database(settings))
            is_ours = settings.database_url is None
        except (DataFolderBusy, MissingExtra) as problem:
            dsn, is_ours = embedded_dsn(settings.data_dir), False
            try:
                await is_migrated(dsn)
            except StoreUnavailable:
                # It is starting or stopping, belongs to another user, or does not exist.
                raise problem from None
        if is_ours:
            await migrate(dsn)
        elif not await is_migrated(dsn):
            raise ConfigurationError(_NOT_MIGRATED)
        yield await stack.enter_async_context(open_engine(dsn, settings, "hourbell command"))


@asynccontextmanager
async def unserved_api(settings: Settings) -> AsyncIterator[Litestar]:
    """The API on the configured database, for this process alone: without a port and without keys."""
    require_extras("A command that works directly on the database", "server")
    from hourbell.api.app import create_app

    async with command_engine(settings) as engine:
        clock = DatabaseClock(engine.database)
        await clock.now()
        counts = RunCounts(engine.metrics, clock.estimated_timestamp, clock.monotonic)
        remote = RemoteWorkers(PostgresDispatch(engine), settings.lease_seconds, counts.sent)
        parts = Running(engine, clock, set(), None, None)
        ring = KeyRing.parse(settings.secret_keys)
        yield create_app(engine, parts, ring, remote, True, caller=COMMAND_LINE)


async def join_or_open_database(
    stack: AsyncExitStack, owner: str, embedded: bool, target: str
) -> str:
    """The DSN of the embedded database, for an app without a URL.

    It belongs to a running process such as `hourbell up`. If there is none and `embedded` is true,
    the server is started, and stops with the stack, or at the latest when the process exits.
    """
    settings = from_environment(os.environ)
    if embedded:
        with contextlib.suppress(DataFolderBusy):
            server = EmbeddedServer(settings.data_dir, owner=owner)
            stack.push_async_callback(asyncio.to_thread, server.stop)  # even if this is cancelled
            stack.callback(atexit.unregister, _stopped_at_exit(server))
            dsn = await asyncio.to_thread(server.start)
            await migrate(dsn)
            return dsn
    dsn = embedded_dsn(settings.data_dir)
    try:
        await is_migrated(dsn)
    except StoreUnavailable:
        raise no_database(target, settings.data_dir) from None
    return dsn


def _stopped_at_exit(server: EmbeddedServer) -> Callable[[], None]:
    """Stop a server when this process exits without having closed its app, as scripts do."""
    owner, loop, halted = os.getpid(), asyncio.get_running_loop(), threading.Event()

    def halt() -> None:
        loop.stop()
        halted.set()

    def stop() -> None:
        if os.getpid() != owner:
            return  # a forked child
        if loop.is_running():  # in a thread, with connections that it would open again
            loop.call_soon_threadsafe(halt)
            halted.wait(1.0)
        server.stop()

    return atexit.register(stop)


@asynccontextmanager
async def everything(settings: Settings, app: App | None = None) -> AsyncIterator[Running]:
    """Run the database and all roles in this process, and the tasks of an app if there is one.

    Webhooks may call this machine, because the user who runs it owns the machine.
    """
    own_postgres = () if settings.database_url else ("embedded",)
    require_extras('"hourbell up"', "server", *own_postgres)
    allowed = ",".join(filter(None, (settings.egress_allow, *LOOPBACK)))
    async with open_database(settings) as dsn:
        await migrate(dsn)
        keys = settings.secret_keys or await asyncio.to_thread(_own_secret_keys, settings.data_dir)
        settings = msgspec.structs.replace(settings, egress_allow=allowed, secret_keys=keys)
        async with AsyncExitStack() as stack:
            runner = None
            if app is not None:
                runner = await stack.enter_async_context(_entered(app, dsn))
            yield await stack.enter_async_context(running(dsn, settings, ALL_ROLES, runner))


@asynccontextmanager
async def app_worker(dsn: str, app: App, options: WorkerOptions) -> AsyncIterator[Running]:
    """Run the tasks of an open app in this process and, unless disabled, a scheduler."""
    if options.health is not None:
        require_extras('"hourbell worker --health"', "server")
    settings = from_environment(os.environ)
    configure_logs_of_library(settings.log_level)
    if options.lease_seconds is not None:
        settings = msgspec.structs.replace(settings, lease_seconds=options.lease_seconds)
    failpoints.configure(settings.failpoints)
    async with AsyncExitStack() as stack:
        own = _app_worker_settings(settings, app, options)
        engine = await stack.enter_async_context(
            open_engine(dsn, settings, f"hourbell {Role.WORKER} {own.name}")
        )
        runner = await stack.enter_async_context(entered(app, options.pool_size))
        await declare_tasks(engine, declared_options(app))
        dispatch = PostgresDispatch(engine)
        clock = DatabaseClock(engine.database)
        await clock.now()
        worker = Worker(
            dispatch,
            {TaskAction: runner},
            own,
            RunCounts(engine.metrics, clock.estimated_timestamp, clock.monotonic),
            engine.traces,
        )
        runner.attach(worker, dispatch)
        scheduler = Scheduler(engine) if options.scheduler else None
        roles = {Role.WORKER} | ({Role.SCHEDULER} if scheduler is not None else set())
        parts = Running(engine, clock, roles, scheduler, worker)
        parts.app_tasks = runner
        if scheduler is not None:
            await make_partitions(engine, await engine.clock.now())
        watch = Loop("drift", lambda: check_drift(clock), CHECK_SECONDS)
        await stack.enter_async_context(_in_background(watch))
        functions = Loop("functions", lambda: _keep_functions(engine), MARK_SECONDS)
        await stack.enter_async_context(_in_background(functions))
        await stack.enter_async_context(_present(parts, roles, {}))
        await stack.enter_async_context(_listening(parts))
        if scheduler is not None:
            scheduler.start()
            stack.push_async_callback(scheduler.stop)
        parts.working = await stack.enter_async_context(_running_worker(worker))
        if options.health is not None:
            await _serve_health(stack, parts, *options.health)
        yield parts


async def _serve_health(stack: AsyncExitStack, parts: Running, host: str, port: int) -> None:
    # Imported here, because most workers serve nothing.
    from hourbell.api.app import create_health_app
    from hourbell.api.auth import is_local
    from hourbell.api.server import ApiServer

    app = create_health_app(parts.engine, parts, is_local(host))
    server = ApiServer(app, host, port)
    await server.start()
    stack.push_async_callback(server.stop)


@asynccontextmanager
async def _entered(app: App, dsn: str) -> AsyncIterator[AppRunner]:
    """The runner of an app on the database of this process."""
    app.url = dsn
    async with app, entered(app) as runner:
        yield runner


def _app_worker_settings(settings: Settings, app: App, options: WorkerOptions) -> WorkerSettings:
    slots = options.concurrency
    return WorkerSettings(
        name=options.name or f"{platform.node()}-{os.getpid()}-{uuid4().hex[:6]}",
        queues=options.queues_of(app),
        tasks=tuple(app.tasks),
        manifest=manifest_of(app, settings.revision),
        slots=slots,
        critical_slots=min(settings.worker_critical_slots, max(slots // 10, 0)),
        low_share=settings.worker_low_share,
        lease_seconds=settings.lease_seconds,
        drain_seconds=options.drain_seconds,
    )


def key_ring_of(settings: Settings) -> KeyRing:
    """The keys that encrypt secrets: from the settings, or those stored by `hourbell up`."""
    if settings.secret_keys or settings.database_url is not None:
        return KeyRing.parse(settings.secret_keys)
    return KeyRing.parse(_own_secret_keys(settings.data_dir))


def _own_secret_keys(folder: Path) -> str:
    """The keys when none are configured: generated once, stored in the data folder, mode 0600."""
    file = folder / "secret.keys"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not file.exists():
            draft = file.with_suffix(f".{uuid4().hex}")
            draft.touch(mode=0o600)
            draft.write_text(KeyRing.generate())
            # Never replaces the file if another process was first: its secrets must stay readable.
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
            draft.unlink()
        return file.read_text().strip()
    except OSError as error:
        raise ConfigurationError(
            f"Cannot store the secret keys in {file}: {error.strerror or error}. Make the file "
            f"writable for this user, or set HOURBELL_SECRET_KEYS."
        ) from error


@asynccontextmanager
async def role(settings: Settings, which: Role) -> AsyncIterator[Running]:
    """Run one role in this process, on a shared database that `hourbell migrate` has prepared."""
    require_extras(f'"hourbell {which}"', "server")
    dsn = shared_database(settings)
    if not await is_migrated(dsn):
        raise ConfigurationError(_NOT_MIGRATED)
    async with running(dsn, settings, {which}) as parts:
        yield parts


def shared_database(settings: Settings) -> str:
    """The DSN of the configured database; separate processes cannot use an embedded one."""
    if settings.database_url is None:
        raise ConfigurationError(
            "HOURBELL_DATABASE_URL is not set. A process with a single role needs the PostgreSQL "
            "that the other processes use. `hourbell up` runs everything in one process, with an "
            "embedded PostgreSQL."
        )
    return settings.database_url


@asynccontextmanager
async def running(
    dsn: str, settings: Settings, roles: Set[Role], app_tasks: AppRunner | None = None
) -> AsyncIterator[Running]:
    """Run these roles in this process, on a migrated database.

    The worker runs webhooks, and the tasks of an app if there is one.
    """
    # Imported here, because a command that serves nothing would take twice as long to start.
    from hourbell.api.app import create_app, create_health_app
    from hourbell.api.auth import is_local
    from hourbell.api.events import Events
    from hourbell.api.server import ApiServer

    failpoints.configure(settings.failpoints)
    async with AsyncExitStack() as stack:
        program = f"hourbell {'up' if len(roles) > 1 else ','.join(roles)} {_process_name()}"
        engine = await stack.enter_async_context(open_engine(dsn, settings, program))
        clock = DatabaseClock(engine.database)
        scheduler = Scheduler(engine) if Role.SCHEDULER in roles else None
        await clock.now()  # start delays, and timestamps of webhooks, are derived from this reading
        counts = RunCounts(engine.metrics, clock.estimated_timestamp, clock.monotonic)
        worker = None
        actions: ActionRunners = {}
        if Role.WORKER in roles:
            actions = await stack.enter_async_context(_actions(app_tasks, settings, engine, clock))
            dispatch = PostgresDispatch(engine)
            own = worker_settings(settings, () if app_tasks is None else app_tasks.names)
            if app_tasks is not None:
                own = msgspec.structs.replace(
                    own, manifest=manifest_of(app_tasks.app, settings.revision)
                )
            worker = Worker(dispatch, actions, own, counts, engine.traces)
            if app_tasks is not None:
                await declare_tasks(engine, declared_options(app_tasks.app))
                app_tasks.attach(worker, dispatch)
        parts = Running(engine, clock, roles, scheduler, worker)
        parts.app_tasks = app_tasks
        local = is_local(settings.host)
        app = create_health_app(engine, parts, local)
        events: Events | None = None
        if Role.API in roles:
            # Its own pool: API requests may wait for locks, but must not delay leader and
            # worker.
            api_engine = await stack.enter_async_context(
                open_engine(dsn, settings, program, API_TIMEOUT_SECONDS, engine.counts)
            )
            _show_pool(api_engine, "api")
            if settings.admin_key is not None:
                await _create_admin_key(api_engine, settings.admin_key)
            if not local and not await has_admin(api_engine):
                raise ConfigurationError(_NO_KEYS.format(host=settings.host))
            parts.requires_keys = not (local and await is_keyless(api_engine))
            parts.remote = RemoteWorkers(
                PostgresDispatch(api_engine), settings.lease_seconds, counts.sent
            )
            ring = KeyRing.parse(settings.secret_keys)
            events = Events(api_engine)
            app = create_app(api_engine, parts, ring, parts.remote, local, events)
        await make_partitions(engine, await engine.clock.now())
        watch = Loop("drift", lambda: check_drift(clock), CHECK_SECONDS)
        await stack.enter_async_context(_in_background(watch))
        functions = Loop("functions", lambda: _keep_functions(engine), MARK_SECONDS)
        await stack.enter_async_context(_in_background(functions))
        await stack.enter_async_context(_present(parts, roles, actions))
        await stack.enter_async_context(_listening(parts))
        # Stopped in reverse: no new requests, then running work drains, then leadership is
        # released.
        if scheduler is not None:
            scheduler.start()
            stack.push_async_callback(scheduler.stop)
        if worker is not None:
            parts.working = await stack.enter_async_context(_running_worker(worker))
        server = ApiServer(app, settings.host, settings.port)
        await server.start()
        stack.push_async_callback(server.stop)
        if parts.remote is not None:
            # Stopped first: the server's drain must not wait for long-polling claims.
            stack.push_async_callback(parts.remote.stop)
        if events is not None:
            stack.push_async_callback(events.stop)  # its streams do not end on their own
        yield parts


async def _create_admin_key(engine: Engine, key: str) -> None:
    """Create the configured key, unless there is any key: a key that was revoked stays revoked."""
    if not await is_keyless(engine):
        return
    with contextlib.suppress(Conflict):  # another process has created it meanwhile
        made = await create_first_key(engine, FIRST_KEY, Write(actor=_BY_SETTING), key)
        log.info("first admin key created", key_id=key_text(made.made.key_id))


def _show_pool(engine: Engine, name: str) -> None:
    """Expose the connections of an engine's pool as metrics."""
    connections = engine.metrics.gauge(
        "hourbell_pool_connections", "Connections to the database.", ("pool", "state")
    )
    largest = engine.metrics.gauge(
        "hourbell_pool_max_connections", "Maximum size of a connection pool.", ("pool",)
    )

    def update() -> None:
        state = engine.database.pool_state
        connections.series(name, "in_use").set(state.in_use)
        connections.series(name, "idle").set(state.idle)
        largest.series(name).set(state.max_size)

    engine.metrics.before_render(update)


def tune_garbage_collector() -> None:
    """Run the cyclic garbage collector less often.

    Only in processes that Hourbell owns. Batches create many objects and almost no cycles.
    """
    gc.collect()
    gc.freeze()  # exclude all existing objects
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@asynccontextmanager
async def _running_worker(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """Run a worker within this context, and drain it at the end. `worker_ended` raises its errors."""
    working = asyncio.create_task(worker.run())
    try:
        yield working
    finally:
        worker.stop()
        await asyncio.wait([working])


async def _keep_functions(engine: Engine) -> bool:
    """Prevent migrations of other versions from dropping the functions that this process calls."""
    await mark_used(engine.database)
    return False


def _process_name() -> str:
    return f"{platform.node()}-{os.getpid()}"


@asynccontextmanager
async def _present(parts: Running, roles: Set[Role], actions: ActionRunners) -> AsyncIterator[None]:
    """Report every few seconds that this process is alive, within this context."""
    engine, scheduler = parts.engine, parts.scheduler
    clock = DatabaseClock(engine.database)
    number = uuid4() if scheduler is None else scheduler.leadership.node
    node = Node(number, _process_name(), sorted(roles))

    async def report() -> bool:
        drift = await clock.drift_seconds()
        now = await clock.now()
        await report_presence(engine, node, now, drift, _open_circuits(actions, now))
        return False

    try:
        async with _in_background(Loop("presence", report, PRESENCE_SECONDS)):
            yield
    finally:
        with contextlib.suppress(StoreUnavailable):
            await end_presence(engine, node)


def _open_circuits(actions: ActionRunners, now: datetime) -> list[OpenCircuit]:
    """The open circuits of this process, with their times on the database's clock."""
    webhooks = actions.get(WebhookAction)
    if webhooks is None:
        return []
    # Imported here, because only a worker sends webhooks.
    from hourbell.actions.webhook import WebhookRunner

    assert isinstance(webhooks, WebhookRunner)
    measured = time.monotonic()
    return [
        OpenCircuit(
            tenant,
            host,
            endpoint,
            circuit.failures,
            now + timedelta(seconds=circuit.since - measured),
            now + timedelta(seconds=circuit.until - measured),
            circuit.error,
        )
        for tenant, host, endpoint, circuit in webhooks.open_circuits()
    ]


@asynccontextmanager
async def _in_background(loop: Loop) -> AsyncIterator[None]:
    task = asyncio.create_task(loop.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def worker_settings(settings: Settings, tasks: Iterable[str]) -> WorkerSettings:
    queues = settings.worker_queues
    return WorkerSettings(
        name=f"{os.getpid()}-{uuid4().hex[:12]}",
        queues=None if queues == ALL_QUEUES else tuple(dict.fromkeys(queues.split(","))),
        tasks=(WEBHOOK_TASK, *tasks),
        slots=settings.worker_slots,
        critical_slots=min(settings.worker_critical_slots, settings.worker_slots - 1),
        low_share=settings.worker_low_share,
        lease_seconds=settings.lease_seconds,
    )


@asynccontextmanager
async def _actions(
    tasks: AppRunner | None, settings: Settings, engine: Engine, clock: DatabaseClock
) -> AsyncIterator[ActionRunners]:
    # Imported here, because only a worker sends webhooks.
    from hourbell.actions.egress import GuardedResolver
    from hourbell.actions.webhook import WebhookRunner

    resolver = GuardedResolver(Egress.parse(settings.egress_allow))
    secrets = StoredSecrets(engine, KeyRing.parse(settings.secret_keys))
    webhooks = WebhookRunner.open(
        settings.worker_slots,
        resolver,
        secrets,
        clock.estimated_timestamp,
        settings.ca_file,
        engine.metrics,
    )
    try:
        yield (
            {WebhookAction: webhooks}
            if tasks is None
            else {
                WebhookAction: webhooks,
                TaskAction: tasks,
            }
        )
    finally:
        await webhooks.close()


@asynccontextmanager
async def _listening(parts: Running) -> AsyncIterator[None]:
    """Wake scheduler and worker on notifications; the listener reconnects after an outage."""
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
