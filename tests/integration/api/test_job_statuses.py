"""The status of a one-time job is that of its execution, wherever jobs are shown and filtered."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.settlement import ACCEPTED
from hourbell.engine.views import jobs, pages
from hourbell.model.ids import parse_job_id
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand

JOBS = "/api/v1/jobs"
NOW = {"delay_seconds": 0}


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def _scheduled(api: Client, hand: Hand) -> Any:
    return await api.created(one_time())


async def _queued(api: Client, hand: Hand) -> Any:
    return await api.created(one_time(schedule=NOW))


async def _running(api: Client, hand: Hand) -> Any:
    job = await _queued(api, hand)
    await hand.claim()
    return job


def _settled(kind: int, reason: str | None = None) -> Callable[[Client, Hand], Awaitable[Any]]:
    async def settled(api: Client, hand: Hand) -> Any:
        job = await _queued(api, hand)
        (claimed,) = await hand.claim()
        await hand.settle(claimed, kind, reason)
        return job

    return settled


async def _paused(api: Client, hand: Hand) -> Any:
    job = await api.created(one_time())
    await api.post(job["path"] + "/pause")
    return job


async def _deleted(api: Client, hand: Hand) -> Any:
    job = await api.created(one_time())
    await api.delete(job["path"])
    return job


MADE = {
    "SCHEDULED": _scheduled,
    "RUNNING": _running,
    "RETRYING": _settled(RETRY, "http_503"),
    "COMPLETED": _settled(SUCCEEDED),
    "FAILED": _settled(DEAD, "retries_exhausted"),
    "AWAITING": _settled(ACCEPTED),
    "PAUSED": _paused,
    "CANCELLED": _deleted,
    "QUEUED": _queued,  # last: the others claim what is queued
}


async def _execute(engine: Engine, statement: str, *args: object) -> None:
    async with engine.database.transaction() as connection:
        await connection.execute(statement, *args)


async def _listed(api: Client, query: str) -> dict[str, str]:
    return {job["job_id"]: job["status"] for job in await api.pages(f"{JOBS}?{query}")}


@pytest.mark.parametrize("of_tenant", ["", "&tenant_id=default"])
async def test_each_status_is_read_listed_and_filtered(api: Client, hand: Hand, of_tenant: str):
    made = {status: await make(api, hand) for status, make in MADE.items()}
    every = {job["job_id"]: status for status, job in made.items()}
    for status, job in made.items():
        assert (await api.get(job["path"])).body["status"] == status
        assert await _listed(api, f"status={status}{of_tenant}") == {job["job_id"]: status}
    shown = {job_id: status for job_id, status in every.items() if status != "CANCELLED"}
    assert await _listed(api, "page_size=3" + of_tenant) == shown
    wanted = {job_id: status for job_id, status in every.items() if status in ("FAILED", "RUNNING")}
    for query in ("status=FAILED,RUNNING", "status=RUNNING&status=FAILED&page_size=1"):
        assert await _listed(api, query + of_tenant) == wanted
    assert await _listed(api, "status=ENDED,SKIPPED" + of_tenant) == {}


async def test_a_run_that_started_too_late_is_a_skipped_job(
    api: Client, hand: Hand, engine: Engine
):
    job = await api.created(one_time(schedule=NOW, start_deadline_seconds=1))
    await _execute(
        engine,
        "update hourbell.executions set start_by = now() - interval '1 s';"
        " update hourbell.deadlines set at = now() - interval '1 s'",
    )
    assert not await hand.claim()
    assert await _listed(api, "status=SKIPPED") == {job["job_id"]: "SKIPPED"}


async def test_a_schedule_without_further_runs_has_ended_and_not_succeeded(
    api: Client, engine: Engine
):
    job = await api.created(recurring())
    await _execute(engine, "update hourbell.jobs set status = hourbell.job_ended()")
    assert (await api.get(job["path"])).body["status"] == "ENDED"
    for of_tenant in ("", "&tenant_id=default", "&name_prefix=" + job["name"][:3]):
        assert await _listed(api, "status=ENDED" + of_tenant) == {job["job_id"]: "ENDED"}
        assert await _listed(api, "status=COMPLETED" + of_tenant) == {}


async def test_late_jobs_are_queued_for_more_than_a_minute(api: Client, hand: Hand, engine: Engine):
    late, waiting = await _queued(api, hand), await _queued(api, hand)
    paused = await _queued(api, hand)
    await api.post(paused["path"] + "/pause")
    await api.created(recurring())
    numbers = [parse_job_id(job["job_id"]) for job in (late, paused)]
    await _execute(
        engine,
        "update hourbell.executions set run_at = run_at - interval '61 s' where id = any ($1)",
        numbers,
    )
    for of_tenant in ("", "&tenant_id=default"):
        assert await _listed(api, "late=true" + of_tenant) == {late["job_id"]: "QUEUED"}
        assert await _listed(api, "late=true&status=FAILED" + of_tenant) == {}
        found = await _listed(api, "late=false&status=QUEUED" + of_tenant)
        assert found == {late["job_id"]: "QUEUED", waiting["job_id"]: "QUEUED"}


async def test_running_jobs_are_found_among_many_that_wait(
    api: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    running = await _running(api, hand)
    for module in (pages, jobs):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 4)
    for _ in range(6):
        await api.created(one_time())
    for of_tenant in ("", "&tenant_id=default"):
        found = (await api.get(f"{JOBS}?status=RUNNING{of_tenant}")).body
        assert [job["job_id"] for job in found["items"]] == [running["job_id"]]
        assert found["next_page_token"] is None
    assert await _listed(api, "status=RUNNING&tenant_id=other") == {}


async def test_the_answer_of_a_change_says_what_a_read_says(api: Client, hand: Hand):
    retrying = await MADE["RETRYING"](api, hand)
    running = await _running(api, hand)
    queued, scheduled = await _queued(api, hand), await _scheduled(api, hand)
    for job in (retrying, queued, scheduled):
        read = (await api.get(job["path"])).body
        changed = (await api.patch(job["path"], {"labels": {"a": "b"}})).body
        again = (await api.get(job["path"])).body
        assert [changed["status"], changed["next_run_at"]] == [read["status"], read["next_run_at"]]
        assert [again["status"], again["next_run_at"]] == [read["status"], read["next_run_at"]]
    deleted = (await api.delete(running["path"])).body  # it may finish
    assert deleted["status"] == (await api.get(running["path"])).body["status"] == "RUNNING"
    await api.post(queued["path"] + "/pause")
    resumed = (await api.post(queued["path"] + "/resume")).body
    assert resumed["status"] == (await api.get(queued["path"])).body["status"] == "QUEUED"


async def test_jobs_are_counted_if_a_total_is_asked_for(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        await api.created(one_time(name=f"a{number}"))
        await api.created(recurring(name=f"b{number}"))

    async def total(query: str) -> Any:
        return (await api.get(f"{JOBS}?page_size=1&total=true{query}")).body["total"]

    assert "total" not in (await api.get(JOBS)).body
    assert await total("") == {"count": 6, "at_least": False}
    assert await total("&type=RECURRING") == {"count": 3, "at_least": False}
    assert await total("&name_prefix=a") == {"count": 3, "at_least": False}
    assert await total("&status=FAILED") == {"count": 0, "at_least": False}
    monkeypatch.setattr("hourbell.api.jobs.MAX_COUNTED", 2)
    assert await total("") == {"count": 2, "at_least": True}
