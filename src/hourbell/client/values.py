"""The values of the API: what is sent and what is returned, as frozen structs.

Fields have the names of the API. Those of requests that have their defaults are not sent. A choice, such as a status, is a `str`: a newer server may have
more of them than this client knows. A field that is None in a request has its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Generic, TypeVar

import msgspec

from hourbell.client.errors import FieldError

T = TypeVar("T")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a job runs. Made by `cron`, `every`, `at` or `delay`."""

    cron: str | None = None
    every_seconds: int | None = None
    at: datetime | None = None
    delay_seconds: int | None = None
    timezone: str | None = None  # an IANA name
    dst_gap: str | None = None  # run_after, skip
    dst_overlap: str | None = None  # once, twice
    jitter_seconds: int | None = None  # each job runs up to so much later, always by the same time
    exclude: tuple[str, ...] = ()  # names of calendars
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_runs: int | None = None

    @property
    def recurs(self) -> bool:
        return self.cron is not None or self.every_seconds is not None


def cron(rule: str, *, timezone: str | None = None, **fields: Any) -> Schedule:
    """By a cron rule of 5 or 6 fields, or a macro such as @daily."""
    return Schedule(cron=rule, timezone=timezone, **fields)


def every(seconds: int, **fields: Any) -> Schedule:
    """Every so many seconds, from `starts_at` or from the creation of the job."""
    return Schedule(every_seconds=seconds, **fields)


def at(instant: datetime) -> Schedule:
    """Once, at an instant."""
    return Schedule(at=instant)


def delay(seconds: int) -> Schedule:
    """Once, so many seconds after the creation of the job."""
    return Schedule(delay_seconds=seconds)


class Webhook(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="WEBHOOK", tag_field="type"
):
    """An HTTP request to a target."""

    url: str
    method: str | None = None
    headers: Mapping[str, str] | None = None
    body: Any = None
    signing_secret: str | None = None
    literal: bool = False  # the body contains `{{` that is not a secret
    secrets: str | None = None  # required, lazy


class Task(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="TASK", tag_field="type"
):
    """A handler of a worker, by name."""

    name: str
    payload: Any = None


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often and when a failed execution is attempted again."""

    max_retries: int | None = None
    backoff: str | None = None  # FIXED, LINEAR, EXPONENTIAL, EXPONENTIAL_WITH_JITTER, LIST
    initial_delay_seconds: int | None = None
    max_delay_seconds: int | None = None
    delays_seconds: Sequence[int] | None = None
    non_retryable: Sequence[str] | None = None
    retryable: Sequence[str] | None = None
    max_crashes: int | None = None


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A webhook that is called with the outcome of each run."""

    on: Sequence[str]
    url: str
    headers: Mapping[str, str] | None = None
    secrets: str | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The definition of a job."""

    name: str
    schedule: Schedule
    action: Webhook | Task
    tenant_id: str | None = None
    queue: str | None = None
    priority: str | None = None  # LOW, MEDIUM, HIGH, CRITICAL
    retry_policy: RetryPolicy | None = None
    timeout_seconds: int | None = None
    delivery: str | None = None  # at_least_once, at_most_once
    start_deadline_seconds: int | None = None
    deadline_seconds: int | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    unique_key: str | None = None
    on_duplicate: str | None = None  # reject, keep, replace
    labels: Mapping[str, str] | None = None
    notifications: Sequence[Notification] | None = None
    misfire_policy: str | None = None
    catch_up_window_seconds: int | None = None
    catch_up_limit: int | None = None
    overlap_policy: str | None = None


class JobWarning(msgspec.Struct, frozen=True):
    """Input that was accepted but is probably not intended."""

    path: str
    code: str
    message: str


class Job(NewJob, frozen=True, kw_only=True):
    """A job: its definition, with all defaults filled in, and its state."""

    job_id: str
    type: str  # ONE_TIME, RECURRING
    status: str
    version: int
    next_run_at: datetime | None  # in the time zone of the job
    created_at: datetime
    updated_at: datetime
    tenant_id: str
    queue: str
    priority: str
    retry_policy: RetryPolicy
    timeout_seconds: int
    delivery: str
    labels: Mapping[str, str]
    notifications: Sequence[Notification]
    warnings: Sequence[JobWarning] = ()


class CreatedJob(msgspec.Struct, frozen=True):
    """One job of a batch that was created, or kept."""

    job_id: str


class RefusedJob(msgspec.Struct, frozen=True):
    """One job of a batch that was refused."""

    code: str
    detail: str
    errors: Sequence[FieldError] = ()


class Requested(msgspec.Struct, frozen=True):
    """The executions that a request created."""

    execution_ids: Sequence[str]


class NextRun(msgspec.Struct, frozen=True):
    """One upcoming run."""

    scheduled_for: datetime  # in the time zone of the job
    note: str | None  # the effect of a DST change


class NextRuns(msgspec.Struct, frozen=True):
    """The upcoming runs of a job."""

    items: Sequence[NextRun]
    warnings: Sequence[JobWarning] = ()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try of an execution."""

    attempt: int
    status: str
    started_at: datetime
    finished_at: datetime | None
    error: str | None
    kind: str | None  # of the failure: timeout, http_503, the name of an exception
    fence_token: int | None
    worker_id: str | None


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job, over all its attempts."""

    execution_id: str
    job_id: str
    job_name: str | None
    tenant_id: str
    queue: str | None
    origin: str
    created_at: datetime
    status: str
    reason: str | None
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None
    duration_ms: int | None
    attempt: int
    fence_token: int | None
    worker_id: str | None
    lateness_ms: int | None
    missed: int | None
    missed_through: datetime | None
    error: str | None
    result: Any
    progress: Any
    attempts: Sequence[Attempt]  # empty in lists


class BlockedBy(msgspec.Struct, frozen=True):
    """The execution that another one waits for."""

    execution_id: str
    job_id: str


class Explanation(msgspec.Struct, frozen=True):
    """The one thing that a job or an execution waits for."""

    code: str
    message: str
    until: datetime | None  # when that changes without intervention
    execution_id: str | None
    blocked_by: BlockedBy | None


class AuditEntry(msgspec.Struct, frozen=True, rename={"before": "from", "after": "to"}):
    """One change and its actor."""

    at: datetime
    tenant_id: str
    job_id: str | None
    actor: str
    operation: str
    before: Any
    after: Any


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that will not be retried."""

    execution_id: str
    job_id: str
    tenant_id: str
    died_at: datetime
    reason: str
    error: str | None
    scheduled_for: datetime
    attempt: int
    attempts: Sequence[Attempt]  # empty in lists
    job: Mapping[str, Any] | None  # None in lists


