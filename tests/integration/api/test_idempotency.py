"""The Idempotency-Key of every write."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.retain import run_housekeeping
from hourbell.model.errors import StoreUnavailable
from hourbell.model.instants import format_instant
from hourbell.store.database import Database
from integration.api.client import CONTRACT_JOB, Client, one_time, recurring

JOBS = "/api/v1/jobs"
BATCH = "/api/v1/jobs/batch"


async def every_write(api: Client) -> dict[str, tuple[str, str, object]]:
    path = (await api.created(recurring()))["path"]
    execution_id = (await api.post(path + "/run")).body["execution_ids"][0]
    stretch = {"after": "2020-01-01T00:00:00Z", "through": "2024-01-01T00:00:00Z"}
    return {
        "create": ("POST", JOBS, recurring()),
        "cancel": ("POST", f"/api/v1/executions/{execution_id}/cancel", None),
        "update": ("PATCH", path, {"name": "other"}),
        "pause": ("POST", path + "/pause", None),
        "resume": ("POST", path + "/resume", None),
        "run": ("POST", path + "/run", None),
        "backfill": ("POST", path + "/backfill", stretch),
        "delete": ("DELETE", path, None),
    }


async def test_every_write_needs_a_key(api: Client):
    for name, (method, path, body) in (await every_write(api)).items():
        for key in (None, ""):
            answer = await api.send(method, path, body, key=key)
            assert answer.is_problem(400, "idempotency_key_missing"), name


async def test_every_write_that_is_repeated_gets_its_first_answer(api: Client):
    for name, (method, path, body) in (await every_write(api)).items():
        first = await api.send(method, path, body, key=f"once-{name}")
        assert first.status < 300, (name, first.body)
        again = await api.send(method, path, body, key=f"once-{name}")
        assert (again.status, again.body) == (first.status, first.body), name


async def test_a_repeated_create_makes_one_job(api: Client):
    for document in (CONTRACT_JOB, one_time()):
        first = await api.post(JOBS, document, key="mine")
        again = await api.post(JOBS, document, key="mine")
        assert again.body == first.body
        assert again.headers["Location"] == first.headers["Location"]
    assert len((await api.get(JOBS)).body["items"]) == 2


async def test_a_repeat_gets_the_first_answer_though_the_job_has_changed(api: Client):
    job = await api.created(recurring())
    paused = await api.post(job["path"] + "/pause", key="pause")
    await api.post(job["path"] + "/resume", key="resume")
    again = await api.post(job["path"] + "/pause", key="pause")
    assert again.body == paused.body
    assert (await api.get(job["path"])).body["status"] == "SCHEDULED"


async def test_another_payload_under_the_same_key_is_refused(api: Client):
    await api.post(JOBS, one_time(), key="mine")
    answer = await api.post(JOBS, one_time(name="another"), key="mine")
    assert answer.is_problem(422, "idempotency_key_reused")
    assert len((await api.get(JOBS)).body["items"]) == 1


def spelt_otherwise(document: dict[str, object]) -> bytes:
    """The same JSON value: other key order, white space and escapes."""

    def reverse(value: object) -> object:
        if isinstance(value, dict):
            return {key: reverse(each) for key, each in reversed(value.items())}
        return value

    text = json.dumps(reverse(document), indent=3)
    return text.replace('"name"', '"\\u006eame"').encode()


async def test_the_same_value_spelt_otherwise_is_the_same_request(api: Client):
    path = (await api.created(recurring()))["path"]
    action = {"type": "TASK", "name": "count", "payload": {"b": 1.50, "a": [1, {"d": 2, "c": 3}]}}
    writes: dict[str, tuple[str, str, dict[str, object]]] = {
        "plain": ("POST", JOBS, one_time(action=action)),
        "full": ("POST", JOBS, recurring(action=action, labels={"b": "1", "a": "2"})),
        "put": ("PUT", JOBS + "/by-name/nightly", recurring(name="nightly", action=action)),
        "patch": ("PATCH", path, {"name": "other", "action": action}),
        "run": ("POST", path + "/run", {"payload": {"b": 1, "a": 2}}),
    }
    for name, (method, url, document) in writes.items():
        first = await api.send(method, url, document, key=name)
        assert first.status < 300, (name, first.body)
        again = await api.send(method, url, body=spelt_otherwise(document), key=name)
        assert (again.status, again.body) == (first.status, first.body), name


async def test_the_same_batch_spelt_otherwise_is_the_same_request(api: Client):
    jobs: list[dict[str, object]] = [one_time(), recurring(labels={"b": "1", "a": "2"})]
    first = await api.post(BATCH, jobs, key="batch")
    body = b" [" + b" , ".join(map(spelt_otherwise, jobs)) + b"]"
    again = await api.send("POST", BATCH, body=body, key="batch")
    assert (again.status, again.body) == (200, first.body)
    with_a_new_line = await api.send("POST", BATCH, body=body + b"\n", key="batch")
    assert with_a_new_line.body == first.body
    other = await api.post(BATCH, jobs[::-1], key="batch")
    assert other.is_problem(422, "idempotency_key_reused")
    assert len((await api.get(JOBS)).body["items"]) == 2


async def test_one_batch_in_two_spellings_at_once_is_carried_out_once(api: Client):
    jobs: list[dict[str, object]] = [one_time(name=f"{n}") for n in range(500)]
    bodies = [json.dumps(jobs).encode(), b"[" + b",".join(map(spelt_otherwise, jobs)) + b"]"] * 2
    answers = await asyncio.gather(
        *(api.send("POST", BATCH, body=body, key="batch") for body in bodies)
    )
    assert {answer.status for answer in answers} == {200}
    assert all(answer.body == answers[0].body for answer in answers)
    assert len(await api.pages(JOBS)) == 500


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1.5", "1.50", True),
        ("1.5", "15e-1", True),
        ("1", "1.0", False),
        ("[1, 2]", "[2, 1]", False),
        ("null", "0", False),
        ('"a"', '"\\u0061"', True),
        ("123456789012345678901", "123456789012345678902", False),
    ],
)
async def test_what_is_the_same_value(api: Client, first: str, second: str, same: bool):
    def body(payload: str) -> bytes:
        return (
            b'{"name": "n", "type": "ONE_TIME", "schedule": {"delay_seconds": 86400}, "action": '
            b'{"type": "TASK", "name": "t", "payload": ' + payload.encode() + b"}}"
        )

    for suffix, wrap in (("", lambda text: text), (" of a batch", lambda text: b"[" + text + b"]")):
        url = BATCH if suffix else JOBS
        made = await api.send("POST", url, body=wrap(body(first)), key="k" + suffix)
        assert made.status < 300, made.body
        again = await api.send("POST", url, body=wrap(body(second)), key="k" + suffix)
        if same:
            assert again.body == made.body
        else:
            assert again.is_problem(422, "idempotency_key_reused")


async def test_a_repeated_key_in_an_object_is_no_repeat_of_a_request(api: Client):
    job = one_time()
    await api.post(JOBS, job, key="one")
    await api.post(BATCH, [job], key="many")
    twice = json.dumps(job).encode().replace(b'"name": "once"', b'"name": "x", "name": "once"', 1)
    answer = await api.send("POST", JOBS, body=twice, key="one")
    assert answer.is_problem(400, "malformed_json")
    answer = await api.send("POST", BATCH, body=b"[" + twice + b"]", key="many")
    assert answer.is_problem(422, "idempotency_key_reused")


async def test_another_operation_under_the_same_key_is_refused(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/pause", key="mine")
    answer = await api.post(job["path"] + "/resume", key="mine")
    assert answer.is_problem(422, "idempotency_key_reused")


async def test_the_keys_of_two_tenants_are_strangers(api: Client):
    first = await api.post(JOBS, one_time(tenant_id="a"), key="mine")
    second = await api.post(JOBS, one_time(tenant_id="b"), key="mine")
    assert (first.status, second.status) == (201, 201)


async def test_a_refused_write_leaves_its_key_free(api: Client):
    refused = await api.post(JOBS, {}, key="mine")
    assert refused.status == 422
    assert (await api.post(JOBS, one_time(), key="mine")).status == 201


@pytest.mark.parametrize("document", [one_time(), recurring()], ids=["one-time", "recurring"])
async def test_many_at_once_with_one_key_make_one_job(api: Client, document: dict[str, object]):
    answers = await asyncio.gather(*(api.post(JOBS, document, key="mine") for _ in range(8)))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body["job_id"] for answer in answers}) == 1
    assert len((await api.get(JOBS)).body["items"]) == 1


async def test_many_runs_at_once_with_one_key_make_one_execution(api: Client):
    job = await api.created(recurring())
    run = job["path"] + "/run"
    answers = await asyncio.gather(*(api.post(run, key="mine") for _ in range(8)))
    assert len({answer.body["execution_ids"][0] for answer in answers}) == 1
    assert len((await api.get(job["path"] + "/executions")).body["items"]) == 1


async def test_a_key_has_bounds(api: Client):
    assert (await api.post(JOBS, one_time(), key="k" * 255)).status == 201
    for key in ("k" * 256, "ключ", "a\tb"):
        answer = await api.post(JOBS, one_time(), key=key)
        assert answer.is_problem(422, "invalid_input")
        assert answer.paths == {"Idempotency-Key"}


CLOCK = "create or replace function hourbell.clock() returns timestamptz language sql return "


@pytest.fixture
async def clock(database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection for changes of the database's clock, which is right again afterwards."""
    connection = await asyncpg.connect(database)
    yield connection
    await connection.execute(CLOCK + "clock_timestamp()")
    await connection.close()


