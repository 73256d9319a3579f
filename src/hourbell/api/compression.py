"""Compresses answers with gzip, for clients that accept it.

Only whole JSON answers above MIN_BYTES: a small one would not fit into fewer packets. A stream of
events is sent as it is, because each event must leave at once, and so is what is already encoded.
An ETag is the version of an object, for `If-Match`, and is the same in every encoding.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

MIN_BYTES = 2048
_LEVEL = 1  # a fifth of the time of level 6, and a tenth more bytes
_GZIP = 16 + zlib.MAX_WBITS
_IN_THREAD_BYTES = 256 * 1024  # takes more than a millisecond


def compressed(application: Application) -> Application:
    """The application, whose answers are compressed for clients that ask for it."""

    async def answer(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _accepts_gzip(scope["headers"]):
            await application(scope, receive, _Compressor(send))
        else:
            await application(scope, receive, send)

    return answer


class _Compressor:
    """Holds the head of an answer back until its body shows whether it is compressed."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_json(message["headers"]):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            body = message.get("body", b"")
            if len(body) >= MIN_BYTES and not message.get("more_body", False):
                zipped = await _zipped(body)
                message = {**message, "body": zipped}
                head["headers"] = _encoded(head["headers"], len(zipped))
            await self._send(head)
        await self._send(message)


def _accepts_gzip(headers: list[tuple[bytes, bytes]]) -> bool:
    for name, value in headers:
        if name == b"accept-encoding" and b"gzip" in value.lower():
            offers = (offer.partition(b";") for offer in value.lower().split(b","))
            return any(
                coding.strip() == b"gzip" and weight.replace(b" ", b"") not in (b"q=0", b"q=0.0")
                for coding, _, weight in offers
            )
    return False


def _is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    kinds = dict(headers)
    return b"json" in kinds.get(b"content-type", b"") and b"content-encoding" not in kinds


async def _zipped(body: bytes) -> bytes:
    if len(body) < _IN_THREAD_BYTES:
        return _zip(body)
    return await asyncio.to_thread(_zip, body)


def _zip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP)
    return compressor.compress(body) + compressor.flush()


def _encoded(headers: list[tuple[bytes, bytes]], length: int) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name != b"content-length"]
    return [
        *kept,
        (b"content-length", str(length).encode()),
        (b"content-encoding", b"gzip"),
        (b"vary", b"Accept-Encoding"),
    ]
