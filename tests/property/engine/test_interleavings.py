"""Interleavings of create, update, pause, resume, delete, join, plan and the passing of time, against a simple model.

The model knows nothing of timetables, memberships or fires: a job is a list of stretches (after, through] with an
interval each, and an occurrence is every multiple of that interval in them. Joins are left undone and completed later by
anybody; fires are fanned out a few members at a time; planning comes early, late or very late. In the end each occurrence
of the model has exactly one execution or lies in exactly one stretch that was recorded as missed, and there is nothing else.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DatabaseMaker
from hourbell import failpoints
from hourbell.engine import change, create, join, plan
from hourbell.engine.core import Engine, Times
from hourbell.engine.writes import Write
from hourbell.failpoints import FailpointError
from hourbell.store.database import Database
from hourbell.testing.clock import VirtualClock

START = datetime(2027, 3, 1, tzinfo=UTC)
INTERVALS = (7, 30, 60)
TIMES = Times(horizon_seconds=60, grace_seconds=60)
SECOND = timedelta(seconds=1)

_EMPTY = """
truncate hourbell.jobs, hourbell.members, hourbell.fires, hourbell.executions, hourbell.due, hourbell.deadlines,
  hourbell.ledger, hourbell.timetables, hourbell.audit cascade
"""


class Stretch(msgspec.Struct):
    """Occurrences of one job: the multiples of `every` after the one moment and up to the other."""

    every: int
    after: datetime
    through: datetime | None = None

    def occurrences(self, until: datetime) -> Iterator[datetime]:
        last = until if self.through is None else min(self.through, until)
        number = int(self.after.timestamp()) // self.every + 1
        while (at := datetime.fromtimestamp(number * self.every, UTC)) <= last:
            if at > self.after:
                yield at
            number += 1


class ModelJob(msgspec.Struct):
    job_id: int
    every: int
    active: bool
    stretches: list[Stretch]

    def begin(self, now: datetime) -> None:
        self.stretches.append(Stretch(self.every, now))

    def end(self, now: datetime) -> None:
        if self.active:
            self.stretches[-1].through = now


class World:
    """The engine and the model, side by side."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self.database = database
        self.clock = clock
        self.engine = Engine(database, clock, TIMES)
        self.jobs: list[ModelJob] = []
        self.deleted: list[ModelJob] = []

    async def create(self, every: int, misfire: str, joins: bool) -> None:
        now = await self.clock.now()
        document = {
            "name": "job",
            "type": "RECURRING",
            # A start in the past anchors the interval at the epoch and changes nothing else.
            "schedule": {"every_seconds": every, "starts_at": "1970-01-01T00:00:00Z"},
            "action": {"type": "TASK", "name": "nothing"},
            "misfire_policy": misfire,
        }
        await self._joining(joins, create.create_job(self.engine, document, Write()))
        job_id = await self.database.value("select max(id) from hourbell.jobs")
        job = ModelJob(job_id, every, True, [])
        job.begin(now)
        self.jobs.append(job)

    async def update(self, which: int, every: int | None, joins: bool) -> None:
        if (job := self._pick(which)) is None:
            return
        now = await self.clock.now()
        changes: dict[str, Any] = {"name": "renamed"} if every is None else {}
        if every is not None:
            changes = {"schedule": {"every_seconds": every, "starts_at": "1970-01-01T00:00:00Z"}}
        await self._joining(joins, change.update_job(self.engine, job.job_id, changes, Write()))
        if every is not None and every != job.every:
            job.end(now)
            job.every = every
            if job.active:
                job.begin(now)

    async def pause(self, which: int) -> None:
        if (job := self._pick(which)) is not None:
            await change.pause_job(self.engine, job.job_id, Write())
            job.end(await self.clock.now())
            job.active = False

    async def resume(self, which: int, joins: bool) -> None:
        if (job := self._pick(which)) is not None:
            await self._joining(joins, change.resume_job(self.engine, job.job_id, Write()))
            if not job.active:
                job.active = True
                job.begin(await self.clock.now())

    async def delete(self, which: int) -> None:
        if (job := self._pick(which)) is not None:
            await change.delete_job(self.engine, job.job_id, Write())
            job.end(await self.clock.now())
            self.jobs.remove(job)
            self.deleted.append(job)

    async def pass_time(self, seconds: int) -> None:
        await self.clock.advance(timedelta(seconds=seconds))

    async def join(self) -> None:
        await join.join_left_over(self.engine, await self.clock.now())

    async def open_fires(self) -> None:
        await plan._open_fires(self.engine, None, await self.clock.now())

    async def fan_out(self, limit: int) -> None:
        now = await self.clock.now()
        await self.database.row(
            "select * from hourbell.fan_out(null, null, $1, $2, $3)", now, limit, TIMES.grace
        )

    async def finish(self) -> None:
        """Everything that was left undone is done, by anybody."""
        now = await self.clock.now()
        for _ in range(1_000):
            more = await join.join_left_over(self.engine, now)
            if not (await plan.plan(self.engine, None, now) or more):
                return
        raise AssertionError("planning never comes to an end")

    async def check(self) -> None:
        """Each occurrence of the model once, and nothing else."""
        now = await self.clock.now()
        rows = await self.database.fetch("select job, occurrence from hourbell.executions")
        got = Counter((row["job"], row["occurrence"]) for row in rows)
        missed = await self.database.fetch(
            "select job, scheduled_for, missed_through, missed from hourbell.ledger"
        )
        for job in (*self.jobs, *self.deleted):
            horizon = now + TIMES.horizon
            expected = [at for stretch in job.stretches for at in stretch.occurrences(horizon)]
            for row in missed:
                if row["job"] == job.job_id:
                    inside = [
                        at for at in expected if row["scheduled_for"] <= at <= row["missed_through"]
                    ]
                    assert len(inside) == row["missed"], (job, row)
                    got.update((job.job_id, at) for at in inside)
            for at in expected:
                assert got.pop((job.job_id, at), 0) == 1, f"{at} of {job}"
        assert not got, "executions that no stretch asked for"

    async def _joining(self, joins: bool, operation: Any) -> None:
        """An operation whose join may be left undone, as by a process that dies after its commit."""
        failpoints.configure("" if joins else "join.before_commit=error")
        try:
            await operation
        except FailpointError:
            assert not joins
        finally:
            failpoints.configure("")

    def _pick(self, which: int) -> ModelJob | None:
        return self.jobs[which % len(self.jobs)] if self.jobs else None


