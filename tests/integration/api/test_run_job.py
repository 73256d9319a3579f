"""POST /api/v1/jobs/{job_id}/run"""

from integration.api.client import Client, one_time, recurring


async def test_a_run_now_is_an_execution_beside_the_schedule(api: Client):
    job = await api.created(recurring())
    answer = await api.post(job["path"] + "/run")
    assert answer.status == 202
    (execution_id,) = answer.body["execution_ids"]
    execution = (await api.get(f"/api/v1/executions/{execution_id}")).body
    assert (execution["job_id"], execution["status"]) == (job["job_id"], "SCHEDULED")
    assert (await api.get(job["path"])).body["next_run_at"] == job["next_run_at"]


async def test_each_run_now_is_an_execution_of_its_own(api: Client):
    job = await api.created(recurring())
    ids = {(await api.post(job["path"] + "/run")).body["execution_ids"][0] for _ in range(3)}
    assert len(ids) == 3


async def test_a_one_time_job_runs_earlier(api: Client):
    job = await api.created(one_time())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    assert execution_id.removeprefix("exe_") == job["job_id"].removeprefix("job_")
    waits_for = (await api.get(f"/api/v1/executions/{execution_id}/explain")).body
    assert waits_for["code"] == "admission"


async def test_a_paused_job_can_be_run(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/pause")
    assert (await api.post(job["path"] + "/run")).status == 202


async def test_an_ended_job_cannot_be_run(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.delete(job["path"])
        assert (await api.post(job["path"] + "/run")).is_problem(409, "job_not_active")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/jobs/job_0ahr000000000/run")
    assert answer.is_problem(404, "not_found")
