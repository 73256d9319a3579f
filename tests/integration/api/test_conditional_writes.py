"""ETag and If-Match."""

from typing import Any

import pytest

from integration.api.client import Client, one_time, recurring


async def change(api: Client, job: Any, what: str, if_match: str, key: str | None = None) -> Any:
    headers = {"If-Match": if_match}
    rest: dict[str, Any] = {"headers": headers} | ({} if key is None else {"key": key})
    if what == "update":
        return await api.patch(job["path"], {"name": "other"}, **rest)
    if what == "delete":
        return await api.delete(job["path"], **rest)
    return await api.post(f"{job['path']}/{what}", **rest)


CHANGES = ["update", "delete", "pause", "resume"]


async def test_every_answer_that_is_a_job_carries_its_version(api: Client):
    made = await api.post("/api/v1/jobs", recurring())
    path = made.headers["Location"]
    assert made.headers["ETag"] == '"1"'
    assert (await api.get(path)).headers["ETag"] == '"1"'
    assert (await api.patch(path, {"name": "b"})).headers["ETag"] == '"2"'
    assert (await api.post(path + "/pause")).headers["ETag"] == '"3"'
    assert (await api.post(path + "/resume")).headers["ETag"] == '"4"'
    assert (await api.delete(path)).headers["ETag"] == '"5"'


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("document", [one_time, recurring])
async def test_a_change_of_another_version_is_refused_and_changes_nothing(
    api: Client, what: str, document: Any
):
    job = await api.created(document())
    for stale in ('"2"', 'W/"1"', '"x"', '""', '"2", "3"', '"11"'):
        answer = await change(api, job, what, stale)
        assert answer.is_problem(412, "precondition_failed"), stale
    assert (await api.get(job["path"])).body["version"] == 1
    assert (await change(api, job, what, '"7", "1"')).status == 200


async def test_a_wrong_body_is_refused_as_such_whatever_the_version(api: Client):
    job = await api.created(recurring())
    stale = {"headers": {"If-Match": '"2"'}}
    patched = await api.patch(job["path"], {"priority": "SOON"}, **stale)
    assert patched.is_problem(422, "invalid_input")
    paused = await api.post(job["path"] + "/pause", {"until": "tomorrow"}, **stale)
    assert paused.is_problem(422, "invalid_input")


@pytest.mark.parametrize("what", ["pause", "run"])
async def test_null_is_a_body_and_no_object(api: Client, what: str):
    job = await api.created(recurring())
    answer = await api.send("POST", f"{job['path']}/{what}", body=b"null")
    assert answer.is_problem(422, "invalid_input")
    assert (await api.post(f"{job['path']}/{what}")).status in (200, 202)


async def test_any_version_matches_a_star(api: Client):
    job = await api.created(recurring())
    assert (await change(api, job, "pause", "*")).status == 200


async def test_what_is_no_list_of_versions_is_refused(api: Client):
    job = await api.created(recurring())
    for text in ("1", '"1', "*, *", '"a" "b"', "'1'", '"1"' + "x" * 5000):
        answer = await change(api, job, "pause", text)
        assert answer.is_problem(422, "invalid_input"), text
        assert answer.paths == {"If-Match"}


async def test_a_repeat_gets_its_first_answer_whatever_the_version_is_now(api: Client):
    job = await api.created(recurring())
    first = await change(api, job, "pause", '"1"', key="once")
    again = await change(api, job, "pause", '"1"', key="once")
    assert first.body == again.body
    other = await change(api, job, "pause", '"2"', key="once")
    assert other.is_problem(422, "idempotency_key_reused")
