"""Circuit breakers: a target that fails and fails is left alone for a while, by this process.

    closed ── failures in a row ──▶ open ── the pause is over ──▶ one probe ── it succeeds ──▶ closed
                                     ▲                              │
                                     └──── it fails: twice the pause ┘

What comes for an open circuit is put off, not failed: nothing is sent, so no attempt is burnt. Connections that break, timeouts
and 5xx are failures of a target; any other answer shows that it lives. It takes several in a row, over a while: a burst of what
happens to fail beside what succeeds says nothing. A target is a host with a port as one tenant calls it: whatever somebody
sends there, others are untouched.
Purely decided: times come in as arguments, monotonic.
"""

from __future__ import annotations

import random

FAILURES = 20  # in a row: of a target that lives, half of what is sent there may fail,
OVER_SECONDS = 2.0  # from the first to the last of them
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
_MOST_TARGETS = 10_000  # that are remembered; of more, those that failed first are forgotten

Target = tuple[str, str, int]  # tenant, host, port


class _Circuit:
    __slots__ = ("failures", "open_until", "pause", "probing", "since")

    def __init__(self, now: float) -> None:
        self.since = now  # the first of the failures
        self.failures = 0  # in a row
        self.pause = 0.0  # 0: closed
        self.open_until = 0.0
        self.probing = False


class Circuits:
    """The circuits of one process, by target. Only those that have failed lately are remembered."""

    def __init__(self) -> None:
        self._circuits: dict[Target, _Circuit] = {}

    def delay_seconds(self, target: Target, now: float) -> float | None:
        """None: go ahead, and say how it went. Otherwise do not, and come back after so long."""
        circuit = self._circuits.get(target)
        if circuit is None or not circuit.pause:
            return None
        rest = circuit.open_until - now
        if rest <= 0 and not circuit.probing:
            circuit.probing = True
            return None
        # Those that were put off come back apart; while somebody probes, after what a new pause would be at least.
        return max(rest, circuit.pause / 2) + random.random() * circuit.pause / 2  # nosec B311

    def lives(self, target: Target) -> None:
        """It has answered."""
        if self._circuits:
            self._circuits.pop(target, None)

    def failed(self, target: Target, now: float) -> float | None:
        """It has not, or not well. How long it is left alone, if that begins now."""
        circuit = self._circuits.get(target)
        if circuit is None:
            if len(self._circuits) >= _MOST_TARGETS:
                del self._circuits[next(iter(self._circuits))]
            circuit = self._circuits[target] = _Circuit(now)
        circuit.failures += 1
        in_a_row = circuit.failures >= FAILURES and now - circuit.since >= OVER_SECONDS
        if circuit.probing or (in_a_row and not circuit.pause):
            circuit.probing = False
            circuit.pause = min(circuit.pause * 2 or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
            circuit.open_until = now + circuit.pause
            return circuit.pause
        return None

    def unknown(self, target: Target) -> None:
        """It was stopped before anybody could tell: if it was the probe, the next one is."""
        circuit = self._circuits.get(target)
        if circuit is not None:
            circuit.probing = False
