"""Many jobs in one call."""

import asyncio
import io
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import asyncpg
import pytest

from hourbell import failpoints
from hourbell.api.server import ApiServer
from hourbell.engine import core
from hourbell.engine.bounds import BoundedSlots, MemoryBudget
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.model.errors import Overloaded
from hourbell.model.limits import TenantSettings
from integration.api.client import Answer, Client, one_time, recurring

JOBS = "/api/v1/jobs"
BATCH = "/api/v1/jobs/batch"
NDJSON = {"Content-Type": "application/x-ndjson"}


def codes(answer: Answer) -> list[str]:
    return [result.get("code", "created") for result in answer.body["results"]]


async def test_every_item_gets_its_job_in_order(api: Client):
    names = [f"job {number}" for number in range(20)]
    documents = [(one_time if n % 2 else recurring)(name=name) for n, name in enumerate(names)]
    answer = await api.post(BATCH, documents)
    assert answer.status == 200
    for name, result in zip(names, answer.body["results"], strict=True):
        assert (await api.get(f"{JOBS}/{result['job_id']}")).body["name"] == name


async def test_lines_are_as_good_as_an_array(api: Client):
    lines = "\n".join(json.dumps(one_time(name=f"job {n}")) for n in range(3)) + "\n\r\n"
    answer = await api.post(BATCH, body=lines.encode(), headers=NDJSON)
    assert codes(answer) == ["created"] * 3


async def test_no_text_of_a_job_reaches_into_the_next(api: Client):
    payloads = ["line\nbreak", "\n", "\r\n\t\x1e", "\u2028\x85", "\\n", "", None]
    documents = [
        one_time(name=f"job {n}", action={"type": "TASK", "name": "t", "payload": payload})
        for n, payload in enumerate(payloads)
    ]
    answer = await api.post(BATCH, documents)
    created = [
        (await api.get(f"{JOBS}/{result['job_id']}")).body for result in answer.body["results"]
    ]
    assert [job["action"].get("payload") for job in created] == payloads
    assert [job["name"] for job in created] == [document["name"] for document in documents]


async def test_one_bad_item_harms_no_other(api: Client, engine: Engine):
    await set_tenant(engine, "small", TenantSettings(max_jobs=1), Write())
    good = json.dumps(one_time())
    lines = [
        good,
        "{",
        json.dumps(one_time(name="", priority="high")),
        '{"name": "a", "name": "b"}',
        "5",
        json.dumps(recurring(schedule={"cron": "never"})),
        json.dumps(one_time(tenant_id="small")),
        json.dumps(recurring(tenant_id="small")),
        good,
    ]
    answer = await api.post(BATCH, body="\n".join(lines).encode(), headers=NDJSON)
    assert codes(answer) == [
        "created",
        "malformed_json",
        "invalid_input",
        "malformed_json",
        "invalid_input",
        "invalid_input",
        "created",
        "quota_exceeded",
        "created",
    ]
    wrong = answer.body["results"][2]["errors"]
    assert {error["path"] for error in wrong} == {"name", "priority"}
    assert len((await api.get(JOBS)).body["items"]) == 3


async def test_a_repeated_batch_gets_the_first_answer(api: Client):
    documents = [one_time(), {}, recurring()]
    first = await api.post(BATCH, documents, key="mine")
    again = await api.post(BATCH, documents, key="mine")
    assert again.body == first.body
    assert len((await api.get(JOBS)).body["items"]) == 2
    other = await api.post(BATCH, [one_time()], key="mine")
    assert other.is_problem(422, "idempotency_key_reused")


async def test_a_batch_whose_answer_was_lost_is_repeated_without_a_double(api: Client):
    failpoints.configure("create.after_commit=drop*1")
    lost = await api.post(BATCH, [one_time(), recurring()], key="mine")
    assert lost.is_problem(503, "store_unavailable")
    again = await api.post(BATCH, [one_time(), recurring()], key="mine")
    assert codes(again) == ["created"] * 2
    assert len((await api.get(JOBS)).body["items"]) == 2


async def test_a_batch_is_an_array_of_1_to_10000_jobs(api: Client):
    assert (await api.post(BATCH, {})).is_problem(422, "invalid_input")
    assert (await api.post(BATCH, [])).is_problem(422, "invalid_input")
    assert (await api.post(BATCH, body=b"[" + b"1," * 10_000 + b"1]")).is_problem(
        422, "invalid_input"
    )
    assert (await api.post(BATCH, body=b"[1,")).is_problem(400, "malformed_json")
    many = io.BytesIO(json.dumps([one_time()] * 10_000).encode())
    answer = await api.post(BATCH, body=many)
    assert codes(answer) == ["created"] * 10_000


