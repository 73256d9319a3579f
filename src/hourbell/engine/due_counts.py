"""Executions of a tenant that fall due in the same second, counted as this process creates them.

The gate serves the first executions of each tenant in a second before the rest of a herd
(`hourbell.level_of`). A batch could be counted where it is stored, but jobs that are created one by
one could not. So each process counts what it creates; several processes together put a few more
executions into the first levels, which does no harm.
"""

from __future__ import annotations

_MAX_COUNTS = 65_536


class DueCounts:
    """Counts by tenant and second.

    They are bounded: at the limit, counts not used since the previous rotation are dropped.
    """

    def __init__(self, max_counts: int = _MAX_COUNTS) -> None:
        self._newer: dict[tuple[int, int], int] = {}
        self._older: dict[tuple[int, int], int] = {}
        self._max_counts = max_counts

    def level(self, tenant: int, second: int) -> int:
        """Count an execution of a tenant in a second; its level, 0 to 3 (`hourbell.level_of`)."""
        key = tenant, second
        counts = self._newer
        nth = counts.get(key)  # from 0
        if nth is None:
            nth = self._older.get(key, 0)
            if len(counts) >= self._max_counts:
                self._older, self._newer = counts, {}
                counts = self._newer
        counts[key] = nth + 1
        return 0 if nth < 16 else 1 if nth < 256 else 2 if nth < 4_096 else 3
