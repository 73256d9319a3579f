"""What an engine counts: batches of its verbs, deliveries, outcomes, and work that it refused.

Counted once per batch, where the verb is called, so whichever part of the process calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hourbell.engine.codes import FATES
from hourbell.engine.life.settlement import (
    ACCEPTED,
    CANCELLED,
    DEAD,
    GONE,
    INTERRUPTED,
    RELEASED,
    RETRY,
    SNOOZED,
    SUCCEEDED,
)
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    NO_SECRET_KEYS,
    PAYLOAD_MISMATCH,
    REASONS,
    UNREADABLE,
    ExecutionStatus,
    Reason,
)
from hourbell.observe.metrics import OTHER, SIZES, Distribution, LargestValues, Metrics

NO_REASON = "none"
_MAX_KINDS = 50  # of failures; names of exceptions are chosen by users
_FATES = {
    SUCCEEDED: ExecutionStatus.SUCCEEDED,
    DEAD: ExecutionStatus.DEAD,
    GONE: ExecutionStatus.DEAD,
    CANCELLED: ExecutionStatus.CANCELLED,
}
_RETURNED = {INTERRUPTED: "interrupted", SNOOZED: "snoozed", ACCEPTED: "accepted"}
_RELEASED = {
    None: "released",
    CIRCUIT_OPEN: CIRCUIT_OPEN,
    NO_SECRET_KEYS: NO_SECRET_KEYS,
    PAYLOAD_MISMATCH: PAYLOAD_MISMATCH,
    UNREADABLE: UNREADABLE,
}


class Batches:
    """The batches of one verb."""

    __slots__ = ("_seconds", "_sizes")

    def __init__(self, sizes: Distribution, seconds: Distribution) -> None:
        self._sizes = sizes
        self._seconds = seconds

    def add(self, size: int, seconds: float) -> None:
        """Count a batch; one with nothing in it is not counted."""
        if size:
            self._sizes.observe(size)
            self._seconds.observe(seconds)


class EngineCounts:
    """What the engines of a process count together."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        sizes = metrics.histogram(
            "hourbell_batch_size", "Executions in a batch of a verb.", ("verb",), SIZES
        )
        seconds = metrics.histogram(
            "hourbell_batch_duration_seconds",
            "Time of a batch of a verb, including the wait for a connection.",
            ("verb",),
        )
        self.created, self.planned, self.admitted, self.claimed, self.settled = (
            Batches(sizes.series(verb), seconds.series(verb))
            for verb in ("create", "plan", "admit", "claim", "settle")
        )
        self.deliveries = LargestValues(
            metrics.counter(
                "hourbell_deliveries_total",
                "Executions given to workers, by the largest tenants.",
                ("tenant",),
            )
        )
        self._outcomes = metrics.counter(
            "hourbell_outcomes_total",
            "Executions that ended, by their fate and its reason.",
            ("status", "reason"),
        )
        self._succeeded = self._outcomes.series(ExecutionStatus.SUCCEEDED.value, NO_REASON)
        for status, reasons in REASONS.items():
            for reason in sorted(reasons):  # from 0, so that the first one is an increase
                self._outcomes.series(status.value, reason.value)
        self._cancelled = self._outcomes.series(
            ExecutionStatus.CANCELLED.value, Reason.CANCELLED.value
        )
        self._retries = metrics.counter(
            "hourbell_retries_total",
            "Failed attempts that are followed by another one, by the kind of the failure.",
            ("kind",),
            _MAX_KINDS,
        )
        self._returned = metrics.counter(
            "hourbell_returned_total",
            "Runs that went back without an ended attempt.",
            ("reason",),
        )
        for returned in (*_RETURNED.values(), *_RELEASED.values()):
            self._returned.series(returned)
        duplicates = metrics.counter(
            "hourbell_duplicates_total",
            "Work that was recognized as a duplicate and dropped, by what recognized it.",
            ("layer",),
        )
        self.repeated_keys, self.taken_keys, self.stale_fences = (
            duplicates.series(layer) for layer in ("idempotency_key", "unique_key", "fence")
        )
        self.expired_sessions = metrics.counter(
            "hourbell_sessions_expired_total", "Sessions of workers that were not renewed in time."
        ).series()
        self.expired_leases = metrics.counter(
            "hourbell_leases_expired_total", "Executions that were taken from expired sessions."
        ).series()

    def count_settled(
        self,
        total: int,
        kinds: Sequence[int],
        reasons: Sequence[str | None],
        refused: int = 0,
        cancelled: int = 0,
    ) -> None:
        """Count a batch of outcomes; `kinds` and `reasons` are those that are not plain.

        `refused` and `cancelled` are not in them: the latter ended by a request to cancel them.
        """
        self._succeeded.value += total - len(kinds)
        self.stale_fences.value += refused
        self._cancelled.value += cancelled
        for kind, reason in zip(kinds, reasons, strict=True):
            if kind == RETRY:
                self._retries.series(reason or NO_REASON).add()
            elif kind == RELEASED:
                self._returned.series(_RELEASED.get(reason, OTHER)).add()
            elif kind in _RETURNED:
                self._returned.series(_RETURNED[kind]).add()
            else:
                self._outcomes.series(_FATES[kind].value, reason or NO_REASON).add()

    def count_ended(self, ended: str | None) -> None:
        """Count what a statement has ended, as `hourbell.count_fates` says it."""
        if ended:
            for part in ended.split():
                status, reason, count = part.split(":")
                series = self._outcomes.series(FATES[int(status)].value, reason or NO_REASON)
                series.add(int(count))

    def count_retries(self, kind: str, count: int) -> None:
        """Count failed attempts of one kind that are followed by another one."""
        if count:
            self._retries.series(kind).add(count)
