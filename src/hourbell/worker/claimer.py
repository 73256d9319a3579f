"""The claimer: claims as many executions as slots are free, and queues them.

Claims run concurrently with the executions of earlier claims and with their settles. A claim that
got no answer is repeated under its number, because it may have been committed; it then returns the
same executions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from hourbell.dispatch import Dispatch, Session
from hourbell.engine.loop import BackoffTimer
from hourbell.model.errors import SessionLost
from hourbell.model.executions import Claimed
from hourbell.observe.clock import epoch_ns
from hourbell.worker.counts import RunCounts
from hourbell.worker.executions import Executions, StopReason
from hourbell.worker.runners import Runners
from hourbell.worker.session import SessionKeeper
from hourbell.worker.settings import WorkerSettings
from hourbell.worker.settler import log_error
from hourbell.worker.watchdog import Watchdog

POLL_SECONDS = 0.1  # how long a ready execution may wait if no notification reaches us
GATE_SECONDS = 0.5  # how often an idle worker runs the gate itself: the leader may have died
FREED_SLOT_SECONDS = 0.01  # how soon after a claim that was not full freed slots lead to the next
GATHER_SECONDS = 0.005  # wait for more free slots: a large claim costs little more than a small one
_MAX_PER_CLAIM = 2_000


class Claimer:
    """Keeps the queue filled."""

    def __init__(
        self,
        dispatch: Dispatch,
        settings: WorkerSettings,
        executions: Executions,
        watchdog: Watchdog,
        session: SessionKeeper,
        runners: Runners,
        stopping: asyncio.Event,
        counts: RunCounts,
        is_traced: bool = False,
    ) -> None:
        self._counts = counts
        self._dispatch = dispatch
        self._settings = settings
        self._executions = executions
        self._watchdog = watchdog
        self._session = session
        self._runners = runners
        self._stopping = stopping
        self._is_traced = is_traced
        self._low_share_due = 0.0  # rises with every claim; from 1 on, the claim begins with LOW
        self._gate_at = 0.0  # when to run the gate next; monotonic
        self._is_notified = False  # since the last claim began
        self._is_due = False  # run the gate before the next claim, unless more is ready
        self._is_more_ready = False  # the last claim was full: it can be repeated without the gate
        # The claim without an answer yet; 0: none.
        self._number = 0
        self._is_repeated = False
        self._claim_session: Session | None = None  # the session of that claim

    def notify(self, is_due: bool) -> None:
        """Claim now. `is_due`: run the gate first, because an execution may have fallen due."""
        self._is_notified = True
        self._is_due = self._is_due or is_due
        self._executions.changed.set()

    async def run(self) -> None:
        """Claim until the worker is stopped."""
        backoff = BackoffTimer()
        has_gathered = False  # it has waited for more free slots before the next claim
        while not self._stopping.is_set():
            self._counts.flush()
            session = self._session.current
            free = self._executions.free_slots
            if session is None or free <= 0 or not self._session.may_start(time.monotonic()):
                await self._executions.wait(POLL_SECONDS)
                continue
            if self._is_more_ready and free < self._settings.slots // 4 and not has_gathered:
                has_gathered = True
                await asyncio.sleep(GATHER_SECONDS)
                continue
            has_gathered = False
            limit = min(free, _MAX_PER_CLAIM)
            reserved = max(self._settings.critical_slots - (free - limit), 0)
            self._is_notified = False
            began_ns = epoch_ns() if self._is_traced else 0
            try:
                claimed = await self._claim(session, limit, reserved)
            except SessionLost:
                self._session.lose(session)
                continue
            except Exception as error:
                self._is_repeated = True
                log_error("claiming", error)
                await backoff.wait()
                continue
            backoff.reset()
            if self._session.current is not session:
                continue  # the session was lost meanwhile, and its claims with it
            for lost in self._executions.add(claimed, time.monotonic()):
                self._watchdog.stop(lost, StopReason.LOST)
            if claimed:
                if self._is_traced:
                    self._executions.note_claim(claimed, began_ns, epoch_ns())
                self._runners.wake()
            self._session.answered_claim, self._number = self._number, 0
            self._is_more_ready = len(claimed) == limit
            if self._is_due:
                continue  # the gate is run after a claim that is not full, or when its time has come
            if self._is_more_ready:
                self._gate_at = time.monotonic() + GATE_SECONDS  # enough is ready without the gate
            elif len(claimed) >= limit - reserved:
                await self._executions.wait(POLL_SECONDS)  # for a slot that is not reserved
            else:
                await self._wait_for_more()

    async def _wait_for_more(self) -> None:
        """Wait until more may be ready.

        The last claim took all that it could get, so after a freed slot FREED_SLOT_SECONDS pass
        before the next one. That one is for what another claim had locked, or for what this session
        gets only when it holds nothing (quarantine).
        """
        claimed_at = time.monotonic()
        await self._executions.wait(POLL_SECONDS)
        while not (self._is_notified or self._stopping.is_set()):
            left = claimed_at + FREED_SLOT_SECONDS - time.monotonic()
            if left <= 0:
                return
            await self._executions.wait(left)

    async def _claim(self, session: Session, limit: int, reserved: int) -> Sequence[Claimed]:
        if not self._number or session is not self._claim_session:
            self._session.last_claim += 1
            self._number, self._is_repeated = self._session.last_claim, False
            self._claim_session = session
            self._low_share_due = self._low_share_due % 1 + self._settings.low_share
        if (self._is_due and not self._is_more_ready) or time.monotonic() > self._gate_at:
            self._is_due = False
            self._gate_at = time.monotonic() + GATE_SECONDS
            await self._dispatch.admit(session)
        return await self._dispatch.claim(
            session,
            self._number,
            limit,
            self._is_repeated,
            reserved,
            self._low_share_due >= 1,
        )
