"""The values that are sent to the API and returned by it, as frozen structs.

Fields have the same names as in the API. Request fields that have their defaults are not sent. A choice, such as a status, is a `str`, because
a newer server may have values that this client does not know. None in a request means the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Generic, TypeVar

import msgspec

from hourbell.client.errors import FieldError

T = TypeVar("T")


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a job runs. Create one with `cron`, `every`, `at` or `delay`."""

    cron: str | None = None
    every_seconds: int | None = None
    at: datetime | None = None
    delay_seconds: int | None = None
    timezone: str | None = None  # an IANA name
    dst_gap: str | None = None  # run_after, skip
    dst_overlap: str | None = None  # once, twice
    jitter_seconds: int | None = (
        None  # each job runs up to this much later, always by the same time
    )
    exclude: tuple[str, ...] = ()  # names of calendars
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_runs: int | None = None

    @property
    def recurs(self) -> bool:
        return self.cron is not None or self.every_seconds is not None


def cron(rule: str, *, timezone: str | None = None, **fields: Any) -> Schedule:
    """A schedule by a cron rule of 5 or 6 fields, or a macro such as @daily."""
    return Schedule(cron=rule, timezone=timezone, **fields)


def every(seconds: int, **fields: Any) -> Schedule:
    """A schedule by an interval, counted from `starts_at` or from the creation of the job."""
    return Schedule(every_seconds=seconds, **fields)


def at(instant: datetime) -> Schedule:
    """Once, at an instant."""
    return Schedule(at=instant)


def delay(seconds: int) -> Schedule:
    """Once, this many seconds after the job is created."""
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
    """A task that workers serve, by name."""

    name: str
    payload: Any = None


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often and when a failed execution is retried."""

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


class PauseDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which actor paused a job, why, and until when."""

    by: str
    at: datetime
    reason: str | None
    until: datetime | None


class LastOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One of the latest executions of a job."""

    execution_id: str
    scheduled_for: datetime
    status: str
    reason: str | None


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
    schedule_words: str = ""  # when it runs, in plain English
    paused: PauseDetails | None = None
    last_outcomes: Sequence[LastOutcome] = ()  # newest first; only if requested
    warnings: Sequence[JobWarning] = ()
    problem: str | None = None  # what the server's version cannot read of the job
    # In the answer to its creation: whether naming its tenant or its queue created it.
    created_tenant: bool = False
    created_queue: bool = False


class CreatedJob(msgspec.Struct, frozen=True):
    """One job of a batch that was created or kept."""

    job_id: str
    created_tenant: bool = False  # whether naming its tenant created it
    created_queue: bool = False  # whether naming its queue created it


class RefusedJob(msgspec.Struct, frozen=True):
    """One job of a batch that was rejected."""

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


class PreviewedRun(msgspec.Struct, frozen=True):
    """One upcoming run of a schedule."""

    scheduled_for: datetime  # in the time zone of the schedule
    utc: datetime
    note: str | None  # the effect of a clock change or a calendar


class ClockChange(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a clock change in the time zone on a schedule."""

    at: datetime
    kind: str  # forward, back
    shift_seconds: int
    affected: bool
    note: str
    runs: Sequence[PreviewedRun]  # on that day, around the change


