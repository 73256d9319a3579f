"""POST /internal/v1/executions/{execution_id}/checkpoint"""

from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.failpoints import configure
from integration.api.client import Client
from integration.api.workers import NOBODY, RemoteWorker, enqueue


async def test_a_checkpoint_comes_with_the_next_claim(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert execution["checkpoint"] is None
    for checkpoint in ("half", [1], 0, False, {"done": 3, "of": 10}):
        answer = await worker.tell(execution, "checkpoint", checkpoint=checkpoint)
        assert answer.body == {"execution_id": execution["execution_id"]}
    await worker.tell(execution, "release", interrupted=True)
    [again] = await RemoteWorker(api).claim()
    assert (again["checkpoint"], again["attempt"]) == ({"done": 3, "of": 10}, 1)


async def test_a_claim_that_is_repeated_has_the_checkpoint_too(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await worker.tell(execution, "checkpoint", checkpoint=1)
    await worker.tell(execution, "release")
    [first] = await worker.claim(claim_number=1)
    [again] = await worker.claim(claim_number=1)
    assert first["checkpoint"] == 1
    assert {**again, "deadline_in_seconds": None} == first


async def test_a_checkpoint_of_what_is_not_held_is_refused(api: Client, engine: Engine):
    await enqueue(engine)
    worker, stranger = RemoteWorker(api), RemoteWorker(api)
    [execution] = await worker.claim()
    stranger.token = NOBODY
    refused = [
        await stranger.tell(execution, "checkpoint", checkpoint=1),
        await worker.tell(execution | {"fence_token": 1}, "checkpoint", checkpoint=1),
    ]
    await worker.tell(execution, "release")
    refused.append(await worker.tell(execution, "checkpoint", checkpoint=1))
    [again] = await worker.claim()
    assert again["checkpoint"] is None
    refused.append(await worker.tell(execution, "checkpoint", checkpoint=1))
    await worker.complete(again)
    refused.append(await worker.tell(again, "checkpoint", checkpoint=1))
    assert [answer.is_problem(409, "stale_fence") for answer in refused] == [True] * 5


async def test_a_checkpoint_whose_answer_was_lost_can_be_repeated(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    configure("checkpoint.after_commit=drop*1")
    lost = await worker.tell(execution, "checkpoint", checkpoint=1)
    assert lost.is_problem(503, "store_unavailable")
    assert (await worker.tell(execution, "checkpoint", checkpoint=1)).status == 200


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"checkpoint": None}, "checkpoint"),
        ({"checkpoint": "x" * 65_536}, "checkpoint"),
        ({"checkpoint": {"a": "\x00"}}, "checkpoint.a"),
        ({"checkpoint": 1, "fence_token": None}, "fence_token"),
        ({"checkpoint": 1, "session_token": None}, "session_token"),
        ({"checkpoint": 1, "worker_id": "another"}, "worker_id"),
        ({"checkpoint": 1, "progress": 1}, "progress"),
    ],
)
async def test_a_bad_field_is_named(api: Client, engine: Engine, fields: dict[str, Any], path: str):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.tell(execution, "checkpoint", **fields)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}


async def test_a_checkpoint_of_the_longest_kind_is_kept(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    longest = "x" * 65_534
    assert (await worker.tell(execution, "checkpoint", checkpoint=longest)).status == 200
    await worker.tell(execution, "release")
    [again] = await worker.claim()
    assert again["checkpoint"] == longest
