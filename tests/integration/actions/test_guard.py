"""Nobody inside hears of a webhook that must not go there."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from hourbell.actions import Run
from hourbell.actions.egress import GuardedResolver
from hourbell.actions.names import Names
from hourbell.actions.webhook import WebhookRunner
from hourbell.model.executions import Claimed, Failed, Outcome, Succeeded
from hourbell.model.jobs import JobSpec, WebhookAction
from hourbell.security.egress import LOOPBACK, Egress
from integration.actions.test_webhook import CLAIMED, Secrets, opened

COULD_NOT_BE_REACHED = Failed("The target could not be reached.", "connection")


class Listener:
    """Something inside of our network that counts who comes."""

    def __init__(self) -> None:
        self.heard = 0
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()


@pytest.fixture
async def inside() -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    async with server, await asyncio.start_server(listener, "::1", listener.port):
        yield listener


async def sent(webhooks: WebhookRunner, url: str, claimed: Claimed = CLAIMED) -> Outcome:
    action = WebhookAction(url=url)
    return await webhooks.run(action, Run(claimed, JobSpec(name="n", action=action), 10.0, None))


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "0177.0.0.1",
        "0x7f000001",
        "2130706433",
        "①②⑦.⓪.⓪.①",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "0.0.0.0",
    ],
)
async def test_no_spelling_of_home_is_heard_at_home(inside: Listener, host: str) -> None:
    webhooks = opened("")
    try:
        outcome = await sent(webhooks, f"http://{host}:{inside.port}/")
    finally:
        await webhooks.close()
    assert isinstance(outcome, Failed)
    assert inside.heard == 0
    assert "127.0.0.1:" not in outcome.error


async def test_a_name_that_answers_differently_a_moment_later_gains_nothing(
    inside: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was checked is connected to; a new answer is checked again."""
    monkeypatch.setattr("hourbell.actions.names.FRESH_SECONDS", 0.0)
    answers = ["192.0.2.1", "127.0.0.1"]
    resolver = GuardedResolver(Egress.parse("192.0.2.0/24"), Names(lambda host: [answers.pop(0)]))
    webhooks = WebhookRunner.open(2, resolver, Secrets(), lambda: 0.0)
    url = f"http://rebind.example:{inside.port}/"
    try:
        with contextlib.suppress(TimeoutError):  # nobody is at the first address
            async with asyncio.timeout(0.3):
                await sent(webhooks, url)
        outcome = await sent(webhooks, url)
    finally:
        await webhooks.close()
    assert outcome == COULD_NOT_BE_REACHED
    assert (inside.heard, answers) == (0, [])


async def test_a_name_inside_looks_like_one_that_there_is_not(inside: Listener) -> None:
    """To the tenant. The operator is told which is which."""

    def names_of_ours(host: str) -> list[str]:
        if host == "db.internal":
            return ["127.0.0.1"]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolver = GuardedResolver(Egress(), Names(names_of_ours))
    webhooks = WebhookRunner.open(2, resolver, Secrets(), lambda: 0.0)
    try:
        with capture_logs() as logs:
            there = await sent(webhooks, f"http://db.internal:{inside.port}/")
            not_there = await sent(webhooks, f"http://none.internal:{inside.port}/")
    finally:
        await webhooks.close()
    assert there == not_there == COULD_NOT_BE_REACHED
    assert inside.heard == 0
    assert [(line["host"], line["event"], line["tenant"]) for line in logs] == [
        ("db.internal", "forbidden address", "acme"),
        ("none.internal", "host not resolved", "acme"),
    ]
    assert logs[0]["addresses"] == ["127.0.0.1"]


async def test_names_that_are_slow_hold_up_no_others(
    inside: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same tenant; they are asked for where everything asks."""
    monkeypatch.setattr("hourbell.actions.names.WAIT_SECONDS", 60.0)  # none is given up meanwhile
    answer, asked = threading.Event(), threading.Semaphore(0)

    def slow(host: str, *rest: Any, **options: Any) -> Any:
        if host.startswith("slow"):
            asked.release()
            answer.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return looked_up(host, *rest, **options)

    looked_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    webhooks = opened(connections=100)
    try:
        bad = [
            asyncio.create_task(sent(webhooks, f"http://slow{number}.example/"))
            for number in range(30)
        ]
        for _ in bad:
            assert await asyncio.to_thread(asked.acquire, timeout=10)
        assert isinstance(await sent(webhooks, f"http://localhost:{inside.port}/"), Succeeded)
        assert not any(task.done() for task in bad)
        answer.set()
        outcomes = await asyncio.gather(*bad)
    finally:
        answer.set()
        await webhooks.close()
    assert set(outcomes) == {COULD_NOT_BE_REACHED}


async def test_a_name_that_takes_too_long_fails_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hourbell.actions.names.WAIT_SECONDS", 0.05)
    answer = threading.Event()

    def slow(host: str) -> list[str]:
        answer.wait()
        return ["127.0.0.1"]

    resolver = GuardedResolver(Egress.parse(",".join(LOOPBACK)), Names(slow))
    webhooks = WebhookRunner.open(2, resolver, Secrets(), lambda: 0.0)
    try:
        outcome = await sent(webhooks, "http://slow.example/")
    finally:
        answer.set()
        await webhooks.close()
    assert outcome == Failed(
        "The target could not be reached: its host name was not resolved in time.", "connection"
    )


async def test_what_an_administrator_allows_is_heard(inside: Listener) -> None:
    webhooks = opened(f"localhost:{inside.port}")
    try:
        assert not isinstance(await sent(webhooks, f"http://localhost:{inside.port}/"), Failed)
        refused = await sent(webhooks, "http://127.0.0.1:22/")
    finally:
        await webhooks.close()
    assert isinstance(refused, Failed)
    assert (refused.kind, refused.final) == ("forbidden_target", True)
    assert inside.heard == 1


@pytest.mark.parametrize("tenant", [CLAIMED.tenant_id, "another"])
async def test_a_name_that_is_allowed_opens_its_address_for_nobody_else(
    inside: Listener, tenant: str
) -> None:
    """Neither for what the same tenant sends next, nor for what others do, in whatever spelling."""
    webhooks = opened(f"localhost:{inside.port}")
    claimed = msgspec.structs.replace(CLAIMED, tenant_id=tenant)
    try:
        assert isinstance(await sent(webhooks, f"http://localhost:{inside.port}/"), Succeeded)
        outcomes = [
            await sent(webhooks, f"http://{host}:{inside.port}/", claimed)
            for host in ("127.0.0.1", "2130706433", "[::1]")
        ]
    finally:
        await webhooks.close()
    assert all(isinstance(each, Failed) for each in outcomes)
    assert inside.heard == 1


async def test_a_name_that_is_allowed_is_reached_beside_addresses_that_are_not(
    inside: Listener,
) -> None:
    """At once, by tasks that were begun by one: each has what it has looked up itself."""
    webhooks = opened(f"localhost:{inside.port}")
    try:
        outcomes = await asyncio.gather(
            *(
                sent(webhooks, f"http://{host}:{inside.port}/")
                for host in ("localhost", "127.0.0.1", "localhost", "[::1]") * 5
            )
        )
    finally:
        await webhooks.close()
    assert [isinstance(each, Succeeded) for each in outcomes] == [True, False] * 10
    assert inside.heard == 10
