"""Bounds for what requests may use of a process: slots and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hourbell.model.errors import Overloaded


class BoundedSlots:
    """A semaphore with a bounded queue: a few run at once, some wait, the rest are rejected."""

    def __init__(self, max_at_once: int, max_waiting: int) -> None:
        self._slots = asyncio.Semaphore(max_at_once)
        self._max_users = max_at_once + max_waiting
        self._users = 0

    async def __aenter__(self) -> None:
        if self._users >= self._max_users:
            raise Overloaded
        self._users += 1
        try:
            await self._slots.acquire()
        except BaseException:
            self._users -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        self._slots.release()


class MemoryBudget:
    """A memory budget for request bodies being received.

    Memory is reserved as bytes arrive, so slow senders hold little, and no tenant can get all of it.
    """

    def __init__(self, max_bytes: int, max_bytes_per_tenant: int) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_per_tenant = max_bytes_per_tenant
        self._reserved: Counter[str | None] = Counter()

    @contextmanager
    def reserving(self, tenant: str | None) -> Iterator[Callable[[int], None]]:
        """A function that reserves bytes, or raises Overloaded. All are released at the end."""
        reserved = 0

        def reserve(size: int) -> None:
            nonlocal reserved
            if (
                self._reserved[tenant] + size > self._max_bytes_per_tenant
                or self._reserved.total() + size > self._max_bytes
            ):
                raise Overloaded
            self._reserved[tenant] += size
            reserved += size

        try:
            yield reserve
        finally:
            self._reserved[tenant] -= reserved
            if not self._reserved[tenant]:
                del self._reserved[tenant]
