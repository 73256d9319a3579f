"""Plans `hourbell apply`: compares the jobs in a file with those on a server. No I/O.

An applied job has two labels: its owner, by which it is found, and a digest of the applied
definition. The digest tells a change of the file from a change made elsewhere (drift).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from hourbell.cli.files import with_type
from hourbell.client import Job, NewJob, Queue
from hourbell.documents.jobs import definition, parse_new_job
from hourbell.documents.render import without_credentials
from hourbell.engine.declarations import DeclaredTask, task_of
from hourbell.model.errors import InvalidInput
from hourbell.model.jobs import LIVE_STATUSES, JobStatus

OWNER_LABEL = "hourbell.owner"
DIGEST_LABEL = "hourbell.applied"
_DIGEST_CHARACTERS = 16
_ANY_JOB = 0  # the id of the job is not known yet
_ENDED = frozenset(JobStatus) - LIVE_STATUSES
MAX_SHOWN = 60  # characters of a value shown in a plan

FieldChange = tuple[str, str, str]  # path, before, after


class Verb(StrEnum):
    """What happens to a job."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    KEEP = "keep"  # unchanged
    ORPHAN = "orphan"  # not in the file; kept unless --prune is given
    PASSED = "passed"  # a one-time job whose time has passed


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the file."""

    name: str
    document: Mapping[str, Any]  # what is sent to the server
    job: NewJob  # with all defaults, and credentials masked
    has_tenant: bool
    has_hidden: bool  # has credentials, which cannot be compared
    digest: str


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to one job, and why."""

    verb: Verb
    name: str
    fields: Sequence[FieldChange] = ()
    job_id: str | None = None
    version: int = 0  # of the job that the plan saw; 0: none
    drifted: bool = False  # changed on the server since it was applied
    wanted: Wanted | None = None
    note: str = ""


class InvalidJobs(Exception):
    """The file is not valid; the message lists every problem of every job."""


def read_wanted(
    documents: Sequence[Any],
    owner: str,
    now: datetime,
    queues: Mapping[str, Queue],
    tasks: Mapping[str, DeclaredTask],
) -> list[Wanted]:
    """The jobs in a file; raises InvalidJobs with every problem."""
    problems: list[str] = []
    wanted: list[Wanted] = []
    seen: set[tuple[object, object]] = set()
    for number, document in enumerate(documents, 1):
        name = document.get("name") if isinstance(document, dict) else None
        title = name if isinstance(name, str) and name.strip() else f"job {number}"
        try:
            one = _read_one(document, owner, now, queues, tasks)
        except InvalidInput as error:
            problems += [
                f"{title}: {one.path or 'document'}: {one.message}" for one in error.errors
            ]
            continue
        except ValueError as error:
            problems.append(f"{title}: {error}")
            continue
        key = document.get("tenant_id"), one.name
        if key in seen:
            problems.append(f"{title}: appears twice")
        seen.add(key)
        wanted.append(one)
    if problems:
        raise InvalidJobs("\n".join(problems))
    return wanted


def _read_one(
    document: Any,
    owner: str,
    now: datetime,
    queues: Mapping[str, Queue],
    tasks: Mapping[str, DeclaredTask],
) -> Wanted:
    if not isinstance(document, dict):
        raise ValueError("must be an object with the fields of a job")
    if "unique_key" in document:
        raise ValueError("unique_key: not allowed here, because job names are already unique")
    schedule = document.get("schedule")
    if isinstance(schedule, dict) and "delay_seconds" in schedule:
        raise ValueError("schedule.delay_seconds: would run again on every apply; use `at` instead")
    document = with_type(document)
    # The server completes the document in the same way.
    declared = tasks.get(task_of(document) or "")
    complete: Any = document if declared is None else declared.complete(document, has_name=True)
    parsed = parse_new_job(complete, now, _ANY_JOB)
    if "/" in parsed.name:
        raise ValueError("name: must not contain /, because the name is part of a URL")
    literal = definition(parsed)
    shown = without_credentials(definition(parsed))
    job = _with_queue_defaults(msgspec.convert(shown, NewJob), complete, queues)
    digest = digest_of(job)
    labels = {**(document.get("labels") or {}), OWNER_LABEL: owner, DIGEST_LABEL: digest}
    return Wanted(
        name=parsed.name,
        document={**document, "labels": labels},
        job=job,
        has_tenant="tenant_id" in document,
        has_hidden=literal != shown,
        digest=digest,
    )


