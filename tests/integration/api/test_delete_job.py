"""DELETE /api/v1/jobs/{job_id}"""

from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand


async def test_a_deleted_job_is_cancelled_and_stays_readable(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        deleted = await api.delete(job["path"])
        assert deleted.status == 200
        assert deleted.body["status"] == "CANCELLED"
        assert deleted.body["next_run_at"] is None
        assert (await api.get(job["path"])).body["status"] == "CANCELLED"


async def test_a_list_leaves_deleted_jobs_out_unless_asked(api: Client):
    kept, deleted = set(), set()
    for document in (one_time(), recurring()):
        kept.add((await api.created(document))["job_id"])
        gone = await api.created(document)
        await api.delete(gone["path"])
        deleted.add(gone["job_id"])
    for tenant in ("", "&tenant_id=default"):
        listed = await api.pages(f"/api/v1/jobs?page_size=1{tenant}")
        assert {job["job_id"] for job in listed} == kept
        asked = await api.pages(f"/api/v1/jobs?page_size=1&status=CANCELLED{tenant}")
        assert {job["job_id"] for job in asked} == deleted


async def test_the_document_says_what_is_read_after_a_delete(api: Client):
    deletion = api.document["paths"]["/api/v1/jobs/{job_id}"]["delete"]["description"]
    assert "GET still returns 200, with status CANCELLED" in deletion
    (status,) = [
        each
        for each in api.document["paths"]["/api/v1/jobs"]["get"]["parameters"]
        if each["name"] == "status"
    ]
    assert "except CANCELLED" in status["schema"]["description"]


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


@pytest.mark.parametrize("document", [one_time, recurring])
@pytest.mark.parametrize(
    ("query", "wished"), [("", False), ("?running=finish", False), ("?running=cancel", True)]
)
async def test_what_runs_is_let_finish_or_asked_to_stop(
    api: Client, engine: Engine, dispatch: PostgresDispatch, document: Any, query: str, wished: bool
):
    job = await api.created(document())
    await api.post(job["path"] + "/run")
    (claimed,) = await Hand(dispatch).claim()
    assert (await api.delete(job["path"] + query)).status == 200
    wishes = await engine.database.fetch("select distinct id from hourbell.cancellations")
    assert [row["id"] for row in wishes] == ([claimed.execution_id] if wished else [])


async def test_who_has_deleted_a_job_may_still_stop_what_runs(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    job = await api.created(recurring())
    await api.post(job["path"] + "/run")
    (claimed,) = await Hand(dispatch).claim()
    first = await api.delete(job["path"])
    again = await api.delete(job["path"] + "?running=cancel")
    assert (again.status, again.body) == (200, first.body)
    wished = await engine.database.value("select id from hourbell.cancellations")
    assert wished == claimed.execution_id


async def test_another_wish_about_what_runs_is_refused(api: Client):
    job = await api.created(recurring())
    for query in ("running=kill", "running=", "runing=cancel", "running=cancel&running=cancel"):
        answer = await api.delete(f"{job['path']}?{query}")
        assert answer.is_problem(422, "invalid_input"), query
    assert (await api.get(job["path"])).body["status"] == "SCHEDULED"


async def test_the_wish_is_part_of_the_request(api: Client):
    job = await api.created(recurring())
    await api.delete(job["path"], key="gone")
    answer = await api.delete(job["path"] + "?running=cancel", key="gone")
    assert answer.is_problem(422, "idempotency_key_reused")
