"""Creates of many clients at once go together, and none harms another."""

import asyncio
import time

import asyncpg
import msgspec
import pytest

from hourbell.engine import core
from hourbell.engine.core import Engine
from hourbell.engine.life.create import single
from hourbell.engine.life.create.insert import LockTimeouts
from hourbell.engine.life.create.request import CreateContext, CreateRequest
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.model.jobs import NewJob
from hourbell.model.limits import TenantSettings
from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"


async def commits(engine: Engine) -> int:
    statement = "select pg_current_xact_id()::text::bigint"
    number: int = await engine.database.value(statement)
    return number


async def test_many_creates_are_few_commits(api: Client, engine: Engine):
    await api.created(one_time())
    before = await commits(engine)
    answers = await asyncio.gather(*(api.post(JOBS, one_time()) for _ in range(90)))
    assert {answer.status for answer in answers} == {201}
    assert await commits(engine) - before < 60
    assert len((await api.get(JOBS + "?page_size=100")).body["items"]) == 91


async def test_each_of_a_crowd_gets_his_own_answer(api: Client, engine: Engine):
    await set_tenant(engine, "small", TenantSettings(max_jobs=2), Write())
    documents = [
        *(one_time(name=f"good {n}") for n in range(10)),
        *(recurring(name=f"again {n}") for n in range(10)),
        *({"name": f"bad {n}"} for n in range(10)),
        *(one_time(tenant_id="small", name=f"small {n}") for n in range(4)),
    ]
    answers = await asyncio.gather(*(api.post(JOBS, document) for document in documents))
    statuses = [answer.status for answer in answers]
    assert statuses[:30] == [201] * 20 + [422] * 10
    assert sorted(statuses[30:]) == [201, 201, 409, 409]
    for document, answer in zip(documents[:20], answers, strict=False):
        assert answer.body["name"] == document["name"]
    late = await api.post(JOBS, one_time(tenant_id="small"))
    assert late.is_problem(409, "quota_exceeded")


@pytest.mark.parametrize("on_duplicate", ["reject", "keep", "replace"])
async def test_a_crowd_that_wants_one_key_has_no_room_all_together(
    api: Client, engine: Engine, on_duplicate: str
):
    await set_tenant(engine, "full", TenantSettings(max_jobs=0), Write())
    document = one_time(tenant_id="full", unique_key="wanted", on_duplicate=on_duplicate)
    for keys in ([f"key {n}" for n in range(90)], ["key"] * 90):
        answers = await asyncio.gather(*(api.post(JOBS, document, key=key) for key in keys))
        assert all(answer.is_problem(409, "quota_exceeded") for answer in answers)


async def test_a_request_that_is_sent_many_times_at_once_is_carried_out_once(api: Client):
    answers = await asyncio.gather(*(api.post(JOBS, one_time(), key="key") for _ in range(90)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["job_id"] for answer in answers}) == 1
    other = [api.post(JOBS, one_time(name=f"{n}"), key="other") for n in range(9)]
    statuses = [answer.status for answer in await asyncio.gather(*other)]
    assert sorted(statuses) == [201] + [422] * 8


HELD = {  # what another transaction creates and does not commit, and a job that needs it
    "an idempotency key": (
        "insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)"
        " select id, 'stuck', '', '{}', hourbell.clock() from hourbell.tenants where name = 'default'",
        one_time(),
    ),
    "a unique key": (
        "insert into hourbell.unique_keys (tenant, space, key, job)"
        " select id, 0, 'stuck', 1 from hourbell.tenants where name = 'default'",
        one_time(unique_key="stuck"),
    ),
    "a tenant": (
        "insert into hourbell.tenants (name, created_at) values ('stuck', hourbell.clock())",
        one_time(tenant_id="stuck"),
    ),
    "a queue": (
        "insert into hourbell.queues (name, created_at) values ('stuck', hourbell.clock())",
        one_time(queue="stuck"),
    ),
    "a target": (
        "insert into hourbell.targets (host, created_at) values ('stuck.test', hourbell.clock())",
        one_time(action={"type": "WEBHOOK", "url": "https://stuck.test/"}),
    ),
    "a timetable": (
        "insert into hourbell.timetables"
        " (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)"
        " select rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version"
        " from hourbell.timetables",
        recurring(),
    ),
}


