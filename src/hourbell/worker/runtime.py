"""The worker of a process: wires its parts, runs them together, and drains them at the end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from typing import TYPE_CHECKING

import structlog

from hourbell.actions import ActionRunners
from hourbell.dispatch import Dispatch, Session
from hourbell.engine.core import READY
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import Released
from hourbell.observe.metrics import Metrics
from hourbell.worker.claimer import Claimer
from hourbell.worker.counts import RunCounts
from hourbell.worker.executions import Executions, StopReason
from hourbell.worker.report import log_running
from hourbell.worker.runners import Runners
from hourbell.worker.session import SessionKeeper
from hourbell.worker.settings import WorkerSettings as WorkerSettings
from hourbell.worker.settler import Settler
from hourbell.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from hourbell.observe.spans import Traces

log = structlog.get_logger(component="worker")

_DRAIN_POLL_SECONDS = 0.1
_STOP_SECONDS = 4.0  # for handlers to clean up after the drain has stopped them


class Worker:
    """Runs executions until it is stopped; without `counts` nothing reads what it counts."""

    def __init__(
        self,
        dispatch: Dispatch,
        actions: ActionRunners,
        settings: WorkerSettings,
        counts: RunCounts | None = None,
        traces: Traces | None = None,
    ) -> None:
        counts = counts or RunCounts(Metrics(), time.monotonic, time.monotonic)
        self._dispatch = dispatch
        self._settings = settings
        self._stopping = asyncio.Event()
        self._settler = Settler(dispatch, settings.gather_seconds)
        self._executions = Executions(settings.slots, self._settler, counts, traces)
        self._watchdog = Watchdog(self._executions)
        self._session = SessionKeeper(
            dispatch, settings, self._executions, self._watchdog, self._settler, self._stopping
        )
        self._runners = Runners(
            actions,
            self._executions,
            settings.slots,
            self._session.certain_until,
            self._session,
            settings.name,
            counts,
            traces,
        )
        self._claimer = Claimer(
            dispatch,
            settings,
            self._executions,
            self._watchdog,
            self._session,
            self._runners,
            self._stopping,
            counts,
            traces is not None,
        )
        counts.watch(settings.slots, self._executions)

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def session(self) -> Session | None:
        """The current session, or None while there is none."""
        return self._session.current

    @property
    def slots(self) -> int:
        """How many executions it runs at the same time."""
        return self._settings.slots

    @property
    def is_working(self) -> bool:
        """Whether it accepts executions: it has a session, and has renewed it in time."""
        return (
            self._session.current is not None
            and self._session.may_start(time.monotonic())
            and not self._stopping.is_set()
        )

    @property
    def is_stopping(self) -> bool:
        """Whether it drains."""
        return self._stopping.is_set()

    def hold(self, execution_id: int) -> None:
        """The action waits for something in this process.

        Until `begin` no timeout runs, only the total deadline, and a drain releases the execution.
        """
        execution = self._executions.get(execution_id)
        if execution is not None and execution.stop_reason is None:
            execution.started_at = None
            execution.stop_at = math.inf if execution.deadline is None else execution.deadline

    def begin(self, execution_id: int, timeout_seconds: float) -> float:
        """The action begins now; returns the seconds after which it is stopped."""
        execution = self._executions.get(execution_id)
        if execution is None or execution.stop_reason is not None or execution.spec is None:
            return timeout_seconds
        execution.started_at = now = time.monotonic()
        timeout = float(execution.spec.timeout_seconds)
        if execution.deadline is not None:
            timeout = max(min(timeout, execution.deadline - now), 0.0)
        execution.stop_at = now + timeout
        self._executions.earliest_stop = min(self._executions.earliest_stop, execution.stop_at)
        return timeout

    def expect_completion(self, execution_id: int) -> None:
        """The handler may end the execution itself: that it is no longer held means nothing."""
        execution = self._executions.get(execution_id)
        if execution is not None:
            execution.completes = True

    def is_stopped(self, execution_id: int, fence: int) -> bool:
        """Whether a run was asked to stop, or its lease is lost. May be called in any thread."""
        execution = self._executions.get(execution_id)
        if execution is None or execution.claimed.fence != fence:
            return True
        return execution.stop_reason is not None

    def drop(self, execution_id: int) -> None:
        """The execution has ended: there is nothing to settle."""
        execution = self._executions.get(execution_id)
        if execution is not None:
            execution.stop_reason = StopReason.LOST

    def report(self) -> None:
        """Log what runs."""
        log_running(self._executions, time.monotonic())

    def wake(self, payload: str = "") -> None:
        """Claim now: an execution may have fallen due, or (READY) has become ready."""
        kind, _, by_session = payload.partition(" ")
        session = self._session.current
        if session is None or by_session != str(session.id):  # not announced by this worker itself
            self._claimer.notify(is_due=kind != READY)

    def stop(self) -> None:
        """Drain: start nothing more, let running executions finish, release the rest."""
        self._stopping.set()
        self._executions.changed.set()

    @property
    def held(self) -> int:
        """How many executions it has claimed that have not been settled."""
        return len(self._executions)

    async def run(self) -> None:
        """Work until `stop`, then drain."""
        structlog.contextvars.bind_contextvars(worker=self._settings.name)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._settler.run(self._executions.forget)),
                group.create_task(self._session.run(self._runners.wake)),
                group.create_task(self._watchdog.run()),
            ]
            try:
                await self._claimer.run()
                await self._drain()
            finally:
                self._stopping.set()  # also after an error: it accepts no executions
                self._runners.close()
                for task in background:
                    task.cancel()
        # Executions that could not be stopped or recorded were started, so they are not released:
        # they are lost with the session.
        if self._session.current is not None and not len(self._executions):
            with contextlib.suppress(StoreUnavailable):
                await self._dispatch.close(self._session.current)

    async def _drain(self) -> None:
        """Release what has not started, wait for the rest, stop it when its time is over."""
        queue = self._executions.queue
        while queue:
            self._executions.finish(queue.popleft(), Released(), time.monotonic())
        for execution in self._executions:
            if execution.runner is not None and execution.started_at is None:
                self._watchdog.stop(execution, StopReason.SHUTDOWN)
        give_up_at = time.monotonic() + self._settings.drain_seconds
        await self._recorded(give_up_at)
        for execution in self._executions:
            if execution.runner is not None:
                self._watchdog.stop(execution, StopReason.SHUTDOWN)
        await self._recorded(time.monotonic() + _STOP_SECONDS)
        for execution in self._executions:  # those that do not end run again elsewhere at once
            if execution.runner is not None:
                self._executions.linger(execution, execution.stopped(), time.monotonic())
        try:
            async with asyncio.timeout(self._settings.lease_seconds):
                await self._settler.drained()
        except TimeoutError:
            log.warning("stopped with unsettled outcomes, executions will run again")

    async def _recorded(self, give_up_at: float) -> None:
        """Wait until every execution has ended or its outcome is recorded."""
        while not self._executions.are_decided and time.monotonic() < give_up_at:
            await self._executions.wait(_DRAIN_POLL_SECONDS)
