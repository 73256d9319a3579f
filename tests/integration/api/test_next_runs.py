"""GET /api/v1/jobs/{job_id}/next-runs"""

from integration.api.client import Client, one_time, recurring

NEW_YORK = {"cron": "30 2 * * *", "timezone": "America/New_York"}


async def test_the_next_runs_are_in_the_zone_of_the_job_with_a_word_on_clock_changes(api: Client):
    job = await api.created(recurring(schedule=NEW_YORK | {"starts_at": "2028-03-11T12:00:00Z"}))
    items = (await api.get(job["path"] + "/next-runs?count=3")).body["items"]
    assert [item["scheduled_for"] for item in items] == [
        "2028-03-12T03:00:00-04:00",
        "2028-03-13T02:30:00-04:00",
        "2028-03-14T02:30:00-04:00",
    ]
    assert [item["note"] is not None for item in items] == [True, False, False]
    assert "02:30 does not exist" in items[0]["note"]


async def test_the_first_is_what_the_job_says_itself(api: Client):
    for document in (recurring(), one_time(), recurring(schedule={"every_seconds": 70})):
        job = await api.created(document)
        items = (await api.get(job["path"] + "/next-runs")).body["items"]
        assert items[0] == {"scheduled_for": job["next_run_at"], "note": None}
        assert len(items) == (1 if document["type"] == "ONE_TIME" else 10)


async def test_the_window_is_honoured(api: Client):
    window = {"starts_at": "2031-01-01T00:00:00Z", "ends_at": "2031-01-03T00:00:00Z"}
    job = await api.created(recurring(schedule={"cron": "0 0 * * *"} | window))
    items = (await api.get(job["path"] + "/next-runs?count=100")).body["items"]
    days = ["2031-01-01", "2031-01-02", "2031-01-03"]
    assert [item["scheduled_for"] for item in items] == [f"{day}T00:00:00Z" for day in days]
    counted = await api.created(recurring(schedule={"cron": "0 0 * * *", "max_runs": 2}))
    assert len((await api.get(counted["path"] + "/next-runs?count=9")).body["items"]) == 2


async def test_a_paused_schedule_shows_the_runs_after_its_pause(api: Client):
    job = await api.created(recurring(schedule={"cron": "0 0 * * *"}))
    runs = (await api.get(job["path"] + "/next-runs")).body["items"]
    await api.post(job["path"] + "/pause")
    assert (await api.get(job["path"] + "/next-runs")).body["items"] == runs
    await api.post(job["path"] + "/pause", {"until": runs[3]["scheduled_for"]})
    after = (await api.get(job["path"] + "/next-runs?count=6")).body["items"]
    assert after == runs[4:]


async def test_a_job_that_has_ended_or_is_paused_and_runs_once_has_none(api: Client):
    for document in (recurring(), one_time()):
        job = await api.created(document)
        await api.post(job["path"] + "/pause")
        if job["type"] == "ONE_TIME":
            assert (await api.get(job["path"] + "/next-runs")).body == {"items": [], "warnings": []}
        await api.delete(job["path"])
        assert (await api.get(job["path"] + "/next-runs")).body == {"items": [], "warnings": []}


async def test_a_count_out_of_bounds_is_refused(api: Client):
    job = await api.created(recurring())
    for count in ("0", "101", "-1", "x", "", "1.5", "9" * 40):
        answer = await api.get(f"{job['path']}/next-runs?count={count}")
        assert answer.is_problem(422, "invalid_input"), count
        assert answer.paths == {"count"}


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/next-runs")
    assert answer.is_problem(404, "not_found")


async def test_seconds_that_were_probably_meant_last_are_warned_about(api: Client):
    path = "/api/v1/jobs/by-name/often"
    doubtful = recurring(name="often", schedule={"cron": "* * * * * 5"})
    job = await api.created(doubtful)
    (warning,) = job["warnings"]
    assert (warning["path"], warning["code"]) == ("schedule.cron", "seconds_first")
    assert "5 * * * * *" in warning["message"]
    for answer in (
        await api.get(job["path"]),
        await api.get(job["path"] + "/next-runs"),
        await api.put(path, doubtful),
        await api.patch(job["path"], {"priority": "LOW"}),
    ):
        assert answer.body["warnings"] == [warning]
    mended = await api.patch(job["path"], {"schedule": {"cron": "5 * * * * *"}})
    assert mended.body["warnings"] == []
    for document in (one_time(), recurring(), recurring(schedule={"every_seconds": 70})):
        assert (await api.created(document))["warnings"] == []
