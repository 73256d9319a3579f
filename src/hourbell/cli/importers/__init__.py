"""Jobs of other schedulers, as jobs of Hourbell. Nothing that is read is executed.

Each module reads one format: `crontab`, `celery` (beat), `k8s` (CronJobs), `eventbridge`. What cannot be carried over is never dropped without a word: it
becomes a note, which is a comment in the resulting file.
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
    """One job, and what could not be carried over."""

    document: dict[str, Any]
    notes: Sequence[str] = ()
    is_usable: bool = True  # False: written as a comment only


class Import(msgspec.Struct, frozen=True):
    """All jobs of a file, and notes about the file as a whole."""

    jobs: Sequence[Imported]
    notes: Sequence[str] = ()


class NotReadable(Exception):
    """The file is not of the expected format; the message says why."""


def job_name(text: str) -> str:
    """A name made of any text."""
    return _NOT_IN_NAMES.sub("-", text).strip("-.")[:MAX_NAME] or "job"


def with_distinct_names(jobs: Iterable[Imported]) -> list[Imported]:
    """The same jobs; a name that was taken gets a number."""
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
