"""Misfires of schedules that exclude calendars: `latest` makes up the latest occurrence that the calendars allow."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from hourbell.documents.calendars import NewCalendar
from hourbell.engine.core import Engine
from hourbell.engine.life import plan as planning
from hourbell.engine.life.join import complete_joins
from hourbell.engine.operations.calendars import set_calendar
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.views.executions import list_executions
from hourbell.model.jobs import Job
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    every,
    plan_all,
    travel,
)

HOUR = timedelta(hours=1)
GRACE = timedelta(seconds=60)
SIX_HOURS = 6 * 3600


def day(number: int) -> date:
    """START is on day 6."""
    return START.date().replace(day=number)


def moment(number: int, clock: str) -> datetime:
    return datetime.fromisoformat(f"{day(number)}T{clock}").replace(tzinfo=UTC)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches are long for the limits of planning."""
    monkeypatch.setattr(planning, "_MAX_MISSED", 1)
    monkeypatch.setattr(planning, "_SLICE", 7)
    monkeypatch.setattr(planning, "_SLICE_PART", 3)
    monkeypatch.setattr(planning, "_TAIL", 5)


async def exclude(engine: Engine, *days: int) -> None:
    dates = tuple(day(number) for number in days)
    await set_calendar(engine, "holidays", NewCalendar(dates, tenant_id=None), Write())


async def excluding(
    engine: Engine, seconds: int = SIX_HOURS, zone: str = "UTC", **fields: object
) -> Job:
    """A job that runs at this interval from START on, and at no time of the calendar `holidays`."""
    schedule = {
        "every_seconds": seconds,
        "starts_at": START.isoformat(),
        "timezone": zone,
        "exclude": ["holidays"],
    }
    return await create(engine, every(seconds, **fields) | {"schedule": schedule})


async def run_all(engine: Engine, now: datetime) -> None:
    await plan_all(engine, now)
    await travel(engine, now + timedelta(seconds=1))
    await (await Hand.opened(engine)).run_all()
    await check_sound(engine)


async def fates_of(engine: Engine, job: Job) -> dict[datetime, str]:
    """Of each occurrence after START, also of those in missed stretches: RAN, misfire or calendar."""
    found: dict[datetime, str] = {}
    token = None
    while True:
        page = await list_executions(engine, job.job_id, 200, token, expand_missed=True)
        for each in page.items:
            assert each.scheduled_for not in found
            found[each.scheduled_for] = str(each.reason or "RAN")
        token = page.next_token
        if token is None:
            found.pop(START, None)
            return found


def occurrences(now: datetime, seconds: int = SIX_HOURS) -> list[datetime]:
    count = int((now - START).total_seconds()) // seconds
    return [START + timedelta(seconds=seconds) * (k + 1) for k in range(count)]


def expected(
    times: Sequence[datetime], now: datetime, days: Sequence[int], zone: str = "UTC"
) -> dict[datetime, str]:
    """Of `latest`."""
    holidays = {day(number) for number in days}
    allowed = [at for at in times if at.astimezone(ZoneInfo(zone)).date() not in holidays]
    in_time = [at for at in times if at >= now - GRACE]
    ran = {at for at in allowed if at in in_time} or set(allowed[-1:])
    skipped = set(in_time) - ran
    return {at: "RAN" if at in ran else "calendar" if at in skipped else "misfire" for at in times}


outages = pytest.mark.parametrize(
    ("now", "days"),
    [
        (moment(9, "09:00"), []),
        (moment(9, "09:00"), [9]),  # from the day before
        (moment(9, "09:00"), [7, 8, 9]),  # from far before
        (moment(9, "09:00"), [7, 9]),
        (moment(9, "09:00"), [6, 7, 8]),  # the latest is allowed
        (moment(9, "09:00"), [6, 7, 8, 9]),  # none is
        (moment(9, "10:00:50"), [8, 9]),  # one is in time, and excluded
        (moment(9, "10:00:50"), [8]),  # one is in time, and allowed
    ],
)
zones = pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/St_Johns"])


@outages
@zones
async def test_planning_makes_up_the_latest_that_is_allowed(
    still: Engine, now: datetime, days: list[int], zone: str
) -> None:
    await exclude(still, 1)
    job = await excluding(still, zone=zone)
    await run_all(still, START)
    await exclude(still, *days)  # what counts are the dates when the misfires are judged
    await travel(still, now)
    await run_all(still, now)
    assert await fates_of(still, job) == expected(occurrences(now), now, days, zone)


