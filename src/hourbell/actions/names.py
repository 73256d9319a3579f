"""DNS lookups of target hosts: in a bounded number of dedicated threads, with a short-lived cache.

A lookup cannot be cancelled: a name server that does not respond blocks a thread until the
system's timeout. So callers stop waiting after WAIT_SECONDS, and each tenant may have far fewer
lookups in progress than the total limit: slow names of a tenant delay only that tenant. Executions
of a tenant that need the same name share one lookup.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

WAIT_SECONDS = 5.0  # how long a caller waits for a lookup
FRESH_SECONDS = 10.0  # how long a result is cached,
FAILED_SECONDS = 2.0  # and how long a failure is cached
MAX_LOOKUPS = 128
MAX_LOOKUPS_PER_TENANT = 32
_MAX_CACHED = 10_000  # cached names; beyond that, the oldest are dropped

Resolve = Callable[[str], Sequence[str]]  # from a name to its addresses; may block and raise


class NameFailed(OSError):
    """The name has no address."""


class NameTooSlow(NameFailed):
    """The lookup did not finish in time."""


def look_up(host: str) -> Sequence[str]:
    """Resolve with the system's resolver: hosts file or name servers."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [_text(place) for *_, place in found]


def _text(place: tuple[Any, ...]) -> str:
    """The text of an address; a link-local address includes its scope."""
    address, scope = str(place[0]), place[3] if len(place) > 3 else 0
    return f"{address}%{scope}" if scope else address


class _Resolution(msgspec.Struct, frozen=True):
    addresses: Sequence[str]
    failure: str  # why there are no addresses
    until: float  # monotonic


class _Lookup:
    """A lookup in progress or waiting to start."""

    __slots__ = ("answer", "begun", "host", "tenant", "waiting")

    def __init__(self, tenant: str, host: str) -> None:
        self.tenant = tenant
        self.host = host
        self.answer: asyncio.Future[_Resolution] = asyncio.get_running_loop().create_future()
        self.begun = False
        self.waiting = 0  # number of callers waiting for it


class Names:
    """The lookup cache of this process."""

    def __init__(self, look_up: Resolve = look_up) -> None:
        self._look_up = look_up
        self._cache: dict[str, _Resolution] = {}
        self._lookups: dict[tuple[str, str], _Lookup] = {}  # oldest first
        self._running: Counter[str] = Counter()  # by tenant

    async def addresses(self, tenant: str, host: str) -> Sequence[str]:
        """All addresses of a name; raises NameFailed if there is none."""
        known = self._cache.get(host)
        if known is None or known.until <= time.monotonic():
            known = await self._resolve(tenant, host)
        if not known.addresses:
            raise NameFailed(known.failure)
        return known.addresses

    async def _resolve(self, tenant: str, host: str) -> _Resolution:
        lookup = self._lookups.get((tenant, host))
        if lookup is None:
            lookup = self._lookups[tenant, host] = _Lookup(tenant, host)
            self._start_lookups()
        lookup.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await asyncio.shield(lookup.answer)
        except TimeoutError:
            raise NameTooSlow(f"no answer within {WAIT_SECONDS:g} seconds") from None
        finally:
            lookup.waiting -= 1
            if not lookup.waiting and not lookup.begun:
                self._lookups.pop((tenant, host), None)

    def _start_lookups(self) -> None:
        """Start waiting lookups; tenants with the fewest in progress go first."""
        while self._running.total() < MAX_LOOKUPS:
            free = [
                lookup
                for lookup in self._lookups.values()
                if not lookup.begun and self._running[lookup.tenant] < MAX_LOOKUPS_PER_TENANT
            ]
            if not free:
                return
            lookup = min(free, key=lambda one: self._running[one.tenant])
            lookup.begun = True
            self._running[lookup.tenant] += 1
            # A daemon thread, so that a hanging name server does not block process exit.
            threading.Thread(
                target=self._run,
                args=[lookup, asyncio.get_running_loop()],
                name="name",
                daemon=True,
            ).start()

    def _run(self, lookup: _Lookup, loop: asyncio.AbstractEventLoop) -> None:
        addresses: Sequence[str] = ()
        failure = "it has no address"
        try:
            addresses = self._look_up(lookup.host)
        except Exception as error:  # such as UnicodeError for an invalid host name
            failure = f"{type(error).__name__}: {error}"
        # The loop may be closed by now; then no caller is waiting anymore.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, lookup, addresses, failure)

    def _ended(self, lookup: _Lookup, addresses: Sequence[str], failure: str) -> None:
        self._running[lookup.tenant] -= 1
        if not self._running[lookup.tenant]:
            del self._running[lookup.tenant]
        del self._lookups[lookup.tenant, lookup.host]
        seconds = FRESH_SECONDS if addresses else FAILED_SECONDS
        known = _Resolution(addresses, failure, time.monotonic() + seconds)
        self._cache.pop(lookup.host, None)
        if len(self._cache) >= _MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[lookup.host] = known
        lookup.answer.set_result(known)
        self._start_lookups()
