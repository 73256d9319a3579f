"""Webhooks against a real server on loopback."""

import asyncio
import base64
import contextlib
import gzip
import hashlib
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextvars import copy_context
from datetime import UTC, datetime, tzinfo
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from structlog.testing import capture_logs

from hourbell.actions import Run, webhook
from hourbell.actions.circuits import FAILURES
from hourbell.actions.egress import GuardedResolver
from hourbell.actions.webhook import SILENT_SECONDS, WebhookRunner
from hourbell.engine.life.settlement import settlement
from hourbell.model.errors import NoSecretKeys, StoreUnavailable
from hourbell.model.executions import (
    MAX_RESULT_BYTES,
    Accepted,
    Claimed,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from hourbell.model.ids import execution_text
from hourbell.model.jobs import JobSpec, WebhookAction
from hourbell.security.egress import LOOPBACK, Egress
from hourbell.security.secrets import Secret, new_signing_secret

NOW = 1_800_000_000.7
CLAIMED = Claimed(
    7 << 22, 5 << 22, "acme", 2, 41, datetime(2027, 1, 1, tzinfo=UTC).timestamp(), None, b""
)

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


class Secrets:
    """Secrets of the tenant acme, in memory."""

    def __init__(self, **values: Secret) -> None:
        self.known = {name.replace("_", "-"): secret for name, secret in values.items()}

    async def values(self, tenant: str, names: Collection[str]) -> Mapping[str, Secret]:
        known = self.known if tenant == "acme" else {}
        return {name: known[name] for name in names if name in known}


def opened(
    egress: str = ",".join(LOOPBACK), connections: int = 2, **values: Secret
) -> WebhookRunner:
    resolver = GuardedResolver(Egress.parse(egress))
    return WebhookRunner.open(connections, resolver, Secrets(**values), lambda: NOW)


@pytest.fixture
async def send(target: Target) -> AsyncIterator[Sends]:
    webhooks = opened()

    async def run(**fields: Any) -> Outcome:
        action = WebhookAction(**{"url": target.url, **fields})
        return await webhooks.run(
            action, Run(CLAIMED, JobSpec(name="n", action=action), 10.0, None)
        )

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


async def test_a_webhook_leaves_no_context_variable_behind(send: Sends) -> None:
    before = copy_context()
    await send()
    await send(url="http://127.0.0.1:1/")  # it fails
    assert copy_context() == before  # or every webhook would cost a runner


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
    target.answer = {"status": 302, "headers": {"Location": target.url}, "text": ""}
    outcome = await send()
    assert outcome == Failed(
        "The target answered 302, a redirect; redirects are not followed.", "http_302", final=True
    )
    assert len(target.requests) == 1


async def test_a_busy_target_says_when_to_come_back(target: Target, send: Sends) -> None:
    target.answer = {"status": 503, "headers": {"Retry-After": "17"}, "text": "too busy"}
    assert await send() == Failed("The target answered 503. Response: too busy", "http_503", 17.0)


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
    assert MAX_RESULT_BYTES - largest < len(settled.result.encode()) <= MAX_RESULT_BYTES
    kept = msgspec.json.decode(settled.result)
    assert kept == {"status": 200, "body": body * len(kept["body"])}


async def test_an_answer_that_just_fits_is_whole(target: Target, send: Sends) -> None:
    room = MAX_RESULT_BYTES - len(b'{"status":200,"body":""}')
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
    assert "during its response" in outcome.error


async def test_a_refusal_that_breaks_off_is_still_a_refusal(target: Target, send: Sends) -> None:
    target.answer = {"status": 503, "headers": {"Retry-After": "17"}}
    target.pieces = [b"first ", None]
    assert await send() == Failed("The target answered 503. Response: first", "http_503", 17.0)


@pytest.mark.parametrize("url", ["http://a..b/", f"http://{'a' * 64}/", "http://1.2.3.4.5/"])
async def test_a_url_that_the_client_refuses_is_a_failure(send: Sends, url: str) -> None:
    """Jobs of an older version may have one."""
    outcome = await send(url=url)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"
    assert outcome.error in (
        "No request can be sent to this url.",
        "The target could not be reached.",
    )


async def test_nobody_listening_is_a_failure(send: Sends) -> None:
    outcome = await send(url="http://127.0.0.1:9/")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"


# What is sent.


async def test_ids_are_the_same_over_attempts_and_a_span_is_not(
    target: Target, send: Sends
) -> None:
    await send()
    again = msgspec.structs.replace(CLAIMED, attempt=3, fence=42)
    webhooks = opened()
    action = WebhookAction(url=target.url)
    await webhooks.run(action, Run(again, JobSpec(name="n", action=action), 10.0, None))
    await webhooks.close()
    parents = [request.headers["traceparent"] for request, _ in target.requests]
    shape = re.compile(r"00-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-01")
    first, second = (shape.fullmatch(parent) for parent in parents)
    assert first is not None
    assert second is not None
    assert first["trace"] == second["trace"] != "0" * 32
    assert first["span"] != second["span"]
    for header in ("webhook-id", "Idempotency-Key", "Hourbell-Execution-Id"):
        assert {request.headers[header] for request, _ in target.requests} == {
            execution_text(CLAIMED.execution_id)
        }
    fences = [request.headers["Hourbell-Fence-Token"] for request, _ in target.requests]
    assert fences == ["41", "42"]


async def test_every_request_has_a_token_of_its_own(target: Target, send: Sends) -> None:
    await send()
    await send()
    tokens = {request.headers["Hourbell-Completion-Token"] for request, _ in target.requests}
    assert [len(token) for token in tokens] == [43, 43]


async def sent_with(target: Target, action: WebhookAction, **values: Secret) -> Outcome:
    webhooks = opened(**values)
    try:
        return await webhooks.run(
            action, Run(CLAIMED, JobSpec(name="n", action=action), 10.0, None)
        )
    finally:
        await webhooks.close()


def verified(key: str, headers: Mapping[str, str], body: bytes, now: float = NOW) -> bool:
    """What a receiver finds out with the public package."""
    with mock_time(now):
        try:
            Webhook(key).verify(body, dict(headers), json_parse=False)
        except WebhookVerificationError:
            return False
    return True


@contextlib.contextmanager
def mock_time(now: float) -> Iterator[None]:
    class Then(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Then":
            return cls.fromtimestamp(now, tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("standardwebhooks.webhooks.datetime", Then)
        yield


async def test_the_usual_secret_of_a_tenant_signs_what_names_no_other(target: Target) -> None:
    usual, other = new_signing_secret(), new_signing_secret()
    secrets = {"webhook_signing": Secret(usual), "other": Secret(other)}
    await sent_with(target, WebhookAction(url=target.url, body={"cart": 7}), **secrets)
    named = WebhookAction(url=target.url, body="raw ü", signing_secret="other")
    await sent_with(target, named, **secrets)
    await sent_with(target, WebhookAction(url=target.url, method="GET"), **secrets)
    for (request, body), key in zip(target.requests, (usual, other, usual), strict=True):
        assert request.headers["webhook-id"] == execution_text(CLAIMED.execution_id)
        assert request.headers["webhook-timestamp"] == str(int(NOW))
        assert verified(key, request.headers, body or b"")
        assert not verified({usual: other, other: usual}[key], request.headers, body or b"")
        assert not verified(key, request.headers, body + b" ")


async def test_while_a_secret_is_rotated_both_values_verify(target: Target) -> None:
    new, old = new_signing_secret(), new_signing_secret()
    action = WebhookAction(url=target.url, body={})
    await sent_with(target, action, webhook_signing=Secret(new, old))
    [(request, body)] = target.requests
    assert len(request.headers["webhook-signature"].split(" ")) == 2
    assert verified(new, request.headers, body)
    assert verified(old, request.headers, body)


async def test_without_a_secret_nothing_is_signed_but_id_and_time_are_told(
    target: Target, send: Sends
) -> None:
    await send()
    headers = target.requests[0][0].headers
    assert headers["webhook-id"] == execution_text(CLAIMED.execution_id)
    assert headers["webhook-timestamp"] == str(int(NOW))
    assert "webhook-signature" not in headers


async def test_a_secret_that_cannot_sign_is_told_by_its_name_only(target: Target) -> None:
    outcome = await sent_with(
        target, WebhookAction(url=target.url), webhook_signing=Secret("whsec_not-base64!")
    )
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.final) == ("bad_secret", False)
    assert "'webhook-signing'" in outcome.error
    assert "not-base64" not in outcome.error
    assert target.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"body": {"deep": ["{{secret:gone}}"]}},
        {"headers": {"X-Key": "{{secret:gone}}"}},
        {"signing_secret": "gone"},
    ],
)
async def test_a_missing_secret_fails_the_attempt_before_anything_is_sent(
    target: Target, send: Sends, fields: dict[str, Any]
) -> None:
    assert await send(**fields) == Failed("There is no secret 'gone'.", "missing_secret")
    assert target.requests == []


