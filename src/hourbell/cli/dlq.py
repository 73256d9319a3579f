"""`hourbell dlq`: list, group, replay and purge dead letters, over the API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from hourbell.cli.executions import ATTEMPT_COLUMNS, attempt_cells
from hourbell.cli.exit_codes import REFUSED
from hourbell.cli.operations import start_operation
from hourbell.cli.output import (
    Column,
    Progress,
    counted,
    instant_text,
    print_fields,
    print_json,
    print_list,
    print_table,
    say,
)
from hourbell.cli.params import Instant
from hourbell.cli.remote import Session, confirm, job_id_of, limit_options, limited, remote
from hourbell.client import DeadLetter, DeadLetterGroup

F = TypeVar("F", bound=Callable[..., Any])

# Why dead letters were not replayed.
_LEFT_WORDS = {
    "duplicate_job": "whose unique key or name another job has",
    "gone": "that another request has replayed or purged",
    "in_use": "that another request is moving",
    "job_deleted": "whose job was deleted",
    "occurrence_live": "whose occurrence is live again",
}

_COLUMNS = (
    Column("EXECUTION"),
    Column("REASON"),
    Column("ERROR", shrinks_to=20),
    Column("DIED", optional=True),
    Column("JOB", optional=True),
    Column("TRIES", right=True, optional=True),
    Column("TENANT", shrinks_to=8, optional=True),
)
_GROUP_COLUMNS = (
    Column("FINGERPRINT"),
    Column("COUNT", right=True),
    Column("ACTION", shrinks_to=12),
    Column("KIND"),
    Column("ERROR", shrinks_to=20),
    Column("LAST DIED", optional=True),
    Column("JOBS", right=True, optional=True),
    Column("TENANTS", shrinks_to=8, optional=True),
)
_NOTHING_CHOSEN = "Give execution ids, a filter, or --all."


@click.group("dlq")
def dlq_command() -> None:
    """List, group, replay and purge dead letters: executions that will not be retried."""


def _filters(command: F) -> F:
    for option in (
        click.option("--to", "died_to", type=Instant(), help="Died before (RFC 3339)."),
        click.option("--from", "died_from", type=Instant(), help="Died at or after (RFC 3339)."),
        click.option("--fingerprint", help="Fingerprint of an error, from `hourbell dlq groups`."),
        click.option("--reason", help="Why it died, such as retries_exhausted."),
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
        "reason": options["reason"],
        "died_from": options["died_from"],
        "died_to": options["died_to"],
        "fingerprint": options["fingerprint"],
    }


def _in_background(command: F) -> F:
    return click.option(
        "--background",
        is_flag=True,
        help="With a filter: run it on the server, and print the id of the operation.",
    )(command)


def _start(session: Session, act: str, options: dict[str, Any], rate: int | None = None) -> None:
    selected = _selected(session, options)
    times = {"from": selected.pop("died_from"), "to": selected.pop("died_to")}
    start_operation(session, act, selected | times, rate=rate)


@dlq_command.command("list")
@_filters
@limit_options
@remote
def list_command(session: Session, limit: int, everything: bool, **options: Any) -> None:
    """List dead letters, latest first."""
    letters = session.client.dead_letters.each(**_selected(session, options))
    found = limited(letters, limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "No dead letters found.")


def _cells(letter: DeadLetter) -> Sequence[str]:
    return (
        letter.execution_id,
        letter.reason,
        letter.error or "",
        instant_text(letter.died_at),
        letter.job_name or letter.job_id,
        str(letter.attempt),
        letter.tenant_id,
    )


@dlq_command.command("groups")
@_filters
@remote
def groups_command(session: Session, **options: Any) -> None:
    """Count the newest dead letters by error, the most frequent first."""
    found = session.client.dead_letters.groups(**_selected(session, options))
    if session.as_json:
        print_json(found)
        return
    if not found.complete:
        say(
            f"Looked at the newest {found.looked_at:,}, back to {instant_text(found.looked_back_to)}."
        )
    if found.items:
        print_table(_GROUP_COLUMNS, map(_group_cells, found.items))
    else:
        say("No dead letters found.")


def _group_cells(group: DeadLetterGroup) -> Sequence[str]:
    return (
        group.fingerprint,
        f"{group.count:,}",
        group.action or "",
        group.kind or group.reason,
        group.error or "",
        instant_text(group.last_died_at),
        f"{group.jobs:,}",
        ", ".join(group.tenants),
    )


@dlq_command.command("get")
@click.argument("execution_id")
@remote
def get_command(session: Session, execution_id: str) -> None:
    """Show a dead letter with all its attempts."""
    letter = session.client.dead_letters.get(execution_id)
    if session.as_json:
        print_json(letter)
        return
    print_fields(
        (
            ("Execution", letter.execution_id),
            ("Job", letter.job_id),
            ("Name", letter.job_name),
            ("Tenant", letter.tenant_id),
            ("Scheduled", instant_text(letter.scheduled_for)),
            ("Died", instant_text(letter.died_at)),
            ("Reason", letter.reason),
            ("Error", letter.error),
        )
    )
    if letter.attempts:
        click.echo()
        print_table(ATTEMPT_COLUMNS, map(attempt_cells, letter.attempts))


@dlq_command.command("replay")
@click.argument("execution_ids", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--rate", type=click.IntRange(1), help="Executions due per second. [all at once]")
@_in_background
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def replay_command(
    session: Session,
    execution_ids: tuple[str, ...],
    everything: bool,
    rate: int | None,
    background: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Make dead executions due again: the given ones, or all that match a filter."""
    if _is_by_id(execution_ids, everything, options, background):
        replayed = 0
        try:
            for execution_id in execution_ids:
                session.client.dead_letters.replay(execution_id)
                replayed += 1
        finally:
            if replayed or session.as_json:  # otherwise the error alone says what happened
                _report(session, {"replayed": replayed, "left": 0}, {})
        return
    confirm(f"Replay {_what(options)}?", yes)
    if background:
        _start(session, "replay", options, rate)
        return
    selected = _selected(session, options)
    replayed, left, token = 0, 0, None
    reasons: Counter[str] = Counter()
    with Progress("Dead letters replayed") as progress:
        while True:
            part = session.client.dead_letters.replay_many(
                **selected, rate_per_second=rate, page_token=token
            )
            replayed, left, token = replayed + part.replayed, left + part.left, part.next_page_token
            reasons.update({each.code: each.count for each in part.left_reasons})
            if token is None:
                break
            progress.show(replayed)
            if rate is not None and part.last_run_at is not None:
                # The rate counts from each call, so the next call waits until these have come due.
                now = datetime.now(UTC)  # noqa: TID251 - how long the user waits
                time.sleep(max(0.0, (part.last_run_at - now).total_seconds()))
    _report(session, {"replayed": replayed, "left": left}, reasons)


