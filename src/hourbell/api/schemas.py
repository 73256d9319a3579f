"""The documents of the API in the words of JSON Schema.

The bounds come from the model, so that they cannot say something else than what is checked. What is sent may leave out or
set to null whatever has a default; what is answered has every field.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

from hourbell.model.errors import FieldCode
from hourbell.model.executions import ExecutionStatus, Reason
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    DEFAULT_TENANT,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_CONCURRENCY_KEY,
    MAX_CONCURRENCY_LIMIT,
    MAX_DEADLINE_SECONDS,
    MAX_HEADERS,
    MAX_NAME,
    MAX_START_DEADLINE_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MAX_URL,
    METHODS,
    JobStatus,
    JobType,
)
from hourbell.model.policies import (
    DEFAULT_CATCH_UP_LIMIT,
    DEFAULT_CATCH_UP_WINDOW_SECONDS,
    MAX_CATCH_UP_LIMIT,
    MAX_CATCH_UP_WINDOW_SECONDS,
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
from hourbell.timing.intervals import MAX_EVERY_SECONDS

Schema = dict[str, Any]

_ID = "[0-9a-hjkmnp-tv-z]{13}"
_LABEL = "^[A-Za-z0-9._:-]{1,64}$"


def schemas() -> dict[str, Schema]:
    """Every schema by its name."""
    return {
        "NewJob": _either("type", ONE_TIME="NewOneTimeJob", RECURRING="NewRecurringJob"),
        "NewOneTimeJob": _new_job(JobType.ONE_TIME),
        "NewRecurringJob": _new_job(JobType.RECURRING),
        "JobPatch": _job_patch(),
        "CronSchedule": _sent({"cron": _cron()}, _cron_options() | _window()),
        "IntervalSchedule": _sent({"every_seconds": _every()}, _timezone() | _window()),
        "InstantSchedule": _sent({"at": _at()}, _timezone()),
        "DelaySchedule": _sent({"delay_seconds": _delay()}, _timezone()),
        "Webhook": _sent({"type": {"const": "WEBHOOK"}, "url": _url()}, _webhook_options()),
        "Task": _sent({"type": {"const": "TASK"}, "name": _task_name()}, _task_options()),
        "RetryPolicy": _retry_policy(),
        "Backfill": _sent(
            {
                "after": _instant("No run for an occurrence at or before this."),
                "through": _instant("No run for an occurrence after this; not in the future."),
            },
            {},
        ),
        "Job": _job(),
        "JobPage": _page("Job"),
        "Execution": _execution(),
        "ExecutionPage": _page("Execution"),
        "Requested": _answered({"execution_ids": _array(_execution_id())}),
        "Explanation": _explanation(),
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


# Jobs, as they are sent.


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
            **_whole(1, MAX_TIMEOUT_SECONDS, "Of one attempt."),
            "default": DEFAULT_TIMEOUT_SECONDS,
        },
        "delivery": {**_choice(Delivery), "default": Delivery.AT_LEAST_ONCE.value},
        "start_deadline_seconds": _whole(
            1, MAX_START_DEADLINE_SECONDS, "After scheduled_for; what starts later is SKIPPED."
        ),
        "deadline_seconds": _whole(
            1, MAX_DEADLINE_SECONDS, "After scheduled_for, over all attempts; then DEAD."
        ),
        "concurrency_key": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CONCURRENCY_KEY,
            "description": "Executions of the tenant that share it go one after the other, in order of their time.",
        },
        "concurrency_limit": {
            **_whole(1, MAX_CONCURRENCY_LIMIT, "How many that share the key may go at once."),
            "default": 1,
        },
    }


def _recurring_options() -> dict[str, Schema]:
    return {
        "misfire_policy": {**_choice(Misfire), "default": Misfire.LATEST.value},
        "catch_up_window_seconds": {
            **_whole(1, MAX_CATCH_UP_WINDOW_SECONDS, "Of the misfire policy `all`."),
            "default": DEFAULT_CATCH_UP_WINDOW_SECONDS,
        },
        "catch_up_limit": {
            **_whole(1, MAX_CATCH_UP_LIMIT, "Of the misfire policy `all`."),
            "default": DEFAULT_CATCH_UP_LIMIT,
        },
        "overlap_policy": {**_choice(Overlap), "default": Overlap.ALLOW.value},
    }


def _name() -> Schema:
    return {"type": "string", "minLength": 1, "maxLength": MAX_NAME}


def _cron() -> Schema:
    return _text("Five fields, six with leading seconds, or a macro such as @daily.")


def _every() -> Schema:
    return _whole(1, MAX_EVERY_SECONDS, "Elapsed time from starts_at, or else from the creation.")


def _at() -> Schema:
    return _instant("An instant that has passed means at once.")


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
        "max_runs": _whole(1, MAX_RUNS, "Runs started; then the job is COMPLETED."),
    }


def _action() -> Schema:
    return _either("type", WEBHOOK="Webhook", TASK="Task")


def _url() -> Schema:
    return {**_text(), "maxLength": MAX_URL, "pattern": "^https?://"}


def _webhook_options() -> dict[str, Schema]:
    headers = {"type": "object", "maxProperties": MAX_HEADERS, "additionalProperties": _text()}
    body = {"description": "A string is sent as it is, anything else as JSON, null not at all."}
    return {"method": {"enum": list(METHODS), "default": "POST"}, "headers": headers, "body": body}


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
                "description": "One delay for each retry; in place of the four above.",
                "minItems": 1,
                "maxItems": MAX_RETRIES,
            },
            "non_retryable": {
                **_array(_text("A kind of failure, such as http_404 or ValueError.")),
                "maxItems": MAX_NON_RETRYABLE,
            },
        },
    )


# What is answered.


def _job() -> Schema:
    policy = {
        "max_retries": _whole(0, MAX_RETRIES),
        "backoff": _choice(Backoff),
        "non_retryable": _array(_text()),
        "initial_delay_seconds": _whole(),
        "max_delay_seconds": _whole(),
        "delays_seconds": _array(_whole()),
    }
    window = {name: _or_null(schema) for name, schema in _window().items()}
    zone = {"timezone": _text()}
    webhook = {
        "type": {"const": "WEBHOOK"},
        "url": _text(),
        "method": {"enum": list(METHODS)},
        "headers": {"type": "object", "additionalProperties": _text()},
        "body": {},
    }
    fields = {
        "job_id": _job_id(),
        "status": _choice(JobStatus),
        "version": _whole(1),
        "next_run_at": _or_null(_instant("In the zone of the job; null when paused or ended.")),
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
        "action": {
            "oneOf": [
                _answered(webhook),
                _answered({"type": {"const": "TASK"}, "name": _text(), "payload": {}}),
            ]
        },
        "retry_policy": _answered(
            policy, optional=("initial_delay_seconds", "max_delay_seconds", "delays_seconds")
        ),
        "timeout_seconds": _whole(1),
        "delivery": _choice(Delivery),
        "queue": _text(),
        "priority": {"enum": [priority.name for priority in Priority]},
        "start_deadline_seconds": _or_null(_whole(1)),
        "deadline_seconds": _or_null(_whole(1)),
        "concurrency_key": _or_null(_text()),
        "concurrency_limit": _or_null(_whole(1)),
        **_recurring_options(),
        "created_at": _instant(),
        "updated_at": _instant(),
    }
    return _answered(fields, optional=tuple(_recurring_options()))


def _execution() -> Schema:
    attempt = {
        "attempt": _whole(1),
        "status": _choice(ExecutionStatus),
        "started_at": _instant(),
        "finished_at": _or_null(_instant()),
        "error": _or_null(_text()),
        "kind": _or_null(_text()),
    }
    return _answered(
        {
            "execution_id": _execution_id(),
            "job_id": _job_id(),
            "tenant_id": _text(),
            "status": _choice(ExecutionStatus),
            "reason": _or_null(_choice(Reason)),
            "scheduled_for": _instant("The nominal time."),
            "started_at": _or_null(_instant("Of the latest attempt.")),
            "finished_at": _or_null(_instant()),
            "attempt": _whole(0, description="0 until it first runs."),
            "lateness_ms": _or_null(_whole(description="Of the start of the first attempt.")),
            "error": _or_null(_text()),
            "result": {},
            "attempts": {
                **_array(_answered(attempt)),
                "description": "Oldest first; left empty in lists.",
            },
        }
    )


def _explanation() -> Schema:
    return _answered(
        {
            "code": _text("Stable, for programs."),
            "message": _text(),
            "until": _or_null(_instant("When that changes by itself.")),
            "execution_id": _or_null(_execution_id()),
        }
    )


def _problem() -> Schema:
    error = {
        "path": _text("As `schedule.timezone`; empty for the document itself."),
        "code": {"enum": list(get_args(FieldCode))},
        "message": _text(),
    }
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
                    **_array(_answered(error)),
                    "description": "Every wrong field, if that is the problem.",
                },
            }
        ),
        "description": "A problem by RFC 9457.",
    }


# The words.


def _sent(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """An object of a request: nothing unknown; null means not given."""
    nullable = {name: _or_null(schema) for name, schema in optional.items()}
    schema = {
        "type": "object",
        "properties": required | nullable,
        "additionalProperties": False,
    }
    return schema | ({"required": list(required)} if required else {})


def _answered(fields: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """An object of an answer."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def _page(item: str) -> Schema:
    token = _or_null(_text("Ask for the next part with it; null at the end."))
    return _answered({"items": _array(_ref(item)), "next_page_token": token})


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


def _instant(description: str = "") -> Schema:
    return {**_text(description), "format": "date-time"}


def _choice(kinds: type[Enum]) -> Schema:
    return {"enum": [kind.value for kind in kinds]}


def _words(*words: str) -> Schema:
    return {"enum": list(words)}
