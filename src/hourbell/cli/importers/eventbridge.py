"""Amazon EventBridge: schedules (`aws scheduler get-schedule`) and rules (`aws events list-rules`), as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hourbell.cli.importers import Import, Imported, NotReadable, job_name, with_distinct_names

_EXPRESSION = re.compile(r"(cron|rate|at)\((.*)\)")
_RATE = re.compile(r"(\d+)\s+(minute|hour|day)s?")
_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400}
_DAY_NUMBER = re.compile(r"(?<![#/\w])([1-7])(?![0-9])")
_LISTS = ("Schedules", "Rules")
_MAX_RETRIES = 100


def read_schedules(documents: Sequence[Any]) -> Import:
    """The schedules and rules in a file."""
    jobs: list[Imported] = []
    notes: list[str] = []
    for entry in _entries(documents):
        if entry.get("ScheduleExpression"):
            jobs.append(_job(entry))
        elif entry.get("EventPattern"):
            notes.append(f"{entry.get('Name')} reacts to events and has no schedule")
        else:
            notes.append(f"{entry.get('Name')} has no expression in this file: {_where(entry)}")
    if not jobs and not notes:
        raise NotReadable("it contains no schedule or rule (Name, ScheduleExpression)")
    return Import(with_distinct_names(jobs), notes)


def _entries(documents: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for document in documents:
        if isinstance(document, list):
            yield from _entries(document)
        elif isinstance(document, dict):
            for key in _LISTS:
                yield from _entries(document.get(key) or [])
            if "Name" in document:
                yield document


def _where(entry: dict[str, Any]) -> str:
    """Where to get the expression of a schedule; `aws scheduler list-schedules` omits it."""
    group = f" --group-name {entry['GroupName']}" if entry.get("GroupName") else ""
    return f"use `aws scheduler get-schedule --name {entry.get('Name')}{group}`"


def _job(entry: dict[str, Any]) -> Imported:
    name = job_name(str(entry["Name"]))
    notes: list[str] = []
    timezone = str(entry.get("ScheduleExpressionTimezone") or "UTC")
    schedule = _schedule(str(entry["ScheduleExpression"]).strip(), timezone, notes)
    usable = schedule is not None
    schedule = schedule or {"cron": str(entry["ScheduleExpression"])}
    if timezone != "UTC":
        schedule["timezone"] = timezone
    for key, field in (("StartDate", "starts_at"), ("EndDate", "ends_at")):
        if entry.get(key) and "at" not in schedule:
            schedule[field] = str(entry[key])
    targets = entry.get("Targets") or ([entry["Target"]] if entry.get("Target") else [])
    document: dict[str, Any] = {
        "name": name,
        "schedule": schedule,
        "action": _action(name, targets, notes),
    }
    retries = (targets[0].get("RetryPolicy") or {}) if targets else {}
    if "MaximumRetryAttempts" in retries:
        document["retry_policy"] = {
            "max_retries": min(int(retries["MaximumRetryAttempts"]), _MAX_RETRIES)
        }
        if int(retries["MaximumRetryAttempts"]) > _MAX_RETRIES:
            notes.append(
                f"{retries['MaximumRetryAttempts']} retries: the maximum here is {_MAX_RETRIES}"
            )
    if "MaximumEventAgeInSeconds" in retries:
        document["deadline_seconds"] = int(retries["MaximumEventAgeInSeconds"])
    if targets and targets[0].get("DeadLetterConfig"):
        notes.append("has a dead-letter queue: Hourbell keeps dead letters itself (`hourbell dlq`)")
    window = entry.get("FlexibleTimeWindow") or {}
    if window.get("Mode") == "FLEXIBLE":
        minutes = window.get("MaximumWindowInMinutes")
        notes.append(f"may start up to {minutes} minutes later: here it starts on time")
    if entry.get("State") == "DISABLED":
        notes.append(f"is disabled: after apply, run `hourbell jobs pause {name}`")
    return Imported(document, [f"{entry['Name']}: {note}" for note in notes], usable)


def _schedule(expression: str, timezone: str, notes: list[str]) -> dict[str, Any] | None:
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        notes.append(f"cannot read the schedule {expression}")
        return None
    kind, inner = match.groups()
    if kind == "at":
        return {
            "at": f"{inner}Z" if timezone == "UTC" else inner
        }  # otherwise a wall time of the zone
    if kind == "rate":
        rate = _RATE.fullmatch(inner.strip())
        if rate is None:
            notes.append(f"cannot read the rate {expression}")
            return None
        return {"every_seconds": int(rate[1]) * _SECONDS[rate[2]]}
    fields = inner.split()
    if len(fields) != 6:
        notes.append(f"{expression} does not have six fields")
        return None
    *five, year = fields
    if year not in ("*", "?"):
        notes.append(f"the year {year} is not carried over: set starts_at and ends_at")
    # Amazon numbers the days of the week from 1 for Sunday; here Sunday is 0.
    five[4] = _DAY_NUMBER.sub(lambda day: str(int(day[1]) - 1), five[4])
    return {"cron": " ".join("*" if field == "?" else field for field in five)}


def _action(name: str, targets: Sequence[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    if not targets:
        notes.append(f"has no target in this file: a worker must serve the task `{name}`")
        return {"type": "TASK", "name": name}
    if len(targets) > 1:
        notes.append(f"has {len(targets)} targets: only the first is carried over")
    arn = str(targets[0].get("Arn", ""))
    notes.append(f"calls {arn}: a worker must serve the task `{name}`, or call a webhook instead")
    action: dict[str, Any] = {"type": "TASK", "name": name}
    if targets[0].get("Input") is not None:
        action["payload"] = _payload(targets[0]["Input"])
    if "<aws." in json.dumps(action):
        notes.append("its input has <aws.…> placeholders, which Hourbell does not fill in")
    return action


def _payload(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
