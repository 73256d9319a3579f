"""A client that stops inside a call keeps its locks, maybe forever. No other may wait for it.

A stopped process and one that stands at a failpoint are the same to the database: a transaction
that is open and silent. The first part lets operations stand before their commit, each against
what could want the same rows, and then everything else must go on within moments. The second part
does it to real processes, with SIGSTOP.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from hourbell.dispatch import Session
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Leadership
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.jobs import get_job
from hourbell.failpoints import barrier
from hourbell.model.errors import Busy, IdempotencyKeyReused, Overloaded
from hourbell.model.executions import Claimed
from hourbell.model.jobs import Job, JobStatus
from hourbell.store.database import Database
from hourbell.store.function_set import connect
from hourbell.store.queries import queries
from integration.life.children import child
from integration.life.limits import SECOND, in_time, limit_tenant, queued
from integration.life.support import (
    PATIENCE_SECONDS,
    START,
    Fate,
    Hand,
    admit_all,
    at,
    blocked,
    check_sound,
    create,
    eventually,
    every,
    expire_session,
    fates,
    fill,
    history,
    in_transaction,
    one_round,
    one_time,
    open_engine,
    place_of,
    plan_all,
    recurring,
    somebody_waits,
    standing,
    travel,
)
from uncommitted import POINTS, UNCOMMITTED

BOUND_SECONDS = 3.0  # of each verb; they take milliseconds, unless the machine stalls
_J = queries("jobs")
WAITING = """
select query, (select array_agg(distinct l.mode || ' ' || coalesce(l.relation::regclass::text, ''))
               from pg_locks as l where l.pid = a.pid and not granted)
