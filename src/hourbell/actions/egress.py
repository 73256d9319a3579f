"""Connections to targets, under the rule of where webhooks may go.

Names are looked at whenever they are to be connected to, addresses that a URL names when it is read, and every address once more when
a socket is made for it: whatever way a URL was written or understood, that is what is connected to. A name that an administrator allows
opens the addresses that it has to the request that has looked it up, and to no other.

A name that leads where nobody may go and a name that leads nowhere look the same to whoever sends a webhook, so that nobody learns
which names there are in our network. The log tells them apart.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar

import structlog
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from hourbell.actions.names import NameFailed, Names
from hourbell.security.egress import Egress, ForbiddenTarget

log = structlog.get_logger()


class Sending:
    """A request that a connection is made for. The HTTP client asks for addresses and sockets on its own, and does not know it."""

    __slots__ = ("by_name", "connected", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.connected = False  # whether there is a connection, new or pooled
        self.by_name: set[tuple[str, int]] = set()  # addresses that it may go to for their name


# The client's tasks have copies of the context, so what they have in it is the same object.
SENDING: ContextVar[Sending] = ContextVar("sending")


class GuardedResolver(AbstractResolver):
    """Looks names up, gives only addresses that may be connected to, and makes sockets for no others."""

    def __init__(self, egress: Egress, names: Names | None = None) -> None:
        self._egress = egress
        self._names = names or Names()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name, if all of them may be connected to; else NameFailed, as if there were none."""
        sending = SENDING.get()
        tenant = sending.tenant
        try:
            found = await self._names.addresses(tenant, host)
        except NameFailed as error:
            log.info("a name has no address", tenant=tenant, host=host, error=str(error))
            raise
        try:
            self._egress.check(host, port, found)
        except ForbiddenTarget:
            log.warning(
                "a name leads where webhooks must not go",
                tenant=tenant,
                host=host,
                port=port,
                addresses=found,
            )
            raise NameFailed from None
        sending.by_name.update((address, port) for address in found)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    def make_socket(self, info: AddrInfoType) -> socket.socket:
        """A socket for an address that is about to be connected to."""
        family, kind, protocol, _, (address, port, *_) = info
        is_allowed = self._egress.allows(str(address), int(port), str(address))
        if not is_allowed and (address, port) not in SENDING.get().by_name:
            raise ForbiddenTarget
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Nothing is held but threads that end by themselves."""
