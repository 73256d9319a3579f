"""GET /api/v1/jobs/{job_id}"""

from integration.api.client import CONTRACT_JOB, Client, one_time, recurring

UNKNOWN = "job_0ahr000000000"


async def test_a_job_is_read_as_it_was_created(api: Client):
    for document in (CONTRACT_JOB, one_time()):
        job = await api.created(document)
        path = job.pop("path")
        job.pop("created_tenant", None)  # is said once
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


async def test_the_latest_executions_are_shown_on_request(api: Client):
    job = await api.created(recurring())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    assert "last_outcomes" not in (await api.get(job["path"])).body
    shown = (await api.get(job["path"] + "?last_outcomes=20")).body["last_outcomes"]
    assert [(each["execution_id"], each["status"]) for each in shown] == [(execution_id, "QUEUED")]
    (listed,) = (await api.get("/api/v1/jobs?last_outcomes=1")).body["items"]
    assert listed["last_outcomes"] == shown
    answer = await api.get(job["path"] + "?last_outcomes=21")
    assert answer.is_problem(422, "invalid_input")


async def test_a_paused_job_shows_its_pause_in_every_answer(api: Client):
    job = await api.created(recurring())
    assert job["paused"] is None
    pause = {"reason": "partner down", "until": "2031-01-01T00:00:00Z"}
    paused = (await api.post(job["path"] + "/pause", pause)).body["paused"]
    assert paused["by"] == "anonymous"
    assert {key: paused[key] for key in pause} == pause
    for answer in (await api.get(job["path"]), await api.patch(job["path"], {"priority": "LOW"})):
        assert answer.body["paused"] == paused
    assert (await api.post(job["path"] + "/resume")).body["paused"] is None
