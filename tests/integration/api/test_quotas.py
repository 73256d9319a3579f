"""Quotas: a tenant never has more jobs than its quota, however many create them at the same time."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.create import batch, create_batch, create_job, single
from hourbell.engine.life.create.insert import LockTimeouts
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.change import delete_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.model.errors import HourbellError, QuotaExceeded
from hourbell.model.limits import TenantSettings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.store.function_set import connect
from integration.api.client import Client, one_time, recurring
from integration.api.test_backfill_job import STRETCH
from integration.api.working import Hand, dead
from integration.life.support import eventually, in_transaction, somebody_waits, standing
from integration.test_roles import hourbell
from ports import free_port

JOBS, BATCH = "/api/v1/jobs", "/api/v1/jobs/batch"
_LIVING = """
select (select count(*) from hourbell.jobs as j join hourbell.tenants as t on t.id = j.tenant where t.name = $1 and j.status in (0, 1))
  + (select count(*) from hourbell.live as e join hourbell.tenants as t on t.id = e.tenant
     where t.name = $1 and e.job is null and e.origin = 0)
"""


async def living(engine: Engine, tenant: str = "small") -> int:
    number: int = await engine.database.value(_LIVING, tenant)
    return number


async def set_quota(engine: Engine, most: int | None, tenant: str = "small") -> None:
    await set_tenant(engine, tenant, TenantSettings(max_jobs=most), Write())


def small(**fields: Any) -> dict[str, Any]:
    return one_time(tenant_id="small", **fields)


@contextlib.asynccontextmanager
async def api_processes(dsn: str, number: int) -> AsyncIterator[list[str]]:
    """So many processes of the API on one database; their addresses."""
    ports = [free_port() for _ in range(number)]
    processes = [hourbell("api", dsn, port) for port in ports]
    try:
        async with aiohttp.ClientSession() as http:
            for port in ports:

                async def answers(port: int = port) -> bool:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"http://127.0.0.1:{port}/livez") as response:
                            return response.status == 200
                    return False

                await eventually(answers, seconds=60)
        yield [f"http://127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def send(http: aiohttp.ClientSession, address: str, path: str, body: Any, key: str) -> Any:
    async with http.post(address + path, json=body, headers={"Idempotency-Key": key}) as response:
        return response.status, await response.json()


async def test_a_hundred_creators_on_two_processes_get_exactly_the_quota(
    engine: Engine, database: str
):
    await set_quota(engine, 10)
    async with api_processes(database, 2) as addresses, aiohttp.ClientSession() as http:
        answers = await asyncio.gather(
            *(
                send(http, address, JOBS, small(), f"{number}")
                for number, address in zip(range(100), itertools.cycle(addresses))
            )
        )
    assert Counter((status, body.get("code")) for status, body in answers) == {
        (201, None): 10,
        (409, "quota_exceeded"): 90,
    }
    assert await living(engine) == 10


async def test_batches_on_two_processes_create_exactly_the_quota(engine: Engine, database: str):
    await set_quota(engine, 1000)
    batches = [
        [recurring(tenant_id="small") if item % 50 == 0 else small() for item in range(500)]
        for _ in range(8)
    ]
    async with api_processes(database, 2) as addresses, aiohttp.ClientSession() as http:
        answers = await asyncio.gather(
            *(
                send(http, address, BATCH, batch, f"{number}")
                for number, (batch, address) in enumerate(zip(batches, itertools.cycle(addresses)))
            )
        )
    assert {status for status, _ in answers} == {200}
    codes = Counter(
        result.get("code", "created") for _, body in answers for result in body["results"]
    )
    assert codes == {"created": 1000, "quota_exceeded": 3000}
    assert await living(engine) == 1000


async def attempt(engine: Engine, document: object, key: str) -> str:
    try:
        await create_job(engine, document, Write(key))
    except HourbellError as error:
        return error.code
    return "created"


async def test_a_quota_holds_while_jobs_are_deleted_and_created(engine: Engine, database: str):
    await set_quota(engine, 5)
    other_database = await Database.open(database)
    other = Engine(other_database, DatabaseClock(other_database))
    most = 0

    async def churn(engine: Engine, name: str) -> None:
        for number in range(30):
            with contextlib.suppress(QuotaExceeded):
                created = await create_job(engine, small(), Write(f"{name} {number}"))
                await delete_job(engine, created.job.job_id, Write())

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, await living(engine))

    watching = asyncio.create_task(watch())
    await asyncio.gather(
        *(churn(each, f"{n}") for n, each in zip(range(16), itertools.cycle((engine, other))))
    )
    watching.cancel()
    assert 1 <= most <= 5
    assert await living(engine) == 0
    codes = [await attempt(other, small(), f"last {n}") for n in range(6)]
    assert codes == ["created"] * 5 + ["quota_exceeded"]
    await other_database.close()


async def test_a_quota_below_what_lives_ends_nothing_and_lets_nothing_in(
    api: Client, engine: Engine
):
    jobs = [await api.created(small()) for _ in range(3)]
    await set_quota(engine, 1)
    assert await living(engine) == 3
    for job in jobs[:2]:
        assert (await api.post(JOBS, small())).is_problem(409, "quota_exceeded")
        await api.delete(job["path"])
    assert (await api.post(JOBS, small())).is_problem(409, "quota_exceeded")
    await api.delete(jobs[2]["path"])
    assert (await api.post(JOBS, small())).status == 201


async def test_a_quota_that_is_lowered_between_look_and_create_counts(engine: Engine):
    await set_quota(engine, 5)
    with pytest.raises(QuotaExceeded):
        async with standing("create.before_commit", create_job(engine, small(), Write("key"))):
            await set_quota(engine, 0)
    assert await living(engine) == 0


# What takes room.


async def test_what_makes_no_job_takes_no_room(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    named = f"{JOBS}/by-name/named"
    put = await api.put(named, recurring(name="named"))
    job = put.body | {"path": put.headers["Location"]}
    await set_quota(engine, 1, "default")
    full = await api.put(f"{JOBS}/by-name/another", recurring(name="another"))
    assert full.is_problem(409, "quota_exceeded")
    assert (await api.put(named, recurring(name="named", priority="LOW"))).status == 200
    assert (await api.patch(job["path"], {"priority": "HIGH"})).status == 200
    assert (await api.post(job["path"] + "/pause")).status == 200
    assert (await api.post(JOBS, one_time())).is_problem(409, "quota_exceeded")  # it still counts
    assert (await api.post(job["path"] + "/resume")).status == 200
    assert (await api.post(job["path"] + "/run")).status == 202
    assert (await api.post(job["path"] + "/backfill", STRETCH)).status == 202
    assert await living(engine, "default") == 1


async def test_a_replay_needs_no_room_and_counts(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await set_quota(engine, 1)
    letter = await dead(api, Hand(dispatch), small())
    await api.created(small())  # what is dead takes no room
    path = f"/api/v1/dead-letters/{letter['execution_id']}/replay"
    assert (await api.post(path)).status == 202
    assert await living(engine) == 2
    assert (await api.post(JOBS, small())).is_problem(409, "quota_exceeded")


# A client that stops.


async def test_a_client_that_stops_while_it_creates_holds_up_its_tenant_briefly_and_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    # What waits does so for longer than a machine that stalls needs to serve the others.
    monkeypatch.setattr(single, "_QUOTA_TIMEOUTS", LockTimeouts(50, 20_000))
    monkeypatch.setattr(batch, "_ITEM_TIMEOUTS", LockTimeouts(50, 20_000))
    await set_quota(engine, 100)
    await create_job(engine, one_time(tenant_id="other"), Write())
    await create_job(engine, small(), Write())  # the names that it needs are there
    stopped = await connect(engine.database.dsn)
    pid = stopped.get_server_pid()
    await stopped.execute("begin")
    await stopped.execute("select hourbell.lock_quotas(array(select id from hourbell.tenants), 0)")
    assert await stopped.fetchval("show idle_in_transaction_session_timeout") == "2s"
    await stopped.execute("set local idle_in_transaction_session_timeout = '6s'")
    began = time.monotonic()
    blocked = [asyncio.create_task(attempt(engine, small(), f"{n}")) for n in range(20)]
    await somebody_waits(engine, "create_jobs")
    others = [attempt(engine, one_time(tenant_id="other"), f"other {n}") for n in range(20)]
    assert await asyncio.gather(*others) == ["created"] * 20
    assert not any(task.done() for task in blocked)
    (created,) = await create_batch(engine, [small()], lambda item: item, Write("next"))
    assert isinstance(created, int)
    assert (
        time.monotonic() - began < 20
    )  # as long as the client may be idle, and not until the locks time out
    assert set(await asyncio.gather(*blocked)) <= {"busy", "created"}
    alive = "select exists (select from pg_stat_activity where pid = $1)"
    assert not await engine.database.value(alive, pid)
    stopped.terminate()


async def test_those_who_wait_for_a_quota_go_on_when_it_is_free(engine: Engine):
    await create_job(engine, small(), Write())
    await set_quota(engine, 7)
    async with in_transaction(engine) as slow:
        await create_batch(slow, [small()] * 4, lambda item: item, Write("slow"))
        waiting = [asyncio.create_task(attempt(engine, small(), f"{n}")) for n in range(5)]
        batch = asyncio.create_task(
            create_batch(engine, [small()] * 3, lambda item: item, Write("batch"))
        )
        await somebody_waits(engine, "create_jobs")
    codes = await asyncio.gather(*waiting)
    created = [each for each in await batch if isinstance(each, int)]
    assert codes.count("created") + len(created) == 2
    assert set(codes) <= {"created", "quota_exceeded"}
    assert await living(engine) == 7


# What a create costs, and the count it relies on.

_COUNTED = """
select t.name, coalesce((select jobs from hourbell.quota_counts as c where c.tenant = t.id), 0)
  + coalesce((select sum(jobs) from hourbell.quota_changes as c where c.tenant = t.id), 0)::int
