"""The JSON Schemas of the API: those of requests come from their declarations in `documents`.

This module adds only the names of the schemas, the ways one document is used in several places,
and what exists only in responses. Requests may omit a field that has a default, or set it to
null; responses contain every field. A field in both has the same schema in both, so a document can
be read, edited and sent back.
"""

from __future__ import annotations

from enum import Enum
from typing import get_args

from hourbell.api.worker_calls import (
    CheckpointDocument,
    ClaimDocument,
    HeartbeatDocument,
    OutcomeDocument,
    OutcomesDocument,
    ProgressDocument,
    ReleaseDocument,
    SessionDocument,
)
from hourbell.documents.actions import (
    NotificationDocument,
    TaskDocument,
    WebhookDocument,
)
from hourbell.documents.calendars import CalendarDocument
from hourbell.documents.completions import CompletionDocument
from hourbell.documents.dead_letters import DeadLetterFilterDocument, PurgeDocument, ReplayDocument
from hourbell.documents.execution_groups import GroupDocument, MembersDocument
from hourbell.documents.fields import (
    or_null,
    ref,
    request_object,
    response_object,
    response_object_of,
    with_defaults,
)
from hourbell.documents.jobs import RECURRING_FIELDS, JobDocument, RecurringJobDocument
from hourbell.documents.keys import KeyDocument, SignInDocument
from hourbell.documents.kinds import ID, ExecutionId, JobId, OperationId, Schema
from hourbell.documents.monitors import MonitorDocument
from hourbell.documents.operations import OperationDocument, OperationPreviewDocument
from hourbell.documents.pauses import BulkPauseDocument, BulkResumeDocument, PauseDocument
from hourbell.documents.policies import FORMULA_FIELDS, LIST_FIELDS, RetryPolicyDocument
from hourbell.documents.previews import PreviewDocument
from hourbell.documents.runs import BackfillDocument, RunDocument
from hourbell.documents.schedules import (
    CronSchedule,
    DelaySchedule,
    InstantSchedule,
    IntervalSchedule,
    ScheduleDocument,
)
from hourbell.documents.secrets import SecretDocument
from hourbell.documents.settings import (
    LimitsDocument,
    QueueSettingsDocument,
    RateLimitDocument,
    TenantSettingsDocument,
)
from hourbell.engine.codes import FATES
from hourbell.engine.life.create import MAX_BATCH_ITEMS
from hourbell.engine.views.activity import WINDOWS
from hourbell.engine.views.attention import MAX_ITEMS, Severity
from hourbell.engine.views.backlog import REASONS
from hourbell.engine.views.resources import MAX_COUNTED, TENANT_COUNTS
from hourbell.engine.views.tasks import MAX_TASKS
from hourbell.model.errors import FieldCode
from hourbell.model.executions import ExecutionStatus, Origin, Reason
from hourbell.model.ids import MAX_ID
from hourbell.model.jobs import JobStatus, JobType
from hourbell.model.policies import Priority
from hourbell.security.access import KeyRole
from hourbell.security.secrets import MASKED

_SCHEDULES = ("CronSchedule", "IntervalSchedule", "InstantSchedule", "DelaySchedule")
_UNIQUE_KEY_FIELDS = ("unique_key", "on_duplicate")


def schemas() -> dict[str, Schema]:
    """Every schema by its name."""
    return _requests() | _responses()


def _requests() -> dict[str, Schema]:
    return {
        "NewJob": _either("type", ONE_TIME="NewOneTimeJob", RECURRING="NewRecurringJob"),
        "NewOneTimeJob": _new_job(JobType.ONE_TIME),
        "NewRecurringJob": _new_job(JobType.RECURRING),
        "NewJobs": {**_array(_item()), "minItems": 1, "maxItems": MAX_BATCH_ITEMS},
        "NamedJob": _either("type", ONE_TIME="NamedOneTimeJob", RECURRING="NamedRecurringJob"),
        "NamedOneTimeJob": _named_job(JobType.ONE_TIME),
        "NamedRecurringJob": _named_job(JobType.RECURRING),
        "JobPatch": _job_patch(),
        "CronSchedule": with_defaults(request_object(CronSchedule), ScheduleDocument),
        "IntervalSchedule": with_defaults(request_object(IntervalSchedule), ScheduleDocument),
        "InstantSchedule": with_defaults(request_object(InstantSchedule), ScheduleDocument),
        "DelaySchedule": with_defaults(request_object(DelaySchedule), ScheduleDocument),
        "SchedulePreviewRequest": request_object(
            PreviewDocument, schedule={"anyOf": [ref(name) for name in _SCHEDULES]}
        ),
        "Webhook": request_object(WebhookDocument, type={"const": "WEBHOOK"}),
        "Task": request_object(TaskDocument, type={"const": "TASK"}),
        "Notification": request_object(NotificationDocument),
        "RetryPolicy": request_object(RetryPolicyDocument),
        "Run": request_object(RunDocument),
        "Backfill": request_object(BackfillDocument),
        "Pause": request_object(PauseDocument),
        "BulkPause": request_object(BulkPauseDocument),
        "BulkResume": request_object(BulkResumeDocument),
        "Replay": request_object(ReplayDocument),
        "Purge": request_object(PurgeDocument),
        "OperationPreviewRequest": request_object(OperationPreviewDocument),
        "NewOperation": request_object(OperationDocument),
        "TenantSettings": request_object(TenantSettingsDocument),
        "QueueSettings": request_object(QueueSettingsDocument),
        "TargetSettings": request_object(LimitsDocument),
        "NewMonitor": request_object(MonitorDocument),
        "Completion": request_object(CompletionDocument),
        "NewKey": request_object(KeyDocument),
        "SignIn": request_object(SignInDocument),
        "NewCalendar": request_object(CalendarDocument),
        "NewGroup": request_object(GroupDocument),
        "GroupMembers": request_object(MembersDocument),
        "NewSecret": request_object(SecretDocument),
        "Claim": request_object(ClaimDocument),
        "Heartbeat": request_object(HeartbeatDocument),
        "Outcome": request_object(OutcomeDocument),
        "Outcomes": request_object(OutcomesDocument),
        "Progress": request_object(ProgressDocument),
        "Checkpoint": request_object(CheckpointDocument),
        "Release": request_object(ReleaseDocument),
        "Close": request_object(SessionDocument),
    }