async def test_secrets_are_filled_in_everywhere_and_struck_out_of_what_comes_back(
    target: Target,
) -> None:
    value = "canary/0123+456 789ü"
    target.answer = {
        "status": 200,
        "text": f"got {value} and {base64.b64encode(value.encode()).decode()}",
    }
    action = WebhookAction(
        url=target.url + "?key={{secret:plain}}",
        headers={"Authorization": "Bearer {{secret:plain}}"},
        body={"a": ["{{secret:odd}}", 7]},
    )
    secrets = {"odd": Secret(value), "plain": Secret("canary-plain-1")}
    outcome = await sent_with(target, action, **secrets)
    [(request, body)] = target.requests
    assert request.query["key"] == "canary-plain-1"
    assert request.headers["Authorization"] == "Bearer canary-plain-1"
    assert msgspec.json.decode(body) == {"a": [value, 7]}
    assert outcome == Succeeded({"status": 200, "body": "got [secret] and [secret]"})

    target.answer = {"status": 500, "text": f"bad {value} canary-plain-1"}
    outcome = await sent_with(target, action, **secrets)
    assert isinstance(outcome, Failed)
    assert outcome.error == "The target answered 500. Response: bad [secret] [secret]"


@pytest.mark.parametrize(
    ("header", "value", "echo"),
    [
        ("Authorization", "Bearer canary-0123456", "Bearer canary-0123456"),
        ("Authorization", "Bearer canary-0123456", "invalid token canary-0123456"),
        (
            "authorization",
            "Basic " + base64.b64encode(b"me:canary-pass").decode(),
            "not canary-pass",
        ),
        ("Cookie", "theme=dark; session=canary-0123456", "no session canary-0123456"),
        ("X-Api-Key", "canary-0123456", base64.b64encode(b"canary-0123456").decode()),
        ("X-Api-Key", "{{secret:plain}} canary-0123456", "canary-0123456"),
    ],
)
async def test_a_literal_credential_that_the_target_echoes_is_struck_out(
    target: Target, header: str, value: str, echo: str
) -> None:
    action = WebhookAction(url=target.url, headers={header: value})
    for status in (200, 401):
        target.answer = {"status": status, "text": f"you sent {echo}"}
        outcome = await sent_with(target, action, plain=Secret("another-value"))
        kept = str(outcome)
        assert "canary" not in kept
        assert echo.removeprefix("not ") not in kept
        assert "[secret]" in kept


