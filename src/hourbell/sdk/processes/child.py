"""The program of a task process: imports an app, then runs one call after another.

Functions run in the main thread, because only that thread can be interrupted by a signal. Another
thread has the socket to the worker, so that a context gets its answers, and the death of the worker
is noticed, while a function runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import importlib.util
import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import msgspec

from hourbell.actions import failed
from hourbell.dispatch import Wait
from hourbell.environment import hourbell_variables, value_of
from hourbell.errors import StoreUnavailable, Suspend
from hourbell.model.executions import (
    PAYLOAD_MISMATCH,
    Accepted,
    Claimed,
    Failed,
    Outcome,
    Succeeded,
)
from hourbell.observe.traces import current_traces
from hourbell.sdk.app import App
from hourbell.sdk.context import SyncContext, _current
from hourbell.sdk.outcomes import outcome_of
from hourbell.sdk.processes.messages import (
    Answer,
    Began,
    Call,
    Ended,
    Question,
    Ready,
    Receiver,
    Start,
    Stop,
    ToProcess,
    framed,
)
from hourbell.sdk.signature import Mismatch

_PR_SET_PDEATHSIG = 1


class Pipe:
    """The socket to the worker, in a thread with an event loop; acts as the worker for a context."""

    def __init__(self, connection: socket.socket, worker_pid: int) -> None:
        self.worker_pid = worker_pid
        self._connection = connection
        self._questions: deque[asyncio.Future[Any]] = deque()
        self._writer: asyncio.StreamWriter | None = None
        self._is_open = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.calls: SimpleQueue[Call] = SimpleQueue()
        self.context: SyncContext | None = None  # of the running call

    def open(self) -> None:
        threading.Thread(target=self._read, name="hourbell-pipe", daemon=True).start()
        self._is_open.wait()

    def send(self, message: msgspec.Struct) -> None:
        assert self.loop is not None
        assert self._writer is not None
        self.loop.call_soon_threadsafe(self._writer.write, framed(message))

    def _read(self) -> None:
        """Read until the worker is dead or no longer needs this process. Its children end with it."""
        try:
            with contextlib.suppress(EOFError):
                asyncio.run(self._run())
        finally:
            os.killpg(0, signal.SIGKILL)

    async def _run(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self.loop = asyncio.get_running_loop()
        self._is_open.set()
        messages = Receiver(reader, ToProcess)
        while True:
            message = await messages.next()
            match message:
                case Call():
                    # Sent before the function runs, not by `send`: it may kill this process at once.
                    self._writer.write(framed(Began()))
                    self.calls.put(message)
                case Answer():
                    self._answered(message)
                case Stop() if self.context is not None:
                    self.context._cancelled = True
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _answered(self, answer: Answer) -> None:
        asked = self._questions.popleft()
        if asked.done():
            return
        if answer.error is None:
            asked.set_result(answer.value)
        else:
            asked.set_exception(StoreUnavailable(answer.error))

    async def _ask(self, what: str, value: str = "") -> Any:
        asked: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions.append(asked)
        self.send(Question(what, value))
        return await asked

    def end_reports(self, context: SyncContext) -> None:
        """Ask nothing more for a call: the worker would take it for a question of the next one."""
        context._is_over = True
        if context._late is None and context._writing is None:
            return  # the common case

        async def end() -> None:
            context._end_reports()

        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(end(), self.loop).result()

    # What a context asks.

    @property
    def is_stopping(self) -> bool:
        assert self.loop is not None
        return bool(asyncio.run_coroutine_threadsafe(self._ask("stopping"), self.loop).result())

    def is_stopped(self, claimed: Claimed) -> bool:
        return False  # the worker reports it, and the context remembers it

    async def note_progress(self, claimed: Claimed, value: str) -> bool:
        return bool(await self._ask("progress", value))

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        return bool(await self._ask("checkpoint", value))

    async def wait_of(self, claimed: Claimed, name: str, waits: bool) -> Wait | None:
        found = await self._ask("wait" if waits else "token", name)
        return None if found is None else msgspec.convert(found, Wait)

    async def session_to_complete(self, claimed: Claimed) -> tuple[int, str] | None:
        found = await self._ask("session")
        return None if found is None else (int(found[0]), str(found[1]))


def main() -> None:
    worker_pid = os.getppid()
    _die_with_worker(int(sys.argv[2]))
    faulthandler.register(signal.SIGUSR1)
    connection = socket.socket(fileno=int(sys.argv[1]))
    start = _first_message(connection)
    pipe = Pipe(connection, worker_pid)
    pipe.open()
    try:
        app = _imported(start)
    except BaseException:
        pipe.send(Ready(traceback.format_exc()))
        threading.Event().wait()  # until the worker closes the socket
        raise
    signal.signal(signal.SIGTERM, partial(_stop, pipe))
    pipe.send(Ready())
    while True:
        call = pipe.calls.get()
        outcome, text = _run(app, call, pipe)
        context, pipe.context = pipe.context, None
        if context is not None:
            pipe.end_reports(context)
        pipe.send(Ended(outcome, text))


def _run(app: App, call: Call, pipe: Pipe) -> tuple[Outcome, str]:
    """Run one call; return its outcome, and the text that `Ended` has with it."""
    task = app.tasks.get(call.task)
    if task is None:
        return Failed(
            f"A task process has imported app {app.name!r} but not its task {call.task!r}. Add "
            f"the module that declares or includes the task to App(imports=…).",
            "unknown_task",
        ), ""
    context = SyncContext(
        Claimed(*call.claimed),
        task.name,
        call.timeout_seconds,
        app.state,
        pipe,
        pipe.loop,
        msgspec.Raw(call.checkpoint),
    )
    pipe.context = context
    token = _current.set(context)
    try:
        found = task._signature.arguments(msgspec.json.decode(call.payload))
        args = (context, *found.args) if task.takes_context else found.args
        with _within(call.traceparent):
            result = task._signature.storable(task.fn(*args, **found.kwargs))
        return _sendable(result)
    except Mismatch as error:  # this process has imported another version than its worker
        return Failed(str(error), PAYLOAD_MISMATCH), ""
    except Suspend as waits:
        return Accepted(waits.token_digest, waits.seconds), ""
    except asyncio.CancelledError as error:
        return failed(error), ""
    except BaseException as error:
        return outcome_of(error, task, context.log), traceback.format_exc()
    finally:
        _current.reset(token)


def _within(traceparent: str | None) -> AbstractContextManager[None]:
    """Make the attempt's span in the worker the parent of what runs here."""
    if traceparent is None or current_traces() is None:
        return contextlib.nullcontext()
    from hourbell.observe.spans import remote_parent

    return remote_parent(traceparent)


