"""The example that the API was published with: each request exactly as it was written."""

import asyncio
import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.api.server import ApiServer
from hourbell.engine.core import Engine
from integration.api.client import Client
from integration.api.workers import RemoteWorker, enqueue
from integration.life.support import admit_all

CREATE = b"""\
{ "name": "nightly-seller-report", "type": "RECURRING",
  "schedule": { "cron": "0 2 * * *", "timezone": "Asia/Kolkata", "starts_at": "2026-04-07T00:00:00Z" },
  "action": { "type": "WEBHOOK", "url": "https://seller-service.internal/reports/generate", "method": "POST",
              "headers": { "Authorization": "Bearer {{secret_ref}}" }, "body": { "report_type": "settlement" } },
  "retry_policy": { "max_retries": 3, "backoff": "EXPONENTIAL_WITH_JITTER", "initial_delay_seconds": 30 },
  "priority": "HIGH", "tenant_id": "seller-platform" }"""
CLAIM = b'{ "worker_id": "worker-us-east-42", "capacity": 10 }'
HEARTBEAT = b'{ "worker_id": "worker-us-east-42", "execution_ids": ["exec_1", "exec_2"] }'
COMPLETE = b'{ "status": "SUCCEEDED", "duration_ms": 34200 }'

WORKER = "worker-us-east-42"
CALLS = "/internal/v1/executions"


