"""The target of the rig's webhooks: a process of its own, with bad moods, that writes down all it gets.

    python -m chaos.receiver --port N --log FILE --seed S

says `listening PORT` on its standard output as soon as it does (port 0 takes a free one). A webhook
goes to `/{job name}/{mood}`: so the job's own document decides how it is treated. See MOODS.

What it writes are lines of `history.Delivery`, two for each request: one when it arrives, before
anything else is done about it, and one when it is over. So a request that was in hand when the
receiver was killed is known too, by its first line. Both lines have the same execution, fence,
attempt and arrival; a reader joins them with `merged`. The second says how it went:

    status 200, answered_at …     the whole answer was handed to the network
    status 200, answered_at None  the head of an answer, then it broke off: the sender may take it for
                                  an answer, and does if the body is larger than it cares for
    status None                   not even a head. Of a receiver that was killed this is not certain:
                                  it may have answered and not come to its second line

What a mood does depends on nothing but the request and the seed, not on what came before: a receiver
that was killed and started again goes on as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from pathlib import Path

import msgspec
from aiohttp import web

from verify.history import Delivery, Log, Seconds, Stray

SLOW_SECONDS = 0.5
FLAKY_SHARE = 0.3
BYTE_SECONDS = 0.02  # between two bytes of a trickle
HUGE_BYTES = 20_000_000
PIECE = bytes(50_000)
PARTING_SECONDS = 0.1  # for requests that are in hand when we are told to stop

TRICKLED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
TRICKLED_BODY = b"ok\n"
BROKEN_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthis is not yet a thous"
GARBAGE = b"\x00\xff\x17 what is this? \r\n\r\n\x00" * 8


def merged(deliveries: Iterable[Delivery]) -> list[Delivery]:
    """One for each request, in the order of arrival: its last line, which knows the most."""
    last = {(one.execution_id, one.fence, one.attempt, one.at): one for one in deliveries}
    return sorted(last.values(), key=lambda one: one.at)


class Visit:
    """One request, and what becomes of it."""

    def __init__(self, request: web.Request, arrived: Delivery, seed: int) -> None:
        self._request = request
        self._arrived = arrived
        self._status: int | None = None
        self._answered_at: Seconds | None = None
        self.response = web.StreamResponse()  # the one that was sent, if it was not said raw
        self.attempt = arrived.attempt
        self.random = random.Random(
            f"{seed} {arrived.execution_id} {arrived.fence} {arrived.attempt}"
        )

    @property
    def outcome(self) -> Delivery:
        return msgspec.structs.replace(
            self._arrived, status=self._status, answered_at=self._answered_at
        )

    async def answer(self, status: int, **headers: str) -> None:
        await self.stream(status, [f"{status}\n".encode()], headers)

    async def stream(self, status: int, body: list[bytes], headers: dict[str, str]) -> None:
        self.response = web.StreamResponse(status=status, headers=headers)
        self.response.content_length = sum(map(len, body))
        await self.response.prepare(self._request)
        self._status = status
        for piece in body:
            await self.response.write(piece)
        await self.response.write_eof()
        self._answered_at = now()

    def say(self, raw: bytes) -> None:
        """Write to the connection itself, past all that makes sound HTTP of it."""
        if self._transport.is_closing():
            raise ConnectionResetError("the sender has gone away")
        self._transport.write(raw)

    def has_said(self, status: int, *, all_of_it: bool) -> None:
        """What was said raw amounts to this."""
        self._status = status
        self._answered_at = now() if all_of_it else None

    def hang_up(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        connection: socket.socket = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def _transport(self) -> asyncio.WriteTransport:
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the sender has gone away")
        assert isinstance(transport, asyncio.WriteTransport)
        return transport


async def well(visit: Visit) -> None:
    """200, at once."""
    await visit.answer(200)


async def slow(visit: Visit) -> None:
    """200 after up to half a second."""
    await asyncio.sleep(visit.random.uniform(0, SLOW_SECONDS))
    await visit.answer(200)


async def fails_once(visit: Visit) -> None:
    """500 on the first attempt, 200 on all others."""
    await visit.answer(500 if visit.attempt == 1 else 200)


async def fails(visit: Visit) -> None:
    """500, always."""
    await visit.answer(500)


async def flaky(visit: Visit) -> None:
    """500, or 503 with the wish to be left alone for a second, in three of ten cases; else 200."""
    if visit.random.random() >= FLAKY_SHARE:
        await visit.answer(200)
    elif visit.random.random() < 0.5:
        await visit.answer(500)
    else:
        await visit.answer(503, **{"Retry-After": "1"})


async def hangs(visit: Visit) -> None:
    """No answer for as long as the sender waits."""
    await asyncio.Event().wait()


async def resets(visit: Visit) -> None:
    """On the first attempt a reset in the middle of the answer, on all others 200."""
    if visit.attempt > 1:
        await visit.answer(200)
        return
    visit.say(BROKEN_ANSWER)
    visit.has_said(200, all_of_it=False)
    visit.reset()


async def trickles(visit: Visit) -> None:
    """200, a byte at a time, from the first letter on; takes more than a second."""
    for part in (TRICKLED_HEAD, TRICKLED_BODY):
        for byte in part:
            await asyncio.sleep(BYTE_SECONDS)
            visit.say(bytes([byte]))
        visit.has_said(200, all_of_it=part is TRICKLED_BODY)
    visit.hang_up()


async def huge(visit: Visit) -> None:
    """200 with a body of 20 MB."""
    await visit.stream(200, [PIECE] * (HUGE_BYTES // len(PIECE)), {})


async def garbage(visit: Visit) -> None:
    """Bytes that are no HTTP at all."""
    visit.say(GARBAGE)
    visit.hang_up()


# What the last part of a url may be. (That a job kills its worker is not for its target to decide.)
MOODS: dict[str, Callable[[Visit], Awaitable[None]]] = {
    "well": well,
    "slow": slow,
    "fails_once": fails_once,
    "fails": fails,
    "flaky": flaky,
    "hangs": hangs,
    "resets": resets,
    "trickles": trickles,
    "huge": huge,
    "garbage": garbage,
}


class Receiver:
    def __init__(self, log: Log, seed: int) -> None:
        self._log = log
        self._seed = seed

    async def receive(self, request: web.Request) -> web.StreamResponse:
        mood = MOODS.get(request.match_info["mood"])
        if mood is None:
            raise web.HTTPNotFound(text=f"The moods are {', '.join(MOODS)}.\n")
        try:
            arrived = _arrival(request)
        except (KeyError, ValueError) as error:
            self._log.add(Stray(at=now(), what=f"{request.path}: {error!r}"))
            raise web.HTTPBadRequest(text=f"This is no webhook of Hourbell's: {error}\n") from error
        self._log.add(arrived)
        visit = Visit(request, arrived, self._seed)
        try:
            await mood(visit)
        except ConnectionError:
            pass  # the sender did not wait for all of it
        finally:  # also when it went away, and this is cancelled
            self._log.add(visit.outcome)
        # All has been said. aiohttp asks for a response nevertheless; where it was said raw, the
        # connection is closed by now, and this one goes nowhere.
        return visit.response


def _arrival(request: web.Request) -> Delivery:
    headers = request.headers
    return Delivery(
        at=now(),
        execution_id=headers["Hourbell-Execution-Id"],
        job=request.match_info["job"],
        fence=int(headers["Hourbell-Fence-Token"]),
        attempt=int(headers["Hourbell-Attempt"]),
        scheduled_for=datetime.fromisoformat(headers["Hourbell-Scheduled-For"]).timestamp(),
        mood=request.match_info["mood"],
        answered_at=None,
        status=None,
    )


def now() -> Seconds:
    return time.time()


async def serve(port: int, log: Path, seed: int) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    application = web.Application()
    application.router.add_route("*", "/{job}/{mood}", Receiver(Log(log), seed).receive)
    runner = web.AppRunner(
        application, handler_cancellation=True, access_log=None, shutdown_timeout=PARTING_SECONDS
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    os.write(1, f"listening {runner.addresses[0][1]}\n".encode())
    await stopping.wait()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.receiver", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.port, arguments.log, arguments.seed))


if __name__ == "__main__":
    main()
