"""What a webhook may have in double braces, and the secrets that it names."""

import json
from typing import Any

import pytest

from hourbell.actions import Run
from hourbell.actions.requests import CannotSend, prepare_request
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.model.executions import Claimed
from hourbell.model.jobs import JobSpec, WebhookAction
from hourbell.security.secrets import Secret
from hourbell.store.queries import queries
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand, dead

JOBS = "/api/v1/jobs"
URL = "https://a.example/"


def calling(**action: Any) -> dict[str, Any]:
    return one_time(action={"type": "WEBHOOK", "url": URL, **action})


async def set_secret(
    api: Client, name: str, tenant: str = "default", *, signs: bool = False
) -> None:
    value = {"generate": "signing"} if signs else {"value": "a value to be hidden"}
    document = {**value, "tenant_id": tenant}
    assert (await api.put(f"/api/v1/secrets/{name}", document)).status == 200


# Templates.


@pytest.mark.parametrize(
    ("action", "path"),
    [
        ({"url": URL + "{{tenant()}}"}, "action.url"),
        ({"headers": {"X-Id": "{{execution|id}}"}}, "action.headers.X-Id"),
        ({"body": "Hello {{your name}}"}, "action.body"),
        ({"body": {"list": [{"deep": "{{ now }}"}]}}, "action.body"),
        ({"body": {"{{key:1}}": 1}}, "action.body"),
        ({"body": "{{secret:"}, "action.body"),
    ],
)
async def test_an_unknown_template_is_refused(api: Client, action: dict[str, Any], path: str):
    answer = await api.post(JOBS, calling(**action))
    assert answer.is_problem(422, "invalid_input")
    [error] = answer.body["errors"]
    assert (error["path"], error["code"]) == (path, "unknown_template")
    assert "{{secret:name}}" in error["message"]
    [result] = (await api.post(JOBS + "/batch", [calling(**action)])).body["results"]
    assert result["errors"] == [error]


async def test_a_name_in_double_braces_is_a_secret(api: Client):
    action = {
        "url": URL + "?{{token}}",
        "headers": {"X-Key": "Bearer {{token}}"},
        "body": [{"{{token}}": "{{token}}{{secret:token}}"}],
    }
    answer = await api.post(JOBS, calling(**action))
    assert answer.paths == {"action.url", "action.headers.X-Key", "action.body"}
    assert {each["code"] for each in answer.body["errors"]} == {"unknown_secret"}
    assert "hourbell secrets set token --tenant default" in answer.body["errors"][0]["message"]
    await set_secret(api, "token")
    stored = (await api.created(calling(**action)))["action"]
    assert stored["url"] == URL + "?{{secret:token}}"
    assert stored["headers"] == {"X-Key": "Bearer {{secret:token}}"}
    assert stored["body"] == [{"{{secret:token}}": "{{secret:token}}{{secret:token}}"}]


@pytest.mark.parametrize(
    "written",
    [
        "{{ secret:token }}",
        "{{Secret:token}}",
        "{{secrets:token}}",
        "{{secret.token}}",
        "{{secret: token}}",
    ],
)
async def test_a_misspelt_template_is_refused_with_the_right_spelling(api: Client, written: str):
    answer = await api.post(JOBS, calling(body=f"key={written}"))
    [error] = answer.body["errors"]
    assert "did you mean {{secret:token}}?" in error["message"]


async def test_templates_of_notifications_monitors_updates_and_runs_are_checked(api: Client):
    wrong = {"on": ["success"], "url": URL, "headers": {"X-Id": "{{ id }}"}}
    answer = await api.post(JOBS, one_time(notifications=[wrong]))
    assert answer.paths == {"notifications[0].headers.X-Id"}
    job = await api.created(recurring(action={"type": "WEBHOOK", "url": URL}))
    watching = {"job_id": job["job_id"], "grace_seconds": 60, "url": URL + "?{{ id }}"}
    assert (await api.post("/api/v1/monitors", watching)).paths == {"url"}
    assert (await api.patch(job["path"], {"action": {"body": "{{ x }}"}})).paths == {"action.body"}
    assert (await api.post(job["path"] + "/run", {"body": "{{ x }}"})).paths == {"body"}
    answer = await api.post(job["path"] + "/run", {"body": "{{x}}"})
    assert [each["code"] for each in answer.body["errors"]] == ["unknown_secret"]


