"""GET /api/v1/executions/{execution_id}/explain"""

from hourbell.dispatch import SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import Client, recurring


async def test_each_step_of_its_life_has_its_own_reason_to_wait(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(recurring())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    path = f"/api/v1/executions/{execution_id}/explain"

    async def code() -> str:
        answer = (await api.get(path)).body
        assert answer["execution_id"] == execution_id
        return str(answer["code"])

    assert await code() == "admission"
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    assert await code() == "worker_slot"
    (claimed,) = await dispatch.claim(session, 1, 10)
    assert await code() == "running"
    assert (await api.get(path)).body["until"]
    await dispatch.settle(session, [Settlement(claimed.execution_id, claimed.fence, SUCCEEDED)])
    assert await code() == "ended"


async def test_an_execution_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/executions/exe_0ahr000000000/explain")
    assert answer.is_problem(404, "not_found")
