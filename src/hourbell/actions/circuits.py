"""Circuit breakers: a target that keeps failing gets fewer requests from this process for a while.

    closed ── failures in a row ──▶ open ── the pause is over ──▶ one probe ── success ──▶ closed
                                     ▲                              │
                                     └──── failure: twice the pause ┘

A request to an open circuit is postponed, not failed: nothing is sent, so it uses up no attempt. A
circuit opens after several consecutive failures over some time; failures mixed with successes do
not open it. `webhook` has two sets of circuits. Host circuits count failed connections; endpoint
circuits (method and path on a host) count error responses and missing responses. So a broken
endpoint never delays another one, and a dead host gets one probe at a time, however many endpoints
it has.

Jobs that share an endpoint may send different content, and every probe may come from a job that
always fails. So an endpoint's circuit delays an attempt by at most `max_wait_seconds`; after
that the attempt is sent, with a bounded number of such attempts at once. A probe without an outcome
after `PROBE_SECONDS` no longer blocks other requests.

Decisions are pure: times are arguments, monotonic.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import msgspec

FAILURES = 20  # consecutive: a healthy target may fail half of its requests,
OVER_SECONDS = 2.0  # at least this long from the first to the last of them
FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
PROBE_SECONDS = 30.0  # after this, another request may probe
MAX_LATE_AT_ONCE = 20  # in-flight requests per open circuit that had reached the longest wait
_LATE_RETRY_SECONDS = 1.0  # the shortest delay when that limit is reached
_MAX_TARGETS = 10_000  # circuits; beyond that, those whose failures began first are dropped
_MAX_WAITING = 10_000  # attempts whose wait is tracked; beyond that, later ones are not tracked
_FORGET_AFTER = 3  # times the longest wait: by then another process has run the attempt

Target = tuple[str | int, ...]  # tenant, host, port; for an endpoint: tenant, method, URL


class OpenTarget(msgspec.Struct, frozen=True):
    """A target whose circuit is open; times are monotonic."""

    target: Target
    failures: int  # consecutive failures,
    since: float  # the first of which was at this time
    until: float  # when one request may probe
    error: str  # of the last failure


class _Circuit:
    __slots__ = (
        "error",
        "failures",
        "late",
        "open_until",
        "pause",
        "probe",
        "probe_until",
        "since",
    )

    def __init__(self, now: float) -> None:
        self.since = now  # time of the first failure
        self.failures = 0  # consecutive,
        self.error = ""  # and the last one
        self.pause = 0.0  # 0: closed
        self.open_until = 0.0
        self.probe: int | None = None  # the call that probes,
        self.probe_until = 0.0  # and until when the others wait for it
        self.late: set[int] = set()  # in-flight calls that had reached the longest wait


class Circuits:
    """The circuits of one process, by target. Only recently failed targets are kept.

    `call` is a number chosen by the caller, unique per request.
    """

    def __init__(self, max_wait_seconds: float = math.inf) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._circuits: dict[Target, _Circuit] = {}
        self._waiting: dict[tuple[int, int], float] = {}  # attempt → postponed since

    def delay_seconds(
        self,
        target: Target,
        call: int,
        now: float,
        attempt: tuple[int, int] = (0, 0),
        waited_seconds: float = 0.0,
    ) -> float | None:
        """None: send the request and report its outcome. Otherwise retry after this many seconds.

        `attempt` is an execution id and its attempt; `waited_seconds` is how late it is, because
        other processes may have postponed it. An attempt that is late by more than twice the
        longest wait is late for another reason.
        """
        circuit = self._circuits.get(target)
        if circuit is None or not circuit.pause:
            self._waiting.pop(attempt, None)
            return None
        rest = circuit.open_until - now
        if rest <= 0 and (circuit.probe is None or now >= circuit.probe_until):
            circuit.probe, circuit.probe_until = call, now + PROBE_SECONDS
            self._waiting.pop(attempt, None)
            return None
        # Random delays, so that requests do not return all at once; during a probe, at least half
        # of the current pause.
        delay = max(rest, circuit.pause / 2) + random.random() * circuit.pause / 2  # nosec B311
        if self._max_wait_seconds == math.inf:
            return delay
        if waited_seconds >= 2 * self._max_wait_seconds:
            waited_seconds = 0.0
        since = min(self._waiting.get(attempt, now), now - waited_seconds)
        left = since + self._max_wait_seconds - now
        if left > 0:
            self._remember(attempt, since, now)
            return min(delay, left)
        if len(circuit.late) < MAX_LATE_AT_ONCE:
            circuit.late.add(call)
            self._waiting.pop(attempt, None)
            return None
        return _LATE_RETRY_SECONDS + random.random()  # nosec B311

    def _remember(self, attempt: tuple[int, int], since: float, now: float) -> None:
        if attempt in self._waiting:
            return
        if len(self._waiting) >= _MAX_WAITING:
            oldest = next(iter(self._waiting))
            if self._waiting[oldest] > now - _FORGET_AFTER * self._max_wait_seconds:
                return
            del self._waiting[oldest]
        self._waiting[attempt] = since

    def succeeded(self, target: Target) -> None:
        """The target responded."""
        if self._circuits:
            self._circuits.pop(target, None)

    def failed(self, target: Target, call: int, now: float, error: str = "") -> float | None:
        """The target failed. Returns the length of the pause if the circuit opens now."""
        circuit = self._circuits.get(target)
        if circuit is None:
            if len(self._circuits) >= _MAX_TARGETS:
                del self._circuits[next(iter(self._circuits))]
            circuit = self._circuits[target] = _Circuit(now)
        circuit.failures += 1
        circuit.error = error
        circuit.late.discard(call)
        in_a_row = circuit.failures >= FAILURES and now - circuit.since >= OVER_SECONDS
        if circuit.probe == call or (in_a_row and not circuit.pause):
            circuit.probe = None
            circuit.pause = min(circuit.pause * 2 or FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
            circuit.open_until = now + circuit.pause
            return circuit.pause
        return None

    def open(self) -> Iterator[OpenTarget]:
        """The targets that get no requests, or only one that probes."""
        for target, circuit in self._circuits.items():
            if circuit.pause:
                yield OpenTarget(
                    target, circuit.failures, circuit.since, circuit.open_until, circuit.error
                )

    def states(self, now: float) -> tuple[int, int]:
        """How many circuits are open, and how many are half-open, waiting for a probe."""
        not_closed = [each for each in self._circuits.values() if each.pause]
        paused = sum(each.open_until > now for each in not_closed)
        return paused, len(not_closed) - paused

    def inconclusive(self, target: Target, call: int) -> None:
        """The call says nothing about the target; if it was the probe, the next call becomes the probe."""
        circuit = self._circuits.get(target)
        if circuit is not None:
            circuit.late.discard(call)
            if circuit.probe == call:
                circuit.probe = None
