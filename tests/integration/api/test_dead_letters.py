"""/api/v1/dead-letters"""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from hourbell.dispatch import DEAD, RETRY, SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.dead_letters import BulkSelection, DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations import dead_letters
from hourbell.engine.operations.dead_letters import (
    get_dead_letter,
    list_dead_letters,
    replay_dead_letters,
)
from hourbell.engine.operations.idempotency import Write
from hourbell.model.errors import Forbidden, NotFound
from hourbell.model.ids import execution_text, job_text, parse_execution_id
from hourbell.model.jobs import decode_spec
from integration.api.client import Client, one_time, recurring
from integration.api.test_list_jobs import strange_tokens
from integration.api.working import Hand, dead

LETTERS = "/api/v1/dead-letters"


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


def ids(items: list[Any]) -> list[str]:
    return [item["execution_id"] for item in items]


# List and read.


async def test_dead_letters_are_listed_latest_first_page_by_page(api: Client, hand: Hand):
    names = [f"bill-{n}" for n in range(5)]
    made = [(await dead(api, hand, one_time(name=name)))["execution_id"] for name in names]
    items = await api.pages(LETTERS + "?page_size=2")
    assert ids(items) == made[::-1]
    assert [item["job_name"] for item in items] == names[::-1]
    assert all(item["attempts"] == [] and item["job"] is None for item in items)


async def test_dead_letters_are_found_by_tenant_job_reason_and_time(api: Client, hand: Hand):
    a = await dead(api, hand, one_time(tenant_id="a"))
    b = await dead(api, hand, recurring(tenant_id="b"), "non_retryable")
    first = (await api.get(f"{LETTERS}/{a['execution_id']}")).body
    second = (await api.get(f"{LETTERS}/{b['execution_id']}")).body
    expected = {
        "tenant_id=a": [a],
        "tenant_id=b": [b],
        "tenant_id=c": [],
        f"job_id={a['job_id']}": [a],
        f"job_id={b['job_id']}": [b],
        f"job_id={b['job_id']}&tenant_id=a": [],
        "reason=non_retryable": [b],
        "reason=lost": [],
        f"from={second['died_at']}": [b],
        f"to={second['died_at']}": [a],
        f"from={first['died_at']}&to={second['died_at']}&tenant_id=a": [a],
        f"to={first['died_at']}": [],
    }
    for query, found in expected.items():
        assert ids(await api.pages(f"{LETTERS}?{query}")) == ids(found), query


async def test_a_dead_letter_has_every_attempt_and_the_job_as_it_was(api: Client, hand: Hand):
    job = await api.created(recurring(name="before"))
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    (claimed,) = await hand.claim()
    await hand.settle(claimed, RETRY, "timeout")
    await api.post(f"/api/v1/executions/{execution_id}/retry")
    await hand.kill()
    await api.patch(job["path"], {"name": "after"})
    letter = (await api.get(f"{LETTERS}/{execution_id}")).body
    assert (letter["attempt"], letter["reason"]) == (2, "retries_exhausted")
    kinds = [(attempt["attempt"], attempt["kind"]) for attempt in letter["attempts"]]
    assert kinds == [(1, "timeout"), (2, "retries_exhausted")]
    (listed,) = await api.pages(LETTERS)
    assert letter["job"]["name"] == letter["job_name"] == listed["job_name"] == "before"
    assert letter["error"] == "retries_exhausted!"


async def test_strange_queries_are_refused(api: Client):
    answer = await api.get(
        f"{LETTERS}?tenant_id=%00&job_id=x&reason=bored&from=now&to=1&page_size=0"
    )
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"tenant_id", "job_id", "reason", "from", "to", "page_size"}
    for text in strange_tokens("list_dead_letters"):
        answer = await api.get(f"{LETTERS}?page_token={text}")
        assert answer.is_problem(422, "invalid_input"), text


async def test_what_is_not_dead_is_not_found(api: Client):
    job = await api.created(one_time())
    alive = job["job_id"].replace("job_", "exe_")
    for number in (alive, "exe_0ahr000000000"):
        assert (await api.get(f"{LETTERS}/{number}")).is_problem(404, "not_found")
        assert (await api.delete(f"{LETTERS}/{number}")).is_problem(404, "not_found")


# Replay.


