"""`hourbell groups`: one callback when many executions have ended, over the API."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from hourbell.cli.exit_codes import USAGE
from hourbell.cli.output import (
    Column,
    counted,
    instant_text,
    print_fields,
    print_json,
    print_list,
    say,
)
from hourbell.cli.remote import Session, fail, limit_options, limited, remote
from hourbell.client import Group


@click.group("groups")
def groups_command() -> None:
    """Manage groups: one callback when many executions have ended."""


_COLUMNS = (
    Column("GROUP"),
    Column("NAME", shrinks_to=12),
    Column("STATE"),
    Column("MEMBERS", right=True),
    Column("ENDED", right=True),
    Column("CREATED", optional=True),
    Column("TENANT", shrinks_to=8, optional=True),
)


@groups_command.command("list")
@click.option("--tenant")
@click.option("--state", type=click.Choice(["OPEN", "CLOSED", "ENDED"], case_sensitive=False))
@limit_options
@remote
def list_command(
    session: Session, tenant: str | None, state: str | None, limit: int, everything: bool
) -> None:
    """List groups, newest first."""
    groups = session.client.groups.each(tenant_id=tenant, state=state)
    found = limited(groups, limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "No groups found.")


def _cells(group: Group) -> Sequence[str]:
    closed = "OPEN" if group.closed_at is None else "CLOSED"
    return (
        group.group_id,
        group.name,
        closed if group.ended_at is None else "ENDED",
        f"{group.members:,}",
        f"{sum(group.ended.values()):,}",
        instant_text(group.created_at) or "-",
        group.tenant_id,
    )


@groups_command.command("create")
@click.argument("name")
@click.option("--url", required=True, help="URL to send the callback to.")
@click.option("--tenant", help="Tenant of the group and its members.")
@remote
def create_command(session: Session, name: str, url: str, tenant: str | None) -> None:
    """Create an open group with no members."""
    group = session.client.groups.create(name, url, tenant_id=tenant)
    say(f"Created group {group.name}. Add its members, then close it.")
    _print_changed(session, group)


@groups_command.command("add")
@click.argument("group_id")
@click.argument("ids", nargs=-1)
@remote
def add_command(session: Session, group_id: str, ids: Sequence[str]) -> None:
    """Add one-time jobs (job_…) or executions (exe_…) to an open group; - reads ids from stdin."""
    given = [*ids]
    if given == ["-"]:
        given = sys.stdin.read().split()
    wrong = [one for one in given if not one.startswith(("job_", "exe_"))]
    if wrong or not given:
        what = f"{wrong[0]} is neither." if wrong else "None was given."
        fail(f"Give the members as job ids (job_…) or execution ids (exe_…). {what}", USAGE)
    group = session.client.groups.add(
        group_id,
        job_ids=[one for one in given if one.startswith("job_")],
        execution_ids=[one for one in given if one.startswith("exe_")],
    )
    say(f"Group {group.name} has {counted(group.members, 'member')}.")
    _print_changed(session, group)


@groups_command.command("close")
@click.argument("group_id")
@remote
def close_command(session: Session, group_id: str) -> None:
    """Close a group: its callback is sent when all members have ended."""
    group = session.client.groups.close(group_id)
    say(f"Closed group {group.name} with {counted(group.members, 'member')}.")
    _print_changed(session, group)


@groups_command.command("get")
@click.argument("group_id")
@remote
def get_command(session: Session, group_id: str) -> None:
    """Show a group, and how many of its members are known to have ended."""
    group = session.client.groups.get(group_id)
    if session.as_json:
        print_json(group)
        return
    ended = sum(group.ended.values())
    fates = ", ".join(f"{count} {fate}" for fate, count in group.ended.items() if count)
    print_fields(
        (
            ("id", group.group_id),
            ("name", group.name),
            ("tenant", group.tenant_id),
            ("callback", group.url or f"task {group.task}"),
            ("members", f"{group.members}; {ended} ended" + (f": {fates}" if fates else "")),
            ("created", instant_text(group.created_at)),
            ("closed", instant_text(group.closed_at) or "no: more members can be added"),
            ("ended", instant_text(group.ended_at)),
            ("callback execution", group.execution_id),
            ("problem", group.problem),
        )
    )


def _print_changed(session: Session, group: Group) -> None:
    if session.as_json:
        print_json(group)
    else:
        click.echo(group.group_id)