which = st.integers(0, 5)
every = st.sampled_from(INTERVALS)
joins = st.booleans()
commands = st.one_of(
    st.tuples(st.just("create"), every, st.sampled_from(("skip", "latest", "all")), joins),
    st.tuples(st.just("update"), which, st.one_of(st.none(), every), joins),
    st.tuples(st.just("pause"), which),
    st.tuples(st.just("resume"), which, joins),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("pass_time"), st.sampled_from((1, 5, 29, 61, 400))),
    st.tuples(st.just("join")),
    st.tuples(st.just("open_fires")),
    st.tuples(st.just("fan_out"), st.integers(1, 3)),
)


@pytest.fixture(scope="module")
def dsn(postgres: str, new_database: DatabaseMaker) -> Iterator[str]:
    making = new_database(postgres)
    with asyncio.Runner() as runner:  # one loop for both ends of it
        yield runner.run(making.__aenter__())
        runner.run(making.__aexit__(None, None, None))


@given(st.lists(commands, min_size=3, max_size=25))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_every_occurrence_has_one_producer_whatever_is_done_in_which_order(
    dsn: str, script: list[tuple[Any, ...]]
) -> None:
    async def play() -> None:
        database = await Database.open(dsn, connections=3)
        try:
            async with database.connection() as connection:
                await connection.execute(_EMPTY)
            world = World(database, await VirtualClock.install(database, START))
            for name, *arguments in script:
                await getattr(world, name)(*arguments)
            await world.finish()
            await world.check()
        finally:
            await database.close()

    asyncio.run(play())
