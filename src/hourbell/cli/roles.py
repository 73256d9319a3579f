"""`hourbell api`, `hourbell scheduler`, `hourbell worker`: one role, on a shared database."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hourbell.cli.exit_codes import USAGE
from hourbell.cli.params import queue_names
from hourbell.cli.process import run_process
from hourbell.compose import Role, Running, role
from hourbell.model.errors import HourbellError
from hourbell.observe.logs import configure_logs
from hourbell.settings import Settings, from_environment

if TYPE_CHECKING:
    from hourbell.sdk.running import WorkerOptions


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
    "--drain",
    type=click.FloatRange(0, 86_400),
    default=25.0,
    show_default=True,
    help="Seconds to let running tasks finish on shutdown.",
)
@click.option(
    "--lease",
    type=click.IntRange(1, 3600),
    help="Lease in seconds. [default: HOURBELL_LEASE_SECONDS]",
)
@click.option("--name", help="Name shown with executions. [default: host and process]")
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    help="Also plan and reap, as leader or standby. [default: --scheduler]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes; each has its own session and --concurrency.",
)
@click.option(
    "--pool-size",
    type=click.IntRange(1, 256),
    help="Processes for tasks with process=True. [default: one per core]",
)
@click.option("--health", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics.")
@click.option("--reload", is_flag=True, help="Restart when a Python file in this folder changes.")
@click.option("--control", type=int, hidden=True)
def worker_command(
    target: str | None,
    queues: str | None,
    concurrency: int,
    drain: float,
    lease: int | None,
    name: str | None,
    scheduler: bool,
    processes: int,
    pool_size: int | None,
    health: str | None,
    reload: bool,
    control: int | None,
) -> None:
    """Run the tasks of an app, such as shop.tasks:app.

    The database is the app's, HOURBELL_DATABASE_URL, or that of a running `hourbell up`.
    Without an app, runs webhooks with the HOURBELL_WORKER_… settings; the options are for apps only.
    """
    if target is None:
        _run(Role.WORKER)
        return
    from hourbell.sdk.running import WorkerOptions

    options = WorkerOptions(
        queues=None if queues is None else _names(queues),
        concurrency=concurrency,
        drain_seconds=drain,
        lease_seconds=lease,
        name=name,
        scheduler=scheduler,
        pool_size=pool_size,
        health=None if health is None else _address(health),
    )
    if reload and processes > 1:
        raise click.UsageError("--reload runs a single process: leave out --processes.")
    if reload or processes > 1:
        _supervise(target, options, processes, reload)
    from hourbell.cli.apps import loaded_app, worker_greeting, worker_process

    app = loaded_app(target)
    run_process(
        partial(worker_process, app, options),
        lambda settings, parts: worker_greeting(app, options),
        control,
    )


def _names(queues: str) -> tuple[str, ...]:
    try:
        return queue_names(queues)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--queues") from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter("use HOST:PORT, such as 127.0.0.1:9090", param_hint="--health")
    return host.strip("[]"), int(port)


def _supervise(target: str, options: WorkerOptions, processes: int, reload: bool) -> NoReturn:
    """Start workers with these options and keep them running; does not return."""
    from hourbell.cli.supervisor import Reloader, Supervisor

    try:
        configure_logs(from_environment(os.environ).log_level)
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(USAGE)
    commands = [_command(target, options, place, processes) for place in range(processes)]
    drain = options.drain_seconds
    if reload:
        sys.exit(Reloader(commands[0], Path.cwd(), drain).run())
    sys.exit(Supervisor(commands, drain).run())


def _command(target: str, options: WorkerOptions, place: int, processes: int) -> list[str]:
    """The command line of one worker: it has its own name and port, and a share of the cores."""
    pool_size = options.pool_size or max((os.cpu_count() or 1) // processes, 1)
    given: dict[str, object] = {
        "--queues": None if options.queues is None else ",".join(options.queues),
        "--concurrency": options.concurrency,
        "--drain": options.drain_seconds,
        "--lease": options.lease_seconds,
        "--name": None if options.name is None else _own_name(options.name, place, processes),
        "--pool-size": pool_size,
    }
    if options.health is not None:
        host, port = options.health
        given["--health"] = f"{host}:{port + place}"
    words = [[name, str(value)] for name, value in given.items() if value is not None]
    return [
        *(sys.executable, "-m", "hourbell", "worker", target),
        *(word for pair in words for word in pair),
        "--scheduler" if options.scheduler else "--no-scheduler",
    ]


def _own_name(name: str, place: int, processes: int) -> str:
    return name if processes == 1 else f"{name}-{place + 1}"


def _run(which: Role) -> None:
    def compose(settings: Settings) -> AbstractAsyncContextManager[Running]:
        return role(settings, which)

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
