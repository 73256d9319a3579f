"""POST /api/v1/jobs/pause and /resume, and pauses that have a reason and an end."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.pauses import end_pauses
from hourbell.failpoints import configure
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.working import Hand

JOBS = "/api/v1/jobs"
PAUSE, RESUME = f"{JOBS}/pause", f"{JOBS}/resume"


async def statuses(api: Client) -> Counter[str]:
    return Counter(job["status"] for job in await api.pages(f"{JOBS}?page_size=500"))


async def status_of(api: Client, job: Any) -> str:
    return str((await api.get(job["path"])).body["status"])


async def explained(api: Client, job: Any) -> Any:
    return (await api.get(job["path"] + "/explain")).body


async def soon(engine: Engine, seconds: float = 3600) -> datetime:
    return (await engine.clock.now()).replace(microsecond=0) + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("selection", "fields"),
    [
        ({"queue": "mail"}, {"queue": "mail"}),
        ({"label": "team:billing"}, {"labels": {"team": "billing"}}),
        ({"tenant_id": "acme"}, {"tenant_id": "acme"}),
        (
            {"tenant_id": "acme", "queue": "mail", "label": "a:b"},
            {"tenant_id": "acme", "queue": "mail", "labels": {"a": "b"}},
        ),
    ],
)
async def test_the_jobs_of_a_filter_are_paused_and_resumed_and_no_others(
    api: Client, selection: dict[str, Any], fields: dict[str, Any]
):
    meant = [await api.created(document(**fields)) for document in (one_time, recurring)]
    others = [await api.created(document()) for document in (one_time, recurring)]
    paused = await api.post(PAUSE, selection)
    assert paused.body == {"paused": 2, "left": 0, "next_page_token": None}
    assert [await status_of(api, job) for job in meant] == ["PAUSED"] * 2
    assert [await status_of(api, job) for job in others] == ["SCHEDULED"] * 2
    assert (await api.post(PAUSE, selection)).body["paused"] == 0
    await api.post(others[0]["path"] + "/pause")
    resumed = await api.post(RESUME, selection)
    assert resumed.body == {"resumed": 2, "left": 0, "next_page_token": None}
    assert [await status_of(api, job) for job in meant] == ["SCHEDULED"] * 2
    assert await status_of(api, others[0]) == "PAUSED"
    seen = (await api.get(meant[1]["path"])).body
    assert (seen["version"], seen["next_run_at"]) == (3, meant[1]["next_run_at"])


async def test_without_a_filter_everything_is_meant(api: Client):
    for tenant in ("a", "b", "default"):
        await api.created(recurring(tenant_id=tenant))
        await api.created(one_time(tenant_id=tenant))
    assert (await api.post(PAUSE, {})).body["paused"] == 6
    assert await statuses(api) == {"PAUSED": 6}
    assert (await api.post(RESUME, {})).body["resumed"] == 6
    assert await statuses(api) == {"SCHEDULED": 6}


async def test_a_request_is_bounded_and_the_next_one_continues(api: Client):
    batch = [recurring() if n % 2 else one_time() for n in range(250)]
    await api.post(f"{JOBS}/batch", batch)
    total, token, calls = 0, None, 0
    while calls == 0 or token is not None:
        document = {"limit": 120} | ({} if token is None else {"page_token": token})
        answer = (await api.post(PAUSE, document)).body
        assert answer["paused"] <= 120
        total, token, calls = total + answer["paused"], answer["next_page_token"], calls + 1
    assert (total, calls) == (250, 3)
    assert await statuses(api) == {"PAUSED": 250}
    later = await api.created(recurring())  # is not a part of it
    assert await status_of(api, later) == "SCHEDULED"
    refused = await api.post(PAUSE, {"page_token": "?"})
    assert (refused.status, refused.paths) == (422, {"page_token"})


async def test_a_request_that_dies_midway_has_paused_whole_pages_and_is_sent_again(api: Client):
    await api.post(f"{JOBS}/batch", [recurring() for _ in range(250)])
    configure("pause.before_commit=error@2")
    assert (await api.post(PAUSE, {"reason": "move"}, key="mine")).status == 500
    configure("")
    assert await statuses(api) == {"PAUSED": 100, "SCHEDULED": 150}
    again = await api.post(PAUSE, {"reason": "move"}, key="mine")
    assert again.body["paused"] == 150
    assert await statuses(api) == {"PAUSED": 250}
    await api.post(RESUME, {})
    repeated = await api.post(PAUSE, {"reason": "move"}, key="mine")
    assert repeated.body == again.body
    assert await statuses(api) == {"SCHEDULED": 250}


async def test_a_running_one_time_job_is_left(api: Client, dispatch: PostgresDispatch):
    running = await api.created(one_time(schedule={"delay_seconds": 0}))
    assert len(await Hand(dispatch).claim()) == 1
    await api.created(one_time())
    assert (await api.post(PAUSE, {})).body == {"paused": 1, "left": 1, "next_page_token": None}
    assert await status_of(api, running) == "RUNNING"


async def test_a_job_that_another_transaction_has_locked_is_left_and_stops_no_others(
    api: Client, engine: Engine
):
    jobs = [await api.created(recurring()) for _ in range(3)]
    async with engine.database.transaction() as connection:
        await connection.execute(
            "select from hourbell.jobs where id ="
            " (select id from hourbell.jobs order by id offset 1 limit 1) for update"
        )
        answer = await api.post(PAUSE, {})
    assert answer.body == {"paused": 2, "left": 1, "next_page_token": None}
    assert [await status_of(api, job) for job in jobs] == ["PAUSED", "SCHEDULED", "PAUSED"]


async def test_explain_says_who_paused_a_job_and_why_and_until_when(api: Client, engine: Engine):
    until = (await soon(engine)).strftime("%Y-%m-%dT%H:%M:%SZ")
    for document in (one_time(), recurring()):
        job = await api.created(document)
        answer = await api.post(
            job["path"] + "/pause", {"reason": "the printer is broken", "until": until}
        )
        assert (answer.status, answer.body["status"]) == (200, "PAUSED")
        shown = await explained(api, job)
        assert (shown["code"], shown["until"]) == ("paused", until)
        assert "paused by anonymous: the printer is broken. " in shown["message"]
        await api.post(job["path"] + "/resume")
        await api.post(job["path"] + "/pause")
        shown = await explained(api, job)
        assert (shown["code"], shown["until"]) == ("paused", None)
        assert "printer" not in shown["message"]


async def test_an_update_of_a_paused_job_keeps_its_reason(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.post(job["path"] + "/pause", {"reason": "broken"})
        await api.patch(job["path"], {"priority": "LOW"})
        assert "broken" in (await explained(api, job))["message"]


async def test_only_jobs_paused_with_a_reason_are_resumed_by_it(api: Client):
    mine, before = await api.created(recurring()), await api.created(one_time())
    await api.post(before["path"] + "/pause", {"reason": "a dispute"})
    assert (await api.post(PAUSE, {"reason": "maintenance"})).body["paused"] == 1
    assert (await api.post(RESUME, {"reason": "maintenance"})).body["resumed"] == 1
    assert await status_of(api, mine) == "SCHEDULED"
    assert await status_of(api, before) == "PAUSED"


async def test_the_leader_resumes_jobs_when_their_pause_is_over(api: Client, engine: Engine):
    jobs = [await api.created(document()) for document in (one_time, recurring)]
    until = await soon(engine)
    await api.post(PAUSE, {"until": until.isoformat(), "reason": "maintenance"})
    forever = await api.created(recurring())
    await api.post(forever["path"] + "/pause", {"reason": "no end"})
    await end_pauses(engine, until - timedelta(seconds=1))
    assert [await status_of(api, job) for job in jobs] == ["PAUSED"] * 2
    await end_pauses(engine, until)
    assert [await status_of(api, job) for job in jobs] == ["SCHEDULED"] * 2
    assert await status_of(api, forever) == "PAUSED"
    latest = (await api.get(jobs[1]["path"] + "/audit")).body["items"][0]
    assert (latest["operation"], latest["actor"]) == ("resume", "end of the pause")
    assert await engine.database.value("select count(*) from hourbell.pauses") == 1
    assert not await end_pauses(engine, until)


async def test_a_pause_that_was_extended_does_not_end_early(api: Client, engine: Engine):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        first = await soon(engine)
        await api.post(job["path"] + "/pause", {"until": first.isoformat()})
        later = first + timedelta(hours=1)
        again = await api.post(job["path"] + "/pause", {"until": later.isoformat()})
        assert (again.body["status"], again.body["version"]) == ("PAUSED", 3)
        await end_pauses(engine, first)
        assert await status_of(api, job) == "PAUSED"
        await end_pauses(engine, later)
        assert await status_of(api, job) == "SCHEDULED"


async def test_a_job_that_was_resumed_or_run_before_is_left_alone_at_the_end(
    api: Client, engine: Engine
):
    until = await soon(engine)
    resumed, run, deleted = [await api.created(one_time()) for _ in range(3)]
    await api.post(PAUSE, {"until": until.isoformat()})
    await api.post(resumed["path"] + "/resume")
    await api.post(run["path"] + "/run")  # it is no longer paused
    await api.delete(deleted["path"])
    await api.post(resumed["path"] + "/pause")
    await end_pauses(engine, until)
    assert await status_of(api, resumed) == "PAUSED"
    assert await engine.database.value("select count(*) from hourbell.pauses") == 0


async def test_pauses_of_jobs_that_have_ended_are_forgotten(api: Client, engine: Engine):
    job = await api.created(one_time())
    await api.post(job["path"] + "/pause", {"reason": "no end"})
    await engine.database.value("delete from hourbell.paused")
    await end_pauses(engine, (await engine.clock.now()) + timedelta(hours=23))
    assert await engine.database.value("select count(*) from hourbell.pauses") == 1
    await end_pauses(engine, (await engine.clock.now()) + timedelta(hours=25))
    assert await engine.database.value("select count(*) from hourbell.pauses") == 0


async def test_an_end_in_the_past_is_refused(api: Client):
    job = await api.created(recurring())
    for path in (PAUSE, job["path"] + "/pause"):
        refused = await api.post(path, {"until": "2026-01-01T00:00:00Z"})
        assert (refused.status, refused.paths) == (422, {"until"})
    assert await status_of(api, job) == "SCHEDULED"


async def test_a_key_of_a_tenant_pauses_the_jobs_of_its_tenant(api: Client, admin: str):
    own = bearing(await made(api, "operator", "acme", headers=bearing(admin)))
    mine = await api.post(JOBS, recurring(), headers=own)
    other = await api.post(JOBS, recurring(tenant_id="other"), headers=bearing(admin))
    assert (await api.post(PAUSE, {}, headers=own)).body["paused"] == 1
    refused = await api.post(PAUSE, {"tenant_id": "other"}, headers=own)
    assert refused.is_problem(403, "forbidden")
    for job, status in ((mine, "PAUSED"), (other, "SCHEDULED")):
        path = f"{JOBS}/{job.body['job_id']}"
        seen = await api.send("GET", path, key=None, headers=bearing(admin))
        assert seen.body["status"] == status


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_the_trail_says_why_until_when_and_by_whom_a_job_was_paused(
    api: Client, engine: Engine, admin: str, document: Any
):
    key = bearing(await made(api, "operator", "default", headers=bearing(admin)))
    job = await api.post(JOBS, document(), headers=key)
    until = (await soon(engine)).isoformat().replace("+00:00", "Z")
    why = {"reason": "provider down", "until": until}
    assert (await api.post(PAUSE, why, headers=key)).body["paused"] == 1
    await api.post(job.headers["Location"] + "/resume", headers=key)
    await api.post(job.headers["Location"] + "/pause", headers=key)
    path = job.headers["Location"] + "/audit"
    trail = (await api.send("GET", path, key=None, headers=key)).body["items"]
    shown = [(each["operation"], each["to"].get("pause")) for each in trail[:3]]
    assert shown == [("pause", None), ("resume", None), ("pause", why)]
    assert {each["actor"] for each in trail} == {trail[0]["actor"]}
    assert "(key_" in trail[0]["actor"]