@pytest.mark.parametrize("document", [one_time, recurring])
async def test_a_replay_goes_on_under_the_same_id(api: Client, hand: Hand, document: Any):
    job = await dead(api, hand, document())
    path = f"/api/v1/executions/{job['execution_id']}"
    answer = await api.post(f"{LETTERS}/{job['execution_id']}/replay")
    assert answer.status == 202
    assert (answer.body["status"], answer.body["attempt"]) == ("QUEUED", 1)
    assert (await api.get(f"{LETTERS}/{job['execution_id']}")).status == 404
    (claimed,) = await hand.claim()
    assert claimed.attempt == 2
    await hand.settle(claimed, SUCCEEDED)
    ended = (await api.get(path)).body
    assert (ended["status"], ended["attempt"]) == ("SUCCEEDED", 2)
    assert [each["status"] for each in ended["attempts"]] == ["FAILED", "SUCCEEDED"]
    for listed in (f"{job['path']}/executions", "/api/v1/executions"):
        items = await api.pages(listed)
        assert [(each["execution_id"], each["status"]) for each in items] == [
            (job["execution_id"], "SUCCEEDED")
        ]


async def test_a_one_time_job_is_listed_once_while_it_is_replayed_and_after(
    api: Client, hand: Hand
):
    job = await dead(api, hand, one_time(tenant_id="acme"))
    await api.post(f"{LETTERS}/{job['execution_id']}/replay")

    async def statuses(query: str) -> list[str]:
        return [each["status"] for each in await api.pages(f"/api/v1/jobs?{query}")]

    for tenant in ("", "&tenant_id=acme"):
        assert await statuses("page_size=9" + tenant) == ["QUEUED"]
        assert await statuses("status=FAILED" + tenant) == []
    (claimed,) = await hand.claim()
    await hand.settle(claimed, DEAD, "non_retryable")
    for tenant in ("", "&tenant_id=acme"):
        assert await statuses("page_size=9" + tenant) == ["FAILED"]
        assert await statuses("status=FAILED" + tenant) == ["FAILED"]


async def test_the_fence_goes_on_rising_and_the_retries_are_counted_anew(api: Client, hand: Hand):
    job = await api.created(recurring())
    await api.post(job["path"] + "/run")
    (first,) = await hand.kill()
    await api.post(f"/api/v1/executions/{text(first.execution_id)}/retry")
    (second,) = await hand.claim()
    assert second.fence > first.fence
    assert decode_spec(first.spec).attempts_before == 0
    assert decode_spec(second.spec).attempts_before == 1
    assert second.attempt == 2
    await hand.settle(second, DEAD, "retries_exhausted")
    await api.post(f"/api/v1/executions/{text(first.execution_id)}/retry")
    (third,) = await hand.claim()
    assert (third.attempt, decode_spec(third.spec).attempts_before) == (3, 2)


async def test_a_recurring_job_is_replayed_as_it_is_now(api: Client, hand: Hand):
    job = await dead(api, hand, recurring(action={"type": "TASK", "name": "old"}))
    await api.patch(job["path"], {"action": {"name": "new"}, "schedule": {"cron": "0 4 1 1 *"}})
    await api.post(f"{LETTERS}/{job['execution_id']}/replay")
    (claimed,) = await hand.claim()
    assert decode_spec(claimed.spec).action.name == "new"  # type: ignore[union-attr]


async def test_two_replays_at_once_are_one_run(api: Client, hand: Hand):
    job = await dead(api, hand, one_time())
    path = f"{LETTERS}/{job['execution_id']}/replay"
    answers = await asyncio.gather(*(api.post(path) for _ in range(8)))
    statuses = sorted(answer.status for answer in answers)
    assert statuses[0] == 202
    assert set(statuses[1:]) <= {409, 503}  # it is replayed already, or is just being replayed
    assert len(await hand.claim()) == 1


async def test_a_repeated_replay_gets_its_first_answer(api: Client, hand: Hand):
    job = await dead(api, hand, one_time())
    path = f"{LETTERS}/{job['execution_id']}/replay"
    first, again = [await api.post(path, key="replay") for _ in range(2)]
    assert (first.status, first.body) == (again.status, again.body)


