"""GET /api/v1/audit and GET /api/v1/jobs/{job_id}/audit"""

from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest

from hourbell.dispatch import SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.operations.audit import AuditFilter, list_audit, list_job_audit
from hourbell.model.errors import Forbidden, NotFound
from hourbell.model.ids import parse_job_id
from integration.api.client import Client, one_time, recurring
from integration.api.test_list_jobs import strange_tokens
from integration.api.working import Hand

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


async def test_the_trail_says_which_settings_were_given_to_whom(api: Client):
    await api.put("/api/v1/tenants/acme", {"max_concurrency": 3, "weight": 2})
    await api.put("/api/v1/queues/mail", {"rate_limit": {"per_second": 5, "burst": 1}})
    await api.put("/api/v1/targets/example.com", {"max_concurrency": 0})
    target, queue, tenant = (await api.get(AUDIT)).body["items"]
    assert target["to"] == {"host": "example.com", "max_concurrency": 0, "rate_limit": None}
    assert (queue["to"]["queue"], queue["to"]["rate_limit"]["per_second"]) == ("mail", 5)
    assert (tenant["to"]["tenant_id"], tenant["to"]["weight"]) == ("acme", 2)


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_pause_resume_and_delete_show_the_change_of_the_status(api: Client, document: Any):
    job = await api.created(document())
    for operation in ("pause", "resume"):
        await api.post(f"{job['path']}/{operation}")
    await api.delete(job["path"])
    entries = (await api.get(job["path"] + "/audit")).body["items"]
    changes = [
        (each["operation"], each["from"]["status"], each["to"]["status"]) for each in entries[:3]
    ]
    assert changes == [
        ("delete", "SCHEDULED", "CANCELLED"),
        ("resume", "PAUSED", "SCHEDULED"),
        ("pause", "SCHEDULED", "PAUSED"),
    ]
    assert all(each["from"]["name"] == job["name"] for each in entries[:3])
    assert entries[3]["operation"] == "create"
    assert "status" not in entries[3]["to"]


async def test_every_job_of_a_batch_has_an_entry_with_its_document(api: Client):
    batch = [
        one_time(name="first", tenant_id="a"),
        recurring(name="second", tenant_id="a"),
        one_time(name="third", tenant_id="b"),
        *(one_time(name=f"more {number}", tenant_id="a") for number in range(5)),
        one_time(name="last", tenant_id="b"),
    ]
    results = (await api.post("/api/v1/jobs/batch", batch)).body["results"]
    created = {result["job_id"]: document for result, document in zip(results, batch, strict=True)}
    for query, tenants in (
        ("?page_size=2", "ab"),
        ("?page_size=50", "ab"),
        ("?tenant_id=a&page_size=3", "a"),
        ("?tenant_id=b&page_size=1", "b"),
    ):
        entries = await api.pages(AUDIT + query)
        wanted = [number for number in created if created[number]["tenant_id"] in tenants]
        assert sorted(entry["job_id"] for entry in entries) == sorted(wanted)
        for entry in entries:
            document = created[entry["job_id"]]
            assert (entry["operation"], entry["from"]) == ("create", None)
            assert entry["to"]["name"] == document["name"]
            assert entry["tenant_id"] == entry["to"]["tenant_id"] == document["tenant_id"]
            assert entry["to"]["action"]["name"] == document["action"]["name"]
    for number, document in created.items():
        (entry,) = (await api.get(f"/api/v1/jobs/{number}/audit")).body["items"]
        assert (entry["job_id"], entry["operation"]) == (number, "create")
        assert entry["to"]["name"] == document["name"]


