"""PATCH /api/v1/jobs/{job_id}"""

import asyncio
from typing import Any

import pytest

from integration.api.client import CONTRACT_JOB, Client, one_time, recurring


async def test_what_is_given_changes_and_the_rest_stays(api: Client):
    job = await api.created(CONTRACT_JOB)
    changed = (await api.patch(job["path"], {"priority": "LOW", "name": "other"})).body
    assert (changed["priority"], changed["name"]) == ("LOW", "other")
    assert changed["version"] == job["version"] + 1
    for field in ("schedule", "action", "retry_policy", "next_run_at", "created_at"):
        assert changed[field] == job[field]
    assert (await api.get(job["path"])).body == changed


async def test_a_new_schedule_gives_a_new_next_run(api: Client):
    job = await api.created(recurring())
    schedule = {"cron": "0 6 2 2 *", "timezone": "Europe/Berlin"}
    changed = (await api.patch(job["path"], {"schedule": schedule})).body
    assert "-02-02T06:00:00+01:00" in changed["next_run_at"]


async def test_a_one_time_job_can_be_moved(api: Client):
    job = await api.created(one_time())
    moved = (await api.patch(job["path"], {"schedule": {"at": "2031-01-01T00:00:00Z"}})).body
    assert moved["next_run_at"] == "2031-01-01T00:00:00Z"
    assert (await api.get(job["path"])).body == moved


async def test_null_sets_back_to_the_default(api: Client):
    job = await api.created(recurring(timeout_seconds=7))
    assert (await api.patch(job["path"], {"timeout_seconds": None})).body["timeout_seconds"] == 300


async def test_a_patch_may_come_as_a_merge_patch(api: Client):
    job = await api.created(recurring())
    headers = {"Content-Type": "application/merge-patch+json; charset=utf-8"}
    answer = await api.patch(job["path"], {"name": "other"}, headers=headers)
    assert answer.body["name"] == "other"


async def test_a_patch_without_a_change_is_no_new_version(api: Client):
    job = await api.created(recurring())
    assert (await api.patch(job["path"], {})).body["version"] == 1
    assert (await api.patch(job["path"], {"name": job["name"]})).body["version"] == 1


@pytest.mark.parametrize(
    ("patch", "paths"),
    [
        ({"tenant_id": "other"}, {"tenant_id"}),
        ({"type": "ONE_TIME"}, {"type"}),
        ({"job_id": "job_0ahr000000000", "colour": 1}, {"job_id", "colour"}),
        ({"schedule": {"cron": "0 0 31 4 *"}, "priority": 1}, {"schedule.cron", "priority"}),
        ({"action": None}, {"action"}),
        ({"name": "\0"}, {"name"}),
        ([], {""}),
    ],
)
async def test_a_bad_patch_is_refused_whole(api: Client, patch: Any, paths: set[str]):
    job = await api.created(recurring())
    answer = await api.patch(job["path"], patch)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths
    assert (await api.get(job["path"])).body["version"] == 1


async def test_an_ended_job_cannot_be_changed(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.delete(job["path"])
        assert (await api.patch(job["path"], {"name": "x"})).is_problem(409, "job_not_active")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.patch("/api/v1/jobs/job_0ahr000000000", {"name": "x"})
    assert answer.is_problem(404, "not_found")


async def test_patches_at_once_all_take_effect_one_after_the_other(api: Client):
    job = await api.created(recurring())
    patches = [{"name": "x"}, {"priority": "LOW"}, {"timeout_seconds": 7}]
    answers = await asyncio.gather(*(api.patch(job["path"], patch) for patch in patches))
    assert [answer.status for answer in answers] == [200] * 3
    now = (await api.get(job["path"])).body
    assert (now["name"], now["priority"], now["timeout_seconds"]) == ("x", "LOW", 7)
    assert now["version"] == 4
