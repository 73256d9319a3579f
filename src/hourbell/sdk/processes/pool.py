"""The processes of a worker: started when none is idle, and killed together with what they run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, BinaryIO

import msgspec
import structlog

from hourbell.actions import Run
from hourbell.errors import Cancel, ConfigurationError, Snooze, Suspend
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import (
    Accepted,
    Cancelled,
    Failed,
    Outcome,
    Snoozed,
    Succeeded,
    Unsendable,
)
from hourbell.observe.traces import current_traces
from hourbell.sdk.app import App
from hourbell.sdk.outcomes import ProcessDied, ProcessTaskFailed
from hourbell.sdk.processes.messages import (
    Answer,
    Began,
    Call,
    Ended,
    FromProcess,
    Question,
    Ready,
    Receiver,
    Start,
    Stop,
    framed,
)

log = structlog.get_logger(component="tasks")

START_SECONDS = 60.0  # for a process to import the app
STOP_SECONDS = 3.0  # for a function to clean up; shorter than the watchdog's grace
_LAST_SECONDS = 0.5  # the same, when the worker itself is about to exit
_KILLED_SECONDS = 5.0  # for the kernel to end a killed process

Answering = Callable[[Question], Awaitable[Any]]


class _NotStarted(Exception):
    """The process was dead before it got the call."""


class Process:
    """One task process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        lifeline: BinaryIO,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._lifeline = lifeline  # a pipe; when it closes, the kernel kills the process group
        self._messages = Receiver(reader, FromProcess)
        self._reader = reader
        self._writer = writer
        self.calls = 0

    @classmethod
    async def start(cls, start: Start) -> Process:
        """Start a process and wait until it has imported the app; raises ProcessTaskFailed."""
        ours, theirs = socket.socketpair()
        watched, lifeline = _pipe()
        with theirs, watched:
            fds = [theirs.fileno(), watched.fileno()]
            # In the thread of the loop: the kernel signals the process when that thread ends.
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "hourbell.sdk.processes.child", *map(str, fds)],
                pass_fds=fds,
                start_new_session=True,  # Ctrl-C is for the worker; its processes are killed with it
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        made = cls(process, lifeline, reader, writer)
        try:
            writer.write(framed(start))
            async with asyncio.timeout(START_SECONDS):
                ready = await made._messages.next()
        except (EOFError, TimeoutError) as error:
            await made.kill()
            raise ProcessTaskFailed(
                Failed(f"A task process did not start: {made.end}.", "process_start")
            ) from error
        except BaseException:
            made.destroy()
            raise
        assert isinstance(ready, Ready)
        if ready.error is not None:
            await made.kill()
            raise ProcessTaskFailed(
                Failed(f"A task process cannot import the app. {ready.error}", "process_start")
            )
        return made

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None and not self._reader.at_eof()

    @property
    def end(self) -> str:
        """How it ended, for people."""
        code = self._process.poll()
        if code is None:
            return "it does not respond"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"it exited with status {code}"

    def may_call(self, max_calls: int | None) -> bool:
        """Whether it has made fewer calls than this; None: as many as there are."""
        return max_calls is None or self.calls < max_calls

    async def call(self, call: Call, answer: Answering) -> Ended:
        """Run a call; raises ProcessDied, or _NotStarted if the process was already dead."""
        has_begun = False
        self.calls += 1
        self._writer.write(framed(call))
        try:
            while True:
                message = await self._messages.next()
                match message:
                    case Began():
                        has_begun = True
                    case Question():
                        self._writer.write(framed(await _answered(message, answer)))
                    case Ended():
                        return message
        except EOFError:
            self._kill_group()  # before it is reaped, while its pid is still its own
            await self._gone()
            raise ProcessDied(self.end) if has_begun else _NotStarted from None

    async def stop(self, seconds: float) -> None:
        """Interrupt what it runs; kill it if it has not ended after this time."""
        with contextlib.suppress(TimeoutError, EOFError):
            self._writer.write(framed(Stop()))
            async with asyncio.timeout(seconds):
                while not isinstance(await self._messages.next(), Ended):
                    pass  # a question; its answer would come too late
        await self.kill()

    async def kill(self) -> None:
        self._kill_group()
        await self._gone()
        self._close()

    def report(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def destroy(self) -> None:
        """Kill it, waiting only for the kernel."""
        self._kill_group()
        self._close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILLED_SECONDS)

    def _close(self) -> None:
        self._writer.close()
        self._lifeline.close()

    def _kill_group(self) -> None:
        """Kill it together with its children."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _gone(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _KILLED_SECONDS)


def _pipe() -> tuple[BinaryIO, BinaryIO]:
    """The ends of a pipe, closed when garbage-collected."""
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


async def _answered(question: Question, answer: Answering) -> Answer:
    try:
        return Answer(await answer(question))
    except StoreUnavailable as error:
        return Answer(None, error.message)


class ProcessPool:
    """At most `size` processes, each running one call at a time."""

    def __init__(self, app: App, size: int, worker: str) -> None:
        self._app = app
        self._worker = worker  # its name
        self._places = asyncio.Semaphore(size)
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._start: Start | None = None

    async def run(
        self,
        call: Callable[[], Call],
        answer: Answering,
        is_last_moment: Callable[[], bool],
        max_calls: int | None,
    ) -> Any:
        """Run a call when a process is free; `call` is invoked when it can start.

        A process that has made `max_calls` calls, of any tasks, does not run it, and is replaced.
        Raises what the function raised, as far as it can be reconstructed, or ProcessDied. On
        cancellation, the function is interrupted and its process killed before this returns.
        """
        async with self._places:
            while True:
                process = await self._process(max_calls)
                try:
                    ended = await process.call(call(), answer)
                except _NotStarted:
                    self._forget(process)
                    continue
                except asyncio.CancelledError:
                    seconds = _LAST_SECONDS if is_last_moment() else STOP_SECONDS
                    await _whatever_happens(process.stop(seconds))
                    self._all.discard(process)
                    raise
                except BaseException:
                    self._all.discard(process)
                    await process.kill()
                    raise
                if process.may_call(max_calls):
                    self._idle.append(process)
                else:
                    await self._retire(process)
                return _result(ended)

    def report(self) -> None:
        """Make each process write the stacks of its threads to stderr."""
        for process in self._all - set(self._idle):
            process.report()

    def close(self) -> None:
        """Kill all processes."""
        for process in self._all:
            process.destroy()
        self._all.clear()
        self._idle.clear()

    def _forget(self, process: Process) -> None:
        log.warning("idle task process died", how=process.end)
        self._all.discard(process)
        process.destroy()

    async def _retire(self, process: Process) -> None:
        """End a process that has made its calls."""
        self._all.discard(process)
        await _whatever_happens(process.kill())

    async def _process(self, max_calls: int | None) -> Process:
        while self._idle:
            process = self._idle.pop()
            if not process.is_alive:
                self._forget(process)
            elif process.may_call(max_calls):
                return process
            else:
                await self._retire(process)
        if self._start is None:
            self._start = start_of(self._app, self._worker)
        process = await Process.start(self._start)
        self._all.add(process)
        return process


async def _whatever_happens(stopping: Coroutine[Any, Any, None]) -> None:
    """Wait for it even if this is cancelled again: the watchdog repeats itself."""
    task = asyncio.ensure_future(stopping)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)


def _result(ended: Ended) -> Any:
    """What the function returned; raises what it raised."""
    outcome: Outcome = ended.outcome
    if isinstance(outcome, Succeeded):
        return Unsendable(ended.text) if ended.text else outcome.result
    if isinstance(outcome, Snoozed):
        raise Snooze(outcome.delay_seconds)
    if isinstance(outcome, Cancelled):
        raise Cancel(outcome.why or "")
    if isinstance(outcome, Accepted):
        raise Suspend(outcome.token_digest, outcome.within_seconds)
    assert isinstance(outcome, Failed)
    error = ProcessTaskFailed(outcome)
    error.add_note(ended.text)
    raise error


def start_of(app: App, worker: str) -> Start:
    """What a process must import to run an app's tasks; raises ConfigurationError."""
    module, variable = _place_of(app)
    modules = {task.fn.__module__ for task in app.tasks.values() if task.options.process}
    is_main = "__main__" in (module, *modules)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    file = getattr(main, "__file__", None) if is_main else None
    if is_main and spec is not None:  # python -m: it has a name
        module, modules, file = _renamed(module, modules, spec.name)
    elif is_main and file is None:
        raise ConfigurationError(
            "Tasks with process=True are declared in an interactive session, which another process "
            "cannot import. Move them to a module."
        )
    assert app._opened is not None
    return Start(
        path=[os.getcwd() if entry == "" else entry for entry in sys.path],
        main=None if file is None else os.path.abspath(file),
        modules=sorted(modules),
        app_module=module,
        app_variable=variable,
        url=app._opened.database.dsn,
        logs=structlog.is_configured(),
        traces=current_traces() is not None,
        worker=worker,
    )


def _renamed(module: str, modules: set[str], name: str) -> tuple[str, set[str], None]:
    real = {"__main__": name}
    return real.get(module, module), {real.get(each, each) for each in modules}, None


def _place_of(app: App) -> tuple[str, str]:
    """The module and the variable of an app."""
    found = [
        (name, variable)
        for name, module in list(sys.modules.items())
        for variable, value in list(getattr(module, "__dict__", {}).items())
        if value is app
    ]
    if not found:
        raise ConfigurationError(
            f"App {app.name!r} is not a module-level variable, so another process cannot import it, "
            f"as tasks with process=True require."
        )
    functions = {task.fn.__module__ for task in app.tasks.values()}
    # Prefer a module with its own tasks; a script comes last, because it is imported twice.
    return min(found, key=lambda each: (each[0] == "__main__", each[0] not in functions))


def call_of(task: str, payload: Any, run: Run, timeout_seconds: float) -> Call:
    """The call of one attempt."""
    return Call(
        task,
        msgspec.json.encode({} if payload is None else payload),
        msgspec.structs.astuple(run.claimed),
        timeout_seconds,
        bytes(run.spec.checkpoint),
        None if run.span is None else run.span.traceparent,
    )
