"""Connections to targets, subject to the egress rules.

Host names are checked for every connection, IP addresses in a URL when it is parsed, and every
address again when a socket is created for it: however a URL was written or parsed, that address is
the one connected to. A host name allowed by an administrator allows its addresses only for the
request that resolved it.

To the sender of a webhook, a name with a forbidden address looks the same as a name without an
address, so that tenants cannot discover names in our network. The log distinguishes them.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar

import structlog
from aiohttp import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from hourbell.actions.names import NameFailed, Names
from hourbell.security.egress import Egress, ForbiddenTarget

log = structlog.get_logger(component="webhooks")


class OutgoingRequest:
    """The request that a connection is made for.

    Kept in a context variable, because the HTTP client resolves names and creates sockets without
    passing the request along.
    """

    __slots__ = ("by_name", "connected", "status", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.connected = False  # whether there is a connection, new or pooled
        self.status: int | None = None  # of the response
        self.by_name: set[tuple[str, int]] = set()  # addresses allowed because of their name


# The client's tasks copy the context, but the copies refer to the same object.
CURRENT_REQUEST: ContextVar[OutgoingRequest] = ContextVar("outgoing_request")


class GuardedResolver(AbstractResolver):
    """Resolves names to allowed addresses only, and creates sockets only for those."""

    def __init__(self, egress: Egress, names: Names | None = None) -> None:
        self._egress = egress
        self._names = names or Names()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of a name. Raises NameFailed if it has none, or if one is forbidden."""
        outgoing = CURRENT_REQUEST.get()
        tenant = outgoing.tenant
        try:
            found = await self._names.addresses(tenant, host)
        except NameFailed as error:
            log.info("host not resolved", tenant=tenant, host=host, error=str(error))
            raise
        try:
            self._egress.check(host, port, found)
        except ForbiddenTarget:
            log.warning(
                "forbidden address",
                tenant=tenant,
                host=host,
                port=port,
                addresses=found,
            )
            raise NameFailed from None
        outgoing.by_name.update((address, port) for address in found)
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
        """A socket for an address that will be connected to; raises ForbiddenTarget."""
        family, kind, protocol, _, (address, port, *_) = info
        is_allowed = self._egress.allows(str(address), int(port), str(address))
        if not is_allowed and (address, port) not in CURRENT_REQUEST.get().by_name:
            raise ForbiddenTarget
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Nothing to close: lookup threads end on their own."""
