"""GET /api/v1/overview: what happened, what waits, and what needs attention."""

import itertools
import re
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader import activity
from hourbell.engine.leader.activity import FINAL_AFTER, MINUTE, count_minutes
from hourbell.engine.leader.term import Leadership
from hourbell.engine.life.plan import plan
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.presence import Node, OpenCircuit, report_presence
from hourbell.store.function_set import PLANS
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.working import Hand, dead

OVERVIEW = "/api/v1/overview"
NOW = {"delay_seconds": 0}


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def test_the_figures_are_what_happened(api: Client, hand: Hand, engine: Engine):
    for name in ("a", "b", "c", "retries", "dies"):
        await api.created(one_time(name=name, schedule=NOW))
    outcomes = {"retries": (RETRY, "http_503"), "dies": (DEAD, "retries_exhausted")}
    for one in await hand.claim():
        await hand.settle(one, *outcomes.get(name_of(one), (SUCCEEDED, None)))
    cancelled = await api.created(one_time(name="cancelled"))
    assert (await api.delete(cancelled["path"])).status == 200
    await api.created(one_time(name="runs", schedule=NOW))
    assert len(await hand.claim()) == 1
    await counted(engine)
    body = (await api.get(f"{OVERVIEW}?window=15m")).body
    expected = {"started": 6, "succeeded": 3, "failed": 2, "dead": 1, "skipped": 0, "cancelled": 1}
    assert body["totals"] == expected | {"superseded": 0}
    for figure in expected:
        assert sum(bucket[figure] for bucket in body["series"]) == expected[figure]
    assert body["failures"] == [{"reason": "retries_exhausted", "count": 1}]
    assert body["dead_today"] == {"count": 1, "at_least": False}
    assert body["lateness_ms"]["p50"] <= body["lateness_ms"]["p99"] < 60_000
    assert body["sampled"] is False
    assert body["workers"] == {"alive": 1, "lost_in_1h": 0, "slots": 100, "running": 1}
    assert body["depth"][2]["running"] == 1


@pytest.mark.parametrize(
    ("window", "buckets", "seconds"),
    [("15m", 15, 60), ("1h", 60, 60), ("6h", 360, 60), ("24h", 288, 300)],
)
async def test_a_window_has_all_its_buckets(api: Client, window: str, buckets: int, seconds: int):
    body = (await api.get(f"{OVERVIEW}?window={window}")).body
    moments = [datetime.fromisoformat(bucket["at"]) for bucket in body["series"]]
    assert len(moments) == buckets
    assert body["bucket_seconds"] == seconds
    assert {b - a for a, b in itertools.pairwise(moments)} == {timedelta(seconds=seconds)}
    at = datetime.fromisoformat(body["at"])
    assert moments[-1] <= at < moments[-1] + timedelta(seconds=seconds)
    assert (await api.get(f"{OVERVIEW}?window=2h")).is_problem(422, "invalid_input")


async def test_a_count_is_repeated_without_a_difference_and_is_final_after_a_while(
    api: Client, hand: Hand, engine: Engine
):
    await api.created(one_time(schedule=NOW))
    await hand.kill()
    now = await counted(engine)
    before = await minutes(engine)
    await count_minutes(engine, None, now)
    assert await minutes(engine) == before
    later = now + MINUTE + FINAL_AFTER
    await count_minutes(engine, None, later)
    rows = await engine.database.fetch("select minute, final from hourbell.minutes order by minute")
    assert [row["final"] for row in rows if row["minute"] + MINUTE + FINAL_AFTER <= later].count(
        False
    ) == 0
    # Deleted executions, as after a replay or by retention, leave what was counted.
    await engine.database.fetch("delete from hourbell.outcomes")
    await count_minutes(engine, None, later)
    assert sum(row["dead"] for row in await minutes(engine)) == 1
    assert await engine.database.value("select count(*) from hourbell.failed_attempts") == 0


