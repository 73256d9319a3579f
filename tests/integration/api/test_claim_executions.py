"""POST /internal/v1/executions/claim"""

import asyncio
import json
import time
from datetime import datetime
from typing import Any

import aiohttp
import pytest

from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch import remote as remote_module
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import ClaimRequest, RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.failpoints import barrier, configure
from hourbell.model.ids import execution_text, parse_execution_id
from hourbell.model.limits import RateLimit
from integration.api.client import KEY_RING, Client
from integration.api.conftest import KnownHealth
from integration.api.workers import EXECUTIONS, NOBODY, RemoteWorker, enqueue
from integration.life.rates import check_starts
from integration.life.support import (
    check_sound,
    create,
    eventually,
    fill,
    one_time,
    scheduling,
    store_newer,
)

CLAIM = f"{EXECUTIONS}/claim"
WEBHOOK = {
    "type": "WEBHOOK",
    "url": "https://example.com/{{secret:path}}",
    "headers": {"Authorization": "{{secret:token}}", "X-Api-Key": "a literal key"},
    "secrets": "lazy",
}


async def places(engine: Engine) -> dict[str, int]:
    row = await engine.database.row(
        "select (select count(*) from hourbell.sessions where id > 0) as sessions,"
        " (select count(*) from hourbell.leases) as leased"
    )
    return dict(row)


async def test_a_claim_gives_all_that_is_needed_to_run(api: Client, engine: Engine):
    [number] = await enqueue(engine, tenant_id="acme", timeout_seconds=17, deadline_seconds=60)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert execution["execution_id"] == execution_text(number)
    assert execution["tenant_id"] == "acme"
    assert execution["attempt"] == 1
    assert execution["timeout_seconds"] == 17
    assert 50 < execution["deadline_in_seconds"] <= 60
    assert execution["action"] == {"type": "TASK", "name": "count", "payload": {"number": 0}}
    shown = await worker.status(execution)
    assert (shown["status"], shown["attempt"]) == ("RUNNING", 1)


async def test_a_webhook_is_given_as_it_stands_with_its_secrets_not_filled_in(
    api: Client, engine: Engine
):
    """And with its literal credentials, which others do not see."""
    await enqueue(engine, action=WEBHOOK)
    [execution] = await RemoteWorker(api).claim()
    assert execution["action"] == WEBHOOK | {"method": "POST", "body": None}
    assert execution["deadline_in_seconds"] is None


async def test_a_claim_that_gives_nothing_begins_no_session(api: Client, engine: Engine):
    answer = await RemoteWorker(api).ask()
    assert answer.body == {"session_token": None, "lease_seconds": 15.0, "executions": []}
    assert await places(engine) == {"sessions": 0, "leased": 0}
    assert await engine.database.value("select count(*) from hourbell.past_sessions") == 0


async def test_a_session_goes_on_with_its_token_also_when_there_is_nothing(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    await worker.claim()
    token = worker.token
    assert await worker.claim() == []
    assert worker.token == token
    assert await places(engine) == {"sessions": 1, "leased": 1}


async def test_a_claim_gives_no_more_than_the_capacity(api: Client, engine: Engine):
    await enqueue(engine, 5)
    worker = RemoteWorker(api)
    assert [len(await worker.claim(2)) for _ in range(4)] == [2, 2, 1, 0]


async def test_two_processes_with_one_worker_id_are_two_sessions(api: Client, engine: Engine):
    await enqueue(engine, 2)
    first, second = RemoteWorker(api, "twin"), RemoteWorker(api, "twin")
    [mine], [other] = await first.claim(1), await second.claim(1)
    assert first.token != second.token
    assert (await first.complete(other)).is_problem(409, "stale_fence")
    assert (await first.beat(mine, other)).body["lost"] == [other["execution_id"]]
    assert (await second.complete(other)).status == 200


async def test_only_the_queues_that_were_asked_for_are_served(api: Client, engine: Engine):
    await enqueue(engine, queue="mail")
    assert await RemoteWorker(api).claim() == []
    assert await RemoteWorker(api).claim(queues=["unheard-of"]) == []
    worker = RemoteWorker(api)
    assert len(await worker.claim(queues=["mail", "reports"])) == 1
    assert await worker.claim(queues=["reports", "mail"]) == []
    answer = await worker.ask(queues=["reports"])
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"queues"}


