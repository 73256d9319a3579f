"""A small engine taken apart: every step that production does in one go can be done here in pieces, in any order.

A command is a name and two numbers, drawn by Hypothesis; the numbers choose among whatever there is to choose from. What
cannot be done at the moment is not done. Changes of a job may be left without their join, or be stopped in the middle,
with their transaction open or with their commit done and their join still to come; a fire may be opened and not fanned
out, fanned out member by member, or be in the middle of a chunk that has not committed.

What happened is kept as a `History`, for the judge of the simulation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from conftest import empty
from hourbell import failpoints
from hourbell.dispatch import CANCELLED, DEAD, RELEASED, RETRY, SUCCEEDED, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.groups import GroupExecutor
from hourbell.engine.life import plan as planning
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.jobs import get_job
from hourbell.failpoints import FailpointError
from hourbell.model.errors import Conflict, InvalidInput, JobNotActive
from hourbell.model.executions import ExecutionStatus
from hourbell.model.ids import execution_text, job_text, parse_execution_id
from hourbell.model.jobs import Job
from hourbell.store.database import Database
from hourbell.store.function_set import connect
from hourbell.testing.clock import VirtualClock
from simulation.recorder import Recorder
from uncommitted import CHANGES, POINTS, UNCOMMITTED
from verify.history import (
    Claim,
    History,
    Planned,
    SessionOpened,
    SessionRenewed,
    Settle,
    Silenced,
)
from verify.promise import Document

BEGINNING = datetime(2027, 3, 13, 12, 0, 30, tzinfo=UTC)
TIMES = Times(horizon_seconds=150, grace_seconds=100, lease_seconds=600)

_QUEUES = ("default", "other")
_CRONS = ("* * * * *", "*/2 * * * *")
_REFUSED = (Conflict, InvalidInput, JobNotActive)
_KINDS = (SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED)

_STATUSES = """
select e.id, e.occurrence, case
    when exists (select from hourbell.leases as l where l.id = e.id) then 'RUNNING'
    when exists (select from hourbell.ready as r where e.id = any (r.ids))
      or exists (select from hourbell.suspects as s where s.id = e.id) then 'QUEUED'
    when e.attempt > 0 then 'RETRYING'
    else 'SCHEDULED' end as status
