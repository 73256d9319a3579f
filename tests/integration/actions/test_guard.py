"""Nobody inside hears of a webhook that must not go there."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from hourbell.actions import Run
from hourbell.actions.egress import GuardedResolver
from hourbell.actions.webhook import WebhookRunner
from hourbell.model.egress import Egress
from hourbell.model.executions import Failed, Outcome
from hourbell.model.jobs import JobSpec, WebhookAction
from integration.actions.test_webhook import CLAIMED, Secrets, opened


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


async def sent(webhooks: WebhookRunner, url: str) -> Outcome:
    action = WebhookAction(url=url)
    return await webhooks.run(action, Run(CLAIMED, JobSpec(name="n", action=action), 10.0))


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


class Changing(AbstractResolver):
    """A name server whose answer is another one each time it is asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        address = self._answers.pop(0)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


async def test_a_name_that_answers_differently_a_moment_later_gains_nothing(
    inside: Listener,
) -> None:
    """The address that was looked at is connected to; the next connection is looked at anew."""
    egress = Egress.parse("192.0.2.0/24")
    resolver = GuardedResolver(egress, Changing("192.0.2.1", "127.0.0.1"))
    webhooks = WebhookRunner.open(2, resolver, Secrets(), lambda: 0.0)
    url = f"http://rebind.example:{inside.port}/"
    try:
        with contextlib.suppress(TimeoutError):  # nobody is at the first address
            async with asyncio.timeout(0.3):
                await sent(webhooks, url)
        outcome = await sent(webhooks, url)
    finally:
        await webhooks.close()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "forbidden_target"
    assert inside.heard == 0


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
