"""/api/v1/tenants, /api/v1/queues and /api/v1/targets"""

import asyncio
from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine import core
from hourbell.engine.core import Engine
from hourbell.engine.operations import limits
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views import resources
from hourbell.model.errors import Forbidden, NotFound
from hourbell.model.limits import Limits, QueueSettings, TenantSettings
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.test_list_jobs import strange_tokens
from integration.api.working import Hand

NO_LIMITS: dict[str, Any] = {"max_concurrency": None, "rate_limit": None}
NOW = {"delay_seconds": 0}
KINDS = ["tenants", "queues", "targets"]


async def test_a_tenant_is_set_as_a_whole_and_read_back(api: Client):
    path = "/api/v1/tenants/acme"
    settings = {
        "weight": 2.5,
        "max_jobs": 7,
        "max_concurrency": 3,
        "rate_limit": {"per_second": 0.5, "burst": 4},
        "ledger_days": 7,
        "dead_letter_days": 500,
        "audit_days": 90,
    }
    answer = await api.put(path, settings)
    assert answer.status == 200
    counts = {each: 0 for each in resources.TENANT_COUNTS} | {"at_least": []}
    shares = dict.fromkeys(("starts", "share", "fair_share"))  # of lists only
    shares |= {"created_on_use": False}
    version = answer.body["version"]
    expected = {"tenant_id": "acme", "version": version, **settings, "counts": counts, **shares}
    assert answer.body == expected | {"waiting_for": []}
    assert (await api.get(path)).body == answer.body
    usual = (await api.put(path, {})).body
    assert usual == {
        "tenant_id": "acme",
        "version": 0,
        **NO_LIMITS,
        "weight": 1.0,
        "max_jobs": None,
        "ledger_days": None,
        "dead_letter_days": None,
        "audit_days": None,
        "counts": counts,
        "waiting_for": [],
        **shares,
    }


async def test_a_queue_is_set_as_a_whole_and_read_back(api: Client):
    path = "/api/v1/queues/mail"
    retries = {"delays_seconds": [1, 2], "non_retryable": ["http_404"]}
    answer = await api.put(
        path, {"default_timeout_seconds": 9, "default_retry_policy": retries, "max_concurrency": 0}
    )
    assert answer.status == 200
    assert answer.body["default_retry_policy"] == retries | {
        "max_retries": 2,
        "backoff": "LIST",
        "retryable": [],
        "max_crashes": None,
    }
    assert (await api.get(path)).body == answer.body
    job = await api.created(one_time(queue="mail"))
    assert job["timeout_seconds"] == 9
    assert (await api.put(path, {})).body["default_timeout_seconds"] is None


async def test_a_target_is_set_as_a_whole_and_read_back(api: Client):
    path = "/api/v1/targets/api.example.com"
    answer = await api.put(path, {"rate_limit": {"per_second": 10}})
    assert answer.body == {
        "host": "api.example.com",
        "version": answer.body["version"],
        "max_concurrency": None,
        "rate_limit": {"per_second": 10.0, "burst": 1},
        "counts": {"parked": 0, "at_least": []},
    }
    assert (await api.get("/api/v1/targets/API.example.com.")).body == answer.body


async def test_counts_are_those_of_now(api: Client, dispatch: PostgresDispatch):
    await api.put("/api/v1/queues/default", {"max_concurrency": 2})
    for _ in range(3):
        job = await api.created(one_time(tenant_id="acme"))
        await api.post(job["path"] + "/run")
    await api.created(recurring(tenant_id="acme"))
    assert len(await Hand(dispatch).claim()) == 2
    tenant = (await api.get("/api/v1/tenants/acme")).body["counts"]
    assert tenant == {
        "jobs": 4,
        "running": 2,
        "waiting": 1,  # parked under its queue
        "parked": 0,
        "not_planned": 0,
        "at_least": [],
    }
    queue = (await api.get("/api/v1/queues/default")).body["counts"]
    assert (queue["ready"], queue["running"], queue["parked"]) == (0, 2, 1)
    await api.put("/api/v1/queues/default", {})
    await dispatch.admit()
    queue = (await api.get("/api/v1/queues/default")).body["counts"]
    assert (queue["ready"], queue["running"], queue["parked"]) == (1, 2, 0)
    assert queue["workers"] >= 1


