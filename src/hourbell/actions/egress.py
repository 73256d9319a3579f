"""Connections to targets, under the rule of where webhooks may go.

Names are looked at when they are looked up, addresses that a URL names when it is read, and every address once more when
a socket is made for it: whatever way a URL was written or understood, that is what is connected to.
"""

from __future__ import annotations

import socket
import time

from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from hourbell.model.egress import Egress, ForbiddenTarget

CONNECT_SECONDS = 60.0  # after its name was looked up, an address may be connected to for so long


class GuardedResolver(AbstractResolver):
    """Looks names up, gives only addresses that may be connected to, and makes sockets for no others."""

    def __init__(self, egress: Egress, resolver: AbstractResolver | None = None) -> None:
        self._egress = egress
        self._resolver = resolver or ThreadedResolver()
        self._of_allowed_hosts: dict[tuple[str, int], float] = {}  # until when

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        addresses = [each["host"] for each in found]
        self._egress.check(host, port, addresses)
        now = time.monotonic()
        known = self._of_allowed_hosts.items()
        self._of_allowed_hosts = {place: until for place, until in known if until > now} | {
            (address, port): now + CONNECT_SECONDS
            for address in addresses
            if not self._egress.allows_address(address)
        }
        return found

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, (address, port, *_) = info
        is_allowed = self._egress.allows(str(address), int(port), str(address))
        until = self._of_allowed_hosts.get((str(address), int(port)), 0.0)
        if not is_allowed and until <= time.monotonic():
            raise ForbiddenTarget
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        await self._resolver.close()
