"""POST /api/v1/executions/{execution_id}/retry"""

import pytest

from hourbell.dispatch import RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand, dead

EXECUTIONS = "/api/v1/executions"


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def test_what_waits_for_its_next_attempt_is_tried_now(api: Client, hand: Hand):
    job = await api.created(recurring())
    (number,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    (claimed,) = await hand.claim()
    await hand.settle(claimed, RETRY, "timeout")
    assert await hand.claim() == []
    answer = await api.post(f"{EXECUTIONS}/{number}/retry")
    assert (answer.status, answer.body["status"]) == (202, "QUEUED")
    (again,) = await hand.claim()
    assert again.attempt == 2
    assert again.fence > claimed.fence


async def test_what_is_dead_is_replayed(api: Client, hand: Hand):
    job = await dead(api, hand, one_time())
    answer = await api.post(f"{EXECUTIONS}/{job['execution_id']}/retry")
    assert (answer.status, answer.body["status"]) == (202, "QUEUED")
    (again,) = await hand.claim()
    await hand.settle(again, SUCCEEDED)
    ended = (await api.get(f"{EXECUTIONS}/{job['execution_id']}")).body
    assert (ended["status"], ended["attempt"], len(ended["attempts"])) == ("SUCCEEDED", 2, 2)


async def test_everything_else_is_left_as_it_is(api: Client, hand: Hand):
    job = await api.created(one_time())
    path = f"{EXECUTIONS}/{job['job_id'].replace('job_', 'exe_')}"
    assert (await api.post(path + "/retry")).is_problem(409, "conflict")
    await api.post(job["path"] + "/run")
    (claimed,) = await hand.claim()
    assert (await api.post(path + "/retry")).is_problem(409, "conflict")
    await hand.settle(claimed, SUCCEEDED)
    assert (await api.post(path + "/retry")).is_problem(409, "conflict")


async def test_a_paused_job_waits_for_its_resumption(api: Client, hand: Hand):
    job = await api.created(one_time())
    await api.post(job["path"] + "/run")
    (claimed,) = await hand.claim()
    await hand.settle(claimed, RETRY, "timeout")
    await api.post(job["path"] + "/pause")
    path = f"{EXECUTIONS}/{job['job_id'].replace('job_', 'exe_')}"
    assert (await api.post(path + "/retry")).is_problem(409, "conflict")


async def test_an_execution_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post(f"{EXECUTIONS}/exe_0ahr000000000/retry")
    assert answer.is_problem(404, "not_found")
