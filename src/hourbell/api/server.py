"""Serve the application on a port, in the event loop of the process.

Only parts of uvicorn are used: the composition root handles signals, and the port is bound before
anything else starts, so that a port in use is reported as such.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import sys

import uvicorn
from litestar import Litestar

from hourbell.api.compression import compressed
from hourbell.model.errors import ConfigurationError

BACKLOG = 2048
DRAIN_SECONDS = 10
IDLE_SECONDS = 30  # an idle connection is closed after this
UNREAD_SECONDS = 30  # and so is one whose peer does not read what was sent, such as an event


class ApiServer:
    """Serves an application from `start` to `stop`."""

    def __init__(self, app: Litestar, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._sockets: list[socket.socket] = []
        self._server = uvicorn.Server(
            uvicorn.Config(
                compressed(app),
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._ticking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The actual port, even if port 0 was requested."""
        number: int = self._sockets[0].getsockname()[1]
        return number

    async def start(self) -> None:
        """Start serving; raises ConfigurationError if the address cannot be bound."""
        self._sockets = await _bind(self._host, self._port)
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=self._sockets)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """Accept no more connections, drain open requests for DRAIN_SECONDS, then abort them."""
        if self._ticking is None:
            return
        self._ticking.cancel()
        self._ticking = None
        await self._server.shutdown(sockets=self._sockets)

    async def _tick(self) -> None:
        """Keep the Date header up to date."""
        while True:
            await self._server.on_tick(0)
            await asyncio.sleep(1)


async def _bind(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host, all on one port."""
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    with contextlib.ExitStack() as on_failure:
        try:
            found = await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                # asyncio disables Nagle's algorithm only for sockets with an explicit protocol.
                made = on_failure.enter_context(
                    socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
                )
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                # Accepted connections inherit this. Without it the kernel waits a quarter of an hour for a
                # peer that is gone, and forever for one that does not read.
                if sys.platform == "linux":
                    made.setsockopt(
                        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_SECONDS * 1000
                    )
                if family == socket.AF_INET6:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if bound:
                    port = bound[0].getsockname()[1]
                made.bind((address[0], port, *address[2:]))
                made.listen(BACKLOG)
                bound.append(made)
        except OSError as error:
            raise ConfigurationError(_bind_problem(host, port, error)) from error
        on_failure.pop_all()
    return bound


def _bind_problem(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} on {host} is in use by another program, so the API cannot listen "
            f"on it. Stop that program, or choose another port with HOURBELL_PORT."
        )
    if error.errno == errno.EACCES:
        return (
            f"This user is not allowed to bind port {port} on {host}. Choose a port above 1023 with "
            f"HOURBELL_PORT."
        )
    return (
        f"The API cannot listen on {host}, port {port}: {error.strerror or error}. "
        f"Set HOURBELL_HOST to an address of this machine, such as 127.0.0.1."
    )
