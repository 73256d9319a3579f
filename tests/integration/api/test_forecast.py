"""GET /api/v1/forecast"""

from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import minute_of
from hourbell.engine.life.plan import plan
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import run_now
from hourbell.engine.views import forecast as forecasts
from hourbell.model.errors import Forbidden
from hourbell.model.ids import parse_job_id
from hourbell.model.instants import format_instant
from integration.api.client import Client, one_time, recurring

FORECAST = "/api/v1/forecast"


def hourly(minute: int, **fields: Any) -> dict[str, Any]:
    return recurring(schedule={"cron": f"{minute} * * * *"} | fields.pop("window", {}), **fields)


async def counts(api: Client, query: str = "hours=2") -> dict[str, int]:
    """Executions by minute."""
    body = (await api.get(f"{FORECAST}?{query}")).body
    assert body["complete_until"] == body["ends_at"]
    assert not body["estimated"]
    return {each["at"]: each["executions"] for each in body["minutes"]}


async def test_nothing_is_forecast_of_nothing(api: Client):
    body = (await api.get(FORECAST)).body
    assert body["minutes"] == []
    begins, ends = (datetime.fromisoformat(body[key]) for key in ("begins_at", "ends_at"))
    assert ends - begins == timedelta(hours=24)


async def test_recurring_jobs_are_counted_in_each_of_their_minutes(api: Client, engine: Engine):
    now = await engine.clock.now()
    minute = (now.minute + 30) % 60
    for _ in range(3):
        await api.created(hourly(minute))
    found = await counts(api)
    assert list(found.values()) == [3, 3]
    assert all(datetime.fromisoformat(at).minute == minute for at in found)


async def test_what_is_planned_already_is_counted_once(api: Client, engine: Engine):
    await api.created(recurring(schedule={"every_seconds": 10}))
    before = sum((await counts(api, "hours=1")).values())
    await plan(engine, None, await engine.clock.now())
    assert await engine.database.value("select count(*) > 0 from hourbell.due")
    after = sum((await counts(api, "hours=1")).values())
    assert before == after == 360


async def due_in(api: Client, at: str, query: str = "") -> list[tuple[str, str, bool]]:
    """The jobs of a minute: their names, tenants, and whether they are planned."""
    body = (await api.get(f"{FORECAST}/minute?at={at.replace('+', '%2B')}{query}")).body
    assert (body["at"], body["more"]) == (at, False)
    return [
        (each["job_name"], each["tenant_id"], each["execution_id"] is not None)
        for each in body["items"]
    ]


async def test_the_jobs_of_each_minute_are_those_that_it_counts(api: Client, engine: Engine):
    now = await engine.clock.now()
    minute = (now.minute + 30) % 60
    soon = format_instant(now + timedelta(minutes=60))
    await api.created(hourly(minute, name="a", tenant_id="acme"))
    await api.created(hourly(minute, name="b", tenant_id="beta"))
    await api.created(recurring(name="often", schedule={"every_seconds": 600}))
    await api.created(hourly(minute, name="ends", window={"ends_at": soon}))
    paused = await api.created(hourly(minute, name="paused"))
    await api.post(paused["path"] + "/pause")
    await api.created(one_time(name="once", schedule={"delay_seconds": 3000}))
    await plan(engine, None, await engine.clock.now())
    found = await counts(api, "hours=2")
    listed = {at: await due_in(api, at) for at in found}
    assert {at: len(each) for at, each in listed.items()} == found
    names = [name for each in listed.values() for name, _, _ in each]
    assert {name: names.count(name) for name in names} == {
        "a": 2,
        "b": 2,
        "often": 12,
        "ends": 1,
        "once": 1,
    }
    assert ("once", "default", True) in [each for jobs in listed.values() for each in jobs]
    at = next(at for at, each in listed.items() if ("a", "acme", False) in each)
    assert await due_in(api, at, "&tenant_id=beta") == [("b", "beta", False)]
    assert await due_in(api, at, "&tenant_id=none") == []


async def test_a_minute_with_many_jobs_says_that_there_are_more(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forecasts, "MAX_DUE_JOBS", 2)
    minute = ((await engine.clock.now()).minute + 30) % 60
    for _ in range(3):
        await api.created(hourly(minute))
    at = next(iter(await counts(api)))
    body = (await api.get(f"{FORECAST}/minute?at={at}")).body
    assert (len(body["items"]), body["more"]) == (2, True)


