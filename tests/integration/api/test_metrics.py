"""GET /metrics: who may read it, also while the database is away."""

import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from hourbell.api import auth
from integration.api.client import Client, bearing, made
from integration.api.test_sign_ins import session_of, sign_in
from integration.life.support import eventually


@pytest.fixture(autouse=True)
def _asks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(auth, "KEYLESS_SECONDS", 0.0)


@contextlib.asynccontextmanager
async def outage(database: str) -> AsyncIterator[None]:
    """Within it, the database does not say which keys there are."""
    connection = await asyncpg.connect(database)
    try:
        async with connection.transaction():
            await connection.execute("lock table hourbell.api_keys in access exclusive mode")
            with pytest.MonkeyPatch.context() as patch:
                # Here only: a machine that stalls would make an outage of any look-up.
                patch.setattr(auth, "OUTAGE_SECONDS", 0.2)
                yield
    finally:
        await connection.close()


async def test_a_server_of_this_machine_shows_its_metrics_until_there_is_a_key(api: Client):
    answer = await api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    await made(api, "admin")
    assert (await api.get("/metrics")).is_problem(401, "unauthenticated")


async def test_the_key_of_a_tenant_is_refused_and_told_which_one_to_use(api: Client, admin: str):
    acme = bearing(await made(api, "viewer", "acme", headers=bearing(admin)))
    answer = await api.send("GET", "/metrics", key=None, headers=acme)
    assert answer.is_problem(403, "forbidden")
    assert "a key with the role viewer and no tenant" in answer.body["detail"]


async def test_a_key_that_was_accepted_is_accepted_while_the_database_is_away_and_no_other(
    api: Client, admin: str, database: str
):
    known = bearing(await made(api, "viewer", headers=bearing(admin)))
    unknown = bearing(await made(api, "viewer", headers=bearing(admin)))
    browser = session_of(await sign_in(api, admin))
    for headers in (known, browser):
        assert (await api.send("GET", "/metrics", key=None, headers=headers)).status == 200
    async with outage(database):
        for headers in (known, browser):
            assert (await api.send("GET", "/metrics", key=None, headers=headers)).status == 200
        for headers in (unknown, {}, {"Cookie": f"hourbell={'x' * 43}"}):
            refused = await api.send("GET", "/metrics", key=None, headers=headers)
            assert refused.status in (401, 503)

    async def is_known_again() -> bool:
        return (await api.send("GET", "/metrics", key=None, headers=unknown)).status == 200

    await eventually(is_known_again, 10)  # look-ups that were given up may still be ending


async def test_a_server_without_keys_shows_its_metrics_while_the_database_is_away(
    api: Client, database: str
):
    assert (await api.get("/metrics")).status == 200
    async with outage(database):
        assert (await api.get("/metrics")).status == 200
        strange = {"Host": "rebound.example.com"}
        answer = await api.send("GET", "/metrics", key=None, headers=strange)
        assert answer.is_problem(421, "misdirected")
