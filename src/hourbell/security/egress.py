"""Where webhooks may go: only to addresses of the public internet, unless an administrator says otherwise.

Tenants choose the URLs, and we are inside of somebody's network: what they name must not lead to a neighbour, to the machine
itself or to the metadata service of a cloud (SSRF). What counts is the address, not the text: `127.1`, `0x7f000001` and a name
that leads home are one and the same. A name is looked up once for a connection; if any of its answers is forbidden all are
refused, and what is connected to is one of the answers that were looked at. So a name that answers differently a moment later
gains nothing.

    HOURBELL_EGRESS_ALLOW=hooks.internal:8443,10.1.0.0/16

allows a host by name and port, whatever its address, and all addresses of a network.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Self

from hourbell.model.errors import ConfigurationError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK = ("127.0.0.0/8", "::1/128")

# Beside everything that Python does not hold to be global: some of these it does.
_NEVER = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # of carriers; clouds have services there
        "168.63.129.16/32",  # Azure's wire server
        "169.254.0.0/16",  # link-local: the metadata services
        "192.0.0.0/24",
        "192.88.99.0/24",  # relays to IPv6
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        # Addresses of IPv6 that stand for one of IPv4, in every way in which they do.
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
_GIVEN_OUT = ip_network("2000::/3")  # the part of IPv6 that is the internet
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253}):(?P<port>\d{1,5})")


class ForbiddenTarget(Exception):
    """A webhook must not go there. The words are the tenant's to read: they tell nothing about our network."""

    def __init__(self) -> None:
        super().__init__("The target is not an address of the public internet, and is not allowed.")


class Egress:
    """What may be connected to."""

    def __init__(
        self, networks: Iterable[Network] = (), targets: Iterable[tuple[str, int]] = ()
    ) -> None:
        self._networks = tuple(networks)
        self._targets = frozenset(targets)

    @classmethod
    def parse(cls, text: str) -> Self:
        """From networks and hosts with ports, with commas between them."""
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
        """Whether it may be connected to, whatever the URL names."""
        found = ip_address(address.partition("%")[0])
        if any(found in network for network in self._networks):
            return True
        if isinstance(found, IPv6Address) and found not in _GIVEN_OUT:
            return False
        return found.is_global and not any(found in network for network in _NEVER)

    def check(self, host: str, port: int, addresses: Iterable[str]) -> None:
        """ForbiddenTarget if one of the addresses of a host may not be connected to."""
        if not all(self.allows(host, port, address) for address in addresses):
            raise ForbiddenTarget


def _target(part: str) -> tuple[str, int]:
    matched = _HOST_AND_PORT.fullmatch(part)
    if matched is None or not 1 <= int(matched["port"]) <= 65_535:
        raise ConfigurationError(
            f"{part!a} is neither a network such as 10.1.0.0/16 nor a host with its port such as "
            "hooks.internal:8443."
        )
    host = matched["host"].strip("[]").rstrip(".").lower()
    with contextlib.suppress(ValueError):
        host = ip_address(host).compressed  # as a socket names it
    return host, int(matched["port"])
