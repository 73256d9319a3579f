"""Trouble on purpose: failpoints of the product, set before a verb, chosen by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from hourbell import failpoints
from hourbell.failpoints import FailpointError
from hourbell.model.errors import StoreUnavailable

T = TypeVar("T")

POINTS = {
    verb: tuple(name for name in failpoints.NAMES if name.partition(".")[0] == verb)
    for verb in {name.partition(".")[0] for name in failpoints.NAMES}
}
POINTS["create"] += POINTS["join"]
POINTS["update"] += POINTS["join"]
POINTS["resume"] += POINTS["join"]

# No verb may wait for a client that is stopped; whatever takes as long as this does.
_BLOCKED_SECONDS = 45.0


@dataclass(frozen=True)
class Fault:
    """A failure that is about to happen."""

    point: str
    action: str
    dies: bool  # the caller dies of it; otherwise it continues, and knows only that something went wrong

    @property
    def happened(self) -> bool:
        """Whether the statement that it interrupts is committed all the same."""
        return ".after_" in self.point


class Trouble(Exception):
    """A verb was interrupted."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.point)
        self.fault = fault


class Faults:
    def __init__(self, random: Random, probability: float) -> None:
        self._random = random
        self.probability = probability

    @property
    def over(self) -> bool:
        """Whether nothing goes wrong any more."""
        return self.probability == 0

    def draw(self, verb: str) -> Fault | None:
        """Whether the next call of this verb will be interrupted, and where."""
        if verb not in POINTS or self._random.random() >= self.probability:
            return None
        point = self._random.choice(sorted(POINTS[verb]))
        action = self._random.choice(["error", "drop"])
        return Fault(point, action, dies=self._random.random() < 0.5)

    async def run(self, fault: Fault | None, call: Callable[[], Awaitable[T]]) -> T:
        """Call the verb under the fault. The point may not be on its way this time; then nothing happens."""
        failpoints.configure("" if fault is None else f"{fault.point}={fault.action}@1")
        try:
            async with asyncio.timeout(_BLOCKED_SECONDS):
                return await call()
        except (FailpointError, StoreUnavailable):
            if fault is None:
                raise
            raise Trouble(fault) from None
        finally:
            failpoints.configure("")
