"""GET /api/v1/monitors"""

from hourbell.engine.core import Engine
from hourbell.engine.operations.monitors import list_monitors
from integration.api.client import Client, recurring
from integration.api.test_create_monitor import MONITORS, watching


async def made(api: Client, number: int, tenant: str = "default") -> list[str]:
    """The ids of so many monitors, newest first."""
    ids = []
    for _ in range(number):
        job = await api.created(recurring(tenant_id=tenant))
        ids.append((await api.post(MONITORS, watching(job["job_id"]))).body["monitor_id"])
    return ids[::-1]


async def test_monitors_come_newest_first_in_parts(api: Client):
    ids = await made(api, 5)
    first = (await api.get(f"{MONITORS}?page_size=2")).body
    second = (await api.get(f"{MONITORS}?page_size=2&page_token={first['next_page_token']}")).body
    third = (await api.get(f"{MONITORS}?page_size=2&page_token={second['next_page_token']}")).body
    assert third["next_page_token"] is None
    listed = [item["monitor_id"] for part in (first, second, third) for item in part["items"]]
    assert listed == ids


async def test_a_caller_of_one_tenant_sees_his_own(api: Client, engine: Engine):
    await made(api, 2, "acme")
    await made(api, 1, "other")
    seen = await list_monitors(engine.scoped_to("acme"))
    assert [monitor.tenant_id for monitor in seen.items] == ["acme", "acme"]
    assert (await list_monitors(engine.scoped_to("nobody"))).items == []


async def test_wrong_parameters_are_named(api: Client):
    answer = await api.get(f"{MONITORS}?page_size=0&page_token=x&tenant=acme")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"page_size", "tenant"}
    assert (await api.get(f"{MONITORS}?page_token=!!")).is_problem(422, "invalid_input")
