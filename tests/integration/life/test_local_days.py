"""A zone means the same in Python, which computes occurrences, and in the gate, which judges their dates by calendars."""

from datetime import UTC, date, datetime, timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.timing.changes import clock_changes
from hourbell.timing.zones import load_zone, zone_names

FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
ABBREVIATIONS = ("CET", "MET", "EET", "WET", "EST", "HST", "MST")  # names of zones, too
_DAYS = """
select array_agg(hourbell.local_day($1, at) order by pos) from unnest($2::timestamptz[]) with ordinality as u(at, pos)
"""


def moments(zone: str) -> list[datetime]:
    """Around each change of the clocks, and where the dates next to it change; and in each winter and summer."""
    info = load_zone(zone)
    found = [
        datetime(year, month, 1, tzinfo=info) for year in range(2020, 2041) for month in (1, 7)
    ]
    for change in clock_changes(zone, FIRST, LAST):
        local = change.at.astimezone(info)
        midnight = local.replace(hour=0, minute=0, second=0)
        found += [change.at - SECOND, change.at, midnight, midnight + timedelta(days=1)]
    return [one.astimezone(UTC) + by for one in found for by in (-SECOND, timedelta(0))]


async def test_a_date_is_the_same_in_python_and_in_sql(engine: Engine) -> None:
    """Up to 2025. Of later years, the data of the server may be of an older release than those of the program."""
    differing: dict[str, tuple[datetime, date, date]] = {}
    for zone in sorted(zone_names()):
        info = load_zone(zone)
        at = moments(zone)
        days = await engine.database.value(_DAYS, zone, at)
        for moment, by_sql in zip(at, days, strict=True):
            by_python = moment.astimezone(info).date()
            if by_sql != by_python and (moment.year < 2026 or zone in ABBREVIATIONS):
                differing.setdefault(zone, (moment, by_python, by_sql))
    assert differing == {}


@pytest.mark.parametrize("zone", ABBREVIATIONS[:4])
async def test_an_abbreviation_that_is_a_zone_has_its_summer_time(
    engine: Engine, zone: str
) -> None:
    midnight = datetime(2027, 7, 1, tzinfo=load_zone(zone)).astimezone(UTC)
    for at in (midnight - SECOND, midnight):
        day = await engine.database.value("select hourbell.local_day($1, $2)", zone, at)
        assert day == at.astimezone(load_zone(zone)).date()


async def test_a_zone_that_the_server_does_not_know_counts_as_utc(engine: Engine) -> None:
    at = datetime(2027, 7, 1, 23, 30, tzinfo=UTC)
    async with engine.database.connection() as connection:
        day = await connection.fetchval("select hourbell.local_day('Mars/Olympus', $1)", at)
        assert day == date(2027, 7, 1)
        await connection.execute("set timezone = 'Asia/Tokyo'")
        await connection.fetchval("select hourbell.local_day('Europe/Berlin', $1)", at)
        assert await connection.fetchval("show timezone") == "Asia/Tokyo"
        await connection.execute("reset timezone")
