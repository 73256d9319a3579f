"""`hourbell api`, `hourbell scheduler`, `hourbell worker`: one role in this process, on a database that others share."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import click

from hourbell.cli.process import run_process
from hourbell.compose import Role, Running, role
from hourbell.settings import Settings


@click.command("api")
def api_command() -> None:
    """Serve the API, on the database of HOURBELL_DATABASE_URL."""
    _run(Role.API)


@click.command("scheduler")
def scheduler_command() -> None:
    """Plan and keep house, or stand by; on the database of HOURBELL_DATABASE_URL."""
    _run(Role.SCHEDULER)


@click.command("worker")
def worker_command() -> None:
    """Run executions, on the database of HOURBELL_DATABASE_URL."""
    _run(Role.WORKER)


def _run(which: Role) -> None:
    def compose(settings: Settings) -> AbstractAsyncContextManager[Running]:
        return role(settings, which, handlers={})

    run_process(compose, partial(_greeting, which))


def _greeting(which: Role, settings: Settings, parts: Running) -> str:
    where = f"http://{settings.host}:{settings.port}"
    said = f"hourbell {which} is up; whether it is ready: {where}/readyz"
    if which is Role.API and not parts.asks_for_keys:
        said += "\nIt listens on this machine only, and asks for no key until there is one: hourbell keys create"
    return said
