"""What users get to see of jobs and executions."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from hourbell.documents.jobs import parse_new_job
from hourbell.documents.render import render_execution, render_job
from hourbell.model.executions import Attempt, Execution, ExecutionStatus, Origin, Reason
from hourbell.model.jobs import Job, JobStatus, NewJob

NOW = datetime(2026, 4, 6, 12, 0, 0, 250_000, tzinfo=UTC)


def job(document: dict[str, Any], next_run_at: datetime | None) -> Job:
    new = parse_new_job({"name": "report", **document}, NOW, job_id=38)
    return Job(
        **{field: getattr(new, field) for field in NewJob.__struct_fields__},
        job_id=38,
        status=JobStatus.SCHEDULED,
        version=1,
        next_run_at=next_run_at,
        created_at=NOW,
        updated_at=NOW,
    )


RECURRING = {
    "type": "RECURRING",
    "schedule": {
        "cron": "0 2 * * *",
        "timezone": "Asia/Kolkata",
        "starts_at": "2026-04-07T00:00:00Z",
    },
    "action": {"type": "WEBHOOK", "url": "https://a.test/", "body": {"a": 1}},
    "tenant_id": "seller-platform",
}
ONE_TIME = {
    "type": "ONE_TIME",
    "schedule": {"delay_seconds": 60},
    "action": {"type": "TASK", "name": "remind"},
    "retry_policy": {"delays_seconds": [60, 300]},
}


def test_a_recurring_job_is_shown_with_everything_spelled_out():
    assert render_job(job(RECURRING, datetime(2026, 4, 7, 20, 30, tzinfo=UTC))) == {
        "job_id": "job_0000000000016",
        "status": "SCHEDULED",
        "version": 1,
        "next_run_at": "2026-04-08T02:00:00+05:30",
        "schedule_words": "Every day at 02:00 in Asia/Kolkata. From 2026-04-07T00:00:00Z.",
        "tenant_id": "seller-platform",
        "name": "report",
        "type": "RECURRING",
        "schedule": {
            "cron": "0 2 * * *",
            "timezone": "Asia/Kolkata",
            "dst_gap": "run_after",
            "dst_overlap": "once",
            "jitter_seconds": 0,
            "exclude": [],
            "starts_at": "2026-04-07T00:00:00Z",
            "ends_at": None,
            "max_runs": None,
        },
        "action": {
            "type": "WEBHOOK",
            "url": "https://a.test/",
            "method": "POST",
            "headers": {},
            "body": {"a": 1},
        },
        "retry_policy": {
            "max_retries": 3,
            "backoff": "EXPONENTIAL_WITH_JITTER",
            "non_retryable": [],
            "retryable": [],
            "max_crashes": None,
            "initial_delay_seconds": 30,
            "max_delay_seconds": 3600,
        },
        "timeout_seconds": 300,
        "delivery": "at_least_once",
        "queue": "default",
        "priority": "MEDIUM",
        "start_deadline_seconds": None,
        "deadline_seconds": None,
        "concurrency_key": None,
        "concurrency_limit": None,
        "unique_key": None,
        "on_duplicate": None,
        "labels": {},
        "notifications": [],
        "misfire_policy": "latest",
        "catch_up_window_seconds": 86_400,
        "catch_up_limit": 100,
        "overlap_policy": "allow",
        "created_at": "2026-04-06T12:00:00.25Z",
        "updated_at": "2026-04-06T12:00:00.25Z",
        "warnings": [],
        "problem": None,
    }


def test_a_one_time_job_is_shown_without_what_has_no_meaning_for_it():
    shown = render_job(job(ONE_TIME, datetime(2026, 4, 6, 12, 1, 0, 250_000, tzinfo=UTC)))
    assert shown["schedule"] == {"at": "2026-04-06T12:01:00.25Z", "timezone": "UTC"}
    assert shown["next_run_at"] == "2026-04-06T12:01:00.25Z"
    assert shown["retry_policy"] == {
        "max_retries": 2,
        "backoff": "LIST",
        "non_retryable": [],
        "retryable": [],
        "max_crashes": None,
        "delays_seconds": [60, 300],
    }
    assert "misfire_policy" not in shown
    assert "overlap_policy" not in shown


def test_a_job_without_a_next_run_says_so():
    assert render_job(job(ONE_TIME, None))["next_run_at"] is None


@pytest.mark.parametrize(
    ("zone", "instant", "text"),
    [
        ("Europe/Berlin", datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01T02:00:00+02:00"),
        ("Europe/Berlin", datetime(2026, 12, 1, tzinfo=UTC), "2026-12-01T01:00:00+01:00"),
        ("America/New_York", datetime(2026, 7, 1, tzinfo=UTC), "2026-06-30T20:00:00-04:00"),
        ("Pacific/Kiritimati", datetime(9999, 12, 30, tzinfo=UTC), "9999-12-30T14:00:00+14:00"),
        ("UTC", datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01T00:00:00Z"),
    ],
)
def test_the_next_run_is_shown_in_the_jobs_own_zone(zone: str, instant: datetime, text: str):
    document = {**RECURRING, "schedule": {"every_seconds": 60, "timezone": zone}}
    assert render_job(job(document, instant))["next_run_at"] == text


@pytest.mark.parametrize("document", [RECURRING, ONE_TIME])
def test_what_is_shown_of_a_job_would_create_it_again(document: dict[str, Any]):
    before = job(document, None)
    shown = render_job(before)
    answered = (
        "job_id",
        "status",
        "version",
        "schedule_words",
        "next_run_at",
        "created_at",
        "updated_at",
        "warnings",
        "problem",
    )
    for key in answered:
        del shown[key]
    again = parse_new_job(msgspec.json.decode(msgspec.json.encode(shown)), NOW, job_id=38)
    assert again == NewJob(**{f: getattr(before, f) for f in NewJob.__struct_fields__})


def test_an_execution_is_shown_with_its_attempts():
    execution = Execution(
        execution_id=38,
        job_id=39,
        job_name="report",
        tenant_id="default",
        queue="slow",
        origin=Origin.BACKFILL,
        status=ExecutionStatus.DEAD,
        reason=Reason.RETRIES_EXHAUSTED,
        scheduled_for=NOW,
        started_at=NOW,
        finished_at=NOW,
        duration_ms=0,
        attempt=1,
        fence=7,
        worker="alpha",
        lateness_ms=0,
        error="it broke",
        attempts=(
            Attempt(
                attempt=1,
                status=ExecutionStatus.FAILED,
                started_at=NOW,
                finished_at=NOW,
                error="it broke",
                kind="http_503",
                fence=7,
                worker="alpha",
            ),
        ),
    )
    assert render_execution(execution) == {
        "execution_id": "exe_0000000000016",
        "job_id": "job_0000000000017",
        "job_name": "report",
        "tenant_id": "default",
        "queue": "slow",
        "origin": "backfill",
        "created_at": "2024-01-01T00:00:00Z",
        "status": "DEAD",
        "reason": "retries_exhausted",
        "waiting_for": None,
        "scheduled_for": "2026-04-06T12:00:00.25Z",
        "started_at": "2026-04-06T12:00:00.25Z",
        "finished_at": "2026-04-06T12:00:00.25Z",
        "duration_ms": 0,
        "attempt": 1,
        "fence_token": 7,
        "worker_id": "alpha",
        "lateness_ms": 0,
        "error": "it broke",
        "result": None,
        "progress": None,
        "missed": None,
        "missed_through": None,
        "attempts": [
            {
                "attempt": 1,
                "status": "FAILED",
                "started_at": "2026-04-06T12:00:00.25Z",
                "finished_at": "2026-04-06T12:00:00.25Z",
                "error": "it broke",
                "kind": "http_503",
                "fence_token": 7,
                "worker_id": "alpha",
            }
        ],
    }


def test_an_execution_that_waits_has_not_started():
    waiting = Execution(
        execution_id=1,
        job_id=1,
        tenant_id="default",
        status=ExecutionStatus.SCHEDULED,
        scheduled_for=NOW,
    )
    shown = render_execution(waiting)
    assert (shown["started_at"], shown["finished_at"], shown["attempt"]) == (None, None, 0)
    assert shown["reason"] is None
