"""`hourbell up`: everything in one process, on this machine."""

from __future__ import annotations

from functools import partial

import click

from hourbell.cli.process import run_process
from hourbell.compose import Running, everything
from hourbell.sdk.app import App
from hourbell.settings import Settings
from hourbell.store.embedded import embedded_dsn

_GREETING = """
  Hourbell is up.

    Dashboard http://{host}:{port}
    API       http://{host}:{port}/api/v1/jobs
    OpenAPI   http://{host}:{port}/schema/openapi.json
{database}

  {access} Webhooks may call the internet and this machine; to allow
  other hosts in your network, set HOURBELL_EGRESS_ALLOW. A first job, due in 5 seconds:

    curl -s http://{host}:{port}/api/v1/jobs{header} -H 'Idempotency-Key: first' -H 'Content-Type: application/json' -d '{{
      "name": "hello", "type": "ONE_TIME", "schedule": {{"delay_seconds": 5}},
      "action": {{"type": "WEBHOOK", "url": "http://{host}:{port}/livez", "method": "GET"}}}}'

  Then list its executions, using the job_id from the response:

    curl -s http://{host}:{port}/api/v1/jobs/JOB_ID/executions{header}

  Press Ctrl-C to drain and stop everything.
"""


_APP_GREETING = """
  Hourbell is up, with a worker for the tasks of app {app!r}:

{tasks}

    Dashboard http://{host}:{port}
    API       http://{host}:{port}/api/v1/jobs
{database}

  Programs on this machine that import {app!r} find this server by its data folder; they need no URL.
  {access}Press Ctrl-C to drain and stop everything.
"""


@click.command("up")
@click.argument("target", metavar="[MODULE:APP]", required=False)
def up_command(target: str | None) -> None:
    """Run API, scheduler and worker in one process, by default with an embedded PostgreSQL.

    With an app, such as shop.tasks:app, the worker also runs the app's tasks.
    """
    if target is None:
        run_process(everything, _greeting)
        return
    from hourbell.cli.apps import loaded_app

    app = loaded_app(target)
    run_process(partial(everything, app=app), partial(_app_greeting, app))


def _app_greeting(app: App, settings: Settings, parts: Running) -> str:
    keys = "Every API request needs a key. " if parts.requires_keys else ""
    return _APP_GREETING.format(
        app=app.name,
        tasks="\n".join(f"    {name}" for name in sorted(app.tasks)),
        host=settings.host,
        port=settings.port,
        database=_database_lines(settings),
        access=keys,
    )


def _greeting(settings: Settings, parts: Running) -> str:
    database = _database_lines(settings)
    access, header = "It listens on this machine only and requires no API key.", ""
    if parts.requires_keys:
        access = "Every request needs an API key."
        header = ' -H "Authorization: Bearer $HOURBELL_API_KEY"'
    return _GREETING.format(
        host=settings.host, port=settings.port, database=database, access=access, header=header
    )


def _database_lines(settings: Settings) -> str:
    if settings.database_url:
        return "    Database  from HOURBELL_DATABASE_URL"
    return f"    Database  {embedded_dsn(settings.data_dir)}\n    Data      {settings.data_dir}"
