"""Where webhooks may go."""

import asyncio
import socket

import pytest

from hourbell.actions.egress import CURRENT_REQUEST, GuardedResolver, OutgoingRequest
from hourbell.actions.names import NameFailed, Names
from hourbell.model.errors import ConfigurationError
from hourbell.security.egress import LOOPBACK, Egress, ForbiddenTarget

FORBIDDEN = [
    "0.0.0.0",
    "10.1.2.3",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.9",  # global by its register, and a relay
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "64:ff9b::7f00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
GLOBAL = ["8.8.8.8", "1.1.1.1", "193.0.6.139", "2606:4700:4700::1111", "2a00:1450:4001::200e"]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_addresses_that_are_not_of_the_internet_are_forbidden(address: str) -> None:
    assert not Egress().allows("hooks.example", 443, address)


@pytest.mark.parametrize("address", GLOBAL)
def test_addresses_of_the_internet_are_allowed(address: str) -> None:
    assert Egress().allows("hooks.example", 443, address)


def test_an_allowed_network_is_allowed_and_no_other() -> None:
    egress = Egress.parse("10.1.0.0/16, fd00::/8")
    assert egress.allows("x", 80, "10.1.2.3")
    assert egress.allows("x", 80, "fd00::1")
    assert not egress.allows("x", 80, "10.2.0.1")
    assert not egress.allows("x", 80, "::ffff:10.1.2.3")


def test_an_allowed_host_is_allowed_on_its_port_only() -> None:
    egress = Egress.parse("Hooks.Internal.:8443,[fd00::7]:80")
    assert egress.allows("hooks.internal", 8443, "10.0.0.7")
    assert egress.allows("HOOKS.internal.", 8443, "10.0.0.7")
    assert not egress.allows("hooks.internal", 22, "10.0.0.7")
    assert not egress.allows("other.internal", 8443, "10.0.0.7")
    assert egress.allows("fd00::7", 80, "fd00::7")


def test_loopback_can_be_allowed() -> None:
    egress = Egress.parse(",".join(LOOPBACK))
    assert egress.allows("localhost", 9, "127.0.0.1")
    assert egress.allows("localhost", 9, "::1")
    assert not egress.allows("metadata", 80, "169.254.169.254")


@pytest.mark.parametrize(
    "text", ["10.1.0.0/99", "host", "host:0", "host:70000", "http://x:1", "a b:1"]
)
def test_what_allows_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is neither a network"):
        Egress.parse(text)


def answering(*addresses: str) -> Names:
    """Every name has these addresses."""
    return Names(lambda host: addresses)


async def test_one_forbidden_answer_forbids_all() -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    resolver = GuardedResolver(Egress(), answering("8.8.8.8", "10.0.0.1"))
    with pytest.raises(NameFailed):
        await resolver.resolve("rebind.example", 80)


async def test_allowed_answers_are_given_as_they_are() -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    found = await GuardedResolver(Egress(), answering(*GLOBAL)).resolve("x.example", 443)
    assert [each["host"] for each in found] == GLOBAL


@pytest.mark.parametrize(
    "spelling", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1.", "localhost"]
)
async def test_every_spelling_of_home_is_home(spelling: str) -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    with pytest.raises(NameFailed):
        await GuardedResolver(Egress()).resolve(spelling, 80, socket.AF_UNSPEC)


def test_a_refusal_tells_nothing_of_our_network() -> None:
    with pytest.raises(ForbiddenTarget) as refused:
        Egress().check("db.internal", 5432, ["10.9.8.7"])
    assert "10.9" not in str(refused.value)
    assert "5432" not in str(refused.value)


async def test_no_socket_is_made_for_an_address_that_nobody_looked_at() -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    resolver = GuardedResolver(Egress.parse("db.internal:80"), answering("10.0.0.1"))
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.0.0.1", 80))
    with pytest.raises(ForbiddenTarget):
        resolver.make_socket(info)
    await resolver.resolve("db.internal", 80)
    resolver.make_socket(info).close()


@pytest.mark.parametrize(
    "address",
    ["::ffff:0:7f00:1", "5f00::1", "3fff::1", "100:0:0:1::1", "200::1", "4000::1", "e000::1"],
)
def test_of_ipv6_only_what_was_given_out_is_the_internet(address: str) -> None:
    assert not Egress().allows_address(address)


@pytest.mark.parametrize(
    ("allowed", "address"), [("10.1.2.3:8443", "10.1.2.3"), ("[0:0::1]:8443", "::1")]
)
async def test_an_address_with_its_port_can_be_allowed(allowed: str, address: str) -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    resolver = GuardedResolver(Egress.parse(allowed))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    info = (family, socket.SOCK_STREAM, 0, "", (address, 8443))
    resolver.make_socket(info).close()
    with pytest.raises(ForbiddenTarget):
        resolver.make_socket((*info[:4], (address, 8444)))


async def test_what_a_name_has_opened_is_open_for_one_request() -> None:
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    resolver = GuardedResolver(Egress.parse("hooks.internal:8443"), answering("10.1.2.3"))
    info = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("10.1.2.3", 8443))
    await asyncio.create_task(resolver.resolve("hooks.internal", 8443))  # as the client may do it
    resolver.make_socket(info).close()
    with pytest.raises(ForbiddenTarget):
        resolver.make_socket((*info[:4], ("10.1.2.3", 22)))
    CURRENT_REQUEST.set(OutgoingRequest("acme"))
    with pytest.raises(ForbiddenTarget):
        resolver.make_socket(info)