def _responses() -> dict[str, Schema]:
    return {
        "BatchResults": response_object_of({"results": _array(_batch_result())}),
        "Job": _job(),
        "CreatedJob": _created_job(),
        "JobPage": _job_page(),
        "NextRuns": response_object_of(
            {
                "items": _array(
                    response_object_of(
                        {
                            "scheduled_for": _instant("In the time zone of the job."),
                            "note": or_null(_text("The effect of a DST change on this run.")),
                        }
                    )
                ),
                "warnings": _warnings(),
            }
        ),
        "SchedulePreview": _schedule_preview(),
        "AuditEntry": _audit_entry(),
        "AuditPage": _page("AuditEntry"),
        "Execution": _execution(),
        "ExecutionPage": _page("Execution"),
        "DeadLetter": _dead_letter(),
        "DeadLetterPage": _page("DeadLetter"),
        "DeadLetterGroups": _dead_letter_groups(),
        "Replayed": response_object_of(
            {
                "replayed": _whole(0),
                "left": _whole(0, description="How many could not be replayed."),
                "left_reasons": _left_reasons(*_NOT_REPLAYED),
                "last_run_at": or_null(_instant("When the last one is due.")),
                "next_page_token": _next_token(),
            }
        ),
        "Operation": _operation(),
        "OperationPage": _page("Operation"),
        "OperationPreview": response_object_of(
            {
                "act": OperationDocument.act.response_schema,
                "filter": _given_filter(),
                "total": _whole(0),
                "at_least": {"type": "boolean", "description": "There may be more."},
                "words": _text("The operation and what it applies to, in plain English."),
            }
        ),
        "BulkPaused": _bulk_changed("paused"),
        "BulkResumed": _bulk_changed("resumed"),
        "Purged": response_object_of({"purged": _whole(0), "next_page_token": _next_token()}),
        "Tenant": _tenant(),
        "TenantPage": _page("Tenant"),
        "Queue": _queue(),
        "QueuePage": _page("Queue"),
        "Target": _named("host", LimitsDocument, "parked"),
        "TargetPage": _page("Target"),
        "Forecast": _forecast(),
        "ForecastMinute": _forecast_minute(),
        "Overview": _overview(),
        "Tasks": _tasks(),
        "DeclaredTask": response_object_of(
            {
                "task": _text(),
                "job": {"type": "object", "description": "Fields of the documents of its jobs."},
                "arguments": or_null(
                    {"type": "object", "description": "JSON Schema; null: any arguments."}
                ),
            }
        ),
        "Worker": response_object_of(_worker()),
        "WorkerPage": _page("Worker"),
        "WorkerWithExecutions": response_object_of(
            {**_worker(), "executions": _array(_held_execution())}
        ),
        "Nodes": response_object_of({"items": _array(_node())}),
        "Circuits": response_object_of({"items": _array(_circuit())}),
        "Monitor": _monitor(),
        "MonitorPage": _page("Monitor"),
        "Requested": response_object_of({"execution_ids": _array(_execution_id())}),
        "Explanation": _explanation(),
        "CompletionNoted": response_object_of(
            {"execution_id": _execution_id(), "status": CompletionDocument.status.response_schema}
        ),
        "Key": response_object_of(_key()),
        "MadeKey": response_object_of({**_key(), "key": or_null(_text("Returned only once."))}),
        "KeyPage": _page("Key"),
        "Me": response_object_of(
            {
                "key_id": or_null(_key()["key_id"]),
                "name": _text("The name of the key."),
                "role": _choice(KeyRole),
                "tenant_id": or_null(_text("Null: all tenants.")),
                "version": _text("The version of the server."),
                "requires_keys": {
                    "type": "boolean",
                    "description": "False: no key exists, and callers on this machine may do everything.",
                },
                "authenticated_by": _words("nothing", "key", "session"),
                "session_expires_at": or_null(
                    _instant("The session also ends after 12 hours without use.")
                ),
                "operations": {
                    **_array(_text()),
                    "description": "The ids of the operations that the caller may call.",
                },
            }
        ),
        "SignedOut": response_object_of({"status": {"const": "signed_out"}}),
        "Secret": response_object_of(_secret()),
        "SetSecret": response_object_of(
            {
                **_secret(),
                "value": or_null(_text("The generated value; returned only once.")),
                "effective_at": _instant(
                    "Webhooks that begin later use the new value; until then, some still use the previous one."
                ),
            }
        ),
        "SecretPage": _page("Secret"),
        "GroupPage": _page("Group"),
        "Group": response_object_of(
            {
                "group_id": {"type": "string", "pattern": f"^grp_{ID}$"},
                "tenant_id": _text(),
                "name": _text(),
                "url": or_null(_text()),
                "headers": _shown_headers(),
                "task": or_null(_text()),
                "members": _whole(0),
                "ended": {
                    **response_object_of({fate.value: _whole(0) for fate in FATES}),
                    "description": "How many members are known to have ended, by fate.",
                },
                "created_at": _instant(),
                "closed_at": or_null(_instant()),
                "ended_at": or_null(_instant("When the callback was created.")),
                "execution_id": or_null(_text()),
                "problem": or_null(_text()),
            }
        ),
        "Calendar": response_object_of(
            {
                "name": _text(),
                "tenant_id": _text(),
                "dates": CalendarDocument.dates.response_schema,
                "created_at": _instant(),
                "updated_at": _instant(),
            }
        ),
        "CalendarPage": _page("Calendar"),
        **_worker_answers(),
        "Problem": _problem(),
        "Readiness": response_object_of(
            {
                "status": _words("ready", "not_ready"),
                "checks": {"type": "object", "additionalProperties": {"type": "boolean"}},
            }
        ),
        "Liveness": response_object_of({"status": {"const": "alive"}}),
        "Index": response_object_of(
            {name: _text() for name in ("name", "version", "jobs", "openapi", "docs")}
        ),
        "OpenApi": {"type": "object"},
        "EventStream": _text("Server-sent events: overview, changed, reset."),
        "Metrics": _text(),
    }


