"""What was promised to the clients of a run, with the margins of the judgements; and the tools that
all of them share.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from verify.history import Delivery, Seconds

CRITICAL, HIGH, MEDIUM, LOW = range(4)
PRIORITIES = {"CRITICAL": CRITICAL, "HIGH": HIGH, "MEDIUM": MEDIUM, "LOW": LOW}
SCHEDULE, RUN_NOW, BACKFILL = range(3)  # origins
LOST = frozenset({"lost", "crashed"})  # why an attempt ended that lost its worker
FOREVER = float("inf")
OVER_HTTP = "over-http"  # the queue of the workers over HTTP

Document = dict[str, Any]
Micros = int  # since the epoch: floats of the same moment may differ in their last bit


class Violation(NamedTuple):
    invariant: str  # I1 … I18; I0 if the evidence cannot be judged
    sentence: str


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """What was promised, and by how much it may be missed before that is held to be true."""

    # The system as the rig starts it.
    lease_seconds: float = 3.0  # of a worker's session
    leader_lease_seconds: float = 3.0
    horizon_seconds: float = 60.0  # how far ahead executions are planned
    misfire_grace_seconds: float = 60.0  # what is planned later than this may be missed
    workers: int = 4
    slots: int = 100  # of each worker
    http_workers: int = 0  # workers over HTTP
    http_slots: int = 10  # of each of them
    crash_limit: int = 5  # leases lost in a row, before it is given up: two in company, three alone
    standby_lag_seconds: float = 0.0  # of a primary's last moments that its standby may not have

    # The numbers of the issue.
    late_seconds: float = 2.0  # beyond fault time and failover
    most_late_seconds: float = 15.0  # however long something was broken
    calm_p99_seconds: float = 1.0  # lateness while nothing is broken
    shared_seconds: float = 0.0  # later than all of these, where other programs use the machine too
    early_seconds: float = 0.05
    stuck_seconds: float = 60.0  # after healing
    idle_in_transaction_seconds: float = 5.0
    growth: float = 1.3  # of the last third of a life against the middle one, …
    growth_rss_kb: int = 20 * 1024  # … and this much more: arenas, caches, a pool that fills
    growth_descriptors: int = 20
    growth_connections: int = 12  # a pool of the product that fills

    # Margins. One clock for all, yet a moment is read by one process and acted on by another.
    clock_seconds: float = 0.05  # between reading a clock and writing the time down
    edge_seconds: float = 0.05  # an occurrence so near to a change may be on either side of it
    # The ledger's times are read by one statement and used by the next.
    stamp_seconds: float = 0.1
    # What was claimed just before a pause, a delete or a cancel was answered still goes out.
    obey_seconds: float = 1.0
    herd_seconds: float = 30.0  # that a herd takes to drain: who is in it, or behind it, waits
    warm_up_seconds: float = 60.0  # a process that lived shorter is not asked whether it grows

    # How much there must be to judge in a run of at least so long: silence is no peace.
    judgeable_seconds: float = 300.0
    least_calm_starts: int = 100
    unnoted_term_seconds: float = 2.0  # who renews its term for longer has written something
    unwatched_seconds: float = 30.0  # between two looks at a process, or at the database

    # Moods of the receiver that leave nobody in doubt: who asks hears the whole answer, in time.
    honest_moods: frozenset[str] = frozenset({"well", "slow", "fails_once", "flaky"})
    no_excuse: frozenset[str] = frozenset(
        {"herd", "unreadable"}
    )  # kinds of faults that break nothing
    # Prefixes of kinds of faults under which a transaction may stay idle: nobody is there to go on
    # with it, or by its clock.
    idle_excuses: tuple[str, ...] = ("stop_", "clock_back")

    @property
    def failover_seconds(self) -> float:
        """Until a dead leader is replaced, and the next one trusts that silent workers are dead."""
        return self.leader_lease_seconds + self.lease_seconds

    @property
    def aftermath_seconds(self) -> float:
        """How long a fault is felt after its end."""
        return self.failover_seconds + self.late_seconds

    @property
    def least_lease_seconds(self) -> float:
        """What is left of a worker's lease when it falls silent: it renews three times in one."""
        return self.lease_seconds - self.lease_seconds / 3

    @property
    def reaped_seconds(self) -> float:
        """Until what a silent worker held is taken from it: its lease, and a failover at worst."""
        return self.lease_seconds + self.failover_seconds


# Small tools.

K = TypeVar("K")
V = TypeVar("V")


class Lists(dict[K, list[V]], Generic[K, V]):
    """Lists by key; one that is not there is empty, and asking for it does not make it."""

    def __missing__(self, key: K) -> list[V]:
        return []

    def add(self, key: K, value: V) -> None:
        self.setdefault(key, []).append(value)


class Spans:
    """Stretches of time that do not touch each other, in order."""

    def __init__(self, pairs: Iterable[tuple[Seconds, Seconds]] = ()) -> None:
        self._begins: list[Seconds] = []
        self._ends: list[Seconds] = []
        self._before: list[float] = []  # seconds in all the spans before this one
        total = 0.0
        for begin, end in sorted(pairs):
            if self._ends and begin <= self._ends[-1]:
                total += max(end - self._ends[-1], 0.0)
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._begins.append(begin)
                self._ends.append(end)
                self._before.append(total)
                total += end - begin

    def __iter__(self) -> Iterator[tuple[Seconds, Seconds]]:
        return zip(self._begins, self._ends, strict=True)

    def touches(self, since: Seconds, until: Seconds) -> bool:
        last = bisect_right(self._begins, until) - 1
        return last >= 0 and self._ends[last] >= since

    def length(self, since: Seconds, until: Seconds) -> float:
        """How much of a stretch they cover."""
        return max(self._up_to(until) - self._up_to(since), 0.0)

    def _up_to(self, at: Seconds) -> float:
        last = bisect_right(self._begins, at) - 1
        if last < 0:
            return 0.0
        return self._before[last] + min(at, self._ends[last]) - self._begins[last]

    def longest(self, since: Seconds, until: Seconds) -> float:
        """Of a stretch, the longest part that one of them covers."""
        return max((0.0, *(min(end, until) - max(begin, since) for begin, end in self)))

    def common(self, other: Spans) -> Spans:
        """What is in both."""
        return Spans(
            (max(begin, first), min(end, last))
            for begin, end in self
            for first, last in other
            if max(begin, first) <= min(end, last)
        )


def micros(at: Seconds) -> Micros:
    return round(at * 1_000_000)


def instant(text: str) -> Seconds:
    """Of RFC 3339."""
    return datetime.fromisoformat(text).timestamp()


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: of fewer than a hundred, the 99th is the greatest."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def succeeded(delivery: Delivery) -> bool:
    """A 2xx was answered, or at least begun."""
    return delivery.status is not None and 200 <= delivery.status < 300
