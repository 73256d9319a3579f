"""POST /internal/v1/executions/heartbeat"""

from datetime import timedelta
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.model.ids import execution_text, parse_execution_id
from integration.api.client import Client
from integration.api.workers import NOBODY, RemoteWorker, enqueue


async def age_claims(engine: Engine, seconds: float) -> None:
    await engine.database.value(
        "update hourbell.leased set claimed_at = claimed_at - $1::interval",
        timedelta(seconds=seconds),
    )


async def test_a_heartbeat_tells_what_is_held_lost_and_not_wanted(api: Client, engine: Engine):
    await enqueue(engine, 3)
    worker = RemoteWorker(api)
    held, unwanted, done = await worker.claim()
    await cancel_execution(engine, parse_execution_id(unwanted["execution_id"]), Write())
    await worker.complete(done)
    answer = await worker.beat(held, unwanted, done)
    assert answer.body == {
        "held": [held["execution_id"]],
        "lost": [done["execution_id"]],
        "cancelled": [unwanted["execution_id"]],
        "lease_seconds": 15.0,
    }
    assert (await worker.tell(unwanted, "release")).status == 200
    assert (await worker.status(unwanted))["status"] == "CANCELLED"


async def test_a_heartbeat_extends_the_session(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    expiry = "select max(expires_at) from hourbell.sessions where id > 0"
    before = await engine.database.value(expiry)
    await worker.beat(execution)
    assert await engine.database.value(expiry) > before


async def test_what_came_with_an_answered_claim_and_is_not_named_goes_back(
    api: Client, engine: Engine
):
    await enqueue(engine, 3)
    worker = RemoteWorker(api)
    [first] = await worker.claim(1, claim_number=1)
    [forgotten] = await worker.claim(1, claim_number=2)
    [on_its_way] = await worker.claim(1, claim_number=3)
    assert (await worker.beat(first, claim_number=2)).body["held"] == [first["execution_id"]]
    assert (await worker.complete(forgotten)).is_problem(409, "stale_fence")
    assert (await worker.complete(on_its_way)).status == 200
    [again] = await RemoteWorker(api).claim()
    assert (again["execution_id"], again["attempt"]) == (forgotten["execution_id"], 1)


async def test_who_does_not_number_his_claims_gives_back_what_he_has_not_named_for_a_lease(
    api: Client, engine: Engine
):
    await enqueue(engine, 3)
    worker = RemoteWorker(api)
    first, _ = await worker.claim(2)
    await age_claims(engine, 16)
    [young] = await worker.claim(1)
    await worker.beat(first)
    assert (await worker.beat(first, young)).body["lost"] == []
    [again] = await RemoteWorker(api).claim()
    assert again["attempt"] == 1


async def test_a_lost_session_is_told_so(api: Client):
    worker = RemoteWorker(api)
    worker.token = NOBODY
    assert (await worker.beat()).is_problem(409, "session_lost")


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"session_token": None, "worker_id": None}, "session_token"),
        ({"session_token": None, "claim_number": 1}, "claim_number"),
        ({"session_token": 7}, "session_token"),
        ({"execution_ids": None}, "execution_ids"),
        ({"execution_ids": ["x" * 101]}, "execution_ids[0]"),
        ({"execution_ids": [execution_text(1), 7]}, "execution_ids[1]"),
        ({"execution_ids": [execution_text(1)] * 20_001}, "execution_ids"),
        ({"worker_id": "\n"}, "worker_id"),
        ({"claim_number": -1}, "claim_number"),
    ],
)
async def test_a_bad_field_is_named(api: Client, fields: dict[str, Any], path: str):
    worker = RemoteWorker(api)
    worker.token = NOBODY
    answer = await worker.beat(**fields)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}


async def test_an_execution_that_is_named_twice_is_held_once(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert (await worker.beat(execution, execution)).body["lost"] == []