# Jobs in requests.


def _new_job(kind: JobType) -> Schema:
    once = kind is JobType.ONE_TIME
    schedules = (
        ("InstantSchedule", "DelaySchedule") if once else ("CronSchedule", "IntervalSchedule")
    )
    schema = request_object(
        JobDocument if once else RecurringJobDocument,
        type={"const": kind.value},
        schedule={"oneOf": [ref(name) for name in schedules]},
        action=_either("type", WEBHOOK="Webhook", TASK="Task"),
    )
    return with_defaults(schema, RecurringJobDocument)


def _item() -> Schema:
    """A batch item: the call accepts any value and reports what is wrong with each item."""
    return {"anyOf": [ref("NewJob"), {"description": "Anything else gets an error result."}]}


def _named_job(kind: JobType) -> Schema:
    """Like a new job, but the name comes from the path and is the unique key."""
    schema = _new_job(kind)
    fields = {k: v for k, v in schema["properties"].items() if k not in _UNIQUE_KEY_FIELDS}
    fields["name"] = or_null(
        {**fields["name"], "description": "If given, must equal the name in the path."}
    )
    required = [name for name in schema["required"] if name != "name"]
    return with_defaults(schema | {"properties": fields, "required": required}, JobDocument)


def _job_patch() -> Schema:
    return request_object(
        RecurringJobDocument,
        required=(),
        type={**JobDocument.type.schema, "description": "Cannot be changed."},
        schedule=request_object(ScheduleDocument, required=()),
        action=request_object(WebhookDocument, TaskDocument, required=()),
    )


# Responses.


def _job() -> Schema:
    definition = response_object(
        RecurringJobDocument,
        optional=RECURRING_FIELDS,
        schedule={
            "oneOf": [
                response_object(InstantSchedule, at=_instant()),
                response_object(CronSchedule),
                response_object(IntervalSchedule),
            ]
        },
        action=_shown_action(_shown_headers()),
        retry_policy=_retries(),
        concurrency_limit=or_null(JobDocument.concurrency_limit.response_schema),
        on_duplicate=or_null(JobDocument.on_duplicate.response_schema),
        labels=JobDocument.labels.schema,
        notifications=_array(response_object(NotificationDocument, headers=_shown_headers())),
    )
    before = {
        "job_id": _job_id(),
        "status": _choice(JobStatus),
        "version": _whole(1),
        "next_run_at": or_null(
            _instant("In the time zone of the job; null when paused, ended, or running once.")
        ),
    }
    after = {
        "created_at": _instant(),
        "updated_at": _instant(),
        "schedule_words": _text("When the job runs, in plain English."),
        "warnings": _warnings(),
        "problem": or_null(
            _text(
                "What this version cannot read of the job; it has `unreadable` or a default there."
            )
        ),
    }
    after["paused"] = or_null(_pause_details())
    after["last_outcomes"] = {
        **_array(
            response_object_of(
                {
                    "execution_id": _execution_id(),
                    "scheduled_for": _instant(),
                    "status": _choice(ExecutionStatus),
                    "reason": or_null(_choice(Reason)),
                }
            )
        ),
        "description": "The latest executions, newest first; only if requested.",
    }
    return response_object_of(
        {**before, **definition["properties"], **after},
        optional=(*RECURRING_FIELDS, "last_outcomes"),
    )


def _created_names() -> dict[str, Schema]:
    return {
        f"created_{kind}": {
            "const": True,
            "description": f"The {kind} was unknown, so naming it created it. Else omitted.",
        }
        for kind in ("tenant", "queue")
    }


def _created_job() -> Schema:
    job, names = _job(), _created_names()
    optional = {*job["properties"], *names} - {*job["required"]}
    return response_object_of({**job["properties"], **names}, optional=tuple(optional))


def _pause_details() -> Schema:
    return {
        **response_object_of(
            {
                "by": _text("Who paused the job."),
                "at": _instant(),
                "reason": or_null(_text()),
                "until": or_null(_instant("When the job is resumed.")),
            }
        ),
        "description": "Details of the pause, if the job is paused.",
    }


_NOT_REPLAYED = ("duplicate_job", "gone", "in_use", "job_deleted", "occurrence_live")


def _left_reasons(*codes: str) -> Schema:
    return _array(response_object_of({"code": _words(*codes), "count": _whole(1)}))


def _operation() -> Schema:
    return response_object_of(
        {
            "operation_id": OperationId().schema,
            "act": OperationDocument.act.response_schema,
            "filter": _given_filter(),
            "reason": OperationDocument.reason.response_schema,
            "until": OperationDocument.until.response_schema,
            "rate_per_second": OperationDocument.rate_per_second.response_schema,
            "tenant_id": or_null(_text("The only tenant that it applies to; null: all tenants.")),
            "created_by": _text(),
            "created_at": _instant(),
            "state": _words("RUNNING", "STOPPED", "DONE", "FAILED"),
            "total": _whole(0, description="How many items were selected when it was created."),
            "total_at_least": {"type": "boolean", "description": "Counting stopped at `total`."},
            "done": _whole(0),
            "left": _whole(0, description="How many selected items were not changed."),
            "left_reasons": _left_reasons(
                *_NOT_REPLAYED,
                "changed_meanwhile",
                "ended",
                "failed",
                "invalid_schedule",
                "underway",
                "until_passed",
            ),
            "error": or_null(_text("Why the operation failed.")),
            "updated_at": _instant(),
            "ended_at": or_null(_instant()),
        }
    )


