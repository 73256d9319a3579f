"""A TCP proxy that breaks connections, one mode at a time, on command and as exactly as TCP allows.

Every process of the rig reaches every other through a proxy of its own, which lives in the rig's
process. What it does to the bytes is its mode:

    Pass             nothing is done to them
    Refuse           nobody listens, as if the other side were down; what was connected is reset
    Blackhole        all bytes are swallowed; connections stay open, and new ones are taken
    OneWay           the same for one of the two directions
    Reset            all connections are reset, once; then Pass
    Delay            every chunk waits for a random time; the order is kept
    Trickle          a few bytes at a time
    CutAfterCommit   a COMMIT reaches the server, and its answer nobody: the client gets a reset

**A link** is a client's connection with the one to the target that belongs to it. Each direction is
pumped by a task that holds one chunk at most, so a slow reader slows its writer down, as it would
without us. An end of one direction is passed on as the end of that direction, a reset as a reset of
both; both wait behind the bytes before them.

**A hole.** Where bytes are swallowed, so are ends and resets: the network is gone, and who is behind
it cannot tell. A link that has lost something has a hole, and can never go on: when the mode
changes it is reset, but from one blackhole to the next. A link that was idle all the while lost
nothing and lives on, as it would in a network that comes back.

**The cut.** `wire` tells when a commit has been said in full. From before its last byte is sent on,
no answer goes to the client. When all of it is sent, the client is reset, while the server sees an
ordinary end behind the commit: a reset might overtake what it has not read. The server then decides
alone; the cut counts what was asked for, also if the server says no.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from typing import Literal, Self

import msgspec

from chaos.wire import Conversation, Passed

Direction = Literal["requests", "answers"]  # from the client to the target, and back

CHUNK_BYTES = 64 * 1024
BACKLOG = 256
MAX_LINKS = 2000  # more are reset at once
CONNECT_SECONDS = 10.0
FAREWELL_SECONDS = 60.0  # a server that was cut off from its client may take so long to end
OUT_OF_DESCRIPTORS_SECONDS = 0.1


class Mode(msgspec.Struct, frozen=True, kw_only=True, tag_field="mode"):
    """What a proxy does; also what the rig writes down of it."""


class Pass(Mode, frozen=True, kw_only=True, tag="pass"):
    """Every byte goes its way."""


class Refuse(Mode, frozen=True, kw_only=True, tag="refuse"):
    """Nobody listens, and all connections are reset."""


class Blackhole(Mode, frozen=True, kw_only=True, tag="blackhole"):
    """Nothing comes through in either direction, and nobody is told."""


class OneWay(Mode, frozen=True, kw_only=True, tag="one_way"):
    """Nothing comes through in one direction."""

    lost: Direction = "answers"


class Reset(Mode, frozen=True, kw_only=True, tag="reset"):
    """All connections are reset, once."""


class Delay(Mode, frozen=True, kw_only=True, tag="delay"):
    """Each chunk is held back for up to so many milliseconds."""

    most_ms: float
    seed: int


class Trickle(Mode, frozen=True, kw_only=True, tag="trickle"):
    """A few bytes at a time, with a pause before each lot."""

    piece_bytes: int = 8
    pause_ms: float = 10.0


class CutAfterCommit(Mode, frozen=True, kw_only=True, tag="cut_after_commit"):
    """So many commits lose their answers; then Pass."""

    cuts: int = 1
    any_sync: bool = False  # also statements that commit by themselves


AnyMode = Pass | Refuse | Blackhole | OneWay | Reset | Delay | Trickle | CutAfterCommit


class _Cuts:
    """The cuts of one switch to CutAfterCommit: as many are made, by whichever links commit first."""

    def __init__(self, cuts: int, *, any_sync: bool) -> None:
        self.to_make = cuts
        self._to_promise = cuts
        self._any_sync = any_sync

    def promise(self, passed: Passed) -> bool:
        wanted = passed is Passed.COMMIT or self._any_sync
        if not wanted or self._to_promise == 0:
            return False
        self._to_promise -= 1
        return True

    def give_back(self) -> None:
        """A link that had this promise has ended before its commit was sent."""
        self._to_promise += 1


class Proxy:
    """Listens on a port of its own at 127.0.0.1 for one target."""

    def __init__(self, name: str, target_host: str, target_port: int) -> None:
        self.name = name
        self.cuts = 0  # answers of commits that were cut off, in all
        self._target = (target_host, target_port)
        self._mode: AnyMode = Pass()
        self._changed = asyncio.Event()  # set when the mode changes, and then replaced
        self._random = random.Random()
        self._cuts_left = _Cuts(0, any_sync=False)
        # Holds the port while nobody listens on it, so that nobody else gets it.
        self._reservation = _bound_socket(0)
        self.port: int = self._reservation.getsockname()[1]
        self._listener: socket.socket | None = None
        self._links: dict[asyncio.Task[None], _Link] = {}
        self._bugs: list[BaseException] = []

    @classmethod
    async def open(cls, name: str, target_host: str, target_port: int) -> Self:
        """A proxy before this target. A host that begins with / is the folder of PostgreSQL's unix socket."""
        proxy = cls(name, target_host, target_port)
        proxy._listen()
        return proxy

    @property
    def mode(self) -> AnyMode:
        return self._mode

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self._links)

    @property
    def holes(self) -> int:
        """How many of them have lost something."""
        return sum(link.has_hole for link in self._links.values())

    def retarget(self, host: str, port: int) -> None:
        """Connections that come from now on go there."""
        self._target = (host, port)

    async def switch(self, mode: AnyMode) -> None:
        """Go over to this mode. When it returns, all that had to be reset has been."""
        self._mode = Pass() if isinstance(mode, Reset) else mode
        match mode:
            case Delay(seed=seed):
                self._random = random.Random(seed)
            case CutAfterCommit(cuts=cuts, any_sync=any_sync):
                self._cuts_left = _Cuts(cuts, any_sync=any_sync)
        self._changed.set()
        self._changed = asyncio.Event()
        if isinstance(mode, Refuse):
            self._stop_listening()
        elif self._listener is None:
            self._listen()
        if isinstance(mode, Refuse | Reset):
            await self._reset(list(self._links))
        elif not isinstance(mode, Blackhole):
            await self._reset([task for task, link in self._links.items() if link.has_hole])

    async def close(self) -> None:
        """Reset what is connected and give the port back; tells of mistakes of the proxy itself."""
        self._stop_listening()
        self._reservation.close()
        await self._reset(list(self._links))
        if self._bugs:
            raise BaseExceptionGroup(f"mistakes of the proxy {self.name}", self._bugs)

    async def _reset(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- taking connections

    def _listen(self) -> None:
        self._listener = _bound_socket(self.port)
        self._listener.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone away again
        except OSError:
            self._rest()
            return
        if len(self._links) >= MAX_LINKS:
            _close_with_reset(client)
            return
        link = _Link(self, client)
        task = asyncio.create_task(link.run(), name=f"{self.name} link")
        self._links[task] = link
        task.add_done_callback(self._ended)

    def _rest(self) -> None:
        """No descriptor is left for a connection: let it wait, rather than ask again at once."""
        loop, listener = asyncio.get_running_loop(), self._listener
        assert listener is not None

        def go_on() -> None:
            if self._listener is listener:
                loop.add_reader(listener, self._accept)

        loop.remove_reader(listener)
        loop.call_later(OUT_OF_DESCRIPTORS_SECONDS, go_on)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._links.pop(task).close()
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._bugs.append(bug)

    # ---- what links ask

    def loses(self, direction: Direction) -> bool:
        match self._mode:
            case Blackhole():
                return True
            case OneWay(lost=lost):
                return lost == direction
        return False

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond a change of the mode."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def random_delay(self, most_ms: float) -> float:
        return self._random.uniform(0, most_ms) / 1000

    def promise_cut(self, passed: Passed) -> _Cuts | None:
        """A promise to cut this commit, if that is the mode and there are cuts left."""
        cutting = isinstance(self._mode, CutAfterCommit) and self._cuts_left.promise(passed)
        return self._cuts_left if cutting else None

    def count_cut(self, promised: _Cuts) -> None:
        self.cuts += 1
        promised.to_make -= 1
        if promised is self._cuts_left and promised.to_make == 0:
            self._mode = Pass()

    def socket_and_address(self) -> tuple[socket.socket, tuple[str, int] | str]:
        """What to reach the target with, and where."""
        host, port = self._target
        if host.startswith("/"):
            return socket.socket(socket.AF_UNIX), f"{host}/.s.PGSQL.{port}"
        return socket.socket(), (host, port)


class _Link:
    """A client's connection, and the one to the target that belongs to it."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        _make_prompt(client)
        self._server: socket.socket | None = None
        self._conversation = Conversation()
        self._promised: _Cuts | None = None  # the commit that it is about to send will be cut off
        self._answers: asyncio.Task[None] | None = None
        self._both_ended = False
        # Who connects in a blackhole is answered by nobody, and later it is too late to begin.
        self.has_hole = isinstance(proxy.mode, Blackhole)

    async def run(self) -> None:
        """Pump until both ends have ended, or one breaks; a cancellation is a reset."""
        try:
            if self.has_hole:
                await self._swallow_all()
            self._server, address = self._proxy.socket_and_address()
            _make_prompt(self._server)
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.get_running_loop().sock_connect(self._server, address)
            async with asyncio.TaskGroup() as pumps:
                self._answers = pumps.create_task(self._pump_answers(self._server))
                pumps.create_task(self._pump_requests(self._server))
            if self.has_hole:
                # Ends were swallowed too: for a side that has not ended itself, nothing has happened.
                await _until_reset()
            self._both_ended = True
        except* OSError:
            pass  # one side is broken, which is no mistake of ours; now both are

    def close(self) -> None:
        """When `run` is over. Not a part of it: who is cancelled before the first step never runs."""
        if self._promised is not None:
            self._promised.give_back()
        for end in (self._client, self._server):
            if end is not None:
                end.close() if self._both_ended else _close_with_reset(end)

    async def _swallow_all(self) -> None:
        with contextlib.suppress(OSError):
            while await _receive(self._client):
                pass
        await _until_reset()

    async def _pump_requests(self, server: socket.socket) -> None:
        while data := await self._next(self._client, "requests"):
            if (end := self._end_of_commit(data)) is not None:
                await self._cut_off(server, data[:end])
                return
            await self._deliver(data, server, "requests")
        self._end(server, "requests")

    async def _pump_answers(self, server: socket.socket) -> None:
        while data := await self._next(server, "answers"):
            self._conversation.answered(data)
            await self._deliver(data, self._client, "answers")
        self._end(self._client, "answers")

    async def _next(self, source: socket.socket, direction: Direction) -> bytes:
        """The next bytes; none at the end, and none after a reset of which nobody is to be told."""
        with self._news_going(direction):
            return await _receive(source)
        return b""

    def _end(self, sink: socket.socket, direction: Direction) -> None:
        if self._loses(direction):
            self.has_hole = True
            return
        with self._news_going(_opposite(direction)):
            sink.shutdown(socket.SHUT_WR)

    @contextlib.contextmanager
    def _news_going(self, direction: Direction) -> Iterator[None]:
        """A reset is news for the other side, and lost like bytes that go the same way."""
        try:
            yield
        except OSError:
            if not self._loses(direction):
                raise
            self.has_hole = True

    async def _deliver(self, data: bytes, sink: socket.socket, direction: Direction) -> None:
        while data:
            if self._loses(direction):
                self.has_hole = True
                return
            mode, piece = self._proxy.mode, data
            match mode:
                case Delay():
                    await self._proxy.pause(self._proxy.random_delay(mode.most_ms))
                case Trickle():
                    await self._proxy.pause(mode.pause_ms / 1000)
                    piece = data[: mode.piece_bytes]
            if self._proxy.mode is not mode:
                continue  # what was decided before the pause is out of date
            with self._news_going(_opposite(direction)):
                await asyncio.get_running_loop().sock_sendall(sink, piece)
            data = data[len(piece) :]

    def _loses(self, direction: Direction) -> bool:
        cutting = self._promised is not None
        return self._proxy.loses(direction) or (cutting and direction == "answers")

    def _end_of_commit(self, data: bytes) -> int | None:
        """Up to where to forward before the cut, if a commit that is to be cut ends here."""
        for passed, end in self._conversation.requested(data):
            if self._promised is None:
                self._promised = self._proxy.promise_cut(passed)
                # From here on answers are lost: the server may begin to answer before the Sync.
                self.has_hole |= self._promised is not None
            if self._promised is not None and passed is not Passed.EXECUTE:
                return end
        return None

    async def _cut_off(self, server: socket.socket, commit: bytes) -> None:
        assert self._answers is not None
        assert self._promised is not None
        await asyncio.get_running_loop().sock_sendall(server, commit)
        # A socket is closed only when no task waits for it: its number goes to the next one at once.
        self._answers.cancel()
        await asyncio.wait([self._answers])
        _close_with_reset(self._client)
        server.shutdown(socket.SHUT_WR)
        self._proxy.count_cut(self._promised)
        self._promised = None
        self.has_hole = False  # the server goes to its end in peace, also when the mode changes
        async with asyncio.timeout(FAREWELL_SECONDS):
            while await _receive(server):
                pass
        raise ConnectionAbortedError("the server has ended too")


async def _receive(source: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(source, CHUNK_BYTES)


async def _until_reset() -> None:
    await asyncio.Event().wait()


def _opposite(direction: Direction) -> Direction:
    return "answers" if direction == "requests" else "requests"


def _bound_socket(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


def _make_prompt(end: socket.socket) -> None:
    """Nothing waits: not our loop for this socket, nor its small packets for larger ones."""
    end.setblocking(False)
    if end.family == socket.AF_INET:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _close_with_reset(end: socket.socket) -> None:
    """Close such that the other side gets a reset rather than an end."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.close()
