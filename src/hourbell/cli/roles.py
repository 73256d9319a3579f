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
def worker_command() -> None:
    """Run executions, using the database of HOURBELL_DATABASE_URL."""
    _run(Role.WORKER)


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
