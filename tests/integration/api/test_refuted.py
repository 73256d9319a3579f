"""What a hostile reviewer has found; each was so once."""

from typing import Any

import pytest

from hourbell.actions import Run
from hourbell.actions.requests import CannotSend, prepared
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.model.executions import Claimed
from hourbell.model.jobs import JobSpec, WebhookAction
from hourbell.model.secrets import Secret
from integration.api.client import Client, bearing, made, one_time, recurring

NOBODYS_SESSION = "ses_0_" + "0" * 32


class Known:
    def __init__(self, **values: str) -> None:
        self._values = values

    async def values(self, tenant: str, names: Any) -> dict[str, Secret]:
        return {name: Secret(self._values[name]) for name in names if name in self._values}


def run_of(action: WebhookAction, engine_now: Any) -> Run:
    claimed = Claimed(1, 1, "default", 1, 1, engine_now, None, "")
    return Run(claimed, JobSpec(name="n", action=action), 10.0)


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("sessions/close", {}),
        ("executions/heartbeat", {"execution_ids": [], "claim_number": 2**31 - 1}),
        (
            "executions/exe_0ahr000000000/complete",
            {"status": "SUCCEEDED", "fence_token": 1, "duration_ms": 1},
        ),
        ("executions/exe_0ahr000000000/release", {"fence_token": 1}),
        ("executions/exe_0ahr000000000/progress", {"fence_token": 1, "progress": 1}),
        ("executions/claim", {"worker_id": "w", "capacity": 1, "claim_number": 1}),
    ],
)
async def test_the_session_of_what_waits_for_its_target_is_nobodys(
    api: Client, path: str, document: dict[str, Any]
):
    answer = await api.post(
        f"/internal/v1/{path}", document | {"session_token": NOBODYS_SESSION}, key=None
    )
    assert answer.is_problem(422, "invalid_input")
    assert "session_token" in answer.paths


async def test_words_of_a_target_in_a_notification_are_not_filled_in(engine: Engine):
    now = await engine.clock.now()
    said = {"error": "500 {{secret:stripe}} {{secret:missing}}"}
    told = WebhookAction(url="https://hooks.example/{{secret:path}}", body=said, literal=True)
    secrets = Known(stripe="sk_live_canary", path="known-path")
    request = await prepared(told, run_of(told, now), secrets, "token", 0)
    assert request.url == "https://hooks.example/known-path"
    assert request.body is not None
    assert b"{{secret:stripe}} {{secret:missing}}" in request.body
    assert b"canary" not in request.body


async def test_a_body_does_not_grow_without_bound_by_its_secrets(engine: Engine):
    now = await engine.clock.now()
    action = WebhookAction(url="https://hooks.example/", body="{{secret:big}}" * 10_000)
    with pytest.raises(CannotSend, match="more than"):
        await prepared(action, run_of(action, now), Known(big="x" * 8_000), "token", 0)


async def test_an_administrator_of_one_tenant_cannot_lift_its_limits(api: Client, admin: str):
    await api.put("/api/v1/tenants/acme", {"max_jobs": 1}, headers=bearing(admin))
    acme = bearing(await made(api, "admin", "acme", headers=bearing(admin)))
    answer = await api.put("/api/v1/tenants/acme", {"weight": 1000}, headers=acme)
    assert answer.is_problem(403, "forbidden")
    kept = await api.send("GET", "/api/v1/tenants/acme", key=None, headers=acme)
    assert kept.body["max_jobs"] == 1


async def test_a_foreign_job_is_not_written_into(api: Client, admin: str):
    job = (
        await api.post("/api/v1/jobs", recurring(tenant_id="victim"), headers=bearing(admin))
    ).body
    other = bearing(await made(api, "operator", "attacker", headers=bearing(admin)))
    for path in ("replay", "purge"):
        answer = await api.post(
            f"/api/v1/dead-letters/{path}", {"job_id": job["job_id"]}, headers=other
        )
        assert answer.status < 300
    trail = await api.send(
        "GET", f"/api/v1/jobs/{job['job_id']}/audit", key=None, headers=bearing(admin)
    )
    assert [entry["operation"] for entry in trail.body["items"]] == ["create"]


async def test_who_holds_a_limit_is_shown_only_to_whom_he_exists(
    api: Client,
    admin: str,
    engine: Engine,
):
    await api.put("/api/v1/queues/default", {"max_concurrency": 1}, headers=bearing(admin))
    for tenant in ("a", "b"):
        due = one_time(tenant_id=tenant, schedule={"delay_seconds": 0})
        made_job = (await api.post("/api/v1/jobs", due, headers=bearing(admin))).body
        dispatch = PostgresDispatch(engine)
        session = await dispatch.open("worker", ["default"], 10)
        await dispatch.admit()
        await dispatch.claim(session, 1, 10)
    path = f"/api/v1/jobs/{made_job['job_id']}/explain"
    seen = await api.send("GET", path, key=None, headers=bearing(admin))
    assert seen.body["code"] == "queue_concurrency"
    assert seen.body["blocked_by"] is not None
    b = bearing(await made(api, "viewer", "b", headers=bearing(admin)))
    assert (await api.send("GET", path, key=None, headers=b)).body["blocked_by"] is None


async def test_a_valid_key_is_not_held_up_by_unknown_ones_from_its_address(api: Client, admin: str):
    fresh = await made(api, "viewer", headers=bearing(admin))  # never used before
    statuses = [
        (await api.send("GET", "/api/v1/jobs", key=None, headers=bearing("hb_" + "x" * 43))).status
        for _ in range(25)
    ]
    assert statuses[-1] == 429
    assert (await api.send("GET", "/api/v1/jobs", key=None, headers=bearing(fresh))).status == 200