async def test_a_header_that_is_no_credential_is_kept_in_what_comes_back(target: Target) -> None:
    target.answer = {"status": 401, "text": "the trace 0123456789 is unknown"}
    outcome = await sent_with(
        target, WebhookAction(url=target.url, headers={"X-Trace": "0123456789"})
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.endswith("Response: the trace 0123456789 is unknown")


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"headers": {"X-Key": "{{secret:odd}}"}}, "canary\r\nX-Injected: 1"),
        ({"headers": {"X-Key": "{{secret:odd}}"}}, "canary\n"),
        ({"headers": {"X-Key": "{{secret:odd}}"}}, "canary" + "x" * 5000),
        ({"url": "http://127.0.0.1:9/{{secret:odd}}"}, "canary with spaces"),
        ({"url": "http://127.0.0.1:9/{{secret:odd}}"}, "canary\r\nHost: inside"),
        ({"url": "http://127.0.0.1:9/{{secret:odd}}"}, "canary\\@inside"),
    ],
)
async def test_a_secret_cannot_bring_along_what_a_job_may_not_say(
    target: Target, fields: dict[str, Any], value: str
) -> None:
    action = WebhookAction(**{"url": target.url, **fields})
    outcome = await sent_with(target, action, odd=Secret(value))
    assert isinstance(outcome, Failed)
    assert outcome.kind == "bad_secret"
    assert "canary" not in outcome.error
    assert target.requests == []


