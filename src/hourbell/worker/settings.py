"""The settings of a worker."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hourbell.model.manifests import Manifest


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    queues: Sequence[str] | None = ("default",)  # None: all, including those created later
    tasks: Sequence[str] | None = None  # that it can run; `@webhook` is one. None: all
    manifest: Manifest | None = None  # what the code of its app declares
    slots: int = 100
    critical_slots: int = 0  # of the slots, for CRITICAL only
    low_share: float = 0.05  # of the claims, begin with the least urgent, so LOW is not starved
    lease_seconds: float = 15.0
    gather_seconds: float = (
        0.005  # wait for more outcomes after a settle: a large batch costs little
    )
    drain_seconds: float = 30.0  # how long running executions may continue after a stop
