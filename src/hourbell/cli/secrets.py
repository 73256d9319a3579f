"""`hourbell secrets`: manage secrets over the API, and their encryption keys in the database."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from hourbell.cli.exit_codes import USAGE
from hourbell.cli.output import Column, instant_text, print_json, print_list, say
from hourbell.cli.remote import Session, confirm, fail, limit_options, limited, remote
from hourbell.client import Secret

_COLUMNS = (Column("SECRET"), Column("TENANT"), Column("SET"), Column("PREVIOUS UNTIL"))
MAX_VALUE_CHARACTERS = 10_000  # more than the API accepts


@click.group("secrets")
def secrets_command() -> None:
    """Set, list and delete secrets; manage the keys that encrypt them."""


@secrets_command.command("set")
@click.argument("name")
@click.option("--tenant", help="Tenant of the secret.")
@click.option("--generate", is_flag=True, help="Generate a signing secret and print it.")
@click.option(
    "--keep-previous", type=int, help="Keep signing with the previous value for this many seconds."
)
@remote
def set_command(
    session: Session, name: str, tenant: str | None, generate: bool, keep_previous: int | None
) -> None:
    """Set a secret. Its value is read from stdin, never from the command line."""
    value = None if generate else _read_value(name)
    stored = session.client.secrets.set(
        name, value, tenant_id=tenant, keep_previous_seconds=keep_previous
    )
    if session.as_json:
        print_json(stored)
        return
    say(
        f"Set {stored.name} of tenant {stored.tenant_id}. Webhooks use it from "
        f"{instant_text(stored.effective_at)} on."
    )
    if stored.value is not None:
        say("Its value is shown only once:")
        click.echo(stored.value)
    elif generate:
        say("The response with its value was lost. Set the secret again.")


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
        return value
    value = sys.stdin.read(MAX_VALUE_CHARACTERS).removesuffix("\n")
    if not value:
        fail("Standard input is empty. Pipe the value of the secret into it.", USAGE)
    return value


@secrets_command.command("list")
@click.option("--tenant", help="Tenant of the secrets.")
@limit_options
@remote
def list_command(session: Session, tenant: str | None, limit: int, everything: bool) -> None:
    """List secrets, without their values."""
    found = limited(session.client.secrets.each(tenant_id=tenant), limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "There are no secrets.")


def _cells(secret: Secret) -> Sequence[str]:
    return (
        secret.name,
        secret.tenant_id,
        instant_text(secret.updated_at),
        instant_text(secret.previous_until) or "-",
    )


@secrets_command.command("delete")
@click.argument("name")
@click.option("--tenant", help="Tenant of the secret.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_command(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Delete a secret. Runs that need it will fail."""
    confirm(f"Delete the secret {name}?", yes)
    deleted = session.client.secrets.delete(name, tenant_id=tenant)
    if session.as_json:
        print_json(deleted)
    else:
        say(f"Deleted {deleted.name} of tenant {deleted.tenant_id}.")


@secrets_command.command("new-key")
def new_key_command() -> None:
    """Print a new key for HOURBELL_SECRET_KEYS."""
    from hourbell.security.sealing import KeyRing

    click.echo(KeyRing.generate())


@secrets_command.command("rotate")
def rotate_command() -> None:
    """Re-encrypt all secrets with the first key of HOURBELL_SECRET_KEYS.

    Works directly on the database. The other keys can be removed afterwards.
    """
    # Imported here, because the other commands need no database.
    from hourbell.cli.process import run_with_engine
    from hourbell.compose import key_ring_of
    from hourbell.engine.core import Engine
    from hourbell.engine.operations.secrets import reseal
    from hourbell.settings import from_environment

    async def rotate(engine: Engine) -> None:
        ring = key_ring_of(from_environment(os.environ))
        count = await reseal(engine, ring)
        say(f"Re-encrypted {count} secrets; all now use the key {ring.sealing_key}.")

    run_with_engine(rotate)
