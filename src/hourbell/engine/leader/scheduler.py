"""The scheduler process: campaigns for leadership, and runs the leader's loops while it leads.

    lead      renew or campaign, three times a lease
    plan      unfinished joins, fires within the horizon, memberships that have ended
    admit     the gate: every 10 ms while there is work, every 50 ms otherwise
    expire    deadlines that have passed
    reap      expired sessions
    targets   accepted executions not completed in time; jobs whose target is gone
    resume    jobs whose pause is over
    operate   bulk operations, batch by batch
    notify    notices, monitors that are due, and callbacks of groups
    declare   schedules that apps declare in their code
    count     what ended in each minute
    retain    housekeeping, once a minute

Standbys run the same loops and find that they do not lead. A step that was refused because its
epoch is over is not an error; the next `lead` step finds out which node leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

import structlog

from hourbell.engine.core import READY, Engine
from hourbell.engine.failing import run_each
from hourbell.engine.leader.activity import count_minutes
from hourbell.engine.leader.bulk_operations import forget_operations, run_operations
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.pauses import end_pauses, pause_abandoned
from hourbell.engine.leader.term import Leadership, Term
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.admit import admit
from hourbell.engine.life.join import complete_joins
from hourbell.engine.life.plan import end_memberships, plan, update_tz_version
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.loop import Loop
from hourbell.engine.operations.completions import end_overdue
from hourbell.engine.operations.reconcile import reconcile

log = structlog.get_logger(component="scheduler")

PLAN_SECONDS = 0.25
ADMIT_BUSY_SECONDS = 0.01
ADMIT_IDLE_SECONDS = 0.05
EXPIRE_SECONDS = 0.5
REAP_SECONDS = 0.5
TARGETS_SECONDS = 0.5
RESUME_SECONDS = 1.0
OPERATE_SECONDS = 0.5
NOTIFY_SECONDS = 0.25
DECLARE_SECONDS = 5.0
COUNT_SECONDS = 10.0
HOUSEKEEPING_SECONDS = 60.0

Step = Callable[[Term, datetime], Awaitable[bool]]


class Scheduler:
    """One candidate for leadership."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.leadership = Leadership(engine)
        self._lead = Loop("lead", self._campaign, self.leadership.step_seconds)
        self._gate = Loop("admit", self._while_leading(self._admit), ADMIT_IDLE_SECONDS)
        self._loops = [
            self._lead,
            self._gate,
            Loop("plan", self._while_leading(self._plan_step), PLAN_SECONDS),
            Loop("expire", self._while_leading(self._expire), EXPIRE_SECONDS),
            Loop("reap", self._while_leading(self._reap), REAP_SECONDS),
            Loop("targets", self._while_leading(self._check_targets), TARGETS_SECONDS),
            Loop("resume", self._while_leading(self._end_pauses), RESUME_SECONDS),
            Loop("operate", self._while_leading(self._operate), OPERATE_SECONDS),
            Loop("notify", self._while_leading(self._notify), NOTIFY_SECONDS),
            Loop("declare", self._while_leading(self._reconcile), DECLARE_SECONDS),
            Loop("count", self._while_leading(self._count_minutes), COUNT_SECONDS),
            Loop("retain", self._while_leading(self._run_housekeeping), HOUSEKEEPING_SECONDS),
        ]
        metrics = engine.metrics
        self._leading = metrics.gauge("hourbell_leading", "Whether this process leads.").series()
        self._terms = metrics.counter(
            "hourbell_leader_changes_total", "Times that this process became the leader."
        ).series()
        metrics.gauge(
            "hourbell_planner_horizon_seconds", "How far ahead executions are planned."
        ).series().set(engine.times.horizon_seconds)
        metrics.before_render(self._show_leadership)
        self._tasks: list[asyncio.Task[None]] = []
        self._last_pass_at = 0.0  # monotonic, of the running loop; valid while this node leads

    def start(self) -> None:
        self._tasks = [asyncio.create_task(loop.run(), name=loop.name) for loop in self._loops]

    async def stop(self) -> None:
        """Cancel the loops and resign, so that the next leader can start at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.leadership.resign()

    def wake(self, payload: str = "") -> None:
        """Run a pass now: an execution may have fallen due. Not after READY: a pass was just run."""
        if not payload.startswith(READY):
            self._gate.wake()

    def makes_progress(self) -> bool:
        """Whether each loop has succeeded recently and, on the leader, a pass of the gate.

        A standby's loops succeed without doing anything; they show that it could lead.
        """
        grace_seconds = self._engine.times.leader_lease_seconds
        if not all(loop.has_succeeded_within(grace_seconds) for loop in self._loops):
            return False
        silent = asyncio.get_running_loop().time() - self._last_pass_at
        return self.leadership.term is None or silent < grace_seconds

    def _show_leadership(self) -> None:
        self._leading.set(self.leadership.term is not None)

    def _while_leading(self, step: Step) -> Callable[[], Awaitable[bool]]:
        async def run_once() -> bool:
            term = self.leadership.term
            if term is None:
                return False
            return await step(term, await self._engine.clock.now())

        return run_once

    async def _campaign(self) -> bool:
        had = self.leadership.term
        try:
            term = await self.leadership.step()
        finally:
            if had is not None and self.leadership.term is None:
                log.warning("lost leadership", epoch=had.epoch)
        if term is not None and term != had:
            log.info("became leader", epoch=term.epoch)
            self._terms.add()
            self._last_pass_at = asyncio.get_running_loop().time()
            for loop in self._loops:
                loop.wake()
        return False

    async def _plan_step(self, term: Term, now: datetime) -> bool:
        return await run_each(
            partial(update_tz_version, self._engine, term, now),
            partial(complete_joins, self._engine, now, term),
            partial(plan, self._engine, term, now),
            partial(end_memberships, self._engine, term, now),
        )

    async def _admit(self, term: Term, now: datetime) -> bool:
        passed = await admit(self._engine, now)
        if not passed.busy:  # if another transaction keeps the gate's lock, nothing is admitted
            self._last_pass_at = asyncio.get_running_loop().time()
        if passed.examined:
            self._engine.announce_ready()
        if passed.more or passed.examined:
            await asyncio.sleep(0 if passed.more and not passed.busy else ADMIT_BUSY_SECONDS)
            return True
        return False

    async def _expire(self, term: Term, now: datetime) -> bool:
        return await expire(self._engine, term, now)

    async def _reap(self, term: Term, now: datetime) -> bool:
        if not self.leadership.may_reap(now):
            return False
        reaped = await reap(self._engine, term, now)
        if reaped.sessions:
            log.warning(
                "sessions expired",
                sessions=reaped.sessions,
                returned=reaped.returned,
                ended=reaped.ended,
            )
        return bool(reaped.sessions)

    async def _check_targets(self, term: Term, now: datetime) -> bool:
        return await run_each(
            partial(end_overdue, self._engine, term, now),
            partial(pause_abandoned, self._engine, term),
        )

    async def _end_pauses(self, term: Term, now: datetime) -> bool:
        return await end_pauses(self._engine, now)

    async def _operate(self, term: Term, now: datetime) -> bool:
        return await run_operations(self._engine, term, now)

    async def _notify(self, term: Term, now: datetime) -> bool:
        return await run_each(
            partial(watch, self._engine, term, now),
            partial(follow_groups, self._engine, term, now),
            partial(send_notices, self._engine, term, now),
        )

    async def _reconcile(self, term: Term, now: datetime) -> bool:
        await reconcile(self._engine, None, term)
        return False

    async def _count_minutes(self, term: Term, now: datetime) -> bool:
        return await count_minutes(self._engine, term, now)

    async def _run_housekeeping(self, term: Term, now: datetime) -> bool:
        kept = timedelta(days=self._engine.times.audit_days)
        return await run_each(
            partial(forget_operations, self._engine, term, now - kept),
            partial(run_housekeeping, self._engine, term, now),
        )
