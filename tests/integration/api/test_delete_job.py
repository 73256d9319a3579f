"""DELETE /api/v1/jobs/{job_id}"""

from integration.api.client import Client, one_time, recurring


async def test_a_deleted_job_is_cancelled_and_stays_readable(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        deleted = await api.delete(job["path"])
        assert deleted.status == 200
        assert deleted.body["status"] == "CANCELLED"
        assert deleted.body["next_run_at"] is None
        assert (await api.get(job["path"])).body["status"] == "CANCELLED"


async def test_deleting_twice_is_as_deleting_once(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        first = await api.delete(job["path"])
        again = await api.delete(job["path"])
        assert again.status == 200
        assert again.body["status"] == first.body["status"]
        assert again.body["version"] == first.body["version"]


async def test_the_history_of_a_deleted_job_stays(api: Client):
    job = await api.created(one_time())
    await api.delete(job["path"])
    (execution,) = (await api.get(job["path"] + "/executions")).body["items"]
    assert (execution["status"], execution["reason"]) == ("CANCELLED", "cancelled")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.delete("/api/v1/jobs/job_0ahr000000000")
    assert answer.is_problem(404, "not_found")
