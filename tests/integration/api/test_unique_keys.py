"""One job that has not ended can have a unique key."""

import asyncio

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.retain import run_housekeeping
from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"


async def test_a_duplicate_is_refused_and_the_other_named(api: Client):
    for document in (one_time, recurring):
        first = await api.created(document(unique_key="k"))
        assert first["unique_key"] == "k"
        assert first["on_duplicate"] == "reject"
        answer = await api.post(JOBS, recurring(unique_key="k"), key="mine")
        assert answer.is_problem(409, "duplicate_job")
        assert first["job_id"] in answer.body["detail"]
        await api.delete(first["path"])
    # Nothing was kept for the refused request.
    assert (await api.post(JOBS, recurring(unique_key="k"), key="mine")).status == 201


async def test_keys_belong_to_tenants(api: Client):
    for tenant in ("a", "b"):
        assert (await api.post(JOBS, one_time(unique_key="k", tenant_id=tenant))).status == 201


async def test_keep_answers_with_the_job_that_is_there(api: Client):
    keep = one_time(unique_key="k", on_duplicate="keep")
    first = await api.created(keep)
    second = await api.post(JOBS, keep | {"name": "other"}, key="mine")
    assert (second.status, second.body["job_id"]) == (200, first["job_id"])
    await api.delete(first["path"])
    again = await api.post(JOBS, keep | {"name": "other"}, key="mine")
    assert (again.status, again.body) == (200, second.body)


async def test_replace_takes_back_what_waits(api: Client):
    replace = {"unique_key": "k", "on_duplicate": "replace"}
    first = await api.created(one_time(**replace))
    second = await api.created(recurring(**replace))
    paused = await api.created(one_time(**replace))
    await api.post(paused["path"] + "/pause")
    last = await api.created(one_time(**replace))
    jobs = [(await api.get(job["path"])).body for job in (first, second, paused, last)]
    assert [job["status"] for job in jobs] == ["CANCELLED"] * 3 + ["SCHEDULED"]


async def test_replace_lets_alone_what_is_on_its_way(api: Client, engine: Engine):
    dispatch = PostgresDispatch(engine)
    session = await dispatch.open("worker", ["default"], 1)
    first = await api.created(one_time(unique_key="k", schedule={"delay_seconds": 0}))
    await admit(engine, await engine.clock.now())
    assert session is not None
    answer = await api.post(JOBS, one_time(unique_key="k", on_duplicate="replace"))
    assert answer.is_problem(409, "duplicate_job")
    assert first["job_id"] in answer.body["detail"]


async def test_many_at_once_with_one_unique_key_make_one_job(api: Client):
    for kind in (one_time, recurring):
        key = kind.__name__
        answers = await asyncio.gather(
            *(api.post(JOBS, kind(unique_key=key)) for _ in range(24)),
            *(api.post(JOBS, kind(unique_key=key, on_duplicate="keep")) for _ in range(24)),
        )
        statuses = [answer.status for answer in answers]
        assert statuses.count(201) == 1
        assert set(statuses) <= {200, 201, 409}
        ids = {answer.body["job_id"] for answer in answers if answer.status != 409}
        assert len(ids) == 1
        assert all(
            next(iter(ids)) in answer.body["detail"] for answer in answers if answer.status == 409
        )
    assert len((await api.get(JOBS)).body["items"]) == 2


async def test_many_who_replace_at_once_leave_one_job(api: Client):
    document = one_time(unique_key="k", on_duplicate="replace")
    answers = await asyncio.gather(*(api.post(JOBS, document) for _ in range(24)))
    assert {answer.status for answer in answers} == {201}
    live = (await api.get(JOBS + "?status=SCHEDULED")).body["items"]
    assert len(live) == 1


async def test_a_unique_key_cannot_be_changed(api: Client):
    job = await api.created(one_time(unique_key="k"))
    answer = await api.patch(job["path"], {"unique_key": "other", "on_duplicate": "keep"})
    assert answer.paths == {"unique_key", "on_duplicate"}
    assert (await api.patch(job["path"], {"unique_key": "k", "name": "new"})).status == 200


async def test_keys_of_jobs_that_are_over_are_forgotten_and_others_are_not(
    api: Client, engine: Engine
):
    over = await api.created(one_time(unique_key="over"))
    await api.created(one_time(unique_key="one-time"))
    await api.created(recurring(unique_key="recurring"))
    await api.delete(over["path"])
    await run_housekeeping(engine, None, await engine.clock.now())
    left = await engine.database.fetch("select key from hourbell.unique_keys order by key")
    assert [row["key"] for row in left] == ["one-time", "recurring"]


async def test_on_duplicate_needs_a_key(api: Client):
    assert (await api.post(JOBS, one_time(on_duplicate="keep"))).paths == {"on_duplicate"}
    assert (await api.post(JOBS, one_time(unique_key="k" * 201))).paths == {"unique_key"}
