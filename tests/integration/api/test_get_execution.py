"""GET /api/v1/executions/{execution_id}"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.life.settlement import settlement
from hourbell.model.executions import Failed
from hourbell.model.instants import format_instant
from hourbell.model.jobs import decode_spec
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand, dead

EXECUTIONS = "/api/v1/executions"


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def test_an_execution_is_read_with_every_attempt(api: Client, dispatch: PostgresDispatch):
    job = await api.created(recurring())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    session = await dispatch.open("worker", ["default"], 10)
    for number in (1, 2):
        await dispatch.admit()
        (claimed,) = await dispatch.claim(session, number, 10)
        if number == 1:
            failure = Settlement(
                claimed.execution_id, claimed.fence, RETRY, 1, 5, 0.0, "boom", "Boom."
            )
            await dispatch.settle(session, [failure])
    execution = (await api.get(f"/api/v1/executions/{execution_id}")).body
    assert (execution["status"], execution["attempt"]) == ("RUNNING", 2)
    first, second = execution["attempts"]
    assert (first["attempt"], first["status"], first["error"]) == (1, "FAILED", "Boom.")
    assert first["kind"] == "boom"
    assert (second["attempt"], second["status"]) == (2, "RUNNING")
    assert second["finished_at"] is None


async def read(api: Client, execution_id: str) -> Any:
    """An execution, which says the same in lists, but for its attempts."""
    execution = (await api.get(f"{EXECUTIONS}/{execution_id}")).body
    of_job = await api.pages(f"/api/v1/jobs/{execution['job_id']}/executions")
    for listed in (
        *(each for each in of_job if each["execution_id"] == execution_id),
        *await api.pages(f"{EXECUTIONS}?status={execution['status']}"),
        *await api.pages(f"{EXECUTIONS}?tenant_id=default"),
    ):
        if listed["execution_id"] == execution_id:
            assert listed | {"attempts": execution["attempts"]} == execution
    return execution


async def test_an_execution_says_where_it_comes_from(api: Client, hand: Hand):
    job = await api.created(recurring(name="yearly", queue="slow"))
    (asked,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    seen = await read(api, asked)
    assert (seen["origin"], seen["job_name"], seen["queue"]) == ("run_now", "yearly", "slow")

    once = await api.created(one_time(name="only once"))
    seen = await read(api, once["job_id"].replace("job_", "exe_"))
    assert (seen["origin"], seen["job_name"], seen["queue"]) == ("schedule", "only once", "default")

    killed = await dead(api, hand, recurring())
    assert (await read(api, killed["execution_id"]))["origin"] == "run_now"
    await api.post(f"/api/v1/dead-letters/{killed['execution_id']}/replay")
    assert (await read(api, killed["execution_id"]))["origin"] == "replay"
    for claimed in await hand.claim():
        await hand.settle(claimed, SUCCEEDED)
    assert (await read(api, killed["execution_id"]))["origin"] == "replay"


async def test_a_backfill_is_late_by_the_time_since_it_was_asked_for(
    api: Client, hand: Hand, engine: Engine
):
    job = await api.created(recurring(schedule={"cron": "0 3 * * *"}))
    now = await engine.clock.now()
    stretch = {
        "after": format_instant(now - timedelta(days=2)),
        "through": format_instant(now - timedelta(days=1)),
    }
    (execution_id,) = (await api.post(job["path"] + "/backfill", stretch)).body["execution_ids"]
    (claimed,) = await hand.claim()
    running = await read(api, execution_id)
    await hand.settle(claimed, SUCCEEDED)
    ended = await read(api, execution_id)
    for seen in (running, ended):
        assert seen["origin"] == "backfill"
        assert 0 <= seen["lateness_ms"] < 60_000
        assert datetime.fromisoformat(seen["scheduled_for"]) < now - timedelta(hours=24)


async def test_an_execution_says_how_long_it_ran_where_and_under_which_fence(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    job = await api.created(one_time(schedule={"delay_seconds": 0}))
    execution_id = job["job_id"].replace("job_", "exe_")
    fresh = await read(api, execution_id)
    assert (fresh["duration_ms"], fresh["worker_id"], fresh["fence_token"]) == (None, None, None)
    first = await dispatch.open("alpha", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(first, 1, 10)
    running = await read(api, execution_id)
    assert (running["worker_id"], running["fence_token"]) == ("alpha", claimed.fence)
    assert running["duration_ms"] is None
    failure = Settlement(claimed.execution_id, claimed.fence, RETRY, 1, 250, 0.0, "Bad", "bad")
    await dispatch.settle(first, [failure])
    waiting = await read(api, execution_id)
    assert (waiting["worker_id"], waiting["duration_ms"]) == ("alpha", 250)
    await dispatch.close(first)

    second = await dispatch.open("beta", ["default"], 10)
    await dispatch.admit()
    await dispatch.claim(second, 1, 10)
    await engine.database.value(
        "update hourbell.sessions set expires_at = $2 where id = $1",
        second.id,
        await engine.clock.now() - timedelta(seconds=1),
    )
    await reap(engine, None, await engine.clock.now())

    third = await dispatch.open("gamma", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(third, 1, 10)
    await dispatch.settle(
        third, [Settlement(claimed.execution_id, claimed.fence, SUCCEEDED, 1, 70)]
    )
    await dispatch.close(third)
    ended = await read(api, execution_id)
    assert (ended["worker_id"], ended["duration_ms"]) == ("gamma", 70)
    assert ended["fence_token"] == claimed.fence
    assert [each["worker_id"] for each in ended["attempts"]] == ["alpha", "beta", "gamma"]
    assert [each["kind"] for each in ended["attempts"]] == ["Bad", "lost", None]
    fences = [each["fence_token"] for each in ended["attempts"]]
    assert fences == sorted(set(fences))


async def test_the_last_attempt_keeps_its_own_kind_of_failure(
    api: Client, dispatch: PostgresDispatch
):
    policy = {"max_retries": 0}
    job = await api.created(one_time(schedule={"delay_seconds": 0}, retry_policy=policy))
    execution_id = job["job_id"].replace("job_", "exe_")
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    (claimed,) = await dispatch.claim(session, 1, 10)
    failure = Failed("The target answered 500.", "http_500")
    dead = settlement(claimed, decode_spec(claimed.spec), failure, 0, 1, None)
    assert dead.kind == DEAD
    await dispatch.settle(session, [dead])
    execution = await read(api, execution_id)
    assert (execution["status"], execution["reason"]) == ("DEAD", "retries_exhausted")
    letter = (await api.get(f"/api/v1/dead-letters/{execution_id}")).body
    assert letter["reason"] == "retries_exhausted"
    for shown in (execution, letter):
        assert [each["kind"] for each in shown["attempts"]] == ["http_500"]
    assert letter["attempts"] == execution["attempts"]


async def test_an_execution_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/executions/exe_0ahr000000000")
    assert answer.is_problem(404, "not_found")


@pytest.mark.parametrize("text", ["7", "job_0ahr000000000", "exe_zzzzzzzzzzzzz", "%00"])
async def test_a_text_that_is_no_id_is_not_found(api: Client, text: str):
    answer = await api.get(f"/api/v1/executions/{text}")
    assert answer.is_problem(404, "unknown_id")
