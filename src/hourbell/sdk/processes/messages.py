"""What a worker and its processes send each other: a length of four bytes, and msgpack."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from hourbell.model.executions import Outcome

_LENGTH_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode


class Start(msgspec.Struct, frozen=True):
    """The first message to a process: what it has to import."""

    path: Sequence[str]  # sys.path of the worker
    main: str | None  # the file that is `__main__` in the worker
    modules: Sequence[str]  # with the functions of tasks
    app_module: str
    app_variable: str
    url: str  # of the database
    logs: bool  # whether logs are configured as those of the command
    traces: bool  # whether the worker has traces
    worker: str  # its name, for logs


class Call(msgspec.Struct, frozen=True, tag=True):
    """Run a task."""

    task: str
    payload: bytes  # JSON
    claimed: Sequence[Any]  # the fields of Claimed, whose spec has a type that msgpack cannot have
    timeout_seconds: float
    checkpoint: bytes  # of an earlier run, as JSON; empty: none
    traceparent: str | None = None  # the span of the attempt; None: the worker has no traces


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to the oldest question that has none."""

    value: Any
    error: str | None = None  # the database could not be asked


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The run is asked to stop."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The app is imported; `error` has the traceback if it could not be."""

    error: str | None = None


class Began(msgspec.Struct, frozen=True, tag=True):
    """The call has arrived. If the process dies from here on, the call may be the reason."""


class Question(msgspec.Struct, frozen=True, tag=True):
    """Something that a context asks of its worker."""

    what: str  # progress, checkpoint, stopping, token, wait, session
    value: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The function has returned or raised."""

    outcome: Outcome
    traceback: str = ""


ToProcess = Call | Answer | Stop
FromProcess = Ready | Began | Question | Ended


def framed(message: msgspec.Struct) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Receiver:
    """Reads messages of one kind."""

    def __init__(self, reader: asyncio.StreamReader, kind: object) -> None:
        self._reader = reader
        self._length: int | None = None  # of the next message, if that was already read
        self._decoder: msgspec.msgpack.Decoder[object] = msgspec.msgpack.Decoder(kind)

    async def next(self) -> object:
        """The next message; EOFError if the other side has ended. It may be cancelled."""
        try:
            if self._length is None:
                prefix = await self._reader.readexactly(_LENGTH_BYTES)
                self._length = int.from_bytes(prefix, "big")
            body = await self._reader.readexactly(self._length)
            self._length = None
            return self._decoder.decode(body)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError from error