async def test_after_the_clock_was_set_back_minutes_are_counted_again(
    api: Client, hand: Hand, engine: Engine
):
    now = await counted(engine)
    while await count_minutes(engine, None, now + timedelta(hours=1)):  # the clock is ahead
        pass
    ahead = await engine.database.value("select max(minute) from hourbell.minutes where final")
    assert ahead > now
    await api.created(one_time(schedule=NOW))
    for one in await hand.claim():
        await hand.settle(one, SUCCEEDED)
    now = await counted(engine)
    assert await engine.database.value("select max(minute) from hourbell.minutes") <= now
    body = (await api.get(f"{OVERVIEW}?window=15m")).body
    assert body["totals"]["succeeded"] == 1
    assert body["complete_until"] is None  # nothing is final yet
    while await count_minutes(engine, None, now + MINUTE + FINAL_AFTER):
        pass
    assert sum(row["succeeded"] for row in await minutes(engine)) == 1


async def test_many_executions_of_a_minute_are_counted_exactly_and_their_lateness_from_a_part(
    api: Client, hand: Hand, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(activity, "SAMPLE", 10)
    jobs = [one_time(name=f"n{k}", schedule=NOW, tenant_id=f"t{k % 2}") for k in range(60)]
    assert (await api.post("/api/v1/jobs/batch", jobs)).status == 200
    for one in await hand.claim():
        await hand.settle(one, SUCCEEDED)
    await counted(engine)
    body = (await api.get(f"{OVERVIEW}?window=15m")).body
    assert (body["totals"]["succeeded"], body["totals"]["started"]) == (60, 60)
    assert body["sampled"] is True
    assert body["lateness_ms"] is not None


async def test_the_outcomes_of_a_minute_are_found_by_the_index_of_their_times(engine: Engine):
    async with engine.database.transaction() as connection:
        for name, value in re.findall(r"set (\w+) = (\w+)", PLANS["ranges"]):
            await connection.execute("select set_config($1, $2, true)", name, value)
        plan_ = await connection.fetch(
            "explain select from hourbell.outcomes where recorded_at >= $1 and recorded_at < $2",
            await engine.clock.now(),
            await engine.clock.now() + MINUTE,
        )
    text = "\n".join(row[0] for row in plan_)
    partitions = await engine.database.value(
        "select count(*) from pg_inherits where inhparent = 'hourbell.outcomes'::regclass"
    )
    assert text.count("_recorded_at_idx") == partitions > 1
    assert "Seq Scan" not in text


async def test_a_lost_attempt_is_a_start_that_failed(api: Client, hand: Hand, engine: Engine):
    await api.created(one_time(schedule=NOW))
    (claimed,) = await hand.claim()
    now = await engine.clock.now()
    assert (await reap(engine, None, now + timedelta(hours=1))).returned == 1
    await count_minutes(engine, None, now + timedelta(hours=1))
    minutes_ = await engine.database.fetch(
        "select sum(failed) as failed, sum(starts[1]) as started from hourbell.minutes"
    )
    assert (minutes_[0]["failed"], minutes_[0]["started"]) == (1, 1)
    assert claimed.execution_id


async def test_what_waits_is_counted_by_priority(api: Client, hand: Hand, engine: Engine):
    assert await hand.claim() == []  # serves the queue `default`
    await api.created(one_time(name="high", schedule=NOW, priority="HIGH"))
    await api.created(one_time(name="low", schedule=NOW, priority="LOW"))
    await api.put("/api/v1/tenants/stopped", {"max_concurrency": 0})
    await api.created(one_time(name="parked", schedule=NOW, tenant_id="stopped"))
    await PostgresDispatch(engine).admit()
    depth = {each["priority"]: each for each in (await api.get(OVERVIEW)).body["depth"]}
    assert list(depth) == ["CRITICAL", "HIGH", "MEDIUM", "LOW"]
    assert [depth[name]["ready"] for name in depth] == [0, 1, 0, 1]
    assert [depth[name]["parked"] for name in depth] == [0, 0, 1, 0]
    assert depth["CRITICAL"]["oldest_seconds"] is None
    for name in ("HIGH", "MEDIUM", "LOW"):  # also of one that is parked
        assert 0 <= depth[name]["oldest_seconds"] < 60
    assert all(each["at_least"] == [] for each in depth.values())


async def test_the_leader_and_its_plans_are_shown(api: Client, engine: Engine):
    body = (await api.get(OVERVIEW)).body
    assert body["leader"] is None
    assert codes(body) == ["leader_missing"]
    leadership = Leadership(engine)
    term = await leadership.step()
    assert term is not None
    now = await engine.clock.now()
    await report_presence(engine, Node(leadership.node, "node-a", ["scheduler"]), now, 0.0021, [])
    leader = (await api.get(OVERVIEW)).body["leader"]
    assert leader["node_id"] == str(leadership.node)
    assert (leader["name"], leader["epoch"], leader["present"]) == ("node-a", term.epoch, True)
    assert leader["clock_drift_ms"] == 2.1
    assert (leader["changes_in_1h"], leader["planner_lag_seconds"]) == (1, 0.0)
    await api.created(recurring(schedule={"every_seconds": 20}))
    late = (await api.get(OVERVIEW)).body["leader"]
    assert late["planner_lag_seconds"] > 0
    await plan(engine, term, await engine.clock.now())
    assert (await api.get(OVERVIEW)).body["leader"]["planner_lag_seconds"] == 0.0
    await engine.database.fetch(
        "insert into hourbell.terms select -n, $1, $2::timestamptz - n * interval '10 minutes'"
        " from generate_series(1, 3) as n",
        leadership.node,
        now,
    )
    (often,) = await attention(api)
    assert often["message"] == "The leader has changed 4 times in an hour."
    assert datetime.fromisoformat(often["since"]) == now - timedelta(minutes=30)
    await leadership.resign()
    assert codes((await api.get(OVERVIEW)).body) == ["leader_missing"]


async def test_the_busiest_minute_of_the_next_day_is_shown(api: Client):
    assert (await api.get(OVERVIEW)).body["peak"] is None


async def test_the_busiest_minute_is_that_of_the_forecast(api: Client):
    for name in ("a", "b", "c"):
        await api.created(one_time(name=name, schedule={"delay_seconds": 7_200}))
    await api.created(one_time(name="d", schedule={"delay_seconds": 60}))
    peak = (await api.get(OVERVIEW)).body["peak"]
    assert peak["executions"] == 3
    assert len(peak["hours"]) == 24
    assert (sum(peak["hours"]), peak["hours"][0]) == (4, 1)
    assert not peak["estimated"]
    assert peak["capacity_per_minute"] is None  # nothing was done


async def test_a_key_of_a_tenant_gets_what_is_its_own(
    api: Client, hand: Hand, engine: Engine, admin: str
):
    key = bearing(admin)
    acme = bearing(await made(api, "viewer", "acme", headers=key))
    for tenant, number in (("acme", 1), ("globex", 2)):
        for k in range(number):
            await api.post(
                "/api/v1/jobs", one_time(name=f"j{k}", schedule=NOW, tenant_id=tenant), headers=key
            )
    await hand.kill()
    await api.post(
        "/api/v1/jobs",
        one_time(name="w", schedule=NOW, queue="nobody", tenant_id="globex"),
        headers=key,
    )
    await counted(engine)
    body = (await api.send("GET", f"{OVERVIEW}?window=15m", key=None, headers=acme)).body
    assert body["tenant_id"] == "acme"
    assert body["totals"] == {
        "started": 1,
        **dict.fromkeys(("succeeded", "failed", "dead", "skipped", "cancelled", "superseded")),
    }
    assert body["dead_today"]["count"] == 1
    assert (body["depth"], body["workers"], body["failures"]) == ([], None, [])
    assert codes(body) == ["leader_missing", "new_dead_letters"]
    assert body["attention"][1]["count"] == 1
    assert "globex" not in str(body)
    for path in ("/api/v1/workers", "/api/v1/nodes"):
        assert (await api.send("GET", path, key=None, headers=acme)).body["items"] == []


# What needs attention.


async def test_dead_letters_are_told_by_reason_and_error(api: Client, hand: Hand, engine: Engine):
    for _ in range(2):
        await dead(api, hand, one_time())
    await dead(api, hand, one_time(), "non_retryable")
    items = [item for item in await attention(api) if item["code"] == "new_dead_letters"]
    assert [(item["count"], item["refers_to"]["id"]) for item in items] == [
        (2, "retries_exhausted"),
        (1, "non_retryable"),
    ]
    assert items[0]["message"] == (
        "2 dead letters of 2 jobs in 24 hours, retries_exhausted: retries_exhausted!"
    )
    assert items[0]["severity"] == "warning"


async def test_a_queue_and_a_task_without_a_worker_are_told(
    api: Client, hand: Hand, engine: Engine, dispatch: PostgresDispatch
):
    await dispatch.open("w", ["default"], 1, ["other"])
    await engine.database.fetch("delete from hourbell.sessions where id = -1")
    await api.created(one_time(name="q", schedule=NOW, queue="mail"))
    await api.created(one_time(name="t", schedule=NOW))
    await dispatch.admit()
    found = {item["code"]: item for item in await attention(api)}
    queue = found["queue_without_worker"]
    assert queue["message"] == "1 execution waits in the queue mail, and no live worker serves it."
    assert queue["refers_to"] == {"kind": "queue", "id": "mail", "name": "mail", "tenant_id": None}
    assert queue["severity"] == "error"
    assert queue["since"] is not None
    assert "with the task count" in found["task_without_worker"]["message"]


async def test_skipped_occurrences_are_told_with_their_job(api: Client, engine: Engine):
    job = await api.created(
        recurring(name="nightly", schedule={"every_seconds": 60}, misfire_policy="skip")
    )
    now = await engine.clock.now()
    await plan(engine, None, now + timedelta(minutes=30))
    await count_minutes(engine, None, now + timedelta(minutes=30))
    rows = await engine.database.fetch("select sum(skipped) as n from hourbell.minutes")
    assert rows[0]["n"] >= 28
    (item,) = [each for each in await attention(api) if each["code"] != "leader_missing"]
    assert item["code"] == "occurrences_skipped"
    assert item["refers_to"] == {
        "kind": "job",
        "id": job["job_id"],
        "name": "nightly",
        "tenant_id": "default",
    }
    assert item["count"] == rows[0]["n"]
    assert "because nothing was running at its time" in item["message"]


async def test_a_job_whose_runs_are_mostly_skipped_is_an_error(
    api: Client, hand: Hand, engine: Engine, dispatch: PostgresDispatch
):
    job = await api.created(
        recurring(name="slow", schedule={"every_seconds": 10}, overlap_policy="forbid")
    )
    await hand.claim()
    now = await engine.clock.now()
    await plan(engine, None, now)  # six runs, which are all due in a moment
    await engine.database.fetch("update hourbell.due set run_at = $1", now)
    await engine.database.fetch(
        "update hourbell.executions set occurrence = occurrence - interval '61 seconds',"
        " run_at = $1",
        now,
    )
    await engine.database.fetch(
        "update hourbell.open_runs set occurrence = occurrence - interval '61 seconds'"
    )
    assert len(await hand.claim()) == 1
    await dispatch.admit()
    await counted(engine)
    (item,) = [each for each in await attention(api) if each["code"] != "leader_missing"]
    assert (item["code"], item["severity"]) == ("runs_lost", "error")
    assert item["refers_to"]["id"] == job["job_id"]


async def test_lost_workers_open_circuits_and_clocks_are_told(
    api: Client, hand: Hand, engine: Engine
):
    await hand.claim()
    now = await engine.clock.now()
    await engine.database.fetch("update hourbell.sessions set expires_at = $1 where id > 0", now)
    await reap(engine, None, now)
    ended = await engine.database.value("select max(ended_at) from hourbell.past_sessions")
    circuit = OpenCircuit("acme", "api.example", None, 25, now, now + timedelta(seconds=30))
    node = Node(Leadership(engine).node, "node-a", ["worker"])
    await report_presence(engine, node, now, -0.6, [circuit])
    found = {item["code"]: item for item in await attention(api)}
    lost = found["worker_lost"]
    assert lost["message"].startswith("1 worker was lost")
    assert datetime.fromisoformat(lost["since"]) == ended
    assert found["circuit_open"]["refers_to"]["id"] == "api.example"
    assert found["clock_drift"]["message"] == "The clock of node-a is 600 ms behind the database."


async def test_old_pauses_and_monitors_that_are_down_are_told(api: Client, engine: Engine):
    job = await api.created(recurring(name="digest"))
    await api.post(job["path"] + "/pause", {"reason": "partner down"})
    watched = await api.created(recurring(name="watched"))
    monitor = await api.post(
        "/api/v1/monitors",
        {"job_id": watched["job_id"], "grace_seconds": 60, "url": "https://alerts.example.com/x"},
    )
    await engine.database.fetch("update hourbell.pauses set at = at - interval '8 days'")
    await engine.database.fetch("update hourbell.monitors set down_since = created_at")
    found = {item["code"]: item for item in await attention(api)}
    assert found["old_pause"]["message"] == (
        'digest was paused by anonymous more than a week ago: "partner down".'
    )
    assert found["old_pause"]["refers_to"]["id"] == job["job_id"]
    assert found["monitor_down"]["refers_to"]["id"] == monitor.body["monitor_id"]
    assert found["monitor_down"]["message"].startswith("watched has not succeeded")


async def test_the_worst_comes_first_and_no_more_than_twenty(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await engine.database.fetch("delete from hourbell.sessions where id = -1")
    for k in range(25):
        await api.created(one_time(name=f"n{k}", schedule=NOW, queue=f"q{k}"))
    job = await api.created(recurring(name="digest"))
    await api.post(job["path"] + "/pause", {"reason": "partner down"})
    await engine.database.fetch("update hourbell.pauses set at = at - interval '8 days'")
    await dispatch.admit()
    items = await attention(api)
    assert len(items) == 20
    assert {item["severity"] for item in items} == {"error"}


def name_of(claimed: Any) -> str:
    return str(msgspec.json.decode(claimed.spec)["name"])


async def attention(api: Client) -> list[Any]:
    items: list[Any] = (await api.get(OVERVIEW)).body["attention"]
    return items


def codes(body: Any) -> list[str]:
    return [item["code"] for item in body["attention"]]


async def counted(engine: Engine) -> datetime:
    now = await engine.clock.now()
    await count_minutes(engine, None, now)
    return now


async def minutes(engine: Engine) -> list[dict[str, Any]]:
    rows = await engine.database.fetch("select * from hourbell.minutes order by minute")
    return [dict(row) for row in rows]


async def waits(api: Client, path: str = OVERVIEW) -> dict[str, int]:
    """How many executions wait, by the reason."""
    return {each["code"]: each["count"] for each in (await api.get(path)).body["waiting_for"]}


async def test_a_backlog_is_shown_by_its_reason_to_all_whom_it_concerns(
    api: Client, hand: Hand, engine: Engine, dispatch: PostgresDispatch
):
    assert await waits(api) == {}
    await engine.database.fetch("delete from hourbell.sessions where id = -1")
    await api.put("/api/v1/queues/narrow", {"max_concurrency": 0})
    await api.put("/api/v1/tenants/small", {"max_concurrency": 0})
    circuit = await api.created(one_time(schedule=NOW, tenant_id="acme"))
    (claimed,) = await hand.claim()
    await hand.release(claimed, "circuit_open", 30.0)
    for fields in (
        {"queue": "unserved", "tenant_id": "acme"},
        {"queue": "narrow"},
        {"tenant_id": "small"},
        {"concurrency_key": "k"},
        {"concurrency_key": "k"},
    ):
        await api.created(one_time(schedule=NOW) | fields)
    paused = [await api.created(one_time(schedule=NOW)) for _ in range(2)]
    for job in paused:
        assert (await api.post(job["path"] + "/pause")).status == 200
    await api.post((await api.created(one_time()))["path"] + "/pause")  # it is not due
    await dispatch.open("narrow", ["narrow"], 1)
    await hand.claim()
    assert await waits(api) == {
        "circuit_open": 1,
        "concurrency_key": 1,
        "no_worker": 1,
        "paused": 2,
        "queue_limit": 1,
        "tenant_limit": 1,
    }
    assert await waits(api, "/api/v1/tenants/acme") == {"circuit_open": 1, "no_worker": 1}
    assert await waits(api, "/api/v1/tenants/small") == {"tenant_limit": 1}
    assert await waits(api, "/api/v1/queues/unserved") == {"no_worker": 1}
    assert await waits(api, "/api/v1/queues/narrow") == {"queue_limit": 1}
    by_words = {
        each["code"]: each["words"] for each in (await api.get(OVERVIEW)).body["waiting_for"]
    }
    assert by_words["circuit_open"] == "their target keeps failing"
    assert (await api.get(circuit["path"])).body["status"] == "QUEUED"


async def test_what_became_ready_before_its_workers_left_waits_for_one(
    api: Client, hand: Hand, engine: Engine
):
    await hand.claim()
    for tenant in ("a", "b"):
        await api.created(one_time(schedule=NOW, tenant_id=tenant))
    await hand.admit()
    assert await waits(api) == {}
    await engine.database.fetch("delete from hourbell.sessions")
    assert await waits(api) == {"no_worker": 2}
    assert await waits(api, "/api/v1/tenants/a") == {"no_worker": 1}
