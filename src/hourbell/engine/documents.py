"""The documents that users send and get: JSON objects to checked values, and back.

This is the one door into the model. Whatever comes through it has been looked at in full: every
wrong field of a document is answered at once, with its path, and nothing that could never run gets
in. It stands in `engine` and not in `model` because it asks `timing` about rules and zones.

    parse_new_job   the body of a create → NewJob
    parse_tenant_settings, parse_queue_settings, parse_limits   the body of a PUT
    check_label, check_retry_policy   of what does not come with a job
    parse_override  the body of a run → the job with another body or payload
    parse_changes   the body of an update, against the job as it is → JobChanges
    replacing       a whole new document, against the job as it is → JobChanges
    unmasked        a document with masks of credentials in it → with the credentials that are stored
    render_job      a Job → the object that the API, the CLI and the dashboard show
    render_execution
    timetable_of, first_run   what a schedule comes to for a certain job

A few decisions:

- An `at` in the past runs at once, because a client that is a second late means "now"; one that
  is more than a year old is refused as a mistake.
- A window is closed: a run at exactly `starts_at` or `ends_at` happens.
- Intervals count from `starts_at`, or else from the creation: the first run is then one interval
  later. The anchor is kept, so updating something else moves no run.
- An update is a merge patch (RFC 7396): what is given changes, null sets back to the default.
  Naming another kind of schedule, action or backoff replaces the old kind with all its fields;
  `body`, `payload` and `notifications` are replaced whole, `headers` and `labels` name by name.
- What would have no effect is refused rather than ignored: an overlap policy of a job that runs
  once, a DST policy of an interval, an initial delay beside a list of delays.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.executions import Attempt, Execution
from hourbell.model.fields import LABEL, LABEL_IS, ObjectReader, Problems, read_object
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.instants import LATEST, format_instant
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_BODY_BYTES,
    MAX_CONCURRENCY_KEY,
    MAX_CONCURRENCY_LIMIT,
    MAX_DEADLINE_SECONDS,
    MAX_HEADERS,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    MAX_NAME,
    MAX_NOTIFICATIONS,
    MAX_START_DEADLINE_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MAX_UNIQUE_KEY,
    METHODS,
    Action,
    Event,
    Job,
    JobChanges,
    JobSpec,
    JobType,
    NewJob,
    Notification,
    OnDuplicate,
    SecretsCheck,
    TaskAction,
    WebhookAction,
    header_problem,
    repeated_header,
    url_problem,
)
from hourbell.model.limits import (
    MAX_BURST,
    MAX_CONCURRENCY,
    MAX_DAYS,
    MAX_JOBS,
    MAX_RATE,
    MAX_WEIGHT,
    MIN_RATE,
    Limits,
    QueueSettings,
    RateLimit,
    TenantSettings,
)
from hourbell.model.policies import (
    DEFAULT_CATCH_UP_LIMIT,
    DEFAULT_CATCH_UP_WINDOW_SECONDS,
    MAX_CATCH_UP_LIMIT,
    MAX_CATCH_UP_WINDOW_SECONDS,
    MAX_CRASHES,
    MAX_NON_RETRYABLE,
    MAX_RETRIES,
    MAX_RETRY_DELAY_SECONDS,
    Backoff,
    Delivery,
    Misfire,
    Overlap,
    Priority,
    RetryPolicy,
)
from hourbell.model.schedules import (
    MAX_DELAY_SECONDS,
    MAX_RUNS,
    UTC_ZONE,
    Cron,
    DstGap,
    DstOverlap,
    Every,
    Once,
    Schedule,
    Timetable,
    Window,
)
from hourbell.model.secrets import (
    MASKED,
    MAX_OF_REQUEST,
    SECRET_NAME,
    masked,
    names_in,
    template_problem,
    texts_in,
)
from hourbell.timing.cron import canonical, caution_about, resolve_hash
from hourbell.timing.errors import InvalidRule, UnknownZone
from hourbell.timing.intervals import MAX_EVERY_SECONDS, interval_rule
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import load_zone, shown_in

OLDEST_AT = timedelta(days=365)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_SECOND = timedelta(seconds=1)

_TASK = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_TASK_IS = "1 to 200 letters, digits or . _ : -"
_SECRET_IS = "the name of a secret: 1 to 64 letters, digits or . _ -"
_KIND = re.compile(r"[!-~]{1,200}")
_KIND_IS = "the name of a kind of failure, such as http_404 or ValueError"

_TYPES = {choice.value: choice for choice in JobType}
_PRIORITIES = {choice.name: choice for choice in Priority}
_BACKOFFS = {choice.value: choice for choice in Backoff}
_MISFIRES = {choice.value: choice for choice in Misfire}
_OVERLAPS = {choice.value: choice for choice in Overlap}
_ON_DUPLICATE = {choice.value: choice for choice in OnDuplicate}
_DELIVERIES = {choice.value: choice for choice in Delivery}
_DST_GAPS: dict[str, DstGap] = {"run_after": "run_after", "skip": "skip"}
_DST_OVERLAPS: dict[str, DstOverlap] = {"once": "once", "twice": "twice"}
_EVENTS = {event.value: event for event in Event}
_METHODS = {method: method for method in METHODS}
_SECRETS_CHECKS = {choice.value: choice for choice in SecretsCheck}

_IS_MASK = (
    "is the mask that is shown in place of a credential, and no such header is stored here; "
    "send the value itself, or {{secret:name}}"
)
_LITERAL_BODY = 'To send the body as it is, with {{ in it, set "literal": true beside it.'

_FOR_RECURRING = ("misfire_policy", "catch_up_window_seconds", "catch_up_limit", "overlap_policy")
_RUNS_ONCE = "has no meaning for a ONE_TIME job, which runs once"
_KINDS_OF_SCHEDULE = ("cron", "every_seconds", "at", "delay_seconds")

_APART_FROM_DELAYS = ("non_retryable", "retryable", "max_crashes")

_Timing = tuple[Schedule, Window]
_Object = dict[str, Any]


# What users send.


def parse_new_job(
    document: object,
    now: datetime,
    job_id: int,
    queue: QueueSettings | None = None,
    tenant: str = DEFAULT_TENANT,
) -> NewJob:
    """The job that a document describes, or InvalidInput with every wrong field.

    A document that names no tenant is this one's. What it does not say about timeout and retries is the default of its queue, if that has one.

    `job_id` is the id that the job will get: it is what `H` in a cron rule stands for, so it
    decides when, and in rare cases whether, the job ever runs.
    """
    problems = Problems()
    reader = read_object(document, problems)
    said_retries = reader.given("retry_policy")
    said_timeout = reader.given("timeout_seconds")
    job = _read_job(reader, problems, now, job_id, tenant=tenant)
    if queue is None:
        return job
    if not said_timeout and queue.default_timeout_seconds is not None:
        job = replace(job, timeout_seconds=queue.default_timeout_seconds)
    retries = queue.default_retry_policy
    if not said_retries and retries is not None and job.delivery is Delivery.AT_LEAST_ONCE:
        job = replace(job, retry_policy=retries)
    return job


def check_label(name: object, path: str) -> None:
    """InvalidInput if this cannot be the name of a tenant or a queue."""
    if not isinstance(name, str) or not LABEL.fullmatch(name):
        raise InvalidInput([FieldError(path, "bad_format", f"must be {LABEL_IS}")])


def check_retry_policy(policy: RetryPolicy, path: str) -> None:
    """InvalidInput with everything that is wrong about a policy, under a path."""
    problems = Problems()
    reader = read_object({path: _render_retry_policy(policy)}, problems)
    _read_retry_policy(reader.inner(path), Delivery.AT_LEAST_ONCE, problems)
    problems.raise_if_any()


def parse_tenant_settings(document: object) -> TenantSettings:
    """The whole settings of a tenant; what is left out is as usual."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    settings = TenantSettings(
        max_concurrency=concurrency,
        rate_limit=rate,
        weight=reader.number("weight", 1 / MAX_WEIGHT, MAX_WEIGHT, 1.0),
        max_jobs=reader.whole("max_jobs", 0, MAX_JOBS, None),
        ledger_days=reader.whole("ledger_days", 1, MAX_DAYS, None),
        dead_letter_days=reader.whole("dead_letter_days", 1, MAX_DAYS, None),
        audit_days=reader.whole("audit_days", 1, MAX_DAYS, None),
    )
    reader.finish()
    problems.raise_if_any()
    return settings


