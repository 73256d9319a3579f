"""Calendars: named lists of dates that schedules skip."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.admit import admit
from hourbell.engine.life.plan import plan
from hourbell.model.ids import parse_job_id
from integration.api.client import Client, bearing, made, one_time, recurring

JOBS = "/api/v1/jobs"
HOLIDAYS = "/api/v1/calendars/holidays"
YEARLY = {"cron": "0 3 1 1 *", "exclude": ["holidays"]}


async def set_dates(api: Client, *dates: str, **fields: Any) -> None:
    answer = await api.put(HOLIDAYS, {"dates": list(dates), **fields})
    assert answer.status == 200, answer.body


async def reach(engine: Engine, at: datetime) -> None:
    """Plans what is due at a time and lets the gate decide on it."""
    await plan(engine, None, at - timedelta(seconds=30))
    while (await admit(engine, at)).more:
        pass


async def reasons(engine: Engine, job: Any) -> list[str | None]:
    """Why the executions of a job have ended, in the order of their times; None: it has not."""
    # The list of the API shows nothing whose time is still to come by the real clock.
    rows = await engine.database.fetch(
        "select o.reason from hourbell.executions as e left join hourbell.outcomes as o using (id)"
        " where e.job = $1 order by e.occurrence",
        parse_job_id(job["job_id"]),
    )
    return [row["reason"] for row in rows]


async def test_a_calendar_is_set_read_listed_and_deleted(api: Client):
    made_one = await api.put(HOLIDAYS, {"dates": ["2027-12-26", "2027-12-25"]})
    assert made_one.status == 200
    assert made_one.body["dates"] == ["2027-12-25", "2027-12-26"]
    assert (await api.get(HOLIDAYS)).body == made_one.body
    changed = await api.put(HOLIDAYS, {"dates": ["2027-12-26", "2028-01-01"]})
    assert changed.body["dates"] == ["2027-12-26", "2028-01-01"]
    assert changed.body["created_at"] == made_one.body["created_at"]
    await api.put("/api/v1/calendars/empty", {"dates": []})
    listed = await api.pages("/api/v1/calendars?page_size=1")
    assert [(each["name"], len(each["dates"])) for each in listed] == [
        ("empty", 0),
        ("holidays", 2),
    ]
    assert (await api.delete(HOLIDAYS)).body == changed.body
    assert (await api.get(HOLIDAYS)).is_problem(404, "not_found")
    assert (await api.delete(HOLIDAYS)).is_problem(404, "not_found")
    operations = [entry["operation"] for entry in await api.pages("/api/v1/audit?page_size=100")]
    assert operations.count("set_calendar") == 3
    assert operations.count("delete_calendar") == 1


async def test_what_is_no_date_is_refused(api: Client):
    dates = ["2027-02-29", "20271225", "2027-12-25T00:00:00Z", 7, "2027-12-25", "2027-12-25"]
    refused = await api.put(HOLIDAYS, {"dates": dates})
    assert refused.paths == {f"dates[{n}]" for n in (0, 1, 2, 3, 5)}
    assert (await api.put(HOLIDAYS, {})).paths == {"dates"}
    too_many = [str(datetime(2000, 1, 1).date() + timedelta(n)) for n in range(2_001)]  # noqa: DTZ001
    assert (await api.put(HOLIDAYS, {"dates": too_many})).paths == {"dates"}
    assert (await api.put("/api/v1/calendars/no%20spaces", {"dates": []})).paths == {"name"}


async def test_calendars_belong_to_tenants(api: Client, admin: str):
    acme = bearing(await made(api, "operator", "acme", headers=bearing(admin)))
    await api.put(HOLIDAYS, {"dates": ["2027-12-25"]}, headers=acme)
    other = await api.send("GET", HOLIDAYS, key=None, headers=bearing(admin))
    assert other.status == 404
    named = await api.send("GET", HOLIDAYS + "?tenant_id=acme", key=None, headers=bearing(admin))
    assert named.body["tenant_id"] == "acme"
    foreign = await api.put(HOLIDAYS, {"dates": [], "tenant_id": "other"}, headers=acme)
    assert foreign.is_problem(403, "forbidden")
    refused = await api.post(JOBS, recurring(schedule=YEARLY), headers=bearing(admin))
    assert refused.paths == {"schedule.exclude"}
    assert (await api.post(JOBS, recurring(schedule=YEARLY), headers=acme)).status == 201


async def test_a_job_that_names_an_unknown_calendar_is_refused(api: Client):
    refused = await api.post(JOBS, recurring(schedule=YEARLY))
    assert (refused.status, refused.paths) == (422, {"schedule.exclude"})
    assert refused.body["errors"][0]["code"] == "unknown_calendar"
    batch = await api.post(f"{JOBS}/batch", [recurring(schedule=YEARLY), recurring()])
    assert [item.get("code") for item in batch.body["results"]] == ["invalid_input", None]
    job = await api.created(recurring())
    refused = await api.patch(job["path"], {"schedule": {"exclude": ["holidays"]}})
    assert refused.paths == {"schedule.exclude"}
    once = one_time(schedule={"delay_seconds": 5, "exclude": ["holidays"]})
    assert (await api.post(JOBS, once)).paths == {"schedule.exclude"}


async def test_a_run_on_an_excluded_date_is_skipped_and_recorded(api: Client, engine: Engine):
    await set_dates(api)
    free, strict = await api.created(recurring()), await api.created(recurring(schedule=YEARLY))
    at = datetime.fromisoformat(strict["next_run_at"])
    await set_dates(api, at.date().isoformat())
    await reach(engine, at)
    (entry,) = await api.pages(strict["path"] + "/executions?page_size=100")
    assert (entry["status"], entry["reason"]) == ("SKIPPED", "calendar")
    assert await reasons(engine, free) == [None]
    assert await engine.database.value("select count(*) from hourbell.open_runs") == 1
    following = at.replace(year=at.year + 1)
    await reach(engine, following)
    assert await reasons(engine, strict) == ["calendar", None]


async def test_a_change_of_a_calendar_reaches_what_is_already_planned(api: Client, engine: Engine):
    await set_dates(api)
    jobs = [await api.created(recurring(schedule=YEARLY)) for _ in range(2)]
    at = datetime.fromisoformat(jobs[0]["next_run_at"])
    await plan(engine, None, at - timedelta(seconds=30))
    assert await engine.database.value("select count(*) from hourbell.due") == 2
    await set_dates(api, at.date().isoformat())
    await set_dates(api)  # it was a mistake
    await api.patch(jobs[1]["path"], {"priority": "LOW"})
    await set_dates(api, at.date().isoformat())
    await reach(engine, at)
    for job in jobs:
        assert await reasons(engine, job) == ["calendar"]


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        ("UTC", 23),
        ("Pacific/Kiritimati", 0),  # a day earlier in UTC
        ("Pacific/Pago_Pago", 23),  # a day later in UTC
    ],
)
@pytest.mark.parametrize("day", [31, 1, 2])
async def test_a_date_is_one_of_the_zone_of_the_schedule(
    api: Client, engine: Engine, zone: str, hour: int, day: int
):
    await set_dates(api)
    cron = f"30 {hour} {day} {12 if day == 31 else 1} *"
    schedule = {"cron": cron, "timezone": zone, "exclude": ["holidays"]}
    job = await api.created(recurring(schedule=schedule))
    at = datetime.fromisoformat(job["next_run_at"])  # shown in the zone
    await set_dates(api, f"{at.year + (day == 31)}-01-01")
    await reach(engine, at)
    assert await reasons(engine, job) == ["calendar" if day == 1 else None]


async def test_intervals_have_calendars_too(api: Client, engine: Engine):
    await set_dates(api)
    schedule = {"every_seconds": 3600, "timezone": "Asia/Kolkata", "exclude": ["holidays"]}
    job = await api.created(recurring(schedule=schedule))
    at = datetime.fromisoformat(job["next_run_at"])  # shown in the zone
    await set_dates(api, at.date().isoformat())
    await reach(engine, at)
    assert await reasons(engine, job) == ["calendar"]


async def test_a_zone_that_the_database_does_not_know_does_not_stop_the_gate(
    api: Client, engine: Engine
):
    await set_dates(api)
    job = await api.created(recurring(schedule=YEARLY))
    at = datetime.fromisoformat(job["next_run_at"])
    await plan(engine, None, at - timedelta(seconds=30))
    await engine.database.value(
        "update hourbell.jobs set spec ="
        " jsonb_set(spec::jsonb, '{schedule,timezone}', '\"Mars/Olympus\"')::text"
    )
    await set_dates(api, at.date().isoformat())
    await reach(engine, at)
    assert (
        await engine.database.value(
            "select reason from hourbell.outcomes where fate = hourbell.fate_skipped()"
        )
        == "calendar"
    )


async def test_requested_runs_and_retries_run_on_any_date(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await set_dates(api)
    job = await api.created(recurring(schedule=YEARLY))
    now = await engine.clock.now()
    today = [(now + timedelta(days=days)).date().isoformat() for days in (-1, 0, 1)]
    await set_dates(api, *today)
    await api.post(job["path"] + "/run")
    await reach(engine, await engine.clock.now())
    assert await reasons(engine, job) == [None]


async def test_next_runs_say_which_are_skipped(api: Client):
    await set_dates(api)
    job = await api.created(recurring(schedule=YEARLY))
    day = job["next_run_at"][:10]
    await set_dates(api, day)
    first, second = (await api.get(job["path"] + "/next-runs?count=2")).body["items"]
    assert first["note"] == f"{day} is in the calendar holidays: that run is skipped"
    assert second["note"] is None


async def test_a_monitor_does_not_expect_an_excluded_run(api: Client, engine: Engine):
    await set_dates(api)
    job = await api.created(recurring(schedule=YEARLY))
    at = datetime.fromisoformat(job["next_run_at"])
    await set_dates(api, at.date().isoformat())
    monitor = {"job_id": job["job_id"], "grace_seconds": 600, "url": "https://pager.example/"}
    await api.post("/api/v1/monitors", monitor)
    for late in (at + timedelta(hours=1), at + timedelta(days=2)):
        while await watch(engine, None, late):
            pass
        assert await engine.database.value("select count(*) from hourbell.notices") == 0
    expected = await engine.database.value("select expected_at from hourbell.monitors")
    assert expected == at.replace(year=at.year + 1)
    while await watch(engine, None, expected + timedelta(hours=1)):
        pass
    assert await engine.database.value("select count(*) from hourbell.notices") == 1


async def test_a_deleted_calendar_excludes_nothing(api: Client, engine: Engine):
    await set_dates(api)
    job = await api.created(recurring(schedule=YEARLY))
    at = datetime.fromisoformat(job["next_run_at"])
    await set_dates(api, at.date().isoformat())
    await api.delete(HOLIDAYS)
    await reach(engine, at)
    assert await reasons(engine, job) == [None]
    # It can still be paused and resumed.
    assert (await api.post(job["path"] + "/pause")).status == 200
    assert (await api.post(job["path"] + "/resume")).status == 200


async def test_the_next_run_is_on_no_excluded_date(api: Client, engine: Engine):
    daily = {"cron": "0 3 * * *", "timezone": "Asia/Kolkata", "exclude": ["holidays"]}
    await set_dates(api)
    plain = await api.created(recurring(schedule=daily | {"exclude": []}))
    first = datetime.fromisoformat(plain["next_run_at"])
    days = [str((first + timedelta(days=n)).date()) for n in range(3)]
    await set_dates(api, *days[:2])
    wanted = f"{days[2]}T03:00:00+05:30"
    job = await api.created(recurring(schedule=daily))
    assert job["next_run_at"] == wanted
    path = job["path"]
    assert (await api.get(path)).body["next_run_at"] == wanted
    listed = await api.pages(f"{JOBS}?page_size=10")
    assert {each["next_run_at"] for each in listed} == {wanted, plain["next_run_at"]}
    await api.post(path + "/pause")
    assert (await api.post(path + "/resume")).body["next_run_at"] == wanted
    assert (await api.patch(path, {"priority": "LOW"})).body["next_run_at"] == wanted
    until = datetime.fromisoformat((await api.get(path + "/explain")).body["until"])
    assert until == datetime.fromisoformat(wanted)
    put = await api.put(f"{JOBS}/by-name/n", recurring(name="n", schedule=daily))
    assert put.body["next_run_at"] == wanted
    ended = daily | {"ends_at": (first + timedelta(hours=1)).isoformat()}
    assert (await api.created(recurring(schedule=ended)))["next_run_at"] is None


@pytest.mark.parametrize("query", ["", "&tenant_id=default"])
async def test_a_forecast_leaves_out_what_calendars_skip(api: Client, query: str):
    hourly = {"cron": "30 * * * *", "timezone": "Asia/Kolkata"}
    await set_dates(api)
    for exclude in ([], ["holidays"], ["holidays"]):
        await api.created(recurring(schedule=hourly | {"exclude": exclude}))
    job = (await api.get(f"{JOBS}?page_size=1")).body["items"][0]
    day = datetime.fromisoformat(job["next_run_at"]) + timedelta(days=1)
    await set_dates(api, str(day.date()))
    found = (await api.get(f"/api/v1/forecast?hours=72{query}")).body
    assert (found["estimated"], found["complete_until"]) == (False, found["ends_at"])
    by_day: dict[Any, set[int]] = {}
    for each in found["minutes"]:
        at = datetime.fromisoformat(each["at"]).astimezone(day.tzinfo)
        by_day.setdefault(at.date(), set()).add(each["executions"])
    assert by_day.pop(day.date()) == {1}
    assert set.union(*by_day.values()) == {3}
