"""The executions of this process, from their claim to their settled outcome.

    claimed ─▶ queued ─▶ running ─▶ decided ─▶ settled
                  └── stopped before it ran ─▲

One `LocalExecution` passes through all steps. The claimer creates it, a runner runs it, the
watchdog and the session keeper may stop it, the settler settles it; they all meet here. Everything
happens in one thread, and no method suspends, so none sees a partial change of another.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
import structlog

from hourbell.dispatch import Settlement
from hourbell.engine.life.failures import FailureLog
from hourbell.engine.life.settlement import SUCCEEDED, settlement
from hourbell.model.executions import (
    TIMEOUT,
    Cancelled,
    Claimed,
    Failed,
    Interrupted,
    Outcome,
    Released,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import SentSpec
from hourbell.worker.counts import RunCounts
from hourbell.worker.settler import Settler

if TYPE_CHECKING:
    from hourbell.observe.spans import RunSpan, Traces

log = structlog.get_logger(component="worker")

# Where a settlement leaves an execution, by its kind.
_STATUS_AFTER = (
    "SUCCEEDED",
    "RETRYING",
    "DEAD",
    "CANCELLED",
    "QUEUED",
    "AWAITING",
    "DEAD",
    "QUEUED",
    "SCHEDULED",
)


class StopReason(Enum):
    """Why the worker stops an execution."""

    TIMEOUT = "timeout"  # of the attempt, or the total deadline
    LOST = "lost"  # the session no longer holds it, another worker may
    CANCELLED = "cancelled"  # cancellation was requested
    SHUTDOWN = "shutdown"  # the worker stops


class LocalExecution(msgspec.Struct, eq=False, gc=False):
    """One claimed execution in this process. All times are monotonic."""

    claimed: Claimed
    start_at: float  # the earliest time at which it may start
    deadline: float | None = None  # the total one, by the local time since the claim
    spec: SentSpec | None = None  # decoded when it starts
    runner: asyncio.Task[None] | None = None  # that runs it, or waits for its start
    started_at: float | None = None
    stop_at: float = math.inf  # it is cancelled after this; if it was cancelled before, again
    stop_reason: StopReason | None = None
    is_decided: bool = False  # its outcome is final, whether it has ended or not
    is_dropped: bool = False  # its claim was lost with the session, or repeated under a new fence
    completes: bool = False  # its handler ends it in a transaction of its own
    claim_ns: tuple[int, int] | None = None  # when its claim began and ended, for its trace
    span: RunSpan | None = None  # None: it has not started, or this process has no traces

    def stopped(self) -> Outcome:
        """The outcome of an execution that ended because it was stopped."""
        if self.stop_reason is StopReason.TIMEOUT:
            return Failed("The attempt exceeded its timeout.", TIMEOUT)
        if self.stop_reason is StopReason.SHUTDOWN:
            # Not started: it waited for its start under a rate limit.
            return Released() if self.started_at is None else Interrupted()
        return Cancelled()


class Executions:
    """All executions of this process, and the slots that they occupy."""

    def __init__(
        self, slots: int, settler: Settler, counts: RunCounts, traces: Traces | None = None
    ) -> None:
        self._slots = slots
        self._settler = settler
        self._counts = counts
        self._traces = traces
        self._failures = FailureLog(log)
        self._by_id: dict[int, LocalExecution] = {}  # claimed and not yet settled
        self._busy = 0  # queued or running: slots in use
        self._lingering = 0  # of those: decided, but not ended
        self.queue: deque[LocalExecution] = deque()  # not yet started
        self.stopping: set[LocalExecution] = set()  # cancelled, and not ended
        self.earliest_stop = math.inf  # no running execution exceeds its timeout before this
        self.changed = asyncio.Event()  # a slot was freed, or something else to look at

    def __iter__(self) -> Iterator[LocalExecution]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def free_slots(self) -> int:
        return self._slots - self._busy

    @property
    def are_decided(self) -> bool:
        """Whether nothing is queued or running, except what is already decided."""
        return self._busy == self._lingering

    @property
    def lingering(self) -> int:
        """How many were stopped and decided, and still run."""
        return self._lingering

    def get(self, execution_id: int) -> LocalExecution | None:
        return self._by_id.get(execution_id)

    def snapshot(self) -> dict[int, LocalExecution]:
        """By id: what a heartbeat lists."""
        return dict(self._by_id)

    async def wait(self, seconds: float) -> None:
        """Wait for a change, or this long."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            pass
        # Cleared before the caller checks its state, so that no later change is missed.
        self.changed.clear()

    # The steps.

    def add(self, claimed: Sequence[Claimed], now: float) -> list[LocalExecution]:
        """Queue claimed executions; returns earlier ones with the same id, whose claim was lost."""
        by_id = self._by_id
        lost: list[LocalExecution] = []
        if not by_id.keys().isdisjoint([one.execution_id for one in claimed]):
            claimed = [one for one in claimed if not self._is_held(one)]  # a repeated answer
            for one in claimed:
                if (known := by_id.get(one.execution_id)) is not None:
                    known.is_dropped = True
                    lost.append(known)
        # Whole lists at a time: this is done for every execution.
        added = [
            LocalExecution(
                one,
                now + one.start_in_seconds,
                None if one.deadline_in_seconds is None else now + one.deadline_in_seconds,
            )
            for one in claimed
        ]
        by_id.update(zip([one.execution_id for one in claimed], added, strict=True))
        self.queue.extend(added)
        self._busy += len(added)
        return lost

    def _is_held(self, claimed: Claimed) -> bool:
        known = self._by_id.get(claimed.execution_id)
        return known is not None and known.claimed.fence == claimed.fence

    def note_claim(self, claimed: Sequence[Claimed], began_ns: int, ended_ns: int) -> None:
        """When executions that were just added were claimed, for their traces."""
        claim_ns = began_ns, ended_ns
        for one in claimed:
            if (execution := self._by_id.get(one.execution_id)) is not None:
                execution.claim_ns = claim_ns

    def withdraw(self, execution: LocalExecution) -> bool:
        """Take an execution from the queue; False if it is not there."""
        try:
            self.queue.remove(execution)
        except ValueError:
            return False
        return True

    def finish(self, execution: LocalExecution, outcome: Outcome, now: float) -> None:
        """Record an ended execution and free its slot."""
        execution.runner = None
        if execution.stop_reason is not None:
            self.stopping.discard(execution)
        if execution.is_decided:
            self._lingering -= 1
        else:
            self._decide(execution, outcome, now)
        self._busy -= 1
        if not self.changed.is_set():
            self.changed.set()

    def linger(self, execution: LocalExecution, outcome: Outcome, now: float) -> None:
        """Record the outcome of an execution that still runs: its slot stays taken."""
        if execution.is_decided:
            return
        claimed = execution.claimed
        log.warning(
            "handler ignored cancellation",
            execution_id=execution_text(claimed.execution_id),
            job_id=job_text(claimed.job_id),
            attempt=claimed.attempt,
            tenant=claimed.tenant_id,
        )
        self._decide(execution, outcome, now)
        self._lingering += 1
        self.changed.set()  # a drain does not wait for it

    def forget(self, settled: Sequence[Settlement], refused: Collection[int]) -> None:
        """Drop settled executions: heartbeats no longer list them."""
        if self._traces is not None:
            self._end_settles(settled, refused)
        by_id = self._by_id
        for one in settled:
            execution = by_id.pop(one.execution_id, None)
            if execution is not None and execution.claimed.fence != one.fence:
                by_id[one.execution_id] = execution  # claimed again after its claim was lost
        if not by_id:
            self.changed.set()  # a session in quarantine waits until nothing is held

    def forget_all(self) -> list[LocalExecution]:
        """Drop everything, because the session is lost; no outcome is settled any more."""
        dropped, self._by_id = self._by_id, {}
        for execution in dropped.values():
            execution.is_dropped = True
        self._settler.forget()
        if self._traces is not None:
            for execution in dropped.values():
                if execution.span is not None:
                    execution.span.not_settled("session_lost")
        return list(dropped.values())

    def _decide(self, execution: LocalExecution, outcome: Outcome, now: float) -> None:
        deadline, started = execution.deadline, execution.started_at
        if started is None:
            started = now
        took = now - started
        is_lost = execution.stop_reason is StopReason.LOST
        if execution.span is not None:
            execution.span.end(outcome, not (execution.is_dropped or is_lost))
        if execution.is_dropped:
            pass  # no outcome would be accepted
        elif is_lost:
            del self._by_id[execution.claimed.execution_id]
        else:
            waited_ms = int((started - execution.start_at) * 1000)
            decided = settlement(
                execution.claimed,
                execution.spec,
                outcome,
                waited_ms if waited_ms > 0 else 0,
                int(took * 1000),
                None if deadline is None else deadline - now,
            )
            if decided.kind != SUCCEEDED:
                self._failures.note(decided, execution.claimed)
            elif decided.error is not None:
                log.warning(
                    "result not stored",
                    execution_id=execution_text(execution.claimed.execution_id),
                    job_id=job_text(execution.claimed.job_id),
                    attempt=execution.claimed.attempt,
                    tenant=execution.claimed.tenant_id,
                    why=decided.error,
                )
            self._settler.put(decided)
        if execution.spec is not None:
            if type(outcome) is not Released:
                self._counts.ended(execution.spec, took)
            execution.spec = None  # freed here, where it is in the caches
        execution.is_decided = True

    def _end_settles(self, settled: Sequence[Settlement], refused: Collection[int]) -> None:
        for one in settled:
            execution = self._by_id.get(one.execution_id)
            if execution is None or execution.span is None or execution.claimed.fence != one.fence:
                continue
            if one.execution_id in refused:
                execution.span.not_settled("refused")
            else:
                execution.span.settled(_STATUS_AFTER[one.kind])
