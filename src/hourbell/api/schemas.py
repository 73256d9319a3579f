"""The JSON Schemas of the API: those of requests come from their declarations in `documents`.

Here are only the names of the schemas, the ways in which one document is used in several places,
and what is found in responses alone. Requests may omit a field that has a default, or set it to
null; responses contain every field. A field that is in both has the same schema in both: what was
read can be edited and sent back.
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
)
from hourbell.documents.jobs import RECURRING_FIELDS, JobDocument, RecurringJobDocument
from hourbell.documents.keys import KeyDocument
from hourbell.documents.kinds import ID, ExecutionId, JobId, Schema
from hourbell.documents.monitors import MonitorDocument
from hourbell.documents.pauses import BulkPauseDocument, BulkResumeDocument, PauseDocument
from hourbell.documents.policies import FORMULA_FIELDS, LIST_FIELDS, RetryPolicyDocument
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
from hourbell.engine.views.overview import MAX_COUNTED
from hourbell.model.errors import FieldCode
from hourbell.model.executions import ExecutionStatus, Origin, Reason
from hourbell.model.ids import MAX_ID
from hourbell.model.jobs import JobStatus, JobType
from hourbell.security.access import KeyRole
from hourbell.security.secrets import MASKED

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
        "CronSchedule": request_object(CronSchedule),
        "IntervalSchedule": request_object(IntervalSchedule),
        "InstantSchedule": request_object(InstantSchedule),
        "DelaySchedule": request_object(DelaySchedule),
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
        "TenantSettings": request_object(TenantSettingsDocument),
        "QueueSettings": request_object(QueueSettingsDocument),
        "TargetSettings": request_object(LimitsDocument),
        "NewMonitor": request_object(MonitorDocument),
        "Completion": request_object(CompletionDocument),
        "NewKey": request_object(KeyDocument),
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
        "JobPage": _page("Job"),
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
        "AuditEntry": _audit_entry(),
        "AuditPage": _page("AuditEntry"),
        "Execution": _execution(),
        "ExecutionPage": _page("Execution"),
        "DeadLetter": _dead_letter(),
        "DeadLetterPage": _page("DeadLetter"),
        "Replayed": response_object_of(
            {
                "replayed": _whole(0),
                "left": _whole(
                    0,
                    description=(
                        "Not replayed: the job was deleted, or the same occurrence is live again."
                    ),
                ),
                "last_run_at": or_null(_instant("When the last of them is due.")),
                "next_page_token": _next_token(),
            }
        ),
        "BulkPaused": _bulk_changed("paused"),
        "BulkResumed": _bulk_changed("resumed"),
        "Purged": response_object_of({"purged": _whole(0), "next_page_token": _next_token()}),
        "Tenant": _named(
            "tenant_id", TenantSettingsDocument, "jobs", "running", "parked", "not_planned"
        ),
        "TenantPage": _page("Tenant"),
        "Queue": _named("queue", QueueSettingsDocument, "ready", "running", "parked", "workers"),
        "QueuePage": _page("Queue"),
        "Target": _named("host", LimitsDocument, "parked"),
        "TargetPage": _page("Target"),
        "Forecast": _forecast(),
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
        "Secret": response_object_of(_secret()),
        "SetSecret": response_object_of(
            {
                **_secret(),
                "value": or_null(_text("The generated value; returned only once.")),
            }
        ),
        "SecretPage": _page("Secret"),
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
                    "description": "How many members are known to have ended, by their fate.",
                },
                "created_at": _instant(),
                "closed_at": or_null(_instant()),
                "ended_at": or_null(_instant("When its callback was created.")),
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
    }


# Jobs in requests.


def _new_job(kind: JobType) -> Schema:
    once = kind is JobType.ONE_TIME
    schedules = (
        ("InstantSchedule", "DelaySchedule") if once else ("CronSchedule", "IntervalSchedule")
    )
    return request_object(
        JobDocument if once else RecurringJobDocument,
        type={"const": kind.value},
        schedule={"oneOf": [ref(name) for name in schedules]},
        action=_either("type", WEBHOOK="Webhook", TASK="Task"),
    )


def _item() -> Schema:
    """A batch item: the call accepts any value, and reports what is wrong with each item."""
    return {"anyOf": [ref("NewJob"), {"description": "Anything else gets an error result."}]}


def _named_job(kind: JobType) -> Schema:
    """Like a new job, but the name comes from the path and is the unique key."""
    schema = _new_job(kind)
    fields = {k: v for k, v in schema["properties"].items() if k not in _UNIQUE_KEY_FIELDS}
    fields["name"] = or_null({**fields["name"], "description": "Omitted, or equal to the path."})
    required = [name for name in schema["required"] if name != "name"]
    return schema | {"properties": fields, "required": required}


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
        "next_run_at": or_null(_instant("In the time zone of the job; null when paused or ended.")),
    }
    after = {"created_at": _instant(), "updated_at": _instant(), "warnings": _warnings()}
    return response_object_of(
        {**before, **definition["properties"], **after}, optional=RECURRING_FIELDS
    )


def _bulk_changed(done: str) -> Schema:
    return response_object_of(
        {
            done: _whole(0),
            "left": _whole(
                0,
                description=(
                    "Selected, but left as they are: one-time jobs that are queued or running, "
                    "and jobs that other requests were changing."
                ),
            ),
            "next_page_token": _next_token(),
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
        "path": _text("The field concerned."),
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
        "kind": or_null(_text("The failure kind: timeout, http_503, an exception name.")),
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
                    "Why it exists. Once replayed, an execution has the origin replay, whatever it "
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
                    1, description="SKIPPED(misfire): how many occurrences this entry represents."
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
            "tenant_id": _text(),
            "died_at": _instant(),
            "reason": DeadLetterFilterDocument.reason.schema,
            "error": or_null(_text()),
            "scheduled_for": _instant("The nominal time."),
            "attempt": _whole(0, description="The number of attempts."),
            "attempts": _attempts(),
            "job": {
                "anyOf": [{"type": "object"}, {"type": "null"}],
                "description": "The job definition at that time; omitted in lists.",
            },
        }
    )


def _monitor() -> Schema:
    return response_object_of(
        {
            "monitor_id": {"type": "string", "pattern": f"^mon_{ID}$"},
            "job_id": _job_id(),
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
        "The document of the job, with its status where that may change, or the request. "
        "Null: none exists."
    )
    return response_object_of(
        {
            "at": _instant(),
            "tenant_id": _text(),
            "job_id": or_null(_job_id()),
            "actor": _text("Who made the change."),
            "operation": _text("What was done."),
            "from": {"description": document},
            "to": {"description": document},
        }
    )


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
            f"Counts that are lower bounds: counting stopped at {MAX_COUNTED} items, or after "
            f"examining that many running executions."
        ),
    }
    return response_object_of(
        {
            name: _text(),
            **shown["properties"],
            "counts": {
                **or_null(response_object_of(counted | {"at_least": more})),
                "description": "Current counts. Null in lists.",
            },
        }
    )


def _forecast() -> Schema:
    minute = {"at": _instant("The start of the minute."), "executions": _whole(1)}
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
                "description": "Only minutes in which executions are due.",
            },
        }
    )


def _worker_answers() -> dict[str, Schema]:
    """Responses to HTTP workers."""
    lease = {"lease_seconds": _number("The session is lost after this long without a heartbeat.")}
    execution = {
        "execution_id": _execution_id(),
        "job_id": _job_id(),
        "tenant_id": _text(),
        "name": _text("Name of the job."),
        "attempt": _whole(1),
        "fence_token": ReleaseDocument.fence_token.response_schema,
        "scheduled_for": _instant("The nominal time."),
        "timeout_seconds": _whole(1, description="Stop it after this, and report FAILED."),
        "deadline_in_seconds": or_null(
            _number("Seconds from the claim; stop the work after this.")
        ),
        "checkpoint": {
            "description": "Stored by an earlier run of the execution; null: there is none."
        },
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
                "lost": {**_array(_execution_id()), "description": "No longer held."},
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
            "until": or_null(_instant("When the condition ends by itself.")),
            "execution_id": or_null(
                {**_execution_id(), "description": "The execution being explained."}
            ),
            "blocked_by": or_null(
                {
                    **response_object_of({"execution_id": _execution_id(), "job_id": _job_id()}),
                    "description": "The execution that this one is waiting for.",
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
        "previous_until": or_null(_instant("The previous value is valid until then.")),
    }


def _batch_result() -> Schema:
    refused = {
        "code": _text("The `code` of a problem document."),
        "detail": _text(),
        "errors": _array(_field_error()),
    }
    return {"oneOf": [response_object_of({"job_id": _job_id()}), response_object_of(refused)]}


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


def _page(item: str) -> Schema:
    return response_object_of({"items": _array(ref(item)), "next_page_token": _next_token()})


def _next_token() -> Schema:
    return or_null(_text("Send as page_token to get the next page; null at the end."))


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


def _words(*words: str) -> Schema:
    return {"enum": list(words)}
