"""Leadership: which node plans, reaps and cleans up. It saves work; safety does not depend on it.

A *term* is a node's time as leader. It lasts for as long as the node renews a lease on the
database's clock, and its number is the epoch. Every transaction of the leader first checks the
epoch, under a lock that a new epoch has to wait for: a leader that was stopped and resumes in
another node's term commits nothing. A renewal does not wait for that lock, so a long transaction
cannot depose its own leader. A leader that dies is replaced when its lease expires; one that shuts
down cleanly resigns, and is replaced at once. Executions that were planned ahead (the horizon) run
meanwhile.

Missing heartbeats alone do not prove that a worker is dead. The leader assumes so only after it has
itself renewed for one whole session lease without a break, and without a step of the database's
clock (`may_reap`). Otherwise an outage of the database, which silences every worker, would run
everything twice. A break is half a session lease: a worker renews three times a lease, so it has
certainly renewed if the database was never unavailable for longer than that. The time since the
last renewal counts too, because a leader blocked on a hanging database notices only afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.model.errors import NotLeader, StoreUnavailable
from hourbell.store.database import committing

_EPOCH_IS_OVER = "HB100"  # raised by hourbell.check_epoch
_STEP_SECONDS = 1.0  # tolerated drift between the database's clock and ours per renewal


class Term(msgspec.Struct, frozen=True):
    """One node's time as leader."""

    node: UUID
    epoch: int


def epoch_args(term: Term | None) -> tuple[UUID | None, int | None]:
    """The first two arguments of a leader's verb; nulls for a caller that is not the leader."""
    return (term.node, term.epoch) if term else (None, None)


@contextmanager
def translate_epoch_errors() -> Iterator[None]:
    """Translate the database's refusal of an ended epoch into NotLeader."""
    try:
        yield
    except asyncpg.PostgresError as error:
        if error.sqlstate == _EPOCH_IS_OVER:
            raise NotLeader(str(error)) from error
        raise


class Leadership:
    """One node's campaign. `step` is called every `step_seconds`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.node = uuid4()
        self.term: Term | None = None
        self._unbroken_since: float | None = None  # monotonic
        self._last: tuple[float, datetime] | None = None  # monotonic, the database's time

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self._engine.times.leader_lease_seconds)

    @property
    def step_seconds(self) -> float:
        """Three times per lease: the leader's, or that of the sessions if it is shorter."""
        times = self._engine.times
        return min(times.leader_lease_seconds, times.lease_seconds) / 3

    async def step(self) -> Term | None:
        """Renew the term, or campaign for one; on any failure there is no term afterwards."""
        had = self.term
        try:
            now = await self._engine.clock.now()
            if had is not None and not await self._renew(had):
                had = None
            if had is None:
                had = await self._campaign()
        except StoreUnavailable:
            self._lose()
            raise
        if had is None:
            self._lose()
            return None
        self.term = had
        self._measure(now)
        return had

    async def resign(self) -> None:
        """Give up the term, so that no node waits for the lease; without a database it expires."""
        if self.term is not None:
            term, self.term = self.term, None
            with suppress(StoreUnavailable):
                await self._engine.database.value(
                    "select hourbell.resign($1, $2)", term.node, term.epoch
                )

    def may_reap(self, now: datetime) -> bool:
        """Whether a session's silence until now means that its worker is gone."""
        if self.term is None or self._unbroken_since is None or self._is_broken(now):
            return False
        renewed_for = self._engine.clock.monotonic() - self._unbroken_since
        return renewed_for >= self._engine.times.lease_seconds

    async def _renew(self, term: Term) -> bool:
        async with committing("renew.before_commit", "renew.after_commit"):
            renewed: bool = await self._engine.database.value(
                "select hourbell.renew($1, $2, $3)", term.node, term.epoch, self.lease
            )
        return renewed

    async def _campaign(self) -> Term | None:
        epoch = await self._engine.database.value(
            "select hourbell.campaign($1, $2)", self.node, self.lease
        )
        self._unbroken_since = None
        return Term(self.node, epoch) if epoch is not None else None

    def _measure(self, now: datetime) -> None:
        monotonic = self._engine.clock.monotonic()
        if self._unbroken_since is None or self._is_broken(now):
            self._unbroken_since = monotonic
        self._last = (monotonic, now)

    def _is_broken(self, now: datetime) -> bool:
        """Whether the last renewal is too long ago, or the database's clock was set since."""
        if self._last is None:
            return True
        times = self._engine.times
        passed = self._engine.clock.monotonic() - self._last[0]
        by_database = (now - self._last[1]).total_seconds()
        late = passed > min(times.leader_lease_seconds, times.lease_seconds / 2)
        return late or abs(by_database - passed) > _STEP_SECONDS

    def _lose(self) -> None:
        self.term = None
        self._unbroken_since = None
        self._last = None