@dlq_command.command("purge")
@click.argument("execution_ids", nargs=-1)
@_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@_in_background
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def purge_command(
    session: Session,
    execution_ids: tuple[str, ...],
    everything: bool,
    background: bool,
    yes: bool,
    **options: Any,
) -> None:
    """Remove dead letters: the given ones, or all that match a filter. Their history is kept."""
    if _is_by_id(execution_ids, everything, options, background):
        confirm(f"Remove {counted(len(execution_ids), 'dead letter')}?", yes)
        purged = 0
        try:
            for execution_id in execution_ids:
                purged += session.client.dead_letters.purge(execution_id).purged
        finally:
            if purged or session.as_json:
                _report(session, {"purged": purged}, {})
        return
    confirm(f"Remove {_what(options)}?", yes)
    if background:
        _start(session, "purge", options)
        return
    selected = _selected(session, options)
    purged, token = 0, None
    with Progress("Dead letters removed") as progress:
        while True:
            part = session.client.dead_letters.purge_many(**selected, page_token=token)
            purged, token = purged + part.purged, part.next_page_token
            if token is None:
                break
            progress.show(purged)
    _report(session, {"purged": purged}, {})


def _is_by_id(
    ids: Sequence[str], everything: bool, options: dict[str, Any], background: bool
) -> bool:
    filtered = any(value is not None for value in options.values())
    if bool(ids) + filtered + everything != 1:
        raise click.UsageError(_NOTHING_CHOSEN)
    if ids and background:
        raise click.UsageError("--background needs a filter or --all.")
    return bool(ids)


def _what(options: dict[str, Any]) -> str:
    given = [f"{name} {value}" for name, value in options.items() if value is not None]
    return f"the dead letters with {', '.join(given)}" if given else "all dead letters"


def _report(session: Session, counts: dict[str, int], reasons: Mapping[str, int]) -> None:
    if session.as_json:
        left_reasons = [{"code": code, "count": count} for code, count in reasons.items()]
        print_json(counts | ({"left_reasons": left_reasons} if reasons else {}))
    else:
        print_fields((name.capitalize(), str(count)) for name, count in counts.items())
    if left := counts.get("left"):
        why = ", ".join(f"{count:,} {_LEFT_WORDS[code]}" for code, count in reasons.items())
        say(f"{left:,} were not replayed: {why}.")
        raise SystemExit(REFUSED)