async def test_a_literal_body_may_have_double_braces(api: Client):
    body = {"template": "Hello {{name}} {{secret:missing}}"}
    job = await api.created(calling(body=body, literal=True))
    assert (job["action"]["body"], job["action"]["literal"]) == (body, True)
    assert (await api.post(job["path"] + "/run", {"body": "{{x}}"})).status == 202
    task = {"type": "TASK", "name": "render", "payload": "{{name}}"}
    assert (await api.created(one_time(action=task)))["action"]["payload"] == "{{name}}"


@pytest.mark.parametrize(
    "name",
    [
        "Idempotency-Key",
        "HOURBELL-Attempt",
        "traceparent",
        "TraceState",
        "webhook-id",
        "Host",
        "Content-Length",
    ],
)
async def test_a_header_that_would_be_overwritten_is_refused(api: Client, name: str):
    answer = await api.post(JOBS, calling(headers={name: "mine"}))
    [error] = answer.body["errors"]
    assert error["path"] == f"action.headers.{name}"
    assert "omit it" in error["message"]


# Secrets that must exist.


@pytest.mark.parametrize(
    ("action", "path"),
    [
        ({"url": URL + "?key={{secret:token}}"}, "action.url"),
        ({"headers": {"X-Token": "{{secret:token}}"}}, "action.headers.X-Token"),
        ({"body": [{"key": "{{secret:token}}"}]}, "action.body"),
        ({"signing_secret": "token"}, "action.signing_secret"),
    ],
)
async def test_a_secret_that_does_not_exist_is_refused_unless_it_is_lazy(
    api: Client, action: dict[str, Any], path: str
):
    await set_secret(api, "token", tenant="other")
    for _ in range(2):  # nothing is remembered
        answer = await api.post(JOBS, calling(**action))
        assert answer.is_problem(422, "invalid_input")
        [error] = answer.body["errors"]
        assert (error["path"], error["code"]) == (path, "unknown_secret")
        assert "PUT /api/v1/secrets/token" in error["message"]
    lazy = await api.created(calling(**action, secrets="lazy"))
    assert lazy["action"]["secrets"] == "lazy"
    await set_secret(api, "token", signs=True)
    assert "secrets" not in (await api.created(calling(**action)))["action"]


async def test_a_change_to_a_secret_that_does_not_exist_is_refused(api: Client):
    action = {"type": "WEBHOOK", "url": URL, "body": "{{secret:old}}"}
    await set_secret(api, "old")
    job = await api.created(recurring(action=action))
    await api.delete("/api/v1/secrets/old")
    # What was there before is not looked at when something else changes.
    assert (await api.patch(job["path"], {"timeout_seconds": 7})).status == 200
    answer = await api.patch(job["path"], {"action": {"body": "{{secret:new}}"}})
    assert answer.paths == {"action.body"}
    answer = await api.post(job["path"] + "/run", {"body": "{{secret:new}}"})
    assert answer.paths == {"action.body"}
    lazily = {"action": {"body": "{{secret:new}}", "secrets": "lazy"}}
    assert (await api.patch(job["path"], lazily)).status == 200

    by_name = JOBS + "/by-name/named"
    document = recurring(name="named", action=action)
    assert (await api.put(by_name, document)).paths == {"action.body"}
    document["action"] = {"type": "WEBHOOK", "url": URL}
    assert (await api.put(by_name, document)).status == 201
    document["action"] = action
    assert (await api.put(by_name, document)).paths == {"action.body"}