async def test_jobs_that_have_not_started_hide_no_others_of_a_minute(api: Client, engine: Engine):
    now = await engine.clock.now()
    minute = (now.minute + 30) % 60
    far = format_instant(now + timedelta(days=300))
    for timezone in ("UTC", "Europe/Berlin"):
        every_second = {"cron": "* * * * * *", "timezone": timezone, "starts_at": far}
        await api.created(recurring(schedule=every_second))
    for name in ("a", "b", "c"):
        await api.created(hourly(minute, name=name))
    at = next(iter(await counts(api, "hours=1")))
    assert [name for name, _, _ in await due_in(api, at)] == ["a", "b", "c"]


async def test_a_minute_of_the_past_has_nothing(api: Client):
    await api.created(recurring(schedule={"every_seconds": 10}))
    body = (await api.get(f"{FORECAST}/minute?at=2026-01-01T00:00:00Z")).body
    assert (body["items"], body["more"]) == ([], False)
    assert (await api.get(f"{FORECAST}/minute")).is_problem(422, "invalid_input")


async def test_one_time_jobs_are_counted_at_their_time(api: Client):
    await api.created(one_time(schedule={"delay_seconds": 3000}))
    await api.created(one_time(schedule={"delay_seconds": 9000}))
    assert list((await counts(api, "hours=1")).values()) == [1]
    assert sum((await counts(api, "hours=3")).values()) == 2


async def test_windows_and_pauses_are_honoured(api: Client, engine: Engine):
    now = await engine.clock.now()
    minute = (now.minute + 30) % 60
    later = (now + timedelta(hours=1)).isoformat()
    await api.created(hourly(minute, window={"starts_at": later}))
    assert list((await counts(api)).values()) == [1]
    await api.created(hourly(minute, window={"ends_at": later}))
    assert list((await counts(api)).values()) == [1, 1]
    paused = await api.created(hourly(minute))
    assert list((await counts(api)).values()) == [2, 2]
    await api.post(paused["path"] + "/pause")
    assert list((await counts(api)).values()) == [1, 1]


async def test_a_forecast_may_be_of_one_tenant(api: Client, engine: Engine):
    minute = ((await engine.clock.now()).minute + 30) % 60
    for tenant in ("a", "b", "b"):
        await api.created(hourly(minute, tenant_id=tenant))
    await api.created(one_time(tenant_id="a", schedule={"delay_seconds": 600}))
    assert sum((await counts(api)).values()) == 7
    assert sum((await counts(api, "hours=2&tenant_id=a")).values()) == 3
    assert sum((await counts(api, "hours=2&tenant_id=b")).values()) == 4
    assert await counts(api, "hours=2&tenant_id=c") == {}
    scoped = engine.scoped_to("a")
    mine = await forecasts.forecast(scoped, 2)
    assert sum(count for _, count in mine.minutes) == 3
    with pytest.raises(Forbidden):
        await forecasts.forecast(scoped, 2, "b")


@pytest.mark.parametrize(
    ("bound", "value"),
    [
        ("_MAX_OCCURRENCES", 5),
        ("_MAX_TIMETABLES", 2),
        ("_MAX_MEMBERS", 2),
        ("_MAX_WAITING", 1),
    ],
)
async def test_a_forecast_says_up_to_where_it_is_complete(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
):
    now = await engine.clock.now()
    for minute in (10, 20, 30):
        await api.created(hourly((now.minute + minute) % 60))
        await api.created(one_time(schedule={"delay_seconds": 60 * minute}))
    whole = (await api.get(f"{FORECAST}?hours=4")).body
    monkeypatch.setattr(forecasts, bound, value)
    part = (await api.get(f"{FORECAST}?hours=4")).body
    assert part["begins_at"] < part["complete_until"] < part["ends_at"]

    def until(body: Any) -> list[Any]:
        end = datetime.fromisoformat(part["complete_until"]) - timedelta(minutes=1)
        return [each for each in body["minutes"] if datetime.fromisoformat(each["at"]) <= end]

    assert until(part) == until(whole)
    assert part["minutes"] != whole["minutes"]


