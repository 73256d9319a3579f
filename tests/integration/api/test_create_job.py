"""POST /api/v1/jobs"""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from integration.api.client import CONTRACT_JOB, Client, one_time, recurring

VECTORS = json.loads((Path(__file__).parents[2] / "data" / "cron_vectors.json").read_text())

CLOCK = "create or replace function hourbell.clock() returns timestamptz language sql return "


@pytest.fixture
async def _before_the_contract(database: str) -> AsyncIterator[None]:
    """The database's clock, and so everybody's, stands on the day before the example begins."""
    connection = await asyncpg.connect(database)
    await connection.execute(CLOCK + "timestamptz '2026-04-06T12:00:00Z'")
    yield
    await connection.execute(CLOCK + "clock_timestamp()")
    await connection.close()


@pytest.mark.usefixtures("_before_the_contract")
async def test_the_example_of_the_contract_is_answered_as_promised(api: Client):
    answer = await api.post("/api/v1/jobs", CONTRACT_JOB)
    assert answer.status == 201
    assert answer.body["job_id"].startswith("job_")
    assert answer.body["status"] == "SCHEDULED"
    assert answer.body["next_run_at"] == "2026-04-08T02:00:00+05:30"
    assert answer.headers["Location"] == f"/api/v1/jobs/{answer.body['job_id']}"
    assert answer.headers["Content-Type"] == "application/json"


async def test_an_answer_repeats_the_whole_document_with_its_defaults(api: Client):
    body = (await api.post("/api/v1/jobs", CONTRACT_JOB)).body
    for field in ("name", "type", "action", "priority", "tenant_id"):
        assert body[field] == CONTRACT_JOB[field]
    assert body["retry_policy"].items() >= CONTRACT_JOB["retry_policy"].items()
    assert body["queue"] == "default"
    assert body["version"] == 1


async def test_a_job_for_an_instant_runs_at_that_instant(api: Client):
    at = "2031-01-02T03:04:05+01:00"
    job = await api.created(one_time(schedule={"at": at, "timezone": "Europe/Berlin"}))
    assert job["next_run_at"] == at
    assert job["schedule"] == {"at": "2031-01-02T02:04:05Z", "timezone": "Europe/Berlin"}


async def test_a_job_with_a_delay_runs_that_long_from_now(api: Client):
    before = datetime.now(UTC)  # noqa: TID251
    job = await api.created(one_time(schedule={"delay_seconds": 86_400}))
    ahead = datetime.fromisoformat(job["next_run_at"]) - before
    assert timedelta(hours=23, minutes=59) < ahead < timedelta(hours=24, minutes=1)


async def test_an_interval_runs_first_after_one_interval(api: Client):
    job = await api.created(recurring(schedule={"every_seconds": 300}))
    first = datetime.fromisoformat(job["next_run_at"]) - datetime.fromisoformat(job["created_at"])
    assert timedelta(seconds=299) <= first <= timedelta(seconds=300)


async def test_a_job_that_was_created_is_there(api: Client):
    for document in (CONTRACT_JOB, one_time(), recurring(schedule={"every_seconds": 60})):
        job = await api.created(document)
        found = (await api.get(job["path"])).body
        assert found["job_id"] == job["job_id"]
        assert found["schedule"] == job["schedule"]