async def test_a_tenant_sees_its_own_share_of_the_queues_that_it_uses(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    for tenant, queue, jobs in (
        ("mine", "default", 3),
        ("theirs", "default", 4),
        ("theirs", "own", 1),
    ):
        for _ in range(jobs):
            job = await api.created(one_time(tenant_id=tenant, queue=queue))
            await api.post(job["path"] + "/run")
    await api.created(recurring(tenant_id="mine", queue="nightly"))
    await api.put("/api/v1/queues/by-an-administrator", {})
    await dispatch.admit()
    counts = {}
    for tenant in ("mine", "theirs"):
        scoped = engine.scoped_to(tenant)
        queue = await resources.get_queue(scoped, "default")
        assert queue.counts is not None
        counts[tenant] = (queue.counts["ready"], queue.counts["running"], queue.counts["parked"])
    assert counts == {"mine": (3, 0, 0), "theirs": (4, 0, 0)}

    scoped = engine.scoped_to("mine")
    assert [queue.name for queue in (await resources.list_queues(scoped)).items] == [
        "default",
        "nightly",
    ]
    for name in ("own", "by-an-administrator"):
        with pytest.raises(NotFound):
            await resources.get_queue(scoped, name)


async def test_the_shares_of_the_tenants_add_up_to_the_queue(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await api.put("/api/v1/queues/default", {"max_concurrency": 2})
    for tenant in ("mine", "theirs"):
        for _ in range(3):
            job = await api.created(one_time(tenant_id=tenant))
            await api.post(job["path"] + "/run")
    await dispatch.admit()
    for ready, running in ((2, 0), (0, 2)):
        whole = (await api.get("/api/v1/queues/default")).body["counts"]
        assert (whole["ready"], whole["running"], whole["parked"]) == (ready, running, 4)
        for count in ("ready", "running", "parked"):
            shares = [
                (await resources.get_queue(engine.scoped_to(name), "default")).counts or {}
                for name in ("mine", "theirs")
            ]
            assert sum(share[count] for share in shares) == whole[count]
        await Hand(dispatch).claim()


async def waiting(api: Client, *tenants: str) -> dict[str, object]:
    """What waits, as the list and the pages of the tenants say; they must agree."""
    listed = {
        item["tenant_id"]: item["counts"]
        for item in (await api.get("/api/v1/tenants?counts=true")).body["items"]
    }
    for tenant in tenants:
        assert (await api.get(f"/api/v1/tenants/{tenant}")).body["counts"] == listed[tenant]
    return {
        tenant: ("at least", listed[tenant]["waiting"])
        if "waiting" in listed[tenant]["at_least"]
        else listed[tenant]["waiting"]
        for tenant in tenants
    }


async def test_a_tenant_shows_all_that_waits_wherever_it_is(
    api: Client, dispatch: PostgresDispatch
):
    for tenant, count in (("acme", 3), ("beta", 1)):
        await api.post("/api/v1/jobs/batch", [one_time(tenant_id=tenant, schedule=NOW)] * count)
    await api.created(one_time(tenant_id="acme"))  # its time has not come
    assert await waiting(api, "acme", "beta") == {"acme": 3, "beta": 1}  # due
    await api.put("/api/v1/tenants/acme", {"max_concurrency": 1})
    await dispatch.admit()
    assert (await api.get("/api/v1/tenants/acme")).body["counts"]["parked"] == 2
    assert await waiting(api, "acme", "beta") == {"acme": 3, "beta": 1}  # ready, and parked
    assert len(await Hand(dispatch).claim()) == 2
    assert await waiting(api, "acme", "beta") == {"acme": 2, "beta": 0}


async def test_what_waits_is_a_lower_bound_where_not_all_of_it_was_examined(
    api: Client, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resources, "_EXAMINED", 5)
    many = [one_time(tenant_id="acme", schedule=NOW)] * 20
    await api.post("/api/v1/jobs/batch", [*many, one_time(tenant_id="beta", schedule=NOW)])
    examined = await waiting(api, "acme", "beta")
    # Of due rows and of executions of slabs, five each are examined. The ids decide which is where: executions share a
    # slab if the ids are of one block of 64. Those of one moment are in no order.
    counted = [count for _, count in examined.values()]
    assert [kind for kind, _ in examined.values()] == ["at least", "at least"]
    assert counted[0] <= 20
    assert counted[1] <= 1
    assert 5 <= sum(counted) <= 10
    await dispatch.admit()
    # Ready executions are examined in the order in which they are served: the few of a tenant are among the first.
    assert await waiting(api, "acme", "beta") == {
        "acme": ("at least", 5),
        "beta": ("at least", 1),
    }


async def test_a_count_stops_where_it_would_become_dear(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(resources, "MAX_COUNTED", 2)
    for _ in range(4):
        await api.created(one_time(tenant_id="acme"))
    counts = (await api.get("/api/v1/tenants/acme")).body["counts"]
    assert (counts["jobs"], counts["at_least"]) == (2, ["jobs"])


async def test_a_count_of_what_runs_says_that_not_all_was_looked_at(
    api: Client, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    for tenant, queue in (("loud", "mail"),) * 3 + (("acme", "default"),):
        job = await api.created(one_time(tenant_id=tenant, queue=queue))
        await api.post(job["path"] + "/run")
    for queue in ("default", "mail"):  # the newest session is looked at first
        session = await dispatch.open("worker", [queue], 100)
        await dispatch.admit()
        assert await dispatch.claim(session, 1, 100)
    for most, running, more in ((3, 0, ["running"]), (5, 1, [])):
        monkeypatch.setattr(resources, "MAX_COUNTED", most)
        for path in ("tenants/acme", "queues/default"):
            counts = (await api.get(f"/api/v1/{path}")).body["counts"]
            assert (counts["running"], counts["at_least"]) == (running, more)


@pytest.mark.parametrize("kind", KINDS)
async def test_they_are_listed_by_name_page_by_page(api: Client, kind: str):
    names = ["b.example", "a.example", "c.example"]
    for name in names:
        assert (await api.put(f"/api/v1/{kind}/{name}", {"max_concurrency": 5})).status == 200
    items = await api.pages(f"/api/v1/{kind}?page_size=2")
    field = {"tenants": "tenant_id", "queues": "queue", "targets": "host"}[kind]
    assert [item[field] for item in items if item[field] in names] == sorted(names)
    assert all(item["counts"] is None for item in items)
    for text in strange_tokens(f"list_{kind}"):
        answer = await api.get(f"/api/v1/{kind}?page_token={text}")
        assert answer.is_problem(422, "invalid_input"), text


@pytest.mark.parametrize("kind", KINDS)
async def test_what_nobody_knows_is_not_found(api: Client, kind: str):
    for name in ("unknown", "%00", "%ED%A0%80", "a%20b", "x" * 300, "%F0%9F%92%A5", "%0A"):
        answer = await api.get(f"/api/v1/{kind}/{name}")
        assert answer.is_problem(404, "not_found"), name


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_a_name_is_refused(api: Client, kind: str):
    for name in ("%00", "a%20b", "x" * 300, "%F0%9F%92%A5", "%0A", "a%40b"):
        answer = await api.put(f"/api/v1/{kind}/{name}", {})
        assert answer.is_problem(422, "invalid_input"), name


WRONG: dict[str, list[tuple[dict[str, Any], set[str]]]] = {
    "tenants": [
        ({"weight": 0}, {"weight"}),
        ({"weight": "1"}, {"weight"}),
        ({"weight": True, "max_jobs": -1}, {"weight", "max_jobs"}),
        ({"ledger_days": 0, "audit_days": 4000}, {"ledger_days", "audit_days"}),
        ({"ledger_days": 31, "dead_letter_days": 31}, {"ledger_days"}),  # more than the cell's
        ({"weight": 1e400}, {"weight"}),
        ({"default_timeout_seconds": 1}, {"default_timeout_seconds"}),
    ],
    "queues": [
        ({"default_timeout_seconds": 0}, {"default_timeout_seconds"}),
        (
            {"default_retry_policy": {"max_retries": -1, "x": 1}},
            {"default_retry_policy.max_retries", "default_retry_policy.x"},
        ),
    ],
    "targets": [
        ({"max_concurrency": 1.5}, {"max_concurrency"}),
        ({"rate_limit": {}}, {"rate_limit.per_second"}),
        ({"rate_limit": 5}, {"rate_limit"}),
        (
            {"rate_limit": {"per_second": 0, "burst": 0}},
            {"rate_limit.per_second", "rate_limit.burst"},
        ),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_settings_are_refused_with_every_wrong_field(api: Client, kind: str):
    for settings, paths in WRONG[kind]:
        answer = await api.put(f"/api/v1/{kind}/some.example", settings)
        if answer.status == 400:
            assert settings == {"weight": float("inf")}  # it is no JSON
            continue
        assert answer.is_problem(422, "invalid_input"), settings
        assert answer.paths == paths
    assert (await api.get(f"/api/v1/{kind}/some.example")).status == 404


async def test_within_a_scope_there_is_one_tenant_and_the_cell_is_not_his(
    api: Client, engine: Engine
):
    for path in ("tenants/mine", "tenants/theirs", "queues/mail", "targets/example.com"):
        await api.put(f"/api/v1/{path}", {})
    scoped = engine.scoped_to("mine")
    assert [each.name for each in (await resources.list_tenants(scoped)).items] == ["mine"]
    assert (await resources.get_tenant(scoped, "mine")).name == "mine"
    assert (await resources.list_targets(scoped)).items == []
    for call in (
        lambda: resources.get_tenant(scoped, "theirs"),
        lambda: resources.get_queue(scoped, "mail"),
        lambda: resources.get_target(scoped, "example.com"),
        lambda: limits.set_queue(scoped, "mail", QueueSettings(), Write()),
        lambda: limits.set_target(scoped, "example.com", Limits(), Write()),
    ):
        with pytest.raises(NotFound):
            await call()
    for tenant in ("mine", "theirs"):
        with pytest.raises(Forbidden):
            await limits.set_tenant(scoped, tenant, TenantSettings(), Write())


async def test_an_administrator_of_one_tenant_cannot_lift_its_limits(api: Client, admin: str):
    await api.put("/api/v1/tenants/acme", {"max_jobs": 1}, headers=bearing(admin))
    acme = bearing(await made(api, "admin", "acme", headers=bearing(admin)))
    answer = await api.put("/api/v1/tenants/acme", {"weight": 1000}, headers=acme)
    assert answer.is_problem(403, "forbidden")
    kept = await api.send("GET", "/api/v1/tenants/acme", key=None, headers=acme)
    assert kept.body["max_jobs"] == 1


async def test_the_jobs_of_a_tenant_make_so_many_queues_and_no_more(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(core, "MAX_QUEUES_PER_TENANT", 2)
    jobs = [await api.created(recurring(tenant_id=tenant)) for tenant in ("acme", "globex")]
    await engine.database.value("update hourbell.queues set made_by = null")
    loud, other = (job["path"] for job in jobs)
    for name in ("a", "b", "a"):
        assert (await api.patch(loud, {"queue": name})).status == 200
    refused = await api.patch(loud, {"queue": "c"})
    assert refused.is_problem(422, "invalid_input")
    assert refused.paths == {"queue"}
    assert "PUT /api/v1/queues" in refused.body["detail"]
    assert (await api.get("/api/v1/queues/c")).status == 404
    # Other tenants are not concerned, and what another one has made can be used by all.
    assert (await api.patch(other, {"queue": "c"})).status == 200
    assert (await api.put("/api/v1/queues/d", {})).status == 200
    for name in ("c", "d"):
        assert (await api.patch(loud, {"queue": name})).status == 200


@pytest.mark.parametrize("path", ["tenants/acme", "queues/mail", "targets/example.com"])
async def test_settings_have_a_version_and_are_not_written_over_another(api: Client, path: str):
    path = f"/api/v1/{path}"
    refused = await api.put(path, {"max_concurrency": 1}, headers={"If-Match": '"7"'})
    assert refused.is_problem(412, "precondition_failed")
    assert (await api.get(path)).is_problem(404, "not_found")  # nothing was created
    first = await api.put(path, {"max_concurrency": 1}, headers={"If-Match": '"0"'}, key="first")
    assert first.status == 200
    assert first.headers["ETag"] == f'"{first.body["version"]}"'
    assert (await api.get(path)).headers["ETag"] == first.headers["ETag"]
    seen = {"If-Match": first.headers["ETag"]}
    second = await api.put(path, {"max_concurrency": 2}, headers=seen)
    assert second.status == 200
    assert second.body["version"] != first.body["version"]
    for stale in (seen, {"If-Match": '"0"'}):
        refused = await api.put(path, {"max_concurrency": 3}, headers=stale)
        assert refused.is_problem(412, "precondition_failed")
    assert (await api.get(path)).body["max_concurrency"] == 2
    repeated = await api.put(path, {"max_concurrency": 1}, headers={"If-Match": '"0"'}, key="first")
    assert repeated.status == 200  # of a request that was done, whatever the version is now
    assert (await api.put(path, {})).body["version"] == 0
    listed = (await api.get(path.rpartition("/")[0])).body["items"]
    assert 0 in [each["version"] for each in listed]


async def test_administrators_who_change_other_settings_at_once_lose_nothing(api: Client):
    path = "/api/v1/tenants/acme"
    wanted = {"weight": 2.5, "max_jobs": 7, "max_concurrency": 3, "ledger_days": 7, "audit_days": 9}

    async def change(name: str, value: float) -> None:
        while True:
            read = await api.get(path)
            known = read.body if read.status == 200 else {"version": 0}
            merged = {each: known[each] for each in wanted if known.get(each) is not None}
            seen = {"If-Match": f'"{known["version"]}"'}
            done = await api.put(path, merged | {name: value}, headers=seen)
            if done.status == 200:
                return
            assert done.is_problem(412, "precondition_failed") or done.is_problem(503, "busy")

    await asyncio.gather(*(change(name, value) for name, value in wanted.items()))
    now = (await api.get(path)).body
    assert {name: now[name] for name in wanted} == wanted