def parse_queue_settings(document: object) -> QueueSettings:
    """The whole settings of a queue; what is left out is as usual."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    timeout = reader.whole("default_timeout_seconds", 1, MAX_TIMEOUT_SECONDS, None)
    retries = reader.inner("default_retry_policy")
    policy = None
    if retries is not None:
        policy = _read_retry_policy(retries, Delivery.AT_LEAST_ONCE, problems)
    reader.finish()
    problems.raise_if_any()
    return QueueSettings(
        max_concurrency=concurrency,
        rate_limit=rate,
        default_timeout_seconds=timeout,
        default_retry_policy=policy,
    )


def parse_limits(document: object) -> Limits:
    """The whole limits of a target."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    reader.finish()
    problems.raise_if_any()
    return Limits(max_concurrency=concurrency, rate_limit=rate)


def _read_limits(reader: ObjectReader) -> tuple[int | None, RateLimit | None]:
    concurrency = reader.whole("max_concurrency", 0, MAX_CONCURRENCY, None)
    inner = reader.inner("rate_limit")
    if inner is None:
        return concurrency, None
    inner.require("per_second")
    per_second = inner.number("per_second", MIN_RATE, MAX_RATE, None)
    burst = inner.whole("burst", 1, MAX_BURST, None)
    inner.finish()
    if per_second is None:
        return concurrency, None
    return concurrency, RateLimit(per_second) if burst is None else RateLimit(per_second, burst)


