"""Import jobs from other schedulers. Input is parsed, never executed.

Each module reads one format: `crontab`, `celery` (beat), `k8s` (CronJobs), `eventbridge`. Nothing is dropped silently: whatever
cannot be imported becomes a note, written as a comment in the resulting file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hourbell.model.jobs import MAX_NAME

COMMAND_TASK = "shell"
RUNS_A_COMMAND = (
    f"runs a command: a worker must serve the task `{COMMAND_TASK}` and run payload.command"
)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]+")


class Imported(msgspec.Struct, frozen=True):
    """One job, and notes on what could not be imported."""

    document: dict[str, Any]
    notes: Sequence[str] = ()
    is_usable: bool = True  # False: written only as a comment


class Import(msgspec.Struct, frozen=True):
    """All jobs in a file, and notes about the file as a whole."""

    jobs: Sequence[Imported]
    notes: Sequence[str] = ()


class NotReadable(Exception):
    """The file does not have the expected format; the message says why."""


def job_name(text: str) -> str:
    """Turn any text into a job name."""
    return _NOT_IN_NAMES.sub("-", text).strip("-.")[:MAX_NAME] or "job"


def with_distinct_names(jobs: Iterable[Imported]) -> list[Imported]:
    """The same jobs; a duplicate name gets a number."""
    taken: set[str] = set()
    distinct = []
    for job in jobs:
        name = original = job.document["name"]
        number = 1
        while name in taken:
            number += 1
            name = f"{original[: MAX_NAME - 6]}-{number}"
        taken.add(name)
        distinct.append(msgspec.structs.replace(job, document={**job.document, "name": name}))
    return distinct