async def test_workers_that_name_different_tasks_get_only_theirs(api: Client, engine: Engine):
    made = {}
    for name in ("greet", "print"):
        action = {"type": "TASK", "name": name}
        made[name] = {execution_text(n) for n in await enqueue(engine, 10, action=action)}
    [call] = await enqueue(engine, action=WEBHOOK)
    made["@webhook"] = {execution_text(call)}
    for name, wanted in made.items():
        given = await RemoteWorker(api, name).claim(50, tasks=[name])
        assert {each["execution_id"] for each in given} == wanted


async def test_the_tasks_of_a_session_stay_those_of_its_first_claim(api: Client, engine: Engine):
    await enqueue(engine, 3)
    worker = RemoteWorker(api)
    await worker.claim(1, tasks=["count", "print"])
    assert len(await worker.claim(1, tasks=["print", "count"])) == 1
    answer = await worker.ask(1, tasks=["print"])
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"tasks"}
    assert len(await worker.claim(1)) == 1
    other = RemoteWorker(api)
    await enqueue(engine)
    await other.claim(1)
    assert (await other.ask(1, tasks=["count"])).paths == {"tasks"}


async def test_what_is_due_and_not_admitted_is_given_too(api: Client, engine: Engine):
    # There is no scheduler here, and nobody else has passed the gate.
    await create(engine, one_time())
    assert len(await RemoteWorker(api).claim()) == 1


async def test_a_claim_repeated_under_its_number_gives_the_same(api: Client, engine: Engine):
    await enqueue(engine, 5)
    worker = RemoteWorker(api)
    await worker.claim(1)
    first = await worker.claim(2, claim_number=2)
    again = await worker.claim(2, claim_number=2)
    by_id = {each["execution_id"]: each["fence_token"] for each in first}
    assert {each["execution_id"]: each["fence_token"] for each in again} == by_id
    assert len(await worker.claim(5, claim_number=3)) == 2


async def test_a_long_poll_wakes_soon_after_an_enqueue(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_module, "POLL_SECONDS", 60)  # nobody comes by chance
    worker = RemoteWorker(api)
    for _ in range(3):
        asking = asyncio.create_task(worker.claim(wait_seconds=30))
        await eventually_waiting(engine)
        began = time.monotonic()
        await create(engine, one_time())
        [execution] = await asking
        assert (
            time.monotonic() - began < 15
        )  # about 10 ms on an idle machine; unwoken it waits 30 s
        await worker.complete(execution)


async def test_a_long_poll_ends_after_its_time(api: Client):
    began = time.monotonic()
    assert await RemoteWorker(api).claim(wait_seconds=1) == []
    assert 1 <= time.monotonic() - began < 15


async def test_a_long_poll_is_served_without_any_notification(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "announce", lambda: None)
    asking = asyncio.create_task(RemoteWorker(api).claim(wait_seconds=30))
    await eventually_waiting(engine)
    began = time.monotonic()
    await create(engine, one_time())
    assert len(await asking) == 1
    assert time.monotonic() - began < 15  # at the next look, not when the 30 s are over


async def test_a_session_lives_while_its_worker_waits(
    api: Client, engine: Engine, remote: RemoteWorkers
):
    # Shorter than the wait: renewed meanwhile, or it would be lost.
    remote.lease_seconds = 1.5
    asking = asyncio.create_task(RemoteWorker(api).claim(wait_seconds=30))

    async def renewed() -> bool:
        return bool(
            await engine.database.value(
                "select exists (select from hourbell.sessions where id > 0 and renewed_at > started_at)"
            )
        )

    await eventually(renewed)
    await create(engine, one_time())
    assert len(await asking) == 1


