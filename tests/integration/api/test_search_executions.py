"""GET /api/v1/executions"""

from typing import Any

import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.plan import plan
from hourbell.engine.views import executions, pages
from hourbell.engine.views.executions import ExecutionFilter, search_executions
from hourbell.model.errors import Forbidden
from hourbell.model.ids import execution_text, parse_execution_id
from integration.api.client import Client, one_time, recurring
from integration.api.test_list_jobs import strange_tokens
from integration.api.working import Hand, dead

EXECUTIONS = "/api/v1/executions"
STATUSES = ["QUEUED", "RUNNING", "RETRYING", "SUCCEEDED", "DEAD", "CANCELLED"]


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


async def run(api: Client, document: dict[str, Any]) -> str:
    """A job that is due now; the id of that run."""
    job = await api.created(document)
    (number,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    return str(number)


async def one_of_each(
    api: Client, hand: Hand, dispatch: PostgresDispatch, document: Any, tenant: str
) -> dict[str, str]:
    """An execution in each status."""
    found = {}
    for status in STATUSES[1:]:
        found[status] = await run(api, document(tenant_id=tenant))
        if status == "CANCELLED":
            await api.post(f"{EXECUTIONS}/{found[status]}/cancel")
            continue
        if status == "DEAD":
            await hand.kill()
            continue
        (claimed,) = await hand.claim()
        if status == "RETRYING":
            await hand.settle(claimed, RETRY, "timeout")
        elif status == "SUCCEEDED":
            await hand.settle(claimed, SUCCEEDED)
    found["QUEUED"] = await run(api, document(tenant_id=tenant))
    await dispatch.admit()
    return found


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_executions_are_found_by_status_and_tenant(
    api: Client, hand: Hand, dispatch: PostgresDispatch, document: Any
):
    mine = await one_of_each(api, hand, dispatch, document, "mine")
    every = await api.pages(f"{EXECUTIONS}?page_size=3")
    assert {each["status"]: each["execution_id"] for each in every} == mine
    assert [each["execution_id"] for each in every] == sorted(mine.values(), reverse=True)
    assert await api.pages(f"{EXECUTIONS}?tenant_id=mine&page_size=2") == every
    assert await api.pages(f"{EXECUTIONS}?tenant_id=other") == []
    for status, number in mine.items():
        for query in (f"status={status}", f"status={status}&tenant_id=mine"):
            found = await api.pages(f"{EXECUTIONS}?{query}")
            assert [each["execution_id"] for each in found] == [number], query
        assert await api.pages(f"{EXECUTIONS}?status={status}&tenant_id=other") == []


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_executions_are_found_by_several_statuses(
    api: Client, hand: Hand, dispatch: PostgresDispatch, document: Any
):
    mine = await one_of_each(api, hand, dispatch, document, "mine")

    async def found(query: str) -> set[str]:
        items = await api.pages(f"{EXECUTIONS}?{query}&page_size=2")
        return {each["status"] for each in items}

    for rest in ("", "&tenant_id=mine"):
        assert await found("status=RUNNING,DEAD" + rest) == {"RUNNING", "DEAD"}
        assert await found("status=RUNNING&status=DEAD" + rest) == {"RUNNING", "DEAD"}
        assert await found("status=QUEUED,RUNNING&status=DEAD,DEAD" + rest) == {
            "QUEUED",
            "RUNNING",
            "DEAD",
        }
        assert await found("status=FAILED" + rest) == {"RETRYING", "DEAD"}
        assert await found("status=FAILED,SUCCEEDED" + rest) == {"RETRYING", "DEAD", "SUCCEEDED"}
        assert await found(f"status={','.join(mine)}" + rest) == set(mine)
    for query in ("status=", "status=DEAD,", "status=DEAD&status=dead", "status=DEAD, QUEUED"):
        answer = await api.get(f"{EXECUTIONS}?{query}")
        assert answer.is_problem(422, "invalid_input"), query
        assert answer.paths == {"status"}


async def test_executions_of_a_job_are_found_by_status_reason_and_queue(api: Client, hand: Hand):
    job = await api.created(recurring())
    numbers = [(await api.post(job["path"] + "/run")).body["execution_ids"][0] for _ in range(3)]
    done, killed, _ = await hand.claim()
    await hand.settle(done, SUCCEEDED)
    await hand.settle(killed, DEAD, "retries_exhausted")
    path = job["path"] + "/executions"

    async def found(query: str) -> list[str]:
        return [each["execution_id"] for each in await api.pages(f"{path}?{query}")]

    assert await found("status=DEAD,SUCCEEDED") == numbers[1::-1]
    assert await found("status=FAILED") == numbers[1:2]
    assert await found("reason=retries_exhausted") == numbers[1:2]
    assert await found("reason=deadline") == []
    assert await found("queue=default&status=RUNNING") == numbers[2:]
    assert await found("queue=other") == []


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_executions_are_found_by_reason_queue_and_label(
    api: Client, hand: Hand, document: Any
):
    red = await dead(api, hand, document(labels={"team": "red"}))
    blue = await dead(api, hand, document(labels={"team": "blue"}), "non_retryable")
    slow = await run(api, document(queue="slow", labels={"team": "red", "on": "call"}))
    plain = await run(api, document())
    (claimed,) = await hand.claim()  # of the queue that it serves
    assert execution_text(claimed.execution_id) == plain

    async def found(query: str) -> list[str]:
        lists = [
            [each["execution_id"] for each in await api.pages(f"{EXECUTIONS}?{query}{rest}")]
            for rest in ("", "&tenant_id=default", "&page_size=1")
        ]
        assert lists[0] == lists[1] == lists[2]
        return lists[0]

    assert await found("reason=non_retryable") == [blue["execution_id"]]
    assert await found("reason=retries_exhausted&label=team:red") == [red["execution_id"]]
    assert await found("reason=retries_exhausted&label=team:blue") == []
    assert await found("reason=retries_exhausted&status=QUEUED,RUNNING") == []
    assert await found("queue=slow") == [slow]
    assert await found("queue=default") == [plain, blue["execution_id"], red["execution_id"]]
    assert await found("queue=nowhere") == []
    assert await found("label=team:red") == [slow, red["execution_id"]]
    assert await found("label=team:red&status=DEAD") == [red["execution_id"]]
    assert await found("label=on:call&status=QUEUED") == [slow]
    assert await found("status=RUNNING&label=team:red") == []
    assert await found("status=RUNNING&queue=default") == [plain]
    assert await found("status=RUNNING&queue=slow") == []
    of_job = f"job_id={red['job_id']}"
    assert await found(f"{of_job}&label=team:red") == [red["execution_id"]]
    assert await found(f"{of_job}&label=team:blue") == []
    answer = await api.get(f"{EXECUTIONS}?label=team&reason=none&queue=%00")
    assert answer.paths == {"label", "reason", "queue"}


async def test_executions_are_found_by_the_time_of_their_creation(api: Client):
    numbers = [await run(api, document()) for document in (one_time, recurring, one_time)]
    created = [(await api.get(f"{EXECUTIONS}/{number}")).body["created_at"] for number in numbers]

    async def found(query: str) -> list[str]:
        return [each["execution_id"] for each in await api.pages(f"{EXECUTIONS}?{query}")]

    assert await found(f"from={created[1]}") == numbers[:0:-1]
    assert await found(f"to={created[1]}") == numbers[:1]
    assert await found(f"from={created[0]}&to={created[2]}") == numbers[1::-1]
    assert await found("from=2099-01-01T00:00:00Z") == []
    assert await found("to=1999-01-01T00:00:00Z") == []
    assert (
        len(await found("from=1999-01-01T00:00:00Z&to=2099-01-01T00:00:00Z&tenant_id=default")) == 3
    )


async def test_executions_are_found_by_job(api: Client, hand: Hand):
    job = await api.created(recurring())
    numbers = [(await api.post(job["path"] + "/run")).body["execution_ids"][0] for _ in range(4)]
    await run(api, recurring())
    for claimed in (await hand.claim())[:2]:
        await hand.settle(claimed, SUCCEEDED)
    path = f"{EXECUTIONS}?job_id={job['job_id']}"
    items = await api.pages(path + "&page_size=3")
    assert [each["execution_id"] for each in items] == numbers[::-1]
    assert len(await api.pages(path + "&status=SUCCEEDED")) == 2
    assert len(await api.pages(path + "&status=RUNNING&page_size=1")) == 2
    assert await api.pages(path + "&tenant_id=other") == []
    assert await api.pages(path + "&to=1999-01-01T00:00:00Z") == []
    assert await api.pages(f"{EXECUTIONS}?job_id=job_0ahr000000000") == []
    once = await api.created(one_time())
    of_once = f"{EXECUTIONS}?job_id={once['job_id']}"
    assert len(await api.pages(of_once)) == 1
    assert await api.pages(of_once + "&status=DEAD") == []


async def test_what_is_only_planned_ahead_is_not_listed(api: Client, engine: Engine):
    await api.created(recurring(schedule={"every_seconds": 10}))
    await plan(engine, None, await engine.clock.now())
    assert await api.pages(EXECUTIONS) == []
    assert await api.pages(EXECUTIONS + "?tenant_id=default") == []


async def test_a_call_looks_at_a_bounded_number_of_executions(
    api: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    rare = await run(api, one_time(tenant_id="rare", labels={"kind": "rare"}))
    (claimed,) = await hand.claim()
    await hand.settle(claimed, SUCCEEDED)
    for number in range(12):
        document = one_time if number % 2 else recurring
        await run(api, document(tenant_id="common"))
    for claimed in (await hand.claim())[:6]:
        await hand.settle(claimed, SUCCEEDED)
    for module in (pages, executions):
        monkeypatch.setattr(module, "MAX_SCANNED_ROWS", 3)
    for query in (
        "tenant_id=rare",
        "status=SUCCEEDED&tenant_id=rare",
        "label=kind:rare",
    ):
        (found,) = await api.pages(f"{EXECUTIONS}?{query}")
        assert found["execution_id"] == rare
    assert len(await api.pages(EXECUTIONS)) == 13
    assert len(await api.pages(EXECUTIONS + "?status=RUNNING&page_size=1")) == 6


async def test_strange_queries_are_refused(api: Client):
    answer = await api.get(
        f"{EXECUTIONS}?tenant_id=%00&job_id=1&status=FALLED&from=x&to=&page_size=x"
    )
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"tenant_id", "job_id", "status", "from", "to", "page_size"}
    job = await api.created(recurring())
    for text in strange_tokens("search_executions"):
        for path in (f"{EXECUTIONS}?", f"{EXECUTIONS}?job_id={job['job_id']}&"):
            answer = await api.get(f"{path}page_token={text}")
            assert answer.is_problem(422, "invalid_input"), text


async def test_within_a_scope_there_are_ones_own(api: Client, engine: Engine):
    for tenant in ("mine", "theirs"):
        for document in (one_time, recurring):
            await run(api, document(tenant_id=tenant))
    scoped = engine.scoped_to("mine")
    found = (await search_executions(scoped, ExecutionFilter())).items
    assert [each.tenant_id for each in found] == ["mine", "mine"]
    with pytest.raises(Forbidden):
        await search_executions(scoped, ExecutionFilter(tenant_id="theirs"))
    theirs = (await search_executions(engine, ExecutionFilter(tenant_id="theirs"))).items[0]
    assert (await search_executions(scoped, ExecutionFilter(job_id=theirs.job_id))).items == []


async def test_the_longest_come_first_among_those_that_were_compared(
    api: Client,
    hand: Hand,
    dispatch: PostgresDispatch,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
):
    found = [await run(api, one_time(name=f"j{k}")) for k in range(5)]
    for k, claimed in enumerate(sorted(await hand.claim(), key=lambda one: one.execution_id)):
        if k < 4:  # the last one runs
            await hand.settle(claimed, SUCCEEDED)
    took = {found[0]: 30, found[1]: 300, found[2]: 3, found[3]: 30}
    for number, seconds in took.items():
        await engine.database.fetch(
            "update hourbell.outcomes set started_at = finished_at - make_interval(secs => $2)"
            " where id = $1",
            parse_execution_id(number),
            seconds,
        )
    queued = await run(api, one_time(name="waits"))
    await dispatch.admit()

    async def longest(query: str = "") -> tuple[list[str], Any]:
        body = (await api.get(f"{EXECUTIONS}?order=duration{query}")).body
        return [item["execution_id"] for item in body["items"]], body["next_page_token"]

    in_order = [found[1], found[0], found[3], found[2]]
    shown, token = await longest("&status=SUCCEEDED")
    assert (shown, token) == (in_order, None)
    everything, _ = await longest()
    assert queued not in everything  # it has not begun
    assert [each for each in everything if each != found[4]] == in_order
    assert found[4] in everything
    assert (await longest("&page_size=1"))[0] == [found[1]]
    # The next page has the longest of older ones.
    monkeypatch.setattr(executions, "_COMPARED", 2)
    monkeypatch.setattr(executions, "MAX_PAGE_SIZE", 2)
    first, token = await longest("&status=SUCCEEDED")
    second, end = await longest(f"&status=SUCCEEDED&page_token={token}")
    assert (first, second, end) == ([found[3], found[2]], [found[1], found[0]], None)
