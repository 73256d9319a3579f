"""/api/v1/secrets"""

import asyncio
import time
from datetime import datetime
from typing import Any

import asyncpg
import pytest

from hourbell.documents.secrets import NewSecret
from hourbell.engine.core import Engine
from hourbell.engine.operations import secrets as secrets_module
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.secrets import StoredSecrets, reseal, set_secret
from hourbell.model.errors import IdempotencyKeyReused, NoSecretKeys, StoreUnavailable
from hourbell.security.sealing import KeyRing
from integration.api.client import KEY_RING, Client, one_time
from integration.life.support import eventually

SECRET = "/api/v1/secrets/token"


async def test_a_secret_comes_in_and_its_value_never_goes_out(api: Client, engine: Engine):
    answer = await api.send("PUT", SECRET, {"value": "the canary sings"})
    assert (answer.status, answer.body["name"], answer.body["value"]) == (200, "token", None)
    listed = await api.get("/api/v1/secrets")
    assert [item["name"] for item in listed.body["items"]] == ["token"]
    found = await StoredSecrets(engine, KEY_RING).values("default", ["token", "other"])
    assert {name: secret.value for name, secret in found.items()} == {"token": "the canary sings"}
    everything = str(answer.body) + str(listed.body)
    for table in ("secrets", "audit", "idempotency"):
        rows = await engine.database.fetch(f"select t::text from hourbell.{table} as t")  # noqa: S608
        everything += str(rows)
    assert "canary" not in everything
    assert b"canary".hex() not in everything


async def test_a_secret_that_is_made_here_is_shown_once(api: Client):
    first = await api.send("PUT", SECRET, {"generate": "signing"}, key="once")
    again = await api.send("PUT", SECRET, {"generate": "signing"}, key="once")
    assert first.body["value"].startswith("whsec_")
    later = again.body["effective_at"]
    assert later >= first.body["effective_at"]
    assert again.body == {**first.body, "value": None, "effective_at": later}


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("webhook-signing", "not a signing secret", "begin with whsec_"),
        ("webhook-signing", "whsec_c2hvcnQ=", "24 to 64 bytes"),
        ("partner", "whsec_not base64!", "must be base64 after whsec_"),
    ],
)
async def test_a_value_that_no_webhook_can_be_signed_with_is_refused(
    api: Client, name: str, value: str, why: str
):
    answer = await api.put(f"/api/v1/secrets/{name}", {"value": value})
    assert answer.is_problem(422, "invalid_input")
    [error] = answer.body["errors"]
    assert error["path"] == "value"
    assert why in error["message"]
    assert (await api.get("/api/v1/secrets")).body["items"] == []


async def test_a_signing_secret_is_only_replaced_by_another_one(api: Client, engine: Engine):
    path = "/api/v1/secrets/partner"
    value = (await api.put(path, {"generate": "signing"})).body["value"]
    answer = await api.put(path, {"value": "a token of the partner"})
    assert answer.is_problem(422, "invalid_input")
    assert "delete the secret first" in answer.body["errors"][0]["message"]
    kept = (await StoredSecrets(engine, KEY_RING).values("default", ["partner"]))["partner"]
    assert kept.value == value
    assert (await api.put(path, {"generate": "signing"})).status == 200
    await api.delete(path)
    assert (await api.put(path, {"value": "a token of the partner"})).status == 200


async def test_a_job_cannot_name_a_secret_that_cannot_sign(api: Client):
    await api.put("/api/v1/secrets/partner", {"value": "a token of the partner"})
    action = {"type": "WEBHOOK", "url": "https://example.com/", "signing_secret": "partner"}
    answer = await api.post("/api/v1/jobs", one_time(action=action))
    assert answer.is_problem(422, "invalid_input")
    [error] = answer.body["errors"]
    assert error["path"] == "action.signing_secret"
    assert "cannot sign webhooks" in error["message"]
    await api.delete("/api/v1/secrets/partner")
    await api.put("/api/v1/secrets/partner", {"generate": "signing"})
    assert (await api.post("/api/v1/jobs", one_time(action=action))).status == 201


async def test_a_new_value_says_from_when_webhooks_use_it(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    """A worker that has read the old value uses it until then, and no longer."""
    await api.send("PUT", SECRET, {"value": "the first value"})
    source = StoredSecrets(engine, KEY_RING)
    await source.values("default", ["token"])
    answer = await api.send("PUT", SECRET, {"value": "the second value"}, key="again")
    committed = await engine.clock.now()
    effective_at = datetime.fromisoformat(answer.body["effective_at"])
    passed = (effective_at - committed).total_seconds()
    assert 0 < passed <= secrets_module.IN_USE_SECONDS
    read_at = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: read_at + passed)
    assert (await source.values("default", ["token"]))["token"].value == "the second value"
    again = await api.send("PUT", SECRET, {"value": "the second value"}, key="again")
    assert again.body["effective_at"] >= answer.body["effective_at"]


