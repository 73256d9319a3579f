"""POST /api/v1/jobs/{job_id}/backfill"""

from typing import Any

import pytest

from integration.api.client import Client, one_time, recurring

STRETCH = {"after": "2020-01-01T03:00:00Z", "through": "2024-01-01T03:00:00Z"}


async def test_every_past_occurrence_of_the_stretch_gets_an_execution(api: Client):
    job = await api.created(recurring())
    answer = await api.post(job["path"] + "/backfill", STRETCH)
    assert answer.status == 202
    items = (await api.get(job["path"] + "/executions")).body["items"]
    assert [execution["execution_id"] for execution in items[::-1]] == answer.body["execution_ids"]
    expected = [f"{year}-01-01T03:00:00Z" for year in (2024, 2023, 2022, 2021)]
    assert [execution["scheduled_for"] for execution in items] == expected


async def test_what_lives_already_is_not_made_again(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/backfill", STRETCH)
    again = await api.post(job["path"] + "/backfill", STRETCH)
    assert again.body == {"execution_ids": []}


@pytest.mark.parametrize(
    ("stretch", "paths"),
    [
        ({}, {"after", "through"}),
        ({"after": "x", "through": 7, "step": 1}, {"after", "through", "step"}),
        ({**STRETCH, "through": "2999-01-01T00:00:00Z"}, {"through"}),
        ({**STRETCH, "through": STRETCH["after"]}, {"after"}),
        ([], {""}),
    ],
)
async def test_a_bad_stretch_is_refused(api: Client, stretch: Any, paths: set[str]):
    job = await api.created(recurring())
    answer = await api.post(job["path"] + "/backfill", stretch)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths


async def test_a_stretch_has_a_largest_size(api: Client):
    job = await api.created(recurring(schedule={"cron": "* * * * *"}))
    answer = await api.post(job["path"] + "/backfill", STRETCH)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"through"}


async def test_a_one_time_job_has_nothing_to_make_up(api: Client):
    job = await api.created(one_time())
    assert (await api.post(job["path"] + "/backfill", STRETCH)).is_problem(409, "conflict")


async def test_an_ended_job_makes_nothing_up(api: Client):
    job = await api.created(recurring())
    await api.delete(job["path"])
    assert (await api.post(job["path"] + "/backfill", STRETCH)).is_problem(409, "job_not_active")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/jobs/job_0ahr000000000/backfill", STRETCH)
    assert answer.is_problem(404, "not_found")
