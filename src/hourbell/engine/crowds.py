"""How many executions of a tenant fall due in the same second, as far as this process has created them.

The gate serves the first executions of each tenant in a second before the rest of a crowd (`hourbell.level_of`). A batch
could be counted where it is stored, but jobs that are created one by one could not. So each process counts what it creates;
several processes together put a few more executions into the first levels, which harms nothing. The counts are few and
bounded: those that were used least recently are forgotten, and the count of a crowd is used all the time.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime

_MOST_COUNTS = 65_536


class Crowds:
    """Counts by tenant and second."""

    def __init__(self, most: int = _MOST_COUNTS) -> None:
        self._counts: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._most = most

    def add(self, tenant: int, at: datetime) -> int:
        """Count an execution; the how many-th of its tenant it is in the second of `at`, from 1."""
        key = tenant, int(at.timestamp())
        nth = self._counts.pop(key, 0) + 1
        self._counts[key] = nth
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        return nth
