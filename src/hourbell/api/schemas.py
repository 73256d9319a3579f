"""The JSON Schemas of the API's documents.

Bounds come from the model, so that the schemas cannot differ from what is validated. Requests may
omit a field that has a default, or set it to null; responses contain every field.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

from hourbell.api.workers import (
    DEFAULT_ERROR_KIND,
    MAX_CAPACITY,
    MAX_CLAIM_NUMBER,
    MAX_DURATION_MS,
    MAX_ERROR_KIND,
    MAX_HELD,
    MAX_OUTCOMES,
    MAX_PROGRESS_BYTES,
    MAX_QUEUES,
    MAX_TASKS,
    MAX_WAIT_SECONDS,
    MAX_WORKER_ID,
    SESSION_TOKEN,
    TASK,
)
from hourbell.engine.life.create import MOST_ITEMS
from hourbell.engine.life.outcomes import MOST_ERROR_CHARACTERS, MOST_RESULT_BYTES
from hourbell.engine.operations.dead_letters import MOST_AT_ONCE, MOST_PER_SECOND, USUAL_AT_ONCE
from hourbell.engine.operations.secrets import MAX_CHARACTERS, MAX_KEEP_SECONDS
from hourbell.engine.views.overview import MOST_COUNTED
from hourbell.model.errors import FieldCode
from hourbell.model.executions import REASONS, ExecutionStatus, Origin, Reason
from hourbell.model.ids import MAX_ID
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    DEFAULT_TIMEOUT_SECONDS,
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
    MAX_URL,
    METHODS,
    Event,
    JobStatus,
    JobType,
    OnDuplicate,
    SecretsCheck,
)
from hourbell.model.limits import (
    MAX_BURST,
    MAX_CONCURRENCY,
    MAX_DAYS,
    MAX_JOBS,
    MAX_RATE,
    MAX_WEIGHT,
    MIN_RATE,
)
from hourbell.model.monitors import MAX_GRACE_SECONDS
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
from hourbell.model.schedules import MAX_DELAY_SECONDS, MAX_RUNS, UTC_ZONE, DstGap, DstOverlap
from hourbell.security.access import MAX_KEY_NAME, KeyRole
from hourbell.security.secrets import FEWEST_CHARACTERS, MASKED, SECRET_NAME
from hourbell.timing.intervals import MAX_EVERY_SECONDS

Schema = dict[str, Any]

_ID = "[0-9a-hjkmnp-tv-z]{13}"
_OF_UNIQUE_KEYS = ("unique_key", "on_duplicate")
_LABEL = "^[A-Za-z0-9._:-]{1,64}$"


def schemas() -> dict[str, Schema]:
    """Every schema by its name."""
    return {
        "NewJob": _either("type", ONE_TIME="NewOneTimeJob", RECURRING="NewRecurringJob"),
        "NewOneTimeJob": _new_job(JobType.ONE_TIME),
        "NewRecurringJob": _new_job(JobType.RECURRING),
        "NewJobs": {**_array(_item()), "minItems": 1, "maxItems": MOST_ITEMS},
        "NamedJob": _either("type", ONE_TIME="NamedOneTimeJob", RECURRING="NamedRecurringJob"),
        "NamedOneTimeJob": _named_job(JobType.ONE_TIME),
        "NamedRecurringJob": _named_job(JobType.RECURRING),
        "BatchResults": _answered({"results": _array(_batch_result())}),
        "JobPatch": _job_patch(),
        "CronSchedule": _sent({"cron": _cron()}, _cron_options() | _window()),
        "IntervalSchedule": _sent({"every_seconds": _every()}, _timezone() | _window()),
        "InstantSchedule": _sent({"at": _at()}, _timezone()),
        "DelaySchedule": _sent({"delay_seconds": _delay()}, _timezone()),
        "Webhook": _sent({"type": {"const": "WEBHOOK"}, "url": _url()}, _webhook_options()),
        "Task": _sent({"type": {"const": "TASK"}, "name": _task_name()}, _task_options()),
        "Notification": _sent(
            {"on": _events(), "url": _url()},
            {"headers": _headers(), "secrets": _secrets_check()},
        ),
        "RetryPolicy": _retry_policy(),
        "Backfill": _sent(
            {
                "after": _instant("No run for an occurrence at or before this."),
                "through": _instant("No run for an occurrence after this; not in the future."),
            },
            {},
        ),
        "Run": _sent(
            {},
            {
                "body": {"description": "Overrides the job's body; WEBHOOK only."},
                "payload": {"description": "Overrides the job's payload; TASK only."},
            },
        ),
        "Replay": _sent(
            {},
            _letter_filter()
            | {"rate_per_second": _whole(1, MOST_PER_SECOND, "Executions due per second.")},
        ),
        "Purge": _sent({}, _letter_filter()),
        "TenantSettings": _sent({}, _limits() | _tenant_settings()),
        "QueueSettings": _sent(
            {},
            _limits()
            | {
                "default_timeout_seconds": _whole(1, MAX_TIMEOUT_SECONDS),
                "default_retry_policy": _ref("RetryPolicy"),
            },
        ),
        "TargetSettings": _sent({}, _limits()),
        "Job": _job(),
        "JobPage": _page("Job"),
        "NextRuns": _answered(
            {
                "items": _array(
                    _answered(
                        {
                            "scheduled_for": _instant("In the time zone of the job."),
                            "note": _or_null(_text("The effect of a DST change on this run.")),
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
        "Replayed": _answered(
            {
                "replayed": _whole(0),
                "left": _whole(
                    0,
                    description=(
                        "Not replayed: the job was deleted, or the same occurrence is live again."
                    ),
                ),
                "last_run_at": _or_null(_instant("When the last of them is due.")),
                "next_page_token": _next_token(),
            }
        ),
        "Purged": _answered({"purged": _whole(0), "next_page_token": _next_token()}),
        "Tenant": _named(
            "tenant_id", _tenant_settings(), "jobs", "running", "parked", "not_planned"
        ),
        "TenantPage": _page("Tenant"),
        "Queue": _named(
            "queue",
            {"default_timeout_seconds": _whole(1), "default_retry_policy": _retries()},
            "ready",
            "running",
            "parked",
            "workers",
        ),
        "QueuePage": _page("Queue"),
        "Target": _named("host", {}, "parked"),
        "TargetPage": _page("Target"),
        "Forecast": _forecast(),
        "NewMonitor": _sent(
            {
                "job_id": _job_id(),
                "grace_seconds": _whole(1, MAX_GRACE_SECONDS, "After the expected occurrence."),
                "url": _url(),
            },
            {"headers": _headers(), "secrets": _secrets_check()},
        ),
        "Monitor": _monitor(),
        "MonitorPage": _page("Monitor"),
        "Requested": _answered({"execution_ids": _array(_execution_id())}),
        "Explanation": _explanation(),
        "Completion": _sent(
            {
                "token": {
                    **_text("The value of the header Hourbell-Completion-Token."),
                    "pattern": "^[A-Za-z0-9_-]{1,128}$",
                },
                "status": _words("SUCCEEDED", "FAILED"),
            },
            {
                "result": {
                    "description": f"On success: any JSON value of up to {MOST_RESULT_BYTES} bytes."
                },
                "error": {**_text("On failure."), "maxLength": MOST_ERROR_CHARACTERS},
            },
        ),
        "CompletionNoted": _answered(
            {"execution_id": _execution_id(), "status": _words("SUCCEEDED", "FAILED")}
        ),
        "NewKey": _sent(
            {"name": _name(MAX_KEY_NAME), "role": _choice(KeyRole)}, {"tenant_id": _label()}
        ),
        "Key": _answered(_key()),
        "MadeKey": _answered({**_key(), "key": _or_null(_text("Returned only once."))}),
        "KeyPage": _page("Key"),
        "NewSecret": _new_secret(),
        "Secret": _answered(_secret()),
        "SetSecret": _answered(
            {
                **_secret(),
                "value": _or_null(_text("The generated value; returned only once.")),
            }
        ),
        "SecretPage": _page("Secret"),
        **_worker_calls(),
        "Problem": _problem(),
        "Readiness": _answered(
            {
                "status": _words("ready", "not_ready"),
                "checks": {"type": "object", "additionalProperties": {"type": "boolean"}},
            }
        ),
        "Liveness": _answered({"status": {"const": "alive"}}),
        "Index": _answered(
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
    required = {
        "name": _name(),
        "type": {"const": kind.value},
        "schedule": {"oneOf": [_ref(name) for name in schedules]},
        "action": _action(),
    }
    return _sent(required, _options() | ({} if once else _recurring_options()))


def _item() -> Schema:
    """A batch item: the call accepts any value, and reports what is wrong with each item."""
    return {"anyOf": [_ref("NewJob"), {"description": "Anything else gets an error result."}]}


def _named_job(kind: JobType) -> Schema:
    """Like a new job, but the name comes from the path and is the unique key."""
    schema = _new_job(kind)
    fields = {k: v for k, v in schema["properties"].items() if k not in _OF_UNIQUE_KEYS}
    fields["name"] = _or_null({**_name(), "description": "Omitted, or equal to the path."})
    required = [name for name in schema["required"] if name != "name"]
    return schema | {"properties": fields, "required": required}


def _job_patch() -> Schema:
    schedule = (
        {"cron": _cron(), "every_seconds": _every(), "at": _at(), "delay_seconds": _delay()}
        | _cron_options()
        | _window()
    )
    action = (
        {"type": _words("WEBHOOK", "TASK"), "url": _url(), "name": _task_name()}
        | _webhook_options()
        | _task_options()
    )
    fields = {
        "name": _name(),
        "type": {**_choice(JobType), "description": "Cannot be changed."},
        "schedule": _sent({}, schedule),
        "action": _sent({}, action),
    }
    return _sent({}, fields | _options() | _recurring_options())


def _options() -> dict[str, Schema]:
    return {
        "tenant_id": {**_label(), "default": DEFAULT_TENANT},
        "queue": {**_label(), "default": DEFAULT_QUEUE},
        "priority": {"enum": [priority.name for priority in Priority], "default": "MEDIUM"},
        "retry_policy": _ref("RetryPolicy"),
        "timeout_seconds": {
            **_whole(1, MAX_TIMEOUT_SECONDS, "Per attempt."),
            "default": DEFAULT_TIMEOUT_SECONDS,
        },
        "delivery": {**_choice(Delivery), "default": Delivery.AT_LEAST_ONCE.value},
        "start_deadline_seconds": _whole(
            1,
            MAX_START_DEADLINE_SECONDS,
            "After scheduled_for; an execution that cannot start by then is SKIPPED.",
        ),
        "deadline_seconds": _whole(
            1,
            MAX_DEADLINE_SECONDS,
            "After scheduled_for, over all attempts; the execution is then DEAD.",
        ),
        "concurrency_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CONCURRENCY_KEY,
            "description": (
                "Executions of the tenant that share this key run one at a time, in order of their "
                "scheduled time."
            ),
        },
        "concurrency_limit": {
            **_whole(1, MAX_CONCURRENCY_LIMIT, "How many executions with the key may run at once."),
            "default": 1,
        },
        "unique_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_UNIQUE_KEY,
            "description": "Unique among the tenant's jobs that have not ended. Cannot be changed.",
        },
        "on_duplicate": {**_choice(OnDuplicate), "default": OnDuplicate.REJECT.value},
        "labels": _labels(),
        "notifications": {
            **_array(_ref("Notification")),
            "maxItems": MAX_NOTIFICATIONS,
            "description": "Webhooks called with the outcome of each run.",
        },
    }


def _recurring_options() -> dict[str, Schema]:
    return {
        "misfire_policy": {**_choice(Misfire), "default": Misfire.LATEST.value},
        "catch_up_window_seconds": {
            **_whole(1, MAX_CATCH_UP_WINDOW_SECONDS, "For the misfire policy `all`."),
            "default": DEFAULT_CATCH_UP_WINDOW_SECONDS,
        },
        "catch_up_limit": {
            **_whole(1, MAX_CATCH_UP_LIMIT, "For the misfire policy `all`."),
            "default": DEFAULT_CATCH_UP_LIMIT,
        },
        "overlap_policy": {**_choice(Overlap), "default": Overlap.ALLOW.value},
    }


def _labels() -> Schema:
    return {
        "type": "object",
        "description": "For searching jobs.",
        "maxProperties": MAX_LABELS,
        "propertyNames": {"pattern": _LABEL},
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": MAX_LABEL_VALUE},
    }


def _name(longest: int = MAX_NAME) -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def _cron() -> Schema:
    return _text("Five fields, six with leading seconds, or a macro such as @daily.")


def _every() -> Schema:
    return _whole(1, MAX_EVERY_SECONDS, "Elapsed time since starts_at, or since creation.")


def _at() -> Schema:
    return _instant("An instant in the past means now.")


def _delay() -> Schema:
    return _whole(0, MAX_DELAY_SECONDS)


def _timezone() -> dict[str, Schema]:
    return {"timezone": {**_text("An IANA name."), "default": UTC_ZONE}}


def _cron_options() -> dict[str, Schema]:
    return _timezone() | {
        "dst_gap": {"enum": list(get_args(DstGap)), "default": "run_after"},
        "dst_overlap": {"enum": list(get_args(DstOverlap)), "default": "once"},
    }


def _window() -> dict[str, Schema]:
    return {
        "starts_at": _instant("The first instant at which it may run."),
        "ends_at": _instant("The last instant at which it may run."),
        "max_runs": _whole(1, MAX_RUNS, "After this many started runs the job is COMPLETED."),
    }


def _action() -> Schema:
    return _either("type", WEBHOOK="Webhook", TASK="Task")


def _url() -> Schema:
    return {**_text(), "maxLength": MAX_URL, "pattern": "^https?://"}


def _webhook_options() -> dict[str, Schema]:
    body = {
        "description": (
            "A string is sent verbatim, anything else as JSON; null means no body. {{secret:name}} "
            "is filled in; any other {{ is rejected unless literal is true."
        )
    }
    return {
        "method": {"enum": list(METHODS), "default": "POST"},
        "headers": _headers(),
        "body": body,
        "signing_secret": {
            **_text("The name of a secret, used instead of `webhook-signing`."),
            "pattern": f"^{SECRET_NAME.pattern}$",
        },
        "literal": {
            "type": "boolean",
            "default": False,
            "description": "The body is sent verbatim, including any {{; no secret is filled in.",
        },
        "secrets": _secrets_check(),
    }


def _secrets_check() -> Schema:
    return {
        **_choice(SecretsCheck),
        "default": SecretsCheck.REQUIRED.value,
        "description": "lazy: the named secrets need not exist until the request is sent.",
    }


def _shown_headers() -> Schema:
    described = (
        f"A literal credential is shown as `{MASKED}`; sending that back keeps the stored value."
    )
    return {"type": "object", "additionalProperties": _text(), "description": described}


def _headers() -> Schema:
    return {"type": "object", "maxProperties": MAX_HEADERS, "additionalProperties": _text()}


def _events() -> Schema:
    return {**_array(_choice(Event)), "minItems": 1, "maxItems": len(Event), "uniqueItems": True}


def _task_name() -> Schema:
    return {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,200}$"}


def _task_options() -> dict[str, Schema]:
    return {"payload": {"description": "Any JSON value."}}


def _retry_policy() -> Schema:
    usual = RetryPolicy()
    delay = _whole(0, MAX_RETRY_DELAY_SECONDS)
    return _sent(
        {},
        {
            "max_retries": {**_whole(0, MAX_RETRIES), "default": usual.max_retries},
            "backoff": {**_choice(Backoff), "default": usual.backoff.value},
            "initial_delay_seconds": {**delay, "default": usual.initial_delay_seconds},
            "max_delay_seconds": {**delay, "default": usual.max_delay_seconds},
            "delays_seconds": {
                **_array(delay),
                "description": "One delay per retry; replaces the four fields above.",
                "minItems": 1,
                "maxItems": MAX_RETRIES,
            },
            "non_retryable": {
                **_array(_text("A failure kind, such as http_404 or ValueError.")),
                "maxItems": MAX_NON_RETRYABLE,
            },
            "retryable": {
                **_array(_text("A final failure kind to retry anyway, such as http_404.")),
                "maxItems": MAX_NON_RETRYABLE,
            },
            "max_crashes": {
                **_whole(1, MAX_CRASHES),
                "description": (
                    "An execution is DEAD(crashed) after this many consecutive crashes of its "
                    "worker while it ran alone in the process. Default: the system's setting."
                ),
            },
        },
    )


# Responses.


def _retries() -> Schema:
    policy = {
        "max_retries": _whole(0, MAX_RETRIES),
        "backoff": _choice(Backoff),
        "non_retryable": _array(_text()),
        "retryable": _array(_text()),
        "max_crashes": _or_null(_whole(1, MAX_CRASHES)),
        "initial_delay_seconds": _whole(),
        "max_delay_seconds": _whole(),
        "delays_seconds": _array(_whole()),
    }
    return _answered(
        policy, optional=("initial_delay_seconds", "max_delay_seconds", "delays_seconds")
    )


def _job() -> Schema:
    window = {name: _or_null(schema) for name, schema in _window().items()}
    zone = {"timezone": _text()}
    fields = {
        "job_id": _job_id(),
        "status": _choice(JobStatus),
        "version": _whole(1),
        "next_run_at": _or_null(
            _instant("In the time zone of the job; null when paused or ended.")
        ),
        "tenant_id": _text(),
        "name": _text(),
        "type": _choice(JobType),
        "schedule": {
            "oneOf": [
                _answered({"at": _instant(), **zone}),
                _answered({"cron": _text(), **_cron_options(), **window}),
                _answered({"every_seconds": _whole(1), **zone, **window}),
            ]
        },
        "action": _shown_action(_shown_headers()),
        "retry_policy": _retries(),
        "timeout_seconds": _whole(1),
        "delivery": _choice(Delivery),
        "queue": _text(),
        "priority": {"enum": [priority.name for priority in Priority]},
        "start_deadline_seconds": _or_null(_whole(1)),
        "deadline_seconds": _or_null(_whole(1)),
        "concurrency_key": _or_null(_text()),
        "concurrency_limit": _or_null(_whole(1)),
        "unique_key": _or_null(_text()),
        "on_duplicate": _or_null(_choice(OnDuplicate)),
        "labels": _labels(),
        "notifications": _array(
            _answered(
                {
                    "on": _events(),
                    "url": _text(),
                    "headers": _shown_headers(),
                    "secrets": _choice(SecretsCheck),
                },
                optional=("secrets",),
            )
        ),
        **_recurring_options(),
        "created_at": _instant(),
        "updated_at": _instant(),
        "warnings": _warnings(),
    }
    return _answered(fields, optional=tuple(_recurring_options()))


def _warnings() -> Schema:
    warning = {
        "path": _text("The field concerned."),
        "code": {"enum": ["seconds_first"]},
        "message": _text(),
    }
    return {
        **_array(_answered(warning)),
        "description": "Input that was accepted but is probably not intended.",
    }


def _shown_action(headers: Schema) -> Schema:
    webhook = {
        "type": {"const": "WEBHOOK"},
        "url": _text(),
        "method": {"enum": list(METHODS)},
        "headers": headers,
        "body": {},
        "signing_secret": _text(),
        "literal": {"type": "boolean"},
        "secrets": _choice(SecretsCheck),
    }
    task = {"type": {"const": "TASK"}, "name": _text(), "payload": {}}
    return {
        "oneOf": [
            _answered(webhook, optional=("signing_secret", "literal", "secrets")),
            _answered(task),
        ]
    }


def _attempts() -> Schema:
    attempt = {
        "attempt": _whole(1),
        "status": _choice(ExecutionStatus),
        "started_at": _instant(),
        "finished_at": _or_null(_instant()),
        "error": _or_null(_text()),
        "kind": _or_null(_text("The failure kind: timeout, http_503, an exception name.")),
        "fence_token": _or_null(_whole(0, MAX_ID)),
        "worker_id": _or_null(_text()),
    }
    return {**_array(_answered(attempt)), "description": "Oldest first; empty in lists."}


def _execution() -> Schema:
    return _answered(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "job_name": _or_null(_text("Null if the job no longer exists.")),
            "tenant_id": _text(),
            "queue": _or_null(_text()),
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
            "reason": _or_null(_choice(Reason)),
            "scheduled_for": _instant("The nominal time."),
            "started_at": _or_null(_instant("Start of the latest attempt.")),
            "finished_at": _or_null(_instant()),
            "duration_ms": _or_null(
                _whole(description="Duration of the latest attempt, once it has ended.")
            ),
            "attempt": _whole(0, description="0 until it first runs."),
            "fence_token": _or_null(_whole(0, MAX_ID, "Fence of the latest claim.")),
            "worker_id": _or_null(
                _text("Worker of the latest attempt. Null: none yet, or no longer stored.")
            ),
            "lateness_ms": _or_null(
                _whole(
                    description=(
                        "From scheduled_for to the start of the first attempt; for a backfill, "
                        "from the request."
                    )
                )
            ),
            "missed": _or_null(
                _whole(
                    1, description="SKIPPED(misfire): how many occurrences this entry represents."
                )
            ),
            "missed_through": _or_null(
                _instant("SKIPPED(misfire): the last of them; `scheduled_for` is the first.")
            ),
            "error": _or_null(_text()),
            "result": {},
            "progress": {"description": "The latest progress report, while it runs."},
            "attempts": _attempts(),
        }
    )


def _dead_letter() -> Schema:
    return _answered(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "tenant_id": _text(),
            "died_at": _instant(),
            "reason": {"enum": sorted(REASONS[ExecutionStatus.DEAD])},
            "error": _or_null(_text()),
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
    return _answered(
        {
            "monitor_id": {"type": "string", "pattern": f"^mon_{_ID}$"},
            "job_id": _job_id(),
            "tenant_id": _text(),
            "grace_seconds": _whole(1),
            "url": _text(),
            "headers": _shown_headers(),
            "status": _words("UP", "DOWN"),
            "expected_at": _or_null(
                _instant("The job must succeed at or after this, within the grace period.")
            ),
            "last_success_at": _or_null(_instant("The latest success seen by the monitor.")),
            "down_since": _or_null(_instant()),
            "created_at": _instant(),
        }
    )


def _letter_filter() -> dict[str, Schema]:
    return {
        "tenant_id": _text(),
        "job_id": _text(),
        "reason": {"enum": sorted(REASONS[ExecutionStatus.DEAD])},
        "from": _instant("Lower bound of died_at, inclusive."),
        "to": _instant("Upper bound of died_at, exclusive."),
        "limit": {**_whole(1, MOST_AT_ONCE), "default": USUAL_AT_ONCE},
        "page_token": _text("The next_page_token of the previous call."),
    }


def _audit_entry() -> Schema:
    document = (
        "The document of the job, with its status where that may change, or the request. "
        "Null: none exists."
    )
    return _answered(
        {
            "at": _instant(),
            "tenant_id": _text(),
            "job_id": _or_null(_job_id()),
            "actor": _text("Who made the change."),
            "operation": _text("What was done."),
            "from": {"description": document},
            "to": {"description": document},
        }
    )


def _limits() -> dict[str, Schema]:
    rate = _sent(
        {"per_second": _number(MIN_RATE, MAX_RATE)},
        {
            "burst": _whole(
                1, MAX_BURST, "Default: the tokens that accrue in 50 ms, rounded up; at least 1."
            )
        },
    )
    return {
        "max_concurrency": _whole(0, MAX_CONCURRENCY, "Queued for a worker or running at once."),
        "rate_limit": rate,
    }


def _tenant_settings() -> dict[str, Schema]:
    return {
        "weight": {**_number(1 / MAX_WEIGHT, MAX_WEIGHT), "default": 1},
        "max_jobs": _whole(0, MAX_JOBS, "Scheduled, paused, waiting or running."),
        "ledger_days": _whole(
            1,
            MAX_DAYS,
            "How long ended executions are kept; at most as long as the cell keeps them.",
        ),
        "dead_letter_days": _whole(1, MAX_DAYS, "How long dead letters are kept."),
        "audit_days": _whole(1, MAX_DAYS, "How long entries of the audit trail are kept."),
    }


def _named(name: str, settings: dict[str, Schema], *counts: str) -> Schema:
    rate = _answered({"per_second": _number(), "burst": _whole(1)})
    limits = {"max_concurrency": _whole(0), "rate_limit": rate}
    counted = {each: _whole(0, MOST_COUNTED) for each in counts}
    more = {
        **_array({"enum": list(counts)}),
        "description": (
            f"Counts that are lower bounds: counting stopped at {MOST_COUNTED} items, or after "
            f"examining that many running executions."
        ),
    }
    return _answered(
        {
            name: _text(),
            **{field: _or_null(schema) for field, schema in (limits | settings).items()},
            "counts": {
                **_or_null(_answered(counted | {"at_least": more})),
                "description": "Current counts. Null in lists.",
            },
        }
    )


def _forecast() -> Schema:
    minute = {"at": _instant("The start of the minute."), "executions": _whole(1)}
    return _answered(
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
                **_array(_answered(minute)),
                "description": "Only minutes in which executions are due.",
            },
        }
    )


def _worker_calls() -> dict[str, Schema]:
    """Requests and responses of HTTP workers."""
    session = {"session_token": _session_token()}
    fence = {"fence_token": _whole(0, MAX_ID, "The fence token from the claim.")}
    lease = {
        "lease_seconds": _number(
            description="The session is lost after this long without a heartbeat."
        )
    }
    ending = fence | {
        "status": _words("SUCCEEDED", "FAILED"),
        "duration_ms": _whole(0, MAX_DURATION_MS, "Duration of the attempt."),
    }
    said = {
        "result": {
            "description": f"On success: any JSON value of up to {MOST_RESULT_BYTES} bytes."
        },
        "error": _text("On failure: a human-readable message."),
        "error_kind": {
            **_text("On failure: the kind, matched against the job's `non_retryable`."),
            "minLength": 1,
            "maxLength": MAX_ERROR_KIND,
            "default": DEFAULT_ERROR_KIND,
        },
        "retry_after_seconds": _whole(
            0, MAX_RETRY_DELAY_SECONDS, "On failure: the delay that the target requested."
        ),
    }
    worker_id = {"type": "string", "minLength": 1, "maxLength": MAX_WORKER_ID}
    whose = {
        "worker_id": {
            **worker_id,
            "description": "Optional; must be the worker_id of the claim that opened the session.",
        }
    }
    execution = {
        "execution_id": _execution_id(),
        "job_id": _job_id(),
        "tenant_id": _text(),
        "name": _text("Name of the job."),
        "attempt": _whole(1),
        **fence,
        "scheduled_for": _instant("The nominal time."),
        "timeout_seconds": _whole(1, description="Stop it after this, and report FAILED."),
        "deadline_in_seconds": _or_null(
            _number(description="Seconds from the claim; stop the work after this.")
        ),
        "action": _shown_action(_headers()),
    }
    return {
        "Claim": _sent(
            {
                "worker_id": {**worker_id, "description": "A name chosen by the worker."},
                "capacity": _whole(1, MAX_CAPACITY, "Most executions to claim; may return fewer."),
            },
            {
                "queues": {
                    **_array(_label()),
                    "description": "Queues of the session; `default` if omitted.",
                    "minItems": 1,
                    "maxItems": MAX_QUEUES,
                },
                "tasks": {
                    **_array({"type": "string", "pattern": f"^({TASK})$"}),
                    "description": (
                        "Tasks that the session serves, `@webhook` for webhooks; all if omitted."
                    ),
                    "minItems": 1,
                    "maxItems": MAX_TASKS,
                },
                "wait_seconds": {**_whole(0, MAX_WAIT_SECONDS), "default": 0},
                "session_token": _session_token(),
                "claim_number": _whole(
                    1,
                    MAX_CLAIM_NUMBER,
                    "Increases by one with each claim of a session; unchanged to repeat a claim.",
                ),
            },
        ),
        "Claimed": _answered(
            {
                "session_token": {
                    **_or_null(_session_token()),
                    "description": "Null: nothing was claimed and no session was opened.",
                },
                **lease,
                "executions": _array(_answered(execution)),
            }
        ),
        "Heartbeat": _sent(
            session
            | {
                "execution_ids": {
                    **_array(_execution_id()),
                    "description": "All executions that the worker holds.",
                    "maxItems": MAX_HELD,
                }
            },
            {
                "worker_id": {
                    **worker_id,
                    "description": "Optional: the session identifies the worker.",
                },
                "claim_number": _whole(
                    0, MAX_CLAIM_NUMBER, "The worker has the responses of all claims up to this."
                ),
            },
        ),
        "HeartbeatResult": _answered(
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
        "Outcome": _sent(session | ending, said | whose),
        "Outcomes": _sent(
            session
            | {
                "outcomes": {
                    **_array(_sent({"execution_id": _execution_id()} | ending, said)),
                    "minItems": 1,
                    "maxItems": MAX_OUTCOMES,
                }
            },
            whose,
        ),
        "Completed": _answered({"refused": _array(_execution_id())}),
        "Progress": _sent(
            session
            | fence
            | {"progress": {"description": f"Any JSON value of up to {MAX_PROGRESS_BYTES} bytes."}},
            whose,
        ),
        "Release": _sent(session | fence, whose),
        "Close": _sent(session, {}),
        "ExecutionRef": _answered({"execution_id": _execution_id()}),
        "Closed": _answered({"status": {"const": "closed"}}),
    }


def _explanation() -> Schema:
    return _answered(
        {
            "code": _text("Stable, for programs."),
            "message": _text(),
            "until": _or_null(_instant("When the condition ends by itself.")),
            "execution_id": _or_null(
                {**_execution_id(), "description": "The execution being explained."}
            ),
            "blocked_by": _or_null(
                {
                    **_answered({"execution_id": _execution_id(), "job_id": _job_id()}),
                    "description": "The execution that this one is waiting for.",
                }
            ),
        }
    )


def _key() -> dict[str, Schema]:
    return {
        "key_id": {"type": "string", "pattern": f"^key_{_ID}$"},
        "name": _text(),
        "role": _choice(KeyRole),
        "tenant_id": _or_null(_text("Null: all tenants.")),
        "created_at": _instant(),
        "revoked_at": _or_null(_instant()),
    }


def _new_secret() -> Schema:
    keep = "How long requests are also signed with the previous value."
    return _sent(
        {},
        {
            "value": {
                "type": "string",
                "minLength": FEWEST_CHARACTERS,
                "maxLength": MAX_CHARACTERS,
            },
            "generate": {
                "enum": ["signing"],
                "description": "Instead of a value: generate one for signatures.",
            },
            "keep_previous_seconds": {**_whole(0, MAX_KEEP_SECONDS, keep), "default": 0},
            "tenant_id": _label(),
        },
    )


def _secret() -> dict[str, Schema]:
    return {
        "name": _text(),
        "tenant_id": _text(),
        "created_at": _instant(),
        "updated_at": _instant(),
        "previous_until": _or_null(_instant("The previous value is valid until then.")),
    }


def _batch_result() -> Schema:
    refused = {
        "code": _text("The `code` of a problem document."),
        "detail": _text(),
        "errors": _array(_field_error()),
    }
    return {"oneOf": [_answered({"job_id": _job_id()}), _answered(refused)]}


def _field_error() -> Schema:
    return _answered(
        {
            "path": _text("Such as `schedule.timezone`; empty for the document itself."),
            "code": {"enum": list(get_args(FieldCode))},
            "message": _text(),
        }
    )


def _problem() -> Schema:
    return {
        **_answered(
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


def _sent(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """An object in a request: unknown fields are rejected; null means omitted."""
    nullable = {name: _or_null(schema) for name, schema in optional.items()}
    schema = {
        "type": "object",
        "properties": required | nullable,
        "additionalProperties": False,
    }
    return schema | ({"required": list(required)} if required else {})


def _answered(fields: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object in a response."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def _page(item: str) -> Schema:
    return _answered({"items": _array(_ref(item)), "next_page_token": _next_token()})


def _next_token() -> Schema:
    return _or_null(_text("Send as page_token to get the next page; null at the end."))


def _either(by: str, **kinds: str) -> Schema:
    references = {kind: f"#/components/schemas/{name}" for kind, name in kinds.items()}
    return {
        "oneOf": [{"$ref": reference} for reference in references.values()],
        "discriminator": {"propertyName": by, "mapping": references},
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if schema.keys() - {"description"} else schema


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _text(description: str = "") -> Schema:
    return {"type": "string"} | ({"description": description} if description else {})


def _label() -> Schema:
    return {"type": "string", "pattern": _LABEL}


def _job_id() -> Schema:
    return {"type": "string", "pattern": f"^job_{_ID}$"}


def _execution_id() -> Schema:
    return {"type": "string", "pattern": f"^exe_{_ID}$"}


def _whole(low: int | None = None, high: int | None = None, description: str = "") -> Schema:
    bounds = {"minimum": low, "maximum": high, "description": description or None}
    return {"type": "integer"} | {key: value for key, value in bounds.items() if value is not None}


def _number(low: float | None = None, high: float | None = None, description: str = "") -> Schema:
    bounds = {"minimum": low, "maximum": high, "description": description or None}
    return {"type": "number"} | {key: value for key, value in bounds.items() if value is not None}


def _session_token() -> Schema:
    return {"type": "string", "pattern": f"^{SESSION_TOKEN}$"}


def _instant(description: str = "") -> Schema:
    return {**_text(description), "format": "date-time"}


def _choice(kinds: type[Enum]) -> Schema:
    return {"enum": [kind.value for kind in kinds]}


def _words(*words: str) -> Schema:
    return {"enum": list(words)}
