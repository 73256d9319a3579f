"""After an outage: the present comes first, and what was missed is caught up in slices.

The table in docs/time.md says what becomes of an occurrence that is planned too late. Here the stretches are long for the
limits of planning, which are made small.
"""

import asyncio
import time
from datetime import datetime, timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life import plan as planning
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan
from hourbell.engine.operations.change import delete_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.executions import list_executions
from hourbell.engine.views.jobs import get_job
from hourbell.model.executions import Claimed
from hourbell.model.jobs import Job, JobStatus
from integration.life.support import (
    START,
    Hand,
    at,
    check_sound,
    create,
    create_many,
    eventually,
    every,
    history,
    plan_all,
    recurring,
    scheduling,
    travel,
    working,
)

small_slices = pytest.mark.usefixtures("small")
GRACE = timedelta(seconds=60)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_MAX_MISSED", 1)
    monkeypatch.setattr(planning, "_SLICE", 7)
    monkeypatch.setattr(planning, "_SLICE_PART", 3)
    monkeypatch.setattr(planning, "_TAIL", 5)  # no catch_up_limit is larger here
    monkeypatch.setattr(planning, "_MAX_GAPS", 2)


async def fates_of(engine: Engine, job: Job) -> dict[datetime, str]:
    """Of each occurrence, also of those in missed stretches: RAN or MISSED."""
    found: dict[datetime, str] = {}
    token = None
    while True:
        page = await list_executions(engine, job.job_id, 200, token, expand_missed=True)
        for each in page.items:
            assert each.scheduled_for not in found
            found[each.scheduled_for] = {"SUCCEEDED": "RAN", "SKIPPED": "MISSED"}[each.status]
        token = page.next_token
        if token is None:
            return found


def expected(
    occurrences: list[datetime], now: datetime, policy: dict[str, object]
) -> dict[datetime, str]:
    """By the rules in docs/time.md."""
    ran = {one for one in occurrences if one >= now - GRACE}
    match policy["misfire_policy"]:
        case "latest":
            ran |= set(occurrences[-1:])
        case "all":
            newest = occurrences[-int(str(policy["catch_up_limit"])) :]
            oldest = now - timedelta(seconds=int(str(policy["catch_up_window_seconds"])))
            ran |= {one for one in newest if one > oldest}
    return {one: "RAN" if one in ran else "MISSED" for one in occurrences}


POLICIES: dict[str, dict[str, object]] = {
    "skip": {"misfire_policy": "skip"},
    "latest": {"misfire_policy": "latest"},
    "all": {"misfire_policy": "all", "catch_up_limit": 5, "catch_up_window_seconds": 86_400},
    "all of a window": {
        "misfire_policy": "all",
        "catch_up_limit": 5,
        "catch_up_window_seconds": 200,
    },
    "all, and one": {
        "misfire_policy": "all",
        "catch_up_limit": 1,
        "catch_up_window_seconds": 86_400,
    },
}


@small_slices
@pytest.mark.parametrize("ends", [None, "10:33:40", "10:37:50", "10:38:50", "10:39:30"])
@pytest.mark.parametrize("recovers", ["10:40:20", "10:41:50"])  # an occurrence is due, or none
@pytest.mark.parametrize("policy", POLICIES)
async def test_what_was_missed_in_slices_follows_the_policy(
    still: Engine, policy: str, recovers: str, ends: str | None
) -> None:
    """Every 2 minutes 20 s, or until some time. Occurrences before the outage are planned."""
    window = {} if ends is None else {"ends_at": at(ends).isoformat()}
    document = every(140, **POLICIES[policy])
    document["schedule"] = {"every_seconds": 100, **window}
    job = await create(still, document)
    now = await travel(still, at(recovers))
    await plan_all(still)
    await travel(still, now + timedelta(seconds=1))
    await (await Hand.opened(still)).run_all()
    await check_sound(still)
    last = now if ends is None else min(at(ends), now)
    occurrences = []
    one = START + timedelta(seconds=100)
    while one <= last:
        occurrences.append(one)
        one += timedelta(seconds=100)
    assert await fates_of(still, job) == expected(occurrences, now, POLICIES[policy])
    assert await still.database.value("select count(*) from hourbell.gaps") == 0


