"""What a preview shows is what planning does, also when the clocks change."""

from datetime import UTC, datetime, timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.views.preview import preview_schedule
from hourbell.model.ids import job_text
from integration.life.support import create, plan_all, recurring, travel

HOUR = timedelta(hours=1)
SCHEDULES = [
    {"cron": "30 2 * * *"},
    {"cron": "30 2 * * *", "dst_gap": "skip", "dst_overlap": "twice"},
    {"cron": "*/20 * * * *"},
    {"cron": "15,45 1-3 * * *"},
    {"cron": "H H(0-3) * * *", "jitter_seconds": 600},
    {"every_seconds": 2700},
]


@pytest.mark.parametrize(
    ("zone", "begin"),
    [
        ("Europe/Berlin", datetime(2032, 3, 27, 22, tzinfo=UTC)),
        ("Europe/Berlin", datetime(2032, 10, 30, 21, tzinfo=UTC)),
        (
            "Australia/Lord_Howe",
            datetime(2032, 4, 3, 13, tzinfo=UTC),
        ),  # clocks go back by half an hour
    ],
)
async def test_the_runs_of_a_preview_are_those_that_are_planned(
    still: Engine, zone: str, begin: datetime
) -> None:
    end = begin + 8 * HOUR
    await travel(still, begin)
    previewed: dict[int, list[datetime]] = {}
    for schedule in SCHEDULES:
        timed = schedule | {"timezone": zone}
        job = await create(still, recurring(misfire_policy="all") | {"schedule": timed})
        document = {"schedule": timed, "job_id": job_text(job.job_id), "count": 100}
        shown = await preview_schedule(still, document)
        previewed[job.job_id] = [run.utc for run in shown.runs if run.utc <= end]
        (change,) = [each for each in shown.changes if begin < each.change.at <= end]
        assert {run.utc for run in change.runs if run.utc <= end} <= set(previewed[job.job_id])
    for hours in range(1, 9):
        await travel(still, begin + hours * HOUR)
        await plan_all(still)
    rows = await still.database.fetch(
        "select job, occurrence from hourbell.executions where occurrence <= $1 order by occurrence",
        end,
    )
    planned: dict[int, list[datetime]] = {job: [] for job in previewed}
    for row in rows:
        planned[row["job"]].append(row["occurrence"])
    assert planned == previewed