async def test_the_value_before_counts_as_long_as_was_asked(api: Client, engine: Engine):
    await api.send("PUT", SECRET, {"value": "the first value"})
    answer = await api.send(
        "PUT", SECRET, {"value": "the second value", "keep_previous_seconds": 3600}
    )
    assert answer.body["previous_until"] is not None
    source = StoredSecrets(engine, KEY_RING)
    now = (await source.values("default", ["token"]))["token"]
    assert (now.value, now.previous) == ("the second value", "the first value")
    await engine.database.value("update hourbell.secrets set previous_until = hourbell.clock()")

    async def is_over() -> bool:
        return (await source.values("default", ["token"]))["token"].previous is None

    await eventually(is_over)
    await api.send("PUT", SECRET, {"value": "the third value"})
    now = (await StoredSecrets(engine, KEY_RING).values("default", ["token"]))["token"]
    assert (now.value, now.previous) == ("the third value", None)


async def test_a_worker_sees_a_new_value_within_seconds(api: Client, engine: Engine):
    await api.send("PUT", SECRET, {"value": "the first value"})
    source = StoredSecrets(engine, KEY_RING)
    await source.values("default", ["token"])
    await api.send("PUT", SECRET, {"value": "the second value"})

    async def is_new() -> bool:
        return (await source.values("default", ["token"]))["token"].value == "the second value"

    await eventually(is_new, 5)


async def test_a_deleted_secret_is_gone(api: Client, engine: Engine):
    await api.send("PUT", SECRET, {"value": "the first value"})
    assert (await api.delete(SECRET)).status == 200
    assert (await api.delete(SECRET)).is_problem(404, "not_found")
    assert await StoredSecrets(engine, KEY_RING).values("default", ["token"]) == {}


async def test_secrets_of_tenants_are_apart(api: Client, engine: Engine):
    await api.send("PUT", SECRET, {"value": "one of acme", "tenant_id": "acme"})
    await api.send("PUT", SECRET, {"value": "one of globex", "tenant_id": "globex"})
    source = StoredSecrets(engine, KEY_RING)
    assert (await source.values("acme", ["token"]))["token"].value == "one of acme"
    assert (await source.values("globex", ["token"]))["token"].value == "one of globex"
    assert (await api.get("/api/v1/secrets")).body["items"] == []
    assert (await api.delete(SECRET + "?tenant_id=acme")).status == 200
    assert [
        item["tenant_id"]
        for item in (await api.get("/api/v1/secrets?tenant_id=globex")).body["items"]
    ] == ["globex"]