async def test_who_holds_something_does_not_keep_it_by_asking_for_more(api: Client, engine: Engine):
    # The answer that gave it may have been lost: only a heartbeat shows that the worker has it.
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    long_ago = "update hourbell.sessions set renewed_at = renewed_at - interval '5 s', expires_at = expires_at - interval '5 s' where id > 0 returning expires_at"
    expires_at = await engine.database.value(long_ago)
    expiry = "select expires_at from hourbell.sessions where id > 0"
    await worker.claim()
    assert await engine.database.value(expiry) == expires_at
    await worker.complete(execution)
    await worker.claim()
    assert await engine.database.value(expiry) > expires_at


@pytest.mark.parametrize(("rate", "burst"), [(20, None), (20, 5), (50, None), (200, None)])
async def test_remote_workers_reach_the_rate_of_a_limit_and_do_not_exceed_it(
    api: Client, engine: Engine, rate: int, burst: int | None
):
    settings = {"rate_limit": {"per_second": rate} | ({"burst": burst} if burst else {})}
    answer = await api.put("/api/v1/queues/default", settings)
    limit = RateLimit(**answer.body["rate_limit"])
    await fill(engine, 8 * rate)
    starts: list[float] = []
    answered: list[int] = []

    async def work(name: str) -> None:
        worker = RemoteWorker(api, name)
        while len(starts) < 4 * rate:
            executions = await worker.claim(100, wait_seconds=1)
            ids = [parse_execution_id(each["execution_id"]) for each in executions]
            rows = await engine.database.fetch(
                "select claimed_at, hourbell.clock() as now from hourbell.leases where id = any ($1)",
                ids,
            )
            assert all(row["claimed_at"] <= row["now"] for row in rows)  # it can start what it gets
            starts.extend(row["claimed_at"].timestamp() for row in rows)
            answered.append(len(ids))
            if executions:  # together: a busy machine has enough to do with the claims
                await worker.complete_all(executions)

    async with scheduling(engine), asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(work(f"worker-{number}"))
    assert max(answered) <= limit.burst
    check_starts(sorted(starts), limit)


async def test_many_who_wait_are_all_served_by_one_notification_of_a_burst(
    api: Client, engine: Engine, remote: RemoteWorkers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_module, "POLL_SECONDS", 60)  # nobody comes by chance,
    remote.lease_seconds = 180  # nor to renew, at a third of it
    asking = [
        asyncio.create_task(RemoteWorker(api, f"worker-{n}").claim(1, wait_seconds=30))
        for n in range(40)
    ]

    async def all_in_line() -> bool:
        return sum(len(line.waiting) for line in remote._lines.values()) == 40

    await eventually(all_in_line)
    await fill(engine, 40)
    began = time.monotonic()
    remote.wake()
    given = await asyncio.gather(*asking)
    assert [len(executions) for executions in given] == [1] * 40
    assert len({executions[0]["execution_id"] for executions in given}) == 40
    assert time.monotonic() - began < 15  # those who are not woken wait 30 s


class Counting(PostgresDispatch):
    """Counts what it is asked for."""

    claims = passes = 0

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        self.claims += 1
        return await super().claim(*args, **kwargs)

    async def admit(self, *args: Any) -> bool:
        self.passes += 1
        return await super().admit(*args)


async def test_many_who_wait_cost_few_claims_and_share_the_gate(engine: Engine):
    dispatch = Counting(engine)
    remote = RemoteWorkers(dispatch, 15)
    nobody_leaves = asyncio.get_running_loop().create_future()
    request = ClaimRequest(worker="w", capacity=1, wait_seconds=4)
    given = await asyncio.gather(*(remote.claim(request, nobody_leaves) for _ in range(30)))
    assert not any(each.executions for each in given)
    # Each claims when it comes, after the gate, and when its time is over; between that, one for each look.
    assert dispatch.claims < 3 * 30 + 20
    assert dispatch.passes < 25


