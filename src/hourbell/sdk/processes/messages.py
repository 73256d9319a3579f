"""The messages between a worker and its processes: a length of four bytes, then msgpack."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from hourbell.model.executions import Outcome

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode


class Start(msgspec.Struct, frozen=True):
    """The first message to a process: what to import."""

    path: Sequence[str]  # sys.path of the worker
    main: str | None  # the file that is `__main__` in the worker
    modules: Sequence[str]  # with the task functions
    app_module: str
    app_variable: str
    url: str  # of the database
    logs: bool  # whether to configure logs as the command does
    traces: bool  # whether the worker has traces
    worker: str  # its name, for logs


class Call(msgspec.Struct, frozen=True, tag=True):
    """Run a task."""

    task: str
    payload: bytes  # JSON
    # The fields of Claimed, whose spec has a type that msgpack does not know.
    claimed: Sequence[Any]
    timeout_seconds: float
    checkpoint: bytes  # from an earlier run, as JSON; empty: none
    traceparent: str | None = None  # the span of the attempt; None: the worker has no traces


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to the oldest open question."""

    value: Any
    error: str | None = None  # the database could not be reached


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The run is asked to stop."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The app is imported; `error` has the traceback if that failed."""

    error: str | None = None


class Began(msgspec.Struct, frozen=True, tag=True):
    """The call has arrived. If the process dies from now on, the call may be the cause."""


class Question(msgspec.Struct, frozen=True, tag=True):
    """A question from a context to its worker."""

    what: str  # progress, checkpoint, stopping, token, wait, session
    value: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The function has returned or raised."""

    outcome: Outcome
    text: str = ""  # the traceback of an exception, or why a result cannot be sent


ToProcess = Call | Answer | Stop
FromProcess = Ready | Began | Question | Ended


def framed(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Receiver:
    """Reads messages of one kind."""

    def __init__(self, reader: asyncio.StreamReader, kind: object) -> None:
        self._reader = reader
        self._length: int | None = None  # of the next message, if already read
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)

    async def next(self) -> object:
        """The next message; EOFError if the other side has closed. Safe to cancel."""
        try:
            if self._length is None:
                prefix = await self._reader.readexactly(_LENGTH_BYTES)
                self._length = int.from_bytes(prefix, "big")
            body = await self._reader.readexactly(self._length)
            self._length = None
            return self._decoder.decode(body)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError from error
