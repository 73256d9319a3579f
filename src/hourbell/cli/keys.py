"""`hourbell keys`: create, list and revoke API keys directly in the database. Needs no API key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import msgspec

from hourbell.cli.process import run_with_engine
from hourbell.documents.keys import parse_new_key
from hourbell.engine.core import Engine
from hourbell.engine.operations.api_keys import (
    KEYLESS_SECONDS,
    create_key,
    is_keyless,
    list_keys,
    render_key,
    revoke_key,
)
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.pages import MAX_PAGE_SIZE
from hourbell.model.ids import key_text, parse_key_id
from hourbell.model.instants import format_instant
from hourbell.security.access import ApiKey, KeyRole

_BY_CLI = Write(actor="hourbell keys")


@click.group("keys")
def keys_command() -> None:
    """Create, list and revoke API keys."""


@keys_command.command("create")
@click.option("--role", type=click.Choice([role.value for role in KeyRole]), required=True)
@click.option("--name", required=True, help="Its owner or purpose; shown in the audit trail.")
@click.option("--tenant", help="Restrict the key to this tenant. [all]")
def create_command(role: str, name: str, tenant: str | None) -> None:
    """Create an API key and print it, alone on its line. It is shown only once."""
    document = {"role": role, "name": name, "tenant_id": tenant}

    async def create(engine: Engine) -> None:
        new = parse_new_key(document)
        is_first = await is_keyless(engine)
        made = await create_key(engine, new, _BY_CLI)
        if is_first:
            # After this, all nodes require a key, before the new one is shown.
            await asyncio.sleep(KEYLESS_SECONDS)
        click.echo(f"Created {key_text(made.made.key_id)}. The key is shown only once:", err=True)
        click.echo(made.key)

    run_with_engine(create)


@keys_command.command("list")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def list_command(output: str) -> None:
    """List API keys, newest first, without their secrets."""

    async def show(engine: Engine) -> None:
        keys: list[ApiKey] = []
        token = None
        while True:
            page = await list_keys(engine, MAX_PAGE_SIZE, token)
            keys += page.items
            token = page.next_token
            if token is None:
                break
        click.echo(_json(keys) if output == "json" else _table(keys))

    run_with_engine(show)


def _json(keys: Sequence[ApiKey]) -> str:
    rows = [render_key(key) for key in keys]
    return msgspec.json.format(msgspec.json.encode(rows), indent=2).decode()


def _table(keys: Sequence[ApiKey]) -> str:
    rows = [("KEY", "ROLE", "TENANT", "CREATED", "REVOKED", "NAME"), *map(_cells, keys)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cells(key: ApiKey) -> tuple[str, ...]:
    return (
        key_text(key.key_id),
        key.role.value,
        "all" if key.tenant_id is None else key.tenant_id,
        format_instant(key.created_at),
        "-" if key.revoked_at is None else format_instant(key.revoked_at),
        key.name,
    )


@keys_command.command("revoke")
@click.argument("key_id")
def revoke_command(key_id: str) -> None:
    """Revoke an API key. Running nodes reject it within 5 seconds."""

    async def revoke(engine: Engine) -> None:
        await revoke_key(engine, parse_key_id(key_id), _BY_CLI)
        click.echo(f"{key_id} is revoked.")

    run_with_engine(revoke)
