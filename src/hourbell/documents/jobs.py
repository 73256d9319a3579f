"""The document of a job in a create or a PUT → NewJob, or all of its errors at once."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from hourbell.documents.actions import read_action, read_notification
from hourbell.documents.policies import read_retry_policy
from hourbell.documents.reader import LABEL, LABEL_IS, ObjectReader, Problems, read_object
from hourbell.documents.schedules import RUNS_ONCE, Timing, read_timing
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
_TYPES = {choice.value: choice for choice in JobType}
_PRIORITIES = {choice.name: choice for choice in Priority}
_MISFIRES = {choice.value: choice for choice in Misfire}
_OVERLAPS = {choice.value: choice for choice in Overlap}
_ON_DUPLICATE = {choice.value: choice for choice in OnDuplicate}
_DELIVERIES = {choice.value: choice for choice in Delivery}
_FOR_RECURRING = ("misfire_policy", "catch_up_window_seconds", "catch_up_limit", "overlap_policy")


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
    reader = read_object(document, problems)
    said_retries = reader.given("retry_policy")
    said_timeout = reader.given("timeout_seconds")
    job = read_job(reader, problems, now, job_id, tenant=tenant)
    if queue is None:
        return job
    if not said_timeout and queue.default_timeout_seconds is not None:
        job = replace(job, timeout_seconds=queue.default_timeout_seconds)
    retries = queue.default_retry_policy
    if not said_retries and retries is not None and job.delivery is Delivery.AT_LEAST_ONCE:
        job = replace(job, retry_policy=retries)
    return job


def read_job(
    reader: ObjectReader,
    problems: Problems,
    now: datetime,
    job_id: int,
    timing: Timing | None = None,  # if given, kept instead of reading the schedule again
    tenant: str = DEFAULT_TENANT,
) -> NewJob:
    reader.require("name")
    name = reader.printable("name", MAX_NAME)
    reader.require("type", "is required: ONE_TIME or RECURRING")
    job_type = reader.choice("type", _TYPES, None)
    tenant_id = reader.text("tenant_id", LABEL, LABEL_IS, tenant)
    queue = reader.text("queue", LABEL, LABEL_IS, DEFAULT_QUEUE)
    priority = reader.choice("priority", _PRIORITIES, Priority.MEDIUM)
    reader.require("schedule")
    schedule = reader.inner("schedule")
    fresh = timing is None
    if schedule and fresh:
        timing = read_timing(schedule, job_type, problems, now, job_id)
    reader.require("action")
    action_reader = reader.inner("action")
    action = read_action(action_reader) if action_reader else None
    delivery = reader.choice("delivery", _DELIVERIES, Delivery.AT_LEAST_ONCE)
    retry_policy = read_retry_policy(reader.inner("retry_policy"), delivery, problems)
    timeout = reader.whole("timeout_seconds", 1, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS)
    start_deadline = reader.whole("start_deadline_seconds", 1, MAX_START_DEADLINE_SECONDS, None)
    deadline = reader.whole("deadline_seconds", 1, MAX_DEADLINE_SECONDS, None)
    if job_type is JobType.ONE_TIME:
        for key in _FOR_RECURRING:
            reader.forbid(key, RUNS_ONCE)
    misfire = reader.choice("misfire_policy", _MISFIRES, Misfire.LATEST)
    catch_up_window = reader.whole(
        "catch_up_window_seconds", 1, MAX_CATCH_UP_WINDOW_SECONDS, DEFAULT_CATCH_UP_WINDOW_SECONDS
    )
    catch_up_limit = reader.whole("catch_up_limit", 1, MAX_CATCH_UP_LIMIT, DEFAULT_CATCH_UP_LIMIT)
    overlap = reader.choice("overlap_policy", _OVERLAPS, Overlap.ALLOW)
    concurrency_key = reader.printable("concurrency_key", MAX_CONCURRENCY_KEY)
    if concurrency_key is None and not reader.given("concurrency_key"):
        reader.forbid("concurrency_limit", "needs a concurrency_key")
    concurrency_limit = reader.whole("concurrency_limit", 1, MAX_CONCURRENCY_LIMIT, 1)
    unique_key = reader.printable("unique_key", MAX_UNIQUE_KEY)
    if unique_key is None and not reader.given("unique_key"):
        reader.forbid("on_duplicate", "needs a unique_key")
    on_duplicate = reader.choice("on_duplicate", _ON_DUPLICATE, OnDuplicate.REJECT)
    labels = _read_labels(reader)
    notifications = [
        read_notification(one) for one in reader.objects("notifications", MAX_NOTIFICATIONS)
    ]
    reader.finish()
    if timing and isinstance(timing[0], Once):
        deadlines = {"start_deadline_seconds": start_deadline, "deadline_seconds": deadline}
        _check_deadlines(reader, timing[0].at, deadlines, now if fresh else None)
    problems.raise_if_any()
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


def _read_labels(job: ObjectReader) -> dict[str, str]:
    reader = job.inner("labels")
    if reader is None:
        return {}
    if len(reader.fields) > MAX_LABELS:
        job.wrong("labels", "too_long", f"must be at most {MAX_LABELS} labels")
        return {}
    labels: dict[str, str] = {}
    for name in reader.fields:
        if not LABEL.fullmatch(name):
            reader.wrong(name, "bad_format", f"must have a name of {LABEL_IS}")
        elif reader.require(name, "must be a string, not null"):
            value = reader.printable(name, MAX_LABEL_VALUE)
            labels |= {name: value} if value is not None else {}
    return labels


def _check_deadlines(
    reader: ObjectReader, at: datetime, deadlines: dict[str, int | None], now: datetime | None
) -> None:
    """Deadlines must end before year 10000 and, if `now` is given, must not have passed."""
    for key, seconds in deadlines.items():
        if seconds is None:
            continue
        if _LAST - at < timedelta(seconds=seconds):
            reader.wrong(key, "out_of_range", "ends after the year 9999")
        elif now is not None and now - at >= timedelta(seconds=seconds):
            reader.wrong(key, "never_runs", "has already passed, so the job would never run")