async def test_a_herd_that_is_not_counted_is_as_big_as_it_was_last(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    minute = ((await engine.clock.now()).minute + 30) % 60
    for _ in range(3):
        await api.created(hourly(minute))
    await engine.database.value("update hourbell.timetables set size = 1000 returning id")
    monkeypatch.setattr(forecasts, "_MAX_MEMBERS_OF_ONE", 2)
    monkeypatch.setattr(forecasts, "_MAX_SIZE", 3)
    body = (await api.get(f"{FORECAST}?hours=1")).body
    assert body["estimated"]
    assert [each["executions"] for each in body["minutes"]] == [1000]


async def test_strange_queries_are_refused(api: Client):
    for hours in ("0", "169", "-1", "x", "", "1.5", "9" * 40):
        answer = await api.get(f"{FORECAST}?hours={hours}&tenant_id=%00")
        assert answer.is_problem(422, "invalid_input"), hours
        assert answer.paths == {"hours", "tenant_id"}


# Herds and capacity.


async def test_rules_with_many_jobs_at_one_moment_are_herds(api: Client, engine: Engine):
    schedule = {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}
    for tenant in ("acme", "acme", "globex"):
        await api.created(recurring(schedule=schedule, tenant_id=tenant))
    for _ in range(2):
        await api.created(hourly(30))
    await api.created(recurring(schedule={"cron": "7 3 * * *"}))  # alone
    nightly, half_hourly = (await api.get(FORECAST)).body["herds"]
    assert (nightly["executions"], nightly["jobs"], nightly["occurrences"]) == (3, 3, 1)
    assert (nightly["rule"], nightly["timezone"]) == ("0 2 * * *", "Europe/Berlin")
    assert nightly["words"] == "Every day at 02:00 in Europe/Berlin."
    assert nightly["tenants"] == ["acme", "globex"]
    assert (half_hourly["executions"], half_hourly["occurrences"]) == (2, 24)
    assert {nightly["at"], half_hourly["at"]} <= {
        each["at"] for each in (await api.get(FORECAST)).body["minutes"]
    }
    moments = (await api.get(FORECAST)).body["herd_moments"]
    assert len(moments) == 25  # the half hours, and 02:00 in Berlin
    assert sorted({each["executions"] for each in moments}) == [2, 3]
    assert [each["at"] for each in moments] == sorted(each["at"] for each in moments)
    mine = await forecasts.forecast(engine.scoped_to("acme"), 24)
    assert [(herd.executions, herd.tenants) for herd in mine.herds] == [(2, ["acme"])]
    assert mine.capacity.reason == "It is shown to keys of all tenants only."


async def test_the_capacity_is_that_of_the_busiest_recent_whole_minute(api: Client, engine: Engine):
    unknown = (await api.get(FORECAST)).body["capacity_per_minute"]
    assert (unknown["executions"], unknown["measured_from"]) == (None, None)
    assert unknown["reason"] == "Nothing was executed recently."
    last = minute_of(await engine.clock.now())
    await engine.database.fetch(
        """
        insert into hourbell.minutes (minute, counted_at, final, succeeded, failed, dead, cancelled, superseded, skipped,
          started_in, starts, reasons, sampled, lateness, tenants, tenant_starts, queues, queue_runs, queue_seconds,
          skips)
        select $1::timestamptz - make_interval(mins => ago), $1, ago > 2, ok, failed, 0, 0, 0, 0, '{}', '{}', '{}', 1, array_fill(0, array[24]), '{}', '{}', '{}', '{}', '{}',
          '[]'
        from (values (1, 900, 0), (3, 90, 0), (4, 100, 20), (5, 110, 0), (3000, 5000, 0)) as m(ago, ok, failed)
        """,
        last,
    )
    known = (await api.get(FORECAST)).body["capacity_per_minute"]
    assert known == {
        "executions": 120,
        "reason": None,
        "measured_from": format_instant(last - timedelta(minutes=5)),
        "measured_to": format_instant(last - timedelta(minutes=2)),
    }
    await api.created(one_time(schedule={"delay_seconds": 7_200}))
    peak = (await api.get("/api/v1/overview")).body["peak"]
    assert (peak["executions"], peak["capacity_per_minute"]) == (1, 120)
    await engine.database.value("delete from hourbell.minutes where succeeded in (100, 110)")
    few = (await api.get(FORECAST)).body["capacity_per_minute"]
    assert few["executions"] is None
    assert few["reason"].startswith("Fewer than 100 executions")


async def ran(engine: Engine, job_id: str, seconds: float) -> None:
    """A past run of a job, as its ledger has it."""
    (execution,) = (await run_now(engine, parse_job_id(job_id), Write())).execution_ids
    await engine.database.value(
        "insert into hourbell.outcomes (id, fence, started_at, finished_at, recorded_at, fate)"
        " select id, 1, run_at, run_at + make_interval(secs => $2), run_at, hourbell.fate_succeeded()"
        " from hourbell.executions where id = $1",
        execution,
        seconds,
    )
    await engine.database.value("delete from hourbell.due where id = $1", execution)


async def delays(api: Client, query: str = "hours=6") -> list[dict[str, Any]]:
    body = (await api.get(f"{FORECAST}?{query}")).body
    return list(body["delays"])


async def test_a_queue_that_runs_two_at_once_says_when_its_last_report_starts(
    api: Client, engine: Engine
):
    now = await engine.clock.now()
    minute = (now.minute + 5) % 60
    await api.put("/api/v1/queues/reports", {"max_concurrency": 2})
    jobs = [await api.created(hourly(minute, queue="reports")) for _ in range(3)]
    for _ in range(22):
        await api.created(hourly(minute, queue="reports", tenant_id="acme"))
    for job in jobs:
        await ran(engine, job["job_id"], 14 * 60.0)
    (delay,) = [each for each in await delays(api, "hours=1") if each["kind"] == "queue"]
    due = datetime.fromisoformat(delay["due_at"])
    assert (delay["name"], delay["max_concurrency"], delay["per_second"]) == ("reports", 2, None)
    assert (delay["executions"], delay["seconds"], due.minute) == (25, 840.0, minute)
    assert datetime.fromisoformat(delay["last_start_at"]) - due == timedelta(minutes=12 * 14)
    assert await delays(api, "hours=1&tenant_id=acme") != []

    await api.put("/api/v1/queues/reports", {"max_concurrency": 25})
    assert [each for each in await delays(api, "hours=1") if each["kind"] == "queue"] == []
    await api.put("/api/v1/queues/reports", {"max_concurrency": 0})
    (delay,) = [each for each in await delays(api, "hours=1") if each["kind"] == "queue"]
    assert delay["last_start_at"] is None


async def test_a_rate_of_a_tenant_delays_what_is_planned_already(api: Client, engine: Engine):
    await api.put("/api/v1/tenants/acme", {"rate_limit": {"per_second": 0.1, "burst": 1}})
    at = format_instant(await engine.clock.now() + timedelta(hours=1))
    jobs = [one_time(tenant_id="acme", schedule={"at": at}) for _ in range(13)]
    assert (await api.post("/api/v1/jobs/batch", jobs)).status == 200
    (delay,) = [each for each in await delays(api) if each["kind"] == "tenant"]
    assert (delay["name"], delay["per_second"], delay["executions"]) == ("acme", 0.1, 13)
    waits = datetime.fromisoformat(delay["last_start_at"]) - datetime.fromisoformat(delay["due_at"])
    assert waits == timedelta(seconds=120)


async def test_without_a_worker_nothing_is_forecast_to_start(api: Client, engine: Engine):
    await api.created(hourly(((await engine.clock.now()).minute + 5) % 60))
    await engine.database.value("delete from hourbell.sessions where id > 1")
    (delay,) = await delays(api, "hours=1")
    assert (delay["kind"], delay["max_concurrency"], delay["last_start_at"]) == ("workers", 0, None)
    body = (await api.get(f"{FORECAST}?hours=1")).body
    assert body["untimed"] == 1


async def test_a_herd_larger_than_its_last_fire_is_counted(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forecasts, "_MAX_MEMBERS_OF_ONE", 2)
    minute = ((await engine.clock.now()).minute + 5) % 60
    for _ in range(5):
        await api.created(hourly(minute))
    body = (await api.get(f"{FORECAST}?hours=1")).body
    assert [each["executions"] for each in body["minutes"]] == [5]
    assert not body["estimated"]
    monkeypatch.setattr(forecasts, "_MAX_SIZE", 3)
    body = (await api.get(f"{FORECAST}?hours=1")).body
    assert (body["minutes"][0]["executions"], body["estimated"]) == (3, True)
