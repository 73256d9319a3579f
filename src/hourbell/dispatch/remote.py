"""Remote workers: processes without a database connection, which use the API.

A remote worker makes the same calls as a local one: claim, heartbeat, complete. Any of our
processes can answer a call, because none of them keeps state: claims belong to the worker's
session, in the database. This module makes many small calls cheap.

- Claims that find nothing wait in a *line*, one per set of queues and tasks. A notification, or
  else a poll every half second, makes the first of the line claim; a claim that gets executions
  wakes two more. So a thousand idle workers cost one claim per poll, and a burst reaches all of
  them.
- One pass of the gate serves all of them. A pass that finds the gate locked by another process is
  retried, and each process announces what its passes make ready: a waiting claim depends on
  notifications, not on the poll.
- Under a rate limit a claim takes only executions that can start at the same moment, and is
  answered at that moment: a remote worker starts immediately what it is given.
- Concurrent outcomes of a session are settled together, as those of local workers are.

A claim whose answer is never read must not hold executions for long. If the disconnect is noticed,
they are released at once, unless the claim has a number: then they are kept for the repetition. If
it is not noticed, heartbeats reveal it; and without heartbeats a session that holds executions
expires, however often it claims more. A session is handed out with the first claim that returns
executions, so a session that no worker knows of is empty, and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from hourbell.dispatch import (
    INTERRUPTED,
    RELEASED,
    RETRY,
    SNOOZED,
    Claim,
    Dispatch,
    HeartbeatResult,
    Session,
    Settlement,
    Subscription,
)
from hourbell.dispatch.bisect import MAX_SETTLE_BATCH, settle_bisecting
from hourbell.dispatch.unreadable import UnreadableJobs
from hourbell.engine.life.failures import FailureLog
from hourbell.engine.life.settlement import settlement, settlement_without_policy
from hourbell.model.errors import Conflict, FieldError, InvalidInput, SessionLost, StoreUnavailable
from hourbell.model.executions import (
    CANNOT_READ,
    Claimed,
    Failed,
    Interrupted,
    Released,
    Snoozed,
    Succeeded,
)
from hourbell.model.jobs import (
    DEFAULT_QUEUE,
    UNREADABLE_ERRORS,
    SentSpec,
    decode_policies,
    decode_spec,
)
from hourbell.store.database import why_unusable

MAX_PER_CLAIM = 1_000
MAX_ANSWER_BYTES = 8 * 1024 * 1024  # of the jobs in the answer to one claim
POLL_SECONDS = 0.5  # how long a ready execution may wait if no notification reaches us
GATE_SECONDS = 0.02  # between the starts of two passes of the gate
# One in this many claims begins with the least urgent, so that LOW is not starved.
LOWEST_FIRST_EVERY = 20

# Outcomes that lead to the same whatever the job says; for the others its claim is read.
_UNJUDGED = (Succeeded, Released)
_KINDS = {Failed: RETRY, Interrupted: INTERRUPTED, Snoozed: SNOOZED}

T = TypeVar("T")

log = structlog.get_logger(component="api")


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A claim request of a remote worker."""

    worker: str
    capacity: int
    wait_seconds: float = 0.0  # how long to wait if nothing is ready
    queues: Sequence[str] | None = None  # None: those of the session, or the default one
    tasks: Sequence[str] | None = None  # None: those of the session, or all
    session: Session | None = None  # None: begin one
    number: int | None = None  # of the claim; None: the worker does not number its claims


class ClaimResult(msgspec.Struct, frozen=True):
    """The answer to a claim."""

    session: Session | None  # None: nothing was claimed, and no session begun
    executions: Sequence[tuple[Claimed, SentSpec]]


class ReportedOutcome(msgspec.Struct, frozen=True):
    """The outcome that a remote worker reports for an execution that it held."""

    execution_id: int
    fence: int
    outcome: Succeeded | Failed | Released | Interrupted | Snoozed
    took_ms: int = 0


