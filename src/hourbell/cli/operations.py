"""`hourbell operations`: follow and stop bulk operations, over the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from hourbell.cli.output import (
    Column,
    instant_text,
    print_fields,
    print_json,
    print_list,
    say,
)
from hourbell.cli.remote import Session, limit_options, limited, remote
from hourbell.client import Operation

_COLUMNS = (
    Column("OPERATION"),
    Column("ACT"),
    Column("STATE"),
    Column("DONE", right=True),
    Column("OF", right=True),
    Column("LEFT", right=True),
    Column("FILTER", shrinks_to=16),
    Column("REASON", shrinks_to=12, optional=True),
    Column("CREATED", optional=True),
    Column("BY", shrinks_to=8, optional=True),
)


@click.group("operations")
def operations_command() -> None:
    """Follow and stop bulk operations: pause, resume, replay and purge by a filter."""


@operations_command.command("list")
@click.option("--tenant", help="Only operations on this tenant alone.")
@limit_options
@remote
def list_command(session: Session, tenant: str | None, limit: int, everything: bool) -> None:
    """List bulk operations, newest first."""
    found = limited(session.client.operations.each(tenant_id=tenant), limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "No operations found.")


def _cells(operation: Operation) -> Sequence[str]:
    return (
        operation.operation_id,
        operation.act,
        operation.state,
        f"{operation.done:,}",
        _total_text(operation),
        f"{operation.left:,}",
        _filter_text(operation.filter),
        operation.reason or "",
        instant_text(operation.created_at),
        operation.created_by,
    )


def _total_text(operation: Operation) -> str:
    return f"{operation.total:,}{'+' if operation.total_at_least else ''}"


def _filter_text(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in chosen.items()) or "all"


@operations_command.command("get")
@click.argument("operation_id")
@remote
def get_command(session: Session, operation_id: str) -> None:
    """Show a bulk operation and its progress."""
    _print_operation(session, session.client.operations.get(operation_id))


@operations_command.command("stop")
@click.argument("operation_id")
@remote
def stop_command(session: Session, operation_id: str) -> None:
    """Stop a bulk operation after its current batch; finished batches are not undone."""
    operation = session.client.operations.stop(operation_id)
    if operation.state != "STOPPED":
        say(f"The operation had already ended: {operation.state}.")
    _print_operation(session, operation)


def _print_operation(session: Session, operation: Operation) -> None:
    if session.as_json:
        print_json(operation)
        return
    rate = operation.rate_per_second
    print_fields(
        (
            ("Operation", operation.operation_id),
            ("Act", operation.act),
            ("Filter", _filter_text(operation.filter)),
            ("Tenant", operation.tenant_id or "all"),
            ("State", operation.state),
            ("Done", f"{operation.done:,} of {_total_text(operation)}"),
            (
                "Left",
                ", ".join(f"{each.count:,} {each.code}" for each in operation.left_reasons),
            ),
            ("Error", operation.error),
            ("Reason", operation.reason),
            ("Until", instant_text(operation.until)),
            ("Rate", None if rate is None else f"{rate} per second"),
            ("Created", f"{instant_text(operation.created_at)} by {operation.created_by}"),
            ("Ended", instant_text(operation.ended_at)),
        )
    )


def start_operation(
    session: Session,
    act: str,
    chosen: Mapping[str, Any],
    *,
    reason: str | None = None,
    until: datetime | None = None,
    rate: int | None = None,
) -> None:
    """Start a bulk operation on the server, and print its id."""
    given = {name: value for name, value in chosen.items() if value is not None}
    operation = session.client.operations.create(
        act, given, reason=reason, until=until, rate_per_second=rate
    )
    if session.as_json:
        print_json(operation)
        return
    say(f"Started. Follow it with `hourbell operations get {operation.operation_id}`.")
    click.echo(operation.operation_id)
