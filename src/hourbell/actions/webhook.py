"""WEBHOOK: an HTTP request. `requests` says what is sent, `answers` what the answer means, `Egress` where it may go at all.

Redirects are never followed, the client never sends anything twice by itself, nothing is decompressed, the answer is read up to
a bound. A target that keeps failing gets fewer requests for a while; see `circuits`. What is kept of an answer or an error
has no secret in it, and tells no more about our network than that a target could not be reached.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets as randomness
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import aiohttp
import structlog
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError
from yarl import URL

from hourbell.actions import Run
from hourbell.actions.answers import MOST_RESULT_BYTES, is_accepted, is_success, refusal, result
from hourbell.actions.circuits import Circuits
from hourbell.actions.egress import SENDING, GuardedResolver, Sending
from hourbell.actions.names import NameTooSlow
from hourbell.actions.requests import CannotSend, Prepared, prepared
from hourbell.actions.trust import certificate_problem, tls_problem, trust
from hourbell.model.errors import NoSecretKeys, StoreUnavailable
from hourbell.model.executions import (
    CIRCUIT_OPEN,
    NO_SECRET_KEYS,
    Accepted,
    Claimed,
    Failed,
    Outcome,
    Released,
    Succeeded,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import WebhookAction
from hourbell.security.egress import ForbiddenTarget
from hourbell.security.secrets import SecretSource

log = structlog.get_logger()

REFUSAL_SECONDS = 1.0  # how long we listen to why we are refused
SILENT_SECONDS = 30.0  # between two warnings of the same
_AWAY_SECONDS = 1.0
_NAME_TOO_SLOW = "The target could not be reached: nobody told its address in time."
# What was read is told as Python writes bytes, in which no secret would be found again.
_SEEN = re.compile(r"[:\s]*\b(bytearray\()?b['\"].*", re.DOTALL)
LONGEST_WAIT_SECONDS = 30.0  # of an attempt, for the circuit of its endpoint
_MOST_INTERIM = 16  # answers such as `100 Continue` before the real one

Now = Callable[[], float]


class WebhookRunner:
    """Sends webhooks over pooled connections."""

    def __init__(self, session: aiohttp.ClientSession, secrets: SecretSource, now: Now) -> None:
        self._session = session
        self._secrets = secrets
        self._now = now  # seconds since 1970, for the target to compare with its own clock
        self._hosts = Circuits()
        self._endpoints = Circuits(LONGEST_WAIT_SECONDS)
        self._calls = count()
        self._silent_until = 0.0  # about keys that are not there; monotonic

    @classmethod
    def open(
        cls,
        connections: int,
        resolver: GuardedResolver,
        secrets: SecretSource,
        now: Now,
        ca_file: Path | None = None,
    ) -> Self:
        connector = _Connector(
            limit=connections,
            limit_per_host=0,
            resolver=resolver,
            socket_factory=resolver.make_socket,
            ssl=trust(ca_file),
            use_dns_cache=False,  # each connection goes to an address that was looked at for it
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
        return cls(session, secrets, now)

    async def close(self) -> None:
        await self._session.close()

    async def run(self, action: WebhookAction, run: Run) -> Outcome:
        began = time.monotonic()
        token = randomness.token_urlsafe(32)
        try:
            request = await prepared(action, run, self._secrets, token, int(self._now()))
            url = URL(request.url)
        except CannotSend as error:
            return Failed(str(error), error.kind)
        except StoreUnavailable:
            return Released(_AWAY_SECONDS)  # no secrets here, and nothing was sent
        except NoSecretKeys as error:
            self._warn_of_keys(error, run, began)
            return Released(_AWAY_SECONDS, NO_SECRET_KEYS)
        except ValueError:
            return Failed("No request can be sent to this url.", "connection")
        call = _Call(next(self._calls), action, run.claimed, url)
        delay = self._delay_seconds(call, began)
        if delay is not None:
            return Released(delay, CIRCUIT_OPEN)
        sending = Sending(run.claimed.tenant_id)
        SENDING.set(sending)
        try:
            outcome = await self._sent(action.method, url, request, run, token, began)
        except BaseException as error:
            # Cancelled by the watchdog at its timeout, or for another reason; or an unforeseen error.
            now = time.monotonic()
            is_timeout = isinstance(error, asyncio.CancelledError) and (
                now - began >= run.timeout_seconds
            )
            self._note(call, sending.connected, is_failure=True if is_timeout else None)
            raise
        self._note(call, sending.connected, _is_failure_of_target(outcome))
        return outcome

    def _delay_seconds(self, call: _Call, now: float) -> float | None:
        """None: it may be sent now."""
        delay = self._hosts.delay_seconds(call.host, call.number, now)
        if delay is None:
            claimed = call.claimed
            attempt = (claimed.execution_id, claimed.attempt)
            late = self._now() - claimed.scheduled_for.timestamp() if claimed.attempt == 1 else 0.0
            delay = self._endpoints.delay_seconds(
                call.endpoint, call.number, now, attempt, max(late, 0.0)
            )
            if delay is not None:
                self._hosts.unknown(call.host, call.number)
        return delay

    async def _sent(
        self, method: str, url: URL, request: Prepared, run: Run, token: str, began: float
    ) -> Outcome:
        try:
            async with self._session.request(
                method,
                url,
                headers=request.headers,
                data=_payload(request),
                allow_redirects=False,
                middlewares=() if method == "POST" else _NEVER_AGAIN,
            ) as response:
                status, headers = response.status, response.headers
                if is_accepted(status, headers):
                    digest = hashlib.sha256(token.encode()).digest()
                    return Accepted(digest, run.timeout_seconds - (time.monotonic() - began))
                if is_success(status):
                    answer = await _beginning(response.content)
                    return Succeeded(result(status, answer, request.redactor))
                answer = await _reason(response.content)
                return refusal(status, headers, answer, request.redactor)
        except ForbiddenTarget as error:
            return Failed(str(error), "forbidden_target", final=True)
        except aiohttp.ClientPayloadError:
            return Failed("The target broke off in the middle of its answer.", "connection")
        except aiohttp.ClientResponseError as error:
            wrong = " ".join(_SEEN.sub("", error.message).split())
            return Failed(f"What the target answered is not HTTP: {wrong[:200]}", "bad_answer")
        except aiohttp.ClientConnectorCertificateError as error:
            return Failed(f"The target cannot be trusted: {certificate_problem(error)}.", "tls")
        except aiohttp.ClientConnectorSSLError as error:
            return Failed(f"The target does not speak TLS as we do: {tls_problem(error)}.", "tls")
        except aiohttp.ClientConnectorError as error:
            slow = isinstance(error.os_error, NameTooSlow)
            return Failed(
                _NAME_TOO_SLOW if slow else "The target could not be reached.", "connection"
            )
        except ValueError:  # among them InvalidURL, and UnicodeError for a host's name
            return Failed("No request can be sent to this url.", "connection")
        except aiohttp.ClientError:
            return Failed("The target closed the connection without an answer.", "connection")

    def _warn_of_keys(self, error: NoSecretKeys, run: Run, now: float) -> None:
        """It concerns each webhook of a tenant, again and again, until somebody gives this process its keys."""
        if now >= self._silent_until:
            self._silent_until = now + SILENT_SECONDS
            log.warning(
                "webhooks are given back: this process cannot open their secrets",
                tenant=run.claimed.tenant_id,
                execution=execution_text(run.claimed.execution_id),
                error=str(error),
            )

    def _note(self, call: _Call, connected: bool, is_failure: bool | None) -> None:
        """What a call says about its target; None: nothing. Without a connection it is the host that failed."""
        now = time.monotonic()
        if connected:
            self._hosts.lives(call.host)
        elif is_failure:
            self._warn(call, "host", self._hosts.failed(call.host, call.number, now))
        else:
            self._hosts.unknown(call.host, call.number)
        if not connected or is_failure is None:
            self._endpoints.unknown(call.endpoint, call.number)
        elif is_failure:
            self._warn(call, "endpoint", self._endpoints.failed(call.endpoint, call.number, now))
        else:
            self._endpoints.lives(call.endpoint)

    def _warn(self, call: _Call, what: str, pause: float | None) -> None:
        if pause is not None:
            tenant, host, port = call.host
            log.warning(
                "circuit opened",
                of=what,
                tenant=tenant,
                host=host,
                port=port,
                job=job_text(call.claimed.job_id),  # not the path: it may contain a credential
                seconds=pause,
            )


class _Call:
    """One request, as circuits know it."""

    __slots__ = ("claimed", "endpoint", "host", "number")

    def __init__(self, number: int, action: WebhookAction, claimed: Claimed, url: URL) -> None:
        self.number = number
        self.claimed = claimed
        self.host = (claimed.tenant_id, url.raw_host or "", url.port or 0)
        # As the job has it, so without the values of its secrets. Queries often differ from call to call.
        self.endpoint = (claimed.tenant_id, action.method, action.url.partition("?")[0])


def _payload(request: Prepared) -> aiohttp.BytesPayload | None:
    """As the client would make it of bytes, without its looking for what they are."""
    if request.body is None:
        return None
    return aiohttp.BytesPayload(request.body, content_type=request.headers["Content-Type"])


def _is_failure_of_target(outcome: Outcome) -> bool | None:
    """Whether a target is down, or too busy; False: at most it rejected the request. None: it was not called."""
    if not isinstance(outcome, Failed):
        return False
    kind = outcome.kind
    if kind == "forbidden_target":
        return None
    return kind.startswith("http_5") or kind in ("http_429", "connection", "bad_answer", "tls")


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """What was answered, to its end or as far as a result could hold it; one read gives only what has arrived."""
    answer = b""
    while len(answer) < MOST_RESULT_BYTES:
        piece = await content.read(MOST_RESULT_BYTES - len(answer))
        if not piece:
            break
        answer += piece
        if content.at_eof():
            break
    return answer


async def _reason(content: aiohttp.StreamReader) -> bytes:
    """What a refusal says about itself, if it comes to the point; it is a refusal all the same."""
    answer = b""
    try:
        async with asyncio.timeout(REFUSAL_SECONDS):
            while len(answer) < MOST_RESULT_BYTES and (piece := await content.readany()):
                answer += piece
    except (TimeoutError, aiohttp.ClientError):
        pass
    return answer[:MOST_RESULT_BYTES]


class _BrokeOff(aiohttp.ClientError):
    """The connection ended before there was an answer."""


async def _never_again(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """The client would send what it holds to be safe to repeat (GET, PUT, …) once more, by itself, if it knew these errors."""
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # nothing was sent; it is not repeated
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _BrokeOff from error


_NEVER_AGAIN = (_never_again,)  # a POST is never repeated as it is


class _Connector(aiohttp.TCPConnector):
    """Says whether a request got its connection."""

    async def connect(self, *args: Any, **options: Any) -> Connection:
        connection = await super().connect(*args, **options)
        SENDING.get().connected = True
        return connection


class _Connection(ResponseHandler):
    """A connection that is not held for ever by answers that come before the answer."""

    _interim = 0

    def feed_data(self, data: Any, size: int = 0) -> None:
        if 100 <= data[0].code < 200:
            self._interim += 1
            if self._interim > _MOST_INTERIM:
                if self.transport is not None:
                    self.transport.close()
                self.set_exception(HttpProcessingError(message="too many interim answers"))
                return
        else:
            self._interim = 0
        super().feed_data(data, size)