@pytest.mark.parametrize("what", HELD)
async def test_what_somebody_holds_delays_no_stranger(
    api: Client, engine: Engine, database: str, what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        single, "_SEPARATE_TIMEOUTS", LockTimeouts(5_000, 5_000)
    )  # longer than a slow machine needs for 120
    insert, wanting = HELD[what]
    await api.created(one_time())
    stopped = await asyncpg.connect(database)
    if what == "a timetable":  # made as we make it, so that it is the same, and taken away again
        await api.send("DELETE", (await api.created(recurring()))["path"])
        await stopped.execute("create temp table kept as select * from hourbell.timetables")
        await stopped.execute(
            "delete from hourbell.memberships; delete from hourbell.jobs; delete from hourbell.timetables"
        )
        insert = insert.replace("from hourbell.timetables", "from kept")
    transaction = stopped.transaction()
    await transaction.start()
    await stopped.execute(insert)

    async def timed(number: int) -> tuple[float, int]:
        began = time.monotonic()
        # Some of them bring new names themselves, and some recur.
        queue = f"new-{number}" if number % 6 == 0 else "default"
        made = recurring(schedule={"every_seconds": 3600}) if number % 3 == 1 else one_time()
        answer = await api.post(JOBS, {**made, "name": f"stranger {number}", "queue": queue})
        return time.monotonic() - began, answer.status

    async def stuck() -> tuple[float, object]:
        began = time.monotonic()
        answer = await api.post(JOBS, wanting, key="stuck")
        return time.monotonic() - began, answer

    waiting = asyncio.create_task(stuck())
    strangers = await asyncio.gather(*(timed(number) for number in range(60)))
    assert not waiting.done()  # all unrelated requests are served, and this one still waits
    strangers += await asyncio.gather(*(timed(number) for number in range(60, 120)))
    assert not waiting.done()
    assert {status for _, status in strangers} == {201}
    took, answer = await waiting
    assert answer.is_problem(503, "busy")  # type: ignore[attr-defined]
    assert took < 15
    await transaction.rollback()
    await stopped.close()
    assert (await api.post(JOBS, wanting, key="stuck")).status == 201


@pytest.mark.parametrize("what", [what for what in HELD if what != "an idempotency key"])
async def test_what_somebody_holds_harms_no_other_item_of_a_batch(
    api: Client, engine: Engine, database: str, what: str
):
    insert, wanting = HELD[what]
    stopped = await asyncpg.connect(database)
    await api.created(recurring())
    if what == "a timetable":
        await stopped.execute("create temp table kept as select * from hourbell.timetables")
        await stopped.execute(
            "delete from hourbell.memberships; delete from hourbell.jobs; delete from hourbell.timetables"
        )
        insert = insert.replace("from hourbell.timetables", "from kept")
    async with stopped.transaction():
        await stopped.execute(insert)
        answer = await api.post(JOBS + "/batch", [one_time(), wanting, one_time(queue="new")])
    await stopped.close()
    results = [result.get("code", "created") for result in answer.body["results"]]
    assert results == ["created", "busy", "created"]


async def test_whoever_has_made_too_many_queues_turns_away_no_stranger(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    await api.created(one_time())
    monkeypatch.setattr(core, "MAX_QUEUES_PER_TENANT", 0)
    wrong = [one_time(tenant_id="greedy", queue=f"q{number}") for number in range(30)]
    right = [recurring(name=f"stranger {number}") for number in range(120)]
    answers = await asyncio.gather(*(api.post(JOBS, document) for document in wrong + right))
    assert [answer.status for answer in answers] == [422] * 30 + [201] * 120


async def test_a_key_that_is_repeated_takes_no_room_of_a_quota(api: Client, engine: Engine):
    await set_tenant(engine, "small", TenantSettings(max_jobs=1), Write())
    document = one_time(tenant_id="small")
    answers = await asyncio.gather(*(api.post(JOBS, document, key="one") for _ in range(5)))
    assert {(answer.status, answer.body["job_id"]) for answer in answers} == {
        (201, answers[0].body["job_id"])
    }


async def test_more_than_can_wait_are_told_to_come_back(api: Client, engine: Engine):
    engine.create_groups._max_waiting = 0
    answer = await api.post(JOBS, one_time())
    assert answer.is_problem(503, "overloaded")
    assert answer.headers["Retry-After"] == "1"


async def test_an_error_of_ours_about_one_harms_no_other(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    read = CreateContext.parse

    def fail_for_some(self: CreateContext, request: CreateRequest, job_id: int) -> NewJob:
        job = read(self, request, job_id)
        if job.name == "unlucky":
            raise ZeroDivisionError
        if job.name == "cannot be encoded":
            return msgspec.structs.replace(job, concurrency_limit=2**40)
        return job

    monkeypatch.setattr(CreateContext, "parse", fail_for_some)
    names = [*("good" for _ in range(20)), "unlucky", "cannot be encoded"]
    answers = await asyncio.gather(*(api.post(JOBS, one_time(name=name)) for name in names))
    assert [answer.status for answer in answers] == [201] * 20 + [500] * 2
