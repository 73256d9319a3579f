"""`hourbell monitors`: a call when a job does not succeed in time, over the API."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hourbell.cli.output import Column, instant_text, print_json, print_list, say
from hourbell.cli.remote import Session, confirm, job_id_of, limit_options, limited, remote
from hourbell.client import Monitor

_COLUMNS = (
    Column("MONITOR"),
    Column("JOB", shrinks_to=12),
    Column("STATUS"),
    Column("EXPECTED"),
    Column("LAST SUCCESS", optional=True),
    Column("GRACE", right=True, optional=True),
    Column("SENDS TO", shrinks_to=12, optional=True),
)


@click.group("monitors")
def monitors_command() -> None:
    """Create, list and delete monitors: a call when a job does not succeed in time."""


@monitors_command.command("create")
@click.argument("job")
@click.option("--url", required=True, help="URL to call.")
@click.option("--grace", type=int, required=True, help="Seconds after the expected run.")
@remote
def create_command(session: Session, job: str, url: str, grace: int) -> None:
    """Call a URL when a recurring job, by its id or name, does not succeed in time."""
    job_id = job_id_of(session.client, job)
    _print_changed(session, session.client.monitors.create(job_id, url, grace_seconds=grace))


@monitors_command.command("list")
@limit_options
@remote
def list_command(session: Session, limit: int, everything: bool) -> None:
    """List monitors, newest first."""
    found = limited(session.client.monitors.each(), limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "There are no monitors.")


def _cells(monitor: Monitor) -> Sequence[str]:
    return (
        monitor.monitor_id,
        monitor.job_name or monitor.job_id,
        monitor.status,
        instant_text(monitor.expected_at) or "-",
        instant_text(monitor.last_success_at) or "-",
        f"{monitor.grace_seconds} s",
        monitor.url,
    )


@monitors_command.command("delete")
@click.argument("monitor_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@remote
def delete_command(session: Session, monitor_id: str, yes: bool) -> None:
    """Delete a monitor."""
    confirm(f"Delete the monitor {monitor_id}?", yes)
    deleted = session.client.monitors.delete(monitor_id)
    say(f"The job {deleted.job_name or deleted.job_id} is no longer monitored by it.")
    _print_changed(session, deleted)


def _print_changed(session: Session, monitor: Monitor) -> None:
    if session.as_json:
        print_json(monitor)
    else:
        click.echo(monitor.monitor_id)
