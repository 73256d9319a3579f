"""POST /api/v1/executions/{execution_id}/complete"""

import asyncio
import base64
import hashlib
from typing import Any

import aiohttp
import pytest

from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.engine.life.settlement import settlement
from hourbell.engine.operations import completions
from hourbell.engine.operations.completions import WITHHELD
from hourbell.model.executions import Accepted
from hourbell.model.ids import execution_text
from hourbell.security.sealing import KeyRing
from hourbell.security.secrets import WITHHELD_WHOLE
from integration.api.client import Client, one_time, recurring
from integration.api.conftest import KnownHealth
from integration.life.support import eventually

NOBODYS_SESSION = "ses_0_" + "0" * 32  # which has what waits for its target
TOKEN = "a-token-that-nobody-else-has"


@pytest.fixture
async def path(api: Client, dispatch: PostgresDispatch) -> str:
    """An execution that waits for its target."""
    await api.created(one_time(schedule={"delay_seconds": 0}))
    return await awaiting(dispatch)


async def awaiting(dispatch: PostgresDispatch) -> str:
    """What is due is accepted by its target; where that one is."""
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    accepted = Accepted(hashlib.sha256(TOKEN.encode()).digest(), 60.0)
    assert not await dispatch.settle(session, [settlement(claimed, None, accepted, 0, 0, None)])
    return "/api/v1/executions/" + execution_text(claimed.execution_id)


async def test_it_is_shown_as_awaiting_and_explained(api: Client, path: str):
    assert (await api.get(path)).body["status"] == "AWAITING"
    explained = (await api.get(path + "/explain")).body
    assert explained["code"] == "awaiting_completion"
    assert explained["until"] is not None


async def test_a_success_with_its_result_is_recorded_without_any_key(api: Client, path: str):
    said = {"token": TOKEN, "status": "SUCCEEDED", "result": {"rows": 3}}
    answer = await api.post(path + "/complete", said, key=None)
    assert answer.status == 200
    assert answer.body == {"execution_id": path.rpartition("/")[2], "status": "SUCCEEDED"}
    seen = (await api.get(path)).body
    assert (seen["status"], seen["result"]) == ("SUCCEEDED", {"rows": 3})
    again = await api.post(path + "/complete", said, key=None)
    assert (again.status, again.body) == (200, answer.body)


async def test_a_failure_is_tried_again(api: Client, path: str):
    said = {"token": TOKEN, "status": "FAILED", "error": "no disk"}
    assert (await api.post(path + "/complete", said, key=None)).status == 200
    seen = (await api.get(path)).body
    assert (seen["status"], seen["error"]) == ("RETRYING", "no disk")
    other = {"token": TOKEN, "status": "SUCCEEDED"}
    assert (await api.post(path + "/complete", other, key=None)).is_problem(409, "conflict")


async def test_a_wrong_token_is_answered_as_if_there_were_nothing(api: Client, path: str):
    said = {"token": "guessed", "status": "SUCCEEDED"}
    wrong = await api.post(path + "/complete", said, key=None)
    assert wrong.is_problem(404, "not_found")
    nobody = "/api/v1/executions/exe_0000000000001"
    missing = await api.post(nobody + "/complete", said, key=None)
    mine, theirs = path.rpartition("/")[2], nobody.rpartition("/")[2]
    assert str(wrong.body).replace(mine, theirs) == str(missing.body)
    assert (await api.get(path)).body["status"] == "AWAITING"


