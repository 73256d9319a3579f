"""Groups of executions, and their callbacks."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from hourbell.dispatch import DEAD, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader import group_callbacks
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.life import retain
from hourbell.engine.life.admit import admit
from hourbell.failpoints import FailpointError, configure
from hourbell.model.ids import parse_group_id, parse_job_id
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.working import Hand

GROUPS = "/api/v1/groups"
CALLBACK = {"name": "nightly", "url": "https://done.example/hook", "headers": {"X-A": "b"}}


async def created(api: Client, **fields: Any) -> Any:
    answer = await api.post(GROUPS, CALLBACK | fields)
    assert answer.status == 201, answer.body
    return answer.body | {"path": answer.headers["Location"]}


async def due_jobs(api: Client, count: int) -> list[Any]:
    return [await api.created(one_time(schedule={"delay_seconds": 0})) for _ in range(count)]


async def add(api: Client, group: Any, jobs: list[Any]) -> Any:
    answer = await api.post(group["path"] + "/members", {"job_ids": [j["job_id"] for j in jobs]})
    assert answer.status == 200, answer.body
    return answer.body


async def follow(engine: Engine, seconds: float = 60) -> None:
    while await follow_groups(
        engine, None, (await engine.clock.now()) + timedelta(seconds=seconds)
    ):
        pass


async def callbacks(engine: Engine) -> list[Any]:
    rows = await engine.database.fetch(
        "select spec from hourbell.executions where origin = hourbell.origin_notification()"
        " order by id"
    )
    return [json.loads(row["spec"])["action"] for row in rows]


async def test_the_callback_is_sent_once_when_all_members_have_ended(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    group = await created(api)
    assert (group["members"], group["closed_at"], group["ended_at"]) == (0, None, None)
    jobs = await due_jobs(api, 3)
    assert (await add(api, group, jobs))["members"] == 3
    assert (await add(api, group, jobs[:1]))["members"] == 3  # again
    closed = await api.post(group["path"] + "/close")
    assert closed.body["closed_at"] is not None
    hand = Hand(dispatch)
    first, second, third = await hand.claim()
    await hand.settle(first, SUCCEEDED)
    await hand.settle(third, SUCCEEDED)
    await follow(engine)
    assert await callbacks(engine) == []
    seen = (await api.get(group["path"])).body
    assert (seen["ended"]["SUCCEEDED"], seen["ended_at"]) == (1, None)  # known up to the second
    await hand.settle(second, DEAD, "retries_exhausted")
    await follow(engine, 120)
    (sent,) = await callbacks(engine)
    assert (sent["url"], sent["headers"]) == (CALLBACK["url"], CALLBACK["headers"])
    ended = {"SUCCEEDED": 2, "DEAD": 1, "CANCELLED": 0, "SUPERSEDED": 0, "SKIPPED": 0}
    assert sent["body"]["event"] == "group_ended"
    assert sent["body"]["group_id"] == group["group_id"]
    assert (sent["body"]["members"], sent["body"]["ended"]) == (3, ended)
    assert (await api.get(group["path"])).body["ended"] == ended
    await follow(engine, 3600)
    assert len(await callbacks(engine)) == 1


async def test_an_open_group_never_ends(api: Client, engine: Engine, dispatch: PostgresDispatch):
    group = await created(api)
    await add(api, group, await due_jobs(api, 1))
    hand = Hand(dispatch)
    for claimed in await hand.claim():
        await hand.settle(claimed, SUCCEEDED)
    await follow(engine)
    assert await callbacks(engine) == []
    await api.post(group["path"] + "/close")
    await follow(engine)
    assert len(await callbacks(engine)) == 1


async def test_a_closed_group_takes_no_members_and_an_empty_one_ends_at_once(
    api: Client, engine: Engine
):
    group = await created(api)
    await api.post(group["path"] + "/close")
    again = await api.post(group["path"] + "/close")
    assert again.status == 200
    (job,) = await due_jobs(api, 1)
    refused = await api.post(group["path"] + "/members", {"job_ids": [job["job_id"]]})
    assert refused.is_problem(409, "conflict")
    await follow(engine)
    (sent,) = await callbacks(engine)
    assert sent["body"]["members"] == 0


async def test_cancelled_members_have_ended(api: Client, engine: Engine):
    group = await created(api)
    job = await api.created(one_time())
    await add(api, group, [job])
    await api.post(group["path"] + "/close")
    await follow(engine)
    assert await callbacks(engine) == []
    await api.delete(job["path"])
    await follow(engine, 120)
    (sent,) = await callbacks(engine)
    assert sent["body"]["ended"]["CANCELLED"] == 1


async def test_runs_of_recurring_jobs_can_be_members_by_their_ids(api: Client, engine: Engine):
    job = await api.created(recurring())
    ids = (await api.post(job["path"] + "/run")).body["execution_ids"]
    group = await created(api)
    answer = await api.post(group["path"] + "/members", {"execution_ids": ids})
    assert answer.body["members"] == 1


async def test_members_that_retention_has_dropped_have_ended(api: Client, engine: Engine):
    group = await created(api)
    (job,) = await due_jobs(api, 1)
    await add(api, group, [job])
    await api.post(group["path"] + "/close")
    number = parse_job_id(job["job_id"])
    await engine.database.value("delete from hourbell.due where id = $1", number)
    await engine.database.value("delete from hourbell.executions where id = $1", number)
    await follow(engine)
    assert len(await callbacks(engine)) == 1


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_leader_that_dies_while_it_ends_a_group_sends_one_callback(
    api: Client, engine: Engine, moment: str
):
    group = await created(api)
    await api.post(group["path"] + "/close")
    configure(f"notify.{moment}_commit=error*1")
    with pytest.raises(FailpointError):
        await follow(engine)
    configure("")
    await follow(engine)
    await follow(engine, 3600)
    assert len(await callbacks(engine)) == 1


async def test_the_callbacks_of_many_groups_become_ready(api: Client, engine: Engine):
    """From the 17th of a tenant on they have another level, so that other tenants' come first."""
    for _ in range(20):
        group = await created(api)
        await api.post(group["path"] + "/close")
    await follow(engine)
    tiers = "select count(*) from hourbell.due group by hourbell.tier(priority, flags) order by 1"
    assert [row["count"] for row in await engine.database.fetch(tiers)] == [4, 16]
    at = (await engine.clock.now()) + timedelta(minutes=2)
    while (await admit(engine, at)).more:
        pass
    ready = "select sum(cardinality(ids)) from hourbell.ready"
    assert await engine.database.value(ready) == 20


