"""POST and DELETE /api/v1/session, GET /api/v1/me: how a browser signs in, and what it may do then."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from hourbell import __version__
from hourbell.api import auth
from hourbell.api.app import ROUTES
from hourbell.api.sign_ins import operations_by_role
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.sign_ins import IDLE, LIFETIME
from hourbell.security.access import KeyRole
from integration.api.client import KEYS, Answer, Client, bearing, made, one_time
from integration.api.roles import REFUSED_WITHIN_A_TENANT, ROLES
from integration.api.test_auth import node
from integration.life.support import eventually

SESSION = "/api/v1/session"
ME = "/api/v1/me"
# What a browser sends from a page of the server; the last header is our page's own.
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin", "X-Hourbell-Client": "dashboard"}


async def test_a_browser_signs_in_once_and_is_known_by_its_cookie(api: Client, admin: str):
    answer = await sign_in(api, admin)
    assert answer.status == 200
    name, value, flags = cookie_of(answer)
    assert name == "hourbell"
    assert len(value) == 43
    assert flags == {"path=/", "httponly", "samesite=strict", "max-age=604800"}
    me = await by_cookie(api, answer, "GET", ME)
    assert me.status == 200
    assert me.body == answer.body
    assert me.body["name"] == "admin"
    assert me.body["role"] == "admin"
    assert me.body["tenant_id"] is None
    assert me.body["version"] == __version__
    assert me.body["requires_keys"] is True
    assert me.body["authenticated_by"] == "session"
    assert me.body["key_id"].startswith("key_")
    assert me.body["session_expires_at"] is not None


async def test_over_https_the_cookie_is_bound_to_the_host_and_to_encryption(
    api: Client, admin: str
):
    for headers in ({"Origin": "https://bell.example.com"}, {"Host": "bell.example.com"}):
        answer = await sign_in(api, admin, **headers)
        name, _, flags = cookie_of(answer)
        assert name == "__Host-hourbell"
        assert flags == {"path=/", "httponly", "samesite=strict", "max-age=604800", "secure"}
        assert (await by_cookie(api, answer, "GET", ME)).body["authenticated_by"] == "session"


async def test_the_database_has_neither_the_key_nor_the_cookie(
    api: Client, admin: str, engine: Engine
):
    _, value, _ = cookie_of(await sign_in(api, admin))
    rows = str(await engine.database.fetch("select * from hourbell.sign_ins"))
    assert value not in rows
    assert admin not in rows


async def test_a_write_by_cookie_must_come_from_a_page_of_this_server(api: Client, admin: str):
    session = await sign_in(api, admin)
    host = f"127.0.0.1:{api.http._base_url.port}"  # type: ignore[union-attr]
    good: list[dict[str, str]] = [
        SAME_ORIGIN,
        {"Origin": f"http://{host}", "X-Hourbell-Client": "dashboard"},
    ]
    bad: list[dict[str, str]] = [
        {},
        {"X-Hourbell-Client": "dashboard"},
        {"Sec-Fetch-Site": "same-origin"},
        SAME_ORIGIN | {"X-Hourbell-Client": "another"},
        SAME_ORIGIN | {"Sec-Fetch-Site": "same-site"},
        SAME_ORIGIN | {"Sec-Fetch-Site": "cross-site", "Origin": f"http://{host}"},
        SAME_ORIGIN | {"Sec-Fetch-Site": "none"},
        {"Origin": "null", "X-Hourbell-Client": "dashboard"},
        {"Origin": "http://[", "X-Hourbell-Client": "dashboard"},
        {"Host": "", "X-Hourbell-Client": "dashboard"},
        {"Origin": "http://evil.example.com", "X-Hourbell-Client": "dashboard"},
        {"Origin": f"http://{host}0", "X-Hourbell-Client": "dashboard"},
        {"Origin": f"http://{host}@evil.example.com", "X-Hourbell-Client": "dashboard"},
    ]
    for headers in good:
        answer = await by_cookie(api, session, "POST", "/api/v1/jobs", one_time(), **headers)
        assert answer.status == 201, headers
    for headers in bad:
        answer = await by_cookie(api, session, "POST", "/api/v1/jobs", one_time(), **headers)
        assert answer.is_problem(403, "cross_site_request"), headers
        ended = await by_cookie(api, session, "DELETE", SESSION, key=None, **headers)
        assert ended.is_problem(403, "cross_site_request"), headers
        begun = await api.post(SESSION, {"api_key": admin}, key=None, headers=headers)
        assert begun.is_problem(403, "cross_site_request"), headers
    assert (await by_cookie(api, session, "GET", "/api/v1/jobs")).status == 200


async def test_a_key_goes_before_a_cookie(api: Client, admin: str):
    viewer = await made(api, "viewer", headers=bearing(admin))
    session = await sign_in(api, admin)
    me = await by_cookie(api, session, "GET", ME, **bearing(viewer))
    assert (me.body["role"], me.body["authenticated_by"]) == ("viewer", "key")
    assert me.body["session_expires_at"] is None
    unknown = await by_cookie(api, session, "GET", ME, **bearing("hb_" + "x" * 43))
    assert unknown.is_problem(401, "unauthenticated")
    # A program that sends a key needs no proof of its origin.
    answer = await by_cookie(api, session, "POST", "/api/v1/jobs", one_time(), **bearing(admin))
    assert answer.status == 201


async def test_signing_out_ends_the_session_and_clears_the_cookie(api: Client, admin: str):
    session = await sign_in(api, admin)
    other = await sign_in(api, admin)
    answer = await by_cookie(api, session, "DELETE", SESSION, key=None, **SAME_ORIGIN)
    assert (answer.status, answer.body) == (200, {"status": "signed_out"})
    name, value, flags = cookie_of(answer)
    assert (name, value) == ("hourbell", "")
    assert "max-age=0" in flags
    again = await by_cookie(api, session, "DELETE", SESSION, key=None, **SAME_ORIGIN)
    assert again.status == 200
    assert (await api.delete(SESSION, key=None)).status == 200
    assert (await by_cookie(api, session, "GET", ME)).is_problem(401, "unauthenticated")
    assert (await by_cookie(api, other, "GET", ME)).status == 200


async def test_signing_in_again_ends_the_session_before(api: Client, admin: str):
    before = await sign_in(api, admin)
    assert (await by_cookie(api, before, "GET", ME)).status == 200
    again = await sign_in(api, admin, **session_of(before))
    assert (await by_cookie(api, before, "GET", ME)).is_problem(401, "unauthenticated")
    assert (await by_cookie(api, again, "GET", ME)).status == 200


async def test_over_https_a_cookie_that_another_host_may_have_set_does_not_count(
    api: Client, admin: str
):
    session = await sign_in(api, admin)
    assert cookie_of(session)[0] == "hourbell"
    https = {"Host": "bell.example.com", "Sec-Fetch-Site": "same-origin"}
    answer = await by_cookie(api, session, "GET", ME, **https)
    assert answer.is_problem(401, "unauthenticated")
    http = {"Host": "bell.example.com"}  # over which browsers do not send Sec-Fetch-Site
    assert (await by_cookie(api, session, "GET", ME, **http)).status == 200


async def test_revoking_a_key_ends_its_sessions(api: Client, admin: str):
    viewer = await made(api, "viewer", headers=bearing(admin))
    session = await sign_in(api, viewer)
    key_id = (await by_cookie(api, session, "GET", ME)).body["key_id"]
    assert (await api.delete(f"{KEYS}/{key_id}", headers=bearing(admin))).status == 200

    async def is_over() -> bool:
        return (await by_cookie(api, session, "GET", ME)).is_problem(401, "unauthenticated")

    await eventually(is_over, 5)
    assert (await sign_in(api, viewer)).is_problem(401, "unauthenticated")


@pytest.mark.parametrize(
    ("column", "age", "over"),
    [
        ("used_at", IDLE - timedelta(minutes=1), False),
        ("used_at", IDLE, True),
        ("created_at", LIFETIME - timedelta(minutes=1), False),
        ("created_at", LIFETIME, True),
    ],
)
async def test_a_session_ends_by_its_age_and_when_it_is_not_used(
    api: Client,
    admin: str,
    engine: Engine,
    remote: RemoteWorkers,
    column: str,
    age: timedelta,
    over: bool,
):
    session = await sign_in(api, admin)
    ages = {"used_at": timedelta(0), "created_at": timedelta(0)} | {column: age}
    await engine.database.fetch(
        "update hourbell.sign_ins set used_at = used_at - $1::interval,"
        " created_at = created_at - $2::interval",
        *ages.values(),
    )
    async with node(engine, api, remote, local=True) as fresh:  # it has nothing cached
        answer = await by_cookie(fresh, session, "GET", ME)
    assert answer.is_problem(401, "unauthenticated") == over
    now = await engine.clock.now()
    used = await engine.database.value("select used_at from hourbell.sign_ins")
    assert (now - used < timedelta(minutes=1)) == (column == "created_at" or not over)
    await run_housekeeping(engine, None, now)
    left = await engine.database.value("select count(*) from hourbell.sign_ins")
    assert left == (0 if (column, over) == ("used_at", True) else 1)


async def test_unknown_keys_that_sign_in_are_limited_like_other_unknown_keys(
    api: Client, admin: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    statuses = [(await sign_in(api, "hb_" + "x" * 43)).status for _ in range(auth.MAX_FAILURES + 1)]
    assert statuses == [401] * auth.MAX_FAILURES + [429]
    assert (await sign_in(api, "no key at all")).status == 429
    assert (await sign_in(api, admin)).status == 200


async def test_a_worker_cannot_sign_in(api: Client, admin: str):
    worker = await made(api, "worker", headers=bearing(admin))
    answer = await sign_in(api, worker)
    assert answer.is_problem(403, "forbidden")
    assert "key belongs to a worker" in answer.body["detail"]


async def test_a_body_that_is_no_sign_in_is_refused(api: Client, admin: str):
    for document in (
        {},
        {"api_key": 1},
        {"api_key": admin, "colour": "red"},
        {"api_key": "x" * 201},
    ):
        answer = await api.post(SESSION, document, key=None, headers=SAME_ORIGIN)
        assert answer.is_problem(422, "invalid_input"), document


async def test_a_server_without_keys_needs_no_sign_in(api: Client):
    me = await api.get(ME)
    assert me.body | {"operations": []} == {
        "key_id": None,
        "name": "anonymous",
        "role": "admin",
        "tenant_id": None,
        "version": __version__,
        "requires_keys": False,
        "authenticated_by": "nothing",
        "session_expires_at": None,
        "operations": [],
    }
    assert "create_key" in me.body["operations"]
    stale = await api.send("GET", ME, key=None, headers={"Cookie": f"hourbell={'x' * 43}"})
    assert stale.body["authenticated_by"] == "nothing"


async def test_me_lists_what_the_role_may_call(api: Client, admin: str):
    ids = {f"{route.method} {route.path}": route.operation_id for route in ROUTES}
    for role in KeyRole:
        key = await made(api, role.value, headers=bearing(admin))
        me = await api.send("GET", ME, key=None, headers=bearing(key))
        allowed = {each for each, roles in ROLES.items() if roles is None or role in roles}
        assert me.body["operations"] == sorted(ids[each] for each in allowed)


def test_of_one_tenant_what_is_the_cells_is_not_listed():
    ids = {f"{route.method} {route.path}": route.operation_id for route in ROUTES}
    operations = operations_by_role(ROUTES)
    left_out = set(operations[KeyRole.ADMIN, False]) - set(operations[KeyRole.ADMIN, True])
    assert left_out == {ids[each] for each in REFUSED_WITHIN_A_TENANT}


async def test_only_so_many_sessions_of_a_key_are_kept(
    api: Client, admin: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hourbell.engine.operations.sign_ins._MAX_PER_KEY", 2)
    for _ in range(4):
        last = await sign_in(api, admin)
    assert await engine.database.value("select count(*) from hourbell.sign_ins") == 2
    assert (await by_cookie(api, last, "GET", ME)).status == 200


async def sign_in(api: Client, key: str, **headers: str) -> Answer:
    return await api.post(SESSION, {"api_key": key}, key=None, headers=SAME_ORIGIN | headers)


async def by_cookie(
    api: Client, session: Answer, method: str, path: str, json: Any = None, **headers: Any
) -> Answer:
    key = {} if method != "GET" and "key" not in headers else {"key": headers.pop("key", None)}
    return await api.send(method, path, json, headers=session_of(session) | headers, **key)


def session_of(answer: Answer) -> dict[str, str]:
    """What a browser sends that has signed in by this answer."""
    name, value, _ = cookie_of(answer)
    return {"Cookie": f"{name}={value}"}


def cookie_of(answer: Answer) -> tuple[str, str, set[str]]:
    """Name, value and flags of the only cookie that an answer sets."""
    (header,) = answer.headers.getall("Set-Cookie")
    first, *flags = header.split("; ")
    name, _, value = first.partition("=")
    return name, value.strip('"'), {flag.lower() for flag in flags}
