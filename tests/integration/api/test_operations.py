"""/api/v1/operations"""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader import bulk_operations as leader_operations
from hourbell.engine.leader.bulk_operations import forget_operations, run_operations
from hourbell.engine.operations import bulk_operations
from hourbell.failpoints import barrier
from hourbell.model.errors import NotFound
from hourbell.model.ids import parse_operation_id
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand, dead

OPERATIONS = "/api/v1/operations"
JOBS = "/api/v1/jobs"
LETTERS = "/api/v1/dead-letters"


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def carry_out(engine: Engine) -> int:
    """What the leader does, until there is nothing more to do now; returns the number of batches."""
    batches = 0
    while await run_operations(engine, None, await engine.clock.now()):
        batches += 1
    return batches


async def started(api: Client, act: str, chosen: dict[str, Any], **rest: Any) -> Any:
    answer = await api.post(OPERATIONS, {"act": act, "filter": chosen} | rest)
    assert answer.status == 201
    assert answer.headers["Location"] == f"{OPERATIONS}/{answer.body['operation_id']}"
    return answer.body | {"path": f"{OPERATIONS}/{answer.body['operation_id']}"}


async def statuses(api: Client) -> dict[str, str]:
    return {job["name"]: job["status"] for job in (await api.get(JOBS)).body["items"]}


# Pausing and resuming.


async def test_all_jobs_of_a_filter_are_paused_with_reason_and_author(api: Client, engine: Engine):
    for number in range(3):
        await api.created(recurring(name=f"a{number}", tenant_id="acme"))
    await api.created(one_time(name="once", tenant_id="acme"))
    await api.created(recurring(name="other", tenant_id="globex"))
    chosen = {"tenant_id": "acme"}
    preview = await api.send(
        "POST", OPERATIONS + "/preview", {"act": "pause", "filter": chosen}, key=None
    )
    assert preview.body == {
        "act": "pause",
        "filter": chosen,
        "total": 4,
        "at_least": False,
        "words": "Pause 4 scheduled jobs with tenant acme.",
    }
    operation = await started(api, "pause", chosen, reason="partner down")
    assert (operation["state"], operation["total"], operation["done"]) == ("RUNNING", 4, 0)
    await api.created(recurring(name="later", tenant_id="acme"))
    await carry_out(engine)
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["done"], ended["left"]) == ("DONE", 4, 0)
    assert ended["ended_at"] is not None
    assert await statuses(api) == {
        "a0": "PAUSED",
        "a1": "PAUSED",
        "a2": "PAUSED",
        "once": "PAUSED",
        "other": "SCHEDULED",
        "later": "SCHEDULED",  # created after the operation
    }
    paused = (await api.get(JOBS + "?status=PAUSED")).body["items"]
    assert {job["paused"]["reason"] for job in paused} == {"partner down"}
    assert {job["paused"]["by"] for job in paused} == {operation["created_by"]}


async def test_what_was_paused_with_a_reason_is_resumed_and_nothing_else(
    api: Client, engine: Engine
):
    mine, other = [await api.created(recurring(name=name)) for name in ("mine", "other")]
    await api.post(mine["path"] + "/pause", {"reason": "partner down"})
    await api.post(other["path"] + "/pause", {"reason": "holidays"})
    operation = await started(api, "resume", {"paused_reason": "partner down"})
    assert operation["total"] == 1
    await carry_out(engine)
    assert await statuses(api) == {"mine": "SCHEDULED", "other": "PAUSED"}


async def test_what_an_operation_has_paused_is_resumed_and_nothing_else(
    api: Client, engine: Engine
):
    before = await api.created(recurring(name="before"))
    await api.post(before["path"] + "/pause")
    for name in ("a", "b"):
        await api.created(recurring(name=name))
    pausing = await started(api, "pause", {})
    await carry_out(engine)
    await api.post(f"{JOBS}/{(await job_of(api, 'b'))['job_id']}/resume")
    await api.post(f"{JOBS}/{(await job_of(api, 'b'))['job_id']}/pause")  # by another user
    resuming = await started(api, "resume", {"operation_id": pausing["operation_id"]})
    assert resuming["total"] == 1
    await carry_out(engine)
    assert await statuses(api) == {"before": "PAUSED", "a": "SCHEDULED", "b": "PAUSED"}


async def job_of(api: Client, name: str) -> Any:
    (job,) = (await api.get(f"{JOBS}?name_prefix={name}")).body["items"][:1]
    return job