def _given_filter() -> Schema:
    return {"type": "object", "description": "The filter of the request."}


def _bulk_changed(done: str) -> Schema:
    return response_object_of(
        {
            done: _whole(0),
            "left": _whole(
                0,
                description=(
                    "Selected but not changed: one-time jobs that are queued or running, "
                    "and jobs that other requests were changing."
                ),
            ),
            "next_page_token": _next_token(),
        }
    )


def _schedule_preview() -> Schema:
    run = response_object_of(
        {
            "scheduled_for": _instant("In the time zone of the schedule."),
            "utc": _instant(),
            "note": or_null(_text("The effect of a clock change or a calendar on this run.")),
        }
    )
    change = {
        "at": _instant("The first instant with the new offset."),
        "kind": _words("forward", "back"),
        "shift_seconds": _whole(description="How far the clocks move forward; negative: back."),
        "affected": {
            "type": "boolean",
            "description": "Whether the change affects this schedule.",
        },
        "note": _text("What happens to the schedule."),
        "runs": {
            **_array(run),
            "description": "The last runs of that day before the change, and the next ones.",
        },
    }
    hint = {
        "path": _text("The path of the field."),
        "code": _words("full_hour", "hash_example", "seconds_first"),
        "message": _text(),
    }
    return response_object_of(
        {
            "words": _text("The schedule in plain English."),
            "timezone": _text(),
            "items": {**_array(run), "description": "The next runs."},
            "clock_changes": {
                **_array(response_object_of(change)),
                "description": "The clock changes in the time zone within 13 months.",
            },
            "hints": _array(response_object_of(hint)),
        }
    )


def _retries() -> Schema:
    return response_object(RetryPolicyDocument, optional=(*FORMULA_FIELDS, *LIST_FIELDS))


def _shown_action(headers: Schema) -> Schema:
    webhook = response_object(WebhookDocument, type={"const": "WEBHOOK"}, headers=headers)
    return {"oneOf": [webhook, response_object(TaskDocument, type={"const": "TASK"})]}


def _shown_headers() -> Schema:
    described = (
        f"A literal credential is shown as `{MASKED}`; sending that back keeps the stored value."
    )
    return {"type": "object", "additionalProperties": _text(), "description": described}


def _warnings() -> Schema:
    warning = {
        "path": _text("The path of the field."),
        "code": {"enum": ["seconds_first"]},
        "message": _text(),
    }
    return {
        **_array(response_object_of(warning)),
        "description": "Input that was accepted but is probably not intended.",
    }


def _attempts() -> Schema:
    attempt = {
        "attempt": _whole(1),
        "status": _choice(ExecutionStatus),
        "started_at": _instant(),
        "finished_at": or_null(_instant()),
        "error": or_null(_text()),
        "kind": or_null(_text("The failure kind: timeout, http_503 or an exception name.")),
        "fence_token": or_null(_whole(0, MAX_ID)),
        "worker_id": or_null(_text()),
    }
    return {**_array(response_object_of(attempt)), "description": "Oldest first; empty in lists."}


def _execution() -> Schema:
    return response_object_of(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "job_name": or_null(_text("Null if the job no longer exists.")),
            "tenant_id": _text(),
            "queue": or_null(_text()),
            "origin": {
                **_choice(Origin),
                "description": (
                    "Why the execution exists. Once replayed, its origin is replay, whatever it "
                    "was before."
                ),
            },
            "created_at": _instant(
                "When it was planned or requested; for a one-time job, when the job was created."
            ),
            "status": {
                **_choice(ExecutionStatus),
                "description": (
                    "SCHEDULED: not yet due, or its job is paused. QUEUED: due, and waiting for a "
                    "limit or a worker. RETRYING: its next attempt is not yet due. Only attempts "
                    "are FAILED, never executions."
                ),
            },
            "reason": or_null(_choice(Reason)),
            "waiting_for": or_null(
                _text(
                    "What it is waiting for, as a code of explain. Null: it is running, its target will complete it, or it has ended."
                )
            ),
            "scheduled_for": _instant("The nominal time."),
            "started_at": or_null(_instant("Start of the latest attempt.")),
            "finished_at": or_null(_instant()),
            "duration_ms": or_null(
                _whole(description="Duration of the latest attempt, once it has ended.")
            ),
            "attempt": _whole(0, description="0 until it first runs."),
            "fence_token": or_null(_whole(0, MAX_ID, "Fence of the latest claim.")),
            "worker_id": or_null(
                _text("Worker of the latest attempt. Null: none yet, or no longer stored.")
            ),
            "lateness_ms": or_null(
                _whole(
                    description=(
                        "From scheduled_for to the start of the first attempt; for a backfill, "
                        "from the request."
                    )
                )
            ),
            "missed": or_null(
                _whole(
                    1, description="SKIPPED(misfire): how many occurrences this entry stands for."
                )
            ),
            "missed_through": or_null(
                _instant("SKIPPED(misfire): the last of them; `scheduled_for` is the first.")
            ),
            "error": or_null(_text()),
            "result": {},
            "progress": {"description": "The latest progress report, while it runs."},
            "attempts": _attempts(),
        }
    )


def _dead_letter() -> Schema:
    return response_object_of(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "job_name": or_null(_text("The name when it died.")),
            "tenant_id": _text(),
            "died_at": _instant(),
            "reason": DeadLetterFilterDocument.reason.schema,
            "kind": or_null(_text("The failure kind of the last attempt.")),
            "error": or_null(_text()),
            "fingerprint": _text("The same for errors that differ only in numbers and ids."),
            "scheduled_for": _instant("The nominal time."),
            "attempt": _whole(0, description="The number of attempts."),
            "attempts": _attempts(),
            "job": {
                "anyOf": [{"type": "object"}, {"type": "null"}],
                "description": "The job definition at that time; omitted in lists.",
            },
        }
    )


