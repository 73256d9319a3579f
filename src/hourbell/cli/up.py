"""`hourbell up`: everything in one process, on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import asyncpg
import click
import uvloop

from hourbell.compose import everything
from hourbell.model.errors import ConfigurationError, HourbellError, StoreUnavailable
from hourbell.observe.logs import configure_logs
from hourbell.settings import Settings, from_environment
from hourbell.store.embedded import stop_at_once

# It does not answer, it is not there, or we may not use it.
_NO_DATABASE = (
    StoreUnavailable,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)

_GREETING = """
  Hourbell is up.

    API      http://{host}:{port}/api/v1/jobs
    OpenAPI  http://{host}:{port}/schema/openapi.json
    Data     {data}

  It listens on this machine only and asks for no key. A first job, due in 5 seconds:

    curl -s http://{host}:{port}/api/v1/jobs -H 'Idempotency-Key: first' -H 'Content-Type: application/json' -d '{{
      "name": "hello", "type": "ONE_TIME", "schedule": {{"delay_seconds": 5}},
      "action": {{"type": "WEBHOOK", "url": "http://{host}:{port}/livez", "method": "GET"}}}}'

  Then look at what became of it, with the job_id of the answer:

    curl -s http://{host}:{port}/api/v1/jobs/JOB_ID/executions

  Ctrl-C drains and stops everything.
"""


@click.command("up")
def up_command() -> None:
    """Run API, scheduler and worker in this process, with an embedded PostgreSQL unless one is named."""
    try:
        settings = from_environment(os.environ)
        configure_logs(settings.log_level)
        uvloop.run(_up(settings))
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(2)


async def _up(settings: Settings) -> None:
    stop = asyncio.Event()
    _on_signals(stop.set)
    async with AsyncExitStack() as running:
        try:
            await running.enter_async_context(everything(settings, handlers={}))
        except _NO_DATABASE as error:
            if settings.database_url is None:
                raise
            raise ConfigurationError(_why_no_database(error)) from error
        data = "HOURBELL_DATABASE_URL" if settings.database_url else settings.data_dir
        click.echo(_GREETING.format(host=settings.host, port=settings.port, data=data))
        await stop.wait()
        click.echo("Draining; Ctrl-C again stops at once what runs, and it will run again.")
        _on_signals(partial(_stop_now, settings))
    click.echo("Stopped.")


def _on_signals(act: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)


def _stop_now(settings: Settings) -> None:
    """End here, whatever still runs; only the server, which is a process of its own, has to be told."""
    try:
        if settings.database_url is None:
            stop_at_once(settings.data_dir)
        click.echo("Stopped.")
    finally:
        os._exit(130)


def _why_no_database(error: Exception) -> str:
    # What the database or the network said; our own words around it are about writes.
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    reason = str(cause).rstrip(".") or type(cause).__name__
    return (
        f"The database of HOURBELL_DATABASE_URL cannot be used: {reason}. Correct the setting or "
        f"what it names, or unset it to use the embedded PostgreSQL."
    )
