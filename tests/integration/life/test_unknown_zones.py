"""A timetable that this scheduler cannot compute stops no other, and its job can still be seen, changed and deleted.

`US/Pacific-New` was removed from the IANA data long ago. A real process with older zone data is at the end.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tzdata

from hourbell.documents.render import render_job
from hourbell.engine.core import Engine
from hourbell.engine.leader.pauses import pause_abandoned
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import update_tz_version
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor
from hourbell.engine.operations.runs import backfill, run_now
from hourbell.engine.views.explain import explain_job
from hourbell.engine.views.forecast import forecast
from hourbell.engine.views.jobs import get_job, job_next_runs, list_jobs
from hourbell.engine.views.resources import get_tenant
from hourbell.model.errors import Conflict
from hourbell.model.ids import job_text
from hourbell.model.jobs import Job, JobStatus
from hourbell.timing.zones import tz_version
from integration.life.children import Child, child
from integration.life.support import (
    START,
    admit_all,
    at,
    create,
    eventually,
    every,
    history,
    plan_all,
    recurring,
    scheduling,
    travel,
    working,
)

GONE = "US/Pacific-New"
MISSING = "Asia/Tokyo"  # in the data of this process, and not in that of the older one


async def zoned(engine: Engine, zone: str = MISSING, **fields: object) -> Job:
    return await create(
        engine,
        recurring(**fields) | {"schedule": {"cron": "* * * * *", "timezone": zone}},
    )


async def loses_its_zone(engine: Engine, job: Job) -> None:
    """As if its zone had been known when it was created, and is not any more."""
    await engine.database.value(
        "update hourbell.timetables set zone = $2"
        " where id = (select timetable from hourbell.jobs where id = $1)",
        job.job_id,
        GONE,
    )
    await engine.database.value(
        "update hourbell.jobs set spec = replace(spec, $2, $3) where id = $1",
        job.job_id,
        MISSING,
        GONE,
    )


async def two_jobs(engine: Engine) -> tuple[Job, Job]:
    """One whose zone is not known any more, and one that must not feel it."""
    bad, good = await zoned(engine), await create(engine, recurring())
    await plan_all(engine)  # up to 10:01
    await loses_its_zone(engine, bad)
    return bad, good


async def test_planning_goes_on_for_the_others(still: Engine) -> None:
    bad, good = await two_jobs(still)
    await travel(still, at("10:03:01"))
    await plan_all(still)
    assert (await history(still, good.job_id))[-1].occurrence == at("10:03")
    assert [fate.occurrence for fate in await history(still, bad.job_id)] == [at("10:01")]


async def test_the_others_are_planned_by_new_zone_data(still: Engine) -> None:
    await two_jobs(still)
    await still.database.value("update hourbell.timetables set tz_version = 'old'")
    await update_tz_version(still, None, START)
    rows = await still.database.fetch(
        "select tz_version, broken from hourbell.timetables order by id"
    )
    assert [tuple(row.values()) for row in rows] == [
        (tz_version(), "unknown_timezone"),
        (tz_version(), None),
    ]
    assert not await update_tz_version(still, None, START)


async def test_the_joins_of_the_others_are_completed(still: Engine) -> None:
    bad, good = await two_jobs(still)
    await still.database.value("update hourbell.memberships set joined_through = null")
    await still.database.value("delete from hourbell.due")
    await still.database.value("delete from hourbell.executions")
    await still.database.value("delete from hourbell.open_runs")
    await complete_joins(still, START)
    assert await history(still, good.job_id, at("10:02"))
    assert not await history(still, bad.job_id, at("10:02"))
    # It is not looked at again each time.
    rows = await still.database.fetch("select broken from hourbell.timetables order by id")
    assert [row["broken"] for row in rows] == ["unknown_timezone", None]


async def test_a_job_whose_target_is_gone_is_paused_all_the_same(still: Engine) -> None:
    bad, good = await two_jobs(still)
    for job in (bad, good):
        await still.database.value("insert into hourbell.abandoned_jobs values ($1, 1)", job.job_id)
    await pause_abandoned(still, None)
    assert {(await get_job(still, job.job_id)).status for job in (bad, good)} == {JobStatus.PAUSED}


@pytest.mark.parametrize(
    "rule", ["61 * * * *", "nothing that could be read", "@every what"], ids=str
)
async def test_a_rule_that_cannot_be_read_stops_only_its_own(still: Engine, rule: str) -> None:
    bad, good = await zoned(still), await create(still, recurring())
    await still.database.value(
        "update hourbell.timetables set rule = $2"
        " where id = (select timetable from hourbell.jobs where id = $1)",
        bad.job_id,
        rule,
    )
    await travel(still, at("10:03:01"))
    await plan_all(still)
    assert (await history(still, good.job_id))[-1].occurrence == at("10:03")
    assert (await explain(still, bad)).code == "invalid_schedule"


async def explain(engine: Engine, job: Job) -> Any:
    """Of a job of which nothing is live any more."""
    await engine.database.value("delete from hourbell.due")
    await engine.database.value("delete from hourbell.executions where job = $1", job.job_id)
    await engine.database.value("delete from hourbell.open_runs where job = $1", job.job_id)
    return await explain_job(engine, job.job_id)


async def test_the_job_is_explained(still: Engine) -> None:
    bad, good = await two_jobs(still)
    await travel(still, at("10:03:01"))
    await plan_all(still)
    found = await explain(still, bad)
    assert found.code == "unknown_timezone"
    assert GONE in found.message
    assert tz_version() in found.message
    assert (await explain(still, good)).code == "not_due"


async def test_its_tenant_shows_how_many_are_not_planned(still: Engine) -> None:
    bad, _ = await two_jobs(still)

    async def not_planned() -> int:
        counts = (await get_tenant(still, "default")).counts
        assert counts is not None
        return counts["not_planned"]

    assert await not_planned() == 0
    await travel(still, at("10:03:01"))
    await plan_all(still)
    assert await not_planned() == 1
    await pause_job(still, bad.job_id, Write())
    assert await not_planned() == 0


async def test_the_job_can_be_read_and_listed(still: Engine) -> None:
    bad, good = await two_jobs(still)
    seen = await get_job(still, bad.job_id)
    assert (seen.status, seen.next_run_at) == (JobStatus.SCHEDULED, None)
    assert render_job(seen)["schedule"]["timezone"] == GONE
    assert {job.job_id for job in (await list_jobs(still)).items} == {bad.job_id, good.job_id}
    assert await job_next_runs(still, bad.job_id, 5) == (seen, [])


async def test_the_job_can_be_paused_and_deleted(still: Engine) -> None:
    bad, _ = await two_jobs(still)
    assert (await pause_job(still, bad.job_id, Write())).status is JobStatus.PAUSED
    # Its timetable has no rider any more, and is forgotten.
    await still.database.value("delete from hourbell.memberships where job = $1", bad.job_id)
    await still.database.value("delete from hourbell.timetables where zone = $1", GONE)
    assert (await delete_job(still, bad.job_id, Write())).status is JobStatus.CANCELLED


async def test_the_job_can_be_given_a_zone_that_exists(still: Engine) -> None:
    bad, _ = await two_jobs(still)
    await travel(still, at("10:03:01"))
    await plan_all(still)
    changed = await update_job(
        still, bad.job_id, {"schedule": {"timezone": "America/Los_Angeles"}}, Write()
    )
    assert changed.next_run_at == at("10:04")
    await travel(still, at("10:05:01"))
    await plan_all(still)
    await admit_all(still)
    assert at("10:05") in [fate.occurrence for fate in await history(still, bad.job_id)]


async def test_a_change_that_leaves_its_schedule_is_made_and_the_leader_joins_it(
    still: Engine,
) -> None:
    bad, _ = await two_jobs(still)
    changed = await update_job(still, bad.job_id, {"name": "other"}, Write())
    assert (changed.name, changed.version) == ("other", 2)
    assert not [
        fate for fate in await history(still, bad.job_id, at("10:02")) if fate.status == "live"
    ]
    await still.database.value(  # which has other zone data
        "update hourbell.timetables set zone = $1 where zone = $2", MISSING, GONE
    )
    await complete_joins(still, START)
    live = [fate for fate in await history(still, bad.job_id, at("10:02")) if fate.status == "live"]
    assert [fate.occurrence for fate in live] == [at("10:01")]


async def test_what_needs_its_schedule_is_refused_with_what_to_do(still: Engine) -> None:
    bad, _ = await two_jobs(still)
    past = START - timedelta(hours=1)
    with pytest.raises(Conflict, match=f"{GONE}.*Update the schedule"):
        await backfill(still, bad.job_id, past, START, Write())
    document = {"job_id": job_text(bad.job_id), "grace_seconds": 60, "url": "https://a.example/"}
    with pytest.raises(Conflict, match=f"{GONE}.*Update the schedule"):
        await create_monitor(still, document, Write())
    await pause_job(still, bad.job_id, Write())
    await still.database.value("delete from hourbell.memberships where job = $1", bad.job_id)
    await still.database.value("delete from hourbell.timetables where zone = $1", GONE)
    with pytest.raises(Conflict, match=f"{GONE}.*Update the schedule"):
        await resume_job(still, bad.job_id, Write())


async def test_it_can_be_run_now(still: Engine) -> None:
    bad, _ = await two_jobs(still)
    assert (await run_now(still, bad.job_id, Write())).execution_ids


@pytest.mark.parametrize("tenant", [None, "default"])
async def test_the_forecast_has_the_others(still: Engine, tenant: str | None) -> None:
    await two_jobs(still)
    found = await forecast(still, 1, tenant)
    assert [count for _, count in found.minutes] == [2] + [1] * 59  # both were planned up to 10:01
    assert found.estimated


async def test_an_interval_does_not_depend_on_its_zone(still: Engine) -> None:
    """Its zone is only for showing times."""
    job = await create(still, every(60) | {"schedule": {"every_seconds": 60, "timezone": MISSING}})
    await loses_its_zone(still, job)
    await still.database.value("update hourbell.timetables set zone = 'UTC'")
    seen = await get_job(still, job.job_id)
    assert seen.next_run_at == START + timedelta(seconds=60)
    assert render_job(seen)["next_run_at"] == "2031-05-06T10:01:30Z"


# It is known again.


@pytest.mark.parametrize("how", ["another release of the data", "another program"])
async def test_a_zone_that_is_known_again_resumes_with_the_misfire_policy(
    still: Engine, how: str
) -> None:
    bad = await zoned(still, misfire_policy="all", catch_up_window_seconds=3600)
    await loses_its_zone(still, bad)
    now = await travel(still, at("10:05:01"))
    await plan_all(still)
    assert not await update_tz_version(still, None, now)
    await still.database.value("update hourbell.timetables set zone = $1", MISSING)
    if how == "another program":
        now = await travel(still, now + timedelta(minutes=10))
    else:
        await still.database.value("update hourbell.timetables set tz_version = 'another'")
    await update_tz_version(still, None, now)
    await plan_all(still)
    found = [fate.occurrence for fate in await history(still, bad.job_id)]
    assert found == [at("10:01") + timedelta(minutes=n) for n in range(len(found))]
    assert found[-1] == now.replace(second=0)
    assert await still.database.value("select broken from hourbell.timetables") is None


@asynccontextmanager
async def scheduler_with_older_zones(database: str, folder: Path) -> AsyncIterator[Child]:
    """A scheduler process whose tzdata package has another release, which lacks a zone."""
    older = folder / "older"
    shutil.copytree(Path(tzdata.__file__).parent, older / "tzdata")
    zones = older / "tzdata" / "zones"
    zones.write_text(zones.read_text().replace(f"{MISSING}\n", ""))
    (older / "tzdata" / "__init__.py").write_text('IANA_VERSION = "2001a"\n')
    async with child("scheduler", database, "1.5", "10", path=older) as process:
        yield process


async def test_a_leader_with_older_zone_data_delays_only_the_jobs_of_new_zones(
    database: str, engine: Engine, tmp_path: Path
) -> None:
    schedule = {"cron": "* * * * * *", "timezone": MISSING}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(working(engine))
        older = await stack.enter_async_context(scheduler_with_older_zones(database, tmp_path))
        await older.says("leads")
        new = await create(engine, recurring() | {"schedule": schedule})
        old = await create(engine, recurring("* * * * * *"))

        async def ran(job: Job, number: int) -> bool:
            fates = [fate.status for fate in await history(engine, job.job_id)]
            return fates.count("SUCCEEDED") >= number

        async def is_marked() -> bool:
            code = await engine.database.value(
                "select broken from hourbell.timetables where zone = $1", MISSING
            )
            return bool(code == "unknown_timezone")

        await eventually(is_marked)
        await eventually(lambda: ran(old, 3))
        before = len(await history(engine, new.job_id))
        await older.kill()
        async with scheduling(engine):  # with the data of this process
            await eventually(lambda: ran(new, before + 3))
        found = [fate.occurrence for fate in await history(engine, new.job_id)]
        assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]