async def test_a_worker_that_leaves_while_it_waits_is_forgotten(server: ApiServer, engine: Engine):
    writer = await half_a_call(server.port, {"wait_seconds": 30})
    await eventually_waiting(engine)
    writer.close()
    await writer.wait_closed()

    async def forgotten() -> bool:
        return await places(engine) == {"sessions": 0, "leased": 0}

    await eventually(forgotten)


@pytest.mark.parametrize("known", [False, True], ids=["new", "with a session"])
async def test_what_a_worker_got_that_left_meanwhile_goes_back(
    api: Client, server: ApiServer, engine: Engine, known: bool
):
    worker = RemoteWorker(api)
    if known:
        await enqueue(engine)
        await worker.claim()
    before = await places(engine)
    await enqueue(engine)
    with barrier("claim.after_commit") as hold:
        writer = await half_a_call(server.port, {"session_token": worker.token})
        await hold.reached()
        assert (await places(engine))["leased"] == before["leased"] + 1
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(
            0.05
        )  # for the server to have heard; if it has not, the test shows less

    async def back() -> bool:
        return await places(engine) == before

    await eventually(back)
    other = RemoteWorker(api)
    [execution] = await other.claim()
    assert execution["attempt"] == 1
    await check_sound(engine)


async def test_what_a_worker_got_under_a_number_is_kept_for_the_repetition(
    api: Client, server: ApiServer, engine: Engine
):
    worker = RemoteWorker(api)
    [number, *_] = await enqueue(engine, 2)
    await worker.claim(1)
    with barrier("claim.after_commit") as hold:
        numbered = {"session_token": worker.token, "claim_number": 2}
        writer = await half_a_call(server.port, numbered)
        await hold.reached()
        writer.close()
        await writer.wait_closed()
    [execution] = await worker.claim(claim_number=2)
    assert execution["execution_id"] != execution_text(number)
    assert (await worker.complete(execution)).status == 200


async def test_a_claim_whose_answer_the_database_lost_can_be_repeated(api: Client, engine: Engine):
    await enqueue(engine, 3)
    worker = RemoteWorker(api)
    await worker.claim(1)
    configure("claim.after_commit=drop*1")
    assert (await worker.ask(2, claim_number=2)).is_problem(503, "store_unavailable")
    assert len(await worker.claim(2, claim_number=2)) == 2
    await check_sound(engine)


async def test_stopping_ends_long_polls_at_once(engine: Engine, remote: RemoteWorkers):
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "127.0.0.1", 0
    )
    await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        body = {"worker_id": "w", "capacity": 1, "wait_seconds": 30}
        asking = asyncio.create_task(http.post(CLAIM, json=body))
        await eventually_waiting(engine)
        began = time.monotonic()
        await remote.stop()
        await server.stop()
        assert time.monotonic() - began < 8  # not DRAIN_SECONDS, and not the 30 s of the poll
        assert (await (await asking).json())["executions"] == []