from pg_stat_activity as a where wait_event_type = 'Lock' and datname = current_database()
"""


class Bystanders:
    """Jobs and workers that have nothing to do with the stopped client, except for its timetable."""

    def __init__(self, engine: Engine, job: Job, hand: Hand) -> None:
        self.engine = engine
        self.job = job
        self.hand = hand

    @classmethod
    async def present(cls, engine: Engine) -> "Bystanders":
        job = await create(engine, recurring())
        return cls(engine, job, await Hand.opened(engine))

    async def go_on(self, moment: str) -> list[Claimed]:
        """Every verb of the life once more, at this moment; what the worker ran."""
        engine, hand = self.engine, self.hand
        now = await travel(engine, at(moment))

        async def bounded(name: str, verb: Awaitable[object]) -> object:
            running = asyncio.ensure_future(verb)
            for _ in range(int(PATIENCE_SECONDS / BOUND_SECONDS)):
                await asyncio.wait([running], timeout=BOUND_SECONDS)
                if running.done():
                    return await running
                if waiting := await engine.database.fetch(WAITING):
                    break
            running.cancel()
            raise AssertionError(f"{name} waits for the stopped client: {waiting}")

        await bounded("create", create(engine, recurring()))
        lost = await create(engine, one_time())
        await bounded("join", complete_joins(engine, now))
        await bounded("plan", plan_all(engine))
        await bounded("end memberships", end_memberships(engine, None, now))
        await bounded("expire", expire(engine, None, now))
        await bounded("admit", admit_all(engine))
        doomed = await Hand.opened(engine)
        taken = await bounded("claim", doomed.claim())
        assert lost.job_id in {one.execution_id for one in taken}
        await expire_session(engine, doomed.session)
        assert (await bounded("reap", reap(engine, None, now))).sessions == 1
        await bounded("admit", admit_all(engine))
        claimed = await bounded("claim", hand.claim())
        await bounded("heartbeat", hand.beat(claimed))
        assert not await bounded("settle", hand.succeed(claimed))
        await bounded("keep house", run_housekeeping(engine, None, now))
        await bounded("create", create(engine, one_time()))
        claimed += await bounded("run", hand.run_all())
        assert lost.job_id in {one.execution_id for one in claimed}
        return claimed


async def test_a_create_that_stops_holds_up_neither_its_timetable_nor_other_creates(
    still: Engine,
) -> None:
    others = await Bystanders.present(still)
    async with standing("create.before_commit", create(still, recurring(name="stopped"))):
        await others.go_on("10:01:01")
        assert await history(still, others.job.job_id) == [Fate(at("10:01"), "SUCCEEDED")]
        await others.go_on("10:02:01")
    await others.go_on("10:02:40")
    await others.go_on("10:03:01")
    stopped = await still.database.value("select id from hourbell.jobs where name = 'stopped'")
    # It was created at 10:00:30, whenever that became known; what it missed by that is a misfire.
    assert await history(still, stopped) == [
        Fate(at("10:01"), "SKIPPED", "misfire", 1),
        Fate(at("10:02"), "SUCCEEDED"),
        Fate(at("10:03"), "SUCCEEDED"),
    ]


@pytest.mark.parametrize("name", ["update", "reschedule", "pause", "delete", "resume"])
async def test_a_change_of_a_recurring_job_that_stops_holds_up_nobody(
    still: Engine, name: str
) -> None:
    others = await Bystanders.present(still)
    job = await create(still, recurring(start_deadline_seconds=20, deadline_seconds=50))
    await plan_all(still)
    operations: dict[str, Callable[[], Coroutine[Any, Any, Job]]] = {
        "update": lambda: update_job(still, job.job_id, {"name": "new"}, Write()),
        "reschedule": lambda: update_job(
            still,
            job.job_id,
            {"schedule": {"cron": "* * * * *", "timezone": "Asia/Tokyo"}},
            Write(),
        ),
        "pause": lambda: pause_job(still, job.job_id, Write()),
        "delete": lambda: delete_job(still, job.job_id, Write()),
        "resume": lambda: resume_job(still, job.job_id, Write()),
    }
    if name == "resume":
        await pause_job(still, job.job_id, Write())
    async with standing(UNCOMMITTED, operations[name]()):
        await others.go_on("10:01:01")
        await others.go_on("10:01:25")  # past its start deadline
        await others.go_on("10:02:01")
    await others.go_on("10:03:01")
    await check_sound(still)


async def test_a_change_that_stops_holds_up_no_claim_of_a_job_whose_runs_are_counted(
    still: Engine,
) -> None:
    others = await Bystanders.present(still)
    counted = await create(still, recurring(window={"max_runs": 3}))
    await plan_all(still)
    await travel(still, at("10:01:01"))
    await admit_all(still)  # its run is ready
    async with standing(UNCOMMITTED, update_job(still, counted.job_id, {"name": "new"}, Write())):
        await others.go_on("10:01:05")
        assert [fate.status for fate in await history(still, counted.job_id)] == ["live"]
    await others.go_on("10:01:10")
    assert (await history(still, counted.job_id))[0] == Fate(at("10:01"), "SUCCEEDED")
    for minute in range(2, 6):
        await others.go_on(f"10:0{minute}:01")
    assert [fate.status for fate in await history(still, counted.job_id)] == ["SUCCEEDED"] * 3


@pytest.mark.parametrize("name", ["update", "pause", "delete", "run", "cancel"])
async def test_a_change_of_a_waiting_one_time_job_that_stops_holds_up_nobody(
    still: Engine, name: str
) -> None:
    others = await Bystanders.present(still)
    document = one_time(
        schedule={"delay_seconds": 10}, start_deadline_seconds=10, deadline_seconds=20
    )
    job = await create(still, document)
    operations: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "update": lambda: update_job(still, job.job_id, {"name": "new"}, Write()),
        "pause": lambda: pause_job(still, job.job_id, Write()),
        "delete": lambda: delete_job(still, job.job_id, Write()),
        "run": lambda: run_now(still, job.job_id, Write()),
        "cancel": lambda: cancel_execution(still, job.job_id, Write()),
    }
    async with standing(UNCOMMITTED, operations[name]()):
        await others.go_on("10:00:41")  # it is due
        await others.go_on("10:00:51")  # it should have started
        await others.go_on("10:01:01")  # it should have finished
    await others.go_on("10:01:02")
    (fate,) = await history(still, job.job_id)
    assert fate[1:3] == {
        "delete": ("CANCELLED", "cancelled"),
        "cancel": ("CANCELLED", "cancelled"),
    }.get(name, ("SKIPPED", "start_deadline"))
    await check_sound(still)


async def a_run_under_way(engine: Engine, policy: str) -> tuple[Job, Hand, list[Claimed]]:
    """The run of 10:01 is claimed."""
    job = await create(engine, recurring(overlap_policy=policy, tenant_id="overlapping"))
    await plan_all(engine)
    await travel(engine, at("10:01:01"))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = [one for one in await hand.claim() if one.job_id == job.job_id]
    assert len(claimed) == 1
    return job, hand, claimed


@pytest.mark.parametrize("policy", ["queue_one", "replace"])
async def test_cancelling_a_parked_run_and_stopping_holds_up_neither_settle_nor_gate(
    still: Engine, policy: str
) -> None:
    job, hand, first = await a_run_under_way(still, policy)
    others = await Bystanders.present(still)
    await travel(still, at("10:02:01"))
    await plan_all(still)
    await admit_all(still)
    parked = await still.database.value("select id from hourbell.parked")
    async with standing(UNCOMMITTED, cancel_execution(still, parked, Write())):
        await others.go_on("10:03:01")  # the next run of the job wants the place of the parked one
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert not await hand.succeed(first)  # and this one frees it
        await others.go_on("10:03:05")
    await others.go_on("10:03:10")
    await others.go_on("10:03:12")
    assert (await history(still, job.job_id))[1][1:3] in (
        ("CANCELLED", "cancelled"),
        ("SKIPPED", "replaced"),
    )
    assert await still.database.value("select count(*) from hourbell.parked") == 0
    await check_sound(still)


async def test_cancelling_a_parked_run_and_thinking_better_of_it_leaves_it_to_run(
    still: Engine,
) -> None:
    job, hand, first = await a_run_under_way(still, "queue_one")
    await travel(still, at("10:02:01"))
    await plan_all(still)
    await admit_all(still)
    parked = await still.database.value("select id from hourbell.parked")
    with barrier(UNCOMMITTED, names=POINTS) as hold:
        cancelling = asyncio.create_task(cancel_execution(still, parked, Write()))
        await hold.reached()
        await hand.succeed(first)
        cancelling.cancel()  # its client is gone, and its transaction with it
        await asyncio.wait([cancelling])
    await travel(still, at("10:02:05"))
    assert len(await hand.run_all()) == 1
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * 2


async def test_cancelling_a_running_one_and_stopping_holds_up_nobody(still: Engine) -> None:
    job, hand, first = await a_run_under_way(still, "replace")
    others = await Bystanders.present(still)
    async with standing(UNCOMMITTED, cancel_execution(still, first[0].execution_id, Write())):
        await others.go_on("10:02:01")  # the gate wishes to cancel it, too
        assert list((await hand.beat(first)).cancelled) == [first[0].execution_id]
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert not await hand.succeed(first)
        await others.go_on("10:02:05")
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * 2
    await run_housekeeping(still, None, await still.clock.now())
    assert await still.database.value("select count(*) from hourbell.cancellations") == 0


@pytest.mark.parametrize("name", ["run", "backfill"])
async def test_a_request_for_runs_that_stops_holds_up_nobody(still: Engine, name: str) -> None:
    others = await Bystanders.present(still)
    job = others.job
    operation = (
        run_now(still, job.job_id, Write())
        if name == "run"
        else backfill(still, job.job_id, at("09:50"), at("10:00"), Write())
    )
    async with standing("run.before_commit", operation):
        await others.go_on("10:01:01")
        await others.go_on("10:02:01")
    await others.go_on("10:02:02")
    runs = {"run": 1, "backfill": 10}[name]
    assert [fate.status for fate in await history(still, job.job_id)] == ["SUCCEEDED"] * (2 + runs)


async def test_the_days_of_the_ledger_are_not_waited_for(still: Engine) -> None:
    # Making a partition needs the whole table for itself; who stands in line for that stops all.
    others = await Bystanders.present(still)
    job = await create(still, one_time(schedule={"delay_seconds": 3600}))
    async with standing(UNCOMMITTED, cancel_execution(still, job.job_id, Write())):
        await travel(still, at("10:00:50"))
        house = asyncio.create_task(
            run_housekeeping(still, None, await still.clock.now() + timedelta(days=400))
        )
        await asyncio.sleep(0)
        await others.go_on("10:01:01")
        await asyncio.wait([house], timeout=PATIENCE_SECONDS)
        assert house.done()
        await others.go_on("10:02:01")
    house.exception()
    assert await place_of(still, job.job_id) == []


async def test_a_cancel_that_stands_does_not_hold_up_the_claim_of_the_last_run(
    still: Engine,
) -> None:
    still.times = replace(still.times, horizon_seconds=300)
    await create(still, recurring(window={"max_runs": 1}))
    await one_round(still, at("10:01"))
    ahead = await still.database.value(
        "select id from hourbell.live where occurrence > $1 order by occurrence limit 1",
        at("10:01"),
    )
    hand = await Hand.opened(still)
    async with standing(UNCOMMITTED, cancel_execution(still, ahead, Write())):
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert len(await hand.claim()) == 1


@pytest.fixture
async def half_changed(still: Engine) -> AsyncIterator[tuple[int, asyncpg.Connection]]:
    """A job whose window has closed, and a client that has begun to change it and goes no further."""
    ends = START + 2 * SECOND
    schedule = {"every_seconds": 1, "ends_at": ends.isoformat()}
    job = await create(still, every(1) | {"schedule": schedule})
    await plan_all(still)
    await travel(still, ends + SECOND)
    await plan_all(still)
    connection = await connect(still.database.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetchrow(_J["lock_recurring"], job.job_id)
    yield job.job_id, connection
    await transaction.rollback()
    await connection.close()


async def test_a_client_that_stops_in_a_change_stops_neither_planning_nor_elections(
    still: Engine, half_changed: tuple[int, asyncpg.Connection]
) -> None:
    leader = Leadership(still)
    term = await leader.step()
    assert term is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        await end_memberships(still, term, await still.clock.now())
        assert await leader.step() == term
    assert (await get_job(still, half_changed[0])).status is JobStatus.SCHEDULED


async def test_a_change_and_the_end_of_a_membership_do_not_deadlock(
    still: Engine, half_changed: tuple[int, asyncpg.Connection]
) -> None:
    job, connection = half_changed
    now = await still.clock.now()
    await end_memberships(still, None, now)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await connection.execute("select hourbell.end_planning($1, $2)", now, job)


async def test_waiting_for_a_stopped_client_leaves_connections_for_others(database: str) -> None:
    async with (
        open_engine(database, connections=4) as one,
        open_engine(database, connections=8) as other,
    ):
        writes = [Write(f"key {number}", b"print") for number in range(8)]
        tenant = await one.tenant("default", await one.clock.now())
        stopped = await connect(database)
        async with stopped.transaction():
            for write in writes:
                await stopped.execute(_J["insert_answer"], tenant, write.key, b"", "{}", START)
            repeats = [asyncio.create_task(create_job(other, one_time(), each)) for each in writes]
            await somebody_waits(one, "create_jobs")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await other.clock.now()
            answers = await asyncio.gather(*repeats, return_exceptions=True)
            assert {type(answer) for answer in answers} == {Busy, Overloaded}
        await stopped.close()
        with pytest.raises(IdempotencyKeyReused):
            await create_job(other, one_time(), writes[0])


async def test_a_client_that_stops_while_it_sets_a_tenant_does_not_stop_the_gate(
    still: Engine,
) -> None:
    await limit_tenant(still, "a", weight=3)
    connection = await connect(still.database.dsn)
    async with connection.transaction():
        await connection.execute("update hourbell.tenants set max_jobs = 5")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await admit(still, await still.clock.now())).more:
                pass
    await connection.close()


async def test_a_client_that_stops_over_the_head_of_a_key_does_not_stop_the_key(
    still: Engine,
) -> None:
    hand = await Hand.opened(still)
    await admit_all(still)
    [head] = await queued(still, 1, concurrency_key="k")
    async with in_transaction(still) as other:
        assert await other.database.value("select hourbell.remove_waiting(array[$1::bigint])", head)
        await travel(still, START + SECOND)
        await admit_all(still)
        [second] = await queued(still, 1, concurrency_key="k")
        assert [run.execution_id for run in await in_time(still, hand)] == [second]


# Real processes.


async def test_a_worker_stopped_while_its_claim_is_being_sent_to_it_holds_up_nobody(
    database: str, engine: Engine
) -> None:
    engine.times = replace(
        engine.times, lease_seconds=600
    )  # nothing renews the session of `others`
    await fill(engine, 1500, one_time(payload="x" * 20_000))  # more than any socket's buffer
    await admit_all(engine)
    before_it = "claim.before_commit=stop"
    async with child("claimer", database, "1000", failpoints=before_it) as stopped:
        session = Session(int(await stopped.says("session")), uuid4())
        await stopped.is_stopped()
        async with blocked(engine, "leased"):
            stopped.go_on()
            await somebody_waits(engine, "hourbell.claim")
            await stopped.stop()
        await eventually(lambda: sending(engine))

        others = await Hand.opened(engine)
        assert len(await others.claim()) == 500  # the rest
        await fill(engine, 10)
        await admit_all(engine)
        assert len(await others.claim()) == 10
        await expire_session(engine, session)
        reaped = await reap(engine, None, await engine.clock.now())
        assert (reaped.sessions, reaped.returned) == (1, 1000)
        await admit_all(engine)
        again = await others.claim_all()
        assert len(again) == 1000
        assert not await others.succeed(again)
        assert await sending(engine)

        stopped.go_on()
        assert await stopped.says("claimed") == "1000"
        assert await stopped.says("refused") == "1000"
        await stopped.says("lost")
    assert await fates(engine) == {"SUCCEEDED": 1000}


async def sending(engine: Engine) -> bool:
    """Whether a backend waits for its client to read what it is sent."""
    return bool(
        await engine.database.value(
            "select exists (select from pg_stat_activity where datname = current_database()"
            " and wait_event = 'ClientWrite')"
        )
    )


async def test_a_process_stopped_inside_create_holds_up_neither_planning_nor_other_creates(
    database: str, engine: Engine
) -> None:
    engine.times = replace(engine.times, horizon_seconds=3)
    hand = await Hand.opened(engine)
    document = every(1)
    async with child("creator", database, "1", failpoints="create.before_commit=stop") as stopped:
        await stopped.is_stopped()
        rule, other = await asyncio.gather(
            engine.database.row("select rule from hourbell.timetables"), create(engine, document)
        )
        assert rule["rule"] == "@every 1+0"  # they share it

        async def ran_twice() -> bool:
            await plan_all(engine)
            await hand.run_all()
            return len(await history(engine, other.job_id)) >= 2

        await eventually(ran_twice)
        assert (await create(engine, document)).status == "SCHEDULED"
        stopped.go_on()
        job = int(await stopped.says("created"))

    async def ran() -> bool:
        await plan_all(engine)
        await hand.run_all()
        return bool(await history(engine, job))

    await eventually(ran)
    await check_sound(engine)


async def test_a_change_with_nothing_to_do_waits_briefly_for_a_key_that_a_stopped_client_holds(
    still: Engine,
) -> None:
    job = await create(still, recurring())
    now = await still.clock.now()
    tenant = await still.tenant(job.tenant_id, now)
    async with in_transaction(still) as stopped:
        await stopped.database.fetch(
            "insert into hourbell.idempotency (tenant, key, fingerprint, created_at)"
            " values ($1, 'same', '', $2)",
            tenant,
            now,
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(Busy):
                await resume_job(still, job.job_id, Write(key="same"))


async def test_a_connection_that_is_never_released_does_not_stop_the_end_of_its_pool(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hourbell.store.database._CLOSE_SECONDS", 0.2)
    opened = await Database.open(database, 2)
    forgotten = opened.connection()
    connection = await forgotten.__aenter__()
    process = connection.get_server_pid()
    async with asyncio.timeout(30):
        await opened.close()
    async with open_engine(database) as engine:

        async def has_ended() -> bool:
            alive = "select exists (select from pg_stat_activity where pid = $1)"
            return not await engine.database.value(alive, process)

        await eventually(has_ended)