async def test_a_target_that_is_quicker_than_the_worker_is_waited_for(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    job = await api.created(one_time(schedule={"delay_seconds": 0}))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    path = "/api/v1/executions/" + job["job_id"].replace("job_", "exe_")
    said = {"token": TOKEN, "status": "SUCCEEDED"}
    early = asyncio.create_task(api.post(path + "/complete", said, key=None))

    async def has_come() -> bool:
        return engine.early_completions._users == 1

    await eventually(has_come)  # before the worker has said anything
    accepted = Accepted(hashlib.sha256(TOKEN.encode()).digest(), 60.0)
    assert not await dispatch.settle(session, [settlement(claimed, None, accepted, 0, 0, None)])
    assert (await early).status == 200
    assert (await api.get(path)).body["status"] == "SUCCEEDED"


async def test_few_wait_for_a_worker_at_a_time_and_none_for_long(
    api: Client, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    # Longer than a machine that stalls needs to receive all of them.
    monkeypatch.setattr(completions, "_RECORDING_SECONDS", 6)
    job = await api.created(one_time(schedule={"delay_seconds": 0}))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    assert await dispatch.claim(session, 1, 10)
    path = "/api/v1/executions/" + job["job_id"].replace("job_", "exe_")
    said = {"token": "guessed", "status": "SUCCEEDED"}
    asked = (api.post(path + "/complete", said, key=None) for _ in range(40))
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status for answer in answers) == [404] * 32 + [503] * 8


async def test_cancelling_ends_it_at_once(api: Client, path: str):
    answer = await api.post(path + "/cancel")
    assert (answer.status, answer.body["status"]) == (200, "CANCELLED")
    said = {"token": TOKEN, "status": "SUCCEEDED"}
    assert (await api.post(path + "/complete", said, key=None)).is_problem(409, "conflict")


@pytest.mark.parametrize(
    ("wrong", "paths"),
    [
        ({}, {"token", "status"}),
        ({"token": TOKEN, "status": "DEAD"}, {"status"}),
        ({"token": 7, "status": "FAILED"}, {"token"}),
        ({"token": "a b", "status": "FAILED"}, {"token"}),
        ({"token": "x" * 129, "status": "FAILED"}, {"token"}),
        ({"token": "\u0000", "status": "FAILED"}, {"token"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "error": "x"}, {"error"}),
        ({"token": TOKEN, "status": "FAILED", "result": 1}, {"result"}),
        ({"token": TOKEN, "status": "FAILED", "error": "x" * 4001}, {"error"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "result": "x" * 17_000}, {"result"}),
        ({"token": TOKEN, "status": "SUCCEEDED", "fence": 1}, {"fence"}),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    api: Client, path: str, wrong: dict[str, object], paths: set[str]
):
    answer = await api.post(path + "/complete", wrong, key=None)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths
    assert (await api.get(path)).body["status"] == "AWAITING"


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


# Secrets.

CANARY = "canary-value-123"
OTHER = "another/value 456"


def webhook(*names: str) -> dict[str, Any]:
    url = "https://hooks.example/" + "".join(f"{{{{secret:{name}}}}}" for name in names)
    return {"type": "WEBHOOK", "url": url}


async def settled_in(engine: Engine) -> None:
    """The secrets that there are were set long ago: no worker remembers what was before them."""
    await engine.database.value(
        "update hourbell.secrets set created_at = created_at - interval '1 hour',"
        " updated_at = updated_at - interval '1 hour'"
    )


@pytest.fixture
async def secrets(api: Client, engine: Engine) -> None:
    for name, value in {"mine": CANARY, "other": OTHER}.items():
        assert (await api.put(f"/api/v1/secrets/{name}", {"value": value})).status == 200
    await settled_in(engine)


@pytest.fixture
async def sent(api: Client, secrets: None, dispatch: PostgresDispatch) -> str:
    """One that waits, whose request had a secret in it."""
    await api.created(one_time(schedule={"delay_seconds": 0}, action=webhook("mine")))
    return await awaiting(dispatch)


async def kept(api: Client, path: str, said: dict[str, Any]) -> tuple[Any, Any, Any]:
    """What is kept of what a target says about it: status, result, error."""
    answer = await api.post(path + "/complete", {"token": TOKEN, **said}, key=None)
    assert answer.status == 200
    assert CANARY not in str(answer.body)
    seen = (await api.get(path)).body
    return seen["status"], seen["result"], seen["error"]


async def succeeded(api: Client, path: str, result: Any) -> Any:
    status, kept_result, _ = await kept(api, path, {"status": "SUCCEEDED", "result": result})
    assert status == "SUCCEEDED"
    return kept_result


async def test_secrets_are_struck_out_of_a_result(api: Client, sent: str):
    encoded = base64.b64encode(CANARY.encode() * 3).decode()
    result = {"rows": 3, "echo": [f"<{CANARY}>", encoded], CANARY: CANARY.upper(), "as": OTHER}
    said = await succeeded(api, sent, result)
    disguised = said["echo"].pop()
    assert said == {"rows": 3, "echo": ["<[secret]>"], "[secret]": "[secret]", "as": OTHER}
    assert disguised.count("[secret]") == 3
    assert (
        len(disguised) < len("[secret]" * 3) + 6
    )  # what a value shares with its neighbours is left


async def test_secrets_are_struck_out_of_an_error(api: Client, sent: str):
    said = {"status": "FAILED", "error": f"no such user: {CANARY.encode().hex()}"}
    assert await kept(api, sent, said) == ("RETRYING", None, "no such user: [secret]")


async def test_literal_credentials_of_the_job_are_struck_out_as_well(
    api: Client, dispatch: PostgresDispatch
):
    action = {**webhook(), "headers": {"Authorization": f"Bearer {CANARY}"}}
    await api.created(one_time(schedule={"delay_seconds": 0}, action=action))
    said = await succeeded(api, await awaiting(dispatch), {"echo": f"bad token {CANARY}"})
    assert said == {"echo": "bad token [secret]"}


async def test_a_secret_that_is_no_text_takes_all_of_the_result_along(
    api: Client, dispatch: PostgresDispatch, engine: Engine
):
    await api.put("/api/v1/secrets/pin", {"value": "1234567890"})
    await settled_in(engine)
    await api.created(one_time(schedule={"delay_seconds": 0}, action=webhook("pin")))
    path = await awaiting(dispatch)
    assert await succeeded(api, path, {"pin": [1234567890]}) == WITHHELD_WHOLE


async def test_a_signing_secret_is_struck_out_and_may_be_replaced_meanwhile(api: Client, sent: str):
    made = await api.put("/api/v1/secrets/webhook-signing", {"generate": "signing"})
    assert await succeeded(api, sent, [made.body["value"], "rest"]) == ["[secret]", "rest"]


async def test_what_is_said_is_withheld_if_a_secret_was_replaced_since(api: Client, sent: str):
    await api.put("/api/v1/secrets/mine", {"value": "quite another value"})
    assert await succeeded(api, sent, {"echo": CANARY}) == WITHHELD


async def test_what_is_said_is_withheld_if_a_worker_may_have_remembered_another_secret(
    api: Client, secrets: None, dispatch: PostgresDispatch
):
    """For a moment after it was replaced, it goes on with what it has read."""
    await api.put("/api/v1/secrets/mine", {"value": "quite another value"})
    await api.created(one_time(schedule={"delay_seconds": 0}, action=webhook("mine")))
    assert await succeeded(api, await awaiting(dispatch), {"echo": CANARY}) == WITHHELD


async def test_what_is_said_is_withheld_if_a_worker_may_have_remembered_one_that_was_deleted(
    api: Client, secrets: None, dispatch: PostgresDispatch
):
    """The one that was made again has no past."""
    await api.delete("/api/v1/secrets/mine")
    await api.put("/api/v1/secrets/mine", {"value": "quite another value"})
    await api.created(one_time(schedule={"delay_seconds": 0}, action=webhook("mine")))
    assert await succeeded(api, await awaiting(dispatch), {"echo": CANARY}) == WITHHELD


async def test_an_error_is_withheld_if_a_secret_was_deleted_since(api: Client, sent: str):
    await api.delete("/api/v1/secrets/mine")
    said = {"status": "FAILED", "error": CANARY}
    assert await kept(api, sent, said) == ("RETRYING", None, WITHHELD)


async def test_what_is_said_is_withheld_by_a_process_without_the_keys(
    api: Client, sent: str, engine: Engine, health: KnownHealth, remote: RemoteWorkers
):
    keyless = ApiServer(create_app(engine, health, KeyRing({}), remote, local=True), "127.0.0.1", 0)
    await keyless.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{keyless.port}") as http:
        assert await succeeded(Client(http, api.document), sent, {"echo": CANARY}) == WITHHELD
    await keyless.stop()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_is_said_is_withheld_if_the_job_was_changed_since(
    api: Client, secrets: None, dispatch: PostgresDispatch, is_deleted: bool
):
    """Nobody knows any more which secrets it was sent, or whether they are still there."""
    job = await api.created(recurring(action=webhook("mine")))
    assert (await api.post(job["path"] + "/run")).status == 202
    path = await awaiting(dispatch)
    assert (await api.patch(job["path"], {"action": webhook("other")})).status == 200
    if is_deleted:
        await api.delete("/api/v1/secrets/mine")
    assert await succeeded(api, path, {"echo": CANARY}) == WITHHELD


async def test_nothing_is_withheld_from_who_is_sent_no_secrets(
    api: Client, secrets: None, dispatch: PostgresDispatch
):
    await api.created(one_time(schedule={"delay_seconds": 0}, action=webhook()))
    assert await succeeded(api, await awaiting(dispatch), {"rows": 3}) == {"rows": 3}
