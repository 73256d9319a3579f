"""`hourbell migrate`: upgrade the database to this version."""

from __future__ import annotations

import asyncio
import os

import asyncpg
import click

from hourbell.cli.output import say
from hourbell.cli.process import NO_DATABASE, database_problem
from hourbell.cli.remote import errors_as_exits
from hourbell.compose import shared_database
from hourbell.model.errors import ConfigurationError
from hourbell.settings import Settings, from_environment
from hourbell.store.database import connect_once, translate_errors
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
    with errors_as_exits():
        asyncio.run(_migrate(from_environment(os.environ), role))
    say("The database is up to date.")
    if role is not None:
        say(f"Role {role} may call hourbell.enqueue, hourbell.try_enqueue and hourbell.cancel.")


async def _migrate(settings: Settings, role: str | None) -> None:
    dsn = shared_database(settings)
    try:
        with translate_errors():
            # Before any write: a database that cannot be opened is not one that was lost.
            await (await connect_once(dsn)).close()
    except NO_DATABASE as error:
        raise ConfigurationError(database_problem(error, settings)) from error
    try:
        with translate_errors():
            await migrate(dsn)
            if role is not None:
                await grant_enqueue(dsn, role)
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(database_problem(error, settings)) from error
