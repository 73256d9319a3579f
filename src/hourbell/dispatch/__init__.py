"""Dispatch: how ready executions reach workers, and how their outcomes come back.

The seam of DESIGN §4. PostgreSQL is the default engine (`postgres.py`); whatever the engine, its rows stay the truth.

A worker process holds its claims by one *session* with one expiry. Claims are numbered by the worker: repeating a number
gives the same executions again, because the first answer may have been lost. A heartbeat names what the worker runs and up
to which number its claims are answered; what it does not name of those goes back. An outcome counts only if the session
lives and the fence is still the one of the claim. The conformance suite in `hourbell.testing` says all this as tests.

    postgres.py   the engine's rows
    settling.py   a batch of outcomes, whatever is in it; what each leads to is decided by `engine/life/outcomes.py`
    remote.py     workers in other processes, who speak through the API
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from hourbell.engine.life.outcomes import CANCELLED as CANCELLED
from hourbell.engine.life.outcomes import DEAD as DEAD
from hourbell.engine.life.outcomes import RELEASED as RELEASED
from hourbell.engine.life.outcomes import RETRY as RETRY
from hourbell.engine.life.outcomes import SUCCEEDED as SUCCEEDED
from hourbell.engine.life.outcomes import Settlement as Settlement
from hourbell.model.executions import Claimed


class Session(msgspec.Struct, frozen=True):
    """A worker process's hold on everything that it has claimed."""

    id: int
    token: UUID


class Service(msgspec.Struct, frozen=True):
    """What a session serves, in order."""

    queues: tuple[str, ...]
    tasks: tuple[str, ...] | None = None  # None: all


class Heard(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lost: Sequence[int]  # no longer held: stop them, their outcome will be refused
    unwanted: Sequence[int]  # somebody wishes to cancel them


class Dispatch(Protocol):
    """What a worker needs of the engine behind it."""

    async def open(
        self,
        worker: str,
        queues: Sequence[str] | None,
        slots: int,
        tasks: Sequence[str] | None = None,
    ) -> Session:
        """Begin a session that serves these queues and these tasks, of which `@webhook` is one.

        None: all of them, including those that are named later. It is given nothing else until it ends.
        """

    async def admit(self) -> bool:
        """Run a pass of the gate and announce what it made ready; False: another pass was under way, and this one did nothing."""

    async def claim(
        self,
        session: Session,
        number: int,
        limit: int,
        repeated: bool = False,
        reserved: int = 0,
        from_below: bool = False,
        at_once: bool = False,
    ) -> list[Claimed]:
        """Take up to so many executions, most urgent first; SessionLost if the session is over.

        `number` is 0 if the worker does not number its claims.
        `repeated`: this number was sent before and no answer came. What it took then, if it did, is the answer now.
        `reserved` of the limit are for CRITICAL only. `from_below` begins with the least urgent. An execution under a rate
        limit may have to wait for its start (`start_in_seconds`); `at_once` takes only what can start at the same moment.
        """

    async def heartbeat(
        self, session: Session, running: Sequence[int], resolved: int | None
    ) -> Heard:
        """Extend the session; SessionLost if it is over.

        `resolved`: claims up to this number are answered; what they gave and is not named goes back. Without it, and
        for claims without a number, what is not named a whole lease after its claim goes back.
        """

    async def renew(self, session: Session) -> Service:
        """What the session serves; SessionLost if it is over. One that holds nothing is extended."""

    async def held(self, session: Session, execution_ids: Sequence[int]) -> list[Claimed]:
        """Those of these executions that the session holds, as they were claimed."""

    async def worker_of(self, session: Session) -> str | None:
        """The name of the worker that opened the session; None if there is no such session (any more)."""

    async def note_progress(
        self, session: Session, execution_id: int, fence: int, progress: str
    ) -> bool:
        """Keep how far an execution has come, as JSON, while it is held; False: it is not, under this fence."""

    async def settle(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        """Record outcomes; returns the executions whose outcome was refused."""

    async def brought_before(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        """Of refused outcomes, those that this session brought before, under the same fence: the answer was lost."""

    async def close(self, session: Session, told: bool = True) -> None:
        """End the session in order; what it still holds goes back at once. Not `told`: nobody knows of it."""
