"""The document of a job in a create or a PUT → NewJob, or all of its errors at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from hourbell.documents.actions import (
    ActionDocument,
    NotificationDocument,
    read_action,
    read_notification,
    render_action,
)
from hourbell.documents.fields import REQUIRED, Document, Field, Object
from hourbell.documents.kinds import (
    LABEL,
    LABEL_IS,
    Array,
    Choice,
    Integer,
    Kind,
    Label,
    Line,
    Schema,
    choice_of,
)
from hourbell.documents.policies import RetryPolicyDocument, read_retry_policy, render_retry_policy
from hourbell.documents.problems import Problems, shown_key
from hourbell.documents.schedules import (
    RUNS_ONCE,
    ScheduleDocument,
    Timing,
    read_timing,
    render_schedule,
)
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_CONCURRENCY_KEY,
    MAX_CONCURRENCY_LIMIT,
    MAX_DEADLINE_SECONDS,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    MAX_NAME,
    MAX_NOTIFICATIONS,
    MAX_START_DEADLINE_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MAX_UNIQUE_KEY,
    JobType,
    NewJob,
    OnDuplicate,
)
from hourbell.model.limits import QueueSettings
from hourbell.model.policies import (
    DEFAULT_CATCH_UP_LIMIT,
    DEFAULT_CATCH_UP_WINDOW_SECONDS,
    MAX_CATCH_UP_LIMIT,
    MAX_CATCH_UP_WINDOW_SECONDS,
    Delivery,
    Misfire,
    Overlap,
    Priority,
)
from hourbell.model.schedules import Once

_LAST = datetime.max.replace(tzinfo=UTC)


class _Labels(Kind[dict[str, str]]):
    """The labels of a job."""

    value = Line(MAX_LABEL_VALUE)

    def read(self, value: object, path: str, problems: Problems) -> dict[str, str] | None:
        if not isinstance(value, dict):
            problems.add_wrong_type(path, "an object", value)
            return None
        if len(value) > MAX_LABELS:
            problems.add(path, "too_long", f"must have at most {MAX_LABELS} labels")
            return None
        labels: dict[str, str] = {}
        for name, text in value.items():
            inner = f"{path}.{shown_key(name)}"
            if not LABEL.fullmatch(name):
                problems.add(inner, "bad_format", f"must have a name that is {LABEL_IS}")
            elif text is None:
                problems.add(inner, "required", "must be a string, not null")
            else:
                label = self.value.read(text, inner, problems)
                labels |= {name: label} if label is not None else {}
        return labels

    @property
    def schema(self) -> Schema:
        return {
            "type": "object",
            "maxProperties": MAX_LABELS,
            "propertyNames": {"pattern": f"^{LABEL.pattern}$"},
            "additionalProperties": self.value.schema,
        }


class JobDocument(Document):
    """The definition of a job: the fields that both types have."""

    tenant_id = Field(Label(), default=DEFAULT_TENANT)
    name = Field(Line(MAX_NAME), required=REQUIRED)
    type = Field(choice_of(JobType), required="is required: ONE_TIME or RECURRING")
    schedule = Field(Object(ScheduleDocument), required=REQUIRED)
    action = Field(Object(ActionDocument), required=REQUIRED)
    retry_policy = Field(Object(RetryPolicyDocument, "RetryPolicy"))
    timeout_seconds = Field(
        Integer(1, MAX_TIMEOUT_SECONDS),
        default=DEFAULT_TIMEOUT_SECONDS,
        description="Timeout of one attempt.",
    )
    delivery = Field(choice_of(Delivery), default=Delivery.AT_LEAST_ONCE)
    queue = Field(Label(), default=DEFAULT_QUEUE)
    priority = Field(Choice({each.name: each for each in Priority}), default=Priority.MEDIUM)
    start_deadline_seconds = Field(
        Integer(1, MAX_START_DEADLINE_SECONDS),
        description="Counts from scheduled_for; an execution that cannot start by then is SKIPPED.",
    )
    deadline_seconds = Field(
        Integer(1, MAX_DEADLINE_SECONDS),
        description="Counts from scheduled_for, over all attempts; after that the execution is DEAD.",
    )
    concurrency_key = Field(
        Line(MAX_CONCURRENCY_KEY),
        description=(
            "Executions of the tenant that share this key run one at a time, in order of their "
            "scheduled time."
        ),
    )
    concurrency_limit = Field(
        Integer(1, MAX_CONCURRENCY_LIMIT),
        default=1,
        description="How many executions with the same key may run at once.",
    )
    unique_key = Field(
        Line(MAX_UNIQUE_KEY),
        description="Unique among the tenant's jobs that have not ended. Cannot be changed.",
    )
    on_duplicate = Field(choice_of(OnDuplicate), default=OnDuplicate.REJECT)
    labels = Field(_Labels(), description="For searching jobs.")
    notifications = Field(
        Array(Object(NotificationDocument, "Notification"), 0, MAX_NOTIFICATIONS),
        default=(),
        description="Webhooks called with the outcome of each run.",
    )


class _RecurringFields(Document):
    misfire_policy = Field(choice_of(Misfire), default=Misfire.LATEST)
    catch_up_window_seconds = Field(
        Integer(1, MAX_CATCH_UP_WINDOW_SECONDS),
        default=DEFAULT_CATCH_UP_WINDOW_SECONDS,
        description="Applies to the misfire policy `all`.",
    )
    catch_up_limit = Field(
        Integer(1, MAX_CATCH_UP_LIMIT),
        default=DEFAULT_CATCH_UP_LIMIT,
        description="Applies to the misfire policy `all`.",
    )
    overlap_policy = Field(choice_of(Overlap), default=Overlap.ALLOW)


RECURRING_FIELDS = tuple(_RecurringFields.FIELDS)


class RecurringJobDocument(_RecurringFields, JobDocument):
    """The definition of a recurring job. A ONE_TIME job is read as one, to report what it lacks."""


def definition(job: NewJob) -> dict[str, Any]:
    """The document that would create this job, with all defaults spelled out and nothing masked."""
    document = RecurringJobDocument if job.type is JobType.RECURRING else JobDocument
    return document.render(
        job,
        schedule=render_schedule(job.schedule, job.window),
        action=render_action(job.action),
        retry_policy=render_retry_policy(job.retry_policy),
        concurrency_limit=None if job.concurrency_key is None else job.concurrency_limit,
        **render_unique_key(job),
    )


def render_unique_key(job: NewJob) -> dict[str, Any]:
    unique = job.unique_key is not None
    return {
        "unique_key": job.unique_key,
        "on_duplicate": job.on_duplicate.value if unique else None,
    }


def parse_new_job(
    document: object,
    now: datetime,
    job_id: int,
    queue: QueueSettings | None = None,
    tenant: str = DEFAULT_TENANT,
) -> NewJob:
    """The job that a document describes; raises InvalidInput with every invalid field.

    `tenant` is used if the document names none. Omitted timeouts and retry policies come from the
    queue's defaults, if it has any.

    `job_id` is the id that the job will get: it determines the value of `H` in a cron rule, so it
    decides when, and in rare cases whether, the job ever runs.
    """
    problems = Problems()
    job_document = RecurringJobDocument.open(document, problems)
    job = read_job(job_document, now, job_id, tenant=tenant)
    if queue is None:
        return job
    if not job_document.given("timeout_seconds") and queue.default_timeout_seconds is not None:
        job = replace(job, timeout_seconds=queue.default_timeout_seconds)
    retries = queue.default_retry_policy
    if (
        retries is None
        or job_document.given("retry_policy")
        or job.delivery is Delivery.AT_MOST_ONCE
    ):
        return job
    return replace(job, retry_policy=retries)


def read_job(
    document: RecurringJobDocument,
    now: datetime,
    job_id: int,
    timing: Timing | None = None,  # if given, kept instead of reading the schedule again
    tenant: str = DEFAULT_TENANT,
) -> NewJob:
    name, job_type = document.name, document.type
    tenant_id = document.tenant_id if document.given("tenant_id") else tenant
    queue, priority = document.queue, document.priority
    schedule = document.schedule
    fresh = timing is None
    if schedule and fresh:
        timing = read_timing(schedule, job_type, now, job_id)
    action_document = document.action
    action = read_action(action_document) if action_document else None
    delivery = document.delivery
    retry_policy = read_retry_policy(document.retry_policy, delivery)
    timeout = document.timeout_seconds
    start_deadline, deadline = document.start_deadline_seconds, document.deadline_seconds
    if job_type is JobType.ONE_TIME:
        for key in RECURRING_FIELDS:
            document.forbid(key, RUNS_ONCE)
    misfire = document.misfire_policy
    catch_up_window, catch_up_limit = document.catch_up_window_seconds, document.catch_up_limit
    overlap = document.overlap_policy
    if not document.given("concurrency_key"):
        document.forbid("concurrency_limit", "needs a concurrency_key")
    concurrency_key, concurrency_limit = document.concurrency_key, document.concurrency_limit
    if not document.given("unique_key"):
        document.forbid("on_duplicate", "needs a unique_key")
    unique_key, on_duplicate = document.unique_key, document.on_duplicate
    labels = document.labels or {}
    notifications = [read_notification(one) for one in document.notifications]
    document.finish()
    schedule_read = timing[0] if timing else None
    if isinstance(schedule_read, Once):
        deadlines = {"start_deadline_seconds": start_deadline, "deadline_seconds": deadline}
        _check_deadlines(document, schedule_read.at, deadlines, now if fresh else None)
    elif schedule_read and schedule_read.jitter_seconds and priority is Priority.CRITICAL:
        message = "does not apply to a CRITICAL job, which starts on time; set it to 0"
        document.problems.add("schedule.jitter_seconds", "conflict", message)
    document.problems.raise_if_any()
    # No problem was recorded, so all required fields were given.
    assert name is not None
    assert job_type is not None
    assert timing is not None
    assert action is not None
    return NewJob(
        tenant_id=tenant_id,
        type=job_type,
        schedule=timing[0],
        window=timing[1],
        name=name,
        action=action,
        retry_policy=retry_policy,
        timeout_seconds=timeout,
        delivery=delivery,
        queue=queue,
        priority=priority,
        misfire_policy=misfire,
        catch_up_window_seconds=catch_up_window,
        catch_up_limit=catch_up_limit,
        overlap_policy=overlap,
        start_deadline_seconds=start_deadline,
        deadline_seconds=deadline,
        concurrency_key=concurrency_key,
        concurrency_limit=concurrency_limit,
        unique_key=unique_key,
        on_duplicate=on_duplicate,
        labels=labels,
        notifications=tuple(one for one in notifications if one is not None),
    )


def _check_deadlines(
    document: Document, at: datetime, deadlines: dict[str, int | None], now: datetime | None
) -> None:
    """Deadlines must end before year 10000 and, if `now` is given, must not have passed."""
    for key, seconds in deadlines.items():
        if seconds is None:
            continue
        if _LAST - at < timedelta(seconds=seconds):
            document.wrong(key, "out_of_range", "is too long: it ends after the year 9999")
        elif now is not None and now - at >= timedelta(seconds=seconds):
            document.wrong(key, "never_runs", "has already passed, so the job would never run")
