"""The runtime of a worker process: from a claim to a settled outcome.

Executions run in a pool of runners, long-lived tasks that take from one queue. A runner that is
about to start an execution wakes the next runner if more are queued, so a handler that suspends
never blocks the queue, and handlers that do not suspend run one after the other without a task
each. A watchdog stops executions that exceed their timeout; a stopped runner records the reason and
continues with the next execution.

Handlers run in the runner's own task, so they can cancel it, or ignore cancellation. What a runner
does never depends on the task's cancellation count; the count left when a handler has ended belongs
to that handler, and is cleared before the next. A handler that does not end when cancelled is
cancelled again and again. Its outcome is recorded after a grace period at the latest, but its slot
stays taken, because it still uses the process. The same holds for a thread, but its outcome is
recorded at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import structlog

from hourbell.actions import Actions, Run, StillRunning, failed
from hourbell.dispatch import Dispatch, Session, Settlement
from hourbell.engine.leader.loop import Backoff
from hourbell.engine.life.outcomes import settlement
from hourbell.model.errors import SessionLost, StoreUnavailable
from hourbell.model.executions import (
    TIMEOUT,
    Cancelled,
    Claimed,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from hourbell.model.jobs import SentSpec, decode_spec
from hourbell.worker.settling import Settler, complain

log = structlog.get_logger()

IDLE_POLL_SECONDS = 0.1  # how long a ready execution may wait if no notification reaches us
WATCH_SECONDS = 0.05
GATE_SECONDS = 0.5  # how often an idle worker passes the gate itself: the leader may have died
GATHER_SECONDS = 0.005  # wait for more free slots: a large claim costs little more than a small one
YIELD_SECONDS = 0.01  # a runner that never suspends yields to other tasks after this
GRACE_SECONDS = 5.0  # for a handler to end after a cancellation, before it is cancelled again
_MOST_PER_CLAIM = 2_000

_TIMEOUT, _LOST, _UNWANTED, _SHUTDOWN = "timeout", "lost", "unwanted", "shutdown"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queues: Sequence[str] | None = ("default",)  # None: all, including those created later
    tasks: Sequence[str] | None = None  # that it can run; `@webhook` is one. None: all
    slots: int = 100
    critical_slots: int = 0  # of the slots, for CRITICAL only
    low_share: float = 0.05  # of the claims, begin with the least urgent, so LOW is not starved
    lease_seconds: float = 15.0
    drain_seconds: float = 30.0  # how long running executions may continue after a stop


class Held:
    """One claimed execution in this process."""

    __slots__ = (
        "claimed",
        "claimed_at",
        "recorded",
        "runner",
        "spec",
        "started_at",
        "stop",
        "until",
    )

    def __init__(self, claimed: Claimed, claimed_at: float) -> None:
        self.claimed = claimed
        self.claimed_at = claimed_at  # monotonic, like all times here
        self.spec: SentSpec | None = None
        self.started_at: float | None = None
        self.until = 0.0  # it is cancelled after this; if it was cancelled before, again
        self.stop: str | None = None  # why it is being stopped
        self.recorded = False  # its outcome is final, whether it has ended or not
        self.runner: asyncio.Task[None] | None = None

    def remaining(self, now: float) -> float | None:
        """Seconds until the total deadline, by the local time since the claim."""
        left = self.claimed.deadline_in_seconds
        return None if left is None else left - (now - self.claimed_at)

    @property
    def start_at(self) -> float:
        """The earliest time at which it may start."""
        return self.claimed_at + self.claimed.start_in_seconds


class Worker:
    """Runs executions until it is stopped."""

    def __init__(self, dispatch: Dispatch, actions: Actions, settings: WorkerSettings) -> None:
        self._dispatch = dispatch
        self._actions = actions
        self._settings = settings
        self._session: Session | None = None
        self._held: dict[int, Held] = {}  # claimed and not yet settled
        self._queue: deque[Held] = deque()  # not yet started
        self._busy = 0  # queued or running: slots in use
        self._lingering = 0  # of those: recorded, but not ended
        self._told: set[Held] = set()  # cancelled, and not ended
        self._runners: set[asyncio.Task[None]] = set()
        self._idle_runners: list[asyncio.Future[None]] = []
        self._coming = False  # a runner was woken and has not started yet
        self._settler = Settler(dispatch, self._forget)
        self._claims = 0  # the last claim number
        self._resolved = 0  # claims up to this number are answered
        self._renewed_at = 0.0
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._over = False  # the runners must end
        self._notified = False

    @property
    def session(self) -> Session | None:
        """The current session, or None while there is none."""
        return self._session

    @property
    def is_working(self) -> bool:
        """Whether it accepts executions: it has a session, and has renewed it in time."""
        return self._session is not None and not self._in_doubt() and not self._stopping.is_set()

    def wake(self) -> None:
        """Claim now: an execution may have fallen due."""
        self._notified = True
        self._woken.set()

    def stop(self) -> None:
        """Drain: start nothing more, let running executions finish, release the rest."""
        self._stopping.set()
        self._woken.set()

    async def run(self) -> None:
        """Work until `stop`, then drain."""
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._settler.run()),
                group.create_task(self._keep_session()),
                group.create_task(self._watch()),
            ]
            try:
                await self._claim_until_stopped()
                await self._drain()
            finally:
                self._over = True
                for task in (*background, *self._runners):
                    task.cancel()
        # Executions that could not be stopped or recorded were started, so they are not released:
        # they are lost with the session.
        if self._session is not None and not self._held:
            with contextlib.suppress(StoreUnavailable):
                await self._dispatch.close(self._session)

    # Claiming.

    async def _claim_until_stopped(self) -> None:
        backoff = Backoff()
        number, repeated = 0, False  # of a claim without an answer yet
        from_below = 0.0
        asked: Session | None = None  # the session of that claim
        pass_gate_at = 0.0
        more_waits = False  # the last claim was full: more is ready
        while not self._stopping.is_set():
            session = self._session
            free = self._settings.slots - self._busy
            if session is None or free <= 0 or self._in_doubt():
                await self._pause()
                continue
            if more_waits and free < self._settings.slots // 4:
                more_waits = False
                await asyncio.sleep(GATHER_SECONDS)
                continue
            if not number or session is not asked:  # numbering restarts with each session
                self._claims += 1
                number, repeated, asked = self._claims, False, session
                from_below = from_below % 1 + self._settings.low_share
            limit = min(free, _MOST_PER_CLAIM)
            try:
                if self._notified or time.monotonic() > pass_gate_at:
                    self._notified = False
                    pass_gate_at = time.monotonic() + GATE_SECONDS
                    await self._dispatch.admit()
                claimed = await self._dispatch.claim(
                    session,
                    number,
                    limit,
                    repeated,
                    max(self._settings.critical_slots - (free - limit), 0),
                    from_below >= 1,
                )
            except SessionLost:
                self._lose_session(session)
                continue
            except Exception as error:
                # Repeat the number: if the claim was committed, it returns the same executions.
                repeated = True
                complain("claiming", error)
                await backoff.wait()
                continue
            backoff.reset()
            if self._session is not session:
                continue  # the session was lost meanwhile, and its claims with it
            self._take(claimed)
            self._resolved, number = number, 0
            more_waits = len(claimed) == limit
            if not more_waits:
                await self._pause()
            else:
                pass_gate_at = time.monotonic() + GATE_SECONDS  # enough is ready without the gate

    def _take(self, claimed: Sequence[Claimed]) -> None:
        now = time.monotonic()
        for one in claimed:
            known = self._held.get(one.execution_id)
            if known is not None:
                if known.claimed.fence == one.fence:
                    continue  # a repeated answer
                self._stop(known, _LOST)
            held = Held(one, now)
            self._held[one.execution_id] = held
            self._queue.append(held)
            self._busy += 1
        if self._queue:
            self._wake_runner()

    async def _pause(self) -> None:
        """Wait until a slot is freed, a notification arrives, or the poll is due."""
        try:
            async with asyncio.timeout(IDLE_POLL_SECONDS):
                await self._woken.wait()
        except TimeoutError:
            pass
        # Cleared before the caller checks its state, so that no later wake-up is missed.
        self._woken.clear()

    # Running.

    def _wake_runner(self) -> None:
        """Wake one runner; it wakes the next if the queue is not empty."""
        if self._coming:
            return
        while self._idle_runners:
            waiter = self._idle_runners.pop()
            if not waiter.done():
                waiter.set_result(None)
                self._coming = True
                return
        if len(self._runners) < self._settings.slots:
            self._runners.add(asyncio.create_task(self._run_queue()))
            self._coming = True

    async def _run_queue(self) -> None:
        me = asyncio.current_task()
        assert me is not None
        loop = asyncio.get_running_loop()
        began = time.monotonic()
        held: Held | None = None
        self._coming = False
        try:
            while not self._over:
                if not self._queue or self._in_doubt():
                    waiter = loop.create_future()
                    self._idle_runners.append(waiter)
                    await waiter
                    self._coming = False
                    began = time.monotonic()
                    continue
                held = self._queue.popleft()
                if self._queue:
                    self._wake_runner()
                await self._run(held, me)
                held = None
                if me.cancelling():
                    await _clear_cancellations(me)
                if time.monotonic() - began > YIELD_SECONDS:
                    await asyncio.sleep(0)
                    began = time.monotonic()
        finally:
            self._leave(me, held)

    def _leave(self, runner: asyncio.Task[None], held: Held | None) -> None:
        """Clean up after a runner that ended for any reason, so that nothing it held is lost."""
        self._runners.discard(runner)
        if self._over:
            return
        self._coming = False
        if held is not None:
            self._finish(held, Failed("The worker's runner ended during the execution.", "runner"))
        if self._queue:
            self._wake_runner()

    async def _run(self, held: Held, me: asyncio.Task[None]) -> None:
        held.runner = me
        outcome: Outcome
        try:
            if (early := held.start_at - time.monotonic()) > 0:
                held.until = math.inf
                await asyncio.sleep(early)
            held.started_at = now = time.monotonic()
            held.spec = spec = decode_spec(held.claimed.spec)
            timeout = float(spec.timeout_seconds)
            remaining = held.remaining(now)
            if remaining is not None:
                timeout = max(min(timeout, remaining), 0.0)
            held.until = now + timeout
            run = Run(held.claimed, spec, timeout)
            outcome = await self._actions[type(spec.action)].run(spec.action, run)
        except asyncio.CancelledError as error:
            if held.stop is not None:
                outcome = _stopped(held)
            elif self._over:
                raise
            else:
                outcome = Failed("The handler raised CancelledError.", "CancelledError")
            if isinstance(error, StillRunning):
                held.runner = None  # the runner continues with other executions
                self._told.discard(held)
                self._linger(held, outcome)
                error.ended.add_done_callback(lambda _: self._finish(held, outcome))
                return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = failed(error)
        else:
            if held.stop is not None and not isinstance(outcome, Succeeded):
                outcome = _stopped(held)
        self._finish(held, outcome)

    def _finish(self, held: Held, outcome: Outcome) -> None:
        """Record an ended execution and free its slot."""
        held.runner = None
        if held.stop is not None:
            self._told.discard(held)
        if held.recorded:
            self._lingering -= 1
        else:
            self._record(held, outcome)
        self._busy -= 1
        if not self._woken.is_set() and self._busy < self._settings.slots:
            self._woken.set()

    def _linger(self, held: Held, outcome: Outcome) -> None:
        """Record the outcome of an execution that still runs: its slot stays taken."""
        if held.recorded:
            return
        log.warning("handler ignored cancellation", execution=held.claimed.execution_id)
        self._record(held, outcome)
        self._lingering += 1
        self._woken.set()  # a drain does not wait for it

    def _record(self, held: Held, outcome: Outcome) -> None:
        ours = self._held.get(held.claimed.execution_id) is held
        if ours and held.stop == _LOST:
            del self._held[held.claimed.execution_id]
        elif ours:
            now = time.monotonic()
            started = held.started_at if held.started_at is not None else now
            self._settler.put(
                settlement(
                    held.claimed,
                    held.spec,
                    outcome,
                    max(int((started - held.start_at) * 1000), 0),
                    int((now - started) * 1000),
                    held.remaining(now),
                )
            )
        held.recorded = True

    # Stopping.

    def _stop(self, held: Held, why: str) -> None:
        if held.stop is not None:
            return
        held.stop = why
        if held.runner is not None:
            held.until = time.monotonic() + GRACE_SECONDS
            self._told.add(held)
            held.runner.cancel()
            return
        # Not started: it leaves the queue without running.
        try:
            self._queue.remove(held)
        except ValueError:
            return  # it has ended and is being settled
        self._finish(held, _stopped(held))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            for held in list(self._held.values()):
                if held.runner is not None and now > held.until:
                    self._stop(held, _TIMEOUT)
            for held in list(self._told):
                if now > held.until:
                    self._insist(held, now)

    def _insist(self, held: Held, now: float) -> None:
        """Record and cancel again an execution that ignored its cancellation."""
        self._linger(held, _stopped(held))
        held.until = now + GRACE_SECONDS
        if held.runner is not None:
            held.runner.cancel()

    async def _drain(self) -> None:
        while self._queue:
            self._finish(self._queue.popleft(), Released())
        for held in list(self._held.values()):
            if held.runner is not None and held.started_at is None:
                self._stop(held, _SHUTDOWN)
        give_up_at = time.monotonic() + self._settings.drain_seconds
        while self._busy > self._lingering and time.monotonic() < give_up_at:
            await self._pause()
        for held in list(self._held.values()):
            if held.runner is not None:
                self._stop(held, _SHUTDOWN)
        while self._busy > self._lingering and time.monotonic() < give_up_at + 1:
            await self._pause()
        try:
            async with asyncio.timeout(self._settings.lease_seconds):
                await self._settler.drained()
        except TimeoutError:
            log.warning("stopped with unrecorded outcomes, executions will run again")

    # Holding the session.

    async def _keep_session(self) -> None:
        """Heartbeats every third of the lease; more often while the database does not answer."""
        backoff = Backoff()
        while True:
            try:
                if self._session is None:
                    await self._open_session()
                else:
                    await self._beat(self._session)
            except Exception as error:
                complain("renewing the session", error)
                await backoff.wait()
                continue
            backoff.reset()
            if self._queue:
                self._wake_runner()
            await asyncio.sleep(self._settings.lease_seconds / 3)

    async def _open_session(self) -> None:
        if self._stopping.is_set():
            return
        asked_at = time.monotonic()
        settings = self._settings
        session = await self._dispatch.open(
            settings.name, settings.queues, settings.slots, settings.tasks
        )
        self._session = self._settler.session = session
        self._renewed_at = asked_at
        self._woken.set()

    async def _beat(self, session: Session) -> None:
        asked_at = time.monotonic()
        resolved = self._resolved  # read before the list, which lacks later claims
        running = dict(self._held)
        try:
            heard = await self._dispatch.heartbeat(session, list(running), resolved)
        except SessionLost:
            self._lose_session(session)
            await self._open_session()
            return
        if self._session is not session:
            return
        self._renewed_at = asked_at
        for number in heard.lost:
            # An execution settled during the heartbeat is reported too; it may be claimed again.
            if self._held.get(number) is running[number]:
                self._stop(running[number], _LOST)
        for number in heard.unwanted:
            if (held := self._held.get(number)) is not None:
                self._stop(held, _UNWANTED)

    def _lose_session(self, session: Session) -> None:
        """Stop everything: other workers may have been given the executions."""
        if self._session is not session:
            return
        log.warning("session lost", executions=len(self._held))
        self._session = self._settler.session = None
        self._settler.forget()
        held, self._held = self._held, {}
        for one in held.values():
            self._stop(one, _LOST)
        self._claims = self._resolved = 0

    def _in_doubt(self) -> bool:
        """Whether our lease may have expired: nothing is started then."""
        return time.monotonic() - self._renewed_at > self._settings.lease_seconds

    def _forget(self, settled: Sequence[Settlement]) -> None:
        for one in settled:
            held = self._held.get(one.execution_id)
            # Compare the fence: after a lost claim the execution may have been claimed again.
            if held is not None and held.claimed.fence == one.fence:
                del self._held[one.execution_id]
        if not self._held:
            self._woken.set()  # a session in quarantine waits until nothing is held


async def _clear_cancellations(runner: asyncio.Task[None]) -> None:
    """Clear the cancellations of a handler that has ended.

    Includes one that arrived too late for it and would hit the next handler.
    """
    while runner.cancelling():
        runner.uncancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


def _stopped(held: Held) -> Outcome:
    if held.stop == _TIMEOUT:
        return Failed("The attempt exceeded its timeout.", TIMEOUT)
    if held.stop == _SHUTDOWN:
        if held.started_at is None:  # it waited for its start under a rate limit
            return Released()
        return Failed("The worker was shut down before the execution ended.", "shutdown")
    return Cancelled()