async def post(server: ApiServer, path: str, body: bytes, *headers: bytes) -> tuple[int, Any]:
    """The status and the document of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = [f"POST {path} HTTP/1.1".encode(), b"Host: 127.0.0.1", b"Connection: close"]
    head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body), *headers]
    writer.write(b"\r\n".join(head) + b"\r\n\r\n" + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    line, _, document = answer.partition(b"\r\n\r\n")
    return int(line.split(b" ", 2)[1]), json.loads(document)


async def created(server: ApiServer) -> tuple[int, Any]:
    return await post(server, "/api/v1/jobs", CREATE, b'Idempotency-Key: "client-uuid-123"')


async def set_secret(api: Client) -> None:
    document = {"value": "a value to be hidden", "tenant_id": "seller-platform"}
    assert (await api.put("/api/v1/secrets/secret_ref", document)).status == 200


async def claimed(server: ApiServer, count: int = 1) -> list[Any]:
    status, answer = await post(server, f"{CALLS}/claim", CLAIM)
    assert (status, len(answer["executions"])) == (200, count)
    return answer["executions"]


async def beat(server: ApiServer, *executions: Any, worker: str = WORKER) -> tuple[int, Any]:
    ids = [each["execution_id"] for each in executions]
    body = json.dumps({"worker_id": worker, "execution_ids": ids}).encode()
    return await post(server, f"{CALLS}/heartbeat", body)


async def complete(server: ApiServer, execution: Any, body: bytes = COMPLETE) -> tuple[int, Any]:
    return await post(server, f"{CALLS}/{execution['execution_id']}/complete", body)


async def test_the_published_requests_work_as_they_are_written(
    server: ApiServer, api: Client, engine: Engine
):
    await set_secret(api)
    status, job = await created(server)
    assert (status, job["status"]) == (201, "SCHEDULED")
    at = datetime.fromisoformat(job["next_run_at"])
    assert (at.hour, at.minute, at.utcoffset()) == (2, 0, timedelta(hours=5, minutes=30))
    assert job["next_run_at"].endswith("T02:00:00+05:30")
    assert await created(server) == (status, job)

    run = await api.post(f"/api/v1/jobs/{job['job_id']}/run")
    assert run.status == 202
    await admit_all(engine)
    [execution] = await claimed(server)
    assert execution["action"]["headers"] == {"Authorization": "Bearer {{secret:secret_ref}}"}
    status, answer = await post(server, f"{CALLS}/heartbeat", HEARTBEAT)
    assert (status, answer["lost"]) == (200, ["exec_1", "exec_2"])
    status, answer = await beat(server, execution)
    assert (status, answer["held"]) == (200, [execution["execution_id"]])
    assert (await complete(server, execution))[0] == 200
    shown = (await api.get(f"/api/v1/executions/{execution['execution_id']}")).body
    assert shown["status"] == "SUCCEEDED"


async def test_without_the_secret_the_answer_says_how_to_make_it(server: ApiServer):
    status, problem = await created(server)
    [error] = problem["errors"]
    assert (status, error["path"]) == (422, "action.headers.Authorization")
    assert error["code"] == "unknown_secret"
    assert "PUT /api/v1/secrets/secret_ref" in error["message"]
    assert "hourbell secrets set secret_ref --tenant seller-platform" in error["message"]


# Heartbeats without a session token.


async def test_a_heartbeat_by_name_extends_the_sessions_that_hold_what_it_lists(
    server: ApiServer, engine: Engine
):
    await enqueue(engine)
    [first] = await claimed(server)
    await enqueue(engine)
    [second] = await claimed(server)
    await enqueue(engine)
    [elsewhere] = await claimed(server)  # in a process that crashed, with the same name
    await engine.database.value(
        "update hourbell.sessions set expires_at = '2200-01-01' where id > 0"
    )
    expiry = (
        "select s.id from hourbell.sessions as s where s.id > 0 and s.expires_at < '2200-01-01'"
    )
    await engine.database.value(
        "update hourbell.sessions set renewed_at = '2300-01-01' where id > 0"
    )
    status, answer = await beat(server, first, second)
    assert (status, answer["held"]) == (200, [first["execution_id"], second["execution_id"]])
    extended = {row["id"] for row in await engine.database.fetch(expiry)}
    assert len(extended) == 2
    assert (await complete(server, elsewhere))[0] == 200


async def test_a_heartbeat_by_name_says_what_is_lost_and_cancelled(
    server: ApiServer, api: Client, engine: Engine
):
    await enqueue(engine, 3)
    held, unwanted, done = await claimed(server, 3)
    await api.post(f"/api/v1/executions/{unwanted['execution_id']}/cancel")
    await complete(server, done)
    [other] = await enqueue_for(engine, RemoteWorker(api, "other"))
    status, answer = await beat(server, held, unwanted, done, other)
    assert status == 200
    assert answer == {
        "held": [held["execution_id"]],
        "lost": [done["execution_id"], other["execution_id"]],
        "cancelled": [unwanted["execution_id"]],
        "lease_seconds": 15.0,
    }


async def enqueue_for(engine: Engine, worker: RemoteWorker) -> list[Any]:
    await enqueue(engine)
    return await worker.claim()


async def test_an_empty_heartbeat_by_name_needs_one_session(server: ApiServer, engine: Engine):
    status, problem = await beat(server)
    assert (status, problem["code"]) == (409, "session_lost")
    await enqueue(engine)
    await claimed(server)
    assert (await beat(server))[0] == 200
    await enqueue(engine)
    await claimed(server)
    status, problem = await beat(server)
    assert (status, problem["code"]) == (409, "conflict")
    assert "session_token" in problem["detail"]


async def test_a_heartbeat_names_its_session_or_its_worker(server: ApiServer):
    status, problem = await post(server, f"{CALLS}/heartbeat", b'{"execution_ids": []}')
    assert (status, problem["errors"][0]["path"]) == (422, "session_token")


# Completions without tokens.


async def test_a_completion_without_tokens_is_that_of_the_current_claim(
    server: ApiServer, api: Client, engine: Engine
):
    await enqueue(engine, retry_policy={"delays_seconds": [120]})
    [execution] = await claimed(server)
    failed = b'{ "status": "FAILED", "duration_ms": 7, "error": "Boom." }'
    assert (await complete(server, execution, failed))[0] == 200
    shown = (await api.get(f"/api/v1/executions/{execution['execution_id']}")).body
    assert (shown["status"], shown["error"]) == ("RETRYING", "Boom.")
    status, problem = await complete(server, execution)
    assert (status, problem["code"]) == (409, "stale_fence")


async def test_what_no_claim_holds_cannot_be_completed(server: ApiServer, engine: Engine):
    await enqueue(engine)
    [execution] = await claimed(server)
    assert (await complete(server, execution))[0] == 200
    unknown = {"execution_id": "exe_0000000000001"}
    for one in (execution, unknown):
        status, problem = await complete(server, one)
        assert (status, problem["code"]) == (409, "stale_fence")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"worker_id": WORKER}, 200),
        ({"worker_id": "other"}, 409),
        ({"fence_token": 0}, 200),
        ({"fence_token": 1}, 409),
        ({"session_token": None}, 200),
    ],
)
async def test_what_a_completion_says_must_be_true(
    server: ApiServer, engine: Engine, fields: dict[str, Any], status: int
):
    await enqueue(engine)
    [execution] = await claimed(server)
    if "fence_token" in fields:  # relative to that of the claim
        fields = {"fence_token": execution["fence_token"] - fields["fence_token"]}
    body = json.loads(COMPLETE) | fields
    assert (await complete(server, execution, json.dumps(body).encode()))[0] == status


async def test_what_its_target_completes_is_not_completed_without_its_token(
    server: ApiServer, engine: Engine
):
    await enqueue(engine)
    [execution] = await claimed(server)
    await engine.database.value("update hourbell.leased set session = 0")
    status, problem = await complete(server, execution)
    assert (status, problem["code"]) == (409, "stale_fence")


async def test_the_key_of_a_tenant_still_completes_nothing(
    server: ApiServer, api: Client, engine: Engine, admin: str
):
    made = await api.post(
        "/api/v1/keys",
        {"name": "theirs", "role": "worker", "tenant_id": "seller-platform"},
        headers={"Authorization": f"Bearer {admin}"},
    )
    assert made.status in (201, 422), made.body
    for path, body in (("heartbeat", HEARTBEAT), ("exe_0000000000001/complete", COMPLETE)):
        status, _ = await post(server, f"{CALLS}/{path}", body)
        assert status == 401
        if made.status == 201:
            key = f"Authorization: Bearer {made.body['key']}".encode()
            status, _ = await post(server, f"{CALLS}/{path}", body, key)
            assert status == 403