async def test_what_cannot_be_replayed_says_why(api: Client, hand: Hand):
    deleted = await dead(api, hand, recurring())
    await api.delete(deleted["path"])
    purged = await dead(api, hand, one_time())
    await api.delete(f"{LETTERS}/{purged['execution_id']}")
    alive = await api.created(one_time())
    numbers = {
        deleted["execution_id"]: "was deleted",
        purged["execution_id"]: "was purged",
        alive["job_id"].replace("job_", "exe_"): "is SCHEDULED",
    }
    for number, why in numbers.items():
        answer = await api.post(f"{LETTERS}/{number}/replay")
        assert answer.is_problem(409, "conflict"), why
        assert why in answer.body["detail"]
    assert (await api.post(f"{LETTERS}/exe_0ahr000000000/replay")).is_problem(404, "not_found")


async def test_an_occurrence_that_lives_again_is_not_replayed_beside_itself(
    api: Client, hand: Hand
):
    job = await api.created(recurring())
    stretch = {"after": "2022-06-01T00:00:00Z", "through": "2023-06-01T00:00:00Z"}
    (number,) = (await api.post(job["path"] + "/backfill", stretch)).body["execution_ids"]
    await hand.kill()
    await api.post(job["path"] + "/backfill", stretch)
    answer = await api.post(f"{LETTERS}/{number}/replay")
    assert answer.is_problem(409, "conflict")
    assert "being run again" in answer.body["detail"]
    many = (await api.post(LETTERS + "/replay", {})).body
    assert (many["replayed"], many["left"]) == (0, 1)


# Unique keys.


async def named(api: Client, name: str, **more: Any) -> Any:
    """A one-time job that was put under its name."""
    answer = await api.put(f"/api/v1/jobs/by-name/{name}", one_time(name=name, **more))
    assert answer.status == 201
    return answer.body | {"path": f"/api/v1/jobs/{answer.body['job_id']}"}


async def keyed(api: Client, key: str, **more: Any) -> Any:
    return await api.created(one_time(unique_key=key, **more))


async def died(api: Client, hand: Hand, job: Any) -> str:
    """The job has run and died; the id of its dead letter."""
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    await hand.kill()
    return str(execution_id)


HOLDERS = pytest.mark.parametrize("make", [keyed, named])
HOUSEKEPT = pytest.mark.parametrize("housekept", [False, True], ids=["", "after housekeeping"])


async def keep_house(engine: Engine, housekept: bool) -> None:
    """Housekeeping deletes the rows of keys whose jobs have ended; it must make no difference."""
    if housekept:
        now = await engine.clock.now()
        for _ in range(2):  # the cursor wraps around
            await run_housekeeping(engine, None, now)


@HOLDERS
@HOUSEKEPT
async def test_a_replay_is_refused_while_another_job_has_the_unique_key(
    api: Client, hand: Hand, engine: Engine, make: Any, housekept: bool
):
    letter = await died(api, hand, await make(api, "cart"))
    await keep_house(engine, housekept)
    holder = await make(api, "cart")
    await keep_house(engine, housekept)
    for path in (f"{LETTERS}/{letter}/replay", f"/api/v1/executions/{letter}/retry"):
        answer = await api.post(path)
        assert answer.is_problem(409, "duplicate_job")
        assert holder["job_id"] in answer.body["detail"]
    assert ids(await api.pages(LETTERS)) == [letter]
    # The key stays with its holder. When that has ended, the replay gets it.
    await api.delete(holder["path"])
    await keep_house(engine, housekept)
    assert (await api.post(f"{LETTERS}/{letter}/replay")).status == 202


@HOLDERS
@HOUSEKEPT
async def test_a_replay_takes_its_unique_key_back(
    api: Client, hand: Hand, engine: Engine, make: Any, housekept: bool
):
    first = await make(api, "cart")
    letter = await died(api, hand, first)
    await keep_house(engine, housekept)
    if housekept:  # another job has had it in between
        await api.delete((await make(api, "cart"))["path"])
        await keep_house(engine, housekept)
    assert (await api.post(f"{LETTERS}/{letter}/replay")).status == 202
    await keep_house(engine, housekept)
    if make is keyed:
        answer = await api.post("/api/v1/jobs", one_time(unique_key="cart"))
        assert answer.is_problem(409, "duplicate_job")
        assert first["job_id"] in answer.body["detail"]
        by_key = "/api/v1/jobs/by-unique-key?unique_key=cart"
    else:
        by_key = "/api/v1/jobs/by-name/cart"
    assert (await api.get(by_key)).body["job_id"] == first["job_id"]