async def late(engine: Engine, jobs: int = 6) -> list[Job]:
    """Jobs with a timetable each, and an outage of an hour."""
    made = [await create(engine, every(60 + n)) for n in range(jobs)]
    await travel(engine, START + timedelta(hours=1))
    return made


@small_slices
async def test_the_present_of_all_comes_before_the_past_of_any(still: Engine) -> None:
    jobs = await late(still)
    now = START + timedelta(hours=1)
    await plan(still, None, now)
    behind = await still.database.value(
        "select count(*) from hourbell.timetables where next_fire_at <= $1", now
    )
    assert behind == 0
    while await still.database.value("select exists (select from hourbell.fires where not past)"):
        await plan(still, None, now)
    assert await still.database.value("select count(distinct job) from hourbell.open_runs") == 6
    assert await still.database.value("select count(*) from hourbell.outcomes") <= 2 * 2
    assert len(jobs) == await still.database.value("select count(*) from hourbell.gaps")


@small_slices
async def test_gaps_take_turns(still: Engine) -> None:
    await late(still)
    now = START + timedelta(hours=1)
    slices: list[set[int]] = []
    while await plan(still, None, now):
        rows = await still.database.fetch("select slices from hourbell.gaps")
        slices.append({row["slices"] for row in rows})
    assert {2, 3, 4} <= {max(each, default=0) for each in slices}
    assert all(max(each, default=0) - min(each, default=0) <= 1 for each in slices)


@small_slices
async def test_several_planners_catch_up_each_occurrence_once(still: Engine) -> None:
    jobs = await late(still)
    await asyncio.gather(*(plan_all(still) for _ in range(4)))
    await check_sound(still)
    now = START + timedelta(hours=1)
    await (await Hand.opened(still)).run_all()
    for number, job in enumerate(jobs):
        period = timedelta(seconds=60 + number)
        occurrences = [START + period * k for k in range(1, 61) if START + period * k <= now]
        assert await fates_of(still, job) == expected(occurrences, now, POLICIES["latest"])


async def half_caught_up(engine: Engine) -> Job:
    job = (await late(engine, 1))[0]
    now = START + timedelta(hours=1)
    for _ in range(6):
        assert await plan(engine, None, now)
    return job


@small_slices
async def test_an_outage_during_the_catch_up_adds_a_gap(still: Engine) -> None:
    job = await half_caught_up(still)
    now = await travel(still, START + timedelta(hours=2))
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    await check_sound(still)
    fates = await fates_of(still, job)
    assert sorted(fates) == [START + MINUTE * k for k in range(1, 121)]
    # The two that were due after the first outage had been planned, and were late for the gate.
    assert [one for one, fate in fates.items() if fate == "RAN"] == [now, now - MINUTE]


@small_slices
async def test_a_job_that_joins_during_the_catch_up_gets_nothing_of_the_past(
    still: Engine,
) -> None:
    await half_caught_up(still)
    new = await create(still, every(60, misfire_policy="all"))
    await plan_all(still)
    assert {fate.occurrence for fate in await history(still, new.job_id, at("11:01"))} <= {
        at("11:01:30")
    }


@small_slices
async def test_a_job_that_changes_during_the_catch_up_keeps_its_past(still: Engine) -> None:
    job = await half_caught_up(still)
    await update_job(still, job.job_id, {"schedule": {"cron": "0 3 * * *"}}, Write())
    now = await still.clock.now()
    await plan_all(still)
    await end_memberships(still, None, now)
    await (await Hand.opened(still)).run_all()
    await check_sound(still)
    missed = [fate for fate in await history(still, job.job_id) if fate.status == "SKIPPED"]
    assert sum(fate.missed or 1 for fate in missed) == 58
    assert await still.database.value("select count(*) from hourbell.memberships") == 1


