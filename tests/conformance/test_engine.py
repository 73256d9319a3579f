"""The verbs of the engine from end to end, on every PostgreSQL that we support and through a pooler.

What each verb does when it is interrupted is the matter of `tests/integration/life`. Here the same stories have to come
out the same whatever is between us and the tables.
"""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest

import services
from hourbell.dispatch import CANCELLED, DEAD, RETRY, SUCCEEDED, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.leader.term import Leadership, Term
from hourbell.engine.life import retain
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan, update_tz_version
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import make_partitions, run_housekeeping
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import backfill, cancel_execution, run_now
from hourbell.engine.views.executions import get_execution, list_executions
from hourbell.engine.views.explain import BlockedBy, explain_execution, explain_job
from hourbell.engine.views.jobs import JobFilter, get_job, list_jobs
from hourbell.model.errors import (
    IdempotencyKeyReused,
    IncompatibleDatabase,
    NotFound,
    NotLeader,
    StoreUnavailable,
    UnreleasedDatabase,
    UnsafeDatabase,
)
from hourbell.model.executions import Claimed, ExecutionStatus, Reason
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import Job, JobStatus
from hourbell.store import embedded, migrations
from hourbell.store import function_set as function_sets
from hourbell.store.database import Database
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.function_set import (
    FunctionSet,
    SqlFile,
    for_this_build,
    function_set,
    sql_files,
)
from hourbell.store.migrations import is_migrated, mark_used, migrate
from hourbell.testing.clock import VirtualClock
from kept import kept_open

START = datetime(
    2031, 5, 6, 10, 0, 30, tzinfo=UTC
)  # half a minute past; far from every change of the clocks
MINUTE = timedelta(minutes=1)
TIMES = Times(horizon_seconds=60, lease_seconds=15, leader_lease_seconds=10, ledger_days=30)

E = ExecutionStatus


def minute(number: int) -> datetime:
    """The start of the minute so many after START's own."""
    return START.replace(second=0) + number * MINUTE


