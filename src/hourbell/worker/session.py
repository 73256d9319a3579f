"""The session keeper: opens the worker's session, renews it, and notices when it is lost.

The database decides what a worker holds: what the last heartbeat confirmed. After a whole
lease without a successful heartbeat the session is in doubt, because its executions may have been
given to other workers: the worker starts nothing more. Running executions continue, and are stopped
when a heartbeat reports them lost. So an outage of the database runs nothing twice, and a worker
that was cut off alone stops once it can detect the loss.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from hourbell.dispatch import Dispatch, Session
from hourbell.engine.loop import BackoffTimer
from hourbell.model.errors import SessionLost
from hourbell.model.executions import Claimed
from hourbell.worker.executions import Executions, StopReason
from hourbell.worker.settings import WorkerSettings
from hourbell.worker.settler import Settler, log_error
from hourbell.worker.watchdog import Watchdog

log = structlog.get_logger(component="worker")


class SessionKeeper:
    """Keeps the session that holds everything this process has claimed."""

    def __init__(
        self,
        dispatch: Dispatch,
        settings: WorkerSettings,
        executions: Executions,
        watchdog: Watchdog,
        settler: Settler,
        stopping: asyncio.Event,
    ) -> None:
        self._dispatch = dispatch
        self._settings = settings
        self._executions = executions
        self._watchdog = watchdog
        self._settler = settler
        self._stopping = stopping  # no new session is opened any more
        self._renewed_at = 0.0  # when the last successful heartbeat was sent
        self.current: Session | None = None
        # Claims are numbered within a session.
        self.last_claim = 0
        self.answered_claim = 0  # claims up to this number are answered

    def certain_until(self) -> float:
        """Until when the lease is certain; executions are claimed and started only until then."""
        return self._renewed_at + self._settings.lease_seconds

    def may_start(self, now: float) -> bool:
        """Whether executions may be claimed and started at this time."""
        return now <= self.certain_until()

    async def run(self, renewed: Callable[[], None]) -> None:
        """Heartbeats every third of the lease; more often while the database does not answer."""
        backoff = BackoffTimer()
        while True:
            try:
                if self.current is None:
                    await self._open()
                else:
                    await self._heartbeat(self.current)
            except Exception as error:
                log_error("renewing the session", error)
                await backoff.wait()
                continue
            backoff.reset()
            renewed()
            await asyncio.sleep(self._settings.lease_seconds / 3)

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        """Store a checkpoint of an execution; False if the session does not hold it."""
        if (session := self.current) is None:
            return False
        return await self._dispatch.set_checkpoint(
            session, claimed.execution_id, claimed.fence, value
        )

    def lose(self, session: Session) -> None:
        """Stop everything: other workers may have been given the executions."""
        if self.current is not session:
            return
        log.warning("session lost", executions=len(self._executions))
        self.current = self._settler.session = None
        self.last_claim = self.answered_claim = 0
        for execution in self._executions.forget_all():
            self._watchdog.stop(execution, StopReason.LOST)

    async def _open(self) -> None:
        if self._stopping.is_set():
            return
        asked_at = time.monotonic()
        settings = self._settings
        self.current = self._settler.session = await self._dispatch.open(
            settings.name, settings.queues, settings.slots, settings.tasks, settings.manifest
        )
        self._renewed_at = asked_at
        self._executions.changed.set()

    async def _heartbeat(self, session: Session) -> None:
        asked_at = time.monotonic()
        answered = self.answered_claim  # read before the list, which lacks later claims
        listed = self._executions.snapshot()
        try:
            result = await self._dispatch.heartbeat(session, list(listed), answered)
        except SessionLost:
            self.lose(session)
            await self._open()
            return
        if self.current is not session:
            return
        self._renewed_at = asked_at
        for number in result.lost:
            # An execution settled during the heartbeat is reported too; it may be claimed again.
            one = listed[number]
            if self._executions.get(number) is one and not one.completes:
                self._watchdog.stop(one, StopReason.LOST)
        for number in result.cancelled:
            if (execution := self._executions.get(number)) is not None:
                self._watchdog.stop(execution, StopReason.CANCELLED)
