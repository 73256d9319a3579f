"""POST /api/v1/jobs/{job_id}/pause"""

from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from integration.api.client import Client, one_time, recurring

PLANNED = "select count(*) from hourbell.live"


async def test_a_paused_job_has_no_next_run(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        paused = await api.post(job["path"] + "/pause")
        assert paused.status == 200
        assert (paused.body["status"], paused.body["next_run_at"]) == ("PAUSED", None)
        assert (await api.get(job["path"])).body["status"] == "PAUSED"


async def test_pausing_takes_back_what_was_planned_ahead(api: Client, engine: Engine):
    job = await api.created(recurring(schedule={"every_seconds": 10}))
    await plan(engine, None, await engine.clock.now())
    assert await engine.database.value(PLANNED) > 0
    await api.post(job["path"] + "/pause")
    assert await engine.database.value(PLANNED) == 0


async def test_pausing_twice_is_as_pausing_once(api: Client):
    job = await api.created(recurring())
    first = await api.post(job["path"] + "/pause")
    again = await api.post(job["path"] + "/pause")
    assert again.body == first.body


async def test_an_ended_job_cannot_be_paused(api: Client):
    job = await api.created(recurring())
    await api.delete(job["path"])
    assert (await api.post(job["path"] + "/pause")).is_problem(409, "job_not_active")


async def test_a_body_that_means_nothing_is_refused(api: Client):
    job = await api.created(recurring())
    answer = await api.post(job["path"] + "/pause", {"until": "tomorrow"})
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"until"}
    assert (await api.post(job["path"] + "/pause", {})).status == 200


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/jobs/job_0ahr000000000/pause")
    assert answer.is_problem(404, "not_found")
