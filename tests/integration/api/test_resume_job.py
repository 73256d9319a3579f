"""POST /api/v1/jobs/{job_id}/resume"""

from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from integration.api.client import Client, one_time, recurring
from integration.api.test_pause_job import PLANNED


async def test_a_resumed_job_has_its_next_run_again(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.post(job["path"] + "/pause")
        resumed = await api.post(job["path"] + "/resume")
        assert resumed.status == 200
        assert resumed.body["status"] == "SCHEDULED"
        assert resumed.body["next_run_at"] == job["next_run_at"]


async def test_resuming_plans_again_what_lies_within_the_horizon(api: Client, engine: Engine):
    job = await api.created(recurring(schedule={"every_seconds": 10}))
    await plan(engine, None, await engine.clock.now())
    await api.post(job["path"] + "/pause")
    await api.post(job["path"] + "/resume")
    assert await engine.database.value(PLANNED) > 0


async def test_resuming_what_is_not_paused_changes_nothing(api: Client):
    job = await api.created(recurring())
    assert (await api.post(job["path"] + "/resume")).body["version"] == 1


async def test_an_ended_job_cannot_be_resumed(api: Client):
    job = await api.created(one_time())
    await api.delete(job["path"])
    assert (await api.post(job["path"] + "/resume")).is_problem(409, "job_not_active")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/jobs/job_0ahr000000000/resume")
    assert answer.is_problem(404, "not_found")