class RemoteWorkers:
    """All remote workers that are connected to this process."""

    def __init__(
        self,
        dispatch: Dispatch,
        lease_seconds: float,
        count_starts: Callable[[Sequence[tuple[Claimed, SentSpec]]], None] | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._count_starts = count_starts  # called with what is sent to a worker
        self.lease_seconds = lease_seconds
        self._gate = _Gate(dispatch.admit)
        self._lines: dict[Subscription, _ClaimLine] = {}
        self._polling: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopped = False
        self._claims = itertools.count(1)
        self._unreadable = UnreadableJobs(log)
        self._failures = FailureLog(log)
        self._settle_batchers: dict[Session, _SettleBatcher] = {}

    def wake(self, _payload: str = "") -> None:
        """Poll now: an execution may have fallen due, or has become ready."""
        self._woken.set()

    async def stop(self) -> None:
        """Give out nothing more, and answer all waiting claims at once."""
        self._stopped = True
        for line in self._lines.values():
            line.wake(len(line.waiting))
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    # Claims.

    async def claim(self, request: ClaimRequest, gone: asyncio.Future[None]) -> ClaimResult:
        """Claim executions; SessionLost if the session is over.

        `gone` is done when the client has disconnected.
        """
        if self._stopped:
            return ClaimResult(request.session, [])
        if request.session is not None:
            subscription = await self._dispatch.renew(request.session)
            _check_named("queues", request.queues, subscription.queues)
            _check_named("tasks", request.tasks, subscription.tasks)
            executions = await self._claim_or_wait(request.session, subscription, request, gone)
            if executions and gone.done() and request.number is None:
                await self._release(request.session, executions)
            return ClaimResult(request.session, executions)
        subscription = Subscription(
            tuple(sorted(set(request.queues or [DEFAULT_QUEUE]))),
            None if request.tasks is None else tuple(sorted(set(request.tasks))),
        )
        session = await self._dispatch.open(
            request.worker, subscription.queues, request.capacity, subscription.tasks
        )
        executions = []
        try:
            executions = await self._claim_or_wait(session, subscription, request, gone)
        finally:
            if not executions or gone.done():
                with contextlib.suppress(StoreUnavailable):  # if this fails, the session expires
                    await self._dispatch.close(session, handed_out=False)
        return ClaimResult(session if executions else None, executions)

    async def _claim_or_wait(
        self,
        session: Session,
        subscription: Subscription,
        request: ClaimRequest,
        gone: asyncio.Future[None],
    ) -> list[tuple[Claimed, SentSpec]]:
        clock = asyncio.get_running_loop().time
        until, renew_at = clock() + request.wait_seconds, clock() + self.lease_seconds / 3
        passed_gate = False
        async with self._in_line(subscription) as line:
            while True:
                notifications = line.notifications
                if executions := await self._claim(session, request):
                    line.wake(2)
                    start_in = max(one.start_in_seconds for one, _ in executions)
                    await asyncio.wait([gone], timeout=start_in)
                    return executions
                if not passed_gate:
                    await self._gate.pass_once()
                    passed_gate = True
                    continue
                if self._stopped or gone.done() or clock() >= until:
                    return []
                if line.notifications == notifications:
                    self._start_polling()
                    await line.wait(min(until, renew_at) - clock(), gone)
                if clock() >= renew_at:
                    await self._dispatch.renew(session)
                    renew_at = clock() + self.lease_seconds / 3

    async def _claim(
        self, session: Session, request: ClaimRequest
    ) -> list[tuple[Claimed, SentSpec]]:
        claimed = await self._dispatch.claim(
            session,
            request.number or 0,
            min(request.capacity, MAX_PER_CLAIM),
            repeated=request.number is not None,
            lowest_first=next(self._claims) % LOWEST_FIRST_EVERY == 0,
            same_start=True,
        )
        executions: list[tuple[Claimed, SentSpec]] = []
        others: list[Settlement] = []
        size = 0
        for one in claimed:
            spec = self._read(decode_spec, one)
            size += len(one.spec)
            if spec is None:
                others.append(settlement(one, None, CANNOT_READ, 0, 0, None))
            elif executions and size > MAX_ANSWER_BYTES:
                others.append(Settlement(one.execution_id, one.fence, RELEASED))
            else:
                executions.append((one, spec))
        if self._count_starts is not None and executions:
            self._count_starts(executions)
        if others:
            # If this fails, they are released because the next heartbeat does not list them.
            with contextlib.suppress(StoreUnavailable):
                await self._dispatch.settle(session, others)
        return executions

    async def _release(self, session: Session, executions: list[tuple[Claimed, SentSpec]]) -> None:
        log.warning("worker disconnected during claim", executions=len(executions))
        released = [Settlement(one.execution_id, one.fence, RELEASED) for one, _ in executions]
        await self._dispatch.settle(session, released)

    @asynccontextmanager
    async def _in_line(self, subscription: Subscription) -> AsyncIterator[_ClaimLine]:
        line = self._lines.setdefault(subscription, _ClaimLine())
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[subscription]

    def _start_polling(self) -> None:
        """Start polling, if no poll is running: a claim waits."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll_while_claims_wait())

    async def _poll_while_claims_wait(self) -> None:
        while self._lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._gate.pass_once()
            except StoreUnavailable as error:
                log.warning("database unavailable", doing="admitting", error=why_unusable(error))
            except Exception:
                log.exception("step failed", doing="admitting")
            for line in self._lines.values():
                line.notify()

    def _read(self, decode: Callable[[str | bytes], T], claimed: Claimed) -> T | None:
        try:
            return decode(claimed.spec)
        except UNREADABLE_ERRORS as error:
            self._unreadable.log(claimed, error)
            return None

    # Claimed executions.

    async def heartbeat(
        self, session: Session, running: Sequence[int], resolved: int | None
    ) -> HeartbeatResult:
        """Extend the session; SessionLost if it is over. `resolved` as in `Dispatch.heartbeat`."""
        return await self._dispatch.heartbeat(session, running, resolved)

    async def heartbeat_of_worker(self, worker: str, running: Sequence[int]) -> HeartbeatResult:
        """A heartbeat without a session: of those of this worker that hold what it lists.

        Another process may have the same name, so a session that holds none of it is extended only
        if it is the only one. SessionLost if there is none; Conflict if it is unclear which.
        """
        sessions = await self._dispatch.sessions_of(worker, running)
        if not sessions:
            raise SessionLost
        if len(sessions) == 1:
            return await self._dispatch.heartbeat(sessions[0][0], running, None)
        if not running:
            raise Conflict(
                f"{len(sessions)} sessions of the worker {worker} are live, and the heartbeat lists "
                f"no execution that would tell which is meant. Nothing was changed. Send the "
                f"session_token that the claim returned."
            )
        kept: set[int] = set()
        cancelled: list[int] = []
        for session, held in sessions:
            if held:
                with contextlib.suppress(SessionLost):  # ended since: what it held is lost
                    result = await self._dispatch.heartbeat(session, held, None)
                    kept |= {*held}.difference(result.lost)
                    cancelled += result.cancelled
        return HeartbeatResult([one for one in running if one not in kept], cancelled)

    async def current_claim(self, execution_id: int) -> Claim | None:
        """The claim that holds an execution, if any does."""
        return await self._dispatch.current_claim(execution_id)

    async def worker_of(self, session: Session) -> str | None:
        """The worker that a session belongs to; None: the session is over."""
        return await self._dispatch.worker_of(session)

    async def note_progress(
        self, session: Session, execution_id: int, fence: int, progress: str
    ) -> bool:
        """Store the progress of an execution; False: it is not held under this fence."""
        return await self._dispatch.note_progress(session, execution_id, fence, progress)

    async def set_checkpoint(
        self, session: Session, execution_id: int, fence: int, value: str
    ) -> bool:
        """Store the checkpoint of an execution; False: it is not held under this fence."""
        return await self._dispatch.set_checkpoint(session, execution_id, fence, value)

    async def end(self, session: Session, ended: Sequence[ReportedOutcome]) -> Set[int]:
        """Settle ended or unstarted executions; returns those whose outcome was refused.

        An outcome that the session already reported under the same fence is not refused: its answer
        was lost. `ended` must not name an execution twice.
        """
        batcher = self._settle_batchers.get(session)
        if batcher is None:
            batcher = self._settle_batchers[session] = _SettleBatcher(
                partial(self._settle, session), partial(self._settle_batchers.pop, session)
            )
        return await batcher.put(ended)

    async def close(self, session: Session) -> None:
        """End a session cleanly: its executions are released at once."""
        await self._dispatch.close(session)

    async def _settle(self, session: Session, batch: Sequence[ReportedOutcome]) -> Set[int]:
        judged = [one.execution_id for one in batch if not isinstance(one.outcome, _UNJUDGED)]
        claims = await self._dispatch.claimed_by(session, judged) if judged else []
        claimed_by_id = {one.execution_id: one for one in claims}
        decided: list[Settlement] = []
        refused: list[Settlement] = []
        for one in batch:
            number, fence, outcome = one.execution_id, one.fence, one.outcome
            if isinstance(outcome, _UNJUDGED):
                decided.append(settlement_without_policy(number, fence, outcome, None, one.took_ms))
            elif (claimed := claimed_by_id.get(number)) is None or claimed.fence != fence:
                refused.append(Settlement(number, fence, _KINDS[type(outcome)]))
            else:
                left = claimed.deadline_in_seconds
                spec = self._read(decode_policies, claimed)
                decided.append(settlement(claimed, spec, outcome, None, one.took_ms, left))
        if decided:
            refused_ids = set(
                await settle_bisecting(partial(self._dispatch.settle, session), decided)
            )
            refused += [one for one in decided if one.execution_id in refused_ids]
            for settled in decided:
                judged_claim = claimed_by_id.get(settled.execution_id)
                if judged_claim is not None and settled.execution_id not in refused_ids:
                    self._failures.note(settled, judged_claim)
        if not refused:
            return frozenset()
        before = await self._dispatch.already_settled(session, refused)
        return {one.execution_id for one in refused}.difference(before)


class _ClaimLine:
    """Waiting claims of sessions that serve the same queues and tasks."""

    def __init__(self) -> None:
        self.users = 0  # claims that wait or are being executed
        self.notifications = 0  # how often executions may have become ready
        self.waiting: deque[asyncio.Future[None]] = deque()

    def notify(self) -> None:
        """Wake one claim: executions may have become ready."""
        self.notifications += 1
        self.wake(1)

    def wake(self, count: int) -> None:
        """Wake `count` waiting claims, in order."""
        while count and self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def wait(self, seconds: float, gone: asyncio.Future[None]) -> None:
        """Wait until woken, disconnected or timed out."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        try:
            await asyncio.wait(
                [waiter, gone], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not waiter.done():
                self.waiting.remove(waiter)
            elif gone.done():
                self.wake(1)  # pass the wake-up on: this claim will not use it


class _Gate:
    """Passes of the gate, shared by all callers that ask for one while another is running."""

    def __init__(self, admit: Callable[[], Awaitable[bool]]) -> None:
        self._admit = admit
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._began = 0.0

    async def pass_once(self) -> None:
        """Return after a pass that began after this call.

        If other processes hold the gate each time, return after POLL_SECONDS.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._pass(self._current))
        await asyncio.shield(self._next)

    async def _pass(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._began + GATE_SECONDS - clock())
        self._current, self._next = self._next, None
        self._began = began = clock()
        # A pass running in another process may have begun before our rows were committed.
        while not await self._admit() and clock() < began + POLL_SECONDS:
            await asyncio.sleep(GATE_SECONDS)
            self._began = clock()


class _SettleBatcher:
    """The outcomes of one session: those that arrive during a settle form the next batch."""

    def __init__(
        self,
        settle: Callable[[Sequence[ReportedOutcome]], Awaitable[Set[int]]],
        over: Callable[[], object],
    ) -> None:
        self._settle = settle
        self._over = over  # called when nothing is left; later outcomes get a new instance
        self._waiting: deque[tuple[Sequence[ReportedOutcome], asyncio.Future[Set[int]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, group: Sequence[ReportedOutcome]) -> Set[int]:
        """Settle a group with other pending ones; returns which of its executions were refused."""
        done: asyncio.Future[Set[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((group, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await done

    async def _run(self) -> None:
        while self._waiting:
            groups = self._next_batch()
            batch = [one for group, _ in groups for one in group]
            try:
                refused = await self._settle(batch)
            except Exception as error:
                for _, done in groups:
                    if not done.done():
                        done.set_exception(error)
            else:
                for group, done in groups:
                    if not done.done():
                        done.set_result({one.execution_id for one in group} & refused)
        self._over()

    def _next_batch(self) -> list[tuple[Sequence[ReportedOutcome], asyncio.Future[Set[int]]]]:
        """A batch without duplicates: a second outcome of an execution waits for the first."""
        groups = [self._waiting.popleft()]
        seen = {one.execution_id for one in groups[0][0]}
        while self._waiting:
            numbers = {one.execution_id for one in self._waiting[0][0]}
            if seen & numbers or len(seen) + len(numbers) > MAX_SETTLE_BATCH:
                break
            seen |= numbers
            groups.append(self._waiting.popleft())
        return groups


def _check_named(field: str, asked: Sequence[str] | None, served: Sequence[str] | None) -> None:
    """Check that a claim names no other queues or tasks than its session serves."""
    if asked is None or (served is not None and set(asked) == set(served)):
        return
    names = ["all"] if served is None else served
    shown = ", ".join(names[:10]) + (" and others" if len(names) > 10 else "")
    message = (
        f"must match the session, which serves {shown}; claim without a session to begin another"
    )
    raise InvalidInput([FieldError(field, "conflict", message)])
