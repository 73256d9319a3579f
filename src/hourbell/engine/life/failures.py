"""One log line for each failed attempt and each death: what failed, why, and what follows.

A broken target can fail a million attempts a minute. So a process logs at most MAX_LINES of each
event a second, and then how many it has left out. The ledger and the dead letters have all of them.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from hourbell.engine.life.settlement import DEAD, GONE, RETRY, Settlement
from hourbell.model.executions import Claimed
from hourbell.model.ids import execution_text, job_text
from hourbell.model.instants import format_instant
from hourbell.observe.clock import utc_now
from hourbell.store.queries import queries

if TYPE_CHECKING:
    from hourbell.engine.core import Engine

MAX_LINES = 100  # of an event, a second
_WINDOW_SECONDS = 1.0
_MAX_ERROR = 500  # characters
_MAX_DEATHS = 5_000  # of a step of the leader

_Q = queries("dead_letters")


class LineLimit:
    """Whether another line of an event is logged; says later how many were not."""

    def __init__(self, log: Any, of: str) -> None:
        self._log = log
        self._of = of
        self._until = 0.0
        self._lines = 0
        self._left_out = 0

    def allows(self, now: float) -> bool:
        """Count a line; `now` is monotonic."""
        if now >= self._until:
            self._until, self._lines = now + _WINDOW_SECONDS, 0
        self._lines += 1
        if self._lines <= MAX_LINES:
            return True
        if not self._left_out:
            asyncio.get_running_loop().call_later(self._until - now, self._report)
        self._left_out += 1
        return False

    def _report(self) -> None:
        self._log.warning("log lines left out", of=self._of, number=self._left_out)
        self._left_out = 0


class FailureLog:
    """Logs what did not succeed."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._attempts = LineLimit(log, "attempt failed")
        self._deaths = LineLimit(log, "execution died")

    def note(self, decided: Settlement, claimed: Claimed) -> None:
        """Log a decided outcome, if it is a failed attempt or a death."""
        number, job_id = claimed.execution_id, claimed.job_id
        attempt, tenant = claimed.attempt, claimed.tenant_id
        if decided.kind == RETRY:
            if self._attempts.allows(time.monotonic()):
                retry_at = utc_now() + timedelta(seconds=decided.delay_seconds or 0)
                self._log.warning(
                    "attempt failed",
                    **_named(number, job_id, attempt, tenant, decided.reason, decided.error),
                    follows=f"retry at {format_instant(retry_at)}",
                )
        elif decided.kind in (DEAD, GONE):
            follows = "dead" if decided.kind == DEAD else "dead, and the job is paused"
            self.note_death(
                number,
                job_id,
                attempt,
                tenant,
                decided.reason,
                decided.error,
                follows,
                decided.failure,
            )

    def note_death(
        self,
        execution_id: int,
        job_id: int,
        attempt: int,
        tenant: str,
        reason: str | None,
        error: str | None,
        follows: str = "dead",
        failure: str | None = None,
    ) -> None:
        """Log the death of an execution. `failure`: the kind of failure of its last attempt."""
        if self._deaths.allows(time.monotonic()):
            kind = {} if failure is None else {"failure": failure}
            named = _named(execution_id, job_id, attempt, tenant, reason, error)
            self._log.error("execution died", **named, **kind, follows=follows)


async def log_deaths(engine: Engine, at: datetime) -> None:
    """Log the executions that a step of the leader has ended as dead at this time."""
    for row in await engine.database.fetch(_Q["died_at"], at, _MAX_DEATHS):
        engine.failures.note_death(
            row["id"], row["job"], row["attempt"], row["tenant"], row["reason"], row["error"]
        )


def _named(
    execution_id: int,
    job_id: int,
    attempt: int,
    tenant: str,
    reason: str | None,
    error: str | None,
) -> dict[str, object]:
    fields: dict[str, object] = {
        "execution_id": execution_text(execution_id),
        "job_id": job_text(job_id),
        "attempt": attempt,
        "reason": reason,
    }
    if tenant:
        fields["tenant"] = tenant
    if error is not None:
        fields["error"] = error[:_MAX_ERROR]
    return fields