async def test_two_leaders_at_once_send_one_callback(api: Client, engine: Engine):
    groups = [await created(api) for _ in range(20)]
    for group in groups:
        await api.post(group["path"] + "/close")
    await asyncio.gather(*(follow(engine) for _ in range(4)))
    bodies = [sent["body"]["group_id"] for sent in await callbacks(engine)]
    assert sorted(bodies) == sorted(group["group_id"] for group in groups)


async def test_a_large_group_is_followed_step_by_step(
    api: Client, engine: Engine, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(group_callbacks, "_MAX_FOLLOWED", 10)
    group = await created(api)
    jobs = [one_time(schedule={"delay_seconds": 0}) for _ in range(45)]
    results = (await api.post("/api/v1/jobs/batch", jobs)).body["results"]
    await add(api, group, results)
    await api.post(group["path"] + "/close")
    hand = Hand(dispatch)
    claimed = await hand.claim()
    for one in claimed:
        await hand.settle(one, SUCCEEDED)
    await follow(engine)
    (sent,) = await callbacks(engine)
    assert sent["body"]["ended"]["SUCCEEDED"] == 45


async def test_only_executions_of_the_tenant_can_be_members(api: Client, admin: str):
    acme = bearing(await made(api, "producer", "acme", headers=bearing(admin)))
    other = await api.post("/api/v1/jobs", one_time(), headers=bearing(admin))
    group = await api.post(GROUPS, CALLBACK, headers=acme)
    path = group.headers["Location"] + "/members"
    for ids in ([other.body["job_id"]], ["job_0ahr000000000"]):
        refused = await api.post(path, {"job_ids": ids}, headers=acme)
        assert (refused.status, refused.paths) == (422, {"execution_ids"})
    foreign = await api.post(GROUPS, CALLBACK | {"tenant_id": "other"}, headers=acme)
    assert foreign.is_problem(403, "forbidden")


async def test_repeats_get_their_first_answers(api: Client):
    first = await api.post(GROUPS, CALLBACK, key="mine")
    again = await api.post(GROUPS, CALLBACK, key="mine")
    assert (again.status, again.body) == (201, first.body)


async def test_groups_that_ended_long_ago_or_were_never_closed_are_forgotten(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retain, "_MAX_ROWS", 2)  # of members, in one step
    ended, never_closed, recent = [await created(api) for _ in range(3)]
    jobs = await due_jobs(api, 3)
    for group in (ended, never_closed, recent):
        await add(api, group, jobs)
    long_ago = (await engine.clock.now()) - timedelta(days=31)
    await engine.database.value(
        "update hourbell.execution_groups set closed_at = $1, ended_at = $1 where id = $2",
        long_ago,
        parse_group_id(ended["group_id"]),
    )
    await engine.database.value(
        "update hourbell.execution_groups set created_at = $1 where id = $2",
        long_ago,
        parse_group_id(never_closed["group_id"]),
    )
    while await retain.run_housekeeping(engine, None, await engine.clock.now()):
        pass
    for group in (ended, never_closed):
        assert (await api.get(group["path"])).is_problem(404, "not_found")
    assert (await api.get(recent["path"])).body["members"] == 3
    assert await engine.database.value("select count(*) from hourbell.group_members") == 3


async def test_a_member_that_is_replayed_before_it_is_counted_is_waited_for(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    group = await created(api)
    first, second = await due_jobs(api, 2)
    await add(api, group, [first, second])
    await api.post(group["path"] + "/close")
    hand = Hand(dispatch)
    one, two = await hand.claim()
    await hand.settle(two, DEAD, "retries_exhausted")
    await follow(engine)  # stops at the first
    letter = f"/api/v1/dead-letters/{second['job_id'].replace('job_', 'exe_')}/replay"
    assert (await api.post(letter)).status == 202
    await hand.settle(one, SUCCEEDED)
    await follow(engine, 120)
    assert await callbacks(engine) == []
    (again,) = await hand.claim()
    await hand.settle(again, SUCCEEDED)
    await follow(engine, 180)
    (sent,) = await callbacks(engine)
    assert (sent["body"]["ended"]["SUCCEEDED"], sent["body"]["ended"]["DEAD"]) == (2, 0)


async def test_a_step_follows_many_groups_within_one_budget(
    api: Client, engine: Engine, dispatch: PostgresDispatch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(group_callbacks, "_MAX_FOLLOWED", 4)
    groups = [await created(api) for _ in range(3)]
    jobs = await due_jobs(api, 6)
    for group in groups:
        await add(api, group, jobs)
        await api.post(group["path"] + "/close")
    hand = Hand(dispatch)
    for claimed in await hand.claim():
        await hand.settle(claimed, SUCCEEDED)
    await follow(engine)
    assert [sent["body"]["ended"]["SUCCEEDED"] for sent in await callbacks(engine)] == [6, 6, 6]