def _dead_letter_groups() -> Schema:
    group = {
        "fingerprint": DeadLetterFilterDocument.fingerprint.kind.schema,
        "count": _whole(1),
        "reason": DeadLetterFilterDocument.reason.schema,
        "kind": or_null(_text("The failure kind of the last attempt.")),
        "action": or_null(_text("The host of a webhook, or the name of a task.")),
        "error": or_null(_text("The error of the newest one.")),
        "execution_id": {**_execution_id(), "description": "The newest execution."},
        "first_died_at": _instant(),
        "last_died_at": _instant(),
        "jobs": _whole(1, description="How many jobs are affected."),
        "tenants": {**_array(_text()), "description": "Some of the tenants."},
    }
    return response_object_of(
        {
            "items": _array(response_object_of(group)),
            "looked_at": _whole(0, description="How many dead letters were examined."),
            "looked_back_to": or_null(_instant("died_at of the oldest one examined.")),
            "complete": {
                "type": "boolean",
                "description": "Whether all matching dead letters were examined.",
            },
        }
    )


def _monitor() -> Schema:
    return response_object_of(
        {
            "monitor_id": {"type": "string", "pattern": f"^mon_{ID}$"},
            "job_id": _job_id(),
            "job_name": or_null(_text()),
            "tenant_id": _text(),
            "grace_seconds": MonitorDocument.grace_seconds.response_schema,
            "url": MonitorDocument.url.response_schema,
            "headers": _shown_headers(),
            "status": _words("UP", "DOWN"),
            "expected_at": or_null(
                _instant("The job must succeed at or after this, within the grace period.")
            ),
            "last_success_at": or_null(_instant("The latest success seen by the monitor.")),
            "down_since": or_null(_instant()),
            "created_at": _instant(),
        }
    )


def _audit_entry() -> Schema:
    document = (
        "The document of the job, with its status if that may change; or the request; or the settings. "
        "Null: none exists."
    )
    return response_object_of(
        {
            "at": _instant(),
            "tenant_id": _text(),
            "job_id": or_null(_job_id()),
            "actor": _text("Who made the change."),
            "operation": _text("What was changed, such as create or pause."),
            "from": {"description": document},
            "to": {"description": document},
        }
    )


def _backlog() -> Schema:
    reason = {
        "code": {**_words(*REASONS), "description": "As the codes of explain."},
        "words": _text("The reason, in plain words."),
        "count": _whole(1),
        "at_least": {"type": "boolean", "description": "The count is a lower bound."},
    }
    return {
        **_array(response_object_of(reason)),
        "description": (
            "What executions wait for whose time has come, the most frequent reason first. Those "
            "that wait only for the gate or a free worker are not counted."
        ),
    }


def _named(name: str, settings: type[LimitsDocument], *counts: str) -> Schema:
    rate = response_object(RateLimitDocument, burst=RateLimitDocument.burst.kind.schema)
    overrides = {"rate_limit": or_null(rate)}
    if settings is QueueSettingsDocument:
        overrides["default_retry_policy"] = or_null(_retries())
    shown = response_object(settings, **overrides)
    counted = {each: _whole(0, MAX_COUNTED) for each in counts}
    more = {
        **_array({"enum": list(counts)}),
        "description": (
            f"Which counts are lower bounds: counting stopped at {MAX_COUNTED} items, or after "
            f"examining that many executions of the cell."
        ),
    }
    return response_object_of(
        {
            name: _text(),
            "version": _whole(
                0, description="Of its settings; send it as If-Match. 0: it has none."
            ),
            **shown["properties"],
            "counts": {
                **or_null(response_object_of(counted | {"at_least": more})),
                "description": "Current counts. Null in lists unless requested.",
            },
        }
    )


def _tenant() -> Schema:
    named = _named("tenant_id", TenantSettingsDocument, *TENANT_COUNTS)
    shares = {
        "starts": or_null(
            _whole(0, description="Starts in the last hour. Null unless sorted by share.")
        ),
        "share": or_null(_number("Share of all starts in the last hour, from 0 to 1.")),
        "fair_share": or_null(
            _number("Its weight divided by the weights of all tenants that started something.")
        ),
    }
    more = {"waiting_for": _backlog(), "created_on_use": _created_on_use()}
    return response_object_of(named["properties"] | shares | more, optional=("waiting_for",))


def _queue() -> Schema:
    counts = ("ready", "running", "parked", "workers")
    named = _named("queue", QueueSettingsDocument, *counts)
    more = {"waiting_for": _backlog(), "created_on_use": _created_on_use()}
    return response_object_of(named["properties"] | more, optional=("waiting_for",))


def _created_on_use() -> Schema:
    return {
        "type": "boolean",
        "description": "It was created because a job named it, and no PUT has declared it since.",
    }


def _forecast_minute() -> Schema:
    job = {
        "at": _instant("When it is due."),
        "job_id": _job_id(),
        "job_name": or_null(_text()),
        "tenant_id": _text(),
        "execution_id": or_null(_execution_id()),
    }
    return response_object_of(
        {
            "at": _instant("The start of the minute."),
            "items": _array(response_object_of(job)),
            "more": {"type": "boolean", "description": "There may be more."},
        }
    )


