"""ASGI middleware: only verified deliveries reach the application."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from hourbell.guard.deliveries import Guard, GuardError

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


class GuardMiddleware:
    """Verifies requests to the given paths; `scope["hourbell"]` is then the Delivery.

    A request that is not genuine gets a 401 and does not reach the application. A
    GuardError raised by the application, such as StaleFence, becomes a response with its status.
    """

    def __init__(
        self,
        app: _App,
        guard: Guard,
        paths: Sequence[str] = ("/hooks/",),
        max_body: int = 1 << 20,
    ) -> None:
        self._app = app
        self._guard = guard
        self._paths = tuple(paths)
        self._max_body = max_body

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send
    ) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(self._paths):
            await self._app(scope, receive, send)
            return
        body = await _read(receive, self._max_body)
        if body is None:
            await _answer(
                send, 413, "The body is too large", f"It has more than {self._max_body} bytes."
            )
            return
        started = False

        async def sending(message: _Message) -> None:
            nonlocal started
            started = True
            await send(message)

        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        try:
            scope["hourbell"] = self._guard.verify(headers, body)
            await self._app(scope, _again(body, receive), sending)
        except GuardError as error:
            if started:
                raise
            await _answer(send, error.status, error.title, str(error), error.retry_after)


async def _read(receive: _Receive, max_body: int) -> bytes | None:
    """The body; None if it is too large. A client that has disconnected sends no more of it."""
    parts, size = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > max_body:
            return None
        parts.append(part)
        if message["type"] != "http.request" or not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: _Receive) -> _Receive:
    """Returns the body that was already read, then whatever comes after it."""
    sent = False

    async def receive_again() -> _Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def _answer(
    send: _Send, status: int, title: str, detail: str, retry_after: int | None = None
) -> None:
    headers = [(b"content-type", b"application/problem+json")]
    if retry_after is not None:
        headers.append((b"retry-after", str(retry_after).encode()))
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(problem).encode()})
