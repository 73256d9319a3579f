"""POST /api/v1/schedules/preview"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from integration.api.client import Answer, Client, recurring

PREVIEW = "/api/v1/schedules/preview"
BERLIN = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


async def preview(api: Client, schedule: Any, **rest: Any) -> Answer:
    return await api.send("POST", PREVIEW, {"schedule": schedule} | rest, key=None)


async def test_a_schedule_is_said_in_words_with_its_next_runs(api: Client):
    starts = {"starts_at": "2028-03-24T12:00:00Z"}
    body = (await preview(api, BERLIN | starts, count=3)).body
    assert body["words"] == "Every day at 02:30 in Europe/Berlin. From 2028-03-24T12:00:00Z."
    assert [each["scheduled_for"] for each in body["items"]] == [
        "2028-03-25T02:30:00+01:00",
        "2028-03-26T03:00:00+02:00",
        "2028-03-27T02:30:00+02:00",
    ]
    assert [each["utc"] for each in body["items"]][1] == "2028-03-26T01:00:00Z"
    assert [each["note"] is not None for each in body["items"]] == [False, True, False]


async def test_both_clock_changes_of_the_next_13_months_are_shown(api: Client):
    body = (await preview(api, BERLIN | {"starts_at": "2027-11-17T00:00:00Z"})).body
    forward, back = body["clock_changes"]
    assert (forward["at"], forward["kind"], forward["shift_seconds"]) == (
        "2028-03-26T01:00:00Z",
        "forward",
        3600,
    )
    assert (
        forward["note"] == "02:30 does not exist on 2028-03-26 (clocks go forward): runs at 03:00"
    )
    assert [run["scheduled_for"] for run in forward["runs"]] == ["2028-03-26T03:00:00+02:00"]
    assert (back["at"], back["kind"]) == ("2028-10-29T01:00:00Z", "back")
    assert back["note"] == "02:30 happens twice on 2028-10-29 (clocks go back): runs at the first"
    assert [run["utc"] for run in back["runs"]] == ["2028-10-29T00:30:00Z"]
    assert forward["affected"]
    assert back["affected"]


async def test_the_policies_for_clock_changes_decide(api: Client):
    other = {"dst_gap": "skip", "dst_overlap": "twice", "starts_at": "2027-11-17T00:00:00Z"}
    forward, back = (await preview(api, BERLIN | other)).body["clock_changes"]
    assert forward["note"].endswith(": that run is skipped")
    assert forward["runs"] == []
    assert back["note"].endswith(": runs at both")
    assert [run["utc"] for run in back["runs"]] == ["2028-10-29T00:30:00Z", "2028-10-29T01:30:00Z"]


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 9 * * *", "timezone": "Europe/Berlin"},
        {"cron": "*/15 * * * *", "timezone": "Europe/Berlin"},
        {"every_seconds": 3600, "timezone": "Europe/Berlin"},
    ],
)
async def test_a_schedule_that_no_change_touches_says_so(api: Client, schedule: Any):
    changes = (await preview(api, schedule)).body["clock_changes"]
    assert len(changes) >= 2
    assert not any(change["affected"] for change in changes)
    assert all(change["note"].startswith("Not affected: ") for change in changes)
    assert all(len(change["runs"]) <= 8 for change in changes)


async def test_changes_are_left_out_on_request_and_utc_has_none(api: Client):
    assert (await preview(api, BERLIN, clock_changes=False)).body["clock_changes"] == []
    assert (await preview(api, {"cron": "30 2 * * *"})).body["clock_changes"] == []


async def test_a_schedule_of_any_kind_is_taken(api: Client):
    every = (await preview(api, {"every_seconds": 300}, count=2)).body
    assert every["words"] == "Every 5 minutes."
    first, second = (datetime.fromisoformat(each["utc"]) for each in every["items"])
    assert second - first == timedelta(minutes=5)
    once = (await preview(api, {"at": "2031-03-14T09:00:00", "timezone": "America/New_York"})).body
    assert once["words"] == "Once, on 2031-03-14 at 09:00 in America/New_York."
    assert [each["utc"] for each in once["items"]] == ["2031-03-14T13:00:00Z"]
    assert (await preview(api, {"delay_seconds": 60})).body["words"].startswith("Once, on ")


async def test_what_limits_a_schedule_is_said_and_honoured(api: Client):
    holidays = {"dates": ["2031-01-02"]}
    assert (await api.put("/api/v1/calendars/holidays", holidays)).status == 200
    window = {"starts_at": "2031-01-01T00:00:00Z", "max_runs": 3, "jitter_seconds": 1}
    schedule = {"cron": "0 5 * * *", "exclude": ["holidays"]} | window
    body = (await preview(api, schedule)).body
    assert body["words"] == (
        "Every day at 05:00 in UTC. Every run is delayed by the same time of up to 1 second. "
        "Not on dates in holidays. From 2031-01-01T00:00:00Z. At most 3 runs."
    )
    assert [each["scheduled_for"][:10] for each in body["items"]] == [
        "2031-01-01",
        "2031-01-02",
        "2031-01-03",
    ]
    assert "holidays" in body["items"][1]["note"]
    other = await preview(api, schedule, tenant_id="globex")
    assert other.is_problem(422, "invalid_input")
    assert other.paths == {"schedule.exclude"}


async def test_h_is_an_example_until_there_is_a_job(api: Client):
    schedule = {"cron": "H H * * *"}
    example = (await preview(api, schedule)).body
    assert [hint["code"] for hint in example["hints"]] == ["hash_example"]
    job = await api.created(recurring(schedule=schedule))
    of_job = (await preview(api, schedule, job_id=job["job_id"])).body
    assert of_job["hints"] == []
    assert of_job["items"][0]["scheduled_for"] == job["next_run_at"]
    assert of_job["words"] == job["schedule_words"]


async def test_hints_name_a_full_hour_and_seconds_that_are_probably_last(api: Client):
    crowded = (await preview(api, {"cron": "0 2 * * *"})).body["hints"]
    assert [(hint["path"], hint["code"]) for hint in crowded] == [("schedule.cron", "full_hour")]
    assert (await preview(api, {"cron": "17 2 * * *"})).body["hints"] == []
    assert (await preview(api, {"cron": "0 2 * * *", "jitter_seconds": 60})).body["hints"][0][
        "code"
    ] == "hash_example"
    doubtful = (await preview(api, {"cron": "* * * * * 5"})).body["hints"]
    assert [hint["code"] for hint in doubtful] == ["seconds_first"]


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ({}, {"schedule"}),
        ({"schedule": {"cron": "61 * * * *"}}, {"schedule.cron"}),
        ({"schedule": {"cron": "0 0 * * *", "timezone": "Berlin"}}, {"schedule.timezone"}),
        ({"schedule": {}}, {"schedule.cron"}),
        ({"schedule": {"cron": "0 0 * * *"}, "count": 101}, {"count"}),
        ({"schedule": {"cron": "0 0 * * *", "at": "2031-01-01T00:00:00Z"}}, {"schedule.cron"}),
        ({"schedule": {"cron": "0 0 * * *"}, "colour": 1}, {"colour"}),
    ],
)
async def test_what_is_wrong_is_named(api: Client, document: Any, paths: set[str]):
    answer = await api.send("POST", PREVIEW, document, key=None)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths


async def test_a_job_says_its_schedule_in_words(api: Client):
    job = await api.created(recurring(schedule=BERLIN))
    assert job["schedule_words"] == "Every day at 02:30 in Europe/Berlin."
    listed = (await api.get("/api/v1/jobs")).body["items"]
    assert [each["schedule_words"] for each in listed] == [job["schedule_words"]]
