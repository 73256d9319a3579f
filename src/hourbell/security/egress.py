"""Egress rules: webhooks may call only public addresses, unless an administrator allows more.

Tenants choose the URLs, and Hourbell runs inside a private network: a URL must not reach another
machine in that network, this machine or a cloud metadata service (SSRF). The rules apply to the
address, not to the text: `127.1`, `0x7f000001` and a name that resolves to loopback are all the
same. A name is resolved once per connection. If any of its addresses is forbidden, the whole
request is rejected; otherwise the connection goes to one of the checked addresses. So DNS rebinding
gains nothing.

    HOURBELL_EGRESS_ALLOW=hooks.internal:8443,10.1.0.0/16

allows a host by name and port, whatever its address, and all addresses in a network.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Self

from hourbell.model.errors import ConfigurationError

Network = IPv4Network | IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")

# In addition to all addresses that Python's `is_global` excludes; it does not exclude all of these.
_FORBIDDEN = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds have services there
        "168.63.129.16/32",  # Azure's wire server
        "169.254.0.0/16",  # link-local: the metadata services
        "192.0.0.0/24",
        "192.88.99.0/24",  # relays to IPv6
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        # All forms of IPv6 addresses that embed an IPv4 address.
        "::/96",
        "::ffff:0:0/96",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "2001::/32",
        "2002::/16",
        "3fff::/20",  # for examples
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    )
)
_ALLOCATED_IPV6 = ip_network("2000::/3")  # the allocated global unicast range of IPv6
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):(?P<port>\d{1,5})")


class ForbiddenTarget(Exception):
    """The target is forbidden. Tenants see the message; it discloses nothing about our network."""

    def __init__(self) -> None:
        super().__init__("The target is not a public internet address and is not allowed.")


class Egress:
    """The rules for allowed target addresses."""

    def __init__(
        self, networks: Iterable[Network] = (), targets: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._networks = tuple(networks)
        self._targets = frozenset(targets)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From a comma-separated list of networks and host:port pairs."""
        networks, targets = [], []
        for part in filter(None, (part.strip() for part in text.split(","))):
            try:
                networks.append(ip_network(part))
            except ValueError:
                targets.append(_target(part))
        return cls(networks, targets)

    def allows(self, host: str, port: int, address: str) -> bool:
        """Whether this address may be connected to, for a URL that names this host."""
        return (host.rstrip(".").lower(), port) in self._targets or self.allows_address(address)

    def allows_address(self, address: str) -> bool:
        """Whether the address may be connected to, regardless of the host in the URL."""
        found = ip_address(address.partition("%")[0])
        if any(found in network for network in self._networks):
            return True
        if isinstance(found, IPv6Address) and found not in _ALLOCATED_IPV6:
            return False
        return found.is_global and not any(found in network for network in _FORBIDDEN)

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """Raise ForbiddenTarget if any address of a host may not be connected to."""
        if not all(self.allows(host, port, address) for address in addresses):
            raise ForbiddenTarget


def _target(part: str) -> tuple[str, int]:
    matched = _HOST_AND_PORT.fullmatch(part)
    if matched is None or not 1 <= int(matched["port"]) <= 65_535:
        raise ConfigurationError(
            f"{part!a} is neither a network such as 10.1.0.0/16 nor a host and port such as "
            "hooks.internal:8443."
        )
    host = matched["host"].strip("[]").rstrip(".").lower()
    with contextlib.suppress(ValueError):
        host = ip_address(host).compressed  # in the form that sockets use
    return host, int(matched["port"])