def _with_queue_defaults(
    job: NewJob, document: Mapping[str, Any], queues: Mapping[str, Queue]
) -> NewJob:
    queue = queues.get(job.queue or "")
    if queue is None:
        return job
    if document.get("timeout_seconds") is None and queue.default_timeout_seconds is not None:
        job = msgspec.structs.replace(job, timeout_seconds=queue.default_timeout_seconds)
    retries = queue.default_retry_policy
    may_retry = job.delivery != "at_most_once"
    if document.get("retry_policy") is None and retries is not None and may_retry:
        job = msgspec.structs.replace(job, retry_policy=retries)
    return job


def digest_of(job: NewJob) -> str:
    """A digest of a definition, without the labels that `apply` adds."""
    fields = {name: getattr(job, name) for name in NewJob.__struct_fields__ if name != "tenant_id"}
    plain = NewJob(**{**fields, "labels": _own_labels(job)})
    encoded = msgspec.json.encode(plain, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:_DIGEST_CHARACTERS]


def _own_labels(job: NewJob) -> dict[str, str]:
    labels = dict(job.labels or {})
    return {name: labels[name] for name in labels if name not in (OWNER_LABEL, DIGEST_LABEL)}


def plan(
    wanted: Sequence[Wanted],
    current: Iterable[Job],
    now: datetime,
    prune: bool,
    default_tenant: str | None,
) -> list[Change]:
    """The changes that make the server match the file.

    `default_tenant` is the tenant of jobs that name none; None if `current` has only one tenant.
    """
    left = list(current)
    changes = []
    for one in wanted:
        found = _find(one, left, default_tenant)
        if found is not None:
            left.remove(found)
        changes.append(_change(one, found, now))
    for job in left:
        verb = Verb.DELETE if prune else Verb.ORPHAN
        if not has_ended(job):
            changes.append(Change(verb=verb, name=job.name, job_id=job.job_id, version=job.version))
    return changes


def has_ended(job: Job) -> bool:
    """Whether a job has no further run."""
    return job.status in _ENDED


def adopt(one: Wanted, job: Job) -> Change:
    """The change that adopts a job of this name that has no owner yet."""
    return Change(
        verb=Verb.UPDATE,
        name=one.name,
        fields=differences(job, one.job, with_tenant=one.has_tenant),
        job_id=job.job_id,
        version=job.version,
        wanted=one,
        note="adopt: it exists and has no owner",
    )


def _find(one: Wanted, jobs: Sequence[Job], default_tenant: str | None) -> Job | None:
    """The job with this name and tenant; one that has not ended is preferred."""
    tenant = one.job.tenant_id if one.has_tenant else default_tenant
    same = [job for job in jobs if job.name == one.name and tenant in (None, job.tenant_id)]
    return min(same, key=has_ended, default=None)


def _change(one: Wanted, found: Job | None, now: datetime) -> Change:
    at = one.job.schedule.at
    if at is not None and at <= now and (found is None or has_ended(found)):
        return Change(verb=Verb.PASSED, name=one.name, wanted=one)
    if found is None:
        return Change(verb=Verb.CREATE, name=one.name, wanted=one)
    applied = (found.labels or {}).get(DIGEST_LABEL)
    fields = differences(found, one.job, with_tenant=one.has_tenant)
    if not fields:
        verb = Verb.UPDATE if one.has_hidden else Verb.KEEP
        note = "has credentials, which cannot be compared" if one.has_hidden else ""
        if found.status == "PAUSED":
            note = "is paused"
        return Change(
            verb=verb,
            name=one.name,
            job_id=found.job_id,
            version=found.version,
            wanted=one,
            note=note,
        )
    if has_ended(found):
        return Change(
            verb=Verb.CREATE, name=one.name, wanted=one, note="the previous one has ended"
        )
    return Change(
        verb=Verb.UPDATE,
        name=one.name,
        fields=fields,
        job_id=found.job_id,
        version=found.version,
        drifted=applied not in (None, digest_of(found)),
        wanted=one,
    )


def differences(before: NewJob, after: NewJob, with_tenant: bool) -> list[FieldChange]:
    """The fields in which two definitions differ."""
    found: list[FieldChange] = []
    for name in NewJob.__struct_fields__:
        if name in ("unique_key", "on_duplicate") or (name == "tenant_id" and not with_tenant):
            continue
        old, new = getattr(before, name), getattr(after, name)
        if name == "labels":
            old, new = _own_labels(before), _own_labels(after)
        _compare(name, msgspec.to_builtins(old), msgspec.to_builtins(new), found)
    return found


def _compare(path: str, old: Any, new: Any, found: list[FieldChange]) -> None:
    if old in (None, {}, []) and new in (None, {}, []):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            _compare(f"{path}.{key}", old.get(key), new.get(key), found)
    elif old != new:
        found.append((path, _shown(old), _shown(new)))


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