from hourbell.live as e
union all
select id, scheduled_for, (array['SUCCEEDED', 'DEAD', 'CANCELLED', 'SUPERSEDED', 'SKIPPED'])[status + 1]
from hourbell.ledger
"""


@dataclass
class Owned:
    """A job, and what its owner was told about it."""

    job: int
    document: Document
    state: str = "active"  # paused, deleted
    changing: bool = False


@dataclass
class Stopped:
    """A change that was stopped in the middle."""

    task: asyncio.Task[Any]
    cleanup: ExitStack
    answered: Callable[[Any], None]


class Interleaving:
    """One engine in an empty database, at a time of its own."""

    def __init__(self, database: Database, clock: VirtualClock) -> None:
        self._database = database
        self._clock = clock
        self._engine = Engine(database, clock, TIMES)
        # A caller that is stopped in the middle of a create stops no other: it is in another process.
        self._engine.create_groups = GroupExecutor(max_group_size=1, max_groups=1_000)
        self._dispatch = PostgresDispatch(self._engine)
        self._session: Session | None = None
        self._claims = 0
        self._running: dict[int, int] = {}  # what our session holds: id, fence
        self._jobs: list[Owned] = []
        self._stopped: list[tuple[Owned | None, Stopped]] = []
        self._chunk: tuple[asyncpg.Connection, Any] | None = None
        self.now = BEGINNING
        self._numbers = itertools.count(1)  # of the jobs that were asked for
        self._recorder = Recorder(0, BEGINNING)

    @classmethod
    async def begin(cls, database: Database) -> Interleaving:
        async with database.connection() as connection:
            await empty(connection)
        return cls(database, await VirtualClock.install(database, BEGINNING))

    async def do(self, command: str, one: int, other: int) -> None:
        await getattr(self, f"_do_{command}")(one, other)

    async def statuses(self) -> dict[int, tuple[ExecutionStatus, datetime]]:
        """Where every execution is, and its nominal time."""
        rows = await self._database.fetch(_STATUSES)
        return {row["id"]: (ExecutionStatus(row["status"]), row["occurrence"]) for row in rows}

    async def close(self) -> None:
        """Whatever is still in the middle of something is broken off."""
        for _, stopped in self._stopped:
            stopped.task.cancel()
            stopped.cleanup.close()
            await asyncio.gather(stopped.task, return_exceptions=True)
        if self._chunk is not None:
            await self._chunk[0].close()
        # A create continues without its caller.
        await asyncio.gather(*self._engine.create_groups._tasks, return_exceptions=True)

    async def finish(self) -> History:
        """Let everything that was begun come to its end, do what is due, and read the result."""
        await self._do_commit_chunk(0, 0)
        while self._stopped:
            await self._do_release(0, 0)
        for _ in range(20):
            await self._do_join(0, 0)
            await self._do_plan(0, 0)
            await self._do_work(0, 0)
            due = await self._database.value(
                "select exists (select from hourbell.due where run_at <= $1)"
                " or exists (select from hourbell.due_slabs where run_at <= $1)"
                " or exists (select from hourbell.ready) or exists (select from hourbell.suspects)"
                " or exists (select from hourbell.leases) or exists (select from hourbell.parked)",
                self.now,
            )
            if not due:
                break
            await self._do_advance(1, 0)
            await self._lose_worker_when_idle()
        await planning.end_memberships(self._engine, None, self.now)
        return await self._recorder.finish(self._database, self.now)

    # Time.

    async def _do_advance(self, one: int, other: int) -> None:
        self.now += timedelta(seconds=(1, 20, 70, 200)[one % 4], milliseconds=other % 3)
        await self._clock.set(self.now)

    # Users.

    async def _do_create(self, one: int, other: int) -> None:
        document: Document = {
            "name": f"job {next(self._numbers)}",
            "type": "RECURRING",
            "schedule": {"cron": _CRONS[one % 4 == 3]},
            "action": {"type": "TASK", "name": "work"},
            "misfire_policy": ("skip", "latest", "all")[one % 3],
            "overlap_policy": ("allow", "allow", "forbid", "queue_one", "replace")[one % 5],
            "retry_policy": {"delays_seconds": [10, 60], "non_retryable": ["Broken"]},
        }

        def answered(job: Any) -> None:
            self._jobs.append(Owned(job.job_id, document))
            self._recorder.create(job, document, asked_at, self.now)
            self._plans()

        asked_at = self.now

        async def create() -> Job:
            return (await create_job(self._engine, document, Write())).job

        await self._change(None, "create", create, answered, other)

    async def _do_update(self, one: int, other: int) -> None:
        owned = self._choose(one, "active", "paused")
        if owned is None:
            return
        patch: Document = {"timeout_seconds": 10 + one}
        if one % 3 == 0:
            cron = _CRONS[owned.document["schedule"]["cron"] == _CRONS[0]]
            patch = {"schedule": {"cron": cron}}
        elif one % 3 == 1:
            patch = {
                "priority": ("CRITICAL", "HIGH", "LOW")[other % 3],
                "timeout_seconds": 10 + one,
            }
            if one % 2:
                patch["queue"] = _QUEUES[other % 2]
        document = owned.document | patch
        await self._alter(
            owned,
            "update",
            document,
            owned.state,
            other,
            lambda: update_job(self._engine, owned.job, patch, Write()),
        )

    async def _do_pause(self, one: int, other: int) -> None:
        owned = self._choose(one, "active")
        if owned is not None:
            await self._alter(
                owned,
                "pause",
                owned.document,
                "paused",
                other,
                lambda: pause_job(self._engine, owned.job, Write()),
            )

    async def _do_resume(self, one: int, other: int) -> None:
        owned = self._choose(one, "paused")
        if owned is not None:
            await self._alter(
                owned,
                "resume",
                owned.document,
                "active",
                other,
                lambda: resume_job(self._engine, owned.job, Write()),
            )

    async def _do_delete(self, one: int, other: int) -> None:
        owned = self._choose(one, "active", "paused")
        if owned is not None and one % 3 == 0:
            await self._alter(
                owned,
                "delete",
                owned.document,
                "deleted",
                other,
                lambda: delete_job(self._engine, owned.job, Write()),
            )

    async def _do_cancel(self, one: int, other: int) -> None:
        owned = {owned.job for owned in self._jobs if not owned.changing}
        rows = await self._database.fetch("select id, job from hourbell.live order by id")
        rows = [row for row in rows if row["job"] in owned]
        if not rows:
            return
        number = rows[one % len(rows)]["id"]
        seen = await cancel_execution(self._engine, number, Write())
        ended = seen.status is ExecutionStatus.CANCELLED
        self._recorder.cancel(seen.job_id, number, ended, self.now, self.now)

    def _choose(self, one: int, *states: str) -> Owned | None:
        found = [job for job in self._jobs if job.state in states and not job.changing]
        return found[one % len(found)] if found else None

    async def _alter(
        self,
        owned: Owned,
        operation: str,
        document: Document,
        state: str,
        how: int,
        call: Callable[[], Awaitable[Any]],
    ) -> None:
        asked_at, before = self.now, owned.document

        def answered(job: Any) -> None:
            if job.updated_at >= asked_at:  # otherwise it was as wished already
                patch = {key: document[key] for key in document if document[key] != before.get(key)}
                owned.document, owned.state = document, state
                self._recorder.change(operation, job, patch, asked_at, self.now)
                self._plans()

        await self._change(owned, operation, call, answered, how)

    async def _change(
        self,
        owned: Owned | None,
        operation: str,
        call: Callable[[], Awaitable[Any]],
        answered: Callable[[Any], None],
        how: int,
    ) -> None:
        """Whole, without its join, stopped before its commit, or stopped between commit and join."""
        # A chunk under way holds the timetable, and a join would wait for it.
        ways = (
            ("unjoined",) if self._chunk else ("whole", "unjoined", "before_commit", "after_commit")
        )
        way = ways[how % len(ways)]
        if way in ("whole", "unjoined"):
            await self._call(call, answered, joins=way == "whole")
            return
        cleanup = ExitStack()
        point = f"{operation}.{way}"
        if way == "before_commit" and operation in CHANGES:
            point = UNCOMMITTED
        hold = cleanup.enter_context(failpoints.barrier(point, names=POINTS))
        task = asyncio.ensure_future(call())
        reached = asyncio.ensure_future(hold.reached())
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        if owned is not None:
            owned.changing = True
        self._stopped.append((owned, Stopped(task, cleanup, answered)))
        if task.done():
            await self._do_release(len(self._stopped) - 1, 0)

    async def _call(
        self, call: Callable[[], Awaitable[Any]], answered: Callable[[Any], None], joins: bool
    ) -> None:
        """A change as its caller sees it; without its join the caller dies there, and asks what became of it."""
        failpoints.configure("" if joins else "join.before_commit=error")
        try:
            answered(await call())
        except FailpointError:
            failpoints.configure("")
            await self._learn(answered)
        except _REFUSED:
            pass
        finally:
            failpoints.configure("")

    async def _learn(self, answered: Callable[[Any], None]) -> None:
        """The change is committed, and nobody was told: the job as it is now is the answer."""
        number = await self._database.value(
            "select job from hourbell.audit order by id desc limit 1"
        )
        answered(await get_job(self._engine, number))

    async def _do_release(self, one: int, other: int) -> None:
        if not self._stopped or self._chunk:
            return
        owned, stopped = self._stopped.pop(one % len(self._stopped))
        stopped.cleanup.close()
        try:
            async with asyncio.timeout(45):
                stopped.answered(await stopped.task)
        except _REFUSED:
            pass
        if owned is not None:
            owned.changing = False

    def _plans(self) -> None:
        """A process plans or joins now."""
        self._recorder.steps.append(Planned(self.now.timestamp()))

    # The planner, whole and in pieces.

    async def _do_join(self, one: int, other: int) -> None:
        if self._chunk is None:
            self._plans()
            await complete_joins(self._engine, self.now)

    async def _do_plan(self, one: int, other: int) -> None:
        if self._chunk is None:
            self._plans()
            while await planning.plan(self._engine, None, self.now):
                pass
            await planning.end_memberships(self._engine, None, self.now)

    async def _do_open(self, one: int, other: int) -> None:
        if self._chunk is None:
            self._plans()
            await planning._open_fires(self._engine, None, self.now)

    async def _do_end(self, one: int, other: int) -> None:
        await planning.end_memberships(self._engine, None, self.now)

    async def _do_chunk(self, one: int, other: int) -> None:
        if self._chunk is None:
            await self._database.value(_CHUNK, self.now, 1 + one % 3, TIMES.grace)

    async def _do_begin_chunk(self, one: int, other: int) -> None:
        """A chunk that another process is in the middle of: done, and not committed."""
        if self._chunk is None:
            connection = await connect(self._database.dsn)
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(_CHUNK, self.now, 1 + one % 3, TIMES.grace)
            self._chunk = (connection, transaction)

    async def _do_commit_chunk(self, one: int, other: int) -> None:
        if self._chunk is not None:
            (connection, transaction), self._chunk = self._chunk, None
            await transaction.commit()
            await connection.close()

    # The gate and a worker.

    async def _do_admit(self, one: int, other: int) -> None:
        await admit(self._engine, self.now)

    async def _do_expire(self, one: int, other: int) -> None:
        await expire(self._engine, None, self.now)

    async def _do_claim(self, one: int, other: int) -> None:
        await self._claim(limit=1 + one % 4)

    async def _claim(self, limit: int) -> None:
        if self._session is None:
            self._session = await self._dispatch.open("worker", _QUEUES, 100)
            self._recorder.steps.append(SessionOpened(self.now.timestamp(), self._session.id))
        session = self._session
        heard = await self._dispatch.heartbeat(session, list(self._running), self._claims)
        self._recorder.steps.append(
            SessionRenewed(
                self.now.timestamp(),
                session.id,
                frozenset(map(execution_text, self._running)),
                self._claims,
                frozenset(map(execution_text, heard.lost)),
            )
        )
        for lost in heard.lost:
            del self._running[lost]
        self._claims += 1
        for claimed in await self._dispatch.claim(session, self._claims, limit):
            number = claimed.execution_id
            self._running[number] = claimed.fence
            self._recorder.steps.append(
                Claim(
                    self.now.timestamp(),
                    session.id,
                    self._claims,
                    execution_text(number),
                    job_text(claimed.job_id),
                    claimed.scheduled_for.timestamp(),
                    claimed.attempt,
                    claimed.fence,
                )
            )

    async def _do_settle(self, one: int, other: int) -> None:
        if not self._running or self._session is None:
            return
        number = sorted(self._running)[one % len(self._running)]
        fence = self._running.pop(number)
        kind = _KINDS[other % len(_KINDS)]
        attempt = await self._database.value(
            "select attempt + 1 from hourbell.live where id = $1", number
        )
        delay = None
        if kind == RETRY:
            if attempt is None or attempt > 2:
                kind = DEAD
            else:
                delay = float((10, 60)[attempt - 1])
        if kind == CANCELLED and number not in self._recorder.cancelled:
            kind = SUCCEEDED
        reason = {DEAD: "non_retryable", CANCELLED: "cancelled"}.get(kind)
        batch = [Settlement(number, fence, kind, delay_seconds=delay, reason=reason)]
        refused = await self._dispatch.settle(self._session, batch)
        self._recorder.steps.append(
            Settle(
                self.now.timestamp(),
                self._session.id,
                execution_text(number),
                fence,
                kind,
                not refused,
                delay,
                reason,
            )
        )

    async def _do_work(self, one: int, other: int) -> None:
        """Everything that is due, done, with one outcome."""
        await self._do_admit(0, 0)
        await self._claim(limit=100)
        while self._running:
            await self._do_settle(0, other)

    async def _do_settle_stale(self, one: int, other: int) -> None:
        """A session that held it once reports an outcome."""
        running = {execution_text(number): fence for number, fence in self._running.items()}
        claims = [
            step
            for step in self._recorder.steps
            if isinstance(step, Claim) and running.get(step.execution_id) != step.fence
        ]
        # Rather what is held again than what has ended.
        claims.sort(key=lambda claim: claim.execution_id in running)
        if not claims or self._session is None:
            return
        old = claims[-1 - one % len(claims)]
        number = parse_execution_id(old.execution_id)
        refused = await self._dispatch.settle(
            self._session, [Settlement(number, old.fence, SUCCEEDED)]
        )
        assert list(refused) == [number]

    async def _do_lose_worker(self, one: int, other: int) -> None:
        """The worker dies, and its lease runs out."""
        if self._session is None:
            return
        self._recorder.steps.append(Silenced(self.now.timestamp(), self._session.id))
        self._session, self._running, self._claims = None, {}, 0
        self.now += TIMES.lease
        await self._clock.set(self.now)
        await reap(self._engine, None, self.now)

    async def _lose_worker_when_idle(self) -> None:
        """What a lost session still holds comes back by the reaper."""
        orphaned = await self._database.value("select exists (select from hourbell.leases)")
        if orphaned and not self._running:
            await self._do_lose_worker(0, 0)


_CHUNK = "select hourbell.fan_out(null, null, $1, $2, $3)"
