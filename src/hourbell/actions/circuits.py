"""Circuit breakers: a target that keeps failing gets fewer requests from this process for a while.

    closed ── failures in a row ──▶ open ── the pause is over ──▶ one probe ── it succeeds ──▶ closed
                                     ▲                              │
                                     └──── it fails: twice the pause ┘

A request that meets an open circuit is put off, not failed: nothing is sent, so no attempt is burnt. It takes several failures in a
row, over a while: failures among successes open nothing. `webhook` has two sets of circuits. Those of hosts count connections that
could not be made, those of endpoints (method and path at a host) count bad answers and answers that did not come. So a broken endpoint
never delays another one, and a dead host is still called by one probe at a time, however many endpoints it has.

Jobs that share an endpoint may differ in what they send, and every probe may be sent by one that fails. So an endpoint's circuit delays
an attempt by at most `longest_wait_seconds`; after that the attempt is sent, a bounded number of them at once.
A probe that has no outcome after `PROBE_SECONDS` is not waited for any longer.
Purely decided: times come in as arguments, monotonic.
"""

from __future__ import annotations

import math
import random

FAILURES = 20  # in a row: of a target that lives, half of what is sent there may fail,
OVER_SECONDS = 2.0  # from the first to the last of them
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
PROBE_SECONDS = 30.0  # after this, another request may probe
MOST_LATE_AT_ONCE = (
    20  # requests under way that went past one open circuit after their longest wait
)
_NO_PLACE_SECONDS = 1.0  # how long one of them waits for a place, at least
_MOST_TARGETS = 10_000  # circuits; of more, those whose failures began first are forgotten
_MOST_WAITING = 10_000  # attempts whose wait is measured; of more, the later ones wait for a place
_FORGOTTEN_AFTER = 3  # longest waits: by then another process has run the attempt

Target = tuple[str | int, ...]  # tenant, host, port; and of an endpoint, method and path


class _Circuit:
    __slots__ = ("failures", "late", "open_until", "pause", "probe", "probe_until", "since")

    def __init__(self, now: float) -> None:
        self.since = now  # the first of the failures
        self.failures = 0  # in a row
        self.pause = 0.0  # 0: closed
        self.open_until = 0.0
        self.probe: int | None = None  # the call that probes,
        self.probe_until = 0.0  # and how long the others wait for it
        self.late: set[int] = set()  # calls under way that had waited long enough


class Circuits:
    """The circuits of one process, by target. Only those that have failed lately are remembered.

    `call` is a number that the caller chooses, a different one for each request.
    """

    def __init__(self, longest_wait_seconds: float = math.inf) -> None:
        self._longest_wait_seconds = longest_wait_seconds
        self._circuits: dict[Target, _Circuit] = {}
        self._waiting: dict[tuple[int, int], float] = {}  # since when an attempt is put off

    def delay_seconds(
        self,
        target: Target,
        call: int,
        now: float,
        attempt: tuple[int, int] = (0, 0),
        waited_seconds: float = 0.0,
    ) -> float | None:
        """None: send it, and report the outcome. Otherwise do not send it, and retry after so many seconds.

        `attempt` is an execution and its attempt, `waited_seconds` how late it is: other processes may have put it off. What is
        late by more than twice the longest wait is late for another reason.
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
        # Put off by different times, so that they do not come back together; during a probe, by what the next pause is at least.
        delay = max(rest, circuit.pause / 2) + random.random() * circuit.pause / 2  # nosec B311
        if self._longest_wait_seconds == math.inf:
            return delay
        if waited_seconds >= 2 * self._longest_wait_seconds:
            waited_seconds = 0.0
        since = min(self._waiting.get(attempt, now), now - waited_seconds)
        left = since + self._longest_wait_seconds - now
        if left > 0:
            self._remember(attempt, since, now)
            return min(delay, left)
        if len(circuit.late) < MOST_LATE_AT_ONCE:
            circuit.late.add(call)
            self._waiting.pop(attempt, None)
            return None
        return _NO_PLACE_SECONDS + random.random()  # nosec B311

    def _remember(self, attempt: tuple[int, int], since: float, now: float) -> None:
        if attempt in self._waiting:
            return
        if len(self._waiting) >= _MOST_WAITING:
            oldest = next(iter(self._waiting))
            if self._waiting[oldest] > now - _FORGOTTEN_AFTER * self._longest_wait_seconds:
                return
            del self._waiting[oldest]
        self._waiting[attempt] = since

    def lives(self, target: Target) -> None:
        """It has answered."""
        if self._circuits:
            self._circuits.pop(target, None)

    def failed(self, target: Target, call: int, now: float) -> float | None:
        """It has not, or not well. How long it is left alone, if that begins now."""
        circuit = self._circuits.get(target)
        if circuit is None:
            if len(self._circuits) >= _MOST_TARGETS:
                del self._circuits[next(iter(self._circuits))]
            circuit = self._circuits[target] = _Circuit(now)
        circuit.failures += 1
        circuit.late.discard(call)
        in_a_row = circuit.failures >= FAILURES and now - circuit.since >= OVER_SECONDS
        if circuit.probe == call or (in_a_row and not circuit.pause):
            circuit.probe = None
            circuit.pause = min(circuit.pause * 2 or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            circuit.open_until = now + circuit.pause
            return circuit.pause
        return None

    def unknown(self, target: Target, call: int) -> None:
        """It ended without an outcome for the target: if it was the probe, the next request becomes the probe."""
        circuit = self._circuits.get(target)
        if circuit is not None:
            circuit.late.discard(call)
            if circuit.probe == call:
                circuit.probe = None
