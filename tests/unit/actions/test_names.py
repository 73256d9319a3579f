"""Names of targets are looked up in bounds, shared, and remembered for a moment."""

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace

import pytest

from hourbell.actions import names as names_module
from hourbell.actions.names import (
    FAILED_SECONDS,
    FRESH_SECONDS,
    MAX_LOOKUPS,
    MAX_LOOKUPS_PER_TENANT,
    NameFailed,
    Names,
    NameTooSlow,
)


class Servers:
    """Name servers: what is called slow is answered when the test says so, what is called missing is not there."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answer = threading.Event()
        self.answers: dict[str, threading.Event] = {}  # of those that have one of their own
        self.begun = threading.Semaphore(0)

    def __call__(self, host: str) -> Sequence[str]:
        self.asked[host] += 1
        if host.startswith("slow"):
            self.begun.release()
            self.answers.get(host, self.answer).wait()
        if host.startswith("missing"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ["192.0.2.7"]

    async def has_begun(self, count: int) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.begun.acquire, timeout=10)


@pytest.fixture
async def servers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Servers]:
    monkeypatch.setattr(names_module, "WAIT_SECONDS", 60.0)  # not what the machine takes
    servers = Servers()
    yield servers
    for answer in (servers.answer, *servers.answers.values()):
        answer.set()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed; no others do."""
    passed = [0.0]
    monkeypatch.setattr(names_module, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    return passed


def asking(names: Names, tenant: str, *hosts: str) -> list[asyncio.Task[Sequence[str]]]:
    return [asyncio.create_task(names.addresses(tenant, host)) for host in hosts]


async def test_an_answer_counts_for_a_moment_and_for_everybody(
    servers: Servers, later: list[float]
) -> None:
    names = Names(servers)
    for tenant in ("acme", "acme", "globex"):
        assert await names.addresses(tenant, "a.example") == ["192.0.2.7"]
    assert servers.asked["a.example"] == 1
    later[0] = FRESH_SECONDS
    await names.addresses("acme", "a.example")
    assert servers.asked["a.example"] == 2


async def test_that_there_is_none_counts_for_less(servers: Servers, later: list[float]) -> None:
    names = Names(servers)
    for _ in range(3):
        with pytest.raises(NameFailed, match="not known"):
            await names.addresses("acme", "missing.example")
    assert servers.asked["missing.example"] == 1
    later[0] = FAILED_SECONDS
    with pytest.raises(NameFailed):
        await names.addresses("acme", "missing.example")
    assert servers.asked["missing.example"] == 2


async def test_those_who_want_one_name_share_one_look_up(servers: Servers) -> None:
    names = Names(servers)
    asked = asking(names, "acme", *["slow.example"] * 10)
    await servers.has_begun(1)
    asked += asking(names, "acme", *["slow.example"] * 10)
    asked.pop().cancel()
    asked.pop(0).cancel()
    await asyncio.sleep(0)
    servers.answer.set()
    assert await asyncio.gather(*asked) == [["192.0.2.7"]] * 18
    assert servers.asked["slow.example"] == 1


async def test_the_slow_names_of_a_tenant_wait_for_each_other_and_nobody_else_for_them(
    servers: Servers,
) -> None:
    names = Names(servers)
    slow = [f"slow{number}.example" for number in range(MAX_LOOKUPS_PER_TENANT + 10)]
    asked = asking(names, "acme", *slow)
    await servers.has_begun(MAX_LOOKUPS_PER_TENANT)
    assert await names.addresses("globex", "quick.example") == ["192.0.2.7"]
    assert servers.asked.total() == MAX_LOOKUPS_PER_TENANT + 1
    # Not even if it is one that they wait for.
    other = asking(names, "globex", slow[-1])
    await servers.has_begun(1)
    servers.answer.set()
    await asyncio.gather(*asked, *other)
    assert set(servers.asked) == {*slow, "quick.example"}


async def test_look_ups_are_bounded_and_the_next_is_whose_tenant_has_the_fewest(
    servers: Servers,
) -> None:
    names = Names(servers)
    servers.answers["slow0.tenant0"] = threading.Event()
    tenants = [f"tenant{number}" for number in range(MAX_LOOKUPS // MAX_LOOKUPS_PER_TENANT)]
    asked = [
        task
        for tenant in tenants
        for task in asking(names, tenant, *[f"slow{number}.{tenant}" for number in range(40)])
    ]
    await servers.has_begun(MAX_LOOKUPS)
    asked += asking(names, "globex", "slow.globex")
    await asyncio.sleep(0)
    assert servers.asked.total() == MAX_LOOKUPS
    servers.answers["slow0.tenant0"].set()
    await servers.has_begun(1)
    assert [*servers.asked].index("slow.globex") == MAX_LOOKUPS
    servers.answer.set()
    await asyncio.gather(*asked)
    assert names._lookups == {}
    assert names._running == {}


async def test_who_waits_too_long_goes_without_and_the_answer_is_still_learnt(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "WAIT_SECONDS", 0.05)
    names = Names(servers)
    with pytest.raises(NameTooSlow, match="no answer within"):
        await names.addresses("acme", "slow.example")
    monkeypatch.setattr(names_module, "WAIT_SECONDS", 10.0)
    servers.answer.set()
    assert await names.addresses("acme", "slow.example") == ["192.0.2.7"]
    assert servers.asked["slow.example"] == 1


async def test_what_nobody_waits_for_any_more_is_not_looked_up(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "MAX_LOOKUPS_PER_TENANT", 1)
    names = Names(servers)
    first, second, third = asking(names, "acme", "slow1.example", "slow2.example", "slow3.example")
    await servers.has_begun(1)
    second.cancel()
    await asyncio.wait([second])
    servers.answer.set()
    await asyncio.gather(first, third)
    assert set(servers.asked) == {"slow1.example", "slow3.example"}


async def test_a_bounded_number_of_names_is_remembered(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names_module, "_MAX_CACHED", 3)
    names = Names(servers)
    for number in range(10):
        await names.addresses("acme", f"{number}.example")
    assert [*names._cache] == ["7.example", "8.example", "9.example"]


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\udc80"])
async def test_what_is_no_name_fails_like_one_that_there_is_not(host: str) -> None:
    with pytest.raises(NameFailed):
        await Names().addresses("acme", host)


async def test_this_machine_knows_itself() -> None:
    assert {"127.0.0.1", "::1"} & {*await Names().addresses("acme", "localhost")}