async def test_a_repeat_that_would_not_be_accepted_any_more_gets_the_first_answer(
    api: Client, engine: Engine, clock: asyncpg.Connection
):
    ends_at = format_instant(await engine.clock.now() + timedelta(hours=1))
    document = recurring(schedule={"every_seconds": 1, "ends_at": ends_at})
    first = await api.send("POST", JOBS, document, key="late-repeat")
    assert first.status == 201
    await clock.execute(CLOCK + "clock_timestamp() + interval '2 hours'")
    assert (await api.send("POST", JOBS, document, key="new")).status == 422
    again = await api.send("POST", JOBS, document, key="late-repeat")
    assert (again.status, again.body) == (201, first.body)


async def test_an_answer_is_kept_for_a_day_at_least_and_not_for_ever(api: Client, engine: Engine):
    document = one_time(schedule={"delay_seconds": 30 * 86_400})
    first = await api.post(JOBS, document, key="kept")
    now = await engine.clock.now()
    await run_housekeeping(engine, None, now + timedelta(hours=24, minutes=1))
    again = await api.post(JOBS, document, key="kept")
    assert again.body["job_id"] == first.body["job_id"]
    await run_housekeeping(engine, None, now + timedelta(seconds=engine.times.answers_seconds + 60))
    later = await api.post(JOBS, document, key="kept")
    assert later.body["job_id"] != first.body["job_id"]


