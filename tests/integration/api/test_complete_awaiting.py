"""POST /api/v1/executions/{execution_id}/complete"""

import asyncio
import hashlib

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.outcomes import settlement
from hourbell.model.executions import Accepted
from integration.api.client import Client, one_time

TOKEN = "a-token-that-nobody-else-has"


@pytest.fixture
async def path(api: Client, dispatch: PostgresDispatch) -> str:
    """An execution that waits for its target."""
    await api.created(one_time(schedule={"delay_seconds": 0}))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    accepted = Accepted(hashlib.sha256(TOKEN.encode()).digest(), 60.0)
    assert not await dispatch.settle(session, [settlement(claimed, None, accepted, 0, 0, None)])
    page = await api.get("/api/v1/jobs")
    return "/api/v1/executions/" + page.body["items"][0]["job_id"].replace("job_", "exe_")


async def test_it_is_shown_as_awaiting_and_explained(api: Client, path: str):
    assert (await api.get(path)).body["status"] == "AWAITING"
    explained = (await api.get(path + "/explain")).body
    assert explained["code"] == "awaiting_completion"
    assert explained["until"] is not None


async def test_a_success_with_its_result_is_recorded_without_any_key(api: Client, path: str):
    said = {"token": TOKEN, "status": "SUCCEEDED", "result": {"rows": 3}}
    answer = await api.post(path + "/complete", said, key=None)
    assert answer.status == 200
    assert answer.body == {"execution_id": path.rpartition("/")[2], "status": "SUCCEEDED"}
    seen = (await api.get(path)).body
    assert (seen["status"], seen["result"]) == ("SUCCEEDED", {"rows": 3})
    again = await api.post(path + "/complete", said, key=None)
    assert (again.status, again.body) == (200, answer.body)


async def test_a_failure_is_tried_again(api: Client, path: str):
    said = {"token": TOKEN, "status": "FAILED", "error": "no disk"}
    assert (await api.post(path + "/complete", said, key=None)).status == 200
    seen = (await api.get(path)).body
    assert (seen["status"], seen["error"]) == ("RETRYING", "no disk")
    other = {"token": TOKEN, "status": "SUCCEEDED"}
    assert (await api.post(path + "/complete", other, key=None)).is_problem(409, "conflict")


async def test_a_wrong_token_is_answered_as_if_there_were_nothing(api: Client, path: str):
    said = {"token": "guessed", "status": "SUCCEEDED"}
    wrong = await api.post(path + "/complete", said, key=None)
    assert wrong.is_problem(404, "not_found")
    nobody = "/api/v1/executions/exe_0000000000001"
    missing = await api.post(nobody + "/complete", said, key=None)
    mine, theirs = path.rpartition("/")[2], nobody.rpartition("/")[2]
    assert str(wrong.body).replace(mine, theirs) == str(missing.body)
    assert (await api.get(path)).body["status"] == "AWAITING"


async def test_a_target_that_is_quicker_than_the_worker_is_waited_for(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(one_time(schedule={"delay_seconds": 0}))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    path = "/api/v1/executions/" + job["job_id"].replace("job_", "exe_")
    said = {"token": TOKEN, "status": "SUCCEEDED"}
    early = asyncio.create_task(api.post(path + "/complete", said, key=None))
    await asyncio.sleep(0.3)  # it has come before the worker has said anything
    assert not early.done()
    accepted = Accepted(hashlib.sha256(TOKEN.encode()).digest(), 60.0)
    assert not await dispatch.settle(session, [settlement(claimed, None, accepted, 0, 0, None)])
    assert (await early).status == 200
    assert (await api.get(path)).body["status"] == "SUCCEEDED"


async def test_cancelling_ends_it_at_once(api: Client, path: str):
    answer = await api.post(path + "/cancel")
    assert (answer.status, answer.body["status"]) == (200, "CANCELLED")
    said = {"token": TOKEN, "status": "SUCCEEDED"}
    assert (await api.post(path + "/complete", said, key=None)).is_problem(409, "conflict")


@pytest.mark.parametrize(
    ("wrong", "paths"),
    [
        ({}, {"token", "status"}),
        ({"token": TOKEN, "status": "DEAD"}, {"status"}),
        ({"token": 7, "status": "FAILED"}, {"token"}),
        ({"token": "a b", "status": "FAILED"}, {"token"}),
        ({"token": "x" * 129, "status": "FAILED"}, {"token"}),
        ({"token": "\u0000", "status": "FAILED"}, {"token"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "error": "x"}, {"error"}),
        ({"token": TOKEN, "status": "FAILED", "result": 1}, {"result"}),
        ({"token": TOKEN, "status": "FAILED", "error": "x" * 4001}, {"error"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "result": "x" * 17_000}, {"result"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "fence": 1}, {"fence"}),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    api: Client, path: str, wrong: dict[str, object], paths: set[str]
):
    answer = await api.post(path + "/complete", wrong, key=None)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths
    assert (await api.get(path)).body["status"] == "AWAITING"
