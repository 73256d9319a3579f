"""DNS look-ups of target hosts: in a bounded number of own threads, with a short cache.

A look-up cannot be cancelled: a name server that does not respond blocks a thread until the
system's timeout. So callers stop waiting after WAIT_SECONDS, and each tenant may have far fewer
look-ups in progress than the total limit: slow names of a tenant delay only that tenant. Executions
of a tenant that need the same name share one look-up.
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

WAIT_SECONDS = 5.0  # longest wait of a caller for a look-up
FRESH_SECONDS = 10.0  # how long a result is cached,
FAILED_SECONDS = 2.0  # and how long a failure is
MAX_LOOKUPS = 128
MAX_LOOKUPS_PER_TENANT = 32
_MAX_CACHED = 10_000  # cached names; beyond that, the oldest are dropped

LookUp = Callable[[str], Sequence[str]]  # from a name to its addresses; may block and raise


class NameFailed(OSError):
    """The name has no address."""


class NameTooSlow(NameFailed):
    """The look-up did not finish in time."""


def look_up(host: str) -> Sequence[str]:
    """Resolve with the system's resolver: hosts file or name servers."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [_text(place) for *_, place in found]


def _text(place: tuple[Any, ...]) -> str:
    """The text of an address; a link-local address includes its scope."""
    address, scope = str(place[0]), place[3] if len(place) > 3 else 0
    return f"{address}%{scope}" if scope else address


class _Known(msgspec.Struct, frozen=True):
    addresses: Sequence[str]
    failure: str  # why there are no addresses
    until: float  # monotonic


class _Wanted:
    """A look-up in progress or waiting to start."""

    __slots__ = ("answer", "begun", "host", "tenant", "waiting")

    def __init__(self, tenant: str, host: str) -> None:
        self.tenant = tenant
        self.host = host
        self.answer: asyncio.Future[_Known] = asyncio.get_running_loop().create_future()
        self.begun = False
        self.waiting = 0  # number of callers waiting for it


class Names:
    """The look-up cache of this process."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._known: dict[str, _Known] = {}
        self._wanted: dict[tuple[str, str], _Wanted] = {}  # oldest first
        self._under_way: Counter[str] = Counter()  # by tenant

    async def addresses(self, tenant: str, host: str) -> Sequence[str]:
        """All addresses of a name; raises NameFailed if there is none."""
        known = self._known.get(host)
        if known is None or known.until <= time.monotonic():
            known = await self._learnt(tenant, host)
        if not known.addresses:
            raise NameFailed(known.failure)
        return known.addresses

    async def _learnt(self, tenant: str, host: str) -> _Known:
        wanted = self._wanted.get((tenant, host))
        if wanted is None:
            wanted = self._wanted[tenant, host] = _Wanted(tenant, host)
            self._begin()
        wanted.waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await asyncio.shield(wanted.answer)
        except TimeoutError:
            raise NameTooSlow(f"no answer within {WAIT_SECONDS:g} seconds") from None
        finally:
            wanted.waiting -= 1
            if not wanted.waiting and not wanted.begun:
                self._wanted.pop((tenant, host), None)

    def _begin(self) -> None:
        """Start waiting look-ups; tenants with the fewest in progress go first."""
        while self._under_way.total() < MAX_LOOKUPS:
            free = [
                wanted
                for wanted in self._wanted.values()
                if not wanted.begun and self._under_way[wanted.tenant] < MAX_LOOKUPS_PER_TENANT
            ]
            if not free:
                return
            wanted = min(free, key=lambda one: self._under_way[one.tenant])
            wanted.begun = True
            self._under_way[wanted.tenant] += 1
            # A daemon thread, so that a hanging name server does not block process exit.
            threading.Thread(
                target=self._run,
                args=[wanted, asyncio.get_running_loop()],
                name="name",
                daemon=True,
            ).start()

    def _run(self, wanted: _Wanted, loop: asyncio.AbstractEventLoop) -> None:
        addresses: Sequence[str] = ()
        failure = "it has no address"
        try:
            addresses = self._look_up(wanted.host)
        except Exception as error:  # such as UnicodeError for an invalid host name
            failure = f"{type(error).__name__}: {error}"
        # The loop may be closed by now; then no caller is waiting any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, wanted, addresses, failure)

    def _ended(self, wanted: _Wanted, addresses: Sequence[str], failure: str) -> None:
        self._under_way[wanted.tenant] -= 1
        if not self._under_way[wanted.tenant]:
            del self._under_way[wanted.tenant]
        del self._wanted[wanted.tenant, wanted.host]
        seconds = FRESH_SECONDS if addresses else FAILED_SECONDS
        known = _Known(addresses, failure, time.monotonic() + seconds)
        self._known.pop(wanted.host, None)
        if len(self._known) >= _MAX_CACHED:
            del self._known[next(iter(self._known))]
        self._known[wanted.host] = known
        wanted.answer.set_result(known)
        self._begin()
