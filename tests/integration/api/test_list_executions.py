"""GET /api/v1/jobs/{job_id}/executions"""

from datetime import timedelta

from hourbell.dispatch import RETRY, SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from integration.api.client import Client, one_time, recurring
from integration.api.test_list_jobs import strange_tokens

STRETCH = {"after": "2016-06-01T00:00:00Z", "through": "2023-06-01T00:00:00Z"}


async def test_a_new_job_has_no_executions(api: Client):
    job = await api.created(recurring())
    page = (await api.get(job["path"] + "/executions")).body
    assert page == {"items": [], "next_page_token": None}


async def test_what_is_only_planned_ahead_is_not_listed(api: Client, engine: Engine):
    job = await api.created(recurring(schedule={"every_seconds": 10}))
    await plan(engine, None, await engine.clock.now())
    assert (await api.get(job["path"] + "/executions")).body["items"] == []


async def test_a_one_time_job_is_its_execution(api: Client):
    job = await api.created(one_time())
    (execution,) = (await api.get(job["path"] + "/executions")).body["items"]
    assert execution["job_id"] == job["job_id"]
    assert execution["status"] == "SCHEDULED"
    assert execution["scheduled_for"] == job["next_run_at"]
    for field in ("started_at", "finished_at", "lateness_ms", "error"):
        assert execution[field] is None
    assert execution["attempt"] == 0


async def test_a_run_that_ended_is_recorded_with_times_and_lateness(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(recurring())
    await api.post(job["path"] + "/run")
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    outcome = Settlement(claimed.execution_id, claimed.fence, SUCCEEDED, 2, 30, result='{"n":1}')
    assert await dispatch.settle(session, [outcome]) == []
    (execution,) = (await api.get(job["path"] + "/executions")).body["items"]
    assert (execution["status"], execution["attempt"]) == ("SUCCEEDED", 1)
    assert execution["started_at"] < execution["finished_at"]
    assert execution["lateness_ms"] >= 0
    assert execution["result"] == {"n": 1}
    assert execution["error"] is None


async def test_a_run_that_failed_and_waits_is_retrying(api: Client, dispatch: PostgresDispatch):
    job = await api.created(recurring())
    await api.post(job["path"] + "/run")
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    failure = Settlement(
        claimed.execution_id, claimed.fence, RETRY, delay_seconds=60, reason="boom", error="Boom."
    )
    await dispatch.settle(session, [failure])
    (execution,) = (await api.get(job["path"] + "/executions")).body["items"]
    assert (execution["status"], execution["attempt"]) == ("RETRYING", 1)
    assert execution["error"] == "Boom."


async def test_pages_give_live_and_recorded_executions_once_latest_first(api: Client):
    job = await api.created(recurring())
    made = (await api.post(job["path"] + "/backfill", STRETCH)).body["execution_ids"]
    for execution_id in made[::2]:
        await api.post(f"/api/v1/executions/{execution_id}/cancel")
    found: list[str] = []
    token = None
    while not found or token:
        rest = f"&page_token={token}" if token else ""
        page = (await api.get(f"{job['path']}/executions?page_size=3{rest}")).body
        found += [execution["execution_id"] for execution in page["items"]]
        token = page["next_page_token"]
    assert found == made[::-1]


async def test_a_page_token_that_no_list_gave_is_refused(api: Client):
    for document in (recurring(), one_time()):
        job = await api.created(document)
        for text in strange_tokens("list_executions"):
            answer = await api.get(f"{job['path']}/executions?page_token={text}")
            assert answer.is_problem(422, "invalid_input"), text
            assert answer.paths == {"page_token"}


async def test_a_parameter_that_means_nothing_is_refused(api: Client):
    job = await api.created(recurring())
    answer = await api.get(job["path"] + "/executions?statsu=DEAD&page_size=0")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"statsu", "page_size"}


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/executions")
    assert answer.is_problem(404, "not_found")


async def test_missed_occurrences_are_one_entry_or_one_each(api: Client, engine: Engine):
    job = await api.created(recurring(schedule={"every_seconds": 60}))
    later = await engine.clock.now() + timedelta(minutes=30)
    await plan(engine, None, later)
    stretch = (await api.get(job["path"] + "/executions")).body["items"][-1]
    assert (stretch["status"], stretch["reason"]) == ("SKIPPED", "misfire")
    assert stretch["missed"] >= 28
    found = await api.pages(job["path"] + "/executions?expand=missed&page_size=7")
    each = [item for item in found if item["reason"] == "misfire"]
    assert len(each) == stretch["missed"]
    assert (each[-1]["scheduled_for"], each[0]["scheduled_for"]) == (
        stretch["scheduled_for"],
        stretch["missed_through"],
    )
    assert {(item["execution_id"], item["missed"]) for item in each} == {
        (stretch["execution_id"], 1)
    }


async def test_only_missed_stretches_can_be_expanded(api: Client):
    job = await api.created(recurring())
    answer = await api.get(job["path"] + "/executions?expand=attempts")
    assert answer.is_problem(422, "invalid_input")