async def test_what_cannot_be_changed_is_left_and_says_why(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await api.created(one_time(name="runs", schedule={"delay_seconds": 0}))
    session = await dispatch.open("worker", ["default"], 10)
    await dispatch.admit()
    await dispatch.claim(session, 1, 10)
    await api.created(recurring(name="waits"))
    operation = await started(api, "pause", {})
    await carry_out(engine)
    ended = (await api.get(operation["path"])).body
    assert (ended["done"], ended["left"]) == (1, 1)
    assert ended["left_reasons"] == [{"code": "underway", "count": 1}]


# Dead letters.


async def test_dead_letters_of_a_filter_are_replayed_in_batches(
    api: Client, engine: Engine, hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leader_operations, "_LETTERS", 2)
    for _ in range(5):
        await dead(api, hand, one_time())
    gone = await dead(api, hand, recurring())
    await api.delete(gone["path"])
    operation = await started(api, "replay", {"reason": "retries_exhausted"})
    assert operation["total"] == 6
    later = await dead(api, hand, one_time())
    assert await carry_out(engine) >= 3
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["done"], ended["left"]) == ("DONE", 5, 1)
    assert ended["left_reasons"] == [{"code": "job_deleted", "count": 1}]
    kept = {each["execution_id"] for each in await api.pages(LETTERS)}
    assert kept == {gone["execution_id"], later["execution_id"]}


async def test_a_rate_spreads_a_replay_and_the_rest_can_be_stopped(
    api: Client, engine: Engine, hand: Hand
):
    for _ in range(5):
        await dead(api, hand, one_time())
    operation = await started(api, "replay", {}, rate_per_second=2)
    now = await engine.clock.now()
    assert await run_operations(engine, None, now)
    assert await run_operations(engine, None, now)  # the next second is prepared
    assert not await run_operations(engine, None, now)  # the others have time
    rows = await engine.database.fetch("select run_at from hourbell.due order by run_at")
    assert [row["run_at"] - now for row in rows] == [timedelta(seconds=n / 2) for n in range(4)]
    stopped = (await api.post(operation["path"] + "/stop")).body
    assert (stopped["state"], stopped["done"]) == ("STOPPED", 4)
    assert not await run_operations(engine, None, now + timedelta(hours=1))
    assert (await api.post(operation["path"] + "/stop")).body == stopped
    assert len(await api.pages(LETTERS)) == 1


async def test_dead_letters_of_a_filter_are_purged(api: Client, engine: Engine, hand: Hand):
    first = await dead(api, hand, one_time())
    other = await dead(api, hand, one_time(), "non_retryable")
    operation = await started(api, "purge", {"job_id": first["job_id"]})
    await carry_out(engine)
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["done"]) == ("DONE", 1)
    kept = [each["execution_id"] for each in await api.pages(LETTERS)]
    assert kept == [other["execution_id"]]


# Nothing is done twice.


async def test_two_leaders_with_the_same_batch_do_it_once(api: Client, engine: Engine, hand: Hand):
    for _ in range(3):
        await dead(api, hand, one_time())
    operation = await started(api, "replay", {})
    now = await engine.clock.now()
    with barrier("operate.before_commit") as first:
        one = asyncio.create_task(run_operations(engine, None, now))
        await first.reached()
        two = asyncio.create_task(run_operations(engine, None, now))
        first.release()
        await asyncio.gather(one, two)
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["done"], ended["left"]) == ("DONE", 3, 0)


async def test_a_leader_that_dies_before_its_commit_leaves_the_batch_to_the_next(
    api: Client, engine: Engine
):
    for name in ("a", "b"):
        await api.created(recurring(name=name))
    operation = await started(api, "pause", {})
    now = await engine.clock.now()
    with barrier("operate.before_commit") as stands:
        dying = asyncio.create_task(run_operations(engine, None, now))
        await stands.reached()
        dying.cancel()
        await asyncio.wait([dying])
    assert set((await statuses(api)).values()) == {"SCHEDULED"}
    await carry_out(engine)
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["done"], ended["left"]) == ("DONE", 2, 0)
    versions = {job["version"] for job in (await api.get(JOBS)).body["items"]}
    assert versions == {2}  # paused once


