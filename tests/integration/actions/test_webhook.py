"""Webhooks against a real server on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web

from hourbell.actions import Run
from hourbell.actions.webhook import WebhookRunner
from hourbell.model.executions import Claimed, Failed, Outcome, Succeeded
from hourbell.model.ids import execution_text
from hourbell.model.jobs import JobSpec, WebhookAction
from hourbell.worker.outcomes import MOST_RESULT_BYTES, settlement

CLAIMED = Claimed(7 << 22, 5 << 22, "acme", 2, 41, datetime(2027, 1, 1, tzinfo=UTC), None, b"")

Sends = Callable[..., Awaitable[Outcome]]


class Target:
    """A server that notes what it is asked and answers as told."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {"status": 200, "text": "done"}
        self.pieces: list[bytes | None] = []  # in place of a body; None breaks off
        self.requests: list[tuple[web.Request, bytes]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request, await request.read()))
        if not self.pieces:
            return web.Response(**self.answer)
        response = web.StreamResponse(
            status=self.answer["status"], headers=self.answer.get("headers")
        )
        await response.prepare(request)
        for piece in self.pieces:
            if piece is None:
                assert request.transport is not None
                request.transport.close()
                break
            await response.write(piece)
            await asyncio.sleep(0.02)  # so that it travels alone; a reader to the end does not mind
        return response


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    target = Target()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", target.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    target.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield target
    await runner.cleanup()


@pytest.fixture
async def send(target: Target) -> AsyncIterator[Sends]:
    webhooks = WebhookRunner.open(connections=2)

    async def run(**fields: Any) -> Outcome:
        action = WebhookAction(**{"url": target.url, **fields})
        return await webhooks.run(action, Run(CLAIMED, JobSpec(name="n", action=action), 10.0))

    yield run
    await webhooks.close()


async def test_a_2xx_is_success_and_says_who_asks(target: Target, send: Sends) -> None:
    assert await send(body={"cart": 7}) == Succeeded({"status": 200, "body": "done"})
    [(request, body)] = target.requests
    assert (request.method, body) == ("POST", b'{"cart":7}')
    number = execution_text(CLAIMED.execution_id)
    expected = {
        "Content-Type": "application/json",
        "User-Agent": "Hourbell",
        "Idempotency-Key": number,
        "Hourbell-Execution-Id": number,
        "Hourbell-Fence-Token": "41",
        "Hourbell-Attempt": "2",
        "Hourbell-Scheduled-For": "2027-01-01T00:00:00Z",
    }
    assert {name: request.headers[name] for name in expected} == expected


async def test_a_job_chooses_its_content_type_but_not_what_we_vouch_for(
    target: Target, send: Sends
) -> None:
    theirs = {
        "content-type": "application/vnd.acme+json",
        "user-agent": "Acme",
        "hourbell-fence-token": "999",
        "HOURBELL-EXECUTION-ID": "exe_forged",
        "idempotency-key": "forged",
        "X-Own": "kept",
    }
    await send(body={}, headers=theirs)
    headers = target.requests[0][0].headers
    assert headers.getall("Content-Type") == ["application/vnd.acme+json"]
    assert headers.getall("User-Agent") == ["Acme"]
    assert headers.getall("X-Own") == ["kept"]
    assert headers.getall("Hourbell-Fence-Token") == ["41"]
    number = execution_text(CLAIMED.execution_id)
    assert headers.getall("Hourbell-Execution-Id") == [number]
    assert headers.getall("Idempotency-Key") == [number]


async def test_a_redirect_is_a_failure_and_not_followed(target: Target, send: Sends) -> None:
    target.answer = {"status": 302, "headers": {"Location": target.url}}
    assert await send() == Failed("The target answered 302.", "http_302")
    assert len(target.requests) == 1


async def test_a_busy_target_says_when_to_come_back(target: Target, send: Sends) -> None:
    target.answer = {"status": 503, "headers": {"Retry-After": "17"}}
    assert await send() == Failed("The target answered 503.", "http_503", 17.0)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"x", "x"),
        (b'"', '"'),
        (b"\x01", "\x01"),
        ("é".encode(), "é"),
        ("\U0001f514".encode(), "\U0001f514"),
        (b"\xff", "\ufffd"),
    ],
)
async def test_a_long_answer_is_cut_such_that_the_result_is_kept(
    target: Target, send: Sends, answer: bytes, body: str
) -> None:
    target.answer = {"status": 200, "body": answer * (40_000 // len(answer))}
    outcome = await send()
    assert isinstance(outcome, Succeeded)
    settled = settlement(CLAIMED, None, outcome, 0, 0, None)
    assert settled.error is None
    assert settled.result is not None
    # Not one character less than there is room for.
    largest = len(msgspec.json.encode(body)) - 2
    assert MOST_RESULT_BYTES - largest < len(settled.result.encode()) <= MOST_RESULT_BYTES
    kept = msgspec.json.decode(settled.result)
    assert kept == {"status": 200, "body": body * len(kept["body"])}


async def test_an_answer_that_just_fits_is_whole(target: Target, send: Sends) -> None:
    room = MOST_RESULT_BYTES - len(b'{"status":200,"body":""}')
    for length in (room, room + 1):
        target.answer = {"status": 200, "text": "x" * length}
        assert await send() == Succeeded({"status": 200, "body": "x" * room})


async def test_an_answer_in_pieces_is_read_to_its_end(target: Target, send: Sends) -> None:
    target.pieces = [b"first ", b"second ", b"third"]
    assert await send() == Succeeded({"status": 200, "body": "first second third"})


async def test_an_answer_that_breaks_off_is_a_failure(target: Target, send: Sends) -> None:
    target.pieces = [b"first ", None]
    outcome = await send()
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"
    assert "in the middle of its answer" in outcome.error


async def test_a_refusal_that_breaks_off_is_still_a_refusal(target: Target, send: Sends) -> None:
    target.answer = {"status": 503, "headers": {"Retry-After": "17"}}
    target.pieces = [b"first ", None]
    assert await send() == Failed("The target answered 503.", "http_503", 17.0)


@pytest.mark.parametrize("url", ["http://a..b/", f"http://{'a' * 64}/", "http://1.2.3.4.5/"])
async def test_a_url_that_the_client_refuses_is_a_failure(send: Sends, url: str) -> None:
    """Jobs of an older version may have one."""
    outcome = await send(url=url)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"
    assert outcome.error.startswith(f"No request can be sent to {url}: ")


async def test_nobody_listening_is_a_failure(send: Sends) -> None:
    outcome = await send(url="http://127.0.0.1:9/")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"
