"""Names of targets, looked up: by threads of our own, a bounded number of them, and remembered for a moment.

Nobody can stop a look-up: a name server that does not answer holds a thread for as long as the system is patient. So whoever waits for
a name goes without after a while, and the look-ups that one tenant may have under way are far fewer than there may be in all: a
tenant's slow names wait for each other, and nobody's else for them. Executions of a tenant that want the same name share one look-up.
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

WAIT_SECONDS = 5.0  # whoever waits longer for a name goes without
FRESH_SECONDS = 10.0  # how long an answer counts,
FAILED_SECONDS = 2.0  # and how long that there is none
MOST_UNDER_WAY = 128
MOST_OF_TENANT = 32
_MOST_KNOWN = (
    10_000  # names that are remembered; of more, those that were learnt first are forgotten
)

LookUp = Callable[[str], Sequence[str]]  # from a name to its addresses; it may block, and raise


class NameFailed(OSError):
    """There is no address for a name."""


class NameTooSlow(NameFailed):
    """Nobody has said in time whether there is."""


def look_up(host: str) -> Sequence[str]:
    """As this machine does it: by its files, or by asking name servers."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [_text(place) for *_, place in found]


def _text(place: tuple[Any, ...]) -> str:
    """An address; one that counts on a link only, with its link."""
    address, scope = str(place[0]), place[3] if len(place) > 3 else 0
    return f"{address}%{scope}" if scope else address


class _Known(msgspec.Struct, frozen=True):
    addresses: Sequence[str]
    failure: str  # why there are none
    until: float  # monotonic


class _Wanted:
    """A name that is looked up, or waits for its turn."""

    __slots__ = ("answer", "begun", "host", "tenant", "waiting")

    def __init__(self, tenant: str, host: str) -> None:
        self.tenant = tenant
        self.host = host
        self.answer: asyncio.Future[_Known] = asyncio.get_running_loop().create_future()
        self.begun = False
        self.waiting = 0  # how many wait for it


class Names:
    """The names that this process knows, and asks for."""

    def __init__(self, look_up: LookUp = look_up) -> None:
        self._look_up = look_up
        self._known: dict[str, _Known] = {}
        self._wanted: dict[tuple[str, str], _Wanted] = {}  # those that came first are first
        self._under_way: Counter[str] = Counter()  # by tenant

    async def addresses(self, tenant: str, host: str) -> Sequence[str]:
        """All addresses of a name; NameFailed if there is none."""
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
        """Look up those whose turn it is: first who has the fewest under way."""
        while self._under_way.total() < MOST_UNDER_WAY:
            free = [
                wanted
                for wanted in self._wanted.values()
                if not wanted.begun and self._under_way[wanted.tenant] < MOST_OF_TENANT
            ]
            if not free:
                return
            wanted = min(free, key=lambda one: self._under_way[one.tenant])
            wanted.begun = True
            self._under_way[wanted.tenant] += 1
            # A daemon, so that a name server which hangs does not keep the process from ending.
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
        except Exception as error:  # UnicodeError of a text that is no name, among others
            failure = f"{type(error).__name__}: {error}"
        # The loop may be closed by now: then nobody waits for this any more.
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
        if len(self._known) >= _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[wanted.host] = known
        wanted.answer.set_result(known)
        self._begin()
