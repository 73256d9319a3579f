"""How late runs start where only so many may run at once, or start per second.

A forecast, not a simulation: each limit is a line on its own, the runs of one moment take equally
long, and a line that is behind works at its full rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil

import msgspec

MAX_DELAY_SECONDS = 30 * 86_400.0  # a start that is further away is not forecast


class Limit(msgspec.Struct, frozen=True):
    """A limit that runs share."""

    at_once: int | None = None  # None: any number
    per_second: float | None = None  # starts; None: any number
    burst: int = 1


class Arrival(msgspec.Struct, frozen=True):
    """Runs that are due at one moment."""

    at: datetime
    runs: int
    seconds: float  # each of them takes


class Delay(msgspec.Struct, frozen=True):
    """The time in which the runs of a limit wait longest, from when they first wait."""

    begins_at: datetime
    runs: int  # due in it, up to those that wait longest
    seconds: float  # that each takes, on average
    due_at: datetime  # those that wait longest
    last_start_at: datetime | None  # of them; None: they do not start


def longest_delay(limit: Limit, arrivals: Iterable[Arrival]) -> Delay | None:
    """The longest delay of arrivals, which are ordered by time; None: all start when they are due."""
    worst: Delay | None = None
    longest = 0.0
    work = behind = 0.0  # seconds of running, and starts, that are left over
    begins_at: datetime | None = None
    runs, total = 0, 0.0  # since then
    last: datetime | None = None
    for arrival in arrivals:
        passed = 0.0 if last is None else (arrival.at - last).total_seconds()
        last = arrival.at
        if limit.at_once:
            work = max(0.0, work - limit.at_once * passed)
        if limit.per_second:
            behind = max(0.0, behind - limit.per_second * passed)
        is_idle = work == 0.0 and behind == 0.0 and limit.at_once != 0
        if begins_at is None or is_idle:
            begins_at, runs, total = arrival.at, 0, 0.0
        runs += arrival.runs
        total += arrival.runs * arrival.seconds
        wait = _wait_of_last(limit, arrival, work, behind)
        work += arrival.runs * arrival.seconds if limit.at_once else 0.0
        behind += arrival.runs if limit.per_second else 0.0
        if wait > longest or wait == MAX_DELAY_SECONDS:
            longest = wait
            start = arrival.at + timedelta(seconds=wait) if wait < MAX_DELAY_SECONDS else None
            worst = Delay(begins_at, runs, total / runs, arrival.at, start)
    return worst


def _wait_of_last(limit: Limit, arrival: Arrival, work: float, behind: float) -> float:
    """How many seconds the last of these runs waits for its start."""
    waits = [0.0]
    if limit.at_once is not None:
        rounds = ceil(arrival.runs / limit.at_once) - 1 if limit.at_once else 0
        waits.append(
            work / limit.at_once + rounds * arrival.seconds if limit.at_once else MAX_DELAY_SECONDS
        )
    if limit.per_second is not None:
        waits.append((behind + arrival.runs - limit.burst) / limit.per_second)
    return min(max(waits), MAX_DELAY_SECONDS)
