"""Real processes for tests: started, listened to, stopped, continued and killed.

`child(role, dsn)` starts `child.py` in a role. A child says on its standard output, line by line,
what it has come to; a test waits for that. Whatever happens, no child outlives the block.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil

from integration.life.support import PATIENCE_SECONDS, eventually

TESTS = Path(__file__).parent.parent.parent


class Child:
    """A process that a test has started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

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
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().rstrip("\n")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

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

    async def ends(self) -> int:
        """Wait for its end; the status is negative if a signal ended it."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._process.wait()

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None


@contextlib.asynccontextmanager
async def child(
    role: str, dsn: str, *arguments: str, failpoints: str = "", path: Path | None = None
) -> AsyncIterator[Child]:
    """A child in a role; killed at the end of the block unless it has ended by then.

    `path`: a folder of packages that it uses in place of those of this process.
    """
    folders = [path, TESTS, os.environ.get("PYTHONPATH")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "integration.life.child",
        role,
        dsn,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
            "HOURBELL_FAILPOINTS": failpoints,
        },
    )
    started = Child(process)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await started.last_words()
