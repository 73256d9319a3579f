"""`hourbell calendars`: named lists of dates that schedules exclude."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import date

import click

from hourbell.cli.output import Column, counted, instant_text, print_json, print_list, say
from hourbell.cli.remote import Session, confirm, limit_options, limited, remote
from hourbell.client import Calendar

_COLUMNS = (
    Column("CALENDAR"),
    Column("TENANT"),
    Column("DATES", right=True),
    Column("FIRST", optional=True),
    Column("LAST", optional=True),
    Column("CHANGED", optional=True),
)

_of_tenant = click.option("--tenant", help="Tenant of the calendar.")


@click.group("calendars")
def calendars_command() -> None:
    """Set, list, show and delete calendars: named lists of dates that schedules exclude."""


@calendars_command.command("set")
@click.argument("name")
@click.argument("dates", nargs=-1, required=True)
@_of_tenant
@remote
def set_command(session: Session, name: str, dates: tuple[str, ...], tenant: str | None) -> None:
    """Create a calendar, or replace its dates, such as 2027-12-25; - reads them from stdin."""
    texts = sys.stdin.read().split() if dates == ("-",) else dates
    stored = session.client.calendars.set(name, [_date(text) for text in texts], tenant_id=tenant)
    if session.as_json:
        print_json(stored)
    else:
        say(f"{stored.name} of tenant {stored.tenant_id} has {counted(len(stored.dates), 'date')}.")


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a date such as 2027-12-25.") from None


@calendars_command.command("list")
@_of_tenant
@limit_options
@remote
def list_command(session: Session, tenant: str | None, limit: int, everything: bool) -> None:
    """List the calendars of a tenant by name."""
    found = limited(session.client.calendars.each(tenant_id=tenant), limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "There are no calendars.")


def _cells(calendar: Calendar) -> Sequence[str]:
    return (
        calendar.name,
        calendar.tenant_id,
        f"{len(calendar.dates):,}",
        str(min(calendar.dates, default="")),
        str(max(calendar.dates, default="")),
        instant_text(calendar.updated_at),
    )


@calendars_command.command("get")
@click.argument("name")
@_of_tenant
@remote
def get_command(session: Session, name: str, tenant: str | None) -> None:
    """Print the dates of a calendar, one per line, as `set NAME -` reads them."""
    found = session.client.calendars.get(name, tenant_id=tenant)
    if session.as_json:
        print_json(found)
    else:
        for each in found.dates:
            click.echo(str(each))


@calendars_command.command("delete")
@click.argument("name")
@_of_tenant
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete_command(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Delete a calendar. Schedules that exclude it skip nothing for it from then on."""
    confirm(f"Delete the calendar {name}?", yes)
    deleted = session.client.calendars.delete(name, tenant_id=tenant)
    if session.as_json:
        print_json(deleted)
    else:
        say(f"Deleted {deleted.name} of tenant {deleted.tenant_id}.")
