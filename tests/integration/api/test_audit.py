"""GET /api/v1/audit and GET /api/v1/jobs/{job_id}/audit"""

import pytest

from hourbell.engine.audit import list_audit, list_job_audit
from hourbell.engine.core import Engine
from hourbell.model.errors import Forbidden, NotFound
from hourbell.model.ids import parse_job_id
from integration.api.client import Client, one_time, recurring
from integration.api.test_list_jobs import STRANGE_TOKENS

AUDIT = "/api/v1/audit"


async def test_the_trail_of_a_job_says_who_did_what_from_what_to_what(api: Client):
    job = await api.created(recurring(name="first"))
    await api.created(recurring())
    await api.patch(job["path"], {"name": "second"})
    await api.post(job["path"] + "/pause")
    await api.post(job["path"] + "/run")
    await api.delete(job["path"])
    entries = (await api.get(job["path"] + "/audit")).body["items"]
    done = ["delete", "run", "pause", "update", "create"]
    assert [entry["operation"] for entry in entries] == done
    assert {entry["job_id"] for entry in entries} == {job["job_id"]}
    assert {entry["actor"] for entry in entries} == {"anonymous"}
    update, create = entries[3], entries[4]
    assert (update["from"]["name"], update["to"]["name"]) == ("first", "second")
    assert create["from"] is None
    assert create["to"]["schedule"] == job["schedule"]


async def test_the_whole_trail_is_there_page_by_page_latest_first(api: Client):
    for number in range(5):
        await api.created(one_time(tenant_id="a" if number % 2 else "b"))
    entries = await api.pages(AUDIT + "?page_size=2")
    assert [entry["tenant_id"] for entry in entries] == ["b", "a", "b", "a", "b"]
    assert [entry["at"] for entry in entries] == sorted((e["at"] for e in entries), reverse=True)
    assert len(await api.pages(AUDIT + "?tenant_id=a&page_size=1")) == 2
    assert await api.pages(AUDIT + "?tenant_id=nobody") == []


async def test_what_is_not_about_a_job_is_in_it_too(api: Client):
    await api.put("/api/v1/tenants/acme", {"weight": 2})
    (entry,) = (await api.get(AUDIT + "?tenant_id=acme")).body["items"]
    assert (entry["operation"], entry["job_id"]) == ("configure_tenant", None)


async def test_a_page_token_that_no_list_gave_is_refused(api: Client):
    for text in STRANGE_TOKENS:
        answer = await api.get(f"{AUDIT}?page_token={text}")
        assert answer.is_problem(422, "invalid_input"), text
        assert answer.paths == {"page_token"}


async def test_within_a_scope_there_is_one_trail(api: Client, engine: Engine):
    mine, theirs = [await api.created(one_time(tenant_id=name)) for name in ("mine", "theirs")]
    scoped = engine.within("mine")
    assert [entry.tenant_id for entry in (await list_audit(scoped)).items] == ["mine"]
    with pytest.raises(Forbidden):
        await list_audit(scoped, "theirs")
    assert len((await list_job_audit(scoped, parse_job_id(mine["job_id"]))).items) == 1
    with pytest.raises(NotFound):
        await list_job_audit(scoped, parse_job_id(theirs["job_id"]))


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/audit")
    assert answer.is_problem(404, "not_found")
