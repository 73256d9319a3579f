"""The watchdog: stops executions, and repeats the cancellation of those that do not end.

An execution is stopped by cancelling its runner. A handler that does not end when it is cancelled
is cancelled repeatedly. Its outcome is recorded after a grace period at the latest, but its
slot stays taken, because it still uses the process. The same holds for a thread, but its outcome is
recorded at once.

A handler that never suspends cannot be cancelled, in asyncio or here. If it suspends after its
timeout, it is cancelled then.
"""

from __future__ import annotations

import asyncio
import math
import time

from hourbell.worker.executions import Executions, LocalExecution, StopReason

CHECK_SECONDS = 0.05
GRACE_SECONDS = 5.0  # for a handler to end after a cancellation, before it is cancelled again


class Watchdog:
    """Ends executions before they end themselves."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    async def run(self) -> None:
        """Stop executions that exceed their timeout, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._check(time.monotonic())

    def stop(self, execution: LocalExecution, reason: StopReason) -> None:
        """Cancel an execution, or take it from the queue. The first reason counts."""
        if execution.stop_reason is not None:
            return
        execution.stop_reason = reason
        now = time.monotonic()
        if execution.runner is not None:
            execution.stop_at = now + GRACE_SECONDS
            self._executions.stopping.add(execution)
            execution.runner.cancel()
        elif not execution.is_decided and self._executions.withdraw(execution):
            self._executions.finish(execution, execution.stopped(), now)

    def _check(self, now: float) -> None:
        if now > self._executions.earliest_stop:
            self._stop_overdue(now)
        for execution in list(self._executions.stopping):
            if now > execution.stop_at:
                self._insist(execution, now)

    def _stop_overdue(self, now: float) -> None:
        """Check all executions; the next check is due when another one can exceed its timeout."""
        earliest = math.inf
        for execution in self._executions:
            if execution.runner is None or execution.stop_reason is not None:
                continue
            if now > execution.stop_at:
                self.stop(execution, StopReason.TIMEOUT)
            else:
                earliest = min(earliest, execution.stop_at)
        self._executions.earliest_stop = earliest

    def _insist(self, execution: LocalExecution, now: float) -> None:
        """Record and cancel again an execution that ignored its cancellation."""
        self._executions.linger(execution, execution.stopped(), now)
        execution.stop_at = now + GRACE_SECONDS
        if execution.runner is not None:
            execution.runner.cancel()