WRONG: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "an unknown zone": (
        recurring(schedule={"cron": "0 2 * * *", "timezone": "Asia/Kolkatta"}),
        {"schedule.timezone": "unknown_zone"},
    ),
    "an impossible cron": (
        recurring(schedule={"cron": "0 0 30 2 *"}),
        {"schedule.cron": "invalid_cron"},
    ),
    "an at that is no date": (
        one_time(schedule={"at": "tomorrow"}),
        {"schedule.at": "bad_format"},
    ),
    "an at without an offset": (
        one_time(schedule={"at": "2031-01-02T03:04:05"}),
        {"schedule.at": "bad_format"},
    ),
    "negative retries": (
        recurring(retry_policy={"max_retries": -1}),
        {"retry_policy.max_retries": "out_of_range"},
    ),
    "unknown fields": (
        recurring(colour="red", schedule={"cron": "0 2 * * *", "tz": "UTC"}),
        {"colour": "unknown_field", "schedule.tz": "unknown_field"},
    ),
    "everything missing": (
        {},
        {"name": "required", "type": "required", "schedule": "required", "action": "required"},
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_bad_input_is_refused_with_the_path_of_what_is_wrong(api: Client, what: str):
    document, expected = WRONG[what]
    answer = await api.post("/api/v1/jobs", document)
    assert answer.is_problem(422, "invalid_input")
    assert {error["path"]: error["code"] for error in answer.body["errors"]} == expected
    assert (await api.get("/api/v1/jobs")).body["items"] == []


async def test_all_wrong_fields_of_a_document_are_named_at_once(api: Client):
    answer = await api.post(
        "/api/v1/jobs",
        {
            "name": "",
            "type": "RECURRING",
            "schedule": {"cron": "61 * * * *", "timezone": "Mars/Base", "max_runs": 0},
            "action": {"type": "WEBHOOK", "url": "ftp://example.com", "headers": {"Host": "x"}},
            "retry_policy": {"max_retries": -1, "backoff": "SOMETIMES"},
            "priority": "URGENT",
            "tenant_id": "no spaces",
            "timeout_seconds": "5",
            "extra": None,
        },
    )
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {
        "name",
        "schedule.cron",
        "schedule.timezone",
        "schedule.max_runs",
        "action.url",
        "action.headers.Host",
        "retry_policy.max_retries",
        "retry_policy.backoff",
        "priority",
        "tenant_id",
        "timeout_seconds",
        "extra",
    }


async def test_a_document_that_is_no_object_is_refused(api: Client):
    for document in ([], "text", 7, None, True, [{"name": "x"}]):
        answer = await api.post("/api/v1/jobs", body=json.dumps(document).encode())
        assert answer.is_problem(422, "invalid_input")
        assert answer.paths == {""}


async def test_p7_every_invalid_rule_is_refused_and_none_becomes_a_job(api: Client):
    accepted = []
    for vector in VECTORS["invalid"]:
        answer = await api.post("/api/v1/jobs", recurring(schedule={"cron": vector["expr"]}))
        if not (answer.is_problem(422, "invalid_input") and answer.paths == {"schedule.cron"}):
            accepted.append((vector["expr"], answer.body))
    assert accepted == []
    assert (await api.get("/api/v1/jobs")).body["items"] == []


async def test_p7_unknown_zones_are_refused(api: Client):
    for zone in ("", "Nowhere", "Europe/Berlin ", "../../etc/passwd", "EST5EDT4", "\0", "/", "é"):
        schedule = {"cron": "0 2 * * *", "timezone": zone}
        answer = await api.post("/api/v1/jobs", recurring(schedule=schedule))
        assert answer.is_problem(422, "invalid_input")
        assert answer.paths == {"schedule.timezone"}


async def test_a_rule_that_can_be_read_and_never_matches_its_window_is_refused(api: Client):
    schedule = {
        "cron": "0 0 29 2 *",
        "starts_at": "2029-01-01T00:00:00Z",
        "ends_at": "2031-01-01T00:00:00Z",
    }
    answer = await api.post("/api/v1/jobs", recurring(schedule=schedule))
    assert answer.is_problem(422, "invalid_input")
    assert [error["code"] for error in answer.body["errors"]] == ["never_runs"]


async def test_the_last_instants_of_the_calendar_do_no_harm(api: Client):
    far = {"at": "9999-12-30T23:59:59Z"}
    for document in (
        one_time(schedule=far, deadline_seconds=31_000_000),
        one_time(schedule=far, start_deadline_seconds=2_592_000),
        recurring(schedule={"cron": "0 0 30 12 *", "starts_at": "9999-12-01T00:00:00Z"}),
        recurring(schedule={"every_seconds": 1, "ends_at": "9999-12-30T23:59:59Z"}),
    ):
        answer = await api.post("/api/v1/jobs", document)
        assert answer.status in (201, 422), answer.body


async def test_a_job_says_whom_to_tell(api: Client):
    notifications = [
        {"on": ["failure", "dead_letter"], "url": "https://a.example/", "headers": {"X-A": "1"}},
        {"on": ["success"], "url": "https://b.example/{{secret:path}}"},
    ]
    await api.put("/api/v1/secrets/path", {"value": "a path of its own"})
    job = await api.created(recurring(notifications=notifications))
    notifications[1]["headers"] = {}
    assert job["notifications"] == notifications
    assert (await api.get(job["path"])).body["notifications"] == notifications
    patched = await api.patch(job["path"], {"notifications": notifications[:1]})
    assert patched.body["notifications"] == notifications[:1]
    patched = await api.patch(job["path"], {"notifications": None})
    assert patched.body["notifications"] == []


async def test_whom_to_tell_is_checked_like_any_webhook(api: Client):
    wrong = [
        {"on": ["success", "success"], "url": "https://a.example/"},
        {"on": [], "url": "ftp://a.example/"},
        {"on": ["missed"], "url": "https://a.example/", "headers": {"Host": "x"}},
        {"url": "https://a.example/", "method": "GET"},
        7,
    ]
    answer = await api.post("/api/v1/jobs", one_time(notifications=wrong))
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {
        "notifications[0].on[1]",
        "notifications[1].on",
        "notifications[1].url",
        "notifications[2].on[0]",
        "notifications[2].headers.Host",
        "notifications[3].on",
        "notifications[3].method",
        "notifications[4]",
    }
    many = [{"on": ["success"], "url": "https://a.example/"}] * 6
    answer = await api.post("/api/v1/jobs", one_time(notifications=many))
    assert answer.paths == {"notifications"}
