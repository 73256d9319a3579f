"""Shared by commands: settings, logs and errors; for servers also signals and shutdown."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

import asyncpg
import click
import structlog
import uvloop

from hourbell.cli.exit_codes import DONE, INTERRUPTED, REFUSED, USAGE
from hourbell.compose import Running, command_engine, tune_garbage_collector
from hourbell.engine.core import Engine
from hourbell.errors import CannotConnect
from hourbell.model.errors import ConfigurationError, HourbellError, StoreUnavailable
from hourbell.observe.exporting import configure_traces, flush_traces
from hourbell.observe.logs import Logs, configure_logs
from hourbell.settings import Settings, from_environment
from hourbell.store.database import shown_dsn, why_unusable
from hourbell.store.embedded import stop_at_once

log = structlog.get_logger(component="process")

# The database does not respond, does not exist, or denies access.
NO_DATABASE = (
    StoreUnavailable,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


def run_process(
    compose: Callable[[Settings], AbstractAsyncContextManager[Running]],
    greet: Callable[[Settings, Running], str],
    control: int | None = None,
) -> None:
    """Run the composed parts until a signal, then drain; a second signal exits immediately.

    A signal during startup aborts the startup.
    `control` is a pipe from a supervisor, used instead of signals.
    """
    gc.disable()  # during startup almost nothing is garbage; see tune_garbage_collector
    try:
        settings = from_environment(os.environ)
        logs = configure_logs(settings.log_level)
        configure_traces(os.environ)
        uvloop.run(_run(settings, logs, compose, greet, control))
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(USAGE)


async def _run(
    settings: Settings,
    logs: Logs,
    compose: Callable[[Settings], AbstractAsyncContextManager[Running]],
    greet: Callable[[Settings, Running], str],
    control: int | None,
) -> None:
    stop, code = asyncio.Event(), DONE
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, logs.reread)
    async with AsyncExitStack() as stack:
        try:
            parts = await _started(stack, compose(settings), settings, control)
        except CannotConnect:
            raise  # an app has its own database
        except NO_DATABASE as error:
            raise ConfigurationError(database_problem(error, settings)) from error
        if parts is not None:
            _on_stops(control, stop.set, stop.set)
            if parts.worker is not None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, parts.report)
            tune_garbage_collector()
            _tell(greet(settings, parts))
            if await _worker_failed(parts, stop):
                code = REFUSED
            _tell("Draining; press Ctrl-C again to stop now (running executions will run again).")
            _on_stops(control, partial(_stop_now, settings), lambda: None)
    flush_traces()
    _tell("Stopped.")
    # Python would wait for handler threads and tasks that cannot be stopped. Their executions are
    # recorded as interrupted and run again elsewhere.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _worker_failed(parts: Running, stop: asyncio.Event) -> bool:
    """Wait for a stop, or for the end of the worker. Nothing but an error ends it before a stop.

    The process then ends too, because what the worker holds in memory cannot be trusted. Whatever
    started the process starts it again.
    """
    if parts.worker is None:
        await stop.wait()
        return False
    ended, stopped = asyncio.create_task(parts.worker_ended()), asyncio.create_task(stop.wait())
    await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
    if ended.done() and (error := ended.exception()) is not None:
        log.error("worker ended with an error", exc_info=error)
        return True
    ended.cancel()
    return False


async def _started(
    stack: AsyncExitStack,
    parts: AbstractAsyncContextManager[Running],
    settings: Settings,
    control: int | None,
) -> Running | None:
    """Enter the parts; None if a stop was requested meanwhile. A second request exits immediately."""
    starting = asyncio.current_task()
    assert starting is not None
    stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        starting.cancel()
        _on_stops(control, partial(_stop_now, settings), lambda: None)

    _on_stops(control, stop, stop)
    try:
        running = await stack.enter_async_context(parts)
        await asyncio.sleep(0)  # delivers a cancellation that came too late for the startup
    except asyncio.CancelledError:
        if not stopping:
            raise
        return None
    return running


def run_with_engine(act: Callable[[Engine], Awaitable[None]]) -> None:
    """Run `act` with an engine on the configured database.

    A database that cannot be opened is wrong configuration. If one is lost later, a write of `act`
    may have taken effect, and the exit code says so.
    """

    async def run(settings: Settings) -> None:
        async with AsyncExitStack() as stack:
            try:
                engine = await stack.enter_async_context(command_engine(settings))
            except NO_DATABASE as error:
                raise ConfigurationError(database_problem(error, settings)) from error
            try:
                await act(engine)
            except asyncpg.InsufficientPrivilegeError as error:
                raise ConfigurationError(database_problem(error, settings)) from error

    # Imported here, because the processes of roles need no client of the API.
    from hourbell.cli.remote import errors_as_exits

    with errors_as_exits():
        asyncio.run(run(from_environment(os.environ)))


def _on_stops(
    control: int | None, act: Callable[[], None], supervisor_died: Callable[[], None]
) -> None:
    """Call back when a stop is requested: by a signal, or by a supervisor through its pipe."""
    loop = asyncio.get_running_loop()
    if control is None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, act)
        return

    def read() -> None:
        if os.read(control, 1):
            act()
        else:
            loop.remove_reader(control)
            supervisor_died()

    loop.remove_reader(control)
    loop.add_reader(control, read)
    # A process manager may have sent these to the supervisor too, which then reports them.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, lambda: None)


def _stop_now(settings: Settings) -> None:
    """Exit immediately, whatever is running. Only the embedded server, a separate process, is stopped."""
    try:
        if settings.database_url is None:
            stop_at_once(settings.data_dir)
        _tell("Stopped.")
    finally:
        os._exit(INTERRUPTED)


def _tell(text: str) -> None:
    """Print what a process does. It works the same if stdout is closed, or on a full disk."""
    try:
        click.echo(text)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def database_problem(
    error: Exception,
    settings: Settings,
    otherwise: str = "unset it to use the embedded PostgreSQL",
) -> str:
    """Which database a command could not open, and why: unlike StoreUnavailable, not about writes."""
    reason = why_unusable(error)
    if settings.database_url is None:
        return (
            f"Cannot use the database: {reason}. Check that PostgreSQL is running and accepts "
            f"connections, and try again."
        )
    return (
        f"Cannot use the database of HOURBELL_DATABASE_URL, {shown_dsn(settings.database_url)}: "
        f"{reason}. Fix the setting or the database, or {otherwise}."
    )
