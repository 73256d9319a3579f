"""`hourbell executions`: list, show, cancel, retry and follow executions, over the API."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

from hourbell.cli.jobs import print_explanation
from hourbell.cli.output import (
    Column,
    instant_text,
    json_text,
    milliseconds_text,
    print_fields,
    print_json,
    print_json_line,
    print_list,
    print_table,
    say,
    table_lines,
    terminal_width,
    uses_color,
)
from hourbell.cli.params import Instant
from hourbell.cli.remote import Session, job_id_of, limit_options, limited, remote
from hourbell.client import Attempt, Execution
from hourbell.model.executions import ExecutionStatus

POLL_SECONDS = 1.0
MAX_FOLLOWED = 1_000  # the newest executions, which `tail` follows
_STATUS_WIDTH = len("QUEUED(tenant_concurrency)")  # the longest status with a reason

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = (
    Column("EXECUTION"),
    Column("JOB", shrinks_to=16),
    Column("STATUS", shrinks_to=12),
    Column("SCHEDULED FOR", optional=True),
    Column("TRY", right=True),
    Column("TOOK", right=True, optional=True),
    Column("ERROR", shrinks_to=16, optional=True),
)
_FOLLOWED = (
    Column("EXECUTION"),
    Column("STATUS", shrinks_to=12),
    Column("TRY", right=True),
    Column("TOOK", right=True, optional=True),
    Column("JOB", shrinks_to=8),
)
ATTEMPT_COLUMNS = (
    Column("TRY", right=True),
    Column("STATUS"),
    Column("STARTED"),
    Column("ERROR", shrinks_to=16),
    Column("TOOK", right=True, optional=True),
    Column("WORKER", shrinks_to=8, optional=True),
)


@click.group("executions")
def executions_command() -> None:
    """List, show, cancel, retry and follow executions."""


def _filters(command: F) -> F:
    statuses = click.Choice([status.value for status in ExecutionStatus], case_sensitive=False)
    for option in (
        click.option("--label", help="Label of the job, as name:value."),
        click.option("--queue"),
        click.option("--reason", help="Why it ended, such as retries_exhausted."),
        click.option("--status", "statuses", type=statuses, multiple=True, help="Repeatable."),
        click.option("--tenant"),
        click.option("--job", help="Id or name of a job."),
    ):
        command = option(command)
    return command


def _selected(session: Session, options: dict[str, Any]) -> dict[str, Any]:
    job = options["job"]
    return {
        "job_id": None if job is None else job_id_of(session.client, job),
        "tenant_id": options["tenant"],
        "status": options["statuses"] or None,
        "reason": options["reason"],
        "queue": options["queue"],
        "label": options["label"],
    }


@executions_command.command("list")
@_filters
@click.option("--from", "created_from", type=Instant(), help="Created at or after (RFC 3339).")
@click.option("--to", "created_to", type=Instant(), help="Created before (RFC 3339).")
@limit_options
@remote
def list_command(
    session: Session,
    created_from: datetime | None,
    created_to: datetime | None,
    limit: int,
    everything: bool,
    **options: Any,
) -> None:
    """List executions, latest first."""
    executions = session.client.executions.each(
        **_selected(session, options), created_from=created_from, created_to=created_to
    )
    found = limited(executions, limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "No executions found.")


def _cells(execution: Execution) -> Sequence[str]:
    return (
        execution.execution_id,
        execution.job_name or execution.job_id,
        status_text(execution),
        instant_text(execution.scheduled_for),
        str(execution.attempt),
        milliseconds_text(execution.duration_ms),
        execution.error or "",
    )


def status_text(execution: Execution) -> str:
    """The status, with the reason if it ended unusually or is waiting."""
    reason = execution.reason or _waiting_for(execution)
    return execution.status if reason is None else f"{execution.status}({reason})"


def _waiting_for(execution: Execution) -> str | None:
    """What it is waiting for, unless its status already says so."""
    code = execution.waiting_for
    return None if code in ("not_due", "retrying") else code


@executions_command.command("get")
@click.argument("execution_id")
@remote
def get_command(session: Session, execution_id: str) -> None:
    """Show an execution with all its attempts."""
    _print_execution(session, session.client.executions.get(execution_id))


def _print_execution(session: Session, execution: Execution) -> None:
    if session.as_json:
        print_json(execution)
        return
    print_fields(
        (
            ("Execution", execution.execution_id),
            ("Job", f"{execution.job_id} {execution.job_name or ''}".strip()),
            ("Status", execution.status),
            ("Reason", execution.reason),
            ("Waiting", _waiting_for(execution)),
            ("Tenant", execution.tenant_id),
            ("Queue", execution.queue),
            ("Origin", execution.origin),
            ("Scheduled", instant_text(execution.scheduled_for)),
            ("Started", instant_text(execution.started_at)),
            ("Late by", milliseconds_text(execution.lateness_ms)),
            ("Finished", instant_text(execution.finished_at)),
            ("Error", execution.error),
            ("Result", json_text(execution.result)),
            ("Progress", json_text(execution.progress)),
        )
    )
    if execution.attempts:
        click.echo()
        print_table(ATTEMPT_COLUMNS, map(attempt_cells, execution.attempts))


def attempt_cells(attempt: Attempt) -> Sequence[str]:
    """The table row of one attempt."""
    took = None
    if attempt.finished_at is not None:
        took = round((attempt.finished_at - attempt.started_at).total_seconds() * 1000)
    error = attempt.error or ""
    kind = attempt.kind or ""
    return (
        str(attempt.attempt),
        attempt.status,
        instant_text(attempt.started_at),
        error if kind in error else f"{kind}: {error}".removesuffix(": "),
        milliseconds_text(took),
        attempt.worker_id or "",
    )


@executions_command.command("explain")
@click.argument("execution_id")
@remote
def explain_command(session: Session, execution_id: str) -> None:
    """Show what an execution is waiting for."""
    print_explanation(session, session.client.executions.explain(execution_id))


@executions_command.command("cancel")
@click.argument("execution_ids", nargs=-1, required=True)
@remote
def cancel_command(session: Session, execution_ids: tuple[str, ...]) -> None:
    """Cancel executions. A running one is stopped by its worker."""
    _on_each(session, execution_ids, session.client.executions.cancel, "cancel")


@executions_command.command("retry")
@click.argument("execution_ids", nargs=-1, required=True)
@remote
def retry_command(session: Session, execution_ids: tuple[str, ...]) -> None:
    """Retry executions now: RETRYING ones, and DEAD ones under the same id."""
    _on_each(session, execution_ids, session.client.executions.retry, "retry")


def _on_each(
    session: Session, ids: Sequence[str], act: Callable[[str], Execution], verb: str
) -> None:
    changed = []
    try:
        for execution_id in ids:
            changed.append(act(execution_id))
            if not session.as_json:
                say(f"{execution_id}: {verb} requested; the execution is {changed[-1].status}.")
                click.echo(execution_id)
    finally:
        if session.as_json:
            print_json(changed)


@executions_command.command("tail")
@_filters
@remote
def tail_command(session: Session, **options: Any) -> None:
    """Follow the newest 1,000 executions: print a line when one is created or changes status.

    With --output json, prints one JSON object per line. Press Ctrl-C to stop.
    """
    selected = _selected(session, options)
    wanted = set(selected.pop("status") or ())
    if "FAILED" in wanted:  # no execution stays FAILED
        wanted |= {"RETRYING", "DEAD"}
    seen: OrderedDict[str, str] = OrderedDict()
    for _ in _news(session, selected, seen):
        pass  # existing executions are not news
    say("Following executions; press Ctrl-C to stop.")
    while True:
        time.sleep(POLL_SECONDS)
        news = [one for one in _news(session, selected, seen) if not wanted or one.status in wanted]
        for execution in reversed(news):
            if session.as_json:
                print_json_line(execution)
            else:
                _print_followed(execution)
        sys.stdout.flush()


def _news(
    session: Session, selected: dict[str, Any], seen: OrderedDict[str, str]
) -> Iterator[Execution]:
    """Executions that are new, or whose status or attempt has changed since they were last seen."""
    for number, execution in enumerate(session.client.executions.each(**selected, page_size=500)):
        if number == MAX_FOLLOWED:
            break
        state = f"{execution.status} {execution.attempt}"
        if seen.get(execution.execution_id) != state:
            yield execution
        seen[execution.execution_id] = state
        seen.move_to_end(execution.execution_id)
    while len(seen) > MAX_FOLLOWED:
        seen.popitem(last=False)


def _print_followed(execution: Execution) -> None:
    # Lines are printed one at a time, so the columns have fixed widths.
    row = (
        execution.execution_id,
        f"{status_text(execution):{_STATUS_WIDTH}}",
        f"{execution.attempt:3}",
        f"{milliseconds_text(execution.duration_ms):>8}",
        execution.job_name or execution.job_id,
    )
    width = terminal_width() if sys.stdout.isatty() else None
    click.echo(table_lines(_FOLLOWED, [row], width, uses_color())[1])
