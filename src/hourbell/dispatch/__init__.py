"""Dispatch: how ready executions reach workers, and how their outcomes come back.

A worker process holds its claims through one *session* with one expiry. Claims are numbered by the
worker: repeating a number returns the same executions again, because the first answer may have been
lost. A heartbeat lists what the worker runs and up to which number its claims are answered;
executions of those claims that it does not list are released. An outcome counts only if the session
is live and the fence is still that of the claim. The conformance suite in `hourbell.testing`
expresses all this as tests.

    postgres.py   the implementation: the rows in PostgreSQL are the source of truth
    bisect.py     settles a batch even if some outcomes in it cannot be stored
    unreadable.py logs each job that cannot be read once
    remote.py     workers in other processes, connected through the API
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from hourbell.engine.life.settlement import CANCELLED as CANCELLED
from hourbell.engine.life.settlement import DEAD as DEAD
from hourbell.engine.life.settlement import INTERRUPTED as INTERRUPTED
from hourbell.engine.life.settlement import RELEASED as RELEASED
from hourbell.engine.life.settlement import RETRY as RETRY
from hourbell.engine.life.settlement import SNOOZED as SNOOZED
from hourbell.engine.life.settlement import SUCCEEDED as SUCCEEDED
from hourbell.engine.life.settlement import Settlement as Settlement
from hourbell.model.executions import Claimed
from hourbell.model.manifests import Manifest


class Session(msgspec.Struct, frozen=True):
    """The registration of a worker process; it holds everything that the process has claimed."""

    id: int
    token: UUID


class Subscription(msgspec.Struct, frozen=True):
    """The queues and tasks that a session serves, in order."""

    queues: tuple[str, ...]
    tasks: tuple[str, ...] | None = None  # None: all


class Claim(msgspec.Struct, frozen=True):
    """The claim that holds an execution."""

    session: Session
    worker: str
    fence: int


class HeartbeatResult(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lost: Sequence[int]  # no longer held: stop them, their outcome will be refused
    cancelled: Sequence[int]  # cancellation was requested


class Wait(msgspec.Struct, frozen=True):
    """What a handler waits for outside of Hourbell."""

    token: str
    outcome: str | None = None  # SUCCEEDED, FAILED, TIMED_OUT; None: nothing was reported yet
    value: str | None = None  # what was reported, as JSON


class Dispatch(Protocol):
    """The interface between a worker and the engine."""

    async def open(
        self,
        worker: str,
        queues: Sequence[str] | None,
        slots: int,
        tasks: Sequence[str] | None = None,
        manifest: Manifest | None = None,
    ) -> Session:
        """Begin a session that serves these queues and these tasks, of which `@webhook` is one.

        None: all of them, including those created later. The session gets nothing else. What the
        manifest declares is in effect as long as the session lives.
        """

    async def admit(self, session: Session | None = None) -> bool:
        """Run a pass of the gate, and announce what it made ready.

        The worker of `session` ignores the announcement, because it claims next.
        False: another pass was running, and this one did nothing.
        """

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
        """Claim up to `limit` executions, most urgent first; SessionLost if the session is over.

        `number` is 0 if the worker does not number its claims. `repeated`: this number was sent
        before and no answer arrived; if that claim took executions, they are the answer now.
        `reserved` of the limit are for CRITICAL only. `lowest_first` begins with the least urgent.
        An execution under a rate limit may have to wait for its start (`start_in_seconds`);
        `same_start` claims only executions that can all start at the same moment.
        """

    async def heartbeat(
        self, session: Session, running: Sequence[int], resolved: int | None
    ) -> HeartbeatResult:
        """Extend the session; SessionLost if it is over.

        `resolved`: claims up to this number are answered; their executions that are not listed are
        released. Without it, and for claims without a number, executions are released if they are
        not listed one whole lease after their claim.
        """

    async def renew(self, session: Session) -> Subscription:
        """What the session serves; SessionLost if it is over. An empty session is extended."""

    async def claimed_by(self, session: Session, execution_ids: Sequence[int]) -> list[Claimed]:
        """The given executions that the session holds, as they were claimed."""

    async def worker_of(self, session: Session) -> str | None:
        """The name of the worker that opened the session; None if the session does not exist."""

    async def sessions_of(
        self, worker: str, execution_ids: Sequence[int]
    ) -> list[tuple[Session, Sequence[int]]]:
        """The live sessions of all workers of this name, each with which of these it holds."""

    async def current_claim(self, execution_id: int) -> Claim | None:
        """The claim that holds the execution; None: no worker has it, or its target completes it."""

    async def note_progress(
        self, session: Session, execution_id: int, fence: int, progress: str
    ) -> bool:
        """Store the progress of a held execution, as JSON; False: not held under this fence."""

    async def set_checkpoint(
        self, session: Session, execution_id: int, fence: int, value: str
    ) -> bool:
        """Store the checkpoint of a held execution, JSON of up to MAX_CHECKPOINT_BYTES.

        It is sent with the next claim, whatever ends this run (`SentSpec.checkpoint`). False: the
        execution is not held under this fence, and nothing was stored.
        """

    async def wait_of(
        self, session: Session, execution_id: int, fence: int, name: str, token: str, waits: bool
    ) -> Wait | None:
        """A wait of a held execution by its name, which gets this token if it is new.

        `waits`: the execution is about to await it, unless something was reported. None: the
        execution is not held under this fence.
        """

    async def is_completed(self, execution_id: int, fence: int) -> bool:
        """Whether the execution has succeeded under this fence."""

    async def crashes_left(
        self, execution_id: int, attempts_before: int, max_crashes: int | None
    ) -> int:
        """How many more deaths of its own process in a row an execution may have after this one.

        `max_crashes` is that of its retry policy; attempts before a replay do not count.
        """

    async def settle(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        """Record outcomes; returns the executions whose outcome was refused."""

    async def already_settled(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        """The refused outcomes that this session already settled under the same fence.

        Their answer was lost.
        """

    async def close(self, session: Session, handed_out: bool = True) -> None:
        """End the session cleanly; held executions are released at once.

        `handed_out` is False if the worker never learned of the session.
        """