def _forecast() -> Schema:
    minute = {"at": _instant("The start of the minute."), "executions": _whole(1)}
    herd = {
        "at": _instant("The moment with the most executions."),
        "executions": _whole(2, description="Executions due at that moment."),
        "occurrences": _whole(1, description="How often the rule is due within the forecast."),
        "rule": _text(),
        "timezone": _text(),
        "words": _text("The rule in plain English."),
        "jobs": _whole(1),
        "tenants": {**_array(_text()), "description": "Some of the tenants."},
    }
    delay = {
        "kind": _words("queue", "tenant", "workers"),
        "name": or_null(_text("Of the queue or tenant.")),
        "max_concurrency": or_null(_whole(0, description="Of workers: their slots.")),
        "per_second": or_null(_number("Starts.")),
        "begins_at": _instant("The first of these executions is due."),
        "executions": _whole(1, description="Due from then until those that wait longest."),
        "seconds": _number("That each takes, on average, as the last ones did."),
        "due_at": _instant("Those that wait longest are due."),
        "last_start_at": or_null(_instant("Of these; null: they do not start.")),
    }
    return response_object_of(
        {
            "begins_at": _instant(),
            "ends_at": _instant(),
            "complete_until": _instant("The forecast is complete up to this instant."),
            "estimated": {
                "type": "boolean",
                "description": (
                    "Some jobs were too numerous to count; their number at the last run was used."
                ),
            },
            "minutes": {
                **_array(response_object_of(minute)),
                "description": "Only minutes with executions due.",
            },
            "herds": {
                **_array(response_object_of(herd)),
                "description": (
                    "Groups of jobs with the same rule, which are due at the same moments: those with the "
                    "most executions at one moment."
                ),
            },
            "herd_moments": {
                **_array(response_object_of(minute)),
                "description": (
                    "How many executions of the largest herds are due at exactly this moment, in "
                    "order of time: all moments of a herd or none, at most 3,000."
                ),
            },
            "delays": {
                **_array(response_object_of(delay)),
                "description": (
                    "Where executions will wait for a limit, longest first: those with a wait of "
                    "10 seconds or more."
                ),
            },
            "untimed": _whole(
                0, description="Executions of which it is not known how long they take."
            ),
            "capacity_per_minute": {
                **response_object_of(
                    {
                        "executions": or_null(_whole(1)),
                        "reason": or_null(_text("Why it cannot be computed.")),
                        "measured_from": or_null(_instant()),
                        "measured_to": or_null(_instant()),
                    }
                ),
                "description": (
                    "The number of executions in the busiest recent minute: a lower bound "
                    "on capacity."
                ),
            },
        }
    )


def _overview() -> Schema:
    figures = {
        "started": _whole(0, description="Attempts, by start time."),
        **{name: or_null(_whole(0)) for name in ("succeeded", "failed", "dead", "skipped")},
        **{name: or_null(_whole(0)) for name in ("cancelled", "superseded")},
    }
    figures["failed"] = or_null(_whole(0, description="Attempts."))
    figures["skipped"] = or_null(_whole(0, description="Occurrences."))
    percentiles = response_object_of(
        {name: _number("Milliseconds.") for name in ("p50", "p95", "p99")}
    )
    lateness = {
        **or_null(percentiles),
        "description": "Lateness of the executions that ended in this time. Null: none ended.",
    }
    depth = {
        "priority": _choice_of_names(Priority),
        **{name: _whole(0, MAX_COUNTED) for name in ("ready", "parked", "running")},
        "oldest_seconds": or_null(
            _number("How long the oldest execution that has not started has been due.")
        ),
        "at_least": _array(_words("ready", "parked", "running")),
    }
    item = {
        "code": _text("Stable, for programs."),
        "severity": _choice(Severity),
        "since": or_null(_instant()),
        "count": _whole(0),
        "at_least": {"type": "boolean", "description": "The count is a lower bound."},
        "message": _text(),
        "refers_to": response_object_of(
            {
                "kind": _text("Such as job, queue, target, monitor, dead_letters or cell."),
                **{name: or_null(_text()) for name in ("id", "name", "tenant_id")},
            }
        ),
    }
    peak = {
        "at": _instant("The busiest minute of the next 24 hours."),
        "executions": _whole(1),
        "hours": {
            **_array(_whole(0)),
            "description": "Executions that fall due in each of the next 24 hours.",
        },
        "complete_until": _instant("The forecast is complete up to this instant."),
        "estimated": {"type": "boolean"},
        "capacity_per_minute": or_null(
            _whole(
                1,
                description=(
                    "The most executions of a recent minute: the cell can do at least that many. "
                    "Null: not known, or not shown to this key."
                ),
            )
        ),
    }
    return response_object_of(
        {
            "at": _instant(),
            "window": _words(*WINDOWS),
            "tenant_id": or_null(_text("Null: the whole cell.")),
            "bucket_seconds": _whole(60),
            "complete_until": or_null(
                _instant(
                    "Figures before this no longer change, except `started` of executions still running."
                )
            ),
            "series": {
                **_array(
                    response_object_of({"at": _instant(), **figures, "lateness_ms": lateness})
                ),
                "description": "Oldest first, without gaps; the last one is incomplete.",
            },
            "totals": response_object_of(figures),
            "started_per_minute": _number("Average over the window."),
            "lateness_ms": lateness,
            "sampled": {
                "type": "boolean",
                "description": "Lateness was computed from a random sample of the executions.",
            },
            "depth": _array(response_object_of(depth)),
            "waiting_for": _backlog(),
            "dead_today": response_object_of(
                {"count": _whole(0, MAX_COUNTED), "at_least": {"type": "boolean"}}
            ),
            "leader": or_null(_leader()),
            "workers": or_null(
                response_object_of(
                    {name: _whole(0) for name in ("alive", "lost_in_1h", "slots", "running")}
                )
            ),
            "failures": _array(response_object_of({"reason": _choice(Reason), "count": _whole(1)})),
            "attention": {
                **_array(response_object_of(item)),
                "maxItems": MAX_ITEMS,
                "description": "Worst first.",
            },
            "peak": or_null(response_object_of(peak)),
            "peak_known": {
                "type": "boolean",
                "description": "False: the forecast is still being read. A null peak says nothing then.",
            },
        }
    )


