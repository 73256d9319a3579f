"""GET /api/v1/tasks: how the runs of each task and host went, and what waits."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader import activity
from hourbell.engine.leader.activity import FINAL_AFTER, MINUTE, count_minutes
from hourbell.engine.life.reap import expire, reap
from hourbell.model.ids import execution_text
from integration.api.client import Client, bearing, made, one_time
from integration.api.working import Hand

TASKS = "/api/v1/tasks"
NOW = {"delay_seconds": 0}
HOOK = {"type": "WEBHOOK", "url": "https://hooks.example.com/"}


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def test_runs_failures_durations_and_the_last_error_are_those_of_each_task(
    api: Client, hand: Hand, engine: Engine
):
    for name in ("report", "report", "mail"):
        await api.created(task(name))
    await api.created(one_time(name="hook", action=HOOK, schedule=NOW))
    kinds = {"mail": (DEAD, "non_retryable"), "hook": (RETRY, "http_503")}
    failed = {}
    for one in await hand.claim():
        await hand.settle(one, *kinds.get(name_of(one), (SUCCEEDED, None)))
        failed[name_of(one)] = execution_text(one.execution_id)
    await counted(engine)
    items = {item["task"]: item for item in await listed(api)}
    report, mail, hook = items["report"], items["mail"], items[None]
    assert (report["runs"], report["failures"], report["last_error"]) == (2, 0, None)
    assert (mail["runs"], mail["failures"], hook["runs"], hook["failures"]) == (1, 1, 1, 1)
    for item, name, error in ((mail, "mail", "non_retryable!"), (hook, "hook", "http_503!")):
        assert item["last_error"]["execution_id"] == failed[name]
        assert item["last_error"]["error"] == error
    assert (hook["host"], report["host"]) == ("hooks.example.com", None)
    for item in (report, mail):
        assert 0 < item["duration_ms"]["p50"] <= item["duration_ms"]["p95"] <= 2
        assert item["duration_ms"]["max"] == 2
    assert (sum(report["trend"]), len(report["trend"])) == (2, 30)
    # Counting again, and for good, does not change the figures.
    before = await listed(api)
    later = await engine.clock.now() + MINUTE + FINAL_AFTER
    await count_minutes(engine, None, later)
    assert await engine.database.value("select count(*) from hourbell.failed_attempts") == 0
    assert await listed(api) == before


async def test_lost_attempts_and_those_past_their_deadline_count_for_their_task(
    api: Client, hand: Hand, engine: Engine
):
    await api.created(task("lost"))
    await api.created(task("late", deadline_seconds=60))
    assert len(await hand.claim()) == 2
    now = await engine.clock.now() + timedelta(minutes=2)
    while await expire(engine, None, now):
        pass
    assert (await reap(engine, None, now)).returned == 1
    await count_minutes(engine, None, now)
    await count_minutes(engine, None, now)
    rows = await engine.database.fetch(
        "select t.name, r.runs, r.failures from hourbell.minutes as m"
        " cross join lateral unnest(run_targets, run_counts, run_failures) as r(target, runs, failures)"
        " join hourbell.tasks as t on t.id = -r.target order by 1"
    )
    assert [tuple(row) for row in rows] == [("late", 1, 1), ("lost", 1, 1)]


async def test_executions_that_wait_are_counted_wherever_they_are(
    api: Client, hand: Hand, engine: Engine
):
    await hand.claim()
    await api.put("/api/v1/tenants/stopped", {"max_concurrency": 0})
    await api.created(task("busy", tenant_id="stopped"))  # parked
    await api.created(task("busy"))  # ready
    await hand.admit()
    for _ in range(2):
        await api.created(task("busy"))  # due
    await api.created(task("calm", schedule={"delay_seconds": 600}))
    (busy,) = await listed(api, "order=waiting")
    assert (busy["task"], busy["waiting"], busy["runs"], busy["duration_ms"]) == (
        "busy",
        4,
        0,
        None,
    )
    first, *_others = await hand.claim()
    await hand.release(first, "circuit_open", 60.0)
    (busy,) = await listed(api, "order=waiting")
    assert busy["waiting"] == 2  # the parked one, and this; the others run


async def test_workers_of_a_task_are_those_that_name_it_or_all(
    api: Client, hand: Hand, engine: Engine, dispatch: PostgresDispatch
):
    await dispatch.open("mailer-1", ["mail"], 4, ["mail"])
    await dispatch.open("any", ["mail"], 4)
    await dispatch.open("hooks", ["mail"], 4, ["@webhook"])
    await api.created(task("mail", queue="mail"))
    await api.created(one_time(action=HOOK, schedule=NOW, queue="mail"))
    items = {item["task"]: item for item in await listed(api)}
    mail, hook = items["mail"], items[None]
    assert mail["workers"] == hook["workers"] == 2
    assert [each["worker_id"] for each in mail["first_workers"]] == ["any", "mailer-1"]
    assert [each["worker_id"] for each in hook["first_workers"]] == ["any", "hooks"]
    (first, _) = mail["first_workers"]
    assert (await api.get(f"/api/v1/workers/{first['session_id']}")).status == 200


async def test_they_are_ordered_by_what_is_asked_for(api: Client, hand: Hand, engine: Engine):
    for name in ("b", "b", "a", "c"):
        await api.created(task(name))
    for one in await hand.claim():
        kind = (DEAD, "non_retryable") if name_of(one) == "c" else (SUCCEEDED, None)
        await hand.settle(one, *kind)
    await api.created(task("a"))
    await counted(engine)

    async def names(order: str) -> list[str]:
        return [item["task"] for item in await listed(api, f"order={order}")]

    assert await names("runs") == ["b", "a", "c"]
    assert await names("failures") == ["c", "a", "b"]
    assert await names("waiting") == ["a", "b", "c"]
    assert await names("name") == ["a", "b", "c"]
    for order in ("p50", "p95", "max", "workers"):
        assert sorted(await names(order)) == ["a", "b", "c"]
    assert (await api.get(f"{TASKS}?order=size")).is_problem(422, "invalid_input")


async def test_a_sampled_minute_is_said_to_be_one(
    api: Client, hand: Hand, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(activity, "SAMPLE", 10)
    jobs = [task("often") for _ in range(60)]
    assert (await api.post("/api/v1/jobs/batch", jobs)).status == 200
    for one in await hand.claim():
        await hand.settle(one, SUCCEEDED)
    await counted(engine)
    body = (await api.get(TASKS)).body
    assert body["sampled"] is True
    (often,) = body["items"]
    assert often["runs"] % 7 == 0  # one in seven was looked up


async def test_what_is_beyond_the_first_hundred_of_a_minute_is_counted_together(
    api: Client, hand: Hand, engine: Engine
):
    jobs = [task(f"t{k % 103:03}") for k in range(103 * 2 - 3)]
    assert (await api.post("/api/v1/jobs/batch", jobs)).status == 200
    while claimed := await hand.claim():
        for one in claimed:
            await hand.settle(one, SUCCEEDED)
    await counted(engine)
    body = (await api.get(TASKS)).body
    assert (len(body["items"]), body["other_runs"], body["left_out"]) == (100, 3, 0)
    assert {item["runs"] for item in body["items"]} == {2}


async def test_a_key_of_a_tenant_gets_nothing(api: Client, admin: str, engine: Engine):
    key = bearing(admin)
    acme = bearing(await made(api, "viewer", "acme", headers=key))
    await api.post("/api/v1/jobs", task("mail", tenant_id="acme"), headers=key)
    for headers, number in ((key, 1), (acme, 0)):
        answer = await api.send("GET", TASKS, key=None, headers=headers)
        assert len(answer.body["items"]) == number


def task(name: str, **fields: Any) -> dict[str, Any]:
    action = {"type": "TASK", "name": name}
    return one_time(**{"name": name, "action": action, "schedule": NOW} | fields)


def name_of(claimed: Any) -> str:
    return str(msgspec.json.decode(claimed.spec)["name"])


async def listed(api: Client, query: str = "order=runs") -> list[Any]:
    items: list[Any] = (await api.get(f"{TASKS}?{query}")).body["items"]
    return items


async def counted(engine: Engine) -> None:
    await count_minutes(engine, None, await engine.clock.now())
