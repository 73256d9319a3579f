"""`hourbell import`: turn jobs of other schedulers into a file for `hourbell apply`. Calls no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from hourbell.cli.exit_codes import USAGE
from hourbell.cli.files import (
    check_owner,
    read_documents,
    read_text,
    shown,
    with_type,
    yaml_text,
)
from hourbell.cli.importers import Import, Imported, NotReadable
from hourbell.cli.importers.celery import read_beat_schedule
from hourbell.cli.importers.crontab import read_crontab
from hourbell.cli.importers.eventbridge import read_schedules
from hourbell.cli.importers.k8s import read_cron_jobs
from hourbell.cli.output import counted, plain, say
from hourbell.cli.remote import errors_as_exits, fail
from hourbell.documents.jobs import parse_new_job
from hourbell.model.errors import InvalidInput
from hourbell.timing.errors import UnknownZone
from hourbell.timing.zones import load_zone

_ANY_JOB = 0
_WIDTH = 100

owner_option = click.option(
    "--owner", default="imported", show_default=True, help="Owner of the jobs, for `apply`."
)


@click.group("import")
def import_command() -> None:
    """Turn jobs of other schedulers into a file for `hourbell apply`.

    Writes the file to stdout, with comments on whatever could not be carried over. Input is never
    executed, and no server is called.
    """


@import_command.command("crontab")
@click.argument("file")
@click.option("--timezone", default="UTC", show_default=True, help="Time zone of the machine.")
@click.option("--system", is_flag=True, help="Expect a user column, as in /etc/crontab.")
@owner_option
def crontab_command(file: str, timezone: str, system: bool, owner: str) -> None:
    """Import a crontab; - reads stdin, as in `crontab -l | hourbell import crontab -`."""
    _check_zone(timezone)
    _convert(file, owner, lambda: read_crontab(read_text(file), timezone, system))


@import_command.command("celery")
@click.argument("file")
@click.option("--timezone", help="Time zone of the app. [default: set by the file]")
@owner_option
def celery_command(file: str, timezone: str | None, owner: str) -> None:
    """Import the `beat_schedule` of a Python file. It is parsed, not executed."""
    if timezone is not None:
        _check_zone(timezone)
    _convert(file, owner, lambda: read_beat_schedule(read_text(file), timezone))


@import_command.command("k8s")
@click.argument("file")
@owner_option
def k8s_command(file: str, owner: str) -> None:
    """Import CronJobs, as in `kubectl get cronjobs -o yaml | hourbell import k8s -`."""
    _convert(file, owner, lambda: read_cron_jobs(read_documents(file)))


@import_command.command("eventbridge")
@click.argument("file")
@owner_option
def eventbridge_command(file: str, owner: str) -> None:
    """Import EventBridge schedules and rules, from JSON printed by the AWS CLI."""
    _convert(file, owner, lambda: read_schedules(read_documents(file)))


def _check_zone(timezone: str) -> None:
    try:
        load_zone(timezone)
    except UnknownZone as error:
        raise click.UsageError(str(error)) from None


def _convert(file: str, owner: str, read: Callable[[], Import]) -> None:
    now = datetime.now(UTC)  # noqa: TID251 - only decides whether a one-time job is in the past
    with errors_as_exits():
        check_owner(owner)
        try:
            found = read()
        except NotReadable as error:
            fail(f"Cannot import {shown(file)}: {error}.", USAGE)
    jobs = [_checked(job, now) for job in found.jobs]
    click.echo("\n".join(_lines(file, owner, msgspec.structs.replace(found, jobs=jobs))))
    usable = sum(job.is_usable for job in jobs)
    notes = sum(len(job.notes) for job in jobs) + len(found.notes)
    if not jobs:
        hint = f" See the {counted(notes, 'note')} in the output." if notes else ""
        say(f"{shown(file)} contains no jobs that can be imported.{hint}")
        return
    say(
        f"Imported {usable} of {counted(len(jobs), 'job')}, with {counted(notes, 'note')}. Check the "
        f"file, then try:"
    )
    say("  hourbell apply -f FILE --dry-run")


def _checked(job: Imported, now: datetime) -> Imported:
    """The job; marked unusable if Hourbell would reject it."""
    if not job.is_usable:
        return job
    try:
        parse_new_job(with_type(job.document), now, _ANY_JOB)
    except InvalidInput as error:
        name = job.document["name"]
        problems = [f"{name}: {one.path}: {one.message}" for one in error.errors]
        return Imported(job.document, [*job.notes, *problems], False)
    return job


def _lines(file: str, owner: str, found: Import) -> Iterator[str]:
    source = "stdin" if file == "-" else plain(file)
    yield f"# Imported from {source}. Check it, then: hourbell apply -f FILE --dry-run"
    for note in found.notes:
        yield from _comment(note, "")
    yield from yaml_text({"owner": owner}).splitlines()
    if not any(job.is_usable for job in found.jobs):
        yield "jobs: []"
    else:
        yield "jobs:"
    for job in found.jobs:
        yield ""
        yield from (line for note in job.notes for line in _comment(note, "  "))
        mark = "  " if job.is_usable else "  # "
        yield from (f"{mark}{line}" for line in _document_lines(job.document))


def _document_lines(document: dict[str, Any]) -> Iterable[str]:
    return yaml_text([document]).splitlines()


def _comment(note: str, indent: str) -> Iterator[str]:
    """A note as comment lines."""
    line = ""
    for word in plain(note).split():
        if line and len(indent) + len(line) + len(word) > _WIDTH:
            yield f"{indent}# {line}"
            line = ""
        line = f"{line} {word}".strip()
    yield f"{indent}# {line}"
