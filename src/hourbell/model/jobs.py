"""Jobs, at three levels of detail.

    JobSpec   what a worker needs to run the job and to decide what follows a failure
    NewJob    the complete definition, as given by the owner
    Job       the definition and the current state

Each extends the one before. A `NewJob` is stored as JSON with the job's row (or, for a one-time
job, with its execution's row) and is sent to the worker with a claim. The worker decodes only the
`JobSpec` in it, and the fields that the claim adds (`SentSpec`). Values that planning, the gate and
the reaper need are also stored in columns.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hourbell.model.executions import ExecutionStatus
from hourbell.model.policies import (
    DEFAULT_CATCH_UP_LIMIT,
    DEFAULT_CATCH_UP_WINDOW_SECONDS,
    Delivery,
    Misfire,
    Overlap,
    Priority,
    RetryPolicy,
)
from hourbell.model.schedules import Schedule, Window

DEFAULT_TENANT = "default"
DEFAULT_QUEUE = "default"
NOTIFICATION_QUEUE = "notifications"
WEBHOOK_TASK = "@webhook"  # means all webhooks in the list of tasks that a worker serves
TASK_PREFIX = "@"  # of a task name where it could be confused with a host name
DEFAULT_TIMEOUT_SECONDS = 300
MAX_TIMEOUT_SECONDS = 86_400
MAX_START_DEADLINE_SECONDS = 30 * 86_400
MAX_DEADLINE_SECONDS = 366 * 86_400
MAX_NAME = 200
MAX_BODY_BYTES = 256 * 1024  # of a webhook's body and of a task's payload, as JSON
MAX_URL = 2048
MAX_CONCURRENCY_KEY = 200
MAX_CONCURRENCY_LIMIT = 10_000
MAX_HOST_LABEL = 63  # DNS limit
MAX_HEADERS = 50
MAX_HEADER_VALUE = 4096
MAX_UNIQUE_KEY = 200
MAX_LABELS = 16
MAX_LABEL_VALUE = 64
MAX_NOTIFICATIONS = 5
MAX_PAUSE_REASON = 500

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")

_URL_CHARACTERS = re.compile(r"[!-\[\]-~]+")  # visible ASCII; parsers disagree on backslashes
_AUTHORITY = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\t -~]*")
# The HTTP client sets these itself; a second copy would allow request smuggling.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Hourbell sets these on every request, so values from a job would be overwritten.
_OVERWRITTEN_HEADERS = frozenset({"idempotency-key", "traceparent", "tracestate"})
_OVERWRITTEN_PREFIXES = ("webhook-", "hourbell-")
# Names of headers whose values are credentials.
_CREDENTIAL_HEADER = re.compile(
    r"authorization|cookie|(?:key|token|secret|signature|password|passwd|credentials?|auth)(?:-?[0-9]+)?\Z",
    re.IGNORECASE,
)


class JobType(StrEnum):
    """One-time or recurring."""

    ONE_TIME = "ONE_TIME"
    RECURRING = "RECURRING"


class JobStatus(StrEnum):
    """The state of a job; that of a one-time job is the state of its execution."""

    SCHEDULED = "SCHEDULED"
    QUEUED = "QUEUED"  # one-time, as the next three
    RUNNING = "RUNNING"
    AWAITING = "AWAITING"
    RETRYING = "RETRYING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"  # one-time: it has succeeded
    FAILED = "FAILED"  # one-time: it is a dead letter, or was one when that was purged
    SKIPPED = "SKIPPED"  # one-time
    ENDED = "ENDED"  # recurring: it has no further run, however its runs have ended
    CANCELLED = "CANCELLED"


ACTIVE_STATUSES = frozenset(
    {
        JobStatus.SCHEDULED,
        JobStatus.QUEUED,
        JobStatus.RUNNING,
        JobStatus.AWAITING,
        JobStatus.RETRYING,
    }
)
LIVE_STATUSES = ACTIVE_STATUSES | {JobStatus.PAUSED}

# The status of a one-time job that is not paused, by the status of its execution.
ONE_TIME_STATUSES = {
    ExecutionStatus.SCHEDULED: JobStatus.SCHEDULED,
    ExecutionStatus.QUEUED: JobStatus.QUEUED,
    ExecutionStatus.RUNNING: JobStatus.RUNNING,
    ExecutionStatus.AWAITING: JobStatus.AWAITING,
    ExecutionStatus.RETRYING: JobStatus.RETRYING,
    ExecutionStatus.SUCCEEDED: JobStatus.COMPLETED,
    ExecutionStatus.DEAD: JobStatus.FAILED,
    ExecutionStatus.SKIPPED: JobStatus.SKIPPED,
    ExecutionStatus.CANCELLED: JobStatus.CANCELLED,
    ExecutionStatus.SUPERSEDED: JobStatus.CANCELLED,
}


class OnDuplicate(StrEnum):
    """What to do when another job that has not ended has the same unique key."""

    REJECT = "reject"
    KEEP = "keep"  # return the existing job
    REPLACE = "replace"  # cancel the existing job, unless it is queued or running


class SecretsCheck(StrEnum):
    """Whether the secrets that a webhook names must exist when it is created or changed."""

    REQUIRED = "required"
    LAZY = "lazy"  # they must exist when it is sent


class WebhookAction(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="WEBHOOK"
):
    """An HTTP request; any 2xx is success."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    body: Any = None  # a string is sent verbatim, anything else as JSON; None: no body
    signing_secret: str | None = None  # its name; None: the tenant's default, if it has one
    literal: bool = False  # the body is sent verbatim, without filling in secrets
    secrets: SecretsCheck = SecretsCheck.REQUIRED