@pytest.mark.parametrize(
    ("method", "path", "document"),
    [
        ("PUT", "/api/v1/jobs/by-name/nightly", recurring(name="nightly")),
        ("PUT", "/api/v1/tenants/acme", {"weight": 2}),
        ("POST", "/api/v1/jobs/batch", [one_time()]),
    ],
)
async def test_while_the_first_still_runs_the_second_is_told_to_try_again(
    api: Client, engine: Engine, database: str, method: str, path: str, document: object
):
    await api.created(one_time())
    stopped = await asyncpg.connect(database)
    async with stopped.transaction():
        for tenant in ("default", "acme"):
            await stopped.execute(
                "insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)"
                " values ($1, 'one', '', '{}', hourbell.clock())",
                await engine.tenant(tenant, await engine.clock.now()),
            )
        answer = await api.send(method, path, document, key="one")
    await stopped.close()
    assert answer.is_problem(503, "busy")


async def test_what_an_earlier_write_has_done_is_told_when_it_is_durable(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    document = one_time(schedule={"delay_seconds": 3600})
    job = (await api.post("/api/v1/jobs", document, key="one")).body
    path, unknown = f"/api/v1/jobs/{job['job_id']}", "/api/v1/jobs/job_0ahr000000000"

    async def away(_: Database) -> None:
        raise StoreUnavailable("the standby is away")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "confirm", away)
        assert (await api.post("/api/v1/jobs", document, key="one")).status == 503
        assert (await api.delete(unknown)).status == 503
        assert (await api.get(unknown)).status == 404  # a read promises nothing
        assert (await api.delete(path)).status == 200  # its own commit is durable
    assert (await api.delete(unknown)).status == 404
    assert (await api.post("/api/v1/jobs", document, key="one")).status == 201
