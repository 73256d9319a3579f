"""`hourbell api`, `hourbell scheduler`, `hourbell worker`: one role, on a shared database."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import click

from hourbell.cli.process import run_process
from hourbell.compose import Role, Running, role
from hourbell.settings import Settings


@click.command("api")
def api_command() -> None:
    """Serve the API, using the database of HOURBELL_DATABASE_URL."""
    _run(Role.API)


@click.command("scheduler")
def scheduler_command() -> None:
    """Run the scheduler, as leader or standby, using the database of HOURBELL_DATABASE_URL."""
    _run(Role.SCHEDULER)


@click.command("worker")
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option("--queues", help="Comma-separated. [default: those of the app's tasks]")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option(
    "--drain", type=float, default=25.0, show_default=True, help="Seconds for running tasks to end."
)
@click.option(
    "--lease", type=click.IntRange(1, 3600), help="Seconds. [default: HOURBELL_LEASE_SECONDS]"
)
@click.option("--name", help="Shown with the executions. [default: host and process]")
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    help="Also plan and reap, as leader or standby. [default: --scheduler]",
)
def worker_command(
    target: str | None,
    queues: str | None,
    concurrency: int,
    drain: float,
    lease: int | None,
    name: str | None,
    scheduler: bool,
) -> None:
    """Run the tasks of an app, such as shop.tasks:app.

    Its database is that of the app, HOURBELL_DATABASE_URL, or that of a running `hourbell up`.
    Without an app, run webhooks, with the settings of HOURBELL_WORKER_…; the options are for apps.
    """
    if target is None:
        _run(Role.WORKER)
        return
    from hourbell.cli.apps import loaded_app, worker_greeting, worker_process
    from hourbell.sdk.running import WorkerOptions

    app = loaded_app(target)
    options = WorkerOptions(
        queues=None if queues is None else tuple(filter(None, queues.split(","))),
        concurrency=concurrency,
        drain_seconds=drain,
        lease_seconds=lease,
        name=name,
        scheduler=scheduler,
    )
    run_process(
        partial(worker_process, app, options), lambda settings, parts: worker_greeting(app, options)
    )


def _run(which: Role) -> None:
    def compose(settings: Settings) -> AbstractAsyncContextManager[Running]:
        return role(settings, which, handlers={})

    run_process(compose, partial(_greeting, which))


def _greeting(which: Role, settings: Settings, parts: Running) -> str:
    where = f"http://{settings.host}:{settings.port}"
    greeting = f"hourbell {which} is up; readiness: {where}/readyz"
    if which is Role.API and not parts.requires_keys:
        greeting += (
            "\nIt listens on this machine only and requires no API key until you create one: "
            "hourbell keys create"
        )
    return greeting