@pytest.mark.parametrize(
    ("count", "size", "problem"),
    [
        (51, 8, "The request uses more than 50 secrets."),
        (5, 8192, "The secrets of the request exceed 32768 bytes in total."),
        (50, 600, None),
        (1, 8192, None),
    ],
)
async def test_the_secrets_of_a_request_are_bounded(
    target: Target, count: int, size: int, problem: str | None
) -> None:
    """What comes back is searched for all of them, beside everything else that a worker does."""
    secrets = {f"s{number}": Secret(f"{number:08}" + "x" * (size - 8)) for number in range(count)}
    action = WebhookAction(url=target.url, body=[f"{{{{secret:{name}}}}}" for name in secrets])
    outcome = await sent_with(target, action, **secrets)
    if problem is None:
        assert isinstance(outcome, Succeeded)
    else:
        assert outcome == Failed(problem, "bad_secret")
    assert len(target.requests) == (problem is None)


async def test_errors_of_the_client_tell_no_secret_and_no_port(target: Target) -> None:
    action = WebhookAction(url="http://127.0.0.1:9/{{secret:plain}}")
    outcome = await sent_with(target, action, plain=Secret("canary-plain-1"))
    assert outcome == Failed("The target could not be reached.", "connection")


# The client.


class Raw:
    """A server below HTTP: for each connection, what to do with it."""

    def __init__(self, answer: bytes = b"", answers: int = 0) -> None:
        self.answer = answer
        self.answers = (
            answers  # so many requests are answered; the next is read, and the connection closed
        )
        self.heard = 0
        self.connections = 0
        self.url = ""
        self.hangs = False  # it hears, and never answers
        self.accepted = asyncio.Event()  # a connection, since it was cleared
        self.writers: list[asyncio.StreamWriter] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.accepted.set()
        self.writers.append(writer)
        if self.hangs:
            return
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.heard += 1
                if self.heard > self.answers:
                    break
                writer.write(self.answer)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def raw(answers: int = 0) -> AsyncIterator[Raw]:
    server = Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", answers)
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        yield server
        for writer in server.writers:
            writer.transport.abort()
    await asyncio.sleep(0)  # transports are closed in the next turn of the loop


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("{}", "Bad status line: Expected HTTP/, RTSP/ or ICE/"),
        ("HTTP/1.1 {}\r\n\r\n", "Bad status line: Invalid status code"),
        ("HTTP/1.1 200 OK\r\n{}\r\n\r\n", "Invalid header token"),
        ("HTTP/1.1 200 OK\r\nX: \0{}\r\n\r\n", "Invalid HTTP header"),
        ("HTTP/1.1 200 OK\r\nX: " + "{0}" * 50, "Got more than 8190 bytes when reading"),
        ("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", "Invalid character in Content-Length"),
    ],
)
async def test_what_is_not_http_is_not_quoted(answer: str, problem: str) -> None:
    value = "canary & \u00fcbt"
    async with raw(answers=1) as server:
        server.answer = answer.format(f"{value} " * 20).encode()
        action = WebhookAction(url=server.url, headers={"X-Key": "static"}, body="{{secret:odd}}")
        webhooks = opened(odd=Secret(value))
        outcome = await webhooks.run(
            action, Run(CLAIMED, JobSpec(name="n", action=action), 10.0, None)
        )
        await webhooks.close()
    assert outcome == Failed(f"The response is not valid HTTP: {problem}", "bad_answer")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD"])
