"""`jitter_seconds` of schedules."""

from datetime import datetime, timedelta

from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"
SPREAD = {"cron": "0 3 1 1 *", "jitter_seconds": 600}


async def test_jobs_with_one_rule_run_at_different_times(api: Client):
    plain = await api.created(recurring())
    assert plain["schedule"]["jitter_seconds"] == 0
    nominal = datetime.fromisoformat(plain["next_run_at"])
    late = set()
    for _ in range(20):
        job = await api.created(recurring(schedule=SPREAD))
        assert job["schedule"]["jitter_seconds"] == 600
        late.add(datetime.fromisoformat(job["next_run_at"]) - nominal)
        runs = (await api.get(job["path"] + "/next-runs")).body["items"]
        assert runs[0]["scheduled_for"] == job["next_run_at"]
    assert len(late) > 10
    assert all(timedelta(0) <= each <= timedelta(seconds=600) for each in late)


async def test_executions_are_planned_for_the_later_time(api: Client, engine: Engine):
    job = await api.created(recurring(schedule=SPREAD))
    due = datetime.fromisoformat(job["next_run_at"])
    await plan(engine, None, due - timedelta(seconds=30))
    (planned,) = await engine.database.fetch("select occurrence, run_at from hourbell.executions")
    assert (planned["occurrence"], planned["run_at"]) == (due, due)


async def test_a_change_of_the_jitter_reschedules_the_job(api: Client):
    job = await api.created(recurring(schedule=SPREAD))
    changed = await api.patch(job["path"], {"schedule": {"jitter_seconds": 0}})
    assert changed.body["version"] == 2
    assert changed.body["next_run_at"].endswith("-01-01T03:00:00Z")


async def test_a_critical_job_starts_on_time(api: Client):
    refused = await api.post(JOBS, recurring(schedule=SPREAD, priority="CRITICAL"))
    assert (refused.status, refused.paths) == (422, {"schedule.jitter_seconds"})
    job = await api.created(recurring(schedule=SPREAD))
    refused = await api.patch(job["path"], {"priority": "CRITICAL"})
    assert refused.paths == {"schedule.jitter_seconds"}
    both = {"priority": "CRITICAL", "schedule": {"jitter_seconds": None}}
    assert (await api.patch(job["path"], both)).status == 200


async def test_a_one_time_job_has_no_jitter(api: Client):
    schedule = {"delay_seconds": 60, "jitter_seconds": 5}
    refused = await api.post(JOBS, one_time(schedule=schedule))
    assert refused.paths == {"schedule.jitter_seconds"}