def _tasks() -> Schema:
    milliseconds = {
        "p50": _number("Milliseconds, from classes of which each is twice as wide as the last."),
        "p95": _number("Milliseconds."),
        "max": _number("Milliseconds, exact among those that were counted."),
    }
    worker = {name: _worker()[name] for name in ("session_id", "worker_id")}
    error = {
        "execution_id": _execution_id(),
        "minute": _instant("The last minute in which an attempt failed."),
        "error": or_null(_text()),
    }
    item = {
        "task": or_null(_text("Null: the webhooks of a host.")),
        "host": or_null(_text("Null: a task.")),
        "runs": _whole(0, description="Attempts that ended in the window."),
        "failures": _whole(0, description="Of these, attempts that failed."),
        "duration_ms": {**or_null(response_object_of(milliseconds)), "description": "Of the runs."},
        "waiting": _whole(0, description="Executions whose time has come and that do not run."),
        "workers": _whole(0, description="Live workers that run it, whatever their queues."),
        "first_workers": {**_array(response_object_of(worker)), "maxItems": 5},
        "last_error": or_null(response_object_of(error)),
        "trend": {**_array(_whole(0)), "description": "Runs by bucket, the oldest first."},
    }
    return response_object_of(
        {
            "at": _instant(),
            "window": _words(*WINDOWS),
            "begin": _instant("Of the first bucket."),
            "bucket_seconds": _whole(60),
            "items": {**_array(response_object_of(item)), "maxItems": MAX_TASKS},
            "left_out": _whole(0, description="Tasks and hosts beyond the first 200."),
            "other_runs": _whole(
                0, description="Runs in minutes in which more than 100 tasks and hosts had more."
            ),
            "sampled": {
                "type": "boolean",
                "description": "In some minutes the executions that ended were counted by a sample.",
            },
            "at_least": _array(_words("waiting")),
        }
    )


def _leader() -> Schema:
    return response_object_of(
        {
            "node_id": _text(),
            "name": or_null(_text()),
            "epoch": _whole(1),
            "since": or_null(_instant()),
            "renewed_at": _instant(),
            "expires_at": _instant(),
            "present": {"type": "boolean", "description": "Its lease has not expired."},
            "clock_drift_ms": or_null(_number("How far its clock is ahead of the database's.")),
            "planned_until": _instant("Every occurrence before this has been planned."),
            "planner_lag_seconds": _number("How far planned_until is behind the horizon."),
            "changes_in_1h": _whole(0),
            "changes_in_24h": _whole(0),
        }
    )


def _worker() -> dict[str, Schema]:
    return {
        "session_id": {"type": "string", "pattern": f"^ses_{ID}$"},
        "worker_id": or_null(_text("Its name.")),
        "state": {
            **_words("alive", "expired", "lost", "stopped"),
            "description": (
                "expired: its lease has run out. lost: the leader has returned its executions. stopped: "
                "it closed its session."
            ),
        },
        "queues": or_null(_array(_text("Null: all, or it has ended."))),
        "tasks": or_null(_array(_text("Null: all, or it has ended."))),
        "slots": or_null(_whole(0)),
        "running": or_null(_whole(0, MAX_COUNTED)),
        "at_least": _array(_words("running")),
        "quarantine": {"type": "boolean", "description": "It runs suspects, one at a time."},
        **{
            name: or_null(_instant())
            for name in ("started_at", "renewed_at", "expires_at", "ended_at")
        },
        "returned": or_null(
            _whole(0, description="Executions that it was running when it was lost.")
        ),
    }


def _held_execution() -> Schema:
    return response_object_of(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "job_name": or_null(_text()),
            "tenant_id": _text(),
            "claimed_at": _instant(),
            "attempt": _whole(1),
            "timeout_seconds": or_null(_whole(1)),
            "progress": {"description": "The latest progress report."},
        }
    )


def _node() -> Schema:
    return response_object_of(
        {
            "node_id": _text(),
            "name": _text(),
            "roles": _array(_text()),
            "leads": {"type": "boolean"},
            "alive": {"type": "boolean", "description": "It was seen within the last minute."},
            "version": _text(),
            "tzdata": _text(),
            "started_at": _instant(),
            "seen_at": _instant(),
            "clock_drift_ms": or_null(_number("How far its clock is ahead of the database's.")),
            "connections": {
                **response_object_of({"in_use": _whole(0), "size": _whole(0)}),
                "description": "Connections to the database.",
            },
        }
    )


def _circuit() -> Schema:
    return response_object_of(
        {
            "host": _text(),
            "endpoint": or_null(_text("Method and URL; null: the whole host.")),
            "tenant_id": or_null(_text()),
            "node_id": or_null(_text()),
            "node": or_null(_text()),
            "failures": _whole(1, description="Consecutive failures."),
            "since": _instant("When the first of these failures happened."),
            "open_until": _instant("When the next request is let through as a probe."),
            "last_error": or_null(_text("The last of these failures. Null: not known.")),
        }
    )


def _worker_answers() -> dict[str, Schema]:
    """Responses to HTTP workers."""
    lease = {"lease_seconds": _number("The session is lost after this long without a heartbeat.")}
    execution = {
        "execution_id": _execution_id(),
        "job_id": _job_id(),
        "tenant_id": _text(),
        "name": _text("The name of the job."),
        "attempt": _whole(1),
        "fence_token": ReleaseDocument.fence_token.response_schema,
        "scheduled_for": _instant("The nominal time."),
        "timeout_seconds": _whole(1, description="Stop the work after this and report FAILED."),
        "deadline_in_seconds": or_null(
            _number("Seconds from the claim; stop the work after this.")
        ),
        "checkpoint": {
            "description": "Stored by an earlier run of the execution; null if there is none."
        },
        "traceparent": or_null(
            _text("The span that created the job, as a W3C trace context; null if there is none.")
        ),
        "action": _shown_action(WebhookDocument.headers.schema),
    }
    return {
        "Claimed": response_object_of(
            {
                "session_token": {
                    **ClaimDocument.session_token.response_schema,
                    "description": "Null: nothing was claimed and no session was opened.",
                },
                **lease,
                "executions": _array(response_object_of(execution)),
            }
        ),
        "HeartbeatResult": response_object_of(
            {
                "held": {**_array(_execution_id()), "description": "Still held."},
                "lost": {**_array(_text()), "description": "Not held, or no longer."},
                "cancelled": {
                    **_array(_execution_id()),
                    "description": "Cancellation was requested.",
                },
                **lease,
            }
        ),
        "Completed": response_object_of({"refused": _array(_execution_id())}),
        "ExecutionRef": response_object_of({"execution_id": _execution_id()}),
        "Closed": response_object_of({"status": {"const": "closed"}}),
    }