@pytest.mark.parametrize("answers", [0, 3])
async def test_the_client_sends_nothing_twice(send: Sends, method: str, answers: int) -> None:
    """Neither over a new connection nor over one that was used before."""
    async with raw(answers) as server:
        for _ in range(answers):
            assert isinstance(await send(url=server.url, method=method), Succeeded)
        outcome = await send(url=server.url, method=method)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "connection"
    assert server.heard == answers + 1


async def test_connections_are_used_again(send: Sends) -> None:
    async with raw(answers=5) as server:
        for _ in range(5):
            await send(url=server.url)
    assert (server.heard, server.connections) == (5, 1)


async def test_an_answer_is_kept_as_it_came_and_never_unpacked(target: Target, send: Sends) -> None:
    packed = gzip.compress(b"x" * 10_000_000)
    assert len(packed) < MAX_RESULT_BYTES
    target.answer = {"status": 200, "body": packed, "headers": {"Content-Encoding": "gzip"}}
    outcome = await send()
    assert isinstance(outcome, Succeeded)
    assert len(outcome.result["body"]) <= len(packed)


async def test_a_target_that_accepts_it_will_say_how_it_ended(target: Target, send: Sends) -> None:
    target.answer = {"status": 202, "headers": {"Hourbell-Async": "1"}}
    outcome = await send()
    assert isinstance(outcome, Accepted)
    token = target.requests[0][0].headers["Hourbell-Completion-Token"]
    assert outcome.token_digest == hashlib.sha256(token.encode()).digest()
    assert 0 < outcome.within_seconds <= 10  # what is left of its timeout
    target.answer = {"status": 202, "text": "later"}
    assert await send() == Succeeded({"status": 202, "body": "later"})


# Circuits.


PAUSE_SECONDS = 20.0  # of a circuit that has opened: no probe goes out during a test


@pytest.fixture
def opens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hourbell.actions.circuits.OVER_SECONDS", 0.0)
    monkeypatch.setattr("hourbell.actions.circuits.FIRST_PAUSE_SECONDS", PAUSE_SECONDS)


@pytest.mark.usefixtures("opens_at_once")
async def test_a_target_that_fails_again_and_again_is_left_alone(
    target: Target, send: Sends
) -> None:
    target.answer = {"status": 500}
    for _ in range(FAILURES):
        assert isinstance(await send(), Failed)
    outcome = await send()
    assert isinstance(outcome, Released)
    assert outcome.waits_for == "circuit_open"
    assert 0 < outcome.delay_seconds < 2 * PAUSE_SECONDS
    assert len(target.requests) == FAILURES
    async with raw(answers=1) as other:
        assert isinstance(await send(url=other.url), Succeeded)


@pytest.mark.usefixtures("opens_at_once")
@pytest.mark.parametrize("status", [500, 429])
async def test_a_broken_endpoint_is_left_alone_and_its_host_is_not(
    target: Target, send: Sends, status: int
) -> None:
    target.answer = {"status": status}
    for number in range(FAILURES):
        assert isinstance(await send(url=f"{target.url}?number={number}"), Failed)
    assert isinstance(await send(), Released)
    assert isinstance(await send(method="PUT"), Failed)
    target.answer = {"status": 200, "text": "done"}
    assert isinstance(await send(url=f"{target.url}/2"), Succeeded)
    assert isinstance(await send(), Released)


@pytest.mark.usefixtures("opens_at_once")
async def test_a_host_that_cannot_be_connected_to_is_left_alone_whatever_the_path(
    target: Target, send: Sends
) -> None:
    for number in range(FAILURES):
        assert isinstance(await send(url=f"http://127.0.0.1:9/users/{number}"), Failed)
    assert isinstance(await send(url="http://127.0.0.1:9/another"), Released)
    assert isinstance(await send(), Succeeded)