async def test_a_failure_ends_one_operation_and_no_other(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    await api.created(recurring())
    broken = await started(api, "purge", {})
    sound = await started(api, "pause", {})

    async def fail(*args: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(leader_operations, "_purge", fail)
    await carry_out(engine)
    ended = (await api.get(broken["path"])).body
    assert (ended["state"], ended["error"]) == ("FAILED", "RuntimeError: no")
    assert (await api.get(sound["path"])).body["state"] == "DONE"


# Reading and refusing.


@pytest.mark.parametrize("act", ["pause", "resume", "replay", "purge"])
async def test_a_filter_with_an_unknown_tenant_selects_nothing_and_creates_no_tenant(
    api: Client, engine: Engine, act: str
):
    await api.created(recurring(name="a"))
    operation = await started(api, act, {"tenant_id": "nowhere"})
    if act in ("pause", "resume"):
        assert (await api.post(f"/api/v1/jobs/{act}", {"tenant_id": "nowhere"})).status == 200
    await carry_out(engine)
    ended = (await api.get(operation["path"])).body
    assert (ended["state"], ended["total"], ended["done"]) == ("DONE", 0, 0)
    assert (await api.get("/api/v1/tenants/nowhere")).status == 404


async def test_operations_are_listed_newest_first_and_by_tenant(api: Client, engine: Engine):
    await api.created(recurring(tenant_id="acme"))
    first = await started(api, "pause", {"tenant_id": "acme"})
    second = await started(api, "pause", {})
    listed = await api.pages(OPERATIONS + "?page_size=1")
    assert [each["operation_id"] for each in listed] == [
        second["operation_id"],
        first["operation_id"],
    ]
    of_acme = (await api.get(OPERATIONS + "?tenant_id=acme")).body["items"]
    assert [each["operation_id"] for each in of_acme] == [first["operation_id"]]
    scoped = engine.scoped_to("acme")
    seen = (await bulk_operations.list_operations(scoped, None)).items
    assert [each.operation_id for each in seen] == [parse_operation_id(first["operation_id"])]
    with pytest.raises(NotFound):
        await bulk_operations.get_operation(scoped, parse_operation_id(second["operation_id"]))


async def test_the_audit_trail_has_the_start_the_end_and_each_job(api: Client, engine: Engine):
    await api.created(recurring(name="a"))
    operation = await started(api, "pause", {"name_prefix": "a"}, reason="partner down")
    await carry_out(engine)
    entries = (await api.get("/api/v1/audit")).body["items"]
    assert [entry["operation"] for entry in entries] == [
        "end_operation",
        "pause",
        "start_operation",
        "create",
    ]
    end, pause, start, _ = entries
    assert start["to"]["operation_id"] == operation["operation_id"]
    assert start["to"]["filter"] == {"name_prefix": "a"}
    assert (end["to"]["done"], end["to"]["left"]) == (1, 0)
    assert pause["to"]["pause"]["reason"] == "partner down"


async def test_a_repeated_request_starts_one_operation(api: Client):
    document = {"act": "pause", "filter": {}}
    first = await api.post(OPERATIONS, document, key="once")
    again = await api.post(OPERATIONS, document, key="once")
    assert again.body == first.body
    assert len((await api.get(OPERATIONS)).body["items"]) == 1


@pytest.mark.parametrize(
    ("document", "paths"),
    [
        ({}, {"act", "filter"}),
        ({"act": "explode", "filter": {}}, {"act"}),
        ({"act": "pause", "filter": {"reason": "lost"}}, {"filter.reason"}),
        ({"act": "replay", "filter": {"queue": "mail"}}, {"filter.queue"}),
        ({"act": "pause", "filter": {"paused_reason": "x"}}, {"filter.paused_reason"}),
        ({"act": "resume", "filter": {"operation_id": "job_1"}}, {"filter.operation_id"}),
        ({"act": "pause", "filter": {}, "rate_per_second": 1}, {"rate_per_second"}),
        ({"act": "purge", "filter": {}, "until": "2031-01-01T00:00:00Z"}, {"until"}),
        ({"act": "pause", "filter": {}, "until": "2001-01-01T00:00:00Z"}, {"until"}),
        ({"act": "purge", "filter": {"colour": 1}}, {"filter.colour"}),
    ],
)
async def test_what_is_wrong_is_named(api: Client, document: Any, paths: set[str]):
    answer = await api.post(OPERATIONS, document)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == paths


async def test_ended_operations_are_forgotten_after_the_retention(api: Client, engine: Engine):
    operation = await started(api, "pause", {})
    now = await engine.clock.now()
    await forget_operations(engine, None, now + timedelta(days=1))
    assert (await api.get(operation["path"])).status == 200  # it runs
    await carry_out(engine)
    await forget_operations(engine, None, now - timedelta(days=1))
    assert (await api.get(operation["path"])).status == 200
    await forget_operations(engine, None, now + timedelta(days=1))
    assert (await api.get(operation["path"])).is_problem(404, "not_found")