def _explanation() -> Schema:
    return response_object_of(
        {
            "code": _text("Stable, for programs."),
            "message": _text(),
            "since": or_null(
                _instant(
                    "Since when it has been waiting; if it is due, since it was due. Null: unknown."
                )
            ),
            "until": or_null(_instant("When the condition ends on its own.")),
            "expected_at": or_null(
                _instant("When the running execution it waits for is likely to end: an estimate.")
            ),
            "execution_id": or_null(
                {**_execution_id(), "description": "The execution being explained."}
            ),
            "blocked_by": or_null(
                {
                    **response_object_of({"execution_id": _execution_id(), "job_id": _job_id()}),
                    "description": "The execution that this one is waiting for.",
                }
            ),
            "holder": or_null(
                {
                    **response_object_of(
                        {
                            "execution_id": or_null(_execution_id()),
                            "job_id": or_null(_job_id()),
                            "worker": or_null(_text("The worker that runs this execution.")),
                            "limit": or_null(
                                _whole(0, description="Maximum number of executions at once.")
                            ),
                            "in_use": or_null(_whole(0)),
                        }
                    ),
                    "description": (
                        "What holds the thing it is waiting for, as far as the caller may see it."
                    ),
                }
            ),
            "attempt": or_null(
                _whole(0, description="The running attempt, or the last one; 0: none yet.")
            ),
            "max_attempts": or_null(_whole(1)),
            "last_error": or_null(
                response_object_of(
                    {
                        "kind": or_null(_text()),
                        "error": or_null(_text()),
                        "at": or_null(_instant()),
                    }
                )
            ),
            "paused": or_null(_pause_details()),
            "last_due": or_null(
                {
                    **response_object_of(
                        {
                            "execution_id": _execution_id(),
                            "scheduled_for": _instant(),
                            "status": _choice(ExecutionStatus),
                            "reason": or_null(_choice(Reason)),
                            "code": _text("A code, as in an explanation."),
                            "message": _text(),
                        }
                    ),
                    "description": (
                        "The last due occurrence of a recurring job, if it ended without success."
                    ),
                }
            ),
        }
    )


def _key() -> dict[str, Schema]:
    return {
        "key_id": {"type": "string", "pattern": f"^key_{ID}$"},
        "name": _text(),
        "role": _choice(KeyRole),
        "tenant_id": or_null(_text("Null: all tenants.")),
        "created_at": _instant(),
        "revoked_at": or_null(_instant()),
    }


def _secret() -> dict[str, Schema]:
    return {
        "name": _text(),
        "tenant_id": _text(),
        "created_at": _instant(),
        "updated_at": _instant(),
        "previous_until": or_null(_instant("Until when the previous value is valid.")),
    }


def _batch_result() -> Schema:
    refused = {
        "code": _text("The `code` of a problem document."),
        "detail": _text(),
        "errors": _array(_field_error()),
    }
    names = _created_names()
    made = response_object_of({"job_id": _job_id(), **names}, optional=tuple(names))
    return {"oneOf": [made, response_object_of(refused)]}


def _field_error() -> Schema:
    return response_object_of(
        {
            "path": _text("Such as `schedule.timezone`; empty for the document itself."),
            "code": {"enum": list(get_args(FieldCode))},
            "message": _text(),
        }
    )


def _problem() -> Schema:
    return {
        **response_object_of(
            {
                "type": {"type": "string", "format": "uri-reference"},
                "title": _text(),
                "status": _whole(400, 599),
                "detail": _text(),
                "code": _text("Stable, for programs."),
                "instance": _text("The path of the request."),
                "errors": {
                    **_array(_field_error()),
                    "description": "Every invalid field, if the code is invalid_input.",
                },
            }
        ),
        "description": "An RFC 9457 problem document.",
    }


# Schema building blocks.


def _job_page() -> Schema:
    total = response_object_of(
        {
            "count": _whole(0, MAX_COUNTED),
            "at_least": {"type": "boolean", "description": "There may be more."},
        }
    )
    total["description"] = "How many jobs match; only if requested."
    return response_object_of(_page("Job")["properties"] | {"total": total}, optional=("total",))


def _page(item: str) -> Schema:
    return response_object_of({"items": _array(ref(item)), "next_page_token": _next_token()})


def _next_token() -> Schema:
    return or_null(_text("Send this as page_token to get the next page; null on the last page."))


def _either(by: str, **kinds: str) -> Schema:
    references = {kind: f"#/components/schemas/{name}" for kind, name in kinds.items()}
    return {
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": by, "mapping": references},
    }


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _text(description: str = "") -> Schema:
    return {"type": "string"} | ({"description": description} if description else {})


def _job_id() -> Schema:
    return JobId().schema


def _execution_id() -> Schema:
    return ExecutionId().schema


def _whole(low: int | None = None, high: int | None = None, description: str = "") -> Schema:
    bounds = {"minimum": low, "maximum": high, "description": description or None}
    return {"type": "integer"} | {key: value for key, value in bounds.items() if value is not None}


def _number(description: str) -> Schema:
    return {"type": "number", "description": description}


def _instant(description: str = "") -> Schema:
    return {**_text(description), "format": "date-time"}


def _choice(kinds: type[Enum]) -> Schema:
    return {"enum": [kind.value for kind in kinds]}


def _choice_of_names(kinds: type[Enum]) -> Schema:
    return {"enum": [kind.name for kind in kinds]}


def _words(*words: str) -> Schema:
    return {"enum": list(words)}