class Replayed(msgspec.Struct, frozen=True):
    """The result of a bulk replay."""

    replayed: int
    left: int  # could not be replayed
    last_run_at: datetime | None
    next_page_token: str | None


class BulkPaused(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a pause of many jobs did."""

    paused: int
    left: int  # jobs that another request was changing; a new pass over all jobs tries them again
    next_page_token: str | None = None  # None: all jobs have been visited


class BulkResumed(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a resumption of many jobs did."""

    resumed: int
    left: int  # as for BulkPaused
    next_page_token: str | None = None


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """A named list of dates that schedules can exclude."""

    name: str
    tenant_id: str
    dates: tuple[date, ...]
    created_at: datetime
    updated_at: datetime


class Purged(msgspec.Struct, frozen=True):
    """The result of a purge."""

    purged: int
    next_page_token: str | None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rate at which executions may start."""

    per_second: float
    burst: int | None = None


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a tenant."""

    weight: float | None = None
    max_jobs: int | None = None
    max_concurrency: int | None = None
    rate_limit: RateLimit | None = None
    ledger_days: int | None = None
    dead_letter_days: int | None = None
    audit_days: int | None = None


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a queue."""

    max_concurrency: int | None = None
    rate_limit: RateLimit | None = None
    default_timeout_seconds: int | None = None
    default_retry_policy: RetryPolicy | None = None


class TargetSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a target host."""

    max_concurrency: int | None = None
    rate_limit: RateLimit | None = None


Counts = Mapping[str, Any]  # by name; `at_least` lists the names of lower bounds


class Tenant(TenantSettings, frozen=True, kw_only=True):
    """A tenant, with its current counts."""

    tenant_id: str
    counts: Counts | None = None  # None in lists


class Queue(QueueSettings, frozen=True, kw_only=True):
    """A queue, with its current counts."""

    queue: str
    counts: Counts | None = None  # None in lists


class Target(TargetSettings, frozen=True, kw_only=True):
    """A target host, with its current counts."""

    host: str
    counts: Counts | None = None  # None in lists


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key, without its secret."""

    key_id: str
    name: str
    role: str
    tenant_id: str | None  # None: all tenants
    created_at: datetime
    revoked_at: datetime | None


class MadeKey(Key, frozen=True, kw_only=True):
    """A new API key. `key` is None if the response that contained it was lost."""

    key: str | None


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret, without its value."""

    name: str
    tenant_id: str
    created_at: datetime
    updated_at: datetime
    previous_until: datetime | None


class StoredSecret(Secret, frozen=True, kw_only=True):
    """A secret that was set. `value` is the generated one, if there is one; shown once."""

    value: str | None


class Monitor(msgspec.Struct, frozen=True, kw_only=True):
    """A dead man's switch of a job."""

    monitor_id: str
    job_id: str
    tenant_id: str
    grace_seconds: int
    url: str
    headers: Mapping[str, str]
    status: str  # UP, DOWN
    expected_at: datetime | None
    last_success_at: datetime | None
    down_since: datetime | None
    created_at: datetime


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Executions whose common end is reported by one callback."""

    group_id: str
    tenant_id: str
    name: str
    url: str | None  # None: the callback is a task
    headers: Mapping[str, str]
    task: str | None
    members: int
    ended: Mapping[str, int]  # how many members are known to have ended, by their fate
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None
    execution_id: str | None  # of the callback
    problem: str | None  # why the callback cannot be created at present


class Minute(msgspec.Struct, frozen=True):
    """The executions that are due in one minute."""

    at: datetime
    executions: int


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The executions that are due, by minute."""

    begins_at: datetime
    ends_at: datetime
    complete_until: datetime
    estimated: bool
    minutes: Sequence[Minute]  # only those in which executions are due


class Readiness(msgspec.Struct, frozen=True):
    """Whether every part of a server works."""

    status: str  # ready, not_ready
    checks: Mapping[str, bool]


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: Sequence[T]
    next_page_token: str | None  # None at the end of the list
