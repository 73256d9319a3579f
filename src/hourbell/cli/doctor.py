"""`hourbell doctor`: check a cell, directly in its database. Changes nothing."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Sequence

import asyncpg
import click

from hourbell.cli.exit_codes import REFUSED
from hourbell.cli.output import (
    counted,
    paint,
    plain,
    print_json,
    say,
    terminal_width,
    uses_color,
)
from hourbell.cli.process import NO_DATABASE, database_problem
from hourbell.compose import open_engine
from hourbell.engine.views.diagnosis import Finding, Level, examine, findings
from hourbell.model.errors import HourbellError, IncompatibleDatabase, UnreleasedDatabase
from hourbell.settings import Settings, from_environment
from hourbell.store.clock import DatabaseClock
from hourbell.store.embedded import embedded_dsn
from hourbell.store.migrations import is_migrated

_CLOCK_TRIES = 3  # a round trip may be slow by chance
_SIGNS = {Level.OK: "ok", Level.WARNING: "warn", Level.FAILURE: "FAIL"}
_NOT_RUNNING = (
    "Start it with `hourbell up`, or set HOURBELL_DATABASE_URL to examine another database."
)


@click.command("doctor")
@click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor_command(output: str) -> None:
    """Check the database, clock, time zones, schema, leader and workers, and find what is stuck.

    Works on the database of HOURBELL_DATABASE_URL, or that of the local `hourbell up`. The exit
    code is 1 if a check fails.
    """
    found = asyncio.run(_examine())
    if output == "json":
        print_json(found)
    else:
        _print(found)
    failed = sum(one.level is Level.FAILURE for one in found)
    warned = sum(one.level is Level.WARNING for one in found)
    say(
        f"{counted(len(found), 'check')}, {counted(warned, 'warning')}, {counted(failed, 'failure')}."
    )
    if failed:
        raise SystemExit(REFUSED)


async def _examine() -> Sequence[Finding]:
    try:
        settings = from_environment(os.environ)
    except HourbellError as error:
        return [Finding("settings", Level.FAILURE, error.message, "Fix these variables.")]
    found = [Finding("settings", Level.OK, "valid")]
    dsn = settings.database_url or embedded_dsn(settings.data_dir)
    try:
        return [*found, *await _examine_database(dsn, settings)]
    except NO_DATABASE as error:
        if settings.database_url is None:
            what = f"the PostgreSQL server of {settings.data_dir} is not running"
            found.append(Finding("database", Level.FAILURE, what, _NOT_RUNNING))
        else:
            what, _, advice = database_problem(error, settings).partition(". ")
            found.append(Finding("database", Level.FAILURE, what, advice))
    except HourbellError as error:
        of_schema = isinstance(error, IncompatibleDatabase | UnreleasedDatabase)
        what, _, advice = error.message.partition(". ")
        found.append(Finding("schema" if of_schema else "database", Level.FAILURE, what, advice))
    except (TimeoutError, asyncpg.PostgresError) as error:
        what = f"the database cannot be checked: {error or type(error).__name__}"
        found.append(Finding("database", Level.FAILURE, what, "See the PostgreSQL log."))
    return found


async def _examine_database(dsn: str, settings: Settings) -> Sequence[Finding]:
    if not await is_migrated(dsn):
        what = "the database lacks tables or functions of this version"
        return [Finding("schema", Level.FAILURE, what, "Run `hourbell migrate` with this version.")]
    async with open_engine(dsn, settings, "hourbell doctor") as engine:
        drift = await _drift_seconds(DatabaseClock(engine.database))
        state = await examine(engine, drift)
    return [Finding("schema", Level.OK, "all migrations are applied"), *findings(state)]


async def _drift_seconds(clock: DatabaseClock) -> float | None:
    """How far the clock of this machine is ahead; None if every round trip was too slow to tell."""
    for _ in range(_CLOCK_TRIES):
        drift = await clock.drift_seconds()
        if drift is not None:
            return drift
    return None


def _print(found: Sequence[Finding]) -> None:
    width = max(len(one.check) for one in found)
    for one in found:
        sign = paint(f"{_SIGNS[one.level]:4}", one.level.value, uses_color())
        indent = width + 8
        what, *rest = _wrapped(plain(one.what), indent)
        click.echo(f"{sign}  {one.check:{width}}  {what}")
        if one.advice:
            rest += _wrapped(f"→ {plain(one.advice)}", indent)
        for line in rest:
            click.echo(f"{'':{indent}}{line}")


def _wrapped(text: str, indent: int) -> Sequence[str]:
    """The lines of a text next to an indent; a single line unless stdout is a terminal."""
    if not sys.stdout.isatty():
        return [text]
    return textwrap.wrap(text, max(terminal_width() - indent, 30))