def parse_changes(document: object, job: Job, now: datetime) -> JobChanges:
    """What an update makes of a job, or InvalidInput with every wrong field."""
    problems = Problems()
    patch = unmasked(read_object(document, problems).fields, job)
    old = NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})
    fixed = {"type": job.type.value, "tenant_id": job.tenant_id, **_render_unique_key(job)}
    for key, value in fixed.items():
        if patch.get(key, value) != value:
            problems.add(key, "immutable", "cannot be changed; create a new job instead")
    timing = None if patch.get("schedule", {}) != {} else (old.schedule, old.window)
    reader = read_object(_patched(old, patch) | fixed, problems)
    new = _with_old_anchor(old, _read_job(reader, problems, now, job.job_id, timing))
    return JobChanges(job.version, new, _changed(old, new))


def replacing(job: Job, new: NewJob) -> JobChanges:
    """What a whole new document makes of a job; InvalidInput if it would be of another type."""
    if new.type is not job.type:
        message = "cannot be changed; delete the job first"
        raise InvalidInput([FieldError("type", "immutable", message)])
    old = NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})
    new = _with_old_anchor(old, new)
    return JobChanges(job.version, new, _changed(old, new))


def parse_override(document: object, job: Job) -> NewJob | None:
    """The definition that one run uses instead of the job's own; None: the request gives none."""
    problems = Problems()
    reader = read_object(document, problems)
    webhook = isinstance(job.action, WebhookAction)
    field, other = ("body", "payload") if webhook else ("payload", "body")
    reader.forbid(other, f"has no meaning for this job, which has a {field}")
    value = reader.json(field, MAX_BODY_BYTES)
    if isinstance(job.action, WebhookAction) and not job.action.literal:
        _check_templates(reader, field, value)
    reader.finish()
    problems.raise_if_any()
    if value is None:
        return None
    said = NewJob(**{name: getattr(job, name) for name in NewJob.__struct_fields__})
    return replace(said, action=replace(job.action, **{field: value}))


def _read_job(
    reader: ObjectReader,
    problems: Problems,
    now: datetime,
    job_id: int,
    timing: _Timing | None = None,  # given: keep it, whatever its document would come to now
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
        timing = _read_timing(schedule, job_type, problems, now, job_id)
    reader.require("action")
    action_reader = reader.inner("action")
    action = _read_action(action_reader) if action_reader else None
    delivery = reader.choice("delivery", _DELIVERIES, Delivery.AT_LEAST_ONCE)
    retry_policy = _read_retry_policy(reader.inner("retry_policy"), delivery, problems)
    timeout = reader.whole("timeout_seconds", 1, MAX_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS)
    start_deadline = reader.whole("start_deadline_seconds", 1, MAX_START_DEADLINE_SECONDS, None)
    deadline = reader.whole("deadline_seconds", 1, MAX_DEADLINE_SECONDS, None)
    if job_type is JobType.ONE_TIME:
        for key in _FOR_RECURRING:
            reader.forbid(key, _RUNS_ONCE)
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
        _read_notification(one) for one in reader.objects("notifications", MAX_NOTIFICATIONS)
    ]
    reader.finish()
    if timing and isinstance(timing[0], Once):
        deadlines = {"start_deadline_seconds": start_deadline, "deadline_seconds": deadline}
        _check_deadlines(reader, timing[0].at, deadlines, now if fresh else None)
    problems.raise_if_any()
    # Nothing was noted, so everything that is required was given.
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
            reader.wrong(name, "bad_format", f"must be named by {LABEL_IS}")
        elif reader.require(name, "must be a string, not null"):
            value = reader.printable(name, MAX_LABEL_VALUE)
            labels |= {name: value} if value is not None else {}
    return labels


def _check_deadlines(
    reader: ObjectReader, at: datetime, deadlines: dict[str, int | None], now: datetime | None
) -> None:
    """Deadlines are instants of the calendar, and if `now` is given have not passed yet."""
    for key, seconds in deadlines.items():
        if seconds is None:
            continue
        if _LAST - at < timedelta(seconds=seconds):
            reader.wrong(key, "out_of_range", "ends after the year 9999")
        elif now is not None and now - at >= timedelta(seconds=seconds):
            reader.wrong(key, "never_runs", "has passed already, so the job would never run")


# Schedules.


def _read_timing(
    reader: ObjectReader, job_type: JobType | None, problems: Problems, now: datetime, job_id: int
) -> _Timing | None:
    if job_type is None:  # its absence is noted; what is meant shows, so the rest can be checked
        once = reader.given("at") or reader.given("delay_seconds")
        job_type = JobType.ONE_TIME if once else JobType.RECURRING
    timezone = _read_timezone(reader)
    if job_type is JobType.ONE_TIME:
        schedule = _read_once(reader, timezone, now)
        reader.finish()
        return (schedule, Window()) if schedule else None
    window = _read_window(reader)
    recurring = _read_recurring(reader, timezone, window, now)
    reader.finish()
    if recurring is None:
        return None
    if not problems.touch(reader.path("cron"), reader.path("every_seconds")):
        around = [reader.path(key) for key in ("timezone", "starts_at", "ends_at")]
        rest_is_sound = not problems.touch(*around)
        _check_first_run(reader, recurring, window, now, job_id, rest_is_sound)
    return recurring, window


