"""`hourbell migrate`: upgrade the database to this version."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from hourbell.cli.exit_codes import USAGE
from hourbell.cli.output import say
from hourbell.cli.process import NO_DATABASE, database_problem
from hourbell.compose import shared_database
from hourbell.model.errors import ConfigurationError, HourbellError
from hourbell.settings import from_environment
from hourbell.store.migrations import grant_enqueue, migrate


@click.command("migrate")
@click.option(
    "--grant-enqueue-to",
    "role",
    metavar="ROLE",
    help="Also allow this database role to enqueue and cancel jobs in SQL, and nothing else.",
)
def migrate_command(role: str | None) -> None:
    """Upgrade the database of HOURBELL_DATABASE_URL to this version. Safe to repeat."""
    try:
        asyncio.run(_migrate(shared_database(from_environment(os.environ)), role))
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(USAGE)
    say("The database is up to date.")
    if role is not None:
        say(f"Role {role} may call hourbell.enqueue, hourbell.try_enqueue and hourbell.cancel.")


async def _migrate(dsn: str, role: str | None) -> None:
    try:
        await migrate(dsn)
        if role is not None:
            await grant_enqueue(dsn, role)
    except NO_DATABASE as error:
        raise ConfigurationError(database_problem(error)) from error