@pytest.mark.usefixtures("opens_at_once")
async def test_a_first_attempt_is_put_off_by_a_broken_endpoint_for_30_seconds_at_most(
    target: Target,
) -> None:
    webhooks = opened()
    action = WebhookAction(url=target.url)

    async def called(late_seconds: float, attempt: int) -> Outcome:
        due = datetime.fromtimestamp(NOW - late_seconds, UTC)
        claimed = msgspec.structs.replace(CLAIMED, scheduled_epoch=due.timestamp(), attempt=attempt)
        return await webhooks.run(
            action, Run(claimed, JobSpec(name="n", action=action), 10.0, None)
        )

    target.answer = {"status": 500}
    for _ in range(FAILURES):
        assert isinstance(await called(0, 1), Failed)
    assert isinstance(await called(29, 1), Released)
    assert isinstance(await called(31, 2), Released)
    target.answer = {"status": 200, "text": "done"}
    assert isinstance(await called(31, 1), Succeeded)
    assert isinstance(await called(0, 1), Succeeded)
    await webhooks.close()


@pytest.mark.usefixtures("opens_at_once")
async def test_a_probe_that_ends_by_an_unforeseen_error_leaves_its_place_to_the_next(
    target: Target, send: Sends, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.answer = {"status": 500}
    for _ in range(FAILURES):
        assert isinstance(await send(), Failed)
    pause_is_over = time.monotonic() + 2 * PAUSE_SECONDS
    monkeypatch.setattr(webhook, "time", SimpleNamespace(monotonic=lambda: pause_is_over))
    with monkeypatch.context() as patch:
        patch.setattr(webhook, "refusal", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await send()
    target.answer = {"status": 200, "text": "done"}
    assert isinstance(await send(), Succeeded)


async def test_a_target_that_does_not_like_a_request_is_not_down(
    target: Target, send: Sends
) -> None:
    for status in (500, 500, 500, 500, 404, 500, 500, 500, 500, 302, 500, 500, 500, 500):
        target.answer = {"status": status}
        assert isinstance(await send(), Failed)


@pytest.mark.usefixtures("opens_at_once")
async def test_a_call_stopped_by_its_timeout_counts_and_one_stopped_otherwise_does_not() -> None:
    webhooks = opened()
    async with raw() as server:
        server.hangs = True
        action = WebhookAction(url=server.url)

        async def stopped(timeout_seconds: float) -> None:
            run = Run(CLAIMED, JobSpec(name="n", action=action), timeout_seconds, None)
            server.accepted.clear()
            calling = asyncio.create_task(webhooks.run(action, run))
            await server.accepted.wait()
            await asyncio.sleep(0.01)  # the shorter timeout is over
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

        for _ in range(FAILURES):
            await stopped(10.0)
        for _ in range(FAILURES):
            await stopped(0.01)
        run = Run(CLAIMED, JobSpec(name="n", action=action), 0.01, None)
        async with asyncio.timeout(10):  # it would hang if the circuit were closed
            assert isinstance(await webhooks.run(action, run), Released)
        await webhooks.close()


class Closed(Secrets):
    """Secrets that cannot be had, for one reason or another."""

    def __init__(self, why: Exception) -> None:
        super().__init__()
        self._why = why

    async def values(self, tenant: str, names: Collection[str]) -> Mapping[str, Secret]:
        raise self._why


@pytest.mark.parametrize(
    ("why", "waits_for", "warnings"),
    [(NoSecretKeys("It has no key."), "no_secret_keys", 1), (StoreUnavailable("away"), None, 0)],
)
async def test_a_worker_that_cannot_open_secrets_gives_back_what_it_has_not_sent(
    target: Target,
    why: Exception,
    waits_for: str | None,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And says that it has no keys, now and then."""
    resolver = GuardedResolver(Egress.parse(",".join(LOOPBACK)))
    webhooks = WebhookRunner.open(2, resolver, Closed(why), lambda: NOW)
    action = WebhookAction(url=target.url)
    run = Run(CLAIMED, JobSpec(name="n", action=action), 10.0, None)
    with capture_logs() as logs:
        for _ in range(3):
            assert await webhooks.run(action, run) == Released(1.0, waits_for)
        assert len(logs) == warnings
        later = time.monotonic() + SILENT_SECONDS
        monkeypatch.setattr(webhook, "time", SimpleNamespace(monotonic=lambda: later))
        await webhooks.run(action, run)
    assert [line["log_level"] for line in logs] == ["warning"] * 2 * warnings
    assert all("It has no key." in line["error"] for line in logs)
    assert target.requests == []
    await webhooks.close()
