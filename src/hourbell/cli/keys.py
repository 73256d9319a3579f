"""`hourbell keys`: create, list and revoke API keys.

Works directly in the database, which needs no API key, or over the API if a server is chosen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import click
import msgspec

from hourbell.cli.exit_codes import REFUSED
from hourbell.cli.output import Column, instant_text, print_json, print_list, say
from hourbell.cli.remote import errors_as_exits, fail, open_client, output_option, profile_option
from hourbell.cli.servers import choose_server
from hourbell.client import Key, MadeKey
from hourbell.model.ids import key_text
from hourbell.security.access import ApiKey, KeyRole

_BY_CLI = "hourbell keys"
_COLUMNS = (
    Column("KEY"),
    Column("ROLE"),
    Column("TENANT"),
    Column("CREATED", optional=True),
    Column("REVOKED", optional=True),
    Column("NAME", shrinks_to=12),
)


@click.group("keys")
def keys_command() -> None:
    """Create, list and revoke API keys.

    Works directly in the database. If a server is chosen, by --profile, HOURBELL_URL or a default
    profile, the command manages the keys of that server, which requires an admin key.
    """


@keys_command.command("create")
@click.option("--role", type=click.Choice([role.value for role in KeyRole]))
@click.option("--name", help="Owner or purpose; shown in the audit trail.")
@click.option("--tenant", help="Restrict the key to this tenant. [all]")
@click.option(
    "--first", is_flag=True, help="Create an admin key, or nothing if there is a key already."
)
@output_option
@profile_option
def create_command(
    role: str | None,
    name: str | None,
    tenant: str | None,
    first: bool,
    output: str,
    profile: str | None,
) -> None:
    """Create an API key and print it on a line of its own. It is shown only once.

    With --first, which is safe to repeat, the command needs no other option and works on the database.
    """
    if first:
        if role is not None or tenant is not None or _is_remote(profile):
            raise click.UsageError(
                "--first creates the key of an administrator of all tenants, directly in the database: "
                "leave out --role, --tenant and --profile."
            )
        _create_in_database(None, name, None, output == "json")
        return
    for option, value in (("--role", role), ("--name", name)):
        if value is None:
            raise click.UsageError(f"Missing option '{option}'.")
    assert role is not None
    assert name is not None
    if not _is_remote(profile):
        _create_in_database(role, name, tenant, output == "json")
    else:
        with open_client(profile) as client:
            made = client.keys.create(name, role, tenant_id=tenant)
        if made.key is None:
            fail(
                f"{made.key_id} was created, but the response with the key was lost. Revoke it and create another.",
                REFUSED,
            )
        _show(made, output == "json")


def _show(made: MadeKey, as_json: bool) -> None:
    say(f"Created {made.key_id}. The key is shown only once:")
    if as_json:
        print_json(made)
    else:
        click.echo(made.key)


@keys_command.command("list")
@output_option
@profile_option
def list_command(output: str, profile: str | None) -> None:
    """List API keys, newest first, without their secrets."""
    if not _is_remote(profile):
        keys = _list_in_database()
    else:
        with open_client(profile) as client:
            keys = list(client.keys.each())
    print_list(output == "json", keys, _COLUMNS, _cells, "There are no API keys.")


@keys_command.command("revoke")
@click.argument("key_id")
@output_option
@profile_option
def revoke_command(key_id: str, output: str, profile: str | None) -> None:
    """Revoke an API key. Running nodes reject it within 5 seconds."""
    if not _is_remote(profile):
        revoked = _revoke_in_database(key_id)
    else:
        with open_client(profile) as client:
            revoked = client.keys.revoke(key_id)
    if output == "json":
        print_json(revoked)
        return
    say(f"Revoked {revoked.key_id}.")
    click.echo(revoked.key_id)


def _is_remote(profile: str | None) -> bool:
    with errors_as_exits():
        server = choose_server(os.environ, profile)
    return server.is_named


def _cells(key: Key) -> Sequence[str]:
    return (
        key.key_id,
        key.role,
        "all" if key.tenant_id is None else key.tenant_id,
        instant_text(key.created_at),
        instant_text(key.revoked_at) or "-",
        key.name,
    )


# The engine is imported only where it is needed: a command that calls a server does not need it.


def _create_in_database(
    role: str | None, name: str | None, tenant: str | None, as_json: bool
) -> None:
    """Without a role: the first key, if there is none."""
    from hourbell.cli.process import run_with_engine
    from hourbell.documents.keys import parse_new_key
    from hourbell.engine.core import Engine
    from hourbell.engine.operations.api_keys import (
        FIRST_KEY,
        KEYLESS_SECONDS,
        create_first_key,
        create_key,
        is_keyless,
    )
    from hourbell.engine.operations.idempotency import Write

    created: list[MadeKey] = []

    async def create(engine: Engine) -> None:
        asked = {"role": role or "admin", "name": name or FIRST_KEY, "tenant_id": tenant}
        new, write = parse_new_key(asked), Write(actor=_BY_CLI)
        is_first = await is_keyless(engine)
        if role is None and not is_first:
            say("There is a key already, so no first one was created.")
            return
        creating = asyncio.create_task(
            create_first_key(engine, new.name, write)
            if role is None
            else create_key(engine, new, write)
        )
        try:
            await asyncio.shield(creating)
        finally:  # Ctrl-C waits for the answer: the key may be committed already
            made = await creating
            shown = msgspec.structs.asdict(_key(made.made))
            created.append(MadeKey(**shown, key=made.key))
        if is_first:
            # From here on all nodes require a key; only then is the new key shown.
            await asyncio.sleep(KEYLESS_SECONDS)

    try:
        run_with_engine(create)
    finally:  # also after Ctrl-C
        for key in created:
            _show(key, as_json)


def _list_in_database() -> list[Key]:
    from hourbell.cli.process import run_with_engine
    from hourbell.engine.core import Engine
    from hourbell.engine.operations.api_keys import list_keys
    from hourbell.engine.views.pages import MAX_PAGE_SIZE

    keys: list[Key] = []

    async def show(engine: Engine) -> None:
        token = None
        while True:
            page = await list_keys(engine, MAX_PAGE_SIZE, token)
            keys.extend(map(_key, page.items))
            token = page.next_token
            if token is None:
                return

    run_with_engine(show)
    return keys


def _revoke_in_database(key_id: str) -> Key:
    from hourbell.cli.process import run_with_engine
    from hourbell.engine.core import Engine
    from hourbell.engine.operations.api_keys import revoke_key
    from hourbell.engine.operations.idempotency import Write
    from hourbell.model.ids import parse_key_id

    revoked: list[Key] = []

    async def revoke(engine: Engine) -> None:
        key = await revoke_key(engine, parse_key_id(key_id), Write(actor=_BY_CLI))
        revoked.append(_key(key))

    run_with_engine(revoke)
    return revoked[0]


def _key(key: ApiKey) -> Key:
    """The key as the API renders it."""
    return Key(
        key_id=key_text(key.key_id),
        name=key.name,
        role=key.role.value,
        tenant_id=key.tenant_id,
        created_at=key.created_at,
        revoked_at=key.revoked_at,
    )
