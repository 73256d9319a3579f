"""An example of each body and each path parameter, for the OpenAPI document and the page that shows it.

The API accepts each body as it is; the tests send them.
"""

from __future__ import annotations

from typing import Any

_SESSION = {"session_token": "ses_12_0123456789abcdef0123456789abcdef"}
_RUN = _SESSION | {"fence_token": 1794967629164048}  # from the response to the claim
_WEBHOOK = {"type": "WEBHOOK", "url": "https://api.example.com/invoices", "method": "POST"}
_NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
_JOB = {"name": "invoice-nightly", "tenant_id": "acme", "type": "RECURRING", "schedule": _NIGHTLY}
_JOB |= {"action": _WEBHOOK | {"body": {"kind": "nightly"}}}
_ONCE = {
    "name": "welcome-mail",
    "type": "ONE_TIME",
    "schedule": {"delay_seconds": 60},
    "action": {"type": "TASK", "name": "mail.welcome", "payload": {"user": 42}},
}
_REASON = "partner is down, ticket 812"
_YESTERDAY = {"from": "2027-01-01T00:00:00Z", "to": "2027-01-02T00:00:00Z"}

# By the name of the schema.
BODIES: dict[str, Any] = {
    "NewJob": _JOB,
    "NewJobs": [_JOB, _ONCE],
    "NamedJob": {name: value for name, value in _JOB.items() if name != "name"},
    "JobPatch": {"priority": "HIGH", "timeout_seconds": 90},
    "Pause": {"reason": _REASON},
    "BulkPause": {"tenant_id": "acme", "reason": _REASON},
    "BulkResume": {"tenant_id": "acme", "reason": _REASON},
    "Run": {"body": {"kind": "on request"}},
    "Backfill": {"after": "2026-01-01T00:00:00Z", "through": "2026-01-02T00:00:00Z"},
    "SchedulePreviewRequest": {"schedule": _NIGHTLY, "count": 3},
    "Completion": {"token": "the-token-of-the-request", "status": "SUCCEEDED", "result": {"n": 3}},
    "NewGroup": {"name": "month-end", "url": "https://api.example.com/month-end-is-done"},
    "GroupMembers": {"job_ids": ["job_0000000000016"]},
    "Replay": _YESTERDAY | {"tenant_id": "acme", "rate_per_second": 20},
    "Purge": _YESTERDAY | {"tenant_id": "acme", "reason": "non_retryable"},
    "OperationPreviewRequest": {"act": "pause", "filter": {"tenant_id": "acme"}},
    "NewOperation": {"act": "pause", "filter": {"tenant_id": "acme"}, "reason": _REASON},
    "NewMonitor": {
        "job_id": "job_0000000000016",
        "grace_seconds": 600,
        "url": "https://hooks.example.com/on-call",
    },
    "NewCalendar": {"dates": ["2027-01-01", "2027-12-25"]},
    "TenantSettings": {"weight": 3, "max_concurrency": 50, "rate_limit": {"per_second": 20}},
    "QueueSettings": {"max_concurrency": 100, "default_timeout_seconds": 90},
    "TargetSettings": {"max_concurrency": 10, "rate_limit": {"per_second": 5, "burst": 5}},
    "NewSecret": {"value": "a token for the target"},
    "SignIn": {"api_key": "hb_0123456789abcdefghijABCDEFGHIJ_-0123456789a"},
    "NewKey": {"name": "dashboard of the team", "role": "viewer"},
    "Claim": {"worker_id": "worker-1", "capacity": 10, "queues": ["default"], "wait_seconds": 1},
    "Heartbeat": _SESSION | {"execution_ids": ["exe_0000000000016"]},
    "Outcome": _RUN | {"status": "SUCCEEDED", "duration_ms": 250, "result": {"mails": 1}},
    "Outcomes": _SESSION
    | {
        "outcomes": [
            {
                "execution_id": "exe_0000000000016",
                "fence_token": 1794967629164048,
                "status": "SUCCEEDED",
                "duration_ms": 250,
            }
        ]
    },
    "Progress": _RUN | {"progress": {"percent": 62, "message": "page 31 of 50"}},
    "Checkpoint": _RUN | {"checkpoint": {"page": 31}},
    "Release": _RUN,
    "Close": _SESSION,
}

PATHS = {
    "execution_id": "exe_0000000000016",
    "group_id": "grp_0000000000016",
    "host": "api.example.com",
    "job_id": "job_0000000000016",
    "key_id": "key_0000000000016",
    "monitor_id": "mon_0000000000016",
    "name": "acme",
    "operation_id": "ops_0000000000016",
    "session_id": "ses_0000000000016",
}
