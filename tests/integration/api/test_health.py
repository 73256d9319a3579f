"""GET /livez, /readyz and /"""

import asyncio

import pytest

from hourbell.api import health as health_module
from integration.api.client import Client
from integration.api.conftest import KnownHealth


async def test_a_process_is_alive_while_its_loop_runs(api: Client, health: KnownHealth):
    health.checks = {"database": False}
    answer = await api.get("/livez")
    assert (answer.status, answer.body) == (200, {"status": "alive"})


async def test_a_process_is_ready_when_all_its_parts_are(api: Client):
    answer = await api.get("/readyz")
    assert answer.status == 200
    assert answer.body["status"] == "ready"
    assert answer.body["checks"] == {"database": True, "scheduler": True, "worker": True}


async def test_a_process_that_is_not_ready_says_what_is_missing(api: Client, health: KnownHealth):
    health.checks = {"database": True, "scheduler": False}
    answer = await api.get("/readyz")
    assert answer.status == 503
    assert answer.body == {
        "status": "not_ready",
        "checks": {"database": True, "scheduler": False},
    }
    assert answer.headers["Retry-After"] == "1"


async def test_checks_that_hang_are_a_process_that_is_not_ready(
    api: Client, health: KnownHealth, monkeypatch: pytest.MonkeyPatch
):
    async def never() -> dict[str, bool]:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(health_module, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(health, "ready", never)
    answer = await api.get("/readyz")
    assert answer.status == 503
    assert answer.body["checks"] == {"checks_in_time": False}


async def test_the_root_says_where_to_look(api: Client):
    answer = await api.get("/")
    assert answer.status == 200
    assert (await api.get(answer.body["openapi"])).status == 200
    assert (await api.get(answer.body["jobs"])).status == 200
