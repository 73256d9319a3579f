"""GET /api/v1/jobs/{job_id}"""

from integration.api.client import CONTRACT_JOB, Client, one_time, recurring

UNKNOWN = "job_0ahr000000000"


async def test_a_job_is_read_as_it_was_created(api: Client):
    for document in (CONTRACT_JOB, one_time()):
        job = await api.created(document)
        path = job.pop("path")
        assert (await api.get(path)).body == job


async def test_a_one_time_job_is_read_before_and_after_its_end(api: Client):
    job = await api.created(one_time())
    assert (await api.get(job["path"])).body["status"] == "SCHEDULED"
    await api.delete(job["path"])
    ended = (await api.get(job["path"])).body
    assert ended["status"] == "CANCELLED"
    assert ended["next_run_at"] is None
    assert ended["action"] == job["action"]


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get(f"/api/v1/jobs/{UNKNOWN}")
    assert answer.is_problem(404, "not_found")
    assert answer.body["instance"] == f"/api/v1/jobs/{UNKNOWN}"


async def test_a_text_that_is_no_id_is_not_found(api: Client):
    for text in (
        "7",
        "job_",
        "exe_0ahr000000000",
        "JOB_0ahr000000000",
        "job_zzzzzzzzzzzzz",
        "job_0ahr00000000i",
        "%00",
        "%F0%9F%92%A9",
        "%FF",
        "job_'%20or%201=1",
        "x" * 5000,
        "..%2F..",
    ):
        answer = await api.get(f"/api/v1/jobs/{text}")
        assert answer.status == 404, text


async def test_a_parameter_that_means_nothing_is_refused(api: Client):
    job = await api.created(recurring())
    answer = await api.get(job["path"] + "?verbose=1")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"verbose"}
