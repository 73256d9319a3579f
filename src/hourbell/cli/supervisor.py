"""`hourbell worker --processes N` and `--reload`: a process that starts and restarts workers.

It has no event loop and no sockets and does not import the app, so that nothing in a worker can
take it down. Each worker is a new interpreter with its own session.

The supervisor stops workers through a pipe, not by signals: a terminal or a process manager may
signal all processes, and a worker treats a second signal as a request to stop immediately. A worker
whose supervisor dies reads the end of the pipe and drains.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from hourbell.cli.exit_codes import DONE, REFUSED

log = structlog.get_logger(component="process")

MAX_DEATHS = 5  # within a minute; then the supervisor gives up
DEATHS_SECONDS = 60.0
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 10.0
STOP_SECONDS = 30.0  # for workers to exit, in addition to their drain
WATCH_SECONDS = 0.5
MAX_WATCHED = 10_000
_UNWATCHED = {"node_modules", "site-packages", "__pycache__"}


def restart_delay(deaths: int) -> float:
    """Seconds before a worker is restarted, after this many deaths within a minute."""
    return float(min(FIRST_DELAY_SECONDS * 2 ** (deaths - 1), LONGEST_DELAY_SECONDS))


class Worker:
    """One worker process, and the pipe that stops it."""

    def __init__(self, command: Sequence[str]) -> None:
        control, self._write = os.pipe()
        try:
            # Its own process group: Ctrl-C in a terminal is meant for the supervisor.
            self.process = subprocess.Popen(
                [*command, "--control", str(control)], pass_fds=[control], start_new_session=True
            )
        finally:
            os.close(control)

    def stop(self) -> None:
        """Drain; when called again, stop immediately."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, b"s")

    def close(self) -> None:
        os.close(self._write)

    @property
    def end(self) -> str:
        code = self.process.returncode
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


class Supervisor:
    """Keeps a worker running for each command."""

    def __init__(self, commands: Sequence[Sequence[str]], drain_seconds: float) -> None:
        self._commands = list(commands)
        self._drain_seconds = drain_seconds
        self._workers: dict[int, Worker] = {}  # by the position of their command
        self._start_at: dict[int, float] = {place: 0.0 for place in range(len(commands))}
        self._deaths: deque[float] = deque()
        self._kill_at: float | None = None  # set while stopping: when remaining workers are killed
        self._code = DONE

    def run(self) -> int:
        """Run until a signal or too many deaths; return the exit code."""
        with _signals() as signals:
            while True:
                self._start_due(time.monotonic())
                if not self._workers and not self._start_at:
                    return self._code
                for number in _next_signals(signals, self._wait_seconds(time.monotonic())):
                    self._on_signal(number)
                self._note_ends(time.monotonic())

    def _on_signal(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._stop()
        elif number in (signal.SIGUSR1, signal.SIGUSR2):
            for worker in self._workers.values():
                worker.process.send_signal(number)

    def _stop(self) -> None:
        self._start_at.clear()
        self._kill_at = time.monotonic() + self._drain_seconds + STOP_SECONDS
        for worker in self._workers.values():
            worker.stop()

    def _start_due(self, now: float) -> None:
        for place in [each for each, at in self._start_at.items() if at <= now]:
            del self._start_at[place]
            self._workers[place] = Worker(self._commands[place])

    def _wait_seconds(self, now: float) -> float | None:
        moments = [*self._start_at.values(), *([] if self._kill_at is None else [self._kill_at])]
        return max(min(moments) - now, 0.0) if moments else None

    def _note_ends(self, now: float) -> None:
        for place, worker in list(self._workers.items()):
            if worker.process.poll() is None:
                if self._kill_at is not None and now >= self._kill_at:
                    log.error("worker process did not stop, killed", pid=worker.process.pid)
                    worker.process.kill()
                    worker.process.wait()
                else:
                    continue
            del self._workers[place]
            worker.close()
            if self._kill_at is None:
                self._note_death(place, worker, now)

    def _note_death(self, place: int, worker: Worker, now: float) -> None:
        self._deaths.append(now)
        while self._deaths[0] <= now - DEATHS_SECONDS:
            self._deaths.popleft()
        deaths, pid = len(self._deaths), worker.process.pid
        if deaths >= MAX_DEATHS:
            log.error("worker processes die too often", pid=pid, how=worker.end, deaths=deaths)
            self._code = REFUSED
            self._stop()
            return
        delay = restart_delay(deaths)
        log.error("worker process died", pid=pid, how=worker.end, restart_in_seconds=delay)
        self._start_at[place] = now + delay


class Reloader:
    """Runs a worker, and restarts it whenever a file changes."""

    def __init__(self, command: Sequence[str], folder: Path, drain_seconds: float) -> None:
        self._command = command
        self._folder = folder
        self._drain_seconds = drain_seconds

    def run(self) -> int:
        """Run until a signal; return the exit code."""
        with _signals() as signals:
            while True:
                before = modified(self._folder)
                worker = Worker(self._command)
                stopped = self._wait_for_change(signals, before, worker)
                self._end(worker)
                if stopped:
                    return DONE

    def _wait_for_change(self, signals: int, before: dict[str, int], worker: Worker) -> bool:
        """Wait until a file changes; True if a signal came first."""
        has_ended = False
        while True:
            for number in _next_signals(signals, WATCH_SECONDS):
                if number in (signal.SIGTERM, signal.SIGINT):
                    return True
            if not has_ended and worker.process.poll() is not None:
                has_ended = True
                log.error("worker process ended, waiting for a change", how=worker.end)
            changed = changes(before, modified(self._folder))
            if changed:
                log.info("reloading", changed=changed[:5])
                return False

    def _end(self, worker: Worker) -> None:
        worker.stop()
        try:
            worker.process.wait(self._drain_seconds + STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker.close()


def modified(folder: Path) -> dict[str, int]:
    """When the Python files in a folder were last modified, by name; without installed packages
    and hidden folders."""
    found: dict[str, int] = {}
    for root, folders, names in os.walk(folder):
        inside = Path(root)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in _UNWATCHED
            and not (inside / name / "pyvenv.cfg").exists()
        ]
        for name in names:
            if name.endswith(".py") and len(found) < MAX_WATCHED:
                with contextlib.suppress(FileNotFoundError):
                    found[str(inside / name)] = (inside / name).stat().st_mtime_ns
    return found


def changes(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Files that were added, changed or removed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


# Signal numbers, to be read from a pipe.


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    woken = signal.set_wakeup_fd(write)
    try:
        yield read
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


def _next_signals(signals: int, seconds: float | None) -> bytes:
    """The signals received within this time."""
    ready, _, _ = select.select([signals], [], [], seconds)
    return os.read(signals, 100) if ready else b""
