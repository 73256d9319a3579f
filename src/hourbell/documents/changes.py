"""Updates: a patch or a full new document, applied to an existing job."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from hourbell.documents.fields import Document
from hourbell.documents.jobs import (
    RecurringJobDocument,
    definition,
    read_job,
    render_unique_key,
)
from hourbell.documents.policies import render_retry_policy
from hourbell.documents.problems import Problems
from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.jobs import (
    Job,
    JobChanges,
    JobSpec,
    NewJob,
    Notification,
    WebhookAction,
)
from hourbell.model.policies import Backoff, Delivery, RetryPolicy
from hourbell.model.schedules import Every
from hourbell.security.secrets import MASKED

_KINDS_OF_SCHEDULE = ("cron", "every_seconds", "at", "delay_seconds")
_FIELDS_OF_ANY_BACKOFF = ("non_retryable", "retryable", "max_crashes")
_Object = dict[str, Any]


def parse_changes(document: object, job: Job, now: datetime) -> JobChanges:
    """The result of a patch on a job; raises InvalidInput with every invalid field."""
    problems = Problems()
    patch = unmasked(Document.open(document, problems).values, job)
    old = NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})
    fixed = {"type": job.type.value, "tenant_id": job.tenant_id, **render_unique_key(job)}
    for key, value in fixed.items():
        unset = value is None and RecurringJobDocument.FIELDS[key].is_default(patch.get(key))
        if patch.get(key, value) != value and not unset:
            problems.add(key, "immutable", "cannot be changed; create a new job instead")
    timing = None if patch.get("schedule", {}) != {} else (old.schedule, old.window)
    patched = RecurringJobDocument.open(_patched(old, patch) | fixed, problems)
    new = _with_kept_parts(old, read_job(patched, now, job.job_id, timing))
    named = {*patch, "window"} if "schedule" in patch else patch.keys()
    return JobChanges(new, _changed(old, new) | named & set(job.unreadable))


def replacing(job: Job, new: NewJob) -> JobChanges:
    """The result of a full new document on a job; raises InvalidInput if its type differs."""
    if new.type is not job.type:
        message = "cannot be changed; delete the job first"
        raise InvalidInput([FieldError("type", "immutable", message)])
    old = NewJob(**{field: getattr(job, field) for field in NewJob.__struct_fields__})
    new = _with_kept_parts(old, new)
    return JobChanges(new, _changed(old, new).union(job.unreadable))


def unmasked(document: Mapping[str, Any], job: NewJob) -> dict[str, Any]:
    """A document for an existing job, with masks replaced by the stored credentials.

    This lets a client read a document, edit it and send it back. A mask without a stored value is
    left in place, and the reader rejects it.
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
    """The document of a job with a patch applied; the reader rejects parts that are not objects."""
    present = definition(job)
    merged: dict[str, object] = {**present, **patch}
    present["retry_policy"] = _explicit_retry_policy(job)
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
        present = {key: value for key, value in present.items() if key in _FIELDS_OF_ANY_BACKOFF}
    return present | patch


def _explicit_retry_policy(spec: JobSpec) -> _Object:
    """The retry policy without default and derived values, so that they can be derived again."""
    policy, default = spec.retry_policy, RetryPolicy()
    explicit = render_retry_policy(policy)
    if policy.max_delay_seconds == max(default.max_delay_seconds, policy.initial_delay_seconds):
        explicit.pop("max_delay_seconds", None)
    if spec.delivery is Delivery.AT_MOST_ONCE or policy.backoff is Backoff.LIST:
        del explicit["max_retries"]
    return {key: value for key, value in explicit.items() if value != getattr(default, key)}


def _with_kept_parts(old: NewJob, new: NewJob) -> NewJob:
    """Keep what a change does not affect: the trace, and the anchor of an unchanged interval."""
    new = replace(new, traceparent=old.traceparent, trace_link=old.trace_link)
    before, after = old.schedule, new.schedule
    if not isinstance(before, Every) or not isinstance(after, Every):
        return new
    if before.every_seconds != after.every_seconds or old.window.starts_at != new.window.starts_at:
        return new
    return replace(new, schedule=replace(after, anchor=before.anchor))


def _changed(old: NewJob, new: NewJob) -> frozenset[str]:
    # Compared as JSON: in Python 1 equals true, but the target of a webhook sees a difference.
    def as_json(job: NewJob, field: str) -> bytes:
        return msgspec.json.encode(getattr(job, field))

    fields = NewJob.__struct_fields__
    return frozenset(field for field in fields if as_json(old, field) != as_json(new, field))
