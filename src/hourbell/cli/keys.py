"""`hourbell keys`: API keys, made and revoked at the database itself. Whoever can reach that needs no key."""

from __future__ import annotations

import click

from hourbell.cli.process import at_database
from hourbell.engine.core import Engine
from hourbell.engine.keys import NewKey, create_key, list_keys, parse_new_key, revoke_key
from hourbell.engine.pages import MOST_PER_PAGE
from hourbell.engine.writes import Write
from hourbell.model.access import KeyRole
from hourbell.model.ids import key_text, parse_key_id
from hourbell.model.instants import format_instant

_BY_CLI = Write(actor="hourbell keys")


@click.group("keys")
def keys_command() -> None:
    """Make, list and revoke the keys of the API."""


@keys_command.command("create")
@click.option("--role", type=click.Choice([role.value for role in KeyRole]), required=True)
@click.option("--name", required=True, help="What it is for, or whose; shown in the audit trail.")
@click.option("--tenant", help="The one tenant that it is for. [all]")
def create_command(role: str, name: str, tenant: str | None) -> None:
    """Make a key and print it: this once, and alone on its line."""
    document = {"role": role, "name": name, "tenant_id": tenant}

    async def create(engine: Engine) -> None:
        new: NewKey = parse_new_key(document)
        made = await create_key(engine, new, _BY_CLI)
        click.echo(f"{key_text(made.made.key_id)} is made; it is shown only now:", err=True)
        click.echo(made.key)

    at_database(create)


@keys_command.command("list")
def list_command() -> None:
    """Show the keys, newest first, without what opens doors."""

    async def show(engine: Engine) -> None:
        token = None
        while True:
            page = await list_keys(engine, MOST_PER_PAGE, token)
            for key in page.items:
                until = (
                    "" if key.revoked_at is None else f"  revoked {format_instant(key.revoked_at)}"
                )
                whose = key.tenant_id or "all tenants"
                click.echo(f"{key_text(key.key_id)}  {key.role:8}  {whose}  {key.name}{until}")
            token = page.next_token
            if token is None:
                return

    at_database(show)


@keys_command.command("revoke")
@click.argument("key_id")
def revoke_command(key_id: str) -> None:
    """Let a key open nothing any more; nodes that run notice within 5 seconds."""

    async def revoke(engine: Engine) -> None:
        await revoke_key(engine, parse_key_id(key_id), _BY_CLI)
        click.echo(f"{key_id} is revoked.")

    at_database(revoke)
