"""`hourbell up`: everything in one process, on this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import click
import uvloop

from hourbell.compose import everything
from hourbell.model.errors import HourbellError
from hourbell.observe.logs import configure_logs
from hourbell.settings import Settings, from_environment

_GREETING = """
  Hourbell is up.

    API     http://{host}:{port}/api/v1
    Docs    http://{host}:{port}/schema
    Data    {data}

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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with everything(settings, handlers={}):
        data = "HOURBELL_DATABASE_URL" if settings.database_url else settings.data_dir
        click.echo(_GREETING.format(host=settings.host, port=settings.port, data=data))
        await stop.wait()
        click.echo("Draining; Ctrl-C again stops at once what runs, and it will run again.")
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _stop_now)
    click.echo("Stopped.")


def _stop_now() -> None:
    os._exit(130)