class TaskAction(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    tag_field="type",
    tag="TASK",
):
    """A handler that workers know by name."""

    name: str
    payload: Any = None


Action = WebhookAction | TaskAction


class Event(StrEnum):
    """The events that a notification can report."""

    SUCCESS = "success"
    FAILURE = "failure"  # an attempt failed and will be retried
    DEAD_LETTER = "dead_letter"  # the execution will not be retried, for whatever reason


class Notification(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A webhook that reports events of an execution.

    It is delivered as an execution of its own, which itself sends no notifications.
    """

    on: tuple[Event, ...]
    url: str
    headers: dict[str, str] = {}
    secrets: SecretsCheck = SecretsCheck.REQUIRED


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The part of a job that a worker needs."""

    name: str
    action: Action
    retry_policy: RetryPolicy = RetryPolicy()
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS  # of one attempt
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    # The span that created the job, as a W3C `traceparent`; both None: the caller had no trace.
    traceparent: str | None = None  # for a one-time job created alone: its runs continue this trace
    trace_link: str | None = None  # for any other job: its runs link to it from their own traces


NO_CHECKPOINT = msgspec.Raw()


class SentSpec(JobSpec, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A JobSpec as sent with a claim."""

    attempts_before: int = 0  # attempts before a replay; they do not count as retries
    interruptions: int = 0  # how many times in a row it was interrupted, or did not fit its task
    snoozes: int = 0  # how many times it was snoozed
    checkpoint: msgspec.Raw = NO_CHECKPOINT  # from an earlier run, as JSON


class Policies(msgspec.Struct, frozen=True):
    """The part of a SentSpec that decides what follows from an attempt."""

    retry_policy: RetryPolicy = RetryPolicy()
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    attempts_before: int = 0
    interruptions: int = 0
    snoozes: int = 0


class NewJob(JobSpec, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The complete definition of a job; parsed from a document and validated."""

    tenant_id: str = DEFAULT_TENANT
    type: JobType
    schedule: Schedule
    window: Window = Window()  # always empty for ONE_TIME
    queue: str = DEFAULT_QUEUE
    priority: Priority = Priority.MEDIUM
    # The next four apply only to RECURRING jobs.
    misfire_policy: Misfire = Misfire.LATEST
    catch_up_window_seconds: int = DEFAULT_CATCH_UP_WINDOW_SECONDS  # for `all`
    catch_up_limit: int = DEFAULT_CATCH_UP_LIMIT  # for `all`
    overlap_policy: Overlap = Overlap.ALLOW
    start_deadline_seconds: int | None = None  # after scheduled_for; SKIPPED if it starts later
    deadline_seconds: int | None = None  # after scheduled_for, over all attempts; then DEAD
    concurrency_key: str | None = (
        None  # per tenant; executions with the same key run one at a time,
    )
    concurrency_limit: int = 1  # or this many at once
    unique_key: str | None = None  # unique among the tenant's jobs that have not ended
    on_duplicate: OnDuplicate = OnDuplicate.REJECT
    labels: dict[str, str] = {}  # for searching; they do not affect execution
    notifications: tuple[Notification, ...] = ()

    @property
    def target(self) -> str:
        """The target: the host that its webhook calls, or its task as `@name`."""
        if isinstance(self.action, TaskAction):
            return TASK_PREFIX + self.action.name
        return host_of(self.action.url) or TASK_PREFIX + WEBHOOK_TASK


class Job(NewJob, frozen=True, kw_only=True):
    """A job as read: its definition and its current state."""

    job_id: int
    status: JobStatus
    version: int  # bumped by every update, pause and resume
    next_run_at: datetime | None  # None while it is paused or a one-time job runs, and at its end
    created_at: datetime
    updated_at: datetime
    # What this version cannot read of the stored job, for people; None: it can read all of it.
    problem: str | None = None
    # The fields that it cannot read. They have their defaults, or a stand-in.
    unreadable: tuple[str, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.status in LIVE_STATUSES


class Pause(msgspec.Struct, frozen=True):
    """Why a job is paused, and until when, as given by the caller."""

    reason: str | None = None
    until: datetime | None = None  # when it is resumed; None: only on request


class JobChanges(msgspec.Struct, frozen=True):
    """A validated update: the new definition, and which fields differ.

    It was computed against one version of the job. Apply it only while the job still has that
    version; otherwise read the job and compute the update again.
    """

    job: NewJob
    changed: frozenset[str]  # names of NewJob fields; empty: nothing to do

    @property
    def reschedules(self) -> bool:
        """Whether the job must leave its timetable and join one again."""
        return not self.changed.isdisjoint({"schedule", "window"})


def traced(job: NewJob, traceparent: str, is_one_of_many: bool = False) -> NewJob:
    """A new job that remembers the span that created it."""
    if is_one_of_many or job.type is JobType.RECURRING:
        return msgspec.structs.replace(job, trace_link=traceparent)
    return msgspec.structs.replace(job, traceparent=traceparent)


def encode_job(job: NewJob) -> bytes:
    """A job as JSON, for storing. Fields that have their default are omitted."""
    return _encoder.encode(job)


def decode_job(stored: bytes | str) -> NewJob:
    """A job from its stored JSON. Fields of a newer version are ignored."""
    return _job_decoder.decode(stored)


# What decoding a stored job may raise: a newer version has stored it, or it is damaged.
UNREADABLE_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)


def decode_readable(
    stored: bytes | str, **instead: Any
) -> tuple[NewJob, tuple[str, ...], str | None]:
    """As much of a stored job as this version can read, which fields it cannot read, and why.

    `instead` are values of required fields that cannot be read.
    """
    try:
        return decode_job(stored), (), None
    except UNREADABLE_ERRORS as error:
        why = str(error)
    try:
        values = msgspec.json.decode(stored, type=dict[str, Any])
    except UNREADABLE_ERRORS:
        return NewJob(**instead), NewJob.__struct_fields__, why
    read, unreadable = dict(instead), []
    for field in msgspec.structs.fields(NewJob):
        try:
            if field.required or field.name in values:
                read[field.name] = msgspec.convert(values.get(field.name), field.type)
        except UNREADABLE_ERRORS:
            unreadable.append(field.name)
    return NewJob(**read), tuple(unreadable), why


def host_of(url: str) -> str | None:
    """The host of a valid URL, in the form that limits use."""
    return (urlsplit(url).hostname or "").rstrip(".") or None


def url_problem(url: str) -> str | None:
    """Why a webhook cannot be sent to this URL, or None."""
    if not url:
        return "must not be empty"
    if len(url) > MAX_URL:
        return f"must be at most {MAX_URL} characters"
    if not _URL_CHARACTERS.fullmatch(url):
        return "must be visible ASCII without backslashes; percent-encode everything else"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "is not a valid URL"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    if "@" in parts.netloc:
        return "must not contain a user name or password; use a header"
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if authority is None:
        return "must have a host, optionally with a port"
    if authority["port"] is not None and not 1 <= int(authority["port"]) <= 65_535:
        return "must have a port from 1 to 65535"
    return _host_problem(authority["host"])


def _host_problem(host: str) -> str | None:
    """Why this host name can never be resolved, or None."""
    if host.startswith("[") or host.replace(".", "").isdigit():
        try:
            ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return "must name a host; this is not a complete IP address"
    elif not all(1 <= len(label) <= MAX_HOST_LABEL for label in host.removesuffix(".").split(".")):
        return f"must name a host with 1 to {MAX_HOST_LABEL} characters between its dots"
    return None


def header_problem(name: str, value: str) -> str | None:
    """Why a job cannot have a header, or None."""
    if not _HEADER_NAME.fullmatch(name):
        return "is not a valid header name: up to 128 letters, digits and hyphens"
    lower = name.lower()
    if lower in _OWN_HEADERS:
        return "is set by the HTTP client itself; omit it"
    if lower in _OVERWRITTEN_HEADERS or lower.startswith(_OVERWRITTEN_PREFIXES):
        return (
            "is set by Hourbell for each attempt and would be overwritten; omit it or use "
            "another name"
        )
    return header_value_problem(value)


def header_value_problem(value: str) -> str | None:
    """Why a header cannot have this value, or None."""
    if len(value) > MAX_HEADER_VALUE:
        return f"must be at most {MAX_HEADER_VALUE} characters"
    if not _HEADER_VALUE.fullmatch(value):
        return "must be printable ASCII, without line breaks"
    return None


def is_credential_header(name: str) -> bool:
    """Whether the value of a header of this name is a credential."""
    return _CREDENTIAL_HEADER.search(name) is not None


def repeated_header(headers: Mapping[str, object]) -> str | None:
    """A header that appears twice, with different capitalization, or None."""
    seen: set[str] = set()
    for name in headers:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


_encoder = msgspec.json.Encoder()
_job_decoder = msgspec.json.Decoder(NewJob)
# Decodes the worker's part of a job from the JSON sent with a claim. Called for every execution, so it is
# not wrapped in a function.
decode_spec = msgspec.json.Decoder(SentSpec).decode
# Decodes what decides about an attempt; the action may be one that only a newer version can read.
decode_policies = msgspec.json.Decoder(Policies).decode
