"""Who may call, with which key."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest

from hourbell.api import auth
from hourbell.api.app import ROUTES, create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.documents.keys import NewKey
from hourbell.engine.core import Engine
from hourbell.engine.operations.api_keys import KEYLESS_SECONDS, create_key
from hourbell.engine.operations.idempotency import Write
from hourbell.security.access import KeyRole
from integration.api.client import KEY_RING, KEYS, Client, answers, bearing, made, one_time
from integration.api.conftest import KnownHealth
from integration.api.roles import REFUSED_WITHIN_A_TENANT, ROLES
from integration.life.support import eventually

NOBODY = {
    "{job_id}": "job_0ahr000000000",
    "{execution_id}": "exe_0ahr000000000",
    "{key_id}": "key_0ahr000000000",
    "{monitor_id}": "mon_0ahr000000000",
    "{group_id}": "grp_0ahr000000000",
    "{session_id}": "ses_0ahr000000000",
    "{operation_id}": "ops_0ahr000000000",
    "{name}": "nobody-knows-it",
    "{host}": "nobody.example.com",
}


@pytest.fixture
async def public(engine: Engine, api: Client, remote: RemoteWorkers) -> AsyncIterator[Client]:
    """A second node, which others than this machine can reach."""
    async with node(engine, api, remote, local=False) as client:
        yield client


@pytest.fixture
async def other(engine: Engine, api: Client, remote: RemoteWorkers) -> AsyncIterator[Client]:
    """A second node of this machine."""
    async with node(engine, api, remote, local=True) as client:
        yield client


@contextlib.asynccontextmanager
async def node(
    engine: Engine, api: Client, remote: RemoteWorkers, local: bool
) -> AsyncIterator[Client]:
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=local), "127.0.0.1", 0
    )
    await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        yield Client(http, api.document)
    await server.stop()


async def test_a_server_of_this_machine_is_open_until_there_is_a_key(api: Client, admin: str):
    answer = await api.get("/api/v1/jobs")
    assert answer.is_problem(401, "unauthenticated")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert (await api.send("GET", "/api/v1/jobs", key=None, headers=bearing(admin))).status == 200


async def test_the_node_that_creates_the_first_key_is_closed_before_it_answers(api: Client):
    assert (await api.get("/api/v1/jobs")).status == 200  # remembered: no key is needed
    await made(api, "admin")
    assert (await api.get("/api/v1/jobs")).is_problem(401, "unauthenticated")


@pytest.mark.parametrize("created_by", ["another node", "hourbell keys create"])
async def test_every_other_node_is_closed_within_a_second_of_the_first_key(
    api: Client, other: Client, engine: Engine, created_by: str
):
    for node in (api, other):
        assert (await node.get("/api/v1/jobs")).status == 200
    if created_by == "another node":
        await made(api, "admin")
    else:
        await create_key(engine, NewKey("cli", KeyRole.ADMIN, None), Write(actor="hourbell keys"))
    await asyncio.sleep(KEYLESS_SECONDS)  # the whole of the bound, without a notification
    for node in (api, other):
        assert (await node.get("/api/v1/jobs")).is_problem(401, "unauthenticated")


async def test_requests_at_the_same_moment_look_for_keys_together(
    other: Client, monkeypatch: pytest.MonkeyPatch
):
    looks = arrived = 0
    all_there = asyncio.Event()
    is_keyless = auth.Authenticator._is_keyless

    async def arrives(authenticator: auth.Authenticator) -> bool:
        nonlocal arrived
        arrived += 1
        if arrived == 50:
            all_there.set()
        return await is_keyless(authenticator)

    async def counted(engine: Engine) -> bool:
        nonlocal looks
        looks += 1
        await all_there.wait()
        return True

    monkeypatch.setattr(auth.Authenticator, "_is_keyless", arrives)
    monkeypatch.setattr(auth, "is_keyless", counted)
    found = await asyncio.gather(*(other.get("/api/v1/jobs") for _ in range(50)))
    assert [each.status for each in found] == [200] * 50
    assert looks <= 4  # at first two groups, and each may be followed by one of later requests


def test_the_bound_of_an_open_node_is_as_documented():
    assert KEYLESS_SECONDS == 1.0


async def test_an_open_server_answers_only_under_the_names_of_this_machine(api: Client):
    for host in (
        "rebound.example.com",
        "rebound.example.com:8080",
        "127.0.0.1.example.com",
        "",
        "[::2]",
    ):
        answer = await api.send("GET", "/api/v1/jobs", key=None, headers={"Host": host})
        assert answer.is_problem(421, "misdirected"), host
    for host in ("localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "[::1]"):
        answer = await api.send("GET", "/api/v1/jobs", key=None, headers={"Host": host})
        assert answer.status == 200, host


async def test_a_server_that_others_can_reach_is_never_open(public: Client):
    assert (await public.get("/api/v1/jobs")).is_problem(401, "unauthenticated")
    for path in ("/livez", "/readyz", "/schema/openapi.json", "/"):
        assert (await public.get(path)).status == 200


async def test_what_is_no_key_is_refused(public: Client, admin: str):
    for value in (
        "",
        "Bearer",
        "Bearer ",
        f"Basic {admin}",
        f"bearer{admin}",
        f"Bearer {admin}x",
        f"Bearer {admin[:-1]}",
    ):
        answer = await public.send(
            "GET", "/api/v1/jobs", key=None, headers={"Authorization": value}
        )
        assert answer.is_problem(401, "unauthenticated"), value


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER ", "Bearer  "])
async def test_the_scheme_of_a_key_has_letters_of_any_case(public: Client, admin: str, scheme: str):
    for path in ("/api/v1/jobs", "/metrics"):
        headers = {"Authorization": f"{scheme}{admin}"}
        answer = await public.http.get(path, headers=headers)
        assert answer.status == 200


async def test_the_first_key_must_be_an_administrators_of_all_tenants(api: Client):
    for role, tenant in (("viewer", None), ("admin", "acme"), ("worker", None)):
        answer = await api.post(KEYS, {"name": "first", "role": role, "tenant_id": tenant})
        assert answer.is_problem(409, "conflict")
    await made(api, "admin")


async def test_unknown_keys_are_refused_unread_after_some(
    public: Client, admin: str, monkeypatch: pytest.MonkeyPatch
):
    now = [1000.0]  # stands still: how fast the machine is decides nothing
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: now[0]))
    known = bearing(admin)
    assert (await public.send("GET", "/api/v1/jobs", key=None, headers=known)).status == 200
    unknown = bearing("hb_" + "x" * 43)
    statuses = []
    for _ in range(auth.MAX_FAILURES + 5):
        answer = await public.send("GET", "/api/v1/jobs", key=None, headers=unknown)
        statuses.append(answer.status)
    assert statuses[: auth.MAX_FAILURES] == [401] * auth.MAX_FAILURES
    assert statuses[-1] == 429
    assert answer.headers["Retry-After"] == str(auth.SECONDS_PER_FAILURE)
    # A known caller is not delayed by another one with the same address.
    assert (await public.send("GET", "/api/v1/jobs", key=None, headers=known)).status == 200
    now[0] += auth.SECONDS_PER_FAILURE
    assert await answers(public, 401, unknown)


async def test_a_valid_key_is_not_held_up_by_unknown_ones_from_its_address(api: Client, admin: str):
    fresh = await made(api, "viewer", headers=bearing(admin))  # never used before
    statuses = [
        (await api.send("GET", "/api/v1/jobs", key=None, headers=bearing("hb_" + "x" * 43))).status
        for _ in range(25)
    ]
    assert statuses[-1] == 429
    assert (await api.send("GET", "/api/v1/jobs", key=None, headers=bearing(fresh))).status == 200


async def test_a_revoked_key_is_refused_on_every_node_within_five_seconds(
    api: Client, public: Client, admin: str
):
    viewer = await made(api, "viewer", headers=bearing(admin))
    for node in (api, public):
        assert (
            await node.send("GET", "/api/v1/jobs", key=None, headers=bearing(viewer))
        ).status == 200
    listed = await api.send("GET", KEYS, key=None, headers=bearing(admin))
    (key_id,) = [item["key_id"] for item in listed.body["items"] if item["role"] == "viewer"]
    assert (await api.delete(f"{KEYS}/{key_id}", headers=bearing(admin))).status == 200
    for node in (api, public):
        await eventually(lambda node=node: answers(node, 401, bearing(viewer)), 5)


async def test_the_location_of_a_new_key_leads_to_the_key(api: Client, admin: str):
    made = await api.post(KEYS, {"name": "ops", "role": "viewer"}, headers=bearing(admin))
    assert made.status == 201
    found = await api.send("GET", made.headers["Location"], key=None, headers=bearing(admin))
    assert found.status == 200
    assert found.body == {name: value for name, value in made.body.items() if name != "key"}
    unknown = await api.send("GET", f"{KEYS}/key_0000000000000", key=None, headers=bearing(admin))
    assert unknown.status == 404


async def test_the_last_administrator_cannot_be_revoked(api: Client, admin: str):
    listed = await api.send("GET", KEYS, key=None, headers=bearing(admin))
    (only,) = listed.body["items"]
    path = f"{KEYS}/{only['key_id']}"
    assert (await api.delete(path, headers=bearing(admin))).is_problem(409, "conflict")
    another = await made(api, "admin", headers=bearing(admin))
    assert (await api.delete(path, headers=bearing(another))).status == 200


def test_every_operation_is_in_the_table_of_roles():
    assert {f"{route.method} {route.path}" for route in ROUTES} == ROLES.keys()


async def test_roles_may_call_what_the_table_says_and_nothing_else(
    api: Client, public: Client, admin: str
):
    keys = {role: await made(api, role.value, headers=bearing(admin)) for role in KeyRole}
    for operation, allowed in ROLES.items():
        method, path = operation.split()
        url = of_nobody(path)
        for role, key in keys.items():
            # Without a body and without an idempotency key: a request that gets past the check changes nothing.
            answer = await public.send(method, url, key=None, headers=bearing(key))
            if allowed is not None and role not in allowed:
                assert answer.is_problem(403, "forbidden"), (operation, role)
            else:
                assert answer.status not in (401, 403), (operation, role)
        keyless = await public.send(method, url, key=None)
        assert keyless.is_problem(401, "unauthenticated") == (allowed is not None), operation


async def test_the_document_tells_the_roles_of_the_table(api: Client):
    told = {
        f"{method.upper()} {path}": operation.get("x-roles")
        for path, operations in api.document["paths"].items()
        for method, operation in operations.items()
    }
    assert told == {
        operation: None if allowed is None else sorted(allowed)
        for operation, allowed in ROLES.items()
    }


async def test_an_administrator_of_one_tenant_is_refused_what_is_the_cells_and_nothing_else(
    api: Client, admin: str
):
    acme = bearing(await made(api, "admin", "acme", headers=bearing(admin)))
    for operation in ROLES:
        method, path = operation.split()
        url = of_nobody(path).replace("/tenants/nobody-knows-it", "/tenants/acme")
        status = REFUSED_WITHIN_A_TENANT.get(operation)
        if status is None:
            answer = await api.send(method, url, key=None, headers=acme)
            assert answer.status not in (401, 403), operation
        else:
            answer = await api.send(method, url, {}, headers=acme)
            assert answer.status == status, operation


def of_nobody(path: str) -> str:
    """The path of an operation with ids and names that nothing has."""
    for parameter, value in NOBODY.items():
        path = path.replace(parameter, value)
    assert "{" not in path, "teach this test the parameter"
    return path


async def test_a_tenant_is_the_keys_and_not_the_documents(api: Client, admin: str):
    acme = bearing(await made(api, "producer", "acme", headers=bearing(admin)))
    other = await api.post("/api/v1/jobs", one_time(tenant_id="globex"), headers=acme)
    assert other.is_problem(403, "forbidden")
    own = await api.post("/api/v1/jobs", one_time(), headers=acme)
    assert (own.status, own.body["tenant_id"]) == (201, "acme")
    same = await api.post("/api/v1/jobs", one_time(tenant_id="acme"), headers=acme)
    assert same.status == 201


async def test_a_list_within_a_tenant_has_nothing_of_others(api: Client, admin: str):
    acme = bearing(await made(api, "viewer", "acme", headers=bearing(admin)))
    for tenant in ("acme", "globex"):
        await api.post("/api/v1/jobs", one_time(tenant_id=tenant), headers=bearing(admin))
    listed = await api.send("GET", "/api/v1/jobs", key=None, headers=acme)
    assert [item["tenant_id"] for item in listed.body["items"]] == ["acme"]
    other = await api.send("GET", "/api/v1/jobs?tenant_id=globex", key=None, headers=acme)
    assert other.is_problem(403, "forbidden")


async def test_an_administrator_of_one_tenant_makes_keys_for_that_one(api: Client, admin: str):
    acme = bearing(await made(api, "admin", "acme", headers=bearing(admin)))
    answer = await api.post(KEYS, {"name": "p", "role": "producer"}, headers=acme)
    assert (answer.status, answer.body["tenant_id"]) == (201, "acme")
    other = await api.post(
        KEYS, {"name": "p", "role": "producer", "tenant_id": "globex"}, headers=acme
    )
    assert other.is_problem(403, "forbidden")
    worker = await api.post(KEYS, {"name": "w", "role": "worker"}, headers=acme)
    assert worker.is_problem(422, "invalid_input")
    listed = await api.send("GET", KEYS, key=None, headers=acme)
    assert {item["tenant_id"] for item in listed.body["items"]} == {"acme"}
    alls = await api.send("GET", KEYS, key=None, headers=bearing(admin))
    foreign = next(item["key_id"] for item in alls.body["items"] if item["tenant_id"] is None)
    assert (await api.delete(f"{KEYS}/{foreign}", headers=acme)).is_problem(404, "not_found")


async def test_a_key_is_shown_once(api: Client, admin: str):
    document = {"name": "again", "role": "viewer"}
    first = await api.post(KEYS, document, key="the-same", headers=bearing(admin))
    again = await api.post(KEYS, document, key="the-same", headers=bearing(admin))
    assert first.body["key"].startswith("hb_")
    assert again.status == 201
    assert again.body == {**first.body, "key": None}
    listed = await api.send("GET", KEYS, key=None, headers=bearing(admin))
    assert first.body["key"] not in str(listed.body)
    assert len(listed.body["items"]) == 2


async def test_the_database_has_no_key(api: Client, admin: str, engine: Engine):
    rows = await engine.database.fetch("select * from hourbell.api_keys")
    kept = await engine.database.fetch("select response::text from hourbell.idempotency")
    assert admin not in str(rows) + str(kept)


async def test_the_audit_trail_says_whose_key_it_was(api: Client, admin: str, engine: Engine):
    await api.post("/api/v1/jobs", one_time(), headers=bearing(admin))
    actor = await engine.database.value("select actor from hourbell.audit order by id desc limit 1")
    assert actor.startswith("admin (key_")
