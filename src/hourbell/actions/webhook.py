"""WEBHOOK: an HTTP request.

`requests` builds the request, `answers` interprets the response, `Egress` decides which targets are
allowed. Redirects are never followed, the client never repeats a request on its own, nothing is
decompressed, and the response is read up to a limit. A target that keeps failing gets fewer
requests for a while; see `circuits`. Stored responses and errors contain no secrets and disclose
no more about our network than that a target could not be reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets as randomness
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import aiohttp
import structlog
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from yarl import URL

from hourbell.actions import Run
from hourbell.actions.answers import MAX_RESULT_BYTES, is_accepted, is_success, refusal, result
from hourbell.actions.circuits import Circuits, OpenTarget
from hourbell.actions.counts import WebhookCounts
from hourbell.actions.egress import CURRENT_REQUEST, GuardedResolver, OutgoingRequest
from hourbell.actions.names import NameTooSlow
from hourbell.actions.requests import CannotSend, PreparedRequest, prepare_request
from hourbell.actions.trust import certificate_problem, tls_context, tls_problem
from hourbell.model.errors import NoSecretKeys, StoreUnavailable
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    NO_SECRET_KEYS,
    TIMEOUT,
    Accepted,
    Claimed,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import WebhookAction, host_of
from hourbell.observe.metrics import Metrics
from hourbell.security.egress import ForbiddenTarget
from hourbell.security.secrets import SecretSource

if TYPE_CHECKING:
    from hourbell.observe.spans import RequestSpan

log = structlog.get_logger(component="webhooks")

REFUSAL_SECONDS = 1.0  # longest time to read the body of an error response
SILENT_SECONDS = 30.0  # between two identical warnings
_UNAVAILABLE_SECONDS = 1.0
_NAME_TOO_SLOW = "The target could not be reached: its host name was not resolved in time."
# Removes quoted input from messages: as a Python bytes literal, a secret would escape redaction.
_QUOTED_INPUT = re.compile(r"[:\s]*\b(bytearray\()?b['\"].*", re.DOTALL)
MAX_WAIT_SECONDS = 30.0  # how long an attempt waits for the circuit of its endpoint
_MAX_SAID = 200  # characters of the last error of a circuit
_MAX_INTERIM = 16  # interim responses such as `100 Continue` before the final one

Now = Callable[[], float]


class WebhookRunner:
    """Sends webhooks over pooled connections."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        secrets: SecretSource,
        now: Now,
        metrics: Metrics,
    ) -> None:
        self._session = session
        self._secrets = secrets
        self._now = now  # seconds since 1970, for the target to compare with its own clock
        self._hosts = Circuits()
        self._endpoints = Circuits(MAX_WAIT_SECONDS)
        self._counts = WebhookCounts(metrics, time.monotonic)
        self._counts.watch({"host": self._hosts, "endpoint": self._endpoints})
        self._calls = count()
        self._silent_until = 0.0  # suppresses warnings about missing keys; monotonic

    @classmethod
    def open(
        cls,
        connections: int,
        resolver: GuardedResolver,
        secrets: SecretSource,
        now: Now,
        ca_file: Path | None = None,
        metrics: Metrics | None = None,
    ) -> Self:
        connector = _Connector(
            limit=connections,
            limit_per_host=0,
            resolver=resolver,
            socket_factory=resolver.make_socket,
            ssl=tls_context(ca_file),
            use_dns_cache=False,  # the address is checked for each connection
        )
        connection: Any = partial(_Connection, loop=asyncio.get_running_loop())
        connector._factory = connection
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
        )
        return cls(session, secrets, now, metrics or Metrics())

    async def close(self) -> None:
        await self._session.close()

    def open_circuits(self) -> Iterator[tuple[str, str, str | None, OpenTarget]]:
        """Tenant, host, endpoint (None: the whole host) and state of every open circuit."""
        for circuit in self._hosts.open():
            tenant, host, _ = circuit.target
            yield str(tenant), str(host), None, circuit
        for circuit in self._endpoints.open():
            tenant, method, url = circuit.target
            yield str(tenant), urlsplit(str(url)).hostname or "", f"{method} {url}", circuit

    async def run(self, action: WebhookAction, run: Run) -> Outcome:
        began = time.monotonic()
        token = randomness.token_urlsafe(32)
        try:
            request = await prepare_request(action, run, self._secrets, token, int(self._now()))
            url = URL(request.url)
        except CannotSend as error:
            return Failed(str(error), error.kind)
        except StoreUnavailable:
            return Released(_UNAVAILABLE_SECONDS)  # secrets unavailable, and nothing was sent
        except NoSecretKeys as error:
            self._warn_about_keys(error, run, began)
            return Released(_UNAVAILABLE_SECONDS, NO_SECRET_KEYS)
        except ValueError:
            return Failed("No request can be sent to this url.", "connection")
        call = _Call(next(self._calls), action, run.claimed, url)
        delay = self._delay_seconds(call, began)
        if delay is not None:
            return Released(delay, CIRCUIT_OPEN)
        outgoing = OutgoingRequest(run.claimed.tenant_id)
        before = CURRENT_REQUEST.set(outgoing)
        span = None
        if run.span is not None:  # the host from the job, without secrets filled in
            host = host_of(action.url) or ""
            span = run.span.request(action.method, host, url.port or 0)
        outcome: Outcome | None = None
        try:
            if span is not None and span.traceparent is not None:
                request.headers["traceparent"] = span.traceparent
            outcome = await self._send(action.method, url, request, run, token, began, span)
        except BaseException as error:
            # Cancelled at its timeout, cancelled for another reason, or an unexpected error.
            now = time.monotonic()
            is_timeout = isinstance(error, asyncio.CancelledError) and (
                now - began >= run.timeout_seconds
            )
            if is_timeout:
                self._counts.failed(TIMEOUT, outgoing.status)
            self._update_circuits(call, outgoing.connected, True if is_timeout else None, TIMEOUT)
            raise
        finally:
            CURRENT_REQUEST.reset(before)
            if span is not None:
                span.end(outcome)
        if isinstance(outcome, Failed):
            self._counts.failed(outcome.kind, outgoing.status)
        elif outgoing.status is not None:
            self._counts.answered(outgoing.status)
        self._update_circuits(
            call, outgoing.connected, _is_failure_of_target(outcome), _said(outcome)
        )
        return outcome

    def _delay_seconds(self, call: _Call, now: float) -> float | None:
        """How long to postpone the request; None to send it now."""
        delay = self._hosts.delay_seconds(call.host, call.number, now)
        if delay is None:
            claimed = call.claimed
            attempt = (claimed.execution_id, claimed.attempt)
            late = self._now() - claimed.scheduled_epoch if claimed.attempt == 1 else 0.0
            delay = self._endpoints.delay_seconds(
                call.endpoint, call.number, now, attempt, max(late, 0.0)
            )
            if delay is not None:
                self._hosts.inconclusive(call.host, call.number)
        return delay

    async def _send(
        self,
        method: str,
        url: URL,
        request: PreparedRequest,
        run: Run,
        token: str,
        began: float,
        span: RequestSpan | None,
    ) -> Outcome:
        try:
            async with self._session.request(
                method,
                url,
                headers=request.headers,
                data=_payload(request),
                allow_redirects=False,
                middlewares=() if method == "POST" else _NO_CLIENT_RETRIES,
            ) as response:
                status, headers = response.status, response.headers
                if span is not None:
                    span.answered(status)
                CURRENT_REQUEST.get().status = status
                if is_accepted(status, headers):
                    digest = hashlib.sha256(token.encode()).digest()
                    return Accepted(digest, run.timeout_seconds - (time.monotonic() - began))
                if is_success(status):
                    answer = await _read_beginning(response.content)
                    return Succeeded(result(status, answer, request.redactor))
                answer = await _read_error_body(response.content)
                return refusal(status, headers, answer, request.redactor)
        except ForbiddenTarget as error:
            return Failed(str(error), "forbidden_target", final=True)
        except aiohttp.ClientPayloadError:
            return Failed("The target closed the connection during its response.", "connection")
        except aiohttp.ClientResponseError as error:
            wrong = " ".join(_QUOTED_INPUT.sub("", error.message).split())
            return Failed(f"The response is not valid HTTP: {wrong[:200]}", "bad_answer")
        except aiohttp.ClientConnectorCertificateError as error:
            return Failed(f"The certificate is not trusted: {certificate_problem(error)}.", "tls")
        except aiohttp.ClientConnectorSSLError as error:
            return Failed(f"The TLS handshake failed: {tls_problem(error)}.", "tls")
        except aiohttp.ClientConnectorError as error:
            slow = isinstance(error.os_error, NameTooSlow)
            return Failed(
                _NAME_TOO_SLOW if slow else "The target could not be reached.", "connection"
            )
        except ValueError:  # includes InvalidURL, and UnicodeError for a host name
            return Failed("No request can be sent to this url.", "connection")
        except aiohttp.ClientError:
            return Failed("The target closed the connection without a response.", "connection")

    def _warn_about_keys(self, error: NoSecretKeys, run: Run, now: float) -> None:
        """Rate-limited, because it affects every webhook of a tenant until the keys are configured."""
        if now >= self._silent_until:
            self._silent_until = now + SILENT_SECONDS
            log.warning(
                "webhook released, secrets cannot be decrypted",
                tenant=run.claimed.tenant_id,
                execution_id=execution_text(run.claimed.execution_id),
                error=str(error),
            )

    def _update_circuits(
        self, call: _Call, connected: bool, is_failure: bool | None, error: str
    ) -> None:
        """Update the circuits; `is_failure` None means no information about the target.

        A failure without a connection counts against the host.
        """
        now = time.monotonic()
        if connected:
            self._hosts.succeeded(call.host)
        elif is_failure:
            self._warn(call, "host", self._hosts.failed(call.host, call.number, now, error))
        else:
            self._hosts.inconclusive(call.host, call.number)
        if not connected or is_failure is None:
            self._endpoints.inconclusive(call.endpoint, call.number)
        elif is_failure:
            self._warn(
                call, "endpoint", self._endpoints.failed(call.endpoint, call.number, now, error)
            )
        else:
            self._endpoints.succeeded(call.endpoint)

    def _warn(self, call: _Call, what: str, pause: float | None) -> None:
        if pause is not None:
            self._counts.opened(what)
            tenant, host, port = call.host
            log.warning(
                "circuit opened",
                of=what,
                tenant=tenant,
                host=host,
                port=port,
                job_id=job_text(call.claimed.job_id),  # not the path: it may contain a credential
                seconds=pause,
            )


