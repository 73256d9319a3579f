"""`hourbell apply`: make the jobs on a server match a file, over the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from hourbell.cli.exit_codes import CONFLICT, REFUSED, USAGE
from hourbell.cli.files import check_owner, read_documents, shown
from hourbell.cli.jobs import schedule_text
from hourbell.cli.output import Progress, instant_text, plain, print_json, say, uses_color
from hourbell.cli.reconcile import (
    OWNER_LABEL,
    Change,
    InvalidJobs,
    Verb,
    Wanted,
    adopt,
    has_ended,
    plan,
    read_wanted,
)
from hourbell.cli.remote import Session, fail, remote
from hourbell.client import (
    AccessDenied,
    ClientError,
    NotFound,
    Queue,
    SyncClient,
    Unavailable,
    Unreachable,
)
from hourbell.engine.declarations import DeclaredTask, task_of
from hourbell.model.errors import ConfigurationError
from hourbell.model.jobs import DEFAULT_TENANT

_SIGNS = {
    Verb.CREATE: ("+", "green"),
    Verb.UPDATE: ("~", "yellow"),
    Verb.DELETE: ("-", "red"),
    Verb.ORPHAN: ("?", "yellow"),
    Verb.PASSED: ("=", None),
    Verb.KEEP: ("=", None),
}
_APPLIED = (Verb.CREATE, Verb.UPDATE, Verb.DELETE)  # the others change nothing
_FILE_FIELDS = {"owner", "jobs"}


@click.command("apply")
@click.option("--file", "-f", required=True, help="YAML or JSON file; - reads stdin.")
@click.option("--owner", help="Owner of the jobs, if the file does not name one.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--prune", is_flag=True, help="Delete jobs of this owner that are not in the file.")
@remote
def apply_command(
    session: Session, file: str, owner: str | None, dry_run: bool, prune: bool
) -> None:
    """Create and update jobs to match a file. Safe to repeat.

    Prints a plan: + create, ~ change, - delete, ? owned but not in the file, = unchanged. A job that
    was changed elsewhere since it was last applied is marked as drift.
    """
    owner, documents = _read(file, owner)
    now = datetime.now(UTC)  # noqa: TID251 - only decides whether a one-time job is in the past
    queues = _queues_of(session.client, documents)
    try:
        wanted = read_wanted(documents, owner, now, queues, _tasks_of(session.client, documents))
    except InvalidJobs as error:
        for line in str(error).splitlines():
            say(f"hourbell: {plain(line)}")
        fail(f"{shown(file)} is not valid. Nothing was changed.", USAGE)
    current = list(session.client.jobs.each(label=f"{OWNER_LABEL}:{owner}", page_size=500))
    changes = plan(wanted, current, now, prune, _default_tenant(session.client, wanted))
    changes = [_with_owner_checked(session.client, change, owner) for change in changes]
    if not session.as_json:
        _print_plan(session.client, changes, file)
    failed = [] if dry_run else _carry_out(session.client, changes)
    if session.as_json:
        print_json([_as_json(change, change.name in failed, dry_run) for change in changes])
    _sum_up(changes, len(failed), dry_run)
    if failed:
        raise SystemExit(REFUSED)


def _read(file: str, owner: str | None) -> tuple[str, Sequence[Any]]:
    if owner is not None:
        check_owner(owner)
    jobs: list[Any] = []
    documents = read_documents(file)
    if not documents:
        raise ConfigurationError(f"{shown(file)} is empty. To apply no jobs, write `jobs: []`.")
    for document in documents:
        if isinstance(document, list):
            jobs += document
            continue
        if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
            raise ConfigurationError(f"{shown(file)} must contain `jobs:` with a list of jobs.")
        unknown = sorted(map(str, set(document) - _FILE_FIELDS))
        if unknown:
            raise ConfigurationError(
                f"{shown(file)} has the unknown field {unknown[0]}. Only `owner` and `jobs` are "
                "allowed at the top level."
            )
        named = document.get("owner")
        if named is not None and owner is not None and named != owner:
            raise ConfigurationError(f"{shown(file)} belongs to the owner {named}, not {owner}.")
        owner = named if owner is None else owner
        jobs += document["jobs"]
    if owner is None:
        raise ConfigurationError(
            f"{shown(file)} names no owner. Add `owner: NAME` to it, or pass --owner NAME. The owner "
            f"identifies the jobs of this file, and --prune deletes only jobs of that owner."
        )
    check_owner(owner)
    return owner, jobs


def _queues_of(client: SyncClient, documents: Sequence[Any]) -> Mapping[str, Queue]:
    """The queues that set defaults for jobs, if the file names any queue."""
    if not documents:
        return {}
    return {queue.queue: queue for queue in client.queues.each(page_size=500)}


def _tasks_of(client: SyncClient, documents: Sequence[Any]) -> Mapping[str, DeclaredTask]:
    """What the tasks of the file declare, by name; not those that no app declares."""
    found = {}
    for name in {task_of(document) for document in documents} - {None}:
        assert name is not None
        with suppress(NotFound):
            job = client.cell.declared_task(name).job
            found[name] = DeclaredTask(name, job, None, [None])  # the server checks arguments
    return found


def _default_tenant(client: SyncClient, wanted: Sequence[Wanted]) -> str | None:
    """The tenant of jobs that name none; None if the key sees only one tenant, which is theirs."""
    if all(one.has_tenant for one in wanted):
        return DEFAULT_TENANT
    try:
        client.jobs.list(tenant_id=DEFAULT_TENANT, page_size=1)
    except AccessDenied as error:
        if error.code != "forbidden":
            raise
        return None
    return DEFAULT_TENANT


def _with_owner_checked(client: SyncClient, change: Change, owner: str) -> Change:
    """Refuse to take over a job that belongs to another owner; adopt one that has none."""
    if change.verb is not Verb.CREATE or change.wanted is None:
        return change
    tenant = change.wanted.job.tenant_id if change.wanted.has_tenant else None
    try:
        job = client.jobs.get_by_name(change.name, tenant_id=tenant)
    except NotFound:
        return change
    other = job.labels.get(OWNER_LABEL)
    if other is None and not has_ended(job):
        return adopt(change.wanted, job)
    if other not in (None, owner):
        fail(
            f"The job {job.name} belongs to the owner {other}, not {owner}. Nothing was "
            f"changed. Remove it there first, or apply with --owner {other}.",
            CONFLICT,
        )
    return change


def _print_plan(client: SyncClient, changes: Sequence[Change], file: str) -> None:
    width = max((len(change.name) for change in changes), default=0)
    for change in changes:
        if change.verb is Verb.KEEP and not change.note:
            continue
        sign, color = _SIGNS[change.verb]
        line = f"{sign} {plain(change.name):{width}}  {_reason(client, change, file)}".rstrip()
        click.echo(click.style(line, fg=color) if color and uses_color() else line)
        for path, before, after in change.fields:
            click.echo(f"    {path}: {plain(before)} → {plain(after)}")


def _reason(client: SyncClient, change: Change, file: str) -> str:
    match change.verb:
        case Verb.CREATE:
            assert change.wanted is not None
            note = f" ({change.note})" if change.note else ""
            return f"create: {plain(schedule_text(change.wanted.job.schedule))}{note}"
        case Verb.UPDATE if change.drifted:
            return f"drift: {_last_change(client, change)}"
        case Verb.UPDATE:
            return change.note or "change"
        case Verb.DELETE:
            return f"delete: not in {file}"
        case Verb.ORPHAN:
            return f"not in {file}; delete it with --prune"
        case Verb.PASSED:
            return "its time has passed"
    return change.note


def _last_change(client: SyncClient, change: Change) -> str:
    assert change.job_id is not None
    entries = client.jobs.audit(change.job_id, page_size=1).items
    if not entries:
        return "changed elsewhere"
    return f"changed by {plain(entries[0].actor)} at {instant_text(entries[0].at)}"


def _carry_out(client: SyncClient, changes: Sequence[Change]) -> list[str]:
    """Carry out the plan; return the names of the jobs that could not be changed."""
    failed: list[str] = []
    due = [change for change in changes if change.verb in _APPLIED]
    with Progress("Applying", len(due)) as progress:
        for done, change in enumerate(due):
            progress.show(done)
            try:
                _carry_out_one(client, change)
            except (AccessDenied, Unavailable, Unreachable):
                progress.hide()
                say(
                    f"{done:,} of {len(due):,} changes were made. Run apply again to make the rest."
                )
                raise
            except ClientError as error:
                progress.hide()
                failed.append(change.name)
                message = plain(error.message)
                if error.code == "precondition_failed":
                    message = "it was changed after the plan was made. Run apply again."
                say(f"hourbell: {plain(change.name)}: {message}")
    return failed


def _carry_out_one(client: SyncClient, change: Change) -> None:
    if change.verb is Verb.DELETE:
        assert change.job_id is not None
        client.jobs.delete(change.job_id, version=change.version)
    else:
        assert change.wanted is not None
        client.jobs.put(change.name, change.wanted.document, version=change.version)


def _as_json(change: Change, failed: bool, dry_run: bool) -> dict[str, Any]:
    fields = [{"path": path, "from": old, "to": new} for path, old, new in change.fields]
    return {
        "name": change.name,
        "change": change.verb.value,
        "job_id": change.job_id,
        "drifted": change.drifted,
        "fields": fields,
        "applied": change.verb in _APPLIED and not dry_run and not failed,
    }


def _sum_up(changes: Sequence[Change], failed: int, dry_run: bool) -> None:
    def count(*verbs: Verb) -> int:
        return sum(change.verb in verbs for change in changes)

    counts = (
        f"{count(Verb.CREATE)} to create, {count(Verb.UPDATE)} to change, "
        f"{count(Verb.DELETE)} to delete, {count(Verb.KEEP, Verb.PASSED)} unchanged"
    )
    drifted = sum(change.drifted for change in changes)
    drift = f"; {drifted} drifted" if drifted else ""
    orphans = f"; {count(Verb.ORPHAN)} not in the file" if count(Verb.ORPHAN) else ""
    say(f"Plan: {counts}{drift}{orphans}.")
    if dry_run:
        say("Dry run: nothing was changed.")
    elif failed:
        say(f"{failed} could not be applied.")
    elif count(*_APPLIED):
        say("Applied.")