from hourbell.tenants as t
"""
_READ = """
select sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) + coalesce(idx_scan, 0))::int
from pg_stat_xact_user_tables where schemaname = 'hourbell'
"""
LATER = {"schedule": {"delay_seconds": 3600}}


async def counted(engine: Engine, tenant: str = "small") -> int:
    rows = await engine.database.fetch(_COUNTED)
    return {name: number for name, number in rows}[tenant]


async def fill(engine: Engine, number: int, **fields: Any) -> None:
    for first in range(0, number, 5_000):
        items = [small(**LATER, **fields)] * min(5_000, number - first)
        results = await create_batch(engine, items, lambda item: item, Write())
        assert all(isinstance(result, int) for result in results)


async def rows_read(engine: Engine) -> int:
    """By the creation of one job."""
    async with in_transaction(engine) as own:
        await create_job(own, small(**LATER), Write())
        number: int = await own.database.value(_READ)
        return number


@pytest.mark.parametrize("recurs", [False, True])
async def test_a_create_reads_no_more_when_its_tenant_has_many_jobs(engine: Engine, recurs: bool):
    await set_quota(engine, 1_000_000)
    more = recurring(tenant_id="small") if recurs else small(**LATER)
    await create_batch(engine, [more] * 10, lambda item: item, Write())
    for _ in range(3):  # lists what was there before the quota
        await run_housekeeping(engine, None, await engine.clock.now())
    few = await rows_read(engine)
    for _ in range(4 if recurs else 0):
        await create_batch(engine, [more] * 500, lambda item: item, Write())
    if not recurs:
        await fill(engine, 20_000)
    assert await rows_read(engine) <= few + 50
    assert await counted(engine) == await living(engine)


async def test_forty_creators_that_are_killed_leave_an_exact_count(engine: Engine, database: str):
    await set_quota(engine, 150)
    await create_job(engine, small(**LATER), Write())  # the names that it needs are there
    others = [await Database.open(database) for _ in range(4)]
    engines = [Engine(other, DatabaseClock(other)) for other in others]
    ended = 0

    async def work(engine: Engine, name: str) -> None:
        nonlocal ended
        for number in range(12):
            with contextlib.suppress(HourbellError):
                created = await create_job(engine, small(**LATER), Write(f"{name} {number}"))
                if number % 3 == 0:
                    await delete_job(engine, created.job.job_id, Write(f"{name} {number} end"))
                    ended += 1

    async def kill() -> None:
        while True:
            await engine.database.value(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
                " and query like '%create_jobs%' and random() < 0.1"
            )
            await asyncio.sleep(0.02)

    killing = asyncio.create_task(kill())
    await asyncio.gather(
        *(work(each, f"{n}") for n, each in zip(range(40), itertools.cycle(engines)))
    )
    killing.cancel()
    assert ended
    assert await counted(engine) == await living(engine) <= 150
    codes = [await attempt(engine, small(**LATER), f"last {n}") for n in range(160)]
    assert codes == sorted(codes)  # created …, quota_exceeded …
    assert await living(engine) == await counted(engine) == 150
    for other in others:
        await other.close()


async def test_a_job_that_ends_while_its_tenant_has_no_quota_takes_no_room_later(engine: Engine):
    await set_quota(engine, 2)
    jobs = [await create_job(engine, small(**LATER), Write()) for _ in range(2)]
    await set_quota(engine, None)
    await delete_job(engine, jobs[0].job.job_id, Write())
    await set_quota(engine, 2)
    codes = [await attempt(engine, small(**LATER), f"{n}") for n in range(2)]
    assert codes == ["created", "quota_exceeded"]


async def test_the_list_of_a_tenant_without_a_quota_is_deleted(engine: Engine):
    await set_quota(engine, 9)
    await fill(engine, 3)
    await set_quota(engine, None)
    await run_housekeeping(engine, None, await engine.clock.now())
    assert await engine.database.value("select count(*) from hourbell.quota_jobs") == 0
    assert await counted(engine) == 0
    marked = "select count(*) from hourbell.tenants where quota_listed_to is not null"
    assert await engine.database.value(marked) == 0


async def test_a_job_whose_end_was_not_counted_is_found_by_housekeeping(engine: Engine):
    """An older build ends jobs and leaves them in the list."""
    await set_quota(engine, 2)
    await fill(engine, 2)
    await engine.database.value(
        "insert into hourbell.outcomes (id, fence, recorded_at, fate)"
        " select min(id), 0, hourbell.clock(), 2 from hourbell.quota_jobs"
    )
    assert await attempt(engine, small(**LATER), "early") == "quota_exceeded"
    for _ in range(2):  # the cursor wraps around
        await run_housekeeping(engine, None, await engine.clock.now())
    assert await counted(engine) == await living(engine) == 1
    assert await engine.database.value("select count(*) from hourbell.quota_changes") == 0
    assert await attempt(engine, small(**LATER), "late") == "created"