def _said(outcome: Outcome) -> str:
    """The failure of a request in short, without the response, which may contain anything."""
    if not isinstance(outcome, Failed):
        return ""
    return f"{outcome.kind}: {outcome.error.partition(' Response:')[0]}"[:_MAX_SAID]


class _Call:
    """One request, as the circuits identify it."""

    __slots__ = ("claimed", "endpoint", "host", "number")

    def __init__(self, number: int, action: WebhookAction, claimed: Claimed, url: URL) -> None:
        self.number = number
        self.claimed = claimed
        self.host = (claimed.tenant_id, url.raw_host or "", url.port or 0)
        # From the job, so without secret values. The query is omitted: it often differs per call.
        self.endpoint = (claimed.tenant_id, action.method, action.url.partition("?")[0])


def _payload(request: PreparedRequest) -> aiohttp.BytesPayload | None:
    """The payload that the client would build from bytes, without guessing the content type."""
    if request.body is None:
        return None
    return aiohttp.BytesPayload(request.body, content_type=request.headers["Content-Type"])


def _is_failure_of_target(outcome: Outcome) -> bool | None:
    """Whether the target is down or overloaded.

    False: it works, though it may have rejected the request. None: it was not called.
    """
    if not isinstance(outcome, Failed):
        return False
    kind = outcome.kind
    if kind == "forbidden_target":
        return None
    return kind.startswith("http_5") or kind in ("http_429", "connection", "bad_answer", "tls")