async def test_a_batch_may_be_large_but_not_without_bounds(api: Client):
    large = one_time(action={"type": "TASK", "name": "t", "payload": "x" * 200_000})
    some = io.BytesIO(json.dumps([large] * 20).encode())
    assert codes(await api.post(BATCH, body=some)) == ["created"] * 20
    over = await api.post(BATCH, body=io.BytesIO(b" " * (16 * 1024 * 1024 + 1)))
    assert over.is_problem(413, "body_too_large")
    assert "16777216" in over.body["detail"]
    many = await api.post(BATCH, body=io.BytesIO(b"[" + b"1," * 2_000_000 + b"1]"))
    assert many.is_problem(422, "invalid_input")


async def test_unique_keys_within_a_batch(api: Client):
    def unique(key: str, on_duplicate: str = "reject") -> dict[str, object]:
        return one_time(unique_key=key, on_duplicate=on_duplicate)

    held = await api.created(unique("held"))
    answer = await api.post(
        BATCH,
        [
            unique("new"),
            unique("new"),
            unique("new", "keep"),
            unique("held"),
            unique("held", "keep"),
        ],
    )
    results = answer.body["results"]
    refused = "duplicate_job"
    assert codes(answer) == ["created", refused, "created", refused, "created"]
    assert results[2] == results[0]
    assert results[4] == {"job_id": held["job_id"]}
    assert held["job_id"] in results[3]["detail"]
    replaced = await api.post(BATCH, [unique("held", "replace"), unique("held", "replace")])
    assert codes(replaced) == ["created", refused]
    assert "running" not in replaced.body["results"][1]["detail"]
    assert (await api.get(held["path"])).body["status"] == "CANCELLED"


async def test_a_full_quota_leaves_room_for_what_takes_none(api: Client, engine: Engine):
    def unique(key: str, on_duplicate: str = "reject") -> dict[str, object]:
        return one_time(tenant_id="full", unique_key=key, on_duplicate=on_duplicate)

    await set_tenant(engine, "full", TenantSettings(max_jobs=2), Write())
    first, second = [await api.created(unique(key)) for key in ("first", "second")]
    over = "quota_exceeded"
    answer = await api.post(
        BATCH,
        [
            one_time(tenant_id="full"),
            recurring(tenant_id="full"),
            unique("new", "replace"),
            unique("first", "replace"),
            unique("new", "keep"),
            unique("other", "keep"),
            unique("second", "keep"),
        ],
    )
    assert codes(answer) == [over, over, over, "created", over, over, "created"]
    assert answer.body["results"][-1] == {"job_id": second["job_id"]}
    assert (await api.get(first["path"])).body["status"] == "CANCELLED"
    replaced = await api.post(JOBS, unique("second", "replace"))
    assert replaced.status == 201
    kept = await api.post(JOBS, unique("second", "keep"))
    assert (kept.status, kept.body["job_id"]) == (200, replaced.body["job_id"])

    # What was refused has taken nothing: no place, no unique key, no idempotency key.
    late = await api.post(JOBS, unique("new"), key="mine")
    assert late.is_problem(409, over)
    await set_tenant(engine, "full", TenantSettings(max_jobs=3), Write())
    both = await api.post(BATCH, [unique("second", "keep"), unique("new"), unique("last")])
    assert codes(both) == ["created", "created", over]
    assert (await api.post(JOBS, unique("new"), key="mine")).is_problem(409, "duplicate_job")
    assert (await api.post(JOBS, recurring(tenant_id="full"))).is_problem(409, over)


async def test_a_full_quota_names_nothing_for_what_has_no_room(api: Client, engine: Engine):
    await set_tenant(engine, "full", TenantSettings(max_jobs=1), Write())
    documents = [
        recurring(tenant_id="full", queue=f"named-{n}", schedule={"cron": f"{n} 4 * * *"})
        for n in range(9)
    ]
    assert codes(await api.post(BATCH, documents)) == ["created"] + ["quota_exceeded"] * 8
    assert (await api.post(JOBS, documents[5])).is_problem(409, "quota_exceeded")
    named = await engine.database.fetch(
        "select name from hourbell.queues where name like 'named-%'"
        " union all select rule from hourbell.timetables where rule like '% 4 * * *'"
    )
    assert {row["name"] for row in named} == {"named-0", "0 4 * * *"}


async def test_thousands_of_keys_that_others_have_take_as_much_longer_as_they_are_more(api: Client):
    async def seconds_of(count: int, on_duplicate: str) -> float:
        documents = [
            one_time(unique_key=f"many-{n}", on_duplicate=on_duplicate) for n in range(count)
        ]
        began = time.monotonic()
        answer = await api.post(BATCH, documents)
        assert len(answer.body["results"]) == count
        return time.monotonic() - began

    await seconds_of(5_000, "reject")
    few = max([await seconds_of(500, "keep") for _ in range(3)])
    many = min([await seconds_of(5_000, "keep") for _ in range(2)])
    assert many < 20 * few  # seven times as long; 35 times if each were compared with each