def _read_timezone(reader: ObjectReader) -> str:
    timezone = reader.string("timezone")
    if timezone is None:
        return UTC_ZONE
    try:
        load_zone(timezone)
    except UnknownZone as error:
        reader.wrong("timezone", "unknown_zone", error.reason)
        return UTC_ZONE
    # The default itself is left out when it is stored; an equal text is not, and would count as a change.
    return UTC_ZONE if timezone == UTC_ZONE else timezone


def _read_once(reader: ObjectReader, timezone: str, now: datetime) -> Once | None:
    for key in ("cron", "every_seconds"):
        reader.forbid(key, "needs the type RECURRING; a ONE_TIME job has at or delay_seconds")
    for key in ("starts_at", "ends_at", "max_runs", "dst_gap", "dst_overlap"):
        reader.forbid(key, _RUNS_ONCE)
    at = reader.instant("at")
    delay = reader.whole("delay_seconds", 0, MAX_DELAY_SECONDS, None)
    if reader.given("at") and reader.given("delay_seconds"):
        reader.wrong("delay_seconds", "conflict", "cannot stand beside at; give one of the two")
    elif not reader.given("delay_seconds"):
        reader.require("at", "is required, or delay_seconds in its place")
    if at is not None and at < now - OLDEST_AT:
        reader.wrong("at", "out_of_range", f"is more than {OLDEST_AT.days} days in the past")
    if delay is not None:
        at = now.astimezone(UTC) + timedelta(seconds=delay)
    return Once(at, timezone) if at is not None else None


def _read_window(reader: ObjectReader) -> Window:
    window = Window(
        starts_at=reader.instant("starts_at"),
        ends_at=reader.instant("ends_at"),
        max_runs=reader.whole("max_runs", 1, MAX_RUNS, None),
    )
    if window.starts_at and window.ends_at and window.ends_at <= window.starts_at:
        reader.wrong("ends_at", "conflict", "must be later than starts_at")
    return window


def _read_recurring(
    reader: ObjectReader, timezone: str, window: Window, now: datetime
) -> Cron | Every | None:
    for key in ("at", "delay_seconds"):
        reader.forbid(key, "needs the type ONE_TIME; a RECURRING job has cron or every_seconds")
    cron = reader.string("cron")
    seconds = reader.whole("every_seconds", 1, MAX_EVERY_SECONDS, None)
    gap = reader.choice("dst_gap", _DST_GAPS, _DST_GAPS["run_after"])
    overlap = reader.choice("dst_overlap", _DST_OVERLAPS, _DST_OVERLAPS["once"])
    if reader.given("every_seconds"):
        reader.forbid("cron", "cannot stand beside every_seconds; give one of the two")
        for key in ("dst_gap", "dst_overlap"):
            reader.forbid(key, "has no meaning for every_seconds, which counts elapsed time")
        anchor = _anchor(window, now)
        return Every(seconds, anchor, timezone) if seconds is not None else None
    reader.require("cron", "is required, or every_seconds in its place")
    return Cron(cron, timezone, gap, overlap) if cron is not None else None