async def test_secrets_of_notifications_and_monitors_must_exist(api: Client):
    told = {"on": ["success"], "url": URL, "headers": {"X-Key": "{{secret:key}}"}}
    answer = await api.post(JOBS, one_time(notifications=[told]))
    assert answer.paths == {"notifications[0].headers.X-Key"}
    lazy = await api.created(one_time(notifications=[told | {"secrets": "lazy"}]))
    assert lazy["notifications"][0]["secrets"] == "lazy"
    job = await api.created(recurring())
    watching = {"job_id": job["job_id"], "grace_seconds": 60, "url": URL + "?{{secret:key}}"}
    assert (await api.post("/api/v1/monitors", watching)).paths == {"url"}
    assert (await api.post("/api/v1/monitors", watching | {"secrets": "lazy"})).status == 201


async def test_the_secrets_of_a_batch_are_looked_up_once_and_those_of_others_never(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    await set_secret(api, "token")
    looked = 0
    statement = queries("secrets")["existing"]
    fetch = engine.database.fetch

    async def counting(text: str, *args: Any) -> Any:
        nonlocal looked
        looked += text == statement
        return await fetch(text, *args)

    monkeypatch.setattr(type(engine.database), "fetch", lambda _, *args: counting(*args))
    plain = [calling(body="nothing secret")] * 300
    with_secrets = [calling(body="{{secret:token}}")] * 300
    missing = [calling(body="{{secret:other}}")]
    await api.created(plain[0])
    results = (await api.post(JOBS + "/batch", plain)).body["results"]
    assert (len(results), looked) == (300, 0)
    results = (await api.post(JOBS + "/batch", missing + with_secrets)).body["results"]
    assert looked == 1
    assert ["errors" in result for result in results] == [True] + [False] * 300


async def test_a_webhook_names_no_more_secrets_than_can_be_sent(api: Client):
    body = "".join(f"{{{{secret:number-{number}}}}}" for number in range(51))
    answer = await api.post(JOBS, calling(body=body))
    assert (answer.paths, answer.body["errors"][0]["code"]) == ({"action.url"}, "too_long")


# What is sent.


class Known:
    def __init__(self, **values: str) -> None:
        self._values = values

    async def values(self, tenant: str, names: Any) -> dict[str, Secret]:
        return {name: Secret(self._values[name]) for name in names if name in self._values}


def run_of(action: WebhookAction, engine_now: Any) -> Run:
    claimed = Claimed(1, 1, "default", 1, 1, engine_now.timestamp(), None, "")
    return Run(claimed, JobSpec(name="n", action=action), 10.0, None)


async def test_words_of_a_target_in_a_notification_are_not_filled_in(engine: Engine):
    now = await engine.clock.now()
    said = {"error": "500 {{secret:stripe}} {{secret:missing}}"}
    told = WebhookAction(url="https://hooks.example/{{secret:path}}", body=said, literal=True)
    secrets = Known(stripe="sk_live_canary", path="known-path")
    request = await prepare_request(told, run_of(told, now), secrets, "token", 0)
    assert request.url == "https://hooks.example/known-path"
    assert request.body is not None
    assert b"{{secret:stripe}} {{secret:missing}}" in request.body
    assert b"canary" not in request.body


async def test_a_body_does_not_grow_without_bound_by_its_secrets(engine: Engine):
    now = await engine.clock.now()
    action = WebhookAction(url="https://hooks.example/", body="{{secret:big}}" * 10_000)
    with pytest.raises(CannotSend, match="exceeds"):
        await prepare_request(action, run_of(action, now), Known(big="x" * 8_000), "token", 0)


# Credentials in headers.

LITERAL = {
    "Authorization": "Bearer abc123",
    "cookie": "session=abc123",
    "X-Api-Key": "abc123",
    "X-AUTH-TOKEN": "abc123",
    "Client-Secret": "abc123",
    "X-Hub-Signature-256": "abc123",
}
SHOWN = {
    "X-Plain": "abc",
    "X-Token": "{{secret:token}}",
    "Proxy-Token": "Bearer {{secret:token}}",
    "X-Cookie": "session={{secret:token}}",
}
MASK = "[masked; use {{secret:name}} instead]"
MASKED = {name: MASK for name in LITERAL} | SHOWN


@pytest.fixture
async def job(api: Client) -> Any:
    await set_secret(api, "token")
    told = {"on": ["success"], "url": URL, "headers": LITERAL | SHOWN}
    action = {"type": "WEBHOOK", "url": URL, "headers": LITERAL | SHOWN}
    answer = await api.put(
        JOBS + "/by-name/masked", recurring(name="masked", action=action, notifications=[told])
    )
    assert answer.status == 201, answer.body
    return answer.body | {"path": f"{JOBS}/{answer.body['job_id']}"}


async def stored(engine: Engine) -> Any:
    spec = json.loads(await engine.database.value("select spec::text from hourbell.jobs"))
    return spec["action"]["headers"], [one["headers"] for one in spec["notifications"]]


async def test_literal_credentials_are_masked_in_every_answer(api: Client, job: Any):
    watching = {"job_id": job["job_id"], "grace_seconds": 60, "url": URL, "headers": LITERAL}
    monitor = (await api.post("/api/v1/monitors", watching)).body
    assert monitor["headers"] == dict.fromkeys(LITERAL, MASK)
    patched = (await api.patch(job["path"], {"timeout_seconds": 7})).body
    read = (await api.get(job["path"])).body
    [listed] = (await api.get(JOBS)).body["items"]
    [audited, *_] = (await api.get(job["path"] + "/audit")).body["items"]
    for seen in (job, patched, read, listed, audited["from"], audited["to"]):
        assert seen["action"]["headers"] == MASKED
        assert [one["headers"] for one in seen["notifications"]] == [MASKED]
    for path in ("/api/v1/monitors", "/api/v1/audit", JOBS, job["path"] + "/explain"):
        assert "abc123" not in json.dumps((await api.get(path)).body)


async def test_literal_credentials_are_masked_in_dead_letters(
    api: Client, dispatch: PostgresDispatch
):
    action = {"type": "WEBHOOK", "url": URL, "headers": LITERAL}
    job = await dead(api, Hand(dispatch), one_time(action=action))
    letter = (await api.get(f"/api/v1/dead-letters/{job['execution_id']}")).body
    assert letter["job"]["action"]["headers"] == dict.fromkeys(LITERAL, MASK)


async def test_a_mask_that_is_sent_back_keeps_what_is_stored(api: Client, engine: Engine, job: Any):
    headers = LITERAL | SHOWN
    assert await stored(engine) == (headers, [headers])
    version = job["version"]
    said = {key: job[key] for key in ("action", "notifications", "schedule", "type", "name")}
    same = await api.put(JOBS + "/by-name/masked", said)
    assert (same.status, same.body["version"]) == (200, version)
    changed = {"headers": job["action"]["headers"] | {"X-Plain": "def", "X-Api-Key": "new"}}
    answer = await api.patch(
        job["path"], {"action": changed, "notifications": said["notifications"]}
    )
    assert answer.body["version"] == version + 1
    assert await stored(engine) == (headers | {"X-Plain": "def", "X-Api-Key": "new"}, [headers])


async def test_a_mask_that_stands_for_nothing_is_refused(api: Client, engine: Engine, job: Any):
    answer = await api.post(JOBS, calling(headers={"X-Key": MASK}))
    assert answer.paths == {"action.headers.X-Key"}
    assert "is the mask" in answer.body["errors"][0]["message"]
    answer = await api.patch(job["path"], {"action": {"headers": {"X-Other-Key": MASK}}})
    assert answer.paths == {"action.headers.X-Other-Key"}
    elsewhere = {"on": ["success"], "url": URL + "other", "headers": {"Authorization": MASK}}
    answer = await api.patch(job["path"], {"notifications": [elsewhere]})
    assert answer.paths == {"notifications[0].headers.Authorization"}
    assert await stored(engine) == (LITERAL | SHOWN, [LITERAL | SHOWN])