@HOLDERS
async def test_a_replay_of_many_leaves_those_whose_key_another_job_has(
    api: Client, hand: Hand, make: Any
):
    held = await died(api, hand, await make(api, "held"))
    await make(api, "held", schedule={"at": "2099-01-01T00:00:00Z"})
    first = await died(api, hand, await make(api, "free"))
    second = await died(api, hand, await make(api, "free"))
    many = (await api.post(LETTERS + "/replay", {})).body
    assert (many["replayed"], many["left"]) == (1, 2)
    assert many["left_reasons"] == [{"code": "duplicate_job", "count": 2}]
    # Of two letters with one key, the one that died first is replayed.
    assert ids(await api.pages(LETTERS)) == [second, held]
    assert [execution_text(one.execution_id) for one in await hand.claim()] == [first]


async def test_a_key_that_is_taken_during_a_replay_is_given_to_one_job(
    api: Client, hand: Hand, engine: Engine
):
    for _ in range(5):
        letter = await died(api, hand, await keyed(api, "cart"))
        answers = await asyncio.gather(
            api.post(f"{LETTERS}/{letter}/replay"),
            api.post("/api/v1/jobs", one_time(unique_key="cart")),
            run_housekeeping(engine, None, await engine.clock.now()),
        )
        assert sorted(answer.status for answer in answers[:2]) in ([202, 409], [201, 409])
        (live,) = await engine.database.fetch("select id from hourbell.live where job is null")
        (row,) = await engine.database.fetch("select job from hourbell.unique_keys")
        assert row["job"] == live["id"]
        await api.delete(f"/api/v1/jobs/{job_text(live['id'])}")


async def test_a_replay_obeys_the_overlap_policy(api: Client, hand: Hand):
    job = await dead(api, hand, recurring(overlap_policy="forbid"))
    await api.post(job["path"] + "/run")
    (other,) = await hand.claim()
    await api.post(f"{LETTERS}/{job['execution_id']}/replay")
    assert await hand.claim() == []
    skipped = (await api.get(f"/api/v1/executions/{job['execution_id']}")).body
    assert (skipped["status"], skipped["reason"]) == ("SKIPPED", "overlap")
    assert len(skipped["attempts"]) == 1
    await hand.settle(other, SUCCEEDED)


async def test_a_key_is_held_by_a_replay_as_by_any_run(api: Client, hand: Hand):
    keyed = {"concurrency_key": "one-at-a-time"}
    first = await dead(api, hand, one_time(**keyed))
    await api.post(f"{LETTERS}/{first['execution_id']}/replay")
    second = await api.created(one_time(**keyed))
    await api.post(second["path"] + "/run")
    (claimed,) = await hand.claim()
    await hand.settle(claimed, SUCCEEDED)
    (other,) = await hand.claim()
    assert {text(claimed.execution_id), text(other.execution_id)} == {
        first["execution_id"],
        second["job_id"].replace("job_", "exe_"),
    }


# Replay of many.


async def test_many_are_replayed_at_a_rate_in_the_order_of_their_deaths(
    api: Client, hand: Hand, engine: Engine
):
    made = [(await dead(api, hand, one_time(tenant_id="a")))["execution_id"] for _ in range(4)]
    await dead(api, hand, one_time(tenant_id="b"))
    answer = await api.post(LETTERS + "/replay", {"tenant_id": "a", "rate_per_second": 2})
    assert answer.status == 202
    assert (answer.body["replayed"], answer.body["left"]) == (4, 0)
    assert answer.body["next_page_token"] is None
    rows = await engine.database.fetch("select id, run_at from hourbell.due order by run_at")
    assert [text(row["id"]) for row in rows] == made
    times = [row["run_at"] for row in rows]
    assert [at - times[0] for at in times] == [timedelta(seconds=k / 2) for k in range(4)]
    assert datetime.fromisoformat(answer.body["last_run_at"]) == times[-1]
    assert len(await api.pages(LETTERS)) == 1


