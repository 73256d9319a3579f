"""GET and DELETE of a job by its name or its unique key."""

from urllib.parse import quote

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.working import Hand

JOBS = "/api/v1/jobs"
NIGHTLY = f"{JOBS}/by-name/nightly"


def by_key(key: str, **more: str) -> str:
    return f"{JOBS}/by-unique-key?unique_key={quote(key)}" + "".join(
        f"&{name}={value}" for name, value in more.items()
    )


def unnamed(**fields: object) -> dict[str, object]:
    document = recurring(**fields)
    del document["name"]
    return document


async def test_a_job_is_read_by_the_name_that_it_was_put_under(api: Client):
    put = await api.put(NIGHTLY, unnamed())
    found = await api.get(NIGHTLY)
    assert (found.status, found.body) == (200, put.body)
    assert found.headers["ETag"] == '"1"'


async def test_a_job_is_read_by_its_unique_key_whatever_characters_that_has(api: Client):
    for key in ("cart:7", "cart/7?a=b&c#d", "größe 7", "%2F", "+"):
        job = await api.created(one_time(unique_key=key))
        found = await api.get(by_key(key))
        assert (found.status, found.body["job_id"]) == (200, job["job_id"]), key


async def test_jobs_that_were_posted_have_no_name_to_be_found_by(api: Client):
    await api.created(recurring(name="nightly"))
    await api.created(recurring(name="nightly"))
    assert (await api.get(NIGHTLY)).is_problem(404, "not_found")
    assert (await api.delete(NIGHTLY)).is_problem(404, "not_found")
    put = await api.put(NIGHTLY, unnamed())
    assert (await api.get(NIGHTLY)).body["job_id"] == put.body["job_id"]


async def test_names_and_unique_keys_are_different_things(api: Client):
    await api.put(NIGHTLY, unnamed())
    assert (await api.get(by_key("nightly"))).is_problem(404, "not_found")
    await api.created(recurring(unique_key="weekly"))
    assert (await api.get(f"{JOBS}/by-name/weekly")).is_problem(404, "not_found")


async def test_a_deleted_job_holds_its_name_no_longer(api: Client):
    put = await api.put(NIGHTLY, unnamed())
    deleted = await api.delete(NIGHTLY)
    assert (deleted.status, deleted.body["status"]) == (200, "CANCELLED")
    assert deleted.body["job_id"] == put.body["job_id"]
    assert (await api.get(NIGHTLY)).is_problem(404, "not_found")
    assert (await api.delete(NIGHTLY)).is_problem(404, "not_found")
    assert (await api.get(f"{JOBS}/{put.body['job_id']}")).body["status"] == "CANCELLED"


async def test_a_repeated_deletion_gets_its_first_answer_and_spares_the_next_job(api: Client):
    first = await api.created(one_time(unique_key="cart:7"))
    deleted = await api.delete(by_key("cart:7"), key="mine")
    again = await api.delete(by_key("cart:7"), key="mine")
    assert (again.status, again.body) == (200, deleted.body)
    second = await api.created(one_time(unique_key="cart:7"))
    again = await api.delete(by_key("cart:7"), key="mine")
    assert again.body["job_id"] == first["job_id"]
    assert (await api.get(second["path"])).body["status"] == "SCHEDULED"
    reused = await api.delete(by_key("cart:8"), key="mine")
    assert reused.is_problem(422, "idempotency_key_reused")


async def test_a_running_job_holds_its_key_and_is_asked_to_stop(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    job = await api.created(one_time(unique_key="k", schedule={"delay_seconds": 0}))
    assert len(await Hand(dispatch).claim()) == 1
    assert (await api.get(by_key("k"))).body["job_id"] == job["job_id"]
    assert (await api.delete(by_key("k", running="cancel"))).status == 200
    assert await engine.database.value("select count(*) from hourbell.cancellations") == 1


async def test_a_deletion_can_require_a_version(api: Client):
    await api.put(NIGHTLY, unnamed())
    refused = await api.delete(NIGHTLY, headers={"If-Match": '"2"'})
    assert refused.is_problem(412, "precondition_failed")
    assert (await api.delete(NIGHTLY, headers={"If-Match": '"1"'})).status == 200


async def test_a_name_belongs_to_a_tenant(api: Client):
    acme = await api.put(NIGHTLY, unnamed(tenant_id="acme"))
    assert (await api.get(NIGHTLY)).is_problem(404, "not_found")
    found = await api.get(f"{NIGHTLY}?tenant_id=acme")
    assert found.body["job_id"] == acme.body["job_id"]
    await api.created(one_time(unique_key="k", tenant_id="acme"))
    assert (await api.delete(by_key("k"))).is_problem(404, "not_found")
    assert (await api.delete(by_key("k", tenant_id="acme"))).status == 200


async def test_a_key_of_a_tenant_finds_its_own_jobs_only(api: Client, admin: str):
    acme = bearing(await made(api, "producer", "acme", headers=bearing(admin)))
    await api.put(NIGHTLY, unnamed(tenant_id="other"), headers=bearing(admin))
    mine = await api.put(NIGHTLY, unnamed(), headers=acme)
    found = await api.send("GET", NIGHTLY, key=None, headers=acme)
    assert (found.body["job_id"], found.body["tenant_id"]) == (mine.body["job_id"], "acme")
    for method, path in (("GET", NIGHTLY + "?"), ("DELETE", NIGHTLY + "?"), ("GET", by_key("k&"))):
        foreign = await api.send(method, f"{path}&tenant_id=other", headers=acme)
        assert foreign.is_problem(403, "forbidden")


@pytest.mark.parametrize("name", ["%00", "%0A", "x" * 201])
async def test_a_name_that_no_job_can_have_is_refused(api: Client, name: str):
    for path in (f"{JOBS}/by-name/{name}", f"{JOBS}/by-unique-key?unique_key={name}"):
        assert (await api.get(path)).is_problem(422, "invalid_input")
        assert (await api.delete(path)).is_problem(422, "invalid_input")
    assert (await api.get(f"{JOBS}/by-unique-key")).paths == {"unique_key"}