class SchedulePreview(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, explained."""

    words: str
    timezone: str
    items: Sequence[PreviewedRun]
    clock_changes: Sequence[ClockChange]
    hints: Sequence[JobWarning]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of an execution."""

    attempt: int
    status: str
    started_at: datetime
    finished_at: datetime | None
    error: str | None
    kind: str | None  # of the failure: timeout, http_503 or an exception name
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
    waiting_for: (
        str | None
    )  # a code of `Explanation`; None: it is running, awaits its target, or has ended
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
    """The execution that another one is waiting for."""

    execution_id: str
    job_id: str


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What holds the thing that an execution is waiting for."""

    execution_id: str | None
    job_id: str | None
    worker: str | None
    limit: int | None  # maximum executions at once
    in_use: int | None


class LastError(msgspec.Struct, frozen=True, kw_only=True):
    """How the latest finished attempt failed."""

    kind: str | None
    error: str | None
    at: datetime | None


class LastDue(msgspec.Struct, frozen=True, kw_only=True):
    """The last due occurrence of a job, if it ended without success."""

    execution_id: str
    scheduled_for: datetime
    status: str
    reason: str | None
    code: str
    message: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The one thing that a job or an execution is waiting for."""

    code: str
    message: str
    since: datetime | None = None
    until: datetime | None  # when that ends on its own
    expected_at: datetime | None = None  # when its holder is likely to end: an estimate
    execution_id: str | None
    blocked_by: BlockedBy | None
    holder: Holder | None = None
    attempt: int | None = None
    max_attempts: int | None = None
    last_error: LastError | None = None
    paused: PauseDetails | None = None
    last_due: LastDue | None = None  # for a recurring job


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
    job_name: str | None = None  # when it died
    tenant_id: str
    died_at: datetime
    reason: str
    kind: str | None = None  # of the last failure: timeout, http_503 or an exception name
    error: str | None
    fingerprint: str = ""  # the same for errors that differ only in numbers and ids
    scheduled_for: datetime
    attempt: int
    attempts: Sequence[Attempt]  # empty in lists
    job: Mapping[str, Any] | None  # None in lists


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same error."""

    fingerprint: str
    count: int
    reason: str
    kind: str | None
    action: str | None  # the host of a webhook, or the name of a task
    error: str | None  # of the newest one
    execution_id: str  # of the newest one
    first_died_at: datetime
    last_died_at: datetime
    jobs: int
    tenants: Sequence[str]


class DeadLetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups with the most dead letters, among those that were examined."""

    items: Sequence[DeadLetterGroup]
    looked_at: int
    looked_back_to: datetime | None
    complete: bool


class LeftReason(msgspec.Struct, frozen=True):
    """Why some of the selected items were not changed."""

    code: str
    count: int


class Replayed(msgspec.Struct, frozen=True):
    """The result of a bulk replay."""

    replayed: int
    left: int  # could not be replayed
    last_run_at: datetime | None
    next_page_token: str | None
    left_reasons: Sequence[LeftReason] = ()


class BulkPaused(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call that pauses many jobs."""

    paused: int
    left: int  # jobs that another request was changing; another pass over all jobs retries them
    next_page_token: str | None = None  # None: all jobs were visited


class BulkResumed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one call that resumes many jobs."""

    resumed: int
    left: int  # as for BulkPaused
    next_page_token: str | None = None


class OperationPreview(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk operation would apply to."""

    act: str
    filter: Mapping[str, Any]
    total: int
    at_least: bool  # there may be more
    words: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk operation and its progress."""

    operation_id: str
    act: str  # pause, resume, replay, purge
    filter: Mapping[str, Any]
    reason: str | None
    until: datetime | None
    rate_per_second: int | None
    tenant_id: str | None  # None: all tenants
    created_by: str
    created_at: datetime
    state: str  # RUNNING, STOPPED, DONE, FAILED
    total: int
    total_at_least: bool
    done: int
    left: int
    left_reasons: Sequence[LeftReason]
    error: str | None
    updated_at: datetime
    ended_at: datetime | None


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


class WaitingFor(msgspec.Struct, frozen=True, kw_only=True):
    """How many executions wait for one reason."""

    code: str
    words: str
    count: int
    at_least: bool  # the count is a lower bound


Counts = Mapping[str, Any]  # by name; `at_least` lists the names of lower bounds


class Tenant(TenantSettings, frozen=True, kw_only=True):
    """A tenant, with its current counts."""

    tenant_id: str
    version: int  # of its settings
    counts: Counts | None = None  # None in lists unless requested
    starts: int | None = None  # in the last hour; None unless listed by share
    share: float | None = None  # share of all starts,
    fair_share: float | None = None  # and the share that its weight entitles it to
    waiting_for: Sequence[WaitingFor] | None = None  # None in lists
    created_on_use: bool = False  # because a job named it, and not declared since


class Queue(QueueSettings, frozen=True, kw_only=True):
    """A queue, with its current counts."""

    queue: str
    version: int  # of its settings
    counts: Counts | None = None  # None in lists
    waiting_for: Sequence[WaitingFor] | None = None  # None in lists
    created_on_use: bool = False  # because a job named it, and not declared since


class Target(TargetSettings, frozen=True, kw_only=True):
    """A target host, with its current counts."""

    host: str
    version: int  # of its limits
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
    """A secret that was set. `value` is the generated value, if any; shown once."""

    value: str | None
    effective_at: datetime  # webhooks that begin later use the new value


class Monitor(msgspec.Struct, frozen=True, kw_only=True):
    """A dead man's switch for a job."""

    monitor_id: str
    job_id: str
    job_name: str | None = None
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
    """Executions with one callback when all of them have ended."""

    group_id: str
    tenant_id: str
    name: str
    url: str | None  # None: the callback is a task
    headers: Mapping[str, str]
    task: str | None
    members: int
    ended: Mapping[str, int]  # how many members are known to have ended, by fate
    created_at: datetime
    closed_at: datetime | None
    ended_at: datetime | None
    execution_id: str | None  # of the callback
    problem: str | None  # why the callback cannot be created now


class Minute(msgspec.Struct, frozen=True):
    """The executions that are due in one minute."""

    at: datetime
    executions: int


class Herd(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with the same rule, which are due at the same moments."""

    at: datetime  # the moment with the most executions
    executions: int
    occurrences: int  # of the rule, within the forecast
    rule: str
    timezone: str
    words: str
    jobs: int
    tenants: Sequence[str]


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The number of executions in the busiest recent minute."""

    executions: int | None
    reason: str | None  # why it cannot be computed
    measured_from: datetime | None
    measured_to: datetime | None


class ForecastDelay(msgspec.Struct, frozen=True, kw_only=True):
    """Where executions will wait for a limit."""

    kind: str  # queue, tenant or workers
    name: str | None
    max_concurrency: int | None  # of workers: their slots
    per_second: float | None
    begins_at: datetime
    executions: int  # due from then until those that wait longest
    seconds: float  # that each takes, on average
    due_at: datetime  # those that wait longest
    last_start_at: datetime | None  # of these; None: they do not start


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The executions that are due, by minute."""

    begins_at: datetime
    ends_at: datetime
    complete_until: datetime
    estimated: bool
    minutes: Sequence[Minute]  # only minutes with executions due
    herds: Sequence[Herd] = ()  # largest first
    herd_moments: Sequence[Minute] = ()  # executions of herds, at exactly that moment
    delays: Sequence[ForecastDelay] = ()  # the longest first
    untimed: int = 0  # executions of which it is not known how long they take
    capacity_per_minute: Capacity | None = None


class DueJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that will be due in a minute."""

    at: datetime
    job_id: str
    job_name: str | None
    tenant_id: str
    execution_id: str | None  # None: not planned yet


class ForecastMinute(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that will be due in a minute, by time."""

    at: datetime  # the start of the minute
    items: Sequence[DueJob]
    more: bool  # there may be more


class Percentiles(msgspec.Struct, frozen=True):
    """How late executions started, in milliseconds."""

    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a period; None: not shown to this key."""

    started: int  # attempts
    succeeded: int | None
    failed: int | None  # attempts
    dead: int | None
    skipped: int | None  # occurrences
    cancelled: int | None
    superseded: int | None


class Bucket(Figures, frozen=True, kw_only=True):
    """What happened in one part of the window."""

    at: datetime
    lateness_ms: Percentiles | None


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How many executions of one priority are waiting and running."""

    priority: str
    ready: int
    parked: int
    running: int
    oldest_seconds: float | None
    at_least: Sequence[str]  # counts that are lower bounds


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The node that is or was last the leader."""

    node_id: str
    name: str | None
    epoch: int
    since: datetime | None
    renewed_at: datetime
    expires_at: datetime
    present: bool
    clock_drift_ms: float | None
    planned_until: datetime
    planner_lag_seconds: float
    changes_in_1h: int
    changes_in_24h: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The workers, in numbers."""

    alive: int
    lost_in_1h: int
    slots: int
    running: int


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What an attention item is about."""

    kind: str
    id: str | None
    name: str | None
    tenant_id: str | None


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    code: str
    severity: str  # error, warning, info
    since: datetime | None
    count: int
    at_least: bool
    message: str
    refers_to: Reference


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The busiest minute of the next 24 hours."""

    at: datetime
    executions: int
    hours: Sequence[int]
    complete_until: datetime
    estimated: bool
    capacity_per_minute: int | None = None


class DeadToday(msgspec.Struct, frozen=True):
    """Executions that died today, in UTC."""

    count: int
    at_least: bool


class FailureCount(msgspec.Struct, frozen=True):
    """Executions that died or were skipped for one reason."""

    reason: str
    count: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cell at a glance."""

    at: datetime
    window: str
    tenant_id: str | None
    bucket_seconds: int
    complete_until: datetime | None
    series: Sequence[Bucket]
    totals: Figures
    started_per_minute: float
    lateness_ms: Percentiles | None
    sampled: bool
    depth: Sequence[Depth]
    waiting_for: Sequence[WaitingFor] = ()
    dead_today: DeadToday
    leader: Leader | None
    workers: Fleet | None
    failures: Sequence[FailureCount]
    attention: Sequence[AttentionItem]
    peak: Peak | None
    peak_known: bool = True


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """How long attempts took, in milliseconds."""

    p50: float
    p95: float
    max: float


class ServingWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker that runs a task."""

    session_id: str
    worker_id: str | None


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt failed, in the last minute in which one did."""

    execution_id: str
    minute: datetime
    error: str | None


class TaskFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A task, or the webhooks of a host."""

    task: str | None
    host: str | None
    runs: int
    failures: int
    duration_ms: Durations | None
    waiting: int
    workers: int
    first_workers: Sequence[ServingWorker]
    last_error: TaskError | None
    trend: Sequence[int]


class Tasks(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks and hosts of webhooks, with their runs in a window and what waits."""

    at: datetime
    window: str
    begin: datetime
    bucket_seconds: int
    items: Sequence[TaskFigures]
    left_out: int
    other_runs: int
    sampled: bool
    at_least: Sequence[str]


class DeclaredTask(msgspec.Struct, frozen=True, kw_only=True):
    """What a task declares for its jobs."""

    task: str
    job: Mapping[str, Any]  # fields that a job takes from here if its document leaves them out
    arguments: Mapping[str, Any] | None  # JSON Schema; None: any arguments


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process."""

    session_id: str
    worker_id: str | None
    state: str  # alive, expired, lost, stopped
    queues: Sequence[str] | None
    tasks: Sequence[str] | None
    slots: int | None
    running: int | None
    at_least: Sequence[str]
    quarantine: bool
    started_at: datetime | None
    renewed_at: datetime | None
    expires_at: datetime | None
    ended_at: datetime | None
    returned: int | None


class HeldExecution(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that a worker is running."""

    execution_id: str
    job_id: str
    job_name: str | None
    tenant_id: str
    claimed_at: datetime
    attempt: int
    timeout_seconds: int | None
    progress: Any


class WorkerWithExecutions(Worker, frozen=True, kw_only=True):
    """A worker process and what it is running."""

    executions: Sequence[HeldExecution]


class Connections(msgspec.Struct, frozen=True):
    """Connections of a process to the database."""

    in_use: int
    size: int


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the cell."""

    node_id: str
    name: str
    roles: Sequence[str]
    leads: bool
    alive: bool
    version: str
    tzdata: str
    started_at: datetime
    seen_at: datetime
    clock_drift_ms: float | None
    connections: Connections


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook target to which a process sends no requests for now."""

    host: str
    endpoint: str | None
    tenant_id: str | None
    node_id: str | None
    node: str | None
    failures: int
    since: datetime
    open_until: datetime
    last_error: str | None = None


class Nodes(msgspec.Struct, frozen=True):
    """The processes of the cell."""

    items: Sequence[Node]


class Circuits(msgspec.Struct, frozen=True):
    """The open circuits of the cell."""

    items: Sequence[Circuit]


class Readiness(msgspec.Struct, frozen=True):
    """Whether every part of a server is working."""

    status: str  # ready, not_ready
    checks: Mapping[str, bool]


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """How many there are."""

    count: int
    at_least: bool  # there may be more


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: Sequence[T]
    next_page_token: str | None  # None at the end of the list
    total: Total | None = None  # of the jobs that match; None: not requested
