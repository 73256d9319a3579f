"""Whom a fault can have hit: an excuse is for those, and for nobody else.

A fault is known by its kind and its victim, a process or a connection. What it strikes is named
here as the processes themselves are, or as all of a role: `workers`, `schedulers`.

Starts go one of two ways from the database: through a worker to the receiver, or through the API to
a worker over HTTP. What is broken on one way does not excuse what goes the other way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from verify.history import Fault, History

WORKERS, SCHEDULERS, API, RECEIVER, DATABASE = (
    "workers",
    "schedulers",
    "api",
    "receiver",
    "database",
)
ALL = frozenset({WORKERS, SCHEDULERS, API})
_HTTP = "http-"  # how the workers over HTTP are called
_BY_BACKENDS = {
    "worker-%": frozenset({WORKERS}),
    "scheduler-%": frozenset({SCHEDULERS}),
    "api-%": frozenset({API}),
}
# They kill or stop their victim twice: once to start it as they need it, once to hit it.
_TWO_BLOWS = ("kill_at_failpoint", "stop_at_failpoint", "clock_skew", "clock_step")
# They hit the process itself. One that has only lost the database goes on with what it has begun.
_PROCESS_KINDS = ("kill", "stop", "clock", "rolling_", "poison", "older_worker")


class Strike(NamedTuple):
    """A fault, by whom it hits."""

    fault: Fault
    hit: frozenset[str]

    @property
    def hits_workers(self) -> bool:
        return self.workers(1) > 0

    def hits(self, worker: str | None) -> bool:
        """Whether it hits this worker; or any, if nobody knows which one it was."""
        if worker is None:
            return self.hits_workers or self.http_workers(1) > 0
        return bool(self.hit & {API if worker.startswith(_HTTP) else WORKERS, worker})

    @property
    def hits_worker_processes(self) -> bool:
        """Not only their connections to the database."""
        return (
            self.hits_workers
            and self.fault.kind.startswith(_PROCESS_KINDS)
            and "→" not in self.fault.victim
            and not self.fault.victim.startswith("postgres")
        )

    def workers(self, of: int) -> int:
        """How many it hits, of so many."""
        if WORKERS in self.hit:
            return of
        return sum(name.startswith("worker-") for name in self.hit)

    def http_workers(self, of: int) -> int:
        """How many workers over HTTP it hits, of so many; without the API they can do nothing."""
        if API in self.hit:
            return of
        return sum(name.startswith(_HTTP) for name in self.hit)

    def holds_up(self, over_http: bool) -> bool:
        """Whether what a worker has been given may reach its end later."""
        if over_http:
            return self.http_workers(1) > 0
        return self.hits_workers or RECEIVER in self.hit

    def delays_starts(self, over_http: bool) -> bool:
        """Whether something is broken on this way from the database to the end."""
        other_way = _is_on_webhooks_way if over_http else _is_on_https_way
        return any(not other_way(name) for name in self.hit)

    @property
    def echo_seconds(self) -> float:
        """For how long it is felt when it is over: workers leave a target alone that fails, each time for twice as long, and come
        back within half of that more."""
        length = self.fault.ended_at - self.fault.began_at
        return 1.5 * (length + 1.0) if RECEIVER in self.hit else 0.0

    @property
    def blows(self) -> int:
        return 2 if self.fault.kind in _TWO_BLOWS else 1


def _is_on_webhooks_way(name: str) -> bool:
    return name in (WORKERS, RECEIVER) or name.startswith("worker-")


def _is_on_https_way(name: str) -> bool:
    return name == API or name.startswith(_HTTP)


def moments(fault: Fault) -> list[Fault]:
    """When a fault breaks something, and what. A node with other zone data is restarted twice, and well in between; in an
    upgrade one process after the other is restarted, and each build is well beside the other."""
    if fault.kind == "rolling_upgrade":
        return [
            msgspec.structs.replace(fault, victim=victim, began_at=began_at, ended_at=ended_at)
            for victim, began_at, ended_at in fault.detail["moments"]
        ]
    if fault.kind not in ("older_tzdata", "older_worker"):
        return [fault]
    return [
        msgspec.structs.replace(fault, ended_at=fault.detail["whole_at"]),
        msgspec.structs.replace(fault, began_at=fault.detail["until"]),
    ]


def served_by_older(history: History) -> Iterator[tuple[float, float]]:
    """When an older build may have answered: a run with upgrades begins with it."""
    upgrades = [fault for fault in history.faults if fault.kind == "rolling_upgrade"]
    for number, upgrade in enumerate(upgrades):
        yield (0.0 if number == 0 else upgrade.began_at), upgrade.ended_at


def strike(fault: Fault) -> Strike:
    return Strike(fault, _hit(fault))


def _hit(fault: Fault) -> frozenset[str]:
    whole = fault.victim.startswith("postgres") or fault.victim == "everything"
    match fault.kind:
        case "poison":
            return frozenset({WORKERS})
        case "migrate_under_load" | "rolling_upgrade" if fault.victim == "postgres":
            return frozenset({DATABASE})  # it holds up for a moment, and ends nothing
        case "older_tzdata" if not fault.victim.startswith("api"):
            return frozenset()  # schedulers are restarted in order, one after the other
        case "old_primary_returns":
            return ALL  # a failover came first, whichever process then strays
        case "clog" if "links" in fault.detail:
            return frozenset().union(*map(_of_link, fault.detail["links"]))
        case "terminate_backends":
            return _BY_BACKENDS.get(fault.detail.get("whose", ""), ALL)
    return ALL if whole else _of_link(fault.victim)


def _of_link(name: str) -> frozenset[str]:
    """Of a connection, who opens it; `workers→receiver` and the clients' are of where they lead."""
    process = name.split("→")[0]
    if process == "workers":
        return frozenset({RECEIVER})
    if process == "client" or process.startswith("api"):
        return frozenset({API})
    return frozenset({process})
