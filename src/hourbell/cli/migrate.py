"""`hourbell migrate`: upgrade the database to this version."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from hourbell.cli.process import NO_DATABASE, database_problem
from hourbell.compose import shared_database
from hourbell.model.errors import ConfigurationError, HourbellError
from hourbell.settings import from_environment
from hourbell.store.migrations import migrate


@click.command("migrate")
def migrate_command() -> None:
    """Upgrade the database of HOURBELL_DATABASE_URL to this version. Safe to repeat."""
    try:
        asyncio.run(_migrate(shared_database(from_environment(os.environ))))
    except HourbellError as error:
        click.echo(f"hourbell: {error.message}", err=True)
        sys.exit(2)
    click.echo("The database is up to date.")


async def _migrate(dsn: str) -> None:
    try:
        await migrate(dsn)
    except NO_DATABASE as error:
        raise ConfigurationError(database_problem(error)) from error