async def test_a_unique_key_that_somebody_is_taking_harms_no_other_item(
    api: Client, engine: Engine, database: str
):
    tenant = await engine.tenant("default", await engine.clock.now())
    stuck = await asyncpg.connect(database)
    async with stuck.transaction():
        await stuck.execute(
            "insert into hourbell.unique_keys (tenant, space, key, job) values ($1, 0, 'stuck', 1)",
            tenant,
        )
        documents = [one_time(unique_key=f"key {n}") for n in range(6)]
        documents[3]["unique_key"] = "stuck"
        answer = await api.post(BATCH, documents)
    await stuck.close()
    assert codes(answer) == ["created"] * 3 + ["busy"] + ["created"] * 2
    assert len((await api.get(JOBS)).body["items"]) == 5


async def test_more_batches_than_there_is_room_for_are_told_to_come_back(
    api: Client, engine: Engine
):
    with failpoints.barrier("create.before_commit") as held:
        first = asyncio.create_task(api.post(BATCH, [one_time()]))
        await held.reached()
        engine.batch_slots._max_users = 1  # as if all the others were there
        answer = await api.post(BATCH, [one_time()])
        assert answer.is_problem(503, "overloaded")
        assert answer.headers["Retry-After"] == "1"
        held.release()
        assert (await first).status == 200


async def test_whoever_is_slow_to_send_a_batch_holds_up_no_other(api: Client, server: ApiServer):
    head = (
        b"POST /api/v1/jobs/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: slow-%d\r\n"
        b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n["
    )
    async with AsyncExitStack() as senders:
        for number in range(40):  # more than there are turns and places to wait for one
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            senders.callback(writer.close)
            writer.write(head % number)
            await writer.drain()
        async with asyncio.timeout(10):
            assert codes(await api.post(BATCH, [one_time()])) == ["created"]


async def test_batches_that_arrive_at_once_take_no_more_memory_than_there_is_for_them(
    api: Client, engine: Engine
):
    engine.batch_memory._max_bytes_per_tenant = 1_000
    padded = one_time(action={"type": "TASK", "name": "t", "payload": "x" * 1_000})
    answer = await api.post(BATCH, [padded])
    assert answer.is_problem(503, "overloaded")
    assert codes(await api.post(BATCH, [one_time()])) == ["created"]  # what was taken is given back
    assert not engine.batch_memory._reserved


def test_nobody_takes_all_the_memory_for_what_arrives():
    budget = MemoryBudget(100, max_bytes_per_tenant=40)
    with budget.reserving("acme") as take, budget.reserving("globex") as others:
        take(40)
        with pytest.raises(Overloaded):
            take(1)
        with budget.reserving("acme") as again, pytest.raises(Overloaded):
            again(1)
        others(40)
        with budget.reserving(None) as rest:
            rest(20)
            with pytest.raises(Overloaded):
                rest(1)
    assert not budget._reserved


async def test_items_that_name_too_many_new_queues_are_refused_one_by_one_and_soon(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(core, "MAX_QUEUES_PER_TENANT", 100)
    makes = "select count(*) from hourbell.queues where name like 'q%'"
    statements: list[object] = []
    insert_missing = Engine.insert_missing

    async def noting(self: Engine, statement: str, *args: object) -> Sequence[asyncpg.Record]:
        statements.append(statement)
        return await insert_missing(self, statement, *args)

    monkeypatch.setattr(Engine, "insert_missing", noting)
    documents = [one_time(queue=f"q{number}") for number in range(1_000)]
    answer = await api.post(BATCH, [one_time(), *documents, one_time()])
    found = codes(answer)
    assert found[0] == found[-1] == "created"
    assert 90 <= found.count("created") - 2 == await engine.database.value(makes) <= 100
    assert set(found) == {"created", "invalid_input", "conflict"}
    assert len(statements) < 200  # not one for each


async def test_others_have_their_turn_while_a_batch_joins_its_timetables(
    api: Client, engine: Engine
):
    engine.batch_slots = BoundedSlots(1, 32)
    with failpoints.barrier("join.before_commit") as held:
        first = asyncio.create_task(api.post(BATCH, [recurring()]))
        await held.reached()
        async with asyncio.timeout(10):
            assert codes(await api.post(BATCH, [one_time()])) == ["created"]
        held.release()
        assert codes(await first) == ["created"]
