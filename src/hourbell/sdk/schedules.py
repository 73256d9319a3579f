"""The schedules that tasks declare, as the manifest that a worker opens its session with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from hourbell.errors import ConfigurationError, InvalidArguments
from hourbell.model.manifests import MAX_MANIFEST_BYTES, Manifest
from hourbell.sdk.app import App
from hourbell.sdk.tasks import Task, encode_options
from hourbell.sdk.values import Schedule

# Options of `hourbell.try_enqueue` that have the same name in a job.
_SHARED = (
    "queue",
    "priority",
    "timeout_seconds",
    "retry_policy",
    "delivery",
    "deadline_seconds",
    "concurrency_key",
    "concurrency_limit",
    "labels",
)


def manifest_of(app: App, revision: int | None) -> Manifest:
    """What an app declares in code; raises ConfigurationError. App(revision=…) takes precedence."""
    schedules: dict[str, dict[str, Any]] = {}
    tasks = set(app.tasks.values())  # a task has one entry per alias
    for task in tasks:
        for schedule in task.options.schedule:
            key = _key(task, schedule)
            if key in schedules:
                raise ConfigurationError(
                    f"{task.name} has two schedules with the key {schedule.key!r}. Give each its own key=."
                )
            schedules[key] = _document(task, schedule)
    return Manifest(
        app=app.name,
        revision=revision if app.revision is None else app.revision,
        tasks=_tasks(tasks),
        schedules=schedules,
    )


def _tasks(tasks: Collection[Task[..., Any]]) -> dict[str, dict[str, Any]]:
    """What jobs of the tasks have that are created without the library (`engine/declarations.py`)."""
    declared = {task.name: _declared(task) for task in tasks}
    if len(msgspec.json.encode(declared)) > MAX_MANIFEST_BYTES // 2:
        for one in declared.values():  # left to the workers
            one.pop("arguments", None)
    return declared


def _declared(task: Task[..., Any]) -> dict[str, Any]:
    declared: dict[str, Any] = {"aliases": task.aliases}
    if job := _shared(msgspec.json.decode(encode_options(task, {}))):
        declared["job"] = job
    unique = task.options.unique
    if unique is not None and unique.key is None:  # a function runs only here
        declared["unique"] = {"on_duplicate": unique.on_duplicate, "scope": unique.scope}
    # Arguments of an older version are upgraded by the worker.
    arguments = task._signature.schema() if task.options.upgrade is None else None
    if arguments is not None:
        declared["arguments"] = arguments
    return declared


def _shared(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `hourbell.try_enqueue` as fields of a job."""
    fields = {name: options[name] for name in _SHARED if name in options}
    if "expires_in_seconds" in options:
        fields["start_deadline_seconds"] = options["expires_in_seconds"]
    return fields


def _key(task: Task[..., Any], schedule: Schedule) -> str:
    """The name of a schedule in its app."""
    if schedule.key is not None:
        return f"{task.name}#{schedule.key}"
    if len(task.options.schedule) > 1:
        raise ConfigurationError(
            f'{task.name} has several schedules. Give each a key=, such as cron(…, key="daily"), so that'
            " a change to one is not mistaken for another."
        )
    return task.name


def _document(task: Task[..., Any], schedule: Schedule) -> dict[str, Any]:
    """The job of a schedule, as a document for the API."""
    options = msgspec.json.decode(encode_options(task, {}))
    try:
        payload = msgspec.json.decode(task._signature.payload((), schedule.args))
    except InvalidArguments as error:
        why = str(error).removesuffix(" Nothing was enqueued.")
        raise ConfigurationError(f"The args= of a schedule do not fit its task. {why}") from None
    if schedule.cron is not None:
        when: dict[str, Any] = {
            "cron": schedule.cron,
            "timezone": schedule.timezone,
            "dst_gap": schedule.gap,
            "dst_overlap": schedule.repeated,
        }
    else:
        when = {"every_seconds": schedule.every_seconds}
    if schedule.jitter_seconds:
        when["jitter_seconds"] = schedule.jitter_seconds
    if schedule.exclude:
        when["exclude"] = list(schedule.exclude)
    if schedule.starts_at is not None:
        when["starts_at"] = schedule.starts_at.isoformat()
    if schedule.ends_at is not None:
        when["ends_at"] = schedule.ends_at.isoformat()
    return {
        "type": "RECURRING",
        "tenant_id": options["tenant"],
        "schedule": when,
        "action": {"type": "TASK", "name": task.name, "payload": payload},
        "misfire_policy": schedule.misfire.value,
        "overlap_policy": schedule.overlap.value,
        **_shared(options),
        **({"notifications": list(schedule.notifications)} if schedule.notifications else {}),
    }
