"""Real processes for tests: started, listened to, stopped, continued and killed.

`child(role, dsn)` starts `child.py` in a role. A child says on its standard output, line by line,
what it has come to; a test waits for that. Whatever happens, no child outlives the block.

Importing the product takes longer than most children live. So one process imports it, once for all tests, and forks the
children (`serve` in `child.py`): each is a process of its own, with its own loop and connections.
"""

import asyncio
import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import psutil

from integration.life.support import PATIENCE_SECONDS, eventually

TESTS = Path(__file__).parent.parent.parent


class Child:
    """A process that a test has started."""

    def __init__(self, pid: int, output: asyncio.StreamReader, end: asyncio.Task[int]) -> None:
        self.pid = pid
        self._output = output
        self._end = end

    async def says(self, word: str) -> str:
        """Wait for a line that begins with this word; returns the rest of it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := await self._line():
                first, _, rest = line.partition(" ")
                if first == word:
                    return rest
        raise AssertionError(f"the child ended without saying {word!r}")

    async def last_words(self) -> list[str]:
        """Everything that it still says until it ends."""
        lines = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while line := await self._line():
                lines.append(line)
        return lines

    async def _line(self) -> str:
        return (await self._output.readline()).decode().rstrip("\n")

    def signal(self, number: int) -> None:
        if not self.has_ended:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    async def is_stopped(self) -> None:
        """Wait until it stands, by SIGSTOP."""

        async def stopped() -> bool:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED

        await eventually(stopped)

    async def stop(self) -> None:
        self.signal(signal.SIGSTOP)
        await self.is_stopped()

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        await self.ends()

    async def ends(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for its end; the status is negative if a signal ended it."""
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._end)

    @property
    def has_ended(self) -> bool:
        return self._end.done()


@contextlib.asynccontextmanager
async def child(
    role: str, dsn: str, *arguments: str, failpoints: str = "", path: Path | None = None
) -> AsyncIterator[Child]:
    """A child in a role; killed at the end of the block unless it has ended by then.

    `path`: a folder of packages that it uses in place of those of this process.
    """
    output, output_of_child = socket.socketpair()
    fate, fate_of_child = socket.socketpair()
    request = {
        "arguments": [role, dsn, *arguments],
        "environment": os.environ | {"HOURBELL_FAILPOINTS": failpoints},
    }
    with output_of_child, fate_of_child:
        descriptors = [output_of_child.fileno(), fate_of_child.fileno()]
        socket.send_fds(_fork_server(path), [json.dumps(request).encode()], descriptors)
    lines, output_writer = await asyncio.open_connection(sock=output)
    news, fate_writer = await asyncio.open_connection(sock=fate)
    pid = await _number(news)
    started = Child(pid, lines, asyncio.create_task(_number(news)))
    try:
        yield started
    finally:
        started.signal(signal.SIGKILL)
        await started.ends()
        await started.last_words()
        output_writer.close()
        fate_writer.close()


async def _number(news: asyncio.StreamReader) -> int:
    return int(await news.readline())


@cache
def _fork_server(path: Path | None) -> socket.socket:
    """The process that forks children, which ends with this one."""
    folders = [path, TESTS, os.environ.get("PYTHONPATH")]
    requests, requests_of_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with requests_of_server:
        number = requests_of_server.fileno()
        server = subprocess.Popen(
            [sys.executable, "-m", "integration.life.child", "serve", str(number)],
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder)},
        )

    def end() -> None:
        requests.close()
        server.wait()

    atexit.register(end)
    return requests