@pytest.mark.parametrize("batch", [False, True])
async def test_a_one_time_job_was_created_by_its_first_document_whatever_became_of_it(
    api: Client, dispatch: PostgresDispatch, batch: bool
):
    documents = [one_time(name=f"at first {number}") for number in range(3)]
    if batch:
        answer = await api.post("/api/v1/jobs/batch", documents)
        numbers = [result["job_id"] for result in answer.body["results"]]
    else:
        numbers = [(await api.created(document))["job_id"] for document in documents]
    paths = [f"/api/v1/jobs/{number}" for number in numbers]
    await api.patch(paths[0], {"name": "changed"})
    await api.delete(paths[0])
    assert (await api.post(paths[1] + "/run", {"payload": [1]})).status == 202
    await api.post(paths[2] + "/run")
    hand = Hand(dispatch)
    for claimed in await hand.claim():
        await hand.settle(claimed, SUCCEEDED)
    for path, document in zip(paths, documents, strict=True):
        *_, created = (await api.get(path + "/audit")).body["items"]
        assert (created["operation"], created["to"]["name"]) == ("create", document["name"])
        assert created["to"]["action"]["payload"] is None
        trail = await api.pages(AUDIT + "?page_size=1")
        assert created in trail


async def test_the_whole_trail_is_there_page_by_page_latest_first(api: Client):
    for number in range(5):
        await api.created(one_time(tenant_id="a" if number % 2 else "b"))
    entries = await api.pages(AUDIT + "?page_size=2")
    assert [entry["tenant_id"] for entry in entries] == ["b", "a", "b", "a", "b"]
    times = [datetime.fromisoformat(entry["at"]) for entry in entries]
    assert times == sorted(times, reverse=True)
    assert len(await api.pages(AUDIT + "?tenant_id=a&page_size=1")) == 2
    assert await api.pages(AUDIT + "?tenant_id=nobody") == []


async def test_what_is_not_about_a_job_is_in_it_too(api: Client):
    await api.put("/api/v1/tenants/acme", {"weight": 2})
    (entry,) = (await api.get(AUDIT + "?tenant_id=acme")).body["items"]
    assert (entry["operation"], entry["job_id"]) == ("configure_tenant", None)


async def test_a_page_token_that_no_list_gave_is_refused(api: Client):
    for text in strange_tokens("list_audit"):
        answer = await api.get(f"{AUDIT}?page_token={text}")
        assert answer.is_problem(422, "invalid_input"), text
        assert answer.paths == {"page_token"}


async def test_within_a_scope_there_is_one_trail(api: Client, engine: Engine):
    mine, theirs = [await api.created(one_time(tenant_id=name)) for name in ("mine", "theirs")]
    scoped = engine.scoped_to("mine")
    assert [entry.tenant_id for entry in (await list_audit(scoped)).items] == ["mine"]
    with pytest.raises(Forbidden):
        await list_audit(scoped, AuditFilter(tenant_id="theirs"))
    assert len((await list_job_audit(scoped, parse_job_id(mine["job_id"]))).items) == 1
    with pytest.raises(NotFound):
        await list_job_audit(scoped, parse_job_id(theirs["job_id"]))


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/audit")
    assert answer.is_problem(404, "not_found")


async def test_the_trail_is_filtered_by_actor_operation_and_time(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hourbell.engine.operations.audit.MAX_SCANNED_ROWS", 3)
    monkeypatch.setattr("hourbell.engine.views.pages.MAX_SCANNED_ROWS", 3)
    batch = [one_time(name=f"n{number}") for number in range(5)]
    assert (await api.post("/api/v1/jobs/batch", batch)).status == 200
    paused = await api.created(recurring())
    await api.post(paused["path"] + "/pause")
    for _ in range(4):
        await api.created(one_time())

    async def operations(query: str) -> list[str]:
        for_tenant = [
            entry["operation"] for entry in await api.pages(f"{AUDIT}?{query}&tenant_id=default")
        ]
        found = [entry["operation"] for entry in await api.pages(f"{AUDIT}?{query}")]
        assert found == for_tenant
        return found

    assert await operations("page_size=2") == ["create"] * 4 + ["pause"] + ["create"] * 6
    assert await operations("operation=pause") == ["pause"]
    assert await operations("operation=create&page_size=2") == ["create"] * 10
    assert await operations("actor=anonymous&operation=pause") == ["pause"]
    assert await operations("actor=olga") == []
    (entry,) = await api.pages(f"{AUDIT}?operation=pause")
    at = quote(entry["at"])
    assert await operations(f"from={at}") == ["create"] * 4 + ["pause"]
    assert await operations(f"to={at}") == ["create"] * 6
