"""GET /api/v1/workers, /nodes and /circuits; /tenants by share."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import pytest

from hourbell.dispatch import SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import count_minutes
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.presence import (
    Node,
    OpenCircuit,
    end_presence,
    report_presence,
)
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.test_list_jobs import strange_tokens
from integration.api.working import Hand
from integration.life.support import eventually

WORKERS = "/api/v1/workers"
NOW = {"delay_seconds": 0}


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def test_a_worker_is_shown_with_what_it_serves_and_runs(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(one_time(name="import", schedule=NOW, queue="mail", timeout_seconds=77))
    session = await dispatch.open("w-3", ["mail", "default"], 50, ["count", "@webhook"])
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    (worker,) = (await api.get(WORKERS)).body["items"]
    assert worker["worker_id"] == "w-3"
    assert (worker["state"], worker["slots"], worker["running"]) == ("alive", 50, 1)
    assert worker["queues"] == ["default", "mail"]
    assert worker["tasks"] == ["@webhook", "count"]
    assert worker["ended_at"] is None
    one = (await api.get(f"{WORKERS}/{worker['session_id']}")).body
    (held,) = one.pop("executions")
    assert one == worker
    assert (held["job_id"], held["job_name"]) == (job["job_id"], "import")
    assert (held["attempt"], held["timeout_seconds"], held["progress"]) == (1, 77, None)
    assert await dispatch.note_progress(
        session, claimed.execution_id, claimed.fence, '{"percent": 62}'
    )
    (held,) = (await api.get(f"{WORKERS}/{worker['session_id']}")).body["executions"]
    assert held["progress"] == {"percent": 62}


async def test_a_worker_of_everything_says_so(api: Client, dispatch: PostgresDispatch):
    await dispatch.open("any", None, 1)
    (worker,) = (await api.get(WORKERS)).body["items"]
    assert (worker["queues"], worker["tasks"]) == (None, None)


async def test_ended_workers_say_whether_they_were_lost(
    api: Client, hand: Hand, engine: Engine, dispatch: PostgresDispatch
):
    stopped = await dispatch.open("stopped", ["default"], 1)
    await dispatch.close(stopped)
    await api.created(one_time(schedule=NOW))
    assert len(await hand.claim()) == 1
    now = await engine.clock.now()
    await engine.database.fetch("update hourbell.sessions set expires_at = $1 where id > 0", now)
    (expired,) = (await api.get(WORKERS)).body["items"]
    assert (expired["worker_id"], expired["state"]) == ("hand", "expired")
    await reap(engine, None, now)
    assert (await api.get(WORKERS)).body["items"] == []
    (lost,) = (await api.get(f"{WORKERS}?state=lost")).body["items"]
    assert (lost["worker_id"], lost["state"], lost["returned"]) == ("hand", "lost", 1)
    states = [item["state"] for item in await api.pages(f"{WORKERS}?state=all&page_size=1")]
    assert states == ["lost", "stopped"]
    one = (await api.get(f"{WORKERS}/{lost['session_id']}")).body
    assert one == lost | {"executions": []}


async def test_unknown_workers_and_strange_pages_are_refused(api: Client):
    assert (await api.get(f"{WORKERS}/ses_0ahr000000000")).is_problem(404, "not_found")
    assert (await api.get(f"{WORKERS}/w-3")).is_problem(404, "unknown_id")
    assert (await api.get(f"{WORKERS}?state=dead")).is_problem(422, "invalid_input")
    for token in strange_tokens("list_workers"):
        assert (await api.get(f"{WORKERS}?page_token={token}")).status in (200, 422)


async def test_processes_say_that_they_live(api: Client, engine: Engine):
    node = Node(uuid4(), "host-81", ["worker", "api"])
    now = await engine.clock.now()
    await report_presence(engine, node, now - timedelta(seconds=70), 0.25, [])
    (item,) = (await api.get("/api/v1/nodes")).body["items"]
    assert (item["node_id"], item["name"]) == (str(node.id), "host-81")
    assert (item["roles"], item["leads"], item["alive"]) == (["api", "worker"], False, False)
    assert item["clock_drift_ms"] == 250.0
    assert item["connections"]["in_use"] <= item["connections"]["size"]
    await report_presence(engine, node, now, None, [])
    (again,) = (await api.get("/api/v1/nodes")).body["items"]
    assert (again["alive"], again["clock_drift_ms"]) == (True, None)
    assert again["started_at"] == item["started_at"]
    await end_presence(engine, node)
    assert (await api.get("/api/v1/nodes")).body["items"] == []


async def test_open_circuits_are_those_that_processes_last_said(
    api: Client, engine: Engine, admin: str
):
    node = Node(uuid4(), "host-81", ["worker"])
    now = await engine.clock.now()
    until = now + timedelta(seconds=30)
    circuits = [
        OpenCircuit("acme", "api.example", None, 25, now, until),
        OpenCircuit("globex", "api.example", "POST https://api.example/x", 20, now, until),
    ]
    await report_presence(engine, node, now, 0.0, circuits)
    items = (await api.send("GET", "/api/v1/circuits", key=None, headers=bearing(admin))).body
    assert [item["tenant_id"] for item in items["items"]] == ["acme", "globex"]
    assert items["items"][1]["endpoint"] == "POST https://api.example/x"
    assert items["items"][0]["node"] == "host-81"
    acme = bearing(await made(api, "viewer", "acme", headers=bearing(admin)))
    (own,) = (await api.send("GET", "/api/v1/circuits", key=None, headers=acme)).body["items"]
    assert (own["tenant_id"], own["node"], own["node_id"]) == ("acme", None, None)
    await report_presence(engine, node, now, 0.0, [])
    closed = await api.send("GET", "/api/v1/circuits", key=None, headers=bearing(admin))
    assert closed.body["items"] == []


# Shares.


async def test_tenants_are_listed_by_their_share_of_starts(api: Client, hand: Hand, engine: Engine):
    await api.put("/api/v1/tenants/acme", {"weight": 3})
    for tenant, number in (("acme", 1), ("beta", 3)):
        for k in range(number):
            await api.created(one_time(name=f"n{k}", schedule=NOW, tenant_id=tenant))
    await api.put("/api/v1/tenants/idle", {})
    for one in await hand.claim():
        await hand.settle(one, SUCCEEDED)
    await count_minutes(engine, None, await engine.clock.now())
    page = (await api.get("/api/v1/tenants?order=share")).body
    assert page["next_page_token"] is None
    found = [
        (item["tenant_id"], item["starts"], item["share"], item["fair_share"])
        for item in page["items"]
    ]
    assert found == [("beta", 3, 0.75, 0.25), ("acme", 1, 0.25, 0.75)]
    assert page["items"][0]["counts"] is None
    by_name = (await api.get("/api/v1/tenants")).body["items"]
    assert [item["tenant_id"] for item in by_name] == ["acme", "beta", "idle"]
    assert {item["share"] for item in by_name} == {None}
    admin = bearing(await made(api, "admin"))
    beta = bearing(await made(api, "viewer", "beta", headers=admin))
    path = "/api/v1/tenants?order=share"
    (own,) = (await api.send("GET", path, key=None, headers=beta)).body["items"]
    assert (own["tenant_id"], own["starts"], own["share"]) == ("beta", 3, None)


async def test_a_worker_that_has_claimed_nothing_is_listed_while_its_claim_waits(api: Client):
    idle = {"worker_id": "idle", "capacity": 1, "queues": ["mail"], "wait_seconds": 30}
    waiting = asyncio.create_task(api.post("/internal/v1/executions/claim", idle, key=None))

    async def listed() -> list[tuple[str, int]]:
        items = (await api.get(WORKERS)).body["items"]
        return [(item["state"], item["running"]) for item in items if item["worker_id"] == "idle"]

    async def is_listed() -> bool:
        return await listed() == [("alive", 0)]

    await eventually(is_listed)
    waiting.cancel()

    async def is_gone() -> bool:
        return await listed() == []

    await eventually(is_gone)


async def test_a_list_of_tenants_can_have_counts(api: Client, hand: Hand, engine: Engine):
    await api.created(one_time(name="waits", tenant_id="acme"))
    await api.created(one_time(name="runs", schedule=NOW, tenant_id="acme"))
    await api.created(recurring(tenant_id="acme"))
    await api.created(one_time(name="other", tenant_id="beta"))
    assert len(await hand.claim()) == 1
    listed = (await api.get("/api/v1/tenants?counts=true")).body["items"]
    one = (await api.get("/api/v1/tenants/acme")).body
    assert listed[0]["counts"] == one["counts"]
    assert one["counts"] == {
        "jobs": 3,
        "running": 1,
        "waiting": 0,
        "parked": 0,
        "not_planned": 0,
        "at_least": [],
    }
    assert listed[1]["counts"]["jobs"] == 1
