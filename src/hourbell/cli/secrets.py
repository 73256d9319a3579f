"""`hourbell secrets`: manage the keys that encrypt secrets."""

from __future__ import annotations

import os

import click

from hourbell.cli.process import run_with_engine
from hourbell.compose import key_ring_of
from hourbell.engine.core import Engine
from hourbell.engine.operations.secrets import reseal
from hourbell.security.sealing import KeyRing
from hourbell.settings import from_environment


@click.group("secrets")
def secrets_command() -> None:
    """Manage the keys that encrypt secrets."""


@secrets_command.command("new-key")
def new_key_command() -> None:
    """Print a new key for HOURBELL_SECRET_KEYS."""
    click.echo(KeyRing.generate())


@secrets_command.command("rotate")
def rotate_command() -> None:
    """Re-encrypt all secrets with the first key of HOURBELL_SECRET_KEYS.

    Afterwards the other keys can be removed.
    """

    async def rotate(engine: Engine) -> None:
        ring = key_ring_of(from_environment(os.environ))
        count = await reseal(engine, ring)
        click.echo(f"{count} secrets were re-encrypted; all now use the key {ring.sealing_key}.")

    run_with_engine(rotate)