def _sendable(result: object) -> tuple[Outcome, str]:
    """The success, or why its result cannot be sent: the run is not repeated because of that."""
    try:
        framed(Ended(Succeeded(result)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Succeeded(), f"{type(error).__name__}: {error}"
    return Succeeded(result), ""


def _stop(pipe: Pipe, number: int, frame: FrameType | None) -> None:
    """Interrupt the function, so that it can clean up.

    Only if the worker asked for it: a process manager may send SIGTERM to all processes of a service
    while the worker waits for running tasks to end. The kernel sends it when the worker is dead.
    """
    if os.getppid() != pipe.worker_pid:
        os.killpg(0, signal.SIGKILL)
    if pipe.context is not None and pipe.context.cancelled:
        raise asyncio.CancelledError("the run was asked to stop")


def _imported(start: Start) -> App:
    sys.path[:] = start.path
    if start.logs:
        import structlog

        from hourbell.observe.logs import configure_logs

        configure_logs(value_of("HOURBELL_LOG_LEVEL", hourbell_variables(os.environ)) or "info")
        structlog.contextvars.bind_contextvars(worker=start.worker)
    if start.main is not None:
        _import_main(start.main)
    for name in start.modules:
        importlib.import_module(name)
    app: App = getattr(importlib.import_module(start.app_module), start.app_variable)
    app.url = start.url
    if app.imports:
        # As in the worker: a module listed only in `imports` may include a task set.
        from hourbell.sdk.running import import_tasks

        import_tasks(app)
    if start.traces:
        from hourbell.observe.exporting import configure_traces

        configure_traces(os.environ)
    return app


def _import_main(file: str) -> None:
    """Import the worker's script; code below `if __name__ == "__main__"` does not run."""
    spec = importlib.util.spec_from_file_location("__mp_main__", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)


def _first_message(connection: socket.socket) -> Start:
    with connection.makefile("rb", buffering=0) as stream:
        length = int.from_bytes(_exactly(stream, 4), "big")
        return msgspec.msgpack.decode(_exactly(stream, length), type=Start)


def _exactly(stream: Any, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = stream.read(size - len(parts))
        if not part:
            sys.exit(1)  # the worker is dead
        parts += part
    return parts


def _die_with_worker(lifeline: int) -> None:
    """Ask the kernel to kill this process and its children together with the worker. Linux only.

    The worker holds the other end of the pipe `lifeline`. When that closes, the kernel sends SIGKILL to
    the process group, even if this process is stopped or does not return from C code. Another
    process forked by the worker may hold that end too. SIGTERM on the death of the worker itself
    covers that case; SIGKILL instead would arrive first and leave the children alive.
    """
    os.set_inheritable(lifeline, False)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    main()
