"""Checked jobs as they are stored."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

import msgspec

from hourbell.engine.codes import notifies
from hourbell.model.jobs import NewJob, OnDuplicate, encode_job
from hourbell.model.policies import Delivery, Priority
from hourbell.model.schedules import Once

UNIQUE_KEY, NAME = range(2)  # namespaces of unique keys


class RunSettings(msgspec.Struct, frozen=True, gc=False):
    """The settings that a one-time job runs with. A batch has many jobs and few distinct ones."""

    queue: str
    target: str
    priority: Priority
    delivery: Delivery
    start_seconds: int | None
    finish_seconds: int | None
    key: int | None  # the concurrency key
    key_limit: int
    notifies: int


class RequestRow(msgspec.Struct, frozen=True, eq=False):
    """What is stored with the jobs of one request."""

    tenant: str  # the owner of the idempotency key
    actor: str
    key: str | None = None  # None: no answer is stored
    fingerprint: bytes = b""
    answer: str | None = None


class JobRow(msgspec.Struct, frozen=True, gc=False):
    """A checked job as it will be stored. It is small: a batch has many."""

    job_id: int
    request: RequestRow
    tenant: str
    at: datetime | None  # None: the job is recurring
    settings: RunSettings
    spec: bytes  # its JSON
    unique: tuple[int, str] | None  # its unique key, with the namespace of the key
    on_duplicate: OnDuplicate
    recurring: NewJob | None

    @property
    def unique_key(self) -> tuple[object, ...] | None:
        """Its unique key among all jobs."""
        return None if self.unique is None else (self.tenant, *self.unique)


def job_row(job_id: int, job: NewJob, request: RequestRow, name: str | None = None) -> JobRow:
    """The row of a job. `name`: set for a PUT, where the job is unique by this name."""
    unique = None
    if name is not None:
        unique = NAME, name
    elif job.unique_key is not None:
        unique = UNIQUE_KEY, job.unique_key
    at = job.schedule.at if isinstance(job.schedule, Once) else None
    return JobRow(
        job_id,
        request,
        job.tenant_id,
        at,
        RunSettings(
            job.queue,
            job.target,
            job.priority,
            job.delivery,
            job.start_deadline_seconds,
            job.deadline_seconds,
            None if job.concurrency_key is None else key_number(job),
            job.concurrency_limit,
            notifies(job) if job.notifications else 0,
        ),
        encode_job(job),
        unique,
        job.on_duplicate,
        job if at is None else None,
    )


def active_since(job: NewJob, now: datetime) -> datetime:
    """The start of a job's first membership: occurrences up to here are not the job's."""
    if job.window.starts_at is None:
        return now
    # An occurrence at starts_at itself counts, but a membership excludes its `active_since`.
    return max(now, job.window.starts_at - timedelta(microseconds=1))


def key_number(job: NewJob) -> int | None:
    """The number of a job's concurrency key: a hash, so that no registry is needed.

    `hourbell.key_number` computes the same in SQL, which has SHA-256.
    """
    if job.concurrency_key is None:
        return None
    named = f"{job.tenant_id}\0{job.concurrency_key}".encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8]) >> 1
