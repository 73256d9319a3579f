"""New zone data: what is not planned yet is computed again."""

from datetime import UTC, datetime, timedelta

from hourbell.engine.core import Engine
from hourbell.engine.life.create import create_job
from hourbell.engine.life.plan import update_tz_version
from hourbell.engine.operations.idempotency import Write
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.timing.rules import compile_rule
from hourbell.timing.zones import tz_version

_JOB = {
    "name": "noon",
    "type": "RECURRING",
    "schedule": {"cron": "0 12 * * *", "timezone": "Africa/Casablanca"},
    "action": {"type": "TASK", "name": "noon"},
}


async def test_a_change_of_zone_data_reckons_anew_what_is_not_yet_planned(database: str) -> None:
    opened = await Database.open(database, 2)
    try:
        engine = Engine(opened, DatabaseClock(opened))
        await create_job(engine, _JOB, Write())
        row = await opened.row("select * from hourbell.timetables")
        wrong = row["next_fire_at"] + timedelta(hours=1)
        await opened.value(
            "update hourbell.timetables set next_fire_at = $1, plan_from = $1, tz_version = 'old'",
            wrong,
        )
        assert await update_tz_version(engine, None, await engine.clock.now()) is False
        after = await opened.row("select * from hourbell.timetables")
        rule = compile_rule("0 12 * * *", "Africa/Casablanca")
        assert after["next_fire_at"] == rule.next(row["planned_through"]) != wrong
        assert after["plan_from"] == after["next_fire_at"]
        assert after["tz_version"] == tz_version()
        assert after["planned_through"] == row["planned_through"]
    finally:
        await opened.close()


async def test_what_is_reckoned_by_our_zone_data_is_left_alone(database: str) -> None:
    opened = await Database.open(database, 2)
    try:
        engine = Engine(opened, DatabaseClock(opened))
        await create_job(engine, _JOB, Write())
        marked = datetime(2090, 1, 1, tzinfo=UTC)
        await opened.value("update hourbell.timetables set next_fire_at = $1", marked)
        await update_tz_version(engine, None, await engine.clock.now())
        row = await opened.row("select next_fire_at from hourbell.timetables")
        assert row["next_fire_at"] == marked
    finally:
        await opened.close()
