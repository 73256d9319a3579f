"""GET /api/v1/executions/{execution_id}"""

import pytest

from hourbell.dispatch import RETRY, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from integration.api.client import Client, recurring


async def test_an_execution_is_read_with_every_attempt(api: Client, dispatch: PostgresDispatch):
    job = await api.created(recurring())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    session = await dispatch.open("worker", ["default"], 10)
    for number in (1, 2):
        await dispatch.admit()
        (claimed,) = await dispatch.claim(session, number, 10)
        if number == 1:
            failure = Settlement(
                claimed.execution_id, claimed.fence, RETRY, 1, 5, 0.0, "boom", "Boom."
            )
            await dispatch.settle(session, [failure])
    execution = (await api.get(f"/api/v1/executions/{execution_id}")).body
    assert (execution["status"], execution["attempt"]) == ("RUNNING", 2)
    first, second = execution["attempts"]
    assert (first["attempt"], first["status"], first["error"]) == (1, "FAILED", "Boom.")
    assert first["kind"] == "boom"
    assert (second["attempt"], second["status"]) == (2, "RUNNING")
    assert second["finished_at"] is None


async def test_an_execution_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/executions/exe_0ahr000000000")
    assert answer.is_problem(404, "not_found")


@pytest.mark.parametrize("text", ["7", "job_0ahr000000000", "exe_zzzzzzzzzzzzz", "%00"])
async def test_a_text_that_is_no_id_is_not_found(api: Client, text: str):
    answer = await api.get(f"/api/v1/executions/{text}")
    assert answer.is_problem(404, "unknown_id")
