"""The worker of a test: the product's own, but claiming only when the test tells it to.

A `SteppedDispatch` sits between the worker and PostgreSQL. It forwards every call, delays claims
until the test takes a turn, and knows when everything claimed has been settled. So a test decides
when tasks run, and all the code that runs them is production code. It is also where
faults are injected: a process that dies after a claim or before a settle, a lost lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from hourbell.dispatch import DEAD, RETRY, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.model.executions import PAYLOAD_MISMATCH, Claimed
from hourbell.model.jobs import TaskAction, decode_spec
from hourbell.model.manifests import Manifest
from hourbell.sdk.running import AppRunner
from hourbell.store.queries import queries
from hourbell.worker.runtime import Worker
from hourbell.worker.settings import WorkerSettings

T = TypeVar("T")
_Q = queries("testing")
_CHECK_SECONDS = 0.02


class Faults:
    """The faults that a test requested; each happens as often as requested."""

    def __init__(self) -> None:
        self.after_claim: Counter[str] = Counter()  # by task: the worker dies
        self.before_settle: Counter[str] = Counter()  # by task: the worker dies
        self.lost_leases: set[int] = set()  # executions

    def take(self, wanted: Counter[str], executions: Sequence[Claimed]) -> bool:
        """Whether a fault was requested for the task of one of these executions; uses it up."""
        for task in map(task_of, executions) if wanted else ():
            if wanted[task] > 0:
                wanted[task] -= 1
                return True
        return False


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt."""

    claimed: Claimed
    settlement: Settlement


class Turn(msgspec.Struct):
    """One claim, and its outcomes."""

    claimed: Sequence[Claimed] = ()
    failures: list[Failure] = msgspec.field(default_factory=list)
    is_crashed: bool = False  # the worker has died


class SteppedDispatch(PostgresDispatch):
    """Delays claims until a turn; records what was claimed and settled."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        super().__init__(engine)
        self._faults = faults
        self._may_claim = asyncio.Event()
        self._turn = Turn()
        self._held: dict[tuple[int, int], Claimed] = {}  # by execution and fence, not settled
        self._ended: asyncio.Future[None] | None = None  # the turn has
        self._is_closed = False
        self.opened = asyncio.Event()  # a session is open, and what the code declares is applied

    async def open(
        self,
        worker: str,
        queues: Sequence[str] | None,
        slots: int,
        tasks: Sequence[str] | None = None,
        manifest: Manifest | None = None,
    ) -> Session:
        session = await super().open(worker, queues, slots, tasks, manifest)
        self.opened.set()
        return session

    async def turn(self) -> Turn:
        """Allow one claim; wait until everything it claimed is settled."""
        self._turn = turn = Turn()
        self._ended = asyncio.get_running_loop().create_future()
        self._may_claim.set()
        await self._ended
        return turn

    def claim_no_more(self) -> None:
        """Answer the claim that is waiting for a turn: the worker is stopping."""
        self._is_closed = True
        self._may_claim.set()

    async def admit(self, session: Session | None = None) -> bool:
        return True  # the test passes the gate

    async def claim(
        self,
        session: Session,
        number: int,
        limit: int,
        repeated: bool = False,
        reserved: int = 0,
        lowest_first: bool = False,
        same_start: bool = False,
    ) -> list[Claimed]:
        await self._may_claim.wait()
        if self._is_closed:
            return []
        self._may_claim.clear()
        try:
            claimed = await super().claim(
                session, number, limit, repeated, reserved, lowest_first, same_start
            )
        except Exception as error:
            if self._ended is not None and not self._ended.done():
                self._ended.set_exception(error)
            raise
        self._turn.claimed = claimed
        if self._faults.take(self._faults.after_claim, claimed):
            await self._crash()
        if any(one.execution_id in self._faults.lost_leases for one in claimed):
            self._faults.lost_leases.difference_update(one.execution_id for one in claimed)
            await self._lose(session)
        self._held = {(one.execution_id, one.fence): one for one in claimed}
        self._end_if_settled()
        # What a rate limit would start a little later starts now: virtual time stands still.
        return [msgspec.structs.replace(one, start_in_seconds=0.0) for one in claimed]

    async def settle(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        held = [self._held.get((one.execution_id, one.fence)) for one in batch]
        if self._faults.take(self._faults.before_settle, [one for one in held if one is not None]):
            await self._crash()
        # Virtual time stands still while tasks run.
        batch = [msgspec.structs.replace(one, begun_ms=0, took_ms=0) for one in batch]
        refused = await super().settle(session, batch)
        for one in batch:
            claimed = self._held.pop((one.execution_id, one.fence), None)
            is_failed = one.kind in (RETRY, DEAD) or one.reason == PAYLOAD_MISMATCH
            if claimed is not None and is_failed and one.execution_id not in refused:
                self._turn.failures.append(Failure(claimed, one))
        self._end_if_settled()
        return refused

    @property
    def has_claimed(self) -> bool:
        """Whether this turn is waiting for outcomes."""
        return bool(self._held)

    def end_turn(self) -> None:
        """End the turn: no more outcomes will come."""
        self._held.clear()
        self._end_if_settled()

    def _end_if_settled(self) -> None:
        if not self._held and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    async def _crash(self) -> None:
        """The process dies here: its session goes silent, and its calls get no answer."""
        self._turn.is_crashed = True
        self.end_turn()
        await asyncio.Event().wait()

    async def _lose(self, session: Session) -> None:
        """The session expires, and its executions become due again."""
        self._turn.is_crashed = True  # it can no longer claim
        await self._engine.database.value(_Q["expire_session"], session.id)
        await reap(self._engine, None, await self._engine.clock.now())


class SteppedWorker:
    """A worker that takes a turn when told to."""

    def __init__(
        self, engine: Engine, runner: AppRunner, settings: WorkerSettings, faults: Faults
    ) -> None:
        self._dispatch = SteppedDispatch(engine, faults)
        self._runner = runner
        self._worker = Worker(self._dispatch, {TaskAction: runner}, settings)
        self._running = asyncio.create_task(self._worker.run())

    @property
    def session(self) -> Session | None:
        return self._worker.session

    async def started(self) -> None:
        """Wait until it has a session."""
        await self._or_ended(self._dispatch.opened.wait())

    async def renew(self) -> None:
        """Extend the session. Between two turns it holds nothing."""
        if self.session is not None:
            await self._dispatch.heartbeat(self.session, (), None)

    async def turn(self) -> Turn:
        """Claim once, run what was claimed, and record the outcomes."""
        self._runner.attach(self._worker, self._dispatch)
        self._worker.wake()
        leaving = asyncio.create_task(self._end_without_outcome())
        try:
            return await self._or_ended(self._dispatch.turn())
        finally:
            leaving.cancel()

    async def _end_without_outcome(self) -> None:
        """End a turn in which the worker dropped something, because a task recorded it itself."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._dispatch.has_claimed and not self._worker.held:
                self._dispatch.end_turn()

    async def _or_ended(self, wanted: Coroutine[Any, Any, T]) -> T:
        """Wait for something, unless the worker ends with an error of its own."""
        waiting = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait([waiting, self._running], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                await self._running
            return await waiting
        finally:
            waiting.cancel()

    async def stop(self) -> None:
        """End the session cleanly."""
        self._worker.stop()
        self._dispatch.claim_no_more()
        await self._running

    async def die(self) -> None:
        """End silently: the session stays until its lease expires."""
        self._running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._running


def task_of(claimed: Claimed) -> str:
    """The name of the task of a claimed execution."""
    action = decode_spec(claimed.spec).action
    return action.name if isinstance(action, TaskAction) else ""
