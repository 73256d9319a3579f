"""GET /api/v1/jobs/{job_id}/explain"""

from integration.api.client import Client, one_time, recurring


async def test_a_job_waits_for_its_next_run(api: Client):
    job = await api.created(recurring())
    answer = (await api.get(job["path"] + "/explain")).body
    assert (answer["code"], answer["until"]) == ("not_due", job["next_run_at"])


async def test_a_one_time_job_waits_for_its_time(api: Client):
    job = await api.created(one_time())
    answer = (await api.get(job["path"] + "/explain")).body
    assert (answer["code"], answer["until"]) == ("not_due", job["next_run_at"])
    assert answer["execution_id"].removeprefix("exe_") == job["job_id"].removeprefix("job_")


async def test_a_paused_job_waits_to_be_resumed(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/pause")
    assert (await api.get(job["path"] + "/explain")).body["code"] == "paused"


async def test_an_ended_job_waits_for_nothing(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.delete(job["path"])
        assert (await api.get(job["path"] + "/explain")).body["code"] == "ended"


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/explain")
    assert answer.is_problem(404, "not_found")
