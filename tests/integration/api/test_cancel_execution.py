"""POST /api/v1/executions/{execution_id}/cancel"""

from hourbell.dispatch import SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import Client, one_time, recurring


async def test_an_execution_that_waits_ends_at_once(api: Client):
    job = await api.created(recurring())
    path = await run(api, job)
    answer = await api.post(path + "/cancel")
    assert answer.status == 200
    assert (answer.body["status"], answer.body["reason"]) == ("CANCELLED", "cancelled")
    assert (await api.get(path)).body["status"] == "CANCELLED"


async def test_cancelling_a_one_time_execution_cancels_its_job(api: Client):
    job = await api.created(one_time())
    execution = job["job_id"].replace("job_", "exe_")
    await api.post(f"/api/v1/executions/{execution}/cancel")
    assert (await api.get(job["path"])).body["status"] == "CANCELLED"


async def test_an_execution_that_runs_is_asked_to_stop(api: Client, dispatch: PostgresDispatch):
    job = await api.created(recurring())
    path = await run(api, job)
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    answer = await api.post(path + "/cancel")
    assert answer.status == 202
    assert answer.body["status"] == "RUNNING"
    heard = await dispatch.heartbeat(session, [claimed.execution_id], 1)
    assert list(heard.cancelled) == [claimed.execution_id]
    assert (await api.get(path + "/explain")).body["code"] == "cancelling"


async def test_cancelling_twice_is_as_cancelling_once(api: Client):
    path = await run(api, await api.created(recurring()))
    first = await api.post(path + "/cancel")
    again = await api.post(path + "/cancel")
    assert again.body == first.body


async def test_an_execution_that_has_ended_cannot_be_cancelled(
    api: Client, dispatch: PostgresDispatch
):
    path = await run(api, await api.created(recurring()))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    await dispatch.settle(session, [Settlement(claimed.execution_id, claimed.fence, SUCCEEDED)])
    assert (await api.post(path + "/cancel")).is_problem(409, "conflict")


async def test_an_execution_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/executions/exe_0ahr000000000/cancel")
    assert answer.is_problem(404, "not_found")


async def run(api: Client, job: dict[str, str]) -> str:
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    return f"/api/v1/executions/{execution_id}"
