"""Runners: a pool of long-lived tasks that run executions from one queue.

A runner that is about to start an execution wakes the next runner if more are queued. So a handler
that suspends never blocks the queue, and handlers that do not suspend run one after the other in
one task. No execution has a task or a timeout object of its own: a runner awaits the handler
directly, and the watchdog stops it by cancelling the runner, which records the reason and continues
with the next execution. All runners together yield to the other tasks of the process after a while,
so that handlers that do not suspend delay neither heartbeats nor claims and settles.

Handlers run in the runner's own task, so they can cancel it, ignore cancellation, or change its
context variables. Nothing of that reaches the next execution:

- What a runner does never depends on the task's cancellation count; the count left when a handler
  has ended belongs to that handler, and is cleared.
- A runner whose context variables were changed ends, and another one takes its place.
- A runner that ends for any other reason is replaced too, and what it ran is recorded as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog

from hourbell.actions import ActionRunners, Run, StillRunning, WorkerCalls, failed
from hourbell.dispatch.unreadable import UnreadableJobs
from hourbell.model.executions import CANNOT_READ, Failed, Outcome, Snoozed, Succeeded
from hourbell.model.jobs import decode_spec
from hourbell.worker.counts import RunCounts
from hourbell.worker.executions import Executions, LocalExecution, StopReason

if TYPE_CHECKING:
    from hourbell.observe.spans import Traces

log = structlog.get_logger(component="worker")

YIELD_SECONDS = 0.01  # runners yield to other tasks after this

Runner = asyncio.Task[None]  # a task of this pool, which awaits an `ActionRunner`


class _OtherWorkers:
    """Fails actions that this worker does not serve: the job was changed after its run was ready."""

    async def run(self, action: Any, run: Run) -> Outcome:
        kind = type(action).__name__.removesuffix("Action").upper()
        return Failed(f"This worker runs no actions of the type {kind}.", "unknown_task")


_OTHER_WORKERS = _OtherWorkers()


class Runners:
    """Runs the queue, with at most one runner for each slot."""

    def __init__(
        self,
        actions: ActionRunners,
        executions: Executions,
        slots: int,
        certain_until: Callable[[], float],
        calls: WorkerCalls,
        worker: str,
        counts: RunCounts,
        traces: Traces | None = None,
    ) -> None:
        self._actions = actions
        self._counts = counts
        self._executions = executions
        self._slots = slots
        self._calls = calls
        self._worker = worker  # its name
        self._traces = traces
        self._certain_until = certain_until  # until when executions may be started
        self._unreadable = UnreadableJobs(log)
        self._context = contextvars.copy_context()  # of every runner when it starts
        self._context.run(structlog.contextvars.bind_contextvars, worker=worker)
        self._tasks: set[Runner] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._numbers = count(1)
        self._is_waking = False  # a runner was woken and does not run yet
        self._yield_at = 0.0  # the end of the runners' turn
        self._start_until = 0.0  # nothing is started later; as it was when the turn began
        self._is_yielding = False  # the turn is over, and the next one is scheduled
        self._is_closed = False

    def wake(self) -> None:
        """Begin a turn: run what is queued."""
        self._start_until = self._certain_until()
        if not self._is_yielding:
            self._yield_at = time.monotonic() + YIELD_SECONDS
        self._wake_one()

    def close(self) -> None:
        """End all runners, whatever they do."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def _wake_one(self) -> None:
        """Wake one runner if executions are queued; it wakes the next."""
        if self._is_waking or self._is_closed or not self._executions.queue:
            return
        while self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._is_waking = True
                return
        if len(self._tasks) < self._slots:
            task = asyncio.get_running_loop().create_task(
                self._run_queue(),
                name=f"hourbell-runner-{next(self._numbers)}",
                context=self._context.copy(),
            )
            self._tasks.add(task)
            self._is_waking = True

    async def _run_queue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        queue = self._executions.queue
        execution: LocalExecution | None = None
        self._is_waking = False
        now = time.monotonic()
        try:
            while not self._is_closed:
                if now > self._yield_at:
                    self._yield()
                if not queue or self._is_yielding or now > self._start_until:
                    now = await self._next_wake()
                    continue
                execution = queue.popleft()
                if queue and not self._is_waking:
                    self._wake_one()
                execution.runner = me
                try:
                    if execution.claimed.start_in_seconds:
                        now = await _wait_for_start(execution, now)
                    run = self._start(execution, now)
                    action = run.spec.action
                    runner = self._actions.get(type(action), _OTHER_WORKERS)
                    if run.span is None:
                        outcome = await runner.run(action, run)
                    else:
                        with run.span.current():
                            outcome = await runner.run(action, run)
                except StillRunning as still:
                    outcome, now = self._stopped_or_failed(execution, still), time.monotonic()
                    self._record_running_thread(execution, outcome, still, now)
                except BaseException as error:
                    outcome, now = self._stopped_or_failed(execution, error), time.monotonic()
                    self._executions.finish(execution, outcome, now)
                else:
                    if execution.stop_reason is not None and not isinstance(
                        outcome, Succeeded | Snoozed
                    ):
                        outcome = execution.stopped()
                    now = time.monotonic()
                    self._executions.finish(execution, outcome, now)
                execution = None
                if me.cancelling():
                    await _clear_cancellations(me)
                    now = time.monotonic()
                if self._is_context_changed():
                    return
        finally:
            self._runner_ended(me, execution)

    async def _next_wake(self) -> float:
        """Wait until this runner is woken; returns the time."""
        waiter = asyncio.get_running_loop().create_future()
        self._idle.append(waiter)
        await waiter
        self._is_waking = False
        return time.monotonic()

    def _yield(self) -> None:
        """Start nothing more in this iteration of the event loop."""
        if not self._is_yielding:
            self._is_yielding = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Begin the next turn, in the next iteration: the other tasks have had theirs."""
        self._is_yielding = False
        self.wake()

    def _runner_ended(self, runner: Runner, execution: LocalExecution | None) -> None:
        """Clean up after a runner that ended for any reason, so that nothing it held is lost."""
        self._tasks.discard(runner)
        if self._is_closed:
            return
        self._is_waking = False
        if execution is not None:
            outcome = Failed("The worker's runner ended during the execution.", "runner")
            self._executions.finish(execution, outcome, time.monotonic())
        self._wake_one()

    def _stopped_or_failed(self, execution: LocalExecution, error: BaseException) -> Outcome:
        """The outcome of an execution that was stopped, or whose action has raised an exception."""
        if isinstance(error, asyncio.CancelledError):
            if execution.stop_reason is not None:
                return execution.stopped()
            if self._is_closed:
                raise error
            return Failed("The handler raised CancelledError.", "CancelledError")
        if execution.spec is None:  # decoding it is what failed
            self._unreadable.log(execution.claimed, error)
            return CANNOT_READ
        # A failure at a shutdown follows from it: drivers turn a cancellation into an error.
        if execution.span is not None:
            execution.span.record_exception(error)
        is_shutdown = execution.stop_reason is StopReason.SHUTDOWN
        return execution.stopped() if is_shutdown else failed(error)

    def _start(self, execution: LocalExecution, now: float) -> Run:
        """Decode the document and determine the time limit."""
        claimed = execution.claimed
        execution.started_at = now
        execution.spec = spec = decode_spec(claimed.spec)
        self._counts.started(claimed, spec, now)
        timeout = float(spec.timeout_seconds)
        if execution.deadline is not None:
            timeout = max(min(timeout, execution.deadline - now), 0.0)
        execution.stop_at = stop_at = now + timeout
        if stop_at < self._executions.earliest_stop:
            self._executions.earliest_stop = stop_at
        if self._traces is None:
            return Run(claimed, spec, timeout, self._calls)
        execution.span = self._traces.start_run(
            execution.claimed, spec, self._worker, execution.claim_ns
        )
        return Run(execution.claimed, spec, timeout, self._calls, execution.span)

    def _record_running_thread(
        self, execution: LocalExecution, outcome: Outcome, still: StillRunning, now: float
    ) -> None:
        """Record an execution whose thread cannot be stopped; its slot is free when that ends."""
        execution.runner = None  # the runner continues with other executions
        self._executions.stopping.discard(execution)
        self._executions.linger(execution, outcome, now)
        still.ended.add_done_callback(
            lambda _: self._executions.finish(execution, outcome, time.monotonic())
        )

    def _is_context_changed(self) -> bool:
        """Whether a handler has left context variables behind."""
        try:
            return contextvars.copy_context() != self._context
        except Exception:  # values that cannot be compared
            return True


async def _wait_for_start(execution: LocalExecution, now: float) -> float:
    """Wait for the start that a rate limit allows; returns the time."""
    if (early := execution.start_at - now) > 0:
        await asyncio.sleep(early)
        return time.monotonic()
    return now


async def _clear_cancellations(runner: Runner) -> None:
    """Clear the cancellations of a handler that has ended.

    Includes one that arrived too late for it and would hit the next handler.
    """
    while runner.cancelling():
        runner.uncancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