@small_slices
async def test_a_membership_outlives_its_gap(still: Engine) -> None:
    """And its job is completed with the last slice, not before."""
    document = every(60)
    document["schedule"] = {"every_seconds": 60, "ends_at": at("10:40").isoformat()}
    job = await create(still, document)
    now = await travel(still, START + timedelta(hours=1))
    steps = 0
    while await plan(still, None, now):
        await end_memberships(still, None, now)
        steps += (await get_job(still, job.job_id)).status is JobStatus.SCHEDULED
    assert steps > 2
    await end_memberships(still, None, now)
    assert (await get_job(still, job.job_id)).status is JobStatus.ENDED
    await (await Hand.opened(still)).run_all()
    assert len(await fates_of(still, job)) == 39


@small_slices
async def test_a_deleted_job_leaves_no_gap_behind(still: Engine) -> None:
    job = await half_caught_up(still)
    await delete_job(still, job.job_id, Write())
    await plan_all(still)
    assert await still.database.value("select count(*) from hourbell.gaps") == 0
    await check_sound(still)


_WEEK = timedelta(days=7)
_RULES = 40
_BACK = """
with t as (
  update hourbell.timetables set planned_through = planned_through - $1, next_fire_at = next_fire_at - $1,
    plan_from = plan_from - $1 returning 1),
m as (
  update hourbell.memberships set active_since = active_since - $1, joined_through = joined_through - $1 returning 1),
d as (delete from hourbell.due returning 1), e as (delete from hourbell.executions returning 1),
o as (delete from hourbell.open_runs returning 1)
select 1
"""


async def test_a_week_of_minutes_is_caught_up_beside_the_present(engine: Engine) -> None:
    """400,000 occurrences: computed at once, they block the loop for longer than the leader's lease."""
    await create_many(
        engine,
        [recurring(f"{second} * * * * *", name=f"at {second}") for second in range(_RULES)],
    )
    await engine.database.value(_BACK.replace("$1", "$1::interval"), _WEEK)
    ran = 0

    async def noop(payload: object, claimed: Claimed) -> None:
        nonlocal ran
        ran += 1

    async with working(engine, {"noop": noop}), scheduling(engine):
        began = time.monotonic()

        async def all_ran() -> bool:
            return ran >= _RULES

        await eventually(all_ran, seconds=20)
        present = time.monotonic() - began
        left = await engine.database.value("select count(*) from hourbell.gaps")

        async def caught_up() -> bool:
            return not await engine.database.value(
                "select exists (select from hourbell.gaps) or exists (select from hourbell.fires where past)"
            )

        await eventually(caught_up, seconds=90)
    assert present < 5
    assert left > _RULES / 2
    assert await engine.database.value("select max(epoch) from hourbell.leadership") == 1
    missed = await engine.database.fetch(
        "select sum(missed)::int as n, count(*) as stretches, min(l.scheduled_for) as first, max(missed_through) as last"
        " from hourbell.ledger as l where missed is not null group by job"
    )
    assert len(missed) == _RULES
    for row in missed:
        assert row["stretches"] <= 2
        assert row["n"] == (row["last"] - row["first"]) / MINUTE + 1
        assert 10_075 <= row["n"] <= 10_080
    await check_sound(engine)


@small_slices
async def test_a_member_that_is_left_out_gets_its_past_from_its_join(still: Engine) -> None:
    """Planning fails on it while its timetable has a gap."""
    bad, good = [await create(still, recurring(name=name)) for name in ("bad", "good")]
    now = await travel(still, START + timedelta(hours=1))
    await still.database.value(
        f"alter table hourbell.executions add constraint bad check (job <> {bad.job_id}) not valid"
    )
    await plan_all(still)
    await still.database.value("alter table hourbell.executions drop constraint bad")
    later = await travel(still, now + timedelta(minutes=2))
    await complete_joins(still, later)
    await plan_all(still)
    await (await Hand.opened(still)).run_all()
    await check_sound(still)
    minutes = [at("10:00") + MINUTE * k for k in range(1, 63)]
    assert sorted(await fates_of(still, good)) == minutes
    assert sorted(await fates_of(still, bad)) == minutes
