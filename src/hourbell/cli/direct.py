"""Commands without a server: the API runs in this process, directly on the database.

The same client calls the same handlers, without a port in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import Any
from urllib.parse import unquote

from hourbell.cli.process import NO_DATABASE, database_problem
from hourbell.client import SyncClient
from hourbell.client.calls import Answer, Endpoint, Request
from hourbell.client.connections import BlockingConnections
from hourbell.compose import unserved_api
from hourbell.model.errors import ConfigurationError
from hourbell.observe.logs import configure_logs
from hourbell.settings import Settings, from_environment

Application = Callable[..., Awaitable[None]]

_URL = "http://localhost"  # the base URL of requests; nothing listens there


class UnservedConnections(BlockingConnections):
    """Carries out calls on an application, in an event loop that runs only during a call."""

    def __init__(self, application: Application, runner: asyncio.Runner, retries: int) -> None:
        super().__init__(Endpoint(url=_URL, api_key=None, retries=retries))
        self._application = application
        self._runner = runner

    def _send(self, request: Request) -> Answer:
        return self._runner.run(_call(self._application, request))  # Ctrl-C cancels it

    def close(self) -> None:
        """There are no connections to close."""


class DirectClient(SyncClient):
    """The API without a server."""

    def __init__(self, connections: UnservedConnections) -> None:
        self._use(connections)


@contextmanager
def direct_client(env: Mapping[str, str], retries: int) -> Iterator[SyncClient]:
    """A client of the API in this process, on the configured database."""
    settings = from_environment(env)
    configure_logs("error")  # the command itself reports what is only a warning
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            application = runner.run(_open(stack, settings))
            yield DirectClient(UnservedConnections(application, runner, retries))
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, settings: Settings) -> Application:
    try:
        return await stack.enter_async_context(unserved_api(settings))
    except NO_DATABASE as error:
        otherwise = "name a server with HOURBELL_URL or --profile"
        raise ConfigurationError(database_problem(error, settings, otherwise)) from error


async def _call(application: Application, request: Request) -> Answer:
    """Call an ASGI application and return its response."""
    path, _, query = request.target.partition("?")
    headers = {"host": "localhost", **request.headers}
    if request.body is not None:
        headers["content-length"] = str(len(request.body))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    status, retry_after, body = 500, None, b""
    events = [{"type": "http.request", "body": request.body or b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return events.pop() if events else {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        nonlocal status, retry_after, body
        if event["type"] == "http.response.start":
            status = event["status"]
            answered = dict(event["headers"])
            retry_after = answered.get(b"retry-after", b"").decode() or None
        else:
            body += event.get("body", b"")

    await application(scope, receive, send)
    return Answer(status, body, retry_after)
