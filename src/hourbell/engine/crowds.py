"""How many executions of a tenant fall due in the same second, as far as this process has created them.

The gate serves the first executions of each tenant in a second before the rest of a crowd (`hourbell.level_of`). A batch
could be counted where it is stored, but jobs that are created one by one could not. So each process counts what it creates;
several processes together put a few more executions into the first levels, which does no harm.
"""

from __future__ import annotations

from datetime import datetime

_MOST_COUNTS = 65_536


class Crowds:
    """Counts by tenant and second.

    They are bounded: when there are too many, those that have not been used since the last time are forgotten.
    """

    def __init__(self, most: int = _MOST_COUNTS) -> None:
        self._newer: dict[tuple[int, int], int] = {}
        self._older: dict[tuple[int, int], int] = {}
        self._most = most
        self._last_at: datetime | None = None  # a batch often has one moment for all its jobs
        self._second = 0

    def add(self, tenant: int, at: datetime) -> int:
        """Count an execution; the how many-th of its tenant it is in the second of `at`, from 1."""
        if at is not self._last_at:
            self._last_at, self._second = at, int(at.timestamp())
        key = tenant, self._second
        counts = self._newer
        nth = counts.get(key)
        if nth is None:
            nth = self._older.get(key, 0)
            if len(counts) >= self._most:
                self._older, self._newer = counts, {}
                counts = self._newer
        counts[key] = nth + 1
        return nth + 1