class World:
    """An engine on a virtual clock, and the loops of a scheduler and a worker, one step at a time."""

    def __init__(self, engine: Engine, clock: VirtualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.dispatch = PostgresDispatch(engine)
        self.claims = 0
        self.running: set[int] = set()
        self._session: Session | None = None

    async def now(self) -> datetime:
        return await self.clock.now()

    async def create(self, **said: Any) -> Job:
        document = {
            "name": "job",
            "type": "RECURRING",
            "schedule": {"cron": "* * * * *"},
            "action": {"type": "TASK", "name": "noop"},
        }
        return (await create_job(self.engine, document | said, Write(actor="ada"))).job

    async def one_time(self, **said: Any) -> Job:
        schedule = {"delay_seconds": 0}
        return await self.create(**({"type": "ONE_TIME", "schedule": schedule} | said))

    async def pass_time(self, until: datetime) -> None:
        """Time passes, in steps so small that nobody is late; scheduler and worker live."""
        now = await self.now()
        while now < until:
            now = min(now + timedelta(seconds=10), until)
            await self.clock.set(now)
            await self.schedule()
            if self._session is not None:
                running = list(self.running)
                await self.dispatch.heartbeat(self._session, running, self.claims)

    async def jump(self, until: datetime) -> None:
        """Time passes at once, and the worker is lost."""
        await self.clock.set(until)
        self._session = None

    async def schedule(self) -> None:
        """One round of every loop of the scheduler."""
        now = await self.now()
        await complete_joins(self.engine, now)
        while await plan(self.engine, None, now):
            pass
        await end_memberships(self.engine, None, now)
        await expire(self.engine, None, now)
        await reap(self.engine, None, now)
        while (await admit(self.engine, now)).more:
            pass

    async def session(self) -> Session:
        if self._session is None:
            self._session = await self.dispatch.open("worker", ["default"], 100)
        return self._session

    async def claim(self, limit: int = 100) -> list[Claimed]:
        self.claims += 1
        claimed = await self.dispatch.claim(await self.session(), self.claims, limit)
        self.running.update(one.execution_id for one in claimed)
        return claimed

    async def settle(self, claimed: Claimed, kind: int = SUCCEEDED, **said: Any) -> None:
        outcome = Settlement(claimed.execution_id, claimed.fence, kind, **said)
        assert await self.dispatch.settle(await self.session(), [outcome]) == []
        self.running.discard(claimed.execution_id)

    async def work(self) -> list[datetime]:
        """Everything that is ready succeeds; the times for which it was scheduled."""
        claimed = await self.claim()
        for one in claimed:
            await self.settle(one)
        return sorted(one.scheduled_for for one in claimed)

    async def statuses(self, job: Job) -> dict[datetime, E]:
        page = await list_executions(self.engine, job.job_id, page_size=500)
        return {execution.scheduled_for: execution.status for execution in page.items}


@pytest.fixture
async def world(emptied_dsn: str) -> AsyncIterator[World]:
    async with kept_open(Database, emptied_dsn) as database:
        clock = VirtualClock(database, START)
        await clock.step(START)
        engine = Engine(database, clock, TIMES)
        await make_partitions(engine, START)
        yield World(engine, clock)


@pytest.fixture
async def new_world(engine_dsn: str) -> AsyncIterator[World]:
    """On a database of its own, for tests that make and drop partitions."""
    database = await Database.open(engine_dsn)
    clock = await VirtualClock.install(database, START)
    engine = Engine(database, clock, TIMES)
    await make_partitions(engine, START)
    yield World(engine, clock)
    await database.close()


# Create, plan, admit, claim, settle.


async def test_a_one_time_job_runs_and_is_completed(world: World) -> None:
    job = await world.one_time(schedule={"at": minute(2).isoformat()}, tenant_id="acme")
    assert job.status is JobStatus.SCHEDULED
    assert job.next_run_at == minute(2)
    await world.pass_time(minute(2) - timedelta(seconds=1))
    assert await world.claim() == []
    await world.pass_time(minute(2))
    [claimed] = await world.claim()
    assert claimed.job_id == claimed.execution_id == job.job_id
    await world.settle(claimed, begun_ms=3, took_ms=40, result="[1]")
    ended = await get_execution(world.engine, job.job_id)
    assert (ended.status, ended.attempt, ended.lateness_ms) == (E.SUCCEEDED, 1, 3)
    read = await get_job(world.engine, job.job_id)
    assert (read.status, read.next_run_at, read.tenant_id) == (JobStatus.COMPLETED, None, "acme")
    trail = await world.engine.database.row("select actor, operation, job from hourbell.audit")
    assert tuple(trail) == ("ada", "create", job.job_id)


async def test_a_recurring_job_runs_at_every_occurrence_once(world: World) -> None:
    job = await world.create()
    ran = []
    for number in range(1, 6):
        await world.pass_time(minute(number))
        ran += await world.work()
    assert ran == [minute(number) for number in range(1, 6)]
    assert await world.statuses(job) == dict.fromkeys(ran, E.SUCCEEDED)
    assert (await get_job(world.engine, job.job_id)).next_run_at == minute(6)


async def test_runs_are_planned_ahead_and_by_however_many_planners_once(world: World) -> None:
    await world.create()
    now = await world.now()
    await asyncio.gather(*(plan(world.engine, None, now) for _ in range(5)))
    await world.schedule()
    occurrences = await world.engine.database.fetch("select occurrence from hourbell.live")
    assert [row["occurrence"] for row in occurrences] == [minute(1)]


async def test_a_job_that_comes_after_its_fire_was_planned_gets_its_run_too(world: World) -> None:
    await world.create()
    await world.schedule()  # planned through minute 1
    late = await world.create()
    await world.pass_time(minute(1))
    assert await world.work() == [minute(1), minute(1)]
    assert await world.statuses(late) == {minute(1): E.SUCCEEDED}


async def test_an_interval_goes_by_elapsed_time(world: World) -> None:
    await world.create(schedule={"every_seconds": 90})
    await world.pass_time(START + timedelta(minutes=5))
    ran = await world.work()
    assert len(ran) == 3
    assert {later - earlier for earlier, later in pairwise(ran)} == {timedelta(seconds=90)}


async def test_a_job_ends_with_its_last_run(world: World) -> None:
    by_count = await world.create(schedule={"cron": "* * * * *", "max_runs": 2})
    by_time = await world.create(schedule={"cron": "* * * * *", "ends_at": minute(3).isoformat()})
    for number in range(1, 6):
        await world.pass_time(minute(number))
        await world.work()
    assert set(await world.statuses(by_count)) == {minute(1), minute(2)}
    assert set(await world.statuses(by_time)) == {minute(1), minute(2), minute(3)}
    for job in (by_count, by_time):
        assert (await get_job(world.engine, job.job_id)).status is JobStatus.ENDED


async def test_a_failure_is_tried_again_and_then_dead(world: World) -> None:
    job = await world.one_time()
    await world.schedule()
    [first] = await world.claim()
    await world.settle(first, RETRY, delay_seconds=30, reason="error", error="first")
    await world.pass_time(START + timedelta(seconds=29))
    assert await world.claim() == []
    await world.pass_time(START + timedelta(seconds=30))
    [second] = await world.claim()
    assert second.attempt == 2
    await world.settle(second, DEAD, reason=Reason.RETRIES_EXHAUSTED.value, error="second")
    ended = await get_execution(world.engine, job.job_id)
    assert (ended.status, ended.reason, ended.attempt) == (E.DEAD, Reason.RETRIES_EXHAUSTED, 2)
    assert [attempt.error for attempt in ended.attempts] == ["first", "second"]
    letter = await world.engine.database.row("select id, error from hourbell.dead_letters")
    assert tuple(letter) == (job.job_id, "second")


async def test_what_was_missed_in_an_outage_is_made_up_by_policy(world: World) -> None:
    jobs = {
        policy: await world.create(misfire_policy=policy, catch_up_limit=3)
        for policy in ("skip", "latest")
    }
    jobs["all"] = await world.create(misfire_policy="all", catch_up_limit=3)
    await world.clock.set(minute(10) + timedelta(seconds=30))  # nobody planned meanwhile
    await world.schedule()
    await world.work()
    ran = {
        policy: sorted(at for at, s in (await world.statuses(job)).items() if s is E.SUCCEEDED)
        for policy, job in jobs.items()
    }
    recent = [minute(10)]  # within the grace it is not a misfire
    assert ran["skip"] == recent
    assert ran["latest"] == recent
    assert ran["all"] == [minute(8), minute(9), minute(10)]
    page = await list_executions(world.engine, jobs["latest"].job_id)
    [missed] = [execution for execution in page.items if execution.status is E.SKIPPED]
    assert (missed.reason, missed.missed, missed.scheduled_for, missed.missed_through) == (
        Reason.MISFIRE,
        9,
        minute(1),
        minute(9),
    )


# Change.


async def test_an_update_keeps_the_next_run_and_changes_what_it_does(world: World) -> None:
    job = await world.create()
    await world.schedule()
    action = {"type": "TASK", "name": "other"}
    changed = await update_job(world.engine, job.job_id, {"action": action}, Write())
    assert changed.version == 2
    await world.pass_time(minute(1))
    [claimed] = await world.claim()
    assert claimed.scheduled_for == minute(1)
    assert '"other"' in str(claimed.spec)


async def test_a_new_schedule_takes_back_what_was_planned_by_the_old_one(world: World) -> None:
    job = await world.create()
    await world.schedule()
    schedule = {"cron": "*/2 * * * *"}
    await update_job(world.engine, job.job_id, {"schedule": schedule}, Write())
    await world.pass_time(minute(4))
    assert await world.work() == [minute(2), minute(4)]


async def test_what_is_queued_when_its_job_is_paused_is_superseded(world: World) -> None:
    job = await world.create()
    await world.pass_time(minute(1))
    paused = await pause_job(world.engine, job.job_id, Write())
    assert (paused.status, paused.next_run_at) == (JobStatus.PAUSED, None)
    assert await world.work() == []
    assert await world.statuses(job) == {minute(1): E.SUPERSEDED}


async def test_a_resumed_job_does_not_catch_up(world: World) -> None:
    job = await world.create()
    await pause_job(world.engine, job.job_id, Write())
    await world.pass_time(minute(3))
    resumed = await resume_job(world.engine, job.job_id, Write())
    assert (resumed.status, resumed.next_run_at) == (JobStatus.SCHEDULED, minute(4))
    await world.pass_time(minute(5))
    assert await world.work() == [minute(4), minute(5)]


async def test_a_deleted_job_runs_no_more_and_keeps_its_history(world: World) -> None:
    job = await world.create()
    await world.pass_time(minute(1))
    await world.work()
    assert (await delete_job(world.engine, job.job_id, Write())).status is JobStatus.CANCELLED
    await world.pass_time(minute(3))
    assert await world.work() == []
    assert await world.statuses(job) == {minute(1): E.SUCCEEDED}


async def test_a_one_time_job_is_paused_resumed_and_deleted(world: World) -> None:
    job = await world.one_time(schedule={"at": minute(2).isoformat()})
    await pause_job(world.engine, job.job_id, Write())
    await world.pass_time(minute(3))
    assert await world.work() == []
    await resume_job(world.engine, job.job_id, Write())
    await world.pass_time(minute(3) + timedelta(seconds=1))
    assert await world.work() == [minute(2)]
    other = await world.one_time(schedule={"at": minute(9).isoformat()})
    await delete_job(world.engine, other.job_id, Write())
    assert (await get_execution(world.engine, other.job_id)).status is E.CANCELLED


# Requests.


async def test_a_run_now_runs_beside_the_schedule(world: World) -> None:
    job = await world.create()
    made = await run_now(world.engine, job.job_id, Write())
    await world.schedule()
    [claimed] = await world.claim()
    assert [claimed.execution_id] == made.execution_ids
    assert claimed.scheduled_for == START
    await world.settle(claimed)
    await world.pass_time(minute(1))
    assert await world.work() == [minute(1)]


async def test_a_backfill_runs_the_past_and_leaves_what_lives(world: World) -> None:
    job = await world.create()
    after, through = minute(-5), minute(-2)
    made = await backfill(world.engine, job.job_id, after, through, Write())
    assert len(made.execution_ids) == 3
    again = await backfill(world.engine, job.job_id, after, through, Write())
    assert again.execution_ids == []
    await world.schedule()
    assert await world.work() == [minute(-4), minute(-3), minute(-2)]


async def test_a_cancelled_execution_does_not_run(world: World) -> None:
    waiting = await world.one_time(schedule={"at": minute(2).isoformat()})
    ready = await world.one_time()
    await world.schedule()
    for job in (waiting, ready):
        await cancel_execution(world.engine, job.job_id, Write())
    await world.pass_time(minute(2))
    assert await world.work() == []
    for job in (waiting, ready):
        assert (await get_execution(world.engine, job.job_id)).status is E.CANCELLED


# Overlap and deadlines.


async def test_overlap_forbid_skips_what_comes_while_another_runs(world: World) -> None:
    job = await world.create(overlap_policy="forbid")
    await world.pass_time(minute(1))
    [running] = await world.claim()
    await world.pass_time(minute(2))
    await world.settle(running)
    await world.pass_time(minute(3))
    await world.work()
    assert await world.statuses(job) == {
        minute(1): E.SUCCEEDED,
        minute(2): E.SKIPPED,
        minute(3): E.SUCCEEDED,
    }


async def test_overlap_queue_one_lets_one_wait(world: World) -> None:
    job = await world.create(overlap_policy="queue_one")
    await world.pass_time(minute(1))
    [running] = await world.claim()
    await world.pass_time(minute(3))
    await world.settle(running)
    await world.schedule()
    assert await world.work() == [minute(2)]
    statuses = await world.statuses(job)
    assert statuses[minute(3)] is E.SKIPPED


async def test_overlap_replace_asks_the_earlier_one_to_go(world: World) -> None:
    job = await world.create(overlap_policy="replace")
    await world.pass_time(minute(1))
    [running] = await world.claim()
    await world.pass_time(minute(2))
    heard = await world.dispatch.heartbeat(await world.session(), [running.execution_id], 0)
    assert list(heard.cancelled) == [running.execution_id]
    await world.settle(running, CANCELLED, reason=Reason.CANCELLED.value)
    await world.schedule()
    assert await world.work() == [minute(2)]
    assert (await world.statuses(job))[minute(1)] is E.CANCELLED


async def test_what_does_not_start_in_time_is_skipped(world: World) -> None:
    await world.one_time(start_deadline_seconds=60)
    held_up = await world.one_time(start_deadline_seconds=60)
    await pause_job(world.engine, held_up.job_id, Write())
    await world.pass_time(START + timedelta(seconds=61))
    assert await world.work() == []
    page = await list_jobs(world.engine)
    ended = [await get_execution(world.engine, job.job_id) for job in page.items]
    assert [(e.status, e.reason) for e in ended] == [(E.SKIPPED, Reason.START_DEADLINE)] * 2


async def test_what_does_not_end_in_time_is_dead_and_taken_from_its_worker(world: World) -> None:
    job = await world.one_time(deadline_seconds=60)
    await world.schedule()
    [running] = await world.claim()
    assert running.deadline_in_seconds == 60
    await world.pass_time(START + timedelta(seconds=61))
    ended = await get_execution(world.engine, job.job_id)
    assert (ended.status, ended.reason) == (E.DEAD, Reason.DEADLINE)
    heard = await world.dispatch.heartbeat(await world.session(), [running.execution_id], 0)
    assert list(heard.lost) == [running.execution_id]


# Leadership.


async def test_one_leads_until_the_lease_runs_out_or_is_given_back(world: World) -> None:
    first, second = Leadership(world.engine), Leadership(world.engine)
    led = await first.step()
    assert led is not None
    assert await second.step() is None
    await world.clock.advance(timedelta(seconds=8))
    assert await first.step() == led  # renewed
    await world.clock.advance(timedelta(seconds=8))
    assert await second.step() is None
    await world.clock.advance(timedelta(seconds=11))
    taken = await second.step()
    assert taken is not None
    assert taken.epoch > led.epoch
    assert await first.step() is None
    await second.resign()
    again = await first.step()
    assert again is not None
    assert again.epoch > taken.epoch


async def test_a_term_that_ran_out_is_over_also_if_nobody_has_followed(world: World) -> None:
    leadership = Leadership(world.engine)
    led = await leadership.step()
    await world.clock.advance(timedelta(seconds=11))
    again = await leadership.step()
    assert led is not None
    assert again is not None
    assert again.epoch > led.epoch


async def test_nobody_commits_under_an_epoch_that_is_over(world: World) -> None:
    leadership = Leadership(world.engine)
    zombie = await leadership.step()
    assert zombie is not None
    await world.create()
    await world.clock.set(minute(1))
    assert (await Leadership(world.engine).step()) is not None
    now = await world.now()
    with pytest.raises(NotLeader):
        await plan(world.engine, zombie, now)
    with pytest.raises(NotLeader):
        await reap(world.engine, zombie, now)
    with pytest.raises(NotLeader):
        await expire(world.engine, Term(zombie.node, zombie.epoch + 1), now)
    assert await world.engine.database.value("select count(*) from hourbell.live") == 0


# Idempotent writes.


async def test_a_write_under_a_key_is_done_once(world: World) -> None:
    document = {
        "name": "job",
        "type": "RECURRING",
        "schedule": {"cron": "* * * * *"},
        "action": {"type": "TASK", "name": "noop"},
    }
    write = Write("key", b"fingerprint")
    created = await asyncio.gather(*(create_job(world.engine, document, write) for _ in range(5)))
    jobs = [each.job for each in created]
    assert len({job.job_id for job in jobs}) == 1
    assert jobs[0] == jobs[4]
    await world.pass_time(minute(1))
    assert await world.work() == [minute(1)]
    paused = await pause_job(world.engine, jobs[0].job_id, Write("pause", b"1"))
    assert await pause_job(world.engine, jobs[0].job_id, Write("pause", b"1")) == paused
    with pytest.raises(IdempotencyKeyReused):
        await create_job(world.engine, document, Write("key", b"another"))
    other = await create_job(world.engine, document | {"tenant_id": "other"}, write)
    assert other.job.job_id != jobs[0].job_id  # a key is the tenant's own


# Read.


async def test_a_list_of_jobs_has_every_job_once(world: World) -> None:
    ids = []
    for number in range(12):
        tenant = ("a", "b")[number % 2]
        if number % 3:
            ids.append((await world.one_time(tenant_id=tenant)).job_id)
        else:
            ids.append((await world.create(tenant_id=tenant)).job_id)
    await pause_job(world.engine, ids[0], Write())
    await delete_job(world.engine, ids[3], Write())
    await world.schedule()
    for claimed in (await world.claim())[:4]:
        await world.settle(claimed)

    there = [number for number in ids if number != ids[3]]  # deleted ones are listed by status only
    assert await listed(world) == sorted(there, reverse=True)
    by_tenant = {tenant: await listed(world, tenant) for tenant in ("a", "b", "nobody")}
    assert by_tenant == {
        "a": sorted(set(ids[0::2]) & set(there), reverse=True),
        "b": sorted(set(ids[1::2]) & set(there), reverse=True),
        "nobody": [],
    }
    by_status = {status: await listed(world, None, status) for status in JobStatus}
    assert sorted(number for some in by_status.values() for number in some) == sorted(ids)
    assert by_status[JobStatus.PAUSED] == [ids[0]]
    assert by_status[JobStatus.CANCELLED] == [ids[3]]
    assert len(by_status[JobStatus.COMPLETED]) == 4
    both = await listed(world, "a", JobStatus.PAUSED)
    assert both == [ids[0]]


async def listed(
    world: World, tenant: str | None = None, status: JobStatus | None = None
) -> list[int]:
    """All pages, five jobs to a page."""
    statuses = None if status is None else frozenset({status})
    found: list[int] = []
    token: str | None = None
    while True:
        page = await list_jobs(
            world.engine, JobFilter(tenant_id=tenant, statuses=statuses), page_size=5, token=token
        )
        found += [job.job_id for job in page.items]
        token = page.next_token
        if token is None:
            return found


async def test_a_list_of_executions_has_every_execution_once(world: World) -> None:
    job = await world.create()
    running = []
    for number in range(1, 8):
        await world.pass_time(minute(number))
        if number < 6:
            running += await world.claim()
    # The same occurrences once more, so that two executions of one time lie on both sides of a page's end; and those
    # that were made last are recorded first.
    made = await backfill(world.engine, job.job_id, minute(0), minute(5), Write())
    await world.schedule()
    for claimed in sorted(await world.claim(), key=lambda one: one.scheduled_for):
        if claimed.execution_id in made.execution_ids:
            await world.settle(claimed)
    for claimed in running:
        await world.settle(claimed)
    found = []
    token: str | None = None
    while True:
        page = await list_executions(world.engine, job.job_id, page_size=3, token=token)
        found += [(e.scheduled_for, e.execution_id) for e in page.items]
        token = page.next_token
        if token is None:
            break
    assert found == sorted(set(found), reverse=True)
    expected = {minute(number): 2 if number < 6 else 1 for number in range(1, 8)}
    assert Counter(at for at, _ in found) == expected


async def test_what_does_not_exist_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await get_job(world.engine, 1)
    with pytest.raises(NotFound):
        await get_execution(world.engine, 1)
    with pytest.raises(NotFound):
        await explain_job(world.engine, 1)


async def test_explain_says_the_one_thing_that_is_waited_for(world: World) -> None:
    async def code(job: Job) -> str:
        return (await explain_job(world.engine, job.job_id)).code

    job = await world.one_time(schedule={"at": minute(2).isoformat()})
    explained = await explain_job(world.engine, job.job_id)
    assert (explained.code, explained.until) == ("not_due", minute(2))
    await pause_job(world.engine, job.job_id, Write())
    assert await code(job) == "paused"
    await resume_job(world.engine, job.job_id, Write())
    await world.clock.set(minute(2))
    assert await code(job) == "admission"
    await world.engine.database.value("delete from hourbell.sessions")
    await world.schedule()
    assert await code(job) == "no_worker"
    await world.session()
    await world.schedule()
    assert await code(job) == "worker_slot"
    [claimed] = await world.claim()
    assert await code(job) == "running"
    await world.settle(claimed, RETRY, delay_seconds=30, reason="error")
    explained = await explain_execution(world.engine, job.job_id)
    assert (explained.code, explained.until) == ("retrying", minute(2) + timedelta(seconds=30))
    await world.pass_time(minute(3))
    [claimed] = await world.claim()
    await cancel_execution(world.engine, job.job_id, Write())
    assert await code(job) == "cancelling"
    await world.settle(claimed, RETRY, delay_seconds=30, reason="error")
    assert await code(job) == "ended"


async def test_explain_names_the_earlier_run_that_is_in_the_way(world: World) -> None:
    job = await world.create(overlap_policy="queue_one")
    await world.pass_time(minute(1))
    [running] = await world.claim()
    await world.pass_time(minute(2))
    parked = (await list_executions(world.engine, job.job_id)).items[0]
    assert parked.scheduled_for == minute(2)
    explained = await explain_execution(world.engine, parked.execution_id)
    assert (explained.code, explained.execution_id) == (
        "overlap",
        execution_text(parked.execution_id),
    )
    number = execution_text(running.execution_id)
    assert explained.blocked_by == BlockedBy(number, job_text(job.job_id))
    assert (await explain_job(world.engine, job.job_id)).execution_id == number


# Retention.


async def test_partitions_are_made_ahead_and_dropped_whole(new_world: World) -> None:
    old = await new_world.one_time()
    await new_world.schedule()
    await new_world.work()
    assert (await get_execution(new_world.engine, old.job_id)).status is E.SUCCEEDED
    made = await partitions(new_world)
    first, *_, last = made[:-1]  # the last is that of the rest
    days = [START + timedelta(days=number) for number in (0, 3, 6, 9)]
    assert first == f"executions_{days[0]:%Y%m%d}_{days[1]:%Y%m%d}"
    assert last == f"executions_{days[2]:%Y%m%d}_{days[3]:%Y%m%d}"
    assert [name.replace("executions", "outcomes") for name in made] == await partitions(
        new_world, "outcomes"
    )

    await new_world.clock.set(START + timedelta(days=32))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    assert (await get_execution(new_world.engine, old.job_id)).status is E.SUCCEEDED
    await new_world.clock.set(START + timedelta(days=33))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    assert first not in await partitions(new_world)
    assert len(await partitions(new_world)) == len(await partitions(new_world, "outcomes"))
    with pytest.raises(NotFound):
        await get_execution(new_world.engine, old.job_id)


async def test_what_lives_or_has_ended_lately_outlives_its_partition(new_world: World) -> None:
    far = await new_world.one_time(schedule={"at": (START + timedelta(days=60)).isoformat()})
    late = await new_world.one_time(schedule={"at": (START + timedelta(days=20)).isoformat()})
    done = await new_world.one_time()
    await new_world.schedule()
    await new_world.work()
    await new_world.jump(START + timedelta(days=20, minutes=1))
    await new_world.schedule()
    await new_world.work()
    assert (await get_execution(new_world.engine, late.job_id)).status is E.SUCCEEDED
    await new_world.jump(START + timedelta(days=34))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    assert not any(f"executions_{START:%Y%m%d}" in name for name in await partitions(new_world))
    assert (await get_execution(new_world.engine, far.job_id)).status is E.SCHEDULED
    assert (await get_execution(new_world.engine, late.job_id)).status is E.SUCCEEDED
    with pytest.raises(NotFound):
        await get_execution(new_world.engine, done.job_id)

    await new_world.jump(START + timedelta(days=52))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    with pytest.raises(NotFound):
        await get_execution(new_world.engine, late.job_id)
    await new_world.jump(START + timedelta(days=60, minutes=1))
    await new_world.schedule()
    await new_world.work()
    assert (await get_execution(new_world.engine, far.job_id)).status is E.SUCCEEDED


async def test_a_partition_of_which_much_lives_waits_and_loses_what_has_ended(
    new_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain, "_MAX_ROWS", 2)
    living = [
        await new_world.one_time(schedule={"at": (START + timedelta(days=60)).isoformat()})
        for _ in range(3)
    ]
    done = await new_world.one_time()
    await new_world.schedule()
    await new_world.work()
    await new_world.clock.set(START + timedelta(days=34))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    assert any(f"executions_{START:%Y%m%d}" in name for name in await partitions(new_world))
    for job in living:
        assert (await get_execution(new_world.engine, job.job_id)).status is E.SCHEDULED
    with pytest.raises(NotFound):
        await get_execution(new_world.engine, done.job_id)


async def test_several_who_drop_the_same_partitions_do_not_stumble_over_each_other(
    new_world: World,
) -> None:
    database = new_world.engine.database
    await database.value("select hourbell.make_partitions($1, 60, 3)", START)
    later = START + timedelta(days=200)
    await asyncio.gather(*(run_housekeeping(new_world.engine, None, later) for _ in range(4)))
    await run_housekeeping(new_world.engine, None, later)  # who came too late for a lock left some
    assert not [
        name
        for name in await partitions(new_world)
        if f"{START:%Y}" in name and name < f"executions_{later:%Y%m%d}"
    ]


async def test_what_is_recorded_on_a_day_without_a_partition_is_kept_too(new_world: World) -> None:
    await new_world.clock.set(START + timedelta(days=20))  # nobody kept house for so long
    job = await new_world.one_time()
    await new_world.schedule()
    await new_world.work()
    assert (await get_execution(new_world.engine, job.job_id)).status is E.SUCCEEDED
    await run_housekeeping(
        new_world.engine, None, await new_world.now()
    )  # does not stumble over it
    assert (await get_execution(new_world.engine, job.job_id)).status is E.SUCCEEDED


async def test_answers_wishes_and_timetables_that_have_served_are_forgotten(
    new_world: World,
) -> None:
    database = new_world.engine.database
    job = await new_world.create()
    await pause_job(new_world.engine, job.job_id, Write("key", b"1"))
    await new_world.pass_time(minute(1))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    assert await database.value("select count(*) from hourbell.idempotency") == 1
    await new_world.clock.set(START + timedelta(hours=49))
    await run_housekeeping(new_world.engine, None, await new_world.now())
    left = await database.row(
        "select (select count(*) from hourbell.idempotency), (select count(*) from hourbell.timetables),"
        " (select count(*) from hourbell.cancellations), (select count(*) from hourbell.lanes)"
    )
    assert tuple(left) == (0, 0, 0, 0)
    await resume_job(new_world.engine, job.job_id, Write())  # its timetable is created again
    assert await database.value("select count(*) from hourbell.timetables") == 1


async def partitions(world: World, table: str = "executions") -> list[str]:
    rows = await world.engine.database.fetch(
        "select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid"
        " where i.inhparent = ('hourbell.' || $1)::regclass order by c.relname",
        table,
    )
    return [row["relname"] for row in rows]


async def test_timetables_are_reckoned_anew_by_other_zone_data(world: World) -> None:
    await world.create(schedule={"cron": "0 12 * * *", "timezone": "Europe/Berlin"})
    database = world.engine.database
    noon = START.replace(hour=10, minute=0, second=0) + timedelta(days=1)  # 12:00 in summer
    for version in ("1999a", "9999z"):
        await database.value(
            "update hourbell.timetables"
            " set tz_version = $1, next_fire_at = next_fire_at + interval '1 hour'",
            version,
        )
        assert not await update_tz_version(world.engine, None, await world.now())
        row = await database.row("select next_fire_at, plan_from from hourbell.timetables")
        assert tuple(row) == (noon, noon)


# The store: migrations.


async def test_any_number_of_processes_may_migrate_an_empty_database(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    await connection.execute("drop schema hourbell cascade")
    program = (
        "import asyncio, sys; from hourbell.store.migrations import migrate;"
        "asyncio.run(migrate(sys.argv[1]))"
    )
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", program, engine_dsn)
        for _ in range(4)
    ]
    assert [await process.wait() for process in processes] == [0, 0, 0, 0]
    names = await connection.fetch("select name from hourbell.migrations order by name")
    assert [row["name"] for row in names] == [file.name for file in sql_files("migrations")]
    assert await connection.fetchval("select hourbell.clock()") is not None
    await connection.close()


_ROUTINES = "select proname, oid, xmin from pg_proc where pronamespace = 'hourbell'::regnamespace order by 1, 2"


async def test_a_migrated_database_is_left_as_it_is(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    before = await connection.fetch("select * from hourbell.migrations order by name")
    functions = await connection.fetch(_ROUTINES)
    await migrate(engine_dsn)
    assert await connection.fetch("select * from hourbell.migrations order by name") == before
    assert await connection.fetch(_ROUTINES) == functions
    await connection.close()


async def test_a_database_of_the_first_migration_gets_the_others_and_keeps_its_rows(
    engine_dsn: str,
) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    await connection.execute("drop schema hourbell cascade")
    [first, *others] = sql_files("migrations")

    async def only_record(connection: asyncpg.Connection) -> None:
        """The functions of that program; ours need the other migrations."""
        await connection.execute(
            "insert into hourbell.function_sets values ($1, '0', now())",
            function_set().digest,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "sql_files", lambda folder: [first])
        patch.setattr(migrations, "_load_functions", only_record)
        await migrate(engine_dsn)
        assert await is_migrated(engine_dsn)  # for a program that knows only the first
    await connection.execute("insert into hourbell.progress values (7, 1, '{}')")
    await connection.execute("delete from hourbell.function_sets")
    assert not await is_migrated(engine_dsn)
    await migrate(engine_dsn)
    assert await is_migrated(engine_dsn)
    names = await connection.fetch("select name from hourbell.migrations order by applied_at")
    assert [row["name"] for row in names] == [first.name, *(other.name for other in others)]
    assert await connection.fetchval("select id from hourbell.progress") == 7
    assert await connection.fetchval("select to_regclass('hourbell.jobs_by_name')") is not None
    with pytest.MonkeyPatch.context() as patch:  # and the older program still works with it
        patch.setattr(migrations, "sql_files", lambda folder: [first])
        assert await is_migrated(engine_dsn)
    await connection.close()


async def test_a_database_of_a_development_version_is_refused_and_left_alone(
    engine_dsn: str,
) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    await connection.execute(
        "insert into hourbell.migrations (name, digest) values ('0001_core.sql', 'x')"
    )
    try:
        for look in (migrate, is_migrated):
            with pytest.raises(UnreleasedDatabase, match="Use an empty database"):
                await look(engine_dsn)
    finally:
        await connection.execute("delete from hourbell.migrations where name = '0001_core.sql'")
    assert await is_migrated(engine_dsn)
    await connection.close()


async def test_a_build_loads_its_own_functions_beside_those_of_others(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    others = {row["proname"] for row in await connection.fetch(_ROUTINES)}
    with another_build("another"):
        assert not await is_migrated(engine_dsn)  # it would call functions that are not there
        await migrate(engine_dsn)
        assert await is_migrated(engine_dsn)
        both = {row["proname"] for row in await connection.fetch(_ROUTINES)}
        assert both == others | {f"{name}__another" for name in function_set().names}
        database = await Database.open(engine_dsn)
        assert await database.value("select hourbell.generation()") == 0
        await database.close()
    assert await is_migrated(engine_dsn)  # the first one goes on as before
    await connection.close()


async def test_functions_that_no_process_has_used_for_a_week_are_dropped(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    before = await connection.fetch(_ROUTINES)
    for name, unused_days in (("recent", 6), ("outdated", 8)):
        with another_build(name):
            await migrate(engine_dsn)
        await connection.execute(
            "update hourbell.function_sets set used_at = hourbell.clock() - $2::interval where digest = $1",
            name,
            timedelta(days=unused_days),
        )
    await migrate(engine_dsn)
    left = {row["proname"] for row in await connection.fetch(_ROUTINES)}
    assert left == {row["proname"] for row in before} | {
        f"{name}__recent" for name in function_set().names
    }
    with another_build("outdated"):  # rolled back after all: its functions come back
        assert not await is_migrated(engine_dsn)
        await migrate(engine_dsn)
        assert await is_migrated(engine_dsn)
    await connection.close()


async def test_a_running_process_keeps_its_functions(engine_dsn: str) -> None:
    database = await Database.open(engine_dsn)
    await database.value(
        "update hourbell.function_sets set used_at = '2001-01-01' returning digest"
    )
    await mark_used(database)
    with another_build("another"):
        await migrate(engine_dsn)
    assert await is_migrated(engine_dsn)
    await database.close()


async def test_an_older_program_works_on_a_newer_schema(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    await connection.execute(
        "insert into hourbell.migrations (name, digest, requires) values ('9999_newer.sql', 'x', '0001_tables.sql')"
    )
    assert await is_migrated(engine_dsn)
    await migrate(engine_dsn)
    await connection.close()


async def test_a_program_is_refused_by_a_schema_that_requires_a_newer_one(engine_dsn: str) -> None:
    connection = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    await connection.execute(
        "insert into hourbell.migrations (name, digest, requires) values ('9999_newer.sql', 'x', '9998_needed.sql')"
    )
    for start in (is_migrated, migrate):
        with pytest.raises(IncompatibleDatabase, match=r"9998_needed.sql.*Run the newer version"):
            await start(engine_dsn)
    await connection.close()


async def test_a_migration_says_what_it_requires_of_a_program(
    engine_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = SqlFile("9999_newer.sql", "-- New tables.\n-- requires: 9998_needed.sql\nselect 1")
    known = [*sql_files("migrations"), SqlFile("9998_needed.sql", "select 1"), newer]
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "sql_files", lambda folder: known)
        await migrate(engine_dsn)
        assert await is_migrated(engine_dsn)
    with pytest.raises(IncompatibleDatabase):
        await is_migrated(engine_dsn)


@contextlib.contextmanager
def another_build(digest: str) -> Iterator[None]:
    """Within it, this process is a build with the same functions under another digest."""
    real = function_set()
    with pytest.MonkeyPatch.context() as patch:
        other = FunctionSet(digest, real.text, real.names)
        for module in (migrations, function_sets):
            patch.setattr(module, "function_set", lambda: other)
        for_this_build.cache_clear()
        yield
    for_this_build.cache_clear()


# The store: connections.


async def test_a_pooler_is_noticed(engine_dsn: str, request: pytest.FixtureRequest) -> None:
    database = await Database.open(engine_dsn)
    assert database.pooled == (request.node.callspec.params["engine_dsn"] == "pgbouncer")
    heard = asyncio.Event()
    listener = await database.listen("hourbell", lambda _payload: heard.set())
    await database.value("select pg_notify('hourbell', '')")
    if not database.pooled:
        await asyncio.wait_for(heard.wait(), 10)
    await listener.close()
    await database.close()


async def test_the_pool_recovers_when_its_connections_are_cut(engine_dsn: str) -> None:
    database = await Database.open(engine_dsn, connections=3)
    await asyncio.gather(*(database.value("select pg_sleep(0.01)") for _ in range(3)))
    killer = await asyncpg.connect(engine_dsn, statement_cache_size=0)
    async with killer.transaction():
        await killer.fetch(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    outcomes = []
    for _ in range(10):
        try:
            outcomes.append(await database.value("select 1"))
        except StoreUnavailable:
            outcomes.append(None)
    assert outcomes[-1] == 1
    assert outcomes.count(None) <= 4  # each cut connection is met once, at most
    await killer.close()
    await database.close()


async def test_a_database_that_is_not_there_is_unavailable() -> None:
    with services.private_folder() as folder, pytest.raises(StoreUnavailable):
        await Database.open(f"postgresql://postgres@/postgres?host={folder}")


@pytest.fixture(params=["fsync", "full_page_writes"])
def unsafe_server(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    monkeypatch.setitem(embedded.SERVER_SETTINGS, request.param, "off")
    with (
        services.private_folder() as folder,
        EmbeddedServer(folder / "data", owner="tests") as server,
    ):
        yield request.param, server.dsn


async def test_a_database_that_may_lose_what_it_confirmed_is_refused(
    unsafe_server: tuple[str, str],
) -> None:
    setting, dsn = unsafe_server
    with pytest.raises(UnsafeDatabase, match=setting):
        await Database.open(dsn)