async def test_what_many_tenants_ask_for_at_once_is_looked_up_together(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    tenants = [f"tenant-{n}" for n in range(20)]
    for tenant in tenants:
        await api.send("PUT", SECRET, {"value": f"the one of {tenant}", "tenant_id": tenant})
    looks = 0
    fetch = engine.database.fetch

    async def counted(statement: str, *args: object) -> list[asyncpg.Record]:
        nonlocal looks
        looks += 1
        return await fetch(statement, *args)

    monkeypatch.setattr(engine.database, "fetch", counted)
    source = StoredSecrets(engine, KEY_RING)
    found = await asyncio.gather(*(source.values(each, ["token", "none"]) for each in tenants))
    assert [{name: one.value for name, one in each.items()} for each in found] == [
        {"token": f"the one of {tenant}"} for tenant in tenants
    ]
    assert looks == 1


async def test_who_waits_for_one_secret_gets_the_newest_of_the_others(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    await api.send("PUT", SECRET, {"value": "the first value"})
    source = StoredSecrets(engine, KEY_RING)
    await source.values("default", ["token"])
    await api.send("PUT", SECRET, {"value": "the second value"})
    asked, go_on = asyncio.Event(), asyncio.Event()
    fetch = engine.database.fetch

    async def held(statement: str, tenants: list[str], names: list[str]) -> Any:
        if "other" in names:
            asked.set()
            await go_on.wait()
        return await fetch(statement, tenants, names)

    monkeypatch.setattr(engine.database, "fetch", held)
    waiting = asyncio.create_task(source.values("default", ["token", "other"]))
    await asked.wait()
    monkeypatch.setattr(secrets_module, "FRESH_SECONDS", 0)
    assert (await source.values("default", ["token"]))["token"].value == "the second value"
    go_on.set()
    assert (await waiting)["token"].value == "the second value"


async def test_a_look_that_hangs_is_given_up(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    async def hang(*args: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(engine.database, "fetch", hang)
    monkeypatch.setattr(secrets_module, "_LOOKUP_SECONDS", 0.1)
    with pytest.raises(StoreUnavailable):
        await StoredSecrets(engine, KEY_RING).values("default", ["token"])


async def test_a_row_that_was_moved_does_not_open(api: Client, engine: Engine):
    await api.send("PUT", SECRET, {"value": "one of acme", "tenant_id": "acme"})
    await api.send("PUT", SECRET, {"value": "one of globex", "tenant_id": "globex"})
    await engine.database.value(
        "update hourbell.secrets set sealed = (select sealed from hourbell.secrets order by tenant limit 1)"
    )
    with pytest.raises(NoSecretKeys):
        await StoredSecrets(engine, KEY_RING).values("globex", ["token"])


async def test_what_is_wrong_is_told_without_the_value(api: Client):
    for document, path in (
        ({}, "value"),
        ({"value": "short"}, "value"),
        ({"value": "x" * 8193}, "value"),
        ({"value": "with \x00 inside"}, "value"),
        ({"value": 12345678}, "value"),
        ({"value": "the first value", "generate": "signing"}, "generate"),
        ({"value": "the first value", "generate": "anything"}, "generate"),
        ({"value": "the first value", "keep_previous_seconds": -1}, "keep_previous_seconds"),
        ({"value": "the first value", "tenant_id": "no spaces"}, "tenant_id"),
        ({"value": "the first value", "colour": "red"}, "colour"),
    ):
        answer = await api.send("PUT", SECRET, document)
        assert answer.is_problem(422, "invalid_input"), document
        assert answer.paths == {path}
        assert str(document.get("value", "-" * 10)) not in str(answer.body)
    assert (
        await api.send("PUT", "/api/v1/secrets/no%20spaces", {"value": "the first value"})
    ).status == 422


async def test_pages_of_secrets(api: Client):
    for name in "abc":
        await api.send("PUT", f"/api/v1/secrets/{name}", {"value": "the first value"})
    first = await api.get("/api/v1/secrets?page_size=2")
    rest = await api.get(f"/api/v1/secrets?page_size=2&page_token={first.body['next_page_token']}")
    assert [item["name"] for item in first.body["items"] + rest.body["items"]] == ["a", "b", "c"]
    assert rest.body["next_page_token"] is None


async def test_a_repetition_is_known_after_the_sealing_key_was_rotated(engine: Engine):
    old, new = (f"{name}:{KeyRing.generate().partition(':')[2]}" for name in ("k1", "k2"))
    before, after = KeyRing.parse(old), KeyRing.parse(f"{new},{old}")
    secret, write = NewSecret("the first value", 0, None), Write("once", b"a digest")
    first = await set_secret(engine, before, "token", secret, write)
    assert (await set_secret(engine, after, "token", secret, write)).secret == first.secret
    await reseal(engine, after)
    assert (await set_secret(engine, after, "token", secret, write)).secret == first.secret
    another = Write("once", b"another digest")
    with pytest.raises(IdempotencyKeyReused):
        await set_secret(engine, after, "token", secret, another)
    # The next value is sealed and remembered by the new key; a process that has it further back knows it too.
    later = Write("twice", b"a digest")
    second = await set_secret(engine, after, "token", secret, later)
    third = await set_secret(engine, KeyRing.parse(f"{old},{new}"), "token", secret, later)
    assert third.secret == second.secret


async def test_all_are_sealed_anew_by_the_first_key_and_open_without_the_old_one(
    api: Client, engine: Engine
):
    for number in range(3):
        path = f"/api/v1/secrets/s{number}"
        await api.send("PUT", path, {"value": f"the first value {number}"})
        await api.send(
            "PUT", path, {"value": f"value number {number}", "keep_previous_seconds": 60}
        )
    old = next(iter(KEY_RING._keys.items()))
    new = ("k2", bytes(range(32)))
    both, only_new = KeyRing(dict([new, old])), KeyRing(dict([new]))
    with pytest.raises(NoSecretKeys):
        await StoredSecrets(engine, only_new).values("default", ["s0"])
    assert await reseal(engine, both) == 3
    assert await reseal(engine, both) == 0
    found = await StoredSecrets(engine, only_new).values("default", ["s0", "s1", "s2"])
    assert [secret.value for secret in found.values()] == [f"value number {n}" for n in range(3)]
    assert [secret.previous for secret in found.values()] == [
        f"the first value {n}" for n in range(3)
    ]
