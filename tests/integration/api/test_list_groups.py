"""GET /api/v1/groups"""

import pytest

from hourbell.engine.operations import execution_groups
from integration.api.client import Client, bearing, made, one_time

GROUPS = "/api/v1/groups"


async def created(api: Client, name: str, tenant: str = "default") -> str:
    document = {"name": name, "url": "https://api.example/done", "tenant_id": tenant}
    answer = await api.post(GROUPS, document)
    assert answer.status == 201
    return str(answer.body["group_id"])


async def names(api: Client, query: str = "") -> list[str]:
    return [group["name"] for group in await api.pages(f"{GROUPS}?page_size=1{query}")]


async def test_groups_are_listed_newest_first_by_state_and_tenant(api: Client):
    first = await created(api, "first")
    await created(api, "second", "acme")
    third = await created(api, "third")
    job = await api.created(one_time())
    await api.post(f"{GROUPS}/{first}/members", {"job_ids": [job["job_id"]]})
    for group in (first, third):
        assert (await api.post(f"{GROUPS}/{group}/close")).status == 200
    assert await names(api) == ["third", "second", "first"]
    assert await names(api, "&state=OPEN") == ["second"]
    assert await names(api, "&tenant_id=acme") == ["second"]
    assert set(await names(api, "&state=CLOSED")) | set(await names(api, "&state=ENDED")) == {
        "first",
        "third",
    }
    assert (await api.get(f"{GROUPS}?state=open")).is_problem(422, "invalid_input")
    (one,) = (await api.get(f"{GROUPS}?page_size=1")).body["items"]
    assert one == (await api.get(f"{GROUPS}/{third}")).body


async def test_a_key_of_a_tenant_sees_its_groups(api: Client, admin: str):
    for tenant in ("acme", "globex"):
        document = {"name": tenant, "url": "https://api.example/done", "tenant_id": tenant}
        await api.post(GROUPS, document, headers=bearing(admin))
    key = await made(api, "viewer", "acme", headers=bearing(admin))
    listed = await api.send("GET", GROUPS, key=None, headers=bearing(key))
    assert [group["name"] for group in listed.body["items"]] == ["acme"]


async def test_a_call_looks_at_a_bounded_number_of_groups(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(execution_groups, "MAX_SCANNED_ROWS", 2)
    monkeypatch.setattr("hourbell.engine.views.pages.MAX_SCANNED_ROWS", 2)
    await created(api, "rare", "acme")
    for number in range(4):
        await created(api, f"common-{number}")
    first = (await api.get(f"{GROUPS}?tenant_id=acme")).body
    assert first["items"] == []
    assert first["next_page_token"]
    assert await names(api, "&tenant_id=acme") == ["rare"]