async def _read_beginning(content: aiohttp.StreamReader) -> bytes:
    """The response body, up to the size of a result; one read returns only what has arrived."""
    answer = b""
    while len(answer) < MAX_RESULT_BYTES:
        chunk = await content.read(MAX_RESULT_BYTES - len(answer))
        if not chunk:
            break
        answer += chunk
        if content.at_eof():
            break
    return answer


async def _read_error_body(content: aiohttp.StreamReader) -> bytes:
    """The body of an error response, as far as it arrives within REFUSAL_SECONDS."""
    answer = b""
    try:
        async with asyncio.timeout(REFUSAL_SECONDS):
            while len(answer) < MAX_RESULT_BYTES and (chunk := await content.readany()):
                answer += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass
    return answer[:MAX_RESULT_BYTES]


class _ConnectionLost(aiohttp.ClientError):
    """The connection ended before a response."""


async def _hide_retryable_errors(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Hide errors after which the client itself would repeat an idempotent request (GET, PUT, …)."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent, and the client does not repeat it
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionLost from error


# Not needed for POST, which the client never repeats.
_NO_CLIENT_RETRIES = (_hide_retryable_errors,)


class _Connector(aiohttp.TCPConnector):
    """Records whether a request got a connection."""

    async def connect(self, *args: Any, **options: Any) -> Connection:
        connection = await super().connect(*args, **options)
        CURRENT_REQUEST.get().connected = True
        return connection


class _Connection(ResponseHandler):
    """A connection that bounds interim responses, which could block it indefinitely."""

    _interim = 0

    def feed_data(self, data: Any, size: int = 0) -> None:
        if 100 <= data[0].code < 200:
            self._interim += 1
            if self._interim > _MAX_INTERIM:
                if self.transport is not None:
                    self.transport.close()
                self.set_exception(HttpProcessingError(message="too many interim responses"))
                return
        else:
            self._interim = 0
        super().feed_data(data, size)
