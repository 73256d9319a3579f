"""The I/O of the clients: aiohttp for the async one, the standard library for the sync one.

The sync client keeps a few connections open and can be used by several threads. It needs neither an
event loop nor aiohttp, which takes eight times as long to import as everything used here.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import select
import ssl
import time
from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

from hourbell.client.calls import (
    Answer,
    Endpoint,
    Lost,
    Plan,
    Request,
    Wait,
    is_header_text,
    steps_of,
)
from hourbell.client.errors import ClientError
from hourbell.client.methods import AsyncRunner, SyncRunner

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

MAX_IDLE_CONNECTIONS = 8
MAX_ANSWER_BYTES = 256 * 1024 * 1024


def endpoint_of(url: str, api_key: str | None, retries: int) -> Endpoint:
    """The server at this URL; raises ClientError if the URL or the key is not valid."""
    _split(url)
    if api_key is not None and not is_header_text(api_key):
        raise ClientError(
            "invalid_api_key",
            "The API key contains invalid characters. Copy the whole key and nothing else.",
        )
    return Endpoint(url=url.rstrip("/"), api_key=api_key, retries=retries)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and is_header_text(url)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise ClientError(
            "invalid_url",
            f"{url!a} is not a valid server URL. Use one such as https://hourbell.example.com, "
            "without user, query or fragment.",
        )
    return parts


class AioConnections(AsyncRunner):
    """Carries out plans with aiohttp."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float) -> None:
        self._endpoint = endpoint
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def run(self, plan: Plan[T]) -> T:
        steps = steps_of(self._endpoint, plan)
        learnt: Answer | Lost | None = None
        while True:
            try:
                step = steps.send(learnt)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
                learnt = None
            else:
                learnt = await self._send(step)

    async def _send(self, request: Request) -> Answer | Lost:
        try:
            import aiohttp
        except ModuleNotFoundError:
            raise ClientError(
                "missing_extra",
                'Client needs the extra "client", which the library alone does not include. Install it: '
                'pip install "hourbell[client]". SyncClient needs no extra.',
            ) from None

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            async with self._session.request(
                request.method,
                self._endpoint.url + request.target,
                headers=request.headers,
                data=request.body,
                allow_redirects=False,
                skip_auto_headers=("Content-Type",),
            ) as response:
                body = await response.read()
        except TimeoutError:
            return Lost(_too_slow(self._timeout_seconds))
        except (aiohttp.ClientError, OSError) as error:
            return Lost(_reason(error))
        return Answer(response.status, body, response.headers.get("Retry-After"))

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


class BlockingConnections(SyncRunner):
    """Carries out plans one request at a time; a subclass sends the requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def run(self, plan: Plan[T]) -> T:
        steps = steps_of(self._endpoint, plan)
        learnt: Answer | Lost | None = None
        while True:
            try:
                step = steps.send(learnt)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Wait):
                time.sleep(step.seconds)
                learnt = None
            else:
                learnt = self._send(step)

    @abstractmethod
    def _send(self, request: Request) -> Answer | Lost: ...

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""


class PooledConnections(BlockingConnections):
    """Carries out plans with `http.client`."""

    def __init__(self, endpoint: Endpoint, timeout_seconds: float) -> None:
        super().__init__(endpoint)
        self._timeout_seconds = timeout_seconds
        self._parts = _split(endpoint.url)
        self._idle: deque[http.client.HTTPConnection] = deque(maxlen=MAX_IDLE_CONNECTIONS)
        self._pid = os.getpid()

    def _send(self, request: Request) -> Answer | Lost:
        connection = self._connection()
        try:
            connection.request(
                request.method,
                self._parts.path + request.target,
                request.body,
                dict(request.headers),
            )
            response = connection.getresponse()
            body = response.read(MAX_ANSWER_BYTES)
            if response.length and len(body) < MAX_ANSWER_BYTES:  # `read` does not report it
                raise http.client.IncompleteRead(body, response.length)
        except TimeoutError:
            connection.close()
            return Lost(_too_slow(self._timeout_seconds))
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            return Lost(_reason(error))
        except BaseException:  # such as a KeyboardInterrupt: the response may still arrive
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self._keep(connection)
        return Answer(response.status, body, response.getheader("Retry-After"))

    def _connection(self) -> http.client.HTTPConnection:
        """An idle connection that the server has not closed, or a new one."""
        if self._pid != os.getpid():
            # A forked child: the connections belong to its parent, which would get our answers.
            self._idle, self._pid = deque(maxlen=MAX_IDLE_CONNECTIONS), os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if not _is_closed_by_server(connection):
                return connection
            connection.close()
        host, port = self._parts.hostname, self._parts.port
        assert host is not None
        kind = (
            http.client.HTTPSConnection
            if self._parts.scheme == "https"
            else http.client.HTTPConnection
        )
        return kind(host, port, timeout=self._timeout_seconds)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        if len(self._idle) < MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()


def _is_closed_by_server(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection, which otherwise has nothing to read."""
    if connection.sock is None:
        return True
    poll = select.poll()  # not select(), which fails above 1,024 open files
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _too_slow(seconds: float) -> str:
    return f"no response within {seconds:g} seconds"


def _reason(error: Exception) -> str:
    """Why there was no response; messages of libraries repeat the address in several forms."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        if error.errno is not None and error.errno > 0:
            return os.strerror(error.errno).lower()
        if error.strerror:
            return error.strerror.lower()
    return str(error).rstrip(".") or type(error).__name__