async def test_a_lost_session_is_told_so(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    await worker.claim()
    await engine.database.value("delete from hourbell.sessions where id > 0")
    await engine.database.value("delete from hourbell.leased")
    assert (await worker.ask()).is_problem(409, "session_lost")
    assert (await worker.ask(session_token=NOBODY)).is_problem(409, "session_lost")


async def test_the_least_urgent_goes_on_too(api: Client, engine: Engine):
    for _ in range(30):
        await enqueue(engine, priority="HIGH")
    [low] = await enqueue(engine, priority="LOW")
    worker = RemoteWorker(api)
    given = [(await worker.claim(1))[0]["execution_id"] for _ in range(25)]
    assert execution_text(low) in given


async def test_an_answer_is_bounded_whatever_the_payloads(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_module, "MAX_ANSWER_BYTES", 100_000)
    action = {"type": "TASK", "name": "big", "payload": "x" * 60_000}
    await enqueue(engine, 3, action=action)
    worker = RemoteWorker(api)
    given = []
    while executions := await worker.claim():
        given.append([each["attempt"] for each in executions])
    assert given == [[1], [1], [1]]


async def test_what_this_build_cannot_read_is_left_to_a_newer_one(api: Client, engine: Engine):
    [bad, good] = await enqueue(engine, 2)
    await store_newer(engine, bad)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert execution["execution_id"] == execution_text(good)
    waiting = await worker.status({"execution_id": execution_text(bad)})
    assert (waiting["status"], waiting["attempt"]) == ("QUEUED", 0)
    assert waiting["waiting_for"] == "unreadable"

    explained = (await api.get(f"/api/v1/executions/{execution_text(bad)}/explain")).body
    assert explained["code"] == "unreadable"
    until = datetime.fromisoformat(explained["until"]) - await engine.clock.now()
    assert 50 < until.total_seconds() <= 60


async def test_an_attempt_is_judged_by_its_policies_though_its_action_cannot_be_read(
    api: Client, engine: Engine
):
    """The claim was answered by an API process of a newer build, its report by one of this build."""
    [job] = await enqueue(engine, retry_policy={"max_retries": 1})
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await store_newer(engine, job, action={"type": "NEWER"})
    await worker.complete(execution, "FAILED", error="no luck")
    assert (await worker.status(execution))["status"] == "RETRYING"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"capacity": 0}, "capacity"),
        ({"capacity": -1}, "capacity"),
        ({"capacity": 10**30}, "capacity"),
        ({"capacity": True}, "capacity"),
        ({"capacity": 1.5}, "capacity"),
        ({"capacity": None}, "capacity"),
        ({"worker_id": None}, "worker_id"),
        ({"worker_id": "a\x00b"}, "worker_id"),
        ({"worker_id": "x" * 201}, "worker_id"),
        ({"worker_id": ""}, "worker_id"),
        ({"queues": []}, "queues"),
        ({"queues": "mail"}, "queues"),
        ({"queues": ["no spaces"]}, "queues[0]"),
        ({"queues": ["q"] * 51}, "queues"),
        ({"tasks": []}, "tasks"),
        ({"tasks": "greet"}, "tasks"),
        ({"tasks": ["@other"]}, "tasks[0]"),
        ({"tasks": ["t"] * 101}, "tasks"),
        ({"wait_seconds": -1}, "wait_seconds"),
        ({"wait_seconds": 31}, "wait_seconds"),
        ({"session_token": "ses_1"}, "session_token"),
        ({"session_token": f"ses_{'9' * 19}_{'0' * 32}"}, "session_token"),
        ({"claim_number": 0}, "claim_number"),
        ({"claim_number": 2**31}, "claim_number"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_bad_field_is_named(api: Client, fields: dict[str, Any], path: str):
    answer = await RemoteWorker(api).ask(**fields)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}


async def test_a_key_of_a_tenant_may_not_claim(api: Client):
    async def key_of(tenant: str | None, **sent: Any) -> dict[str, str]:
        wanted = {"name": "k", "role": "admin", "tenant_id": tenant}
        made = await api.post("/api/v1/keys", wanted, **sent)
        return {"Authorization": f"Bearer {made.body['key']}"}

    ours = await key_of(None)
    theirs = await key_of("acme", headers=ours)
    request = {"worker_id": "w", "capacity": 1}
    answer = await api.post(CLAIM, request, key=None, headers=theirs)
    assert answer.is_problem(403, "forbidden")
    assert (await api.post(CLAIM, request, key=None, headers=ours)).status == 200


async def eventually_waiting(engine: Engine, count: int = 1) -> None:
    """Until so many sessions are there, which stand behind claims that wait."""

    async def waiting() -> bool:
        return (await places(engine))["sessions"] >= count

    await eventually(waiting)


async def half_a_call(port: int, fields: dict[str, Any]) -> asyncio.StreamWriter:
    """A claim that is sent by a client that does not read the answer."""
    body = json.dumps({"worker_id": "w", "capacity": 10} | fields).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (CLAIM.encode(), len(body), body)
    )
    await writer.drain()
    return writer
