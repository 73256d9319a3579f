"""POST /internal/v1/executions/{execution_id}/release"""

from hourbell.engine.core import Engine
from hourbell.failpoints import configure
from hourbell.model.executions import MAX_INTERRUPTIONS
from integration.api.client import Client
from integration.api.workers import NOBODY, RemoteWorker, enqueue
from integration.life.support import check_sound


async def test_what_is_released_goes_to_the_next_and_no_attempt_is_burnt(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.tell(execution, "release")
    assert (answer.status, answer.body) == (200, {"execution_id": execution["execution_id"]})
    shown = await worker.status(execution)
    assert (shown["status"], shown["attempt"]) == ("QUEUED", 0)
    [again] = await RemoteWorker(api).claim()
    assert (again["execution_id"], again["attempt"]) == (execution["execution_id"], 1)
    assert again["fence_token"] > execution["fence_token"]


async def test_what_was_interrupted_goes_to_the_next_and_no_attempt_is_burnt(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    for _ in range(MAX_INTERRUPTIONS):
        [execution] = await worker.claim()
        assert execution["attempt"] == 1
        assert (await worker.tell(execution, "release", interrupted=True)).status == 200
    [execution] = await worker.claim()
    assert (await worker.tell(execution, "release", interrupted=True)).status == 200
    shown = await worker.status(execution)
    assert (shown["status"], shown["attempt"]) == ("RETRYING", 1)
    assert shown["attempts"][0]["kind"] == "interrupted"


async def test_an_interruption_whose_answer_was_lost_can_be_repeated(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    configure("settle.after_commit=drop*1")
    lost = await worker.tell(execution, "release", interrupted=True)
    assert lost.is_problem(503, "store_unavailable")
    assert (await worker.tell(execution, "release", interrupted=True)).status == 200
    assert await engine.database.value("select interruptions from hourbell.reruns") == 1
    await check_sound(engine)


async def test_a_release_whose_answer_was_lost_can_be_repeated(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    configure("settle.after_commit=drop*1")
    assert (await worker.tell(execution, "release")).is_problem(503, "store_unavailable")
    assert (await worker.tell(execution, "release")).status == 200
    await check_sound(engine)


async def test_what_is_not_held_cannot_be_released(api: Client, engine: Engine):
    await enqueue(engine)
    worker, stranger = RemoteWorker(api), RemoteWorker(api)
    [execution] = await worker.claim()
    stranger.token = NOBODY
    assert (await stranger.tell(execution, "release")).is_problem(409, "stale_fence")
    stale = execution | {"fence_token": 1}
    assert (await worker.tell(stale, "release")).is_problem(409, "stale_fence")
    assert (await worker.complete(execution)).status == 200
    assert (await worker.tell(execution, "release")).is_problem(409, "stale_fence")


async def test_a_fence_and_a_session_are_needed(api: Client):
    worker = RemoteWorker(api)
    execution = {"execution_id": "exe_0000000000007", "fence_token": None}
    answer = await worker.tell(execution, "release")
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"fence_token", "session_token"}
