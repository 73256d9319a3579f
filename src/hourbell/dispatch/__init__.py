"""Dispatch: how ready executions reach workers, and how their outcomes come back.

The seam of DESIGN §4. PostgreSQL is the default engine (`postgres.py`); whatever the engine, its rows stay the truth.

A worker process holds its claims by one *session* with one expiry. Claims are numbered by the worker: repeating a number
gives the same executions again, because the first answer may have been lost. A heartbeat names what the worker runs and up
to which number its claims are answered; what it does not name of those goes back. An outcome counts only if the session
lives and the fence is still the one of the claim. The conformance suite in `hourbell.testing` says all this as tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

import msgspec

from hourbell.model.executions import Claimed

SUCCEEDED, RETRY, DEAD, CANCELLED, RELEASED = range(5)  # kinds of Settlement


class Session(msgspec.Struct, frozen=True):
    """A worker process's hold on everything that it has claimed."""

    id: int
    token: UUID


class SessionLost(Exception):
    """The session is over: its executions went to others. Stop everything and open another."""


class Heard(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    lost: Sequence[int]  # no longer held: stop them, their outcome will be refused
    unwanted: Sequence[int]  # somebody wishes to cancel them


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome, decided: what is to become of a claimed execution."""

    execution_id: int
    fence: int
    kind: int
    begun_ms: int = 0  # from the claim to the start of the action
    took_ms: int = 0  # from there to its end
    delay_seconds: float | None = None  # RETRY: after this
    reason: str | None = None
    error: str | None = None
    result: str | None = None  # JSON

    @property
    def is_plain(self) -> bool:
        """A success with nothing to say: the common case, which costs least."""
        return self.kind == SUCCEEDED and self.result is None and self.error is None


class Dispatch(Protocol):
    """What a worker needs of the engine behind it."""

    async def open(self, worker: str, queues: Sequence[str], slots: int) -> Session:
        """Begin a session."""

    async def admit(self) -> None:
        """Run the gate: somebody said that something fell due."""

    async def claim(
        self,
        session: Session,
        number: int,
        limit: int,
        repeated: bool = False,
        reserved: int = 0,
        from_below: bool = False,
    ) -> list[Claimed]:
        """Take up to so many executions, most urgent first; SessionLost if the session is over.

        `repeated`: this number was sent before and no answer came. What it took then, if it did, is the answer now.
        `reserved` of the limit are for CRITICAL only. `from_below` begins with the least urgent.
        """

    async def heartbeat(self, session: Session, running: Sequence[int], resolved: int) -> Heard:
        """Extend the session; SessionLost if it is over."""

    async def settle(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        """Record outcomes; returns the executions whose outcome was refused."""

    async def close(self, session: Session) -> None:
        """End the session in order; what it still holds goes back at once."""