def _anchor(window: Window, now: datetime) -> int:
    # Up to the next whole second after a start, never to before it; down from now, so that the
    # first run is never later than one interval from now.
    if window.starts_at is None:
        return (now - _EPOCH) // _SECOND
    return -((_EPOCH - window.starts_at) // _SECOND)


def _check_first_run(
    reader: ObjectReader,
    schedule: Cron | Every,
    window: Window,
    now: datetime,
    job_id: int,
    rest_is_sound: bool,
) -> None:
    """Refuse a rule that cannot be read, and a schedule without any run."""
    try:
        first = first_run(schedule, window, job_id, now)
    except InvalidRule as error:
        reader.wrong("cron", "invalid_cron", f"{error.field}: {error.reason}")
        return
    if first is not None or not rest_is_sound:
        return
    if window.ends_at is not None:
        reader.wrong("ends_at", "never_runs", "leaves no time for even one run")
    elif window.starts_at is not None:
        reader.wrong("starts_at", "never_runs", "comes after the last time that the rule matches")
    else:
        reader.wrong("cron", "never_runs", "matches only times that the zone's clocks jump over")


def timetable_of(schedule: Cron | Every, job_id: int) -> Timetable:
    """The timetable that a job with this schedule and id belongs to; InvalidRule if none."""
    if isinstance(schedule, Every):
        anchor = _EPOCH + schedule.anchor * _SECOND
        return Timetable(interval_rule(schedule.every_seconds, anchor), UTC_ZONE)
    rule = canonical(resolve_hash(schedule.cron, job_id))
    return Timetable(rule, schedule.timezone, schedule.dst_gap, schedule.dst_overlap)


def first_run(
    schedule: Cron | Every, window: Window, job_id: int, now: datetime
) -> datetime | None:
    """The first run after now and within the window, or None if there is none."""
    timetable = timetable_of(schedule, job_id)
    rule = compile_rule(timetable.rule, timetable.zone, timetable.dst_gap, timetable.dst_overlap)
    after = now.astimezone(UTC)
    if window.starts_at is not None:
        # A run at starts_at itself counts, and next() is always later than what it is given.
        after = max(after, window.starts_at - timedelta(microseconds=1))
    first = rule.next(after)
    last = window.ends_at or LATEST
    return first if first is not None and first <= last else None


# Actions and policies.


def _read_action(reader: ObjectReader) -> Action | None:
    reader.require("type", "is required: WEBHOOK or TASK")
    kind = reader.choice("type", {"WEBHOOK": _read_webhook, "TASK": _read_task}, None)
    if kind is None:
        return None  # which fields there should be is not known
    action = kind(reader)
    reader.finish()
    return action


def _read_webhook(reader: ObjectReader) -> Action | None:
    url = read_url(reader)
    method = reader.choice("method", _METHODS, "POST")
    headers = read_headers(reader)
    body = reader.json("body", MAX_BODY_BYTES)
    literal = reader.flag("literal")
    if not literal:
        _check_templates(reader, "body", body)
    signing_secret = reader.text("signing_secret", SECRET_NAME, _SECRET_IS, None)
    secrets = read_secrets_check(reader)
    check_number_of_secrets(reader, url, headers, None if literal else body)
    if url is None:
        return None
    return WebhookAction(
        url=url,
        method=method,
        headers=headers,
        body=body,
        signing_secret=signing_secret,
        literal=literal,
        secrets=secrets,
    )


def read_url(reader: ObjectReader) -> str | None:
    """Where a webhook goes."""
    reader.require("url")
    url = reader.string("url")
    reason = None if url is None else url_problem(url)
    if reason:
        reader.wrong("url", "bad_format", reason)
    elif url is not None:
        _check_template(reader, "url", url, "Percent-encode { as %7B to send it as it is.")
    return url


def read_headers(action: ObjectReader) -> dict[str, str]:
    """The headers of a webhook."""
    reader = action.inner("headers")
    if reader is None:
        return {}
    headers = reader.fields
    if len(headers) > MAX_HEADERS:
        action.wrong("headers", "too_long", f"must be at most {MAX_HEADERS} headers")
        return {}
    for name in headers:
        value = reader.string(name)
        if value is None:
            if headers[name] is None:
                reader.wrong(name, "wrong_type", "must be a string, not null")
            continue
        reason = header_problem(name, value)
        if reason:
            reader.wrong(name, "bad_format", reason)
        elif value == MASKED:
            reader.wrong(name, "bad_format", _IS_MASK)
        else:
            _check_template(reader, name, value, "A header value cannot contain a literal {{.")
    repeated = repeated_header(headers)
    if repeated is not None:
        reader.wrong(repeated, "conflict", "is there twice, in another spelling")
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def read_secrets_check(reader: ObjectReader) -> SecretsCheck:
    """Whether the secrets that a webhook names must exist already."""
    return reader.choice("secrets", _SECRETS_CHECKS, SecretsCheck.REQUIRED)


def check_number_of_secrets(reader: ObjectReader, *parts: object) -> None:
    """Note a webhook that names more secrets than can be sent with one request."""
    if len(names_in(list(parts))) > MAX_OF_REQUEST:
        reader.wrong(
            "url", "too_long", f"and what is sent with it name more than {MAX_OF_REQUEST} secrets"
        )


def _check_templates(reader: ObjectReader, key: str, body: object) -> None:
    """Of all texts in a body, keys included."""
    for text in texts_in(body):
        _check_template(reader, key, text, _LITERAL_BODY)


def _check_template(reader: ObjectReader, key: str, text: str, otherwise: str) -> None:
    problem = template_problem(text)
    if problem is not None:
        end = "" if problem.endswith("?") else "."
        reader.wrong(key, "unknown_template", f"{problem}{end} {otherwise}")


def _read_notification(reader: ObjectReader) -> Notification | None:
    reader.require("on")
    on = reader.choices("on", _EVENTS)
    url = read_url(reader)
    headers = read_headers(reader)
    secrets = read_secrets_check(reader)
    check_number_of_secrets(reader, url, headers)
    reader.finish()
    if url is None:
        return None
    return Notification(on=on, url=url, headers=headers, secrets=secrets)


def _read_task(reader: ObjectReader) -> Action | None:
    reader.require("name")
    name = reader.text("name", _TASK, _TASK_IS, None)
    payload = reader.json("payload", MAX_BODY_BYTES)
    return TaskAction(name=name, payload=payload) if name is not None else None


def _read_retry_policy(
    reader: ObjectReader | None, delivery: Delivery, problems: Problems
) -> RetryPolicy:
    if reader is None:
        return RetryPolicy() if delivery is Delivery.AT_LEAST_ONCE else RetryPolicy(max_retries=0)
    backoff = reader.choice("backoff", _BACKOFFS, None)
    non_retryable = reader.texts("non_retryable", _KIND, _KIND_IS, MAX_NON_RETRYABLE)
    retryable = reader.texts("retryable", _KIND, _KIND_IS, MAX_NON_RETRYABLE)
    if not set(retryable).isdisjoint(non_retryable):
        reader.wrong("retryable", "conflict", "names a kind that non_retryable names too")
    if reader.given("delays_seconds") or backoff is Backoff.LIST:
        policy = _read_list(reader, backoff, problems)
    else:
        policy = _read_formula(reader, backoff)
    crashes = reader.whole("max_crashes", 1, MAX_CRASHES, None)
    policy = replace(policy, non_retryable=non_retryable, retryable=retryable, max_crashes=crashes)
    reader.finish()
    if delivery is Delivery.AT_LEAST_ONCE:
        return policy
    if policy.max_retries > 0:
        for key in ("max_retries", "delays_seconds"):
            reader.forbid(key, "cannot stand beside at_most_once, which never retries")
    return replace(policy, max_retries=0)


def _read_list(reader: ObjectReader, backoff: Backoff | None, problems: Problems) -> RetryPolicy:
    reader.require("delays_seconds", "is required with backoff LIST")
    delays = reader.wholes("delays_seconds", 0, MAX_RETRY_DELAY_SECONDS, MAX_RETRIES) or ()
    if backoff not in (None, Backoff.LIST):
        reader.wrong("backoff", "conflict", "must be LIST, or left out, beside delays_seconds")
    for key in ("initial_delay_seconds", "max_delay_seconds"):
        reader.forbid(key, "has no meaning beside delays_seconds")
    retries = reader.whole("max_retries", 0, MAX_RETRIES, None)
    sound = not problems.touch(reader.path("delays_seconds"))
    if retries is not None and sound and retries != len(delays):
        reader.wrong("max_retries", "conflict", "must be the number of delays_seconds, or left out")
    return RetryPolicy(max_retries=len(delays), backoff=Backoff.LIST, delays_seconds=delays)


def _read_formula(reader: ObjectReader, backoff: Backoff | None) -> RetryPolicy:
    default = RetryPolicy()
    initial = reader.whole(
        "initial_delay_seconds", 0, MAX_RETRY_DELAY_SECONDS, default.initial_delay_seconds
    )
    longest = reader.whole("max_delay_seconds", 0, MAX_RETRY_DELAY_SECONDS, None)
    if longest is None:
        longest = max(default.max_delay_seconds, initial)
    elif longest < initial:
        reader.wrong("max_delay_seconds", "conflict", "must not be below initial_delay_seconds")
    return RetryPolicy(
        max_retries=reader.whole("max_retries", 0, MAX_RETRIES, default.max_retries),
        backoff=backoff or default.backoff,
        initial_delay_seconds=initial,
        max_delay_seconds=longest,
    )


# Updates.


def unmasked(document: Mapping[str, Any], job: NewJob) -> dict[str, Any]:
    """A document for a job that exists, with the credentials that it stores in the places of their masks.

    So what was read can be changed and sent back. A mask for which no value is stored is left, and refused by the reader.
    """
    document = dict(document)
    action = document.get("action")
    if isinstance(action, dict) and isinstance(job.action, WebhookAction):
        document["action"] = _with_credentials(action, [job.action])
    notifications = document.get("notifications")
    if isinstance(notifications, list):
        document["notifications"] = [
            _with_credentials(
                one, [each for each in job.notifications if each.url == one.get("url")]
            )
            if isinstance(one, dict)
            else one
            for one in notifications
        ]
    return document


def _with_credentials(webhook: _Object, stored: Sequence[WebhookAction | Notification]) -> _Object:
    headers = webhook.get("headers")
    if not isinstance(headers, dict) or MASKED not in headers.values():
        return webhook
    known = {name.lower(): value for one in stored for name, value in one.headers.items()}
    return webhook | {
        "headers": {
            name: known.get(name.lower(), value) if value == MASKED else value
            for name, value in headers.items()
        }
    }


def _patched(job: NewJob, patch: Mapping[str, object]) -> dict[str, object]:
    """The document of a job with a patch laid over it; what is no object is left to the reader."""
    present = definition(job)
    merged: dict[str, object] = {**present, **patch}
    present["retry_policy"] = _said_about_retries(job)
    for key, merge in (
        ("schedule", _patched_schedule),
        ("action", _patched_action),
        ("retry_policy", _patched_retry_policy),
        ("labels", _patched_labels),
    ):
        part = patch.get(key, {})
        if isinstance(part, dict):
            merged[key] = merge(present[key], part)
    return merged


def _patched_schedule(present: _Object, patch: _Object) -> _Object:
    kinds = {kind for kind in _KINDS_OF_SCHEDULE if patch.get(kind) is not None}
    replaced = {*_KINDS_OF_SCHEDULE} if kinds else set()
    if kinds - {"cron"}:
        replaced |= {"dst_gap", "dst_overlap"}
    return {key: value for key, value in present.items() if key not in replaced} | patch


def _patched_action(present: _Object, patch: _Object) -> _Object:
    if patch.get("type", present["type"]) != present["type"]:
        return patch
    merged = present | patch
    headers = patch.get("headers")
    if isinstance(headers, dict):
        named = {name.lower() for name in headers}
        kept = {k: v for k, v in present.get("headers", {}).items() if k.lower() not in named}
        merged["headers"] = kept | {k: v for k, v in headers.items() if v is not None}
    return merged


def _patched_labels(present: _Object, patch: _Object) -> _Object:
    return {name: value for name, value in (present | patch).items() if value is not None}


def _patched_retry_policy(present: _Object, patch: _Object) -> _Object:
    to_list = patch.get("delays_seconds") is not None
    from_list = "delays_seconds" in present and not patch.keys().isdisjoint(
        {"backoff", "delays_seconds"}
    )
    if to_list or from_list:
        present = {key: value for key, value in present.items() if key in _APART_FROM_DELAYS}
    return present | patch


def _said_about_retries(spec: JobSpec) -> _Object:
    """The retry policy without what is default or follows from the rest: that may follow anew."""
    policy, default = spec.retry_policy, RetryPolicy()
    said = _render_retry_policy(policy)
    if policy.max_delay_seconds == max(default.max_delay_seconds, policy.initial_delay_seconds):
        said.pop("max_delay_seconds", None)
    if spec.delivery is Delivery.AT_MOST_ONCE or policy.backoff is Backoff.LIST:
        del said["max_retries"]
    return {key: value for key, value in said.items() if value != getattr(default, key)}


def _with_old_anchor(old: NewJob, new: NewJob) -> NewJob:
    """Let an interval that was not changed go on from where it stands."""
    before, after = old.schedule, new.schedule
    if not isinstance(before, Every) or not isinstance(after, Every):
        return new
    if before.every_seconds != after.every_seconds or old.window.starts_at != new.window.starts_at:
        return new
    return replace(new, schedule=replace(after, anchor=before.anchor))


def _changed(old: NewJob, new: NewJob) -> frozenset[str]:
    # As JSON, because to Python 1 and true are equal, and to the target of a webhook they are not.
    def said(job: NewJob, field: str) -> bytes:
        return msgspec.json.encode(getattr(job, field))

    fields = NewJob.__struct_fields__
    return frozenset(field for field in fields if said(old, field) != said(new, field))


# What users get.


def render_job(job: Job) -> dict[str, Any]:
    """A job as users see it: the document that would create it, and what became of it."""
    zone = shown_in(job.schedule.timezone)
    return {
        "job_id": job_text(job.job_id),
        "status": job.status.value,
        "version": job.version,
        "next_run_at": format_instant(job.next_run_at, zone) if job.next_run_at else None,
        **shown_definition(job),
        "created_at": format_instant(job.created_at),
        "updated_at": format_instant(job.updated_at),
        "warnings": render_warnings(job),
    }


def render_warnings(job: NewJob) -> list[dict[str, str]]:
    """What a job says that was probably not meant; nothing is refused for it."""
    caution = caution_about(job.schedule.cron) if isinstance(job.schedule, Cron) else None
    if caution is None:
        return []
    return [{"path": "schedule.cron", "code": "seconds_first", "message": caution}]


def render_execution(execution: Execution) -> dict[str, Any]:
    """An execution as users see it."""
    return {
        "execution_id": execution_text(execution.execution_id),
        "job_id": job_text(execution.job_id),
        "job_name": execution.job_name,
        "tenant_id": execution.tenant_id,
        "queue": execution.queue,
        "origin": execution.origin.value,
        "created_at": format_instant(created_at(execution.execution_id)),
        "status": execution.status.value,
        "reason": execution.reason.value if execution.reason else None,
        "scheduled_for": format_instant(execution.scheduled_for),
        "started_at": _instant(execution.started_at),
        "finished_at": _instant(execution.finished_at),
        "duration_ms": execution.duration_ms,
        "attempt": execution.attempt,
        "fence_token": execution.fence,
        "worker_id": execution.worker,
        "lateness_ms": execution.lateness_ms,
        "missed": execution.missed,
        "missed_through": _instant(execution.missed_through),
        "error": execution.error,
        "result": execution.result,
        "progress": execution.progress,
        "attempts": [render_attempt(attempt) for attempt in execution.attempts],
    }


def render_limits(limits: Limits) -> dict[str, Any]:
    """The settings of a tenant, a queue or a target: the document that would set them."""
    rate = limits.rate_limit
    shown: dict[str, Any] = {
        "max_concurrency": limits.max_concurrency,
        "rate_limit": None
        if rate is None
        else {"per_second": rate.per_second, "burst": rate.burst},
    }
    match limits:
        case TenantSettings():
            shown |= {
                "weight": limits.weight,
                "max_jobs": limits.max_jobs,
                "ledger_days": limits.ledger_days,
                "dead_letter_days": limits.dead_letter_days,
                "audit_days": limits.audit_days,
            }
        case QueueSettings():
            retries = limits.default_retry_policy
            shown |= {
                "default_timeout_seconds": limits.default_timeout_seconds,
                "default_retry_policy": None if retries is None else _render_retry_policy(retries),
            }
    return shown


def render_attempt(attempt: Attempt) -> dict[str, Any]:
    """One try as users see it."""
    return {
        "attempt": attempt.attempt,
        "status": attempt.status.value,
        "started_at": format_instant(attempt.started_at),
        "finished_at": _instant(attempt.finished_at),
        "error": attempt.error,
        "kind": attempt.kind,
        "fence_token": attempt.fence,
        "worker_id": attempt.worker,
    }


def shown_definition(job: NewJob) -> dict[str, Any]:
    """The document of a job as users see it: literal credentials in headers are masked."""
    return without_credentials(definition(job))


def without_credentials(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a job with masks in the places of literal credentials."""
    webhooks = [document.get("action"), *(document.get("notifications") or ())]
    for webhook in webhooks:
        if isinstance(webhook, dict) and webhook.get("headers"):
            webhook["headers"] = shown_headers(webhook["headers"])
    return document


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a webhook as users see them."""
    return {name: masked(name, value) for name, value in headers.items()}


def definition(job: NewJob) -> dict[str, Any]:
    """The document that would create this job, with every default spelled out and nothing masked."""
    document: dict[str, Any] = {
        "tenant_id": job.tenant_id,
        "name": job.name,
        "type": job.type.value,
        "schedule": _render_schedule(job.schedule, job.window),
        "action": render_action(job.action),
        "retry_policy": _render_retry_policy(job.retry_policy),
        "timeout_seconds": job.timeout_seconds,
        "delivery": job.delivery.value,
        "queue": job.queue,
        "priority": job.priority.name,
        "start_deadline_seconds": job.start_deadline_seconds,
        "deadline_seconds": job.deadline_seconds,
        "concurrency_key": job.concurrency_key,
        "concurrency_limit": job.concurrency_limit if job.concurrency_key is not None else None,
        **_render_unique_key(job),
        "labels": job.labels,
        "notifications": [
            {
                "on": [event.value for event in one.on],
                "url": one.url,
                "headers": one.headers,
                **_render_secrets_check(one.secrets),
            }
            for one in job.notifications
        ],
    }
    if job.type is JobType.RECURRING:
        document |= {
            "misfire_policy": job.misfire_policy.value,
            "catch_up_window_seconds": job.catch_up_window_seconds,
            "catch_up_limit": job.catch_up_limit,
            "overlap_policy": job.overlap_policy.value,
        }
    return document


def _render_unique_key(job: NewJob) -> dict[str, Any]:
    unique = job.unique_key is not None
    return {
        "unique_key": job.unique_key,
        "on_duplicate": job.on_duplicate.value if unique else None,
    }


def _render_schedule(schedule: Schedule, window: Window) -> dict[str, Any]:
    shown: dict[str, Any]
    match schedule:
        case Once():
            return {"at": format_instant(schedule.at), "timezone": schedule.timezone}
        case Cron():
            shown = {
                "cron": schedule.cron,
                "timezone": schedule.timezone,
                "dst_gap": schedule.dst_gap,
                "dst_overlap": schedule.dst_overlap,
            }
        case Every():
            shown = {"every_seconds": schedule.every_seconds, "timezone": schedule.timezone}
    return shown | {
        "starts_at": _instant(window.starts_at),
        "ends_at": _instant(window.ends_at),
        "max_runs": window.max_runs,
    }


def render_action(action: Action) -> dict[str, Any]:
    """An action as its worker gets it; secrets stay the names that they are."""
    match action:
        case WebhookAction():
            shown = {
                "type": "WEBHOOK",
                "url": action.url,
                "method": action.method,
                "headers": action.headers,
                "body": action.body,
            }
            if action.signing_secret is not None:
                shown["signing_secret"] = action.signing_secret
            if action.literal:
                shown["literal"] = True
            return shown | _render_secrets_check(action.secrets)
        case TaskAction():
            return {"type": "TASK", "name": action.name, "payload": action.payload}


def _render_secrets_check(check: SecretsCheck) -> dict[str, Any]:
    return {} if check is SecretsCheck.REQUIRED else {"secrets": check.value}


def _render_retry_policy(policy: RetryPolicy) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "max_retries": policy.max_retries,
        "backoff": policy.backoff.value,
        "non_retryable": list(policy.non_retryable),
        "retryable": list(policy.retryable),
        "max_crashes": policy.max_crashes,
    }
    if policy.delays_seconds is not None:
        return shown | {"delays_seconds": list(policy.delays_seconds)}
    return shown | {
        "initial_delay_seconds": policy.initial_delay_seconds,
        "max_delay_seconds": policy.max_delay_seconds,
    }


def _instant(instant: datetime | None) -> str | None:
    return format_instant(instant) if instant is not None else None
