"""One-time jobs at a wall time: `at` without an offset, in `timezone`."""

import pytest

from integration.api.client import Client, one_time

JOBS = "/api/v1/jobs"
NEW_YORK = "America/New_York"


@pytest.mark.parametrize(
    ("wall", "shown"),
    [
        ("2027-03-14T02:30:00", "2027-03-14T03:00:00-04:00"),  # does not exist
        ("2027-11-07T01:30:00", "2027-11-07T01:30:00-04:00"),  # the first of two
        ("2027-11-07T02:30:00", "2027-11-07T02:30:00-05:00"),
    ],
)
async def test_a_wall_time_runs_as_a_cron_rule_would_on_days_of_change(
    api: Client, wall: str, shown: str
):
    job = await api.created(one_time(schedule={"at": wall, "timezone": NEW_YORK}))
    assert job["next_run_at"] == shown
    read = (await api.get(job["path"])).body
    assert read["schedule"]["timezone"] == NEW_YORK
    # What was read can be sent back, and means the same.
    changed = await api.patch(job["path"], {"schedule": read["schedule"]})
    assert changed.body["version"] == 1


async def test_a_wall_time_needs_a_timezone(api: Client):
    refused = await api.post(JOBS, one_time(schedule={"at": "2027-03-14T09:00:00"}))
    assert (refused.status, refused.paths) == (422, {"schedule.at"})
    assert "timezone" in refused.body["errors"][0]["message"]
    unknown = {"at": "2027-03-14T09:00:00", "timezone": "Mars/Olympus"}
    refused = await api.post(JOBS, one_time(schedule=unknown))
    assert refused.paths == {"schedule.timezone"}


async def test_a_wall_time_that_no_clock_shows_is_refused(api: Client):
    for at, zone in (
        ("2027-02-30T09:00:00", NEW_YORK),
        ("2011-12-30T12:00:00", "Pacific/Apia"),
        ("9999-12-31T23:59:59", NEW_YORK),
        ("0001-01-01T00:00:00", NEW_YORK),
    ):
        refused = await api.post(JOBS, one_time(schedule={"at": at, "timezone": zone}))
        assert (refused.status, refused.paths) == (422, {"schedule.at"}), at


async def test_a_patch_of_the_time_is_read_in_the_zone_of_the_job(api: Client):
    schedule = {"at": "2027-03-13T09:00:00", "timezone": NEW_YORK}
    job = await api.created(one_time(schedule=schedule))
    changed = await api.patch(job["path"], {"schedule": {"at": "2027-03-14T09:00:00"}})
    assert changed.body["next_run_at"] == "2027-03-14T09:00:00-04:00"


async def test_a_batch_takes_wall_times_too(api: Client):
    schedule = {"at": "2027-11-07T01:30:00", "timezone": NEW_YORK}
    done = await api.post(f"{JOBS}/batch", [one_time(schedule=schedule)])
    job = await api.get(f"{JOBS}/{done.body['results'][0]['job_id']}")
    assert job.body["next_run_at"] == "2027-11-07T01:30:00-04:00"
