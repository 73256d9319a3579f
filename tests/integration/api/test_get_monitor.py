"""GET /api/v1/monitors/{monitor_id}"""

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.monitors import get_monitor
from hourbell.model.errors import NotFound
from hourbell.model.ids import parse_monitor_id
from integration.api.client import Client, recurring
from integration.api.test_create_monitor import MONITORS, watching


@pytest.mark.parametrize("name", ["mon_0000000000016", "mon_x", "job_0000000000016", "%00"])
async def test_what_is_not_there_is_not_found(api: Client, name: str):
    answer = await api.get(f"{MONITORS}/{name}")
    assert answer.status == 404


async def test_a_monitor_of_another_tenant_is_not_there(api: Client, engine: Engine):
    job = await api.created(recurring(tenant_id="acme"))
    made = (await api.post(MONITORS, watching(job["job_id"]))).body
    number = parse_monitor_id(made["monitor_id"])
    assert (await get_monitor(engine.scoped_to("acme"), number)).tenant_id == "acme"
    with pytest.raises(NotFound) as foreign:
        await get_monitor(engine.scoped_to("other"), number)
    assert str(foreign.value) == str(NotFound("monitor", made["monitor_id"]))


async def test_nothing_is_expected_while_the_job_is_paused(api: Client):
    job = await api.created(recurring())
    await api.post(f"{job['path']}/pause")
    answer = await api.post(MONITORS, watching(job["job_id"]))
    assert answer.body["expected_at"] is None
    assert (await api.get(answer.headers["Location"])).body["expected_at"] is None