@outages
@zones
@pytest.mark.usefixtures("small")
async def test_slices_of_a_gap_make_up_the_latest_that_is_allowed(
    still: Engine, now: datetime, days: list[int], zone: str
) -> None:
    """Every 40 minutes; the latest that is allowed may be in any slice. The gate does not wait for the others."""
    await exclude(still, 1)
    seconds = 2400
    job = await excluding(still, seconds, zone)
    plain = await create(still, every(seconds) | {"schedule": {"every_seconds": seconds}})
    await run_all(still, START)
    await exclude(still, *days)
    await travel(still, now)
    swept = now
    while await planning.plan(still, None, now):
        if await still.database.value("select exists (select from hourbell.due)"):
            swept += timedelta(seconds=1)  # the gate sweeps once a second
            await admit_all(still, swept)
    await run_all(still, swept)
    assert await still.database.value("select count(*) from hourbell.gaps") == 0
    times = occurrences(now, seconds)
    assert await fates_of(still, job) == expected(times, now, days, zone)
    assert await fates_of(still, plain) == expected(times, now, [])


@outages
async def test_a_join_makes_up_the_latest_that_is_allowed(
    still: Engine, now: datetime, days: list[int]
) -> None:
    await exclude(still, 1)
    job = await excluding(still)
    await run_all(still, START)
    await exclude(still, *days)
    await still.database.value(
        "update hourbell.memberships set joined_through = null, active_since = $1", START
    )
    await travel(still, now)
    await plan_all(still, now)
    await complete_joins(still, now)
    await run_all(still, now)
    assert await fates_of(still, job) == expected(occurrences(now), now, days)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("days", [[], [7], [6, 7]])
@pytest.mark.parametrize("minutes", [3, 30])
@pytest.mark.usefixtures("small")
async def test_the_gate_makes_up_the_latest_that_is_allowed(
    still: Engine, days: list[int], minutes: int, gate_first: bool
) -> None:
    """Planned in time are an occurrence of day 6 and, half a minute later, one of day 7."""
    await exclude(still, 1)
    await travel(still, moment(6, "23:59:15"))
    job = await excluding(still, 30)
    await plan_all(still)
    assert await still.database.value("select count(*) from hourbell.due") == 2
    await exclude(still, *days)
    now = await travel(still, moment(7, "00:00:10") + timedelta(minutes=minutes))
    if gate_first:
        await admit_all(still)
    await run_all(still, now)
    times = [at for at in occurrences(now, 30) if at > moment(6, "23:59:15")]
    wanted = expected(times, now, days)
    found = await fates_of(still, job)
    # What has been planned is skipped for its date.
    assert {at for at, fate in found.items() if fate == "RAN"} == {
        at for at, fate in wanted.items() if fate == "RAN"
    }
    assert sorted(found) == times


async def test_other_policies_do_not_look_back_for_what_is_allowed(still: Engine) -> None:
    await exclude(still, 1)
    jobs = [await excluding(still, misfire_policy=policy) for policy in ("skip", "all")]
    await run_all(still, START)
    await exclude(still, 9)
    now = await travel(still, moment(9, "09:00"))
    await run_all(still, now)
    skip, everything = [await fates_of(still, job) for job in jobs]
    assert set(skip.values()) == {"misfire"}
    window = now - timedelta(days=1)
    for at, fate in everything.items():
        allowed = "calendar" if at.date() == day(9) else "RAN"
        assert fate == (allowed if at > window else "misfire")


@pytest.mark.usefixtures("small")
async def test_a_member_that_has_ended_makes_up_its_latest_that_is_allowed(still: Engine) -> None:
    await exclude(still, 1)
    job = await create(
        still,
        every(2400)
        | {
            "schedule": {
                "every_seconds": 2400,
                "ends_at": moment(8, "03:00").isoformat(),
                "exclude": ["holidays"],
            }
        },
    )
    await run_all(still, START)
    await exclude(still, 8)
    now = await travel(still, moment(9, "09:00"))
    await run_all(still, now)
    found = await fates_of(still, job)
    times = [at for at in occurrences(now, 2400) if at <= moment(8, "03:00")]
    assert found == expected(times, now, [8])
