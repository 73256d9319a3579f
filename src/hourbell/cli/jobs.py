"""`hourbell jobs`: create, list, change, run and explain jobs, over the API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click
import msgspec

from hourbell.cli.exit_codes import REFUSED
from hourbell.cli.files import read_documents, shown, with_type
from hourbell.cli.operations import start_operation
from hourbell.cli.output import (
    Column,
    Progress,
    counted,
    instant_text,
    json_text,
    print_fields,
    print_json,
    print_list,
    print_table,
    say,
)
from hourbell.cli.params import Instant, InstantOrWall
from hourbell.cli.remote import (
    Session,
    confirm,
    job_id_of,
    limit_options,
    limited,
    remote,
)
from hourbell.client import (
    ClientError,
    CreatedJob,
    Explanation,
    Job,
    NewJob,
    PauseDetails,
    RefusedJob,
    RetryPolicy,
    Schedule,
    Task,
    Unavailable,
    Unreachable,
    Webhook,
)
from hourbell.client.values import Worker
from hourbell.model.errors import ConfigurationError
from hourbell.model.jobs import WEBHOOK_TASK, JobStatus, JobType
from hourbell.model.policies import Priority

PRIORITIES = [priority.name for priority in Priority]
STATUSES = [status.value for status in JobStatus]
TYPES = [kind.value for kind in JobType]
_MAX_WORKERS = 1_000  # that are looked at for a note
CHUNK = 2_000  # jobs per request, so that progress is visible

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = (
    Column("JOB"),
    Column("NAME", shrinks_to=16),
    Column("STATUS"),
    Column("NEXT RUN", optional=True),
    Column("SCHEDULE", shrinks_to=9, optional=True),
    Column("TENANT", shrinks_to=8, optional=True),
    Column("QUEUE", shrinks_to=8, optional=True),
)


@click.group("jobs")
def jobs_command() -> None:
    """Create, list, change, run and explain jobs.

    JOB is the id of a job, or its name if no other job has the same name.
    """


def _definition_options(command: F) -> F:
    for option in reversed(
        (
            click.option("--cron", "rule", help="Recurring: a cron rule, such as '0 2 * * *'."),
            click.option("--every", type=int, help="Recurring: an interval in seconds."),
            click.option(
                "--at",
                type=InstantOrWall(),
                help="Once: at an instant (RFC 3339), or without an offset at a time in --timezone.",
            ),
            click.option("--delay", type=int, help="Once: after this many seconds."),
            click.option("--timezone", help="Time zone of the schedule, an IANA name."),
            click.option("--url", help="URL to call."),
            click.option("--method", help="HTTP method. [POST]"),
            click.option("--header", "headers", multiple=True, help="'Name: value'; repeatable."),
            click.option("--body", help="Request body: JSON or text."),
            click.option("--task", help="Task to run, instead of calling a URL."),
            click.option("--payload", help="Payload of the task: JSON or text."),
            click.option("--tenant", help="Tenant of the job."),
            click.option("--queue", help="Queue of the job."),
            click.option("--priority", type=click.Choice(PRIORITIES, case_sensitive=False)),
            click.option("--max-retries", type=int, help="How many times to retry a failed run."),
            click.option("--timeout", type=int, help="Timeout of one attempt, in seconds."),
            click.option(
                "--unique-key", help="Allow only one job with this key that has not ended."
            ),
            click.option("--label", "labels", multiple=True, help="name:value; repeatable."),
        )
    ):
        command = option(command)
    return command


@jobs_command.command("create")
@click.argument("name", required=False)
@click.option(
    "--file", "-f", help="File with one or more jobs: YAML, JSON or NDJSON; - reads stdin."
)
@click.option(
    "--idempotency-key",
    help="Makes it safe to repeat the command: nothing is created twice under the same key.",
)
@_definition_options
@remote
def create_command(
    session: Session,
    name: str | None,
    file: str | None,
    idempotency_key: str | None,
    **options: Any,
) -> None:
    """Create the job NAME from options, or all jobs in a file. Prints their ids."""
    given = sorted(key for key, value in options.items() if value not in (None, ()))
    if file is None:
        _create_one(session, _job_of(name, options), idempotency_key)
    elif name is not None or given:
        raise click.UsageError("Give either a name and options, or --file.")
    else:
        _create_from(session, file, idempotency_key)


def _create_one(session: Session, new: NewJob, key: str | None) -> None:
    try:
        job = session.client.jobs.create(new, idempotency_key=key)
    except Unreachable:
        say("The job may have been created. " + _how_to_repeat(key))
        raise
    for warning in job.warnings:
        say(f"Warning: {warning.path}: {warning.message}")
    _note_created(job, job.tenant_id, job.queue)
    _note_unserved(session, job)
    if session.as_json:
        print_json(job)
        return
    when = f"; it will run at {instant_text(job.next_run_at)}" if job.next_run_at else ""
    say(f"Created {job.name}{when}.")
    click.echo(job.job_id)


def _note_created(created: Job | CreatedJob, tenant: str, queue: str) -> None:
    """Say which names exist only since a job has named them: they may be typing mistakes."""
    if created.created_tenant:
        say(f"This created the tenant {tenant}.")
    if created.created_queue:
        say(f"This created the queue {queue}.")


def _note_unserved(session: Session, job: Job) -> None:
    """Say if no live worker would run the job now. Workers may start later, so this is no error."""
    task = job.action.name if isinstance(job.action, Task) else WEBHOOK_TASK
    looked_at = 0
    try:
        for worker in islice(session.client.cell.each_worker(state="alive"), _MAX_WORKERS):
            if _serves(worker, job, task):
                return
            looked_at += 1
        if looked_at == 0 and session.client.cell.overview().workers is None:
            return  # a key of one tenant sees no workers
    except ClientError:
        return  # the job is created; that is what counts
    if looked_at == _MAX_WORKERS:
        return
    what = "webhooks" if task == WEBHOOK_TASK else f"the task {task}"
    say(
        f"Note: no live worker runs {what} in the queue {job.queue} at the moment. Unless one is "
        f"started before the job is due, it will wait; `hourbell doctor` lists what waits."
    )


def _serves(worker: Worker, job: Job, task: str) -> bool:
    in_queue = worker.queues is None or job.queue in worker.queues
    return in_queue and (worker.tasks is None or task in worker.tasks)


def _how_to_repeat(key: str | None) -> str:
    if key is None:
        return "Check with `hourbell jobs list` before you repeat the command."
    return "Repeat the command with the same --idempotency-key."


def _create_from(session: Session, file: str, key: str | None) -> None:
    jobs = _jobs_in(file)
    results: list[CreatedJob | RefusedJob] = []
    refused = 0
    progress = Progress("Creating jobs", len(jobs))
    try:
        for start in range(0, len(jobs), CHUNK):
            progress.show(start)
            chunk_key = key and f"{key}-{start // CHUNK}"
            chunk = session.client.jobs.create_many(
                jobs[start : start + CHUNK], idempotency_key=chunk_key
            )
            progress.hide()
            for number, result in enumerate(chunk, start):
                if isinstance(result, RefusedJob):
                    refused += 1
                    say(f"hourbell: job {number + 1} ({_name_of(jobs[number])}): {result.detail}")
                    continue
                _note_created(
                    result,
                    _named_in(jobs[number], "tenant_id"),
                    _named_in(jobs[number], "queue"),
                )
                if not session.as_json:
                    click.echo(result.job_id)
            results += chunk
    except (Unavailable, Unreachable):
        progress.hide()
        some = min(CHUNK, len(jobs) - len(results))
        say(f"Up to {counted(some, 'more job')} may have been created. " + _how_to_repeat(key))
        raise
    finally:
        progress.hide()
        if session.as_json:
            print_json(results)
        say(f"Created {len(results) - refused:,} of {counted(len(jobs), 'job')}.")
    if refused:
        raise SystemExit(REFUSED)


def _named_in(job: object, field: str) -> str:
    return str(job.get(field, "default")) if isinstance(job, Mapping) else "default"


def _name_of(job: object) -> str:
    return str(job.get("name", "without a name")) if isinstance(job, Mapping) else "not an object"


def _jobs_in(file: str) -> Sequence[Any]:
    """The jobs in a file: one, a list, `jobs:` with a list, or several documents."""
    jobs: list[Any] = []
    for document in read_documents(file):
        if isinstance(document, dict) and isinstance(document.get("jobs"), list):
            jobs += document["jobs"]
        else:
            jobs += document if isinstance(document, list) else [document]
    if not jobs:
        raise ConfigurationError(f"{shown(file)} contains no jobs.")
    return [with_type(job) for job in jobs]


def _job_of(name: str | None, options: Mapping[str, Any]) -> NewJob:
    if name is None:
        raise click.UsageError("Give the name of the job or --file.")
    schedules = ("rule", "every", "at", "delay")
    if sum(options[key] is not None for key in schedules) != 1:
        raise click.UsageError("Give exactly one of --cron, --every, --at and --delay.")
    if (options["url"] is None) == (options["task"] is None):
        raise click.UsageError("Give exactly one of --url and --task.")
    schedule = Schedule(
        cron=options["rule"],
        every_seconds=options["every"],
        at=options["at"],
        delay_seconds=options["delay"],
        timezone=options["timezone"],
    )
    retries = options["max_retries"]
    return NewJob(
        name=name,
        schedule=schedule,
        action=_action_of(options),
        tenant_id=options["tenant"],
        queue=options["queue"],
        priority=options["priority"],
        retry_policy=None if retries is None else RetryPolicy(max_retries=retries),
        timeout_seconds=options["timeout"],
        unique_key=options["unique_key"],
        labels=dict(_split(label, ":", "--label") for label in options["labels"]) or None,
    )


def _action_of(options: Mapping[str, Any]) -> Webhook | Task:
    if options["task"] is not None:
        _refuse(options, "--task", "method", "headers", "body")
        return Task(name=options["task"], payload=json_or_text(options["payload"]))
    _refuse(options, "--url", "payload")
    headers = dict(_split(header, ":", "--header") for header in options["headers"])
    return Webhook(
        url=options["url"],
        method=options["method"],
        headers=headers or None,
        body=json_or_text(options["body"]),
    )


def _refuse(options: Mapping[str, Any], beside: str, *keys: str) -> None:
    for key in keys:
        if options[key]:
            raise click.UsageError(f"--{key.removesuffix('s')} does not apply to {beside}.")


def _split(text: str, sign: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(sign)
    if not found:
        raise click.UsageError(f"{option} must be name{sign}value, not {text!a}.")
    return name.strip(), value.strip()


def json_or_text(value: str | None) -> Any:
    """The value if the text is JSON; otherwise the text itself, unless it was meant as an object."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        if re.match(r"\s*\{(?!\{)", value):  # {{ begins a template
            raise click.UsageError(
                f"A value that begins with {{ must be JSON: {error}. To send it as text, write it as "
                "a JSON string."
            ) from None
        return value


@jobs_command.command("list")
@click.option("--tenant")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(STATUSES, case_sensitive=False),
    multiple=True,
    help="Repeatable.",
)
@click.option(
    "--late", is_flag=True, help="Only one-time jobs that are QUEUED for more than a minute."
)
@click.option("--queue")
@click.option("--type", "kind", type=click.Choice(TYPES, case_sensitive=False))
@click.option("--name-prefix")
@click.option("--label", help="name:value")
@click.option(
    "-q", "--search", help="A text in the name, the task, the host or a label, in any case."
)
@limit_options
@remote
def list_command(
    session: Session,
    tenant: str | None,
    statuses: tuple[str, ...],
    late: bool,
    queue: str | None,
    kind: str | None,
    name_prefix: str | None,
    label: str | None,
    search: str | None,
    limit: int,
    everything: bool,
) -> None:
    """List jobs, newest first. Deleted jobs are listed only with --status CANCELLED."""
    jobs = session.client.jobs.each(
        tenant_id=tenant,
        status=statuses or None,
        late=late or None,
        queue=queue,
        type=kind,
        name_prefix=name_prefix,
        q=search,
        label=label,
    )
    found = limited(jobs, limit, everything)
    print_list(session.as_json, found, _COLUMNS, _cells, "No jobs found.")


def _cells(job: Job) -> Sequence[str]:
    return (
        job.job_id,
        job.name,
        job.status,
        instant_text(job.next_run_at) or "-",
        schedule_text(job.schedule),
        job.tenant_id,
        job.queue,
    )


def schedule_text(schedule: Schedule) -> str:
    """A human-readable schedule."""
    zone = f" {schedule.timezone}" if schedule.timezone not in (None, "UTC") else ""
    if schedule.cron is not None:
        return schedule.cron + zone
    if schedule.every_seconds is not None:
        return f"every {schedule.every_seconds} s"
    return f"once{zone}"


@jobs_command.command("get")
@click.argument("job")
@remote
def get_command(session: Session, job: str) -> None:
    """Show a job."""
    print_job(session, session.client.jobs.get(job_id_of(session.client, job)))


def _pause_text(pause: PauseDetails | None) -> str | None:
    if pause is None:
        return None
    because = f": {pause.reason}" if pause.reason else ""
    until = f", until {instant_text(pause.until)}" if pause.until else ""
    return f"by {pause.by} at {instant_text(pause.at)}{until}{because}"


def print_job(session: Session, job: Job) -> None:
    """Print all that is known about one job."""
    if session.as_json:
        print_json(job)
        return
    schedule, policy = job.schedule, job.retry_policy
    print_fields(
        (
            ("Job", job.job_id),
            ("Name", job.name),
            ("Status", job.status),
            ("Problem", job.problem),
            ("Version", str(job.version)),
            ("Paused", _pause_text(job.paused)),
            ("Schedule", schedule_text(schedule)),
            ("Meaning", job.schedule_words),
            ("At", instant_text(schedule.at)),
            ("Next run", instant_text(job.next_run_at)),
            ("Starts", instant_text(schedule.starts_at)),
            ("Ends", instant_text(schedule.ends_at)),
            ("Max runs", _number(schedule.max_runs)),
            *_action_fields(job.action),
            ("Tenant", job.tenant_id),
            ("Queue", job.queue),
            ("Priority", job.priority),
            ("Retries", _retries_text(policy)),
            ("Timeout", f"{job.timeout_seconds} s"),
            ("Delivery", job.delivery),
            ("Overlaps", job.overlap_policy),
            ("Misfires", job.misfire_policy),
            ("Unique key", job.unique_key),
            ("Labels", ", ".join(f"{name}:{value}" for name, value in job.labels.items())),
            ("Created", instant_text(job.created_at)),
            ("Changed", instant_text(job.updated_at) if job.version > 1 else None),
        )
    )
    for warning in job.warnings:
        say(f"Warning: {warning.path}: {warning.message}")


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _action_fields(action: Webhook | Task) -> Iterable[tuple[str, str | None]]:
    if isinstance(action, Task):
        yield "Task", action.name
        yield "Payload", json_text(action.payload)
        return
    yield "Calls", f"{action.method} {action.url}"
    yield "Headers", "\n".join(f"{name}: {value}" for name, value in (action.headers or {}).items())
    yield "Body", json_text(action.body)


def _retries_text(policy: RetryPolicy) -> str:
    if policy.delays_seconds:
        return "after " + ", ".join(f"{seconds} s" for seconds in policy.delays_seconds)
    if not policy.max_retries:
        return "none"
    return f"{policy.max_retries}, {policy.backoff} from {policy.initial_delay_seconds} s"


@jobs_command.command("update")
@click.argument("job")
@click.option(
    "--set", "changes", multiple=True, help="path=value, such as schedule.cron='0 3 * * *'."
)
@click.option("--file", "-f", help="File with a merge patch: YAML or JSON; - reads stdin.")
@click.option("--if-version", type=int, help="Change the job only if it has this version.")
@remote
def update_command(
    session: Session, job: str, changes: tuple[str, ...], file: str | None, if_version: int | None
) -> None:
    """Change a job: only the given fields change; null resets a field to its default."""
    patch: dict[str, Any] = {}
    if file is not None:
        documents = read_documents(file)
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise ConfigurationError(f"{shown(file)} must contain one object.")
        patch = documents[0]
    for change in changes:
        _set(patch, *_split(change, "=", "--set"))
    if not patch:
        raise click.UsageError("Give --set or --file.")
    job_id = job_id_of(session.client, job)
    print_job(session, session.client.jobs.update(job_id, patch, version=if_version))


def _set(patch: dict[str, Any], path: str, value: str) -> None:
    *outer, last = path.split(".")
    for key in outer:
        patch = patch.setdefault(key, {})
        if not isinstance(patch, dict):
            raise click.UsageError(f"--set {path}: {key} already has a value.")
    patch[last] = json_or_text(value)


def _selection_options(command: F) -> F:
    for option in (
        click.option(
            "--background",
            is_flag=True,
            help="With a selection: run it on the server, and print the id of the operation.",
        ),
        click.option("--all", "everything", is_flag=True, help="All jobs of all tenants."),
        click.option("--label", help="All jobs with this label: name:value."),
        click.option("--queue", help="All jobs in this queue."),
        click.option("--tenant", help="All jobs of this tenant."),
    ):
        command = option(command)
    return command


@jobs_command.command("pause")
@click.argument("jobs", nargs=-1)
@_selection_options
@click.option("--reason", help="Shown by explain and in the audit trail.")
@click.option("--until", type=Instant(), help="Resume the jobs at this time (RFC 3339).")
@remote
def pause_command(
    session: Session,
    jobs: tuple[str, ...],
    reason: str | None,
    until: datetime | None,
    **options: Any,
) -> None:
    """Pause jobs: no further runs start until they are resumed.

    Name the JOBS, or select them: --tenant, --queue and --label can be combined.
    """
    selected = _selection(jobs, options)
    if selected is None:
        pause = partial(session.client.jobs.pause, reason=reason, until=until)
        _on_each(session, jobs, pause, "Paused")
        return
    if options["background"]:
        start_operation(session, "pause", selected, reason=reason, until=until)
        return

    def step(token: str | None) -> _Step:
        paused = session.client.jobs.pause_many(
            **selected, reason=reason, until=until, page_token=token
        )
        return paused.paused, paused.left, paused.next_page_token

    _on_all(session, step, "paused")


@jobs_command.command("resume")
@click.argument("jobs", nargs=-1)
@_selection_options
@click.option("--reason", help="Only jobs that were paused with exactly this reason.")
@remote
def resume_command(
    session: Session, jobs: tuple[str, ...], reason: str | None, **options: Any
) -> None:
    """Resume paused jobs. Runs missed while they were paused are not made up.

    Name the JOBS, or select them: --tenant, --queue, --label and --reason can be combined.
    """
    selected = _selection(jobs, options | {"everything": options["everything"] or bool(reason)})
    if selected is None:
        _on_each(session, jobs, session.client.jobs.resume, "Resumed")
        return
    if options["background"]:
        start_operation(session, "resume", selected | {"paused_reason": reason})
        return

    def step(token: str | None) -> _Step:
        resumed = session.client.jobs.resume_many(**selected, reason=reason, page_token=token)
        return resumed.resumed, resumed.left, resumed.next_page_token

    _on_all(session, step, "resumed")


def _selection(jobs: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The filter of a bulk change; None if the jobs are named."""
    chosen = {
        name: options[name] for name in ("tenant", "queue", "label") if options[name] is not None
    }
    if bool(jobs) == (bool(chosen) or options["everything"]):
        raise click.UsageError(
            "Name jobs, or select them with --tenant, --queue, --label or --all."
        )
    if jobs and options["background"]:
        raise click.UsageError("--background applies to selected jobs, not to named ones.")
    if jobs:
        return None
    if "tenant" in chosen:
        chosen["tenant_id"] = chosen.pop("tenant")
    return chosen


_Step = tuple[int, int, str | None]  # changed, not changed, and the token to continue with


def _on_all(session: Session, step: Callable[[str | None], _Step], done: str) -> None:
    """Change jobs a thousand at a time, and report progress."""
    changed, left, token = step(None)
    with Progress(f"Jobs {done}") as progress:
        while token is not None:
            progress.show(changed)
            more, more_left, token = step(token)
            changed, left = changed + more, left + more_left
    if session.as_json:
        print_json({done: changed, "left": left})
    else:
        say(f"{counted(changed, 'job')} {'was' if changed == 1 else 'were'} {done}.")
    if left:
        subject, them = (
            ("1 job was not changed: it is", "it")
            if left == 1
            else (f"{left:,} jobs were not changed: they are", "them")
        )
        say(f"{subject} queued or running, or another request was changing {them}.")
        raise SystemExit(REFUSED)


@jobs_command.command("delete")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--cancel-running", is_flag=True, help="Cancel running executions.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@remote
def delete_command(
    session: Session, jobs: tuple[str, ...], cancel_running: bool, yes: bool
) -> None:
    """Delete jobs. Running executions finish unless --cancel-running is given."""
    which = f"the job {jobs[0]}" if len(jobs) == 1 else f"these {len(jobs)} jobs: {', '.join(jobs)}"
    confirm(f"Delete {which}?", yes)

    def delete(job_id: str) -> Job:
        return session.client.jobs.delete(job_id, cancel_running=cancel_running)

    _on_each(session, jobs, delete, "Deleted")


def _on_each(session: Session, jobs: Sequence[str], act: Callable[[str], Job], done: str) -> None:
    changed = []
    job_ids = [
        job_id_of(session.client, job) for job in jobs
    ]  # so that a wrong name changes nothing
    try:
        for job_id in job_ids:
            changed.append(act(job_id))
            if not session.as_json:
                say(f"{done} {changed[-1].name}.")
                click.echo(job_id)
    finally:
        if session.as_json:
            print_json(changed)


@jobs_command.command("run")
@click.argument("job")
@click.option("--body", help="Request body for this run only, of a webhook: JSON or text.")
@click.option("--payload", help="Payload for this run only, of a task: JSON or text.")
@remote
def run_command(session: Session, job: str, body: str | None, payload: str | None) -> None:
    """Run a job now. Prints the id of the execution."""
    requested = session.client.jobs.run(
        job_id_of(session.client, job), body=json_or_text(body), payload=json_or_text(payload)
    )
    if session.as_json:
        print_json(requested)
        return
    for execution_id in requested.execution_ids:
        click.echo(execution_id)
    say(f"See it with: hourbell executions get {requested.execution_ids[0]}")


@jobs_command.command("explain")
@click.argument("job")
@remote
def explain_command(session: Session, job: str) -> None:
    """Show what a job is waiting for."""
    job_id = job_id_of(session.client, job)
    print_explanation(session, session.client.jobs.explain(job_id))


def print_explanation(session: Session, explanation: Explanation) -> None:
    """Print what a job or an execution is waiting for."""
    if session.as_json:
        print_json(explanation)
        return
    blocker, holder, last = explanation.blocked_by, explanation.holder, explanation.last_due
    print_fields(
        (
            ("Waiting for", explanation.code),
            ("Why", explanation.message),
            ("Since", instant_text(explanation.since)),
            ("Until", instant_text(explanation.until)),
            ("Expected", instant_text(explanation.expected_at)),
            ("Execution", explanation.execution_id),
            (
                "Blocked by",
                None if blocker is None else f"{blocker.execution_id} of {blocker.job_id}",
            ),
            (
                "In use",
                f"{holder.in_use} of {holder.limit}"
                if holder is not None and holder.limit is not None
                else None,
            ),
            (
                "Last due",
                None if last is None else f"{instant_text(last.scheduled_for)}: {last.message}",
            ),
        )
    )


@jobs_command.command("next")
@click.argument("job")
@click.option("--count", type=click.IntRange(1, 100), default=10, show_default=True)
@remote
def next_command(session: Session, job: str, count: int) -> None:
    """List the next runs of a job."""
    runs = session.client.jobs.next_runs(job_id_of(session.client, job), count=count)
    if session.as_json:
        print_json(runs)
        return
    for warning in runs.warnings:
        say(f"Warning: {warning.path}: {warning.message}")
    if not runs.items:
        say("No run is scheduled: the job is paused or has ended.")
        return
    rows = (
        (_utc(run.scheduled_for), instant_text(run.scheduled_for), run.note or "")
        for run in runs.items
    )
    print_table((Column("UTC"), Column("LOCAL"), Column("NOTE", shrinks_to=20)), rows)


def _utc(instant: datetime) -> str:

    return instant_text(instant.astimezone(UTC))
