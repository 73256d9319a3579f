"""POST /internal/v1/executions/{execution_id}/progress"""

from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.model.executions import MAX_PROGRESS_BYTES
from integration.api.client import Client
from integration.api.workers import NOBODY, RemoteWorker, enqueue


async def test_progress_is_shown_while_it_runs_and_gone_afterwards(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert (await worker.status(execution))["progress"] is None
    for progress in ({"done": 3, "of": 10}, "half", [1], 0, False):
        answer = await worker.tell(execution, "progress", progress=progress)
        assert answer.body == {"execution_id": execution["execution_id"]}
        assert (await worker.status(execution))["progress"] == progress
    await worker.complete(execution)
    assert (await worker.status(execution))["progress"] is None


async def test_progress_of_what_is_not_held_is_refused(api: Client, engine: Engine):
    await enqueue(engine)
    worker, stranger = RemoteWorker(api), RemoteWorker(api)
    [execution] = await worker.claim()
    stranger.token = NOBODY
    refused = [
        await stranger.tell(execution, "progress", progress=1),
        await worker.tell(execution | {"fence_token": 1}, "progress", progress=1),
    ]
    assert (await worker.status(execution))["progress"] is None
    await worker.complete(execution)
    refused.append(await worker.tell(execution, "progress", progress=1))
    assert [answer.is_problem(409, "stale_fence") for answer in refused] == [True] * 3


async def test_progress_of_an_attempt_is_not_shown_with_the_next(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await worker.tell(execution, "progress", progress="half")
    await worker.tell(execution, "release")
    [again] = await worker.claim()
    assert (await worker.status(again))["progress"] is None


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"progress": None}, "progress"),
        ({"progress": "x" * MAX_PROGRESS_BYTES}, "progress"),
        ({"progress": {"a": "\x00"}}, "progress.a"),
        ({"progress": 1, "fence_token": None}, "fence_token"),
        ({"progress": 1, "session_token": None}, "session_token"),
        ({"progress": 1, "status": "FAILED"}, "status"),
    ],
)
async def test_a_bad_field_is_named(api: Client, engine: Engine, fields: dict[str, Any], path: str):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.tell(execution, "progress", **fields)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}


async def test_progress_may_be_as_long_as_in_the_library(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    longest = "x" * (MAX_PROGRESS_BYTES - 2)
    assert (await worker.tell(execution, "progress", progress=longest)).status == 200
    assert (await worker.status(execution))["progress"] == longest
    refused = await worker.tell(execution, "progress", progress=longest + "x")
    assert refused.status == 422
