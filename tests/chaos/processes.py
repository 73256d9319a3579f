"""The processes of a run: real ones, started as an operator would start them, and broken as nobody would.

A `Process` is one place in the deployment, `worker-2`. The process in it may die; a supervisor, which every deployment has,
starts the next one. While a fault has a place in its hands, the supervisor leaves it alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

import services

START_SECONDS = 60.0
DRAIN_SECONDS = 40.0
_POLL_SECONDS = 0.05


class Process:
    """One place in the deployment, and the process that fills it now."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.supervised = True
        self._command = command
        self.environment = dict(environment)  # of whatever process fills it
        self._log = log
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    @property
    def is_alive(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def was_killed(self) -> bool:
        """Whether it has ended by kill -9, and not because it gave up."""
        return self._running is not None and self._running.poll() == -signal.SIGKILL

    @property
    def has_succeeded(self) -> bool:
        return self._running is not None and self._running.poll() == 0

    def start(self, **environment: str) -> None:
        """A process for this place; what is set here holds for this one only."""
        with self._log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command,
                env={**os.environ, **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """As by kill -9; also one that stands."""
        self.signal(signal.SIGKILL)
        await self.has_ended(START_SECONDS)

    async def terminate(self) -> None:
        """In order: it drains first. One that does not end is an error of the product, and the run's end."""
        self.signal(signal.SIGTERM)
        await self.has_ended(DRAIN_SECONDS)

    async def has_ended(self, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            while self.is_alive:
                await asyncio.sleep(_POLL_SECONDS)

    async def stands(self, seconds: float) -> bool:
        """Wait until it has stopped itself; False: it has not, so long."""
        for _ in range(int(seconds / _POLL_SECONDS)):
            if self.is_alive and psutil.Process(self.pid).status() == psutil.STATUS_STOPPED:
                return True
            await asyncio.sleep(_POLL_SECONDS)
        return False


async def supervise(processes: Sequence[Process]) -> None:
    """Restart whatever has ended, until it is cancelled."""
    while True:
        for process in processes:
            if process.supervised and not process.is_alive:
                process.start()
        await asyncio.sleep(_POLL_SECONDS)


def bent_clock(by: str | Path) -> dict[str, str]:
    """The environment of a process whose wall clock is off by so much, or by what a file says; durations stay true."""
    how = {"FAKETIME": by} if isinstance(by, str) else {"FAKETIME_TIMESTAMP_FILE": str(by)}
    return {
        "LD_PRELOAD": str(services.faketime()),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_NO_CACHE": "1",
        **how,
    }
