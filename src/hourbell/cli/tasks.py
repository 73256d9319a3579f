"""`hourbell tasks`: how the runs of each task and host went, and what waits, over the API."""

from __future__ import annotations

from collections.abc import Sequence

import click

from hourbell.cli.output import Column, milliseconds_text, print_json, print_list, say
from hourbell.cli.remote import Session, remote
from hourbell.client.values import TaskFigures

_COLUMNS = (
    Column("TASK", shrinks_to=16),
    Column("RUNS", right=True),
    Column("FAILURES", right=True),
    Column("P50", right=True, optional=True),
    Column("P95", right=True),
    Column("MAX", right=True, optional=True),
    Column("WAITING", right=True),
    Column("WORKERS", right=True),
    Column("LAST ERROR", shrinks_to=16, optional=True),
)
_ORDERS = ("runs", "failures", "p50", "p95", "max", "waiting", "workers", "name")


@click.group("tasks")
def tasks_command() -> None:
    """List tasks and hosts of webhooks with their runs and what waits."""


@tasks_command.command("list")
@click.option("--window", type=click.Choice(["15m", "1h", "6h", "24h"]), default="1h")
@click.option("--order", type=click.Choice(_ORDERS), default="runs")
@remote
def list_command(session: Session, window: str, order: str) -> None:
    """List tasks and hosts of webhooks: runs, durations, what waits, and workers."""
    found = session.client.cell.tasks(window=window, order=order)
    if session.as_json:
        print_json(found)
        return
    print_list(False, found.items, _COLUMNS, _cells, "Nothing ran or waits.")
    if found.left_out:
        say(f"{found.left_out:,} more are not listed.")
    if found.other_runs:
        say(f"{found.other_runs:,} runs of less frequent tasks are not counted here.")
    if found.sampled:
        say(
            "The figures are estimates from a sample: more than 5,000 executions ended in a minute."
        )
    if "waiting" in found.at_least:
        say("The numbers of waiting executions are lower bounds.")


def _cells(item: TaskFigures) -> Sequence[str]:
    took = item.duration_ms
    durations = (None, None, None) if took is None else (took.p50, took.p95, took.max)
    return (
        item.task or f"webhooks of {item.host}",
        f"{item.runs:,}",
        f"{item.failures:,}",
        *("-" if each is None else milliseconds_text(round(each)) for each in durations),
        f"{item.waiting:,}",
        f"{item.workers:,}",
        "" if item.last_error is None else (item.last_error.error or "").split("\n")[0],
    )
