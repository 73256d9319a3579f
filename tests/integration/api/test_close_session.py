"""POST /internal/v1/sessions/close"""

from hourbell.engine.core import Engine
from integration.api.client import Client
from integration.api.workers import NOBODY, RemoteWorker, enqueue
from integration.life.support import check_sound

CLOSE = "/internal/v1/sessions/close"


async def test_what_a_closed_session_held_goes_back_at_once(api: Client, engine: Engine):
    await enqueue(engine, 2)
    worker = RemoteWorker(api)
    executions = await worker.claim()
    for _ in range(2):
        answer = await worker.call(CLOSE, {"session_token": worker.token})
        assert (answer.status, answer.body) == (200, {"status": "closed"})
    assert (await worker.ask()).is_problem(409, "session_lost")
    assert (await worker.beat()).is_problem(409, "session_lost")
    assert (await worker.complete(executions[0])).is_problem(409, "stale_fence")
    again = await RemoteWorker(api).claim()
    assert [each["attempt"] for each in again] == [1, 1]
    await check_sound(engine)


async def test_a_session_that_never_was_is_as_good_as_closed(api: Client):
    assert (await RemoteWorker(api).call(CLOSE, {"session_token": NOBODY})).status == 200


async def test_a_token_is_needed(api: Client):
    for body in ({}, {"session_token": "mine"}, {"session_token": None}):
        answer = await RemoteWorker(api).call(CLOSE, body)
        assert answer.is_problem(422, "invalid_input")
        assert answer.paths == {"session_token"}