async def test_a_replay_of_many_is_bounded_and_goes_on_where_it_stopped(
    api: Client, hand: Hand, monkeypatch: pytest.MonkeyPatch
):
    gone = await dead(api, hand, recurring())
    for _ in range(5):
        await dead(api, hand, one_time())
    await api.delete(gone["path"])
    replayed, left, token, calls = 0, 0, None, 0
    while calls == 0 or token:
        body = {"limit": 2} | ({"page_token": token} if token else {})
        answer = (await api.post(LETTERS + "/replay", body)).body
        replayed, left = replayed + answer["replayed"], left + answer["left"]
        token, calls = answer["next_page_token"], calls + 1
    assert (replayed, left, calls) == (5, 1, 3)
    assert ids(await api.pages(LETTERS)) == [gone["execution_id"]]


async def test_two_replays_of_many_at_once_replay_each_once(api: Client, hand: Hand):
    for _ in range(6):
        await dead(api, hand, one_time())
    answers = await asyncio.gather(*(api.post(LETTERS + "/replay", {}) for _ in range(4)))
    assert sum(answer.body["replayed"] for answer in answers) == 6
    assert len(await hand.claim()) == 6


async def test_strange_bodies_are_refused(api: Client):
    wrong = {
        "limit": 0,
        "rate_per_second": 1.5,
        "job_id": "x",
        "reason": "",
        "from": 1,
        "all": True,
    }
    answer = await api.post(LETTERS + "/replay", wrong)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == set(wrong)
    answer = await api.post(LETTERS + "/purge", {"rate_per_second": 1, "page_token": "x"})
    assert answer.paths == {"rate_per_second"}
    answer = await api.post(LETTERS + "/purge", {"page_token": "x"})
    assert answer.paths == {"page_token"}


async def test_a_filter_makes_no_tenant(api: Client):
    await api.post(LETTERS + "/purge", {"tenant_id": "new"})
    assert (await api.get("/api/v1/tenants/new")).status == 404


# Purge.


async def test_a_purged_letter_is_gone_and_its_history_stays(api: Client, hand: Hand):
    job = await dead(api, hand, one_time())
    path = f"{LETTERS}/{job['execution_id']}"
    first, again = [await api.delete(path, key="purge") for _ in range(2)]
    assert first.body == again.body == {"purged": 1, "next_page_token": None}
    assert (await api.get(path)).status == 404
    ended = (await api.get(f"/api/v1/executions/{job['execution_id']}")).body
    assert ended["status"] == "DEAD"


async def test_many_are_purged_by_filter(api: Client, hand: Hand):
    for tenant in ("a", "a", "b"):
        await dead(api, hand, one_time(tenant_id=tenant))
    first = (await api.post(LETTERS + "/purge", {"tenant_id": "a", "limit": 1})).body
    assert first["purged"] == 1
    rest = {"tenant_id": "a", "page_token": first["next_page_token"]}
    assert (await api.post(LETTERS + "/purge", rest)).body["purged"] == 1
    assert [each["tenant_id"] for each in await api.pages(LETTERS)] == ["b"]


# Whose they are.


async def test_within_a_scope_there_are_ones_own(api: Client, hand: Hand, engine: Engine):
    mine = await dead(api, hand, one_time(tenant_id="mine"))
    theirs = await dead(api, hand, one_time(tenant_id="theirs"))
    scoped = engine.scoped_to("mine")
    found = [text(letter.execution_id) for letter in (await list_dead_letters(scoped, ALL)).items]
    assert found == [mine["execution_id"]]
    for call in (get_dead_letter, _replay, _purge):
        with pytest.raises(NotFound):
            await call(scoped, parse_execution_id(theirs["execution_id"]))
    foreign = BulkSelection(DeadLetterFilter(tenant_id="theirs"), 10, None, None)
    for call in (replay_dead_letters, dead_letters.purge_dead_letters):
        with pytest.raises(Forbidden):
            await call(scoped, foreign, Write())
        await call(scoped, BulkSelection(ALL, 10, None, None), Write())
    assert ids(await api.pages(LETTERS)) == [theirs["execution_id"]]


ALL = DeadLetterFilter()


async def _replay(engine: Engine, number: int) -> None:
    await dead_letters.replay_dead_letter(engine, number, Write())


async def _purge(engine: Engine, number: int) -> None:
    await dead_letters.purge_dead_letter(engine, number, Write())


def text(number: int) -> str:
    return execution_text(number)
